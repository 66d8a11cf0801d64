//! The committed corpora of the fuzz targets, replayed on the stable toolchain.

#[path = "../../../fuzz/src/egress.rs"]
mod entries;

#[path = "../../../fuzz/src/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn upstream_cursor() {
    replay("upstream_cursor", entries::upstream_cursor);
}

#[test]
fn upstream_answer() {
    replay("upstream_answer", entries::upstream_answer);
}
