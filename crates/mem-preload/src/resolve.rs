//! Paths of programs: whether they lead into the region, and to which file.

use std::ffi::{c_char, c_int};
use std::ops::Range;

use mem::{Attributes, Last, Node, Opened, PathBuffer, Walked};

use crate::foreign::{Answer, Failed, fail, set_errno, string};
use crate::raw;
use crate::state::{Context, OrErrno, context_for, kernel_directory};
use crate::thread::Inside;

/// The result of a path in the region.
pub(crate) enum Place {
    /// To a file.
    Found(Found),
    /// To a name that does not exist yet.
    Missing(Missing),
    /// To the file of a descriptor of this process: `/proc/self/fd/3`.
    Descriptor(Opened),
}

pub(crate) struct Found {
    pub(crate) attributes: Attributes,
    pub(crate) parent: Node,
    /// Empty for `.`, `..` and the root.
    pub(crate) name: Range<usize>,
    pub(crate) has_slash: bool,
}

pub(crate) struct Missing {
    pub(crate) parent: Attributes,
    pub(crate) name: Range<usize>,
    pub(crate) has_slash: bool,
}

/// The result of a path.
pub(crate) enum Located {
    /// Not into the region: the path goes to the kernel unchanged.
    Given,
    /// Through the region and out again: the path in the buffer goes to the kernel.
    Elsewhere,
    Here(Place),
}

/// The start of a path, and the rest from there.
enum Begin<'p> {
    Kernel,
    Inside(Node, &'p [u8]),
    Descriptor(Opened),
}

/// Finds where the region begins in a path, part by part. Only names count: a kernel symbolic link that leads into the
/// region is not detected.
struct Scan<'a> {
    at: &'a [u8],
    /// The number of bytes of `at` that the parts so far have matched.
    matched: usize,
    /// Depth below the matched part.
    astray: usize,
}

impl<'a> Scan<'a> {
    fn new(at: &'a [u8]) -> Self {
        Self {
            at,
            matched: 0,
            astray: 0,
        }
    }

    /// Continues with `path`. Returns the rest behind the part that completed `at`.
    fn read<'p>(&mut self, path: &'p [u8]) -> Option<&'p [u8]> {
        let mut begin = 0;
        while begin < path.len() {
            let length = path[begin..]
                .iter()
                .position(|byte| *byte == b'/')
                .unwrap_or(path.len() - begin);
            let end = begin + length;
            match &path[begin..end] {
                b"" | b"." => {}
                b".." => {
                    if self.astray > 0 {
                        self.astray -= 1;
                    } else {
                        let matched = &self.at[..self.matched];
                        self.matched = matched.iter().rposition(|b| *b == b'/').unwrap_or(0);
                    }
                }
                part => {
                    let expected = self.at.get(self.matched + 1..).unwrap_or_default();
                    let is_next = self.astray == 0
                        && expected.starts_with(part)
                        && matches!(expected.get(part.len()), None | Some(b'/'));
                    if is_next {
                        self.matched += 1 + part.len();
                        if self.matched == self.at.len() {
                            return Some(&path[end..]);
                        }
                    } else {
                        self.astray += 1;
                    }
                }
            }
            begin = end + 1;
        }
        None
    }
}

/// Whether a relative path may lead into the region from outside: it must contain the last part of the region's mount
/// path.
fn may_enter(at: &[u8], path: &[u8]) -> bool {
    let slash = at.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let last = &at[slash + 1..];
    path.len() >= last.len()
        && path.windows(last.len()).enumerate().any(|(place, window)| {
            window == last
                && (place == 0 || path[place - 1] == b'/')
                && matches!(path.get(place + last.len()), None | Some(b'/'))
        })
}

/// The number of a descriptor in a path like `/proc/self/fd/3`, and the rest behind it.
fn descriptor_path(path: &[u8]) -> Option<(c_int, &[u8])> {
    for (name, number) in [
        (&b"/dev/stdin"[..], 0),
        (b"/dev/stdout", 1),
        (b"/dev/stderr", 2),
    ] {
        if path == name {
            return Some((number, &[]));
        }
    }
    let rest = [
        &b"/dev/fd/"[..],
        b"/proc/self/fd/",
        b"/proc/thread-self/fd/",
    ]
    .iter()
    .find_map(|prefix| path.strip_prefix(*prefix))
    .or_else(|| {
        let rest = path.strip_prefix(b"/proc/")?;
        let (pid, rest) = number(rest)?;
        // SAFETY: no memory is passed.
        let own = unsafe { raw::call(libc::SYS_getpid, [0; 6]) };
        (pid as isize == own).then_some(rest)?.strip_prefix(b"/fd/")
    })?;
    let (fd, rest) = number(rest)?;
    matches!(rest.first(), None | Some(b'/')).then_some((fd, rest))
}

fn number(text: &[u8]) -> Option<(c_int, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    Some((number, &text[digits..]))
}

fn begin<'p>(context: &Context, directory: c_int, path: &'p [u8], last: Last) -> Begin<'p> {
    let at = context.attachment.at();
    if path.first() == Some(&b'/') {
        if let Some(rest) = Scan::new(at).read(path) {
            return Begin::Inside(Node::ROOT, rest);
        }
        return if path.starts_with(b"/proc/") || path.starts_with(b"/dev/") {
            begin_special(context, path, last)
        } else {
            Begin::Kernel
        };
    }
    if directory == libc::AT_FDCWD {
        if let Some(node) = context.directory() {
            return Begin::Inside(node, path);
        }
    } else if let Some(opened) = context.opened(directory) {
        return Begin::Inside(opened.node, path);
    }
    if !may_enter(at, path) {
        return Begin::Kernel;
    }
    let mut buffer = [0; libc::PATH_MAX as usize];
    let from = if directory == libc::AT_FDCWD {
        kernel_directory(&mut buffer)
    } else {
        path_of_descriptor(directory, &mut buffer)
    };
    let mut scan = Scan::new(at);
    match from.map(|from| scan.read(from)) {
        Ok(None) => match scan.read(path) {
            Some(rest) => Begin::Inside(Node::ROOT, rest),
            None => Begin::Kernel,
        },
        _ => Begin::Kernel,
    }
}

/// Files of `/proc` and `/dev` that stand for this process's open files.
fn begin_special<'p>(context: &Context, path: &'p [u8], last: Last) -> Begin<'p> {
    if let Some(rest) = path.strip_prefix(b"/proc/self/cwd")
        && matches!(rest.first(), None | Some(b'/'))
        && (last == Last::Follow || !rest.is_empty())
        && let Some(node) = context.directory()
    {
        return Begin::Inside(node, rest);
    }
    match descriptor_path(path) {
        Some((fd, rest)) if last == Last::Follow || !rest.is_empty() => match context.opened(fd) {
            Some(opened) if rest.is_empty() => Begin::Descriptor(opened),
            Some(opened) => Begin::Inside(opened.node, rest),
            None => Begin::Kernel,
        },
        _ => Begin::Kernel,
    }
}

/// The kernel's path of a descriptor's file.
pub(crate) fn path_of_descriptor(fd: c_int, buffer: &mut [u8]) -> Answer<&[u8]> {
    let mut name = [0; 40];
    write_number(&mut name, b"/proc/self/fd/", fd as u64);
    let arguments = [
        libc::AT_FDCWD as usize,
        name.as_ptr() as usize,
        buffer.as_mut_ptr() as usize,
        buffer.len(),
        0,
        0,
    ];
    // SAFETY: a string that ends in zero, and a buffer of the given length.
    let length = unsafe { raw::checked(libc::SYS_readlinkat, arguments) }?;
    Ok(&buffer[..length])
}

/// Writes `prefix` and a number into a buffer of zeros.
pub(crate) fn write_number(into: &mut [u8; 40], prefix: &[u8], number: u64) {
    let mut digits = [0; 20];
    let mut count = 0;
    let mut rest = number;
    loop {
        digits[count] = b'0' + (rest % 10) as u8;
        count += 1;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let length = prefix.len().min(19);
    into[..length].copy_from_slice(&prefix[..length]);
    for place in 0..count {
        into[length + place] = digits[count - 1 - place];
    }
}

/// Locates a path. The result's names lie in `buffer`.
pub(crate) fn locate(
    context: &Context,
    directory: c_int,
    path: &[u8],
    last: Last,
    buffer: &mut PathBuffer,
) -> Answer<Located> {
    let begin = begin(context, directory, path, last);
    locate_from(context, begin, path, last, buffer)
}

/// Locates a name, for calls that make, move or remove it. Trailing slashes are separated from it, and a link of that
/// name is not followed.
pub(crate) fn locate_name(
    context: &Context,
    directory: c_int,
    path: &[u8],
    buffer: &mut PathBuffer,
) -> Answer<Located> {
    let begin = begin(context, directory, path, Last::NoFollow);
    locate_name_from(context, begin, path, buffer)
}

fn locate_name_from(
    context: &Context,
    begin: Begin<'_>,
    path: &[u8],
    buffer: &mut PathBuffer,
) -> Answer<Located> {
    let Begin::Inside(start, rest) = begin else {
        return locate_from(context, begin, path, Last::NoFollow, buffer);
    };
    let length = rest
        .iter()
        .rposition(|byte| *byte != b'/')
        .map_or(0, |last| last + 1);
    let begin = Begin::Inside(start, &rest[..length]);
    let mut located = locate_from(context, begin, path, Last::NoFollow, buffer)?;
    let slashes = length < rest.len();
    match &mut located {
        Located::Here(Place::Found(found)) => found.has_slash |= slashes,
        Located::Here(Place::Missing(missing)) => missing.has_slash |= slashes,
        Located::Elsewhere if slashes => buffer.push(b"/").or_errno()?,
        _ => {}
    }
    Ok(located)
}

/// The kind of a path's last part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Name,
    Dot,
    DotDot,
    Root,
}

/// The kind of the last part of the path in a buffer.
pub(crate) fn end_of(names: &PathBuffer) -> End {
    match names.as_bytes().rsplit(|byte| *byte == b'/').next() {
        None | Some(b"") => End::Root,
        Some(b".") => End::Dot,
        Some(b"..") => End::DotDot,
        Some(_) => End::Name,
    }
}

fn locate_from(
    context: &Context,
    begin: Begin<'_>,
    path: &[u8],
    last: Last,
    buffer: &mut PathBuffer,
) -> Answer<Located> {
    match begin {
        Begin::Kernel => Ok(Located::Given),
        Begin::Descriptor(opened) => Ok(Located::Here(Place::Descriptor(opened))),
        Begin::Inside(start, rest) => {
            // `/keel` is the root itself.
            let rest = if rest.is_empty() && !path.is_empty() {
                b"/"
            } else {
                rest
            };
            context.register_thread();
            walk(context, start, rest, last, buffer)
        }
    }
}

fn walk(
    context: &Context,
    start: Node,
    path: &[u8],
    last: Last,
    buffer: &mut PathBuffer,
) -> Answer<Located> {
    let walked = context
        .with_credentials(|who| context.attachment.walk(start, path, last, who, buffer))
        .or_errno()?;
    match walked {
        Walked::Found {
            attributes,
            parent,
            name,
            has_slash,
        } => Ok(Located::Here(Place::Found(Found {
            attributes,
            parent,
            name,
            has_slash,
        }))),
        Walked::Missing {
            parent,
            name,
            has_slash,
        } => Ok(Located::Here(Place::Missing(Missing {
            parent,
            name,
            has_slash,
        }))),
        Walked::Outside => {
            // The path led out by `..` and may lead in again by name. Each round removes the part that led out, so it
            // ends.
            let mut copy = PathBuffer::new();
            copy.set(buffer.as_bytes()).or_errno()?;
            match Scan::new(context.attachment.at()).read(copy.as_bytes()) {
                None => Ok(Located::Elsewhere),
                Some(b"") => walk(context, Node::ROOT, b"/", last, buffer),
                Some(rest) => walk(context, Node::ROOT, rest, last, buffer),
            }
        }
    }
}

/// Serves a call on a path if the path leads into the region, and passes it on otherwise.
pub(crate) fn on_path<T: Failed>(
    directory: c_int,
    path: *const c_char,
    last: Last,
    serve: impl FnOnce(&'static Context, Place, &PathBuffer) -> Answer<T>,
    pass: impl FnOnce(c_int, *const c_char) -> T,
) -> T {
    on_any(directory, path, Some(last), serve, pass)
}

/// As [`on_path`], for calls that make, move or remove a name.
pub(crate) fn on_name<T: Failed>(
    directory: c_int,
    path: *const c_char,
    serve: impl FnOnce(&'static Context, Place, &PathBuffer) -> Answer<T>,
    pass: impl FnOnce(c_int, *const c_char) -> T,
) -> T {
    on_any(directory, path, None, serve, pass)
}

fn on_any<T: Failed>(
    directory: c_int,
    path: *const c_char,
    last: Option<Last>,
    serve: impl FnOnce(&'static Context, Place, &PathBuffer) -> Answer<T>,
    pass: impl FnOnce(c_int, *const c_char) -> T,
) -> T {
    let Ok(text) = string(path) else {
        return pass(directory, path);
    };
    let text = text.to_bytes();
    let Some(context) = context_for(text).filter(|_| text.len() < libc::PATH_MAX as usize) else {
        // This includes paths that are too long: the kernel checks the length first, and reports it.
        return pass(directory, path);
    };
    let errno = crate::foreign::errno();
    let inside = Inside::enter();
    let begin = begin(context, directory, text, last.unwrap_or(Last::NoFollow));
    if matches!(begin, Begin::Kernel) {
        drop(inside);
        set_errno(errno);
        return pass(directory, path);
    }
    let mut buffer = PathBuffer::new();
    let located = match last {
        Some(last) => locate_from(context, begin, text, last, &mut buffer),
        None => locate_name_from(context, begin, text, &mut buffer),
    };
    let answer = match located {
        Ok(Located::Here(place)) => serve(context, place, &buffer),
        Ok(Located::Given | Located::Elsewhere) => {
            drop(inside);
            set_errno(errno);
            let mut kernel = [0; libc::PATH_MAX as usize];
            let bytes = buffer.as_bytes();
            kernel[..bytes.len()].copy_from_slice(bytes);
            return pass(libc::AT_FDCWD, kernel.as_ptr().cast());
        }
        Err(errno) => Err(errno),
    };
    drop(inside);
    match answer {
        Ok(answer) => {
            set_errno(errno);
            answer
        }
        Err(errno) => fail(errno),
    }
}

/// Whether a path leads into the region, also if no file is there.
pub(crate) fn is_inside(directory: c_int, path: *const c_char) -> bool {
    on_path(directory, path, Last::NoFollow, |_, _, _| Ok(1), |_, _| 0) != 0
}

/// The number of a descriptor in a path that consists of nothing else.
pub(crate) fn whole_descriptor_path(path: &[u8]) -> Option<c_int> {
    if !path.starts_with(b"/proc/") && !path.starts_with(b"/dev/") {
        return None;
    }
    descriptor_path(path).and_then(|(fd, rest)| rest.is_empty().then_some(fd))
}
