//! Extracts frames from a byte stream, with a bounded buffer.

use super::message::{ANSWER_BYTES_MAX, REQUEST_BYTES_MAX};
use base::wire::{Decoded, WireError, decode, frame_bytes};
use std::ops::Range;

/// The maximum number of bytes requested per read, so that the buffer grows with what has arrived and not with what a
/// header declares.
const STEP_BYTES: usize = 64 << 10;

/// One frame of a [`FrameReader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The kind of the message.
    pub kind: u16,
    /// The version of the protocol.
    pub version: u16,
    /// The encoded message.
    pub payload: &'a [u8],
}

/// Collects bytes and returns frames. It never holds more than one frame of the largest size, and what was read
/// together with it.
#[derive(Debug)]
pub struct FrameReader {
    payload_bytes_max: usize,
    buffer: Vec<u8>,
    filled: Range<usize>,
    /// The number of bytes missing in the current frame; 0 if unknown.
    missing: usize,
}

impl FrameReader {
    /// Returns a reader for messages of devices.
    #[must_use]
    pub fn for_requests() -> Self {
        Self::new(REQUEST_BYTES_MAX)
    }

    /// Returns a reader for messages of a server.
    #[must_use]
    pub fn for_answers() -> Self {
        Self::new(ANSWER_BYTES_MAX)
    }

    /// Returns a reader for frames of at most `payload_bytes_max` bytes of payload.
    #[must_use]
    pub fn new(payload_bytes_max: usize) -> Self {
        Self {
            payload_bytes_max,
            buffer: Vec::new(),
            filled: 0..0,
            missing: 0,
        }
    }

    /// Returns the space to read into; call [`advance`](Self::advance) afterwards. Never empty after
    /// [`next`](Self::next) has returned `None`.
    pub fn space(&mut self) -> &mut [u8] {
        let limit = frame_bytes(self.payload_bytes_max).max(STEP_BYTES);
        if self.filled.is_empty() {
            self.filled = 0..0;
        }
        let wanted = self.missing.clamp(STEP_BYTES / 8, STEP_BYTES);
        if self.filled.start > 0 && self.buffer.len() - self.filled.end < wanted {
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        let needed = (self.filled.end + wanted).min(limit);
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        }
        &mut self.buffer[self.filled.end..]
    }

    /// Notes that `bytes` bytes were read into [`space`](Self::space), at most its length.
    pub fn advance(&mut self, bytes: usize) {
        self.filled.end = (self.filled.end + bytes).min(self.buffer.len());
    }

    /// Copies as many bytes as there is room for, and returns their number. To copy all, alternate this with
    /// [`next`](Self::next) until that returns `None`.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let space = self.space();
        let taken = space.len().min(bytes.len());
        space[..taken].copy_from_slice(&bytes[..taken]);
        self.advance(taken);
        taken
    }

    /// Returns the next frame; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The received bytes are not a frame. The connection is then unusable.
    #[expect(
        clippy::should_implement_trait,
        reason = "the frames are borrowed from the buffer"
    )]
    pub fn next(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        let start = self.filled.start;
        match decode(&self.buffer[self.filled.clone()], self.payload_bytes_max)? {
            Decoded::NeedMore(missing) => {
                self.missing = missing;
                Ok(None)
            }
            Decoded::Frame(frame) => {
                let (kind, version) = (frame.kind, frame.version);
                let (payload_bytes, consumed) = (frame.payload.len(), frame.consumed);
                self.missing = 0;
                self.filled.start = start + consumed;
                let end = self.filled.start;
                Ok(Some(Frame {
                    kind,
                    version,
                    payload: &self.buffer[end - payload_bytes..end],
                }))
            }
        }
    }

    /// Returns whether a part of a frame has arrived.
    #[must_use]
    pub fn is_within_frame(&self) -> bool {
        !self.filled.is_empty()
    }

    /// Returns the size of the buffer, in bytes.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::wire::{HEADER_BYTES, encode};

    fn frame(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; HEADER_BYTES + payload.len()];
        encode(kind, 1, payload, &mut frame).unwrap();
        frame
    }

    fn take(stream: &[u8], piece_bytes: usize, limit: usize) -> Result<Vec<Vec<u8>>, WireError> {
        let (mut reader, mut taken) = (FrameReader::new(limit), Vec::new());
        for mut piece in stream.chunks(piece_bytes) {
            while !piece.is_empty() {
                let count = reader.push(piece);
                assert!(count > 0);
                piece = &piece[count..];
                while let Some(frame) = reader.next()? {
                    taken.push(frame.payload.to_vec());
                }
            }
            assert!(reader.buffer_bytes() <= 2 * frame_bytes(limit).max(STEP_BYTES));
        }
        assert!(!reader.is_within_frame());
        Ok(taken)
    }

    #[test]
    fn a_stream_cut_at_any_place_gives_the_same_frames() {
        let payloads: Vec<Vec<u8>> = [0, 1, 5000, 70_000, 100_000, 3, 100_000]
            .iter()
            .map(|bytes| (0..*bytes).map(|at| (at % 251) as u8).collect())
            .collect();
        let stream: Vec<u8> = payloads.iter().flat_map(|bytes| frame(7, bytes)).collect();
        for piece_bytes in [1, 13, 4096, 65_537, usize::MAX] {
            assert_eq!(take(&stream, piece_bytes, 100_000).unwrap(), payloads);
        }
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_it_has_come() {
        let mut reader = FrameReader::for_requests();
        let huge = ((REQUEST_BYTES_MAX + 1) as u32).to_le_bytes();
        assert_eq!(reader.push(&huge), 4);
        assert!(matches!(reader.next(), Err(WireError::Oversized { .. })));
        assert!(reader.buffer_bytes() <= STEP_BYTES);
    }

    #[test]
    fn a_header_alone_takes_no_room_for_its_payload() {
        let mut reader = FrameReader::for_answers();
        let header = frame(1, &vec![0; ANSWER_BYTES_MAX]);
        assert_eq!(reader.push(&header[..HEADER_BYTES]), HEADER_BYTES);
        assert_eq!(reader.next(), Ok(None));
        assert!(!reader.space().is_empty());
        assert!(reader.buffer_bytes() <= 2 * STEP_BYTES);
    }
}
