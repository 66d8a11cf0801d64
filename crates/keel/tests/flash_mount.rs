//! `keel flash mount` as a process: starting, ending, and being killed.

#[path = "../../flash-mount/tests/common/writers.rs"]
mod writers;

use crate::common::{TempDir, fails, keel, ok, ok_json, one_line, run, signal, wait_until};
use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;
use writers::{Promises, judge, start};

/// Number of kills of the process.
const KILLS: u64 = 40;

/// A running mount; unmounted and ended when the test is over, also if it fails.
struct Mount {
    child: Child,
    directory: PathBuf,
    ready: String,
}

impl Mount {
    /// Mounts the image on `DIR/here`.
    fn start(dir: &TempDir, image: &str, options: &[&str]) -> Self {
        Self::start_with(dir, image, options, libc::SIG_DFL)
    }

    /// The same in a process that starts with this disposition of SIGHUP.
    fn start_with(
        dir: &TempDir,
        image: &str,
        options: &[&str],
        on_hangup: libc::sighandler_t,
    ) -> Self {
        let directory = dir.file("here");
        std::fs::create_dir_all(&directory).unwrap();
        let mut command = keel();
        // SAFETY: between fork and exec only `signal` is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(move || match libc::signal(libc::SIGHUP, on_hangup) {
                libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        let mut child = command
            .args(["flash", "mount", image])
            .arg(&directory)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let output = child.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut ready).unwrap();
        if ready.is_empty() {
            let output = child.wait_with_output().unwrap();
            panic!("not mounted: {output:?}");
        }
        Self {
            child,
            directory,
            ready,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Waits for the end. Returns the exit status and standard error.
    fn wait(&mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let mut text = String::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut text).unwrap();
        (status.code(), text)
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        detach(&self.directory);
    }
}

/// Detaches a mount whose process is gone, if there is one.
fn detach(directory: &Path) {
    let path = CString::new(directory.as_os_str().as_bytes()).unwrap();
    // SAFETY: a C string that lives until the call returns.
    unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
}

fn is_mounted(directory: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let shown = format!(" {} ", directory.display());
    mounts.lines().any(|line| line.contains(&shown))
}

fn store(dir: &TempDir) -> String {
    let image = dir.file("store.img").display().to_string();
    ok(&["flash", "format", &image, "--size", "16M", "--files", "100"]);
    image
}

/// Whether this machine allows mounting; prints the reason if not.
fn can_mount() -> bool {
    let dir = TempDir::new();
    let image = store(&dir);
    let here = dir.file("here");
    std::fs::create_dir(&here).unwrap();
    let mut child = keel()
        .args(["flash", "mount", &image])
        .arg(&here)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = child.stdout.as_mut().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    signal(&child, libc::SIGTERM);
    let output = child.wait_with_output().unwrap();
    detach(&here);
    if line.is_empty() {
        let reason = one_line(&output.stderr);
        // Any other reason is an error of ours.
        assert!(
            reason.contains("FUSE") || reason.contains("mounting failed"),
            "{reason}"
        );
        println!("skipped: {reason}");
    }
    !line.is_empty()
}

#[test]
fn a_store_is_a_directory_until_it_is_unmounted_or_told_to_stop() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new();
    let image = store(&dir);
    ok(&["flash", "put", &image, "notes", "/proc/version"]);
    for (round, stop) in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, 0]
        .into_iter()
        .enumerate()
    {
        let mut mount = Mount::start(&dir, &image, &[]);
        let expected = format!(
            "{image} is mounted on {}: files {}, free ",
            mount.directory.display(),
            round + 1
        );
        assert!(mount.ready.starts_with(&expected), "{}", mount.ready);
        assert!(mount.ready.ends_with('\n'));
        assert!(
            std::fs::read(mount.path("notes"))
                .unwrap()
                .starts_with(b"Linux")
        );
        // Not synced here: unmounting must sync it.
        std::fs::write(mount.path(&format!("made {round}")), "by a program").unwrap();
        if stop == 0 {
            let unmounted = std::process::Command::new("umount")
                .arg(&mount.directory)
                .status();
            assert!(unmounted.unwrap().success());
        } else {
            signal(&mount.child, stop);
        }
        assert_eq!(mount.wait(), (Some(0), String::new()));
        assert!(!is_mounted(&mount.directory));
        let got = ok(&["flash", "get", &image, &format!("made {round}")]);
        assert_eq!(got, b"by a program");
    }
    let report = ok_json(&["flash", "check", &image, "--json"]);
    assert_eq!(report["problems_total"], 0, "{report}");
}

#[test]
fn a_mount_under_nohup_outlives_its_terminal() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new();
    let image = store(&dir);
    let mut mount = Mount::start_with(&dir, &image, &[], libc::SIG_IGN);
    signal(&mount.child, libc::SIGHUP);
    // If SIGHUP had ended the mount, it would end before it handles the next signal.
    std::fs::write(mount.path("file"), "content").unwrap();
    assert_eq!(std::fs::read(mount.path("file")).unwrap(), b"content");
    assert!(is_mounted(&mount.directory));
    let status = std::fs::read_to_string(format!("/proc/{}/status", mount.child.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
    assert_eq!(ignored & 1, 1, "SIGHUP is still ignored");
    signal(&mount.child, libc::SIGTERM);
    assert_eq!(mount.wait(), (Some(0), String::new()));
    assert_eq!(ok(&["flash", "get", &image, "file"]), b"content");
}

#[test]
fn mounts_of_others_above_and_below_a_mount_stay() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new();
    let image = store(&dir);
    let here = dir.file("here");
    std::fs::create_dir(&here).unwrap();
    let mount_memory = || {
        let mut command = std::process::Command::new("mount");
        command.args(["-t", "tmpfs", "tmpfs"]).arg(&here);
        command.stderr(Stdio::null()).status()
    };
    if !mount_memory().is_ok_and(|status| status.success()) {
        println!("skipped: only root can mount another file system there");
        return;
    }
    let mut mount = Mount::start(&dir, &image, &[]);
    let unmounted = std::process::Command::new("umount").arg(&here).status();
    assert!(unmounted.unwrap().success());
    assert_eq!(mount.wait(), (Some(0), String::new()));
    assert!(is_mounted(&here), "what was there before");
    let mut mount = Mount::start(&dir, &image, &[]);
    assert!(mount_memory().unwrap().success());
    signal(&mount.child, libc::SIGTERM);
    let (status, text) = mount.wait();
    assert_eq!(status, Some(0));
    let told = one_line(text.as_bytes());
    let remedy = format!("clear it with `umount {}`", here.display());
    assert!(told.ends_with(&remedy), "{told}");
    // Three mounts, one above the other: an older one, our dead one, and the one above.
    for _ in 0..3 {
        assert!(is_mounted(&here));
        detach(&here);
    }
    assert!(!is_mounted(&here));
}

#[test]
fn an_open_file_does_not_delay_the_end_of_a_mount() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new();
    let image = store(&dir);
    let mut mount = Mount::start(&dir, &image, &[]);
    let mut file = File::create(mount.path("log")).unwrap();
    let gone = File::create(mount.path("gone")).unwrap();
    std::fs::remove_file(mount.path("gone")).unwrap();
    file.write_all(b"written").unwrap();
    signal(&mount.child, libc::SIGTERM);
    let (status, text) = mount.wait();
    assert_eq!(status, Some(0));
    let told = one_line(text.as_bytes());
    assert!(told.contains("2 open files lost the mount"), "{told}");
    assert!(file.write_all(b"more").is_err());
    assert!(!is_mounted(&mount.directory));
    assert_eq!(ok(&["flash", "get", &image, "log"]), b"written");
    assert_eq!(ok_json(&["flash", "stat", &image, "--json"])["files"], 1);
    drop(gone);
}

#[test]
fn options_of_a_mount_have_their_documented_effects() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new();
    let image = store(&dir);
    ok(&["flash", "put", &image, "notes", "/proc/version"]);
    let options = [
        "--read-only",
        "--mode",
        "440",
        "--uid",
        "1234",
        "--gid",
        "2345",
    ];
    let mut mount = Mount::start(&dir, &image, &options);
    assert!(mount.ready.contains(", read-only;"), "{}", mount.ready);
    let notes = std::fs::metadata(mount.path("notes")).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(
        (notes.mode() & 0o7777, notes.uid(), notes.gid()),
        (0o440, 1234, 2345)
    );
    let refused = File::create(mount.path("new")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    // Readers share the store; a writer is refused.
    assert_eq!(ok_json(&["flash", "stat", &image, "--json"])["files"], 1);
    let line = fails(&["flash", "rm", &image, "notes"], 1);
    assert!(line.contains("in use by another program"), "{line}");
    signal(&mount.child, libc::SIGTERM);
    assert_eq!(mount.wait().0, Some(0));

    let mut mount = Mount::start(&dir, &image, &["--open-files", "1", "--sync"]);
    let one = File::open(mount.path("notes")).unwrap();
    let refused = File::create(mount.path("new")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENFILE));
    drop(one);
    std::fs::write(mount.path("new"), "durable").unwrap();
    mount.kill();
    detach(&mount.directory);
    assert_eq!(ok(&["flash", "get", &image, "new"]), b"durable");

    for (options, text) in [
        (["--open-files", "0"], "--open-files"),
        (["--open-files", "1025"], "--open-files"),
        (["--mode", "1000"], "--mode"),
        (["--mode", "9"], "--mode"),
        (["--sync-seconds", "0"], "--sync-seconds"),
    ] {
        let line = fails(
            &[&["flash", "mount", &image, "/mnt"], &options[..]].concat(),
            2,
        );
        assert!(line.contains(text), "{line}");
    }
}

#[test]
fn writes_without_fsync_become_durable_after_the_interval() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new();
    let image = store(&dir);
    let mount = Mount::start(&dir, &image, &["--sync-seconds", "1"]);
    let mut file = File::create(mount.path("log")).unwrap();
    file.write_all(b"line\n").unwrap();
    // The store on the disk, as seen by a reader that uses nothing but the disk.
    wait_until("what was written", || {
        ok(&["flash", "get", &image, "log"]) == b"line\n"
    });
}

#[test]
fn a_mount_that_cannot_be_is_refused_in_one_line() {
    let dir = TempDir::new();
    let image = store(&dir);
    let here = dir.file("here");
    let path = here.to_str().unwrap();
    let file = dir.file("file");
    std::fs::write(&file, "not a store, but longer than nothing").unwrap();
    let refusal = |image: &str, directory: &str, what: &str| {
        let line = fails(&["flash", "mount", image, directory], 1);
        assert!(line.contains(what), "{line}");
        assert!(line.contains("; "), "no remedy: {line}");
    };
    refusal(&image, path, "no such file or directory");
    refusal(&image, file.to_str().unwrap(), "is not a directory");
    refusal(&image, dir.path().to_str().unwrap(), "is not empty");
    std::fs::create_dir(&here).unwrap();
    refusal(file.to_str().unwrap(), path, "not an Evenkeel flash store");
    refusal("/absent.img", path, "no such file or directory");
    refusal("/dev/null", path, "is a character device");
    if !can_mount() {
        return;
    }
    let mut mount = Mount::start(&dir, &image, &[]);
    let other = dir.file("other");
    std::fs::create_dir(&other).unwrap();
    refusal(&image, other.to_str().unwrap(), "in use by another program");
    // A second mount on the same directory would hide the first.
    std::fs::write(mount.path("x"), "").unwrap();
    let second = dir.file("second.img").display().to_string();
    ok(&[
        "flash", "format", &second, "--size", "16M", "--files", "100",
    ]);
    let there = format!("{image} is mounted there already; ");
    refusal(&second, path, &there);
    mount.kill();
    refusal(
        &image,
        path,
        "is the mount of a process that has ended; clear it with",
    );
    let line = fails(&["flash", "mount", &image, path], 1);
    assert!(line.ends_with(&format!("`umount {path}`")), "{line}");
}

#[test]
fn a_failing_device_is_told_once_and_ends_with_status_1() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new();
    // A small separate file system that becomes full below the store: writes fail with ENOSPC.
    let disk = dir.file("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=9m", "tmpfs"])
        .arg(&disk)
        .stderr(Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        println!("skipped: only root can mount a small disk");
        return;
    }
    struct Disk(PathBuf);
    impl Drop for Disk {
        fn drop(&mut self) {
            detach(&self.0);
        }
    }
    let disk = Disk(disk);
    let image = disk.0.join("store.img").display().to_string();
    ok(&[
        "flash", "format", &image, "--size", "64M", "--files", "100", "--sparse",
    ]);
    let mut mount = Mount::start(&dir, &image, &["--sync-seconds", "1"]);
    std::fs::write(mount.path("kept"), "kept").unwrap();
    File::open(mount.path("kept")).unwrap().sync_all().unwrap();
    let file = File::create(mount.path("filler")).unwrap();
    let refused = (0..64)
        .find_map(|chunk| file.write_all_at(&[7; 1 << 18], chunk << 18).err())
        .expect("the disk below has no room for this");
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    let refused = File::create(mount.path("new")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    assert_eq!(std::fs::read(mount.path("kept")).unwrap(), b"kept");
    drop(file);
    signal(&mount.child, libc::SIGTERM);
    let (status, text) = mount.wait();
    assert_eq!(status, Some(1));
    let told = one_line(text.as_bytes());
    assert!(told.contains("goes on for reading"), "{told}");
    drop(mount);
}

#[test]
fn a_killed_mount_loses_no_synced_byte() {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new();
    let image = store(&dir);
    let mut promised = 0;
    for kill in 0..KILLS {
        let mut mount = Mount::start(&dir, &image, &[]);
        for entry in std::fs::read_dir(&mount.directory).unwrap() {
            let path = entry.unwrap().path();
            let removed = std::fs::remove_file(&path);
            assert!(
                removed.is_ok(),
                "kill {kill}: {}: {removed:?}",
                path.display()
            );
        }
        let promises = Arc::new(Promises::default());
        let writers = start(&mount.directory, &promises);
        // The delay covers all phases from the first calls on; the exact moment is meant to be random.
        std::thread::sleep(Duration::from_millis(kill * 37 % 120));
        mount.kill();
        for writer in writers {
            writer.join().unwrap();
        }
        let before = promises.acknowledged();
        promised += before.total();
        detach(&mount.directory);
        let mut again = Mount::start(&dir, &image, &[]);
        judge(&again.directory, &before, &promises);
        signal(&again.child, libc::SIGTERM);
        let (status, text) = again.wait();
        assert_eq!(status, Some(0), "{text}");
    }
    let check = run(&["flash", "check", &image]);
    assert!(check.status.success(), "{check:?}");
    assert!(promised > 10_000, "{promised}");
}
