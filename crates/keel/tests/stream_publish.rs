//! `keel stream key`, `pack`, `ls`, `check` and `prune`, used as by a user.

use crate::common::{TempDir, as_nobody, fails, keel, ok, ok_json, one_line, run, text};
use crate::stream_check::damage;
use serde_json::json;
use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns bytes without a pattern.
pub(crate) fn bytes(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Creates a small tree. Returns its path and that of a store.
pub(crate) fn place(dir: &TempDir) -> (String, String) {
    let tree = dir.file("tree");
    fs::create_dir_all(tree.join("bin")).unwrap();
    fs::write(tree.join("bin/plant"), bytes(300_000, 1)).unwrap();
    fs::set_permissions(tree.join("bin/plant"), PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(tree.join("readme"), b"plant\n").unwrap();
    symlink("bin/plant", tree.join("run")).unwrap();
    let shown = |path: PathBuf| path.display().to_string();
    (shown(tree), shown(dir.file("store")))
}

fn lines(output: &[u8]) -> Vec<&str> {
    std::str::from_utf8(output).unwrap().lines().collect()
}

pub(crate) fn pack_file(store: &str) -> PathBuf {
    file_of(store, "pack")
}

/// Returns a file of a store's packs.
pub(crate) fn file_of(store: &str, wanted: &str) -> PathBuf {
    let packs = fs::read_dir(Path::new(store).join("packs")).unwrap();
    packs
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|ending| ending == wanted))
        .unwrap()
}

/// The kernel's `vfs_cap_data` of revision 2, in effect: `CAP_NET_BIND_SERVICE` is permitted.
const CAPABILITY: [u8; 20] = {
    let mut bytes = [0; 20];
    bytes[0] = 1;
    bytes[3] = 2;
    bytes[5] = 1 << 2;
    bytes
};

#[test]
fn missing_interpreters_and_files_left_out_are_reported() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    let file = |name: &str, text: &str, mode| {
        let path = Path::new(&tree).join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    };
    file("bin/here", "#!/bin/sh\n", 0o755);
    file("bin/inside", "#!/readme\n", 0o755);
    // Not executable, so a missing interpreter does not matter.
    file("bin/text", "#!/nowhere/text\n", 0o644);
    file("bin/lost", "#!/nowhere/shell -e\n", 0o755);
    let marked = file("bin/marked", "x", 0o644);
    let capable = file("bin/capable", "x", 0o644);
    let mark = |path: &Path, name: &CStr, value: &[u8]| {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        let (start, bytes) = (value.as_ptr().cast(), value.len());
        // SAFETY: two NUL-terminated texts, and a value of the given length.
        let is_set = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), start, bytes, 0) } == 0;
        if !is_set {
            let error = std::io::Error::last_os_error();
            println!("skipped: this file system takes no {name:?}: {error}");
        }
        usize::from(is_set)
    };
    let mut count = mark(&marked, c"user.mark", b"x");
    count += mark(&Path::new(&tree).join("bin"), c"user.mark", b"x");
    if base::mount::effective_ids().0 == 0 {
        count += mark(&capable, c"security.capability", &CAPABILITY);
    } else {
        println!("skipped: only root can give a capability");
    }
    let said = ok_json(&["stream", "pack", &tree, &store, "--json"]);
    assert_eq!(
        said["loaders_missing"],
        json!([{"file": "bin/lost", "loader": "/nowhere/shell"}])
    );
    assert_eq!(
        said["loaders_in_tree"],
        json!([{"file": "bin/inside", "loader": "/readme"}])
    );
    let left_out = said["attributes_left_out"].clone();
    let said = ok(&["stream", "pack", &tree, &store]);
    let said = String::from_utf8(said).unwrap();
    if count > 0 {
        assert_eq!(left_out, count);
        let line = format!(
            "\n{count} files or directories have capabilities or other extended attributes, which are not published\n"
        );
        assert!(said.contains(&line), "{said}");
    }
    assert!(
        said.contains("\"bin/lost\" needs \"/nowhere/shell\", which is neither in the tree nor on this machine"),
        "{said}"
    );
    assert!(
        said.contains(
            "note: \"bin/inside\" needs \"/readme\", which is in the tree and not on this machine"
        ),
        "{said}"
    );
}

#[test]
fn a_tree_is_published_listed_and_published_again() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    let first = ok(&["stream", "pack", &tree, &store]);
    let first = lines(&first);
    assert!(
        first[0].starts_with("version 1: 2 files, 2 directories, 1 link, 293.0 KiB"),
        "{first:?}"
    );
    assert!(first.last().unwrap().starts_with("publisher "));
    let key = fs::metadata(Path::new(&store).join("publisher.key")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    assert_eq!(
        lines(&ok(&["stream", "ls", &store, "/"])),
        ["bin", "readme", "run"]
    );
    let long = ok(&["stream", "ls", &store, "/", "-l"]);
    let long = lines(&long);
    assert!(long[0].starts_with("drwxr-xr-x"), "{long:?}");
    assert!(long[2].ends_with("run -> bin/plant"), "{long:?}");
    let found = ok_json(&["stream", "ls", &store, "bin", "--json"]);
    assert_eq!(found["files"][0]["name"], "plant");
    assert_eq!(found["files"][0]["length_bytes"], 300_000);
    assert_eq!(found["files"][0]["mode"], "0755");
    // The same tree gives no new version; a change of one byte adds one segment.
    let same = ok_json(&["stream", "pack", &tree, &store, "--json"]);
    assert_eq!((&same["version"], &same["new"]), (&json!(1), &json!(false)));
    let mut changed = bytes(300_000, 1);
    changed[200_000] ^= 1;
    fs::write(Path::new(&tree).join("bin/plant"), changed).unwrap();
    let second = ok_json(&["stream", "pack", &tree, &store, "--json"]);
    assert_eq!(
        (&second["version"], &second["new"]),
        (&json!(2), &json!(true))
    );
    assert_eq!(second["segments_new"], 1);
    assert_eq!(second["segments_shared"], 3);
    assert_eq!(second["publisher"], same["publisher"]);
    let versions = ok_json(&["stream", "ls", &store, "--json"]);
    assert_eq!(versions["versions"][1]["version"], 2);
    assert_eq!(versions["publisher"], same["publisher"]);
    assert_eq!(lines(&ok(&["stream", "ls", &store])).len(), 2);
    assert_eq!(
        lines(&ok(&["stream", "ls", &store, "--of", "1"])),
        ["bin", "readme", "run"]
    );
}

#[test]
fn a_flipped_byte_is_found_and_named() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    ok(&["stream", "pack", &tree, &store]);
    let whole = ok(&["stream", "check", &store]);
    assert!(lines(&whole)[0].contains(": whole; 1 version, "));
    let pack = pack_file(&store);
    let mut damaged = fs::read(&pack).unwrap();
    damaged[1000] ^= 1;
    fs::write(&pack, damaged).unwrap();
    let output = run(&["stream", "check", &store]);
    let (status, said, _) = text(&output);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("needed by bin/plant"), "{said}");
    let remedy = format!("`keel stream pack TREE {store}` writes again");
    assert!(said.contains(&remedy), "{said}");
    let output = run(&["stream", "check", &store, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["whole"], false);
    assert_eq!(report["findings"][0]["needed_by"][0], "bin/plant");
    // The remedy works: the tree has the right bytes, and a prune takes the damaged ones away.
    let said = ok(&["stream", "pack", &tree, &store]);
    let said = String::from_utf8(said).unwrap();
    let named = format!("{} has damaged content", pack.display());
    assert!(
        said.contains("version 1 is this tree already") && said.contains(&named),
        "{said}"
    );
    ok(&["stream", "prune", &store, "--keep", "1"]);
    assert!(lines(&ok(&["stream", "check", &store]))[0].contains(": whole; "));
}

#[test]
fn old_versions_are_dropped() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    for version in 1..=3_u32 {
        fs::write(Path::new(&tree).join("bin/plant"), bytes(300_000, version)).unwrap();
        ok(&["stream", "pack", &tree, &store]);
    }
    let pruned = ok_json(&["stream", "prune", &store, "--keep", "1", "--json"]);
    assert_eq!(pruned["removed"], json!([1, 2]));
    assert_eq!(pruned["kept"], json!([3]));
    let left = pruned["pack_bytes"].as_u64().unwrap();
    assert!(left < pruned["pack_bytes_before"].as_u64().unwrap() / 2);
    let checked = ok_json(&["stream", "check", &store, "--json"]);
    assert_eq!(checked["whole"], true);
    assert_eq!(checked["contents_unused"], 0);
    let line = fails(&["stream", "ls", &store, "/", "--of", "1"], 1);
    assert!(line.contains("has no version 1; list them with"), "{line}");
    fails(&["stream", "prune", &store, "--keep", "0"], 2);
    let said = ok(&["stream", "prune", &store, "--keep", "5"]);
    assert!(lines(&said)[0].contains("0 versions dropped, 1 kept; 0 B freed"));
}

#[test]
fn keys_are_made_once_and_used_by_name() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    let key = dir.file("plant.key").display().to_string();
    let public = ok(&["stream", "key", &key]);
    let public = lines(&public)[0];
    assert_eq!(public.len(), 64);
    assert_eq!(
        fs::read_to_string(format!("{key}.pub")).unwrap().trim(),
        public
    );
    let line = fails(&["stream", "key", &key], 1);
    assert!(line.contains("choose another path"), "{line}");
    let report = ok_json(&["stream", "pack", &tree, &store, "--key", &key, "--json"]);
    assert_eq!(report["publisher"], *public);
    fs::write(Path::new(&tree).join("new"), b"new").unwrap();
    let line = fails(&["stream", "pack", &tree, &store], 1);
    assert!(line.contains("name it with --key"), "{line}");
    let other = dir.file("other.key").display().to_string();
    let made = ok_json(&["stream", "key", &other, "--json"]);
    assert_ne!(made["public_key"], *public);
    let line = fails(&["stream", "pack", &tree, &store, "--key", &other], 1);
    assert!(line.contains("is signed by"), "{line}");
    let readme = format!("{tree}/readme");
    let line = fails(&["stream", "pack", &tree, &store, "--key", &readme], 1);
    assert!(line.contains("is not an ed25519 key"), "{line}");
}

#[test]
fn wrong_arguments_are_told_in_one_line_with_a_remedy() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    for command in ["ls", "check"] {
        let line = fails(&["stream", command, &store], 1);
        assert!(line.contains("is not a store; check the path"), "{line}");
    }
    let inside = format!("{tree}/store");
    let line = fails(&["stream", "pack", &tree, &inside], 2);
    assert!(line.contains("choose a place outside"), "{line}");
    let missing = format!("{tree}/none");
    let line = fails(&["stream", "pack", &missing, &store], 1);
    assert!(
        line.contains("no such file or directory; check the path"),
        "{line}"
    );
    let readme = format!("{tree}/readme");
    let line = fails(&["stream", "pack", &readme, &store], 1);
    assert!(line.contains("not a directory"), "{line}");
    fails(&["stream", "pack", &tree, &store, "--level", "20"], 2);
    ok(&["stream", "pack", &tree, &store, "--version-min", "9"]);
    let line = fails(&["stream", "ls", &store, "/none"], 1);
    assert!(line.contains("is not in version 9; list what is"), "{line}");
    assert_eq!(
        lines(&ok(&["stream", "ls", &store, "/readme"])),
        ["/readme"]
    );
}

/// Runs the command with a limit on the file size in kilobytes: writing then fails as on a full disk.
fn fails_on_a_full_disk(kilobytes: u32, arguments: &[&str]) -> String {
    let script = format!("trap '' XFSZ; ulimit -f {kilobytes}; exec \"$0\" \"$@\"");
    let output = Command::new("bash")
        .args(["-c", &script])
        .arg(keel().get_program())
        .args(arguments)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    one_line(&output.stderr)
}

#[test]
fn too_few_open_files_are_said_in_one_line() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    ok(&["stream", "pack", &tree, &store]);
    let (at, cache) = (dir.file("at"), dir.file("cache"));
    fs::create_dir_all(&at).unwrap();
    let (at, cache) = (at.to_str().unwrap(), cache.to_str().unwrap());
    let no_server = "127.0.0.1:9";
    let limited = |limit: &str, arguments: &[&str]| {
        let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
        Command::new("bash")
            .args(["-c", &script])
            .arg(keel().get_program())
            .arg("stream")
            .args(arguments)
            .output()
            .unwrap()
    };
    let commands: [&[&str]; 5] = [
        &["pack", &tree, &store],
        &["check", &store],
        &["serve", &store, "--insecure", "--listen", "127.0.0.1:0"],
        &["mount", no_server, at, "--insecure"],
        &["pin", no_server, "--all", "--insecure", "--cache", cache],
    ];
    for arguments in commands {
        let output = limited("-n 12", arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        let line = one_line(&output.stderr);
        let says = |words: &str| assert!(line.contains(words), "{arguments:?}: {line}");
        says("a limit (`ulimit -n`) allows this program 12, ");
        says("LimitNOFILE=");
    }
    // The program raises its soft limit up to the hard limit.
    let output = limited("-Sn 12", &["check", &store]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_higher_version_of_the_same_tree_is_made_when_it_is_asked_for() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    ok(&["stream", "pack", &tree, &store]);
    let pack = |version_min: &str| {
        let arguments = ["stream", "pack", &tree, &store, "--json", "--version-min"];
        let report = ok_json(&[&arguments[..], &[version_min]].concat());
        (report["version"].clone(), report["new"].clone())
    };
    // Devices that have seen version 9 refuse anything lower.
    assert_eq!(pack("10"), (json!(10), json!(true)));
    assert_eq!(pack("10"), (json!(10), json!(false)));
    assert_eq!(pack("7"), (json!(10), json!(false)));
    let slip = [
        "stream",
        "pack",
        &tree,
        &store,
        "--version-min",
        "18446744073709551615",
    ];
    let output = keel().args(slip).output().expect("keel runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let versions = ok_json(&["stream", "ls", &store, "--json"]);
    assert_eq!(versions["versions"][1]["version"], 10);
    assert_eq!(
        ok_json(&["stream", "check", &store, "--json"])["whole"],
        true
    );
}

#[test]
fn a_full_disk_leaves_nothing_that_takes_room_or_is_in_the_way() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    let packs = Path::new(&store).join("packs");
    let line = fails_on_a_full_disk(64, &["stream", "pack", &tree, &store]);
    assert!(line.contains("cannot be written"), "{line}");
    assert_eq!(fs::read_dir(&packs).unwrap().count(), 0, "{line}");
    // The published version stays, and a prune that must copy leaves no partial copy.
    ok(&["stream", "pack", &tree, &store]);
    fs::write(Path::new(&tree).join("other"), bytes(200_000, 9)).unwrap();
    fails_on_a_full_disk(64, &["stream", "pack", &tree, &store]);
    assert_eq!(fs::read_dir(&packs).unwrap().count(), 2);
    fs::remove_file(Path::new(&tree).join("readme")).unwrap();
    ok(&["stream", "pack", &tree, &store]);
    fs::remove_file(Path::new(&tree).join("bin/plant")).unwrap();
    fs::write(Path::new(&tree).join("readme"), b"plant\n").unwrap();
    ok(&["stream", "pack", &tree, &store]);
    let before = fs::read_dir(&packs).unwrap().count();
    fails_on_a_full_disk(1, &["stream", "prune", &store, "--keep", "1"]);
    assert_eq!(fs::read_dir(&packs).unwrap().count(), before);
    ok(&["stream", "prune", &store, "--keep", "1"]);
    assert_eq!(
        ok_json(&["stream", "check", &store, "--json"])["whole"],
        true
    );

    let key = dir.file("plant.key").display().to_string();
    fails_on_a_full_disk(0, &["stream", "key", &key]);
    assert!(!Path::new(&key).exists());
    // No single half of a key pair is left, either: the name of the other half would be too long.
    let long = dir.file(&"k".repeat(253)).display().to_string();
    fails(&["stream", "key", &long], 1);
    assert!(!Path::new(&long).exists());
    ok(&["stream", "key", &key]);
}

#[test]
fn a_path_that_is_no_tree_or_no_key_is_named_as_such() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    let line = fails(&["stream", "pack", &format!("{tree}/readme"), &store], 1);
    assert!(
        line.ends_with("readme: not a directory; name a directory"),
        "{line}"
    );
    // A file that is too long for a key, and a folder.
    let program = format!("{tree}/bin/plant");
    let line = fails(&["stream", "pack", &tree, &store, "--key", &program], 1);
    assert!(line.contains("is not an ed25519 key in PKCS#8"), "{line}");
    let line = fails(&["stream", "pack", &tree, &store, "--key", &tree], 1);
    assert!(line.contains("is a directory; name a file"), "{line}");
}

#[test]
fn paths_are_written_as_in_a_shell() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    ok(&["stream", "pack", &tree, &store]);
    for path in [".", "./", "/.", "./."] {
        let listed = ok(&["stream", "ls", &store, path]);
        assert_eq!(lines(&listed), ["bin", "readme", "run"], "{path}");
    }
    assert_eq!(lines(&ok(&["stream", "ls", &store, "./bin"])), ["plant"]);
    fails(&["stream", "ls", &store, ".."], 1);
    // An option about details of files is rejected for versions.
    let line = fails(&["stream", "ls", &store, "-l"], 2);
    assert!(line.contains("/ -l`"), "{line}");
    ok(&["stream", "ls", &store, "-l", "--of", "1"]);
}

#[test]
fn a_user_with_read_access_to_a_store_can_check_it() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    ok(&["stream", "pack", &tree, &store]);
    let Some(output) = as_nobody(&["stream", "check", &store], &dir) else {
        return;
    };
    let (status, said, error) = text(&output);
    assert_eq!((status, error), (Some(0), ""), "{output:?}");
    assert!(said.contains(": whole; "), "{said}");
}

#[test]
fn a_damaged_store_is_not_to_be_pruned() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    ok(&["stream", "pack", &tree, &store]);
    let manifest = fs::read_dir(Path::new(&store).join("manifests")).unwrap();
    let manifest = manifest.last().unwrap().unwrap().path();
    let mut damaged = fs::read(&manifest).unwrap();
    damaged[70] ^= 1;
    fs::write(&manifest, damaged).unwrap();
    let output = run(&["stream", "check", &store]);
    let (status, said, _) = text(&output);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("--version-min 2"), "{said}");
    assert!(!said.contains("stream prune"), "{said}");
}

#[test]
fn a_store_that_has_lost_a_file_names_it_with_a_remedy() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    let file = |name: &str| Path::new(&store).join(name);
    ok(&["stream", "pack", &tree, &store]);
    // A pack: its content is taken from the tree again.
    let pack = pack_file(&store);
    fs::write(&pack, &fs::read(&pack).unwrap()[..1000]).unwrap();
    let said = ok(&["stream", "pack", &tree, &store]);
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("version 1 is this tree already"), "{said}");
    let named = format!("{} is missing or too short", pack.display());
    assert!(said.contains(&named), "{said}");
    ok(&["stream", "prune", &store, "--keep", "1"]);
    assert!(!pack.exists());
    let said = ok(&["stream", "check", &store]);
    assert!(String::from_utf8_lossy(&said).contains(": whole; "));
    // A damaged format file is reported as such, not as a wrong folder.
    let format = fs::read(file("format")).unwrap();
    let mut damaged = format.clone();
    damaged[3] ^= 1;
    fs::write(file("format"), damaged).unwrap();
    let line = fails(&["stream", "check", &store], 1);
    let named = "format: damaged: it does not say `keel stream store, format 1`; write that line";
    assert!(line.contains(named), "{line}");
    fs::remove_file(file("format")).unwrap();
    for command in ["pack", "check"] {
        let arguments = match command {
            "pack" => vec!["stream", command, &tree, &store],
            _ => vec!["stream", command, &store],
        };
        let line = fails(&arguments, 1);
        let named = "format: is missing beside the store's manifests; write the line `keel stream store, format 1`";
        assert!(line.contains(named), "{line}");
    }
    fs::write(file("format"), format).unwrap();
    // This file names the signer of the published versions: the advice works.
    fs::write(file("publisher.pub"), "00\n").unwrap();
    let line = fails(&["stream", "pack", &tree, &store], 1);
    assert!(
        line.contains("; remove ") && line.contains("writes it again"),
        "{line}"
    );
    fs::remove_file(file("publisher.pub")).unwrap();
    ok(&["stream", "pack", &tree, &store]);
    // A damaged secret key does not concern the published versions.
    let key = fs::read(file("publisher.key")).unwrap();
    let mut damaged = key.clone();
    damaged[20] ^= 1;
    fs::write(file("publisher.key"), damaged).unwrap();
    let output = run(&["stream", "check", &store]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("put back a copy of it"), "{said}");
    let line = fails(&["stream", "pack", &tree, &store], 1);
    assert!(
        line.contains("put back a copy of the store's key"),
        "{line}"
    );
    assert!(said.contains("all but the key is whole"), "{said}");
    assert!(!said.contains("into a new store"), "{said}");
    fs::write(file("publisher.key"), key).unwrap();
    // The public key.
    fs::remove_file(file("publisher.pub")).unwrap();
    let serve = [
        "stream",
        "serve",
        &store,
        "--listen",
        "127.0.0.1:0",
        "--insecure",
    ];
    let line = fails(&serve, 1);
    let named = "publisher.pub: damaged: it is missing; `keel stream pack TREE ";
    assert!(line.contains(named), "{line}");
    ok(&["stream", "pack", &tree, &store]);
    assert!(file("publisher.pub").exists());
    // All versions, of a store that has not recorded the last one.
    let lose_versions = || {
        for manifest in fs::read_dir(file("manifests")).unwrap() {
            fs::remove_file(manifest.unwrap().path()).unwrap();
        }
    };
    lose_versions();
    fs::remove_file(file("newest")).unwrap();
    let output = run(&["stream", "check", &store]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let is_said = said.contains(": no version; ") && said.contains("--version-min above");
    assert!(is_said && !said.contains("prune"), "{said}");
    let said = ok(&["stream", "pack", &tree, &store]);
    let said = String::from_utf8(said).unwrap();
    assert!(
        said.contains("version 1: ") && said.contains("--version-min above"),
        "{said}"
    );
    // And of a store that has recorded it.
    lose_versions();
    let said = damage(&store);
    assert!(
        said.contains("version 1 was published") && said.contains("makes version 2"),
        "{said}"
    );
    let said = String::from_utf8(ok(&["stream", "pack", &tree, &store])).unwrap();
    assert!(
        said.contains("version 2: ") && !said.contains("--version-min"),
        "{said}"
    );
}

#[test]
fn a_file_that_is_no_key_makes_no_store() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    let program = format!("{tree}/bin/plant");
    fails(&["stream", "pack", &tree, &store, "--key", &program], 1);
    assert!(!Path::new(&store).exists());
}
