//! Paths: walks from a directory through names, symbolic links and `..` to a file, as the kernel does. Nothing here
//! allocates, because programs open files in signal handlers.

use std::ops::Range;

use crate::attach::Attachment;
use crate::error::{Error, Result};
use crate::inode::Attributes;
use crate::layout::attribute;
use crate::node::{Meant, Node, ROOT_INODE};

/// Longest path, in bytes, with the targets of its symbolic links inserted.
const PATH_BYTES_MAX: usize = 4096;

/// The number of symbolic links that one path may lead through, as in the kernel.
const LINKS_MAX: u32 = 40;

/// A buffer for a path, on the stack.
pub struct PathBuffer {
    bytes: [u8; PATH_BYTES_MAX],
    length: usize,
}

impl Default for PathBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl PathBuffer {
    /// An empty path.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            bytes: [0; PATH_BYTES_MAX],
            length: 0,
        }
    }

    /// The path.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// A part of the path, as a range in [`Walked`] names it.
    #[must_use]
    pub fn part(&self, part: &Range<usize>) -> &[u8] {
        self.bytes.get(part.clone()).unwrap_or_default()
    }

    /// Replaces the whole content with `bytes`.
    ///
    /// # Errors
    /// [`Error::NameTooLong`].
    pub fn set(&mut self, bytes: &[u8]) -> Result<()> {
        self.length = 0;
        self.push(bytes)
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`Error::NameTooLong`].
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let end = self.length + bytes.len();
        // One byte is reserved for the zero that ends the kernel's strings.
        let room = self
            .bytes
            .get_mut(self.length..end)
            .filter(|_| end < PATH_BYTES_MAX)
            .ok_or(Error::NameTooLong)?;
        room.copy_from_slice(bytes);
        self.length = end;
        Ok(())
    }

    /// Replaces the bytes before `end`.
    fn replace_front(&mut self, end: usize, bytes: &[u8]) -> Result<()> {
        let rest = self.length - end;
        if bytes.len() + rest >= PATH_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        self.bytes.copy_within(end..self.length, bytes.len());
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        self.length = bytes.len() + rest;
        Ok(())
    }
}

/// How to treat the last part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// A symbolic link is followed.
    Follow,
    /// A symbolic link is not followed: the link itself is meant.
    NoFollow,
}

/// The result of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Walked {
    /// To a file.
    Found {
        /// The file.
        attributes: Attributes,
        /// The directory that contains the last name; the file itself if the name is empty.
        parent: Node,
        /// The last name, in the buffer; empty when the path ends in `.`, `..` or the root.
        name: Range<usize>,
        /// Whether a slash follows that name. Only a directory may have it.
        has_slash: bool,
    },
    /// To a missing name in an existing directory.
    Missing {
        /// The directory.
        parent: Attributes,
        /// The name, in the buffer.
        name: Range<usize>,
        /// Whether a slash follows.
        has_slash: bool,
    },
    /// Out of the region: the buffer holds the path to pass to the kernel.
    Outside,
}

/// Identity of the caller, for permission checks.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// Effective user; user 0 may do everything.
    pub user: u32,
    /// Effective group.
    pub group: u32,
    /// Further groups.
    pub groups: &'a [u32],
}

impl Credentials<'_> {
    /// Whether the permissions allow all of `want`, a combination of 4 (read), 2 (write), 1 (execute, search).
    #[must_use]
    pub fn may(&self, attributes: &Attributes, want: u32) -> bool {
        if self.user == 0 {
            // Root also needs an execute bit to execute a file.
            return want & 1 == 0 || attributes.is_directory() || attributes.mode & 0o111 != 0;
        }
        let shift = if attributes.user == self.user {
            6
        } else if attributes.group == self.group || self.groups.contains(&attributes.group) {
            3
        } else {
            0
        };
        attributes.mode >> shift & want == want
    }

    /// Whether this user may remove a name of `named` from the directory. With the sticky bit, only owners may.
    #[must_use]
    pub fn may_remove(&self, directory: &Attributes, named: &Attributes) -> bool {
        let is_sticky = directory.mode & libc::S_ISVTX != 0;
        self.user == 0 || !is_sticky || self.user == named.user || self.user == directory.user
    }
}

impl Attachment {
    /// Follows a path from a directory. The caller needs the search right on each directory on the way. `buffer` holds
    /// the path while it changes.
    ///
    /// # Errors
    /// [`Error::NotFound`] (also for the empty path), [`Error::NotADirectory`], [`Error::Denied`],
    /// [`Error::LinksTooMany`], [`Error::NameTooLong`].
    pub fn walk(
        &self,
        start: Node,
        path: &[u8],
        last: Last,
        who: &Credentials<'_>,
        buffer: &mut PathBuffer,
    ) -> Result<Walked> {
        if path.is_empty() {
            return Err(Error::NotFound);
        }
        buffer.set(path)?;
        let mut links = 0;
        let mut at = 0;
        let mut directory = match self.region().attributes(start.inode) {
            Ok(found) if found.generation == start.generation => found,
            // The working directory has been removed.
            Ok(_) | Err(Error::Stale) => return Err(Error::NotFound),
            Err(error) => return Err(error),
        };
        loop {
            let rest = buffer.as_bytes();
            let skipped = rest[at..].iter().take_while(|byte| **byte == b'/').count();
            let begin = at + skipped;
            let length = rest[begin..]
                .iter()
                .take_while(|byte| **byte != b'/')
                .count();
            let end = begin + length;
            let is_last = rest[end..].iter().all(|byte| *byte == b'/');
            let has_slash = end < rest.len();
            let here = |attributes: Attributes| {
                Ok(Walked::Found {
                    attributes,
                    parent: attributes.node(),
                    name: 0..0,
                    has_slash,
                })
            };
            if length == 0 {
                return here(directory);
            }
            if !directory.is_directory() {
                return Err(Error::NotADirectory);
            }
            if !who.may(&directory, 1) {
                return Err(Error::Denied);
            }
            match &rest[begin..end] {
                b"." => {
                    if is_last {
                        return here(directory);
                    }
                    at = end;
                    continue;
                }
                b".." => {
                    if directory.inode == ROOT_INODE {
                        return self.leave(buffer, end);
                    }
                    directory = self.parent_of(&directory)?;
                    if is_last {
                        return here(directory);
                    }
                    at = end;
                    continue;
                }
                name if name.len() > crate::layout::NAME_BYTES_MAX => {
                    return Err(Error::NameTooLong);
                }
                _ => {}
            }
            let found = match self.look_up(directory.node(), &rest[begin..end]) {
                Ok(found) => found,
                Err(Error::NotFound) if is_last => {
                    return Ok(Walked::Missing {
                        parent: directory,
                        name: begin..end,
                        has_slash,
                    });
                }
                Err(Error::Stale) => return Err(Error::NotFound),
                Err(error) => return Err(error),
            };
            let is_followed = !is_last || has_slash || last == Last::Follow;
            if found.is_symbolic_link() && is_followed {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Error::LinksTooMany);
                }
                let mut target = [0; PATH_BYTES_MAX];
                let length = self
                    .region()
                    .read(found.inode, found.generation, 0, &mut target)?;
                let target = &target[..length];
                if target.is_empty() {
                    return Err(Error::NotFound);
                }
                if target[0] != b'/' {
                    buffer.replace_front(end, target)?;
                } else if let Some(inside) = self.inside(target) {
                    buffer.replace_front(end, inside)?;
                    directory = self.region().attributes(ROOT_INODE)?;
                } else {
                    buffer.replace_front(end, target)?;
                    return Ok(Walked::Outside);
                }
                at = 0;
                if buffer.as_bytes().is_empty() {
                    return Ok(Walked::Found {
                        attributes: directory,
                        parent: directory.node(),
                        name: 0..0,
                        has_slash: false,
                    });
                }
                continue;
            }
            if is_last {
                if has_slash && !found.is_directory() {
                    return Err(Error::NotADirectory);
                }
                return Ok(Walked::Found {
                    attributes: found,
                    parent: directory.node(),
                    name: begin..end,
                    has_slash,
                });
            }
            directory = found;
            at = end;
        }
    }

    /// The part of an absolute path behind the mount path of the region; `None` if the path does not lead there.
    #[must_use]
    pub fn inside<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        let rest = path.strip_prefix(self.at())?;
        matches!(rest.first(), None | Some(b'/')).then_some(rest)
    }

    /// `..` of the root is the directory in the kernel's tree that contains the region's mount path.
    fn leave(&self, buffer: &mut PathBuffer, end: usize) -> Result<Walked> {
        let at = self.at();
        let slash = at.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        buffer.replace_front(end, &at[..slash])?;
        if buffer.as_bytes().is_empty() {
            buffer.set(b"/")?;
        }
        Ok(Walked::Outside)
    }

    /// The parent of a directory. The root is its own parent.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it has been removed.
    pub fn parent_of(&self, directory: &Attributes) -> Result<Attributes> {
        let region = self.region();
        let at = region.inode_at(directory.inode)?;
        let parent = region.memory.load(at + attribute::PARENT);
        if region.memory.load(at + attribute::GENERATION) != directory.generation {
            return Err(Error::NotFound);
        }
        region.attributes(parent)
    }

    /// The file that a name in a directory names.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotADirectory`], [`Error::Stale`].
    pub fn look_up(&self, directory: impl Into<Meant>, name: &[u8]) -> Result<Attributes> {
        let directory = directory.into();
        if !self.region().is_writable() {
            return self.region().look_up(directory, name);
        }
        match self.writer() {
            Ok(writer) => writer.look_up(directory, name),
            // Without a lane, this process cannot recover dead writers, but it can still look up.
            Err(Error::LanesFull) => self.region().look_up(directory, name),
            Err(error) => Err(error),
        }
    }

    /// Puts the path of a directory into `into`, beginning with the mount path of the region.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it has been removed, [`Error::NameTooLong`].
    pub fn path_of(&self, directory: Node, into: &mut PathBuffer) -> Result<()> {
        let region = self.region();
        into.set(b"")?;
        let mut node = directory;
        for _ in 0..PATH_BYTES_MAX {
            let found = match region.attributes(node.inode) {
                Ok(found) if found.generation == node.generation => found,
                Ok(_) | Err(Error::Stale) => return Err(Error::NotFound),
                Err(error) => return Err(error),
            };
            if found.inode == ROOT_INODE {
                return into.replace_front(0, self.at());
            }
            let parent = self.parent_of(&found)?;
            let name = region
                .names_at_rest(|region| region.name_now(parent.inode, found.inode))
                .unwrap_or_else(|| {
                    // The names change all the time; they cannot change while this lock is held.
                    let writer = self.writer()?;
                    let _words = region.begin_words(writer.lane)?;
                    region.name_now(parent.inode, found.inode)
                })?;
            into.replace_front(0, &name)?;
            into.replace_front(0, b"/")?;
            node = parent.node();
        }
        Err(Error::NameTooLong)
    }
}
