//! Mapping files of the region: the region's file is mapped at the offset where the file's bytes lie.
//!
//! If the region has huge pages, only whole huge pages can be mapped. So a *window* around the requested range is
//! mapped, and the program gets the address inside it. This module records the parts that the program still has, and
//! unmaps the window with the last of them. The file itself must live as long, also when it is deleted and its
//! descriptors are closed. So an inaccessible page of its stub is mapped too, which holds the open file description. A
//! hidden descriptor would do the same, but closing it would release the program's record locks.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use mem::{Backing, Opened, PAGE_BYTES};

use crate::foreign::{Answer, fail, room};
use crate::mappings::{MAPPINGS, Mapping};
use crate::next::serve;
use crate::open::attributes_of;
use crate::raw;
use crate::state::{Context, OrErrno, context, ours};
use crate::thread::{self, Inside};

const SMALL_PAGE_BYTES: usize = 4096;

/// A private mapping of a file of up to this size is a copy, in bytes. Pages of larger files are shared until the
/// program wants to write to them.
const COPIED_BYTES_MAX: usize = 1 << 20;

fn map_memory(
    address: usize,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: u64,
) -> Answer<usize> {
    let arguments = [
        address,
        length,
        protection as usize,
        flags as usize,
        fd as usize,
        offset as usize,
    ];
    // SAFETY: the program has asked to replace any existing mapping there, or the range is new.
    unsafe { raw::checked(libc::SYS_mmap, arguments) }
}

fn unmap_memory(range: &Range<usize>) {
    if !range.is_empty() {
        // SAFETY: callers own the range, or the program has asked for it.
        unsafe { raw::call(libc::SYS_munmap, [range.start, range.len(), 0, 0, 0, 0]) };
    }
}

fn protect_memory(range: &Range<usize>, protection: c_int) -> Answer<()> {
    let arguments = [range.start, range.len(), protection as usize, 0, 0, 0];
    // SAFETY: as for `unmap_memory`.
    unsafe { raw::checked(libc::SYS_mprotect, arguments) }.map(drop)
}

/// The page size with which the region's file can be mapped.
fn page_bytes(context: &Context) -> usize {
    match context.attachment.region().backing() {
        Backing::HugePages => PAGE_BYTES as usize,
        _ => SMALL_PAGE_BYTES,
    }
}

fn common(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

/// `mmap` of a file of the region.
fn map_file(context: &Context, opened: &Opened, fd: c_int, request: &Request) -> Answer<usize> {
    if request.length == 0 || !request.offset.is_multiple_of(SMALL_PAGE_BYTES as u64) {
        return Err(libc::EINVAL);
    }
    if request.flags & libc::MAP_FIXED != 0 && !request.address.is_multiple_of(SMALL_PAGE_BYTES) {
        return Err(libc::EINVAL);
    }
    let access = opened.flags & libc::O_ACCMODE;
    let is_private = request.flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    if opened.flags & libc::O_PATH != 0 {
        return Err(libc::EBADF);
    }
    let writes = request.protection & libc::PROT_WRITE != 0;
    if access == libc::O_WRONLY || !is_private && writes && access != libc::O_RDWR {
        return Err(libc::EACCES);
    }
    if opened.flags & libc::O_DIRECTORY != 0 {
        return Err(libc::ENODEV);
    }
    let is_small = attributes_of(context, opened)?.size <= COPIED_BYTES_MAX as u64;
    let is_fixed = request.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    if is_private && (writes || is_small || is_fixed) || !context.is_writable {
        if !is_private && !context.is_writable && writes {
            return Err(libc::EACCES);
        }
        return copy_file(context, opened, request);
    }
    map_window(context, opened, fd, request, is_private)
}

struct Request {
    address: usize,
    length: usize,
    protection: c_int,
    flags: c_int,
    offset: u64,
}

/// A private mapping: new memory with the file's bytes.
fn copy_file(context: &Context, opened: &Opened, request: &Request) -> Answer<usize> {
    const PLACING: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | request.flags & PLACING;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let length = request.length.next_multiple_of(SMALL_PAGE_BYTES);
    let address = map_memory(request.address, length, both, flags, -1, 0)?;
    let size = attributes_of(context, opened)?.size;
    let count = (size.saturating_sub(request.offset) as usize).min(length);
    let target = room(address as *mut c_void, count)?;
    let mut done = 0;
    while done < count {
        // The caller has checked the right to map, so this reads independent of the descriptor's access mode.
        let read = context
            .attachment
            .region()
            .read(
                opened.node.inode,
                opened.node.generation,
                request.offset + done as u64,
                &mut target[done..],
            )
            .or_errno();
        match read {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(errno) => {
                unmap_memory(&(address..address + length));
                return Err(errno);
            }
        }
    }
    if request.protection != both {
        protect_memory(&(address..address + length), request.protection)?;
    }
    Ok(address)
}

fn map_window(
    context: &Context,
    opened: &Opened,
    fd: c_int,
    request: &Request,
    is_private: bool,
) -> Answer<usize> {
    let page = page_bytes(context);
    let length = request.length.next_multiple_of(SMALL_PAGE_BYTES);
    let delta = (request.offset % page as u64) as usize;
    let window_bytes = (delta + length).next_multiple_of(page);
    let (region, at) = context
        .attachment
        .map(opened, request.offset, request.length as u64)
        .or_errno()?;
    let mut flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    flags |= request.flags & libc::MAP_POPULATE;
    let placing = request.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
    let address = if placing != 0 {
        let address = request.address.wrapping_sub(delta);
        if delta != 0 || !address.is_multiple_of(page) || window_bytes != length {
            return Err(libc::EINVAL);
        }
        flags |= placing;
        address
    } else {
        0
    };
    let holder_bytes = page;
    let holder = map_memory(
        0,
        holder_bytes,
        libc::PROT_NONE,
        libc::MAP_SHARED | libc::MAP_NORESERVE,
        fd,
        0,
    )?;
    let holder = holder..holder + holder_bytes;
    let mapped = map_memory(
        address,
        window_bytes,
        request.protection,
        flags,
        region,
        at - delta as u64,
    );
    let window = match mapped {
        Ok(window) => window,
        Err(errno) => {
            unmap_memory(&holder);
            return Err(errno);
        }
    };
    let start = window + delta;
    MAPPINGS.with(|mappings| {
        let parts = std::iter::once(start..start + length).collect();
        mappings.push(Mapping {
            page,
            window: window..window + window_bytes,
            parts,
            offset: request.offset - delta as u64,
            holder,
            opened: *opened,
            is_private,
            protection: request.protection,
        });
    });
    Ok(start)
}

/// Removes a range of addresses from the mappings; the parts that belong to no mapping are passed to `others`.
fn take_away(
    range: &Range<usize>,
    mut others: impl FnMut(Range<usize>) -> Answer<()>,
) -> Answer<()> {
    let mut foreign = vec![range.clone()];
    MAPPINGS.with(|mappings| {
        for mapping in mappings.iter_mut() {
            if common(&mapping.window, range).is_empty() {
                continue;
            }
            let is_exact = mapping.page == SMALL_PAGE_BYTES;
            let mut left = Vec::new();
            for part in mapping.parts.drain(..) {
                let gone = common(&part, range);
                if gone.is_empty() {
                    left.push(part);
                    continue;
                }
                if is_exact {
                    unmap_memory(&gone);
                }
                left.extend(
                    [part.start..gone.start, gone.end..part.end]
                        .into_iter()
                        .filter(|part| !part.is_empty()),
                );
            }
            mapping.parts = left;
            foreign = foreign
                .drain(..)
                .flat_map(|piece| {
                    let ours = common(&piece, &mapping.window);
                    if ours.is_empty() {
                        [piece, 0..0]
                    } else {
                        [piece.start..ours.start, ours.end..piece.end]
                    }
                })
                .filter(|piece| !piece.is_empty())
                .collect();
        }
        mappings.retain(|mapping| {
            let stays = !mapping.parts.is_empty();
            if !stays {
                unmap_memory(&mapping.window);
                unmap_memory(&mapping.holder);
            }
            stays
        });
    });
    foreign.into_iter().try_for_each(&mut others)
}

/// Finds the mapping of a range of addresses.
fn find<T>(range: &Range<usize>, use_it: impl FnOnce(&mut Mapping) -> T) -> Option<T> {
    if MAPPINGS.is_empty() || thread::is_inside() {
        return None;
    }
    MAPPINGS.with(|mappings| {
        mappings
            .iter_mut()
            .find(|mapping| {
                mapping
                    .parts
                    .iter()
                    .any(|part| !common(part, range).is_empty())
            })
            .map(use_it)
    })
}

/// The range of a call on mappings: whole pages.
fn range_of(address: *mut c_void, length: usize) -> Range<usize> {
    let start = address as usize;
    start..start.saturating_add(length.next_multiple_of(SMALL_PAGE_BYTES))
}

fn change_protection(mapping: &mut Mapping, range: &Range<usize>, protection: c_int) -> Answer<()> {
    if mapping.is_private && protection & libc::PROT_WRITE != 0 {
        return make_own(mapping, protection);
    }
    let access = mapping.opened.flags & libc::O_ACCMODE;
    if protection & libc::PROT_WRITE != 0 && access != libc::O_RDWR {
        return Err(libc::EACCES);
    }
    let covers = mapping
        .parts
        .iter()
        .all(|part| common(part, range) == *part);
    if covers {
        mapping.protection = protection;
        return protect_memory(&mapping.window, protection);
    }
    if mapping.page != SMALL_PAGE_BYTES {
        // A part of a huge page cannot have its own protection, so the whole window gets the union of all rights.
        mapping.protection |= protection;
        protect_memory(&mapping.window, mapping.protection)
    } else {
        protect_memory(range, protection)
    }
}

/// Replaces shared pages by private copies; the mapping is not one of ours any more.
fn make_own(mapping: &mut Mapping, protection: c_int) -> Answer<()> {
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mut copies = Vec::new();
    for part in &mapping.parts {
        let copy = map_memory(0, part.len(), both, anonymous, -1, 0)?;
        protect_memory(&mapping.window, both)?;
        let target = room(copy as *mut c_void, part.len())?;
        target.copy_from_slice(crate::foreign::bytes(
            part.start as *const c_void,
            part.len(),
        )?);
        copies.push(copy);
    }
    unmap_memory(&mapping.window);
    unmap_memory(&mapping.holder);
    for (part, copy) in mapping.parts.drain(..).zip(copies) {
        let arguments = [
            copy,
            part.len(),
            part.len(),
            (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize,
            part.start,
            0,
        ];
        // SAFETY: moves the mapping made above to a range that was unmapped just now.
        unsafe { raw::checked(libc::SYS_mremap, arguments) }?;
        if protection != both {
            protect_memory(&part, protection)?;
        }
    }
    mapping.window = 0..0;
    mapping.holder = 0..0;
    Ok(())
}

/// `mmap` returns all ones on failure.
fn mapped(result: Answer<usize>) -> *mut c_void {
    match result {
        Ok(address) => address as *mut c_void,
        Err(errno) => {
            crate::foreign::set_errno(errno);
            libc::MAP_FAILED
        }
    }
}

fn remap(
    context: &Context,
    range: &Range<usize>,
    new_length: usize,
    flags: c_int,
) -> Option<Answer<usize>> {
    let old = find(range, |mapping| {
        let offset = mapping.offset + (range.start - mapping.window.start) as u64;
        (
            mapping.opened,
            offset,
            mapping.protection,
            mapping.is_private,
        )
    })?;
    let (opened, offset, protection, is_private) = old;
    let new_length = new_length.next_multiple_of(SMALL_PAGE_BYTES);
    if new_length <= range.len() {
        let tail = range.start + new_length..range.end;
        return Some(take_away(&tail, |_| Ok(())).map(|()| range.start));
    }
    if flags & libc::MREMAP_FIXED != 0 {
        return Some(Err(libc::EINVAL));
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return Some(Err(libc::ENOMEM));
    }
    let request = Request {
        address: 0,
        length: new_length,
        protection,
        flags: if is_private {
            libc::MAP_PRIVATE
        } else {
            libc::MAP_SHARED
        },
        offset,
    };
    Some((|| {
        let _inside = Inside::enter();
        // Its descriptors may be closed, so open it again for this call; the new mapping then holds it.
        let attributes = attributes_of(context, &opened)?;
        let (fd, again) = context
            .attachment
            .open_description(&attributes, opened.flags | libc::O_CLOEXEC)
            .or_errno()?;
        let new = map_window(context, &again, fd, &request, is_private);
        let _ = raw::close(fd);
        let new = new?;
        take_away(range, |_| Ok(()))?;
        Ok(new)
    })())
}

serve! {
    fn mmap [mmap64, __mmap](
        address: *mut c_void, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64
    ) -> *mut c_void {
        let is_file = flags & libc::MAP_ANONYMOUS == 0 && fd >= 0;
        if is_file && let Some((context, opened)) = ours(fd) {
            context.register_thread();
            let request = Request {
                address: address as usize,
                length,
                protection,
                flags,
                offset: offset as u64,
            };
            let _inside = Inside::enter();
            return mapped(map_file(context, &opened, fd, &request));
        }
        if flags & libc::MAP_FIXED != 0 && !MAPPINGS.is_empty() && !thread::is_inside() {
            // The kernel removes the mappings that it maps over.
            let _ = take_away(&range_of(address, length), |_| Ok(()));
        }
        // Call the kernel directly: allocators call this function before any symbol can be looked up.
        // SAFETY: the program's own call.
        mapped(unsafe {
            raw::checked(
                libc::SYS_mmap,
                [
                    address as usize,
                    length,
                    protection as usize,
                    flags as usize,
                    fd as usize,
                    offset as usize,
                ],
            )
        })
    }

    fn munmap [__munmap](address: *mut c_void, length: usize) -> c_int {
        let range = range_of(address, length);
        if MAPPINGS.is_empty() || thread::is_inside() || find(&range, |_| ()).is_none() {
            // SAFETY: the program's own call.
            return unsafe {
                raw::answered(libc::SYS_munmap, [address as usize, length, 0, 0, 0, 0]) as c_int
            };
        }
        if !range.start.is_multiple_of(SMALL_PAGE_BYTES) || length == 0 {
            return fail(libc::EINVAL);
        }
        crate::foreign::done(take_away(&range, |rest| {
            // SAFETY: the program's own call, on the parts of the range that are not ours.
            unsafe {
                raw::checked(libc::SYS_munmap, [rest.start, rest.len(), 0, 0, 0, 0]).map(drop)
            }
        }))
    }

    fn mprotect(address: *mut c_void, length: usize, protection: c_int) -> c_int {
        let range = range_of(address, length);
        let changed = find(&range, |mapping| change_protection(mapping, &range, protection));
        if let Some(changed) = changed {
            MAPPINGS.with(|mappings| mappings.retain(|mapping| !mapping.parts.is_empty()));
            return crate::foreign::done(changed);
        }
        let arguments = [address as usize, length, protection as usize, 0, 0, 0];
        // SAFETY: the program's own call.
        unsafe { raw::answered(libc::SYS_mprotect, arguments) as c_int }
    }

    fn msync(address: *mut c_void, length: usize, flags: c_int) -> c_int {
        crate::cancel::point();
        match find(&range_of(address, length), |mapping| mapping.opened) {
            Some(opened) => {
                let both = libc::MS_ASYNC | libc::MS_SYNC;
                let known = both | libc::MS_INVALIDATE;
                if flags & !known != 0
                    || flags & both == both
                    || !(address as usize).is_multiple_of(SMALL_PAGE_BYTES)
                {
                    return fail(libc::EINVAL);
                }
                match context() {
                    Some(context) => crate::data::sync(context, &opened),
                    None => 0,
                }
            }
            None => msync::pass(address, length, flags),
        }
    }

    fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int {
        match find(&range_of(address, length), |_| ()) {
            // This advice would remove the pages from the region.
            Some(()) if advice == libc::MADV_REMOVE => fail(libc::EINVAL),
            Some(()) => 0,
            None => {
                let arguments = [address as usize, length, advice as usize, 0, 0, 0];
                // SAFETY: the program's own call.
                unsafe { raw::answered(libc::SYS_madvise, arguments) as c_int }
            }
        }
    }

    fn mremap(
        address: *mut c_void, length: usize, new_length: usize, flags: c_int, new: *mut c_void
    ) -> *mut c_void {
        if !MAPPINGS.is_empty()
            && let Some(context) = context()
            && let Some(answer) = remap(context, &range_of(address, length), new_length, flags)
        {
            return mapped(answer);
        }
        let arguments = [
            address as usize,
            length,
            new_length,
            flags as usize,
            new as usize,
            0,
        ];
        // SAFETY: the program's own call.
        mapped(unsafe { raw::checked(libc::SYS_mremap, arguments) })
    }
}
