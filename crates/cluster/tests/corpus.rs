//! The committed corpus of the fuzz target, on the stable toolchain.

#[path = "../../../fuzz/src/cluster_files.rs"]
mod entry;
#[path = "../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn the_corpus_of_files_holds() {
    replay::replay("cluster_files", entry::cluster_files);
}
