//! Attributes of files: the families of `stat`, `access`, `statfs` and `pathconf`.

use std::ffi::{c_char, c_int, c_long, c_uint};

use mem::{Attributes, Last, PAGE_BYTES};

use crate::foreign::{Answer, done, fail, put, zeroed};
use crate::next::{Next, serve};
use crate::open::{attributes_of, require};
use crate::raw;
use crate::resolve::{Place, on_path};
use crate::state::{Context, context, ours, served};
use crate::thread;

/// The preferred block size for reads and writes of programs, in bytes.
const BLOCK_BYTES: u64 = 4096;
/// Type number of the file system, which no other has: `KEEL`.
const FILE_SYSTEM_TYPE: i64 = 0x4b45_454c;
const NAME_BYTES_MAX: i64 = 255;

#[allow(clippy::cast_lossless, reason = "the types depend on the system")]
pub(crate) fn stat_of(context: &Context, attributes: &Attributes) -> libc::stat64 {
    let mut stat: libc::stat64 = zeroed();
    stat.st_dev = context.device;
    stat.st_ino = attributes.inode;
    stat.st_mode = attributes.mode;
    stat.st_nlink = attributes.links as _;
    stat.st_uid = attributes.user;
    stat.st_gid = attributes.group;
    stat.st_size = attributes.size as i64;
    stat.st_blksize = BLOCK_BYTES as _;
    stat.st_blocks = attributes.size.div_ceil(512) as i64;
    (stat.st_atime, stat.st_atime_nsec) = time_of(attributes.accessed_ns);
    (stat.st_mtime, stat.st_mtime_nsec) = time_of(attributes.modified_ns);
    (stat.st_ctime, stat.st_ctime_nsec) = time_of(attributes.changed_ns);
    stat
}

/// Seconds and nanoseconds; times before 1970 are negative.
fn time_of(time_ns: u64) -> (i64, i64) {
    let time_ns = time_ns as i64;
    (
        time_ns.div_euclid(1_000_000_000),
        time_ns.rem_euclid(1_000_000_000),
    )
}

fn statx_of(context: &Context, attributes: &Attributes) -> libc::statx {
    let time = |time_ns| {
        let (seconds, nanoseconds) = time_of(time_ns);
        let mut time: libc::statx_timestamp = zeroed();
        time.tv_sec = seconds;
        time.tv_nsec = nanoseconds as u32;
        time
    };
    let mut statx: libc::statx = zeroed();
    statx.stx_mask = libc::STATX_BASIC_STATS;
    statx.stx_blksize = BLOCK_BYTES as u32;
    statx.stx_nlink = attributes.links;
    statx.stx_uid = attributes.user;
    statx.stx_gid = attributes.group;
    statx.stx_mode = attributes.mode as u16;
    statx.stx_ino = attributes.inode;
    statx.stx_size = attributes.size;
    statx.stx_blocks = attributes.size.div_ceil(512);
    statx.stx_atime = time(attributes.accessed_ns);
    statx.stx_mtime = time(attributes.modified_ns);
    statx.stx_ctime = time(attributes.changed_ns);
    statx.stx_dev_major = libc::major(context.device);
    statx.stx_dev_minor = libc::minor(context.device);
    statx
}

/// The attributes of a place, if a file exists there.
pub(crate) fn attributes_at(context: &Context, place: &Place) -> Answer<Attributes> {
    match place {
        Place::Found(found) => Ok(found.attributes),
        Place::Descriptor(opened) => attributes_of(context, opened),
        Place::Missing(_) => Err(libc::ENOENT),
    }
}

/// Whether an empty path means the descriptor or the working directory itself.
pub(crate) fn is_empty(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: not null; a string has at least one byte.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

/// The attributes of a descriptor, or of the working directory, if it is in the region.
pub(crate) fn attributes_of_descriptor(context: &Context, fd: c_int) -> Option<Answer<Attributes>> {
    if fd == libc::AT_FDCWD {
        let node = context.directory()?;
        let found = context.attachment.region().attributes(node.inode);
        return Some(match found {
            Ok(found) if found.generation == node.generation => Ok(found),
            Ok(_) => Err(libc::ENOENT),
            Err(error) => Err(error.errno()),
        });
    }
    let opened = context.opened(fd)?;
    Some(attributes_of(context, &opened))
}

fn look_at<S>(
    directory: c_int,
    path: *const c_char,
    into: *mut S,
    flags: c_int,
    make: fn(&Context, &Attributes) -> S,
    pass: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    if is_empty(path, flags)
        && let Some(context) = context()
    {
        if let Some(found) = attributes_of_descriptor(context, directory) {
            return served(|| put(into, make(context, &found?)).map(|()| 0));
        }
        return pass(directory, path);
    }
    let last = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
        Last::NoFollow
    } else {
        Last::Follow
    };
    on_path(
        directory,
        path,
        last,
        |context, place, _| {
            let attributes = attributes_at(context, &place)?;
            put(into, make(context, &attributes)).map(|()| 0)
        },
        pass,
    )
}

/// The C library's function. Before glibc 2.33 there is none: programs call `__xstat` and the like.
static BEHIND: Next = Next::new("fstatat64\0");

pub(crate) fn stat_at(
    directory: c_int,
    path: *const c_char,
    into: *mut libc::stat64,
    flags: c_int,
) -> c_int {
    look_at(directory, path, into, flags, stat_of, |directory, path| {
        let arguments = [
            directory as usize,
            path as usize,
            into as usize,
            flags as usize,
            0,
            0,
        ];
        if thread::is_inside() || BEHIND.address().is_null() {
            // SAFETY: this library's own call, or the program's arguments.
            return unsafe { raw::answered(libc::SYS_newfstatat, arguments) as c_int };
        }
        fstatat64::pass(directory, path, into, flags)
    })
}

fn stat_descriptor(fd: c_int, into: *mut libc::stat64) -> c_int {
    if let Some((context, opened)) = ours(fd) {
        return served(|| {
            let attributes = attributes_of(context, &opened)?;
            put(into, stat_of(context, &attributes)).map(|()| 0)
        });
    }
    // SAFETY: the program's own structure.
    unsafe { raw::answered(libc::SYS_fstat, [fd as usize, into as usize, 0, 0, 0, 0]) as c_int }
}

serve! {
    fn fstatat64 [fstatat](
        directory: c_int, path: *const c_char, into: *mut libc::stat64, flags: c_int
    ) -> c_int {
        stat_at(directory, path, into, flags)
    }

    fn __fxstatat [__fxstatat64](
        _version: c_int, directory: c_int, path: *const c_char, into: *mut libc::stat64, flags: c_int
    ) -> c_int {
        stat_at(directory, path, into, flags)
    }

    fn stat [stat64](path: *const c_char, into: *mut libc::stat64) -> c_int {
        stat_at(libc::AT_FDCWD, path, into, 0)
    }

    fn __xstat [__xstat64](_version: c_int, path: *const c_char, into: *mut libc::stat64) -> c_int {
        stat_at(libc::AT_FDCWD, path, into, 0)
    }

    fn lstat [lstat64](path: *const c_char, into: *mut libc::stat64) -> c_int {
        stat_at(libc::AT_FDCWD, path, into, libc::AT_SYMLINK_NOFOLLOW)
    }

    fn __lxstat [__lxstat64](_version: c_int, path: *const c_char, into: *mut libc::stat64) -> c_int {
        stat_at(libc::AT_FDCWD, path, into, libc::AT_SYMLINK_NOFOLLOW)
    }

    fn fstat [fstat64, __fstat64](fd: c_int, into: *mut libc::stat64) -> c_int {
        stat_descriptor(fd, into)
    }

    fn __fxstat [__fxstat64](_version: c_int, fd: c_int, into: *mut libc::stat64) -> c_int {
        stat_descriptor(fd, into)
    }

    fn statx(
        directory: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx
    ) -> c_int {
        look_at(directory, path, into, flags, statx_of, |directory, path| {
            statx::pass(directory, path, flags, mask, into)
        })
    }

    fn faccessat(directory: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        access_at(directory, path, mode, flags)
    }

    fn access(path: *const c_char, mode: c_int) -> c_int {
        access_at(libc::AT_FDCWD, path, mode, 0)
    }

    fn euidaccess [eaccess](path: *const c_char, mode: c_int) -> c_int {
        access_at(libc::AT_FDCWD, path, mode, libc::AT_EACCESS)
    }

    fn statfs64 [statfs, __statfs](path: *const c_char, into: *mut libc::statfs64) -> c_int {
        on_path(
            libc::AT_FDCWD,
            path,
            Last::Follow,
            |context, place, _| {
                attributes_at(context, &place)?;
                put(into, statfs_of(context)).map(|()| 0)
            },
            |_, path| statfs64::pass(path, into),
        )
    }

    fn fstatfs64 [fstatfs](fd: c_int, into: *mut libc::statfs64) -> c_int {
        if let Some((context, _)) = ours(fd) {
            return done(put(into, statfs_of(context)));
        }
        fstatfs64::pass(fd, into)
    }

    fn statvfs64 [statvfs](path: *const c_char, into: *mut libc::statvfs64) -> c_int {
        on_path(
            libc::AT_FDCWD,
            path,
            Last::Follow,
            |context, place, _| {
                attributes_at(context, &place)?;
                put(into, statvfs_of(context)).map(|()| 0)
            },
            |_, path| statvfs64::pass(path, into),
        )
    }

    fn fstatvfs64 [fstatvfs](fd: c_int, into: *mut libc::statvfs64) -> c_int {
        if let Some((context, _)) = ours(fd) {
            return done(put(into, statvfs_of(context)));
        }
        fstatvfs64::pass(fd, into)
    }

    fn pathconf(path: *const c_char, name: c_int) -> c_long {
        on_path(
            libc::AT_FDCWD,
            path,
            Last::Follow,
            |context, place, _| {
                attributes_at(context, &place)?;
                limit(name)
            },
            |_, path| pathconf::pass(path, name),
        )
    }

    fn fpathconf(fd: c_int, name: c_int) -> c_long {
        match ours(fd) {
            Some(_) => served(|| limit(name)),
            None => fpathconf::pass(fd, name),
        }
    }
}

fn limit(name: c_int) -> Answer<c_long> {
    match name {
        libc::_PC_LINK_MAX => Ok(i64::from(i32::MAX)),
        libc::_PC_NAME_MAX => Ok(NAME_BYTES_MAX),
        libc::_PC_PATH_MAX => Ok(4096),
        libc::_PC_PIPE_BUF => Ok(4096),
        libc::_PC_CHOWN_RESTRICTED | libc::_PC_NO_TRUNC | libc::_PC_2_SYMLINKS => Ok(1),
        libc::_PC_FILESIZEBITS => Ok(64),
        libc::_PC_REC_XFER_ALIGN | libc::_PC_REC_MIN_XFER_SIZE | libc::_PC_ALLOC_SIZE_MIN => {
            Ok(BLOCK_BYTES as i64)
        }
        libc::_PC_SYMLINK_MAX => Ok(4095),
        libc::_PC_VDISABLE => Ok(0),
        libc::_PC_MAX_CANON
        | libc::_PC_MAX_INPUT
        | libc::_PC_SYNC_IO
        | libc::_PC_ASYNC_IO
        | libc::_PC_PRIO_IO
        | libc::_PC_SOCK_MAXBUF
        | libc::_PC_REC_INCR_XFER_SIZE
        | libc::_PC_REC_MAX_XFER_SIZE => Ok(-1),
        _ => Err(libc::EINVAL),
    }
}

pub(crate) fn access_at(directory: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    if mode & !7 != 0 {
        return fail(libc::EINVAL);
    }
    let judge = |context: &Context, attributes: &Attributes| -> Answer<c_int> {
        if mode & libc::W_OK != 0 && !context.is_writable {
            return Err(libc::EROFS);
        }
        // R_OK, W_OK and X_OK are the bits of permissions.
        require(context, attributes, mode as u32).map(|()| 0)
    };
    if is_empty(path, flags)
        && let Some(context) = context()
        && let Some(found) = attributes_of_descriptor(context, directory)
    {
        return served(|| judge(context, &found?));
    }
    let last = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 {
        Last::NoFollow
    } else {
        Last::Follow
    };
    on_path(
        directory,
        path,
        last,
        |context, place, _| judge(context, &attributes_at(context, &place)?),
        |directory, path| faccessat::pass(directory, path, mode, flags),
    )
}

/// Blocks in total and free, files in total and free.
fn room_of(context: &Context) -> (u64, u64, u64, u64) {
    let region = context.attachment.region();
    let layout = region.layout();
    let files = layout.inode_count - 1;
    (
        layout.data_pages() * (PAGE_BYTES / BLOCK_BYTES),
        region.free_bytes() / BLOCK_BYTES,
        files,
        files.saturating_sub(region.inodes()),
    )
}

fn statfs_of(context: &Context) -> libc::statfs64 {
    let (blocks, free, files, files_free) = room_of(context);
    let mut statfs: libc::statfs64 = zeroed();
    statfs.f_type = FILE_SYSTEM_TYPE;
    statfs.f_bsize = BLOCK_BYTES as _;
    statfs.f_frsize = BLOCK_BYTES as _;
    statfs.f_blocks = blocks;
    statfs.f_bfree = free;
    statfs.f_bavail = free;
    statfs.f_files = files;
    statfs.f_ffree = files_free;
    statfs.f_namelen = NAME_BYTES_MAX;
    statfs
}

fn statvfs_of(context: &Context) -> libc::statvfs64 {
    let (blocks, free, files, files_free) = room_of(context);
    let mut statvfs: libc::statvfs64 = zeroed();
    statvfs.f_bsize = BLOCK_BYTES;
    statvfs.f_frsize = BLOCK_BYTES;
    statvfs.f_blocks = blocks;
    statvfs.f_bfree = free;
    statvfs.f_bavail = free;
    statvfs.f_files = files;
    statvfs.f_ffree = files_free;
    statvfs.f_favail = files_free;
    statvfs.f_fsid = context.device;
    statvfs.f_flag = if context.is_writable {
        0
    } else {
        libc::ST_RDONLY
    };
    statvfs.f_namemax = NAME_BYTES_MAX as u64;
    statvfs
}

/// Refuses with `errno` a path to an existing file of ours; passes on other paths.
pub(crate) fn refuse_path<T: crate::foreign::Failed>(
    path: *const c_char,
    last: Last,
    errno: c_int,
    pass: impl FnOnce(*const c_char) -> T,
) -> T {
    on_path(
        libc::AT_FDCWD,
        path,
        last,
        |context, place, _| {
            attributes_at(context, &place)?;
            Err(errno)
        },
        |_, path| pass(path),
    )
}

/// Refuses with `errno` a descriptor that is ours; passes on others.
pub(crate) fn refuse_descriptor<T: crate::foreign::Failed>(
    fd: c_int,
    errno: c_int,
    pass: impl FnOnce() -> T,
) -> T {
    match ours(fd) {
        Some(_) => fail(errno),
        None => pass(),
    }
}
