//! Cuts the power at the writes of a history: synced data is there, and nothing is ever wrong.

use super::*;
use crate::device::cache::Tail;

/// What a history had made durable before the power cut.
#[derive(Default)]
struct Promised {
    blocks: Vec<(BlockHash, Arc<[u8]>)>,
    version: u64,
}

fn history(storage: &MemoryStorage) -> Promised {
    let mut promised = Promised::default();
    for session in 0..4_u64 {
        let Ok(cache) = BlockCache::open(Box::new(storage.clone()), &OPTIONS) else {
            return promised;
        };
        for round in 0..3 {
            let first = session * 1000 + round * 100;
            let blocks: Vec<_> = (first..first + 40).map(block).collect();
            put_all(&cache, &blocks);
            if cache.failure().is_some() {
                return promised;
            }
            promised.blocks.extend(blocks);
            let version = session * 10 + round + 1;
            // Long enough to be written in pieces, and often enough that notes are rewritten.
            let note = format!("{version} ").repeat(6000);
            if cache.set_note("manifest", note.as_bytes()).is_err() {
                return promised;
            }
            promised.version = version;
        }
    }
    promised
}

#[test]
fn a_power_cut_at_any_write_loses_nothing_synced() {
    let whole = MemoryStorage::default();
    history(&whole);
    let changes = whole.changes();
    assert!(changes > 60);
    let tails = [
        Tail::Begins(0),
        Tail::Begins(100),
        Tail::Begins(255),
        Tail::ZerosFrom(0),
        Tail::ZerosFrom(77),
    ];
    // Cut at every third write; this covers all kinds of writes and tails.
    for cut in (0..changes).step_by(3) {
        let tail = tails[cut as usize % tails.len()];
        let storage = MemoryStorage::default();
        storage.cut_after(cut, tail);
        let promised = history(&storage);
        let storage = storage.restarted();
        let cache = open(&storage);
        let found = there(&cache, &promised.blocks);
        assert_eq!(found, promised.blocks.len(), "{cut} {tail:?}");
        let note = cache.note("manifest").unwrap_or_default();
        let text = String::from_utf8(note).unwrap();
        let version: u64 = text.split(' ').next().unwrap().parse().unwrap_or(0);
        assert!(version >= promised.version, "{cut} {tail:?}");
        let same = text.is_empty() || text == format!("{version} ").repeat(6000);
        assert!(same, "{cut} {tail:?}");
        // The cache continues to work.
        let more: Vec<_> = (9000..9040).map(block).collect();
        put_all(&cache, &more);
        cache.set_note("manifest", b"100 ").unwrap();
        drop(cache);
        let cache = open(&storage);
        assert_eq!(there(&cache, &more), 40);
        assert_eq!(there(&cache, &promised.blocks), promised.blocks.len());
        assert_eq!(cache.note("manifest").unwrap(), b"100 ");
    }
}
