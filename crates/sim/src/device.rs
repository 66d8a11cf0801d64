//! The simulated device as a life of the node has it. Its requests take time, and it ends at a drawn write. At drawn
//! writes it keeps what a power cut would find.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::block::{BlockDevice, Counters, DeviceError, Geometry};
use base::clock::Clock;
use base::sim::{FaultCounters, FaultPlan, Keep, LatencyModel, Random, SimClock, SimDevice};

/// Gap before the first moment that is kept, in unflushed writes. Each gap is twice as long as the one before, so a
/// long life keeps few more moments than a short one.
const FIRST_GAP: u64 = 100;
/// Most unflushed writes that count for one write.
const WEIGHT_MAX: u64 = 8;
/// The first sector of each block of a request, and no other.
const FIRST_SECTORS: u64 = 0x0101_0101_0101_0101;
const CERTAIN_PPM: u32 = 1_000_000;
/// A plan by which each request fails.
const ALL_FAIL: FaultPlan = FaultPlan {
    write_lost_ppm: 0,
    write_misdirected_ppm: 0,
    write_rot_ppm: 0,
    write_error_ppm: CERTAIN_PPM,
    read_rot_ppm: 0,
    read_error_ppm: CERTAIN_PPM,
    flush_error_ppm: CERTAIN_PPM,
    stall_ppm: 0,
    stall_ns: 0,
};

/// A handle of the device; all clones are one device.
#[derive(Clone)]
pub(crate) struct Device {
    state: Arc<Mutex<State>>,
}

struct State {
    inner: SimDevice,
    /// Moves on by what the requests take.
    spent: SimClock,
    /// What `spent` showed when it was asked last.
    spent_before_ns: u64,
    /// The write with this number is the last one, counted down.
    writes_left: Option<u64>,
    /// Nothing is answered any more: power or process is gone.
    is_gone: bool,
    /// What may go wrong, while the device answers at all.
    plan: FaultPlan,
    /// Number of requests that fail from now on.
    failing: u64,
    watch: Option<Watch>,
}

struct Watch {
    /// What a thread beside the commit side would be told now.
    durable_end: Box<dyn Fn() -> u64 + Send>,
    random: Random,
    gap: u64,
    left: u64,
    moments: Vec<Moment>,
}

/// A moment at which the power could have failed.
pub(crate) struct Moment {
    device: SimDevice,
    /// The number below which all readings were said to be durable.
    pub(crate) durable_end: u64,
}

impl Moment {
    /// What is left if no unflushed write has arrived.
    pub(crate) fn without_cache(&self) -> SimDevice {
        self.device.crash_image(&|_| Keep::Lost)
    }

    /// What is left if parts of the last unflushed write have arrived, and nothing of the others.
    pub(crate) fn with_last_torn(&self, random: &mut Random) -> SimDevice {
        let last = self.device.unflushed_count().saturating_sub(1);
        let sector_mask = match random.coin() {
            true => FIRST_SECTORS,
            false => random.next_u64(),
        };
        self.device.crash_image(&|index| match index == last {
            true => Keep::Torn { sector_mask },
            false => Keep::Lost,
        })
    }

    /// What is left if chance decides about each unflushed write.
    pub(crate) fn at_random(&self, random: &mut Random) -> SimDevice {
        self.device.crash_image_random(random.next_u64())
    }
}

impl Device {
    /// A device for one life.
    pub(crate) fn new(mut inner: SimDevice, latency: LatencyModel) -> Self {
        // A clock of its own: the time of a step is added up first, and passes when the step is over.
        let spent = SimClock::new(0);
        inner.set_latency(spent.clone(), latency);
        let state = State {
            inner,
            spent,
            spent_before_ns: 0,
            writes_left: None,
            is_gone: false,
            plan: FaultPlan::default(),
            failing: 0,
            watch: None,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// A device to look at what is left: its requests take no time and do not fail.
    pub(crate) fn image(mut inner: SimDevice) -> Self {
        inner.set_fault_plan(FaultPlan::default());
        inner.set_full_after_blocks(None);
        Self::new(inner, LatencyModel::default())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every update leaves the state whole, so a panicking holder has done no harm.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the `writes`-th write from now the last one; 0 ends the device at once.
    pub(crate) fn end_after_writes(&self, writes: u64) {
        let mut state = self.lock();
        state.is_gone |= writes == 0;
        state.writes_left = Some(writes);
    }

    /// Sets what may go wrong from now on.
    pub(crate) fn set_faults(&self, plan: FaultPlan) {
        let mut state = self.lock();
        state.plan = plan;
        state.failing = 0;
        state.inner.set_fault_plan(plan);
    }

    /// Lets the next requests fail.
    pub(crate) fn fail(&self, requests: u64) {
        let mut state = self.lock();
        state.failing = requests;
        state.inner.set_fault_plan(ALL_FAIL);
    }

    /// Lets the device take this number of blocks more; `None`: as many as it has.
    pub(crate) fn set_room(&self, blocks: Option<u64>) {
        let mut state = self.lock();
        let held = state.inner.held_count();
        let blocks_max = blocks.map(|blocks| held + blocks);
        state.inner.set_full_after_blocks(blocks_max);
    }

    /// Returns the faults that the device has committed.
    pub(crate) fn faults(&self) -> FaultCounters {
        self.lock().inner.fault_counters()
    }

    /// Whether nothing is answered any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.lock().is_gone
    }

    /// Returns what requests have taken since the last call, in ns.
    pub(crate) fn take_spent_ns(&self) -> u64 {
        let mut state = self.lock();
        let spent_ns = state.spent.monotonic_ns();
        let before_ns = std::mem::replace(&mut state.spent_before_ns, spent_ns);
        spent_ns - before_ns
    }

    /// Keeps drawn moments from now on. `durable_end` is asked while a write runs, so it must take no lock.
    pub(crate) fn watch(&self, mut random: Random, durable_end: Box<dyn Fn() -> u64 + Send>) {
        let left = 1 + random.below(FIRST_GAP);
        self.lock().watch = Some(Watch {
            durable_end,
            random,
            gap: FIRST_GAP,
            left,
            moments: Vec::new(),
        });
    }

    /// Takes the moments kept since the last call.
    pub(crate) fn take_moments(&self) -> Vec<Moment> {
        let mut state = self.lock();
        let watch = state.watch.as_mut();
        watch.map_or_else(Vec::new, |watch| std::mem::take(&mut watch.moments))
    }

    /// Returns the device as it is, with its cache: what the next process finds.
    pub(crate) fn left_running(&self) -> SimDevice {
        self.lock().inner.clone()
    }

    /// Returns what a power cut leaves.
    pub(crate) fn left_by_cut(&self, seed: u64) -> SimDevice {
        self.lock().inner.crash_image_random(seed)
    }
}

impl State {
    /// Begins a request.
    fn require(&mut self) -> Result<(), DeviceError> {
        if self.is_gone {
            return Err(DeviceError::PowerLost);
        }
        if self.failing > 0 {
            self.failing -= 1;
        } else {
            self.inner.set_fault_plan(self.plan);
        }
        Ok(())
    }

    /// Keeps this moment if it is a drawn one. The more writes are unflushed, the more states a cut can leave, and the
    /// more often the moment is one.
    fn look(&mut self) {
        let Some(watch) = &mut self.watch else {
            return;
        };
        let weight = (self.inner.unflushed_count() as u64).min(WEIGHT_MAX);
        watch.left = watch.left.saturating_sub(weight);
        if watch.left > 0 {
            return;
        }
        watch.gap = watch.gap.saturating_mul(2);
        watch.left = 1 + watch.random.below(watch.gap);
        watch.moments.push(Moment {
            device: self.inner.clone(),
            durable_end: (watch.durable_end)(),
        });
    }
}

impl BlockDevice for Device {
    fn geometry(&self) -> Geometry {
        self.lock().inner.geometry()
    }

    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.require()?;
        state.inner.read(first_block, buffer)
    }

    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.require()?;
        state.inner.write(first_block, data)?;
        if let Some(left) = &mut state.writes_left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                // The device has the request, and its caller gets no answer.
                state.is_gone = true;
                return Err(DeviceError::PowerLost);
            }
        }
        state.look();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.require()?;
        state.inner.flush()
    }

    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        let mut state = self.lock();
        state.require()?;
        state.inner.discard(first_block, block_count)
    }

    fn counters(&self) -> Counters {
        self.lock().inner.counters()
    }

    fn reset_write_blocks_max(&mut self) {
        self.lock().inner.reset_write_blocks_max();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::block::BLOCK_BYTES;

    const ONES: [u8; BLOCK_BYTES] = [1; BLOCK_BYTES];

    #[test]
    fn the_drawn_write_is_the_last_and_a_kill_leaves_the_cache() {
        let mut device = Device::image(SimDevice::new(8, 1));
        device.write(0, &ONES).expect("on");
        device.end_after_writes(2);
        device.write(1, &ONES).expect("on");
        assert!(device.write(2, &ONES).is_err() && device.is_gone());
        assert!(device.write(3, &ONES).is_err() && device.flush().is_err());
        let left = device.left_running();
        assert_eq!((left.unflushed_count(), left.held_count()), (3, 3));
        assert!(left.is_powered());
    }

    #[test]
    fn requests_take_the_time_of_the_model_in_a_clock_of_their_own() {
        let latency = LatencyModel {
            write_ns: 70,
            flush_ns: 5,
            ..LatencyModel::default()
        };
        let mut device = Device::new(SimDevice::new(8, 1), latency);
        device.write(0, &ONES).expect("on");
        device.flush().expect("on");
        assert_eq!((device.take_spent_ns(), device.take_spent_ns()), (75, 0));
    }

    #[test]
    fn requests_fail_for_a_while_and_then_succeed() {
        let mut device = Device::image(SimDevice::new(8, 1));
        device.write(0, &ONES).expect("on");
        device.fail(3);
        assert!(device.write(1, &ONES).is_err() && device.flush().is_err());
        assert!(device.read(0, &mut [0; BLOCK_BYTES]).is_err());
        device.write(1, &ONES).expect("no more");
        let faults = device.faults();
        assert_eq!(
            (faults.write_errors, faults.flush_errors, faults.read_errors),
            (1, 1, 1)
        );
        device.set_room(Some(0));
        assert!(device.write(7, &ONES).is_err());
        device.set_room(None);
        device.write(7, &ONES).expect("room");
    }

    #[test]
    fn moments_are_kept_at_fewer_and_fewer_writes() {
        let mut device = Device::image(SimDevice::new(8, 1));
        device.watch(Random::new(1), Box::new(|| 7));
        let mut kept = [0, 0];
        for half in &mut kept {
            for _ in 0..4_000 {
                device.write(0, &ONES).expect("on");
                device.flush().expect("on");
                let moments = device.take_moments();
                assert!(moments.iter().all(|moment| moment.durable_end == 7));
                for moment in &moments {
                    assert_eq!(moment.device.unflushed_count(), 1);
                }
                *half += moments.len();
            }
        }
        assert!(kept[0] > kept[1] && kept[0] < 20, "{kept:?}");
    }
}
