//! A `[[job]]` of a configuration on two emulated boards: `keel cluster job` as the node starts it, with the MPI of
//! this build. The history comes from a node.

use crate::common::{Folder, beside, json, keel, keel_mpi};
use cluster::advisor::{Input, Origin, Question, question_text};
use serde_json::Value;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a condition is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

const ROWS: u32 = 600;

const NODE: &str = "
[store]
create_mebibytes = 16
[line]
tcp_listen = \"\"
unix_socket = \"line.sock\"
[time]
wall_clock = \"trusted\"
";

/// One board takes 10 s by the figures, two take 5 s; the check on one rank takes as long as one board.
const JOB: &str = "
[[job]]
name = \"bearing\"
kernel = \"vibration\"
key = \"pump/vibration\"
out = \"bearing.json\"
table = \"bearing.csv\"
window = 64
hosts = \"hosts\"
interface = \"eth0\"
address = \"10.77.0.254/24\"
deadline_seconds = 6.0
check = \"after\"
";

/// A node; it is killed on drop.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what} has not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Starts a node with the readings of the last minute, ten in a second.
fn node_with_readings(keel: &Path, folder: &Folder) -> Node {
    std::fs::write(folder.file("keel.toml"), NODE).unwrap();
    let child = Command::new(keel)
        .args(["run", "-c", "keel.toml"])
        .current_dir(&folder.0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let node = Node(child.unwrap());
    let mut socket = None;
    wait_until("the socket of lines", || {
        socket = UnixStream::connect(folder.file("line.sock")).ok();
        socket.is_some()
    });
    let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now_ns = now_ns.as_nanos() as u64;
    let mut lines = String::new();
    for row in 0..ROWS {
        let value =
            (f64::from(row) * 0.25 * std::f64::consts::TAU).sin() + f64::from(row % 7) * 0.01;
        let time_ns = now_ns - u64::from(ROWS - row) * 100_000_000;
        writeln!(lines, "pump vibration={value} {time_ns}").unwrap();
    }
    socket.unwrap().write_all(lines.as_bytes()).unwrap();
    wait_until("the readings", || {
        let output = Command::new(keel)
            .args(["status", "--json"])
            .current_dir(&folder.0)
            .output()
            .unwrap();
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        status["log"]["readings_durable"].as_u64() >= Some(u64::from(ROWS))
    });
    node
}

#[test]
fn a_periodic_job_runs_on_two_boards_where_one_cannot_keep_the_deadline() {
    let Some(keel) = keel() else { return };
    let folder = Folder::new();
    let _node = node_with_readings(&keel, &folder);
    // The node has no job, so that it starts none outside of the boards.
    std::fs::write(folder.file("job.toml"), format!("{NODE}{JOB}")).unwrap();
    // What an earlier run would have measured; the name is that of the job with its settings.
    let mut figures = Question::new("bearing: vibration (64, 0, 8) of pump/vibration");
    for (input, value) in [
        (Input::SingleS, 10.0),
        (Input::ParallelFraction, 0.999),
        (Input::ExchangeTimes, 2.0),
        (Input::ExchangeBytes, 2_400.0),
        (Input::InputBytes, 8.0 * f64::from(ROWS)),
        (Input::OutputBytes, 1_700.0),
    ] {
        let by = Origin::Measured("an earlier run".to_owned());
        figures.give(input, value, by).unwrap();
    }
    let text = question_text(&figures).unwrap();
    std::fs::write(folder.file("bearing.json.figures.json"), text).unwrap();
    // A job finds keel-mpi and ssh in PATH.
    let programs = folder.0.join("programs");
    std::fs::create_dir(&programs).unwrap();
    symlink(keel_mpi(), programs.join("keel-mpi")).unwrap();
    symlink(folder.0.join("shell"), programs.join("ssh")).unwrap();
    // Ranks in one kernel could share memory; boards cannot.
    let script = format!(
        "export PATH={}:$PATH UCX_TLS=tcp,self OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self; \
         exec {} cluster job bearing -c {}",
        programs.display(),
        keel.display(),
        folder.file("job.toml")
    );
    let Some(output) = beside(&folder, &["--boards", "2"], &["bash", "-c", &script]) else {
        return;
    };
    let said = json(&output);
    let placed = &said["placed"];
    assert_eq!(
        (
            &placed["place"],
            &placed["is_advised"],
            &placed["measured_anew"]
        ),
        (&"2 boards".into(), &true.into(), &false.into()),
        "{placed}"
    );
    let result = &said["result"];
    assert_eq!(
        (&result["ranks"], &result["rows"], &result["compared"]),
        (&2.into(), &ROWS.into(), &"same".into()),
        "{result}"
    );
    assert_eq!(result["lost"], Value::Array(Vec::new()));
    // Readings went to the other board, and the answer is in its place.
    assert!(result["moved_bytes"].as_u64() > Some(0), "{result}");
    let written = std::fs::read(folder.file("bearing.json")).unwrap();
    let written: Value = serde_json::from_slice(&written).unwrap();
    assert_eq!(written["placed"]["place"], "2 boards");
    assert_eq!(written["result"]["answer"], result["answer"]);
    let table = std::fs::read_to_string(folder.file("bearing.csv")).unwrap();
    assert_eq!(
        Some(table.lines().count() as u64 - 1),
        result["answer"]["windows"].as_u64()
    );
}
