//! What the fuzz targets are made of.
//!
//! **Holds:** the programs' frame. Each other file beside this one says what a target does with its bytes; tests of the
//! crates include these files and run the committed corpora through them.
//!
//! **Must not know:** what a target looks at.
//!
//! **Invariants:** the fuzzer is built by cargo-fuzz alone; everything else builds on the stable toolchain.
//!
//! **Files:** this one; `intake.rs` for lines and messages of MQTT; the others by the name of their target.

pub mod intake;

/// Declares a program that gives bytes to a function: those of the fuzzer where cargo-fuzz builds it, otherwise those
/// of the files that are named as arguments.
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

/// Gives each file that is named as an argument to a function, for a look at one input without the fuzzer.
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
