//! The mark of a store in which `{tags}` of a template stands for `{pairs}`: the content of its file. `KEYS.md` beside
//! this crate's manifest is the specification.

use ingest::intake::TagsForm;

const MAGIC: [u8; 8] = *b"keelkeys";
/// The version of the file that this program knows.
pub(crate) const VERSION: u32 = 1;
/// The one form that a mark of this version says.
pub(crate) const PAIRS: u32 = 1;
const CHECK_BYTES: usize = 4;
/// The size of the file.
pub(crate) const MARK_BYTES: usize = 20;

/// Why a file is no mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkError {
    /// It is damaged, or of another kind.
    Damaged,
    /// A later version wrote it.
    Later {
        /// Version of the file.
        version: u32,
        /// The form that it says, if it says it in the same place.
        form: u32,
    },
}

/// Returns the content of the file.
pub(crate) fn encode() -> [u8; MARK_BYTES] {
    let mut bytes = [0; MARK_BYTES];
    let (body, check) = bytes.split_at_mut(MARK_BYTES - CHECK_BYTES);
    body[..8].copy_from_slice(&MAGIC);
    body[8..12].copy_from_slice(&VERSION.to_le_bytes());
    body[12..].copy_from_slice(&PAIRS.to_le_bytes());
    check.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    bytes
}

/// Reads the content of the file. A later version may be longer; its head and its checksum are the same.
///
/// # Errors
/// [`MarkError`].
pub(crate) fn decode(bytes: &[u8]) -> Result<TagsForm, MarkError> {
    let word = |at: usize| -> Option<u32> {
        let bytes = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let body_bytes = bytes.len().saturating_sub(CHECK_BYTES);
    let (Some(version), Some(form), Some(check)) = (word(8), word(12), word(body_bytes)) else {
        return Err(MarkError::Damaged);
    };
    let body = bytes.get(..body_bytes).unwrap_or_default();
    let is_whole = bytes.len() >= MARK_BYTES && bytes.starts_with(&MAGIC);
    if !is_whole || crc32c::crc32c(body) != check {
        return Err(MarkError::Damaged);
    }
    if (version, form, bytes.len()) == (VERSION, PAIRS, MARK_BYTES) {
        Ok(TagsForm::Pairs)
    } else {
        Err(MarkError::Later { version, form })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &[u8] = include_bytes!("../tests/golden/node-keys-1");

    fn sealed(body: &[u8]) -> Vec<u8> {
        [body, &crc32c::crc32c(body).to_le_bytes()].concat()
    }

    #[test]
    fn the_mark_is_the_bytes_that_the_specification_says() {
        assert_eq!(encode(), GOLDEN);
        assert_eq!(decode(GOLDEN), Ok(TagsForm::Pairs));
    }

    #[test]
    fn a_damaged_mark_is_noticed_and_a_later_one_is_named() {
        for bit in 0..GOLDEN.len() * 8 {
            let mut bytes = GOLDEN.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bytes), Err(MarkError::Damaged));
        }
        for end in 0..GOLDEN.len() {
            assert_eq!(decode(&GOLDEN[..end]), Err(MarkError::Damaged));
        }
        let body = &GOLDEN[..GOLDEN.len() - CHECK_BYTES];
        for (at, version, form) in [(8, 2, 1), (12, 1, 2)] {
            let mut later = body.to_vec();
            later[at] = 2;
            let told = Err(MarkError::Later { version, form });
            assert_eq!(decode(&sealed(&later)), told);
            later.extend_from_slice(b"more");
            assert_eq!(decode(&sealed(&later)), told);
        }
        let longer = sealed(&[body, b"more"].concat());
        assert!(matches!(decode(&longer), Err(MarkError::Later { .. })));
        // The checksum is right, and the kind is another.
        assert_eq!(decode(&sealed(&[0; 16])), Err(MarkError::Damaged));
        assert_eq!(decode(&sealed(&body[..12])), Err(MarkError::Damaged));
    }
}
