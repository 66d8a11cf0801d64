//! Names: creating, removing, renaming; hard and symbolic links.

use std::ffi::{CStr, c_char, c_int, c_uint};

use mem::{Attributes, Last, Node, PathBuffer, Rename};

use crate::foreign::{Answer, fail, room, string};
use crate::next::{Next, serve};
use crate::open::{attributes_of, new_inode, require_writable_directory};
use crate::raw;
use crate::resolve::{End, Located, Missing, Place, end_of, locate, locate_name, on_name, on_path};
use crate::stat::{attributes_at, is_empty};
use crate::state::{Context, OrErrno, context, served};

/// Longest path, and longest target of a symbolic link.
const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize - 1;

/// Checks that the process may remove a name from a directory.
fn require_removable(context: &Context, parent: Node, named: &Attributes) -> Answer<Attributes> {
    let parent = parent_attributes(context, parent)?;
    require_writable_directory(context, &parent)?;
    if context.with_credentials(|who| who.may_remove(&parent, named)) {
        Ok(parent)
    } else {
        Err(libc::EPERM)
    }
}

fn parent_attributes(context: &Context, parent: Node) -> Answer<Attributes> {
    match context.attachment.region().attributes(parent.inode) {
        Ok(found) if found.generation == parent.generation => Ok(found),
        Ok(_) | Err(mem::Error::Stale) => Err(libc::ENOENT),
        Err(error) => Err(error.errno()),
    }
}

fn unlink_place(
    context: &Context,
    place: &Place,
    names: &PathBuffer,
    removes_directory: bool,
) -> Answer<c_int> {
    let found = match place {
        Place::Found(found) => found,
        Place::Missing(_) => return Err(libc::ENOENT),
        // As the kernel does for a name that is in no file system.
        Place::Descriptor(_) => return Err(libc::EPERM),
    };
    if found.name.is_empty() {
        return Err(match end_of(names) {
            _ if !removes_directory => libc::EISDIR,
            End::Dot => libc::EINVAL,
            End::DotDot => libc::ENOTEMPTY,
            End::Name | End::Root => libc::EBUSY,
        });
    }
    if removes_directory && !found.attributes.is_directory() {
        return Err(libc::ENOTDIR);
    }
    if !removes_directory && found.has_slash {
        return Err(if found.attributes.is_directory() {
            libc::EISDIR
        } else {
            libc::ENOTDIR
        });
    }
    require_removable(context, found.parent, &found.attributes)?;
    let name = names.part(&found.name);
    let writer = context.attachment.writer().or_errno()?;
    let now_ns = mem::now_ns();
    if removes_directory {
        writer
            .remove_directory(found.parent, name, now_ns)
            .or_errno()?;
    } else {
        if found.attributes.is_directory() {
            return Err(libc::EISDIR);
        }
        writer.remove(found.parent, name, now_ns).or_errno()?;
    }
    Ok(0)
}

pub(crate) fn unlink_at(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
    on_name(
        directory,
        path,
        |context, place, names| {
            if flags & !libc::AT_REMOVEDIR != 0 {
                return Err(libc::EINVAL);
            }
            unlink_place(context, &place, names, flags & libc::AT_REMOVEDIR != 0)
        },
        |directory, path| unlinkat::pass(directory, path, flags),
    )
}

fn make(
    directory: c_int,
    path: *const c_char,
    serve: impl FnOnce(&Context, &Missing, &[u8]) -> Answer<Attributes>,
    pass: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    on_name(
        directory,
        path,
        |context, place, names| {
            let Place::Missing(missing) = place else {
                return Err(libc::EEXIST);
            };
            require_writable_directory(context, &missing.parent)?;
            serve(context, &missing, names.part(&missing.name)).map(|_| 0)
        },
        pass,
    )
}

pub(crate) fn mkdir_at(directory: c_int, path: *const c_char, mode: c_uint) -> c_int {
    make(
        directory,
        path,
        |context, missing, name| {
            // The kernel accepts the sticky bit, but neither of the other two special bits.
            let new = new_inode(context, &missing.parent, libc::S_IFDIR, mode & 0o1777);
            let writer = context.attachment.writer().or_errno()?;
            writer.create(missing.parent.node(), name, &new).or_errno()
        },
        |directory, path| mkdirat::pass(directory, path, mode),
    )
}

pub(crate) fn mknod_at(
    directory: c_int,
    path: *const c_char,
    mode: c_uint,
    device: libc::dev_t,
) -> c_int {
    make(
        directory,
        path,
        |context, missing, name| {
            if !matches!(mode & libc::S_IFMT, 0 | libc::S_IFREG) {
                // Pipes, sockets and devices are kernel objects.
                return Err(libc::EPERM);
            }
            if missing.has_slash {
                return Err(libc::ENOENT);
            }
            let new = new_inode(context, &missing.parent, libc::S_IFREG, mode & 0o7777);
            let writer = context.attachment.writer().or_errno()?;
            writer.create(missing.parent.node(), name, &new).or_errno()
        },
        |directory, path| mknod_behind(directory, path, mode, device),
    )
}

/// Calls the function behind this library, or the kernel if the C library has none.
fn mknod_behind(directory: c_int, path: *const c_char, mode: c_uint, device: libc::dev_t) -> c_int {
    /// The C library's function. Before glibc 2.33 there is none: programs call `__xmknod` and `__xmknodat`.
    static BEHIND: Next = Next::new("mknodat\0");
    if !BEHIND.address().is_null() {
        return mknodat::pass(directory, path, mode, device);
    }
    // The kernel takes 32 bits, and the C library refuses more.
    let Ok(device) = u32::try_from(device) else {
        return fail(libc::EINVAL);
    };
    let arguments = [
        directory as usize,
        path as usize,
        mode as usize,
        device as usize,
        0,
        0,
    ];
    // SAFETY: the program's arguments.
    unsafe { raw::answered(libc::SYS_mknodat, arguments) as c_int }
}

pub(crate) fn symlink_at(target: *const c_char, directory: c_int, path: *const c_char) -> c_int {
    let Some(target_text) = path_text(target).ok().filter(|text| !text.is_empty()) else {
        // An invalid target; the kernel refuses it before it checks the path.
        return symlinkat::pass(target, directory, path);
    };
    make(
        directory,
        path,
        |context, missing, name| {
            if missing.has_slash {
                return Err(libc::ENOENT);
            }
            let mut new = new_inode(context, &missing.parent, libc::S_IFLNK, 0);
            new.mode = libc::S_IFLNK | 0o777;
            let writer = context.attachment.writer().or_errno()?;
            writer
                .create_with(missing.parent.node(), name, &new, target_text.to_bytes())
                .or_errno()
        },
        |directory, path| symlinkat::pass(target, directory, path),
    )
}

pub(crate) fn readlink_at(
    directory: c_int,
    path: *const c_char,
    into: *mut c_char,
    count: usize,
) -> isize {
    if !path.is_null()
        && let Some(context) = context()
        && let Some(answer) = readlink_of_descriptor(context, path, into, count)
    {
        return answer;
    }
    on_path(
        directory,
        path,
        Last::NoFollow,
        |context, place, _| {
            let attributes = attributes_at(context, &place)?;
            if !attributes.is_symbolic_link() {
                return Err(libc::EINVAL);
            }
            if count == 0 {
                return Err(libc::EINVAL);
            }
            let into = room(into.cast(), count)?;
            let region = context.attachment.region();
            region
                .read(attributes.inode, attributes.generation, 0, into)
                .or_errno()
                .map(|count| count as isize)
        },
        |directory, path| readlinkat::pass(directory, path, into, count),
    )
}

/// `/proc/self/fd/3` of a file of the region returns the path in the region, if it can be known: for directories only.
fn readlink_of_descriptor(
    context: &Context,
    path: *const c_char,
    into: *mut c_char,
    count: usize,
) -> Option<isize> {
    let text = string(path).ok()?.to_bytes();
    if text == b"/proc/self/cwd" {
        let node = context.directory()?;
        return Some(copy_path(context, node, into, count));
    }
    let fd = crate::resolve::whole_descriptor_path(text)?;
    let opened = context.opened(fd)?;
    if opened.flags & libc::O_DIRECTORY == 0 {
        return None;
    }
    Some(copy_path(context, opened.node, into, count))
}

fn copy_path(context: &Context, node: mem::Node, into: *mut c_char, count: usize) -> isize {
    served(|| {
        let mut buffer = PathBuffer::new();
        context.path_of(node, &mut buffer)?;
        let into = room(into.cast(), count)?;
        let length = buffer.as_bytes().len().min(into.len());
        into[..length].copy_from_slice(&buffer.as_bytes()[..length]);
        Ok(length as isize)
    })
}

/// The text of a path, unless it is too long for any path.
fn path_text<'a>(path: *const c_char) -> Answer<&'a CStr> {
    let text = string(path)?;
    if text.count_bytes() > PATH_BYTES_MAX {
        return Err(libc::ENAMETOOLONG);
    }
    Ok(text)
}

/// Whether the last part of a path is too long for a name.
fn is_last_too_long(path: &CStr) -> bool {
    let mut parts = path.to_bytes().rsplit(|byte| *byte == b'/');
    parts
        .find(|part| !part.is_empty())
        .is_some_and(|last| last.len() > mem::NAME_BYTES_MAX)
}

/// Both paths of a call; only one of them may lead into the region.
struct Two<'c> {
    context: &'c Context,
    first: (Located, PathBuffer),
    second: (Located, PathBuffer),
}

impl<'c> Two<'c> {
    fn locate(
        context: &'c Context,
        first: (c_int, *const c_char, Option<Last>),
        second: (c_int, *const c_char, Option<Last>),
    ) -> Answer<Self> {
        let find = |(directory, path, last): (c_int, *const c_char, Option<Last>)| {
            let mut buffer = PathBuffer::new();
            let text = path_text(path)?.to_bytes();
            let located = match last {
                Some(last) => locate(context, directory, text, last, &mut buffer)?,
                None => locate_name(context, directory, text, &mut buffer)?,
            };
            Ok::<_, c_int>((located, buffer))
        };
        let found = find(first)?;
        let is_missing = matches!(found.0, Located::Here(Place::Missing(_)));
        if first.2.is_some() && is_missing {
            return Err(libc::ENOENT);
        }
        if matches!(found.0, Located::Given) && path_text(second.1).is_err() {
            // The kernel decides which of the two paths is wrong.
            return Ok(Self {
                context,
                first: found,
                second: (Located::Given, PathBuffer::new()),
            });
        }
        let second = match find(second) {
            // A missing source is reported before a too long last name of the target; other errors of the target come
            // first.
            Err(libc::ENAMETOOLONG) if is_missing && is_last_too_long(path_text(second.1)?) => {
                return Err(libc::ENOENT);
            }
            other => other?,
        };
        Ok(Self {
            context,
            first: found,
            second,
        })
    }

    /// Whether both paths are the kernel's. If so, they are passed on, as given or as they led out of the region.
    fn passed_on<T>(
        &self,
        first: (c_int, *const c_char),
        second: (c_int, *const c_char),
        pass: impl FnOnce(c_int, *const c_char, c_int, *const c_char) -> T,
    ) -> Option<T> {
        let kernel = |located: &(Located, PathBuffer), given: (c_int, *const c_char)| {
            let mut buffer = [0_u8; libc::PATH_MAX as usize];
            match &located.0 {
                Located::Given => Some((given.0, given.1, buffer)),
                Located::Elsewhere => {
                    let bytes = located.1.as_bytes();
                    buffer[..bytes.len()].copy_from_slice(bytes);
                    Some((libc::AT_FDCWD, std::ptr::null(), buffer))
                }
                Located::Here(_) => None,
            }
        };
        let one = kernel(&self.first, first)?;
        let other = kernel(&self.second, second)?;
        let path = |(_, given, buffer): &(c_int, *const c_char, [u8; 4096])| {
            if given.is_null() {
                buffer.as_ptr().cast()
            } else {
                *given
            }
        };
        Some(pass(one.0, path(&one), other.0, path(&other)))
    }

    fn places(&self) -> Answer<(&Place, &Place)> {
        match (&self.first.0, &self.second.0) {
            (Located::Here(first), Located::Here(second)) => Ok((first, second)),
            (Located::Here(Place::Missing(_)), _) => Err(libc::ENOENT),
            _ => Err(libc::EXDEV),
        }
    }
}

/// Serves a call with two paths if one of them leads into the region.
fn on_two(
    first: (c_int, *const c_char, Option<Last>),
    second: (c_int, *const c_char, Option<Last>),
    serve: impl FnOnce(&Two<'_>) -> Answer<c_int>,
    pass: impl FnOnce(c_int, *const c_char, c_int, *const c_char) -> c_int,
) -> c_int {
    let Some(context) = context().filter(|_| path_text(first.1).is_ok()) else {
        return pass(first.0, first.1, second.0, second.1);
    };
    let mut two = None;
    let answer = served(|| {
        let found = two.insert(Two::locate(context, first, second)?);
        match (&found.first.0, &found.second.0) {
            (Located::Here(_), _) | (_, Located::Here(_)) => serve(found),
            _ => Ok(1),
        }
    });
    match two {
        Some(two) if answer == 1 => two
            .passed_on((first.0, first.1), (second.0, second.1), pass)
            .unwrap_or_else(|| fail(libc::EXDEV)),
        _ => answer,
    }
}

pub(crate) fn rename_at(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    on_two(
        (from_directory, from, None),
        (to_directory, to, None),
        |two| rename_places(two, flags),
        |from_directory, from, to_directory, to| {
            if flags == 0 {
                renameat::pass(from_directory, from, to_directory, to)
            } else {
                renameat2::pass(from_directory, from, to_directory, to, flags)
            }
        },
    )
}

/// Renames as the kernel does, and checks for errors in the kernel's order.
fn rename_places(two: &Two<'_>, flags: c_uint) -> Answer<c_int> {
    let how = match flags {
        0 => Rename::Replace,
        libc::RENAME_NOREPLACE => Rename::Keep,
        libc::RENAME_EXCHANGE => Rename::Exchange,
        _ => return Err(libc::EINVAL),
    };
    let context = two.context;
    let (Located::Here(from), Located::Here(to)) = (&two.first.0, &two.second.0) else {
        return Err(libc::EXDEV);
    };
    if matches!(from, Place::Found(found) if found.name.is_empty()) {
        return Err(libc::EBUSY);
    }
    if matches!(to, Place::Found(found) if found.name.is_empty()) {
        return Err(if how == Rename::Keep {
            libc::EEXIST
        } else {
            libc::EBUSY
        });
    }
    let from = match from {
        Place::Found(found) => found,
        Place::Missing(_) => return Err(libc::ENOENT),
        Place::Descriptor(_) => return Err(libc::EXDEV),
    };
    let moves_directory = from.attributes.is_directory();
    let (to_parent, to_name, to_slash, replaced) = match to {
        Place::Found(found) => (
            found.parent,
            two.second.1.part(&found.name),
            found.has_slash,
            Some(&found.attributes),
        ),
        Place::Missing(missing) => (
            missing.parent.node(),
            two.second.1.part(&missing.name),
            missing.has_slash,
            None,
        ),
        Place::Descriptor(_) => return Err(libc::EXDEV),
    };
    match (how, replaced) {
        (Rename::Keep, Some(_)) => return Err(libc::EEXIST),
        (Rename::Exchange, None) => return Err(libc::ENOENT),
        (Rename::Exchange, Some(other)) if !other.is_directory() && to_slash => {
            return Err(libc::ENOTDIR);
        }
        _ => {}
    }
    let takes_slash = how != Rename::Exchange;
    if !moves_directory && (from.has_slash || takes_slash && to_slash) {
        return Err(libc::ENOTDIR);
    }
    if moves_directory && is_above(context, from.attributes.inode, to_parent.inode)? {
        return Err(libc::EINVAL);
    }
    if let Some(replaced) = replaced
        && replaced.is_directory()
        && replaced.inode != from.attributes.inode
        && is_above(context, replaced.inode, from.parent.inode)?
    {
        return Err(if how == Rename::Exchange {
            libc::EINVAL
        } else {
            libc::ENOTEMPTY
        });
    }
    if replaced.is_some_and(|replaced| replaced.inode == from.attributes.inode) {
        return Ok(0);
    }
    let from_name = two.first.1.part(&from.name);
    require_removable(context, from.parent, &from.attributes)?;
    match replaced {
        Some(replaced) => drop(require_removable(context, to_parent, replaced)?),
        None => {
            let parent = parent_attributes(context, to_parent)?;
            require_writable_directory(context, &parent)?;
        }
    }
    let writer = context.attachment.writer().or_errno()?;
    writer
        .rename_as(
            (from.parent, from_name),
            (to_parent, to_name),
            mem::now_ns(),
            how,
        )
        .or_errno()?;
    Ok(0)
}

/// Whether a directory is another one or an ancestor of it.
fn is_above(context: &Context, directory: u64, below: u64) -> Answer<bool> {
    let mut at = context.attachment.region().attributes(below).or_errno()?;
    // Names may change meanwhile; the rename checks again, with a lock.
    for _ in 0..4096 {
        if at.inode == directory {
            return Ok(true);
        }
        if at.inode == mem::ROOT_INODE {
            return Ok(false);
        }
        at = context.attachment.parent_of(&at).or_errno()?;
    }
    Ok(false)
}

pub(crate) fn link_at(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    if flags & libc::AT_EMPTY_PATH != 0
        && is_empty(from, flags)
        && let Some((context, opened)) = crate::state::ours(from_directory)
    {
        return on_name(
            to_directory,
            to,
            |_, place, names| {
                let attributes = attributes_of(context, &opened)?;
                link_to(context, &attributes, &place, names)
            },
            |_, _| fail(libc::EXDEV),
        );
    }
    let last = if flags & libc::AT_SYMLINK_FOLLOW != 0 {
        Last::Follow
    } else {
        Last::NoFollow
    };
    on_two(
        (from_directory, from, Some(last)),
        (to_directory, to, None),
        |two| {
            let (from, to) = two.places()?;
            let attributes = attributes_at(two.context, from)?;
            link_to(two.context, &attributes, to, &two.second.1)
        },
        |from_directory, from, to_directory, to| {
            linkat::pass(from_directory, from, to_directory, to, flags)
        },
    )
}

fn link_to(
    context: &Context,
    attributes: &Attributes,
    to: &Place,
    names: &PathBuffer,
) -> Answer<c_int> {
    let Place::Missing(missing) = to else {
        return Err(libc::EEXIST);
    };
    if missing.has_slash {
        return Err(libc::ENOENT);
    }
    require_writable_directory(context, &missing.parent)?;
    if attributes.is_directory() {
        return Err(libc::EPERM);
    }
    let writer = context.attachment.writer().or_errno()?;
    writer
        .link(
            attributes.node(),
            missing.parent.node(),
            names.part(&missing.name),
            mem::now_ns(),
        )
        .or_errno()?;
    Ok(0)
}

serve! {
    fn unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int {
        unlink_at(directory, path, flags)
    }

    fn unlink(path: *const c_char) -> c_int {
        unlink_at(libc::AT_FDCWD, path, 0)
    }

    fn rmdir(path: *const c_char) -> c_int {
        unlink_at(libc::AT_FDCWD, path, libc::AT_REMOVEDIR)
    }

    fn remove(path: *const c_char) -> c_int {
        let removed = unlink_at(libc::AT_FDCWD, path, 0);
        if removed < 0 && matches!(crate::foreign::errno(), libc::EISDIR | libc::EPERM) {
            return unlink_at(libc::AT_FDCWD, path, libc::AT_REMOVEDIR);
        }
        removed
    }

    fn mkdirat(directory: c_int, path: *const c_char, mode: c_uint) -> c_int {
        mkdir_at(directory, path, mode)
    }

    fn mkdir(path: *const c_char, mode: c_uint) -> c_int {
        mkdir_at(libc::AT_FDCWD, path, mode)
    }

    fn mknodat(directory: c_int, path: *const c_char, mode: c_uint, device: libc::dev_t) -> c_int {
        mknod_at(directory, path, mode, device)
    }

    fn mknod(path: *const c_char, mode: c_uint, device: libc::dev_t) -> c_int {
        mknod_at(libc::AT_FDCWD, path, mode, device)
    }

    fn __xmknod(
        _version: c_int, path: *const c_char, mode: c_uint, device: *const libc::dev_t
    ) -> c_int {
        match crate::foreign::get(device) {
            Ok(device) => mknod_at(libc::AT_FDCWD, path, mode, device),
            Err(errno) => fail(errno),
        }
    }

    fn __xmknodat(
        _version: c_int, directory: c_int, path: *const c_char, mode: c_uint, device: *const libc::dev_t
    ) -> c_int {
        match crate::foreign::get(device) {
            Ok(device) => mknod_at(directory, path, mode, device),
            Err(errno) => fail(errno),
        }
    }

    fn mkfifoat(directory: c_int, path: *const c_char, mode: c_uint) -> c_int {
        mknod_at(directory, path, mode & 0o7777 | libc::S_IFIFO, 0)
    }

    fn mkfifo(path: *const c_char, mode: c_uint) -> c_int {
        mknod_at(libc::AT_FDCWD, path, mode & 0o7777 | libc::S_IFIFO, 0)
    }

    fn symlinkat(target: *const c_char, directory: c_int, path: *const c_char) -> c_int {
        symlink_at(target, directory, path)
    }

    fn symlink(target: *const c_char, path: *const c_char) -> c_int {
        symlink_at(target, libc::AT_FDCWD, path)
    }

    fn readlinkat(
        directory: c_int, path: *const c_char, into: *mut c_char, count: usize
    ) -> isize {
        readlink_at(directory, path, into, count)
    }

    fn readlink(path: *const c_char, into: *mut c_char, count: usize) -> isize {
        readlink_at(libc::AT_FDCWD, path, into, count)
    }

    fn __readlink_chk(path: *const c_char, into: *mut c_char, count: usize, room: usize) -> isize {
        if count > room {
            return __readlink_chk::pass(path, into, count, room);
        }
        readlink_at(libc::AT_FDCWD, path, into, count)
    }

    fn __readlinkat_chk(
        directory: c_int, path: *const c_char, into: *mut c_char, count: usize, room: usize
    ) -> isize {
        if count > room {
            return __readlinkat_chk::pass(directory, path, into, count, room);
        }
        readlink_at(directory, path, into, count)
    }

    fn renameat2(
        from_directory: c_int, from: *const c_char, to_directory: c_int, to: *const c_char,
        flags: c_uint
    ) -> c_int {
        rename_at(from_directory, from, to_directory, to, flags)
    }

    fn renameat(
        from_directory: c_int, from: *const c_char, to_directory: c_int, to: *const c_char
    ) -> c_int {
        rename_at(from_directory, from, to_directory, to, 0)
    }

    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        rename_at(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0)
    }

    fn linkat(
        from_directory: c_int, from: *const c_char, to_directory: c_int, to: *const c_char,
        flags: c_int
    ) -> c_int {
        link_at(from_directory, from, to_directory, to, flags)
    }

    fn link(from: *const c_char, to: *const c_char) -> c_int {
        link_at(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0)
    }
}
