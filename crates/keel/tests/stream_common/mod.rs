//! What the tests of `keel stream` share: a published program whose reads are known, a server, and a mount. The
//! connection between them can be disturbed.

// Each test program uses only a part of this file.
#![allow(dead_code)]

pub mod device;
pub mod liar;
pub mod proxy;

use crate::common::{TempDir, keel, ok, signal, wait_until};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The number of blocks in the table of the program of [`tree`].
pub const TABLE_BLOCKS: usize = 600;

/// A program with a table of [`TABLE_BLOCKS`] blocks. Its arguments are ranges of blocks (`10-20`), which it reads in
/// order, or pauses (`sleep:250`, milliseconds; `wait`: maps what the page cache has of the program, prints a message,
/// then waits until its input ends). It prints a number computed from all bytes that it has read.
const PROGRAM: &str = r#"
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
__asm__(".section .rodata\n.balign 4096\n.global table\ntable:\n.incbin \"table.bin\"\n"
        ".global table_end\ntable_end:\n.previous\n");
extern const unsigned char table[], table_end[];
/* A page that the program has written is a copy: it does not keep the page of the file in the page cache. */
static int map_cached_pages(void) {
    struct stat file;
    int descriptor = open("/proc/self/exe", O_RDONLY);
    if (descriptor < 0 || fstat(descriptor, &file)) return 4;
    long pages = (file.st_size + 4095) / 4096;
    unsigned char *cached = malloc(pages);
    volatile char *bytes = mmap(0, file.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (!cached || bytes == MAP_FAILED || mincore((void *)bytes, file.st_size, cached)) return 5;
    for (long page = 0; page < pages; page++)
        if (cached[page] & 1) (void)bytes[page * 4096];
    return 0;
}
int main(int count, char **arguments) {
    uint64_t sum = 14695981039346656037u;
    for (int at = 1; at < count; at++) {
        if (strncmp(arguments[at], "sleep:", 6) == 0) {
            long ms = atol(arguments[at] + 6);
            struct timespec time = {ms / 1000, ms % 1000 * 1000000};
            nanosleep(&time, 0);
            continue;
        }
        if (strcmp(arguments[at], "wait") == 0) {
            int failed = map_cached_pages();
            if (failed) return failed;
            puts("waits");
            fflush(stdout);
            getchar();
            continue;
        }
        long from = atol(arguments[at]), to = from;
        char *dash = strchr(arguments[at], '-');
        if (dash) to = atol(dash + 1);
        for (long block = from; block <= to; block++) {
            const unsigned char *bytes = table + block * 4096;
            if (bytes + 4096 > table_end) return 2;
            for (int i = 0; i < 4096; i++) sum = (sum ^ bytes[i]) * 1099511628211u;
        }
    }
    printf("%016llx\n", (unsigned long long)sum);
    return fflush(stdout) ? 3 : 0;
}
"#;

/// Returns bytes without a pattern that could hide an error, half of them zero, so that they compress.
pub fn bytes_of(seed: u32, count: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    (0..count)
        .map(|at| if at % 2 == 0 { next() as u8 } else { 0 })
        .collect()
}

/// Returns whether a mount is impossible here; prints that the test is skipped.
pub fn cannot_mount() -> bool {
    let reason = base::mount::why_root_cannot_mount();
    if let Some(reason) = &reason {
        println!("skipped: {reason}");
    }
    reason.is_some()
}

/// Returns the number that `make soak` sets for a longer run, or else the short one.
pub fn longer(variable: &str, short: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no whole number")),
        Err(_) => short,
    }
}

/// Creates a tree with the program `bin/task` and some files, in the folder `tree` of a directory.
pub fn tree(dir: &TempDir) -> PathBuf {
    tree_of(dir, TABLE_BLOCKS)
}

/// The same with `table_blocks` blocks in the program's table.
pub fn tree_of(dir: &TempDir, table_blocks: usize) -> PathBuf {
    let tree = dir.file("tree");
    std::fs::create_dir_all(tree.join("bin")).unwrap();
    std::fs::create_dir_all(tree.join("share/empty")).unwrap();
    std::fs::write(dir.file("table.bin"), bytes_of(7, table_blocks * 4096)).unwrap();
    std::fs::write(dir.file("task.c"), PROGRAM).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-o"])
        .arg(tree.join("bin/task"))
        .arg("task.c")
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(built.status.success(), "{built:?}");
    std::fs::write(tree.join("share/long"), bytes_of(11, 1_000_001)).unwrap();
    std::fs::write(tree.join("share/short"), b"short\n").unwrap();
    std::fs::write(tree.join("share/nothing"), b"").unwrap();
    std::os::unix::fs::symlink("short", tree.join("share/link")).unwrap();
    tree
}

/// Publishes the tree of a directory in its folder `store`.
pub fn publish(dir: &TempDir) -> PathBuf {
    let store = dir.file("store");
    let tree = dir.file("tree");
    ok(&[
        "stream",
        "pack",
        tree.to_str().unwrap(),
        store.to_str().unwrap(),
    ]);
    store
}

/// A server as a process.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    /// The address of its metrics, with `--metrics`.
    pub metrics: Option<SocketAddr>,
    store: PathBuf,
    options: Vec<String>,
}

impl Server {
    /// Starts a server on loopback, without TLS.
    pub fn start(store: &Path, options: &[&str]) -> Self {
        let mut all = vec!["--insecure"];
        all.extend(options);
        Self::start_at(store, "127.0.0.1:0", &all)
    }

    /// Creates the tree of a directory, publishes it in the folder `store` there, and starts a server for it.
    pub fn of_tree(dir: &TempDir, options: &[&str]) -> Self {
        tree(dir);
        Self::start(&publish(dir), options)
    }

    pub fn start_at(store: &Path, listen: &str, options: &[&str]) -> Self {
        let (child, address, metrics) = start_server(store, listen, options);
        Self {
            child,
            address,
            metrics,
            store: store.to_owned(),
            options: options.iter().map(|&option| option.to_owned()).collect(),
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Restarts the server at the same address.
    pub fn restart(&mut self) {
        self.kill();
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let address = self.address.to_string();
        (self.child, _, self.metrics) = start_server(&self.store, &address, &options);
    }

    /// Returns one of its metrics; `name` includes the labels.
    pub fn metric(&self, name: &str) -> u64 {
        let mut socket = TcpStream::connect(self.metrics.unwrap()).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        value.trim().parse().unwrap()
    }

    /// Returns how often it has refused for this reason.
    pub fn refused(&self, reason: &str) -> u64 {
        self.metric(&format!("keel_stream_refused_total{{reason=\"{reason}\"}}"))
    }

    /// Ends the server in order, so that all that it has learned is saved.
    pub fn end(mut self) {
        signal(&self.child, libc::SIGTERM);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn start_server(
    store: &Path,
    listen: &str,
    options: &[&str],
) -> (Child, SocketAddr, Option<SocketAddr>) {
    let mut child = keel()
        .args(["stream", "serve"])
        .arg(store)
        .args(["--listen", listen])
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let word = |word: &str| word.trim_end_matches([',', ';', ':']).parse().ok();
    let address = line.split_whitespace().find_map(word);
    let address = address.unwrap_or_else(|| panic!("the server says {line:?}"));
    let metrics = options.contains(&"--metrics").then(|| {
        line.clear();
        lines.read_line(&mut line).unwrap();
        let place = line.trim().strip_prefix("metrics on http://");
        let place = place.and_then(|place| place.strip_suffix("/metrics"));
        place.and_then(|place| place.parse().ok()).expect(&line)
    });
    drain(lines);
    (child, address, metrics)
}

/// Reads and discards output, so that its writer is never blocked.
fn drain(mut from: impl Read + Send + 'static) {
    std::thread::spawn(move || std::io::copy(&mut from, &mut std::io::sink()));
}

/// A mount as a process; unmounted and ended on drop.
pub struct Mount {
    child: Child,
    pub at: PathBuf,
}

impl Mount {
    /// Sends a signal to its process.
    pub fn signal(&self, signal: libc::c_int) {
        crate::common::signal(&self.child, signal);
    }

    /// Mounts on the folder `at` of a directory, without TLS; returns when it is mounted.
    pub fn start(dir: &TempDir, at: &str, server: SocketAddr, options: &[&str]) -> Self {
        let mut all = vec!["--insecure"];
        all.extend(options);
        Self::start_as(dir, at, server, &all)
    }

    /// As [`start`](Self::start), with options for the identity.
    pub fn start_as(dir: &TempDir, at: &str, server: SocketAddr, options: &[&str]) -> Self {
        Self::start_saying(dir, at, server, options, None)
    }

    /// As [`start_as`](Self::start_as), with a file for its standard error.
    pub fn start_saying(
        dir: &TempDir,
        at: &str,
        server: SocketAddr,
        options: &[&str],
        log: Option<&Path>,
    ) -> Self {
        let at = dir.file(at);
        std::fs::create_dir_all(&at).unwrap();
        let mut child = keel()
            .args(["stream", "mount", &server.to_string()])
            .arg(&at)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.map_or_else(Stdio::inherit, |log| File::create(log).unwrap().into()))
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let said = || log.map(|log| std::fs::read_to_string(log).unwrap());
        assert!(
            line.contains(at.to_str().unwrap()),
            "{line:?}: {:?}",
            said()
        );
        drain(lines);
        Self { child, at }
    }

    /// Returns the counters that `keel stream status --json` shows.
    pub fn status(&self) -> serde_json::Value {
        crate::common::ok_json(&["stream", "status", self.at.to_str().unwrap(), "--json"])
    }

    /// Returns one counter.
    pub fn count(&self, name: &str) -> u64 {
        let status = self.status();
        let count = status[name].as_u64();
        count.unwrap_or_else(|| panic!("no {name} in {status}"))
    }

    pub fn program(&self) -> PathBuf {
        self.at.join("bin/task")
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the mount by a signal. Returns its exit status.
    pub fn end(&mut self, number: libc::c_int) -> Option<i32> {
        signal(&self.child, number);
        self.child.wait().unwrap().code()
    }

    /// Kills the mount with SIGKILL, without clearing the mount point.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.child.try_wait().ok().flatten().is_none() {
            signal(&self.child, libc::SIGTERM);
            let begun = Instant::now();
            while self.child.try_wait().ok().flatten().is_none()
                && begun.elapsed() < Duration::from_secs(10)
            {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.kill();
        detach(&self.at);
    }
}

/// Detaches a mount in any state.
pub fn detach(directory: &Path) {
    Command::new("umount")
        .arg("-l")
        .arg(directory)
        .stderr(Stdio::null())
        .status()
        .ok();
}

/// Runs a program within a time limit. Returns `None` if it was killed because it had not ended.
pub fn run_within(command: &mut Command, limit: Duration) -> Option<Output> {
    try_run_within(command, limit).unwrap()
}

/// As [`run_within`]; returns an error if the program could not be started because a block of its beginning is missing.
pub fn try_run_within(command: &mut Command, limit: Duration) -> std::io::Result<Option<Output>> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > limit {
            child.kill().ok();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(Some(child.wait_with_output()?))
}

/// A run of the program that has read its blocks and does not end. All that the page cache has of the program stays
/// mapped. Some kernels drop unmapped file pages that have not been read for one minute, although memory is free, and
/// other processes may drop them. Without the mapping, a test that requires pages in the page cache would fail.
pub struct Holder(Child);

impl Holder {
    /// Starts the program, repeatedly if a short deadline ends it. The program has read the blocks when this returns.
    pub fn start(mount: &Mount, blocks: &str) -> Self {
        use std::io::BufRead;
        let mut started = None;
        wait_until("a program that stays", || {
            let child = Command::new(mount.program())
                .args([blocks, "wait"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn();
            let Ok(mut child) = child else { return false };
            let mut line = String::new();
            let said = child.stdout.take().unwrap();
            let holder = Self(child);
            std::io::BufReader::new(said).read_line(&mut line).unwrap();
            started = (line == "waits\n").then_some(holder);
            started.is_some()
        });
        started.unwrap()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns what the program of the tree prints for these arguments when it runs from disk.
pub fn expected(dir: &TempDir, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(dir.file("tree/bin/task"))
        .args(
            arguments
                .iter()
                .filter(|argument| !argument.starts_with("sleep")),
        )
        .output()
        .unwrap();
    assert!(output.status.success());
    output.stdout
}

/// Runs the program from a mount, and requires the same result as from disk. A shell starts it: until the exec
/// succeeds, a forked child keeps inherited descriptors open, and with them the pipes of other tests.
pub fn runs_well(dir: &TempDir, mount: &Mount, arguments: &[&str]) {
    runs_well_within(dir, mount, arguments, Duration::from_secs(60));
}

/// As [`runs_well`], with a limit other than one minute.
pub fn runs_well_within(dir: &TempDir, mount: &Mount, arguments: &[&str], limit: Duration) {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "exec \"$0\" \"$@\""]);
    let output = run_within(shell.arg(mount.program()).args(arguments), limit);
    let output = output.unwrap_or_else(|| panic!("the program has not ended within {limit:?}"));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&expected(dir, arguments))
    );
}

/// As [`runs_well`], for a mount with a short deadline. On a busy machine this deadline may pass although the link is
/// good, which ends the program by a signal. The program is started again until it has all its blocks.
pub fn runs_well_at_last(dir: &TempDir, mount: &Mount, arguments: &[&str]) {
    wait_until("all that a program needs", || {
        let mut program = Command::new(mount.program());
        let output = match try_run_within(program.args(arguments), Duration::from_secs(60)) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => return false,
            output => output
                .unwrap()
                .expect("the program has ended within a minute"),
        };
        let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
        if signal == Some(libc::SIGBUS) || signal == Some(libc::SIGSEGV) {
            assert_eq!(output.stdout, b"");
            return false;
        }
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, expected(dir, arguments));
        true
    });
}

/// Requires that each file of the mount has the bytes of the tree, as soon as it can be read.
pub fn is_whole_at_last(dir: &TempDir, mount: &Mount) {
    for name in ["bin/task", "share/long", "share/short", "share/nothing"] {
        wait_until(name, || match std::fs::read(mount.at.join(name)) {
            Ok(there) => {
                let here = std::fs::read(dir.file("tree").join(name)).unwrap();
                assert!(there == here, "{name} differs");
                true
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
                false
            }
        });
    }
}

/// Requires that each file of the mount has the bytes of the tree.
pub fn is_whole(dir: &TempDir, mount: &Mount) {
    for name in ["bin/task", "share/long", "share/short", "share/nothing"] {
        let there = std::fs::read(mount.at.join(name)).unwrap();
        let here = std::fs::read(dir.file("tree").join(name)).unwrap();
        assert!(there == here, "{name} differs");
    }
}

/// Runs the program once from a mount without a cache, and waits until the server has learned it.
pub fn learn(dir: &TempDir, server: &Server, arguments: &[&str]) {
    let mount = Mount::start(dir, "learn", server.address, &[]);
    runs_well(dir, &mount, arguments);
    drop(mount);
    wait_learned(&server.store, 1);
}

/// Waits until the server has learned `tasks` tasks.
pub fn wait_learned(store: &Path, tasks: usize) {
    wait_until("what was learned", || {
        let listed = crate::common::run(&["stream", "actions", store.to_str().unwrap(), "--json"]);
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        listed["actions"]
            .as_array()
            .is_some_and(|actions| actions.len() >= tasks)
    });
}
