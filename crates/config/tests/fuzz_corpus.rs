//! The committed corpora of the fuzz targets, replayed on the stable toolchain.

#[path = "../../../fuzz/src/configuration.rs"]
mod configuration;

#[path = "../../../fuzz/src/qos_files.rs"]
mod qos_files;

#[path = "../../../fuzz/src/replay.rs"]
mod replay;

#[test]
fn the_corpus_of_configuration_holds() {
    replay::replay("configuration", configuration::configuration);
}

#[test]
fn the_corpus_of_qos_files_holds() {
    replay::replay("qos_files", qos_files::qos_files);
}
