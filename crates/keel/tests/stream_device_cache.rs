//! The cache of a device: damaged while it is unused and while it is used, full, read-only, requested by two mounts.

use crate::common;
use crate::common::TempDir;
use crate::stream_common::device::{
    ARGUMENTS, MemoryDisk, all_blocks, copy_folder, fails_to_mount, flash_image, logs, path,
};
use crate::stream_common::proxy::{Fault, Proxy};
use crate::stream_common::{Mount, Server, cannot_mount, is_whole, publish, runs_well, tree};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Distance of two changed bytes: several bytes in each record.
const FLIP_STEP: u64 = 9_973;

#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip,
    Halve,
    Empty,
    Delete,
}

impl Damage {
    const ALL: [Self; 4] = [Self::Flip, Self::Halve, Self::Empty, Self::Delete];

    /// Damages a file in place.
    fn apply(self, file: &Path) {
        let open = || File::options().read(true).write(true).open(file).unwrap();
        let bytes = fs::metadata(file).unwrap().len();
        match self {
            Self::Flip => {
                let file = open();
                // A file of notes is short.
                for at in (200..bytes).step_by(FLIP_STEP.min(bytes / 3) as usize) {
                    let mut byte = [0];
                    file.read_exact_at(&mut byte, at).unwrap();
                    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
                }
            }
            Self::Halve => open().set_len(bytes / 2 + 5).unwrap(),
            Self::Empty => open().set_len(0).unwrap(),
            Self::Delete => fs::remove_file(file).unwrap(),
        }
    }
}

/// A server behind a connection that can be cut, and a cache that contains the whole tree.
struct Filled {
    dir: TempDir,
    proxy: Proxy,
    cache: String,
    good: PathBuf,
    _server: Server,
}

impl Filled {
    fn new() -> Self {
        let dir = TempDir::new();
        let server = Server::of_tree(&dir, &[]);
        let filled = Self {
            proxy: Proxy::start(server.address),
            cache: path(&dir, "cache"),
            good: dir.file("good"),
            _server: server,
            dir,
        };
        let mount = filled.mount();
        filled.is_right(&mount);
        drop(mount);
        fs::rename(&filled.cache, &filled.good).unwrap();
        filled
    }

    /// Restores the complete cache.
    fn fill(&self) {
        fs::remove_dir_all(&self.cache).ok();
        copy_folder(&self.good, Path::new(&self.cache));
    }

    fn mount(&self) -> Mount {
        let options = ["--cache", &self.cache, "--deadline-s", "10"];
        Mount::start(&self.dir, "at", self.proxy.address, &options)
    }

    fn is_right(&self, mount: &Mount) {
        runs_well(&self.dir, mount, ARGUMENTS);
        runs_well(&self.dir, mount, &[&all_blocks()]);
        is_whole(&self.dir, mount);
    }

    /// Checks that all data is available without a server.
    fn is_whole_alone(&self, what: &str) {
        println!("{what}");
        self.proxy.set(Fault::Cut);
        let mount = self.mount();
        self.is_right(&mount);
        let status = mount.status();
        let count = |name: &str| status[name].as_u64().unwrap();
        assert_eq!(count("connects"), 0, "{what}: {status}");
        assert_eq!(count("cache_damaged"), 0, "{what}: {status}");
        assert_eq!(count("reads_late"), 0, "{what}: {status}");
        self.proxy.set(Fault::None);
    }

    fn damage(&self, kind: &str, damage: Damage) {
        let logs = logs(Path::new(&self.cache), kind);
        assert!(!logs.is_empty());
        for log in logs {
            damage.apply(&log);
        }
    }
}

#[test]
fn damage_of_an_unmounted_cache_costs_its_content_once() {
    if cannot_mount() {
        return;
    }
    let filled = Filled::new();
    filled.fill();
    filled.is_whole_alone("untouched");
    for kind in ["blocks", "notes"] {
        for damage in Damage::ALL {
            let what = format!("{kind}, {damage:?}");
            filled.fill();
            filled.damage(kind, damage);
            let mount = filled.mount();
            filled.is_right(&mount);
            let came = mount.count("bytes_received");
            assert!(came > 0, "{what}");
            if kind == "blocks" {
                // The damage must have destroyed some blocks.
                assert!(came > 100_000, "{what}: {came}");
            }
            drop(mount);
            filled.is_whole_alone(&what);
        }
    }
}

#[test]
fn damage_of_a_mounted_cache_costs_its_content_once() {
    if cannot_mount() {
        return;
    }
    let filled = Filled::new();
    for kind in ["blocks", "notes"] {
        for damage in Damage::ALL {
            let what = format!("{kind}, {damage:?}");
            filled.fill();
            let mount = filled.mount();
            runs_well(&filled.dir, &mount, ARGUMENTS);
            filled.damage(kind, damage);
            filled.is_right(&mount);
            assert_eq!(
                mount.count("reads_late") + mount.count("reads_failed"),
                0,
                "{what}"
            );
            drop(mount);
            // A deleted file stays readable until the mount ends, and a manifest is recorded only when a mount begins.
            let mount = filled.mount();
            filled.is_right(&mount);
            drop(mount);
            filled.is_whole_alone(&what);
        }
    }
}

#[test]
fn a_disk_that_fills_up_stops_neither_programs_nor_the_note_of_a_version() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let tree = tree(&dir);
    let server = Server::start(&publish(&dir), &[]);
    let proxy = Proxy::start(server.address);
    let disk = MemoryDisk::new(&dir, "disk", "1M");
    let options = ["--cache", disk.path(), "--deadline-s", "20"];
    let mount = Mount::start(&dir, "at", proxy.address, &options);
    runs_well(&dir, &mount, &[&all_blocks()]);
    is_whole(&dir, &mount);
    runs_well(&dir, &mount, ARGUMENTS);
    let status = mount.status();
    let count = |name: &str| status[name].as_u64().unwrap();
    let lost = count("cache_evicted") + count("cache_dropped");
    assert!(lost > 0, "{status}");
    assert!(count("cache_disk_full") > 0, "{status}");
    let said = status["cache_failure"].as_str().unwrap_or_default();
    assert!(said.contains("the disk is full"), "{status}");
    assert!(count("cache_bytes") <= 1 << 20, "{status}");
    drop(mount);
    // The disk is still full when a newer version appears.
    fs::write(tree.join("share/short"), "the second version\n").unwrap();
    publish(&dir);
    let mount = Mount::start(&dir, "at", proxy.address, &options);
    assert_eq!(mount.count("version"), 2);
    is_whole(&dir, &mount);
    drop(mount);
    proxy.set(Fault::Cut);
    let mount = Mount::start(&dir, "at", proxy.address, &options);
    assert_eq!((mount.count("version"), mount.count("connects")), (2, 0));
    drop(mount);
    // Other files take the cache's space. Then the failure to cache is reported, and programs still run.
    proxy.set(Fault::None);
    for log in logs(&disk.0, "blocks") {
        fs::remove_file(log).unwrap();
    }
    fs::write(disk.0.join("other"), vec![1; 1 << 20]).ok();
    let mount = Mount::start(&dir, "at", proxy.address, &options);
    runs_well(&dir, &mount, &[&all_blocks()]);
    is_whole(&dir, &mount);
    common::wait_until("what was not kept", || mount.count("cache_dropped") > 0);
    let status = mount.status();
    assert!(status["cache_failures"].as_u64().unwrap() > 0, "{status}");
    let said = status["cache_failure"].as_str().unwrap_or_default();
    assert!(said.contains("full"), "{status}");
}

#[test]
fn a_cache_that_cannot_be_written_is_read_and_stops_no_newer_version() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let tree = tree(&dir);
    let server = Server::start(&publish(&dir), &[]);
    let proxy = Proxy::start(server.address);
    let disk = MemoryDisk::new(&dir, "disk", "16M");
    let options = ["--cache", disk.path(), "--deadline-s", "20"];
    let mount = Mount::start(&dir, "at", proxy.address, &options);
    runs_well(&dir, &mount, ARGUMENTS);
    drop(mount);
    disk.set_read_only(true);
    let mount = Mount::start(&dir, "at", proxy.address, &options);
    runs_well(&dir, &mount, ARGUMENTS);
    runs_well(&dir, &mount, &["400-420"]);
    is_whole(&dir, &mount);
    assert!(mount.count("cache_hits") > 0);
    common::wait_until("what was not kept", || mount.count("cache_dropped") > 0);
    drop(mount);
    proxy.set(Fault::Cut);
    let mount = Mount::start(&dir, "at", proxy.address, &options);
    runs_well(&dir, &mount, ARGUMENTS);
    assert_eq!(mount.count("connects"), 0);
    drop(mount);
    proxy.set(Fault::None);
    fs::write(tree.join("share/short"), "the second version\n").unwrap();
    publish(&dir);
    // A mount does not depend on its cache; the failure to record the version is reported.
    let mount = Mount::start(&dir, "at", proxy.address, &options);
    assert_eq!(mount.count("version"), 2);
    is_whole(&dir, &mount);
    assert!(mount.count("notes_failed") > 0);
    let status = mount.status();
    let said = status["cache_failure"].as_str().unwrap_or_default();
    assert!(said.contains("Read-only"), "{status}");
    drop(mount);
    // With a separate folder for it, the record is required, and is written.
    let state = path(&dir, "state");
    let options = [&options[..], &["--state", &state]].concat();
    let mount = Mount::start(&dir, "at", proxy.address, &options);
    assert_eq!(mount.count("version"), 2);
    is_whole(&dir, &mount);
    runs_well(&dir, &mount, ARGUMENTS);
    drop(mount);
    disk.set_read_only(false);
    let mount = Mount::start(&dir, "at", proxy.address, &options);
    is_whole(&dir, &mount);
}

#[test]
fn a_cache_that_cannot_be_opened_is_reported_and_stops_no_mount() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let server = Server::of_tree(&dir, &[]);
    let disk = MemoryDisk::new(&dir, "disk", "1M");
    disk.set_read_only(true);
    let cache = disk.0.join("cache");
    let options = ["--cache", cache.to_str().unwrap()];
    let mount = Mount::start(&dir, "at", server.address, &options);
    runs_well(&dir, &mount, &[&all_blocks()]);
    is_whole(&dir, &mount);
    let status = mount.status();
    assert!(status["cache_failures"].as_u64().unwrap() > 0, "{status}");
    let said = status["cache_failure"].as_str().unwrap_or_default();
    assert!(said.contains(options[1]), "{status}");
    let printed = common::ok(&["stream", "status", mount.at.to_str().unwrap()]);
    let printed = String::from_utf8(printed).unwrap();
    assert!(
        printed.contains("the cache's last failure: making the cache"),
        "{printed}"
    );
    drop(mount);
    // A command whose only purpose is to fill the cache reports the failure as an error.
    let server = server.address.to_string();
    let pin = ["stream", "pin", &server, "--all", "--insecure"];
    let line = common::fails(&[&pin[..], &options].concat(), 1);
    assert!(line.contains(options[1]), "{line}");
}

#[test]
fn a_version_is_remembered_when_one_of_the_places_that_say_it_is_lost() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let tree = tree(&dir);
    let (store, old) = (publish(&dir), dir.file("old"));
    copy_folder(&store, &old);
    fs::write(tree.join("share/short"), "the second version\n").unwrap();
    publish(&dir);
    let mut server = Server::start(&store, &[]);
    let address = server.address;
    let (cache, image) = (path(&dir, "cache"), flash_image(&dir, "image", "16M"));
    for place in [&cache, &image] {
        drop(Mount::start(&dir, "at", address, &["--cache", place]));
    }
    server.kill();
    let older = Server::start_at(&old, &address.to_string(), &["--insecure"]);
    let is_refused = |options: &[&str]| {
        let line = fails_to_mount(&dir, "at", address, options);
        assert!(line.contains("version 1 is older than 2"), "{line}");
    };
    let options = ["--cache", cache.as_str()];
    // In each case the remaining record suffices for the refusal, and the refused start writes nothing.
    for kind in ["notes", "versions"] {
        let kept = dir.file("kept");
        copy_folder(Path::new(&cache), &kept);
        for log in logs(Path::new(&cache), kind) {
            fs::remove_file(log).unwrap();
        }
        is_refused(&options);
        fs::remove_dir_all(&cache).unwrap();
        fs::rename(kept, &cache).unwrap();
    }
    // A successful start restores the lost record, so that each one suffices again.
    drop(older);
    let server = Server::start_at(&store, &address.to_string(), &["--insecure"]);
    for kind in ["notes", "versions"] {
        for log in logs(Path::new(&cache), kind) {
            fs::remove_file(log).unwrap();
        }
        drop(Mount::start(&dir, "at", address, &options));
    }
    drop(server);
    let _older = Server::start_at(&old, &address.to_string(), &["--insecure"]);
    is_refused(&options);
    is_refused(&["--cache", &image]);
}

#[test]
fn two_mounts_cannot_have_one_cache() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let server = Server::of_tree(&dir, &[]);
    let caches = [path(&dir, "cache"), flash_image(&dir, "image", "16M")];
    for (cache, said) in caches.iter().zip(["another process", "in use"]) {
        let options = ["--cache", cache.as_str()];
        let mount = Mount::start(&dir, "one", server.address, &options);
        let line = fails_to_mount(&dir, "two", server.address, &options);
        assert!(
            line.contains(said) && line.contains(cache.as_str()),
            "{line}"
        );
        runs_well(&dir, &mount, ARGUMENTS);
        drop(mount);
        drop(Mount::start(&dir, "two", server.address, &options));
    }
}
