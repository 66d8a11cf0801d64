//! Bodies that are packed with gzip (RFC 1952), unpacked as they come.
//!
//! **Invariants:** any bytes give an answer; the result never exceeds its limit, whatever the bytes claim; one step
//! reads and writes a bounded amount, so that a body that unpacks to much, or to nothing, holds up no other work; a
//! body is whole only with its checksum, and nothing follows it.

use flate2::{Crc, Decompress, FlushDecompress, Status};

/// Packed and unpacked bytes of one step.
const STEP_IN_BYTES: usize = 4 << 10;
const STEP_OUT_BYTES: usize = 32 << 10;

/// Bits of the flags in a header: fields that follow it.
const HAS_HEADER_CRC: u8 = 2;
const HAS_EXTRA: u8 = 4;
const HAS_NAME: u8 = 8;
const HAS_COMMENT: u8 = 16;
const UNKNOWN_FLAGS: u8 = 0xe0;

/// Why a body cannot be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnpackError {
    /// More comes out than is allowed.
    Large,
    /// It is not gzip, it is damaged or cut, or something follows it.
    Broken,
}

/// A body that is being unpacked.
pub struct Unpack {
    place: Place,
    flags: u8,
    inflate: Decompress,
    crc: Crc,
    trailer: [u8; 8],
    room: Box<[u8]>,
    out: Vec<u8>,
    bytes_max: usize,
}

/// Where the next byte belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The ten bytes that every header has.
    Header(u8),
    /// The length of the extra field, its low byte first.
    ExtraLow,
    ExtraHigh(u8),
    /// The extra field, with so many bytes left.
    Extra(u16),
    /// Texts that end with a zero.
    Name,
    Comment,
    /// The checksum of the header, with so many bytes left. Nothing of the header is used, so it is not checked.
    HeaderCrc(u8),
    Packed,
    Trailer(u8),
    End,
}

impl std::fmt::Debug for Unpack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpack")
            .field("place", &self.place)
            .field("bytes", &self.out.len())
            .finish_non_exhaustive()
    }
}

impl Unpack {
    /// Begins a body that may have `bytes_max` bytes once it is unpacked.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            place: Place::Header(0),
            flags: 0,
            inflate: Decompress::new(false),
            crc: Crc::new(),
            trailer: [0; 8],
            room: vec![0; STEP_OUT_BYTES].into_boxed_slice(),
            out: Vec::new(),
            bytes_max,
        }
    }

    /// Unpacks a part of `packed`, and moves its beginning behind what has been used. Returns whether it must be called
    /// again before more bytes are given.
    ///
    /// # Errors
    /// [`UnpackError`]; then the body is lost.
    pub fn step(&mut self, packed: &mut &[u8]) -> Result<bool, UnpackError> {
        if self.place == Place::Packed {
            return self.inflate(packed);
        }
        let mut read = 0;
        while let Some((byte, rest)) = packed.split_first() {
            *packed = rest;
            self.byte(*byte)?;
            read += 1;
            if self.place == Place::Packed || read == STEP_IN_BYTES {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the unpacked body.
    ///
    /// # Errors
    /// [`UnpackError::Broken`] if it is not whole.
    pub fn finish(self) -> Result<Vec<u8>, UnpackError> {
        if self.place == Place::End {
            Ok(self.out)
        } else {
            Err(UnpackError::Broken)
        }
    }

    fn inflate(&mut self, packed: &mut &[u8]) -> Result<bool, UnpackError> {
        let input = &packed[..packed.len().min(STEP_IN_BYTES)];
        let (read_before, written_before) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self
            .inflate
            .decompress(input, &mut self.room, FlushDecompress::None)
            .map_err(|_| UnpackError::Broken)?;
        let read = (self.inflate.total_in() - read_before) as usize;
        let written = (self.inflate.total_out() - written_before) as usize;
        let new = &self.room[..written];
        self.crc.update(new);
        append(&mut self.out, new, self.bytes_max)?;
        *packed = &packed[read..];
        if status == Status::StreamEnd {
            self.place = Place::Trailer(0);
        } else if read == 0 && written == 0 {
            // Without progress there must be nothing left to read.
            return if packed.is_empty() {
                Ok(false)
            } else {
                Err(UnpackError::Broken)
            };
        }
        Ok(true)
    }

    /// Takes one byte of header or trailer.
    fn byte(&mut self, byte: u8) -> Result<(), UnpackError> {
        self.place = match self.place {
            Place::Header(at) => {
                let is_valid = match at {
                    0 => byte == 0x1f,
                    1 => byte == 0x8b,
                    // The one method that exists.
                    2 => byte == 8,
                    3 => byte & UNKNOWN_FLAGS == 0,
                    _ => true,
                };
                if !is_valid {
                    return Err(UnpackError::Broken);
                }
                if at == 3 {
                    self.flags = byte;
                }
                match at {
                    9 => self.after(0),
                    _ => Place::Header(at + 1),
                }
            }
            Place::ExtraLow => Place::ExtraHigh(byte),
            Place::ExtraHigh(low) => match u16::from_le_bytes([low, byte]) {
                0 => self.after(HAS_EXTRA),
                bytes => Place::Extra(bytes),
            },
            Place::Extra(1) => self.after(HAS_EXTRA),
            Place::Extra(left) => Place::Extra(left - 1),
            Place::Name if byte == 0 => self.after(HAS_NAME),
            Place::Comment if byte == 0 => self.after(HAS_COMMENT),
            Place::HeaderCrc(1) => Place::Packed,
            Place::HeaderCrc(left) => Place::HeaderCrc(left - 1),
            Place::Trailer(at) => {
                self.trailer[usize::from(at)] = byte;
                match at {
                    7 => self.end()?,
                    _ => Place::Trailer(at + 1),
                }
            }
            Place::End => return Err(UnpackError::Broken),
            place @ (Place::Name | Place::Comment | Place::Packed) => place,
        };
        Ok(())
    }

    /// Returns the place of the first field behind `field` that the header has; they come in the order extra field,
    /// name, comment, checksum. 0: none has come.
    fn after(&self, field: u8) -> Place {
        let fields = [
            (HAS_EXTRA, Place::ExtraLow),
            (HAS_NAME, Place::Name),
            (HAS_COMMENT, Place::Comment),
        ];
        // Their flags grow in this order.
        let next = fields
            .into_iter()
            .find(|(flag, _)| *flag > field && self.flags & *flag != 0);
        match next {
            Some((_, place)) => place,
            None if self.flags & HAS_HEADER_CRC != 0 => Place::HeaderCrc(2),
            None => Place::Packed,
        }
    }

    fn end(&self) -> Result<Place, UnpackError> {
        let [a, b, c, d, size @ ..] = self.trailer;
        let is_right = u32::from_le_bytes([a, b, c, d]) == self.crc.sum()
            && u32::from_le_bytes(size) == self.crc.amount();
        is_right.then_some(Place::End).ok_or(UnpackError::Broken)
    }
}

/// Appends to a body that may have `bytes_max` bytes. Its memory never exceeds that.
///
/// # Errors
/// [`UnpackError::Large`]
pub(crate) fn append(body: &mut Vec<u8>, more: &[u8], bytes_max: usize) -> Result<(), UnpackError> {
    let needed = body.len().saturating_add(more.len());
    if needed > bytes_max {
        return Err(UnpackError::Large);
    }
    if needed > body.capacity() {
        let capacity = body.capacity().saturating_mul(2).clamp(needed, bytes_max);
        body.reserve_exact(capacity - body.len());
    }
    body.extend_from_slice(more);
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use flate2::{Compression, GzBuilder};
    use std::io::Write;

    /// Packs bytes as senders do.
    pub(crate) fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Unpacks a body that comes in pieces of this size.
    fn unpacked(packed: &[u8], piece: usize, bytes_max: usize) -> Result<Vec<u8>, UnpackError> {
        let mut unpack = Unpack::new(bytes_max);
        for mut piece in packed.chunks(piece) {
            while unpack.step(&mut piece)? {}
            assert!(piece.is_empty());
        }
        unpack.finish()
    }

    #[test]
    fn what_was_packed_comes_back_however_it_is_cut() {
        let text = "air,room=2 co2=410 1780272000000000000\n".repeat(5000);
        for text in ["", "x", &text] {
            let whole = packed(text.as_bytes());
            for piece in [1, 7, 4096, usize::MAX] {
                let found = unpacked(&whole, piece, text.len());
                assert_eq!(found.as_deref(), Ok(text.as_bytes()), "{piece}");
            }
        }
    }

    #[test]
    fn every_field_of_a_header_is_passed_over() {
        for fields in 0..8 {
            let mut builder = GzBuilder::new().mtime(5);
            if fields & 1 != 0 {
                builder = builder.extra(vec![0, 1, 2]);
            }
            if fields & 2 != 0 {
                builder = builder.filename("lines.txt");
            }
            if fields & 4 != 0 {
                builder = builder.comment("of a test");
            }
            let mut encoder = builder.write(Vec::new(), Compression::fast());
            encoder.write_all(b"a v=1").unwrap();
            let whole = encoder.finish().unwrap();
            assert_eq!(unpacked(&whole, 3, 5).as_deref(), Ok(&b"a v=1"[..]));
        }
        // What the packer cannot write: an extra field of no bytes, and a checksum of the header behind it.
        let mut whole = packed(b"a");
        whole[3] |= HAS_EXTRA | HAS_HEADER_CRC;
        whole.splice(10..10, [0, 0, 7, 7]);
        assert_eq!(unpacked(&whole, 1, 1).as_deref(), Ok(&b"a"[..]));
    }

    #[test]
    fn a_body_of_many_bytes_ends_at_its_limit() {
        let bomb = packed(&vec![b'x'; 32 << 20]);
        assert!(bomb.len() < 64 << 10);
        for bytes_max in [0, 1, 100_000] {
            let mut unpack = Unpack::new(bytes_max);
            let mut rest = &bomb[..];
            let error = loop {
                match unpack.step(&mut rest) {
                    Ok(again) => assert!(again),
                    Err(error) => break error,
                }
            };
            assert_eq!(error, UnpackError::Large);
            assert!(unpack.out.capacity() <= bytes_max);
        }
    }

    #[test]
    fn a_body_that_is_damaged_cut_or_followed_by_more_is_refused() {
        let text = b"air,room=2 co2=410 1780272000000000000\n".repeat(20);
        let whole = packed(&text);
        for length in 0..whole.len() {
            assert_eq!(
                unpacked(&whole[..length], 4096, 1 << 20),
                Err(UnpackError::Broken),
                "{length}"
            );
        }
        for at in (0..4).chain(whole.len() - 8..whole.len()) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x80;
            let found = unpacked(&damaged, 4096, 1 << 20);
            assert_eq!(found, Err(UnpackError::Broken), "{at}");
        }
        for more in [&b"\0"[..], &whole] {
            let found = unpacked(&[&whole, more].concat(), 4096, 1 << 20);
            assert_eq!(found, Err(UnpackError::Broken));
        }
        assert_eq!(unpacked(&text, 4096, 1 << 20), Err(UnpackError::Broken));
    }
}
