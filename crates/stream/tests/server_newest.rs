//! A store whose newest manifests are damaged: the newest sound version is served, and the operator is told.

use crate::common::{self, Scratch};
use crate::server_support::{Device, Running, publish, published, settings, until};
use std::fs;
use std::path::PathBuf;
use stream::publish::{PackOptions, pack};
use stream::server::{Server, ServerError};
use stream::store::StoreError;

/// A store with three versions.
fn with_three(name: &str) -> Scratch {
    let scratch = published(name);
    for seed in [12, 13] {
        common::write(&scratch.path("tree/bin/other"), 40 * 4096, seed);
        publish(&scratch);
    }
    scratch
}

fn manifest(scratch: &Scratch, version: u64) -> PathBuf {
    scratch.path(&format!("store/manifests/{version:020}"))
}

/// Replaces a manifest atomically, as in a repair: no reader sees half of it.
fn put(scratch: &Scratch, version: u64, bytes: &[u8]) {
    let beside = scratch.path("beside");
    fs::write(&beside, bytes).unwrap();
    fs::rename(&beside, manifest(scratch, version)).unwrap();
}

fn has(running: &Running, name: &str, value: u64) -> bool {
    let line = format!("keel_stream_{name} {value}\n");
    running.watch.metrics().contains(&line)
}

#[test]
fn a_damaged_newest_manifest_takes_its_own_version_away_only() {
    let scratch = with_three("server-newest");
    let whole = fs::read(manifest(&scratch, 3)).unwrap();
    let other = Scratch::new("server-newest-other");
    common::write(&other.path("tree/bin/task"), 4096, 1);
    let options = PackOptions {
        version_min: 3,
        ..PackOptions::default()
    };
    pack(
        &other.path("tree"),
        &other.path("store"),
        &options,
        &mut |_| {},
    )
    .unwrap();
    let of_another_key = fs::read(manifest(&other, 3)).unwrap();
    for damage in [&whole[..whole.len() - 1], &[], &of_another_key[..]] {
        put(&scratch, 3, damage);
        let running = Running::start(settings(&scratch));
        for number in 1..=2 {
            assert_eq!(Device::new(&running, &scratch, number).version, 2);
        }
        assert!(has(&running, "versions_damaged", 1));
        assert!(has(&running, "greetings_older_total", 2));
        // A device that requests a version gets exactly that one, which does not count as older.
        let store = scratch.path("store");
        let named = Device::greet(running.address, &store, 3, Some(1)).unwrap();
        assert_eq!(named.version, 1);
        assert!(has(&running, "greetings_older_total", 2));
        let said = running.said.lock().unwrap().clone();
        let [line] = &said[..] else {
            panic!("{said:?}");
        };
        assert!(line.starts_with("version 3 cannot be served: "), "{line}");
        assert!(line.contains("version 2 is served instead"), "{line}");
        assert!(line.contains("`keel stream check "), "{line}");
    }
}

#[test]
fn a_version_that_is_sound_again_is_served_again() {
    let scratch = with_three("server-newest-again");
    let whole = fs::read(manifest(&scratch, 3)).unwrap();
    let mut changed = fs::read(manifest(&scratch, 2)).unwrap();
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    put(&scratch, 2, &changed);
    // The manifest's path is a directory, so it cannot be read at all.
    fs::remove_file(manifest(&scratch, 3)).unwrap();
    fs::create_dir(manifest(&scratch, 3)).unwrap();
    let running = Running::start(settings(&scratch));
    assert_eq!(Device::new(&running, &scratch, 1).version, 1);
    assert!(has(&running, "versions_damaged", 2));
    fs::remove_dir(manifest(&scratch, 3)).unwrap();
    put(&scratch, 3, &whole);
    // The repair is noticed even if no device connects.
    until("the gauge falls", || has(&running, "versions_damaged", 0));
    assert_eq!(Device::new(&running, &scratch, 2).version, 3);
    assert!(has(&running, "greetings_older_total", 1));
    let said = running.said.lock().unwrap().clone();
    let first = "version 3 cannot be served, and 1 more between: ";
    assert!(said[0].starts_with(first), "{said:?}");
    let last = "the newest version is sound again: version 3 is served";
    assert_eq!(said.last().unwrap(), last, "{said:?}");
}

/// The store notes the last published version.
#[test]
fn a_newest_version_whose_manifest_is_gone_is_named() {
    let scratch = with_three("server-newest-gone");
    fs::remove_file(manifest(&scratch, 3)).unwrap();
    let running = Running::start(settings(&scratch));
    assert_eq!(Device::new(&running, &scratch, 1).version, 2);
    assert!(has(&running, "versions_damaged", 1));
    assert!(has(&running, "greetings_older_total", 1));
    let said = running.said.lock().unwrap().clone();
    assert!(
        said[0].starts_with("version 3 cannot be served: ") && said[0].contains("it is missing"),
        "{said:?}"
    );
}

#[test]
fn without_a_sound_version_there_is_no_server_and_the_newest_one_is_named() {
    let scratch = with_three("server-newest-none");
    for version in 1..=3 {
        put(&scratch, version, b"no manifest");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let error = runtime.block_on(Server::bind(settings(&scratch))).err();
    match error.unwrap() {
        ServerError::Store(StoreError::Damaged { path, .. }) => {
            assert_eq!(path, manifest(&scratch, 3));
        }
        other => panic!("{other}"),
    }
}
