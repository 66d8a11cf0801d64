//! A region in memory, its view, and a program that uses the region without it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use mem::{Attachment, Attributes, NewInode, ROOT_INODE, Region, RegionOptions, now_ns};
use mem_mount::{Ending, MountError, MountOptions, Mounted};

#[path = "../../../fuse/tests/common/calls.rs"]
mod calls;

pub use calls::*;

const MIB: u64 = 1 << 20;

/// Small enough for a busy machine, large enough for the data of the cases.
const CAPACITY_BYTES: u64 = 32 * MIB;

/// A region in a file of its own; a drop deletes it, with its stubs.
pub struct Place {
    folder: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("keel-view-{}-{number}", std::process::id());
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() {
            memory.join(name)
        } else {
            std::env::temp_dir().join(name)
        };
        std::fs::create_dir(&folder).unwrap();
        // Other users must pass through this folder.
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let place = Self { folder };
        std::fs::create_dir(place.directory()).unwrap();
        let options = RegionOptions {
            capacity_bytes: CAPACITY_BYTES,
            files_max: Some(1000),
            lanes: 16,
        };
        let (user, group) = base::mount::effective_ids();
        let root = NewInode {
            mode: libc::S_IFDIR | 0o755,
            user,
            group,
            now_ns: now_ns(),
        };
        drop(Region::create(&place.region(), &options, &root).unwrap());
        place
    }

    pub fn region(&self) -> PathBuf {
        self.folder.join("region")
    }

    pub fn directory(&self) -> PathBuf {
        self.folder.join("here")
    }

    pub fn attach(&self, is_writable: bool) -> Attachment {
        Attachment::open(&self.region(), b"/keel", is_writable).unwrap()
    }

    pub fn try_mount(&self, is_writable: bool) -> Result<Mounted, MountError> {
        let options = MountOptions {
            source: "semantics".to_owned(),
            allows_other_users: base::mount::effective_ids().0 == 0,
        };
        mem_mount::mount(self.attach(is_writable), &self.directory(), &options, || {})
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A mount that a failed test has left must not be emptied.
        if sees_file_system(&self.directory()) {
            unmount(&self.directory(), libc::MNT_DETACH).ok();
        }
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// A mounted region. A drop unmounts and removes it, also when the test fails.
pub struct Mount {
    mounted: Option<Mounted>,
    pub place: Place,
    /// A program that uses the region directly, as preloaded ones do.
    pub direct: Attachment,
}

impl Mount {
    pub fn new() -> Self {
        let place = Place::new();
        Self {
            mounted: Some(place.try_mount(true).unwrap()),
            direct: place.attach(true),
            place,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.place.directory().join(name)
    }

    /// Makes a file with this content.
    pub fn put(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    /// Ends the mount and returns the result.
    pub fn end(&mut self) -> Ending {
        self.mounted.take().unwrap().end()
    }

    /// Makes a file directly in the region.
    pub fn put_direct(&self, name: &str, content: &[u8]) -> Attributes {
        let new = NewInode {
            mode: libc::S_IFREG | 0o644,
            user: 0,
            group: 0,
            now_ns: now_ns(),
        };
        let writer = self.direct.writer().unwrap();
        let made = writer.create(ROOT_INODE, name.as_bytes(), &new).unwrap();
        writer
            .write(made.inode, made.generation, 0, content, now_ns())
            .unwrap();
        self.direct.look_up(ROOT_INODE, name.as_bytes()).unwrap()
    }

    /// The content of a file, directly from the region.
    pub fn content_direct(&self, name: &str) -> Vec<u8> {
        let found = self.direct.look_up(ROOT_INODE, name.as_bytes()).unwrap();
        let mut content = vec![0; found.size as usize];
        let region = self.direct.region();
        let count = region
            .read(found.inode, found.generation, 0, &mut content)
            .unwrap();
        assert_eq!(count, content.len());
        content
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        drop(self.mounted.take());
    }
}

/// Names in a directory, sorted.
pub fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Whether this machine allows mounting; prints the reason if not.
pub fn can_mount() -> bool {
    match Place::new().try_mount(true) {
        Ok(_) => true,
        Err(MountError::Mount(error)) => {
            println!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}
