//! Reading without a copy, from C.

mod support;

use std::path::Path;
use std::process::Command;

use support::{Both, library};

#[test]
fn a_program_in_c_reads_a_file_where_it_lies() {
    let both = Both::new(64 << 20);
    let folder = library().parent().unwrap().to_owned();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = both.plain.join("lend");
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c11"])
        .arg("-D_POSIX_C_SOURCE=200809L")
        .arg("-I")
        .arg(tests.join("include"))
        .arg(tests.join("tests/lend.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&folder)
        .args(["-lkeelmem", "-Wl,-rpath"])
        .arg(format!("-Wl,{}", folder.display()))
        .output()
        .expect("a C compiler");
    let text = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{text}");
    let ran = both.served(&program).output().unwrap();
    let text = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && text.is_empty(), "{text}");
    assert_eq!(ran.stdout, b"lent\n");
    // All of it is given back.
    let attachment = mem::Attachment::open(both.region(), b"/keel", true).unwrap();
    attachment.sweep().unwrap();
    assert_eq!(attachment.region().inodes(), 1);
}
