//! What the tests of `keel flash` share: stores, test data, a writing program, loop devices.

// Each test program uses only a part of this file.
#![allow(dead_code)]

#[path = "../../../base/tests/loop_device.rs"]
mod loop_device;

use crate::common::{TempDir, keel, ok, run, run_with_input, wait_until};
pub use loop_device::Loop;
use std::fs::File;
use std::io::Write;
use std::process::{Child, Stdio};

/// Returns bytes without a pattern that could hide an error.
pub fn bytes(count: usize) -> Vec<u8> {
    bytes_of(1, count)
}

/// The same, with different bytes for each seed.
pub fn bytes_of(seed: u32, count: usize) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(next).collect()
}

/// Creates a store in a directory. Returns its path.
pub fn store(dir: &TempDir, size: &str) -> String {
    let image = dir.file("store.img").display().to_string();
    ok(&["flash", "format", &image, "--size", size, "--files", "100"]);
    image
}

pub fn put(image: &str, name: &str, content: &[u8]) {
    let output = run_with_input(&["flash", "put", image, name], content);
    assert!(output.status.success(), "{output:?}");
}

pub fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

/// A program that has the store open for writing, and waits for its input.
pub struct Writer(Child);

impl Writer {
    pub fn start(image: &str) -> Self {
        let mut expected = run(&["flash", "get", image, "log"]).stdout;
        expected.extend_from_slice(b"more");
        let mut child = keel()
            .args(["flash", "append", image, "log"])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.as_mut().unwrap().write_all(b"more").unwrap();
        wait_until("the writer", || {
            run(&["flash", "get", image, "log"]).stdout == expected
        });
        Self(child)
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Creates a sparse file of zeros. Returns its path.
pub fn sparse_file(dir: &TempDir, bytes: u64) -> String {
    let path = dir.file("backing");
    let file = File::create(&path).unwrap();
    file.set_len(bytes).unwrap();
    path.display().to_string()
}
