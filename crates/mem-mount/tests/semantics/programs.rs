//! Whole programs on the view.

use std::path::Path;
use std::process::Command;

use crate::Case;
use crate::support::Mount;

pub const CASES: &[Case] = &[
    ("plain", plain),
    ("static", static_program),
    ("database", database),
    ("repository", repository),
];

fn is_installed(program: &str) -> bool {
    let found = Command::new("sh")
        .arg("-c")
        .arg(format!("command -v {program}"))
        .output()
        .unwrap();
    if !found.status.success() {
        println!("skipped: {program} is not installed");
    }
    found.status.success()
}

/// Runs a script in a directory. Returns its output.
fn shell(directory: &Path, script: &str) -> String {
    let done = Command::new("sh")
        .arg("-ec")
        .arg(script)
        .current_dir(directory)
        .env("HOME", directory)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{script}: {errors}");
    String::from_utf8(done.stdout).unwrap()
}

fn plain() {
    let mount = Mount::new();
    let directory = mount.place.directory();
    let script = "
        seq 1000 > numbers
        mkdir folder && cp -p numbers folder/copy && mv folder/copy folder/moved
        sed -i s/500/five-hundred/ folder/moved
        dd if=numbers of=copied bs=100 conv=notrunc 2>/dev/null
        ln -s folder link && tar -cf all.tar folder link numbers && mkdir out && tar -xf all.tar -C out
        find out -type f | sort | xargs cat | wc -l
        grep -c five out/folder/moved; head -n 3 numbers | tail -n 1; sort -rn numbers | head -n 1
        cmp numbers copied && gzip -k numbers && gzip -cd numbers.gz | cmp - numbers && rm -r out";
    assert_eq!(shell(&directory, script), "2000\n1\n3\n1000\n");
}

fn static_program() {
    let mount = Mount::new();
    let directory = mount.place.directory();
    let source = directory.join("program.c");
    let text = "#include <stdio.h>\nint main(void) { FILE *f = fopen(\"file\", \"a\"); \
                return !f || fputs(\"static\\n\", f) < 0 || fclose(f); }\n";
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc")
        .args(["-static", "-o", "program", "program.c"])
        .current_dir(&directory)
        .output();
    if !built.is_ok_and(|built| built.status.success()) {
        println!("skipped: static: no C compiler that links statically");
        return;
    }
    assert_eq!(
        shell(&directory, "./program && ./program && cat file"),
        "static\nstatic\n"
    );
    assert_eq!(mount.content_direct("file"), b"static\nstatic\n");
}

fn database() {
    if !is_installed("sqlite3") {
        return;
    }
    let mount = Mount::new();
    for mode in ["delete", "wal"] {
        // The log's index is a memory map that several programs share.
        let file = std::fs::File::open(mount.put("mapped", b"x")).unwrap();
        if mode == "wal" && !crate::data::can_map(&file) {
            continue;
        }
        let script = format!(
            "sqlite3 {mode}.db 'pragma journal_mode={mode}; create table t(a);'
            for n in 1 2 3 4; do sqlite3 -cmd '.timeout 30000' {mode}.db 'insert into t select value from \
            generate_series(1,500);' & done; wait
            sqlite3 {mode}.db 'select count(*), sum(a) from t; pragma integrity_check;'"
        );
        let said = shell(&mount.place.directory(), &script);
        assert_eq!(said, format!("{mode}\n2000|501000\nok\n"));
    }
}

fn repository() {
    if !is_installed("git") {
        return;
    }
    let mount = Mount::new();
    let script = "
        git init -q here && cd here && git config user.email a@b && git config user.name a
        seq 100 > file && git add file && git commit -qm one && seq 200 > file && git commit -qam two
        git gc -q && git fsck && git log --format=%s && git checkout -q HEAD~1 && wc -l < file";
    assert_eq!(shell(&mount.place.directory(), script), "two\none\n100\n");
}
