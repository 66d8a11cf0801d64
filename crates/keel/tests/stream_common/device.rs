//! What the tests of a device share: its cache and damage to it, mounts that fail, operation without a server.

use super::{Mount, TABLE_BLOCKS, run_within};
use crate::common::{TempDir, keel, ok, one_line, wait_until};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The blocks of the program's table that a start reads in these tests.
pub const ARGUMENTS: &[&str] = &["300-340", "17", "100-130"];

/// Returns the range of all blocks of the table.
pub fn all_blocks() -> String {
    format!("0-{}", TABLE_BLOCKS - 1)
}

/// Returns the path of a name in a directory, as an argument.
pub fn path(dir: &TempDir, name: &str) -> String {
    dir.file(name).display().to_string()
}

/// Creates an empty flash store for a cache in a directory.
pub fn flash_image(dir: &TempDir, name: &str, size: &str) -> String {
    let image = path(dir, name);
    ok(&["flash", "format", &image, "--size", size, "--files", "100"]);
    image
}

/// Runs a mount that must fail. Returns its error, which must be one line.
pub fn fails_to_mount(dir: &TempDir, at: &str, server: SocketAddr, options: &[&str]) -> String {
    let mut all = vec!["--insecure"];
    all.extend(options);
    fails_to_mount_as(dir, at, server, &all)
}

/// As [`fails_to_mount`], with options for the identity.
pub fn fails_to_mount_as(dir: &TempDir, at: &str, server: SocketAddr, options: &[&str]) -> String {
    let at = dir.file(at);
    std::fs::create_dir_all(&at).unwrap();
    let mut command = keel();
    command
        .args(["stream", "mount", &server.to_string()])
        .arg(&at)
        .args(options);
    let output = run_within(&mut command, Duration::from_secs(60));
    let output = output.expect("the mount is refused within a minute");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(output.stdout, b"");
    one_line(&output.stderr)
}

/// Waits until a mount is connected to its server.
pub fn wait_connected(mount: &Mount) {
    wait_until("a connection", || mount.count("connected") == 1);
}

/// Checks that a block that is neither cached nor available from a server is an error by the deadline: EIO for a call,
/// SIGBUS for a program, and no data that the program could use.
pub fn fails_by_the_deadline(mount: &Mount, file: &str, block: &str) {
    let error = std::fs::read(mount.at.join(file)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    let output = run_within(
        Command::new(mount.program()).arg(block),
        Duration::from_secs(60),
    );
    let output = output.expect("the program has ended within a minute");
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(signal, Some(libc::SIGBUS), "{output:?}");
    assert_eq!(output.stdout, b"");
    assert!(mount.count("reads_late") >= 2);
}

/// Copies a folder.
pub fn copy_folder(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(status.unwrap().success());
}

/// Returns the files of a cache directory whose names begin with `kind`.
pub fn logs(cache: &Path, kind: &str) -> Vec<PathBuf> {
    let mut logs: Vec<_> = std::fs::read_dir(cache)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(kind)
        })
        .collect();
    logs.sort();
    logs
}

/// A separate file system in memory; unmounted on drop.
pub struct MemoryDisk(pub PathBuf);

impl MemoryDisk {
    pub fn new(dir: &TempDir, name: &str, size: &str) -> Self {
        let at = dir.file(name);
        std::fs::create_dir_all(&at).unwrap();
        let disk = Self(at);
        disk.mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "keel-test"]);
        disk
    }

    pub fn set_read_only(&self, is_read_only: bool) {
        let access = if is_read_only { "ro" } else { "rw" };
        self.mount(&["-o", &format!("remount,{access}")]);
    }

    fn mount(&self, arguments: &[&str]) {
        let status = Command::new("mount").args(arguments).arg(&self.0).status();
        assert!(status.unwrap().success(), "mount {arguments:?}");
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        super::detach(&self.0);
    }
}
