//! The committed corpora of the fuzz targets, replayed on the stable toolchain.

#[path = "../../../fuzz/src/intake.rs"]
mod entries;

#[path = "../../../fuzz/src/modbus.rs"]
mod modbus;

#[path = "../../../fuzz/src/sparkplug.rs"]
mod sparkplug;

#[path = "../../../fuzz/src/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn line_protocol() {
    replay("line_protocol", entries::line_protocol);
}

#[test]
fn mqtt_payload() {
    replay("mqtt_payload", entries::mqtt_payload);
}

#[test]
fn mqtt_packet() {
    replay("mqtt_packet", entries::mqtt_packet);
}

#[test]
fn modbus_answer() {
    replay("modbus_answer", modbus::modbus_answer);
}

#[test]
fn sparkplug_messages() {
    replay("sparkplug", sparkplug::sparkplug);
}
