//! Range reads of a damaged log: what can be read comes, and the report says that something may be hidden.

use std::ops::ControlFlow;

use crate::common::{declare, open, sim_clock, small_options};
use db::log::segment_name;
use db::{
    Database, DbOptions, Durability, HistoryCursor, HistoryQuery, HistoryReport, LogCursor,
    MemoryStore, ObjectId, SegmentStore, Time,
};

const READINGS: u64 = 5000;
/// The only reading of the fourth object, and its value.
const RARE: u64 = 1000;
const RARE_VALUE: &[u8; 8] = b"the rare";
/// Bytes of a piece of [`MemoryStore`].
const PIECE_BYTES: usize = 4000;
/// The damaged segment: neither the first nor the last one.
const SEGMENT: u32 = 1;
const BEGIN_MS: i64 = 1_700_000_000_000;

const ALL: HistoryQuery = HistoryQuery {
    id: None,
    from: Time::from_ms(i64::MIN),
    to: Time::from_ms(i64::MAX),
};

/// What happens to the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    FirstPiece,
    LastPiece,
    AllPieces,
    /// Its end looks like an append that a power cut has torn.
    LastByte,
    FileGone,
}

/// Segments of several pieces of the store.
fn options() -> DbOptions {
    DbOptions {
        queue_bytes_max: 1 << 16,
        segment_bytes_max: 5 * PIECE_BYTES as u64,
        checkpoint_bytes: 1 << 30,
        ..small_options()
    }
}

/// Makes a store with the readings 0 to 4999. Each has its number as its time in ms, behind `BEGIN_MS`.
fn filled(options: DbOptions) -> MemoryStore {
    let db = open(MemoryStore::new(), &sim_clock(), options);
    let ids = declare(&db, 4);
    for n in 0..READINGS {
        let (object, value) = match n {
            RARE => (3, *RARE_VALUE),
            _ => (n as usize % 3, n.to_le_bytes()),
        };
        let time = Time::from_ms(BEGIN_MS + n as i64);
        db.put(ids[object], &value, time, Durability::Batched)
            .expect("taken");
        if n % 16 == 15 {
            db.pump().expect("committed");
        }
    }
    db.pump().expect("committed");
    while db.maintain().expect("maintained") {}
    db.close().expect("closed")
}

fn harm(store: &mut MemoryStore, harm: Harm) {
    let name = segment_name(SEGMENT);
    let length = store.file(&name).expect("a segment").len();
    match harm {
        Harm::FirstPiece => store.damage(&name, 0),
        Harm::LastPiece => store.damage(&name, length as u64 - 1),
        Harm::AllPieces => {
            for at in (0..length).step_by(PIECE_BYTES) {
                store.damage(&name, at as u64);
            }
        }
        Harm::LastByte => store.file_mut(&name).truncate(length - 1),
        Harm::FileGone => store.delete(&name).expect("deleted"),
    }
}

fn remove_index_files(store: &mut MemoryStore) {
    let is_index = |name: &&str| name.starts_with("index-");
    let names: Vec<String> = store.names().filter(is_index).map(str::to_owned).collect();
    assert!(names.len() > 3, "{names:?}");
    for name in names {
        store.delete(&name).expect("deleted");
    }
}

/// Returns the numbers of the readings found.
fn history(db: &Database<MemoryStore>, query: HistoryQuery) -> (Vec<u64>, HistoryReport) {
    let (mut cursor, mut found) = (HistoryCursor::default(), Vec::new());
    while db
        .history(&query, &mut cursor, &mut |entry| {
            found.push((entry.time.ms() - BEGIN_MS) as u64);
            ControlFlow::Continue(())
        })
        .expect("a slice")
    {}
    (found, *cursor.report())
}

/// The readings from `from` up to, but not including, `to`.
fn range(id: Option<ObjectId>, from: u64, to: u64) -> HistoryQuery {
    let time = |n: u64| Time::from_ms(BEGIN_MS + n as i64);
    HistoryQuery {
        id,
        from: time(from),
        to: time(to),
    }
}

/// Follows the log to its end. Returns how many readings were met, gone or missing.
fn follow(db: &Database<MemoryStore>) -> u64 {
    let (mut cursor, mut sum) = (LogCursor::new(0), 0);
    for _ in 0..100_000 {
        let step = db
            .follow(&mut cursor, u64::MAX, 100, &mut |_| true, &mut |_| {})
            .expect("followed");
        sum += step.readings + step.readings_gone + step.readings_missing;
        if !step.more {
            return sum;
        }
    }
    panic!("it never ends");
}

/// Damages the store and compares what range reads find and report.
fn check(mut store: MemoryStore, what: Harm, has_index: bool) {
    if !has_index {
        remove_index_files(&mut store);
    }
    harm(&mut store, what);
    let db = open(store, &sim_clock(), options());
    let ids = declare(&db, 4);
    let (found, report) = history(&db, ALL);
    let damage = report.damage;
    let hidden: Vec<u64> = (0..READINGS).filter(|n| !found.contains(n)).collect();
    let context = format!(
        "{what:?}, index {has_index}: {} hidden, {report:?}",
        hidden.len()
    );
    let (Some(first), Some(last)) = (hidden.first().copied(), hidden.last().copied()) else {
        panic!("{context}");
    };
    assert!(damage.any(), "{context}");
    let is_in_pieces = !matches!(what, Harm::LastByte | Harm::FileGone);
    assert_eq!(damage.places_unreadable() > 0, is_in_pieces, "{context}");
    // Without an index file only the next segment says how many readings the end held, and damage hides that it is
    // the end.
    let count = hidden.len() as u64;
    let is_exact = has_index || what != Harm::LastPiece;
    assert!(damage.readings_missing <= count, "{context}");
    assert!(!is_exact || damage.readings_missing == count, "{context}");
    // A read of these times alone, of all objects or of one, reports it too.
    for id in [None, Some(ids[first as usize % 3])] {
        let (found, report) = history(&db, range(id, first, last + 1));
        assert!(
            found.is_empty() && report.damage.any(),
            "{context}; {report:?}"
        );
    }
    // Other times are not affected, if an index file says what the segment held.
    if has_index {
        let (found, report) = history(&db, range(None, READINGS - 100, READINGS));
        assert_eq!(found.len(), 100, "{context}");
        assert!(!report.damage.any(), "{context}; {report:?}");
    }
    assert_eq!(follow(&db), READINGS, "{context}");
}

/// `outline.readings > 0` alone in `plan`, or no `missing_between`, makes it red.
#[test]
fn a_range_read_reports_every_place_that_may_hide_readings() {
    let intact = filled(options());
    let all_harms = [
        Harm::FirstPiece,
        Harm::LastPiece,
        Harm::AllPieces,
        Harm::LastByte,
        Harm::FileGone,
    ];
    for what in all_harms {
        check(intact.clone(), what, true);
        check(intact.clone(), what, false);
    }
}

/// The index of a segment that grows is made by reading it: it must not rule out what that reading could not see.
#[test]
fn damage_in_the_segment_that_grows_is_reported() {
    let options = DbOptions {
        segment_bytes_max: 1 << 20,
        ..options()
    };
    let mut store = filled(options);
    let name = segment_name(0);
    let content = store.file(&name).expect("a segment");
    let at = content.windows(8).position(|bytes| bytes == RARE_VALUE);
    store.damage(&name, at.expect("the value") as u64);
    let db = open(store, &sim_clock(), options);
    let rare = declare(&db, 4)[3];
    for query in [
        HistoryQuery {
            id: Some(rare),
            ..ALL
        },
        range(None, RARE, RARE + 1),
    ] {
        let (found, report) = history(&db, query);
        assert!(found.is_empty(), "{found:?}");
        assert_eq!(report.damage.pieces_unreadable, 1, "{report:?}");
    }
}

#[test]
fn a_segment_that_cannot_be_opened_is_reported() {
    let db = open(filled(options()), &sim_clock(), options());
    let (found, report) = history(&db, ALL);
    assert_eq!((found.len() as u64, report.damage.any()), (READINGS, false));
    db.with_store(|store| store.delete(&segment_name(SEGMENT)))
        .expect("open")
        .expect("deleted");
    let (found, report) = history(&db, ALL);
    let (read, missing) = (found.len() as u64, report.damage.readings_missing);
    assert_eq!(report.damage.files_unreadable, 1, "{report:?}");
    assert!(missing > 0 && read + missing == READINGS, "{report:?}");
}
