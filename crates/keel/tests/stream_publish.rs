//! `keel stream key`, `pack`, `ls`, `check` and `prune`, typed as a user would.

mod common;

use common::{TempDir, fails, ok, ok_json, run, text};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Bytes without a pattern.
fn bytes(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed * 2 + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

/// A small tree and the place of a store.
fn place(dir: &TempDir) -> (String, String) {
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

fn pack_file(store: &str) -> PathBuf {
    let packs = fs::read_dir(Path::new(store).join("packs")).unwrap();
    packs
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|ending| ending == "pack"))
        .unwrap()
}

#[test]
fn a_tree_is_published_listed_and_published_again() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    let first = ok(&["stream", "pack", &tree, &store]);
    let first = lines(&first);
    assert!(
        first[0].starts_with("version 1: 2 files, 2 directories, 1 links, 293.0 KiB"),
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
    // The same tree is no new version, and one byte of it is one segment.
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
    assert!(lines(&whole)[0].contains(": whole; 1 versions"));
    let pack = pack_file(&store);
    let mut damaged = fs::read(&pack).unwrap();
    damaged[1000] ^= 1;
    fs::write(&pack, damaged).unwrap();
    let output = run(&["stream", "check", &store]);
    let (status, said, _) = text(&output);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("needed by bin/plant"), "{said}");
    assert!(said.contains("--version-min 2"), "{said}");
    let output = run(&["stream", "check", &store, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["whole"], false);
    assert_eq!(report["findings"][0]["needed_by"][0], "bin/plant");
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
    assert!(lines(&said)[0].contains("0 version(s) dropped, 1 kept; 0 B freed"));
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
fn mistakes_are_told_in_one_line_with_a_remedy() {
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
