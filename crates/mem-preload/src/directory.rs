//! Directories: listing, changing the working directory, paths.

use std::ffi::{c_char, c_int, c_long, c_void};

use mem::{Entry, Last, Opened, PathBuffer};

use crate::foreign::{Answer, answer, fail, put, room, set_errno, string, zeroed};
use crate::next::serve;
use crate::open::{attributes_of, close_descriptor, open_at, require};
use crate::raw;
use crate::resolve::{Located, Place, is_inside, locate, on_path};
use crate::stat::attributes_at;
use crate::state::{Context, OrErrno, context, ours, served};

/// Positions below this belong to `.` and `..`; all other entries have larger ones.
const FIRST_POSITION: u64 = 2;

/// The number of entries that are read at once.
const ENTRIES_AT_ONCE: usize = 64;

/// The first word of each directory stream of ours. The C library's streams begin with a descriptor, which is never
/// negative.
const MAGIC: u64 = 0x4b45_454c_8000_0001;

/// A directory stream; programs know it by its address alone.
#[repr(C)]
struct Stream {
    magic: u64,
    fd: c_int,
    opened: Opened,
    /// The position from which the next call to the region continues.
    position: u64,
    /// Entries that were read and not yet returned.
    entries: std::vec::IntoIter<Listed>,
    /// The program's position: behind the last returned entry.
    told: u64,
    entry: libc::dirent64,
}

type Handle = *mut c_void;

/// An entry in the form that programs get.
struct Listed {
    inode: u64,
    /// The position behind it.
    position: u64,
    kind: u8,
    name: Vec<u8>,
}

/// Returns up to `count` entries behind a position.
fn list(
    context: &Context,
    opened: &Opened,
    mut position: u64,
    count: usize,
) -> Answer<Vec<Listed>> {
    let region = context.attachment.region();
    let own = attributes_of(context, opened)?;
    if !own.is_directory() {
        return Err(libc::ENOTDIR);
    }
    if own.links == 0 {
        return Err(libc::ENOENT);
    }
    let mut listed = Vec::with_capacity(count.min(ENTRIES_AT_ONCE));
    while position < FIRST_POSITION && listed.len() < count {
        let name = if position == 0 { &b"."[..] } else { b".." };
        let mut buffer = PathBuffer::new();
        let walked = context.with_credentials(|who| {
            context
                .attachment
                .walk(opened.node, name, Last::Follow, who, &mut buffer)
        });
        let inode = match walked {
            Ok(mem::Walked::Found { attributes, .. }) => attributes.inode,
            // The parent of the root is a directory of the kernel.
            _ => own.inode,
        };
        position += 1;
        listed.push(Listed {
            inode,
            position,
            kind: libc::DT_DIR,
            name: name.to_vec(),
        });
    }
    if listed.len() == count {
        return Ok(listed);
    }
    let from = if position <= FIRST_POSITION {
        0
    } else {
        position
    };
    let wanted = count - listed.len();
    let entries: Vec<Entry> = match context.attachment.writer() {
        Ok(writer) => writer.list(opened.node, from, wanted),
        // Read without a lane: the region is read-only, or no lane is free.
        Err(mem::Error::ReadOnly | mem::Error::LanesFull) => region.list(opened.node, from, wanted),
        Err(error) => Err(error),
    }
    .or_errno()?;
    listed.extend(entries.into_iter().map(|entry| {
        Listed {
            inode: entry.inode,
            position: entry.position,
            kind: region
                .attributes(entry.inode)
                .map_or(libc::DT_UNKNOWN, |found| (found.mode >> 12 & 15) as u8),
            name: entry.name,
        }
    }));
    Ok(listed)
}

/// `getdents64`: returns as many entries as fit, from the description's position on.
pub(crate) fn get_entries(
    context: &Context,
    opened: &Opened,
    into: *mut c_void,
    count: usize,
) -> Answer<usize> {
    const HEAD_BYTES: usize = 19;
    if opened.flags & libc::O_PATH != 0 {
        return Err(libc::EBADF);
    }
    if opened.flags & libc::O_DIRECTORY == 0 {
        return Err(libc::ENOTDIR);
    }
    let into = room(into, count)?;
    let mut position = context
        .attachment
        .seek(opened, 0, libc::SEEK_CUR)
        .or_errno()?;
    let mut written = 0;
    'full: loop {
        let entries = list(context, opened, position, ENTRIES_AT_ONCE)?;
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            let length = (HEAD_BYTES + entry.name.len() + 1).next_multiple_of(8);
            let Some(room) = into.get_mut(written..written + length) else {
                if written == 0 {
                    return Err(libc::EINVAL);
                }
                break 'full;
            };
            room.fill(0);
            room[..8].copy_from_slice(&entry.inode.to_ne_bytes());
            room[8..16].copy_from_slice(&entry.position.to_ne_bytes());
            room[16..18].copy_from_slice(&(length as u16).to_ne_bytes());
            room[18] = entry.kind;
            room[HEAD_BYTES..HEAD_BYTES + entry.name.len()].copy_from_slice(&entry.name);
            written += length;
            position = entry.position;
        }
    }
    context
        .attachment
        .seek(opened, position as i64, libc::SEEK_SET)
        .or_errno()?;
    Ok(written)
}

/// The stream of ours behind a program's handle, if it is one.
fn stream<'a>(handle: Handle) -> Option<&'a mut Stream> {
    if handle.is_null() {
        return None;
    }
    // SAFETY: the C library's streams are at least that long, and begin with a descriptor.
    let magic = unsafe { handle.cast::<u64>().read() };
    if magic != MAGIC {
        return None;
    }
    // SAFETY: made by `open_stream`; the program must use a stream in one thread at a time.
    Some(unsafe { &mut *handle.cast::<Stream>() })
}

fn open_stream(context: &Context, fd: c_int, opened: Opened) -> Answer<Handle> {
    if opened.flags & libc::O_PATH != 0 {
        return Err(libc::EBADF);
    }
    if opened.flags & libc::O_DIRECTORY == 0 {
        return Err(libc::ENOTDIR);
    }
    let position = context
        .attachment
        .seek(&opened, 0, libc::SEEK_CUR)
        .or_errno()?;
    let stream = Box::new(Stream {
        magic: MAGIC,
        fd,
        opened,
        position,
        entries: Vec::new().into_iter(),
        told: position,
        entry: zeroed(),
    });
    Ok(Box::into_raw(stream).cast())
}

fn next_entry(stream: &mut Stream) -> Answer<*mut libc::dirent64> {
    let Some(context) = context() else {
        return Err(libc::EBADF);
    };
    let _inside = crate::thread::Inside::enter();
    if stream.entries.len() == 0 {
        let listed = list(context, &stream.opened, stream.position, ENTRIES_AT_ONCE)?;
        if let Some(last) = listed.last() {
            stream.position = last.position;
        }
        stream.entries = listed.into_iter();
    }
    let Some(entry) = stream.entries.next() else {
        return Ok(std::ptr::null_mut());
    };
    stream.told = entry.position;
    stream.entry.d_ino = entry.inode;
    stream.entry.d_off = entry.position as i64;
    stream.entry.d_type = entry.kind;
    stream.entry.d_reclen = (19 + entry.name.len() + 1).next_multiple_of(8) as u16;
    for (to, from) in stream.entry.d_name.iter_mut().zip(&entry.name) {
        *to = *from as c_char;
    }
    stream.entry.d_name[entry.name.len().min(255)] = 0;
    Ok(&raw mut stream.entry)
}

fn go_to(stream: &mut Stream, position: u64) {
    stream.position = position;
    stream.told = position;
    stream.entries = Vec::new().into_iter();
}

/// Reads an entry of a stream; errno does not change at the end of the directory.
fn read_entry(stream: &mut Stream) -> *mut libc::dirent64 {
    let errno = crate::foreign::errno();
    match next_entry(stream) {
        Ok(entry) => {
            set_errno(errno);
            entry
        }
        Err(errno) => fail(errno),
    }
}

serve! {
    fn opendir(path: *const c_char) -> Handle {
        if !is_inside(libc::AT_FDCWD, path) {
            return opendir::pass(path);
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let fd = open_at(libc::AT_FDCWD, path, flags, 0);
        if fd < 0 {
            return std::ptr::null_mut();
        }
        fdopendir(fd)
    }

    fn fdopendir(fd: c_int) -> Handle {
        match ours(fd) {
            Some((context, opened)) => {
                let _ = raw::control(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
                served(|| open_stream(context, fd, opened))
            }
            None => fdopendir::pass(fd),
        }
    }

    fn readdir64 [readdir](handle: Handle) -> *mut libc::dirent64 {
        match stream(handle) {
            Some(stream) => read_entry(stream),
            None => readdir64::pass(handle),
        }
    }

    fn readdir64_r [readdir_r](
        handle: Handle, into: *mut libc::dirent64, result: *mut *mut libc::dirent64
    ) -> c_int {
        let Some(stream) = stream(handle) else {
            return readdir64_r::pass(handle, into, result);
        };
        let read = next_entry(stream).and_then(|entry| {
            if entry.is_null() {
                return put(result, std::ptr::null_mut());
            }
            put(into, stream.entry)?;
            put(result, into)
        });
        read.err().unwrap_or(0)
    }

    fn closedir(handle: Handle) -> c_int {
        let Some(stream) = stream(handle) else {
            return closedir::pass(handle);
        };
        let fd = stream.fd;
        stream.magic = 0;
        // SAFETY: made by `open_stream` as a box, and freed only once: its magic number is cleared.
        drop(unsafe { Box::from_raw(stream) });
        close_descriptor(fd)
    }

    fn rewinddir(handle: Handle) -> () {
        match stream(handle) {
            Some(stream) => go_to(stream, 0),
            None => rewinddir::pass(handle),
        }
    }

    fn seekdir(handle: Handle, position: c_long) -> () {
        match stream(handle) {
            Some(stream) => go_to(stream, position as u64),
            None => seekdir::pass(handle, position),
        }
    }

    fn telldir(handle: Handle) -> c_long {
        match stream(handle) {
            Some(stream) => stream.told as c_long,
            None => telldir::pass(handle),
        }
    }

    fn dirfd(handle: Handle) -> c_int {
        match stream(handle) {
            Some(stream) => stream.fd,
            None => dirfd::pass(handle),
        }
    }

    fn getdents64(fd: c_int, into: *mut c_void, count: usize) -> isize {
        match ours(fd) {
            Some((context, opened)) => served(|| {
                get_entries(context, &opened, into, count).map(|count| count as isize)
            }),
            None => getdents64::pass(fd, into, count),
        }
    }

    fn getdirentries64 [getdirentries](
        fd: c_int, into: *mut c_char, count: usize, base: *mut i64
    ) -> isize {
        match ours(fd) {
            Some((context, opened)) => served(|| {
                let at = context.attachment.seek(&opened, 0, libc::SEEK_CUR).or_errno()?;
                put(base, at as i64)?;
                get_entries(context, &opened, into.cast(), count).map(|count| count as isize)
            }),
            None => getdirentries64::pass(fd, into, count, base),
        }
    }

    fn scandirat64 [scandirat](
        directory: c_int, path: *const c_char, list: *mut *mut *mut libc::dirent64,
        filter: Option<Filter>, compare: Option<Compare>
    ) -> c_int {
        if !is_inside(directory, path) {
            return scandirat64::pass(directory, path, list, filter, compare);
        }
        scan(directory, path, list, filter, compare)
    }

    fn scandir64 [scandir](
        path: *const c_char, list: *mut *mut *mut libc::dirent64, filter: Option<Filter>,
        compare: Option<Compare>
    ) -> c_int {
        if !is_inside(libc::AT_FDCWD, path) {
            return scandir64::pass(path, list, filter, compare);
        }
        scan(libc::AT_FDCWD, path, list, filter, compare)
    }
}

type Filter = extern "C-unwind" fn(*const libc::dirent64) -> c_int;
type Compare = extern "C-unwind" fn(*const c_void, *const c_void) -> c_int;

/// `scandir`: all entries of a directory that the filter accepts, sorted, in memory that the program frees.
fn scan(
    directory: c_int,
    path: *const c_char,
    list: *mut *mut *mut libc::dirent64,
    filter: Option<Filter>,
    compare: Option<Compare>,
) -> c_int {
    let fd = open_at(
        directory,
        path,
        libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC,
        0,
    );
    if fd < 0 {
        return -1;
    }
    let handle = fdopendir(fd);
    let Some(open) = stream(handle) else {
        return -1;
    };
    let mut taken: Vec<*mut libc::dirent64> = Vec::new();
    let listed = loop {
        match next_entry(open) {
            Ok(entry) if entry.is_null() => break Ok(()),
            Ok(entry) => {
                if filter.is_some_and(|filter| filter(entry) == 0) {
                    continue;
                }
                let bytes = size_of::<libc::dirent64>();
                // SAFETY: allocates that many bytes.
                let copy = unsafe { libc::malloc(bytes) }.cast::<libc::dirent64>();
                if copy.is_null() {
                    break Err(libc::ENOMEM);
                }
                // SAFETY: both are that long and do not overlap.
                unsafe { copy.copy_from_nonoverlapping(entry, 1) };
                taken.push(copy);
            }
            Err(errno) => break Err(errno),
        }
    };
    closedir(handle);
    let listed = listed.and_then(|()| {
        let bytes = taken.len().max(1) * size_of::<*mut libc::dirent64>();
        // SAFETY: allocates that many bytes.
        let array = unsafe { libc::malloc(bytes) }.cast::<*mut libc::dirent64>();
        if array.is_null() {
            return Err(libc::ENOMEM);
        }
        if let Some(compare) = compare {
            taken.sort_by(|one, other| {
                compare((&raw const *one).cast(), (&raw const *other).cast()).cmp(&0)
            });
        }
        // SAFETY: the array is as long as the list.
        unsafe { array.copy_from_nonoverlapping(taken.as_ptr(), taken.len()) };
        put(list, array)
    });
    if let Err(errno) = listed {
        for entry in taken {
            // SAFETY: from malloc above, and no other code knows it.
            unsafe { libc::free(entry.cast()) };
        }
        return fail(errno);
    }
    taken.len() as c_int
}

/// Changes the kernel's working directory to a directory's stub, and records the directory.
fn change_directory(context: &Context, attributes: &mem::Attributes) -> Answer<c_int> {
    if !attributes.is_directory() {
        return Err(libc::ENOTDIR);
    }
    require(context, attributes, 1)?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let (fd, opened) = context
        .attachment
        .open_description(attributes, flags)
        .or_errno()?;
    // SAFETY: no memory is passed.
    let changed = unsafe { raw::checked(libc::SYS_fchdir, [fd as usize, 0, 0, 0, 0, 0]) };
    context.attachment.closing(&opened);
    let _ = raw::close(fd);
    match changed {
        // If the region is read-only and the directory has no stub, the kernel has no directory to change into.
        Err(libc::ENOTDIR) => return Err(libc::EACCES),
        changed => changed?,
    };
    context.set_directory(Some(attributes.node()));
    Ok(0)
}

/// The path of the working directory, with its zero byte, for `getcwd` and similar calls.
fn directory_path(context: &Context, buffer: &mut PathBuffer) -> Option<Answer<()>> {
    let node = context.directory()?;
    Some(context.path_of(node, buffer))
}

/// Copies a path into the program's buffer, or into new memory.
fn give_path(path: &[u8], into: *mut c_char, count: usize) -> Answer<*mut c_char> {
    let bytes = path.len() + 1;
    let target = if into.is_null() {
        if count != 0 && count < bytes {
            return Err(libc::ERANGE);
        }
        // SAFETY: allocates that many bytes.
        unsafe { libc::malloc(count.max(bytes)) }.cast::<c_char>()
    } else {
        if count == 0 {
            return Err(libc::EINVAL);
        }
        if count < bytes {
            return Err(libc::ERANGE);
        }
        into
    };
    if target.is_null() {
        return Err(libc::ENOMEM);
    }
    let target_bytes = room(target.cast(), bytes)?;
    target_bytes[..path.len()].copy_from_slice(path);
    target_bytes[path.len()] = 0;
    Ok(target)
}

fn current_directory(
    into: *mut c_char,
    count: usize,
    pass: impl FnOnce() -> *mut c_char,
) -> *mut c_char {
    let Some(context) = context().filter(|context| context.directory().is_some()) else {
        return pass();
    };
    served(|| {
        let mut buffer = PathBuffer::new();
        match directory_path(context, &mut buffer) {
            Some(found) => found?,
            None => return Err(libc::ENOENT),
        }
        give_path(buffer.as_bytes(), into, count)
    })
}

/// `realpath` of a path that leads into the region; `None` if the path leads elsewhere.
fn real_path(path: *const c_char, into: *mut c_char) -> Option<*mut c_char> {
    let context = context()?;
    let text = string(path).ok()?.to_bytes();
    let mut names = PathBuffer::new();
    let inside = crate::thread::Inside::enter();
    let located = match locate(context, libc::AT_FDCWD, text, Last::Follow, &mut names) {
        Ok(Located::Given) => return None,
        Ok(Located::Elsewhere) => {
            drop(inside);
            let mut kernel = [0; libc::PATH_MAX as usize];
            let bytes = names.as_bytes();
            kernel[..bytes.len()].copy_from_slice(bytes);
            return Some(realpath::pass(kernel.as_ptr().cast(), into));
        }
        Ok(Located::Here(place)) => Ok(place),
        Err(errno) => Err(errno),
    };
    Some(answer((|| {
        let found = match located? {
            Place::Found(found) => found,
            Place::Missing(_) => return Err(libc::ENOENT),
            // A file does not know its path, and may have several.
            Place::Descriptor(_) => return Err(libc::ENOENT),
        };
        let mut path = PathBuffer::new();
        if found.attributes.is_directory() {
            context.path_of(found.attributes.node(), &mut path)?;
        } else {
            context.path_of(found.parent, &mut path)?;
            path.push(b"/").or_errno()?;
            path.push(names.part(&found.name)).or_errno()?;
        }
        give_path(path.as_bytes(), into, if into.is_null() { 0 } else { 4096 })
    })()))
}

serve! {
    fn chdir(path: *const c_char) -> c_int {
        on_path(
            libc::AT_FDCWD,
            path,
            Last::Follow,
            |context, place, _| change_directory(context, &attributes_at(context, &place)?),
            |_, path| {
                let changed = chdir::pass(path);
                if changed == 0 && let Some(context) = context() {
                    context.set_directory(None);
                }
                changed
            },
        )
    }

    fn fchdir(fd: c_int) -> c_int {
        match ours(fd) {
            Some((context, opened)) => {
                served(|| change_directory(context, &attributes_of(context, &opened)?))
            }
            None => {
                let changed = fchdir::pass(fd);
                if changed == 0 && let Some(context) = context() {
                    context.set_directory(None);
                }
                changed
            }
        }
    }

    fn getcwd(into: *mut c_char, count: usize) -> *mut c_char {
        current_directory(into, count, || getcwd::pass(into, count))
    }

    fn __getcwd_chk(into: *mut c_char, count: usize, room: usize) -> *mut c_char {
        if count > room {
            return __getcwd_chk::pass(into, count, room);
        }
        current_directory(into, count, || __getcwd_chk::pass(into, count, room))
    }

    fn get_current_dir_name() -> *mut c_char {
        current_directory(std::ptr::null_mut(), 0, get_current_dir_name::pass)
    }

    fn getwd(into: *mut c_char) -> *mut c_char {
        current_directory(into, libc::PATH_MAX as usize, || getwd::pass(into))
    }

    fn __getwd_chk(into: *mut c_char, room: usize) -> *mut c_char {
        current_directory(into, room, || __getwd_chk::pass(into, room))
    }

    fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
        real_path(path, into).unwrap_or_else(|| realpath::pass(path, into))
    }

    fn __realpath_chk(path: *const c_char, into: *mut c_char, room: usize) -> *mut c_char {
        real_path(path, into).unwrap_or_else(|| __realpath_chk::pass(path, into, room))
    }

    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        real_path(path, std::ptr::null_mut())
            .unwrap_or_else(|| canonicalize_file_name::pass(path))
    }
}
