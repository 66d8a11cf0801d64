//! Reading a file in place: `include/keelmem.h`.

use std::ffi::{c_int, c_void};

use mem::{Lent, Moment, Opened};

use crate::foreign::{Answer, fail};
use crate::state::{Context, OrErrno, ours, served};
use crate::thread::Inside;

/// `struct keel_mem_slice`.
#[repr(C)]
pub struct Slice {
    bytes: *const c_void,
    length: usize,
    lender: *mut Lent<'static>,
}

/// See the header.
///
/// # Safety
/// `slice` is null or leads to room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_mem_lend(
    descriptor: c_int,
    offset: libc::off_t,
    length: usize,
    slice: *mut Slice,
) -> c_int {
    let Some((context, opened)) = ours(descriptor) else {
        return fail(libc::EBADF);
    };
    served(|| {
        if slice.is_null() {
            return Err(libc::EINVAL);
        }
        let lent = lend(context, &opened, offset, length)?;
        let bytes = lent.bytes();
        let made = Slice {
            bytes: if bytes.is_empty() {
                std::ptr::null()
            } else {
                bytes.as_ptr().cast()
            },
            length: bytes.len(),
            lender: Box::into_raw(Box::new(lent)),
        };
        // SAFETY: not null, and the address of one slice, as the header demands.
        unsafe { slice.write(made) };
        Ok(0)
    })
}

fn lend(
    context: &'static Context,
    opened: &Opened,
    offset: libc::off_t,
    length: usize,
) -> Answer<Lent<'static>> {
    let offset = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
    if opened.flags & libc::O_ACCMODE == libc::O_WRONLY || opened.flags & libc::O_PATH != 0 {
        return Err(libc::EBADF);
    }
    let attachment = &context.attachment;
    let file = attachment
        .region()
        .attributes(opened.node.inode)
        .or_errno()?;
    attachment.lend(&file, offset, length as u64).or_errno()
}

/// The lent range of a slice of the caller.
///
/// # Safety
/// `slice` is null or leads to one that `keel_mem_lend` has filled, or to zeros.
unsafe fn lent_to<'s>(slice: *const Slice) -> Option<&'s Lent<'static>> {
    // SAFETY: null or a slice, as demanded.
    let slice = unsafe { slice.as_ref() }?;
    // SAFETY: null, or made by `keel_mem_lend` and not released, as release writes null.
    unsafe { slice.lender.as_ref() }
}

/// See the header.
///
/// # Safety
/// `slice` leads to a slice, and `moment` to room for a number, or they are null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_mem_moment(slice: *const Slice, moment: *mut u64) -> c_int {
    served(|| {
        // SAFETY: demanded of the caller.
        let lent = unsafe { lent_to(slice) }.ok_or(libc::EINVAL)?;
        if moment.is_null() {
            return Err(libc::EINVAL);
        }
        let now = lent.moment().or_errno()?;
        // SAFETY: not null, and room for a number.
        unsafe { moment.write(now.number()) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// `slice` leads to a slice, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_mem_is_still(slice: *const Slice, moment: u64) -> c_int {
    // SAFETY: demanded of the caller.
    let lent = unsafe { lent_to(slice) };
    c_int::from(lent.is_some_and(|lent| lent.is_still(Moment::from_number(moment))))
}

/// See the header.
///
/// # Safety
/// `slice` leads to a slice, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_mem_release(slice: *mut Slice) {
    // SAFETY: null or a slice, as demanded.
    let Some(slice) = (unsafe { slice.as_mut() }) else {
        return;
    };
    let lender = std::mem::replace(&mut slice.lender, std::ptr::null_mut());
    slice.bytes = std::ptr::null();
    slice.length = 0;
    if !lender.is_null() {
        // SAFETY: made by `keel_mem_lend` and freed here for the first time.
        let lent = unsafe { Box::from_raw(lender) };
        let _inside = Inside::enter();
        drop(lent);
    }
}
