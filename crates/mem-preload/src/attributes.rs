//! Permissions, owners and times.

use std::ffi::{c_char, c_int, c_uint};

use mem::{Attributes, Changes, Last};

use crate::foreign::{Answer, fail, get, is_nowhere, values};
use crate::next::serve;
use crate::open::require;
use crate::raw;
use crate::resolve::on_path;
use crate::stat::{attributes_at, attributes_of_descriptor, is_empty};
use crate::state::{Context, OrErrno, context, ours, served};

/// Changes a file by its path, or by a descriptor if the path is empty.
fn on_attributes(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    change: impl FnOnce(&Context, &Attributes) -> Answer<Changes>,
    pass: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    let apply = |context: &Context, attributes: &Attributes| -> Answer<c_int> {
        let changes = change(context, attributes)?;
        if !context.is_writable {
            return Err(libc::EROFS);
        }
        if attributes.is_directory() && attributes.links == 0 {
            // The file is removed; nothing could show the change.
            return Ok(0);
        }
        context.register_thread();
        let writer = context.attachment.writer().or_errno()?;
        writer
            .set_attributes(attributes.node(), &changes, mem::now_ns())
            .or_errno()?;
        Ok(0)
    };
    if is_empty(path, flags)
        && let Some(context) = context()
    {
        return match attributes_of_descriptor(context, directory) {
            Some(found) => served(|| apply(context, &found?)),
            None => pass(directory, path),
        };
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
        |context, place, _| apply(context, &attributes_at(context, &place)?),
        pass,
    )
}

fn require_owner(attributes: &Attributes) -> Answer<u32> {
    let user = raw::effective_user();
    if user == 0 || user == attributes.user {
        Ok(user)
    } else {
        Err(libc::EPERM)
    }
}

fn in_group(context: &Context, group: u32) -> bool {
    context.with_credentials(|who| who.group == group || who.groups.contains(&group))
}

pub(crate) fn chmod_at(directory: c_int, path: *const c_char, mode: c_uint, flags: c_int) -> c_int {
    on_attributes(
        directory,
        path,
        flags,
        |context, attributes| {
            if attributes.is_symbolic_link() {
                return Err(libc::EOPNOTSUPP);
            }
            let user = require_owner(attributes)?;
            let mut mode = mode & 0o7777;
            if user != 0 && !in_group(context, attributes.group) {
                mode &= !libc::S_ISGID;
            }
            Ok(Changes {
                mode: Some(mode),
                ..Changes::default()
            })
        },
        |directory, path| fchmodat::pass(directory, path, mode, flags),
    )
}

pub(crate) fn chown_at(
    directory: c_int,
    path: *const c_char,
    user: u32,
    group: u32,
    flags: c_int,
) -> c_int {
    const SAME: u32 = u32::MAX;
    on_attributes(
        directory,
        path,
        flags,
        |context, attributes| {
            let me = raw::effective_user();
            let changes_user = user != SAME && user != attributes.user;
            let changes_group = group != SAME && group != attributes.group;
            if me != 0
                && (changes_user
                    || me != attributes.user
                    || changes_group && !in_group(context, group))
            {
                return Err(libc::EPERM);
            }
            // A new owner or group must not get a program that runs with the rights of another one.
            let special = libc::S_ISUID
                | if attributes.mode & libc::S_IXGRP != 0 {
                    libc::S_ISGID
                } else {
                    0
                };
            let drops = !attributes.is_directory()
                && (user != SAME || group != SAME)
                && attributes.mode & special != 0;
            Ok(Changes {
                mode: drops.then_some(attributes.mode & 0o7777 & !special),
                user: (user != SAME).then_some(user),
                group: (group != SAME).then_some(group),
                ..Changes::default()
            })
        },
        |directory, path| fchownat::pass(directory, path, user, group, flags),
    )
}

/// Times in the form of `utimensat`.
pub(crate) fn utime_at(
    directory: c_int,
    path: *const c_char,
    times: *const libc::timespec,
    flags: c_int,
) -> c_int {
    // Nothing to do; the kernel does not even check the path in this case.
    if !is_nowhere(times)
        && values(times, 2).is_ok_and(|times| times.iter().all(|it| it.tv_nsec == libc::UTIME_OMIT))
    {
        return 0;
    }
    let serve = |context: &Context, attributes: &Attributes| -> Answer<Changes> {
        let now_ns = mem::now_ns();
        let (changes, only_now) = if times.is_null() {
            let changes = Changes {
                accessed_ns: Some(now_ns),
                modified_ns: Some(now_ns),
                ..Changes::default()
            };
            (changes, true)
        } else {
            let times = values(times, 2)?;
            let changes = Changes {
                accessed_ns: time_ns(&times[0], now_ns)?,
                modified_ns: time_ns(&times[1], now_ns)?,
                ..Changes::default()
            };
            let only_now = times.iter().all(|time| time.tv_nsec == libc::UTIME_NOW);
            (changes, only_now)
        };
        if require_owner(attributes).is_err() {
            if !only_now {
                return Err(libc::EPERM);
            }
            require(context, attributes, 2)?;
        }
        Ok(changes)
    };
    // The C library passes no path if it means the descriptor.
    if path.is_null() {
        return match ours(directory) {
            Some(_) => on_attributes(
                directory,
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                serve,
                |_, _| fail(libc::EBADF),
            ),
            None => utimensat::pass(directory, path, times, flags),
        };
    }
    on_attributes(directory, path, flags, serve, |directory, path| {
        utimensat::pass(directory, path, times, flags)
    })
}

fn time_ns(time: &libc::timespec, now_ns: u64) -> Answer<Option<u64>> {
    match time.tv_nsec {
        libc::UTIME_NOW => Ok(Some(now_ns)),
        libc::UTIME_OMIT => Ok(None),
        nanoseconds @ 0..=999_999_999 => {
            // 292 years before and after 1970; other times are clamped, as in other file systems.
            let seconds = time.tv_sec.clamp(-9_223_372_036, 9_223_372_035);
            Ok(Some((seconds * 1_000_000_000 + nanoseconds) as u64))
        }
        _ => Err(libc::EINVAL),
    }
}

/// Times in microseconds, as the older calls pass them.
fn with_microseconds(
    times: *const libc::timeval,
    call: impl FnOnce(*const libc::timespec) -> c_int,
) -> c_int {
    if times.is_null() {
        return call(std::ptr::null());
    }
    let Ok(given) = values(times, 2) else {
        return fail(libc::EFAULT);
    };
    if given
        .iter()
        .any(|time| !(0..1_000_000).contains(&time.tv_usec))
    {
        return fail(libc::EINVAL);
    }
    let of = |time: &libc::timeval| libc::timespec {
        tv_sec: time.tv_sec,
        tv_nsec: time.tv_usec * 1000,
    };
    let converted = [of(&given[0]), of(&given[1])];
    call(converted.as_ptr())
}

serve! {
    fn fchmodat(directory: c_int, path: *const c_char, mode: c_uint, flags: c_int) -> c_int {
        chmod_at(directory, path, mode, flags)
    }

    fn chmod(path: *const c_char, mode: c_uint) -> c_int {
        chmod_at(libc::AT_FDCWD, path, mode, 0)
    }

    fn lchmod(path: *const c_char, mode: c_uint) -> c_int {
        chmod_at(libc::AT_FDCWD, path, mode, libc::AT_SYMLINK_NOFOLLOW)
    }

    fn fchmod(fd: c_int, mode: c_uint) -> c_int {
        match ours(fd) {
            Some((_, opened)) if opened.flags & libc::O_PATH != 0 => fail(libc::EBADF),
            Some(_) => chmod_at(fd, c"".as_ptr(), mode, libc::AT_EMPTY_PATH),
            None => fchmod::pass(fd, mode),
        }
    }

    fn fchownat(
        directory: c_int, path: *const c_char, user: u32, group: u32, flags: c_int
    ) -> c_int {
        chown_at(directory, path, user, group, flags)
    }

    fn chown(path: *const c_char, user: u32, group: u32) -> c_int {
        chown_at(libc::AT_FDCWD, path, user, group, 0)
    }

    fn lchown(path: *const c_char, user: u32, group: u32) -> c_int {
        chown_at(libc::AT_FDCWD, path, user, group, libc::AT_SYMLINK_NOFOLLOW)
    }

    fn fchown(fd: c_int, user: u32, group: u32) -> c_int {
        match ours(fd) {
            Some((_, opened)) if opened.flags & libc::O_PATH != 0 => fail(libc::EBADF),
            Some(_) => chown_at(fd, c"".as_ptr(), user, group, libc::AT_EMPTY_PATH),
            None => fchown::pass(fd, user, group),
        }
    }

    fn utimensat(
        directory: c_int, path: *const c_char, times: *const libc::timespec, flags: c_int
    ) -> c_int {
        if path.is_null() && directory == libc::AT_FDCWD {
            return utimensat::pass(directory, path, times, flags);
        }
        utime_at(directory, path, times, flags)
    }

    fn futimens(fd: c_int, times: *const libc::timespec) -> c_int {
        match ours(fd) {
            Some(_) => utime_at(fd, std::ptr::null(), times, 0),
            None => futimens::pass(fd, times),
        }
    }

    fn utimes(path: *const c_char, times: *const libc::timeval) -> c_int {
        with_microseconds(times, |times| utime_at(libc::AT_FDCWD, path, times, 0))
    }

    fn lutimes(path: *const c_char, times: *const libc::timeval) -> c_int {
        with_microseconds(times, |times| {
            utime_at(libc::AT_FDCWD, path, times, libc::AT_SYMLINK_NOFOLLOW)
        })
    }

    fn futimes(fd: c_int, times: *const libc::timeval) -> c_int {
        match ours(fd) {
            Some(_) => with_microseconds(times, |times| {
                utime_at(fd, std::ptr::null(), times, 0)
            }),
            None => futimes::pass(fd, times),
        }
    }

    fn futimesat(directory: c_int, path: *const c_char, times: *const libc::timeval) -> c_int {
        if path.is_null() {
            return futimes(directory, times);
        }
        with_microseconds(times, |times| utime_at(directory, path, times, 0))
    }

    fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int {
        let Ok(given) = get(times) else {
            return utime_at(libc::AT_FDCWD, path, std::ptr::null(), 0);
        };
        let of = |seconds| libc::timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = [of(given.actime), of(given.modtime)];
        utime_at(libc::AT_FDCWD, path, times.as_ptr(), 0)
    }

    fn umask(mask: c_uint) -> c_uint {
        if let Some(context) = context() {
            context.set_umask(mask);
        }
        umask::pass(mask)
    }
}
