//! `[[job]]` of the configuration: a node starts a job at its period and reports where it runs and why. It counts
//! skipped and failed runs, and ends the job when the node ends.

use crate::common::mpi::FakeMpi;
use crate::common::node::{Node, SMALL};
use crate::common::{TempDir, fails, keel, ok, one_line, wait_until};
use cluster::advisor::{Input, Origin, Question, question_text};
use cluster::jobs::Sameness;
use cluster::jobs::lines::{Line, Report};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

const VIBRATION: &str = "
[time]
wall_clock = \"trusted\"
[[job]]
name = \"bearing\"
kernel = \"vibration\"
key = \"pump/vibration\"
out = \"results/bearing.json\"
table = \"bearing.csv\"
period_seconds = 1
run_seconds_max = 60
deadline_seconds = 600
window = 64
ranks = 2
";

/// Sends readings of the last minutes, ten per second.
pub fn feed(node: &Node, rows: u32) {
    let now_ns = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    let mut lines = String::new();
    for row in 0..rows {
        let value =
            (f64::from(row) * 0.25 * std::f64::consts::TAU).sin() + f64::from(row % 7) * 0.01;
        let time_ns = now_ns - u64::from(rows - row) * 100_000_000;
        writeln!(lines, "pump vibration={value} {time_ns}").unwrap();
    }
    let mut socket = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    socket.write_all(lines.as_bytes()).unwrap();
    drop(socket);
    wait_until("the readings", || {
        status(node)["log"]["readings_durable"].as_u64() >= Some(u64::from(rows))
    });
}

fn status(node: &Node) -> Value {
    let output = node.run(&["status", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn job<'a>(status: &'a Value, name: &str) -> &'a Value {
    status["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .find(|job| job["name"] == name)
        .unwrap()
}

/// Returns the processes of this node's jobs.
fn processes(node: &Node) -> Vec<i32> {
    let config = node.dir.file("keel.toml").display().to_string();
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter(|number| {
            let words = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            words.contains("--background") && words.contains(&config)
        })
        .collect()
}

#[test]
fn a_job_runs_at_its_period_where_the_advisor_says_and_its_result_is_replaced() {
    let node = Node::start(&format!("{SMALL}{VIBRATION}"));
    feed(&node, 600);
    wait_until("two runs", || {
        let status = status(&node);
        let job = job(&status, "bearing");
        job["failing"] == false && job["runs"].as_u64() >= Some(2) && job["place"].is_string()
    });
    // A run that began while readings arrived has fewer of them.
    let result = || -> Option<Value> {
        let text = fs::read_to_string(node.dir.file("results/bearing.json")).ok()?;
        serde_json::from_str(&text).ok()
    };
    wait_until("a result of all readings", || {
        result().is_some_and(|result| result["result"]["rows"] == 600)
    });
    let result = result().unwrap();
    assert_eq!(
        (&result["job"], &result["placed"]["place"]),
        (&"bearing".into(), &"one board".into())
    );
    assert_eq!(
        (&result["result"]["ranks"], &result["result"]["compared"]),
        (&2.into(), &"same".into())
    );
    // 2.5 Hz, sampled ten times per second, in windows of 64.
    let frequency = result["result"]["answer"]["columns"][0]["frequency_median"]
        .as_f64()
        .unwrap();
    assert!((frequency - 2.5).abs() < 1e-3, "{frequency}");
    assert!(
        fs::read_to_string(node.dir.file("bearing.csv"))
            .unwrap()
            .lines()
            .count()
            > 3
    );
    let log = node.log();
    assert!(
        log.contains(" job: bearing runs on one board, about "),
        "{log}"
    );
    assert!(
        log.contains("; assumed: board_active_w, board_idle_w"),
        "{log}"
    );
    // The measured values are stored beside it, and can be used again.
    let figures = node
        .dir
        .file("results/bearing.json.figures.json")
        .display()
        .to_string();
    let near = [
        "advise",
        "--job",
        &figures,
        "--data-may-go",
        "board",
        "--assume",
    ];
    let said = String::from_utf8(ok(&near)).unwrap();
    assert!(
        said.contains("measured  single_s ") && said.contains("this run on one rank"),
        "{said}"
    );
    let said = node.run(&["status"]);
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.contains("job       bearing: vibration of pump/vibration every 1 s on one board; "),
        "{said}"
    );
    // Jobs use the configuration that the node has read, even if the file changes later.
    let file = node.dir.file("keel.toml");
    let config = fs::read_to_string(&file).unwrap();
    fs::write(&file, "[[job]").unwrap();
    let before = job(&status(&node), "bearing").clone();
    let count = |job: &Value, name: &str| job[name].as_u64().unwrap();
    wait_until("two more runs", || {
        let status = status(&node);
        let now = job(&status, "bearing");
        count(now, "runs") >= count(&before, "runs") + 3 && now["failed"] == before["failed"]
    });
    fs::write(&file, config).unwrap();
    // A run by hand gives the same result.
    let once = node.json(&["cluster", "job", "bearing"]);
    assert_eq!(
        (
            &once["placed"]["measured_anew"],
            &once["placed"]["is_advised"]
        ),
        (&false.into(), &true.into())
    );
    assert!(
        node.fails(&["cluster", "job", "rotor"], 1)
            .contains("there are: bearing")
    );
}

#[test]
fn an_answer_is_written_before_its_check_or_without_one() {
    let job = |name: &str, check: &str| {
        format!(
            "[[job]]\nname = \"{name}\"\nkernel = \"vibration\"\nkey = \"pump/vibration\"\nwindow = 64\nranks = 2\n\
             period_seconds = 3600\nout = \"{name}.json\"\ntable = \"{name}.csv\"\ncheck = \"{check}\"\n"
        )
    };
    let (later, none) = (job("later", "after"), job("none", "never"));
    let time = "[time]\nwall_clock = \"trusted\"\n";
    let node = Node::start(&format!("{SMALL}{time}{later}{none}"));
    feed(&node, 600);
    for (name, compared) in [("later", "same"), ("none", "unchecked")] {
        let said = node.json(&["cluster", "job", name]);
        let result = &said["result"];
        assert_eq!(result["compared"], compared, "{said}");
        assert_eq!(result["alone_s"].is_null(), compared == "unchecked");
        assert_eq!(result["advice"].is_null(), compared == "unchecked");
        assert!(said["check_failed"].is_null(), "{said}");
        let text = fs::read_to_string(node.dir.file(&format!("{name}.json"))).unwrap();
        let written: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(written["result"]["compared"], compared, "{written}");
        let table = fs::read_to_string(node.dir.file(&format!("{name}.csv"))).unwrap();
        assert!(table.lines().count() > 3, "{table}");
        assert!(!node.dir.file(&format!("{name}.csv.new")).exists());
    }
}

/// What two boards say, as a launcher prints it.
fn said_by_boards(lines: &[Line]) -> String {
    let begin = |rank: usize| Line::Begin {
        rank,
        ranks: 2,
        host: format!("b{rank}"),
        boot: format!("boot {rank}"),
        cores: 1,
    };
    let first = [begin(0), begin(1), reported(Sameness::Unchecked, None)];
    let whole = Line::Whole { rows: 0 };
    let all = first.iter().chain([&whole]).chain(lines);
    all.map(|line| line.text().unwrap() + "\n").collect()
}

fn reported(compared: Sameness, alone_s: Option<f64>) -> Line {
    let report = Report {
        kernel: "vibration".to_owned(),
        ranks: 2,
        rows: 600,
        input_bytes: 4_800,
        output_bytes: 96,
        answer: json!({"windows": 1}),
        compared,
        operations: 6,
        moved_bytes: 5_000,
        exchange_times: 2.0,
        exchange_bytes: 2_400.0,
        seconds: 0.2,
        computing_s: 0.15,
        communicating_s: 0.05,
        alone_s,
        shared_fraction: alone_s.map(|_| 0.9),
        fitted_fraction: None,
    };
    Line::Report {
        report: Box::new(report),
    }
}

/// The launcher is a script with prepared output, so the check fails at a known point.
#[test]
fn an_answer_whose_check_failed_or_did_not_come_says_so_in_its_file() {
    let base = format!("{SMALL}[time]\nwall_clock = \"trusted\"\n");
    let node = Node::start(&base);
    feed(&node, 600);
    // The node has no job, so that it starts none beside those of the test.
    let job = "[[job]]\nname = \"boards\"\nkernel = \"vibration\"\nkey = \"pump/vibration\"\nout = \"boards.json\"\n\
               window = 64\nhosts = \"hosts\"\ndeadline_seconds = 6.0\ncheck = \"after\"\n";
    fs::write(node.dir.file("job.toml"), format!("{base}{job}")).unwrap();
    fs::write(node.dir.file("hosts"), "localhost\n127.0.0.1\n").unwrap();
    // Measured before: 10 s on one board, so that both are needed.
    let mut figures = Question::new("boards: vibration (64, 0, 8) of pump/vibration");
    for (input, value) in [
        (Input::SingleS, 10.0),
        (Input::ParallelFraction, 0.999),
        (Input::ExchangeTimes, 2.0),
        (Input::ExchangeBytes, 2_400.0),
        (Input::InputBytes, 4_800.0),
        (Input::OutputBytes, 96.0),
    ] {
        let by = Origin::Measured("an earlier run".to_owned());
        figures.give(input, value, by).unwrap();
    }
    let figures = question_text(&figures).unwrap();
    fs::write(node.dir.file("boards.json.figures.json"), figures).unwrap();
    let programs = node.dir.file("programs");
    fs::create_dir(&programs).unwrap();
    let said = node.dir.file("said");
    let says = format!("exec cat '{}'", said.display());
    // The command finds both in its path.
    FakeMpi::new(&programs, "mpiexec.hydra", &says);
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", programs.display());
    let done = |rank: usize| Line::Done { rank, rows: 0 };
    let other = "finds another answer alone than 2 ranks have found";
    let failed = Line::Failed {
        rank: 0,
        blames: Some(0),
        why: other.to_owned(),
    };
    let differs = reported(Sameness::Different, Some(0.4));
    for (lines, compared, why) in [
        (vec![done(1), differs, failed], "different", other),
        (
            vec![done(1), done(0)],
            "unchecked",
            "the result of the check has not come whole",
        ),
    ] {
        fs::write(&said, said_by_boards(&lines)).unwrap();
        let output = keel()
            .args(["cluster", "job", "boards", "-c", "job.toml"])
            .env("PATH", &path)
            .current_dir(node.dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = one_line(&output.stderr);
        assert!(error.contains(why), "{error}");
        let text = fs::read_to_string(node.dir.file("boards.json")).unwrap();
        let written: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(written["placed"]["place"], "2 boards", "{written}");
        assert_eq!(written["result"]["compared"], compared, "{written}");
        let failed = written["check_failed"].as_str().unwrap();
        assert!(failed.contains(why), "{failed}");
    }
}

#[test]
fn failures_are_counted_and_named_and_make_the_node_degraded() {
    let config = VIBRATION.replace("bearing", "lost");
    let node = Node::start(&format!("{SMALL}{config}"));
    wait_until("a failure", || {
        job(&status(&node), "lost")["failed"].as_u64() >= Some(1)
    });
    let output = node.run(&["status", "--json"]);
    assert_eq!(output.status.code(), Some(3));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let reasons = said["reasons"].as_array().unwrap();
    let reason = reasons
        .iter()
        .find(|reason| reason["code"] == "job_failing")
        .unwrap();
    let text = reason["text"].as_str().unwrap();
    assert!(
        text.contains("job lost failed") && text.contains("pump/vibration"),
        "{text}"
    );
    assert!(
        node.log().contains(" job: lost failed: pump/vibration"),
        "{}",
        node.log()
    );
    assert!(!node.dir.file("results/lost.json").exists());
    // As soon as there are readings again, the job succeeds.
    feed(&node, 300);
    wait_until("a success", || {
        job(&status(&node), "lost")["failing"] == false
    });
    assert!(
        node.log().contains(" job: lost succeeds again"),
        "{}",
        node.log()
    );
    assert_eq!(node.run(&["status"]).status.code(), Some(0));
}

/// A job that takes much longer than its period.
const LONG: &str = "
[time]
wall_clock = \"trusted\"
[[job]]
name = \"long\"
kernel = \"matrix-profile\"
key = \"pump/vibration\"
out = \"long.json\"
period_seconds = 1
window = 16
";

fn held(path: &std::path::Path) -> fs::File {
    let file = fs::File::create(path).unwrap();
    // SAFETY: a plain system call on a descriptor that is open.
    let answer = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(answer, 0);
    file
}

#[test]
fn a_start_that_comes_while_the_job_runs_is_skipped_and_the_job_ends_with_the_node() {
    let mut node = Node::prepare(&format!("{SMALL}{LONG}"));
    // The run waits while this lock is held, so it lasts long enough on a fast machine, too.
    let _lasts = held(&node.dir.file("long.json.lock"));
    node.restart();
    feed(&node, 600);
    wait_until("a skipped start", || {
        job(&status(&node), "long")["skipped"].as_u64() >= Some(2)
    });
    let said = job(&status(&node), "long").clone();
    assert_eq!(
        (&said["running"], &said["failed"]),
        (&true.into(), &0.into()),
        "{said}"
    );
    assert!(
        node.log()
            .contains("long is skipped: the run before it still lasts"),
        "{}",
        node.log()
    );
    assert_eq!(processes(&node).len(), 1);
    assert!(node.stop().success());
    wait_until("the end of the job", || processes(&node).is_empty());
    // Also if the node is killed and cannot end the job itself.
    node.restart();
    wait_until("the job", || !processes(&node).is_empty());
    node.kill();
    wait_until("the end of the job", || processes(&node).is_empty());
}

#[test]
fn a_checked_configuration_describes_its_jobs_and_their_faults() {
    let dir = TempDir::new();
    let file = dir.file("keel.toml");
    let path = file.display().to_string();
    fs::write(&file, VIBRATION).unwrap();
    let said = String::from_utf8(ok(&["config", "check", &path])).unwrap();
    assert!(
        said.contains(
            "jobs      bearing every 1 s: vibration of pump/vibration, the last 3600 s, here, to "
        ),
        "{said}"
    );
    assert!(
        said.contains("warning: job bearing may take longer than its period"),
        "{said}"
    );
    for (from, to, wrong) in [
        (
            "vibration\"\nkey",
            "spectrum\"\nkey",
            "job.kernel is \"spectrum\"",
        ),
        ("name = \"bearing\"\n", "", "job.name is missing"),
        ("\"bearing\"\n", "\"a b\"\n", "job.name is \"a b\""),
        ("out = \"results/bearing.json\"\n", "", "job.out is missing"),
        (
            "period_seconds = 1",
            "period_seconds = 0",
            "job.period_seconds is 0",
        ),
        ("ranks = 2", "ranks = 65", "job.ranks is 65"),
        ("ranks = 2", "check = \"later\"", "job.check is \"later\""),
        ("ranks = 2", "interface = \"-x\"", "job.interface is \"-x\""),
        (
            "ranks = 2",
            "address = \"10.0.0.1\"",
            "job.address is \"10.0.0.1\"",
        ),
        (
            "ranks = 2",
            "rank = 2",
            "unknown key job.rank; did you mean ranks?",
        ),
    ] {
        assert!(VIBRATION.contains(from), "{from}");
        fs::write(&file, VIBRATION.replacen(from, to, 1)).unwrap();
        let said = fails(&["config", "check", &path], 1);
        assert!(said.contains(wrong), "{wrong}: {said}");
    }
    // Files of other programs are not overwritten.
    for (from, to, wrong) in [
        (
            "out = \"results/bearing.json\"",
            "out = \"keel-data/store.img\"",
            "job writes the file of store.image",
        ),
        (
            "table = \"bearing.csv\"",
            "table = \"results/bearing.json\"",
            "job writes one file twice, out and table",
        ),
        (
            "table = \"bearing.csv\"",
            "table = \"link\"\nlink = \"link\"",
            "job writes the file of job.link",
        ),
        (
            "table = \"bearing.csv\"",
            "table = \"hosts\"\nhosts = \"hosts\"",
            "job writes the file of job.hosts",
        ),
    ] {
        assert!(VIBRATION.contains(from), "{from}");
        fs::write(&file, VIBRATION.replacen(from, to, 1)).unwrap();
        let said = fails(&["config", "check", &path], 1);
        assert!(said.contains(wrong), "{wrong}: {said}");
    }
    for (more, wrong) in [
        ("[http]\ntoken_file = \"bearing.csv\"\n", "http.token_file"),
        (
            "[[upstream]]\nname = \"a\"\nkind = \"http\"\nurl = \"http://h/w\"\n\
             authorization_file = \"results/bearing.json\"\n",
            "upstream.authorization_file",
        ),
        (
            "[[task]]\nname = \"t\"\ncommand = [\"./bearing.csv\"]\n",
            "task.command",
        ),
    ] {
        fs::write(&file, format!("{VIBRATION}{more}")).unwrap();
        let said = fails(&["config", "check", &path], 1);
        assert!(
            said.contains(&format!("job writes the file of {wrong}")),
            "{said}"
        );
    }
    let second = VIBRATION.replace("[time]\nwall_clock = \"trusted\"\n", "");
    fs::write(&file, format!("{VIBRATION}{second}")).unwrap();
    assert!(fails(&["run", "-c", &path], 1).contains("has the same name twice"));
}
