//! What the writer stages and appends, record by record.

use super::*;
use crate::log::codec::decode;
use crate::log::owners::Owners;
use crate::queue::Queue;
use crate::store::MemoryStore;
use base::sim::SimClock;

struct Bench {
    table: Table,
    owners: SharedOwners,
    clock: SimClock,
    progress: Progress,
    counters: std::sync::Mutex<LogCounters>,
    in_flight_since_ns: AtomicU64,
    store: MemoryStore,
    writer: LogWriter<usize>,
    waiting: Vec<u8>,
}

impl Bench {
    fn new(segment_bytes_max: u64) -> Self {
        let options = DbOptions {
            segment_bytes_max,
            append_bytes_max: 2048,
            ..DbOptions::default()
        };
        let table = Table::new(4, 64, 1).expect("a table");
        table.insert("a", 1, true).expect("room");
        Self {
            table,
            owners: SharedOwners::new(Owners::default()),
            clock: SimClock::new(1),
            progress: Progress::new(0),
            counters: std::sync::Mutex::default(),
            in_flight_since_ns: AtomicU64::new(NO_READING),
            store: MemoryStore::new(),
            writer: LogWriter::new(&options, Seal::of(MemoryStore::new().secret()), 0, 0),
            waiting: Vec::with_capacity(1 << 16),
        }
    }

    /// Commits readings with these times in ms and arrivals in ns.
    fn commit(&mut self, readings: &[(i64, u64)]) -> Result<(), LogFailure> {
        let in_ns: Vec<_> = readings
            .iter()
            .map(|(ms, arrival_ns)| (ms * 1_000_000, *arrival_ns))
            .collect();
        self.commit_ns(&in_ns)
    }

    fn commit_ns(&mut self, readings: &[(i64, u64)]) -> Result<(), LogFailure> {
        self.commit_of(0, readings)
    }

    fn commit_of(&mut self, id: u32, readings: &[(i64, u64)]) -> Result<(), LogFailure> {
        self.commit_as(id, false, readings)
    }

    /// Commits readings with these times in ns and arrivals in ns.
    fn commit_as(
        &mut self,
        id: u32,
        node_time: bool,
        readings: &[(i64, u64)],
    ) -> Result<(), LogFailure> {
        let mut queue = Queue::new(1 << 16, 0);
        for (ns, arrival_ns) in readings {
            queue.push(&Entry {
                kind: EntryKind::Reading,
                id,
                time: Time::from_ns(*ns),
                arrival_ns: *arrival_ns,
                wall_trusted: true,
                node_time,
                retained: false,
                value: b"value",
            });
        }
        self.waiting.clear();
        queue.swap(&mut self.waiting);
        let around = Surroundings {
            table: &self.table,
            owners: &self.owners,
            clock: &self.clock,
            wall: Wall::sample(&self.clock),
            boot_id: [3; 16],
            progress: &self.progress,
            counters: &self.counters,
            in_flight_since_ns: &self.in_flight_since_ns,
        };
        self.writer.commit(
            &mut self.store,
            &around,
            &self.waiting,
            &mut Done::default(),
        )
    }

    /// Passes each record of a segment and its bytes.
    fn each(&self, segment: u32, mut visit: impl FnMut(&Record<'_>, &[u8])) {
        let mut input = self
            .store
            .file(&segment_name(segment))
            .map(Vec::as_slice)
            .unwrap_or_default();
        let mut context = None;
        while !input.is_empty() {
            let (record, bytes) =
                decode(input, self.writer.seal, context.as_ref()).expect("a whole record");
            if let Record::Anchor(anchor) = &record {
                context = Some(Context::of(self.writer.seal, anchor));
            }
            visit(&record, &input[..bytes]);
            input = &input[bytes..];
        }
    }

    /// One letter for each record of a segment.
    fn kinds(&self, segment: u32) -> String {
        let mut kinds = String::new();
        self.each(segment, |record, _| {
            kinds.push(match record {
                Record::Segment { .. } => 'S',
                Record::Anchor(_) => 'A',
                Record::Dictionary(_) => 'D',
                Record::Reading(_) => 'r',
                Record::Owner(_) => 'O',
                _ => '?',
            });
        });
        kinds
    }
}

/// Every unit, near the anchor and far from it, with the bytes of the whole record.
#[test]
fn each_time_is_written_in_the_greatest_unit_that_it_is_whole_in() {
    let mut bench = Bench::new(1 << 20);
    let (begin, hour) = (1_700_000_000_123_000_000, 3_600_000_000_000);
    let later = [
        (0, 0xa1, 19),
        (1_000, 0x91, 20),
        (1, 0x81, 22),
        (hour + 1_000, 0x81, 22),
        (3 * hour, 0xa3, 24),
        (-50 * hour - 1, 0x83, 24),
    ];
    let readings = later.map(|(ns, ..)| (begin + ns, 5_000));
    bench.commit_ns(&readings).expect("committed");
    let (mut times, mut forms) = (Vec::new(), Vec::new());
    bench.each(0, |record, bytes| match record {
        Record::Reading(reading) => {
            times.push((reading.time.ns(), reading.arrival_us * 1_000));
            forms.push((bytes[0], bytes.len()));
        }
        Record::Anchor(anchor) => {
            assert_eq!((bytes[0], anchor.sensor.ns()), (0xb3, begin));
            assert!(!anchor.is_older_store);
        }
        _ => {}
    });
    assert_eq!(times, readings);
    assert_eq!(forms, later.map(|(_, kind, bytes)| (kind, bytes)));
}

/// What the sample of the clocks gives is logged as its offset, and takes what a time in whole ms takes.
#[test]
fn a_time_of_the_nodes_clock_takes_no_more_in_us() {
    let mut bench = Bench::new(1 << 20);
    bench.clock.set_wall_ms(1_700_000_000_000);
    bench.clock.set_wall_trusted(true);
    let wall = Wall::sample(&bench.clock);
    // The last one is as of another sample, more than 8.3 s before.
    let sampled = [
        (5_000_321, 0, 0xa5, 19),
        (6_001_321, 0, 0x85, 19),
        (7_123_999, 8_000_001, 0x85, 19),
        (7_123_999, -9_000_001, 0x87, 24),
    ];
    let readings = sampled.map(|(arrival_ns, moved_us, ..)| {
        let time = wall.at(arrival_ns);
        (time.ns() + moved_us * 1_000, arrival_ns)
    });
    bench.commit_as(0, true, &readings).expect("committed");
    let (mut times, mut forms) = (Vec::new(), Vec::new());
    bench.each(0, |record, bytes| match record {
        Record::Reading(reading) => {
            assert!(reading.node_time);
            times.push((reading.time.ns(), reading.arrival_us));
            forms.push((bytes[0], bytes.len()));
        }
        Record::Anchor(anchor) => {
            // It dates its arrival as the reading is dated.
            assert_eq!(anchor.wall, wall.at_us(anchor.arrival_us));
            assert_eq!((anchor.arrival_us, anchor.wall_trusted), (5_000, true));
        }
        _ => {}
    });
    assert_eq!(
        times,
        readings.map(|(ns, arrival_ns)| (ns, arrival_ns / 1_000))
    );
    assert_eq!(forms, sampled.map(|(.., kind, bytes)| (kind, bytes)));
}

/// If the second of two anchors is lost, the first one stands in. So a time that only the second one reads back right
/// is written whole.
#[test]
fn a_time_is_short_only_if_the_anchor_before_reads_it_too() {
    let mut bench = Bench::new(1 << 20);
    let (begin, hour) = (1_700_000_000_123_456_789, 3_600_000_000_000);
    let minute_ns = 60_000_000_000;
    // The second arrival is far enough for an anchor of its own, which the first one can stand in for.
    let readings = [(begin, 0), (begin + 40 * hour, 10 * minute_ns)];
    bench.commit_ns(&readings).expect("committed");
    let mut kinds = Vec::new();
    bench.each(0, |_, bytes| kinds.push(bytes[0]));
    assert_eq!(kinds, [0xb1, 0xb4, 0xb3, 0xb3, 0x81, 0xb3, 0x83]);
}

#[test]
fn anchors_stand_where_times_are_far_and_twice_where_none_stands_in() {
    let mut bench = Bench::new(1 << 20);
    let minute = 60_000_000_000;
    bench
        .commit(&[(0, 0), (1, 1), (2, 8 * minute)])
        .expect("committed");
    assert_eq!(bench.kinds(0), "SDAArrr");
    // Ten minutes after its anchor a reading gets a new one; hours later it gets two.
    bench
        .commit(&[(3, 10 * minute), (4, 600 * minute)])
        .expect("committed");
    assert_eq!(bench.kinds(0), "SDAArrrArAAr");
    bench.writer.mark();
    bench.commit(&[(5, 600 * minute)]).expect("committed");
    assert_eq!(bench.kinds(0), "SDAArrrArAArAAr");
    assert_eq!(bench.progress.durable_end(), 6);
}

#[test]
fn anchors_come_with_every_block_of_log() {
    let mut bench = Bench::new(1 << 20);
    let readings: Vec<_> = (0..1000).map(|n| (n, n as u64 * 1_000_000)).collect();
    bench.commit(&readings).expect("committed");
    let bytes = bench.store.file("log-00000000").map_or(0, Vec::len);
    let anchors = bench.kinds(0).matches('A').count();
    assert!(
        anchors > bytes / (ANCHOR_EVERY_BYTES + 200) && anchors <= bytes / ANCHOR_EVERY_BYTES + 2
    );
}

#[test]
fn every_segment_names_and_dates_its_own_records() {
    let mut bench = Bench::new(1500);
    let readings: Vec<_> = (0..300).map(|n| (n, n as u64 * 1_000_000)).collect();
    bench.commit(&readings).expect("committed");
    let segments = bench.store.names().count() as u32;
    assert!(segments >= 4);
    for segment in 0..segments {
        assert!(
            bench.kinds(segment).starts_with("SDAAr"),
            "{}",
            bench.kinds(segment)
        );
        assert!(bench.store.file(&segment_name(segment)).map_or(0, Vec::len) <= 1500);
    }
    assert_eq!(
        (0..segments)
            .map(|n| bench.kinds(n).matches('r').count())
            .sum::<usize>(),
        300
    );
}

/// A name of 255 bytes and two anchors come before each reading: 394 bytes, and 416 with the segment's head.
#[test]
fn a_segment_ends_before_a_long_name_that_it_has_no_room_for() {
    let mut bench = Bench::new(1150);
    bench.table = Table::new(16, 64, 1).expect("a table");
    for id in 0..3 {
        let named = bench.table.insert(&format!("{id:0255}"), 1, true);
        assert_eq!(named, Ok((ObjectId(id), true)));
        bench.writer.anchor_next();
        bench.commit_of(id, &[(0, 0)]).expect("committed");
    }
    assert_eq!(
        [0, 1].map(|segment| bench.kinds(segment)),
        ["SDAArDAAr", "SDAAr"]
    );
    let bytes = bench.store.file(&segment_name(0)).map_or(0, Vec::len);
    assert!((700..=1150).contains(&bytes), "{bytes}");
    // Where it has a name already, an object needs no room for one.
    for _ in 0..20 {
        bench.commit_of(2, &[(1_000_000, 0)]).expect("committed");
    }
    assert_eq!(bench.kinds(1), format!("SDAA{}", "r".repeat(21)));
}

/// An owner comes before the readings of its commit, and once. Where an append has found no room it comes again.
#[test]
fn an_owner_is_logged_before_the_readings_of_its_commit() {
    let mut bench = Bench::new(3000);
    bench.table.insert("b", 1, true).expect("room");
    let claim = |bench: &Bench, id, template, series: &str| {
        let owner = Owner {
            id,
            template,
            series,
        };
        assert_eq!(bench.owners.lock().claim(&owner), Ok(()));
    };
    claim(&bench, 0, 1, "first");
    bench.commit_of(0, &[(0, 0)]).expect("committed");
    assert_eq!(bench.kinds(0), "SDOAAr");
    // Another template, an object that has no name in the segment yet, and neither again.
    claim(&bench, 0, 2, "first");
    claim(&bench, 1, 1, "second");
    bench.commit_of(0, &[(0, 0)]).expect("committed");
    bench.commit_of(1, &[(0, 0)]).expect("committed");
    assert_eq!(bench.kinds(0), "SDOAArODOrr");
    assert_eq!(bench.owners.lock().next_waiting(), None);
    // There is no room: nothing of it is written, and all of it is later.
    bench.store.set_capacity_bytes(0);
    claim(&bench, 1, 2, "third");
    assert_eq!(bench.commit_of(1, &[(0, 0)]), Err(LogFailure::Full));
    let waiting = bench.owners.lock().next_waiting().map(|one| one.series);
    assert_eq!(waiting, Some(Some("third".to_owned())));
    bench.store.set_capacity_bytes(1 << 20);
    bench.commit_of(1, &[(0, 0)]).expect("committed");
    assert_eq!(bench.kinds(0), "SDOAArODOrrDOAAr");
    // The longest ones go into the next segment, and so does what comes with them.
    for template in 3..6 {
        let long = "x".repeat(codec::SERIES_BYTES_MAX);
        claim(&bench, 0, template, &long);
    }
    bench.commit_of(0, &[(0, 0)]).expect("committed");
    assert_eq!(bench.kinds(0), "SDOAArODOrrDOAArDOO");
    assert_eq!(bench.kinds(1), "SDOAAr");
    assert!(bench.store.file(&segment_name(0)).map_or(0, Vec::len) <= 3000);
}

/// A power cut, or an append that found no room, leaves a segment without bytes.
#[test]
fn an_empty_segment_begins_with_its_head_and_not_with_the_clock() {
    let mut bench = Bench::new(1 << 20);
    let file = bench.store.create(&segment_name(0)).expect("made");
    bench.writer.resume(file, 0, 0);
    for expected in ["", "SDAArAA"] {
        let around = Surroundings {
            table: &bench.table,
            owners: &bench.owners,
            clock: &bench.clock,
            wall: Wall::sample(&bench.clock),
            boot_id: [3; 16],
            progress: &bench.progress,
            counters: &bench.counters,
            in_flight_since_ns: &bench.in_flight_since_ns,
        };
        let said = bench.writer.say_clock(&mut bench.store, &around);
        assert_eq!((said, bench.kinds(0).as_str()), (Ok(()), expected));
        bench.commit(&[(0, 0)]).expect("committed");
    }
}

#[test]
fn only_appended_readings_are_announced() {
    let mut bench = Bench::new(1 << 20);
    bench.commit(&[(0, 0)]).expect("committed");
    assert_eq!(bench.in_flight_since_ns.load(Ordering::Relaxed), NO_READING);
    bench.store.set_capacity_bytes(300);
    let readings: Vec<_> = (0..100).map(|n| (n, 0)).collect();
    assert_eq!(bench.commit(&readings), Err(LogFailure::Full));
    assert_eq!(bench.progress.durable_end(), 1);
}

#[test]
fn the_oldest_reading_in_flight_moves_with_each_append() {
    let mut bench = Bench::new(1 << 20);
    bench.store.set_capacity_bytes(3000);
    let readings: Vec<_> = (0..200).map(|n| (n, n as u64 * 1000)).collect();
    assert_eq!(bench.commit(&readings), Err(LogFailure::Full));
    let durable = bench.progress.durable_end();
    assert!(durable > 0 && durable < 200, "{durable}");
    let since_ns = bench.in_flight_since_ns.load(Ordering::Relaxed);
    assert_eq!(since_ns, durable * 1000);
}
