//! `posix_spawn`: the C library's child opens files and runs programs without this library. So files of the region are
//! opened here beforehand, and the child gets their descriptors.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::exec::{self, Strings};
use crate::foreign::string;
use crate::next::serve;
use crate::open::{close_descriptor, open_at, share_descriptors};
use crate::resolve::is_inside;
use crate::stat::access_at;
use crate::state::context;

/// An action of the child, in the C library's layout.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    kind: c_int,
    /// Depends on the kind: a descriptor, or the path of a directory.
    word: Word,
    path: *const c_char,
    flags: c_int,
    mode: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Word {
    fds: [c_int; 2],
    path: *const c_char,
}

const CLOSE: c_int = 0;
const DUP2: c_int = 1;
const OPEN: c_int = 2;
const CHDIR: c_int = 3;
const FCHDIR: c_int = 4;
const CLOSE_FROM: c_int = 5;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Actions {
    allocated: c_int,
    used: c_int,
    list: *mut Action,
    padding: [c_int; 16],
}

/// Descriptors that were opened for the child.
struct Opened(Vec<c_int>);

impl Drop for Opened {
    fn drop(&mut self) {
        for fd in &self.0 {
            close_descriptor(*fd);
        }
    }
}

/// Opens the files of the region that the child would open. Returns actions that the child can do, and the directory of
/// ours that it has changed into. `Err` holds the errno.
fn prepare(actions: &[Action], opened: &mut Opened) -> Result<(Vec<Action>, c_int), c_int> {
    let mut prepared = Vec::with_capacity(actions.len());
    let mut directory = libc::AT_FDCWD;
    let mut is_changed = false;
    for action in actions {
        let mut action = *action;
        match action.kind {
            OPEN => {
                // SAFETY: the word of this kind is a descriptor.
                let target = unsafe { action.word.fds[0] };
                let is_known = !is_changed || directory != libc::AT_FDCWD;
                let absolute =
                    string(action.path).is_ok_and(|path| path.to_bytes().starts_with(b"/"));
                if (is_known || absolute) && is_inside(directory, action.path) {
                    let fd = keep(
                        open_at(
                            directory,
                            action.path,
                            action.flags | libc::O_CLOEXEC,
                            action.mode,
                        ),
                        opened,
                    )?;
                    action.kind = DUP2;
                    action.word = Word { fds: [fd, target] };
                }
            }
            CHDIR => {
                // SAFETY: the word of this kind is a path.
                let path = unsafe { action.word.path };
                if is_inside(directory, path) {
                    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
                    directory = keep(open_at(directory, path, flags, 0), opened)?;
                    action.kind = FCHDIR;
                    action.word = Word {
                        fds: [directory, 0],
                    };
                } else {
                    directory = libc::AT_FDCWD;
                }
                is_changed = true;
            }
            FCHDIR => {
                // SAFETY: the word of this kind is a descriptor.
                let fd = unsafe { action.word.fds[0] };
                directory = if crate::state::ours(fd).is_some() {
                    fd
                } else {
                    libc::AT_FDCWD
                };
                is_changed = true;
            }
            _ => {}
        }
        prepared.push(action);
    }
    Ok((prepared, directory))
}

/// Makes a child that closes all descriptors from a number on keep those that were opened for it; exec closes these.
fn keep_open(actions: Vec<Action>, kept: &[c_int]) -> Vec<Action> {
    let Some(last) = kept.iter().copied().max() else {
        return actions;
    };
    let mut spared = Vec::with_capacity(actions.len());
    for mut action in actions {
        if action.kind == CLOSE_FROM {
            // SAFETY: the word of this kind is a descriptor.
            let first = unsafe { action.word.fds[0] };
            // A descriptor that is not open may be in the list: the child ignores the error.
            let others = (first.max(0)..last).filter(|fd| !kept.contains(fd));
            spared.extend(others.map(|fd| Action {
                kind: CLOSE,
                word: Word { fds: [fd, 0] },
                ..action
            }));
            action.word = Word {
                fds: [first.max(last + 1), 0],
            };
        }
        spared.push(action);
    }
    spared
}

/// Moves a new descriptor to a number that the child's actions rarely use.
fn keep(fd: c_int, opened: &mut Opened) -> Result<c_int, c_int> {
    const LEAST: usize = 600;
    if fd < 0 {
        return Err(crate::foreign::errno());
    }
    let high = crate::descriptor::control(fd, libc::F_DUPFD_CLOEXEC, LEAST);
    if high < 0 {
        opened.0.push(fd);
        return Ok(fd);
    }
    close_descriptor(fd);
    opened.0.push(high);
    Ok(high)
}

type Spawn<'a> = dyn Fn(*const c_char, *const Actions, Strings) -> c_int + 'a;

/// Runs a program by its path; like the C library's functions, it returns the errno.
fn spawn(path: &CStr, actions: *const Actions, arguments: Strings, call: &Spawn<'_>) -> c_int {
    share_descriptors();
    let errno = crate::foreign::errno();
    let mut opened = Opened(Vec::new());
    // SAFETY: null, or a structure that the program has built with the C library's functions.
    let given = unsafe { actions.as_ref() };
    let list = given.map_or(&[][..], |given| {
        if given.list.is_null() || given.used <= 0 {
            return &[];
        }
        // SAFETY: the C library's list has that many entries.
        unsafe { std::slice::from_raw_parts(given.list, given.used as usize) }
    });
    let (prepared, directory) = match prepare(list, &mut opened) {
        Ok(prepared) => prepared,
        Err(errno) => return errno,
    };
    let Some(resolved) = exec::resolve(directory, true, path.as_ptr(), arguments) else {
        return crate::foreign::errno();
    };
    let mut kept = opened.0.clone();
    kept.extend((resolved.copy >= 0).then_some(resolved.copy));
    let mut prepared = keep_open(prepared, &kept);
    let rewritten = given.map(|given| Actions {
        list: prepared.as_mut_ptr(),
        used: prepared.len() as c_int,
        ..*given
    });
    let actions = rewritten
        .as_ref()
        .filter(|_| !list.is_empty())
        .map_or(actions, std::ptr::from_ref);
    let answer = if resolved.is_kernels {
        call(resolved.path.as_ptr(), actions, arguments)
    } else {
        call(resolved.path.as_ptr(), actions, resolved.arguments.as_ptr())
    };
    crate::foreign::set_errno(errno);
    answer
}

serve! {
    fn posix_spawn(
        pid: *mut c_int, path: *const c_char, actions: *const Actions, attributes: *const c_void,
        arguments: Strings, environment: Strings
    ) -> c_int {
        let Some(text) = context().and_then(|_| string(path).ok()) else {
            return posix_spawn::pass(pid, path, actions, attributes, arguments, environment);
        };
        spawn(text, actions, arguments, &|path, actions, arguments| {
            posix_spawn::pass(pid, path, actions, attributes, arguments, environment)
        })
    }

    fn posix_spawnp(
        pid: *mut c_int, file: *const c_char, actions: *const Actions, attributes: *const c_void,
        arguments: Strings, environment: Strings
    ) -> c_int {
        let Some(text) = context().and_then(|_| string(file).ok()) else {
            return posix_spawnp::pass(pid, file, actions, attributes, arguments, environment);
        };
        if text.to_bytes().contains(&b'/') {
            return spawn(text, actions, arguments, &|path, actions, arguments| {
                posix_spawn::pass(pid, path, actions, attributes, arguments, environment)
            });
        }
        let found: Option<CString> = if exec::may_be_ours(text) {
            exec::search(text, |path| {
                (access_at(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0)
                    .then(|| path.to_owned())
            })
        } else {
            None
        };
        match found {
            Some(path) => spawn(&path, actions, arguments, &|path, actions, arguments| {
                posix_spawn::pass(pid, path, actions, attributes, arguments, environment)
            }),
            // The program is not in the region, but the actions may use files of the region.
            None => {
                let shell = c"/bin/sh";
                spawn(shell, actions, arguments, &|_, actions, arguments| {
                    posix_spawnp::pass(pid, file, actions, attributes, arguments, environment)
                })
            }
        }
    }

    // The children of these calls get this process's descriptors.
    fn popen [_IO_popen](command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
        share_descriptors();
        popen::pass(command, mode)
    }

    fn system [__libc_system](command: *const c_char) -> c_int {
        share_descriptors();
        system::pass(command)
    }

    fn wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int {
        share_descriptors();
        wordexp::pass(words, result, flags)
    }

    fn clone [__clone](
        run: *mut c_void, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent: *mut c_int, local: *mut c_void, child: *mut c_int
    ) -> c_int {
        share_descriptors();
        clone::pass(run, stack, flags, argument, parent, local, child)
    }
}
