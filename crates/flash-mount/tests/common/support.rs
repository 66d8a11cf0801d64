//! A mounted store on a simulated device, and the calls that the standard library does not have.

// Two tests use this, each in its own way.
#![allow(dead_code)]

use std::ffi::{CStr, CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

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

/// A mounted store. Unmounted and removed when it goes, also when the test fails.
pub struct Mount {
    pub device: Shared,
    mounted: Option<Mounted<Shared>>,
    directory: PathBuf,
    /// Made for this mount, so it goes with it.
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

    /// A new store on a directory that is there; `on_end` is called when nobody answers the kernel any more.
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

    /// Makes a file with this content.
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

    /// Ends the mount and answers how that went.
    pub fn finish(mut self) -> Ending {
        self.mounted.take().unwrap().end().unwrap()
    }

    /// Ends the mount, which does not go well.
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

    /// The device as a power cut would leave it at this moment that takes every write that was not flushed.
    pub fn after_power_cut(&self) -> Shared {
        let image = self
            .device
            .with(|device| device.crash_image(&|_| Keep::Lost));
        Shared(Arc::new(Mutex::new(image)))
    }

    /// The device as a power cut would leave it at this moment that takes any part of what was not flushed.
    pub fn after_some_power_cut(&self, seed: u64) -> Shared {
        let image = self.device.with(|device| device.crash_image_random(seed));
        Shared(Arc::new(Mutex::new(image)))
    }

    /// The content of a file after the power cut that takes all of it.
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
            // A writer that was still at work may have made a file where the mount was.
            std::fs::remove_dir_all(&self.directory).ok();
        }
    }
}

/// A device with an empty store.
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

/// The content of a file in a store, if it is there.
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

/// Whether this machine lets us mount; says why not.
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

/// Bytes without a pattern that a fault could hide in.
pub fn bytes(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(next).collect()
}

/// Demands that a call failed with this errno.
pub fn refused<T: std::fmt::Debug>(result: io::Result<T>, errno: i32) {
    match result {
        Err(error) if error.raw_os_error() == Some(errno) => {}
        other => panic!(
            "expected {}, got {other:?}",
            io::Error::from_raw_os_error(errno)
        ),
    }
}

pub fn is_root() -> bool {
    base::mount::effective_ids().0 == 0
}

pub fn open_with(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
}

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Mounts an empty file system in memory.
pub fn mount_memory(directory: &Path) -> io::Result<i64> {
    mount_kind(directory, c"tmpfs")
}

/// Mounts the kernel's view of its FUSE connections.
pub fn mount_control(directory: &Path) -> io::Result<i64> {
    mount_kind(directory, c"fusectl")
}

fn mount_kind(directory: &Path, kind: &CStr) -> io::Result<i64> {
    let path = c_path(directory);
    let kind = kind.as_ptr();
    // SAFETY: C strings that live until the call returns; there are no options.
    check(unsafe { libc::mount(kind, path.as_ptr(), kind, 0, std::ptr::null()) })
}

pub fn unmount(directory: &Path, flags: i32) -> io::Result<i64> {
    let path = c_path(directory);
    // SAFETY: a C string that lives until the call returns.
    check(unsafe { libc::umount2(path.as_ptr(), flags) })
}

/// Whether a file system of its own is at this directory.
pub fn sees_file_system(directory: &Path) -> bool {
    let of = |path: &Path| std::fs::metadata(path).unwrap().dev();
    of(directory) != of(directory.parent().unwrap())
}

/// The result of a call that answers -1 and sets errno when it fails.
pub fn check(result: impl Into<i64>) -> io::Result<i64> {
    match result.into() {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

pub fn mknod(path: &Path, mode: u32) -> io::Result<i64> {
    let path = c_path(path);
    // SAFETY: a C string that lives until the call returns.
    check(unsafe { libc::mknod(path.as_ptr(), mode, libc::makedev(1, 3)) })
}

pub fn rename_with(from: &Path, to: &Path, flags: u32) -> io::Result<i64> {
    let (from, to) = (c_path(from), c_path(to));
    let at = libc::AT_FDCWD;
    // SAFETY: two C strings that live until the call returns.
    check(unsafe { libc::renameat2(at, from.as_ptr(), at, to.as_ptr(), flags) })
}

pub fn statvfs(path: &Path) -> libc::statvfs {
    let path = c_path(path);
    // SAFETY: plain data, for which all zero is a valid value.
    let mut figures: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and a structure of the right type, both alive until the call returns.
    check(unsafe { libc::statvfs(path.as_ptr(), &raw mut figures) }).unwrap();
    figures
}

pub fn fallocate(file: &File, mode: i32, length: i64) -> io::Result<i64> {
    // SAFETY: the descriptor is open; the other arguments are numbers.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, length) })
}

pub fn posix_fallocate(file: &File, length: i64) -> i32 {
    // SAFETY: the descriptor is open; the other arguments are numbers.
    unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) }
}

pub fn seek(file: &File, offset: i64, whence: i32) -> io::Result<i64> {
    // SAFETY: the descriptor is open; the other arguments are numbers.
    check(unsafe { libc::lseek(file.as_raw_fd(), offset, whence) })
}

pub fn copy_range(from: &File, to: &File, length: usize) -> io::Result<i64> {
    let null = std::ptr::null_mut();
    // SAFETY: both descriptors are open; null offsets stand for the positions of the files.
    let copied =
        unsafe { libc::copy_file_range(from.as_raw_fd(), null, to.as_raw_fd(), null, length, 0) };
    check(copied as i64)
}

pub fn send(from: &File, to: &File, length: usize) -> io::Result<i64> {
    let null = std::ptr::null_mut();
    // SAFETY: both descriptors are open; a null offset stands for the position of the file.
    check(unsafe { libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), null, length) } as i64)
}

pub fn write_with(file: &File, data: &[u8], offset: usize, flags: i32) -> io::Result<i64> {
    let piece = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    // SAFETY: one piece of memory that is only read and lives until the call returns.
    check(
        unsafe { libc::pwritev2(file.as_raw_fd(), &raw const piece, 1, offset as i64, flags) }
            as i64,
    )
}

pub fn lock_file(file: &File) -> io::Result<i64> {
    // SAFETY: the descriptor is open.
    check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) })
}

/// Locks the first byte, for the opening of the file: a lock for the process would not meet another of its own.
pub fn lock_record(file: &File) -> io::Result<i64> {
    // SAFETY: plain data, for which all zero is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_len = 1;
    // SAFETY: the descriptor is open, and the lock lives until the call returns.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) })
}

pub fn sync_file_system(file: &File) -> io::Result<i64> {
    // SAFETY: the descriptor is open.
    check(unsafe { libc::syncfs(file.as_raw_fd()) })
}

pub fn get_flags(file: &File) -> io::Result<i64> {
    let mut flags: libc::c_int = 0;
    // SAFETY: the request writes one int, which lives until the call returns.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) })
}

/// The four calls about extended attributes, in turn.
pub fn attribute_calls(path: &Path) -> [io::Result<i64>; 4] {
    let path = c_path(path);
    let name = c"user.test";
    let mut buffer = [0_u8; 64];
    let space = buffer.as_mut_ptr();
    // SAFETY: C strings and a buffer of the given length, alive until the calls return.
    unsafe {
        [
            check(libc::getxattr(path.as_ptr(), name.as_ptr(), space.cast(), 64) as i64),
            check(libc::setxattr(
                path.as_ptr(),
                name.as_ptr(),
                space.cast(),
                1,
                0,
            )),
            check(libc::listxattr(path.as_ptr(), space.cast(), 64) as i64),
            check(libc::removexattr(path.as_ptr(), name.as_ptr())),
        ]
    }
}

/// A temporary file without a name, as `O_TMPFILE` makes it.
pub fn open_unnamed(directory: &Path) -> io::Result<File> {
    let path = c_path(directory);
    // SAFETY: a C string that lives until the call returns.
    let opened = check(unsafe {
        libc::open(
            path.as_ptr(),
            libc::O_TMPFILE | libc::O_RDWR,
            libc::c_uint::from(0o600_u16),
        )
    })?;
    // SAFETY: the descriptor was opened just now, and nobody else has it.
    Ok(unsafe { File::from_raw_fd(opened as i32) })
}

/// A file in memory.
pub struct Map {
    start: *mut libc::c_void,
    length: usize,
}

impl Map {
    pub fn new(file: &File, length: usize, is_writable: bool) -> Self {
        let protection = libc::PROT_READ | if is_writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping of an open file at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Self { start, length }
    }

    pub fn get(&self, offset: usize) -> u8 {
        assert!(offset < self.length);
        // SAFETY: within the mapping, which lives as long as `self`; volatile, because the file may change.
        unsafe { self.start.cast::<u8>().add(offset).read_volatile() }
    }

    pub fn set(&self, offset: usize, value: u8) {
        assert!(offset < self.length);
        // SAFETY: within the mapping, made writable by the caller, and no reference to it exists.
        unsafe { self.start.cast::<u8>().add(offset).write_volatile(value) };
    }

    pub fn sync(&self) -> io::Result<i64> {
        // SAFETY: exactly the mapping.
        check(unsafe { libc::msync(self.start, self.length, libc::MS_SYNC) })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping; `self` goes, and nobody else has its address.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

/// An open directory with the positions that `telldir` gives.
pub struct Directory(*mut libc::DIR);

impl Directory {
    pub fn open(path: &Path) -> Self {
        let path = c_path(path);
        // SAFETY: a C string that lives until the call returns.
        let stream = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!stream.is_null(), "{}", io::Error::last_os_error());
        Self(stream)
    }

    /// The next name and its inode; the error that reading ended with.
    pub fn next(&mut self) -> io::Result<Option<(String, u64)>> {
        // SAFETY: the stream is open; errno is this thread's own.
        let entry = unsafe {
            *libc::__errno_location() = 0;
            libc::readdir(self.0)
        };
        if entry.is_null() {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(0) {
                Ok(None)
            } else {
                Err(error)
            };
        }
        // SAFETY: the entry is valid until the next call on this stream; its name ends with a NUL.
        let (name, inode) = unsafe {
            let name = std::ffi::CStr::from_ptr((&raw const (*entry).d_name).cast());
            (name.to_str().unwrap().to_owned(), (*entry).d_ino)
        };
        Ok(Some((name, inode)))
    }

    pub fn position(&mut self) -> i64 {
        // SAFETY: the stream is open.
        unsafe { libc::telldir(self.0) }
    }

    pub fn go_to(&mut self, position: i64) {
        // SAFETY: the stream is open, and the position came from it.
        unsafe { libc::seekdir(self.0, position) };
    }

    pub fn rewind(&mut self) {
        // SAFETY: the stream is open.
        unsafe { libc::rewinddir(self.0) };
    }

    /// All further names but `.` and `..`.
    pub fn rest(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        while let Some((name, _)) = self.next().unwrap() {
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: the stream is open and not used any more.
        unsafe { libc::closedir(self.0) };
    }
}
