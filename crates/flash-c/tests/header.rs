//! The committed header is cbindgen's output for the source, and compiles as older C and as C++. It declares every
//! function that the library exports, and no other.
//!
//! After a change of the interface, `KEELFLASH_WRITE_HEADER=1 cargo test -p flash-c --test it header::` writes it
//! again.

#[path = "../../c-interface/tests/common/header.rs"]
mod shared;

use shared::Header;

const HEADER: Header = Header {
    name: "keelflash.h",
    files: &[
        "failure.rs",
        "interface/text.rs",
        "interface/store.rs",
        "interface/upkeep.rs",
        "interface/file.rs",
    ],
    prefix: "keelflash_",
    library: "libkeelflash.so",
    write: "KEELFLASH_WRITE_HEADER",
    call: "keelflash_format_version()",
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
