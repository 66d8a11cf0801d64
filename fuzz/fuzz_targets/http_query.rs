#![no_main]

mod http {
    pub(crate) use egress::http::query;
}
#[path = "../src/http.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|data: &[u8]| entry::http_query(data));
