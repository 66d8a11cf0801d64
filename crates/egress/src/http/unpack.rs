//! Bodies that are packed with gzip (RFC 1952), unpacked as they come.
//!
//! **Invariants:** any bytes give an answer, and the result never exceeds its limit. One step reads and writes a
//! bounded amount, so that a body that unpacks to much, or to nothing, holds up no other work. A body is whole only
//! with its checksum, and nothing follows it.

use flate2::write::GzDecoder;
use std::io::{self, Write};

/// Packed bytes of one step, of which the decoder makes at most some tens of KiB before it returns.
const STEP_BYTES: usize = 4 << 10;

/// Why a body cannot be unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnpackError {
    /// More comes out than is allowed.
    Large,
    /// It is not gzip, it is damaged or cut, or something follows it.
    Broken,
}

/// A body that is being unpacked.
#[derive(Debug)]
pub struct Unpack {
    decoder: GzDecoder<Bounded>,
}

impl Unpack {
    /// Begins a body that may have `bytes_max` bytes once it is unpacked.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let out = Bounded {
            body: Vec::new(),
            bytes_max,
            is_over: false,
        };
        Self {
            decoder: GzDecoder::new(out),
        }
    }

    /// Unpacks a part of `packed`, and moves its beginning behind what has been used. Returns whether it must be called
    /// again before more bytes are given.
    ///
    /// # Errors
    /// [`UnpackError`]; then the body is lost.
    pub fn step(&mut self, packed: &mut &[u8]) -> Result<bool, UnpackError> {
        if packed.is_empty() {
            return Ok(false);
        }
        let input = &packed[..packed.len().min(STEP_BYTES)];
        match self.decoder.write(input) {
            // Something follows the end.
            Ok(0) => Err(UnpackError::Broken),
            Ok(read) => {
                *packed = &packed[read..];
                Ok(!packed.is_empty())
            }
            Err(_) => Err(self.fault()),
        }
    }

    /// Returns the unpacked body.
    ///
    /// # Errors
    /// [`UnpackError::Large`] if the last bytes exceed the limit; [`UnpackError::Broken`] if it is not whole.
    pub fn finish(mut self) -> Result<Vec<u8>, UnpackError> {
        if self.decoder.try_finish().is_err() {
            return Err(self.fault());
        }
        Ok(std::mem::take(&mut self.decoder.get_mut().body))
    }

    fn fault(&self) -> UnpackError {
        if self.decoder.get_ref().is_over {
            UnpackError::Large
        } else {
            UnpackError::Broken
        }
    }
}

/// Where the decoder writes: a body that remembers that more came than it may have.
#[derive(Debug)]
struct Bounded {
    body: Vec<u8>,
    bytes_max: usize,
    is_over: bool,
}

impl Write for Bounded {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if append(&mut self.body, more, self.bytes_max).is_err() {
            self.is_over = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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

    /// Fields of a header, by their flags.
    const HAS_HEADER_CRC: u8 = 2;
    const HAS_EXTRA: u8 = 4;

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
    fn packed_text_comes_back_however_it_is_cut() {
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
        whole.splice(10..10, [0, 0]);
        let mut crc = flate2::Crc::new();
        crc.update(&whole[..12]);
        let [low, high, ..] = crc.sum().to_le_bytes();
        whole.splice(12..12, [low, high]);
        assert_eq!(unpacked(&whole, 1, 1).as_deref(), Ok(&b"a"[..]));
        whole[12] ^= 1;
        assert_eq!(unpacked(&whole, 1, 1), Err(UnpackError::Broken));
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
            assert!(unpack.decoder.get_ref().body.capacity() <= bytes_max);
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
