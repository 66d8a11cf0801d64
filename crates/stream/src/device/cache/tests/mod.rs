//! Tests of the cache.

mod ahead;
mod basic;
mod damage;
mod directory;
mod full;
mod model;
mod notes;
mod power;

use std::sync::Arc;
use std::time::Duration;

use super::{BlockCache, CacheOptions, MemoryStorage};
use crate::block::{BLOCK_BYTES, BlockHash};
use crate::device::Cache;

/// Returns a block that compresses to about half; the same number gives the same block.
fn block(number: u64) -> (BlockHash, Arc<[u8]>) {
    sized_block(number, BLOCK_BYTES)
}

fn sized_block(number: u64, bytes: usize) -> (BlockHash, Arc<[u8]>) {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut content = Vec::with_capacity(bytes + 8);
    content.extend_from_slice(&number.to_le_bytes());
    while content.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
        content.extend_from_slice(&[number as u8; 8]);
    }
    content.truncate(bytes);
    (BlockHash::of(&content), content.into())
}

const OPTIONS: CacheOptions = CacheOptions {
    bytes_max: 4 << 20,
    ahead_bytes_max: 4 << 20,
    queue_bytes_max: 256 << 10,
    put_wait: Duration::from_secs(60),
};

fn open(storage: &MemoryStorage) -> BlockCache {
    BlockCache::open(Box::new(storage.clone()), &OPTIONS).unwrap()
}

/// Checks that each of these blocks is right or missing. Returns how many are there.
fn there(cache: &BlockCache, blocks: &[(BlockHash, Arc<[u8]>)]) -> usize {
    let is_there = |(hash, bytes): &&(BlockHash, Arc<[u8]>)| {
        let found = cache.get(hash, bytes.len());
        assert!(found.is_none() || found.as_ref() == Some(bytes));
        found.is_some()
    };
    blocks.iter().filter(is_there).count()
}

/// Puts blocks and waits until they are written.
fn put_all(cache: &BlockCache, blocks: &[(BlockHash, Arc<[u8]>)]) {
    for (hash, bytes) in blocks {
        cache.put(hash, bytes);
    }
    cache.flush();
}
