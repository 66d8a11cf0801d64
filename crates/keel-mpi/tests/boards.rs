//! Tests of `keel cluster measure` on emulated boards: network namespaces and real sshd, with the MPI of this build.
//! scripts/mpi-suites.sh runs them with each installed MPI, and sets the path of `keel`.

use crate::common::{BRIDGE, Folder, LOOPBACK, beside, failure, json, keel, keel_mpi, on_boards};
use cluster::results::{Known, Mode, Origin, ResultFile, Row, Stopped, Transport};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

const SIZES: &str = "4,64,1024,16384,262144";

/// The command line of `keel cluster measure` for emulated boards.
fn measure<'a>(
    keel: &'a str,
    files: &'a [String; 2],
    network: [&'a str; 2],
    more: &[&'a str],
) -> Vec<&'a str> {
    let mut words = vec![keel, "cluster", "measure"];
    words.extend(on_boards(files, network));
    words.extend(more);
    words
}

/// Asserts all eight benchmarks at all sizes, with a time each, on this number of boards with names of their own.
fn assert_complete(said: &Value, boards: usize, sizes: usize) {
    let ranks = said["ranks"].as_array().unwrap();
    let hosts: Vec<&str> = ranks
        .iter()
        .map(|rank| rank["host"].as_str().unwrap())
        .collect();
    let expected: Vec<String> = (1..=boards).map(|number| format!("b{number}")).collect();
    assert_eq!(hosts, expected);
    let rows = said["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8 * sizes);
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
        assert_eq!(of.len(), sizes, "{name}");
        assert!(
            of.iter().all(|row| row["result"].as_f64().unwrap() > 0.0),
            "{name}: {of:?}"
        );
    }
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
        "1",
        "--iterations",
        "5",
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
    assert_complete(&json(&output), 6, 5);
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
            (6, Transport::Network, 1)
        );
        assert_eq!((row.iterations, row.stopped), (5, Stopped::Fixed));
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
        "4,16384",
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
    assert_complete(&said, 6, 2);
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
    let words = measure(&keel, &files, LOOPBACK, &more);
    let Some(output) = beside(&folder, &["--boards", "3", "--sshd"], &words) else {
        return;
    };
    assert_complete(&json(&output), 3, 5);
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

/// Measures on three boards, and disturbs the second one in the middle. A case that has no result `silence` seconds
/// after its beginning is examined. This time is longer than the pause below. It is longer than the launcher's end, if
/// that is to be noticed first.
fn disturbed(word: &str, silence: &str) -> Option<String> {
    let keel = keel()?.display().to_string();
    let folder = Folder::new();
    let files = ["hosts", "shell"].map(|name| folder.file(name));
    // One case of several million rounds, so that on every machine it still runs when the board is disturbed.
    let more = [
        "--only",
        "allreduce",
        "--sizes",
        "1024",
        "--samples",
        "10000",
        "--iterations",
        "500",
        "--silence-seconds-max",
        silence,
    ];
    let mut words = measure(&keel, &files, BRIDGE, &more);
    let disturb = folder.file(word);
    // Wait for the rank, then give it three seconds to meet the others.
    let script = "disturb=$1; shift; \"$@\" & until ip netns pids b2 | xargs -I{} cat /proc/{}/comm 2>/dev/null | \
                  grep -q keel-mpi || ! kill -0 $!; do sleep 0.1; done; sleep 3; \"$disturb\" b2; wait $!";
    words.splice(0..0, ["bash", "-c", script, "disturbed", &disturb]);
    let output = beside(&folder, &["--boards", "3"], &words)?;
    Some(failure(&output))
}

#[test]
fn a_board_that_dies_is_named() {
    let Some(line) = disturbed("kill-ranks", "10") else {
        return;
    };
    assert!(line.starts_with("keel: b2: "), "{line}");
}

#[test]
fn a_board_that_dies_is_named_when_the_other_ranks_notice_first() {
    let Some(line) = disturbed("kill-ranks-unnoticed", "10") else {
        return;
    };
    assert!(line.starts_with("keel: b2: "), "{line}");
}

#[test]
fn a_board_that_is_cut_off_is_named() {
    let Some(line) = disturbed("unplug", "6") else {
        return;
    };
    assert!(line.starts_with("keel: b2: cannot be reached"), "{line}");
}

#[test]
fn each_board_has_its_power_during_each_benchmark() {
    let Some(keel) = keel() else { return };
    let keel = keel.display().to_string();
    let folder = Folder::new();
    let files = ["hosts", "shell"].map(|name| folder.file(name));
    // One kernel and one file system: each board finds the same chip.
    let chip = folder.0.join("root/sys/class/hwmon/hwmon0");
    std::fs::create_dir_all(&chip).unwrap();
    for (name, text) in [
        ("name", "ina226\n"),
        ("power1_input", "4500000\n"),
        ("curr1_input", "900\n"),
        ("in1_input", "5000\n"),
    ] {
        std::fs::write(chip.join(name), text).unwrap();
    }
    let (root, out) = (folder.file("root"), folder.file("power.jsonl"));
    let more = [
        "--only",
        "reduce,latency",
        "--sizes",
        "4,65536",
        "--samples",
        "200",
        "--power",
        "--idle-seconds",
        "1",
        "--root",
        &root,
        "--out",
        &out,
        "--json",
    ];
    let words = measure(&keel, &files, BRIDGE, &more);
    let Some(output) = beside(&folder, &["--boards", "2"], &words) else {
        return;
    };
    json(&output);
    let file = ResultFile::parse(&std::fs::read(&out).unwrap()).unwrap();
    assert!(
        matches!(&file.header.power_source, Known::Value(text) if text.contains("ina226")),
        "{:?}",
        file.header.power_source
    );
    let power = file.rows.iter().filter_map(|row| match row {
        Row::Power(row) => Some(row),
        Row::Benchmark(_) => None,
    });
    let mut found: Vec<_> = power
        .map(|row| {
            let is_right = row.origin == Origin::Measured
                && (row.average_w - 4.5).abs() < 1e-9
                && row.seconds > 0.0
                && matches!(row.idle_w, Known::Value(watts) if (watts - 4.5).abs() < 1e-9);
            assert!(is_right, "{row:?}");
            (row.host.as_str(), row.during.as_str())
        })
        .collect();
    found.sort_unstable();
    let expected = ["b1", "b2"].map(|host| [(host, "latency"), (host, "reduce")]);
    assert_eq!(found, expected.concat());
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
        "--start-seconds",
        "0",
        "--out",
        &out,
        "--json",
    ];
    // In a network of its own it could not reach anything anyway.
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
    // A second run of the same name does not overwrite the first.
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
