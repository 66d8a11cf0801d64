//! What every room of Evenkeel is built on: devices, time, latency figures, error codes, the wire codec.
//!
//! **Holds:** the [`block::BlockDevice`] interface with its file and raw-device implementation, the [`clock::Clock`]
//! interface, the allocation-free [`histogram::Histogram`], the [`monitor::Monitor`] of a task's run times, the
//! [`error::Code`] table, the checksummed [`wire`] codec, what every FUSE [`mount`] needs, and the simulated twins of
//! device and clock in [`sim`].
//!
//! **Must not know:** any other room, an async runtime, configuration.
//!
//! **Invariants:** A device call that returns `Ok` has done exactly what it says. The simulated device is a pure
//! function of its seed and of the calls made. Nothing here allocates after construction on a path that a real-time
//! caller uses.
//!
//! **Files:** `block/` the device interface and the file device, `clock.rs`, `histogram.rs`, `monitor.rs`, `error.rs`,
//! `mount.rs`, `pattern.rs` patterns over keys, `seeded_bug.rs`, `socket.rs` peers that vanish, `wire.rs` (every byte
//! of it in `WIRE.md`), `sim/` the simulated device and clock, the fault model and the generator behind them.

pub mod block;
pub mod clock;
pub mod error;
pub mod histogram;
pub mod monitor;
pub mod mount;
pub mod pattern;
pub mod seeded_bug;
pub mod sim;
pub mod socket;
pub mod wire;
