//! The position of an open file description. It lies in the region, for all processes that share it. If the region is
//! read-only, it lies in one of two other places. For a file opened here, it is the kernel's position of the
//! descriptor, which `dup`, `fork`, `exec` and `SCM_RIGHTS` share as they must. For a file that a writer has opened and
//! passed on, it is this process's own position, because the writer's cannot be changed from here.
//!
//! A file opened here is a descriptor of the file's stub, if there is one. Otherwise it is an empty memory file, whose
//! name contains the inode. In both cases the kernel's position is [`READING_BASE`] or more, which shows that no
//! description of the region belongs to them.

use std::ffi::CStr;
use std::io::{IoSliceMut, Write as _};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::attach::Attachment;
use crate::error::{Error, Result, system_error};
use crate::inode::Attributes;
use crate::node::Node;
use crate::open::{Opened, entry};
use crate::stub::{Seen, StubName, lock_description, look_at};

/// The kernel's position of a descriptor at byte 0 of its file. Smaller values are numbers of descriptions.
const READING_BASE: u64 = 1 << 20;

/// In the number of a description: it is not in the region, and the low bits are the descriptor.
const BY_KERNEL: u32 = 1 << 31;

/// Prefix of the name of a memory file that stands for a file of a region. The region's and the file's numbers follow.
const MARK: &str = "keelmem";

impl Opened {
    fn by_kernel(descriptor: RawFd, node: Node, is_directory: bool, flags: libc::c_int) -> Self {
        let kind = if is_directory { libc::O_DIRECTORY } else { 0 };
        Self {
            description: BY_KERNEL | descriptor as u32,
            node,
            flags: flags & (libc::O_ACCMODE | libc::O_PATH) | kind,
        }
    }

    /// The descriptor whose kernel position counts; `None` if the region has the position.
    #[inline]
    pub(crate) fn descriptor(self) -> Option<RawFd> {
        (self.description & BY_KERNEL != 0).then_some((self.description & !BY_KERNEL) as RawFd)
    }

    /// The value to remember for `descriptor`, which has the same open file description.
    #[must_use]
    pub fn for_descriptor(mut self, descriptor: RawFd) -> Self {
        if self.description & BY_KERNEL != 0 {
            self.description = BY_KERNEL | descriptor as u32;
        }
        self
    }

    /// The number of the description; 0 if it is not in the region.
    pub(crate) fn number(self) -> u32 {
        self.descriptor().map_or(self.description, |_| 0)
    }
}

/// The place that holds a description's position.
enum Standing<'a> {
    /// In the region, at this offset.
    Region(u64),
    /// In this process.
    Own(&'a AtomicU64),
    /// In the kernel.
    Kernel(RawFd),
}

/// Moves the kernel's position of a descriptor, and returns it.
fn kernel_seek(descriptor: RawFd, offset: i64, whence: libc::c_int) -> Result<u64> {
    // SAFETY: plain numbers; the kernel checks the descriptor.
    let position = unsafe { libc::lseek64(descriptor, offset, whence) };
    if position < 0 {
        return Err(Error::System {
            path: "/proc/self/fd".into(),
            what: "a descriptor has no position",
            source: std::io::Error::last_os_error(),
        });
    }
    Ok((position as u64).saturating_sub(READING_BASE))
}

impl Attachment {
    /// Whether the description's position is a word of the region that this process may store into.
    #[inline]
    pub(crate) fn stands_in_region(&self, opened: &Opened) -> bool {
        opened.description & BY_KERNEL == 0 && self.region().is_writable()
    }

    fn standing(&self, opened: &Opened) -> Standing<'_> {
        if let Some(descriptor) = opened.descriptor() {
            return Standing::Kernel(descriptor);
        }
        if !self.region().is_writable() {
            let region = self.region();
            let word = |word| region.description_word(opened.description, word);
            let count = region.layout.description_count;
            let own = self
                .own_positions
                .of(count, opened.description, word(entry::CLAIM), || {
                    word(entry::OFFSET)
                });
            if let Some(own) = own {
                return Standing::Own(own);
            }
        }
        Standing::Region(self.offset_at(opened))
    }

    fn position(&self, opened: &Opened) -> Result<u64> {
        Ok(match self.standing(opened) {
            Standing::Region(at) => self.region().memory.load(at),
            Standing::Own(own) => own.load(Ordering::Relaxed),
            Standing::Kernel(descriptor) => kernel_seek(descriptor, 0, libc::SEEK_CUR)?,
        })
    }

    fn set_position(&self, opened: &Opened, position: u64) -> Result<()> {
        match self.standing(opened) {
            Standing::Region(at) => self.region().memory.store(at, position),
            Standing::Own(own) => own.store(position, Ordering::Relaxed),
            Standing::Kernel(descriptor) => {
                let at = i64::try_from(position.saturating_add(READING_BASE));
                let at = at.map_err(|_| Error::Invalid {
                    what: "a position behind what the kernel counts to",
                })?;
                kernel_seek(descriptor, at, libc::SEEK_SET)?;
            }
        }
        Ok(())
    }

    /// Reads at the position of a description that is not in the region, and advances it.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    #[cold]
    pub(crate) fn read_elsewhere(
        &self,
        opened: &Opened,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<usize> {
        let descriptor = match self.standing(opened) {
            Standing::Kernel(descriptor) => descriptor,
            Standing::Own(own) => loop {
                let offset = own.load(Ordering::Relaxed);
                let count = self.read_vectored_at(opened, offset, into)?;
                let end = offset + count as u64;
                let moved = own.compare_exchange(offset, end, Ordering::AcqRel, Ordering::Relaxed);
                if moved.is_ok() {
                    return Ok(count);
                }
            },
            Standing::Region(_) => return Err(Error::NotOpenFor),
        };
        let wanted: usize = into.iter().map(|part| part.len()).sum();
        let size = self.region().attributes(opened.node.inode)?.size;
        let left = size.saturating_sub(kernel_seek(descriptor, 0, libc::SEEK_CUR)?);
        // Advance first, by one call: another reader of the same description then reads behind this part.
        let part = left.min(wanted as u64) as i64;
        let end = kernel_seek(descriptor, part, libc::SEEK_CUR)?;
        let read = self.read_vectored_at(opened, end.saturating_sub(part as u64), into);
        let count = read.as_ref().map_or(0, |count| *count as i64);
        if count != part {
            // The file's size has changed meanwhile.
            kernel_seek(descriptor, count - part, libc::SEEK_CUR)?;
        }
        read
    }

    /// Moves the description's position, as `lseek` does. Returns the new position.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::NoBytes`] for `SEEK_DATA` and `SEEK_HOLE` behind the end.
    pub fn seek(&self, opened: &Opened, offset: i64, whence: libc::c_int) -> Result<u64> {
        let region = self.region();
        let invalid = Error::Invalid {
            what: "a position before the beginning of the file, or an unknown way to count",
        };
        let size = || region.attributes(opened.node.inode).map(|now| now.size);
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => self.position(opened)?,
            libc::SEEK_END => size()?,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let size = size()?;
                let at = u64::try_from(offset)
                    .ok()
                    .filter(|at| *at < size)
                    .ok_or(Error::NoBytes)?;
                let Node { inode, generation } = opened.node;
                let found = if whence == libc::SEEK_DATA {
                    region.next_data(inode, generation, at)?
                } else {
                    region.next_hole(inode, generation, at)?
                }
                .ok_or(Error::NoBytes)?;
                self.set_position(opened, found)?;
                return Ok(found);
            }
            _ => return Err(invalid),
        };
        let Some(new) = from
            .checked_add_signed(offset)
            .filter(|new| i64::try_from(*new).is_ok())
        else {
            return Err(invalid);
        };
        if whence != libc::SEEK_CUR || offset != 0 {
            self.set_position(opened, new)?;
        }
        Ok(new)
    }

    /// Opens a file of a read-only region. A descriptor of the stub keeps a deleted file, and has its locks. The memory
    /// file that is used without a stub does neither.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::System`], for example when the process has no descriptor left.
    pub(crate) fn open_for_reading(
        &self,
        attributes: &Attributes,
        flags: libc::c_int,
    ) -> Result<(RawFd, Opened)> {
        if flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(Error::ReadOnly);
        }
        let stub = if flags & libc::O_PATH == 0 {
            self.open_stub_for_reading(attributes, flags)
        } else {
            // `O_PATH` can only be recorded in the memory file's name.
            None
        };
        match stub {
            Some(found) => Ok(found),
            None => self.open_nameless(attributes, flags),
        }
    }

    /// As [`open_for_reading`](Self::open_for_reading), if there is a stub.
    pub(crate) fn open_stub_for_reading(
        &self,
        attributes: &Attributes,
        flags: libc::c_int,
    ) -> Option<(RawFd, Opened)> {
        let stubs = self.region().stubs.as_ref()?;
        let node = attributes.node();
        let is_directory = attributes.is_directory();
        let name = StubName::new(node, is_directory);
        let stub = stubs
            .open_existing(&name, is_directory, flags & libc::O_CLOEXEC != 0)
            .ok()?;
        // All read-only users share byte 0, which belongs to no description.
        lock_description(stub.as_raw_fd(), 0).ok()?;
        kernel_seek(stub.as_raw_fd(), READING_BASE as i64, libc::SEEK_SET).ok()?;
        Some(taken_out(stub, node, is_directory, flags))
    }

    fn open_nameless(
        &self,
        attributes: &Attributes,
        flags: libc::c_int,
    ) -> Result<(RawFd, Opened)> {
        let region = self.region();
        let system = system_error(&region.path, "a file without a stub cannot be opened");
        let node = attributes.node();
        let is_directory = attributes.is_directory();
        let own = look_at(region.file.as_raw_fd()).map_err(&system)?;
        let mut name = [0; 160];
        let stub = StubName::new(node, is_directory);
        let kind = if flags & libc::O_PATH == 0 { 'r' } else { 'p' };
        let written = write!(
            &mut name[..159],
            "{MARK}-{kind}-{:x}-{:x}-{}",
            own.device,
            own.number,
            stub.as_c_string().to_str().unwrap_or_default()
        );
        written.map_err(&system)?;
        let last = || std::io::Error::last_os_error();
        // SAFETY: a string that ends in zero: the last byte was not written to.
        let made = unsafe { libc::memfd_create(name.as_ptr().cast(), libc::MFD_CLOEXEC) };
        if made < 0 {
            return Err(system(last()));
        }
        // SAFETY: made just now, and no other code knows it.
        let made = unsafe { OwnedFd::from_raw_fd(made) };
        let mut path = [0; 40];
        write!(&mut path[..39], "/proc/self/fd/{}", made.as_raw_fd()).map_err(&system)?;
        let how = libc::O_RDONLY | flags & libc::O_CLOEXEC;
        // Open it again, read-only: a program without this library that inherits the descriptor must not write there.
        // SAFETY: a string that ends in zero.
        let opened = unsafe { libc::open(path.as_ptr().cast(), how) };
        if opened < 0 {
            return Err(system(last()));
        }
        // SAFETY: opened just now, and no other code knows it.
        let opened = unsafe { OwnedFd::from_raw_fd(opened) };
        // Programs expect the lowest free number.
        let (low, high) = (made.as_raw_fd(), opened.as_raw_fd());
        let opened = if low < high {
            // SAFETY: plain numbers, both open, and not used elsewhere.
            if unsafe { libc::dup3(high, low, how & libc::O_CLOEXEC) } < 0 {
                return Err(system(last()));
            }
            made
        } else {
            opened
        };
        kernel_seek(opened.as_raw_fd(), READING_BASE as i64, libc::SEEK_SET)?;
        Ok(taken_out(opened, node, is_directory, flags))
    }

    /// The file of a descriptor that was opened on a read-only region, here or in another process.
    pub(crate) fn opened_for_reading(&self, descriptor: RawFd, seen: &Seen) -> Option<Opened> {
        let region = self.region();
        let stubs = region.stubs.as_ref();
        let is_stub = stubs.is_some_and(|stubs| stubs.device == seen.device);
        if !is_stub && seen.links != 0 {
            return None;
        }
        // SAFETY: plain numbers; the kernel checks the descriptor.
        let position = unsafe { libc::lseek64(descriptor, 0, libc::SEEK_CUR) };
        if u64::try_from(position).ok()? < READING_BASE {
            return None;
        }
        let mut link = [0; 40];
        write!(&mut link[..39], "/proc/self/fd/{descriptor}").ok()?;
        let mut path = [0_u8; libc::PATH_MAX as usize];
        // SAFETY: a string that ends in zero, and a buffer of the given length.
        let length =
            unsafe { libc::readlink(link.as_ptr().cast(), path.as_mut_ptr().cast(), path.len()) };
        let path = path.get(..usize::try_from(length).ok()?)?;
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        let (name, flags) = match path.strip_prefix(b"/memfd:") {
            Some(name) => {
                let own = look_at(region.file.as_raw_fd()).ok()?;
                name_of_nameless(name, own.device, own.number)?
            }
            None => {
                let folder = stubs.filter(|_| is_stub)?.path().as_os_str().as_bytes();
                (path.strip_prefix(folder)?.strip_prefix(b"/")?, 0)
            }
        };
        let (node, is_directory) = StubName::parse(name)?;
        let found = region.attributes(node.inode).ok();
        // A descriptor of a removed directory is still valid.
        if found.is_none_or(|found| found.generation != node.generation) && !is_directory {
            return None;
        }
        Some(Opened::by_kernel(descriptor, node, is_directory, flags))
    }

    /// Flags of a description in the kernel, as `fcntl` returns them.
    pub(crate) fn kernel_flags(&self, descriptor: RawFd) -> libc::c_int {
        // SAFETY: plain numbers; the kernel checks the descriptor.
        unsafe { libc::fcntl(descriptor, libc::F_GETFL) }.max(0)
    }

    /// Sets the flags that can change.
    pub(crate) fn set_kernel_flags(&self, descriptor: RawFd, flags: libc::c_int) {
        // SAFETY: as above.
        unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags) };
    }
}

/// Hands the descriptor to the caller, which owns it from here on.
fn taken_out(
    descriptor: OwnedFd,
    node: Node,
    is_directory: bool,
    flags: libc::c_int,
) -> (RawFd, Opened) {
    use std::os::fd::IntoRawFd;
    let descriptor = descriptor.into_raw_fd();
    let opened = Opened::by_kernel(descriptor, node, is_directory, flags);
    (descriptor, opened)
}

/// The stub name in a memory file's name, and `O_PATH` if it was opened so. `None` for memory files of other programs
/// and of other regions.
fn name_of_nameless(name: &[u8], device: u64, number: u64) -> Option<(&[u8], libc::c_int)> {
    let rest = name.strip_prefix(MARK.as_bytes())?.strip_prefix(b"-")?;
    let (kind, rest) = rest.split_first()?;
    let flags = match kind {
        b'r' => 0,
        b'p' => libc::O_PATH,
        _ => return None,
    };
    let mut region = [0; 64];
    write!(&mut region[..63], "-{device:x}-{number:x}-").ok()?;
    let region = CStr::from_bytes_until_nul(&region).ok()?.to_bytes();
    Some((rest.strip_prefix(region)?, flags))
}
