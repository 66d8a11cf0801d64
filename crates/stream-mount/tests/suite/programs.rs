//! Programs that run from the mount, and their tasks.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use stream::manifest::ROOT;
use stream::{FileId, Token};

use crate::support::*;

/// Returns the libraries of a program from `ldd`. Links are resolved by copying the file under the requested name.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let told = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8(told.stdout).unwrap();
    let words = text.split_ascii_whitespace();
    words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

/// Builds a tree with these programs and everything that they load.
fn tree_of(programs: &[&str]) -> TreeBuilder {
    let mut tree = TreeBuilder::new();
    for program in programs.iter().map(Path::new) {
        tree.copy(program);
        for library in libraries(program) {
            tree.copy(&library);
        }
    }
    tree
}

/// Runs a program in the mount as its root directory.
fn in_mount(mount: &Mount, line: &[&str]) -> Output {
    // A process that is identified only by its program would be this one.
    Command::new("chroot")
        .arg(mount.path(""))
        .args(line)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn tokens_of_reads(mount: &Mount, file: FileId) -> Vec<Option<Token>> {
    let seen = mount.source.seen();
    let of = seen.reads.iter().filter(|(_, at)| at.file == file);
    of.map(|(token, _)| *token).collect()
}

fn loader() -> &'static str {
    match cfg!(target_arch = "aarch64") {
        true => "/lib/ld-linux-aarch64.so.1",
        false => "/lib64/ld-linux-x86-64.so.2",
    }
}

#[test]
fn a_program_runs_and_all_its_reads_are_of_its_task() {
    if cannot_mount() {
        return;
    }
    let mut tree = tree_of(&["/bin/true", "/bin/echo"]);
    tree.file(ROOT, "alone", 0o644, bytes(1, 1));
    let mount = Mount::new(tree);
    let ran = in_mount(&mount, &["/bin/echo", "over the wire"]);
    assert_eq!(ran.stdout, b"over the wire\n", "{ran:?}");
    let echo = mount.source.file("bin/echo");
    let token = mount.source.token_of(echo);
    {
        let seen = mount.source.seen();
        assert!(seen.reads.len() > 10);
        assert!(
            seen.reads.iter().all(|(of, _)| *of == Some(token)),
            "{:?}",
            seen.reads
        );
        assert!(seen.wanted.is_empty(), "each page is asked for by itself");
    }
    drop(
        mount
            .source
            .wait_until(|seen| seen.ended == [(token, true)]),
    );
    // Another program; and a process that only reads.
    assert!(in_mount(&mount, &["/bin/true"]).status.success());
    let other = mount.source.token_of(mount.source.file("bin/true"));
    drop(
        mount
            .source
            .wait_until(|seen| seen.ended.contains(&(other, true))),
    );
    std::fs::read(mount.path("alone")).unwrap();
    assert_eq!(tokens_of_reads(&mount, mount.source.file("alone")), [None]);
    assert_eq!(mount.source.seen().begun.len(), 2);
}

#[test]
fn a_program_whose_beginning_is_in_memory_is_a_task_all_the_same() {
    if cannot_mount() {
        return;
    }
    let mut tree = tree_of(&["/bin/cat"]);
    tree.file(ROOT, "first", 0o644, bytes(5000, 1));
    tree.file(ROOT, "second", 0o644, bytes(5000, 2));
    let mount = Mount::new(tree);
    assert!(in_mount(&mount, &["/bin/cat", "first"]).status.success());
    let read = mount.source.seen().reads.len();
    let ran = in_mount(&mount, &["/bin/cat", "second"]);
    assert_eq!(ran.stdout, bytes(5000, 2));
    let seen = mount.source.seen();
    let cat = mount.source.file("bin/cat");
    let tasks: Vec<_> = seen.begun.iter().map(|it| it.1).collect();
    assert_eq!(tasks, [cat, cat]);
    assert_ne!(seen.begun[0].0, seen.begun[1].0);
    assert!(
        seen.reads[read..]
            .iter()
            .all(|it| it.0 == Some(seen.begun[1].0))
    );
    assert_eq!(seen.reads.len(), read + 2);
}

#[test]
fn children_and_scripts_belong_to_the_task_that_ran_them() {
    if cannot_mount() {
        return;
    }
    let mut tree = tree_of(&["/bin/sh", "/bin/cat", "/bin/true"]);
    let script = b"#!/bin/sh\ncat data\n(/bin/true; cat more)\nexit 3\n".to_vec();
    let script = tree.file(ROOT, "script", 0o755, script);
    let data = tree.file(ROOT, "data", 0o644, bytes(100, 1));
    let more = tree.file(ROOT, "more", 0o644, bytes(100, 2));
    let mount = Mount::new(tree);
    let ran = in_mount(&mount, &["/script"]);
    assert_eq!(ran.status.code(), Some(3), "{ran:?}");
    assert_eq!(ran.stdout, [bytes(100, 1), bytes(100, 2)].concat());
    let token = mount.source.token_of(script);
    for file in [
        script,
        data,
        more,
        mount.source.file("bin/cat"),
        mount.source.file("bin/true"),
    ] {
        let tokens = tokens_of_reads(&mount, file);
        assert!(
            !tokens.is_empty() && tokens.iter().all(|of| *of == Some(token)),
            "{tokens:?}"
        );
    }
    drop(
        mount
            .source
            .wait_until(|seen| seen.ended == [(token, true)]),
    );
}

#[test]
fn a_program_run_by_a_loader_is_the_task() {
    if cannot_mount() {
        return;
    }
    let mount = Mount::new(tree_of(&["/bin/true"]));
    let ran = in_mount(&mount, &[loader(), "/bin/true"]);
    assert!(ran.status.success(), "{ran:?}");
    let program = mount.source.file("bin/true");
    let token = mount.source.token_of(program);
    assert!(
        tokens_of_reads(&mount, program)
            .iter()
            .all(|of| *of == Some(token))
    );
    assert_eq!(mount.source.seen().begun.len(), 1);
}

#[test]
fn threads_of_a_program_are_of_its_task() {
    let python = Path::new("/usr/bin/python3");
    if cannot_mount() {
        return;
    }
    if !python.exists() {
        println!("skipped: no {}", python.display());
        return;
    }
    let mut tree = TreeBuilder::new();
    let data = tree.file(ROOT, "data", 0o644, bytes(3 * 4096, 1));
    let real = python.canonicalize().unwrap();
    let program = tree.file(ROOT, "python3", 0o755, std::fs::read(real).unwrap());
    let mount = Mount::new(tree);
    // Its libraries are from this machine: only the program is streamed.
    let code = "import sys, threading\n\
        def read(): sys.stdout.write(str(sum(open(sys.argv[1], 'rb').read())))\n\
        thread = threading.Thread(target=read); thread.start(); thread.join()";
    let ran = Command::new(mount.path("python3"))
        .args(["-S", "-E", "-c", code])
        .arg(mount.path("data"))
        .output()
        .unwrap();
    let sum: u64 = bytes(3 * 4096, 1).iter().map(|byte| u64::from(*byte)).sum();
    assert_eq!(String::from_utf8(ran.stdout).unwrap(), sum.to_string());
    let token = mount.source.token_of(program);
    assert_eq!(tokens_of_reads(&mount, data), vec![Some(token); 3]);
    assert!(mount.source.blocks_read(program).len() > 100);
    drop(
        mount
            .source
            .wait_until(|seen| seen.ended == [(token, true)]),
    );
}

#[test]
fn a_file_without_the_right_to_run_does_not_and_setuid_counts_for_nothing() {
    if cannot_mount() {
        return;
    }
    let mut tree = tree_of(&["/bin/true"]);
    tree.file(ROOT, "refused", 0o644, std::fs::read("/bin/true").unwrap());
    let mount = Mount::new(tree);
    refused(Command::new(mount.path("refused")).status(), libc::EACCES);
    assert!(mount.source.seen().begun.is_empty());
    let flags = statvfs(&mount.path("")).f_flag;
    assert_ne!(flags & libc::ST_NOSUID, 0);
    assert_ne!(flags & libc::ST_RDONLY, 0);
    assert_eq!(
        std::fs::metadata(mount.path("bin/true")).unwrap().mode() & 0o7777,
        0o755
    );
}

#[test]
fn tasks_that_run_end_with_the_mount() {
    if cannot_mount() {
        return;
    }
    let mut mount = Mount::new(tree_of(&["/bin/cat"]));
    let mut child = Command::new("chroot")
        .arg(mount.path(""))
        .arg("/bin/cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    use std::io::{Read, Write};
    child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let token = mount.source.token_of(mount.source.file("bin/cat"));
    assert!(mount.source.seen().ended.is_empty());
    assert!(mount.source.seen().pages.is_some());
    mount.end();
    assert_eq!(mount.source.seen().ended, [(token, false)]);
    assert!(mount.source.seen().pages.is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}
