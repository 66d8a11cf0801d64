//! Replays the committed corpora of the store's fuzz targets on the stable toolchain.

#[path = "../../../fuzz/src/flash/mod.rs"]
pub(crate) mod entries;

#[path = "../../../fuzz/src/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn flash_image() {
    replay("flash_image", entries::flash_image);
}

#[test]
fn flash_raw() {
    replay("flash_raw", entries::flash_raw);
}
