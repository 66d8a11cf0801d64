//! Helpers that the tests share: simulated images under the VFS and images in files, connections to them, images after
//! power cuts.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod script;

use std::collections::HashMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use base::block::{BlockDevice, Counters, DeviceError, FileDevice, FileDeviceOptions, Geometry};
use base::sim::SimDevice;
use flash::{FormatOptions, Store};
use keelsqlite::abi::Sqlite;
use keelsqlite::{Images, register};
use rusqlite::{Connection, OpenFlags, ffi};

/// Name of the VFS whose images are simulated.
pub const SIM_VFS: &CStr = c"keelsim";

/// Another VFS with the same images, which does not know the images open in the first: it can open copies of open
/// images.
pub const OTHER_SIM_VFS: &CStr = c"keelsimother";

/// A device just after a write request, and the number of transactions acknowledged by then.
#[derive(Clone)]
pub struct Moment {
    pub device: SimDevice,
    pub acknowledged: usize,
}

/// A simulated device that stays when the store on it is closed.
pub struct Machine {
    pub device: SimDevice,
    /// Whether to keep a clone of the device after each write.
    pub records: bool,
    pub moments: Vec<Moment>,
    pub acknowledged: usize,
    /// Number of requests (writes and flushes) that still succeed; every later one fails as on a broken device.
    pub requests_left: Option<u64>,
    pub requests: u64,
    /// Whether the next write panics.
    pub panics: bool,
    /// Whether the medium is read-only.
    pub refuses_writing: bool,
    is_open: bool,
}

/// Shared between a test and the open store.
pub type Shared = Arc<Mutex<Machine>>;

struct SharedDevice(Shared);

impl Drop for SharedDevice {
    fn drop(&mut self) {
        self.0.lock().unwrap().is_open = false;
    }
}

impl Machine {
    fn request(&mut self) -> Result<(), DeviceError> {
        self.requests += 1;
        match &mut self.requests_left {
            Some(0) => Err(DeviceError::Io {
                operation: "write",
                first_block: 0,
                source: std::io::Error::other("simulated failure"),
            }),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl BlockDevice for SharedDevice {
    fn geometry(&self) -> Geometry {
        self.0.lock().unwrap().device.geometry()
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.0.lock().unwrap().device.read(first_block, buffer)
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        let mut machine = self.0.lock().unwrap();
        if std::mem::take(&mut machine.panics) {
            drop(machine);
            panic!("simulated panic: the test goes on");
        }
        machine.request()?;
        machine.device.write(first_block, data)?;
        if machine.records {
            let moment = Moment {
                device: machine.device.clone(),
                acknowledged: machine.acknowledged,
            };
            machine.moments.push(moment);
        }
        Ok(())
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        let mut machine = self.0.lock().unwrap();
        machine.request()?;
        machine.device.flush()
    }
    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.0
            .lock()
            .unwrap()
            .device
            .discard(first_block, block_count)
    }
    fn counters(&self) -> Counters {
        self.0.lock().unwrap().device.counters()
    }
    fn reset_write_blocks_max(&mut self) {
        self.0.lock().unwrap().device.reset_write_blocks_max();
    }
}

/// Images by the names that tests give them.
fn machines() -> &'static Mutex<HashMap<PathBuf, Shared>> {
    static MACHINES: OnceLock<Mutex<HashMap<PathBuf, Shared>>> = OnceLock::new();
    MACHINES.get_or_init(Mutex::default)
}

struct SimImages;

impl Images for SimImages {
    fn locate(&self, path: &Path) -> std::io::Result<PathBuf> {
        let known = machines().lock().unwrap().contains_key(path);
        known
            .then(|| path.to_path_buf())
            .ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    fn open(&self, path: &Path, read_only: bool) -> Result<Box<dyn BlockDevice>, DeviceError> {
        let shared = Arc::clone(&machines().lock().unwrap()[path]);
        let mut machine = shared.lock().unwrap();
        if machine.is_open {
            return Err(DeviceError::InUse {
                path: path.to_path_buf(),
            });
        }
        if machine.refuses_writing && !read_only {
            return Err(DeviceError::NotWritable {
                reason: "simulated",
            });
        }
        machine.is_open = true;
        drop(machine);
        Ok(Box::new(SharedDevice(shared)))
    }
}

/// Returns the functions of the SQLite that this program is linked with.
pub fn linked_sqlite() -> Sqlite {
    // SAFETY: the functions are those of the linked SQLite, in the required order.
    unsafe {
        Sqlite::at([
            ffi::sqlite3_vfs_find as *const (),
            ffi::sqlite3_vfs_register as *const (),
            ffi::sqlite3_uri_parameter as *const (),
            ffi::sqlite3_log as *const (),
            ffi::sqlite3_mprintf as *const (),
        ])
    }
}

/// Registers `device` under `name`, replacing one of that name that is not open.
pub fn insert(name: &str, device: SimDevice) -> Shared {
    static REGISTERED: OnceLock<()> = OnceLock::new();
    REGISTERED.get_or_init(|| {
        for name in [SIM_VFS, OTHER_SIM_VFS] {
            // SAFETY: the functions are those of the linked SQLite.
            unsafe { register(linked_sqlite(), name, Box::new(SimImages)) }.expect("registers");
        }
    });
    let shared = Arc::new(Mutex::new(Machine {
        device,
        records: false,
        moments: Vec::new(),
        acknowledged: 0,
        requests_left: None,
        requests: 0,
        panics: false,
        refuses_writing: false,
        is_open: false,
    }));
    machines()
        .lock()
        .unwrap()
        .insert(name.into(), Arc::clone(&shared));
    shared
}

pub fn remove(name: &str) {
    machines().lock().unwrap().remove(Path::new(name));
}

/// Returns a simulated device with an empty store. `identity` distinguishes stores: images of one identity are copies.
pub fn formatted(blocks: u64, identity: u8) -> SimDevice {
    let store = Store::format(SimDevice::new(blocks, 7), &options(identity)).expect("formats");
    store.close().expect("closes")
}

/// Returns the device of an image in a file.
pub fn device(path: &Path, create_bytes: Option<u64>) -> FileDevice {
    let options = FileDeviceOptions {
        create_bytes,
        exclusive: true,
        ..FileDeviceOptions::default()
    };
    FileDevice::open(path, &options).expect("opens the image")
}

/// Creates an image file with an empty store.
pub fn format(path: &Path, bytes: u64, identity: u8) {
    let store = Store::format(device(path, Some(bytes)), &options(identity)).expect("formats");
    store.close().expect("closes");
}

fn options(identity: u8) -> FormatOptions {
    FormatOptions {
        files_max: 16,
        name_bytes_max: 64,
        uuid: [identity; 16],
        hash_key: [0x17; 16],
    }
}

pub fn uri(database: &str, image: &str) -> String {
    format!("file:{database}?vfs=keelsim&image={image}")
}

pub fn connect(database: &str, image: &str) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(uri(database, image), OpenFlags::default())
}

/// Returns one value of a query.
pub fn value<T: rusqlite::types::FromSql>(
    connection: &Connection,
    sql: &str,
) -> rusqlite::Result<T> {
    connection.query_row(sql, [], |row| row.get(0))
}

/// Returns SQLite's extended code of a failed operation.
pub fn code_of(error: &rusqlite::Error) -> i32 {
    error.sqlite_error().map_or(0, |error| error.extended_code)
}

/// A folder that is removed when the test ends, in any case.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("evenkeel-sqlite-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("creates a folder");
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
