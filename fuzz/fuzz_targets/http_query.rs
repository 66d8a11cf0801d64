#![cfg_attr(fuzzing, no_main)]

mod http {
    pub(crate) use egress::http::query;
}
#[path = "../src/http.rs"]
mod entry;

fuzz::fuzz_target!(entry::http_query);
