//! Common parts of the fuzz targets.
//!
//! **Holds:** the programs' frame. Each other file in this directory is the body of a target; tests of the crates
//! include these files and run the committed corpora through them.
//!
//! **Must not know:** the subject of a target.
//!
//! **Invariants:** the fuzzer is built by cargo-fuzz alone; everything else builds on the stable toolchain.
//!
//! **Files:** this one; `intake.rs` for lines and messages of MQTT, `modbus.rs` for answers of devices, `sparkplug.rs`
//! for messages of edge nodes, `intake_store.rs` where both put readings; the others have the name of their target.

pub mod intake;
mod intake_store;
pub mod modbus;
pub mod sparkplug;

/// Declares a program that passes bytes to a function: those of the fuzzer if cargo-fuzz builds it, otherwise those of
/// the files given as arguments.
#[macro_export]
macro_rules! fuzz_target {
    ($run:path) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $run(data));

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            $crate::run_files($run)
        }
    };
}

/// Passes each file given as an argument to a function, to examine single inputs without the fuzzer.
///
/// # Errors
///
/// A file that cannot be read.
pub fn run_files(run: fn(&[u8])) -> std::io::Result<()> {
    for path in std::env::args_os().skip(1) {
        run(&std::fs::read(path)?);
    }
    Ok(())
}
