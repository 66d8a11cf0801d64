//! Replays the committed corpora of the fuzz targets of the in-memory file system, on the stable toolchain.

#[path = "../../../fuzz/src/mem/mod.rs"]
mod entries;

#[path = "../../../fuzz/src/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn the_corpus_of_mem_region_holds() {
    replay("mem_region", entries::mem_region);
}

#[test]
fn the_corpus_of_mem_checkpoint_holds() {
    replay("mem_checkpoint", entries::mem_checkpoint);
}
