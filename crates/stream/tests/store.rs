//! A store over its life: repeated publication, check, damage, prune, power cuts.

use crate::common::{Scratch, bytes, options, write};
use std::fs;
use std::path::{Path, PathBuf};
use stream::manifest::KeyPair;
use stream::publish::{
    CheckReport, PackOptions, PackReport, PublishError, check, key, pack, prune, publisher,
};
use stream::store::{Store, StoreError};
use stream::{ContentId, SEGMENT_BLOCKS};

fn publish(tree: &Path, store: &Path) -> PackReport {
    pack(tree, store, &options(), &mut |_| {}).unwrap()
}

fn checked(store: &Path) -> CheckReport {
    check(store, &mut |_| {}).unwrap()
}

/// Reads the bytes of a file of a version from an open store.
fn read(store: &Store, version: u64, path: &str) -> Result<Vec<u8>, StoreError> {
    let published = store.published(version)?;
    let file = published.manifest.find(path.as_bytes()).unwrap();
    let (_, content) = published.manifest.file(file).unwrap();
    let segments = published.manifest.blocks(file).div_ceil(SEGMENT_BLOCKS);
    let mut bytes = Vec::new();
    for segment in 0..segments {
        bytes.extend(store.segment(&content, segment)?);
    }
    Ok(bytes)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(&file, &target).unwrap();
    }
}

#[test]
fn publishing_again_shares_unchanged_segments() {
    let scratch = Scratch::new("share");
    let (tree, store) = (scratch.path("tree"), scratch.path("store"));
    write(&tree.join("large"), 1_000_000, 1);
    write(&tree.join("copy"), 1_000_000, 1);
    let first = publish(&tree, &store);
    assert_eq!((first.written.contents, first.written.segments), (1, 8));
    assert_eq!(first.written.shared_segments, 8);
    let again = publish(&tree, &store);
    assert_eq!((again.version, again.is_new), (1, false));
    // One block in the middle: one segment is new.
    let mut changed = bytes(1_000_000, 1);
    changed[500_000] ^= 1;
    fs::write(tree.join("large"), &changed).unwrap();
    let reader = Store::open(&store).unwrap();
    let second = publish(&tree, &store);
    assert_eq!((second.version, second.is_new), (2, true));
    assert_eq!((second.written.contents, second.written.segments), (1, 1));
    assert_eq!(second.publisher, first.publisher);
    // An already open reader sees the new version.
    assert_eq!(reader.newest().unwrap(), 2);
    assert!(read(&reader, 2, "large").unwrap() == changed);
    assert!(read(&reader, 1, "large").unwrap() == bytes(1_000_000, 1));
    let report = checked(&store);
    assert!(report.is_whole(), "{report:?}");
    assert_eq!((report.versions, report.contents), (2, 2));
    assert_eq!((report.segments, report.packs), (9, 2));
    assert_eq!(report.leftovers, 0);
}

#[test]
fn every_flipped_byte_of_a_store_is_found() {
    let scratch = Scratch::new("flip");
    let (tree, store) = (scratch.path("tree"), scratch.path("store"));
    write(&tree.join("bin/large"), 150_000, 1);
    write(&tree.join("small"), 100, 2);
    publish(&tree, &store);
    write(&tree.join("other"), 5000, 3);
    publish(&tree, &store);
    let mut looked_at = 0;
    for file in files(&store) {
        let whole = fs::read(&file).unwrap();
        let step = (whole.len() / 25).max(1);
        // All bytes of short files, and the beginnings and ends of long ones.
        let ends = whole.len().saturating_sub(60);
        for at in (0..whole.len()).filter(|at| at % step == 0 || *at < 20 || *at >= ends) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            fs::write(&file, &damaged).unwrap();
            let found = check(&store, &mut |_| {});
            let is_noticed = !found.as_ref().is_ok_and(CheckReport::is_whole);
            assert!(is_noticed, "byte {at} of {}: {found:?}", file.display());
            looked_at += 1;
        }
        let cut = &whole[..whole.len().saturating_sub(1)];
        fs::write(&file, cut).unwrap();
        let found = check(&store, &mut |_| {});
        let is_text = file.ends_with("publisher.pub") || file.ends_with("format");
        let is_harmless = whole.is_empty() || is_text;
        assert!(is_harmless || !found.is_ok_and(|report| report.is_whole()));
        fs::write(&file, &whole).unwrap();
    }
    assert!(looked_at > 200);
    assert!(checked(&store).is_whole());
}

#[test]
fn damage_is_told_with_the_files_that_need_it() {
    let scratch = Scratch::new("told");
    let (tree, store_path) = (scratch.path("tree"), scratch.path("store"));
    write(&tree.join("lib/python/module"), 150_000, 1);
    write(&tree.join("well"), 5000, 2);
    publish(&tree, &store_path);
    let store = Store::open(&store_path).unwrap();
    let published = store.published(1).unwrap();
    let manifest = &published.manifest;
    let file = manifest.find(b"lib/python/module").unwrap();
    let at = store.locate(&manifest.file(file).unwrap().1, 1).unwrap();
    let pack = files(&store_path.join("packs"))
        .into_iter()
        .find(|path| path.extension().unwrap() == "pack")
        .unwrap();
    // A later `publish` would mend the damage.
    write(&tree.join("new"), 10, 3);
    publish(&tree, &store_path);
    fs::remove_file(tree.join("well")).unwrap();
    publish(&tree, &store_path);
    let mut damaged = fs::read(&pack).unwrap();
    damaged[at.offset as usize + 100] ^= 1;
    fs::write(&pack, damaged).unwrap();
    let report = checked(&store_path);
    assert_eq!(report.finding_count, 1, "{report:?}");
    assert_eq!(report.findings[0].path, pack);
    assert_eq!(report.findings[0].files, [b"lib/python/module"]);
    assert!(matches!(store.read(&at), Err(StoreError::Damaged { .. })));
    let damaged = read(&store, 1, "lib/python/module");
    assert!(matches!(damaged, Err(StoreError::Damaged { .. })));
    assert!(read(&store, 1, "well").unwrap() == bytes(5000, 2));
    // Pruning must not copy damage with a valid checksum.
    let refused = prune(&store_path, 1, &mut |_| {});
    assert!(matches!(
        refused,
        Err(PublishError::Store(StoreError::Damaged { .. }))
    ));
}

/// The versions to be removed may be all that is sound.
#[test]
fn remaining_content_is_read_before_a_version_is_removed() {
    let scratch = Scratch::new("prune-first");
    let (tree, store_path) = (scratch.path("tree"), scratch.path("store"));
    fs::create_dir(&tree).unwrap();
    write(&tree.join("old"), 200_000, 1);
    publish(&tree, &store_path);
    write(&tree.join("new"), 200_000, 2);
    publish(&tree, &store_path);
    let pack = store_path.join("packs/0000000002.pack");
    let whole = fs::read(&pack).unwrap();
    let mut flipped = whole.clone();
    flipped[100_000] ^= 1;
    let damages: [&[u8]; 3] = [&whole[..13_000], &[], &flipped];
    for damage in damages {
        fs::write(&pack, damage).unwrap();
        let refused = prune(&store_path, 1, &mut |_| {});
        assert!(
            matches!(
                refused,
                Err(PublishError::Store(StoreError::Damaged { .. }))
            ),
            "{refused:?}"
        );
        let store = Store::open(&store_path).unwrap();
        assert_eq!(store.versions().unwrap(), [1, 2]);
        assert!(read(&store, 1, "old").unwrap() == bytes(200_000, 1));
    }
    fs::write(&pack, whole).unwrap();
    let report = prune(&store_path, 1, &mut |_| {}).unwrap();
    assert_eq!(report.kept, [2]);
    assert!(checked(&store_path).is_whole());
}

/// A change that a checksum cannot detect: the checksum was updated with the bytes.
#[test]
fn a_segment_with_other_bytes_and_a_right_checksum_is_noticed() {
    let scratch = Scratch::new("forged");
    let (tree, store_path) = (scratch.path("tree"), scratch.path("store"));
    fs::create_dir_all(&tree).unwrap();
    // Incompressible data: each byte of the file is one byte of the pack.
    let halves = bytes(200_000, 1).into_iter().zip(bytes(200_000, 2));
    let whole: Vec<u8> = halves.map(|(high, low)| high << 4 | low).collect();
    fs::write(tree.join("file"), whole).unwrap();
    publish(&tree, &store_path);
    let store = Store::open(&store_path).unwrap();
    let manifest = &store.published(1).unwrap().manifest;
    let content = manifest.file(manifest.find(b"file").unwrap()).unwrap().1;
    let at = store.locate(&content, 0).unwrap();
    assert!(at.bytes > SEGMENT_BLOCKS * 4096, "it was compressed");
    let pack = files(&store_path.join("packs"))
        .into_iter()
        .find(|path| path.extension().unwrap() == "pack")
        .unwrap();
    let mut forged = fs::read(&pack).unwrap();
    let from = at.offset as usize;
    forged[from + 70_000] ^= 1;
    let sum = crc32c::crc32c(&forged[from..from + at.bytes as usize]);
    forged[from - 4..from].copy_from_slice(&sum.to_le_bytes());
    fs::write(&pack, forged).unwrap();
    store.read(&at).unwrap();
    let read = store.segment(&content, 0);
    assert!(matches!(read, Err(StoreError::Damaged { .. })));
    store.segment(&content, 1).unwrap();
    assert!(!checked(&store_path).is_whole());
}

#[test]
fn pruning_keeps_the_packs_of_the_newest_versions() {
    let scratch = Scratch::new("prune");
    let (tree, store_path) = (scratch.path("tree"), scratch.path("store"));
    write(&tree.join("stays"), 200_000, 1);
    for version in 1..=4 {
        write(&tree.join("changes"), 300_000, 100 + version);
        assert_eq!(publish(&tree, &store_path).version, version);
    }
    let reader = Store::open(&store_path).unwrap();
    let old = reader.published(1).unwrap();
    let (_, old_content) = old
        .manifest
        .file(old.manifest.find(b"changes").unwrap())
        .unwrap();
    let old_place = reader.locate(&old_content, 0).unwrap();
    let before = read(&reader, 3, "stays").unwrap();
    let report = prune(&store_path, 2, &mut |_| {}).unwrap();
    assert_eq!((report.removed, report.kept), (vec![1, 2], vec![3, 4]));
    assert_eq!(report.contents_removed, 2);
    assert!(report.pack_bytes < report.pack_bytes_before * 3 / 4);
    for store in [&reader, &Store::open(&store_path).unwrap()] {
        for version in [3, 4] {
            assert!(read(store, version, "stays").unwrap() == before);
            let changes = read(store, version, "changes").unwrap();
            assert!(changes == bytes(300_000, 100 + version));
        }
        assert_eq!(store.versions().unwrap(), [3, 4]);
    }
    // A reader with an old location can still read there.
    assert!(!reader.read(&old_place).unwrap().is_empty());
    let fresh = Store::open(&store_path).unwrap();
    assert!(matches!(
        fresh.group(&old_content, 0),
        Err(StoreError::NoSuchContent { .. })
    ));
    let found = checked(&store_path);
    assert!(found.is_whole(), "{found:?}");
    assert_eq!((found.contents_unused, found.leftovers), (0, 0));
    // A second prune has nothing to do, and publishing continues with higher numbers.
    let again = prune(&store_path, 2, &mut |_| {}).unwrap();
    assert_eq!(again.pack_bytes, report.pack_bytes);
    assert_eq!(again.contents_removed, 0);
    write(&tree.join("changes"), 300_000, 105);
    assert_eq!(publish(&tree, &store_path).version, 5);
    assert!(read(&reader, 5, "changes").unwrap() == bytes(300_000, 105));
    assert!(checked(&store_path).is_whole());
}

/// A power cut leaves the files that were already renamed, and parts of the files that were being written. The test
/// builds each intermediate state of publishing and pruning from the stores before and after.
#[test]
fn a_power_cut_leaves_the_old_version_or_the_new_one() {
    let scratch = Scratch::new("cut");
    let (tree, store) = (scratch.path("tree"), scratch.path("store"));
    write(&tree.join("a"), 200_000, 1);
    write(&tree.join("goes"), 200_000, 3);
    publish(&tree, &store);
    let one = scratch.path("one");
    copy(&store, &one);
    fs::remove_file(tree.join("goes")).unwrap();
    write(&tree.join("a"), 200_000, 2);
    write(&tree.join("b"), 200_000, 1);
    publish(&tree, &store);
    let two = scratch.path("two");
    copy(&store, &two);
    prune(&store, 1, &mut |_| {}).unwrap();

    // Publishing: pack, index, manifest, in this order.
    let order = |from: &Path, to: &Path| -> Vec<PathBuf> {
        let mut new: Vec<PathBuf> = files(to)
            .iter()
            .map(|path| path.strip_prefix(to).unwrap().to_path_buf())
            .filter(|path| !from.join(path).exists())
            .collect();
        new.sort_by_key(|path| {
            let ending = path.extension().map(|ending| ending.to_owned());
            match ending.as_deref().and_then(|ending| ending.to_str()) {
                Some("pack") => 0,
                Some("index") => 1,
                _ => 2,
            }
        });
        new
    };
    let steps = order(&one, &two);
    assert_eq!(steps.len(), 3);
    for done in 0..=steps.len() {
        let cut = scratch.path(&format!("published-{done}"));
        copy(&one, &cut);
        for step in &steps[..done] {
            fs::copy(two.join(step), cut.join(step)).unwrap();
        }
        if let Some(step) = steps.get(done) {
            let half = fs::read(two.join(step)).unwrap();
            let mut name = cut.join(step).into_os_string();
            name.push(".new");
            fs::write(name, &half[..half.len() / 2]).unwrap();
        }
        let version = if done == steps.len() { 2 } else { 1 };
        let report = checked(&cut);
        assert!(report.is_whole(), "after {done}: {report:?}");
        let open = Store::open(&cut).unwrap();
        assert_eq!(open.newest().unwrap(), version);
        assert!(read(&open, version, "a").unwrap() == bytes(200_000, version));
        // Publishing and pruning work from that state.
        let next = publish(&tree, &cut);
        assert_eq!(next.version, 2);
        prune(&cut, 1, &mut |_| {}).unwrap();
        let report = checked(&cut);
        assert!(report.is_whole() && report.leftovers == 0, "{report:?}");
        assert!(read(&open, 2, "b").unwrap() == bytes(200_000, 1));
    }

    // Pruning: first it removes old manifests, then it adds pack and index, then it removes old packs and indexes.
    let removed = order(&store, &two);
    let added = order(&two, &store);
    let (manifests, old): (Vec<_>, Vec<_>) = removed
        .into_iter()
        .partition(|path| path.starts_with("manifests"));
    assert_eq!((manifests.len(), added.len()), (1, 2), "{added:?}");
    for done in 0..=1 + added.len() + old.len() {
        let cut = scratch.path(&format!("pruned-{done}"));
        copy(&two, &cut);
        if done > 0 {
            fs::remove_file(cut.join(&manifests[0])).unwrap();
        }
        for step in added.iter().take(done.saturating_sub(1)) {
            fs::copy(store.join(step), cut.join(step)).unwrap();
        }
        for step in old.iter().take(done.saturating_sub(1 + added.len())) {
            fs::remove_file(cut.join(step)).unwrap();
        }
        let report = checked(&cut);
        assert!(report.is_whole(), "after {done}: {report:?}");
        let open = Store::open(&cut).unwrap();
        assert!(read(&open, 2, "a").unwrap() == bytes(200_000, 2));
        prune(&cut, 1, &mut |_| {}).unwrap();
        let report = checked(&cut);
        assert!(report.is_whole() && report.leftovers == 0, "{report:?}");
        assert!(read(&open, 2, "b").unwrap() == bytes(200_000, 1));
    }
}

/// If another tree got a number that devices have seen, they would take it for the tree that they know.
#[test]
fn no_version_is_written_over_at_the_highest_number() {
    let scratch = Scratch::new("highest");
    let (tree, store) = (scratch.path("tree"), scratch.path("store"));
    write(&tree.join("a"), 10, 1);
    let highest = PackOptions {
        version_min: u64::MAX,
        ..options()
    };
    let report = pack(&tree, &store, &highest, &mut |_| {}).unwrap();
    assert_eq!(report.version, u64::MAX);
    write(&tree.join("b"), 10, 2);
    let refused = pack(&tree, &store, &options(), &mut |_| {});
    assert!(matches!(refused, Err(PublishError::NoVersionLeft { .. })));
    let open = Store::open(&store).unwrap();
    assert!(read(&open, u64::MAX, "a").unwrap() == bytes(10, 1));
    assert!(checked(&store).is_whole());
}

#[test]
fn a_store_has_one_publisher() {
    let scratch = Scratch::new("key");
    let (tree, store) = (scratch.path("tree"), scratch.path("store"));
    write(&tree.join("a"), 10, 1);
    let file = scratch.path("secret");
    let public = key::create(&file).unwrap();
    assert!(key::create(&file).is_err());
    assert_eq!(key::load(&file).unwrap().public(), public);
    assert_eq!(public.to_string().parse(), Ok(public));
    let with_key = PackOptions {
        key: Some(file.clone()),
        version_min: 7,
        ..options()
    };
    let report = pack(&tree, &store, &with_key, &mut |_| {}).unwrap();
    assert_eq!((report.publisher, report.version), (public, 7));
    assert_eq!(publisher(&store).unwrap(), public);
    assert!(!store.join("publisher.key").exists());
    // Another key cannot publish into it, not even by accident.
    write(&tree.join("b"), 10, 2);
    let none = pack(&tree, &store, &options(), &mut |_| {});
    assert!(matches!(none, Err(PublishError::NoKey { .. })));
    let other = scratch.path("other");
    fs::write(&other, KeyPair::generate().unwrap().1).unwrap();
    let with_other = PackOptions {
        key: Some(other),
        ..options()
    };
    let refused = pack(&tree, &store, &with_other, &mut |_| {});
    assert!(matches!(refused, Err(PublishError::OtherKey { .. })));
    // The same if the store has lost its public key: no key is created, and another one is refused.
    fs::remove_file(store.join("publisher.pub")).unwrap();
    let none = pack(&tree, &store, &options(), &mut |_| {});
    assert!(matches!(none, Err(PublishError::NoKey { .. })));
    let refused = pack(&tree, &store, &with_other, &mut |_| {});
    assert!(matches!(refused, Err(PublishError::OtherKey { .. })));
    assert!(!store.join("publisher.pub").exists() && !store.join("publisher.key").exists());
    assert_eq!(
        pack(&tree, &store, &with_key, &mut |_| {}).unwrap().version,
        8
    );
    assert_eq!(publisher(&store).unwrap(), public);
    fs::write(&file, b"no key").unwrap();
    let refused = pack(&tree, &store, &with_key, &mut |_| {});
    assert!(matches!(refused, Err(PublishError::NotAKey { .. })));
    assert!(checked(&store).is_whole());
}

#[test]
fn a_tree_that_cannot_be_published_is_refused() {
    let scratch = Scratch::new("refused");
    let (tree, store) = (scratch.path("tree"), scratch.path("store"));
    write(&tree.join("a"), 10, 1);
    let refused = |tree: &Path, store: &Path| pack(tree, store, &options(), &mut |_| {});
    assert!(matches!(
        refused(&tree, &tree.join("sub/store")),
        Err(PublishError::StoreInTree { .. })
    ));
    assert!(matches!(
        refused(&tree.join("a"), &store),
        Err(PublishError::Tree { .. })
    ));
    assert!(matches!(
        refused(&scratch.path("none"), &store),
        Err(PublishError::Tree { .. })
    ));
    let options = PackOptions {
        level: 23,
        ..options()
    };
    assert!(matches!(
        pack(&tree, &store, &options, &mut |_| {}),
        Err(PublishError::Level { level: 23 })
    ));
    assert!(!store.exists(), "nothing was begun");
    // A folder with other things in it does not become a store.
    assert!(matches!(
        refused(&scratch.path("tree"), &scratch.path("")),
        Err(PublishError::StoreInTree { .. } | PublishError::Store(StoreError::NotAStore { .. }))
    ));
    let full = scratch.path("full");
    write(&full.join("letter"), 10, 1);
    assert!(matches!(
        refused(&tree, &full),
        Err(PublishError::Store(StoreError::NotAStore { .. }))
    ));
    assert!(matches!(
        Store::open(&full),
        Err(StoreError::NotAStore { .. })
    ));
    publish(&tree, &store);
    fs::write(store.join("format"), "keel stream store, format 2\n").unwrap();
    assert!(matches!(
        Store::open(&store),
        Err(StoreError::Format { found: 2, .. })
    ));
    assert!(matches!(
        refused(&tree, &store),
        Err(PublishError::Store(StoreError::Format { found: 2, .. }))
    ));
}

#[test]
fn a_file_that_changes_meanwhile_is_noticed() {
    let scratch = Scratch::new("changes");
    let (tree, store) = (scratch.path("tree"), scratch.path("store"));
    write(&tree.join("a"), 400_000, 1);
    let file = tree.join("a");
    // The file changes once: it is read again.
    let mut left = 1;
    let mut grow = |progress: &stream::publish::PackProgress| {
        if left > 0 && progress.read_bytes > 0 {
            left -= 1;
            let mut now = fs::read(&file).unwrap();
            now.push(7);
            fs::write(&file, now).unwrap();
        }
    };
    let report = pack(&tree, &store, &options(), &mut grow).unwrap();
    assert_eq!(report.tree.read_again, 1);
    let open = Store::open(&store).unwrap();
    assert!(read(&open, 1, "a").unwrap() == fs::read(&file).unwrap());
    // The file keeps changing: nothing is published.
    let mut number = 0_u64;
    let mut change = |_: &stream::publish::PackProgress| {
        number += 1;
        fs::write(&file, bytes(400_000, 1000 + number)).unwrap();
    };
    let refused = pack(&tree, &store, &options(), &mut change);
    assert!(matches!(refused, Err(PublishError::Changing { .. })));
    assert_eq!(open.versions().unwrap(), [1]);
    assert!(checked(&store).is_whole());
}

#[test]
fn one_process_writes_at_a_time() {
    let scratch = Scratch::new("busy");
    let (tree, store) = (scratch.path("tree"), scratch.path("store"));
    write(&tree.join("a"), 10, 1);
    publish(&tree, &store);
    write(&tree.join("b"), 10, 2);
    let mut answers = Vec::new();
    let mut meanwhile = |_: &stream::publish::PackProgress| {
        let other = pack(&tree, &store, &options(), &mut |_| {});
        answers.push(matches!(
            other,
            Err(PublishError::Store(StoreError::Busy { .. }))
        ));
    };
    pack(&tree, &store, &options(), &mut meanwhile).unwrap();
    assert!(!answers.is_empty() && answers.iter().all(|is_busy| *is_busy));
    let unknown = Store::open(&store).unwrap().group(&ContentId([1; 32]), 0);
    assert!(matches!(unknown, Err(StoreError::NoSuchContent { .. })));
}
