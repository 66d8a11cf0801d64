//! Format 0, byte for byte: what this code writes is what the committed files hold, and reads back from them.
//!
//! `cargo run -p db --example make_golden` writes the files anew; a difference means a new format version.

#[path = "golden/scenario.rs"]
mod scenario;

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::scan;
use db::{CommitDriver, Database, DbOptions, MemoryStore};

fn golden() -> MemoryStore {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/format-0");
    let mut store = MemoryStore::with_secret(scenario::SECRET);
    for entry in std::fs::read_dir(directory).expect("the golden files") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name");
        *store.file_mut(&name) = std::fs::read(entry.path()).expect("a file");
    }
    store
}

#[test]
fn the_written_bytes_are_the_golden_ones() {
    let (golden, written) = (golden(), scenario::write());
    let names: Vec<_> = golden.names().collect();
    assert_eq!(names, written.names().collect::<Vec<_>>());
    assert!(
        names.iter().filter(|name| name.starts_with("log-")).count() >= 2,
        "{names:?}"
    );
    for name in names {
        assert!(golden.file(name) == written.file(name), "{name} differs");
    }
}

#[test]
fn the_golden_files_are_read_back() {
    let mut store = golden();
    let (readings, report) = scan(&mut store);
    assert!(
        !report.damage.any() && report.damage.tails_torn == 0,
        "{report:?}"
    );
    let expected: Vec<_> = scenario::readings()
        .map(|(object, t, value)| (scenario::KEYS[object].to_owned(), t, value))
        .collect();
    assert_eq!(readings, expected);
    let options = DbOptions {
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    };
    let db =
        Database::open(store, Arc::new(scenario::FixedClock::default()), options).expect("opened");
    assert!(db.recovery().checkpoint.is_some());
    for (object, key) in scenario::KEYS.iter().enumerate() {
        let newest = expected
            .iter()
            .filter(|(k, ..)| k == key)
            .max_by_key(|(_, t, _)| *t)
            .expect("a reading");
        let mut buffer = [0; 64];
        let id = db.lookup(key).expect("known");
        let got = db.get_at(id, 0, &mut buffer).expect("a value");
        assert_eq!(
            (id.0 as usize, got.timestamp_ms, &buffer[..got.value_bytes]),
            (object, newest.1, &newest.2[..])
        );
        assert_eq!(
            db.validity(id),
            (1100 * key.len() as u32, key.starts_with("hall"))
        );
    }
}

#[test]
fn a_later_format_is_refused_not_guessed() {
    let mut store = golden();
    let mut segment = Vec::new();
    let seal = db::log::codec::Seal::of(scenario::SECRET);
    db::log::codec::put_segment(&mut segment, seal, 9);
    // The version lies behind kind, length and magic; the checksum is the last four bytes.
    segment[10] = 1;
    let end = segment.len() - 4;
    let check = crc32c::crc32c_append(scenario::SECRET as u32, &segment[..end])
        ^ (scenario::SECRET >> 32) as u32;
    segment[end..].copy_from_slice(&check.to_le_bytes());
    *store.file_mut("log-00000009") = segment;
    let opened = Database::open(
        store,
        Arc::new(scenario::FixedClock::default()),
        DbOptions::default(),
    );
    assert_eq!(opened.err(), Some(db::Error::Version { found: 1 }));
}
