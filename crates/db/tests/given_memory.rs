//! A database whose table lies in memory that others share: damage to that memory must not cost acknowledged readings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{Oracle, declare, open, sim_clock, small_options};
use db::table::{Line, Table, TableMemory};
use db::{Database, Error, Health, MemoryStore, ObjectSpec};

/// What a faulty process does to the lines of a table.
type Mistake = fn(&[Line]);

fn fill(lines: &[Line], word: u64) {
    for word_there in lines.iter().flat_map(|line| &line.0) {
        word_there.store(word, Ordering::Relaxed);
    }
}

#[test]
fn a_table_whose_memory_was_written_over_is_not_made_a_checkpoint() {
    let mistakes: [(&str, Mistake); 4] = [
        ("all of it is zeros", |lines| fill(lines, 0)),
        ("all of it is rubbish", |lines| {
            fill(lines, 0x5a5a_0000_ffff_0001)
        }),
        ("the header is zeros", |lines| fill(&lines[..2], 0)),
        ("all behind the header is zeros", |lines| {
            fill(&lines[2..], 0)
        }),
    ];
    for (mistake, make) in mistakes {
        let (clock, options) = (sim_clock(), small_options());
        let lines = Table::lines_needed(options.table_size());
        let given = Box::leak(Box::new(TableMemory::own(lines.expect("a size"))));
        let lines: &'static [Line] = (*given).as_ref();
        let memory = TableMemory::Given(lines);
        let store = MemoryStore::new();
        let db = Database::open_in(store, Arc::new(clock.clone()), options, memory);
        let db = db.expect("opened");
        let ids = declare(&db, 8);
        let mut oracle = Oracle::default();
        for n in 0..200 {
            oracle.put(&db, ids[n as usize % 8], 1000 + n, &n.to_le_bytes());
            db.pump().expect("a round");
        }
        let before = db.stats();
        assert!(before.checkpoints > 0);
        make(lines);
        let again = db.declare(&ObjectSpec {
            key: "a new one",
            avi_ms: 0,
            temporal: false,
        });
        if mistake != "all behind the header is zeros" {
            assert!(
                matches!(again, Err(Error::RegionInvalid { .. })),
                "{mistake}: {again:?}"
            );
        }
        let store = db.close().expect("closed");
        let after = db.stats();
        assert_eq!(after.checkpoints, before.checkpoints, "{mistake}");
        assert_eq!(after.checkpoints_failed, before.checkpoints_failed + 1);
        assert_eq!(oracle.acknowledged().len(), 200);
        let store = oracle.check(store, &clock, options);
        let db = open(store, &clock, options);
        let mut value = [0; 40];
        for (at, id) in ids.iter().enumerate() {
            assert_eq!(db.key(*id).as_str(), format!("room {at}/temperature"));
            let got = db.get(*id, &mut value).expect("a value");
            assert_eq!(got.time.ms(), 1192 + at as i64, "{mistake}");
        }
        assert_eq!(db.stats().health, Health::Ok);
    }
}
