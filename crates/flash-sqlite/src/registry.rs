//! The images open in this process.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use base::error::Code;

use crate::abi::code;
use crate::failure::Failure;
use crate::image::{Image, Images};

/// Maximum number of images open at one time in one process.
pub const IMAGES_MAX: usize = 32;

/// An open image and the number of files and callers that use it.
type Entry = (Arc<Image>, usize);

/// The images open in this process.
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

    /// Returns the image at a located path, and opens it if it is not open. [`release`](Self::release) it once for each
    /// call.
    pub(crate) fn acquire(&self, images: &dyn Images, path: &Path) -> Result<Arc<Image>, Failure> {
        // The lock is held while the store is opened, so that two threads do not open it at once.
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

    /// Releases an image from [`acquire`](Self::acquire); the last release closes the store.
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

    /// Returns the number of files and callers that use an image.
    pub(crate) fn users(&self, image: &Arc<Image>) -> usize {
        let entries = self.open.lock();
        let entries = entries.as_deref().map_or(&[][..], Vec::as_slice);
        let found = entries.iter().find(|(other, _)| Arc::ptr_eq(other, image));
        found.map_or(0, |(_, users)| *users)
    }

    /// Returns the open image of this identity, or else one for which `knows` finds the file. A database may have been
    /// copied to a store of another identity, with a journal that names the old one.
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
