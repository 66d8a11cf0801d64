//! The body of the fuzz target of the slot table. Words of the table are overwritten, as a faulty process can do where
//! it shares the memory. A test of `db` includes this file too and runs the committed corpus through it.

use std::sync::atomic::Ordering;

use db::table::{Line, SlotValue, Table, TableMemory};
use db::{KEY_BYTES_MAX, ObjectId, TableSize};

/// Keys of one unit of the pool, of two and of four; one unit is left.
const KEYS: [&str; 3] = [
    "door",
    "hall/temperature/north",
    "plant/line-07/oven/zone-3/thermocouple/upper/left/degree-celsius",
];
const SIZE: TableSize = TableSize {
    objects_max: 4,
    value_bytes_max: 20,
    key_bytes_mean: 32,
};

/// The first byte says how many lines are missing at the end. Then nine bytes follow for each word to overwrite: one
/// for its position, eight for its new value.
pub(crate) fn db_table(data: &[u8]) {
    let Some((&missing, mut changes)) = data.split_first() else {
        return;
    };
    let memory = TableMemory::own(Table::lines_needed(SIZE).expect("a size"));
    let lines: &[Line] = memory.as_ref();
    let written = Table::create_in(lines, SIZE, 7).expect("a table");
    for key in KEYS {
        let (id, _) = written.insert(key, 1_500, true).expect("an object");
        let value = SlotValue {
            time: db::Time::from_ns(5),
            arrival_ns: 6,
            boot_tag: 7,
            wall_trusted: true,
            node_time: false,
            retained: false,
            value: key.as_bytes().get(..20).unwrap_or(b"short"),
        };
        assert_eq!(written.write(id, &value), Ok(true));
    }
    written.serve([1, 2]);
    let words: Vec<_> = lines.iter().flat_map(|line| &line.0).collect();
    while let Some(([place, word @ ..], rest)) = changes.split_first_chunk::<9>() {
        let word = u64::from_le_bytes(*word);
        words[usize::from(*place) % words.len()].store(word, Ordering::Relaxed);
        changes = rest;
    }
    let present = lines.len().saturating_sub(usize::from(missing % 32));
    if let Ok(table) = Table::attach(&lines[..present]) {
        read(&table);
    }
    // Its writer goes on: it may refuse, and it stays inside as well.
    let made = written.insert("one more", 9, false);
    if let Ok((id, _)) = made {
        assert!(id.0 < SIZE.objects_max);
    }
    let _ = written.insert(KEYS[1], 9, false);
    let _ = written.restore(ObjectId(3), KEYS[2], 9, false);
    read(&written);
}

fn read(table: &Table<&[Line]>) {
    let mut buffer = [0; 8192];
    assert!(table.keys_bytes() <= table.keys_bytes_max());
    for id in (0..table.objects().min(40)).chain([u32::MAX]).map(ObjectId) {
        let key = table.key(id);
        assert!(key.as_str().len() <= KEY_BYTES_MAX);
        let _ = table.validity(id);
        let read = table.read_within(id, &mut buffer, 0);
        let seen = table.with_value(id, 0, |value| value.words().count());
        assert_eq!(read.is_ok(), seen.is_ok());
        assert!(read.is_err() || seen == Ok(read.map_or(0, |read| read.value_bytes.div_ceil(8))));
    }
    for key in KEYS.into_iter().chain(["", "one more", "none"]) {
        if let Some(id) = table.lookup(key) {
            assert!(id.0 < table.objects_max());
            // Only the count of ids may hide it.
            let found = table.key(id);
            assert!(found.as_str() == key || id.0 >= table.objects());
        }
    }
    let _ = table.served_by();
}
