//! The simulated twins of device and clock: the same interfaces, driven by one seed and by the test.
//!
//! One seed reproduces a whole run. The fault model of the device stands at the top of `device.rs`.

mod clock;
mod device;
mod fault;
mod flat;
mod image;
mod random;

pub use clock::SimClock;
pub use device::{BLOCK_COUNT_MAX, Keep, SimDevice, UnflushedWrite};
pub use fault::{FaultCounters, FaultPlan, LatencyModel};
pub use flat::FlatDevice;
pub use random::Random;
