use super::keys::Packed;
use super::*;
use crate::limits::{KEY_BYTES_MAX, KEY_BYTES_MEAN, KEY_BYTES_MEAN_MAX};
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;

fn sized(objects_max: u32, key_bytes_mean: u32) -> TableSize {
    TableSize {
        objects_max,
        value_bytes_max: 8,
        key_bytes_mean,
    }
}

fn with_room(objects_max: u32, key_bytes_mean: u32) -> Table {
    let size = sized(objects_max, key_bytes_mean);
    let memory = TableMemory::own(Table::lines_needed(size).unwrap());
    Table::create_in(memory, size, 3).unwrap()
}

fn value(time_ms: i64, value: &[u8]) -> SlotValue<'_> {
    SlotValue {
        time: Time::from_ms(time_ms),
        arrival_ns: 5,
        boot_tag: 9,
        wall_trusted: true,
        node_time: false,
        retained: false,
        value,
    }
}

#[test]
fn a_value_comes_back_with_its_times() {
    let table = Table::new(4, 20, 1).unwrap();
    let (id, new) = table.insert("room 1 temperature", 1500, true).unwrap();
    assert!(new);
    let mut buffer = [0; 20];
    assert_eq!(table.read(id, &mut buffer), Err(Error::NoValue));
    assert_eq!(
        table.write(id, &value(-7, b"twenty-one bytes was!")),
        Err(Error::ValueTooLong {
            bytes: 21,
            value_bytes_max: 20
        })
    );
    assert_eq!(
        table.write(id, &value(-7, b"nineteen bytes here")),
        Ok(true)
    );
    let read = table.read(id, &mut buffer).unwrap();
    assert_eq!(&buffer[..read.value_bytes], b"nineteen bytes here");
    assert_eq!(
        (read.time.ms(), read.arrival_ns, read.boot_tag, read.avi_ms),
        (-7, 5, 9, 1500)
    );
    assert!(read.wall_trusted);
    let short = Error::BufferTooSmall {
        needed_bytes: 19,
        buffer_bytes: 18,
    };
    assert_eq!(table.read(id, &mut buffer[..18]), Err(short));
}

#[test]
fn a_value_of_any_length_comes_back_and_leaves_its_neighbours_alone() {
    let (table, mut time_ms) = (Table::new(3, 300, 1).unwrap(), 0);
    let ids = ["before", "it", "behind"].map(|key| table.insert(key, 1, true).unwrap().0);
    for id in ids {
        table.write(id, &value(0, &[0xee; 300])).unwrap();
    }
    // Up and down, so that each one follows a longer and a shorter one.
    for length in (0..=300).chain((0..300).rev()) {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
        time_ms += 1;
        table.write(ids[1], &value(time_ms, &bytes)).unwrap();
        let mut buffer = [0xaa; 320];
        let read = table.read(ids[1], &mut buffer).unwrap();
        assert_eq!((read.value_bytes, read.time.ms()), (length, time_ms));
        assert_eq!(buffer[..length], bytes);
        assert!(
            buffer[length..].iter().all(|byte| *byte == 0xaa),
            "{length}"
        );
        let words = table.with_value(ids[1], 1, |value| value.words().collect::<Vec<_>>());
        let mut seen: Vec<u8> = words
            .unwrap()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        assert!(
            seen.split_off(length).iter().all(|byte| *byte == 0),
            "{length}"
        );
        assert_eq!(seen, bytes);
    }
    for id in [ids[0], ids[2]] {
        let mut buffer = [0; 300];
        table.read(id, &mut buffer).unwrap();
        assert_eq!(buffer, [0xee; 300]);
    }
}

#[test]
fn an_older_value_never_replaces_a_newer_one() {
    let table = Table::new(1, 8, 1).unwrap();
    let (id, _) = table.insert("a", 0, false).unwrap();
    assert_eq!(table.write(id, &value(10, b"new")), Ok(true));
    assert_eq!(table.write(id, &value(9, b"old")), Ok(false));
    assert_eq!(table.write(id, &value(10, b"tie")), Ok(true));
    let mut buffer = [0; 8];
    assert_eq!(table.read(id, &mut buffer).unwrap().value_bytes, 3);
    assert_eq!(&buffer[..3], b"tie");
}

#[test]
fn every_key_is_found_in_a_full_table_and_no_other() {
    let table = Table::new(1000, 8, 77).unwrap();
    for n in 0..1000 {
        let (id, new) = table.insert(&format!("key/{n}"), n, n % 2 == 0).unwrap();
        assert_eq!((id, new), (ObjectId(n), true));
    }
    assert_eq!(
        table.insert("one more", 0, false),
        Err(Error::TableFull { objects_max: 1000 })
    );
    for n in 0..1000 {
        assert_eq!(table.lookup(&format!("key/{n}")), Some(ObjectId(n)));
        assert_eq!(table.key(ObjectId(n)).as_str(), format!("key/{n}"));
        assert_eq!(table.validity(ObjectId(n)), (n, n % 2 == 0));
    }
    assert_eq!(table.lookup("key/1000"), None);
    assert_eq!(table.insert("key/5", 5, false), Ok((ObjectId(5), false)));
    assert_eq!(table.insert("key/5", 6, false), Ok((ObjectId(5), true)));
    let long = "k".repeat(255);
    assert_eq!(table.lookup(&long), None);
    assert_eq!(
        table.insert(&"k".repeat(256), 0, false),
        Err(Error::KeyInvalid { bytes: 256 })
    );
}

#[test]
fn restored_ids_leave_gaps_that_are_not_given_again() {
    let table = Table::new(8, 8, 3).unwrap();
    assert_eq!(table.restore(ObjectId(3), "three", 10, true), Ok(true));
    assert_eq!(table.restore(ObjectId(3), "three", 20, true), Ok(true));
    assert_eq!(table.restore(ObjectId(3), "other", 20, true), Ok(false));
    assert_eq!(table.restore(ObjectId(2), "three", 20, true), Ok(false));
    assert_eq!(table.restore(ObjectId(1), "one", 20, true), Ok(true));
    assert_eq!(table.key(ObjectId(0)).as_str(), "");
    assert_eq!(table.insert("next", 0, false), Ok((ObjectId(4), true)));
    assert!(matches!(
        table.restore(ObjectId(8), "x", 0, true),
        Err(Error::TableTooSmall { needed: 9, .. })
    ));
}

#[test]
fn freshness_counts_temporal_objects_only() {
    let table = Table::new(4, 8, 3).unwrap();
    for (key, temporal) in [("a", true), ("b", true), ("c", true), ("d", false)] {
        table.insert(key, 100, temporal).unwrap();
    }
    table.write(ObjectId(0), &value(1000, b"x")).unwrap();
    table.write(ObjectId(1), &value(899, b"x")).unwrap();
    table.write(ObjectId(3), &value(1000, b"x")).unwrap();
    assert_eq!(
        table.fresh_count(&at(1000)),
        FreshCount {
            fresh: 1,
            temporal: 3
        }
    );
    assert_eq!(
        table.fresh_count(&at(999)),
        FreshCount {
            fresh: 2,
            temporal: 3
        }
    );
}

#[test]
fn a_value_from_the_future_is_not_fresh() {
    let ms = 1_000_000;
    assert!(is_fresh(100 * ms, 100) && is_fresh(-100 * ms, 100) && is_fresh(0, 0));
    // Nor by 1 ns more than the interval.
    assert!(!is_fresh(100 * ms + 1, 100) && !is_fresh(-100 * ms - 1, 100));
    assert!(!is_fresh(i64::MIN, u32::MAX) && !is_fresh(i64::MAX, u32::MAX));
}

fn at(wall_ms: i64) -> Now {
    Now {
        wall: Time::from_ms(wall_ms),
        monotonic_ns: 50_000_000_000,
        boot_tag: 9,
    }
}

#[test]
fn values_with_the_nodes_time_age_by_the_monotonic_clock() {
    let table = Table::new(4, 8, 3).unwrap();
    table.insert("a", 100, true).unwrap();
    let id = ObjectId(0);
    let mut first = SlotValue {
        arrival_ns: 49_950_000_000,
        boot_tag: 9,
        node_time: true,
        ..value(9_000_000, b"future")
    };
    table.write(id, &first).unwrap();
    // The wall clock has been set back by hours since: the value is still 50 ms old.
    assert_eq!(table.fresh_count(&at(1000)).fresh, 1);
    // Another boot's arrival says nothing: the wall clock must serve.
    first.boot_tag = 8;
    table.write(id, &first).unwrap();
    assert_eq!(table.fresh_count(&at(9_000_101)).fresh, 0);
}

#[test]
fn a_retained_value_is_fresh_only_by_its_sensors_time() {
    let table = Table::new(4, 8, 3).unwrap();
    let (id, _) = table.insert("a", 100, true).unwrap();
    let now = at(1000);
    let mut buffer = [0; 8];
    for (node_time, retained, is_fresh) in [
        (true, false, true),
        (true, true, false),
        (false, true, true),
        (false, false, true),
    ] {
        let new = SlotValue {
            arrival_ns: now.monotonic_ns,
            boot_tag: now.boot_tag,
            node_time,
            retained,
            ..value(now.wall.ms(), b"1")
        };
        assert_eq!(table.write(id, &new), Ok(true));
        let read = table.read(id, &mut buffer).unwrap();
        assert_eq!(read.retained, retained);
        assert_eq!(read.is_fresh(0), is_fresh, "{node_time} {retained}");
        assert_eq!(table.fresh_count(&now).fresh, u32::from(is_fresh));
    }
    // Nor is it fresh by its own time once that is too old.
    assert!(!table.read(id, &mut buffer).unwrap().is_fresh(100_000_001));
}

#[test]
fn times_differ_by_ns() {
    let table = Table::new(4, 8, 3).unwrap();
    let (id, _) = table.insert("a", 1, true).unwrap();
    let begin = Time::from_ms(1_700_000_000_000);
    let after = |ns: i64, bytes| SlotValue {
        time: Time::from_ns(begin.ns() + ns),
        ..value(0, bytes)
    };
    assert_eq!(table.write(id, &after(1, b"1")), Ok(true));
    // Equal and older times within one ms.
    assert_eq!(table.write(id, &after(1, b"2")), Ok(true));
    assert_eq!(table.write(id, &after(0, b"3")), Ok(false));
    assert!(!table.is_news(id, begin, false) && table.is_news(id, begin, true));
    let read = table.read(id, &mut [0; 8]).unwrap();
    assert_eq!(read.time, Time::from_ns(begin.ns() + 1));
    // A value is 1 ms old at the most, to the nanosecond.
    let fresh = |ns| {
        let now = Now {
            wall: Time::from_ns(begin.ns() + ns),
            ..at(0)
        };
        table.fresh_count(&now).fresh
    };
    assert_eq!([fresh(1_000_001), fresh(1_000_002)], [1, 0]);
    // What ns cannot count is the farthest time, and `i64::MIN` marks an empty slot.
    assert_eq!(table.write(id, &value(i64::MAX, b"far")), Ok(true));
    let read = table.read(id, &mut [0; 8]).unwrap();
    assert_eq!(read.time, Time::from_ns(Time::NS_MAX));
    let none = Time::from_ns(i64::MIN);
    assert_eq!(table.check(id, none, 1), Err(Error::TimestampInvalid));
    assert_eq!(table.check(id, Time::from_ms(i64::MIN), 1), Ok(()));
}

#[test]
fn values_with_the_nodes_time_are_ordered_by_arrival() {
    let table = Table::new(4, 8, 3).unwrap();
    table.insert("a", 100, true).unwrap();
    let node = |time_ms, bytes| SlotValue {
        node_time: true,
        ..value(time_ms, bytes)
    };
    let latest = |table: &Table| {
        let mut buffer = [0; 8];
        let read = table.read(ObjectId(0), &mut buffer).unwrap();
        (buffer[0], read.node_time)
    };
    assert_eq!(table.write(ObjectId(0), &node(9000, b"1")), Ok(true));
    assert_eq!(table.write(ObjectId(0), &node(50, b"2")), Ok(true));
    assert_eq!(latest(&table), (b'2', true));
    assert_eq!(table.write(ObjectId(0), &value(40, b"3")), Ok(true));
    assert_eq!(latest(&table), (b'3', false));
    assert_eq!(table.write(ObjectId(0), &value(39, b"4")), Ok(false));
}

#[test]
fn a_second_user_attaches_and_a_foreign_region_is_refused() {
    let table = Table::new(4, 8, 3).unwrap();
    let (id, _) = table.insert("a", 100, true).unwrap();
    table.write(id, &value(1, b"shared")).unwrap();
    let other = Table::attach(table.memory).unwrap();
    let mut buffer = [0; 8];
    assert_eq!(other.lookup("a"), Some(id));
    assert_eq!(other.read(id, &mut buffer).unwrap().value_bytes, 6);
    other.word(0, 1).store(99, Ordering::Relaxed);
    assert_eq!(
        Table::attach(other.memory).err(),
        Some(Error::RegionInvalid { reason: "version" })
    );
}

/// Several writers and readers on one slot: a value whose words must all be equal is never seen torn.
#[test]
fn readers_never_see_a_torn_value() {
    let table = Table::new(1, 256, 3).unwrap();
    let (id, _) = table.insert("hot", 100, true).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let (table, stop) = (&table, &stop);
            scope.spawn(move || {
                for n in 0..100_000u64 {
                    let word = n * 2 + writer;
                    let mut bytes = [0; 256];
                    bytes
                        .chunks_exact_mut(8)
                        .for_each(|chunk| chunk.copy_from_slice(&word.to_le_bytes()));
                    let new = SlotValue {
                        arrival_ns: word,
                        boot_tag: word,
                        ..value(0, &bytes)
                    };
                    table.write(id, &new).unwrap();
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut buffer = [0; 256];
                while !stop.load(Ordering::Relaxed) {
                    let Ok(read) = table.read(id, &mut buffer) else {
                        continue;
                    };
                    let word = read.arrival_ns;
                    assert_eq!(read.boot_tag, word);
                    assert!(
                        buffer
                            .chunks_exact(8)
                            .all(|chunk| chunk == word.to_le_bytes())
                    );
                }
            });
        }
    });
}

/// As memory is that another process has overwritten: no writer is inside, and none will come out.
#[test]
fn a_lone_writer_waits_for_no_other() {
    let table = Table::new(2, 8, 1).unwrap();
    let (id, _) = table.insert("a", 100, true).unwrap();
    let (other, _) = table.insert("b", 100, true).unwrap();
    for id in [id, other] {
        table.write_alone(id, &value(1, b"before")).unwrap();
    }
    let now = Now {
        wall: Time::from_ms(1),
        monotonic_ns: 5,
        boot_tag: 9,
    };
    for sequence in [7, u64::MAX] {
        table
            .slot_word(id, SEQUENCE)
            .store(sequence, Ordering::Relaxed);
        let mut buffer = [0; 8];
        assert_eq!(
            table.read_within(id, &mut buffer, 2),
            Err(Error::Stalled),
            "{sequence}"
        );
        // It is skipped, and the others are counted.
        let count = table.fresh_count(&now);
        assert_eq!((count.fresh, count.temporal), (1, 2), "{sequence}");
        assert_eq!(table.write_alone(id, &value(1, b"after")), Ok(true));
        let read = table.read_within(id, &mut buffer, 2).unwrap();
        assert_eq!(&buffer[..read.value_bytes], b"after");
        assert_eq!(table.fresh_count(&now).fresh, 2);
    }
    // Lengths that do not add up.
    table
        .slot_word(id, META)
        .store(META_LENGTH, Ordering::Relaxed);
    table.write_alone(id, &value(1, b"1")).unwrap();
    assert!(table.values_bytes() <= 16, "{}", table.values_bytes());
}

/// A checkpoint that ran while a key was made once took the table for one that was overwritten.
#[test]
fn a_table_is_intact_at_every_moment_while_keys_are_made() {
    let keys = 50_000;
    let table = Table::new(keys, 8, 1).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut looks = 0_u64;
            while !is_done.load(Ordering::Acquire) {
                assert!(table.is_intact(), "after {looks} looks");
                looks += 1;
            }
        });
        for number in 0..keys {
            table.insert(&format!("key {number}"), 1, true).unwrap();
        }
        is_done.store(true, Ordering::Release);
        looking.join().unwrap();
    });
}

/// Gives a key the index entry of an object, as if the object's key had the same hash.
fn point(table: &Table, key: &str, id: ObjectId) {
    let hash = table.hash(&Packed::of(key).unwrap());
    let entry = table.word(
        HEADER_LINES,
        hash as usize & (table.shape.index_entries - 1),
    );
    let tag = hash & !u64::from(u32::MAX);
    entry.store(tag | u64::from(id.0 + 1), Ordering::Relaxed);
}

#[test]
fn keys_that_differ_in_their_last_byte_are_two() {
    for length in 1..=KEY_BYTES_MAX {
        let table = with_room(2, KEY_BYTES_MEAN_MAX);
        let keys = ["a", "b"].map(|last| format!("{last:k>length$}"));
        let ids = keys.each_ref().map(|key| table.insert(key, 1, true));
        assert_eq!(ids, [Ok((ObjectId(0), true)), Ok((ObjectId(1), true))]);
        for (n, key) in keys.iter().enumerate() {
            let id = ObjectId(n as u32);
            assert_eq!(
                (table.key(id).as_str(), table.lookup(key)),
                (&**key, Some(id))
            );
        }
    }
}

/// Hashes of other keys may be the same: then the bytes alone tell.
#[test]
fn a_key_with_the_hash_of_another_is_another() {
    for length in 1..=KEY_BYTES_MAX {
        let table = with_room(1, KEY_BYTES_MEAN_MAX);
        let key = "k".repeat(length);
        let (id, _) = table.insert(&key, 1, true).unwrap();
        let mut others: Vec<_> = (0..length)
            .map(|at| format!("{}x{}", &key[..at], &key[at + 1..]))
            .collect();
        others.extend((1..length).map(|shorter| "k".repeat(shorter)));
        others.extend((length + 1..=KEY_BYTES_MAX).map(|longer| "k".repeat(longer)));
        for other in others {
            point(&table, &other, id);
            assert_eq!(table.lookup(&other), None, "{other} for {key}");
        }
        point(&table, &key, id);
        assert_eq!(table.lookup(&key), Some(id));
    }
}

#[test]
fn a_full_pool_refuses_and_says_so() {
    // Eight units, and a long key has four.
    let table = with_room(4, 32);
    let error = Error::KeysFull { key_bytes_mean: 32 };
    let full = Err(error.clone());
    let long = |n: u32| format!("{n:064}");
    assert_eq!(table.insert(&long(0), 1, true), Ok((ObjectId(0), true)));
    assert_eq!(table.insert("a", 1, true), Ok((ObjectId(1), true)));
    for _ in 0..3 {
        assert_eq!(table.insert(&long(1), 1, true), full);
        let counts = (table.objects(), table.keys_bytes(), table.keys_bytes_max());
        assert_eq!(counts, (2, 5 * 16, 8 * 16));
        assert_eq!(table.lookup(&long(1)), None);
        assert!(table.is_intact());
    }
    // A shorter one fits, up to the last unit.
    assert_eq!(
        table.insert(&"b".repeat(48), 1, true),
        Ok((ObjectId(2), true))
    );
    assert_eq!(table.insert("c", 1, true), full);
    // One that is there is no new one.
    assert_eq!(table.insert("a", 7, false), Ok((ObjectId(1), true)));
    assert_eq!(
        (table.validity(ObjectId(1)), table.lookup("a")),
        ((7, false), Some(ObjectId(1)))
    );
    // What is stored must fit: the error names what to raise.
    let small = Error::TableTooSmall {
        what: "key_bytes_mean",
        needed: 36,
        configured: 32,
    };
    assert_eq!(table.restore(ObjectId(3), "c", 1, true), Err(small));
    assert_eq!(table.restore(ObjectId(1), "a", 1, true), Ok(true));
    assert!(error.to_string().contains("key_bytes_mean = 32"));
}

#[test]
fn a_short_key_takes_no_more_and_a_full_table_of_the_longest_fits() {
    for length in 1..=KEY_BYTES_MAX {
        // The default holds keys of its own length, the greatest mean any.
        let is_short = length <= KEY_BYTES_MEAN as usize;
        let mean = if is_short {
            KEY_BYTES_MEAN
        } else {
            KEY_BYTES_MEAN_MAX
        };
        let table = with_room(3, mean);
        for n in 0..3 {
            let key = format!("{n:k>length$}");
            assert!(table.insert(&key, 1, true).is_ok(), "{length}");
        }
        let taken = table.keys_bytes();
        assert_eq!(taken, 3 * length.next_multiple_of(16) as u64);
        assert!(taken <= table.keys_bytes_max());
    }
    // With the default a table has the lines of one that has a line for each key: header, index, keys, slots.
    let lines = |mean| Table::lines_needed(sized(1000, mean)).unwrap();
    assert_eq!(lines(KEY_BYTES_MEAN), 2 + 256 + 1000 + 1000);
    assert_eq!(
        (lines(16), lines(256)),
        (2 + 256 + 250 + 1000, 2 + 256 + 4000 + 1000)
    );
}

#[test]
fn a_pool_that_no_place_can_name_is_refused() {
    let refused = |objects_max, mean| Table::lines_needed(sized(objects_max, mean)).err();
    let invalid = |value, high| {
        Some(Error::OptionInvalid {
            name: "key_bytes_mean",
            value,
            low: 16,
            high,
        })
    };
    assert_eq!(refused(1, 15), invalid(15, 256));
    assert_eq!(refused(1, 257), invalid(257, 256));
    assert_eq!(refused(OBJECTS_LIMIT, 65), invalid(65, 64));
    assert_eq!(
        refused(OBJECTS_LIMIT, u32::MAX),
        invalid(u32::MAX.into(), 64)
    );
    assert_eq!(
        (refused(OBJECTS_LIMIT, 64), refused(OBJECTS_LIMIT / 4, 256)),
        (None, None)
    );
}

/// What a faulty process may leave in a slot that it shares.
#[test]
fn a_place_that_does_not_lie_in_the_pool_is_no_key() {
    let table = with_room(2, 32);
    let (id, _) = table.insert("a", 1_500, true).unwrap();
    table.insert("b", 1, true).unwrap();
    let word = table.slot_word(id, VALIDITY);
    let whole = word.load(Ordering::Relaxed);
    assert_eq!(whole, 0xc000_0000_0000_05dc);
    let place = |first: u64, units: u64| 1 << 62 | first << 32 | (units - 1) << 58;
    // The pool has four units.
    let outside = [
        place(4, 1),
        place(3, 2),
        place(1, 4),
        place(0, 5),
        place(0, 16),
        place((1 << 26) - 1, 1),
        place((1 << 26) - 1, 16),
        u64::MAX,
    ];
    // Others lie in it and are not what any table holds: units without text, units of two keys, emptied memory.
    let strange = [
        place(2, 1),
        place(2, 2),
        place(0, 2),
        place(0, 4),
        0,
        1 << 63,
    ];
    for stored in outside.into_iter().chain(strange) {
        word.store(stored, Ordering::Relaxed);
        assert!(table.sane_key(id).is_none(), "{stored:x}");
        assert_eq!(table.lookup("a"), None, "{stored:x}");
        let key = table.key(id);
        assert!(
            !outside.contains(&stored) || key.as_str().is_empty(),
            "{stored:x}"
        );
        assert_eq!(table.lookup("b"), Some(ObjectId(1)));
    }
    // A slot that has lost its key, and one that has it.
    word.store(0x3fff_ffff_0000_0000, Ordering::Relaxed);
    assert!(
        table
            .sane_key(id)
            .is_some_and(|key| key.as_str().is_empty())
    );
    word.store(whole, Ordering::Relaxed);
    assert!(table.sane_key(id).is_some_and(|key| key.as_str() == "a"));
    assert_eq!(table.lookup("a"), Some(id));
}

/// Sets the flag when it is dropped, also by a panic: a thread that waits for the flag must not wait forever.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// As readers in other processes meet keys: while their writer makes more, and changes the validity of each.
#[test]
fn a_key_is_whole_as_soon_as_its_id_or_its_index_entry_is_there() {
    let keys = 50_000_u32;
    let table = with_room(keys, KEY_BYTES_MEAN_MAX);
    let name = |n: u32| format!("{n:0>width$}", width = 8 + n as usize % 248);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                let next = table.objects();
                if let Some(last) = next.checked_sub(1) {
                    assert_eq!(table.key(ObjectId(last)).as_str(), name(last));
                }
                if let Some(found) = table.lookup(&name(next)) {
                    assert_eq!(found, ObjectId(next));
                    assert_eq!(table.key(found).as_str(), name(next));
                }
            }
        });
        let done = Done(&is_done);
        for n in 0..keys {
            table.insert(&name(n), 1, true).unwrap();
            table.insert(&name(n), 2, false).unwrap();
        }
        drop(done);
        looking.join().unwrap();
    });
}

const IDS: u32 = 12;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// A plain list of names gives the same ids, keys and refusals.
    #[test]
    fn keys_are_as_a_plain_list_has_them(
        mean in 16_u32..=256,
        calls in proptest::collection::vec(
            (
                proptest::option::of(0..IDS + 2),
                prop_oneof!["[ab]{1,2}", "[ab/é]{1,40}", "a{60,66}", "[ab]{250,258}", ""],
                any::<u32>(),
                any::<bool>(),
            ),
            1..60,
        ),
    ) {
        let table = with_room(IDS, mean);
        let mut names: Vec<Option<(String, (u32, bool))>> = Vec::new();
        let units_of = |key: &str| key.len().div_ceil(16);
        for (at, key, avi_ms, temporal) in calls {
            let known = names.iter().position(|name| name.as_ref().is_some_and(|(name, _)| *name == key));
            let units: usize = names.iter().flatten().map(|(name, _)| units_of(name)).sum();
            let has_room = (units + units_of(&key)) * 16 <= table.keys_bytes_max() as usize;
            let entry = Some((key.clone(), (avi_ms, temporal)));
            let invalid = Error::KeyInvalid { bytes: key.len() };
            let is_invalid = key.is_empty() || key.len() > KEY_BYTES_MAX;
            let small = |what| matches!(what, Err(Error::TableTooSmall { what: "key_bytes_mean", .. }));
            match at {
                None => {
                    let expected = match known {
                        _ if is_invalid => Err(invalid),
                        Some(id) => Ok((ObjectId(id as u32), names[id] != entry)),
                        None if names.len() == IDS as usize => Err(Error::TableFull { objects_max: IDS }),
                        None if !has_room => Err(Error::KeysFull { key_bytes_mean: mean }),
                        None => Ok((ObjectId(names.len() as u32), true)),
                    };
                    if let Ok((id, _)) = expected {
                        names.resize(names.len().max(id.0 as usize + 1), None);
                        names[id.0 as usize] = entry;
                    }
                    prop_assert_eq!(table.insert(&key, avi_ms, temporal), expected);
                }
                Some(at) => {
                    let restored = table.restore(ObjectId(at), &key, avi_ms, temporal);
                    if is_invalid {
                        prop_assert_eq!(restored, Err(invalid));
                        continue;
                    }
                    if at >= IDS {
                        let small = matches!(restored, Err(Error::TableTooSmall { what: "objects_max", .. }));
                        prop_assert!(small, "{:?}", restored);
                        continue;
                    }
                    let at = at as usize;
                    names.resize(names.len().max(at + 1), None);
                    if known.is_some_and(|known| known != at) || known.is_none() && names[at].is_some() {
                        prop_assert_eq!(restored, Ok(false));
                    } else if known.is_none() && !has_room {
                        prop_assert!(small(restored));
                    } else {
                        prop_assert_eq!(restored, Ok(true));
                        names[at] = entry;
                    }
                }
            }
        }
        prop_assert!(table.is_intact());
        let TableMemory::Own(lines) = table.into_memory() else {
            unreachable!()
        };
        // Another handle sees the same.
        let table = Table::attach(&lines[..]).unwrap();
        prop_assert_eq!(table.objects() as usize, names.len());
        for (id, name) in names.iter().enumerate() {
            let id = ObjectId(id as u32);
            let key = table.sane_key(id).unwrap();
            prop_assert_eq!(key, table.key(id));
            prop_assert_eq!(key.as_str(), name.as_ref().map_or("", |(name, _)| name));
            prop_assert_eq!(table.validity(id), name.as_ref().map_or((0, false), |(_, marks)| *marks));
            if let Some((name, _)) = name {
                prop_assert_eq!(table.lookup(name), Some(id));
            }
        }
    }
}
