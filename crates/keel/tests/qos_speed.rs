//! The settings of a processor when a node ends, is killed, finds them missing, or finds that another node uses them.

use crate::common;
use crate::common::node::{Node, SMALL};
use crate::common::plant::{Played, machine, setting, started_as};
use crate::common::{keel, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SAVED: &str = "keel-data/store.img.speed";

const MODEL: &str = r#"version = 1
kind = "model"
made = "2026-11-22T12:00:00Z"
machine = "made up"
actuator = "cpufreq"
sampling_period_ms = 100
data_ratio_min = 0.28
run = [[0.81, 0.3, 0.7, 0.95], [0.7, 0.3, 0.4, 0.55]]

[limits]
speed_min = 0.6
speed_step = 0.05
admission_min = 0.5

[model]
a = [[0.2, 0.0], [0.0, 0.2]]
b = [[-0.8, 0.5], [0.1, 0.3]]
inputs = [0.55, 0.75]
outputs = [0.775, 0.3]
r2 = [0.992, 0.9873]
residual = [0.02, 0.01]
condition = 3.7
samples = 400
"#;

fn qos_config(root: &str) -> String {
    format!(
        "[qos]\nsampling_period_ms = 100\nactuator = \"cpufreq\"\nmachine_root = \"{root}\"\nspeed_percent_min = 60\n\
         gains = \"qos-gains.toml\"\nmode = \"dvfs-only\"\n"
    )
}

/// Creates a node that will control the speed below `root`; it is not started yet.
fn prepared(root: &str) -> Node {
    let node = Node::prepare(&format!("{SMALL}{}", qos_config(root)));
    std::fs::write(node.dir.file("model.toml"), MODEL).unwrap();
    node.ok(&["qos", "design", "model.toml", "--out", "qos-gains.toml"]);
    node
}

/// Starts a task that is early, so that its processor is slowed down.
fn start_early(node: &Node) -> Played {
    let pause = Duration::from_millis(50);
    Played::start(node, "early", pause, || Some((0.3, 0.3)))
}

fn governor(folder: &Path) -> String {
    setting(folder, "scaling_governor")
}

fn wait_for_governor(folder: &Path, wanted: &str) {
    wait_until(&format!("the governor {wanted}"), || {
        governor(folder) == wanted
    });
}

fn qos(node: &Node) -> Value {
    node.json_degraded(&["qos", "status", "--json"])
}

fn has_reason(node: &Node, wanted: &str) -> bool {
    let status = node.json_degraded(&["status", "--json"]);
    let reasons = status["reasons"].as_array().cloned().unwrap_or_default();
    reasons.iter().any(|reason| reason["code"] == wanted)
}

/// Returns the line about settings that have not been restored.
fn left(node: &Node) -> String {
    let mut line = None;
    wait_until("what is left", || {
        line = qos(node)["settings_left"][0].as_str().map(str::to_owned);
        line.is_some()
    });
    assert!(has_reason(node, "qos_speed_left"));
    let output = node.run(&["qos", "status"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("NOT PUT BACK: "), "{said}");
    line.unwrap()
}

/// Returns a node that was killed after it had slowed the processor down.
fn killed() -> (Node, PathBuf) {
    let mut node = prepared("machine");
    let folder = machine(&node);
    node.restart();
    let early = start_early(&node);
    wait_for_governor(&folder, "userspace");
    node.kill();
    drop(early);
    assert_eq!(governor(&folder), "userspace");
    assert!(node.dir.file(SAVED).exists());
    (node, folder)
}

#[test]
fn settings_that_have_vanished_are_put_back_when_they_come_again() {
    let mut node = prepared("machine");
    let folder = machine(&node);
    let (there, gone) = (node.dir.file("machine"), node.dir.file("gone"));
    node.restart();
    let early = start_early(&node);
    wait_for_governor(&folder, "userspace");
    // Missing while the mode changes.
    std::fs::rename(&there, &gone).unwrap();
    node.ok(&["qos", "mode", "open"]);
    wait_until("the failure", || {
        let error = qos(&node)["actuator_error"].as_str().map(str::to_owned);
        error.is_some_and(|error| error.contains("write schedutil to"))
    });
    assert!(has_reason(&node, "qos_speed_failing"));
    std::fs::rename(&gone, &there).unwrap();
    wait_for_governor(&folder, "schedutil");
    node.ok(&["qos", "mode", "dvfs-only"]);
    wait_for_governor(&folder, "userspace");
    // Missing while the node ends.
    std::fs::rename(&there, &gone).unwrap();
    assert!(node.stop().success());
    drop(early);
    assert!(node.log().contains("write schedutil to"), "{}", node.log());
    assert!(node.dir.file(SAVED).exists());
    // Missing at a start.
    node.restart();
    let line = left(&node);
    let governor_path = folder.join("scaling_governor");
    let wanted = format!("write schedutil to {}", governor_path.display());
    assert!(line.contains(&wanted), "{line}");
    assert!(line.contains("remove the file"), "{line}");
    assert!(node.log().contains(&wanted), "{}", node.log());
    std::fs::rename(&gone, &there).unwrap();
    wait_for_governor(&folder, "schedutil");
    wait_until("the end of it", || {
        qos(&node)["settings_left"] == serde_json::json!([])
    });
    assert!(!node.dir.file(SAVED).exists());
    assert!(!has_reason(&node, "qos_speed_left"));
    assert!(node.stop().success());
}

#[test]
fn a_kill_is_mended_under_any_later_configuration() {
    let node_section = "[node]\nsocket = \"keel-data/other.sock\"\n";
    for (what, after) in [
        ("without [qos]", SMALL.to_owned()),
        (
            "another socket",
            format!("{node_section}{SMALL}{}", qos_config("machine")),
        ),
        (
            "another machine",
            format!("{SMALL}{}", qos_config("elsewhere")),
        ),
    ] {
        let (mut node, folder) = killed();
        std::fs::write(node.dir.file("keel.toml"), after).unwrap();
        node.restart();
        wait_until(what, || governor(&folder) == "schedutil");
        wait_until("the end of the file", || !node.dir.file(SAVED).exists());
        assert_eq!(qos(&node)["settings_left"], serde_json::json!([]), "{what}");
    }
}

/// Ended when the test ends, also if it fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts the node from another folder than that of its configuration, and ends it when the governor is restored.
fn start_elsewhere_until_put_back(node: &Node, folder: &Path) {
    let child = keel()
        .args(["run", "-c"])
        .arg(node.dir.file("keel.toml"))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut running = Running(child);
    wait_for_governor(folder, "schedutil");
    common::signal(&running.0, libc::SIGTERM);
    assert!(running.0.wait().unwrap().success());
}

#[test]
fn a_kill_is_mended_by_a_start_from_another_folder() {
    let (node, folder) = killed();
    start_elsewhere_until_put_back(&node, &folder);
    assert!(!node.dir.file(SAVED).exists());
}

#[test]
fn settings_from_before_a_reboot_are_not_restored() {
    let (mut node, folder) = killed();
    // First the machine's own setting again, then one set by a user.
    started_as(&node, "0d0f4fd9-1a34-4f0c-9c55-0c6d2f5a7b21");
    std::fs::write(folder.join("scaling_governor"), "powersave\n").unwrap();
    node.restart();
    assert_eq!(qos(&node)["settings_left"], serde_json::json!([]));
    wait_until("the end of the file", || !node.dir.file(SAVED).exists());
    assert_eq!(governor(&folder), "powersave");
    let early = start_early(&node);
    wait_for_governor(&folder, "userspace");
    drop(early);
    assert!(node.stop().success());
    assert_eq!(governor(&folder), "powersave");
}

#[test]
fn a_file_of_the_version_before_is_put_back_from_beside_the_socket() {
    let (node, folder) = killed();
    std::fs::remove_file(node.dir.file(SAVED)).unwrap();
    // With the path as it was spelled, and under the name of a socket that no longer exists.
    let policy = "machine/sys/devices/system/cpu/cpufreq/policy0";
    let text = format!("evenkeel settings 1\n{policy}/scaling_governor\tschedutil\n");
    let text = format!("{text}end {:08x}\n", crc32c(text.as_bytes()));
    let before = node.dir.file("keel-data/before.sock.speed");
    std::fs::write(&before, text).unwrap();
    start_elsewhere_until_put_back(&node, &folder);
    assert!(!before.exists());
}

/// Computes CRC-32C by its definition, independently of the program's implementation.
fn crc32c(bytes: &[u8]) -> u32 {
    let sum = bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(sum & 1))
        })
    });
    !sum
}

#[test]
fn a_file_that_was_cut_is_reported_until_it_is_removed() {
    let (mut node, folder) = killed();
    let path = node.dir.file(SAVED);
    let text = std::fs::read_to_string(&path).unwrap();
    let cut = text.find("end ").unwrap();
    std::fs::write(&path, &text[..cut]).unwrap();
    node.restart();
    let line = left(&node);
    assert!(
        line.contains("cut") && line.contains("schedutil in "),
        "{line}"
    );
    assert_eq!(governor(&folder), "userspace", "nothing of it is believed");
    // The current settings must not be recorded as those of before, either.
    let early = start_early(&node);
    wait_until("the refusal", || qos(&node)["obeyed"] == false);
    drop(early);
    std::fs::remove_file(&path).unwrap();
    wait_until("the end of it", || {
        qos(&node)["settings_left"] == serde_json::json!([])
    });
    assert!(node.stop().success());
}

#[test]
fn one_node_at_a_time_drives_a_processor() {
    let mut first = prepared("machine");
    let folder = machine(&first);
    first.restart();
    let early = start_early(&first);
    wait_for_governor(&folder, "userspace");
    let root = first.dir.file("machine");
    let mut second = prepared(root.to_str().unwrap());
    second.restart();
    let others = start_early(&second);
    let wanted = format!("process {}", first.pid());
    wait_until("the refusal", || {
        let error = qos(&second)["actuator_error"].as_str().map(str::to_owned);
        error.is_some_and(|error| error.contains(&wanted))
    });
    wait_until("the reason", || has_reason(&second, "qos_speed_failing"));
    assert_eq!(second.run(&["qos", "status"]).status.code(), Some(3));
    let refused = second.fails(&["qos", "identify"], 1);
    assert!(refused.contains(&wanted), "{refused}");
    let log = second.log();
    let lines = log.lines().filter(|line| line.contains(&wanted));
    assert_eq!(lines.count(), 1, "{log}");
    assert!(!has_reason(&first, "qos_speed_failing"));

    // When the first one is killed, the second one finds its saved settings, restores them, and takes over.
    first.kill();
    drop(early);
    wait_until("the file of the first one to go", || {
        !first.dir.file(SAVED).exists()
    });
    wait_until("the file of the second one", || {
        second.dir.file(SAVED).exists()
    });
    wait_for_governor(&folder, "userspace");
    assert!(second.stop().success());
    drop(others);
    assert_eq!(governor(&folder), "schedutil");
    assert!(!second.dir.file(SAVED).exists());
}

#[test]
fn a_machine_without_frequencies_is_reported_at_once() {
    let mut node = prepared("empty");
    std::fs::create_dir(node.dir.file("empty")).unwrap();
    node.restart();
    let _early = start_early(&node);
    let said = node.fails(&["qos", "identify"], 1);
    assert!(said.contains("no cpufreq"), "{said}");
    assert!(said.contains("take another qos.actuator"), "{said}");
    assert!(!node.dir.file("qos-model.toml").exists());
    wait_until("the reason", || has_reason(&node, "qos_speed_failing"));
    let output = node.run(&["qos", "status"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("CANNOT BE SET: ") && said.contains("no cpufreq"),
        "{said}"
    );
    assert!(!said.contains("0 times"), "{said}");
    // Without anything to lock, no folder for a lock is created.
    let made = std::fs::read_dir(node.dir.file("empty")).unwrap().count();
    assert_eq!(made, 0);
}

/// Restricts the thread that simulates tasks to these cores.
fn set_cores(cores: &[usize]) {
    // SAFETY: plain data, for which all zeros are a valid value; it outlives the call, and its size is given.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for core in cores {
            libc::CPU_SET(*core, &mut set);
        }
        let process = std::process::id().cast_signed();
        libc::sched_setaffinity(process, size_of_val(&set), &raw const set)
    };
    assert_eq!(done, 0);
}

#[test]
fn a_task_that_is_moved_to_another_core_takes_its_speed_along() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list:"));
    if !allowed.is_some_and(|allowed| allowed.contains("0-")) {
        println!("skipped: there are no cores 0 and 1");
        return;
    }
    let all: Vec<usize> = (0..std::thread::available_parallelism().unwrap().get()).collect();
    let mut node = prepared("machine");
    let first = machine(&node);
    let second = first.with_file_name("policy1");
    std::fs::create_dir(&second).unwrap();
    for entry in std::fs::read_dir(&first).unwrap() {
        let name = entry.unwrap().file_name();
        if name != "scaling_cur_freq" {
            std::fs::copy(first.join(&name), second.join(&name)).unwrap();
        }
    }
    std::os::unix::fs::symlink("scaling_setspeed", second.join("scaling_cur_freq")).unwrap();
    std::fs::write(first.join("affected_cpus"), "0\n").unwrap();
    std::fs::write(second.join("affected_cpus"), "1\n").unwrap();
    set_cores(&[0]);
    node.restart();
    let early = start_early(&node);
    wait_for_governor(&first, "userspace");
    assert_eq!(governor(&second), "schedutil");
    set_cores(&[1]);
    wait_for_governor(&second, "userspace");
    assert_eq!(governor(&first), "schedutil");
    set_cores(&all);
    assert!(node.stop().success());
    drop(early);
    assert_eq!(governor(&second), "schedutil");
}

#[test]
fn a_pipe_among_the_settings_blocks_no_command() {
    let mut node = prepared("machine");
    let folder = machine(&node);
    node.restart();
    let early = start_early(&node);
    wait_for_governor(&folder, "userspace");
    let pipe = folder.join("scaling_cur_freq");
    std::fs::remove_file(&pipe).unwrap();
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: the name is NUL-terminated and lives until the call returns.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    // Requests its speed again.
    node.ok(&["qos", "mode", "open"]);
    node.ok(&["qos", "mode", "dvfs-only"]);
    wait_until("the failure", || {
        let error = qos(&node)["actuator_error"].as_str().map(str::to_owned);
        error.is_some_and(|error| error.contains("no regular file"))
    });
    assert!(node.stop().success());
    drop(early);
    assert_eq!(governor(&folder), "schedutil");
}

#[test]
fn a_group_that_a_killed_node_has_left_is_emptied_and_said_until_it_is_gone() {
    let mut node = prepared("machine");
    machine(&node);
    let groups = node.dir.file("machine/sys/fs/cgroup/cpu");
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let abandoned = groups.join(format!("keel-{}", ended.id()));
    let others = [
        groups.join(format!("keel-{}", std::process::id())),
        groups.join("keel-settings"),
    ];
    for folder in others.iter().chain([&abandoned]) {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("tasks"), "4242\n").unwrap();
    }
    std::fs::write(groups.join("cpu.rt_runtime_us"), "950000\n").unwrap();
    std::fs::write(groups.join("tasks"), "1\n").unwrap();
    node.restart();
    // The kernel removes a group together with its files; a plain folder with files cannot be removed like that.
    let line = left(&node);
    assert!(line.contains(abandoned.to_str().unwrap()), "{line}");
    assert!(line.contains("then remove it"), "{line}");
    let all = qos(&node)["settings_left"].clone();
    assert_eq!(all.as_array().map(Vec::len), Some(1), "{all}");
    let moved = std::fs::read_to_string(groups.join("tasks")).unwrap();
    assert_eq!(moved.trim(), "4242", "its thread is let go");
    std::fs::remove_dir_all(&abandoned).unwrap();
    wait_until("the end of it", || {
        qos(&node)["settings_left"] == serde_json::json!([])
    });
    for folder in others {
        assert!(folder.join("tasks").exists(), "{}", folder.display());
    }
    assert!(node.stop().success());
}

/// A group is not slowed as a whole: the kernel limits only its real-time threads.
#[test]
fn a_task_that_rtgroup_does_not_slow_is_reported_and_not_identified() {
    let groups = Path::new("/sys/fs/cgroup/cpu");
    let bandwidth = groups.join("cpu.rt_runtime_us");
    // Permission to create a group here equals permission to write its settings, so test the latter.
    let is_open = std::fs::OpenOptions::new().write(true).open(&bandwidth);
    if let Err(error) = is_open {
        println!("skipped: {}: {error}", bandwidth.display());
        return;
    }
    let config = "[qos]\nsampling_period_ms = 100\nactuator = \"rtgroup\"\n";
    let mut node = Node::start(&format!("{SMALL}{config}"));
    let played = start_early(&node);
    wait_until("the warning", || {
        let warnings = qos(&node)["warnings"].to_string();
        warnings.contains("the task early has no real-time thread")
            && warnings.contains("fifo_priority")
    });
    let output = node.run(&["qos", "identify", "--periods", "40", "--out", "model.toml"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("rtgroup slows real-time threads alone"),
        "{said}"
    );
    drop(played);
    assert!(node.stop().success());
}
