//! The committed corpora of the fuzz targets, on the stable toolchain.

#[path = "../../../fuzz/src/egress.rs"]
mod entries;
#[path = "../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn the_corpus_of_cursors_holds() {
    replay::replay("upstream_cursor", entries::upstream_cursor);
}

#[test]
fn the_corpus_of_bodies_holds() {
    replay::replay("http_body", entries::http_body);
}

#[test]
fn the_corpus_of_answers_holds() {
    replay::replay("upstream_answer", entries::upstream_answer);
}
