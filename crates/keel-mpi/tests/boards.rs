//! `keel cluster measure` on emulated boards: network namespaces and real sshd, with the MPI that this was built with.
//! scripts/mpi-suites.sh runs it with each MPI that is installed, and says where `keel` is.

use cluster::results::{Known, Mode, ResultFile, Row, Stopped, Transport};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// What `boards.sh` says where it is not permitted, or a tool is missing.
const STATUS_SKIPPED: i32 = 77;

const SIZES: &str = "4,64,1024,16384,262144";

/// Ranks poll: two clusters at the same time on two cores would wait for each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn keel_mpi() -> &'static str {
    env!("CARGO_BIN_EXE_keel-mpi")
}

/// The program `keel`; none where nobody says where it is.
fn keel() -> Option<PathBuf> {
    let found = std::env::var_os("KEEL_PROGRAM")
        .map(PathBuf::from)
        .filter(|path| path.is_file());
    if found.is_none() {
        println!("skipped: KEEL_PROGRAM does not say where keel is; scripts/mpi-suites.sh does");
    }
    found
}

/// A folder that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("keel-mpi-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Runs words beside so many boards; none where that is not permitted here.
fn beside(folder: &Folder, options: &[&str], words: &[&str]) -> Option<Output> {
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
        // Ranks of Open MPI give their core away while they wait: there are more of them than cores.
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

/// The words of `keel cluster measure` for emulated boards.
fn measure<'a>(
    keel: &'a str,
    files: &'a [String; 2],
    network: [&'a str; 2],
    more: &[&'a str],
) -> Vec<&'a str> {
    let mut words = vec![
        keel,
        "cluster",
        "measure",
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
    ];
    words.extend(more);
    words
}

const BRIDGE: [&str; 2] = ["10.77.0.254/24", "eth0"];

fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// All eight at all five sizes, with a time each, on so many boards with names of their own.
fn assert_complete(said: &Value, boards: usize) {
    let ranks = said["ranks"].as_array().unwrap();
    let hosts: Vec<&str> = ranks
        .iter()
        .map(|rank| rank["host"].as_str().unwrap())
        .collect();
    let expected: Vec<String> = (1..=boards).map(|number| format!("b{number}")).collect();
    assert_eq!(hosts, expected);
    let rows = said["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8 * 5);
    for name in [
        "bandwidth",
        "bibandwidth",
        "roundtrip",
        "latency",
        "broadcast",
        "reduce",
        "allreduce",
        "alltoall",
    ] {
        let of: Vec<_> = rows.iter().filter(|row| row["benchmark"] == name).collect();
        assert_eq!(of.len(), 5, "{name}");
        assert!(
            of.iter().all(|row| row["result"].as_f64().unwrap() > 0.0),
            "{name}: {of:?}"
        );
    }
}

fn failure(output: &Output) -> String {
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

#[test]
fn all_eight_arrive_whole_on_six_boards() {
    let Some(keel) = keel() else { return };
    let keel = keel.display().to_string();
    let folder = Folder::new();
    let files = ["hosts", "shell"].map(|name| folder.file(name));
    let out = folder.file("six.jsonl");
    let more = [
        "--sizes",
        SIZES,
        "--samples",
        "5",
        "--iterations",
        "1",
        "--label",
        "six",
        "--out",
        &out,
        "--json",
    ];
    let Some(output) = beside(
        &folder,
        &["--boards", "6"],
        &measure(&keel, &files, BRIDGE, &more),
    ) else {
        return;
    };
    assert_complete(&json(&output), 6);
    let file = ResultFile::parse(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(
        (
            file.header.label.as_str(),
            file.header.mode,
            file.header.hosts.len()
        ),
        ("six", Mode::Sound, 6)
    );
    assert!(
        matches!(&file.header.mpi, Known::Value(text) if text.contains("MPI")),
        "{:?}",
        file.header.mpi
    );
    for row in &file.rows {
        let Row::Benchmark(row) = row else {
            panic!("{row:?}")
        };
        assert_eq!(
            (row.ranks, row.transport, row.samples_us.len()),
            (6, Transport::Network, 5)
        );
        assert_eq!((row.iterations, row.stopped), (1, Stopped::Fixed));
    }
}

#[test]
fn all_eight_arrive_whole_in_the_original_s_way_on_six_boards() {
    let Some(keel) = keel() else { return };
    let keel = keel.display().to_string();
    let folder = Folder::new();
    let files = ["hosts", "shell"].map(|name| folder.file(name));
    let more = [
        "--sizes",
        SIZES,
        "--compat",
        "mpbench",
        "--iterations",
        "5",
        "--repetitions",
        "1",
        "--json",
    ];
    let Some(output) = beside(
        &folder,
        &["--boards", "6"],
        &measure(&keel, &files, BRIDGE, &more),
    ) else {
        return;
    };
    let said = json(&output);
    assert_complete(&said, 6);
    assert!(
        said["rows"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["iterations"] == 5 && row["stopped"] == "fixed")
    );
}

#[test]
fn all_eight_arrive_whole_behind_three_real_sshd() {
    let Some(keel) = keel() else { return };
    let keel = keel.display().to_string();
    let folder = Folder::new();
    let files = ["hosts", "shell"].map(|name| folder.file(name));
    let more = [
        "--sizes",
        SIZES,
        "--samples",
        "5",
        "--iterations",
        "1",
        "--json",
    ];
    let words = measure(&keel, &files, ["127.0.0.1/8", "lo"], &more);
    let Some(output) = beside(&folder, &["--boards", "3", "--sshd"], &words) else {
        return;
    };
    assert_complete(&json(&output), 3);
}

#[test]
fn a_board_that_is_not_there_is_named_before_anything_starts() {
    let Some(keel) = keel() else { return };
    let keel = keel.display().to_string();
    let folder = Folder::new();
    let hosts = folder.file("other-hosts");
    std::fs::write(&hosts, "b1\nb2\nb9\n").unwrap();
    let files = [hosts, folder.file("shell")];
    let Some(output) = beside(
        &folder,
        &["--boards", "2"],
        &measure(&keel, &files, BRIDGE, &[]),
    ) else {
        return;
    };
    let line = failure(&output);
    assert!(
        line.starts_with("keel: b9: cannot be reached: connect to host b9"),
        "{line}"
    );
}

/// Measures on three boards, and does something to the second one in the middle of it.
fn disturbed(word: &str) -> Option<String> {
    let keel = keel()?.display().to_string();
    let folder = Folder::new();
    let files = ["hosts", "shell"].map(|name| folder.file(name));
    // Many samples of one case, so that it is not over when the board goes.
    let more = [
        "--only",
        "allreduce",
        "--sizes",
        "1024",
        "--samples",
        "10000",
        "--silence-seconds-max",
        "6",
    ];
    let mut words = measure(&keel, &files, BRIDGE, &more);
    let disturb = folder.file(word);
    let script = "disturb=$1; shift; \"$@\" & sleep 3; \"$disturb\" b2; wait $!";
    words.splice(0..0, ["bash", "-c", script, "disturbed", &disturb]);
    let output = beside(&folder, &["--boards", "3"], &words)?;
    Some(failure(&output))
}

#[test]
fn a_board_that_dies_is_named() {
    let Some(line) = disturbed("kill-ranks") else {
        return;
    };
    assert!(line.starts_with("keel: b2: "), "{line}");
}

#[test]
fn a_board_that_is_cut_off_is_named() {
    let Some(line) = disturbed("unplug") else {
        return;
    };
    assert!(line.starts_with("keel: b2: cannot be reached"), "{line}");
}

#[test]
fn one_host_is_measured_through_its_memory_until_intervals_are_narrow() {
    let Some(keel) = keel() else { return };
    let keel = keel.display().to_string();
    let folder = Folder::new();
    let hosts = folder.file("here");
    std::fs::write(&hosts, "localhost:2\n").unwrap();
    let out = folder.file("here.jsonl");
    let words = [
        &keel,
        "cluster",
        "measure",
        "--program",
        keel_mpi(),
        "--hosts",
        &hosts,
        "--only",
        "roundtrip,allreduce",
        "--sizes",
        "64,65536",
        "--starts-max",
        "6",
        "--out",
        &out,
        "--json",
    ];
    // With a network of its own it could not reach anything anyway.
    let Some(output) = beside(&folder, &["--boards", "1"], &words) else {
        return;
    };
    let said = json(&output);
    let starts = said["starts"].as_u64().unwrap();
    assert!((5..=6).contains(&starts), "{starts}");
    let file = ResultFile::parse(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(file.rows.len(), 4);
    for row in &file.rows {
        let Row::Benchmark(row) = row else {
            panic!("{row:?}")
        };
        assert_eq!((row.transport, row.ranks), (Transport::Memory, 2));
        assert!(
            row.starts.len() >= 5 && row.has_starts(),
            "{:?}",
            row.starts
        );
        let median = row.median_us().unwrap();
        assert!(median.interval.contains(median.value));
    }
    // A second run of the same name is not written over the first.
    let output = beside(&folder, &["--boards", "1"], &words).unwrap();
    assert!(
        failure(&output).contains("here.jsonl: file exists"),
        "{output:?}"
    );
}

#[test]
fn a_launcher_of_another_mpi_is_refused() {
    let Some(keel) = keel() else { return };
    let folder = Folder::new();
    let hosts = folder.file("here");
    std::fs::write(&hosts, "localhost:2\n").unwrap();
    let library = Command::new(keel_mpi()).arg("library").output().unwrap();
    let other = match String::from_utf8_lossy(&library.stdout).contains("Open MPI") {
        true => "/usr/bin/mpiexec.mpich",
        false => "/usr/bin/mpirun.openmpi",
    };
    if !Path::new(other).exists() {
        println!("skipped: {other} is not installed");
        return;
    }
    let output = Command::new(keel)
        .args([
            "cluster",
            "measure",
            "--hosts",
            &hosts,
            "--program",
            keel_mpi(),
            "--mpirun",
            other,
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(failure(&output).contains("is no launcher of"), "{output:?}");
}
