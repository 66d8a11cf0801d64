//! A mounted store on a simulated device.

// Two tests use this, and each leaves other parts unused.
#![allow(dead_code, unused_imports)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

#[path = "../../../fuse/tests/common/calls.rs"]
mod calls;

pub use calls::*;

use base::block::{BlockDevice, Counters, DeviceError, Geometry};
use base::clock::SystemClock;
use base::sim::{Keep, SimDevice};
use flash::{FormatOptions, Store};
use flash_mount::{Ending, MountError, MountOptions, Mounted, Presentation};

/// A device that the test can reach while a store owns it.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<SimDevice>>);

impl Shared {
    pub fn with<T>(&self, call: impl FnOnce(&mut SimDevice) -> T) -> T {
        call(&mut self.0.lock().unwrap())
    }
}

impl BlockDevice for Shared {
    fn geometry(&self) -> Geometry {
        self.with(|device| device.geometry())
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.with(|device| device.read(first_block, buffer))
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.with(|device| device.write(first_block, data))
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.with(|device| device.flush())
    }
    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.with(|device| device.discard(first_block, block_count))
    }
    fn counters(&self) -> Counters {
        self.with(|device| device.counters())
    }
    fn reset_write_blocks_max(&mut self) {
        self.with(|device| device.reset_write_blocks_max());
    }
}

/// What to mount.
pub struct Setup {
    pub blocks: u64,
    pub files_max: u64,
    pub name_bytes_max: u16,
    pub open_files_max: usize,
    pub is_read_only: bool,
    pub is_always_durable: bool,
    pub allows_other_users: bool,
    pub mode: u16,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            blocks: 2048,
            files_max: 200,
            name_bytes_max: 255,
            open_files_max: 16,
            is_read_only: false,
            is_always_durable: false,
            allows_other_users: false,
            mode: 0o644,
        }
    }
}

/// A mounted store. It is unmounted and removed when this is dropped, also when the test fails.
pub struct Mount {
    pub device: Shared,
    mounted: Option<Mounted<Shared>>,
    directory: PathBuf,
    /// Whether the directory was made for this mount and must be removed with it.
    is_directory_ours: bool,
    setup: Setup,
}

impl Mount {
    pub fn new() -> Self {
        Self::with(Setup::default())
    }

    pub fn with(setup: Setup) -> Self {
        Self::of(formatted(&setup), setup)
    }

    pub fn of(device: Shared, setup: Setup) -> Self {
        Self::try_of(device, setup).unwrap()
    }

    /// Mounts a new store on an existing directory; `on_end` is called when the kernel's requests are no longer
    /// answered.
    pub fn at(directory: PathBuf, on_end: impl FnOnce() + Send + Sync + 'static) -> Self {
        let setup = Setup::default();
        Self::try_at(formatted(&setup), setup, directory, on_end).unwrap()
    }

    fn try_of(device: Shared, setup: Setup) -> Result<Self, MountError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("keel-semantics-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        let mut mount =
            Self::try_at(device, setup, directory.clone(), || {}).inspect_err(|_| {
                std::fs::remove_dir(&directory).unwrap();
            })?;
        mount.is_directory_ours = true;
        Ok(mount)
    }

    fn try_at(
        device: Shared,
        setup: Setup,
        directory: PathBuf,
        on_end: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<Self, MountError> {
        let options = flash::OpenOptions {
            open_files_max: setup.open_files_max + 1,
            read_only: setup.is_read_only,
            ..flash::OpenOptions::default()
        };
        let store = Store::open(device.clone(), &options).unwrap();
        let (uid, gid) = base::mount::effective_ids();
        let options = MountOptions {
            source: "semantics".to_owned(),
            is_read_only: setup.is_read_only,
            allows_other_users: setup.allows_other_users,
            is_always_durable: setup.is_always_durable,
            open_files_max: setup.open_files_max,
            presentation: Presentation {
                mode: setup.mode,
                uid,
                gid,
            },
        };
        let clock = Box::new(SystemClock::new());
        let mounted = flash_mount::mount(store, &directory, &options, clock, on_end);
        Ok(Self {
            device,
            mounted: Some(mounted?),
            directory,
            is_directory_ours: false,
            setup,
        })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.directory.join(name.as_ref())
    }

    /// Creates a file with this content.
    pub fn put(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(&self.directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub fn mounted(&self) -> &Mounted<Shared> {
        self.mounted.as_ref().unwrap()
    }

    /// Ends the mount and returns how that went.
    pub fn finish(mut self) -> Ending {
        self.mounted.take().unwrap().end().unwrap()
    }

    /// Ends the mount, which must fail.
    pub fn end_badly(mut self) {
        self.mounted.take().unwrap().end().unwrap_err();
    }

    /// Ends the mount and opens the store.
    pub fn end(mut self) -> Store<Shared> {
        self.mounted.take().unwrap().end().unwrap();
        Store::open(self.device.clone(), &flash::OpenOptions::default()).unwrap()
    }

    /// Ends the mount and mounts the store again.
    pub fn again(mut self) -> Self {
        self.mounted.take().unwrap().end().unwrap();
        let setup = std::mem::take(&mut self.setup);
        Self::of(self.device.clone(), setup)
    }

    /// Returns the device as after a power cut at this moment that loses every unflushed write.
    pub fn after_power_cut(&self) -> Shared {
        let image = self
            .device
            .with(|device| device.crash_image(&|_| Keep::Lost));
        Shared(Arc::new(Mutex::new(image)))
    }

    /// Returns the device as after a power cut at this moment that loses a random part of the unflushed writes.
    pub fn after_some_power_cut(&self, seed: u64) -> Shared {
        let image = self.device.with(|device| device.crash_image_random(seed));
        Shared(Arc::new(Mutex::new(image)))
    }

    /// Returns the content of a file after a power cut that loses every unflushed write.
    pub fn durable(&self, name: &str) -> Option<Vec<u8>> {
        let image = self.after_power_cut();
        let mut store = Store::open(image, &flash::OpenOptions::default()).unwrap();
        content(&mut store, name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        drop(self.mounted.take());
        if self.is_directory_ours {
            // A writer that was still running may have created a file in the directory of the mount.
            std::fs::remove_dir_all(&self.directory).ok();
        }
    }
}

/// Returns a device with an empty store.
fn formatted(setup: &Setup) -> Shared {
    let options = FormatOptions {
        files_max: setup.files_max,
        name_bytes_max: setup.name_bytes_max,
        uuid: [7; 16],
        hash_key: [8; 16],
    };
    let device = Shared(Arc::new(Mutex::new(SimDevice::new(setup.blocks, 1))));
    Store::format(device.clone(), &options)
        .unwrap()
        .close()
        .unwrap();
    device
}

/// Returns the content of a file in a store, if it exists.
pub fn content(store: &mut Store<Shared>, name: &str) -> Option<Vec<u8>> {
    let file = match store.open_file(name) {
        Ok(file) => file,
        Err(flash::Error::NotFound) => return None,
        Err(error) => panic!("{name}: {error}"),
    };
    let mut bytes = vec![0; store.length(file).unwrap() as usize];
    store.read(file, 0, &mut bytes).unwrap();
    store.close_file(file);
    Some(bytes)
}

/// Returns whether mounting is possible on this machine; if not, prints the reason.
pub fn can_mount() -> bool {
    let setup = Setup::default();
    match Mount::try_of(formatted(&setup), setup) {
        Ok(_) => true,
        Err(
            error @ (MountError::Store(_) | MountError::Mount(base::mount::MountError::NotEmpty)),
        ) => panic!("{error}"),
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}
