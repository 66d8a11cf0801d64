//! The committed corpora of the fuzz targets of log, checkpoint and index, and of the slot table, on stable Rust.

#[path = "../../../fuzz/src/db_log.rs"]
mod entry;
#[path = "../../../fuzz/src/replay.rs"]
mod replay;
#[path = "../../../fuzz/src/db_table.rs"]
mod table;

#[test]
fn the_corpus_of_files_holds() {
    replay::replay("db_log", entry::db_log);
}

#[test]
fn the_corpus_of_tables_holds() {
    replay::replay("db_table", table::db_table);
}
