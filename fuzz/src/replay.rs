//! The committed corpus of a fuzz target, replayed on the stable toolchain. Tests of the crates under `crates/` include
//! this file together with the targets; the fuzzer does not use it.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

/// Smallest number of files of a corpus.
const FILES_MIN: usize = 10;

/// Runs every file of a corpus, and names a file that panics.
pub fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(
        files.len() >= FILES_MIN,
        "the corpus of {target} is missing"
    );
    for file in files {
        let data = fs::read(&file).unwrap();
        assert!(
            catch_unwind(|| run(&data)).is_ok(),
            "{} panics",
            file.display()
        );
    }
}
