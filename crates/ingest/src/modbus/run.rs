//! The devices of one address: whose turn it is, and what becomes of their answers.

use std::sync::Arc;
use std::time::Duration;

use base::clock::{Clock, SystemClock};
use db::value::Value;
use tokio::time::sleep;

use super::decode::value;
use super::exchange::{Answer, Failure, Fault};
use super::link::Link;
use super::options::{Address, DeviceOptions, Register};
use super::plan::{Request, plan};
use super::state::{Control, DeviceState};
use crate::intake::{Destination, IntakeCounters, LogGone, PutError, Reason};
use crate::mqtt::pace::Backoff;

/// From so many failed polls in a row on, a device counts as failing: a line now and then spoils one.
pub const FAILING_FROM: u64 = 2;

/// Interval at which a reading is offered again to a store that is slow or full.
const RETRY: Duration = Duration::from_millis(20);

/// How long the readings of one poll wait for the store altogether. Then they are left out: a later poll has newer
/// ones, and a value that has waited must not get the time at which its wait ends.
const STORE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Bytes of the longest stored value of a register.
const VALUE_BYTES_MAX: usize = 9;

/// Why [`run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The controller requested it.
    Stopped,
    /// The log has failed for good: no reading can be taken any more.
    LogFailed,
}

/// The devices of one address, which take turns.
#[derive(Debug)]
pub struct Bus {
    address: Address,
    devices: Vec<Device>,
}

#[derive(Debug)]
struct Device {
    options: DeviceOptions,
    requests: Vec<Request>,
    state: Arc<DeviceState>,
    backoff: Backoff,
    /// When its next poll is due, by the clock of the bus.
    due: Duration,
}

impl Bus {
    /// Divides devices, each with its state, by their addresses.
    #[must_use]
    pub fn of(devices: Vec<(DeviceOptions, Arc<DeviceState>)>) -> Vec<Self> {
        let mut buses: Vec<Self> = Vec::new();
        for (options, state) in devices {
            let address = options.address.clone();
            let device = Device {
                requests: plan(&options.registers, options.gap_max),
                options,
                state,
                backoff: Backoff::default(),
                due: Duration::ZERO,
            };
            match buses.iter_mut().find(|bus| bus.address == address) {
                Some(bus) => bus.devices.push(device),
                None => buses.push(Self {
                    address,
                    devices: vec![device],
                }),
            }
        }
        buses
    }

    /// Returns the address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }
}

/// Polls the devices of a bus until the control says stop or the log fails. They need not be there at the start. Must
/// run on a runtime with time and network. Readings are counted in `counters`, with their refusals.
pub async fn run<D: Destination>(
    bus: Bus,
    destination: Arc<D>,
    counters: Arc<IntakeCounters>,
    mut control: Control,
) -> Ended {
    let mut turns = Turns {
        link: Link::new(bus.address),
        devices: bus.devices,
        backoff: Backoff::default(),
        outlet: Outlet {
            destination,
            counters,
        },
        clock: SystemClock::new(),
    };
    let now = turns.now();
    for device in &mut turns.devices {
        device.due = now;
    }
    loop {
        let next = async {
            let Some(at) = turns.next() else {
                return std::future::pending().await;
            };
            sleep(turns.devices[at].due.saturating_sub(turns.now())).await;
            turns.poll(at).await
        };
        tokio::select! {
            biased;
            () = control.stopped() => return Ended::Stopped,
            polled = next => if polled == Err(LogGone) {
                return Ended::LogFailed;
            },
        }
    }
}

struct Turns<D> {
    link: Link,
    devices: Vec<Device>,
    /// For the link as a whole.
    backoff: Backoff,
    outlet: Outlet<D>,
    clock: SystemClock,
}

impl<D: Destination> Turns<D> {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_ns())
    }

    /// Returns the device that has waited longest, or has to wait least.
    fn next(&self) -> Option<usize> {
        (0..self.devices.len()).min_by_key(|at| self.devices[*at].due)
    }

    /// Asks a device for all its registers, and says when it is due again.
    async fn poll(&mut self, at: usize) -> Result<(), LogGone> {
        let device = &self.devices[at];
        let limit = Duration::from_millis(device.options.timeout_ms);
        if !self.link.is_open() {
            if let Err(failure) = self.link.open(limit).await {
                self.not_connected(at, &failure);
                return Ok(());
            }
            self.backoff.reset();
        }
        let mut patience = STORE_WAIT_MAX;
        let mut fault = None;
        for request in &device.requests {
            let asked = self.link.ask(device.options.unit, request, limit).await;
            match asked {
                Ok(answer) => {
                    let taken = self.outlet.take(device, request, &answer, &mut patience);
                    taken.await?;
                }
                Err(failure) => {
                    device.state.note(&failure);
                    fault = Some(failure.fault);
                    if !failure.fault.is_of_request() {
                        break;
                    }
                }
            }
        }
        device.state.polled(fault.is_none());
        self.set_due(at, fault);
        Ok(())
    }

    /// Leaves the link alone for a while.
    fn not_connected(&mut self, at: usize, failure: &Failure) {
        let options = &self.devices[at].options;
        let pause = self
            .backoff
            .next(options.retry_ms_min, options.retry_ms_max);
        let again = self.now() + pause;
        for device in &mut self.devices {
            device.state.note(failure);
            device.state.polled(false);
            device.due = device.due.max(again);
        }
    }

    fn set_due(&mut self, at: usize, fault: Option<Fault>) {
        let now = self.now();
        let device = &mut self.devices[at];
        let options = &device.options;
        if fault.is_none_or(Fault::is_of_request) {
            device.backoff.reset();
            let interval_ms = options.interval_ms.max(1);
            let late_ms = now.saturating_sub(device.due).as_millis();
            let missed = u64::try_from(late_ms).unwrap_or(u64::MAX) / interval_ms;
            device.state.missed(missed);
            device.due += Duration::from_millis(interval_ms.saturating_mul(missed + 1));
            return;
        }
        let pause = device
            .backoff
            .next(options.retry_ms_min, options.retry_ms_max);
        device.due = now + pause;
        if !self.link.is_line() {
            return;
        }
        // Its answer may still come. Until another timeout is over, nothing is asked that this unit could answer.
        let limit = Duration::from_millis(options.timeout_ms);
        let (unit, quiet) = (options.unit, now + limit);
        for other in &mut self.devices {
            if other.options.unit == unit {
                other.due = other.due.max(quiet);
            }
        }
    }
}

/// Where readings go.
struct Outlet<D> {
    destination: Arc<D>,
    counters: Arc<IntakeCounters>,
}

impl<D: Destination> Outlet<D> {
    /// Hands over the values in an answer. `patience`: how long they may still wait.
    async fn take(
        &self,
        device: &Device,
        request: &Request,
        answer: &Answer,
        patience: &mut Duration,
    ) -> Result<(), LogGone> {
        for index in &request.registers {
            let register = &device.options.registers[*index];
            match value(register, request.address, answer) {
                Ok(value) => self.put(register, value, &device.state, patience).await?,
                Err(reason) => self.refuse(reason, register, "no finite number"),
            }
        }
        Ok(())
    }

    async fn put(
        &self,
        register: &Register,
        value: Value<'_>,
        state: &DeviceState,
        patience: &mut Duration,
    ) -> Result<(), LogGone> {
        let mut space = [0; VALUE_BYTES_MAX];
        let encoded = value.encode(&mut space);
        let resolved = self.destination.resolve(&register.key);
        let (bytes, object) = match (encoded, resolved) {
            (Ok(bytes), Ok(object)) => (bytes, object),
            (_, Err(reason)) => {
                self.refuse(reason, register, &value.to_string());
                return Ok(());
            }
            (Err(_), _) => {
                self.refuse(Reason::ValueTooLong, register, &value.to_string());
                return Ok(());
            }
        };
        loop {
            match self.destination.put(object, &space[..bytes], None) {
                Ok(_) => {
                    self.counters.add_reading();
                    state.add_reading();
                }
                Err(PutError::Wait { .. }) if !patience.is_zero() => {
                    sleep(RETRY).await;
                    *patience = patience.saturating_sub(RETRY);
                    continue;
                }
                Err(PutError::Wait { .. }) => state.add_left_out(),
                Err(PutError::Refused(reason)) => {
                    self.refuse(reason, register, &value.to_string());
                }
                Err(PutError::Shed) => self.counters.add_shed(),
                Err(PutError::Failed) => return Err(LogGone),
            }
            return Ok(());
        }
    }

    fn refuse(&self, reason: Reason, register: &Register, what: &str) {
        let pieces = [register.key.as_bytes(), b": ", what.as_bytes()];
        self.counters.refuse(reason, &pieces);
    }
}
