//! The body of the fuzz target `stream_cache`: opens a cache with the input as its files, and uses it. A test of
//! `stream` includes this file too and runs the committed corpus through it.

use std::sync::Arc;
use std::time::Duration;

use stream::BlockHash;
use stream::device::Cache;
use stream::device::cache::{BlockCache, CacheOptions, MemoryStorage};

const HEADER_BYTES: usize = 64;
const SALT: u64 = 7;

/// The first byte: the number of files (low two bits, plus one), and whether their checksums are made valid (bit 2).
/// The next byte for each file: bit 0 its kind. The rest is divided evenly.
pub fn stream_cache(data: &[u8]) {
    let Some((&first, mut rest)) = data.split_first() else {
        return;
    };
    let files = usize::from(first & 3) + 1;
    let storage = MemoryStorage::default();
    for number in 1..=files {
        let Some((&kind, after)) = rest.split_first() else {
            break;
        };
        let (bytes, after) = after.split_at(after.len() / (files + 1 - number));
        rest = after;
        let kind = kind & 1;
        let mut file = bytes.to_vec();
        if first & 4 != 0 {
            file = [&header(kind, number as u32)[..], bytes].concat();
            mend(&mut file);
        }
        let name = ["blocks", "notes"][usize::from(kind)];
        storage.damage(&format!("{name}-{number:010}"), |into| *into = file);
    }
    let options = CacheOptions {
        bytes_max: 4 << 20,
        ahead_bytes_max: 0,
        queue_bytes_max: 64 << 10,
        put_wait: Duration::from_secs(60),
    };
    // Twice: the second run opens what the first has left.
    for _ in 0..2 {
        let cache = BlockCache::open(Box::new(storage.clone()), &options)
            .unwrap_or_else(|error| panic!("{error}"));
        let named: Vec<BlockHash> = data
            .windows(32)
            .step_by(2)
            .take(200)
            .map(|hash| BlockHash(hash.try_into().unwrap_or_default()))
            .collect();
        cache.expect(&named);
        for hash in &named {
            for bytes in [1, 16, 4096] {
                if let Some(found) = cache.get(hash, bytes) {
                    assert_eq!(BlockHash::of(&found), *hash);
                }
            }
        }
        let block: Arc<[u8]> = [first; 4096].into();
        let hash = BlockHash::of(&block);
        cache.put(&hash, &block);
        cache.flush();
        cache
            .set_note("a", &[first, 1])
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(cache.note("a"), Some(vec![first, 1]));
        // A record that falsely claims to contain the block may have prevented the first attempt.
        if cache.get(&hash, 4096).is_none() {
            cache.put(&hash, &block);
            cache.flush();
            assert_eq!(cache.get(&hash, 4096), Some(block));
        }
        assert!(storage.used_bytes() <= options.bytes_max);
    }
}

fn header(kind: u8, number: u32) -> [u8; HEADER_BYTES] {
    let mut half = [0; HEADER_BYTES / 2];
    half[..8].copy_from_slice(b"KEELSTC\0");
    half[8] = 1;
    half[10] = kind + 1;
    half[12..16].copy_from_slice(&number.to_le_bytes());
    half[16..24].copy_from_slice(&SALT.to_le_bytes());
    let sum = crc32c::crc32c(&half[..28]);
    half[28..].copy_from_slice(&sum.to_le_bytes());
    let mut bytes = [0; HEADER_BYTES];
    bytes[..HEADER_BYTES / 2].copy_from_slice(&half);
    bytes[HEADER_BYTES / 2..].copy_from_slice(&half);
    bytes
}

fn sum(offset: usize, bytes: &[u8]) -> [u8; 4] {
    let place = crc32c::crc32c_append(
        crc32c::crc32c(&SALT.to_le_bytes()),
        &(offset as u64).to_le_bytes(),
    );
    crc32c::crc32c_append(place, bytes).to_le_bytes()
}

/// Sets valid checksums of everything that begins like a record or a trailer, from the end: an index contains the
/// checksum of a record.
fn mend(file: &mut [u8]) {
    for offset in (HEADER_BYTES..file.len().saturating_sub(15))
        .step_by(16)
        .rev()
    {
        let word = |file: &[u8], at: usize| {
            let four = file.get(offset + at..offset + at + 4);
            four.and_then(|four| four.try_into().ok())
                .map_or(0, u32::from_le_bytes) as usize
        };
        if file[offset..].starts_with(b"KSix") {
            let found = sum(offset, &file[offset..offset + 12]);
            file[offset + 12..offset + 16].copy_from_slice(&found);
        }
        if !file[offset..].starts_with(b"KSrc") || file.len() < offset + 32 {
            continue;
        }
        let table_end = (offset + 32).saturating_add(word(file, 8)).min(file.len());
        let payload_end = table_end.saturating_add(word(file, 12)).min(file.len());
        let payload = sum(offset, &file[table_end..payload_end]);
        let table = sum(offset, &file[offset + 32..table_end]);
        file[offset + 20..offset + 24].copy_from_slice(&payload);
        file[offset + 24..offset + 28].copy_from_slice(&table);
        let found = sum(offset, &file[offset..offset + 28]);
        file[offset + 28..offset + 32].copy_from_slice(&found);
    }
}
