//! The devices of one address: whose turn it is, and what becomes of their answers.

use std::sync::Arc;
use std::time::Duration;

use base::clock::{Clock, SystemClock};
use db::Time;
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

/// Number of failed polls in a row from which on a device counts as failing: a line now and then spoils one.
pub const FAILING_FROM: u64 = 2;

/// Interval at which a reading is offered again to a store that is slow or full.
const RETRY: Duration = Duration::from_millis(20);

/// How long the readings of one poll wait for the store altogether. Then they are left out: a later poll has newer
/// ones.
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
    /// When its last poll began.
    begun: Duration,
    /// Whether its last poll had an answer.
    is_answering: bool,
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
                begun: Duration::ZERO,
                is_answering: false,
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
    let mut poller = Poller {
        link: Link::new(bus.address),
        devices: bus.devices,
        backoff: Backoff::default(),
        failed_at: Duration::ZERO,
        outlet: Outlet {
            destination,
            counters,
        },
        clock: SystemClock::new(),
    };
    let now = poller.now();
    for device in &mut poller.devices {
        device.due = now;
    }
    loop {
        let next = async {
            // Which one is due may have changed while it was waited for.
            let at = loop {
                let Some(at) = poller.next() else {
                    return std::future::pending().await;
                };
                let wait = poller.devices[at].due.saturating_sub(poller.now());
                if wait.is_zero() {
                    break at;
                }
                sleep(wait).await;
            };
            poller.poll(at).await
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

struct Poller<D> {
    link: Link,
    devices: Vec<Device>,
    /// For the link as a whole.
    backoff: Backoff,
    /// When the last poll without an answer ended.
    failed_at: Duration,
    outlet: Outlet<D>,
    clock: SystemClock,
}

impl<D: Destination> Poller<D> {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.monotonic_ns())
    }

    /// Returns the device that has waited longest, or has to wait least. Between two polls without an answer, each
    /// device that answers and is due gets its turn. Otherwise the timeouts of dead devices add up before a living one.
    fn next(&self) -> Option<usize> {
        let now = self.now();
        let goes_first = |device: &Device| {
            device.is_answering && device.due <= now && device.begun < self.failed_at
        };
        let is_their_turn = self.devices.iter().any(goes_first);
        (0..self.devices.len()).min_by_key(|at| {
            let device = &self.devices[*at];
            let is_later = is_their_turn && !goes_first(device);
            (is_later, device.due, device.begun)
        })
    }

    /// Asks a device for all its registers, and says when it is due again.
    async fn poll(&mut self, at: usize) -> Result<(), LogGone> {
        self.devices[at].begun = self.now();
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

    /// Leaves the link alone for a while: as long as the least patient of its devices wants. It is a failed poll of the
    /// devices that are due; the others may find the link open again.
    fn not_connected(&mut self, at: usize, failure: &Failure) {
        let all = self.devices.iter().map(|device| &device.options);
        let ms_min = all.clone().map(|options| options.retry_ms_min).min();
        let ms_max = all.map(|options| options.retry_ms_max).min();
        let now = self.now();
        let pause = self
            .backoff
            .next(ms_min.unwrap_or_default(), ms_max.unwrap_or_default());
        for (index, device) in self.devices.iter_mut().enumerate() {
            if index == at || device.due <= now {
                device.state.note(failure);
                device.state.polled(false);
            }
            device.due = device.due.max(now + pause);
        }
    }

    fn set_due(&mut self, at: usize, fault: Option<Fault>) {
        let now = self.now();
        let device = &mut self.devices[at];
        let options = &device.options;
        device.is_answering = fault.is_none_or(Fault::is_of_request);
        if device.is_answering {
            device.backoff.reset();
            let (next, missed) = following(device.due, now, options.interval_ms);
            device.due = next;
            device.state.missed(missed);
            return;
        }
        self.failed_at = now;
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

/// Returns when the next poll is due, after one that was `due` then and has ended `now`, and how many are left out. The
/// polls keep their rhythm, and one that can still begin before the next one is due is not left out.
fn following(due: Duration, now: Duration, interval_ms: u64) -> (Duration, u64) {
    let interval_ms = interval_ms.max(1);
    let late_ms = now.saturating_sub(due).as_millis();
    let intervals = u64::try_from(late_ms).unwrap_or(u64::MAX) / interval_ms;
    let intervals = intervals.max(1);
    let next = due + Duration::from_millis(interval_ms.saturating_mul(intervals));
    (next, intervals - 1)
}

/// Where readings go.
struct Outlet<D> {
    destination: Arc<D>,
    counters: Arc<IntakeCounters>,
}

impl<D: Destination> Outlet<D> {
    /// Hands over the values in an answer, which has come now. `patience`: how long they may still wait.
    async fn take(
        &self,
        device: &Device,
        request: &Request,
        answer: &Answer,
        patience: &mut Duration,
    ) -> Result<(), LogGone> {
        let destination = &self.destination;
        let now = || Time::from_ms(destination.wall_ms());
        let came = destination.wall_trusted().then(now);
        let mut waiting = Waiting { came, patience };
        for index in &request.registers {
            let register = &device.options.registers[*index];
            match value(register, request.address, answer) {
                Ok(value) => {
                    let put = self.put(register, value, &device.state, &mut waiting);
                    put.await?;
                }
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
        waiting: &mut Waiting<'_>,
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
            let time = waiting.time();
            match self.destination.put(object, &space[..bytes], time) {
                Ok(_) => {
                    self.counters.add_reading();
                    state.add_reading();
                }
                Err(PutError::Wait { .. }) if !waiting.patience.is_zero() => {
                    sleep(RETRY).await;
                    *waiting.patience = waiting.patience.saturating_sub(RETRY);
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

/// How the readings of an answer wait.
struct Waiting<'a> {
    /// When the answer came, by a wall clock that is trusted.
    came: Option<Time>,
    /// How long the readings of the poll may still wait.
    patience: &'a mut Duration,
}

impl Waiting<'_> {
    /// Returns the time of a reading: that of its answer once the poll has waited for the store, which gives it until
    /// then.
    fn time(&self) -> Option<Time> {
        self.came.filter(|_| *self.patience < STORE_WAIT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::following;
    use std::time::Duration;

    #[test]
    fn a_poll_is_left_out_when_the_next_one_is_due_before_it_can_begin() {
        let ms = Duration::from_millis;
        for (end_ms, next_ms, missed) in [
            (0, 1_000, 0),
            (999, 1_000, 0),
            (1_000, 1_000, 0),
            // It begins late, and is not left out.
            (1_100, 1_000, 0),
            (1_999, 1_000, 0),
            (2_000, 2_000, 1),
            (2_999, 2_000, 1),
            (86_400_500, 86_400_000, 86_399),
        ] {
            let found = following(ms(7), ms(7 + end_ms), 1_000);
            assert_eq!(found, (ms(7 + next_ms), missed), "{end_ms}");
        }
        // A clock that stands still, and no interval.
        assert_eq!(following(ms(7), ms(3), 1_000), (ms(1_007), 0));
        assert_eq!(following(ms(7), ms(7), 0), (ms(8), 0));
    }

    #[test]
    fn polls_that_take_longer_than_their_interval_keep_the_rhythm() {
        let (interval_ms, took) = (1_000, Duration::from_millis(1_100));
        let (mut due, mut now) = (Duration::ZERO, Duration::ZERO);
        let (mut polls, mut left_out) = (0, 0);
        while now < Duration::from_secs(110) {
            now = now.max(due) + took;
            let (next, missed) = following(due, now, interval_ms);
            due = next;
            polls += 1;
            left_out += missed;
            assert_eq!(due.as_millis(), 1_000 * (polls + u128::from(left_out)));
        }
        // The line is never idle: only what it cannot do is left out.
        assert_eq!((polls, left_out), (100, 10));
    }
}
