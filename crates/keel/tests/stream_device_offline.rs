//! A device without a server: it runs from its cache alone, and fails by a deadline if data is missing. It never goes
//! back to an older version.

use crate::common;
use crate::common::{TempDir, fails, keel, ok_json, wait_until};
use crate::stream_common;
use crate::stream_common::device::{
    ARGUMENTS, all_blocks, copy_folder, fails_by_the_deadline, fails_to_mount, flash_image, logs,
    path, wait_connected,
};
use crate::stream_common::{
    Mount, Server, cannot_mount, is_whole, is_whole_at_last, learn, publish, run_within, runs_well,
    runs_well_at_last, tree, tree_of, try_run_within,
};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use stream::device::Cache;
use stream::device::cache::{BlockCache, CacheOptions};

/// Blocks that no program has read, and the size of a table that has them. They lie further behind the read ones than a
/// device prefetches on the slowest line (8 runs of 32 blocks).
const FAR: &str = "900-920";
const FAR_TABLE_BLOCKS: usize = 1_000;

fn assert_a_second_run_needs_no_server(dir: &TempDir, cache: &str) {
    tree_of(dir, FAR_TABLE_BLOCKS);
    let mut server = Server::start(&publish(dir), &[]);
    let options = ["--cache", cache];
    // Do not fetch what lies beside the blocks that were read.
    let exactly = [&options[..], &["--complete=none"]].concat();
    let mount = Mount::start(dir, "at", server.address, &exactly);
    runs_well(dir, &mount, ARGUMENTS);
    drop(mount);
    server.kill();
    let deadline = [&options[..], &["--deadline-s", "2"]].concat();
    let mount = Mount::start(dir, "at", server.address, &deadline);
    runs_well(dir, &mount, ARGUMENTS);
    let status = mount.status();
    let count = |name: &str| status[name].as_u64().unwrap();
    assert_eq!((count("connects"), count("reads_late")), (0, 0), "{status}");
    assert!(count("cache_hits") > 0, "{status}");
    assert_eq!(count("cache_damaged"), 0, "{status}");
    fails_by_the_deadline(&mount, "share/long", FAR);
    // When the server is available again, the same mount continues, and fetched blocks are kept.
    server.restart();
    wait_connected(&mount);
    runs_well_at_last(dir, &mount, &[FAR]);
    is_whole_at_last(dir, &mount);
    drop(mount);
    server.kill();
    let mount = Mount::start(dir, "at", server.address, &options);
    is_whole(dir, &mount);
    runs_well(dir, &mount, &[&all_blocks()]);
    assert_eq!(mount.count("connects"), 0);
}

#[test]
fn a_program_that_ran_once_runs_from_a_cache_in_a_directory() {
    if !cannot_mount() {
        let dir = TempDir::new();
        assert_a_second_run_needs_no_server(&dir, &path(&dir, "cache"));
    }
}

#[test]
fn a_program_that_ran_once_runs_from_a_cache_in_a_flash_store() {
    if !cannot_mount() {
        let dir = TempDir::new();
        assert_a_second_run_needs_no_server(&dir, &flash_image(&dir, "cache.img", "16M"));
    }
}

#[test]
fn a_mount_without_server_and_cache_fails_with_one_line() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let mut server = Server::of_tree(&dir, &[]);
    server.kill();
    let (cache, address) = (path(&dir, "cache"), server.address);
    let cached = ["--cache", cache.as_str()];
    std::thread::scope(|scope| {
        for (at, options) in [("one", &[][..]), ("two", &cached)] {
            let dir = &dir;
            scope.spawn(move || {
                let line = fails_to_mount(dir, at, address, options);
                assert!(line.contains("no manifest"), "{line}");
                assert!(line.contains(&address.to_string()), "{line}");
            });
        }
    });
}

/// Returns the signed manifest of the first version of a store.
fn signed_manifest(store: &Path) -> Vec<u8> {
    std::fs::read(store.join("manifests").join(format!("{:020}", 1))).unwrap()
}

#[test]
fn a_cached_manifest_of_another_signer_is_refused() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let mut server = Server::of_tree(&dir, &[]);
    let store = dir.file("store");
    let cache = path(&dir, "cache");
    let options = ["--cache", cache.as_str()];
    drop(Mount::start(&dir, "at", server.address, &options));
    server.kill();
    std::fs::rename(&store, dir.file("right")).unwrap();
    let wrong = signed_manifest(&publish(&dir));
    let right = signed_manifest(&dir.file("right"));
    // Get the name of the note from the file that contains it.
    let log = std::fs::read(&logs(Path::new(&cache), "notes")[0]).unwrap();
    let at = log.windows(9).position(|name| name == b"manifest-");
    let name = &log[at.unwrap()..][.."manifest-".len() + 32];
    let name = std::str::from_utf8(name).unwrap();
    let set = |signed: &[u8]| {
        let cache = BlockCache::in_directory(Path::new(&cache), &CacheOptions::default()).unwrap();
        assert!(cache.note(name).is_some());
        cache.set_note(name, signed).unwrap();
    };
    set(&wrong);
    let line = fails_to_mount(&dir, "at", server.address, &options);
    assert!(line.contains("no manifest"), "{line}");
    set(&right);
    drop(Mount::start(&dir, "at", server.address, &options));
}

#[test]
fn the_newest_version_that_was_seen_counts_with_and_without_a_server() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let tree = tree(&dir);
    let (store, old) = (publish(&dir), dir.file("old"));
    copy_folder(&store, &old);
    let mut server = Server::start(&store, &[]);
    let address = server.address;
    let (cache, state) = (path(&dir, "cache"), path(&dir, "state"));
    let cached = ["--cache", cache.as_str()];
    let noted = ["--state", state.as_str()];
    let mount = Mount::start(&dir, "at", address, &cached);
    runs_well(&dir, &mount, ARGUMENTS);
    assert_eq!(mount.count("version"), 1);
    drop(mount);
    std::fs::write(tree.join("share/short"), "the second version\n").unwrap();
    publish(&dir);
    // The device sees the new version, but reads only one file of it.
    for options in [&cached, &noted] {
        let mount = Mount::start(&dir, "at", address, options);
        assert_eq!(mount.count("version"), 2);
        assert_eq!(
            std::fs::read(mount.at.join("share/short")).unwrap(),
            b"the second version\n"
        );
    }
    server.kill();
    // Blocks fetched for the first version are used for the second one, too.
    let mount = Mount::start(&dir, "at", address, &cached);
    assert_eq!((mount.count("version"), mount.count("connects")), (2, 0));
    runs_well(&dir, &mount, ARGUMENTS);
    assert_eq!(
        std::fs::read(mount.at.join("share/short")).unwrap(),
        b"the second version\n"
    );
    drop(mount);
    // Each round is a new start of the device.
    let mut older = Server::start_at(&old, &address.to_string(), &["--insecure"]);
    for options in [&cached, &noted, &cached, &noted] {
        let line = fails_to_mount(&dir, "at", address, options);
        assert!(line.contains("version 1 is older than 2"), "{line}");
    }
    older.kill();
    let mount = Mount::start(&dir, "at", address, &cached);
    assert_eq!(mount.count("version"), 2);
    runs_well(&dir, &mount, ARGUMENTS);
}

/// Checks a mount without a server after `keel stream pin`.
fn runs_alone(dir: &TempDir, server: &Server, cache: &str, arguments: &[&str]) {
    let options = ["--cache", cache, "--deadline-s", "20"];
    let mount = Mount::start(dir, "at", server.address, &options);
    runs_well(dir, &mount, arguments);
    assert_eq!(mount.count("connects"), 0);
    assert_eq!(mount.count("reads_late"), 0);
}

#[test]
fn a_pinned_program_runs_without_a_server() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let mut server = Server::of_tree(&dir, &[]);
    let address = server.address.to_string();
    let pin = |what: &str, cache: &str| {
        let pin = [
            "stream",
            "pin",
            &address,
            what,
            "--insecure",
            "--cache",
            cache,
            "--json",
        ];
        let said = ok_json(&pin);
        assert_eq!(said["is_complete"], true, "{said}");
        assert_eq!(said["blocks_wanted"], said["blocks_cached"], "{said}");
        said
    };
    let caches = ["program", "task", "all", "image"].map(|name| path(&dir, name));
    // Nothing is known about the task yet, so the whole program is pinned.
    let said = pin("bin/task", &caches[0]);
    assert_eq!(said["is_learned"], false, "{said}");
    let wanted = said["blocks_wanted"].as_u64().unwrap();
    assert!(wanted >= stream_common::TABLE_BLOCKS as u64, "{said}");
    learn(&dir, &server, ARGUMENTS);
    let said = pin("bin/task", &caches[1]);
    assert_eq!(said["is_learned"], true, "{said}");
    // A task that has run is pinned with at least as much as one that has not: its program is among it.
    let learned = said["blocks_wanted"].as_u64().unwrap();
    assert!(learned >= wanted, "{said}");
    pin("--all", &caches[2]);
    flash_image(&dir, "image", "16M");
    pin("--all", &caches[3]);
    let not_there = [
        "stream",
        "pin",
        &address,
        "bin/none",
        "--insecure",
        "--cache",
        &caches[0],
    ];
    let line = fails(&not_there, 1);
    assert!(line.contains("is no file of the published tree"), "{line}");
    server.kill();
    let all = all_blocks();
    runs_alone(&dir, &server, &caches[0], &[&all]);
    runs_alone(&dir, &server, &caches[1], ARGUMENTS);
    for cache in &caches[2..] {
        runs_alone(&dir, &server, cache, &[&all]);
        let mount = Mount::start(&dir, "at", server.address, &["--cache", cache]);
        is_whole(&dir, &mount);
    }
}

/// Where nothing is noted, the program alone may not be enough.
#[test]
fn a_pin_without_a_server_uses_what_an_earlier_one_received() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let mut server = Server::of_tree(&dir, &[]);
    let address = server.address.to_string();
    let caches = ["program", "task"].map(|name| path(&dir, name));
    let pin = |cache: &str| {
        let mut command = keel();
        command.args([
            "stream",
            "pin",
            &address,
            "bin/task",
            "--insecure",
            "--json",
        ]);
        command.args(["--cache", cache]);
        let output = run_within(&mut command, Duration::from_secs(60)).unwrap();
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), said)
    };
    let (status, said) = pin(&caches[0]);
    assert_eq!(status, Some(0), "nothing is learned yet: {said}");
    learn(&dir, &server, ARGUMENTS);
    let (status, learned) = pin(&caches[1]);
    assert_eq!(status, Some(0), "{learned}");
    server.kill();
    let (status, said) = pin(&caches[1]);
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(said["blocks_wanted"], learned["blocks_wanted"], "{said}");
    assert_eq!(said["is_learned"], true, "{said}");
    assert_eq!(said["is_complete"], true, "{said}");
    let (status, said) = pin(&caches[0]);
    assert_eq!(status, Some(1), "{said}");
    assert_eq!(said["blocks_wanted"], said["blocks_cached"], "{said}");
    assert_eq!(said["is_learned"], false, "{said}");
    assert_eq!(said["is_complete"], false, "{said}");
}

/// A program that ends with an error in an outage has not read what it needs, so the server must not forget the rest.
#[test]
fn a_start_that_fails_in_an_outage_takes_nothing_from_what_was_learned() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let mut server = Server::of_tree(&dir, &[]);
    let store = dir.file("store");
    learn(&dir, &server, ARGUMENTS);
    let list = ["stream", "actions", store.to_str().unwrap(), "--json"];
    let learned = || ok_json(&list)["actions"][0]["blocks"].clone();
    let before = learned();
    assert!(before.as_u64().unwrap() > 0);
    for _ in 0..3 {
        let mount = Mount::start(&dir, "at", server.address, &["--deadline-s", "2"]);
        server.kill();
        wait_until("no connection", || mount.count("connected") == 0);
        let mut program = Command::new(mount.program());
        let ran = try_run_within(program.args(ARGUMENTS), Duration::from_secs(60));
        let is_well = matches!(&ran, Ok(Some(output)) if output.status.success());
        assert!(!is_well, "{ran:?}");
        server.restart();
        wait_connected(&mount);
    }
    server.end();
    assert_eq!(learned(), before);
}

#[test]
fn a_pin_reads_its_blocks_and_names_missing_ones_at_once() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let mut server = Server::of_tree(&dir, &[]);
    let (cache, address) = (path(&dir, "cache"), server.address.to_string());
    let pin = [
        "stream",
        "pin",
        &address,
        "--all",
        "--insecure",
        "--cache",
        &cache,
    ];
    let whole = || {
        assert_eq!(
            ok_json(&[&pin[..], &["--json"]].concat())["is_complete"],
            true
        )
    };
    whole();
    // Damages several bytes of each record. The second call needs another mask, because it would otherwise undo the
    // first.
    let damage = |mask: u8| {
        for log in logs(Path::new(&cache), "blocks") {
            let mut bytes = std::fs::read(&log).unwrap();
            for at in (200..bytes.len()).step_by(9_973) {
                bytes[at] ^= mask;
            }
            std::fs::write(log, bytes).unwrap();
        }
    };
    damage(1);
    whole();
    server.kill();
    // All blocks are there again, which is also verified without a server.
    whole();
    runs_alone(&dir, &server, &cache, &[&all_blocks()]);
    damage(16);
    let line = fails(&pin, 1);
    assert!(
        line.contains("no server, and ") && line.contains("are not in the cache"),
        "{line}"
    );
    server.restart();
    whole();
}

#[test]
fn a_cache_too_small_to_pin_all_is_reported_and_used_as_far_as_it_goes() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let tree = tree(&dir);
    let mut state = 1_u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(6 << 20)
    .collect();
    std::fs::write(tree.join("share/noise"), &noise).unwrap();
    let mut server = Server::start(&publish(&dir), &[]);
    let (cache, address) = (path(&dir, "cache"), server.address.to_string());
    let small = ["--cache", cache.as_str(), "--cache-size", "4M"];
    let mut command = keel();
    command.args(["stream", "pin", &address, "--all", "--insecure", "--json"]);
    let output = run_within(command.args(small), Duration::from_secs(60)).unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["is_complete"], false, "{said}");
    let line = common::one_line(&output.stderr);
    assert!(line.contains("too small"), "{line}");
    // The size that the line names is enough.
    let (_, size) = line.split_once("--cache-size ").unwrap();
    let size = size.strip_suffix(" is enough").unwrap();
    let larger = path(&dir, "larger");
    let said = ok_json(&[
        "stream",
        "pin",
        &address,
        "--all",
        "--insecure",
        "--json",
        "--cache",
        &larger,
        "--cache-size",
        size,
    ]);
    assert_eq!(said["is_complete"], true, "{said}");
    server.kill();
    let options = [&small[..], &["--deadline-s", "1"]].concat();
    let mount = Mount::start(&dir, "at", server.address, &options);
    // The result is either correct or an error.
    match std::fs::read(mount.at.join("share/noise")) {
        Ok(read) => assert!(read == noise),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}"),
    }
    assert!(mount.count("cache_bytes") <= mount.count("cache_bytes_max"));
}

#[test]
fn neighbours_of_blocks_that_were_read_are_there_without_a_server() {
    use std::os::unix::fs::FileExt;
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let mut server = Server::of_tree(&dir, &[]);
    let read = &["20-22", "300"];
    learn(&dir, &server, read);
    // A learned start receives only what it reads.
    let none = path(&dir, "none");
    let options = ["--cache", &none, "--complete=none"];
    let mount = Mount::start(&dir, "at", server.address, &options);
    runs_well(&dir, &mount, read);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(mount.count("fetched"), 0);
    drop(mount);
    let cache = path(&dir, "cache");
    let mount = Mount::start(&dir, "at", server.address, &["--cache", &cache]);
    runs_well(&dir, &mount, read);
    let here = std::fs::read(dir.file("tree/bin/task")).unwrap();
    let table = stream_common::bytes_of(7, stream_common::TABLE_BLOCKS * 4096);
    let mut blocks = here.chunks(4096);
    let first = blocks
        .position(|block| block == &table[..4096])
        .expect("the table's first block");
    let is_there = |mount: &Mount, wanted: usize| {
        let there = std::fs::File::open(mount.program()).unwrap();
        let run = (first + wanted) / 32 * 32;
        (run..run + 32).all(|block| {
            let mut bytes = [0; 4096];
            let read = there.read_exact_at(&mut bytes, block as u64 * 4096);
            assert!(read.is_err() || bytes[..] == here[block * 4096..][..4096]);
            read.is_ok()
        })
    };
    // Each of the two runs of 32 blocks lacks at least 28 blocks, apart from those that the loader reads at the
    // program's ends.
    wait_until("what lies beside it", || mount.count("fetched") >= 56);
    let mut before = 0;
    wait_until("an end of that", || {
        std::thread::sleep(Duration::from_millis(1500));
        let now = mount.count("fetched");
        std::mem::replace(&mut before, now) == now
    });
    // The rest of the program is not fetched.
    assert!(mount.count("cache_blocks") < 300, "{}", mount.status());
    drop(mount);
    server.kill();
    // Another start may read other blocks, as a virtual machine does by chance.
    let alone = |cache: &str, blocks: &[usize]| {
        let options = ["--cache", cache, "--deadline-s", "1"];
        let mount = Mount::start(&dir, "at", server.address, &options);
        blocks.iter().all(|block| is_there(&mount, *block))
    };
    assert!(alone(&cache, &[21, 300]));
    assert!(!alone(&none, &[21]));
}

#[test]
fn the_rest_of_a_program_comes_when_nothing_else_is_to_be_done() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    let mut server = Server::of_tree(&dir, &[]);
    let cache = path(&dir, "cache");
    let options = ["--cache", cache.as_str(), "--complete"];
    let mount = Mount::start(&dir, "at", server.address, &options);
    runs_well(&dir, &mount, ARGUMENTS);
    let wanted = stream_common::TABLE_BLOCKS as u64;
    wait_until("the rest", || mount.count("cache_blocks") >= wanted);
    drop(mount);
    server.kill();
    runs_alone(&dir, &server, &cache, &[&all_blocks()]);
}
