//! The committed header is cbindgen's output for the source, and compiles as older C and as C++. It declares every
//! function that the library exports, and no other.
//!
//! After a change of the interface, `KEEL_WRITE_HEADER=1 cargo test -p libkeel-c --test header` regenerates it.

#[path = "../../c-interface/tests/common/header.rs"]
mod shared;

use shared::Header;

const HEADER: Header = Header {
    name: "keel.h",
    files: &[
        "failure.rs",
        "interface/text.rs",
        "interface/node.rs",
        "interface/key.rs",
        "interface/ticket.rs",
        "interface/task.rs",
    ],
    prefix: "keel_",
    library: "libkeel.so",
    write: "KEEL_WRITE_HEADER",
    call: "keel_version()",
};

#[test]
fn the_committed_header_is_that_of_the_source() {
    HEADER.check_source();
}

#[test]
fn every_exported_function_is_in_the_header() {
    HEADER.check_functions();
}

#[test]
fn the_library_exports_only_the_interface() {
    HEADER.check_exports();
}

#[test]
fn the_header_is_good_for_older_c_and_for_cpp() {
    HEADER.check_compilers();
}
