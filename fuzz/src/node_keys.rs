//! The body of the fuzz target `node_keys`. A test of `node` includes this file too and runs the committed corpus
//! through it; both have the reader as `mark`.

use super::mark::{MARK_BYTES, MarkError, PAIRS, VERSION, decode, encode};

/// The mark of a store. If the first byte is odd, a right checksum is appended, which no fuzzer finds. Bytes that are a
/// mark are the mark that a node writes, byte for byte. All other bytes with a right checksum are of a later version.
pub(crate) fn node_keys(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    let mut bytes = bytes.to_vec();
    if kind % 2 == 1 {
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    }
    match decode(&bytes) {
        Ok(_) => assert_eq!(bytes, encode()),
        Err(MarkError::Later { version, form }) => {
            assert!(bytes.len() >= MARK_BYTES);
            assert!(version != VERSION || form != PAIRS || bytes.len() > MARK_BYTES);
        }
        Err(MarkError::Damaged) => assert_ne!(bytes, encode()),
    }
}
