use super::*;
use crate::log::times::ARRIVAL_WINDOW_US;
use proptest::prelude::*;

const SEAL: Seal = Seal {
    seed: 0x1234_5678,
    mask: 0x9abc_def0,
};

/// Largest distance of a short time in ms from its anchor.
const SENSOR_WINDOW_MS: i64 = 1 << 23;

fn anchor(arrival_us: u64, sensor_ms: i64) -> Anchor {
    Anchor {
        boot_id: [7; 16],
        arrival_us,
        sensor: Time::from_ms(sensor_ms),
        wall: Time::from_ms(99),
        wall_trusted: true,
        is_older_store: true,
        lsn: 12,
    }
}

#[test]
fn a_reading_of_eight_bytes_takes_twenty_three() {
    let context = Context::of(SEAL, &anchor(5_000_000, 1_700_000_000_000));
    let reading = Reading {
        id: 1000,
        time: Time::from_ms(1_700_000_000_250),
        arrival_us: 5_123_456,
        wall_trusted: true,
        node_time: true,
        retained: true,
        value: &21.5f64.to_le_bytes(),
    };
    let mut out = Vec::new();
    put_reading(&mut out, &reading, &context, Form::Ms);
    assert_eq!(out.len(), 23);
    assert_eq!(
        decode(&out, SEAL, Some(&context)),
        Ok((Record::Reading(reading), 23))
    );
}

#[test]
fn a_wrong_anchor_is_noticed_not_believed() {
    let right = Context::of(SEAL, &anchor(5_000_000, 1_700_000_000_000));
    let reading = Reading {
        id: 1,
        time: Time::from_ms(1_700_000_000_250),
        arrival_us: 6_000_000,
        wall_trusted: false,
        node_time: false,
        retained: false,
        value: b"v",
    };
    let mut out = Vec::new();
    put_reading(&mut out, &reading, &right, Form::Ms);
    let near = Context::of(
        SEAL,
        &anchor(1_000_000_000, 1_700_000_000_000 - SENSOR_WINDOW_MS + 1000),
    );
    assert_eq!(
        decode(&out, SEAL, Some(&near)).unwrap().0,
        Record::Reading(reading)
    );
    let far = Context::of(
        SEAL,
        &anchor(5_000_000, 1_700_000_000_000 + 3 * SENSOR_WINDOW_MS),
    );
    assert_eq!(decode(&out, SEAL, Some(&far)), Err(NoRecord::Bad));
    let other_boot = Context::of(
        SEAL,
        &Anchor {
            boot_id: [8; 16],
            ..anchor(5_000_000, 1_700_000_000_000)
        },
    );
    assert_eq!(decode(&out, SEAL, Some(&other_boot)), Err(NoRecord::Bad));
    assert_eq!(decode(&out, SEAL, None), Err(NoRecord::Bad));
}

#[test]
fn a_record_of_another_store_is_none() {
    let mut out = Vec::new();
    put_trailer(&mut out, SEAL, 7, true);
    let trailer = Record::Trailer {
        objects: 7,
        is_older_store: true,
    };
    let whole = Ok((trailer, out.len()));
    assert_eq!(decode(&out, SEAL, None), whole);
    for other in [
        Seal { seed: 0, ..SEAL },
        Seal { mask: 0, ..SEAL },
        Seal::of(0),
    ] {
        assert_eq!(decode(&out, other, None), Err(NoRecord::Bad));
    }
}

#[test]
fn varints_have_the_length_they_claim() {
    for value in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX)] {
        let mut out = Vec::new();
        put_varint(&mut out, value);
        assert_eq!(out.len(), varint_bytes(value));
        assert_eq!(take_varint(&out), Some((value, out.len())));
        assert_eq!(take_varint(&out[..out.len() - 1]), None);
    }
    assert_eq!(take_varint(&[0x80, 0]), None);
    assert_eq!(take_varint(&[0xff, 0x80, 0]), None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn a_reading_is_decoded_as_it_was_encoded(
        id: u32,
        base: i64,
        arrival: u64,
        timestamp_ms: i64,
        near in -SENSOR_WINDOW_MS..SENSOR_WINDOW_MS,
        later in 0u64..ARRIVAL_WINDOW_US as u64,
        use_near: bool,
        wall_trusted: bool,
        node_time: bool,
        retained: bool,
        value in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let context = Context::of(SEAL, &anchor(arrival, base));
        let timestamp_ms = if use_near { base.saturating_add(near) } else { timestamp_ms };
        let arrival_us = arrival.wrapping_add(later);
        prop_assert!(context.distance_us(arrival_us) < ARRIVAL_WINDOW_US);
        let time = Time::from_ms(timestamp_ms);
        let reading = Reading { id, time, arrival_us, wall_trusted, node_time, retained, value: &value };
        let mut out = Vec::new();
        let form = Form::shortest(time, node_time, |form| context.reads_back(form, time, arrival_us));
        let is_near = (-SENSOR_WINDOW_MS..SENSOR_WINDOW_MS).contains(&timestamp_ms.wrapping_sub(base));
        prop_assert_eq!(form, if is_near { Form::Ms } else { Form::WholeMs });
        put_reading(&mut out, &reading, &context, form);
        prop_assert_eq!(decode(&out, SEAL, Some(&context)), Ok((Record::Reading(reading), out.len())));
        for cut in 0..out.len() {
            prop_assert_eq!(decode(&out[..cut], SEAL, Some(&context)), Err(NoRecord::Short));
        }
    }

    #[test]
    fn objects_and_dictionaries_round_trip(
        id: u32,
        key in "[a-zäöü/]{1,30}",
        avi_ms: u32,
        temporal: bool,
        times in proptest::option::of((any::<i64>(), any::<u64>(), any::<u64>(), any::<[bool; 3]>())),
        value in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let entry = Dictionary { id, key: &key, avi_ms, temporal };
        let object = |in_unit: fn(i64) -> Time| {
            let latest = times.map(|(time, arrival_ns, boot_tag, flags)| {
                let ([wall_trusted, node_time, retained], time) = (flags, in_unit(time));
                let value = &value[..];
                Latest { time, arrival_ns, boot_tag, wall_trusted, node_time, retained, value }
            });
            Object { entry, latest }
        };
        let mut out = Vec::new();
        put_object(&mut out, SEAL, &object(Time::from_ns));
        let bytes = out.len();
        prop_assert_eq!(decode(&out, SEAL, None), Ok((Record::Object(object(Time::from_ns)), bytes)));
        out.clear();
        others::put_object_ms(&mut out, SEAL, &object(Time::from_ms));
        prop_assert_eq!(decode(&out, SEAL, None), Ok((Record::Object(object(Time::from_ms)), bytes)));
        out.clear();
        put_dictionary(&mut out, SEAL, &entry);
        prop_assert_eq!(decode(&out, SEAL, None), Ok((Record::Dictionary(entry), out.len())));
    }

    #[test]
    fn any_changed_byte_is_noticed(at in 0usize..40, flip in 1u8..=255) {
        let context = Context::of(SEAL, &anchor(1, 1));
        let (id, time, arrival_us) = (3, Time::from_ms(500), 9);
        let (wall_trusted, node_time, retained, value) = (false, false, false, b"0123456789");
        let reading = Reading { id, time, arrival_us, wall_trusted, node_time, retained, value };
        let mut out = Vec::new();
        put_reading(&mut out, &reading, &context, Form::Ms);
        let at = at % out.len();
        out[at] ^= flip;
        out.resize(RECORD_BYTES_MAX, 0);
        prop_assert_eq!(decode(&out, SEAL, Some(&context)), Err(NoRecord::Bad));
    }

    #[test]
    fn arbitrary_bytes_never_panic(input in proptest::collection::vec(any::<u8>(), 0..200)) {
        let context = Context::of(SEAL, &anchor(1, 1));
        let _ = decode(&input, SEAL, Some(&context));
        let _ = decode(&input, SEAL, None);
    }
}

/// The forms of format 3, and whether the node's clock gives the time.
const FORMS: [(Form, bool); 5] = [
    (Form::Us, false),
    (Form::Ns, false),
    (Form::WholeNs, false),
    (Form::Offset, true),
    (Form::WholeNs, true),
];

/// The unit of a form, in ns, and the distance from the anchor's time from which it is not read back, in units.
fn reach(form: Form) -> (i64, i64) {
    match form {
        Form::Us => (1000, 1 << 31),
        Form::Ns => (1, 1 << 47),
        Form::Offset => (1000, 1 << 23),
        // It has no such distance.
        _ => (1, 1 << 47),
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
    let byte = |pair: &[u8]| {
        u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("a byte")
    };
    digits.chunks(2).map(byte).collect()
}

/// The records of format 3 as SPEC.md describes them, made by another program.
#[test]
fn the_records_of_format_3_have_their_bytes() {
    let seal = Seal::of(0x0123_4567_89ab_cdef);
    let anchor = Anchor {
        boot_id: [0xb1; 16],
        arrival_us: 5_000_000,
        sensor: Time::from_ns(1_700_000_000_250_000_000),
        wall: Time::from_ns(1_700_000_005_000_000_000),
        wall_trusted: true,
        is_older_store: false,
        lsn: 12,
    };
    let context = Context::of(seal, &anchor);
    let is = |hex: &str, record: Record<'_>| {
        let bytes = bytes_of(hex);
        let decoded = decode(&bytes, seal, Some(&context));
        assert_eq!(decoded, Ok((record, bytes.len())), "{hex}");
        let mut out = Vec::new();
        match record {
            Record::Anchor(anchor) => put_anchor(&mut out, seal, &anchor),
            Record::Owner(owner) => put_owner(&mut out, seal, &owner),
            Record::Object(object) => put_object(&mut out, seal, &object),
            Record::Trailer {
                objects,
                is_older_store,
            } => {
                put_trailer(&mut out, seal, objects, is_older_store);
            }
            Record::Reading(reading) => {
                let form = Form::of(bytes[0]).expect("a reading");
                put_reading(&mut out, &reading, &context, form);
            }
            _ => unreachable!("no record of format 3"),
        }
        assert_eq!(out, bytes, "{hex}");
    };
    is(
        "b331 b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1b1 404b4c0000000000 80b21045fe9c9717 \
         00f22f60ff9c9717 0c00000000000000 01 741eb955",
        Record::Anchor(anchor),
    );
    let value = &21.5f64.to_le_bytes();
    let reading = |ns: i64, node_time: bool, retained: bool| {
        Record::Reading(Reading {
            id: 1000,
            time: Time::from_ns(ns),
            arrival_us: 5_123_456,
            wall_trusted: !retained,
            node_time,
            retained,
            value,
        })
    };
    let ns = 1_700_000_000_123_456_789;
    for (hex, record) in [
        // A whole ms has the bytes of format 2.
        (
            "a111 e807 fa68e5 802d4e00 0000000000803540 36405280",
            reading(1_700_000_000_250_000_000, false, false),
        ),
        (
            "9112 e807 f4102218 802d4e00 0000000000803540 42e6c3e0",
            reading(1_700_000_000_250_100_000, false, false),
        ),
        (
            "9812 e807 f4102218 802d4e00 0000000000803540 e6da7368",
            reading(1_700_000_000_250_100_000, false, true),
        ),
        (
            "8114 e807 15cd853dfe9c 802d4e00 0000000000803540 80a60df5",
            reading(ns, false, false),
        ),
        (
            "8814 e807 15cd853dfe9c 802d4e00 0000000000803540 76d06f42",
            reading(ns, false, true),
        ),
        (
            "8316 e807 15cd853dfe9c9717 802d4e00 0000000000803540 c14a09f8",
            reading(ns, false, false),
        ),
        (
            "8a16 e807 15cd853dfe9c9717 802d4e00 0000000000803540 0a316582",
            reading(ns, false, true),
        ),
        // The anchor's offset and 12 µs.
        (
            "8511 e807 0c401e 802d4e00 0000000000803540 976ac030",
            reading(1_700_000_005_123_468_000, true, false),
        ),
        (
            "8c11 e807 0c401e 802d4e00 0000000000803540 7dec7c52",
            reading(1_700_000_005_123_468_000, true, true),
        ),
        (
            "8716 e807 15cd853dfe9c9717 802d4e00 0000000000803540 1badee1a",
            reading(ns, true, false),
        ),
        (
            "8e16 e807 15cd853dfe9c9717 802d4e00 0000000000803540 d0d68260",
            reading(ns, true, true),
        ),
    ] {
        is(hex, record);
    }
    is(
        "b519 e807 a4336327 6469736b2c706174683d736461312075736564 5d427e46",
        Record::Owner(Owner {
            id: 1000,
            template: 0x2763_33a4,
            series: "disk,path=sda1 used",
        }),
    );
    // The key has been released.
    is(
        "b507 e807 a4336327 0a 080d4d09",
        Record::Owner(Owner {
            id: 1000,
            template: 0x2763_33a4,
            series: "\n",
        }),
    );
    is(
        "c33a e807 17 e0d403 13 6469736b2f706174683d736461312f75736564 15cd853dfe9c9717 \
         00bc613101000000 b1b1b1b1b1b1b1b1 0000000000803540 255fbaa7",
        Record::Object(Object {
            entry: Dictionary {
                id: 1000,
                key: "disk/path=sda1/used",
                avi_ms: 60_000,
                temporal: true,
            },
            latest: Some(Latest {
                time: Time::from_ns(ns),
                arrival_ns: 5_123_456_000,
                boot_tag: 0xb1b1_b1b1_b1b1_b1b1,
                wall_trusted: true,
                node_time: false,
                retained: true,
                value,
            }),
        }),
    );
    for (hex, is_older_store) in [
        ("c405 03000000 02 92cb932b", true),
        ("c405 03000000 00 65bba8ca", false),
    ] {
        is(
            hex,
            Record::Trailer {
                objects: 3,
                is_older_store,
            },
        );
    }
}

#[test]
fn a_trailer_of_an_earlier_format_says_that_the_store_is_older() {
    let mut out = Vec::new();
    others::put_trailer_plain(&mut out, SEAL, 7);
    let trailer = Record::Trailer {
        objects: 7,
        is_older_store: true,
    };
    assert_eq!(decode(&out, SEAL, None), Ok((trailer, 10)));
}

/// A program of any earlier format finds the version where it looks for it, and refuses the file.
#[test]
fn heads_keep_their_kinds_and_lengths() {
    let (mut segment, mut checkpoint) = (Vec::new(), Vec::new());
    put_segment(&mut segment, SEAL, 9);
    let head = CheckpointHead {
        segment: 1,
        offset: 2,
        lsn: 3,
        objects: 4,
    };
    put_checkpoint(&mut checkpoint, SEAL, &head);
    assert_eq!((segment.len(), segment[0]), (22, 0xb1));
    assert_eq!((checkpoint.len(), checkpoint[0]), (42, 0xc1));
    for bytes in [segment, checkpoint] {
        assert_eq!(bytes[10..14], FORMAT_VERSION.to_le_bytes());
    }
}

#[test]
fn kinds_outside_the_format_are_no_records() {
    let context = Context::of(SEAL, &anchor(1, 1));
    let known = |kind: u8| {
        let is_reading = matches!(kind, 0x80..=0x8f | 0x90 | 0x91 | 0x98 | 0x99 | 0xa0..=0xaf);
        is_reading || matches!(kind, 0xb1..=0xb5 | 0xc1..=0xc4)
    };
    for kind in 0..=u8::MAX {
        assert_eq!(is_kind(kind), known(kind), "{kind:x}");
        let mut record = vec![kind, 20];
        record.resize(2 + 20 + CHECK_BYTES, 0);
        others::put_right(&mut record, SEAL);
        if !known(kind) {
            assert_eq!(decode(&record, SEAL, Some(&context)), Err(NoRecord::Bad));
        }
    }
}

#[test]
fn names_and_series_have_their_lengths() {
    let (mut key, mut out) = (String::new(), Vec::new());
    for bytes in 0..=300 {
        let entry = Dictionary {
            id: 1,
            key: &key,
            avi_ms: 1,
            temporal: false,
        };
        out.clear();
        put_dictionary(&mut out, SEAL, &entry);
        let fits = (1..=255).contains(&bytes);
        assert_eq!(decode(&out, SEAL, None).is_ok(), fits, "{bytes}");
        key.push('k');
    }
    for bytes in [0, 1, 1024, 1025] {
        let series = "s".repeat(bytes);
        let owner = Owner {
            id: 1,
            template: 2,
            series: &series,
        };
        out.clear();
        put_owner(&mut out, SEAL, &owner);
        let decoded = decode(&out, SEAL, None);
        match bytes {
            0 | 1025 => assert_eq!(decoded, Err(NoRecord::Bad)),
            _ => assert_eq!(decoded, Ok((Record::Owner(owner), out.len()))),
        }
    }
    // The longest object fits into the longest record.
    let (key, value) = ("k".repeat(255), vec![1; VALUE_BYTES_LIMIT]);
    let object = Object {
        entry: Dictionary {
            id: u32::MAX,
            key: &key,
            avi_ms: u32::MAX,
            temporal: true,
        },
        latest: Some(Latest {
            time: Time::from_ns(-1),
            arrival_ns: u64::MAX,
            boot_tag: 1,
            wall_trusted: false,
            node_time: true,
            retained: false,
            value: &value,
        }),
    };
    out.clear();
    put_object(&mut out, SEAL, &object);
    assert_eq!(
        decode(&out, SEAL, None),
        Ok((Record::Object(object), out.len()))
    );
    assert!(out.len() <= RECORD_BYTES_MAX);
}

/// An anchor of the older kind has no ns, and serves the forms of format 3 as well as the newer kind does.
#[test]
fn both_kinds_of_anchor_serve_every_form() {
    let anchor = anchor(5_000_000, 1_700_000_000_000);
    let (mut older, mut newer) = (Vec::new(), Vec::new());
    others::put_anchor_ms(&mut older, SEAL, &anchor);
    put_anchor(&mut newer, SEAL, &anchor);
    assert_eq!((older[0], newer[0], older.len()), (0xb2, 0xb3, newer.len()));
    for bytes in [older, newer] {
        assert_eq!(
            decode(&bytes, SEAL, None),
            Ok((Record::Anchor(anchor), ANCHOR_BYTES))
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    /// The distances lie on the edges of the reach and within it; of two anchors the second stands in for the first.
    #[test]
    fn times_of_every_unit_round_trip_and_a_wrong_anchor_is_noticed(
        which in 0..FORMS.len(),
        base_ns in -(1i64 << 61)..1i64 << 61,
        later_us in 0u64..1 << 30,
        quarters in proptest::array::uniform2(-5i64..=5),
        steps in proptest::array::uniform2(-2i64..=2),
        wall_trusted: bool,
        retained: bool,
        value in proptest::collection::vec(any::<u8>(), 0..300),
        at: prop::sample::Index,
        flip in 1u8..=255,
    ) {
        let (form, node_time) = FORMS[which];
        let (unit, reach) = reach(form);
        let [distance, shift] = [0, 1].map(|n: usize| quarters[n] * (reach / 4) + steps[n]);
        let arrival_us = 5_000_000 + later_us;
        let since = if form == Form::Offset { later_us as i64 } else { 0 };
        let time = Time::from_ns((base_ns.div_euclid(unit) + since + distance) * unit);
        let context = |shift: i64| {
            let there = Time::from_ns(base_ns + shift * unit);
            Context::of(SEAL, &Anchor { sensor: there, wall: there, ..anchor(5_000_000, 0) })
        };
        let reading = Reading { id: 1000, time, arrival_us, wall_trusted, node_time, retained, value: &value };
        let mut out = Vec::new();
        put_reading(&mut out, &reading, &context(0), form);
        for shift in [0, shift] {
            let is_near = form == Form::WholeNs || (-reach..reach).contains(&(distance - shift));
            let expected = if is_near { Ok((Record::Reading(reading), out.len())) } else { Err(NoRecord::Bad) };
            prop_assert_eq!(decode(&out, SEAL, Some(&context(shift))), expected, "{:?} {} {}", form, distance, shift);
        }
        for cut in 0..out.len() {
            prop_assert_eq!(decode(&out[..cut], SEAL, Some(&context(0))), Err(NoRecord::Short));
        }
        let at = at.index(out.len());
        out[at] ^= flip;
        out.resize(RECORD_BYTES_MAX, 0);
        prop_assert_eq!(decode(&out, SEAL, Some(&context(0))), Err(NoRecord::Bad));
    }

    #[test]
    fn the_records_of_format_3_round_trip(
        id: u32,
        text in "[a-zäöü/]{1,30}",
        numbers: [u64; 3],
        times: [i64; 2],
        flags: [bool; 5],
        value in proptest::collection::vec(any::<u8>(), 0..100),
        at: prop::sample::Index,
        flip in 1u8..=255,
    ) {
        let [wall_trusted, node_time, retained, temporal, is_older_store] = flags;
        let [sensor, wall] = times.map(Time::from_ns);
        let [arrival_ns, boot_tag, lsn] = numbers;
        let anchor = Anchor { sensor, wall, wall_trusted, is_older_store, lsn, ..anchor(arrival_ns, 0) };
        let entry = Dictionary { id, key: &text, avi_ms: lsn as u32, temporal };
        let latest = Latest { time: sensor, arrival_ns, boot_tag, wall_trusted, node_time, retained, value: &value };
        let object = Object { entry, latest: (!value.is_empty()).then_some(latest) };
        let owner = Owner { id, template: boot_tag as u32, series: &text };
        let mut records = [(); 4].map(|()| Vec::new());
        put_anchor(&mut records[0], SEAL, &anchor);
        put_object(&mut records[1], SEAL, &object);
        put_owner(&mut records[2], SEAL, &owner);
        put_trailer(&mut records[3], SEAL, id, is_older_store);
        let expected = [
            Record::Anchor(anchor),
            Record::Object(object),
            Record::Owner(owner),
            Record::Trailer { objects: id, is_older_store },
        ];
        for (out, record) in records.iter_mut().zip(expected) {
            prop_assert_eq!(decode(out, SEAL, None), Ok((record, out.len())));
            for cut in 0..out.len() {
                prop_assert_eq!(decode(&out[..cut], SEAL, None), Err(NoRecord::Short));
            }
            let at = at.index(out.len());
            out[at] ^= flip;
            out.resize(RECORD_BYTES_MAX, 0);
            prop_assert_eq!(decode(out, SEAL, None), Err(NoRecord::Bad));
        }
    }
}
