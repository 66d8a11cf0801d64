//! Tests the extension in Debian's `sqlite3`, as a user has it, and the commands of `docs/sqlite.md`, exactly as
//! printed.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::common::{Folder, device, format};
use flash::{OpenOptions, Store};

const IMAGE_BYTES: u64 = 8 << 20;

/// Returns the library that was built together with this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("has a path");
    // The library in the folder above may be older: only `cargo build` updates it.
    let library = test.with_file_name("libkeelsqlite.so");
    assert!(library.exists(), "{} was not built", library.display());
    library
}

fn has_shell() -> bool {
    let found = Command::new("sqlite3")
        .arg("-version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: sqlite3 is not installed (Debian: sqlite3)");
    }
    found
}

fn start(commands: &str) -> Child {
    let mut child = Command::new("sqlite3")
        .arg("-batch")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts sqlite3");
    let load = format!(".load {}\n", library().with_extension("").display());
    let input = child.stdin.as_mut().expect("is piped");
    input.write_all(load.as_bytes()).expect("takes commands");
    for line in commands.lines() {
        // The shell accepts dot-commands only at the start of a line.
        writeln!(input, "{}", line.trim_start()).expect("takes commands");
    }
    input.flush().expect("takes commands");
    child
}

/// Waits until the shell has run its commands so far.
fn wait_until_ready(child: &mut Child) {
    let input = child.stdin.as_mut().expect("is piped");
    input
        .write_all(b".shell echo ready\n")
        .expect("takes commands");
    input.flush().expect("takes commands");
    let output = child.stdout.as_mut().expect("is piped");
    let mut printed = Vec::new();
    while !printed.ends_with(b"ready\n") {
        let mut byte = [0];
        output
            .read_exact(&mut byte)
            .expect("the shell has not ended");
        printed.push(byte[0]);
    }
}

/// Runs the shell's commands. Returns its standard output and its error output.
fn shell(commands: &str) -> (String, String) {
    let mut child = start(commands);
    drop(child.stdin.take());
    let Output { stdout, stderr, .. } = child.wait_with_output().expect("ends");
    (
        String::from_utf8(stdout).expect("prints text"),
        String::from_utf8(stderr).expect("prints text"),
    )
}

fn open(image: &Path) -> String {
    format!(".open 'file:plant.db?vfs=keel&image={}'\n", image.display())
}

#[test]
fn a_database_lives_in_an_image() {
    if !has_shell() {
        return;
    }
    let folder = Folder::new("lives");
    let image = folder.path("plant.img");
    format(&image, IMAGE_BYTES, 1);
    let (printed, complained) = shell(&format!(
        "{}CREATE TABLE reading (at INTEGER, value REAL);
         INSERT INTO reading VALUES (1, 2.5), (2, 3.5);
         SELECT count(*), sum(value) FROM reading;
         .vfsname\n",
        open(&image)
    ));
    assert_eq!(
        (printed.as_str(), complained.as_str()),
        ("2|6.0\nkeel\n", "")
    );
    // Another process, another journal mode, two databases, freed space.
    let (printed, complained) = shell(&format!(
        "{}SELECT sum(value) FROM reading;
         PRAGMA journal_mode = wal;
         INSERT INTO reading SELECT value, value FROM generate_series(1, 2000);
         ATTACH 'file:other.db?vfs=keel&image={}' AS other;
         CREATE TABLE other.copy AS SELECT * FROM reading;
         SELECT count(*) FROM other.copy;
         DELETE FROM reading WHERE at > 2;
         VACUUM;
         PRAGMA integrity_check;
         PRAGMA wal_checkpoint(TRUNCATE);\n",
        open(&image),
        image.display()
    ));
    assert_eq!(
        (printed.as_str(), complained.as_str()),
        ("6.0\nwal\n2002\nok\n0|0|0\n", "")
    );
    let (printed, complained) = shell(&format!(
        "{}PRAGMA journal_mode; SELECT count(*) FROM reading; PRAGMA journal_mode = delete; PRAGMA integrity_check;\n",
        open(&image)
    ));
    assert_eq!(
        (printed.as_str(), complained.as_str()),
        ("wal\n4\ndelete\nok\n", "")
    );
    // Copy out of the store and into it, and use journals kept in memory or none at all.
    let outside = folder.path("outside.db");
    let (printed, complained) = shell(&format!(
        "{}.backup {outside}
         INSERT INTO reading VALUES (5, 5);
         .restore {outside}
         SELECT count(*) FROM reading;
         VACUUM INTO 'file:other2.db?vfs=keel&image={image}';
         ATTACH 'file:other2.db?vfs=keel&image={image}' AS other2;
         SELECT count(*) FROM other2.reading;
         PRAGMA main.journal_mode = memory;
         UPDATE reading SET value = 0;
         PRAGMA main.journal_mode = off;
         UPDATE reading SET value = 1;
         PRAGMA main.journal_mode = delete;
         SELECT sum(value) FROM reading;
         PRAGMA integrity_check;\n",
        open(&image),
        outside = outside.display(),
        image = image.display()
    ));
    assert_eq!(
        (printed.as_str(), complained.as_str()),
        ("4\n4\nmemory\noff\ndelete\n4.0\nok\n", "")
    );
    // The store holds three files and is intact.
    let mut store = Store::open(device(&image, None), &OpenOptions::default()).expect("opens");
    let mut names = Vec::new();
    store
        .list(&mut |name, _| names.push(name.to_owned()))
        .expect("lists");
    names.sort();
    assert_eq!(names, ["other.db", "other2.db", "plant.db"]);
    assert!(store.check().expect("checks").is_clean());
}

#[test]
fn a_failed_opening_gives_its_reason() {
    if !has_shell() {
        return;
    }
    let folder = Folder::new("why");
    let image = folder.path("plant.img");
    format(&image, IMAGE_BYTES, 2);
    let text = folder.path("notes.txt");
    std::fs::write(&text, "no store at all\n".repeat(40_000)).expect("writes");
    let missing = folder.path("missing.img");
    for (command, shown, reason) in [
        (
            ".open 'file:plant.db?vfs=keel'\n".to_owned(),
            "unable to open database file",
            "plant.db: no image is named; open 'file:plant.db?vfs=keel&image=/path/to/image'"
                .to_owned(),
        ),
        (
            open(&missing),
            "unable to open database file",
            format!("image {}: No such file or directory", missing.display()),
        ),
        (
            open(&text),
            "file is not a database",
            format!("image {}: not an Evenkeel flash store", text.display()),
        ),
        (
            format!(
                ".open 'file:dir/plant.db?vfs=keel&image={}'\n",
                image.display()
            ),
            "unable to open database file",
            "dir/plant.db: names in a store are flat".to_owned(),
        ),
    ] {
        let (printed, complained) = shell(&format!("{command}SELECT keel_last_error();\n"));
        assert!(complained.contains(shown), "{command}{complained}");
        assert!(printed.starts_with(&reason), "{command}{printed}");
    }
    let (printed, _) = shell("SELECT keel_last_error() IS NULL;\n");
    assert_eq!(printed, "1\n");
}

#[test]
fn a_second_process_is_refused_until_the_first_has_ended() {
    if !has_shell() {
        return;
    }
    let folder = Folder::new("second");
    let image = folder.path("plant.img");
    format(&image, IMAGE_BYTES, 3);
    let mut first = start(&format!(
        "{}CREATE TABLE t (a); INSERT INTO t VALUES (7);\n",
        open(&image)
    ));
    wait_until_ready(&mut first);
    let (printed, complained) = shell(&format!("{}SELECT keel_last_error();\n", open(&image)));
    // End the first process before anything can fail.
    drop(first.stdin.take());
    let ended = first.wait_with_output().expect("ends");
    assert!(ended.status.success());
    assert!(complained.contains("database is locked"), "{complained}");
    assert!(
        printed.starts_with(&format!(
            "image {}: in use by another process;",
            image.display()
        )),
        "{printed}"
    );
    let (printed, _) = shell(&format!("{}SELECT a FROM t;\n", open(&image)));
    assert_eq!(printed, "7\n");
}

/// Kills the shell after a commit, and in the middle of a transaction: committed data stays, uncommitted data is gone.
/// A kill is not a power cut, so this also holds without any sync.
#[test]
fn a_killed_shell_loses_nothing_that_it_committed() {
    if !has_shell() {
        return;
    }
    let folder = Folder::new("killed");
    let image = folder.path("plant.img");
    format(&image, IMAGE_BYTES, 4);
    let mut rows = 0;
    for journal in ["delete", "truncate", "persist", "wal"] {
        for unfinished in [
            "",
            "PRAGMA cache_spill = 5; PRAGMA cache_size = 5;
             BEGIN;
             INSERT INTO t SELECT 'uncommitted', randomblob(500) FROM generate_series(1, 500);",
        ] {
            let mut child = start(&format!(
                "{}PRAGMA journal_mode = {journal};
                 PRAGMA synchronous = OFF;
                 CREATE TABLE IF NOT EXISTS t (a, b);
                 INSERT INTO t SELECT 'committed', value FROM generate_series(1, 500);
                 INSERT INTO t VALUES ('last', 1);
                 {unfinished}\n",
                open(&image)
            ));
            wait_until_ready(&mut child);
            child.kill().expect("is killed");
            child.wait().expect("has ended");
            rows += 501;
            let (printed, complained) = shell(&format!(
                "{}PRAGMA integrity_check; SELECT count(*), sum(a = 'uncommitted') FROM t;\n",
                open(&image)
            ));
            assert_eq!(
                (printed, complained.as_str()),
                (format!("ok\n{rows}|0\n"), ""),
                "{journal}, {unfinished}"
            );
        }
    }
}

/// Returns the blocks of the page, in order: commands of a shell, or the output of the block before.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => open = Some((language.to_owned(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some((_, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// Compiles and runs a program from the page's C code; it must leave an open database.
fn compile_and_run(folder: &Folder, body: &str) {
    let source = folder.path("open.c");
    let program = format!(
        "#include <sqlite3.h>\nint main(void) {{\n{body}\
         return sqlite3_exec(db, \"SELECT * FROM reading\", 0, 0, 0) != SQLITE_OK;\n}}\n"
    );
    std::fs::write(&source, program).expect("writes");
    let compiled = Command::new("cc")
        .args(["-o", "open", "open.c", "-lsqlite3"])
        .current_dir(&folder.0)
        .output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        println!("the page's C is not compiled here: no C compiler, or no libsqlite3-dev");
        return;
    }
    let status = Command::new("./open")
        .current_dir(&folder.0)
        .status()
        .expect("starts");
    assert!(status.success(), "the page's C does not open the database");
}

#[test]
fn the_commands_print_the_output_on_the_page() {
    if !has_shell() {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("lies in crates");
    let page = std::fs::read_to_string(root.join("docs/sqlite.md")).expect("the page is there");
    let folder = Folder::new("page");
    // The page's commands to build the library and make the image are slow or need another program, so both are
    // prepared here.
    let library_folder = folder.path("target/release");
    std::fs::create_dir_all(&library_folder).expect("creates a folder");
    std::os::unix::fs::symlink(library(), library_folder.join("libkeelsqlite.so")).expect("links");
    let image = folder.path("plant.img");
    format(&image, IMAGE_BYTES, 5);
    let mut ran = 0;
    let mut printed = String::new();
    for (language, text) in blocks(&page) {
        match language.as_str() {
            "sh" => {
                let commands: Vec<_> = text
                    .lines()
                    .filter(|line| {
                        !line.starts_with("cargo build ") && !line.starts_with("keel flash format ")
                    })
                    .collect();
                let output = Command::new("bash")
                    .args(["-ec", &commands.join("\n")])
                    .current_dir(&folder.0)
                    .stdin(Stdio::null())
                    .output()
                    .expect("starts bash");
                printed = String::from_utf8_lossy(&output.stdout).into_owned();
                printed += &String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{text}\n{printed}");
                ran += commands.len();
            }
            "text" => assert_eq!(printed, text, "the page shows something else"),
            "c" => compile_and_run(&folder, &text),
            _ => {}
        }
    }
    assert!(ran > 10, "the page has only {ran} lines of commands");
}
