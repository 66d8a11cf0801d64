//! The committed corpora of the fuzz targets of streaming, replayed on the stable toolchain.

#[path = "../../../fuzz/src/stream/mod.rs"]
mod entries;

#[path = "../../../fuzz/src/stream_actions.rs"]
mod actions;

#[path = "../../../fuzz/src/stream_manifest.rs"]
mod manifest;

use crate::replay::replay;

#[test]
fn stream_manifest() {
    replay("stream_manifest", manifest::stream_manifest);
}

#[test]
fn stream_request() {
    replay("stream_request", entries::stream_request);
}

#[test]
fn stream_answer() {
    replay("stream_answer", entries::stream_answer);
}

#[test]
fn stream_actions() {
    replay("stream_actions", actions::stream_actions);
}
