//! Tests ordinary programs in the mount.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Case;
use crate::support::Mount;

/// A user that is not root; the number need not belong to an existing user.
const OTHER_USER: u32 = 4321;

pub const CASES: &[Case] = &[
    ("plain", plain),
    ("preserving", preserving),
    ("archive-folders", archive_folders),
    ("database", database),
    ("repository", repository),
];

/// The result of a program.
struct Ended {
    status: Option<i32>,
    output: String,
    errors: String,
}

/// Runs a program in the mount; returns `None` if it is not installed.
fn run(mount: &Mount, program: &str, arguments: &[&str]) -> Option<Ended> {
    let ended = Command::new(program)
        .args(arguments)
        .current_dir(mount.directory())
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output();
    match ended {
        Ok(ended) => Some(Ended {
            status: ended.status.code(),
            output: String::from_utf8_lossy(&ended.stdout).into_owned(),
            errors: String::from_utf8_lossy(&ended.stderr).into_owned(),
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: {program} is not installed");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

fn works(mount: &Mount, program: &str, arguments: &[&str], output: &str) {
    if let Some(ended) = run(mount, program, arguments) {
        assert_eq!(ended.errors, "", "{program} {arguments:?}");
        assert_eq!(ended.status, Some(0), "{program} {arguments:?}");
        assert_eq!(ended.output, output, "{program} {arguments:?}");
    }
}

fn is_refused(ended: &Ended) -> bool {
    ended.errors.contains("Operation not permitted")
}

fn read(mount: &Mount, name: &str) -> String {
    std::fs::read_to_string(mount.path(name)).unwrap()
}

/// A file on another file system that only its owner may read.
struct Elsewhere(PathBuf);

impl Elsewhere {
    fn new(name: &str) -> Self {
        let name = format!("keel-programs-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let owner_only = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, owner_only).unwrap();
        Self(path)
    }

    /// Creates a folder with a file, and in it a folder with a file.
    fn folder(name: &str) -> Self {
        let name = format!("keel-programs-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("inner")).unwrap();
        std::fs::write(path.join("inner/deep"), "deep\n").unwrap();
        std::fs::write(path.join("top"), "top\n").unwrap();
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        // Some of the programs move it away.
        if std::fs::remove_file(&self.0).is_err() {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }
}

fn plain() {
    let mount = Mount::new();
    let source = Elsewhere::new("plain");
    let path = source.path().to_str().unwrap();
    works(&mount, "cp", &[path, "copy"], "");
    assert_eq!(read(&mount, "copy"), "one\ntwo\n");
    works(&mount, "sed", &["-i", "s/one/1/", "copy"], "");
    assert_eq!(read(&mount, "copy"), "1\ntwo\n");
    let arguments = ["if=copy", "of=written", "conv=fsync", "status=none"];
    works(&mount, "dd", &arguments, "");
    works(&mount, "mv", &["written", "moved"], "");
    works(&mount, "tar", &["-cf", "all.tar", "copy", "moved"], "");
    works(&mount, "rm", &["copy", "moved"], "");
    works(&mount, "tar", &["-xf", "all.tar"], "");
    assert_eq!(read(&mount, "copy"), "1\ntwo\n");
    assert_eq!(read(&mount, "moved"), "1\ntwo\n");
    assert_eq!(mount.names(), ["all.tar", "copy", "moved"]);
}

fn preserving() {
    let mount = Mount::new();
    let source = Elsewhere::new("preserving");
    let path = source.path().to_str().unwrap();
    for (program, option, name) in [("cp", "-p", "copied"), ("install", "-m644", "installed")] {
        if let Some(ended) = run(&mount, program, &[option, path, name]) {
            assert!(is_refused(&ended), "{program}: {}", ended.errors);
            assert_eq!(ended.status, Some(1), "{program}");
            assert_eq!(read(&mount, name), "one\ntwo\n");
        }
    }
    // Only root may own files of others, so only root may try to change the owner.
    if std::os::unix::fs::chown(source.path(), Some(OTHER_USER), None).is_ok() {
        let same_bits = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(source.path(), same_bits).unwrap();
        if let Some(ended) = run(&mount, "cp", &["-p", path, "of-other"]) {
            assert!(
                is_refused(&ended) && ended.errors.contains("ownership"),
                "cp: {}",
                ended.errors
            );
            assert_eq!(ended.status, Some(1));
            assert_eq!(read(&mount, "of-other"), "one\ntwo\n");
        }
        let owner_only = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(source.path(), owner_only).unwrap();
    } else {
        println!("skipped: only root has files of others");
    }
    if let Some(ended) = run(&mount, "mv", &[path, "moved"]) {
        assert!(is_refused(&ended), "mv: {}", ended.errors);
        assert_eq!(read(&mount, "moved"), "one\ntwo\n");
        assert!(!source.path().exists());
        let arguments = ["--preserve=timestamps", "moved", "dated"];
        works(&mount, "cp", &arguments, "");
    }
}

fn archive_folders() {
    let mount = Mount::new();
    let archive = Elsewhere::new("archive");
    let folder = Elsewhere::folder("archive-folder");
    let (path, from) = (
        archive.path().to_str().unwrap(),
        folder.path().to_str().unwrap(),
    );
    // Put the folder first, so that the following file shows that `tar` continues.
    let names = ["-cf", path, "-C", from, "inner", "top"];
    if run(&mount, "tar", &names).is_none_or(|ended| ended.status != Some(0)) {
        return;
    }
    if let Some(ended) = run(&mount, "tar", &["-xf", path]) {
        assert!(is_refused(&ended), "tar: {}", ended.errors);
        assert_eq!(ended.status, Some(2));
        assert_eq!(read(&mount, "top"), "top\n");
        assert_eq!(mount.names(), ["top"]);
    }
}

fn database() {
    let mount = Mount::new();
    let sqlite = |script: &str, output: &str| {
        works(&mount, "sqlite3", &["plant.db", script], output);
    };
    sqlite("create table t(a); insert into t values(1);", "");
    sqlite("pragma journal_mode=wal;", "wal\n");
    sqlite("insert into t values(2);", "");
    sqlite("select count(*) from t; pragma integrity_check;", "2\nok\n");
}

fn repository() {
    let mount = Mount::new();
    if let Some(ended) = run(&mount, "git", &["init", "."]) {
        assert!(is_refused(&ended), "git: {}", ended.errors);
        assert_ne!(ended.status, Some(0));
    }
    assert!(mount.names().is_empty());
}
