//! The integration tests of `ingest`, as one program: each file in this directory is a module of it.

mod fuzz_corpus;
mod intake;
mod intake_keys;
mod intake_node;
mod intake_support;
mod line_body;
mod line_cases;
mod line_grammar;
mod line_listen;
mod members;
mod modbus;
mod modbus_rtu;
mod modbus_support;
mod mqtt_broker;
mod mqtt_packet;
mod mqtt_scripted;
mod mqtt_support;
mod mqtt_tls;
mod mqtt_unanswered;
mod pattern;
mod read_back;
mod series;
mod sparkplug;
