//! `keel doctor`: each line has a verdict and a remedy, and the exit status says whether all is well. The page contains
//! nothing that identifies the machine's owner.

use crate::common::{TempDir, one_line, text};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn every_line_has_a_verdict_and_the_status_follows() {
    let dir = TempDir::new();
    let place = dir.path().to_str().unwrap();
    let output = crate::common::run(&["doctor", "--dir", place, "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = found["findings"].as_array().unwrap();
    let subjects: Vec<_> = findings
        .iter()
        .map(|finding| finding["subject"].as_str().unwrap())
        .collect();
    assert_eq!(
        subjects,
        [
            "real-time scheduling",
            "kernel preemption",
            "locked memory",
            "huge pages",
            "frequency control",
            "power sources",
            "FUSE",
            "clock trust",
            "confinement",
            "open files",
            "write latency",
        ]
    );
    for finding in findings {
        let is_ok = match finding["verdict"].as_str().unwrap() {
            "ok" => true,
            "limited" | "missing" => false,
            other => panic!("{other}"),
        };
        assert_eq!(
            is_ok,
            finding["remedy"].as_str().unwrap().is_empty(),
            "{finding}"
        );
    }
    let all_ok = findings.iter().all(|finding| finding["verdict"] == "ok");
    assert_eq!(output.status.code(), Some(if all_ok { 0 } else { 3 }));
    assert!(found["card"]["writes"].as_u64().unwrap() > 0, "{found}");
    assert!(found["machine"]["cores"].as_u64().unwrap() > 0, "{found}");
    let output = crate::common::run(&["doctor", "--dir", place]);
    let (status, printed, _) = text(&output);
    assert_eq!(status, Some(if all_ok { 0 } else { 3 }));
    for subject in subjects {
        assert!(printed.contains(subject), "{printed}");
    }
    let left = dir.entries();
    assert!(left.is_empty(), "the measured file is there: {left:?}");
}

#[test]
fn a_user_without_rights_is_told_the_missing_ones() {
    let dir = TempDir::new();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let Some(output) = crate::common::as_nobody(&["doctor", "--json"], &dir) else {
        return;
    };
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let verdict = |subject: &str| {
        let mut findings = found["findings"].as_array().unwrap().iter();
        findings
            .find(|finding| finding["subject"] == subject)
            .unwrap()["verdict"]
            .clone()
    };
    assert_eq!(verdict("real-time scheduling"), "missing");
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn a_state_that_cannot_be_determined_is_a_failure() {
    let dir = TempDir::new();
    let missing = dir.file("missing").display().to_string();
    let line = crate::common::fails(&["doctor", "--dir", &missing], 1);
    assert!(line.contains("is no folder"), "{line}");
    // A folder without a measurable card is a finding, and suppresses no other finding.
    let said = crate::common::run(&["doctor", "--dir", "/proc"]);
    assert_eq!(said.status.code(), Some(3));
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains("\nmissing  write latency"), "{said}");
    assert!(said.contains("open files"), "{said}");
    let place = dir.path().to_str().unwrap();
    let page = dir.file("page.txt").display().to_string();
    let line = crate::common::fails(&["doctor", "--dir", place, "--report", &page], 2);
    assert!(line.contains(".md or .html"), "{line}");
    std::fs::write(dir.file("there.md"), "mine").unwrap();
    let page = dir.file("there.md").display().to_string();
    crate::common::fails(&["doctor", "--dir", place, "--report", &page], 1);
    assert_eq!(std::fs::read_to_string(page).unwrap(), "mine");
}

/// Returns the program in its own folder, with a `keel-bench` beside it that measures nothing.
fn beside_a_bench(dir: &TempDir) -> Command {
    let (keel, bench) = (dir.file("keel"), dir.file("keel-bench"));
    let built = env!("CARGO_BIN_EXE_keel");
    if std::fs::hard_link(built, &keel).is_err() {
        std::fs::copy(built, &keel).unwrap();
    }
    // It takes a moment, in which the sensors are read, and the processor of `board` gets faster.
    let script = r#"#!/bin/sh
case $1 in flash) ;; *) exit 1 ;; esac
policy=root/sys/devices/system/cpu/cpufreq/policy0
[ ! -d $policy ] || {
    echo 1500000 >$policy/scaling_cur_freq
    printf '600000 1000\n1500000 80\n' >$policy/stats/time_in_state
}
sleep 0.1
[ "$2 $3 $5" = "--quick --dir --json" ] || exit 2
printf '{"bench": "flash", "rows": [{"case": "append-4096-sync", "system": "keel", "metric": "latency_p50",
    "unit": "us", "value": 12.25}], "ratios": [], "missing": ["%s"]}' "$4" > "$6"
"#;
    std::fs::write(&bench, script).unwrap();
    std::fs::set_permissions(&bench, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(keel);
    command.stdin(Stdio::null()).current_dir(dir.path());
    command
}

#[test]
fn the_report_of_doctor_names_no_host_and_no_path() {
    let dir = TempDir::new();
    std::fs::create_dir(dir.file("card")).unwrap();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for name in ["page.md", "page.html"] {
        let mut command = beside_a_bench(&dir);
        let output = command
            .args(["doctor", "--dir", "card", "--report", name])
            .output()
            .unwrap();
        assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
        let page = std::fs::read_to_string(dir.file(name)).unwrap();
        for there in [
            "append-4096-sync",
            "12.250",
            "write latency",
            "exit status 1",
        ] {
            assert!(page.contains(there), "{there}: {page}");
        }
        for absent in [
            host.trim(),
            dir.path().to_str().unwrap(),
            "card/",
            "/home",
            "/root",
            "/tmp",
        ] {
            assert!(!page.contains(absent), "{absent}: {page}");
        }
        std::fs::remove_file(dir.file("keel")).unwrap();
    }
    let output = beside_a_bench(&dir)
        .args(["doctor", "--report"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    one_line(&output.stderr);
}

/// Creates a folder that stands for `/` of a board with frequencies, a power sensor and a card. `card` lies on the
/// second partition of the card. Beside the files that are read lie some that would identify the board's owner.
fn board(dir: &TempDir, card: &Path) {
    let root = dir.file("root");
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let link = |path: &str, target: &str| {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    };
    write("proc/sys/kernel/hostname", "secret-host\n");
    write("proc/sys/kernel/osrelease", "6.6.31-board\n");
    write(
        "proc/version",
        "Linux version 6.6.31-board (secret-user@secret-host)\n",
    );
    write("proc/meminfo", "MemTotal:         948304 kB\n");
    write(
        "proc/cpuinfo",
        "processor\t: 0\nSerial\t\t: secret-serial\nModel\t\t: Fourth Board\n",
    );
    write("proc/device-tree/model", "Board 4 Model B\0");
    write("proc/device-tree/serial-number", "secret-serial\0");
    write("sys/class/dmi/id/product_serial", "secret-serial\n");
    write("sys/class/net/eth0/address", "02:00:secret\n");
    write("sys/class/hwmon/hwmon0/name", "ina219\n");
    write("sys/class/hwmon/hwmon0/power1_input", "4987000\n");
    write("sys/class/hwmon/hwmon0/curr1_input", "997\n");
    link("sys/class/hwmon/hwmon0/device", "../../../5-0040");
    let policy = "sys/devices/system/cpu/cpufreq/policy0";
    for (name, text) in [
        ("affected_cpus", "0 1"),
        ("scaling_driver", "cpufreq-dt"),
        ("scaling_governor", "ondemand"),
        ("scaling_available_frequencies", "600000 1000000 1500000"),
        ("scaling_min_freq", "600000"),
        ("scaling_max_freq", "1500000"),
        ("scaling_cur_freq", "600000"),
        ("stats/time_in_state", "600000 980\n1500000 20"),
    ] {
        write(&format!("{policy}/{name}"), &format!("{text}\n"));
    }
    let disk = "sys/devices/platform/mmc_host/mmc0/mmc0:aaaa/block/mmcblk0";
    write(&format!("{disk}/mmcblk0p2/partition"), "2\n");
    for (name, text) in [
        ("device/name", "SC32G"),
        ("device/type", "SD"),
        ("device/preferred_erase_size", "4194304"),
        ("device/cid", "secret-serial"),
        ("device/serial", "secret-serial"),
        ("queue/rotational", "0"),
        ("queue/scheduler", "none [mq-deadline] kyber"),
        ("queue/nr_requests", "64"),
    ] {
        write(&format!("{disk}/{name}"), &format!("{text}\n"));
    }
    let device = std::fs::metadata(card).unwrap().dev();
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let partition = format!("../../{}/mmcblk0p2", disk.strip_prefix("sys/").unwrap());
    link(&format!("sys/dev/block/{number}"), &partition);
}

#[test]
fn the_page_has_frequencies_power_and_the_card_and_nothing_of_whose_board_it_is() {
    let dir = TempDir::new();
    std::fs::create_dir(dir.file("card")).unwrap();
    board(&dir, &dir.file("card"));
    let mut command = beside_a_bench(&dir);
    let output = command
        .args(["doctor", "--dir", "card", "--root", "root"])
        .args(["--meter", "secret-meter.csv", "--report", "page.md"])
        .output()
        .unwrap();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
    let page = std::fs::read_to_string(dir.file("page.md")).unwrap();
    let flash = "keel bench flash --quick";
    let ours = "the rail of its shunt";
    for there in [
        "| board | Board 4 Model B |",
        "| cpu | Fourth Board |",
        "| memory_mebibytes | 926 |",
        "| kernel | 6.6.31-board |",
        "| card: kind | mmc SC32G |",
        "| card: rotational | false |",
        "| card: scheduler | mq-deadline |",
        "| card: requests_max | 64 |",
        "| card: write_cache | unavailable: the kernel does not say |",
        "| card: mmc_type | SD |",
        "| card: mmc_erase_bytes | 4194304 |",
        "| policy0 | 0 1 | cpufreq-dt | ondemand | 600 1000 1500 | unavailable: ",
        "does not say | 600 to 1500 |",
        "| rest | policy0 | 600 | 600 to 600 |",
        "| 600 | unavailable: no tick of 10 ms was counted |",
        &format!("| {flash} | policy0 | 600 | 600 to 1500 |"),
        "| 1500 | 600: 25.0 %, 1500: 75.0 % |",
        &format!("| rest | ina219 5-0040 | {ours}"),
        &format!("| {flash} | ina219 5-0040 | {ours}"),
        "| measured | 4.987 | 4.987 | 4.987 |",
        &format!("| {flash} | meter | what hangs on the meter | unavailable: "),
        "indicative only",
    ] {
        assert!(page.contains(there), "{there}: {page}");
    }
    let (_, lengths) = page.split_once("## How long it was measured").unwrap();
    for what in ["rest", "write latency", flash] {
        let row = format!("| {what} | ");
        let length = lengths.lines().find_map(|line| line.strip_prefix(&row));
        let seconds = length.unwrap().trim_end_matches(" |").parse::<f64>();
        assert!(seconds.unwrap() >= 0.0, "{what}: {page}");
    }
    let own = dir.path().to_str().unwrap();
    for absent in ["secret", own, "root/"] {
        assert!(!page.contains(absent), "{absent}: {page}");
    }
}

/// Sensors were once looked for below the folder in which the command ran.
#[test]
fn power_sources_belong_to_the_machine_from_any_folder() {
    let dir = TempDir::new();
    std::fs::create_dir(dir.file("card")).unwrap();
    board(&dir, &dir.file("card"));
    let found = |arguments: &[&str], folder: &Path| {
        let mut command = crate::common::keel();
        command
            .args(["doctor", "--json", "--dir"])
            .arg(dir.file("card"));
        let output = command
            .args(arguments)
            .current_dir(folder)
            .output()
            .unwrap();
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut findings = found["findings"].as_array().unwrap().iter();
        let power = findings.find(|finding| finding["subject"] == "power sources");
        power.unwrap()["text"].as_str().unwrap().to_owned()
    };
    let root = dir.file("root");
    let text = found(&["--root", root.to_str().unwrap()], dir.path());
    assert!(text.contains("ina219 5-0040"), "{text}");
    // In that folder, too, the machine's own sensors count.
    assert!(!found(&[], &root).contains("ina219 5-0040"));
}
