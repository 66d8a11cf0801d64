//! The bodies of the fuzz targets of streaming's messages. A test of `stream` includes this file too and runs the
//! committed corpora through it.

use stream::BLOCK_BYTES;
use stream::wire::{Answer, FrameReader, Request, unpack};

/// Data from devices: see [`message`].
pub fn stream_request(data: &[u8]) {
    message(data, FrameReader::for_requests, |kind, version, payload| {
        let request = Request::decode(kind, version, payload).ok()?;
        let mut bytes = Vec::new();
        request.encode_for(version, &mut bytes);
        Some(bytes)
    });
}

/// Data from a server: see [`message`]. Blocks are also unpacked, as whole blocks.
pub fn stream_answer(data: &[u8]) {
    message(data, FrameReader::for_answers, |kind, version, payload| {
        let answer = Answer::decode(kind, version, payload).ok()?;
        if let Answer::Blocks {
            blocks, compressed, ..
        } = &answer
        {
            let lengths = vec![BLOCK_BYTES; blocks.len()];
            if let Ok(bytes) = unpack(compressed, &lengths) {
                assert_eq!(bytes.len(), BLOCK_BYTES * blocks.len());
            }
        }
        let mut bytes = Vec::new();
        answer.encode_for(version, &mut bytes);
        Some(bytes)
    });
}

/// After an even first byte, a stream of frames follows. It is read whole, and in pieces of one byte more than the
/// value of the first byte. After an odd first byte, the kind (one byte) and the payload follow. Their version of the
/// protocol is 2 if the first byte is 3, otherwise 1. Every valid message is encoded to the same bytes again.
fn message(
    data: &[u8],
    reader: impl Fn() -> FrameReader,
    again: impl Fn(u16, u16, &[u8]) -> Option<Vec<u8>>,
) {
    let Some((&first, rest)) = data.split_first() else {
        return;
    };
    if first % 2 == 0 {
        let whole = frames(&mut reader(), rest, usize::MAX);
        let parts = frames(&mut reader(), rest, 1 + usize::from(first));
        assert_eq!(whole, parts);
        for (kind, version, payload) in whole {
            if let Some(bytes) = again(kind, version, &payload) {
                let written = frames(&mut reader(), &bytes, usize::MAX);
                assert_eq!(written, [(kind, version, payload)]);
            }
        }
    } else if let Some((&kind, payload)) = rest.split_first() {
        let (kind, version) = (u16::from(kind), if first == 3 { 2 } else { 1 });
        if let Some(bytes) = again(kind, version, payload) {
            let written = frames(&mut reader(), &bytes, usize::MAX);
            assert_eq!(written, [(kind, version, payload.to_vec())]);
        }
    }
}

/// Returns the frames of a stream that is read in pieces, up to its first error.
fn frames(reader: &mut FrameReader, stream: &[u8], piece_bytes: usize) -> Vec<(u16, u16, Vec<u8>)> {
    let mut frames = Vec::new();
    for mut piece in stream.chunks(piece_bytes) {
        while !piece.is_empty() {
            let taken = reader.push(piece);
            assert!(taken > 0, "no room for a byte");
            piece = &piece[taken..];
            loop {
                match reader.next() {
                    Ok(Some(frame)) => {
                        frames.push((frame.kind, frame.version, frame.payload.to_vec()));
                    }
                    Ok(None) => break,
                    Err(_) => return frames,
                }
            }
        }
    }
    frames
}
