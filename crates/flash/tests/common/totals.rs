//! Checks that the statistics of a store agree with each other and with the reference model.

use std::collections::BTreeMap;

use base::block::BlockDevice;
use flash::{PAYLOAD_BYTES, Store};

use super::operation::Content;

/// Maximum number of blocks that a file may own beyond those that hold its content. They are two lanes and a reserve of
/// at most 64 blocks each, and a run of which a cut has left the beginning.
pub const BLOCKS_OWNED_BEYOND_MAX: u64 = 4 * 64;

/// Blocks that the store may reserve for the next list of free pieces.
const BLOCKS_KEPT: u64 = 4;

/// Checks names, contents, lengths and the count of every block.
pub fn assert_agrees<D: BlockDevice, C: Content>(
    store: &mut Store<D>,
    model: &BTreeMap<String, C>,
    context: &str,
) {
    let found = super::read_all(store).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(
        found.len() == model.len()
            && found
                .iter()
                .zip(model)
                .all(|((one, left), (other, right))| one == other && left == right.bytes()),
        "{context}: content differs"
    );
    assert_counts(store, model, context);
}

/// As [`assert_agrees`], without reading the files by name.
pub fn assert_counts<D: BlockDevice, C: Content>(
    store: &mut Store<D>,
    model: &BTreeMap<String, C>,
    context: &str,
) {
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{context}: {:?}", report.problems);
    let statistics = store.statistics();
    assert_eq!(statistics.files, model.len() as u64, "{context}: files");
    assert_eq!(report.files, statistics.files, "{context}: files found");
    assert_eq!(
        report.blocks_free, statistics.blocks_free,
        "{context}: free blocks"
    );
    let counted = report.blocks_free + report.blocks_owned;
    assert!(
        counted == statistics.blocks_total || counted == statistics.blocks_total + BLOCKS_KEPT,
        "{context}: {counted} blocks of {} are counted",
        statistics.blocks_total
    );
    let mut listed = BTreeMap::new();
    store
        .list(&mut |name, stat| {
            listed.insert(name.to_owned(), *stat);
        })
        .unwrap();
    let mut owned = 0;
    for (name, content) in model {
        let stat = store.stat(name).unwrap();
        assert_eq!(
            listed.get(name),
            Some(&stat),
            "{context}: {name} in the list"
        );
        let length = content.bytes().len() as u64;
        assert_eq!(stat.length_bytes, length, "{context}: {name}");
        let blocks = length.div_ceil(PAYLOAD_BYTES as u64);
        assert_eq!(stat.blocks, blocks, "{context}: {name}");
        assert!(
            stat.blocks_owned >= blocks && stat.blocks_owned <= blocks + BLOCKS_OWNED_BEYOND_MAX,
            "{context}: {name} owns {} blocks for {blocks}",
            stat.blocks_owned
        );
        owned += stat.blocks_owned;
    }
    assert_eq!(listed.len(), model.len(), "{context}: names listed");
    assert_eq!(owned, report.blocks_owned, "{context}: blocks owned");
}

/// Deletes everything; all blocks must then be free again.
pub fn assert_nothing_leaked<D: BlockDevice, C: Content>(
    store: &mut Store<D>,
    model: &BTreeMap<String, C>,
    context: &str,
) {
    for name in model.keys() {
        store
            .delete(name)
            .unwrap_or_else(|error| panic!("{context}: {name}: {error}"));
    }
    let statistics = store.statistics();
    assert!(
        statistics.blocks_free + BLOCKS_KEPT >= statistics.blocks_total,
        "{context}: {} of {} blocks are free again",
        statistics.blocks_free,
        statistics.blocks_total
    );
    assert_counts(store, &BTreeMap::<String, Vec<u8>>::new(), context);
}
