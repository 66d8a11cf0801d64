//! The committed corpora of the fuzz targets, on the stable toolchain.

#[path = "../../../fuzz/src/cluster_files.rs"]
mod files;
#[path = "../../../fuzz/src/cluster_ranks.rs"]
mod ranks;
#[path = "../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn the_corpus_of_files_holds() {
    replay::replay("cluster_files", files::cluster_files);
}

#[test]
fn the_corpus_of_ranks_holds() {
    replay::replay("cluster_ranks", ranks::cluster_ranks);
}
