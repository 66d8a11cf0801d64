//! Replays the committed corpora of the store's fuzz targets on the stable toolchain.

#[path = "../../../fuzz/src/flash/mod.rs"]
pub(crate) mod entries;

#[path = "../../../fuzz/src/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn the_corpus_of_flash_image_holds() {
    replay("flash_image", entries::flash_image);
}

#[test]
fn the_corpus_of_flash_raw_holds() {
    replay("flash_raw", entries::flash_raw);
}
