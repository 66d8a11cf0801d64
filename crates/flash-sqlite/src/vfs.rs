//! A registered VFS: the images open in this process, and the names of their files.
//!
//! Full names are `IDENTITY/name`, where `IDENTITY` is the identity of the store. SQLite derives the names of journals
//! from them, compares them to tell databases apart, and writes the name of a super-journal into journals. So they must
//! differ between images, and must not change when an image is moved.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use base::error::Code;

use crate::abi::{Sqlite, SqliteVfs, code};
use crate::failure::Failure;
use crate::image::{Image, Images};
use crate::process::{PerProcess, Process};
use crate::registry::Registry;

/// Name under which the extension registers its VFS.
pub const VFS_NAME: &CStr = c"keel";

/// Hexadecimal digits of an identity in a full name.
pub(crate) const IDENTITY_DIGITS: usize = 32;

/// The longest suffix that SQLite adds to the name of a database: `-mj` and nine characters.
const ENDING_BYTES_MAX: usize = 12;

/// The state of one registered VFS. Never freed: SQLite may call it as long as the process runs.
pub(crate) struct Vfs {
    pub(crate) sqlite: Sqlite,
    pub(crate) name: CString,
    pub(crate) process: PerProcess<State>,
    pub(crate) images: Box<dyn Images>,
    /// The default VFS when this one was registered.
    pub(crate) parent: *mut SqliteVfs,
    pub(crate) connections: AtomicU64,
}

/// The state of one process.
#[derive(Default)]
pub(crate) struct State {
    registry: Registry,
    /// An image opened to find a full name, kept for the following opening of the database.
    parked: Mutex<Option<ImageUse>>,
    last_failure: Mutex<Option<Failure>>,
}

// SAFETY: SQLite calls methods of a VFS from any thread, so `parent` allows it; the rest is Sync by itself.
unsafe impl Sync for Vfs {}
// SAFETY: as above.
unsafe impl Send for Vfs {}

impl Vfs {
    /// Returns the VFS behind a pointer that SQLite passes to one of its methods.
    ///
    /// # Safety
    /// `object` must be one that [`register`](crate::register) made.
    pub(crate) unsafe fn of(object: *mut SqliteVfs) -> &'static Self {
        // SAFETY: `register` stored a reference that is never freed.
        unsafe { &*(*object).app_data.cast::<Self>() }
    }

    fn state(&self) -> &State {
        self.process.get()
    }

    /// Runs a method. A failure is recorded and logged, and a panic is caught here.
    pub(crate) fn guard(
        &self,
        otherwise: c_int,
        call: impl FnOnce() -> Result<c_int, Failure>,
    ) -> c_int {
        let failure = match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(code)) => return code,
            Ok(Err(failure)) => failure,
            Err(_) => Failure::new(
                otherwise,
                Code::Io,
                "a call has failed in the middle; close the connection",
            ),
        };
        let code = failure.code;
        if let Ok(text) = CString::new(failure.text.as_str()) {
            // SAFETY: the format takes one string, which lives until the call returns.
            unsafe { (self.sqlite.log)(code, c"keel: %s".as_ptr(), text.as_ptr()) };
        }
        if let Ok(mut last) = self.state().last_failure.lock() {
            *last = Some(failure);
        }
        code
    }

    /// Returns the text of the last failure, for people.
    pub(crate) fn last_failure_text(&self) -> Option<String> {
        let last = self.state().last_failure.lock().ok()?;
        last.as_ref().map(|failure| failure.text.clone())
    }

    /// Returns the errno of the last failure, 0 before the first.
    pub(crate) fn last_errno(&self) -> c_int {
        let last = self.state().last_failure.lock();
        last.ok()
            .and_then(|last| last.as_ref().map(|failure| failure.errno))
            .unwrap_or(0)
    }

    /// Returns the path of the image in a database's URI.
    pub(crate) fn image_parameter(&self, name: *const c_char) -> Option<&Path> {
        // SAFETY: SQLite keeps the parameters of a URI behind the name of a database, and ends every other name in a
        // way that shows no parameters.
        let value = unsafe { (self.sqlite.uri_parameter)(name, c"image".as_ptr()) };
        if value.is_null() {
            return None;
        }
        // SAFETY: a string that SQLite keeps at least until the call returns.
        let value = unsafe { CStr::from_ptr(value) }.to_bytes();
        (!value.is_empty()).then(|| Path::new(OsStr::from_bytes(value)))
    }

    pub(crate) fn acquire_by_parameter(&'static self, path: &Path) -> Result<ImageUse, Failure> {
        let located = self.images.locate(path).map_err(|error| {
            let text = format!("image {}: {error}", path.display());
            Failure::new(code::CANTOPEN, Code::from_io(&error), text)
        })?;
        self.acquire(&located)
    }

    pub(crate) fn acquire(&'static self, located: &Path) -> Result<ImageUse, Failure> {
        let image = self.state().registry.acquire(&*self.images, located)?;
        Ok(ImageUse {
            vfs: self,
            image: ManuallyDrop::new(image),
            process: Process::current(),
        })
    }

    /// Keeps `image` for the coming opening, and releases the one kept before.
    pub(crate) fn park(&self, image: Option<ImageUse>) {
        let before = match self.state().parked.lock() {
            Ok(mut parked) => std::mem::replace(&mut *parked, image),
            Err(_) => image,
        };
        // Drop it here, where the mutex is free: this may be the last use, which closes the store.
        drop(before);
    }

    /// Releases an image that was kept for an opening that did not come, because SQLite had the database open already,
    /// if nothing else uses it. Otherwise it would stay locked against other processes.
    pub(crate) fn unpark_if_last(&self, image: &Arc<Image>) {
        let last = match self.state().parked.lock() {
            Ok(mut parked) => parked.take_if(|parked| {
                Arc::ptr_eq(&parked.image, image) && self.state().registry.users(image) == 1
            }),
            Err(_) => None,
        };
        drop(last);
    }

    /// Returns the open image that holds a full name, or a name kept in a journal, and the name within it.
    pub(crate) fn find<'a>(&self, name: &'a str) -> Option<(Arc<Image>, &'a str)> {
        let (identity, flat) = split_full_name(name)?;
        let image = self
            .state()
            .registry
            .find(identity, |image| image.length_by_name(flat).is_ok())?;
        Some((image, flat))
    }

    pub(crate) fn full_pathname(&'static self, name: *const c_char) -> Result<String, Failure> {
        // SAFETY: SQLite passes a string.
        let given = text_of(unsafe { CStr::from_ptr(name) })?;
        let Some(path) = self.image_parameter(name) else {
            if self.find(given).is_some() {
                return Ok(given.to_owned());
            }
            let vfs = self.name.to_string_lossy();
            let text = if given.contains('/') {
                // `ATTACH` passes such a name; it uses the VFS of the main database.
                format!(
                    "{given}: no image is named; open 'file:NAME?vfs={vfs}&image=/path/to/image', or a database \
                     outside of images by 'file:{given}?vfs=unix'"
                )
            } else {
                format!(
                    "{given}: no image is named; open 'file:{given}?vfs={vfs}&image=/path/to/image'"
                )
            };
            return Err(Failure::new(code::CANTOPEN, Code::Invalid, text));
        };
        let flat = split_full_name(given).map_or(given, |(_, flat)| flat);
        let refused = |reason: &str| {
            Err(Failure::new(
                code::CANTOPEN,
                Code::Invalid,
                format!("{given}: {reason}"),
            ))
        };
        if flat.contains('/') {
            return refused("names in a store are flat; write file:NAME?..., without slashes");
        }
        let image = self.acquire_by_parameter(path)?;
        let name_bytes_max = image.name_bytes_max.saturating_sub(ENDING_BYTES_MAX);
        if flat.len() > name_bytes_max {
            return refused(&format!(
                "the name is too long; in this store databases have at most {name_bytes_max} bytes"
            ));
        }
        let full = format!("{}/{flat}", image.identity);
        self.park(Some(image));
        Ok(full)
    }
}

/// A use of an image, which stays open at least as long as this value lives.
pub(crate) struct ImageUse {
    vfs: &'static Vfs,
    image: ManuallyDrop<Arc<Image>>,
    /// The process that has opened it.
    pub(crate) process: Process,
}

impl Deref for ImageUse {
    type Target = Image;
    fn deref(&self) -> &Image {
        &self.image
    }
}

impl Drop for ImageUse {
    fn drop(&mut self) {
        if self.process != Process::current() {
            // The image belongs to the parent, and stays in the memory of this child unchanged.
            return;
        }
        // The last release closes the store. No synced data depends on that, so a failure is only recorded.
        self.vfs.guard(code::IOERR, || {
            let registry = &self.vfs.state().registry;
            registry.release(&self.image).map(|()| code::OK)
        });
        self.vfs.unpark_if_last(&self.image);
        // SAFETY: the owner is being dropped, so the image is not used again.
        unsafe { ManuallyDrop::drop(&mut self.image) };
    }
}

pub(crate) fn text_of(name: &CStr) -> Result<&str, Failure> {
    name.to_str().map_err(|_| {
        let text = format!("{}: names in a store are UTF-8", name.to_string_lossy());
        Failure::new(code::CANTOPEN, Code::Invalid, text)
    })
}

/// Splits a full name into identity and flat name.
pub(crate) fn split_full_name(name: &str) -> Option<(&str, &str)> {
    let (identity, flat) = name.split_once('/')?;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_identity = identity.len() == IDENTITY_DIGITS && identity.bytes().all(is_digit);
    (is_identity && !flat.is_empty() && !flat.contains('/')).then_some((identity, flat))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_names_are_told_from_paths() {
        let identity = "0123456789abcdef0123456789abcdef";
        let full = format!("{identity}/plant.db-journal");
        assert_eq!(split_full_name(&full), Some((identity, "plant.db-journal")));
        for other in [
            "plant.db",
            "/tmp/plant.db",
            "0123/plant.db",
            &format!("{identity}/"),
            &format!("{identity}/a/b"),
            &format!("{}/a", identity.to_uppercase()),
        ] {
            assert_eq!(split_full_name(other), None, "{other}");
        }
    }
}
