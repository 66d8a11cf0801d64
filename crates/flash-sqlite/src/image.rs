//! An open store that the connections of this process share, and the files in it.

use std::collections::HashMap;
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use base::block::{BlockDevice, DeviceError, FileDevice, FileDeviceOptions};
use base::error::Code;
use flash::{Error, FileHandle, OpenOptions, Store};

use crate::abi::code;
use crate::failure::Failure;
use crate::locks::{FileLocks, SharedMemory};

/// Files of one image that may be open at one time: databases, journals and logs. Connections to one file count
/// once.
pub const OPEN_FILES_MAX: usize = 128;

/// Images that may be open at one time in one process.
pub const IMAGES_MAX: usize = 32;

/// Appends of up to so many bytes wait for the write that follows. SQLite writes the head of a frame of a log by itself
/// just before its content; waiting saves one device write for each.
pub(crate) const HEAD_WAITS_BYTES_MAX: usize = 64;

/// Writes to databases and journals that follow one another wait until there are so many bytes.
pub(crate) const WAITS_BYTES_MAX: usize = 64 << 10;

/// Where images come from.
pub trait Images: Send + Sync {
    /// The one path of the image that a user calls `path`, so that two spellings are one image.
    ///
    /// # Errors
    /// What the operating system says, for instance that there is no such file.
    fn locate(&self, path: &Path) -> std::io::Result<PathBuf>;

    /// The device of the image at a located path, locked against other processes.
    ///
    /// # Errors
    /// [`DeviceError::InUse`] when another process has it, [`DeviceError::Open`] for the rest.
    fn open(&self, path: &Path, read_only: bool) -> Result<Box<dyn BlockDevice>, DeviceError>;
}

/// Images that are files, block devices or loop devices of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileImages;

impl Images for FileImages {
    fn locate(&self, path: &Path) -> std::io::Result<PathBuf> {
        path.canonicalize()
    }

    fn open(&self, path: &Path, read_only: bool) -> Result<Box<dyn BlockDevice>, DeviceError> {
        let options = FileDeviceOptions {
            read_only,
            direct: true,
            exclusive: true,
            ..FileDeviceOptions::default()
        };
        Ok(Box::new(FileDevice::open(path, &options)?))
    }
}

/// A file by name, with what its connections share. A file that is deleted and made again is another one.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) locks: Mutex<FileLocks>,
    pub(crate) memory: Mutex<SharedMemory>,
}

/// A write that waits for what follows it.
struct Held {
    file: FileHandle,
    node: Arc<Node>,
    offset: u64,
    bytes: Vec<u8>,
}

impl Held {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

struct Inner {
    store: Store<Box<dyn BlockDevice>>,
    nodes: HashMap<String, Arc<Node>>,
    held: Option<Held>,
}

/// A store that is open in this process.
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    /// Identity of the store as 32 hexadecimal digits: the first part of full names.
    pub(crate) identity: String,
    pub(crate) name_bytes_max: usize,
    pub(crate) is_read_only: bool,
    /// `None` once the image is closed.
    inner: Mutex<Option<Inner>>,
}

/// What [`Image::open_file`] is to do.
#[derive(Clone, Copy)]
pub(crate) struct Opening {
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
}

/// The mutex is held; a thread that panicked in the store has left it in a state that nobody knows.
struct Access<'a>(MutexGuard<'a, Option<Inner>>);

impl Access<'_> {
    fn inner(&mut self) -> Result<&mut Inner, Error> {
        self.0.as_mut().ok_or(Error::Failed)
    }
}

impl Image {
    fn open(images: &dyn Images, path: &Path) -> Result<Self, Failure> {
        let mut is_read_only = false;
        let device = match images.open(path, false) {
            // A medium or a user that may only read can still look.
            Err(error) if error.code() == Code::Denied => {
                is_read_only = true;
                images.open(path, true)
            }
            opened => opened,
        }
        .map_err(|error| Failure::of_device(&error))?;
        let options = OpenOptions {
            open_files_max: OPEN_FILES_MAX,
            read_only: is_read_only,
            ..OpenOptions::default()
        };
        let store = Store::open(device, &options)
            .map_err(|error| Failure::of_image(&error, &path.to_string_lossy()))?;
        let layout = store.layout();
        Ok(Self {
            path: path.to_path_buf(),
            identity: layout
                .uuid
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            name_bytes_max: usize::from(layout.name_bytes_max),
            is_read_only,
            inner: Mutex::new(Some(Inner {
                store,
                nodes: HashMap::new(),
                held: None,
            })),
        })
    }

    fn access(&self) -> Result<Access<'_>, Error> {
        match self.inner.lock() {
            Ok(guard) => Ok(Access(guard)),
            Err(_) => Err(Error::Failed),
        }
    }

    /// Runs `call` on the open store.
    fn with<T>(&self, call: impl FnOnce(&mut Inner) -> Result<T, Error>) -> Result<T, Error> {
        let mut access = self.access()?;
        call(access.inner()?)
    }

    /// Opens a file; the flag says whether this call has made it.
    pub(crate) fn open_file(
        &self,
        name: &str,
        how: Opening,
    ) -> Result<(FileHandle, Arc<Node>), Error> {
        self.with(|inner| {
            let opened = inner.store.open_file(name);
            let file = match opened {
                Ok(file) if how.exclusive => {
                    inner.store.close_file(file);
                    return Err(Error::Exists);
                }
                Err(Error::NotFound) if how.create => {
                    inner.put_held()?;
                    inner.store.create(name)?
                }
                opened => opened?,
            };
            let node = inner.nodes.entry(name.to_owned()).or_insert_with(|| {
                Arc::new(Node {
                    name: name.to_owned(),
                    locks: Mutex::default(),
                    memory: Mutex::default(),
                })
            });
            Ok((file, Arc::clone(node)))
        })
    }

    /// Closes a file. An error means that what waited is not in the store.
    pub(crate) fn close_file(&self, file: FileHandle, node: Arc<Node>) -> Result<(), Error> {
        self.with(|inner| {
            let put = if inner.holds(file) {
                inner.put_held()
            } else {
                Ok(())
            };
            if put.is_err() {
                inner.held = None;
            }
            inner.store.close_file(file);
            let is_current = inner
                .nodes
                .get(&node.name)
                .is_some_and(|current| Arc::ptr_eq(current, &node));
            // The table, the caller, and nobody else.
            if is_current && Arc::strong_count(&node) == 2 {
                inner.nodes.remove(&node.name);
            }
            put
        })
    }

    /// Reads at `offset`; returns how much of the buffer the file fills. A file that was deleted is empty.
    pub(crate) fn read(
        &self,
        file: FileHandle,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, Error> {
        self.with(|inner| {
            let count = match inner.store.read(file, offset, buffer) {
                Err(Error::StaleHandle) => 0,
                read => read?,
            };
            let Some(held) = inner.held.as_ref().filter(|held| held.file == file) else {
                return Ok(count);
            };
            let end = offset + buffer.len() as u64;
            let (from, to) = (held.offset.max(offset), held.end().min(end));
            if from >= to {
                return Ok(count);
            }
            let part = &held.bytes[(from - held.offset) as usize..(to - held.offset) as usize];
            buffer[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            // What waits begins within the file or at its end, so there is no gap before it.
            Ok(count.max((to - offset) as usize))
        })
    }

    /// Writes at `offset`; durable after [`sync`](Self::sync). Up to `waits_bytes_max` bytes may wait in memory.
    pub(crate) fn write(
        &self,
        file: FileHandle,
        node: &Arc<Node>,
        offset: u64,
        data: &[u8],
        waits_bytes_max: usize,
    ) -> Result<(), Error> {
        self.with(|inner| {
            if let Some(held) = &mut inner.held
                && held.file == file
                && held.end() == offset
                && (held.bytes.len() <= HEAD_WAITS_BYTES_MAX
                    || held.bytes.len() + data.len() <= WAITS_BYTES_MAX)
            {
                let before = held.bytes.len();
                held.bytes.extend_from_slice(data);
                if held.bytes.len() <= waits_bytes_max {
                    return Ok(());
                }
                let put = inner.put_held();
                if waits_bytes_max <= HEAD_WAITS_BYTES_MAX {
                    // A head without its content is worth nothing: SQLite writes both again.
                    inner.held = None;
                } else if let Some(held) = &mut inner.held {
                    // It failed: SQLite knows that of this write, and must not lose the one before it.
                    held.bytes.truncate(before);
                }
                return put;
            }
            if inner.holds(file) {
                inner.put_held()?;
            } else {
                inner.put_held_if_it_fits()?;
            }
            let length = inner.store.length(file)?;
            let may_wait = inner.held.is_none()
                && (offset == length || offset < length && waits_bytes_max > HEAD_WAITS_BYTES_MAX);
            if may_wait && data.len() <= waits_bytes_max {
                inner.held = Some(Held {
                    file,
                    node: Arc::clone(node),
                    offset,
                    bytes: data.to_vec(),
                });
                Ok(())
            } else {
                write_now(&mut inner.store, file, offset, data)
            }
        })
    }

    /// Gives the store what waits.
    pub(crate) fn put_waiting(&self) -> Result<(), Error> {
        self.with(Inner::put_held)
    }

    pub(crate) fn truncate(&self, file: FileHandle, length: u64) -> Result<(), Error> {
        self.with(|inner| {
            if let Some(held) = &mut inner.held
                && held.file == file
            {
                let kept = length.saturating_sub(held.offset);
                held.bytes
                    .truncate(usize::try_from(kept).unwrap_or(usize::MAX));
                if held.bytes.is_empty() {
                    inner.held = None;
                }
            }
            if inner.holds(file) {
                inner.put_held()?;
            } else {
                inner.put_held_if_it_fits()?;
            }
            if inner.store.length(file)? == length {
                return Ok(());
            }
            inner.store.truncate(file, length)
        })
    }

    /// Makes durable what was written to any file of the image.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.with(|inner| {
            inner.put_held()?;
            inner.store.sync()
        })
    }

    /// Length in bytes; a file that was deleted has none.
    pub(crate) fn length(&self, file: FileHandle) -> Result<u64, Error> {
        self.with(|inner| match inner.store.length(file) {
            Err(Error::StaleHandle) => Ok(0),
            Ok(length) => {
                let held = inner.held.as_ref().filter(|held| held.file == file);
                Ok(length.max(held.map_or(0, Held::end)))
            }
            failed => failed,
        })
    }

    /// Whether the file behind this handle was deleted.
    pub(crate) fn is_deleted(&self, file: FileHandle) -> bool {
        let length = self.with(|inner| inner.store.length(file));
        matches!(length, Err(Error::StaleHandle))
    }

    /// Length of the file called `name`.
    pub(crate) fn length_by_name(&self, name: &str) -> Result<u64, Error> {
        self.with(|inner| {
            let length = inner.store.stat(name)?.length_bytes;
            let held = inner.held.as_ref().filter(|held| held.node.name == name);
            Ok(length.max(held.map_or(0, Held::end)))
        })
    }

    pub(crate) fn delete(&self, name: &str) -> Result<(), Error> {
        self.with(|inner| {
            if inner
                .held
                .as_ref()
                .is_some_and(|held| held.node.name == name)
            {
                inner.held = None;
            }
            inner.put_held_if_it_fits()?;
            inner.store.delete(name)?;
            inner.nodes.remove(name);
            Ok(())
        })
    }

    /// Closes the store; every later call fails. Nothing that was synced depends on its success.
    fn close(&self) -> Result<(), Failure> {
        let failed = |error: &Error| Failure::of_image(error, &self.path.to_string_lossy());
        let inner = self.access().map_err(|error| failed(&error))?.0.take();
        match inner {
            Some(inner) => inner
                .store
                .close()
                .map(drop)
                .map_err(|error| failed(&error)),
            None => Ok(()),
        }
    }
}

impl Inner {
    fn holds(&self, file: FileHandle) -> bool {
        self.held.as_ref().is_some_and(|held| held.file == file)
    }

    /// Gives the store the write that waited. When that fails it goes on waiting: SQLite has been told that it
    /// was written.
    fn put_held(&mut self) -> Result<(), Error> {
        if let Some(held) = &self.held {
            match write_now(&mut self.store, held.file, held.offset, &held.bytes) {
                // Deleted in the meantime.
                Err(Error::StaleHandle) => {}
                put => put?,
            }
            self.held = None;
        }
        Ok(())
    }

    /// As [`put_held`](Self::put_held), before a call on another file, which must not fail for want of room: SQLite
    /// rolls back on a full store.
    fn put_held_if_it_fits(&mut self) -> Result<(), Error> {
        match self.put_held() {
            Err(Error::Full) => Ok(()),
            put => put,
        }
    }
}

/// Writes without waiting, as cheaply as the store can.
fn write_now(
    store: &mut Store<Box<dyn BlockDevice>>,
    file: FileHandle,
    offset: u64,
    data: &[u8],
) -> Result<(), Error> {
    if store.length(file)? == offset {
        store.append_nosync(file, data)
    } else {
        store.write_at_nosync(file, offset, data)
    }
}

/// An open image and how many files and callers need it.
type Entry = (Arc<Image>, usize);

/// The images that are open in this process.
#[derive(Default)]
pub(crate) struct Registry {
    open: Mutex<Vec<Entry>>,
}

impl Registry {
    fn entries(&self) -> Result<MutexGuard<'_, Vec<Entry>>, Failure> {
        self.open.lock().map_err(|_| {
            let text =
                "an earlier call has failed in the middle; end the process and start it again";
            Failure::new(code::CANTOPEN, Code::Io, text)
        })
    }

    /// The image at a located path, opened when nobody has it; [`release`](Self::release) it as often.
    pub(crate) fn acquire(&self, images: &dyn Images, path: &Path) -> Result<Arc<Image>, Failure> {
        // Held while the store is opened, so that two threads do not get into each other's way.
        let mut entries = self.entries()?;
        if let Some((image, users)) = entries.iter_mut().find(|(image, _)| image.path == path) {
            *users += 1;
            return Ok(Arc::clone(image));
        }
        if entries.len() >= IMAGES_MAX {
            let text = format!(
                "image {}: {IMAGES_MAX} images are open already",
                path.display()
            );
            return Err(Failure::new(code::CANTOPEN, Code::Busy, text));
        }
        let image = Arc::new(Image::open(images, path)?);
        if let Some((other, _)) = entries
            .iter()
            .find(|(other, _)| other.identity == image.identity)
        {
            let text = format!(
                "image {} is a copy of {}, which is open; close that first",
                path.display(),
                other.path.display()
            );
            image.close()?;
            return Err(Failure::new(code::BUSY, Code::Busy, text));
        }
        entries.push((Arc::clone(&image), 1));
        Ok(image)
    }

    /// Gives back what [`acquire`](Self::acquire) gave; the last one closes the store.
    pub(crate) fn release(&self, image: &Arc<Image>) -> Result<(), Failure> {
        let mut entries = self.entries()?;
        let Some(index) = entries
            .iter()
            .position(|(other, _)| Arc::ptr_eq(other, image))
        else {
            return Ok(());
        };
        entries[index].1 -= 1;
        if entries[index].1 > 0 {
            return Ok(());
        }
        entries.swap_remove(index);
        image.close()
    }

    /// The open image of this identity, or else one that `knows` the file: a database may have been copied to a
    /// store of another identity with a journal that names the old one.
    pub(crate) fn find(
        &self,
        identity: &str,
        knows: impl Fn(&Image) -> bool,
    ) -> Option<Arc<Image>> {
        let entries = self.open.lock().ok()?;
        let images = || entries.iter().map(|(image, _)| image);
        let found = images().find(|image| image.identity == identity);
        found
            .or_else(|| images().find(|image| knows(image)))
            .cloned()
    }
}

/// The code for a call that found the state of the locks unusable.
pub(crate) fn poisoned(code: c_int) -> Failure {
    Failure::new(
        code,
        Code::Io,
        "an earlier call has failed in the middle; close the connection",
    )
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
