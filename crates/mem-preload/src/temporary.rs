//! Files and directories with unused names.

use std::ffi::{c_char, c_int};

use crate::foreign::{fail, room, string};
use crate::names::mkdir_at;
use crate::next::serve;
use crate::open::open_at;
use crate::raw;
use crate::resolve::is_inside;
use crate::stat::access_at;

const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const PLACES: usize = 6;
const TRIES_MAX: u32 = 1000;

/// Replaces the six X before a suffix by random letters, until `try_name` does not report that the name exists.
fn make(
    template: *mut c_char,
    suffix: c_int,
    mut try_name: impl FnMut(*mut c_char) -> c_int,
) -> c_int {
    let Ok(text) = string(template) else {
        return fail(libc::EFAULT);
    };
    let length = text.to_bytes().len();
    let Some(end) = usize::try_from(suffix)
        .ok()
        .and_then(|suffix| length.checked_sub(suffix))
        .filter(|end| *end >= PLACES && text.to_bytes()[end - PLACES..*end] == *b"XXXXXX")
    else {
        return fail(libc::EINVAL);
    };
    for _ in 0..TRIES_MAX {
        let mut random = [0_u8; PLACES];
        let arguments = [random.as_mut_ptr() as usize, PLACES, 0, 0, 0, 0];
        // SAFETY: a buffer of as many bytes as requested.
        unsafe { raw::call(libc::SYS_getrandom, arguments) };
        match room(template.cast(), length) {
            Ok(template) => {
                for (place, random) in template[end - PLACES..end].iter_mut().zip(random) {
                    *place = LETTERS[usize::from(random) % LETTERS.len()];
                }
            }
            Err(errno) => return fail(errno),
        }
        let answer = try_name(template);
        if answer >= 0 || crate::foreign::errno() != libc::EEXIST {
            return answer;
        }
    }
    fail(libc::EEXIST)
}

fn make_file(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    make(template, suffix, |name| {
        open_at(libc::AT_FDCWD, name, flags, 0o600)
    })
}

serve! {
    fn mkstemp [mkstemp64](template: *mut c_char) -> c_int {
        if !is_inside(libc::AT_FDCWD, template) {
            return mkstemp::pass(template);
        }
        make_file(template, 0, 0)
    }

    fn mkostemp [mkostemp64](template: *mut c_char, flags: c_int) -> c_int {
        if !is_inside(libc::AT_FDCWD, template) {
            return mkostemp::pass(template, flags);
        }
        make_file(template, 0, flags)
    }

    fn mkstemps [mkstemps64](template: *mut c_char, suffix: c_int) -> c_int {
        if !is_inside(libc::AT_FDCWD, template) {
            return mkstemps::pass(template, suffix);
        }
        make_file(template, suffix, 0)
    }

    fn mkostemps [mkostemps64](template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
        if !is_inside(libc::AT_FDCWD, template) {
            return mkostemps::pass(template, suffix, flags);
        }
        make_file(template, suffix, flags)
    }

    fn mkdtemp(template: *mut c_char) -> *mut c_char {
        if !is_inside(libc::AT_FDCWD, template) {
            return mkdtemp::pass(template);
        }
        if make(template, 0, |name| mkdir_at(libc::AT_FDCWD, name, 0o700)) < 0 {
            return std::ptr::null_mut();
        }
        template
    }

    fn mktemp [__mktemp](template: *mut c_char) -> *mut c_char {
        if !is_inside(libc::AT_FDCWD, template) {
            return mktemp::pass(template);
        }
        let found = make(template, 0, |name| {
            if access_at(libc::AT_FDCWD, name, libc::F_OK, libc::AT_SYMLINK_NOFOLLOW) == 0 {
                return fail(libc::EEXIST);
            }
            0
        });
        if found < 0 {
            // This function reports a failure by an empty string.
            let _ = crate::foreign::put(template, 0);
        }
        template
    }
}
