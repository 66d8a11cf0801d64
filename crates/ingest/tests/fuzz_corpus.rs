//! The committed corpora of the fuzz targets, replayed on the stable toolchain.

#[path = "../../../fuzz/src/intake.rs"]
mod entries;

#[path = "../../../fuzz/src/intake_store.rs"]
mod intake_store;

#[path = "../../../fuzz/src/modbus.rs"]
mod modbus;

#[path = "../../../fuzz/src/sparkplug.rs"]
mod sparkplug;

#[path = "../../../fuzz/src/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn the_corpus_of_line_protocol_holds() {
    replay("line_protocol", entries::line_protocol);
}

#[test]
fn the_corpus_of_mqtt_payload_holds() {
    replay("mqtt_payload", entries::mqtt_payload);
}

#[test]
fn the_corpus_of_mqtt_packet_holds() {
    replay("mqtt_packet", entries::mqtt_packet);
}

#[test]
fn the_corpus_of_modbus_answer_holds() {
    replay("modbus_answer", modbus::modbus_answer);
}

#[test]
fn the_corpus_of_sparkplug_holds() {
    replay("sparkplug", sparkplug::sparkplug);
}
