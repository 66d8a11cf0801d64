//! Programs and libraries in the region: the kernel and the loader cannot read them there, so they get a copy in an
//! anonymous memory file.

use std::ffi::{CStr, CString, c_char, c_int};

use mem::{Attributes, Last, Opened};

use crate::foreign::{Answer, fail, string};
use crate::next::serve;
use crate::open::{attributes_of, require};
use crate::raw;
use crate::resolve::{is_inside, on_path, write_number};
use crate::stat::{access_at, attributes_at};
use crate::state::{Context, OrErrno, ours, served};

/// Copies are moved to descriptors from this number on, which programs rarely use.
const COPY_DESCRIPTOR_MIN: usize = 700;

/// Maximum nesting of scripts whose interpreters are scripts, as in the kernel.
const INTERPRETERS_MAX: u32 = 4;

/// Maximum length of a script's first line, in bytes, as in the kernel.
const LINE_BYTES_MAX: usize = 255;

pub(crate) type Strings = *const *const c_char;

/// What to run instead of a program of the region.
pub(crate) enum Program {
    /// The descriptor of a copy.
    Copy(c_int),
    /// A script: its interpreter, and one argument for it.
    Script(CString, Option<CString>),
}

/// The strings of a list that ends with null. They live as long as the list.
fn strings(list: Strings) -> Vec<*const c_char> {
    let mut found = Vec::new();
    if list.is_null() {
        return found;
    }
    // SAFETY: the program passes a list that ends with null.
    unsafe {
        let mut next = list;
        while !(*next).is_null() {
            found.push(*next);
            next = next.add(1);
        }
    }
    found
}

/// Copies a file into a memory file that only this process can name.
pub(crate) fn copy_of(context: &Context, attributes: &Attributes) -> Answer<c_int> {
    let arguments = [
        c"keelmem".as_ptr() as usize,
        libc::MFD_CLOEXEC as usize,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: a string that ends in zero.
    let low = unsafe { raw::checked(libc::SYS_memfd_create, arguments) }? as c_int;
    let fd = match raw::control(low, libc::F_DUPFD_CLOEXEC, COPY_DESCRIPTOR_MIN) {
        Ok(high) => {
            let _ = raw::close(low);
            high as c_int
        }
        Err(_) => low,
    };
    let copied = copy_bytes(context, attributes, fd);
    if let Err(errno) = copied {
        let _ = raw::close(fd);
        return Err(errno);
    }
    crate::table::forget(fd);
    Ok(fd)
}

fn copy_bytes(context: &Context, attributes: &Attributes, fd: c_int) -> Answer<()> {
    let mut part = [0_u8; 16 << 10];
    let mut at = 0;
    loop {
        let read = context
            .attachment
            .region()
            .read(attributes.inode, attributes.generation, at, &mut part)
            .or_errno()?;
        if read == 0 {
            return Ok(());
        }
        let arguments = [fd as usize, part.as_ptr() as usize, read, at as usize, 0, 0];
        // SAFETY: bytes that live as long as the call.
        let written = unsafe { raw::checked(libc::SYS_pwrite64, arguments) }?;
        at += written as u64;
    }
}

/// What to run for a file of the region.
fn program_of(context: &Context, attributes: &Attributes) -> Answer<Program> {
    if attributes.is_directory() {
        return Err(libc::EACCES);
    }
    require(context, attributes, 1)?;
    let mut line = [0_u8; LINE_BYTES_MAX];
    let read = context
        .attachment
        .region()
        .read(attributes.inode, attributes.generation, 0, &mut line)
        .or_errno()?;
    let Some(line) = line[..read].strip_prefix(b"#!") else {
        return copy_of(context, attributes).map(Program::Copy);
    };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.trim_ascii();
    let end = line
        .iter()
        .position(|byte| matches!(byte, b' ' | b'\t'))
        .unwrap_or(line.len());
    let (interpreter, argument) = line.split_at(end);
    let argument = argument.trim_ascii();
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| libc::ENOEXEC);
    if interpreter.is_empty() {
        return Err(libc::ENOEXEC);
    }
    let argument = if argument.is_empty() {
        None
    } else {
        Some(text(argument)?)
    };
    Ok(Program::Script(text(interpreter)?, argument))
}

/// What to run for a path. `None` if the kernel runs it itself, by the path that it knows.
pub(crate) fn find_program(
    directory: c_int,
    path: *const c_char,
) -> Result<Program, Option<CString>> {
    let mut found = None;
    let mut kernel = None;
    let answer = on_path(
        directory,
        path,
        Last::Follow,
        |context, place, _| {
            let attributes = attributes_at(context, &place)?;
            found = Some(program_of(context, &attributes)?);
            Ok(0)
        },
        |_, path| {
            kernel = string(path).ok().map(CStr::to_owned);
            0
        },
    );
    match found {
        Some(program) => Ok(program),
        None if answer < 0 => Err(None),
        None => Err(kernel),
    }
}

/// The program to run in the end, and its arguments: scripts are replaced by their interpreters.
pub(crate) struct Resolved {
    /// Descriptor of the copy, or -1.
    pub(crate) copy: c_int,
    /// The path for the kernel.
    pub(crate) path: CString,
    /// Arguments inserted at the front; the list below points to them.
    _texts: Vec<CString>,
    /// Ends with null.
    pub(crate) arguments: Vec<*const c_char>,
    /// Whether the given path was one of the kernel's.
    pub(crate) is_kernels: bool,
}

impl Drop for Resolved {
    fn drop(&mut self) {
        if self.copy >= 0 {
            let _ = raw::close(self.copy);
        }
    }
}

/// Whether a descriptor is closed on exec, so that an interpreter cannot open files relative to it.
fn closes_on_exec(fd: c_int) -> bool {
    raw::control(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC as usize != 0)
}

/// The path of a script for its interpreter, as the kernel makes it: a path relative to a descriptor goes through
/// `/dev/fd`.
fn path_for_interpreter(directory: c_int, path: CString) -> Answer<CString> {
    if directory == libc::AT_FDCWD || path.as_bytes().starts_with(b"/") {
        return Ok(path);
    }
    if closes_on_exec(directory) {
        return Err(libc::ENOENT);
    }
    let mut text = format!("/dev/fd/{directory}/").into_bytes();
    text.extend_from_slice(path.as_bytes());
    CString::new(text).map_err(|_| libc::EINVAL)
}

/// Finds the program to run for a path; sets errno on failure. `is_entered` says that the directory is the working
/// directory of the process that will run it.
pub(crate) fn resolve(
    directory: c_int,
    is_entered: bool,
    path: *const c_char,
    arguments: Strings,
) -> Option<Resolved> {
    let mut list = strings(arguments);
    let mut texts: Vec<CString> = Vec::new();
    let mut current = string(path).ok()?.to_owned();
    let mut directory = directory;
    for round in 0..=INTERPRETERS_MAX {
        match find_program(directory, current.as_ptr()) {
            Err(None) => return None,
            Err(Some(kernel)) => {
                list.push(std::ptr::null());
                return Some(Resolved {
                    copy: -1,
                    path: kernel,
                    _texts: texts,
                    arguments: list,
                    is_kernels: round == 0,
                });
            }
            Ok(Program::Copy(copy)) => {
                let mut name = [0; 40];
                write_number(&mut name, b"/proc/self/fd/", copy as u64);
                let path = CStr::from_bytes_until_nul(&name).unwrap_or_default();
                list.push(std::ptr::null());
                return Some(Resolved {
                    copy,
                    path: path.to_owned(),
                    _texts: texts,
                    arguments: list,
                    is_kernels: false,
                });
            }
            Ok(Program::Script(interpreter, argument)) => {
                let from = if is_entered {
                    libc::AT_FDCWD
                } else {
                    directory
                };
                let current_path = match path_for_interpreter(from, current) {
                    Ok(path) => path,
                    Err(errno) => {
                        fail::<c_int>(errno);
                        return None;
                    }
                };
                // The script's path replaces the program's name.
                if !list.is_empty() {
                    list.remove(0);
                }
                texts.push(current_path);
                list.insert(0, texts[texts.len() - 1].as_ptr());
                if let Some(argument) = argument {
                    texts.push(argument);
                    list.insert(0, texts[texts.len() - 1].as_ptr());
                }
                texts.push(interpreter.clone());
                list.insert(0, texts[texts.len() - 1].as_ptr());
                current = interpreter;
                directory = libc::AT_FDCWD;
            }
        }
    }
    fail::<c_int>(libc::ELOOP);
    None
}

/// `execveat`, for all names of the function.
pub(crate) fn execute_at(
    directory: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    if crate::state::context().is_none() || path.is_null() {
        return execve::pass(path, arguments, environment);
    }
    let Some(resolved) = resolve(directory, false, path, arguments) else {
        return -1;
    };
    if resolved.is_kernels {
        return execve::pass(resolved.path.as_ptr(), arguments, environment);
    }
    execve::pass(
        resolved.path.as_ptr(),
        resolved.arguments.as_ptr(),
        environment,
    )
}

/// Runs the file of a descriptor of ours.
fn execute_descriptor(
    context: &Context,
    fd: c_int,
    opened: &Opened,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let mut found = None;
    let answer = served(|| {
        let attributes = attributes_of(context, opened)?;
        found = Some(program_of(context, &attributes)?);
        Ok(0)
    });
    let mut name = [0; 40];
    match found {
        None => answer,
        Some(Program::Copy(copy)) => {
            write_number(&mut name, b"/proc/self/fd/", copy as u64);
            let answer = execve::pass(name.as_ptr().cast(), arguments, environment);
            let _ = raw::close(copy);
            answer
        }
        Some(Program::Script(..)) if closes_on_exec(fd) => fail(libc::ENOENT),
        Some(Program::Script(interpreter, argument)) => {
            // The interpreter opens the script by the descriptor, which must stay open.
            write_number(&mut name, b"/dev/fd/", fd as u64);
            let mut list = vec![interpreter.as_ptr()];
            list.extend(argument.as_ref().map(|argument| argument.as_ptr()));
            list.push(name.as_ptr().cast());
            list.extend(strings(arguments).into_iter().skip(1));
            list.push(std::ptr::null());
            execute_at(
                libc::AT_FDCWD,
                interpreter.as_ptr(),
                list.as_ptr(),
                environment,
            )
        }
    }
}

/// The environment of the process.
pub(crate) fn environment() -> Strings {
    // SAFETY: the C library's variable; the list is read as it is now.
    unsafe { libc::environ.cast() }
}

/// Calls `try_path` with each possible path of a program of that name, until it returns a value.
pub(crate) fn search<T>(file: &CStr, mut try_path: impl FnMut(&CStr) -> Option<T>) -> Option<T> {
    // SAFETY: a string that ends in zero; the value is copied below.
    let variable = unsafe { libc::getenv(c"PATH".as_ptr()) };
    let list = string(variable)
        .map_or(&b"/bin:/usr/bin"[..], CStr::to_bytes)
        .to_vec();
    for folder in list.split(|byte| *byte == b':') {
        let mut path = folder.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(file.to_bytes());
        if let Ok(path) = CString::new(path)
            && let Some(found) = try_path(&path)
        {
            return Some(found);
        }
    }
    None
}

/// Whether the search for a program may lead into the region.
pub(crate) fn may_be_ours(file: &CStr) -> bool {
    search(file, |path| {
        is_inside(libc::AT_FDCWD, path.as_ptr()).then_some(())
    })
    .is_some()
}

fn execute_by_name(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    let Ok(text) = string(file) else {
        return fail(libc::EFAULT);
    };
    if text.to_bytes().contains(&b'/') {
        return execute_or_shell(text, arguments, environment);
    }
    if !may_be_ours(text) {
        return execvpe::pass(file, arguments, environment);
    }
    let mut errno = libc::ENOENT;
    search(text, |path| {
        if access_at(libc::AT_FDCWD, path.as_ptr(), libc::F_OK, libc::AT_EACCESS) < 0 {
            return None::<()>;
        }
        execute_or_shell(path, arguments, environment);
        match crate::foreign::errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            other => errno = other,
        }
        None
    });
    fail(errno)
}

/// A text file without an interpreter line is run by the shell.
fn execute_or_shell(path: &CStr, arguments: Strings, environment: Strings) -> c_int {
    let answer = execute_at(libc::AT_FDCWD, path.as_ptr(), arguments, environment);
    if crate::foreign::errno() != libc::ENOEXEC {
        return answer;
    }
    let mut list = vec![c"/bin/sh".as_ptr(), path.as_ptr()];
    list.extend(strings(arguments).into_iter().skip(1));
    list.push(std::ptr::null());
    execve::pass(c"/bin/sh".as_ptr(), list.as_ptr(), environment)
}

serve! {
    fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        execute_at(libc::AT_FDCWD, path, arguments, environment)
    }

    fn execv(path: *const c_char, arguments: Strings) -> c_int {
        execute_at(libc::AT_FDCWD, path, arguments, environment())
    }

    fn execvp(file: *const c_char, arguments: Strings) -> c_int {
        execute_by_name(file, arguments, environment())
    }

    fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        execute_by_name(file, arguments, environment)
    }

    fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
        match ours(fd) {
            Some((context, opened)) => {
                execute_descriptor(context, fd, &opened, arguments, environment)
            }
            None => fexecve::pass(fd, arguments, environment),
        }
    }

    fn execveat(
        directory: c_int, path: *const c_char, arguments: Strings, environment: Strings, flags: c_int
    ) -> c_int {
        if crate::stat::is_empty(path, flags)
            && let Some((context, opened)) = ours(directory)
        {
            return execute_descriptor(context, directory, &opened, arguments, environment);
        }
        if path.is_null() || !is_inside(directory, path) {
            return execveat::pass(directory, path, arguments, environment, flags);
        }
        execute_at(directory, path, arguments, environment)
    }
}
