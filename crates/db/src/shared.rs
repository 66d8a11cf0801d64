//! A slot table in a file of a region: one process writes it, others read values in place.
//!
//! **Which process serves it.** The writer makes the table in a new file. It holds the file's claim
//! ([`mem::Lent::claim`]) as long as it lives, and gives the file its name when the values are there. So a file belongs
//! to one run for ever. A reader that still has the file of the previous run keeps its memory and finds that it is not
//! claimed any more. The kernel takes the claim from a process that dies. A process that ends in order says so in the
//! table, too.
//!
//! ```no_run
//! use db::shared::TableReader;
//! use mem::Attachment;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // For reading only: this process cannot change a byte of the region.
//! let region = Attachment::open("/dev/shm/plant".as_ref(), b"/keel", false)?;
//! let table = TableReader::open(&region, "keel-latest")?;
//! let id = table.lookup("hall/1/temperature").ok_or("no such key")?;
//! // The value is looked at where the node writes it; what a write has disturbed is looked at again.
//! let (number, times) = table.with_value(id, |value| (value.float(), value.times()))?;
//! // Asked afterwards: then the value was the latest while its writer lived.
//! if table.is_live() {
//!     println!("{number:?}, measured at {} ms", times.time.ms());
//! }
//! # Ok(())
//! # }
//! ```

use base::error::Code;
use mem::{Attachment, Attributes, Lent, Line, NewInode, Node, ROOT_INODE};

use crate::error::Error;
use crate::options::{ObjectId, TableSize};
use crate::table::{InPlace, Key, MAGIC, NAPS_MAX, SlotRead, Table};

/// Prefix and suffix of the name of a table that is being made.
const DRAFT: (&str, &str) = (".", ".new");

/// Why a table in a region cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// The region refused a call.
    #[error(transparent)]
    Region(#[from] mem::Error),
    /// The memory holds no table, or the requested table is not possible.
    #[error(transparent)]
    Table(#[from] Error),
    /// Another process serves a table of this name.
    #[error("another process keeps its slot table there")]
    InUse,
    /// A file with this name is no slot table, and is not replaced.
    #[error("a file of that name is there that is no slot table")]
    NotATable,
}

impl SharedError {
    /// The one code this error maps to; see [`base::error`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Region(error) => error.code(),
            Self::Table(error) => error.code(),
            Self::InUse => Code::Busy,
            Self::NotATable => Code::Exists,
        }
    }
}

/// The writer's side of a table's file. The file is claimed as long as this lives.
pub struct SharedTable<'a> {
    attachment: &'a Attachment,
    lent: Lent<'a>,
    node: Node,
    name: String,
    draft: String,
}

impl<'a> SharedTable<'a> {
    /// Makes a file for a table of this size in the root of the region, under a temporary name. Takes its memory, which
    /// is all zeros. `mode` are permission bits of the file.
    ///
    /// # Errors
    /// [`SharedError::InUse`], [`SharedError::NotATable`]; [`SharedError::Region`], mostly with [`mem::Error::Full`];
    /// [`SharedError::Table`] for numbers that no table can have.
    pub fn make(
        attachment: &'a Attachment,
        name: &str,
        size: TableSize,
        mode: u32,
    ) -> Result<Self, SharedError> {
        let bytes = Table::lines_needed(size)? * size_of::<Line>();
        let draft = format!("{}{name}{}", DRAFT.0, DRAFT.1);
        let now_ns = mem::now_ns();
        // Its values are in the log, too, so this run can reuse the memory of the previous run.
        make_way(attachment, name, false)?;
        make_way(attachment, &draft, true)?;
        let (user, group) = base::mount::effective_ids();
        let new = NewInode {
            mode: FILE | mode & 0o777,
            user,
            group,
            now_ns,
        };
        let writer = attachment.writer()?;
        let made = writer.create(ROOT_INODE, draft.as_bytes(), &new)?;
        let lent = writer
            .set_size(made.inode, made.generation, bytes as u64, now_ns)
            .and_then(|()| attachment.lend(&made, 0, bytes as u64));
        let shared = match lent {
            Ok(lent) if lent.claim()? && size_of_val(lent.lines()) == bytes => Self {
                attachment,
                lent,
                node: made.node(),
                name: name.to_owned(),
                draft,
            },
            other => {
                // Remove the half-made file, so that it does not stand in the way later.
                drop(writer.remove(ROOT_INODE, draft.as_bytes(), now_ns));
                return Err(other.err().map_or(SharedError::InUse, SharedError::Region));
            }
        };
        Ok(shared)
    }

    /// The memory, for [`Table::create_in`].
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        self.lent.lines()
    }

    /// The file.
    #[must_use]
    pub fn node(&self) -> Node {
        self.node
    }

    /// Lets readers find the table, which must be laid out in [`lines`](Self::lines). `run` is a number that is never
    /// used again.
    ///
    /// # Errors
    /// [`SharedError::Table`] when no table has been laid out, [`SharedError::Region`].
    pub fn publish(&self, run: [u8; 16]) -> Result<(), SharedError> {
        Table::attach(self.lines())?.serve(words(run));
        let (from, to) = (self.draft.as_bytes(), self.name.as_bytes());
        let writer = self.attachment.writer()?;
        writer.rename((ROOT_INODE, from), (ROOT_INODE, to), mem::now_ns())?;
        Ok(())
    }

    /// Tells readers that the table is no longer served.
    pub fn withdraw(&self) {
        if let Ok(table) = Table::attach(self.lines()) {
            table.end_service();
        }
    }

    /// Removes the table's name. Call this when the writer no longer needs the memory. If the claim is lost, because
    /// the region's stubs were removed, the memory goes with the name.
    pub fn remove(&self) {
        for name in [&self.name, &self.draft] {
            let found = self.attachment.look_up(ROOT_INODE, name.as_bytes());
            // Another run may have taken the name, and keeps it.
            if found.is_ok_and(|found| found.node() == self.node)
                && let Ok(writer) = self.attachment.writer()
            {
                // If this fails, a table stays that says itself that it is over.
                drop(writer.remove(ROOT_INODE, name.as_bytes(), mem::now_ns()));
            }
        }
    }
}

/// Type of a regular file.
const FILE: u32 = 0o100_000;
const TYPE: u32 = 0o170_000;

/// Removes what a dead run has left. `is_draft`: no file of another owner has such a name.
fn make_way(attachment: &Attachment, name: &str, is_draft: bool) -> Result<(), SharedError> {
    let found = match attachment.look_up(ROOT_INODE, name.as_bytes()) {
        Ok(found) => found,
        Err(mem::Error::NotFound) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut first = [0; MAGIC.len()];
    let (inode, generation) = (found.inode, found.generation);
    let is_file = found.mode & TYPE == FILE;
    let is_ours = is_file && {
        let region = attachment.region();
        is_draft || region.read(inode, generation, 0, &mut first)? == 8 && first == *MAGIC
    };
    if !is_ours {
        return Err(SharedError::NotATable);
    }
    if found.size > 0 && attachment.lend(&found, 0, 1)?.is_claimed()? {
        return Err(SharedError::InUse);
    }
    let writer = attachment.writer()?;
    Ok(writer.remove(ROOT_INODE, name.as_bytes(), mem::now_ns())?)
}

fn words(run: [u8; 16]) -> [u64; 2] {
    let number = u128::from_le_bytes(run);
    [number as u64, (number >> 64) as u64]
}

/// A table that another process writes. It offers only reading: the memory may be mapped so that a store ends the
/// process.
pub struct TableReader<'a> {
    table: Table<Lent<'a>>,
    run: Option<[u64; 2]>,
}

impl<'a> TableReader<'a> {
    /// Finds a table by its name in the root of a region, which may be attached for reading only. Everything that the
    /// file says is checked before use.
    ///
    /// # Errors
    /// [`SharedError::Region`], mostly with [`mem::Error::NotFound`]; [`SharedError::NotATable`];
    /// [`SharedError::Table`] with [`Error::RegionInvalid`].
    pub fn open(attachment: &'a Attachment, name: &str) -> Result<Self, SharedError> {
        let found: Attributes = attachment.look_up(ROOT_INODE, name.as_bytes())?;
        if found.mode & TYPE != FILE {
            return Err(SharedError::NotATable);
        }
        let lent = attachment.lend(&found, 0, found.size)?;
        let table = Table::attach(lent)?;
        Ok(Self {
            run: table.served_by(),
            table,
        })
    }

    /// Returns the number of the run that serves the table; `None` if it has said that it ended.
    #[must_use]
    pub fn run(&self) -> Option<[u8; 16]> {
        let [low, high] = self.run?;
        Some((u128::from(high) << 64 | u128::from(low)).to_le_bytes())
    }

    /// Whether the run that served the table when it was opened still does. It does if the kernel says that it lives
    /// and the table does not say that it has ended. One system call. Call this after a read, not before: then the
    /// value was the latest while its writer lived.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.run.is_some()
            && self.table.served_by() == self.run
            && self.table.memory().is_claimed().unwrap_or(false)
    }

    /// The object with this key.
    #[must_use]
    pub fn lookup(&self, key: &str) -> Option<ObjectId> {
        self.table.lookup(key)
    }

    /// Ids given so far; ids are `0..objects()`.
    #[must_use]
    pub fn objects(&self) -> u32 {
        self.table.objects()
    }

    /// The key of an object; empty when it has none.
    #[must_use]
    pub fn key(&self, id: ObjectId) -> Key {
        self.table.key(id)
    }

    /// Validity interval in ms of an object, and whether it is temporal.
    #[must_use]
    pub fn validity(&self, id: ObjectId) -> (u32, bool) {
        self.table.validity(id)
    }

    /// Bytes of the longest value.
    #[must_use]
    pub fn value_bytes_max(&self) -> usize {
        self.table.value_bytes_max()
    }

    /// Copies a value into `value` and returns its times.
    ///
    /// # Errors
    /// [`Error::UnknownObject`], [`Error::NoValue`], [`Error::BufferTooSmall`]; [`Error::Stalled`] if its writer has
    /// stopped in the middle of it for 50 ms.
    pub fn read(&self, id: ObjectId, value: &mut [u8]) -> Result<SlotRead, Error> {
        self.table.read_within(id, value, NAPS_MAX)
    }

    /// Lets `look` see a value in place, without a copy, and repeats that while writes disturb it. Returns the result
    /// of the call that saw one value from beginning to end.
    ///
    /// # Errors
    /// As [`read`](Self::read), except for the buffer.
    pub fn with_value<R>(
        &self,
        id: ObjectId,
        look: impl FnMut(&InPlace<'_>) -> R,
    ) -> Result<R, Error> {
        self.table.with_value(id, NAPS_MAX, look)
    }
}

#[cfg(test)]
mod tests;
