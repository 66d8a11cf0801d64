//! The commands of `docs/mem.md` do what the page describes.

use crate::common::TempDir;
use crate::page_common;
use std::path::Path;
use std::process::Command;

#[test]
fn the_commands_of_the_page_work() {
    let programs = Path::new(env!("CARGO_BIN_EXE_keel")).parent().unwrap();
    let library = [programs.to_owned(), programs.join("deps")]
        .map(|folder| folder.join("libkeelmem.so"))
        .into_iter()
        .find(|library| library.exists());
    let Some(library) = library else {
        println!("skipped: libkeelmem.so is not built");
        return;
    };
    let dir = TempDir::new();
    let has = |thing: &str| match thing {
        "library" => true,
        "fuse" => base::mount::why_root_cannot_mount().is_none(),
        "static" => links_statically(&dir),
        other => panic!("{other}"),
    };
    // Represents the folder of the repository after the commands at the beginning of the page.
    let evenkeel = TempDir::new();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = evenkeel.file("target/release");
    std::fs::create_dir_all(&built).unwrap();
    for (there, here) in [
        (repository.join("crates").as_path(), evenkeel.file("crates")),
        (library.as_path(), built.join("libkeelmem.so")),
    ] {
        std::os::unix::fs::symlink(there.canonicalize().unwrap(), here).unwrap();
    }
    let variables = [
        ("KEEL_MEM_LIBRARY", library.as_path()),
        ("EVENKEEL", evenkeel.path()),
        // The environment of this test may name the library folder of this build; that of the page's readers does not.
        ("LD_LIBRARY_PATH", Path::new("")),
    ];
    let compared = page_common::run_page("mem.md", dir.path(), &variables, has);
    assert!(compared >= 5);
}

fn links_statically(dir: &TempDir) -> bool {
    let source = dir.file("try.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let built = Command::new("cc")
        .args(["-static", "-o"])
        .arg(dir.file("try"))
        .arg(&source)
        .output();
    built.is_ok_and(|built| built.status.success())
}
