//! The committed corpora of the fuzz targets of the store, replayed on the stable toolchain.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

#[path = "../../../fuzz/src/flash/mod.rs"]
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
fn flash_image() {
    replay("flash_image", entries::flash_image);
}

#[test]
fn flash_raw() {
    replay("flash_raw", entries::flash_raw);
}
