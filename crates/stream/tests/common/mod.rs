//! A folder that is removed when a test ends, and files with known bytes.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use stream::publish::PackOptions;

/// A folder for one test.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a new, empty folder.
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = format!("keel-stream-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(folder);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Returns a path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns bytes that compress to about half their size and differ for each seed.
pub fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8 & 0x0f
    };
    (0..length).map(|_| next()).collect()
}

/// Writes a file, with its directories.
pub fn write(path: &Path, length: usize, seed: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes(length, seed)).unwrap();
}

/// Returns the options of publishing, unless a test needs others.
pub fn options() -> PackOptions {
    PackOptions::default()
}
