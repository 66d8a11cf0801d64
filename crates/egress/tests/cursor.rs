//! The cursor's file: its bytes, the effect of damage, and what the store keeps of it.

use base::block::BlockDevice;
use base::sim::{Random, SimDevice};
use egress::Error;
use egress::forward::Counters;
use egress::forward::cursor::{CursorRecord, FILE_BYTES_MAX, Found, Span};
use egress::forward::place::{CursorFile, Kept};
use flash::Store;

fn record(sequence: u64, next: u64) -> CursorRecord {
    CursorRecord {
        sequence,
        clean: false,
        window_readings_max: 10_000,
        spans: vec![Span {
            next,
            end: u64::MAX,
        }],
        counters: Counters::default(),
    }
}

#[test]
fn the_golden_file_reads_as_it_was_meant() {
    let bytes = include_bytes!("golden/cursor-1");
    let Found::Record(found, is_damaged) = CursorRecord::find(bytes) else {
        panic!("no record");
    };
    assert!(is_damaged, "its last record is torn");
    assert_eq!((found.sequence, found.clean), (2, false));
    assert_eq!(
        found.spans,
        [
            Span { next: 5, end: 1000 },
            Span {
                next: 1200,
                end: u64::MAX
            }
        ]
    );
    let counters = found.counters;
    assert_eq!((counters.sent, counters.acknowledged), (207, 200));
    assert_eq!((counters.sent_twice, counters.lost), (3, 0));
    assert_eq!(counters.refused, [5, 6, 7, 8, 9]);
    // The encoder writes the same bytes.
    let mut first = Vec::new();
    let clean = CursorRecord {
        clean: true,
        ..record(1, 0)
    };
    clean.encode(&mut first);
    found.encode(&mut first);
    assert_eq!(first, bytes[..first.len()]);
}

#[test]
fn any_changed_byte_costs_its_record_alone() {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    record(7, 100).encode(&mut one);
    record(8, 200).encode(&mut two);
    let whole = [one.clone(), two.clone()].concat();
    assert_eq!(
        CursorRecord::find(&whole),
        Found::Record(record(8, 200), false)
    );
    for at in 0..two.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[one.len() + at] ^= 1 << bit;
            assert_eq!(
                CursorRecord::find(&damaged),
                Found::Record(record(7, 100), true),
                "byte {at}, bit {bit}"
            );
        }
        let cut = &whole[..one.len() + at];
        assert_eq!(
            CursorRecord::find(cut),
            Found::Record(record(7, 100), at > 0)
        );
    }
    // Damage before the later record does not affect it.
    let mut damaged = whole.clone();
    damaged[3] ^= 1;
    assert_eq!(
        CursorRecord::find(&damaged),
        Found::Record(record(8, 200), true)
    );
    assert_eq!(CursorRecord::find(b""), Found::Nothing);
    assert_eq!(CursorRecord::find(&[0; 4000]), Found::Nothing);
}

#[test]
fn a_later_version_is_left_alone() {
    let mut bytes = Vec::new();
    record(1, 0).encode(&mut bytes);
    bytes[8] = 2;
    let end = bytes.len() - 4;
    let check = crc32c::crc32c(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&check);
    assert_eq!(CursorRecord::find(&bytes), Found::Version(2));
    let mut store = crate::common::format(512, 1);
    store.replace("upstream-a", &bytes).expect("stored");
    let loaded = CursorFile::new("a").load(&mut store);
    assert!(matches!(loaded, Err(Error::CursorVersion { found: 2, .. })));
}

#[test]
fn spans_that_make_no_sense_are_no_record() {
    let bad = [
        vec![],
        vec![Span { next: 0, end: 5 }],
        vec![
            Span {
                next: 0,
                end: u64::MAX,
            };
            2
        ],
        vec![
            Span { next: 9, end: 8 },
            Span {
                next: 9,
                end: u64::MAX,
            },
        ],
        vec![
            Span { next: 0, end: 8 },
            Span {
                next: 7,
                end: u64::MAX,
            },
        ],
        vec![Span { next: 0, end: 1 }; 9],
    ];
    for spans in bad {
        let mut bytes = Vec::new();
        CursorRecord {
            spans,
            ..record(1, 0)
        }
        .encode(&mut bytes);
        assert_eq!(CursorRecord::find(&bytes), Found::Nothing);
    }
}

/// Cuts power at each write while cursors are saved. Afterwards the file holds the record saved last, or the one being
/// saved.
#[test]
fn the_file_survives_power_cuts_and_its_own_growth() {
    let mut cuts = 0;
    for seed in 0..400u64 {
        let mut random = Random::new(seed);
        let mut store = crate::common::format(512, seed);
        store
            .device_mut()
            .set_power_cut_after_writes(Some(1 + random.below(600)));
        let mut file = CursorFile::new("cloud");
        assert_eq!(file.load(&mut store), Ok(Kept::New));
        let (mut saved, mut tried) = (0, 0);
        for sequence in 1..=500 {
            tried = sequence;
            if file
                .save(&mut store, &record(sequence, 10 * sequence))
                .is_err()
            {
                break;
            }
            saved = sequence;
        }
        if store.device().is_powered() {
            continue;
        }
        cuts += 1;
        let image = store.device().crash_image_random(random.next_u64());
        let mut store: Store<SimDevice> = crate::common::reopen(image);
        let mut file = CursorFile::new("cloud");
        match file.load(&mut store).expect("loaded") {
            Kept::New => assert_eq!(saved, 0),
            Kept::Lost => panic!("seed {seed}: lost after {saved} of {tried}"),
            Kept::Cursor(found) => {
                assert!((saved..=tried).contains(&found.sequence), "seed {seed}");
                assert_eq!(found, record(found.sequence, 10 * found.sequence));
                // Saving still works afterwards.
                let next = record(found.sequence + 1, 77);
                file.save(&mut store, &next).expect("saved");
                let again = CursorFile::new("cloud").load(&mut store);
                assert_eq!(again, Ok(Kept::Cursor(next)));
            }
        }
    }
    assert!(cuts > 200, "{cuts}");
}

#[test]
fn a_file_stays_small_and_a_save_costs_one_write() {
    let mut store = crate::common::format(2048, 1);
    let mut file = CursorFile::new("cloud");
    let _ = file.load(&mut store);
    file.save(&mut store, &record(1, 0)).expect("saved");
    let before = store.device().counters();
    for sequence in 2..=2001 {
        file.save(&mut store, &record(sequence, sequence))
            .expect("saved");
        let handle = store.open_file("upstream-cloud").expect("there");
        assert!(store.length(handle).expect("known") <= FILE_BYTES_MAX as u64);
        store.close_file(handle);
    }
    let after = store.device().counters();
    let writes = after.writes - before.writes;
    assert!((2000..2150).contains(&writes), "{writes}");
}
