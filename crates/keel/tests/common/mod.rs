//! What the tests of the command line share: the program, a temporary directory, and checks of failures.

#![allow(dead_code)]

pub mod broker;
pub mod card;
pub mod group;
pub mod http;
pub mod load;
pub mod mem;
pub mod mpi;
pub mod namespace;
pub mod node;
pub mod plant;

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A directory that is removed with all its content.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("keel-test-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // Left by a killed test that had the process ID of this process.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn entries(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns a command for the program under test, with default signal dispositions. Tests in the background of a script
/// have SIGINT ignored, and children inherit that.
pub fn keel() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keel"));
    // SAFETY: between fork and exec, only plain system calls that are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::signal(number, libc::SIG_DFL);
            }
            Ok(())
        })
    };
    command
}

/// Runs the program with these arguments.
pub fn run(arguments: &[&str]) -> Output {
    keel()
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs the program with bytes on standard input.
pub fn run_with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = keel()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// The note that `keel flash format` and `copy` add if the directories of the tests lie in memory.
const IN_MEMORY: &str = "this store lies in memory and is gone at the next boot";

/// Runs the program and requires success. Returns standard output.
pub fn ok(arguments: &[&str]) -> Vec<u8> {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    let is_silent = said.lines().all(|line| line.contains(IN_MEMORY));
    assert!(is_silent, "{arguments:?}: {output:?}");
    output.stdout
}

/// The same; returns standard output as one JSON value.
pub fn ok_json(arguments: &[&str]) -> serde_json::Value {
    serde_json::from_slice(&ok(arguments)).unwrap()
}

/// Requires this exit status and one line of error. Returns the line.
pub fn fails(arguments: &[&str], status: i32) -> String {
    let output = run(arguments);
    assert_eq!(
        output.status.code(),
        Some(status),
        "{arguments:?}: {output:?}"
    );
    one_line(&output.stderr)
}

/// Returns standard error, which must be one line.
pub fn one_line(stderr: &[u8]) -> String {
    let text = std::str::from_utf8(stderr).unwrap();
    let line = text
        .strip_suffix('\n')
        .unwrap_or_else(|| panic!("no line: {text:?}"));
    assert!(!line.contains('\n'), "{text:?}");
    assert!(line.starts_with("keel: "), "{text:?}");
    line.to_owned()
}

/// Returns exit status, standard output and standard error.
pub fn text(output: &Output) -> (Option<i32>, &str, &str) {
    (
        output.status.code(),
        std::str::from_utf8(&output.stdout).unwrap(),
        std::str::from_utf8(&output.stderr).unwrap(),
    )
}

/// A user without files and without special rights.
pub const NOBODY: u32 = 65_534;

/// Runs the program as an unprivileged user. Returns `None` if this test cannot become such a user.
pub fn as_nobody(arguments: &[&str], dir: &TempDir) -> Option<Output> {
    if base::mount::effective_ids().0 != 0 {
        println!("skipped: only root can become another user");
        return None;
    }
    let mut command = keel();
    command
        .args(arguments)
        .stdin(Stdio::null())
        .current_dir(dir.path())
        .uid(NOBODY)
        .gid(NOBODY);
    match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            println!("skipped: others cannot reach the program");
            None
        }
        output => Some(output.unwrap()),
    }
}

/// Waits until `done` returns true. Panics after one minute, which is only a safeguard.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{what} does not come"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns whether the kernel probes this connection's peer after at most 30 s of silence, as `/proc/net/tcp` shows it.
pub fn keep_alive_runs(of: &TcpStream) -> bool {
    let port = |address: SocketAddr| format!(":{:04X}", address.port());
    let (peer, ours) = (of.peer_addr().unwrap(), of.local_addr().unwrap());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // Other tests may have connections with the same port and other peers. The kernel shows the remaining time of the
    // timer on each side: in `tr:tm->when`, 02 is the keep-alive timer, in ticks of 10 ms.
    table.lines().any(|line| {
        let row: Vec<&str> = line.split_whitespace().collect();
        let ticks = row[5].strip_prefix("02:");
        row[1].ends_with(&port(peer))
            && row[2].ends_with(&port(ours))
            && ticks
                .is_some_and(|ticks| (1..=3000).contains(&u32::from_str_radix(ticks, 16).unwrap()))
    })
}

/// Sends a signal to a child of this test.
pub fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: a plain system call; the child has not been waited for, so its process ID is not reused.
    unsafe { libc::kill(child.id() as libc::pid_t, signal) };
}
