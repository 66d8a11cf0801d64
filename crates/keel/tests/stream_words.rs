//! Error messages of a device: they name the thing, the reason and the remedy.

use crate::common::{TempDir, fails, keel, ok, run, signal, wait_until};
use crate::stream_common::device::{
    MemoryDisk, copy_folder, fails_to_mount, fails_to_mount_as, path,
};
use crate::stream_common::{
    Mount, Server, TABLE_BLOCKS, bytes_of, cannot_mount, publish, run_within, runs_well, tree,
};
use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// A mount whose standard error is kept in a file.
struct Told {
    mount: Mount,
    log: PathBuf,
}

impl Told {
    fn start(dir: &TempDir, server: SocketAddr, options: &[&str]) -> Self {
        let log = dir.file("log");
        let mount = Mount::start_saying(dir, "at", server, options, Some(&log));
        Self { mount, log }
    }

    fn told(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until it has printed this text once.
    fn says(&self, words: &str) {
        wait_until(words, || self.told().contains(words));
        assert_eq!(self.told().matches(words).count(), 1, "{}", self.told());
    }
}

/// Creates the folders of an authority, of a server with these names, and of a device.
fn identities(dir: &TempDir, authority: &str, server: &str, names: &[&str], device: &str) {
    let identity = |arguments: &[&str]| ok(&[&["stream", "identity"], arguments].concat());
    identity(&["authority", &path(dir, authority)]);
    let mut arguments = vec!["server".to_owned(), path(dir, authority), path(dir, server)];
    for name in names {
        arguments.extend(["--name".to_owned(), (*name).to_owned()]);
    }
    identity(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let (authority, folder) = (path(dir, authority), path(dir, device));
    identity(&["device", &authority, &folder, "--name", device]);
}

#[test]
fn a_mount_that_does_not_answer_is_told_and_not_waited_for() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    tree(&dir);
    let store = publish(&dir);
    let server = Server::start(&store, &[]);
    let mount = Mount::start(&dir, "at", server.address, &[]);
    let at = mount.at.display().to_string();
    mount.signal(libc::SIGSTOP);
    let line = fails(&["stream", "status", &at], 1);
    let again = fails_to_mount(&dir, "at", server.address, &[]);
    mount.signal(libc::SIGCONT);
    for line in [line, again] {
        assert!(
            line.contains("has not answered") && line.contains("umount -l"),
            "{line}"
        );
    }
    ok(&["stream", "status", &at]);
}

#[test]
fn a_mount_says_why_it_has_no_server_and_when_it_is_back() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let tree = tree(&dir);
    let store = publish(&dir);
    let mut server = Server::start(&store, &[]);
    let mut told = Told::start(&dir, server.address, &["--insecure"]);
    assert!(told.mount.status()["server_failure"].is_null());
    server.kill();
    told.says("no connection: Connection refused; start the server");
    server.restart();
    told.says("connected again");
    wait_until("no failure", || {
        told.mount.status()["server_failure"].is_null()
    });
    // The mounted version is pruned; after its restart the server no longer has it.
    std::fs::write(tree.join("share/short"), "the second version\n").unwrap();
    publish(&dir);
    ok(&["stream", "prune", store.to_str().unwrap(), "--keep", "1"]);
    server.restart();
    told.says("no connection: version 1 is no longer published there; mount anew");
    let failure = told.mount.status()["server_failure"].clone();
    assert_eq!(failure, "version 1 is no longer published there");
    let printed = ok(&["stream", "status", told.mount.at.to_str().unwrap()]);
    let printed = String::from_utf8(printed).unwrap();
    assert!(printed.contains("no connection: version 1 is"), "{printed}");
    // Version 1 of another tree.
    server.kill();
    std::fs::rename(&store, dir.file("before")).unwrap();
    publish(&dir);
    server.restart();
    told.says("no connection: another tree is version 1 there");
    assert_eq!(told.mount.end(libc::SIGTERM), Some(0));
}

#[test]
fn a_device_that_was_struck_off_learns_it_also_with_a_cache() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    tree(&dir);
    identities(&dir, "authority", "server", &["127.0.0.1"], "device");
    let trust = ["--identity", &path(&dir, "server")];
    let mut server = Server::start_at(&publish(&dir), "127.0.0.1:0", &trust);
    let (device, cache) = (path(&dir, "device"), path(&dir, "cache"));
    let options = ["--identity", &device, "--cache", &cache];
    let mut told = Told::start(&dir, server.address, &options);
    let first = "no publisher was known; ";
    told.says(first);
    let publisher = std::fs::read_to_string(dir.file("store/publisher.pub")).unwrap();
    assert!(told.told().contains(publisher.trim()), "{}", told.told());
    let authority = path(&dir, "authority");
    ok(&["stream", "identity", "revoke", &authority, "device"]);
    server.restart();
    let why = "no connection: the server refuses this device's certificate: it is not on the server's list";
    told.says(why);
    assert_eq!(told.mount.end(libc::SIGINT), Some(0));
    let told = Told::start(&dir, server.address, &options);
    told.says(why);
    assert!(!told.told().contains(first), "{}", told.told());
}

#[test]
fn a_mount_that_looks_for_its_server_ends_by_a_signal() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    // A server that accepts connections but sends nothing; the greeting may take a third of the deadline.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    for (number, status) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let at = dir.file("at");
        std::fs::create_dir_all(&at).unwrap();
        let mut child = keel()
            .args(["stream", "mount", &address, at.to_str().unwrap()])
            .args(["--insecure", "--deadline-s", "3600"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let (mut socket, _) = silent.accept().unwrap();
        socket.read_exact(&mut [0]).unwrap();
        signal(&child, number);
        let mut ended = None;
        wait_until("the end of a mount", || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.unwrap().code(), Some(status));
    }
}

#[test]
fn each_reason_not_to_start_has_its_remedy() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    tree(&dir);
    let store = publish(&dir);
    identities(&dir, "authority", "server", &["127.0.0.1"], "device");
    identities(&dir, "others", "elsewhere", &["plant.example"], "alien");
    let devices = path(&dir, "authority/devices");
    let serve = |folder: &str, devices: &str| {
        let options = ["--identity", &path(&dir, folder), "--devices", devices];
        Server::start_at(&store, "127.0.0.1:0", &options)
    };
    let refused = |server: SocketAddr, device: &str| {
        fails_to_mount_as(&dir, "at", server, &["--identity", &path(&dir, device)])
    };
    let right = serve("server", &devices);
    let line = refused(right.address, "server");
    assert!(line.contains("not that of a server"), "{line}");
    let line = refused(right.address, "alien");
    assert!(line.contains("of the server's authority"), "{line}");
    let elsewhere = serve("elsewhere", &path(&dir, "others/devices"));
    let line = refused(elsewhere.address, "alien");
    assert!(
        line.contains("`keel stream identity server --name`"),
        "{line}"
    );
    let plain = Server::start(&store, &[]);
    let line = refused(plain.address, "device");
    assert!(line.contains("started with --insecure"), "{line}");
    // A server of another protocol.
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = web.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut socket in web.incoming().flatten() {
            socket.read_exact(&mut [0]).ok();
            let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
            socket.write_all(answer).ok();
            // Read what the client sends; otherwise closing the socket may discard the answer.
            socket.shutdown(std::net::Shutdown::Write).ok();
            socket.read_to_end(&mut Vec::new()).ok();
        }
    });
    let line = refused(address, "device");
    assert!(
        line.contains("does not speak TLS") && line.contains("another service"),
        "{line}"
    );
    let line = fails_to_mount(&dir, "at", address, &[]);
    assert!(line.contains("another service may answer"), "{line}");
    // A damaged manifest. It is made in a copy, because the server may look for new manifests at any moment.
    std::fs::write(dir.file("tree/share/short"), "the second version\n").unwrap();
    let copy = path(&dir, "copy");
    copy_folder(&store, Path::new(&copy));
    ok(&["stream", "pack", &path(&dir, "tree"), &copy]);
    let in_store = |store: &Path| store.join("manifests").join(format!("{:020}", 2));
    let whole = std::fs::read(in_store(Path::new(&copy))).unwrap();
    let manifest = in_store(&store);
    std::fs::write(&manifest, &whole[..whole.len() / 2]).unwrap();
    // Otherwise the older manifest would be served.
    std::fs::remove_file(manifest.with_file_name(format!("{:020}", 1))).unwrap();
    let line = fails_to_mount(&dir, "at", plain.address, &[]);
    assert!(line.contains("`keel stream check`"), "{line}");
}

#[test]
fn going_back_to_an_older_version_names_the_remedy() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let tree = tree(&dir);
    let store = publish(&dir);
    copy_folder(&store, &dir.file("old"));
    std::fs::write(tree.join("share/short"), "the second version\n").unwrap();
    publish(&dir);
    let mut server = Server::start(&store, &[]);
    let (cache, address) = (path(&dir, "cache"), server.address);
    let cached = ["--cache", cache.as_str()];
    drop(Mount::start(&dir, "at", address, &cached));
    server.kill();
    let mut older = Server::start_at(&dir.file("old"), &address.to_string(), &["--insecure"]);
    let line = fails_to_mount(&dir, "at", address, &cached);
    assert!(
        line.contains("`keel stream pack --version-min 3`"),
        "{line}"
    );
    assert!(line.contains(&cache) && !line.contains("--state"), "{line}");
    older.kill();
    // Another tree under the number that was seen, signed with the same key: a copy of the store was used for further
    // publications.
    std::fs::write(tree.join("share/short"), "of a copy\n").unwrap();
    ok(&["stream", "pack", &path(&dir, "tree"), &path(&dir, "old")]);
    let mut other = Server::start_at(&dir.file("old"), &address.to_string(), &["--insecure"]);
    let line = fails_to_mount(&dir, "at", address, &cached);
    assert!(
        line.contains("version 2 is another tree than the version 2 that was seen before"),
        "{line}"
    );
    assert!(
        line.contains("`keel stream pack --version-min 3`") && line.contains(&cache),
        "{line}"
    );
    other.kill();
    std::fs::rename(&store, dir.file("before")).unwrap();
    let _other = Server::start_at(&publish(&dir), &address.to_string(), &["--insecure"]);
    let line = fails_to_mount(&dir, "at", address, &cached);
    assert!(line.contains("name the new key with --publisher"), "{line}");
}

#[test]
fn impossible_options_are_refused_before_files_are_made() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let at = path(&dir, "at");
    std::fs::create_dir(&at).unwrap();
    let mount = |options: &[&str], status: i32| {
        let all = ["stream", "mount", "127.0.0.1:1", &at, "--insecure"];
        fails(&[&all[..], options].concat(), status)
    };
    // Paths that the mount would cover.
    std::os::unix::fs::symlink(&at, dir.file("link")).unwrap();
    let inside = path(&dir, "at/a/b");
    for place in [&at, &inside, &path(&dir, "link/cache")] {
        for option in ["--cache", "--state"] {
            let line = mount(&[option, place], 2);
            assert!(line.contains("which the mount covers"), "{line}");
        }
    }
    assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0);
    let (none, image) = (path(&dir, "none"), path(&dir, "none.img"));
    let line = mount(&["--cache", &none, "--cache-size", "3M"], 2);
    assert!(line.contains("a cache has at least 4 MiB"), "{line}");
    let line = mount(&["--cache", &image], 1);
    assert!(line.contains("`keel flash format "), "{line}");
    assert!(!dir.file("none").exists() && !dir.file("none.img").exists());
    // No option is silently ignored.
    for option in ["--cache-size=8M", "--complete=files"] {
        let output = run(&["stream", "mount", "127.0.0.1:1", &at, "--insecure", option]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && said.contains("--cache"),
            "{said}"
        );
    }
    // Before the folder of --state is made.
    let new = path(&dir, "new");
    let line = mount(&["--connections", "17", "--state", &new], 2);
    assert!(line.contains("give a number from 1 to 16"), "{line}");
    let line = mount(&["--pool-filled", "--pool-pages=0", "--state", &new], 2);
    assert!(line.contains("--pool-pages 1 or more"), "{line}");
    assert!(!dir.file("new").exists());
    let bytes = path(&dir, "bytes");
    std::fs::write(&bytes, [0xff; 32]).unwrap();
    let line = mount(&["--publisher", &bytes], 1);
    assert!(
        line.contains("holds no public key") && line.contains(".pub"),
        "{line}"
    );
    let line = mount(&["--state", &bytes], 1);
    assert!(line.contains("name a folder with --state"), "{line}");
    let missing = path(&dir, "missing");
    let line = fails(
        &["stream", "mount", "127.0.0.1:1", &missing, "--insecure"],
        1,
    );
    assert!(
        line.contains("mkdir -p") && line.contains(&missing),
        "{line}"
    );
    let help = String::from_utf8(ok(&["stream", "pin", "--help"])).unwrap();
    let usage = help.lines().find(|line| line.starts_with("Usage")).unwrap();
    let place = |word: &str| usage.find(word).unwrap_or_else(|| panic!("{usage}"));
    assert!(place("<SERVER>") < place("<TASK|--all>"), "{usage}");
}

#[test]
fn a_part_of_the_tree_may_be_named_as_a_shell_does() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    tree(&dir);
    let server = Server::start(&publish(&dir), &[]);
    for (only, names) in [("./bin", &["bin"][..]), (".", &["bin", "share"])] {
        let mount = Mount::start(&dir, "at", server.address, &["--only", only]);
        let mut found: Vec<_> = std::fs::read_dir(&mount.at)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        found.sort();
        assert_eq!(found, names, "{only}");
    }
}

/// Also if the program is in the page cache, but not if the loader has been installed since. A loader of the tree is
/// named apart: the program lacks it unless it runs from the tree's root.
#[test]
fn a_mount_names_the_loader_that_a_program_lacks() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let root = tree(&dir);
    let installed = path(&dir, "installed");
    for (name, text) in [
        ("bin/lost", "#!/nowhere/shell -e\n".to_owned()),
        ("bin/late", format!("#!{installed}\n")),
        ("bin/own", "#!/own/link/shell\n".to_owned()),
        ("bin/text", "#!/nowhere/else\n".to_owned()),
        ("own/real/shell", "x".to_owned()),
    ] {
        let file = root.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        let mode = if name == "bin/text" { 0o644 } else { 0o755 };
        std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::symlink("/own/real", root.join("own/link")).unwrap();
    let server = Server::start(&publish(&dir), &[]);
    let mount = Mount::start(&dir, "at", server.address, &[]);
    assert_eq!(mount.status()["loaders_missing"], serde_json::json!([]));
    assert_eq!(mount.status()["loaders_in_tree"], serde_json::json!([]));
    for _ in 0..2 {
        for name in ["lost", "late", "own"] {
            let ended = std::process::Command::new(mount.at.join("bin").join(name)).output();
            assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::NotFound);
        }
    }
    std::fs::read(mount.at.join("bin/text")).unwrap();
    let lost = serde_json::json!({"file": "bin/lost", "loader": "/nowhere/shell"});
    let late = serde_json::json!({"file": "bin/late", "loader": installed});
    let mut missing = mount.status()["loaders_missing"]
        .as_array()
        .unwrap()
        .clone();
    missing.sort_by_key(|named| named["file"].as_str().unwrap().to_owned());
    assert_eq!(missing, [late, lost.clone()]);
    let own = serde_json::json!([{"file": "bin/own", "loader": "/own/link/shell"}]);
    assert_eq!(mount.status()["loaders_in_tree"], own);
    let printed = String::from_utf8(ok(&["stream", "status", &path(&dir, "at")])).unwrap();
    assert!(
        printed.contains("\"bin/lost\" needs \"/nowhere/shell\", which is neither in the tree nor on this machine"),
        "{printed}"
    );
    assert!(
        printed.contains("\"bin/own\" needs \"/own/link/shell\", which is only in the tree"),
        "{printed}"
    );
    std::fs::write(&installed, "").unwrap();
    assert_eq!(mount.status()["loaders_missing"], serde_json::json!([lost]));
    assert_eq!(mount.status()["loaders_in_tree"], own);
}

#[test]
fn a_mount_that_is_ended_says_that_programs_still_run() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    tree(&dir);
    let server = Server::start(&publish(&dir), &[]);
    let mut told = Told::start(&dir, server.address, &["--insecure"]);
    let mut held = std::process::Command::new(told.mount.at.join("bin/task"))
        .args(["10-12", "wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("a task", || told.mount.status()["tasks_now"] == 1);
    let log = told.log.clone();
    // The exit status depends on whether a program is about to read; this test accepts both.
    assert!(matches!(told.mount.end(libc::SIGINT), Some(0 | 1)));
    let said = std::fs::read_to_string(log).unwrap();
    assert!(said.contains("1 program running from here"), "{said}");
    held.kill().ok();
    held.wait().ok();
}

fn pin(server: &Server, options: &[&str]) -> (Option<i32>, String, String) {
    let address = server.address.to_string();
    let mut command = keel();
    command.args(["stream", "pin", &address, "--insecure"]);
    let output = run_within(command.args(options), Duration::from_secs(120)).unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn a_pin_fetches_all_around_one_damaged_segment_wherever_that_lies() {
    let dir = TempDir::new();
    std::fs::create_dir_all(dir.file("tree/share")).unwrap();
    for (name, blocks) in [("a", 11), ("b", 400), ("c", 90)] {
        let noise: Vec<u8> = bytes_of(blocks, 2 * blocks as usize * 4096)
            .into_iter()
            .step_by(2)
            .collect();
        std::fs::write(dir.file("tree/share").join(name), noise).unwrap();
    }
    let store = publish(&dir);
    let pack = store.join("packs/0000000001.pack");
    let sound = std::fs::read(&pack).unwrap();
    for place in 1..8 {
        let mut damaged = sound.clone();
        damaged[sound.len() * place / 8] ^= 0x20;
        std::fs::write(&pack, damaged).unwrap();
        let mut server = Server::start(&store, &[]);
        let cache = path(&dir, &format!("cache{place}"));
        let (status, said, error) = pin(&server, &["--all", "--json", "--cache", &cache]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let missing = 501 - said["blocks_cached"].as_u64().unwrap();
        assert_eq!(
            (status, said["blocks_wanted"].as_u64()),
            (Some(1), Some(501))
        );
        assert!((1..=32).contains(&missing), "{place}: {said} {error}");
        let told =
            format!("{missing} blocks are damaged in the server's store, and all others are here");
        assert!(error.contains(&told), "{place}: {error}");
        server.kill();
    }
}

#[test]
fn a_pin_counts_the_blocks_in_the_cache_at_its_end() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    tree(&dir);
    let noise = bytes_of(3, 6 << 20);
    std::fs::write(dir.file("tree/share/noise"), noise).unwrap();
    let mut server = Server::start(&publish(&dir), &[]);
    let json = |said: &str| -> serde_json::Value { serde_json::from_str(said).unwrap() };
    // The cache is too small, and there is too little space for the allowed size.
    let small = path(&dir, "small");
    let options = ["--all", "--json", "--cache", &small, "--cache-size", "4M"];
    let (status, said, error) = pin(&server, &options);
    let said = json(&said);
    assert_eq!(
        (status, &said["is_complete"]),
        (Some(1), &false.into()),
        "{said}"
    );
    let count = |name: &str| said[name].as_u64().unwrap();
    assert!(
        count("blocks_cached") > 0 && count("blocks_cached") < count("blocks_wanted"),
        "{said}"
    );
    assert!(count("blocks_fetched") > count("blocks_cached"), "{said}");
    assert!(said["publisher_first_seen"].is_string(), "{said}");
    assert!(
        error.contains(&small) && error.contains("--cache-size"),
        "{error}"
    );
    let disk = MemoryDisk::new(&dir, "disk", "2M");
    let (status, said, error) = pin(&server, &["--all", "--json", "--cache", disk.path()]);
    let said = json(&said);
    assert_eq!(status, Some(1), "{said}");
    assert!(
        said["blocks_cached"].as_u64() < said["blocks_wanted"].as_u64(),
        "{said}"
    );
    assert!(
        error.contains(disk.path()) && error.contains("its disk has not enough room"),
        "{error}"
    );
    assert!(!error.contains("--cache-size"), "{error}");
    // If the cache cannot be written, the error names the cache.
    let kept = MemoryDisk::new(&dir, "kept", "16M");
    let (status, ..) = pin(&server, &["share/short", "--cache", kept.path()]);
    assert_eq!(status, Some(0));
    kept.set_read_only(true);
    let (status, _, error) = pin(&server, &["--all", "--cache", kept.path()]);
    assert_eq!(status, Some(1));
    let thing = format!("keel: {}: ", kept.path());
    let line = error.lines().last().unwrap_or_default();
    assert!(
        line.starts_with(&thing) && line.contains("can be written"),
        "{error}"
    );
    // Without a server, the cached blocks decide.
    let cache = path(&dir, "cache");
    let (status, said, _) = pin(&server, &["bin/task", "--cache", &cache]);
    assert!(
        status == Some(0) && said.contains("is trusted from now on"),
        "{said}"
    );
    server.kill();
    let (status, said, error) = pin(&server, &["--all", "--json", "--cache", &cache]);
    let said = json(&said);
    assert_eq!(status, Some(1), "{said}");
    let count = |name: &str| said[name].as_u64().unwrap();
    assert!(count("blocks_cached") >= TABLE_BLOCKS as u64, "{said}");
    assert_eq!(count("blocks_fetched"), 0, "{said}");
    assert!(said["publisher_first_seen"].is_null(), "{said}");
    let missing = format!(
        "{} blocks of it",
        count("blocks_wanted") - count("blocks_cached")
    );
    assert!(
        error.contains(&missing) && error.contains("start the server"),
        "{error}"
    );
}

#[test]
fn a_start_while_the_server_was_away_is_counted_whole() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    tree(&dir);
    let mut server = Server::start(&publish(&dir), &[]);
    let mount = Mount::start(&dir, "at", server.address, &["--deadline-s", "60"]);
    server.kill();
    wait_until("no connection", || mount.count("connected") == 0);
    std::thread::scope(|scope| {
        let (dir, running) = (&dir, &mount);
        let run = scope.spawn(move || runs_well(dir, running, &["20-60"]));
        wait_until("a task", || mount.count("tasks_now") == 1);
        // Longer than a start may be without reads.
        std::thread::sleep(Duration::from_secs(4));
        server.restart();
        run.join().unwrap();
    });
    let mut starts = serde_json::Value::Null;
    wait_until("its start", || {
        starts = mount.status()["starts"].clone();
        starts.as_array().is_some_and(|all| !all.is_empty())
    });
    let start = &starts[0];
    assert!(start["read"].as_u64() >= Some(41), "{starts}");
    assert!(start["requests"].as_u64() > Some(0), "{starts}");
}

#[test]
fn addresses_and_caches_that_are_none_are_told_apart_without_a_server() {
    let dir = TempDir::new();
    let pin = |server: &str, cache: &str, status: i32| {
        fails(
            &[
                "stream",
                "pin",
                server,
                "--all",
                "--insecure",
                "--cache",
                cache,
            ],
            status,
        )
    };
    let cache = path(&dir, "cache");
    for (server, words) in [
        ("::1", "such as [::1]:7007"),
        ("fe80::1:7007", "in brackets"),
        ("127.0.0.1:99999", "no port is above 65535"),
        ("127.0.0.1", "names no port"),
        ("127.0.0.1:0", "names no port"),
        ("127.0.0.1:", "names no port"),
        (":7007", "names no host"),
    ] {
        let line = pin(server, &cache, 2);
        assert!(line.contains(words), "{line}");
    }
    let fifo = path(&dir, "fifo");
    let name = std::ffi::CString::new(fifo.as_str()).unwrap();
    // SAFETY: the name is NUL-terminated and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    for place in [fifo.as_str(), "/dev/null"] {
        let line = pin("127.0.0.1:1", place, 1);
        assert!(line.contains("neither a directory nor the image"), "{line}");
    }
    assert!(!dir.file("cache").exists());
    let options = ["--insecure", "--cache", &cache, "--publisher", &fifo];
    let line = fails(
        &[&["stream", "pin", "127.0.0.1:1", "--all"], &options[..]].concat(),
        1,
    );
    assert!(line.contains("is no regular file"), "{line}");
    // An identity with an entry that is not a regular file, or that belongs to another identity.
    identities(&dir, "authority", "server", &["127.0.0.1"], "device");
    let (authority, other) = (path(&dir, "authority"), path(&dir, "other"));
    ok(&[
        "stream", "identity", "device", &authority, &other, "--name", "other",
    ]);
    let as_device = || {
        let device = path(&dir, "device");
        let options = ["--identity", &device, "--cache", &cache];
        fails(
            &[&["stream", "pin", "127.0.0.1:1", "--all"], &options[..]].concat(),
            1,
        )
    };
    std::fs::copy(dir.file("other/key.pem"), dir.file("device/key.pem")).unwrap();
    let line = as_device();
    assert!(
        line.contains("cert.pem and key.pem do not belong together"),
        "{line}"
    );
    std::fs::remove_file(dir.file("device/cert.pem")).unwrap();
    std::fs::rename(&fifo, dir.file("device/cert.pem")).unwrap();
    let line = as_device();
    assert!(
        line.contains("it is no regular file; put the file there"),
        "{line}"
    );
}

#[test]
fn a_pin_whose_lists_of_hashes_do_not_fit_names_a_fitting_size_at_once() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    tree(&dir);
    let sparse = std::fs::File::create(dir.file("tree/share/sparse")).unwrap();
    sparse.set_len(60 << 20).unwrap();
    let server = Server::start(&publish(&dir), &[]);
    let cache = path(&dir, "cache");
    let with = |size: &str| pin(&server, &["--all", "--cache", &cache, "--cache-size", size]);
    let (status, said, error) = with("4M");
    let line = error.lines().last().unwrap_or_default();
    assert!(status == Some(1) && said.is_empty(), "{said}{error}");
    assert!(
        line.contains("lists of hashes") && line.contains("keeps 34"),
        "{line}"
    );
    let (_, size) = line.rsplit_once("--cache-size ").unwrap();
    let (size, _) = size.split_once(' ').unwrap();
    let (status, said, error) = with(size);
    assert_eq!(status, Some(0), "{size}: {said}{error}");
    let (status, said, error) = with(size);
    assert!(
        status == Some(0) && said.contains("the whole tree"),
        "{said}{error}"
    );
}

#[test]
fn a_mount_on_a_full_disk_reports_it_once_and_keeps_the_newest_blocks() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    tree(&dir);
    let noise = bytes_of(3, 4 << 20);
    std::fs::write(dir.file("tree/share/noise"), &noise).unwrap();
    let server = Server::start(&publish(&dir), &[]);
    let disk = MemoryDisk::new(&dir, "disk", "1M");
    let told = Told::start(
        &dir,
        server.address,
        &["--insecure", "--cache", disk.path()],
    );
    let read = std::fs::read(told.mount.at.join("share/noise")).unwrap();
    assert!(read == noise);
    told.says("the cache fails: ");
    assert!(told.told().contains("the disk is full"), "{}", told.told());
    let status = told.mount.status();
    let said = status["cache_failure"].as_str().unwrap_or_default();
    assert!(said.contains("the disk is full"), "{status}");
    assert!(status["cache_blocks"].as_u64().unwrap() > 50, "{status}");
    let printed = ok(&["stream", "status", &path(&dir, "at")]);
    let printed = String::from_utf8(printed).unwrap();
    let is_said = |line: &str| line.starts_with("cache_failure ") && line.contains("full");
    assert!(printed.lines().any(is_said), "{printed}");
    told.says("the cache fails: ");
}

#[test]
fn damage_at_the_server_is_reported_with_its_remedy_and_other_blocks_come() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    tree(&dir);
    let noise = bytes_of(3, 4 << 20);
    std::fs::write(dir.file("tree/share/noise"), &noise).unwrap();
    let store = publish(&dir);
    let packs = std::fs::read_dir(store.join("packs")).unwrap();
    let mut packs = packs.map(|entry| entry.unwrap().path());
    let is_pack = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "pack");
    let pack = packs.find(is_pack).unwrap();
    let mut bytes = std::fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let server = Server::start(&store, &[]);
    let (status, said, error) = pin(
        &server,
        &["--all", "--json", "--cache", &path(&dir, "cache")],
    );
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let count = |name: &str| said[name].as_u64().unwrap();
    let missing = count("blocks_wanted") - count("blocks_cached");
    assert!(status == Some(1) && (1..=32).contains(&missing), "{said}");
    let line = error.lines().last().unwrap_or_default();
    assert!(
        line.contains(&format!(
            "{missing} blocks are damaged in the server's store"
        )) && line.contains("`keel stream check`"),
        "{error}"
    );
    let told = Told::start(&dir, server.address, &["--insecure"]);
    let failed = std::fs::read(told.mount.at.join("share/noise")).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    told.says("of share/noise is damaged in the server's store; run `keel stream check`");
    let failure = told.mount.status()["server_failure"].clone();
    assert!(
        failure.as_str().unwrap_or_default().contains("damaged"),
        "{failure}"
    );
    let printed = String::from_utf8(ok(&["stream", "status", &path(&dir, "at")])).unwrap();
    assert!(printed.contains("the server: block "), "{printed}");
}
