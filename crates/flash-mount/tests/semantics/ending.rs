//! Tests the ways a mount ends, and the effect on other mounts at its directory.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Case;
use crate::support::{
    Mount, Setup, content, is_root, mount_control, mount_memory, open_with, refused,
    sees_file_system, unmount,
};

pub const CASES: &[Case] = &[
    ("umount", umount),
    ("umount-busy", umount_busy),
    ("umount-lazy", umount_lazy),
    ("umount-below", umount_below),
    ("umount-replaced", umount_replaced),
    ("moved", moved),
    ("covered", covered),
    ("aborted", aborted),
];

/// Returns whether this machine allows mounting other file systems; if not, prints the reason.
fn can_mount_memory(case: &str) -> bool {
    if !is_root() {
        println!("skipped: {case}: only root can mount and unmount by itself");
    }
    is_root()
}

/// A directory with a subdirectory `here` for mounts.
struct Place {
    top: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("keel-ending-{}-{name}", std::process::id());
        let top = std::env::temp_dir().join(name);
        std::fs::create_dir_all(top.join("here")).unwrap();
        Self { top }
    }

    fn here(&self) -> PathBuf {
        self.top.join("here")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let here = self.top.join("here");
        // Unmount as many as a test can have left.
        for _ in 0..3 {
            unmount(&here, libc::MNT_DETACH).ok();
        }
        std::fs::remove_dir_all(&self.top).ok();
    }
}

/// Mounts a store. Returns the mount, and a flag that is set when the mount has reported its end.
fn told(directory: &Path) -> (Mount, Arc<AtomicBool>) {
    let has_ended = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&has_ended);
    let mount = Mount::at(directory.to_path_buf(), move || {
        tell.store(true, Ordering::SeqCst);
    });
    (mount, has_ended)
}

fn wait_for(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

fn umount() {
    if !can_mount_memory("umount") {
        return;
    }
    let place = Place::new("umount");
    let (mount, has_ended) = told(&place.here());
    mount.put("file", b"not synced");
    assert!(!has_ended.load(Ordering::SeqCst));
    unmount(&place.here(), 0).unwrap();
    wait_for(&has_ended);
    assert!(!sees_file_system(&place.here()));
    let mut store = mount.end();
    assert_eq!(content(&mut store, "file").unwrap(), b"not synced");
}

fn umount_busy() {
    if !can_mount_memory("umount-busy") {
        return;
    }
    let place = Place::new("busy");
    let (mount, has_ended) = told(&place.here());
    let path = mount.put("file", b"content");
    let file = File::open(&path).unwrap();
    refused(unmount(&place.here(), 0), libc::EBUSY);
    assert!(!has_ended.load(Ordering::SeqCst));
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
    drop(file);
}

fn umount_lazy() {
    if !can_mount_memory("umount-lazy") {
        return;
    }
    let place = Place::new("lazy");
    let (mount, has_ended) = told(&place.here());
    let path = mount.put("file", b"content");
    let mut file = open_with(&path, libc::O_APPEND).unwrap();
    unmount(&place.here(), libc::MNT_DETACH).unwrap();
    refused(File::open(&path), libc::ENOENT);
    file.write_all(b" and more").unwrap();
    file.sync_all().unwrap();
    assert!(!has_ended.load(Ordering::SeqCst));
    drop(file);
    wait_for(&has_ended);
    let mut store = mount.end();
    assert_eq!(content(&mut store, "file").unwrap(), b"content and more");
}

fn umount_below() {
    if !can_mount_memory("umount-below") {
        return;
    }
    let place = Place::new("below");
    mount_memory(&place.here()).unwrap();
    let (mount, has_ended) = told(&place.here());
    mount.put("file", b"content");
    unmount(&place.here(), 0).unwrap();
    wait_for(&has_ended);
    // Only the upper mount is gone, also after `finish`.
    assert!(!mount.finish().was_aborted);
    assert!(sees_file_system(&place.here()));
    // The same when the program unmounts by itself.
    let (mount, _) = told(&place.here());
    let ending = mount.finish();
    assert_eq!(ending.left_at, None);
    assert!(sees_file_system(&place.here()));
    unmount(&place.here(), 0).unwrap();
    assert!(!sees_file_system(&place.here()));
}

fn umount_replaced() {
    if !can_mount_memory("umount-replaced") {
        return;
    }
    let place = Place::new("replaced");
    let (mount, _) = told(&place.here());
    let path = mount.put("file", b"content");
    let file = File::open(&path).unwrap();
    unmount(&place.here(), libc::MNT_DETACH).unwrap();
    let (next, next_has_ended) = told(&place.here());
    next.put("other", b"x");
    // The first mount ends while the second one is at its place.
    assert_eq!(mount.finish().files_open, 1);
    drop(file);
    assert_eq!(next.names(), ["other"]);
    assert!(!next_has_ended.load(Ordering::SeqCst));
    drop(next);
    // Once a mount is gone, the next one gets the same numbers.
    let (mount, has_ended) = told(&place.here());
    unmount(&place.here(), 0).unwrap();
    wait_for(&has_ended);
    mount_memory(&place.here()).unwrap();
    let ending = mount.finish();
    assert_eq!((ending.left_at, ending.was_aborted), (None, false));
    assert!(sees_file_system(&place.here()));
}

fn moved() {
    if !can_mount_memory("moved") {
        return;
    }
    let mut place = Place::new("moved");
    let (mount, has_ended) = told(&place.here());
    mount.put("file", b"content");
    let to = place.top.with_extension("to");
    std::fs::rename(&place.top, &to).unwrap();
    place.top = to;
    let path = place.here().join("file");
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
    let ending = mount.finish();
    assert_eq!((ending.left_at, ending.was_aborted), (None, false));
    wait_for(&has_ended);
    assert!(!sees_file_system(&place.here()));
}

fn covered() {
    if !can_mount_memory("covered") {
        return;
    }
    let place = Place::new("covered");
    let (mount, _) = told(&place.here());
    mount.put("file", b"content");
    let device = mount.device.clone();
    mount_memory(&place.here()).unwrap();
    std::fs::write(place.here().join("above"), "x").unwrap();
    assert_eq!(mount.finish().left_at, Some(place.here()));
    assert!(place.here().join("above").exists());
    // The store is still closed properly.
    let again = Mount::of(device, Setup::default());
    assert_eq!(std::fs::read(again.path("file")).unwrap(), b"content");
}

fn aborted() {
    if !can_mount_memory("aborted") {
        return;
    }
    let place = Place::new("aborted");
    let (mount, has_ended) = told(&place.here());
    mount.put("file", b"content");
    let connection = libc::minor(std::fs::metadata(place.here()).unwrap().dev());
    // Mount a separate view of the kernel's connections: there may be none on this machine.
    let control = Place::new("control");
    if mount_control(&control.here()).is_err() {
        println!("skipped: aborted: this kernel shows no connections");
        return;
    }
    let abort = control.here().join(format!("{connection}/abort"));
    std::fs::write(abort, "1").unwrap();
    wait_for(&has_ended);
    let device = mount.device.clone();
    let ending = mount.finish();
    assert!(ending.was_aborted);
    assert_eq!(ending.left_at, None);
    assert!(!sees_file_system(&place.here()));
    let again = Mount::of(device, Setup::default());
    assert_eq!(std::fs::read(again.path("file")).unwrap(), b"content");
}
