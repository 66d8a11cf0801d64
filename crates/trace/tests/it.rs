//! No bytes make the trace parsers panic, and what they accept is within their limits.

use proptest::prelude::*;
use trace::{ReadingReader, Sensors, TIME_MS_MAX, Trace, readings, sensors};

fn table() -> Vec<u8> {
    format!(
        "{}\na,Hall,1,x,u,1,1,1\nb/c,Hall,1,\"y, z\",u,1,1,1\n",
        sensors::HEADER
    )
    .into_bytes()
}

/// Bytes that resemble a table enough to reach every branch.
fn near_csv() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b",".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\"".to_vec()),
        Just(b"a".to_vec()),
        Just(b"b/c".to_vec()),
        Just(b"NaN".to_vec()),
        Just(b"-1e308".to_vec()),
        any::<u32>().prop_map(|number| number.to_string().into_bytes()),
        prop::collection::vec(any::<u8>(), 0..300),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tables_of_sensors_are_read_without_panic(body in near_csv(), with_header in any::<bool>()) {
        let mut source = if with_header { format!("{}\n", sensors::HEADER).into_bytes() } else { Vec::new() };
        source.extend_from_slice(&body);
        if let Ok(found) = Sensors::read(&source[..]) {
            for (index, sensor) in found.as_slice().iter().enumerate() {
                prop_assert!(sensor.name.len() <= sensors::NAME_BYTES_MAX);
                prop_assert_eq!(found.index_of(&sensor.name).map(usize::from), Some(index));
            }
        }
    }

    #[test]
    fn readings_never_panic_and_every_line_is_accounted_for(body in near_csv()) {
        let known = Sensors::read(&table()[..]).unwrap();
        let mut source = format!("{}\n", readings::HEADER).into_bytes();
        source.extend_from_slice(&body);
        let mut reader = ReadingReader::new(&source[..], &known).unwrap();
        let mut good = 0_u64;
        let mut last = 0;
        while let Some(reading) = reader.next_reading().unwrap() {
            prop_assert!(reading.value.is_finite());
            prop_assert!(reading.time_ms >= last && reading.time_ms <= TIME_MS_MAX);
            prop_assert!(usize::from(reading.sensor) < known.len());
            last = reading.time_ms;
            good += 1;
        }
        let newlines = body.iter().filter(|byte| **byte == b'\n').count() as u64;
        let lines = newlines + u64::from(body.last().is_some_and(|byte| *byte != b'\n'));
        prop_assert_eq!(good + reader.rejections().total(), lines);
    }

    #[test]
    fn compressed_rubbish_never_panics(body in prop::collection::vec(any::<u8>(), 0..500)) {
        let mut source = vec![0x1f, 0x8b, 8, 0];
        source.extend_from_slice(&body);
        let _ = Trace::read(&table()[..], &source[..], u64::MAX);
        let _ = Trace::read(&table()[..], &body[..], u64::MAX);
    }
}
