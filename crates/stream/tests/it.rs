//! The integration tests of `stream`, as one program: each file beside this one is a module of it.

mod cache_corpus;
mod cache_golden;
mod common;
mod device;
mod device_groups;
mod device_plan;
mod device_start;
mod device_support;
mod end_to_end;
mod fuzz_corpus;
mod golden;
mod irregular;
mod link;
mod link_support;
mod long_files;
mod manifest;
mod publish;
#[path = "../../../fuzz/src/replay.rs"]
mod replay;
mod server;
mod server_arms;
mod server_certificates;
mod server_newest;
mod server_saving;
mod server_support;
mod server_together;
mod store;
mod wire_codec;
mod wire_golden;
