//! Calls that walk through directories: the C library's own functions bypass this library.

use std::ffi::{CString, c_char, c_int, c_void};

use crate::directory::{closedir, opendir, readdir64};
use crate::foreign::{fail, string};
use crate::next::serve;
use crate::resolve::is_inside;
use crate::stat::{lstat, stat};
use crate::state::context;

/// File types that `ftw` reports.
const FILE: c_int = 0;
const DIRECTORY: c_int = 1;
const UNREADABLE: c_int = 2;
const UNKNOWN: c_int = 3;
const LINK: c_int = 4;
const DIRECTORY_AFTER: c_int = 5;
const LINK_TO_NOTHING: c_int = 6;

/// Flags of `nftw`.
const PHYSICAL: c_int = 1;
const ONE_SYSTEM: c_int = 2;
const CHANGES_DIRECTORY: c_int = 4;
const DEPTH_FIRST: c_int = 8;
const ACTION_ANSWERS: c_int = 16;

/// Return values of the program's function with `ACTION_ANSWERS`.
const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;

#[repr(C)]
pub(crate) struct Place {
    base: c_int,
    level: c_int,
}

type Visit = extern "C-unwind" fn(*const c_char, *const libc::stat64, c_int, *const Place) -> c_int;

/// A tree walk like that of `nftw`.
struct Walk {
    visit: Visit,
    flags: c_int,
    /// Directories above; a repeated one means a cycle of links.
    above: Vec<(u64, u64)>,
    device: Option<u64>,
}

impl Walk {
    /// Visits a file and everything below it. Returns the program's result if that ends the walk.
    fn go(&mut self, path: &[u8], level: c_int) -> c_int {
        let Ok(text) = CString::new(path) else {
            return fail(libc::ENOENT);
        };
        let mut found: libc::stat64 = crate::foreign::zeroed();
        let is_physical = self.flags & PHYSICAL != 0;
        let looked = if is_physical {
            lstat(text.as_ptr(), &raw mut found)
        } else {
            stat(text.as_ptr(), &raw mut found)
        };
        let mut kind = UNKNOWN;
        if looked == 0 {
            kind = match found.st_mode & libc::S_IFMT {
                libc::S_IFDIR => DIRECTORY,
                libc::S_IFLNK => LINK,
                _ => FILE,
            };
        } else if level == 0 && lstat(text.as_ptr(), &raw mut found) < 0 {
            return -1;
        } else if !is_physical && lstat(text.as_ptr(), &raw mut found) == 0 {
            kind = LINK_TO_NOTHING;
        }
        let other_system = self.flags & ONE_SYSTEM != 0
            && looked == 0
            && *self.device.get_or_insert(found.st_dev) != found.st_dev;
        if other_system {
            return 0;
        }
        let base = path
            .iter()
            .rposition(|byte| *byte == b'/')
            .map_or(0, |slash| slash + 1);
        let place = Place {
            base: base as c_int,
            level,
        };
        let visit = self.visit;
        if kind != DIRECTORY {
            return visit(text.as_ptr(), &raw const found, kind, &raw const place);
        }
        let file = (found.st_dev, found.st_ino);
        if self.above.contains(&file) {
            return 0;
        }
        let handle = opendir(text.as_ptr());
        if handle.is_null() {
            return visit(
                text.as_ptr(),
                &raw const found,
                UNREADABLE,
                &raw const place,
            );
        }
        let mut names: Vec<Vec<u8>> = Vec::new();
        loop {
            let entry = readdir64(handle);
            if entry.is_null() {
                break;
            }
            // SAFETY: an entry of ours, which is valid until the next call; its name ends in zero.
            let name = unsafe { std::ffi::CStr::from_ptr((&raw const (*entry).d_name).cast()) };
            if !matches!(name.to_bytes(), b"." | b"..") {
                names.push(name.to_bytes().to_vec());
            }
        }
        closedir(handle);
        let is_deep = self.flags & DEPTH_FIRST != 0;
        if !is_deep {
            match visit(text.as_ptr(), &raw const found, DIRECTORY, &raw const place) {
                0 => {}
                SKIP_SUBTREE if self.flags & ACTION_ANSWERS != 0 => return 0,
                other => return other,
            }
        }
        self.above.push(file);
        for name in names {
            let mut below = path.to_vec();
            if !below.ends_with(b"/") {
                below.push(b'/');
            }
            below.extend_from_slice(&name);
            match self.go(&below, level + 1) {
                0 => {}
                SKIP_SUBTREE if self.flags & ACTION_ANSWERS != 0 => {}
                SKIP_SIBLINGS if self.flags & ACTION_ANSWERS != 0 => break,
                other => {
                    self.above.pop();
                    return other;
                }
            }
        }
        self.above.pop();
        if is_deep {
            return visit(
                text.as_ptr(),
                &raw const found,
                DIRECTORY_AFTER,
                &raw const place,
            );
        }
        0
    }
}

fn walk(path: *const c_char, visit: Visit, flags: c_int) -> c_int {
    let Ok(text) = string(path) else {
        return fail(libc::EFAULT);
    };
    if flags & CHANGES_DIRECTORY != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    let mut text = text.to_bytes();
    while text.len() > 1 && text.ends_with(b"/") {
        text = &text[..text.len() - 1];
    }
    let mut walk = Walk {
        visit,
        flags,
        above: Vec::new(),
        device: None,
    };
    walk.go(text, 0)
}

/// The functions that `glob` calls if a program passes its own; the C library's structure.
#[repr(C)]
pub(crate) struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    closedir: Option<extern "C-unwind" fn(*mut c_void)>,
    readdir: Option<extern "C-unwind" fn(*mut c_void) -> *mut libc::dirent64>,
    opendir: Option<extern "C-unwind" fn(*const c_char) -> *mut c_void>,
    lstat: Option<extern "C-unwind" fn(*const c_char, *mut libc::stat64) -> c_int>,
    stat: Option<extern "C-unwind" fn(*const c_char, *mut libc::stat64) -> c_int>,
}

const GLOB_ALTDIRFUNC: c_int = 1 << 9;

extern "C-unwind" fn close_quietly(handle: *mut c_void) {
    closedir(handle);
}

type OnError = Option<extern "C-unwind" fn(*const c_char, c_int) -> c_int>;

serve! {
    fn nftw64 [nftw](path: *const c_char, visit: Visit, descriptors: c_int, flags: c_int) -> c_int {
        if !is_inside(libc::AT_FDCWD, path) {
            return nftw64::pass(path, visit, descriptors, flags);
        }
        walk(path, visit, flags)
    }

    fn ftw64 [ftw](path: *const c_char, visit: Visit, descriptors: c_int) -> c_int {
        if !is_inside(libc::AT_FDCWD, path) {
            return ftw64::pass(path, visit, descriptors);
        }
        // The program's function has one parameter less, and ignores the last argument.
        walk(path, visit, 0)
    }

    fn glob [glob64](
        pattern: *const c_char, flags: c_int, on_error: OnError, result: *mut Glob
    ) -> c_int {
        // `glob` reads directories itself, unless it gets functions for that.
        if context().is_none() || flags & GLOB_ALTDIRFUNC != 0 || result.is_null() {
            return glob::pass(pattern, flags, on_error, result);
        }
        // SAFETY: the program passes its structure.
        unsafe {
            (*result).closedir = Some(close_quietly);
            (*result).readdir = Some(readdir64);
            (*result).opendir = Some(opendir);
            (*result).lstat = Some(lstat);
            (*result).stat = Some(stat);
        }
        let answer = glob::pass(pattern, flags | GLOB_ALTDIRFUNC, on_error, result);
        // SAFETY: as above.
        unsafe { (*result).flags &= !GLOB_ALTDIRFUNC };
        answer
    }

    // The C library would not see a tree of ours, so this refuses it.
    fn fts_open [fts64_open](paths: *const *mut c_char, options: c_int, compare: *mut c_void) -> *mut c_void {
        let mut next = paths;
        // SAFETY: the program passes a list that ends with null.
        while !next.is_null() && unsafe { !(*next).is_null() } {
            // SAFETY: as above.
            if is_inside(libc::AT_FDCWD, unsafe { *next }) {
                return fail(libc::EOPNOTSUPP);
            }
            // SAFETY: no null has been read yet.
            next = unsafe { next.add(1) };
        }
        fts_open::pass(paths, options, compare)
    }
}
