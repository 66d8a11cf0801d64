//! Boards for tests: `keel` on network namespaces or real sshd, with the MPI of this build. scripts/mpi-suites.sh runs
//! them with each installed MPI, and sets the path of `keel`.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// Exit status of `boards.sh` without permission or if a tool is missing.
const STATUS_SKIPPED: i32 = 77;

/// Ranks poll: two clusters at the same time on two cores would wait for each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub fn keel_mpi() -> &'static str {
    env!("CARGO_BIN_EXE_keel-mpi")
}

/// The path of the program `keel`; `None` if it is not set.
pub fn keel() -> Option<PathBuf> {
    let found = std::env::var_os("KEEL_PROGRAM")
        .map(PathBuf::from)
        .filter(|path| path.is_file());
    if found.is_none() {
        println!("skipped: KEEL_PROGRAM does not say where keel is; scripts/mpi-suites.sh does");
    }
    found
}

/// A folder that is deleted on drop.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("keel-mpi-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Runs a command with emulated boards; `None` if that is not permitted here.
pub fn beside(folder: &Folder, options: &[&str], words: &[&str]) -> Option<Output> {
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("boards/boards.sh");
    let output = Command::new("bash")
        .arg(script)
        .args(["--dir", &folder.0.display().to_string()])
        .args(options)
        .arg("--")
        .args(words)
        // Ranks of Open MPI yield their core while they wait, because there are more ranks than cores.
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .env("TMPDIR", std::env::temp_dir())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if output.status.code() == Some(STATUS_SKIPPED) {
        println!(
            "skipped: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        return None;
    }
    Some(output)
}

pub const BRIDGE: [&str; 2] = ["10.77.0.254/24", "eth0"];

/// Network of boards behind sshd on loopback addresses.
pub const LOOPBACK: [&str; 2] = ["127.0.0.1/8", "lo"];

/// Options of `keel cluster` for emulated boards: the list of boards, the program in place of ssh, and the network.
pub fn on_boards<'a>(files: &'a [String; 2], network: [&'a str; 2]) -> Vec<&'a str> {
    vec![
        "--program",
        keel_mpi(),
        "--hosts",
        &files[0],
        "--launcher",
        &files[1],
        "--tcp",
        "--address",
        network[0],
        "--interface",
        network[1],
    ]
}

pub fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

pub fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = text
        .strip_suffix('\n')
        .unwrap_or_else(|| panic!("{text:?}"));
    assert!(
        line.starts_with("keel: ") && !line.contains('\n'),
        "{text:?}"
    );
    line.to_owned()
}
