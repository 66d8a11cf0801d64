//! No bytes make the packet parser panic, and what it accepts is within its limits. The result does not depend on how
//! the bytes are cut into reads.

use ingest::mqtt::Version;
use ingest::mqtt::packet::{self, Kind, Malformed, Oversized, READ_BYTES, Reader, Step};
use proptest::prelude::*;

const LIMIT: usize = 300;

/// A step that owns its content.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Publish(Vec<u8>, Vec<u8>, u16, u8, bool, bool),
    Oversized(u16, u8),
    Control(Kind, Vec<u8>),
    Malformed(Malformed),
}

/// Returns all packets of a stream that arrives in pieces of these sizes.
fn read_all(bytes: &[u8], version: Version, mut sizes: impl Iterator<Item = usize>) -> Vec<Seen> {
    let mut reader = Reader::new();
    let mut seen = Vec::new();
    let mut rest = bytes;
    loop {
        loop {
            let (found, bytes) = match reader.peek(version, LIMIT) {
                Err(malformed) => {
                    seen.push(Seen::Malformed(malformed));
                    return seen;
                }
                Ok(Step::More(need)) => {
                    assert!(need > 0 && need <= READ_BYTES + 16);
                    break;
                }
                Ok(Step::Publish(found, bytes)) => {
                    assert_eq!(found.packet_id == 0, found.qos == 0);
                    let (topic, payload) = (found.topic.to_vec(), found.payload.to_vec());
                    let (id, qos) = (found.packet_id, found.qos);
                    let seen =
                        Seen::Publish(topic, payload, id, qos, found.duplicate, found.retained);
                    (seen, bytes)
                }
                Ok(Step::Oversized(found, bytes)) => {
                    assert_eq!(found.skip, 0);
                    (Seen::Oversized(found.packet_id, found.qos), bytes)
                }
                Ok(Step::Control(kind, packet, header)) => {
                    assert!(header <= packet.len());
                    (Seen::Control(kind, packet.to_vec()), packet.len())
                }
            };
            seen.push(found);
            reader.advance(bytes);
        }
        if rest.is_empty() {
            return seen;
        }
        let size = sizes.next().unwrap_or(usize::MAX).clamp(1, rest.len());
        let space = reader.space();
        assert!(!space.is_empty());
        let size = size.min(space.len());
        space[..size].copy_from_slice(&rest[..size]);
        reader.filled(size);
        rest = &rest[size..];
    }
}

fn publish(first: u8, topic: &[u8], id: u16, properties: Option<&[u8]>, payload: &[u8]) -> Vec<u8> {
    let mut body = u16::try_from(topic.len()).unwrap().to_be_bytes().to_vec();
    body.extend_from_slice(topic);
    if first & 6 != 0 {
        body.extend_from_slice(&id.to_be_bytes());
    }
    if let Some(properties) = properties {
        body.push(u8::try_from(properties.len()).unwrap());
        body.extend_from_slice(properties);
    }
    body.extend_from_slice(payload);
    packet(0x30 | first, &body)
}

fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut length = body.len();
    loop {
        let low = (length & 0x7f) as u8;
        length >>= 7;
        bytes.push(if length > 0 { low | 0x80 } else { low });
        if length == 0 {
            break;
        }
    }
    bytes.extend_from_slice(body);
    bytes
}

fn version() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::V311), Just(Version::V5)]
}

/// Packets as a broker would send them, small and oversized, occasionally with something else.
fn stream(version: Version) -> impl Strategy<Value = Vec<u8>> {
    let message = (
        prop_oneof![Just(0_u8), Just(2), Just(4), Just(10), Just(3)],
        prop::collection::vec(any::<u8>(), 0..40),
        1..=u16::MAX,
        prop::collection::vec(any::<u8>(), 0..20),
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..50),
            prop::collection::vec(any::<u8>(), 0..700),
        ],
    )
        .prop_map(move |(first, topic, id, properties, payload)| {
            let properties = (version == Version::V5).then_some(&properties[..]);
            publish(first, &topic, id, properties, &payload)
        });
    let control = prop_oneof![
        Just(vec![0xd0, 0]),
        Just(vec![0x90, 3, 0, 1, 0]),
        Just(vec![0x90, 4, 0, 1, 0, 0]),
        Just(vec![0xb0, 2, 0, 1]),
        Just(vec![0x62, 2, 0, 9]),
        Just(vec![0x20, 2, 1, 0]),
    ];
    let rubbish = prop::collection::vec(any::<u8>(), 0..8);
    let piece = prop_oneof![8 => message, 3 => control, 1 => rubbish];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        version in version(),
        limit in 0_usize..500,
    ) {
        match packet::next(&bytes, version, limit) {
            Ok(Step::Publish(found, size)) => {
                prop_assert!(size <= bytes.len() && size <= limit + 5);
                prop_assert!(found.topic.len() + found.payload.len() < size);
            }
            Ok(Step::Oversized(found, size)) => {
                prop_assert!(size <= bytes.len() && size + found.skip > limit);
            }
            Ok(Step::Control(_, found, header)) => {
                prop_assert!(header <= found.len() && found.len() <= bytes.len());
                let _ = packet::packet_id(found, header);
            }
            Ok(Step::More(need)) => prop_assert!(need > bytes.len()),
            Err(_) => {}
        }
    }

    #[test]
    fn the_cuts_between_reads_do_not_matter(
        (version, bytes) in version().prop_flat_map(|version| (Just(version), stream(version))),
        sizes in prop::collection::vec(1_usize..60, 1..200),
    ) {
        let whole = read_all(&bytes, version, std::iter::empty());
        let single = read_all(&bytes, version, std::iter::repeat(1));
        let pieces = read_all(&bytes, version, sizes.into_iter().cycle());
        prop_assert_eq!(&whole, &single);
        prop_assert_eq!(&whole, &pieces);
    }
}

#[test]
fn a_message_comes_out_as_it_went_in() {
    for (version, properties) in [
        (Version::V311, None),
        (Version::V5, Some(&[0x23, 0, 1][..])),
    ] {
        let bytes = publish(0x0b, b"a/b", 7, properties, b"21.5");
        let Ok(Step::Publish(found, size)) = packet::next(&bytes, version, 1_000) else {
            panic!("no message");
        };
        assert_eq!(size, bytes.len());
        assert_eq!((found.topic, found.payload), (&b"a/b"[..], &b"21.5"[..]));
        assert_eq!((found.packet_id, found.qos), (7, 1));
        assert!(found.duplicate && found.retained);
    }
}

#[test]
fn an_oversized_message_is_skipped_without_being_held() {
    for (qos, id) in [(0, 0), (2, 9)] {
        let mut bytes = publish(qos, b"a/b", 9, None, &vec![b'x'; 5 << 20]);
        bytes.extend(publish(2, b"c", 10, None, b"1"));
        let mut sizes = std::iter::repeat(50_000);
        let seen = read_all(&bytes, Version::V311, &mut sizes);
        let after = Seen::Publish(b"c".to_vec(), b"1".to_vec(), 10, 1, false, false);
        assert_eq!(seen, [Seen::Oversized(id, qos >> 1), after]);
    }
    // A packet with the longest possible topic.
    let bytes = publish(2, &[b't'; 65_535], 9, None, b"");
    let seen = read_all(&bytes, Version::V311, std::iter::repeat(1_000));
    assert_eq!(seen, [Seen::Oversized(9, 1)]);
}

#[test]
fn packets_that_break_the_protocol_are_malformed() {
    let wrong: [(&[u8], Version); 15] = [
        (&[0x36, 5, 0, 1, b'a', 0, 1], Version::V311),  // QoS 3
        (&[0x32, 5, 0, 1, b'a', 0, 0], Version::V311),  // packet id 0
        (&[0x32, 3, 0, 1, b'a'], Version::V311),        // no packet id
        (&[0x30, 3, 0, 9, b'a'], Version::V311),        // topic beyond the end
        (&[0x30, 1, 0], Version::V311),                 // no topic
        (&[0x30, 3, 0, 1, b'a'], Version::V5),          // no properties
        (&[0x30, 4, 0, 1, b'a', 5], Version::V5),       // properties beyond the end
        (&[0x30, 3, 0, 0, 0], Version::V5),             // topic alias
        (&[0x30, 0x80, 0x80, 0x80, 0x80], Version::V5), // length of five bytes
        (&[0xd1, 0], Version::V5),                      // flags
        (&[0x10, 0], Version::V5),                      // CONNECT
        (&[0x40, 2, 0, 1], Version::V5),                // PUBACK
        (&[0xe0, 0], Version::V311),                    // DISCONNECT
        (&[0x00, 0], Version::V311),                    // no type
        (&[0x90, 0x81, 0x80, 0x04], Version::V311),     // SUBACK of 64 KiB and a byte
    ];
    for (bytes, version) in wrong {
        let found = packet::next(bytes, version, 1_000);
        assert!(found.is_err(), "{bytes:x?}: {found:?}");
    }
    // Oversized packets are checked as strictly.
    for bytes in [&[0x32, 100, 0, 1, b'a', 0, 0][..], &[0x32, 100, 0, 99]] {
        assert!(packet::next(bytes, Version::V311, 50).is_err());
    }
    let whole = packet::next(&[0x32, 100, 0, 1, b'a', 0, 1], Version::V311, 50);
    let found = Oversized {
        packet_id: 1,
        qos: 1,
        skip: 95,
    };
    assert_eq!(whole, Ok(Step::Oversized(found, 7)));
}
