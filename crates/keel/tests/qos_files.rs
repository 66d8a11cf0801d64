//! The files of `keel qos`: what is written where, what is read, and the effect of a configuration.

use crate::common;
use crate::common::node::{Node, SMALL};
use crate::common::{one_line, wait_until};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::{Output, Stdio};

const MODEL: &str = include_str!("golden/qos-model-1.toml");
/// Gains for periods of 1000 ms, made with `rtgroup`.
const GAINS: &str = include_str!("golden/qos-gains-1.toml");

/// Creates a folder with a model, gains, and a FIFO without a process at the other end.
fn prepared(config: &str) -> Node {
    let node = Node::prepare(config);
    std::fs::write(node.dir.file("model.toml"), MODEL).unwrap();
    std::fs::write(node.dir.file("gains.toml"), GAINS).unwrap();
    let fifo = CString::new(node.dir.file("fifo").as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is NUL-terminated and lives until the call returns.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    node
}

/// Runs a command that must end, even if it opens the FIFO.
fn run_to_its_end(node: &Node, arguments: &[&str]) -> Output {
    let mut child = common::keel()
        .args(arguments)
        .current_dir(node.dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut is_ended = false;
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_until("the end of the command", || {
            is_ended = child.try_wait().unwrap().is_some();
            is_ended
        });
    }));
    if waited.is_err() {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert!(is_ended, "{arguments:?} hangs");
    output
}

fn fails(node: &Node, arguments: &[&str]) -> String {
    let output = run_to_its_end(node, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    one_line(&output.stderr)
}

fn configured(more: &str) -> String {
    format!("{SMALL}\n[qos]\n{more}\n")
}

#[test]
fn a_written_file_replaces_only_a_regular_file() {
    let node = prepared(SMALL);
    let design = |out: &str| fails(&node, &["qos", "design", "model.toml", "--out", out]);
    for (out, said) in [
        ("fifo", "keel: fifo: is a FIFO; name another file"),
        (".", "keel: .: is a directory; name another file"),
        ("/", "keel: /: is a directory; name another file"),
        ("-", "keel: -: is no file"),
        ("model.toml", "keel: model.toml: is the file that is read"),
        ("./model.toml", "is the file that is read"),
        ("none/gains.toml", "keel: none: no such file or directory"),
    ] {
        let wrong = design(out);
        assert!(wrong.contains(said), "{out}: {wrong}");
    }
    let kind = std::fs::symlink_metadata(node.dir.file("fifo")).unwrap();
    assert!(kind.file_type().is_fifo());
    let model = std::fs::read_to_string(node.dir.file("model.toml")).unwrap();
    assert_eq!(model, MODEL);
    // If the output file of the command were replaced, the command's own output would be lost with the old file.
    let words = File::create(node.dir.file("words")).unwrap();
    let output = common::keel()
        .args(["qos", "design", "model.toml", "--out", "words"])
        .current_dir(node.dir.path())
        .stdout(words)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(one_line(&output.stderr).contains("where the command's words go"));
    let words = File::create(node.dir.file("words")).unwrap();
    let status = common::keel()
        .args(["qos", "design", "model.toml", "--out", "words"])
        .current_dir(node.dir.path())
        .stdout(Stdio::null())
        .stderr(words)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
    let words = std::fs::read(node.dir.file("words")).unwrap();
    assert!(one_line(&words).contains("where the command's words go"));
    // A symbolic link stays a link.
    std::os::unix::fs::symlink("gains.toml", node.dir.file("link")).unwrap();
    node.ok(&["qos", "design", "model.toml", "--out", "link"]);
    assert!(
        node.dir
            .file("link")
            .symlink_metadata()
            .unwrap()
            .is_symlink()
    );
    let gains = std::fs::read_to_string(node.dir.file("gains.toml")).unwrap();
    assert!(gains.contains("kind = \"gains\""), "{gains}");
    let left = node.dir.entries();
    let left = left
        .iter()
        .filter(|path| path.to_string_lossy().contains(".keel-"));
    assert_eq!(left.count(), 0, "a draft is left");
}

#[test]
fn a_file_that_may_not_be_written_is_not_replaced_either() {
    let node = prepared(SMALL);
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // With these permissions of the folder, any user could replace the file.
    set_mode(node.dir.path(), 0o777);
    set_mode(&node.dir.file("gains.toml"), 0o444);
    let arguments = ["qos", "design", "model.toml", "--out", "gains.toml"];
    // Root may write to any file.
    let Some(output) = common::as_nobody(&arguments, &node.dir) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = one_line(&output.stderr);
    assert!(said.contains("gains.toml: permission denied"), "{said}");
    let gains = std::fs::read_to_string(node.dir.file("gains.toml")).unwrap();
    assert_eq!(gains, GAINS);
}

#[test]
fn an_identification_looks_where_it_will_write_before_it_asks_for_anything() {
    // No node runs: an error about the file must come before one about the connection.
    let node = prepared(SMALL);
    for (out, said) in [
        (".", "keel: .: is a directory"),
        ("fifo", "keel: fifo: is a FIFO"),
        ("none/model.toml", "keel: none: no such file"),
        ("/proc/model.toml", "keel: /proc: "),
    ] {
        let wrong = fails(&node, &["qos", "identify", "--out", out]);
        assert!(wrong.contains(said), "{out}: {wrong}");
    }
    assert!(!node.dir.file("qos-model.toml").exists());
}

#[test]
fn targets_out_of_range_are_answered_with_the_range() {
    let node = prepared(SMALL);
    for (option, number, said) in [
        ("--tardiness", "-1", "--tardiness: is -1; give 0.05 to 10"),
        ("--tardiness", "nan", "--tardiness: is NaN; give 0.05 to 10"),
        (
            "--data-ratio",
            "-0.5",
            "--data-ratio: is -0.5; give 0.001 to 0.999",
        ),
        ("--weight-error", "-1,2", "two numbers above 0"),
    ] {
        let output = node.run(&["qos", "design", "model.toml", option, number]);
        let said_instead = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(said_instead.contains(said), "{option}: {said_instead}");
    }
    let output = node.run(&["qos", "status", "--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("gains cannot be used"), "{help}");
}

#[test]
fn a_node_reads_gains_of_regular_files_alone_and_serves_meanwhile() {
    let mut node = prepared(&configured("gains = \"fifo\""));
    assert!(fails(&node, &["qos", "design", "fifo"]).contains("is no regular file"));
    node.restart();
    let reason = |node: &Node| {
        let status = node.json_degraded(&["status", "--json"]);
        let said = status["qos"]["gains_error"].as_str().unwrap_or_default();
        let has_gains = status["qos"]["gains"].is_string();
        assert!(said.is_empty() || !has_gains, "{status}");
        said.to_owned()
    };
    let said = reason(&node);
    assert!(said.contains("fifo: is no regular file"), "{said}");
    node.ok(&["put", "room/1", "20"]);
    // The same when the configuration is reloaded.
    std::fs::write(
        node.dir.file("keel.toml"),
        configured("gains = \"gains.toml\""),
    )
    .unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the gains", || {
        node.json_degraded(&["qos", "status", "--json"])["gains"].is_string()
    });
    std::fs::write(node.dir.file("keel.toml"), configured("gains = \"fifo\"")).unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the refusal", || reason(&node).contains("no regular file"));
    node.ok(&["put", "room/1", "21"]);
    assert!(node.stop().success());
}

#[test]
fn gains_of_another_period_or_actuator_are_refused_and_the_status_says_so() {
    let cases = [
        (
            "sampling_period_ms = 100",
            "gains.toml: was made for periods of 1000 ms, and qos.sampling_period_ms is 100;",
        ),
        (
            "actuator = \"deadline\"",
            "gains.toml: was made with the actuator rtgroup, and qos.actuator is deadline;",
        ),
    ];
    for (other, said) in cases {
        let config = configured(&format!("gains = \"gains.toml\"\n{other}"));
        let mut node = prepared(&config);
        let checked = node.ok(&["config", "check", "keel.toml"]);
        assert!(
            checked.contains("warning: nothing is driven: qos.gains: "),
            "{checked}"
        );
        assert!(checked.contains(said), "{checked}");
        node.restart();
        let state = node.json_degraded(&["qos", "status", "--json"]);
        assert!(
            state["gains_error"].as_str().unwrap().contains(said),
            "{state}"
        );
        let output = node.run(&["status"]);
        assert_eq!(output.status.code(), Some(3));
        let status = String::from_utf8(output.stdout).unwrap();
        assert!(status.contains("qos_gains_unusable"), "{status}");
        assert!(node.log().contains(said), "{}", node.log());
        let refused = node.fails(&["qos", "mode", "qod-only"], 1);
        assert!(refused.contains("the gains cannot be used"), "{refused}");
    }
    // Without an actuator only the updates are controlled; with `auto` the actuator is that of the gains.
    for actuator in ["none", "auto", "rtgroup"] {
        let more = format!("gains = \"gains.toml\"\nactuator = \"{actuator}\"");
        let node = prepared(&configured(&more));
        let checked = node.ok(&["config", "check", "keel.toml"]);
        assert!(!checked.contains("nothing is driven"), "{checked}");
    }
}

#[test]
fn config_check_describes_qos_on_this_machine() {
    let check = |more: &str| {
        let node = prepared(&configured(more));
        std::fs::create_dir_all(node.dir.file("machine/sys")).unwrap();
        let large = "#".repeat((1 << 20) + 1);
        std::fs::write(node.dir.file("large"), large).unwrap();
        std::fs::write(node.dir.file("latin"), b"version = 1\n# \xe9\n").unwrap();
        let json = node.json(&["config", "check", "keel.toml", "--json"]);
        let text = node.ok(&["config", "check", "keel.toml"]);
        let sentence = json["summary"]["qos"].as_str().unwrap().to_owned();
        assert!(
            text.contains(&format!("  qos       {sentence}\n")),
            "{text}"
        );
        let warnings = json["warnings"].as_array().unwrap();
        let ours = warnings.iter().filter_map(|warning| warning.as_str());
        let ours: Vec<_> = ours
            .filter(|it| it.contains("qos") || it.contains("driven"))
            .collect();
        for warning in &ours {
            assert!(text.contains(&format!("warning: {warning}\n")), "{text}");
        }
        (sentence, ours.join("\n"))
    };
    let (said, warned) = check("");
    assert_eq!(
        (said.as_str(), warned.as_str()),
        ("mode open, actuator none, no gains", "")
    );
    let (said, warned) =
        check("mode = \"qod-only\"\ngains = \"gains.toml\"\ntardiness_target = 0.7");
    assert!(
        said.starts_with("mode qod-only, actuator none, gains "),
        "{said}"
    );
    assert!(
        said.ends_with("tardiness 0.700, data response ratio 0.280"),
        "{said}"
    );
    assert_eq!(warned, "");
    for (more, wrong) in [
        (
            "mode = \"mimo\"\ngains = \"gains.toml\"",
            "needs something that sets the speed",
        ),
        ("mode = \"qod-only\"", "needs gains"),
    ] {
        let node = prepared(&configured(more));
        let output = node.run(&["config", "check", "keel.toml", "--json"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains(&format!("qos.mode {wrong}")), "{said}");
    }
    let (said, warned) = check("mode = \"qod-only\"\ngains = \"nofile\"");
    assert!(
        said.starts_with("mode open (qos.mode is qod-only), actuator none"),
        "{said}"
    );
    assert!(said.ends_with("NOT USED"), "{said}");
    assert!(
        warned.contains("nofile: no such file or directory"),
        "{warned}"
    );
    for (gains, wrong) in [
        ("fifo", "is no regular file"),
        ("/", "is no regular file"),
        ("/dev/zero", "is no regular file"),
        ("model.toml", "is a model file, no gains file"),
        ("large", "large: is larger than 1048576 bytes"),
        ("latin", "latin:2: is not UTF-8"),
    ] {
        let (_, warned) = check(&format!("gains = \"{gains}\""));
        assert!(warned.contains(wrong), "{gains}: {warned}");
    }
    let (_, warned) = check("machine_root = \"nowhere\"");
    assert!(
        warned.contains("qos.machine_root") && warned.contains("is no folder"),
        "{warned}"
    );
    let (_, warned) = check("machine_root = \"machine\"\nactuator = \"cpufreq\"");
    assert!(warned.contains("qos.actuator is cpufreq, and "), "{warned}");
    assert!(warned.contains("cpufreq has no policy"), "{warned}");
    let (_, warned) = check("machine_root = \"machine\"\nactuator = \"rtgroup\"");
    assert!(
        warned.contains("there is no ") && warned.contains("cpu.rt_runtime_us"),
        "{warned}"
    );
}

#[test]
fn the_log_names_the_driven_inputs_and_each_change() {
    let mut node = prepared(&configured("gains = \"gains.toml\""));
    node.restart();
    let log = node.log();
    assert!(
        log.contains(" qos: mode open, actuator none, gains "),
        "{log}"
    );
    let said = node.ok(&["qos", "mode", "qod-only"]);
    assert_eq!(
        said,
        "mode      qod-only: drives updates, once a task is declared\n"
    );
    wait_until("the mode in the log", || {
        node.log()
            .contains(" qos: mode qod-only, as requested; before: open")
    });
    let said = node.ok(&["qos", "mode", "open"]);
    assert_eq!(
        said,
        "mode      open: deadlines are watched, nothing is driven\n"
    );
    std::fs::write(node.dir.file("gains.toml"), "version = 1\n").unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the refusal in the log", || {
        node.log()
            .contains(" warning: nothing is driven: qos.gains: ")
    });
    assert!(node.stop().success());
}

#[test]
fn the_speed_alone_has_gains_if_updates_have_no_effect() {
    let config = configured("gains = \"alone.toml\"\nactuator = \"rtgroup\"\n");
    let mut node = prepared(&config);
    // The model of a task that reads values which no other thread uses.
    let lines = MODEL.lines().map(|line| match line.split(" = ").next() {
        Some("a") => "a = [[0.0983, 0.2994], [-0.0643, -0.1932]]",
        Some("b") => "b = [[-0.7344, 0.0042], [0.2421, 0.0021]]",
        _ => line,
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    std::fs::write(node.dir.file("light.toml"), text).unwrap();
    let said = fails(&node, &["qos", "design", "light.toml"]);
    assert!(said.contains("has a pole at 0.99"), "{said}");
    assert!(said.contains("--tardiness-only makes gains"), "{said}");
    assert!(!node.dir.file("qos-gains.toml").exists());

    let design = ["qos", "design", "light.toml", "--tardiness-only"];
    let said = node.ok(&[&design[..], &["--out", "alone.toml"]].concat());
    assert!(said.contains("dvfs-only; one input at a time"), "{said}");
    node.restart();
    let said = node.fails(&["qos", "mode", "mimo"], 1);
    assert!(said.contains("for one input at a time"), "{said}");
    assert!(said.contains("take the mode dvfs-only"), "{said}");
    node.ok(&["qos", "mode", "dvfs-only"]);
    assert!(node.stop().success());
}
