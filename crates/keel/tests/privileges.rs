//! What a node may do, and what others may do with its files. Root gives way to `node.user`, no file is open to other
//! users, and no secret leaves the node.

use crate::common::http::{self, HTTP};
use crate::common::node::{Node, SMALL};
use crate::common::{NOBODY, TempDir, as_nobody, keel, signal, wait_until};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// The name of [`NOBODY`], where a system has one.
const NOBODY_NAME: &str = "nobody";

/// Returns whether this test can start a node as root that becomes [`NOBODY`]; prints why not.
fn can_become_nobody() -> bool {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let named = format!("{NOBODY_NAME}:x:{NOBODY}:");
    if base::mount::effective_ids().0 != 0 {
        println!("skipped: only root can become another user");
    } else if !users.lines().any(|line| line.starts_with(&named)) {
        let id = NOBODY;
        println!("skipped: this system has no user {NOBODY_NAME} with the ID {id}");
    } else {
        return true;
    }
    false
}

/// Returns the group of [`NOBODY`].
fn group_of_nobody() -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let start = format!("{NOBODY_NAME}:x:{NOBODY}:");
    let rest = users.lines().find_map(|line| line.strip_prefix(&start));
    rest.unwrap().split(':').next().unwrap().to_owned()
}

/// Prepares a node that becomes [`NOBODY`], in a folder of that user.
fn node_of_nobody(config: &str) -> Node {
    let node = Node::prepare(&format!("[node]\nuser = \"{NOBODY_NAME}\"\n{config}"));
    fs::create_dir(node.dir.file("keel-data")).unwrap();
    for folder in [node.dir.path().to_owned(), node.dir.file("keel-data")] {
        chown(&folder, Some(NOBODY), None).unwrap();
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    }
    node
}

/// Returns the values of a field in the status of each thread of a process.
fn of_threads(pid: u32, field: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut values = Vec::new();
    for thread in threads {
        // A thread may end meanwhile.
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap_or_default();
        let lines = status.lines();
        let found =
            lines.filter_map(|line| line.split_once(':').filter(|(name, _)| *name == field));
        values.extend(found.map(|(_, value)| value.trim().to_owned()));
    }
    values
}

#[test]
fn no_thread_of_a_node_keeps_a_right_of_root() {
    if !can_become_nobody() {
        return;
    }
    let mut node = node_of_nobody(SMALL);
    node.restart();
    let ids = |id: &str| [id; 4].join("\t");
    for (field, id) in [("Uid", NOBODY.to_string()), ("Gid", group_of_nobody())] {
        let threads = of_threads(node.pid(), field);
        assert!(
            threads.len() > 1 && threads.iter().all(|found| *found == ids(&id)),
            "{field} {threads:?}"
        );
    }
    for field in ["CapPrm", "CapEff", "CapAmb"] {
        let found = of_threads(node.pid(), field);
        assert!(
            found.iter().all(|bits| bits.bytes().all(|bit| bit == b'0')),
            "{field} {found:?}"
        );
    }
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    // What the node makes is the user's from the first instant.
    let owner = |path: PathBuf| fs::symlink_metadata(path).unwrap().uid();
    assert_eq!(owner(node.dir.file("keel-data/store.img")), NOBODY);
    assert_eq!(owner(node.dir.file("keel-data/store.img.lock")), NOBODY);
    assert_eq!(owner(node.socket()), NOBODY);
    assert_eq!(owner(node.dir.file("line.sock")), NOBODY);
    // It serves, reads its configuration again, and ends as any other node.
    node.ok(&["put", "door", "open"]);
    node.signal(libc::SIGHUP);
    wait_until("the reload", || node.log().contains(" reload: applied"));
    assert!(node.stop().success(), "{}", node.log());
    assert!(!node.socket().exists() && !node.dir.file("line.sock").exists());
    node.restart();
    assert!(node.ok(&["get", "door"]).starts_with("open"));
    assert!(node.stop().success(), "{}", node.log());
}

#[test]
fn a_link_in_the_folder_of_the_user_leads_root_to_no_file() {
    if !can_become_nobody() {
        return;
    }
    for name in ["store.img", "store.img.new", "store.img.lock"] {
        let mut node = node_of_nobody(SMALL);
        let precious = node.dir.file("precious");
        fs::write(&precious, "of root").unwrap();
        fs::set_permissions(&precious, Permissions::from_mode(0o600)).unwrap();
        symlink(&precious, node.dir.file("keel-data").join(name)).unwrap();
        if name == "store.img.lock" {
            // The node puts a file of its own in its place.
            node.restart();
            let lock = fs::symlink_metadata(node.dir.file("keel-data").join(name)).unwrap();
            assert!(lock.is_file() && lock.uid() == NOBODY, "{lock:?}");
            assert!(node.stop().success(), "{}", node.log());
        } else {
            let output = node.run(&["run", "-c", "keel.toml"]);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{name}: {said}");
            if name == "store.img" {
                assert!(said.contains("ermission denied"), "{said}");
            }
        }
        assert_eq!(fs::read_to_string(&precious).unwrap(), "of root", "{name}");
    }
}

#[test]
fn a_user_that_cannot_be_become_is_told_with_the_remedy() {
    let node = Node::prepare("[node]\nuser = \"nobody-of-that-name\"\n");
    let line = node.fails(&["run", "-c", "keel.toml"], 1);
    assert!(
        line.contains("a user that this machine does not have"),
        "{line}"
    );
    fs::write(node.dir.file("keel.toml"), "[node]\nuser = \"root\"\n").unwrap();
    let line = node.fails(&["run", "-c", "keel.toml"], 1);
    assert!(line.contains("which has every right"), "{line}");
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if !users.lines().any(|line| line.starts_with("daemon:")) {
        println!("skipped: this system has no user daemon");
        return;
    }
    // A user that is no root and not the one that is named.
    fs::write(node.dir.file("keel.toml"), "[node]\nuser = \"daemon\"\n").unwrap();
    fs::set_permissions(node.dir.path(), Permissions::from_mode(0o777)).unwrap();
    if let Some(output) = as_nobody(&["run", "-c", "keel.toml"], &node.dir) {
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("only root can become another user"), "{said}");
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn a_secret_that_the_user_cannot_read_ends_the_start() {
    if !can_become_nobody() {
        return;
    }
    let broker = "[[broker]]\nname = \"b\"\naddress = \"127.0.0.1:1\"\nclient_id = \"k\"\nusername = \"u\"\n\
                  password_file = \"secret\"\n";
    let mqtt = "[mqtt]\naddress = \"127.0.0.1:1\"\nclient_id = \"k\"\nusername = \"u\"\npassword_file = \"secret\"\n\
                [[mqtt.subscribe]]\nfilter = \"a\"\n";
    for section in [broker, mqtt] {
        let node = node_of_nobody(&format!("{SMALL}{section}"));
        let secret = node.dir.file("secret");
        fs::write(&secret, "word\n").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        let output = node.run(&["run", "-c", "keel.toml"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        let remedy = format!("let the user {NOBODY_NAME} read it");
        assert!(said.contains(&remedy), "{said}");
        assert!(said.contains("secret: "), "{said}");
        // The check of the configuration has told it before.
        let checked = node.run(&["config", "check", "keel.toml"]);
        let told = String::from_utf8(checked.stdout).unwrap();
        let warning = format!("the user {NOBODY_NAME} cannot read ");
        assert!(told.contains(&warning), "{told}");
    }
}

#[test]
fn a_path_that_the_user_cannot_use_is_told_with_the_user_at_the_start_and_by_the_check() {
    if !can_become_nobody() {
        return;
    }
    let node = node_of_nobody(&format!("socket = \"closed/keel.sock\"\n{SMALL}"));
    let closed = node.dir.file("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, Permissions::from_mode(0o755)).unwrap();
    let output = node.run(&["run", "-c", "keel.toml"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let wrong = format!("ermission denied for the user {NOBODY_NAME}");
    assert!(said.contains(&wrong), "{said}");
    let checked = node.run(&["config", "check", "keel.toml"]);
    let told = String::from_utf8(checked.stdout).unwrap();
    let warning = format!("does not belong to the user {NOBODY_NAME}; chown {NOBODY_NAME}: ");
    let lines = told.lines();
    let about: Vec<&str> = lines.filter(|line| line.contains(&warning)).collect();
    assert_eq!(about.len(), 1, "{told}");
    assert!(about[0].starts_with("warning: node.socket: "), "{told}");
    let text = format!("[node]\nuser = \"no-such-user\"\n{SMALL}");
    fs::write(node.dir.file("keel.toml"), text).unwrap();
    let checked = node.run(&["config", "check", "keel.toml"]);
    let told = String::from_utf8(checked.stdout).unwrap();
    assert!(
        told.contains("warning: node.user is no-such-user, a user that this machine does not have"),
        "{told}"
    );
}

/// Returns every path below a folder. What stands for the files of a region is not looked into: its folder decides.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.extension().is_none_or(|ending| ending != "stubs") {
            paths.extend(below(&path));
        }
        paths.push(path);
    }
    paths
}

/// Returns what is wrong with the permissions of a file.
fn too_open(path: &Path) -> Option<String> {
    let found = fs::symlink_metadata(path).unwrap();
    let mode = found.permissions().mode() & 0o777;
    let is_open = mode & 0o007 != 0 || mode & 0o020 != 0 && !found.file_type().is_socket();
    is_open.then(|| format!("{} has {mode:o}", path.display()))
}

#[test]
fn no_file_of_a_node_is_open_to_others_with_any_umask() {
    let dir = TempDir::new();
    let config = "[node]\nsocket = \"made/keel.sock\"\n[store]\nimage = \"made/store.img\"\ncreate_mebibytes = 16\n\
                  [line]\ntcp_listen = \"\"\nunix_socket = \"made/line.sock\"\n\
                  [region]\nfile = \"made/region/values\"\ncreate_mebibytes = 32\n\
                  checkpoint_image = \"made/region.img\"\ncheckpoint_create_mebibytes = 16\n";
    fs::write(dir.file("keel.toml"), config).unwrap();
    let log = dir.file("log");
    let mut command = keel();
    // SAFETY: between fork and exec, only a plain system call that is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::umask(0);
            Ok(())
        })
    };
    let mut node = command
        .args(["run", "-c", "keel.toml"])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let said = || fs::read_to_string(&log).unwrap_or_default();
    wait_until("the ready line", || {
        assert!(node.try_wait().unwrap().is_none(), "{}", said());
        said().contains(" ready: ")
    });
    let made = below(&dir.file("made"));
    let open: Vec<String> = made.iter().filter_map(|path| too_open(path)).collect();
    // The node ends before anything is judged, so that none is left behind.
    signal(&node, libc::SIGTERM);
    assert!(node.wait().unwrap().success(), "{}", said());
    for name in [
        "keel.sock",
        "store.img",
        "store.img.lock",
        "line.sock",
        "values",
    ] {
        assert!(
            made.iter().any(|path| path.ends_with(name)),
            "{name} is not in {made:?}"
        );
    }
    assert!(open.is_empty(), "{open:?}");
    let at_the_end = below(&dir.file("made"));
    let open: Vec<String> = at_the_end
        .iter()
        .filter_map(|path| too_open(path))
        .collect();
    assert!(open.is_empty(), "{open:?}");
}

/// The marked secrets of the test below. No other text of the node has this word.
const MARK: &str = "ZQXSECRETQZ";

#[test]
fn no_secret_leaves_the_node() {
    let config = format!(
        "{HTTP}token_file = \"tokens\"\n[time]\nwall_clock = \"trusted\"\n\
         [mqtt]\naddress = \"127.0.0.1:1\"\nclient_id = \"k\"\nusername = \"u\"\npassword_file = \"mqtt\"\n\
         [[mqtt.subscribe]]\nfilter = \"a\"\n\
         [[upstream]]\nname = \"m\"\nkind = \"mqtt\"\naddress = \"127.0.0.1:1\"\nclient_id = \"up\"\nusername = \"u\"\n\
         password_file = \"upstream\"\n\
         [[upstream]]\nname = \"h\"\nkind = \"http\"\nurl = \"http://127.0.0.1:1/w\"\n\
         authorization_file = \"authorization\"\nlinger_ms = 20\n\
         [[broker]]\nname = \"b\"\naddress = \"127.0.0.1:1\"\nclient_id = \"out\"\nusername = \"u\"\n\
         password_file = \"broker\"\n\
         [[alarm]]\nname = \"hot\"\npattern = \"oven\"\nabove = 1\nbroker = \"b\"\n"
    );
    let mut node = Node::prepare(&config);
    for name in ["mqtt", "upstream", "authorization", "broker"] {
        fs::write(node.dir.file(name), format!("{MARK}{name}\n")).unwrap();
    }
    let token = format!("{MARK}0123456789abcdef");
    fs::write(node.dir.file("tokens"), format!("phone {token}\n")).unwrap();
    node.restart();
    node.ok(&["put", "oven", "7"]);
    // No connection can be made, which each part reports in its own words.
    wait_until("the failed connections", || {
        let status = node.json_degraded(&["status", "--json"]);
        let parts = [
            &status["mqtt"],
            &status["upstream"][0],
            &status["upstream"][1],
            &status["brokers"][0],
        ];
        parts.iter().all(|part| part["last_error"].is_string())
    });
    let mut said = Vec::new();
    // A request with the token, and requests with words that are none and have the mark, too.
    let address = http::address(&node);
    for (word, is_token) in [
        (format!("Bearer {token}"), true),
        (format!("Bearer {MARK}"), false),
    ] {
        for path in ["/api/v1/status", "/metrics"] {
            let header = format!("authorization: {word}\r\n");
            let answer = http::get_with(&address, path, &header);
            assert_eq!(answer.status != 401, is_token, "{path}: {}", answer.text());
            said.push(format!("{:?} {}", answer.headers, answer.text()));
        }
    }
    // A file that cannot be read as text any more, and a reload that is refused for it.
    fs::write(
        node.dir.file("mqtt"),
        [MARK.as_bytes(), &[0xff, 0xfe]].concat(),
    )
    .unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the reload", || node.log().contains(" reload: refused"));
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["config", "check", "keel.toml"],
        &["config", "check", "keel.toml", "--json"],
    ] {
        let output = node.run(arguments);
        for bytes in [&output.stdout, &output.stderr] {
            said.push(format!("{arguments:?} {}", String::from_utf8_lossy(bytes)));
        }
    }
    // Other users see the arguments and the environment of a process.
    for name in ["cmdline", "environ"] {
        let bytes = fs::read(format!("/proc/{}/{name}", node.pid())).unwrap();
        said.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    assert!(node.stop().success(), "{}", node.log());
    said.push(node.log());
    for text in said {
        assert!(!text.contains(MARK), "{text}");
    }
}
