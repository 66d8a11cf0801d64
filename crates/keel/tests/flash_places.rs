//! Where `keel flash` and the node create a store: volatile places, obstacles, and sizes.

use crate::common::node::Node;
use crate::common::{TempDir, fails, keel, ok, one_line, run};
use crate::flash_common::{store, text};
use std::path::Path;

/// A path that does not exist. A file that is created there is removed at the end.
struct Absent(String);

impl Absent {
    fn new(folder: &str, name: &str) -> Self {
        let path = format!("{folder}/keel-test-{}-{name}", std::process::id());
        assert!(!Path::new(&path).exists());
        Self(path)
    }
}

impl Drop for Absent {
    fn drop(&mut self) {
        for suffix in ["", ".new", ".lock"] {
            std::fs::remove_file(format!("{}{suffix}", self.0)).ok();
        }
    }
}

const REFUSED: &str = "is no block device, and a file made there lies in memory";

#[test]
fn a_mistyped_device_does_not_become_a_file_in_memory() {
    let dir = TempDir::new();
    let absent = Absent::new("/dev", "nosuch");
    let image = &absent.0;
    let small = ["--size", "304K", "--files", "1"];
    let said = fails(&[&["flash", "format", image], &small[..]].concat(), 1);
    assert!(said.contains(REFUSED), "{said}");
    assert!(!Path::new(image).exists());
    let source = store(&dir, "8M");
    let said = fails(&["flash", "copy", &source, image], 1);
    assert!(said.contains(REFUSED), "{said}");
    assert!(!Path::new(image).exists());

    let config = format!(
        "[store]\nimage = \"{image}\"\ncreate_mebibytes = 16\n[line]\ntcp_listen = \"\"\n\
         unix_socket = \"line.sock\"\n"
    );
    let node = Node::prepare(&config);
    for command in [&["config", "check"][..], &["run"]] {
        let mut child = keel();
        child.args(command).current_dir(node.dir.path());
        let output = child.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(REFUSED), "{command:?}: {said}");
        assert!(!Path::new(image).exists());
    }
    let mut child = keel();
    child.args(["config", "check", "--json"]);
    let output = child.current_dir(node.dir.path()).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &json["ok"]),
        (Some(1), &false.into())
    );
    let wrong = json["problems"][0]["wrong"].as_str().unwrap();
    assert!(wrong.contains(REFUSED), "{wrong}");
}

#[test]
fn a_store_in_memory_is_made_with_a_warning() {
    let kind = std::process::Command::new("stat")
        .args(["-f", "-c", "%T", "/dev/shm"])
        .output();
    if !kind.is_ok_and(|kind| kind.stdout == b"tmpfs\n") {
        println!("skipped: no memory file system at /dev/shm");
        return;
    }
    let absent = Absent::new("/dev/shm", "memory");
    let image = &absent.0;
    let warning = "this store lies in memory and is gone at the next boot";
    let made = run(&["flash", "format", image, "--size", "304K", "--files", "1"]);
    assert!(made.status.success(), "{made:?}");
    let said = one_line(&made.stderr);
    assert!(said.contains(warning), "{said}");
    ok(&["flash", "check", image]);
    std::fs::remove_file(image).unwrap();
    let config = format!(
        "[store]\nimage = \"{image}\"\ncreate_mebibytes = 16\n[line]\ntcp_listen = \"\"\n\
         unix_socket = \"line.sock\"\n"
    );
    let mut node = Node::start(&config);
    assert!(node.log().contains(warning), "{}", node.log());
    assert!(node.stop().success());
}

#[test]
fn a_file_system_of_the_kernel_is_refused_for_a_store() {
    let said = fails(&["flash", "format", "/proc/version"], 1);
    assert!(said.contains("is no place for a store"), "{said}");
    assert!(said.ends_with("; name a file on a disk, or a block device"));
}

#[test]
fn a_size_that_is_too_small_names_one_that_does() {
    let dir = TempDir::new();
    let image = dir.file("store.img").display().to_string();
    let format = |more: &[&'static str]| [&["flash", "format", &image][..], more].concat();
    let said = fails(&format(&["--size", "303K", "--files", "1"]), 2);
    assert!(
        said.ends_with(
            "300.0 KiB is too small for a store with a table for 1 file; choose a --size of at least 304K"
        ),
        "{said}"
    );
    let said = fails(&format(&["--size", "1M"]), 2);
    assert!(
        said.ends_with("; choose a --size of at least 5760K, or a lower number of --files"),
        "{said}"
    );
    assert!(!Path::new(&image).exists());
    let said = text(&ok(&format(&["--size", "304K", "--files", "1"])));
    assert!(said.contains("its table sized for 1 file, "), "{said}");
    ok(&format(&["--size", "5760K", "--force"]));
}

#[test]
fn a_store_of_another_format_is_named_before_it_is_overwritten() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    let mut raw = std::fs::read(&image).unwrap();
    let mut found = 0;
    for block in raw.chunks_exact_mut(4096) {
        if block.starts_with(b"KEELFLSH") {
            block[8] = 7;
            found += 1;
        }
    }
    assert!(found > 1);
    std::fs::write(&image, &raw).unwrap();
    let said = fails(&["flash", "format", &image], 1);
    assert!(
        said.contains("holds a store of format 7 already; add --force"),
        "{said}"
    );
    assert!(std::fs::read(&image).unwrap() == raw);
}
