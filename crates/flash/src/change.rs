//! Changing what is there: renaming, overwriting, cutting and filling up. Being rebuilt with the next format; for
//! now each change writes the whole content anew.

use base::block::BlockDevice;

use crate::error::{Error, Result};
use crate::store::{FileHandle, Store};

/// Overwrites of up to this many bytes are atomic against a power cut.
pub const OVERWRITE_ATOMIC_BYTES_MAX: usize = 7809;

impl<D: BlockDevice> Store<D> {
    /// Gives the file called `from` the name `to`, in place of a file of that name if there is one. Durable and
    /// atomic. Handles on the renamed file stay valid; those on a file that it replaces become stale.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NameInvalid`], [`Error::NameTableFull`], [`Error::Damaged`],
    /// [`Error::Device`], [`Error::Failed`], [`Error::ReadOnly`].
    pub fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        self.find(from)?;
        if from == to {
            return Ok(());
        }
        let file = self.open_file(from)?;
        let content = self.content(file);
        let references = self.files[file.index as usize].references;
        self.close_file(file);
        self.replace(to, &content?)?;
        self.delete(from)?;
        if references > 1 {
            let kept = self.open_file(to)?;
            let moved = kept.index as usize;
            let place = file.index as usize;
            self.files.swap(moved, place);
            self.files[place].generation = file.generation;
            self.files[place].references = references - 1;
        }
        Ok(())
    }

    /// Writes `data` at byte `offset`; when this returns it is durable. A gap between the end of the file and
    /// `offset` is filled with zeros.
    ///
    /// Up to [`OVERWRITE_ATOMIC_BYTES_MAX`] bytes within the file are atomic against a power cut; of a longer
    /// write a cut may leave a prefix.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn write_at(&mut self, file: FileHandle, offset: u64, data: &[u8]) -> Result<()> {
        let mut content = self.content(file)?;
        if data.is_empty() {
            return Ok(());
        }
        let length = self.length(file)?;
        if offset >= length {
            let gap = vec![0; (offset - length) as usize];
            self.append(file, &gap)?;
            return self.append(file, data);
        }
        let end = offset as usize + data.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[offset as usize..end].copy_from_slice(data);
        self.put_content(file, &content)
    }

    /// Makes the file `length` bytes long, cutting its end off or filling it up with zeros. Durable and, when
    /// it shortens the file, atomic.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn truncate(&mut self, file: FileHandle, length: u64) -> Result<()> {
        let mut content = self.content(file)?;
        content.resize(length as usize, 0);
        self.put_content(file, &content)
    }

    /// As [`append`](Self::append), but durable only after [`sync`](Self::sync).
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn append_nosync(&mut self, file: FileHandle, data: &[u8]) -> Result<()> {
        self.append(file, data)
    }

    /// As [`write_at`](Self::write_at), but durable only after [`sync`](Self::sync).
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn write_at_nosync(&mut self, file: FileHandle, offset: u64, data: &[u8]) -> Result<()> {
        self.write_at(file, offset, data)
    }

    /// Makes durable everything that was written before.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Failed`], [`Error::ReadOnly`].
    pub fn sync(&mut self) -> Result<()> {
        self.begin_change()
    }

    fn content(&mut self, file: FileHandle) -> Result<Vec<u8>> {
        let mut content = vec![0; self.length(file)? as usize];
        self.read(file, 0, &mut content)?;
        Ok(content)
    }

    fn put_content(&mut self, file: FileHandle, content: &[u8]) -> Result<()> {
        let index = self.open_index(file)?;
        let references = self.files[index].references;
        let name = self.files[index].name.clone();
        self.replace(&name, content)?;
        let (place, state) = self.find(&name)?;
        let open = &mut self.files[index];
        open.references = references;
        open.generation = file.generation;
        open.bucket = place.bucket;
        open.entry = place.entry;
        open.state = state;
        let _ = Error::Full;
        Ok(())
    }
}
