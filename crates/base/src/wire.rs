//! The checksummed wire codec: frames between processes and machines. Never used for what is stored.
//!
//! A frame is `length u32, kind u16, version u16, crc32c u32, payload`, little-endian; every byte is specified in
//! `WIRE.md` beside this crate's manifest. Encoding and decoding allocate nothing; decoding copies nothing and does not
//! panic on any bytes.

use crate::error::Code;

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 12;

/// The largest payload that the format can carry; every user sets a smaller limit.
pub const PAYLOAD_BYTES_LIMIT: usize = 0x7fff_ffff;

/// One decoded frame. The payload is a slice of the bytes given to [`decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What the payload means; assigned by the protocol that uses the codec.
    pub kind: u16,
    /// Version of that meaning.
    pub version: u16,
    /// The payload, already checked.
    pub payload: &'a [u8],
    /// Bytes that this frame took from the front of the input, header included.
    pub consumed: usize,
}

/// What [`decode`] found at the front of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// The input ends before the frame does: at least this many more bytes are needed. Never 0.
    NeedMore(usize),
    /// A whole, undamaged frame.
    Frame(Frame<'a>),
}

/// Why bytes are not a frame, or a payload cannot become one.
///
/// A stream that has given an error stays broken: the start of the next frame is unknown, so the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The frame says it is longer than this user of the codec accepts (or its length is damaged).
    #[error("frame of {payload_bytes} payload bytes exceeds the limit of {payload_bytes_max}")]
    Oversized {
        /// What the frame's header says.
        payload_bytes: u64,
        /// The limit in force.
        payload_bytes_max: u64,
    },
    /// The checksum does not fit the bytes.
    #[error("frame checksum is {found:#010x}, its bytes make {computed:#010x}")]
    Checksum {
        /// What the frame's header says.
        found: u32,
        /// What its bytes make.
        computed: u32,
    },
    /// The buffer to encode into is shorter than the frame.
    #[error("frame needs {needed_bytes} bytes, the buffer has {buffer_bytes}")]
    BufferTooSmall {
        /// Bytes of the whole frame.
        needed_bytes: usize,
        /// Bytes of the buffer.
        buffer_bytes: usize,
    },
}

impl WireError {
    /// The one code this error maps to; see [`crate::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Oversized { .. } | Self::BufferTooSmall { .. } => Code::Invalid,
            Self::Checksum { .. } => Code::Corrupt,
        }
    }
}

/// Bytes of the whole frame that carries a payload of `payload_bytes`.
#[must_use]
pub const fn frame_bytes(payload_bytes: usize) -> usize {
    HEADER_BYTES.saturating_add(payload_bytes)
}

/// Writes the frame for `payload` to the front of `buffer` and returns its length in bytes.
///
/// # Errors
/// [`WireError::Oversized`] for a payload above [`PAYLOAD_BYTES_LIMIT`], [`WireError::BufferTooSmall`]
/// when the frame does not fit; the buffer is then unchanged.
pub fn encode(
    kind: u16,
    version: u16,
    payload: &[u8],
    buffer: &mut [u8],
) -> Result<usize, WireError> {
    let needed_bytes = frame_bytes(payload.len());
    let buffer_bytes = buffer.len();
    let Some((header, rest)) = buffer.split_first_chunk_mut::<HEADER_BYTES>() else {
        return Err(WireError::BufferTooSmall {
            needed_bytes,
            buffer_bytes,
        });
    };
    let Some(body) = rest.get_mut(..payload.len()) else {
        return Err(WireError::BufferTooSmall {
            needed_bytes,
            buffer_bytes,
        });
    };
    *header = encode_header(kind, version, payload)?;
    body.copy_from_slice(payload);
    Ok(needed_bytes)
}

/// Returns the header of the frame for `payload`, for a caller that sends both with one gathering write.
///
/// # Errors
/// [`WireError::Oversized`] for a payload above [`PAYLOAD_BYTES_LIMIT`].
pub fn encode_header(
    kind: u16,
    version: u16,
    payload: &[u8],
) -> Result<[u8; HEADER_BYTES], WireError> {
    if payload.len() > PAYLOAD_BYTES_LIMIT {
        return Err(WireError::Oversized {
            payload_bytes: payload.len() as u64,
            payload_bytes_max: PAYLOAD_BYTES_LIMIT as u64,
        });
    }
    let mut header = [0; HEADER_BYTES];
    header[0..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[4..6].copy_from_slice(&kind.to_le_bytes());
    header[6..8].copy_from_slice(&version.to_le_bytes());
    let checksum = checksum(&header, payload);
    header[8..12].copy_from_slice(&checksum.to_le_bytes());
    Ok(header)
}

/// Looks for a frame at the front of `input`.
///
/// Feed it what has arrived; on [`Decoded::NeedMore`] read more and call again with everything, on
/// [`Decoded::Frame`] drop `consumed` bytes and call again. A buffer of
/// `frame_bytes(payload_bytes_max)` bytes always suffices.
///
/// # Errors
/// [`WireError::Oversized`] as soon as the length has arrived, [`WireError::Checksum`] once the whole frame
/// has. `payload_bytes_max` above [`PAYLOAD_BYTES_LIMIT`] counts as that limit.
pub fn decode(input: &[u8], payload_bytes_max: usize) -> Result<Decoded<'_>, WireError> {
    let Some(length) = input.first_chunk::<4>() else {
        return Ok(Decoded::NeedMore(HEADER_BYTES - input.len()));
    };
    let payload_bytes = u32::from_le_bytes(*length);
    let payload_bytes_max = payload_bytes_max.min(PAYLOAD_BYTES_LIMIT) as u64;
    if u64::from(payload_bytes) > payload_bytes_max {
        return Err(WireError::Oversized {
            payload_bytes: u64::from(payload_bytes),
            payload_bytes_max,
        });
    }
    let Some((header, rest)) = input.split_first_chunk::<HEADER_BYTES>() else {
        return Ok(Decoded::NeedMore(HEADER_BYTES - input.len()));
    };
    let payload_bytes = payload_bytes as usize;
    let Some(payload) = rest.get(..payload_bytes) else {
        return Ok(Decoded::NeedMore(payload_bytes - rest.len()));
    };
    let found = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    let computed = checksum(header, payload);
    if found != computed {
        return Err(WireError::Checksum { found, computed });
    }
    let kind = u16::from_le_bytes([header[4], header[5]]);
    let version = u16::from_le_bytes([header[6], header[7]]);
    Ok(Decoded::Frame(Frame {
        kind,
        version,
        payload,
        consumed: frame_bytes(payload_bytes),
    }))
}

/// CRC-32C of the header's first eight bytes followed by the payload.
fn checksum(header: &[u8; HEADER_BYTES], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..8]), payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_payload_is_a_frame() {
        let mut buffer = [0; HEADER_BYTES];
        assert_eq!(encode(1, 2, &[], &mut buffer), Ok(HEADER_BYTES));
        let frame = Frame {
            kind: 1,
            version: 2,
            payload: &[],
            consumed: HEADER_BYTES,
        };
        assert_eq!(decode(&buffer, 0), Ok(Decoded::Frame(frame)));
    }

    #[test]
    fn blocks_of_zeros_or_ones_are_no_frames() {
        assert_eq!(
            decode(&[0; 64], 64),
            Err(WireError::Checksum {
                found: 0,
                computed: 0x8c28_b28a
            })
        );
        assert!(matches!(
            decode(&[0xff; 64], usize::MAX),
            Err(WireError::Oversized { .. })
        ));
    }

    #[test]
    fn a_partial_frame_tells_how_many_bytes_are_missing() {
        let mut buffer = [0; 17];
        encode(1, 2, b"abcde", &mut buffer).unwrap();
        for length in 0..buffer.len() {
            let expected = if length < HEADER_BYTES {
                HEADER_BYTES - length
            } else {
                buffer.len() - length
            };
            assert_eq!(
                decode(&buffer[..length], 5),
                Ok(Decoded::NeedMore(expected))
            );
        }
    }

    #[test]
    fn a_length_above_the_limit_is_refused_at_once() {
        let mut buffer = [0; 17];
        encode(1, 2, b"abcde", &mut buffer).unwrap();
        let error = WireError::Oversized {
            payload_bytes: 5,
            payload_bytes_max: 4,
        };
        assert_eq!(decode(&buffer[..4], 4), Err(error));
        assert_eq!(error.code(), Code::Invalid);
    }

    #[test]
    fn a_short_buffer_is_refused_and_left_alone() {
        for length in 0..17 {
            let mut buffer = vec![0xaa; length];
            let error = WireError::BufferTooSmall {
                needed_bytes: 17,
                buffer_bytes: length,
            };
            assert_eq!(encode(1, 2, b"abcde", &mut buffer), Err(error));
            assert!(buffer.iter().all(|byte| *byte == 0xaa));
        }
    }

    #[test]
    fn header_and_payload_apart_make_the_same_frame() {
        let mut buffer = [0; 17];
        encode(9, 8, b"abcde", &mut buffer).unwrap();
        assert_eq!(
            encode_header(9, 8, b"abcde").unwrap(),
            buffer[..HEADER_BYTES]
        );
        assert_eq!(frame_bytes(5), 17);
        assert_eq!(frame_bytes(usize::MAX), usize::MAX);
    }
}
