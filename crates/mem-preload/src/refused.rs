//! Operations that files of the region do not support, with their errno.

use std::ffi::{c_char, c_int, c_uint, c_void};

use mem::Last;

use crate::foreign::{bytes, fail};
use crate::next::serve;
use crate::resolve::is_inside;
use crate::stat::{refuse_descriptor, refuse_path};
use crate::state::ours;

/// Extended attributes: there are none.
const NO_ATTRIBUTES: c_int = libc::ENOTSUP;

/// Defines calls on the extended attributes of a path; whether a last symbolic link is followed stands in brackets.
macro_rules! no_attributes {
    ($(
        fn $name:ident [$last:ident] ($path:ident: $type:ty $(, $argument:ident: $other:ty)*) -> $result:ty;
    )*) => {
        serve! {$(
            fn $name($path: $type $(, $argument: $other)*) -> $result {
                refuse_path($path, Last::$last, NO_ATTRIBUTES, |$path| $name::pass($path $(, $argument)*))
            }
        )*}
    };
}

no_attributes! {
    fn getxattr [Follow](path: *const c_char, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    fn lgetxattr [NoFollow](path: *const c_char, name: *const c_char, value: *mut c_void, size: usize) -> isize;
    fn setxattr [Follow](
        path: *const c_char, name: *const c_char, value: *const c_void, size: usize, flags: c_int
    ) -> c_int;
    fn lsetxattr [NoFollow](
        path: *const c_char, name: *const c_char, value: *const c_void, size: usize, flags: c_int
    ) -> c_int;
    fn listxattr [Follow](path: *const c_char, list: *mut c_char, size: usize) -> isize;
    fn llistxattr [NoFollow](path: *const c_char, list: *mut c_char, size: usize) -> isize;
    fn removexattr [Follow](path: *const c_char, name: *const c_char) -> c_int;
    fn lremovexattr [NoFollow](path: *const c_char, name: *const c_char) -> c_int;
}

serve! {
    fn fgetxattr(fd: c_int, name: *const c_char, value: *mut c_void, size: usize) -> isize {
        refuse_descriptor(fd, NO_ATTRIBUTES, || fgetxattr::pass(fd, name, value, size))
    }

    fn fsetxattr(
        fd: c_int, name: *const c_char, value: *const c_void, size: usize, flags: c_int
    ) -> c_int {
        refuse_descriptor(fd, NO_ATTRIBUTES, || fsetxattr::pass(fd, name, value, size, flags))
    }

    fn flistxattr(fd: c_int, list: *mut c_char, size: usize) -> isize {
        refuse_descriptor(fd, NO_ATTRIBUTES, || flistxattr::pass(fd, list, size))
    }

    fn fremovexattr(fd: c_int, name: *const c_char) -> c_int {
        refuse_descriptor(fd, NO_ATTRIBUTES, || fremovexattr::pass(fd, name))
    }

    // As if no watches were left: programs that can poll then do so.
    fn inotify_add_watch(fd: c_int, path: *const c_char, mask: c_uint) -> c_int {
        refuse_path(path, Last::Follow, libc::ENOSPC, |path| {
            inotify_add_watch::pass(fd, path, mask)
        })
    }

    fn fanotify_mark(
        fd: c_int, flags: c_uint, mask: u64, directory: c_int, path: *const c_char
    ) -> c_int {
        if ours(directory).is_some() || !path.is_null() && is_inside(directory, path) {
            return fail(libc::ENODEV);
        }
        fanotify_mark::pass(fd, flags, mask, directory, path)
    }

    fn name_to_handle_at(
        directory: c_int, path: *const c_char, handle: *mut c_void, mount: *mut c_int, flags: c_int
    ) -> c_int {
        if is_inside(directory, path) {
            return fail(libc::EOPNOTSUPP);
        }
        name_to_handle_at::pass(directory, path, handle, mount, flags)
    }

    fn bind(fd: c_int, address: *const c_void, length: c_uint) -> c_int {
        if names_ours(address, length) {
            return fail(libc::EOPNOTSUPP);
        }
        bind::pass(fd, address, length)
    }

    fn connect [__connect](fd: c_int, address: *const c_void, length: c_uint) -> c_int {
        if names_ours(address, length) {
            return fail(libc::EOPNOTSUPP);
        }
        connect::pass(fd, address, length)
    }

    // The C library's threads would call the kernel directly.
    fn aio_read [aio_read64](request: *mut libc::aiocb) -> c_int {
        refuse_request(request, || aio_read::pass(request))
    }

    fn aio_write [aio_write64](request: *mut libc::aiocb) -> c_int {
        refuse_request(request, || aio_write::pass(request))
    }

    fn aio_fsync [aio_fsync64](operation: c_int, request: *mut libc::aiocb) -> c_int {
        refuse_request(request, || aio_fsync::pass(operation, request))
    }

    fn lio_listio [lio_listio64](
        mode: c_int, list: *const *mut libc::aiocb, count: c_int, event: *mut c_void
    ) -> c_int {
        let requests = crate::foreign::values(list, usize::try_from(count).unwrap_or(0));
        let any = requests.is_ok_and(|requests| requests.iter().any(|request| is_ours(*request)));
        if any {
            return fail(libc::ENOSYS);
        }
        lio_listio::pass(mode, list, count, event)
    }
}

fn is_ours(request: *const libc::aiocb) -> bool {
    // SAFETY: null, or a request of the program.
    unsafe { request.as_ref() }.is_some_and(|request| ours(request.aio_fildes).is_some())
}

fn refuse_request(request: *const libc::aiocb, pass: impl FnOnce() -> c_int) -> c_int {
    if is_ours(request) {
        return fail(libc::ENOSYS);
    }
    pass()
}

/// Whether the address of a socket is a path that leads into the region.
fn names_ours(address: *const c_void, length: c_uint) -> bool {
    let Ok(bytes) = bytes(address, length as usize) else {
        return false;
    };
    let Some((family, path)) = bytes.split_first_chunk::<2>() else {
        return false;
    };
    if c_int::from(u16::from_ne_bytes(*family)) != libc::AF_UNIX
        || path.first().is_none_or(|first| *first == 0)
    {
        return false;
    }
    // The path need not end in zero.
    let mut text = [0_u8; 128];
    let count = path.len().min(text.len() - 1);
    text[..count].copy_from_slice(&path[..count]);
    is_inside(libc::AT_FDCWD, text.as_ptr().cast())
}
