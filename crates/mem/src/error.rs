//! The errors of this crate, as a caller can tell them apart.

use std::path::{Path, PathBuf};

use base::error::Code;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call on a region failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file of the region could not be created, opened, mapped or filled.
    #[error("{}: {what}: {source}", path.display())]
    System {
        /// The region's file.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Not a region.
    #[error("{}: not a region", path.display())]
    NotARegion {
        /// The file.
        path: PathBuf,
    },
    /// A region of a format that this version does not know.
    #[error("{}: format {found} is not supported, only {supported}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format that this version supports.
        supported: u32,
    },
    /// A table of the region holds an impossible value.
    #[error("damaged at byte {at}: {what}")]
    Damaged {
        /// Offset from the beginning of the region's file.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// A bad argument.
    #[error("{what}")]
    Invalid {
        /// What a valid argument is.
        what: &'static str,
    },
    /// No memory is left for file data.
    #[error("the region is full")]
    Full,
    /// No inode or no cell for a name is left.
    #[error("the region has no room for another file or name")]
    TablesFull,
    /// All lanes are taken by live writers.
    #[error("too many threads use the region at the same time: all of its lanes are taken")]
    LanesFull,
    /// No file of that name.
    #[error("no such file or directory")]
    NotFound,
    /// There is a file of that name already.
    #[error("exists already")]
    Exists,
    /// A part of the path is no directory.
    #[error("not a directory")]
    NotADirectory,
    /// The operation is not for directories.
    #[error("is a directory")]
    IsADirectory,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// A directory cannot be moved into itself.
    #[error("a directory cannot be moved into itself")]
    IntoItself,
    /// A name is longer than 255 bytes.
    #[error("a name has at most 255 bytes")]
    NameTooLong,
    /// The file has been deleted since it was found.
    #[error("the file has been deleted")]
    Stale,
    /// More bytes than a file can have.
    #[error("the file would be too large")]
    TooLarge,
    /// The region is attached for reading only.
    #[error("attached for reading only")]
    ReadOnly,
    /// The file's permissions do not allow the operation.
    #[error("permission denied")]
    Denied,
    /// Only the owner may do this.
    #[error("only the owner may do that")]
    NotOwner,
    /// The file is not open for this operation.
    #[error("not open for that")]
    NotOpenFor,
    /// A path leads through more symbolic links than the limit.
    #[error("too many symbolic links")]
    LinksTooMany,
    /// No more files can be open at the same time.
    #[error("too many files of the region are open")]
    DescriptionsFull,
    /// The region is used by processes of another namespace, whose numbers mean nothing here.
    #[error("{}: used in another namespace of processes; mount it there and use the mount here", path.display())]
    Namespace {
        /// The region's file.
        path: PathBuf,
    },
    /// A position behind the end of the file, or behind its last bytes.
    #[error("no bytes there")]
    NoBytes,
}

impl Error {
    /// The project-wide code of this error.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::System { source, .. } => match source.raw_os_error() {
                Some(libc::ENOENT) => Code::NotFound,
                Some(libc::EACCES | libc::EPERM) => Code::Denied,
                Some(libc::ENOSPC | libc::ENOMEM) => Code::Full,
                Some(libc::EEXIST) => Code::Exists,
                _ => Code::Io,
            },
            Self::NotARegion { .. } | Self::Damaged { .. } => Code::Corrupt,
            Self::Version { .. } => Code::Unsupported,
            Self::Invalid { .. }
            | Self::NotADirectory
            | Self::IsADirectory
            | Self::IntoItself
            | Self::NameTooLong
            | Self::TooLarge => Code::Invalid,
            Self::Full | Self::TablesFull => Code::Full,
            Self::LanesFull | Self::NotEmpty => Code::Busy,
            Self::NotFound => Code::NotFound,
            Self::Exists => Code::Exists,
            Self::Stale => Code::Stale,
            Self::ReadOnly
            | Self::Denied
            | Self::NotOwner
            | Self::NotOpenFor
            | Self::Namespace { .. } => Code::Denied,
            Self::LinksTooMany | Self::NoBytes => Code::Invalid,
            Self::DescriptionsFull => Code::Full,
        }
    }

    /// errno, positive, as a kernel file system returns it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::TablesFull | Self::Full => libc::ENOSPC,
            Self::LanesFull => libc::ENOLCK,
            Self::NotADirectory => libc::ENOTDIR,
            Self::IsADirectory => libc::EISDIR,
            Self::NotEmpty => libc::ENOTEMPTY,
            Self::IntoItself => libc::EINVAL,
            Self::NameTooLong => libc::ENAMETOOLONG,
            Self::TooLarge => libc::EFBIG,
            Self::ReadOnly => libc::EROFS,
            Self::Denied => libc::EACCES,
            Self::NotOwner => libc::EPERM,
            Self::NotOpenFor => libc::EBADF,
            Self::LinksTooMany => libc::ELOOP,
            Self::DescriptionsFull => libc::ENFILE,
            Self::NoBytes => libc::ENXIO,
            other => other.code().errno(),
        }
    }
}

/// Makes an error from the kernel's error for an operation on the region's file.
pub(crate) fn system_error(path: &Path, what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::System {
        path: path.to_owned(),
        what,
        source,
    }
}
