//! The committed corpora of the fuzz targets of the in-memory file system, replayed on the stable toolchain.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

#[path = "../../../fuzz/src/mem/mod.rs"]
mod entries;

/// Runs every file of a corpus, and says which one it was that panicked.
fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 10, "the corpus of {target} is missing");
    for file in files {
        let data = fs::read(&file).unwrap();
        assert!(
            catch_unwind(|| run(&data)).is_ok(),
            "{} panics",
            file.display()
        );
    }
}

#[test]
fn mem_region() {
    replay("mem_region", entries::mem_region);
}

#[test]
fn mem_checkpoint() {
    replay("mem_checkpoint", entries::mem_checkpoint);
}
