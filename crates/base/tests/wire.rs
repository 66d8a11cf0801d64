//! The wire codec against its written specification and against arbitrary bytes.

use base::wire::{self, Decoded, Frame, HEADER_BYTES, WireError};
use proptest::prelude::*;

/// The indented lines of hexadecimal bytes under "Test vectors" in the specification, in order.
fn specified_vectors() -> Vec<Vec<u8>> {
    let specification = include_str!("../WIRE.md");
    let (_, vectors) = specification.split_once("## Test vectors").unwrap();
    let lines = vectors.lines().filter_map(|line| line.strip_prefix("    "));
    lines
        .map(|line| {
            line.split_whitespace()
                .map(|byte| u8::from_str_radix(byte, 16).unwrap())
                .collect()
        })
        .collect()
}

#[test]
fn the_golden_vectors_match_the_specification() {
    // Written out a second time, so that neither code nor specification can change alone.
    let golden: [&[u8]; 2] = [
        b"\x08\0\0\0\x02\x01\x03\0\x3e\x6b\xc7\x1cevenkeel",
        b"\0\0\0\0\x01\0\0\0\x32\x18\x6d\x51",
    ];
    assert_eq!(specified_vectors(), golden);
    let fields: [(u16, u16, &[u8]); 2] = [(0x0102, 3, b"evenkeel"), (1, 0, b"")];
    for (bytes, (kind, version, payload)) in golden.iter().zip(fields) {
        let mut buffer = [0xaa; 64];
        assert_eq!(
            wire::encode(kind, version, payload, &mut buffer),
            Ok(bytes.len())
        );
        assert_eq!(&buffer[..bytes.len()], *bytes);
        assert!(
            buffer[bytes.len()..].iter().all(|byte| *byte == 0xaa),
            "bytes behind the frame were touched"
        );
        let frame = Frame {
            kind,
            version,
            payload,
            consumed: bytes.len(),
        };
        assert_eq!(wire::decode(bytes, 64), Ok(Decoded::Frame(frame)));
    }
}

type OwnedFrame = (u16, u16, Vec<u8>);

/// Decodes a whole stream that arrives in pieces; returns the frames and the error that ended it, if any.
fn decode_in_pieces(
    stream: &[u8],
    piece: usize,
    max: usize,
) -> (Vec<OwnedFrame>, Option<WireError>) {
    let mut frames = Vec::new();
    let mut waiting: Vec<u8> = Vec::new();
    for bytes in stream.chunks(piece) {
        waiting.extend_from_slice(bytes);
        loop {
            match wire::decode(&waiting, max) {
                Ok(Decoded::NeedMore(count)) => {
                    assert!(count > 0);
                    assert!(waiting.len() + count <= wire::frame_bytes(max));
                    break;
                }
                Ok(Decoded::Frame(frame)) => {
                    frames.push((frame.kind, frame.version, frame.payload.to_vec()));
                    let consumed = frame.consumed;
                    waiting.drain(..consumed);
                }
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_are_decoded_without_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        max in prop_oneof![0_usize..300, Just(usize::MAX)],
    ) {
        match wire::decode(&bytes, max) {
            Ok(Decoded::NeedMore(count)) => prop_assert!(count > 0),
            Ok(Decoded::Frame(frame)) => prop_assert!(frame.consumed <= bytes.len() && frame.payload.len() <= max),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    /// Small lengths, so that the checksum is reached.
    #[test]
    fn plausible_bytes_are_decoded_without_panic(
        length in 0_u32..40,
        rest in prop::collection::vec(any::<u8>(), 0..60),
        cut in 0_usize..64,
    ) {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(&rest);
        bytes.truncate(cut);
        let decoded = wire::decode(&bytes, 32);
        // One chance in 2^32 per case that random bytes carry their own checksum.
        prop_assert!(!matches!(decoded, Ok(Decoded::Frame(_))));
    }

    #[test]
    fn frames_survive_the_stream_in_any_pieces(
        frames in prop::collection::vec((any::<u16>(), any::<u16>(), prop::collection::vec(any::<u8>(), 0..50)), 0..8),
        piece in 1_usize..100,
    ) {
        let mut stream = Vec::new();
        for (kind, version, payload) in &frames {
            let start = stream.len();
            stream.resize(start + wire::frame_bytes(payload.len()), 0);
            let written = wire::encode(*kind, *version, payload, &mut stream[start..]);
            prop_assert_eq!(written, Ok(HEADER_BYTES + payload.len()));
        }
        prop_assert_eq!(decode_in_pieces(&stream, piece, 50), (frames, None));
    }

    /// CRC-32C detects up to three flipped bits in frames this short; it misses a damaged length, which moves the
    /// frame's end, once in 2^32.
    #[test]
    fn flipped_bits_in_a_frame_are_detected(
        payload in prop::collection::vec(any::<u8>(), 0..50),
        flips in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
    ) {
        let mut stream = vec![0; wire::frame_bytes(payload.len())];
        wire::encode(7, 1, &payload, &mut stream).unwrap();
        let good = stream.clone();
        for flip in flips {
            let bit = flip.index(stream.len() * 8);
            stream[bit / 8] ^= 1 << (bit % 8);
        }
        prop_assume!(stream != good);
        // A damaged length may ask for more bytes, or for fewer, so that bytes of the payload are taken for the end.
        stream.extend_from_slice(&[0x55; 300]);
        let (frames, error) = decode_in_pieces(&stream, 1, 255);
        prop_assert!(frames.is_empty());
        prop_assert!(error.is_some());
    }
}
