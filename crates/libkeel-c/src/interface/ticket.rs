//! Puts and their tickets.

use crate::failure::{Failure, KEEL_LATE, guard};
use crate::handles::{KEYS, TICKETS};
use crate::interface::keel_key;
use crate::pointer::{self, check_optional, put};
use libkeel::{Ticket, Value};
use std::ffi::c_char;
use std::time::Duration;

/// As a time: the node's clock gives it.
pub const KEEL_NOW: i64 = i64::MIN;

/// A put on its way.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct keel_ticket {
    _opaque: [u8; 0],
}

/// Converts a time of the interface to one of the library.
pub(crate) fn time(time_ms: i64) -> Option<i64> {
    (time_ms != KEEL_NOW).then_some(time_ms)
}

/// Hands a ticket to the caller, if the caller wants it.
///
/// # Safety
/// `output` has passed [`check_optional`] and is NULL or leads to memory that can be written.
pub(crate) unsafe fn hand_out(
    output: *mut *mut keel_ticket,
    ticket: Ticket,
) -> Result<(), Failure> {
    if !output.is_null() {
        let handle = TICKETS.insert(ticket)?;
        // SAFETY: the caller's promise.
        unsafe { put(output, std::ptr::without_provenance_mut(handle)) };
    }
    Ok(())
}

unsafe fn put_value(
    key: *mut keel_key,
    value: Value<'_>,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> Result<(), Failure> {
    check_optional(ticket)?;
    let sent = KEYS.get(key.addr())?.put(value, time(time_ms))?;
    // SAFETY: checked above, and else the header's rules for pointers.
    unsafe { hand_out(ticket, sent) }
}

/// Sends a reading to the node and does not wait for it. `time_ms`: the reading's time, milliseconds since 1970-01-01
/// UTC, or KEEL_NOW. `ticket` may be NULL, then nobody learns what becomes of the reading; otherwise it must be closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_put_float(
    key: *mut keel_key,
    value: f64,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(key, Value::Float(value), time_ms, ticket) })
}

/// The same with a truth value: 0 is false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_put_boolean(
    key: *mut keel_key,
    value: i32,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(key, Value::Boolean(value != 0), time_ms, ticket) })
}

/// The same with a text of UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_put_text(
    key: *mut keel_key,
    value: *const c_char,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    guard(|| {
        // SAFETY: the header's rules for pointers.
        let text = unsafe { pointer::text(value, "value")? };
        // SAFETY: as above.
        unsafe { put_value(key, Value::Text(text), time_ms, ticket) }
    })
}

/// Waits until the reading is on flash, at most `timeout_ms`; then it is KEEL_LATE, and may be waited for again. Any
/// other code says why it is not, and stays: KEEL_SHED where the node has thrown it away on purpose. KEEL_LATE stays,
/// too, where an instance of a firm task was late: keel_last_error() says which it is. `lsn` may be NULL: the reading's
/// number in the log; left alone unless the answer is KEEL_OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_wait(
    ticket: *mut keel_ticket,
    timeout_ms: u32,
    lsn: *mut u64,
) -> i32 {
    guard(|| {
        check_optional(lsn)?;
        let ticket = TICKETS.get(ticket.addr())?;
        let found = match timeout_ms {
            0 => ticket.poll().ok_or_else(|| {
                Failure::new(KEEL_LATE, "the reading is not durable yet; wait for it")
            })?,
            ms => ticket.wait(Duration::from_millis(ms.into())),
        }?;
        // SAFETY: checked above.
        unsafe { put(lsn, found) };
        Ok(())
    })
}

/// Closes a ticket. The put goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_close_ticket(ticket: *mut keel_ticket) -> i32 {
    guard(|| TICKETS.remove(ticket.addr()).map(drop))
}
