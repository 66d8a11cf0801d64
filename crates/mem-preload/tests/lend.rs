//! Reading without a copy, from C.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Both, library};

/// Compiles a program and links it with the library, by its name only.
fn compiled(both: &Both, source: &str) -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = crate_folder.join(source);
    let program = both.plain.join(source.file_stem().unwrap());
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c11"])
        .arg("-D_POSIX_C_SOURCE=200809L")
        .arg("-I")
        .arg(crate_folder.join("include"))
        .arg(source)
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(library().parent().unwrap())
        .arg("-lkeelmem")
        .output()
        .expect("a C compiler");
    let text = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{text}");
    program
}

/// The output of a command, which must succeed without an error message.
fn printed(command: &mut Command) -> String {
    let ran = command.output().unwrap();
    let text = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && text.is_empty(), "{text}");
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn a_program_in_c_reads_a_file_where_it_lies() {
    let both = Both::new(64 << 20);
    // The program is linked with the preloaded library, by its name.
    let program = compiled(&both, "tests/lend.c");
    // The caller of this test may have set the path of this build's libraries; the program must run without it.
    let mut served = both.served(&program);
    assert_eq!(printed(served.env_remove("LD_LIBRARY_PATH")), "lent\n");
    // All lent ranges are returned.
    let attachment = mem::Attachment::open(both.region(), b"/keel", true).unwrap();
    attachment.sweep().unwrap();
    assert_eq!(attachment.region().inodes(), 1);
}

#[test]
fn a_program_linked_with_the_library_starts_without_keel_mem_run() {
    let both = Both::new(64 << 20);
    let program = compiled(&both, "examples/lend.c");
    let write = "printf 'abc' > /keel/file";
    printed(both.served("sh").args(["-c", write]));
    let started = |at: Option<&str>| {
        let mut command = Command::new(&program);
        command
            .env("LD_LIBRARY_PATH", library().parent().unwrap())
            .env("KEEL_MEM_REGION", both.region());
        match at {
            Some(at) => command.env("KEEL_MEM_AT", at),
            None => command.env_remove("KEEL_MEM_AT"),
        };
        command
    };
    let sum = "3 bytes, sum 294\n";
    assert_eq!(printed(started(None).arg("/keel/file")), sum);
    assert_eq!(printed(started(Some("/there")).arg("/there/file")), sum);
    // A file of the kernel cannot be lent.
    let own = program.display().to_string();
    let refused = started(None).arg(&own).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(text.contains("Bad file descriptor"), "{text}");
}
