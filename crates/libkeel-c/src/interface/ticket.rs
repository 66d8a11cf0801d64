//! Puts and their tickets.

use crate::failure::{KEEL_LATE, guard, of_client};
use crate::handles::{KEYS, TICKETS};
use crate::interface::keel_key;
use crate::pointer;
use c_interface::Failure;
use c_interface::pointer::{check_optional, put};
use libkeel::{Error, Key, Ticket, Value};
use std::ffi::c_char;
use std::time::Duration;

/// A value of `time_ms` and `time_ns`: the node's clock gives the time.
pub const KEEL_NOW: i64 = i64::MIN;

/// The handle of a put in flight. Opaque.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct keel_ticket {
    _opaque: [u8; 0],
}

/// Converts a time of the interface, in ms or in ns, to one of the library.
pub(crate) fn time(time: i64) -> Option<i64> {
    (time != KEEL_NOW).then_some(time)
}

/// Writes the handle of a ticket to `output`, unless it is NULL.
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

/// Puts a value. `send` says the unit of `at`.
unsafe fn put_value(
    send: impl Fn(&Key, Value<'_>, Option<i64>) -> Result<Ticket, Error>,
    key: *mut keel_key,
    value: Value<'_>,
    at: i64,
    ticket: *mut *mut keel_ticket,
) -> Result<(), Failure> {
    check_optional(ticket)?;
    let key = KEYS.get(key.addr())?;
    let sent = send(&key, value, time(at)).map_err(of_client)?;
    // SAFETY: checked above, and else the header's rules for pointers.
    unsafe { hand_out(ticket, sent) }
}

/// Sends a reading to the node and does not wait for it. `time_ms`: the reading's time, milliseconds since 1970-01-01
/// UTC, or KEEL_NOW. `ticket` may be NULL: the caller then does not learn the outcome of the put. Otherwise the caller
/// must close the ticket.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_put_float(
    key: *mut keel_key,
    value: f64,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Key::put, key, Value::Float(value), time_ms, ticket) })
}

/// Like keel_put_float(), with an integer. Up to 2^53 in magnitude it becomes a double.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_put_integer(
    key: *mut keel_key,
    value: i64,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Key::put, key, Value::Integer(value), time_ms, ticket) })
}

/// Like keel_put_integer(), with an unsigned integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_put_unsigned(
    key: *mut keel_key,
    value: u64,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Key::put, key, Value::Unsigned(value), time_ms, ticket) })
}

/// Like keel_put_float(), with a truth value: 0 is false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_put_boolean(
    key: *mut keel_key,
    value: i32,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Key::put, key, Value::Boolean(value != 0), time_ms, ticket) })
}

/// Like keel_put_float(), with a text of UTF-8.
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
        unsafe { put_value(Key::put, key, Value::Text(text), time_ms, ticket) }
    })
}

/// Like keel_put_float(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_put_float_ns(
    key: *mut keel_key,
    value: f64,
    time_ns: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Key::put_ns, key, Value::Float(value), time_ns, ticket) })
}

/// Like keel_put_integer(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_put_integer_ns(
    key: *mut keel_key,
    value: i64,
    time_ns: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Key::put_ns, key, Value::Integer(value), time_ns, ticket) })
}

/// Like keel_put_unsigned(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_put_unsigned_ns(
    key: *mut keel_key,
    value: u64,
    time_ns: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    let value = Value::Unsigned(value);
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Key::put_ns, key, value, time_ns, ticket) })
}

/// Like keel_put_boolean(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_put_boolean_ns(
    key: *mut keel_key,
    value: i32,
    time_ns: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe {
        put_value(
            Key::put_ns,
            key,
            Value::Boolean(value != 0),
            time_ns,
            ticket,
        )
    })
}

/// Like keel_put_text(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_put_text_ns(
    key: *mut keel_key,
    value: *const c_char,
    time_ns: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    guard(|| {
        // SAFETY: the header's rules for pointers.
        let text = unsafe { pointer::text(value, "value")? };
        // SAFETY: as above.
        unsafe { put_value(Key::put_ns, key, Value::Text(text), time_ns, ticket) }
    })
}

/// Waits until the reading is on flash, at most `timeout_ms`. After the timeout the call returns KEEL_LATE, and the
/// caller may wait again. Any other error is final and says why the reading is not known to be on flash: KEEL_SHED if
/// the node dropped it on purpose. KEEL_LATE is final too if an instance of a firm task was late: keel_last_error()
/// says which case it is. On KEEL_OK the reading's number in the log is written to `lsn`; on any other code `lsn` is
/// left unchanged. `lsn` may be NULL.
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
        };
        let found = found.map_err(of_client)?;
        // SAFETY: checked above.
        unsafe { put(lsn, found) };
        Ok(())
    })
}

/// Closes a ticket. The put continues.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_close_ticket(ticket: *mut keel_ticket) -> i32 {
    guard(|| TICKETS.remove(ticket.addr()).map(drop))
}
