//! Problems of `[[mount]]` and `[[task]]` are reported with their line and the remedy.

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, "keel.toml", Path::new("")).map_err(|error| error.to_string())
}

fn error(text: &str) -> String {
    parse(text).expect_err(text)
}

#[test]
fn settings_of_a_mount_are_checked() {
    let mount = |rest: &str| {
        format!(
            "[[mount]]\nname = \"a\"\nserver = \"plant.example:7007\"\ndirectory = \"d\"\n{rest}"
        )
    };
    let config = parse(&mount("identity = \"i\"\ncache = \"c\"")).unwrap();
    let found = &config.mount[0];
    assert_eq!(
        (found.cache_mebibytes_max, found.publisher.as_deref()),
        (256, None)
    );
    assert_eq!(found.identity.as_deref(), Some(Path::new("i")));
    for (rest, expected) in [
        (
            "",
            "keel.toml:1: mount.identity is missing; name the folder that `keel stream identity device` made",
        ),
        (
            "insecure = true",
            "keel.toml:1: mount.insecure is true for a server that is not 127.0.0.1:PORT or [::1]:PORT; name an \
             identity: without one the connection is not encrypted",
        ),
        (
            "identity = \"i\"\ninsecure = true",
            "keel.toml:1: mount.insecure is true beside an identity; remove it: with an identity the connection is \
             encrypted",
        ),
        (
            "identity = \"i\"\n[[mount]]\nname = \"a\"\nserver = \"h:1\"\ndirectory = \"e\"\nidentity = \"i\"",
            "keel.toml:6: mount has the same name twice; rename one of them",
        ),
        (
            "identity = \"i\"\n[[mount]]\nname = \"b\"\nserver = \"h:1\"\ndirectory = \"d\"\nidentity = \"i\"",
            "keel.toml:6: mount.directory is that of two mounts; give each a directory of its own",
        ),
    ] {
        assert_eq!(error(&mount(rest)), expected);
    }
    let text = mount("identity = \"i\"").replace("plant.example:7007", "plant");
    assert_eq!(
        error(&text),
        "keel.toml:3: mount.server is \"plant\"; give host:port of its server, such as \"plant.example:7007\""
    );
}

#[test]
fn settings_of_a_task_are_checked() {
    let task =
        |rest: &str| format!("[[task]]\nname = \"valve\"\ncommand = [\"bin/valve\"]\n{rest}");
    let config = parse(&task("")).unwrap();
    let found = &config.task[0];
    assert_eq!(
        (found.start, found.period_ns, found.deadline_ns),
        (Start::Stay, 0, 0)
    );
    assert_eq!(
        (found.restarts_max, found.program.as_path()),
        (10, Path::new("bin/valve"))
    );
    let config = parse(&task("period_ms = 0.25")).unwrap();
    assert_eq!(
        (config.task[0].period_ns, config.task[0].deadline_ns),
        (250_000, 250_000)
    );
    let config = parse(&task("start = \"each-period\"\nperiod_ms = 500")).unwrap();
    assert_eq!(config.task[0].run_ms_max, 5_000);
    for (rest, expected) in [
        (
            "deadline_ms = 5",
            "keel.toml:1: task.deadline_ms lacks a period; give period_ms as well, or remove it",
        ),
        (
            "start = \"each-period\"",
            "keel.toml:1: task.start needs a period; give period_ms, the time from one start to the next",
        ),
        (
            "start = \"each-period\"\nperiod_ms = 9.5",
            "keel.toml:1: task.period_ms is 9.5, with a process for each; give 10 or more, or start = \"stay\"",
        ),
        (
            "period_ms = 0",
            "keel.toml:4: task.period_ms is 0; give a number from 0.001 to 3600000",
        ),
        (
            "mount = \"plant\"",
            "keel.toml:4: task.mount is \"plant\", and there is no such [[mount]]; give the name of one",
        ),
        (
            "region_at = \"/keel\"",
            "keel.toml:4: task.region_at lacks a region; add [region], or remove it",
        ),
        (
            "cores = [0, 1024]",
            "keel.toml:4: task.cores holds another number; give whole numbers from 0 to 1023",
        ),
        (
            "cores = [\"0\"]",
            "keel.toml:4: task.cores is text; give whole numbers from 0 to 1023",
        ),
        (
            "restart_ms_min = 40000",
            "keel.toml:1: task.restart_ms_max is 30000; give at least restart_ms_min, which is 40000",
        ),
        (
            "[[task]]\nname = \"valve\"\ncommand = [\"x\"]",
            "keel.toml:4: task has the same name twice; rename one of them",
        ),
    ] {
        let found = error(&task(rest));
        assert!(found.starts_with(expected), "{found}\n{expected}");
    }
    for (command, expected) in [
        (
            "\"valve\"",
            "task.command is text; give an array of texts in quotes",
        ),
        (
            "[]",
            "task.command names no program; give the program and its arguments, such as [\"bin/valve\", \"--fast\"]",
        ),
        (
            "[1]",
            "task.command is a whole number; give texts in quotes",
        ),
        (
            "[\"a\\u0000\"]",
            "task.command holds a zero byte; remove it",
        ),
    ] {
        let text = format!("[[task]]\nname = \"a\"\ncommand = {command}\n");
        assert_eq!(error(&text), format!("keel.toml:3: {expected}"));
    }
}

#[test]
fn the_name_of_a_program_tells_its_folder() {
    let text = |command: &str, mount: &str| {
        format!(
            "[[mount]]\nname = \"m\"\nserver = \"127.0.0.1:1\"\ndirectory = \"d\"\ninsecure = true\n[[task]]\nname = \
             \"t\"\ncommand = [\"{command}\"]\n{mount}"
        )
    };
    for (command, mount, expected) in [
        ("sh", "", "sh"),
        ("sh", "mount = \"m\"", "sh"),
        ("bin/x", "mount = \"m\"", "/etc/keel/d/bin/x"),
        ("bin/x", "", "/etc/keel/bin/x"),
        ("/bin/x", "mount = \"m\"", "/bin/x"),
    ] {
        let config = Config::parse(&text(command, mount), "keel.toml", Path::new("/etc/keel"));
        assert_eq!(config.unwrap().task[0].program, Path::new(expected));
    }
}

#[test]
fn tasks_change_while_the_node_runs_and_mounts_do_not() {
    let old = parse("").unwrap();
    let new = parse(
        "[[mount]]\nname = \"m\"\nserver = \"127.0.0.1:1\"\ndirectory = \"d\"\ninsecure = true\n[[task]]\nname = \
         \"t\"\ncommand = [\"a\"]\nmount = \"m\"\n",
    )
    .unwrap();
    let changes = reload(&old, &new);
    assert_eq!(
        (changes.applied, changes.needs_restart),
        (vec!["task"], vec!["mount"])
    );
    assert!(changes.effective.mount.is_empty());
    assert_eq!(changes.effective.task, new.task);
}
