//! Several pieces for one file: their effect on its bytes, and the blocks that they change.

use std::collections::BTreeSet;

use base::sim::Random;
use flash::PAYLOAD_BYTES;

use super::operation::{content, write_place};

/// Bytes and their offsets.
pub type Pieces = Vec<(u64, Vec<u8>)>;

/// Maximum number of pieces in one call.
const PIECES_MAX: usize = 5;

/// Passes the pieces to `call` in the form that the store takes. Does not allocate, because it also runs calls that
/// must not allocate.
pub fn borrowed<R>(pieces: &[(u64, Vec<u8>)], call: impl FnOnce(&[(u64, &[u8])]) -> R) -> R {
    assert!(pieces.len() <= PIECES_MAX, "{} pieces", pieces.len());
    let mut borrowed = [(0, &[][..]); PIECES_MAX];
    for (place, (offset, data)) in borrowed.iter_mut().zip(pieces) {
        *place = (*offset, data);
    }
    call(&borrowed[..pieces.len()])
}

/// Writes one piece after the other.
pub fn put(pieces: &[(u64, Vec<u8>)], content: &mut Vec<u8>) {
    for (offset, data) in pieces.iter().filter(|(_, data)| !data.is_empty()) {
        let (start, end) = (*offset as usize, *offset as usize + data.len());
        if content.len() < end {
            content.resize(end, 0);
        }
        content[start..end].copy_from_slice(data);
    }
}

/// Returns the blocks of a file holding `old` that some piece changes within it, in ascending order. A block that a
/// later piece changes back is included.
pub fn changed_blocks(old: &[u8], pieces: &[(u64, Vec<u8>)]) -> Vec<usize> {
    let mut now = old.to_vec();
    let mut blocks = BTreeSet::new();
    for (offset, data) in pieces {
        let within = (*offset as usize..old.len()).zip(data);
        for (place, byte) in within {
            if now[place] != *byte {
                now[place] = *byte;
                blocks.insert(place / PAYLOAD_BYTES);
            }
        }
    }
    blocks.into_iter().collect()
}

/// Returns pieces for a file holding `old`: mostly changes of a few bytes within the file, or none; some new data, some
/// behind its end.
pub fn random_pieces(random: &mut Random, old: &[u8], long_max: usize) -> Pieces {
    let one = |random: &mut Random| {
        if random.below(4) == 0 {
            let (offset, count) = write_place(random, old.len(), long_max / 2);
            return (offset, content(random, count.max(1)));
        }
        let offset = random.index(old.len() + 1);
        let count = [1, 28, 512, 4096, 9000][random.index(5)];
        let mut data = vec![0; count];
        let known = &old[offset..old.len().min(offset + count)];
        data[..known.len()].copy_from_slice(known);
        for _ in 0..random.below(3) {
            let place = random.index(count);
            data[place] ^= 1 << random.index(8);
        }
        (offset as u64, data)
    };
    let count = random.index(PIECES_MAX) + 1;
    (0..count).map(|_| one(random)).collect()
}
