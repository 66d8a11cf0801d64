//! The committed corpora of the fuzz targets of the store, replayed on the stable toolchain.

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
