//! A file or directory of a region: found by its path, with what commands print of it.

use super::text::{hex, milliseconds};
use crate::error::CliError;
use mem::{Attachment, Attributes, Credentials, Error, Last, Node, PathBuffer, Walked};
use node::regions::region_error;
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where the region appears for these commands; links to absolute paths lead elsewhere for each program.
pub(super) const AT: &[u8] = b"/keel";

/// Bytes of the longest path, which may be the target of a symbolic link.
const PATH_BYTES_MAX: usize = 4096;

/// Calls `look`, first with the region open only for reading. If a writer has died during a change, the region must be
/// opened for writing, so that the change is finished.
pub(super) fn looking<T>(
    region: &Path,
    look: impl Fn(&Attachment) -> Result<T, Error>,
) -> Result<Result<T, Error>, CliError> {
    let open = |writable| {
        Attachment::open(region, AT, writable).map_err(|error| region_error(region, &error))
    };
    Ok(match look(&open(false)?) {
        Err(Error::Stale) => look(&open(true)?),
        seen => seen,
    })
}

pub(super) fn walk(
    attachment: &Attachment,
    path: &Path,
    last: Last,
) -> Result<Option<Attributes>, Error> {
    let root = Credentials {
        user: 0,
        group: 0,
        groups: &[],
    };
    let path = path.as_os_str().as_bytes();
    let inside = attachment.inside(path).unwrap_or(path);
    let start = inside.iter().take_while(|byte| **byte == b'/').count();
    let path = match &inside[start..] {
        b"" => b".",
        path => path,
    };
    let mut buffer = PathBuffer::new();
    match attachment.walk(Node::ROOT, path, last, &root, &mut buffer)? {
        Walked::Found { attributes, .. } => Ok(Some(attributes)),
        Walked::Missing { .. } => Err(Error::NotFound),
        Walked::Outside => Ok(None),
    }
}

pub(super) fn path_error(region: &Path, path: &Path, error: &Error) -> CliError {
    // The root directory of all paths always exists.
    let is_root = matches!(path.as_os_str().as_bytes(), b"/" | b"." | b"/keel");
    match error {
        Error::NotFound if is_root => CliError::failure(
            region.display(),
            "damaged: its root cannot be found",
            format!("see all damage with `keel mem check {}`", region.display()),
        ),
        Error::NotFound => CliError::failure(
            path.display(),
            error,
            format!("list the files with `keel mem ls {}`", region.display()),
        ),
        Error::NotADirectory | Error::NameTooLong | Error::LinksTooMany => {
            CliError::failure(path.display(), error, "check the path")
        }
        other => region_error(region, other),
    }
}

pub(super) fn outside(path: &Path) -> CliError {
    CliError::failure(
        path.display(),
        "leads out of the region",
        "name what the link leads to",
    )
}

/// The content of a line of a listing.
pub(super) struct Line {
    pub(super) name: Vec<u8>,
    pub(super) attributes: Attributes,
    pub(super) target: Option<Vec<u8>>,
}

impl Line {
    pub(super) fn new(
        attachment: &Attachment,
        name: Vec<u8>,
        attributes: Attributes,
    ) -> Result<Self, Error> {
        let target = if attributes.is_symbolic_link() {
            let mut target = vec![0; PATH_BYTES_MAX];
            let region = attachment.region();
            let length = region.read(attributes.inode, attributes.generation, 0, &mut target)?;
            target.truncate(length);
            Some(target)
        } else {
            None
        };
        Ok(Self {
            name,
            attributes,
            target,
        })
    }

    pub(super) fn json(&self) -> Value {
        let found = &self.attributes;
        json!({
            "name": String::from_utf8_lossy(&self.name),
            "name_hex": hex(&self.name),
            "error": null,
            "type": type_text(found.mode),
            "mode": format!("{:04o}", found.mode & 0o7777),
            "links": found.links,
            "user": found.user,
            "group": found.group,
            "length_bytes": found.size,
            "modified_ms": milliseconds(found.modified_ns),
            "changed_ms": milliseconds(found.changed_ns),
            "accessed_ms": milliseconds(found.accessed_ns),
            "target": self.target.as_deref().map(String::from_utf8_lossy),
            "target_hex": self.target.as_deref().and_then(hex),
            "inode": found.inode,
        })
    }
}

pub(super) fn type_text(mode: u32) -> &'static str {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "link",
        _ => "file",
    }
}
