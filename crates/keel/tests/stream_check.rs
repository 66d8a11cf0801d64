//! The findings of `keel stream check` for a damaged store, and whether its advice works.

use crate::common::{TempDir, fails, ok, run, text};
use crate::stream_publish::{bytes, file_of, pack_file, place};
use std::fs;
use std::path::Path;

/// Returns the output of `check` for a damaged store.
pub(crate) fn damage(store: &str) -> String {
    let output = run(&["stream", "check", store]);
    let (status, said, _) = text(&output);
    assert_eq!(status, Some(1), "{said}");
    said.to_owned()
}

fn check_is_whole(store: &str) {
    let said = ok(&["stream", "check", store]);
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains(": whole; "), "{said}");
}

#[test]
fn a_damaged_store_is_whole_after_the_advice_of_check() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    let prune = format!("`keel stream prune {store} --keep 1`");
    let in_tree = |name: &str| Path::new(&tree).join(name);
    let in_store = |name: &str| Path::new(&store).join(name);
    let version = |number: u64| in_store("manifests").join(format!("{number:020}"));
    // Content that only an older version needs. A name with terminal control characters is escaped, as by `ls`.
    fs::write(in_tree("old\u{1b}[31m"), bytes(500_000, 77)).unwrap();
    ok(&["stream", "pack", &tree, &store]);
    fs::remove_file(in_tree("old\u{1b}[31m")).unwrap();
    ok(&["stream", "pack", &tree, &store]);
    let first_pack = pack_file(&store);
    let whole = fs::read(&first_pack).unwrap();
    let mut damaged = whole.clone();
    // The random bytes are most of the pack, so its middle belongs to them.
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&first_pack, damaged).unwrap();
    let said = damage(&store);
    let named = "needed by old\\u{1b}[31m of version 1";
    assert!(said.contains(named) && said.contains(&prune), "{said}");
    ok(&["stream", "prune", &store, "--keep", "1"]);
    check_is_whole(&store);
    // A truncated pack: its content is taken from the tree, and the rest of the pack is useless.
    let pack = pack_file(&store);
    fs::write(&pack, &fs::read(&pack).unwrap()[..100]).unwrap();
    ok(&["stream", "pack", &tree, &store]);
    let said = damage(&store);
    assert!(
        said.contains("no segment begins") && said.contains(&prune),
        "{said}"
    );
    ok(&["stream", "prune", &store, "--keep", "1"]);
    check_is_whole(&store);
    // An index.
    let index = file_of(&store, "index");
    let bytes = fs::read(&index).unwrap();
    fs::write(&index, &bytes[..bytes.len() - 1]).unwrap();
    let said = damage(&store);
    assert!(
        said.contains("is damaged")
            && said.contains("move indexes and manifests that are damaged aside"),
        "{said}"
    );
    fs::remove_file(&index).unwrap();
    ok(&["stream", "pack", &tree, &store]);
    let said = run(&["stream", "check", &store]);
    assert!(text(&said).1.contains(": whole; "), "{said:?}");
    // The newest manifest: its number is not used again.
    fs::write(in_tree("readme"), "third\n").unwrap();
    ok(&["stream", "pack", &tree, &store]);
    fs::remove_file(version(3)).unwrap();
    let said = damage(&store);
    assert!(
        said.contains("version 3 was published") && said.contains("makes version 4"),
        "{said}"
    );
    let said = ok(&["stream", "pack", &tree, &store]);
    assert!(String::from_utf8_lossy(&said).starts_with("version 4: "));
    check_is_whole(&store);
    // An older manifest that is not a regular file.
    fs::remove_file(version(2)).unwrap();
    let name = std::ffi::CString::new(version(2).to_str().unwrap()).unwrap();
    // SAFETY: the name is NUL-terminated and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let said = damage(&store);
    assert!(
        said.contains("it is no regular file") && said.contains("and all others are whole"),
        "{said}"
    );
    assert!(!said.contains("stream prune"), "{said}");
    fs::remove_file(version(2)).unwrap();
    check_is_whole(&store);
    // The newest manifest, if no number is recorded.
    fs::remove_file(in_store("newest")).unwrap();
    fs::write(version(4), "no manifest").unwrap();
    let said = damage(&store);
    assert!(
        said.contains("move what is damaged aside") && said.contains("--version-min 5"),
        "{said}"
    );
    fs::remove_file(version(4)).unwrap();
    ok(&["stream", "pack", &tree, &store, "--version-min", "5"]);
    check_is_whole(&store);
    // The header of a pack whose content is complete.
    let pack = pack_file(&store);
    let mut damaged = fs::read(&pack).unwrap();
    damaged[0] ^= 1;
    fs::write(&pack, damaged).unwrap();
    let said = damage(&store);
    assert!(
        said.contains("its header is damaged") && said.contains(&prune),
        "{said}"
    );
    ok(&["stream", "prune", &store, "--keep", "1"]);
    check_is_whole(&store);
    // The public key.
    let key = in_store("publisher.pub");
    for is_there in [true, false] {
        match is_there {
            true => fs::write(&key, "no key").unwrap(),
            false => fs::remove_file(&key).unwrap(),
        }
        let said = damage(&store);
        assert!(
            said.contains("first take publisher.pub away") && said.contains("1 finding; "),
            "{said}"
        );
        fs::remove_file(&key).ok();
        ok(&["stream", "pack", &tree, &store]);
        check_is_whole(&store);
    }
    // One digit of it, so that it is a key: the versions and the secret key are not blamed.
    let right = fs::read_to_string(&key).unwrap();
    let digit = if right.starts_with('0') { "1" } else { "0" };
    fs::write(&key, format!("{digit}{}", &right[1..])).unwrap();
    let said = damage(&store);
    let remedy = format!("echo {} > ", right.trim_end());
    assert!(
        said.contains("publisher.pub: ") && said.contains("1 finding; ") && said.contains(&remedy),
        "{said}"
    );
    fs::write(&key, right).unwrap();
    check_is_whole(&store);
}

/// An entry that is not a regular file loses its content, and hides no other damage.
#[test]
fn check_goes_on_behind_an_entry_that_is_no_file() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    ok(&["stream", "pack", &tree, &store]);
    fs::write(Path::new(&tree).join("more"), bytes(500_000, 78)).unwrap();
    ok(&["stream", "pack", &tree, &store]);
    let in_store = |name: &str| Path::new(&store).join(name);
    let first = in_store("packs/0000000001.pack");
    let whole = fs::read(&first).unwrap();
    let mut damaged = whole.clone();
    damaged[200] ^= 1;
    for name in [
        "publisher.pub",
        "publisher.key",
        "newest",
        "packs/0000000002.pack",
        "packs/0000000002.index",
        "manifests/00000000000000000002",
    ] {
        let (path, aside) = (in_store(name), in_store("aside"));
        fs::rename(&path, &aside).unwrap();
        for is_loop in [true, false] {
            match is_loop {
                true => std::os::unix::fs::symlink(&path, &path).unwrap(),
                false => fs::create_dir(&path).unwrap(),
            }
            fs::write(&first, &damaged).unwrap();
            let said = damage(&store);
            assert!(
                said.contains(&format!("{name}: ")) && said.contains("cannot be read"),
                "{name}: {said}"
            );
            assert!(said.contains("0000000001.pack: "), "{name}: {said}");
            assert!(
                said.contains("move aside what is no file"),
                "{name}: {said}"
            );
            fs::write(&first, &whole).unwrap();
            match is_loop {
                true => fs::remove_file(&path).unwrap(),
                false => fs::remove_dir(&path).unwrap(),
            }
        }
        fs::rename(&aside, &path).unwrap();
        check_is_whole(&store);
    }
}

/// If the newest version lacks data, or if it is unknown what is needed, no prune is advised: it would delete undamaged
/// data.
#[test]
fn a_prune_is_not_advised_where_it_would_not_help() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    let old = Path::new(&tree).join("bin/without");
    fs::write(&old, bytes(500_000, 77)).unwrap();
    ok(&["stream", "pack", &tree, &store]);
    fs::remove_file(&old).unwrap();
    ok(&["stream", "pack", &tree, &store]);
    let pack = pack_file(&store);
    let whole = fs::read(&pack).unwrap();
    // The header of the pack, which a prune rewrites; length, checksum and bytes of its first segment, which both
    // versions need. Data that only the older version needs is damaged, too.
    for at in [16, 20, 24, 0] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        fs::write(&pack, damaged).unwrap();
        let said = damage(&store);
        assert_eq!(said.contains("stream prune"), at == 0, "byte {at}: {said}");
    }
    ok(&["stream", "prune", &store, "--keep", "1"]);
    check_is_whole(&store);
    let pack = pack_file(&store);
    let mut damaged = fs::read(&pack).unwrap();
    damaged[24] ^= 1;
    fs::write(&pack, damaged).unwrap();
    for name in ["newest", "publisher.pub"] {
        for manifest in fs::read_dir(Path::new(&store).join("manifests")).unwrap() {
            fs::remove_file(manifest.unwrap().path()).unwrap();
        }
        fs::remove_file(Path::new(&store).join(name)).unwrap();
        let said = damage(&store);
        assert!(!said.contains("stream prune"), "{said}");
        assert!(said.contains("--version-min"), "{said}");
    }
}

#[test]
fn a_damaged_note_is_written_again() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    ok(&["stream", "pack", &tree, &store]);
    let note = Path::new(&store).join("newest");
    fs::write(&note, "7 00000000\n").unwrap();
    let said = damage(&store);
    assert!(
        said.contains("writes it again") && !said.contains("new store"),
        "{said}"
    );
    let said = ok(&["stream", "pack", &tree, &store]);
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("publish again with --version-min"), "{said}");
    check_is_whole(&store);
    // Failure to write the record does not undo the publication.
    fs::remove_file(&note).unwrap();
    fs::create_dir(&note).unwrap();
    fs::write(Path::new(&tree).join("readme"), "another\n").unwrap();
    let said = ok(&["stream", "pack", &tree, &store]);
    let said = String::from_utf8_lossy(&said);
    assert!(
        said.starts_with("version 2: ") && said.contains("its number could not be noted: "),
        "{said}"
    );
    let said = damage(&store);
    assert!(said.contains("take it away"), "{said}");
    fs::remove_dir(&note).unwrap();
    ok(&["stream", "pack", &tree, &store]);
    check_is_whole(&store);
}

/// A directory in place of a file of the store is named, and the remedy works.
#[test]
fn a_directory_in_place_of_a_file_is_moved_away() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    ok(&["stream", "pack", &tree, &store]);
    let format = Path::new(&store).join("format");
    let whole = fs::read(&format).unwrap();
    fs::remove_file(&format).unwrap();
    fs::create_dir(&format).unwrap();
    let line = fails(&["stream", "ls", &store], 1);
    let said = format!(
        "{store}/format: is a directory, in place of a file of the store; move it away; then `keel stream check \
         {store}`"
    );
    assert!(line.contains(&said), "{line}");
    fs::remove_dir(&format).unwrap();
    let line = fails(&["stream", "check", &store], 1);
    assert!(line.contains("write the line `"), "{line}");
    fs::write(&format, whole).unwrap();
    check_is_whole(&store);
    // The note can only be written by `pack`.
    let note = Path::new(&store).join("newest");
    fs::remove_file(&note).unwrap();
    fs::create_dir(&note).unwrap();
    let said = ok(&["stream", "pack", &tree, &store]);
    let said = String::from_utf8(said).unwrap();
    let remedy = format!("; `keel stream check {store}` says what to do\n");
    assert!(
        said.contains("could not be noted") && said.contains(&remedy),
        "{said}"
    );
}

/// What an interrupted first publication leaves is no whole store.
#[test]
fn a_store_without_a_version_is_not_whole() {
    let dir = TempDir::new();
    let (tree, store) = place(&dir);
    ok(&["stream", "pack", &tree, &store]);
    for name in ["manifests", "packs"] {
        for file in fs::read_dir(Path::new(&store).join(name)).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
    }
    fs::remove_file(Path::new(&store).join("newest")).unwrap();
    fs::write(Path::new(&store).join("packs/0000000001.pack.new"), "begun").unwrap();
    let said = damage(&store);
    let named = format!("{store}: no version; ");
    let remedy = format!("; publish a tree with `keel stream pack TREE {store}`\n");
    assert!(
        said.starts_with(&named) && said.ends_with(&remedy),
        "{said}"
    );
    let output = run(&["stream", "check", &store, "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["whole"], false, "{said}");
    ok(&["stream", "pack", &tree, &store]);
    check_is_whole(&store);
}
