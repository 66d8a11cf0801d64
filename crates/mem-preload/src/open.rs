//! Opening files and closing descriptors.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};

use mem::{Attributes, Last, NewInode, Opened};

use crate::foreign::{Answer, done, fail, string};
use crate::next::serve;
use crate::raw;
use crate::resolve::{Missing, Place, on_name, on_path};
use crate::state::{Context, OrErrno, context, served};
use crate::table::{self, Known};
use crate::thread;

/// Mode bits of `O_TMPFILE` without those of `O_DIRECTORY`.
const TEMPORARY: c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// Incremented whenever other processes may get the descriptors of this process: at fork, exec and similar calls.
static SHARINGS: AtomicU32 = AtomicU32::new(0);

/// Records that other processes may have this process's descriptors from now on.
pub(crate) fn share_descriptors() {
    SHARINGS.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn sharings() -> u32 {
    SHARINGS.load(Ordering::Relaxed)
}

/// The initial attributes of a new file.
pub(crate) fn new_inode(context: &Context, parent: &Attributes, kind: u32, mode: u32) -> NewInode {
    let inherits_group = parent.mode & libc::S_ISGID != 0;
    let group_bit = if inherits_group && kind == libc::S_IFDIR {
        libc::S_ISGID
    } else {
        0
    };
    NewInode {
        mode: kind | mode & 0o7777 & !context.umask() | group_bit,
        user: raw::effective_user(),
        group: if inherits_group {
            parent.group
        } else {
            raw::effective_group()
        },
        now_ns: mem::now_ns(),
    }
}

/// Whether the process may make or remove names in a directory.
pub(crate) fn require_writable_directory(context: &Context, parent: &Attributes) -> Answer<()> {
    if !context.is_writable {
        return Err(libc::EROFS);
    }
    require(context, parent, 3)
}

/// Whether the process has all the permissions of `want`: 4 read, 2 write, 1 execute.
pub(crate) fn require(context: &Context, attributes: &Attributes, want: u32) -> Answer<()> {
    if context.with_credentials(|who| who.may(attributes, want)) {
        Ok(())
    } else {
        Err(libc::EACCES)
    }
}

/// Opens the file that a path leads to. Returns a descriptor that the kernel knows.
pub(crate) fn open_place(
    context: &'static Context,
    place: &Place,
    name_in: &mem::PathBuffer,
    flags: c_int,
    mode: u32,
) -> Answer<c_int> {
    let both = libc::O_CREAT | libc::O_DIRECTORY;
    if flags & both == both {
        return Err(libc::EINVAL);
    }
    if flags & TEMPORARY != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    match place {
        Place::Found(found) => open_found(context, &found.attributes, flags),
        Place::Descriptor(opened) => {
            let attributes = attributes_of(context, opened)?;
            open_found(context, &attributes, flags & !libc::O_EXCL)
        }
        Place::Missing(missing) => {
            if flags & libc::O_CREAT == 0 {
                return Err(libc::ENOENT);
            }
            let made = make_file(context, missing, name_in.part(&missing.name), mode)?;
            open_attributes(context, &made, flags)
        }
    }
}

/// The attributes of an open file.
pub(crate) fn attributes_of(context: &Context, opened: &Opened) -> Answer<Attributes> {
    match context.attachment.region().attributes(opened.node.inode) {
        Ok(found) if found.generation == opened.node.generation => Ok(found),
        // A directory that was removed; a process that has it open still has an empty directory.
        Ok(_) | Err(mem::Error::Stale) if opened.flags & libc::O_DIRECTORY != 0 => Ok(Attributes {
            inode: opened.node.inode,
            generation: opened.node.generation,
            mode: libc::S_IFDIR | 0o755,
            links: 0,
            user: raw::effective_user(),
            group: raw::effective_group(),
            size: 0,
            modified_ns: 0,
            changed_ns: 0,
            accessed_ns: 0,
        }),
        Ok(_) => Err(libc::ESTALE),
        Err(error) => Err(error.errno()),
    }
}

fn make_file(context: &Context, missing: &Missing, name: &[u8], mode: u32) -> Answer<Attributes> {
    if missing.has_slash {
        return Err(libc::EISDIR);
    }
    require_writable_directory(context, &missing.parent)?;
    let new = new_inode(context, &missing.parent, libc::S_IFREG, mode);
    let writer = context.attachment.writer().or_errno()?;
    writer.create(missing.parent.node(), name, &new).or_errno()
}

fn open_found(context: &'static Context, attributes: &Attributes, flags: c_int) -> Answer<c_int> {
    let creates = flags & libc::O_CREAT != 0;
    if creates && flags & libc::O_EXCL != 0 {
        return Err(libc::EEXIST);
    }
    if flags & libc::O_PATH != 0 {
        if flags & libc::O_DIRECTORY != 0 && !attributes.is_directory() {
            return Err(libc::ENOTDIR);
        }
        return open_attributes(context, attributes, flags);
    }
    if attributes.is_symbolic_link() {
        return Err(if flags & libc::O_DIRECTORY != 0 {
            libc::ENOTDIR
        } else {
            libc::ELOOP
        });
    }
    let access = flags & libc::O_ACCMODE;
    let writes = access != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
    if attributes.is_directory() {
        if creates || writes {
            return Err(libc::EISDIR);
        }
    } else if flags & libc::O_DIRECTORY != 0 {
        return Err(libc::ENOTDIR);
    }
    let reads = access != libc::O_WRONLY;
    require(
        context,
        attributes,
        (u32::from(reads) * 4) | (u32::from(writes) * 2),
    )?;
    if writes && !context.is_writable {
        return Err(libc::EROFS);
    }
    if flags & libc::O_NOATIME != 0 {
        let user = raw::effective_user();
        if user != 0 && user != attributes.user {
            return Err(libc::EPERM);
        }
    }
    let fd = open_attributes(context, attributes, flags)?;
    if flags & libc::O_TRUNC != 0 && attributes.size > 0 {
        let truncated = context.attachment.writer().and_then(|writer| {
            writer.set_size(attributes.inode, attributes.generation, 0, mem::now_ns())
        });
        if let Err(error) = truncated {
            close_now(fd);
            return Err(error.errno());
        }
    }
    Ok(fd)
}

fn open_attributes(context: &Context, attributes: &Attributes, flags: c_int) -> Answer<c_int> {
    let kept = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY);
    let (fd, opened) = context
        .attachment
        .open_description(attributes, kept | libc::O_LARGEFILE)
        .or_errno()?;
    table::set_ours(fd, &opened);
    table::set_exclusive(fd, sharings());
    Ok(fd)
}

/// `openat`, for all names of the function.
pub(crate) fn open_at(directory: c_int, path: *const c_char, flags: c_int, mode: u32) -> c_int {
    if thread::is_inside() {
        let arguments = [
            directory as usize,
            path as usize,
            flags as usize,
            mode as usize,
            0,
            0,
        ];
        // SAFETY: opened for this library itself or for its callees; no cancellation point.
        return unsafe { raw::answered(libc::SYS_openat, arguments) as c_int };
    }
    let fd = open_outside(directory, path, flags, mode);
    // Call this here, outside of the region's code.
    crate::standard::may_have_changed(fd);
    fd
}

fn open_outside(directory: c_int, path: *const c_char, flags: c_int, mode: u32) -> c_int {
    let exclusive = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    let last = if flags & libc::O_NOFOLLOW != 0 || exclusive {
        Last::NoFollow
    } else {
        Last::Follow
    };
    // No file can be created under a name that ends with a slash.
    if flags & libc::O_CREAT != 0 && string(path).is_ok_and(|path| path.to_bytes().ends_with(b"/"))
    {
        return on_name(
            directory,
            path,
            |context, place, names| match &place {
                Place::Found(found) if found.name.is_empty() => {
                    open_place(context, &place, names, flags, mode)
                }
                _ => Err(libc::EISDIR),
            },
            |directory, path| openat::pass(directory, path, flags, mode),
        );
    }
    let mut looks = 0;
    loop {
        let opened = on_path(
            directory,
            path,
            last,
            |context, place, names| open_place(context, &place, names, flags, mode),
            |directory, path| openat::pass(directory, path, flags, mode),
        );
        // Another process made or removed it between the lookup and the open.
        let raced = opened < 0
            && looks < 100
            && flags & libc::O_CREAT != 0
            && match crate::foreign::errno() {
                libc::EEXIST => !exclusive,
                libc::ENOENT => true,
                _ => false,
            };
        if !raced {
            return opened;
        }
        looks += 1;
    }
}

serve! {
    fn openat [openat64](directory: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        crate::cancel::point();
        open_at(directory, path, flags, mode)
    }

    fn open [open64, __open, __open64](path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        crate::cancel::point();
        open_at(libc::AT_FDCWD, path, flags, mode)
    }

    fn __open_2 [__open64_2](path: *const c_char, flags: c_int) -> c_int {
        crate::cancel::point();
        open_at(libc::AT_FDCWD, path, flags, 0)
    }

    fn __openat_2 [__openat64_2](directory: c_int, path: *const c_char, flags: c_int) -> c_int {
        crate::cancel::point();
        open_at(directory, path, flags, 0)
    }

    fn creat [creat64](path: *const c_char, mode: c_uint) -> c_int {
        crate::cancel::point();
        open_at(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
    }

    fn close [__close](fd: c_int) -> c_int {
        crate::cancel::point();
        if thread::is_inside() {
            return done(raw::close(fd).map(drop));
        }
        close_descriptor(fd)
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        close_some(first, last, flags)
    }

    fn closefrom(first: c_int) -> () {
        close_some(first.max(0) as c_uint, c_uint::MAX, 0);
    }

    fn fcloseall() -> c_int {
        let answer = fcloseall::pass();
        table::forget_range(0, c_uint::MAX);
        answer
    }
}

/// Closes a descriptor of the region that the program has not seen yet.
pub(crate) fn close_now(fd: c_int) {
    table::forget(fd);
    let _ = raw::close(fd);
}

/// Whether only this process has the description open, and only with this descriptor.
fn is_last(fd: c_int) -> bool {
    table::exclusive_since(fd) == Some(sharings())
}

/// `close`, for all names of the function.
pub(crate) fn close_descriptor(fd: c_int) -> c_int {
    let Known::Ours(opened) = table::look_up(fd) else {
        if let Some(context) = context()
            && context.is_own(fd)
        {
            // Programs close unknown descriptors; this one must stay.
            return 0;
        }
        if let Some((context, opened)) = crate::state::ours(fd) {
            return close_ours(context, fd, &opened);
        }
        table::forget(fd);
        let answer = close::pass(fd);
        if (0..=2).contains(&fd) {
            crate::standard::changed(fd);
        }
        return answer;
    };
    match context() {
        Some(context) => close_ours(context, fd, &opened),
        None => fail(libc::EBADF),
    }
}

fn close_ours(context: &'static Context, fd: c_int, opened: &Opened) -> c_int {
    let answer = served(|| {
        if is_last(fd) {
            context.attachment.closing(opened);
        }
        table::forget(fd);
        let closed = raw::close(fd);
        // The descriptor is closed, even if a deleted file cannot be freed.
        let _ = context.attachment.closed(opened);
        closed.map(|_| 0)
    });
    if fd <= 2 {
        crate::standard::changed(fd);
    }
    answer
}

fn close_some(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let Some(context) = context() else {
        return close_range::pass(first, last, flags);
    };
    if first > last {
        return fail(libc::EINVAL);
    }
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        return close_range::pass(first, last, flags);
    }
    // Skip this library's own descriptors.
    let mut own = context.attachment.own_descriptors();
    own.sort_unstable();
    let mut from = first;
    let mut answer = 0;
    for number in own.into_iter().map(|fd| fd as c_uint) {
        if number < from || number > last {
            continue;
        }
        if number > from {
            answer = close_part(context, from, number - 1, flags);
        }
        from = number + 1;
    }
    if from <= last {
        answer = close_part(context, from, last, flags);
    }
    for fd in 0..=2 {
        if (first..=last).contains(&fd) {
            crate::standard::changed(fd as c_int);
        }
    }
    answer
}

fn close_part(context: &'static Context, first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // Files of ours may be deleted ones, which are freed with their last descriptor.
    table::for_each_ours(first, last, |fd, opened| {
        close_ours(context, fd, opened);
    });
    table::forget_range(first, last);
    let arguments = [first as usize, last as usize, flags as usize, 0, 0, 0];
    // SAFETY: no memory is passed.
    unsafe { raw::answered(libc::SYS_close_range, arguments) as c_int }
}
