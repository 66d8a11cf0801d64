//! Keys and their values.

use crate::failure::{guard, of_client};
use crate::handles::{KEYS, NODES};
use crate::interface::keel_node;
use crate::pointer;
use c_interface::Failure;
use c_interface::pointer::{buffer, check_optional, check_output, put};
use libkeel::{Bytes, Key, Owned, Times};
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// A double: keel_value.number.
pub const KEEL_FLOAT: i32 = 1;
/// A signed integer: keel_value.integer.
pub const KEEL_INTEGER: i32 = 2;
/// An unsigned integer: keel_value.natural.
pub const KEEL_UNSIGNED: i32 = 3;
/// A truth value: keel_value.truth, 0 or 1.
pub const KEEL_BOOLEAN: i32 = 4;
/// UTF-8 text in the buffer, followed by a zero byte: keel_value.bytes does not count the zero.
pub const KEEL_TEXT: i32 = 5;
/// Bytes without a type, in the buffer: keel_value.bytes.
pub const KEEL_BYTES: i32 = 6;

/// Readings are expected continuously; KEEL_FRESH is meaningful only then.
pub const KEEL_TEMPORAL: u32 = 1;
/// The age of the value is within validity_ms.
pub const KEEL_FRESH: u32 = 2;
/// The node's clock gave the time, not the sensor.
pub const KEEL_NODE_TIME: u32 = 4;
/// The node's clock was trusted when the reading arrived.
pub const KEEL_CLOCK_TRUSTED: u32 = 8;
/// The reading arrived since this machine started.
pub const KEEL_THIS_BOOT: u32 = 16;
/// A broker had kept the reading for an unknown time before it arrived.
pub const KEEL_RETAINED: u32 = 32;

/// The handle of a key of a node. Opaque.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct keel_key {
    _opaque: [u8; 0],
}

/// The bytes of a value during a call of a keel_look_at function. Opaque.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct keel_view {
    _opaque: [u8; 0],
}

/// Times and flags of a value.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct keel_times {
    /// The reading's time, milliseconds since 1970-01-01 UTC, rounded down.
    pub time_ms: i64,
    /// Age of the reading in milliseconds; negative for a time in the future.
    pub age_ms: i64,
    /// Maximum age of a fresh value, in milliseconds.
    pub validity_ms: u32,
    /// KEEL_TEMPORAL, KEEL_FRESH, KEEL_NODE_TIME, KEEL_CLOCK_TRUSTED, KEEL_THIS_BOOT and KEEL_RETAINED, as
    /// they apply.
    pub flags: u32,
}

/// Times and flags of a value, with its exact time.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct keel_times_ns {
    /// The reading's time, nanoseconds since 1970-01-01 UTC.
    pub time_ns: i64,
    /// Age of the reading in milliseconds; negative for a time in the future.
    pub age_ms: i64,
    /// Maximum age of a fresh value, in milliseconds.
    pub validity_ms: u32,
    /// As in keel_times.
    pub flags: u32,
}

/// A value with its type.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct keel_value {
    /// The double; for an integer the nearest double.
    pub number: f64,
    /// The signed integer; 0 for other types.
    pub integer: i64,
    /// The unsigned integer; 0 for other types.
    pub natural: u64,
    /// Number of bytes of text or bytes in the buffer; 0 for other types.
    pub bytes: usize,
    /// The type: KEEL_FLOAT to KEEL_BYTES.
    pub kind: i32,
    /// The truth value; 0 for other types.
    pub truth: i32,
}

fn flags(times: &Times) -> u32 {
    let mut flags = 0;
    for (flag, is_set) in [
        (KEEL_TEMPORAL, times.temporal),
        (KEEL_FRESH, times.fresh),
        (KEEL_NODE_TIME, times.node_time),
        (KEEL_CLOCK_TRUSTED, times.clock_trusted),
        (KEEL_THIS_BOOT, times.this_boot),
        (KEEL_RETAINED, times.retained),
    ] {
        flags |= if is_set { flag } else { 0 };
    }
    flags
}

impl keel_times {
    fn of(times: &Times) -> Self {
        Self {
            time_ms: times.time_ms,
            age_ms: times.age_ms,
            validity_ms: times.validity_ms,
            flags: flags(times),
        }
    }
}

impl keel_times_ns {
    fn of(times: &Times) -> Self {
        Self {
            time_ns: times.time_ns,
            age_ms: times.age_ms,
            validity_ms: times.validity_ms,
            flags: flags(times),
        }
    }
}

/// Opens a handle of the key `name`. It has 1 to 255 bytes, no control or invisible characters, and no level that is
/// `+` or `#` alone. The key need not exist yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_open_key(
    node: *mut keel_node,
    name: *const c_char,
    key: *mut *mut keel_key,
) -> i32 {
    guard(|| {
        check_output(key)?;
        // SAFETY: the header's rules for pointers.
        let name = unsafe { pointer::text(name, "name of the key")? };
        let found = NODES.get(node.addr())?.key(name).map_err(of_client)?;
        let handle = KEYS.insert(Arc::new(found))?;
        // SAFETY: checked above.
        unsafe { put(key, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    })
}

/// Closes the handle of a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_close_key(key: *mut keel_key) -> i32 {
    guard(|| KEYS.remove(key.addr()).map(drop))
}

/// Reads the latest value if it is a double; otherwise returns KEEL_UNSUPPORTED. If values are shared (KEEL_SHARED),
/// the value is read in place, where the node writes it. `times` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_read_float(
    key: *mut keel_key,
    value: *mut f64,
    times: *mut keel_times,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { read_float(key, value, times, keel_times::of) })
}

/// Reads a double. `of` makes of its times what the caller has room for.
unsafe fn read_float<T>(
    key: *mut keel_key,
    value: *mut f64,
    times: *mut T,
    of: impl Fn(&Times) -> T,
) -> Result<(), Failure> {
    check_output(value)?;
    check_optional(times)?;
    let (number, found) = KEYS.get(key.addr())?.float().map_err(of_client)?;
    // SAFETY: checked above.
    unsafe {
        put(value, number);
        put(times, of(&found));
    }
    Ok(())
}

/// Reads the latest value with its type. Text and bytes are copied into `buffer`, which has `buffer_bytes` bytes. If
/// they do not fit, including the zero of a text, the call returns KEEL_INVALID. `buffer` may be NULL with
/// `buffer_bytes` 0 for keys that have numbers. `times` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_read(
    key: *mut keel_key,
    value: *mut keel_value,
    buffer: *mut c_void,
    buffer_bytes: usize,
    times: *mut keel_times,
) -> i32 {
    guard(|| {
        check_output(value)?;
        check_optional(times)?;
        // SAFETY: the header's rules for pointers.
        let buffer = unsafe { self::buffer(buffer, buffer_bytes)? };
        let (read, found) = typed(&*KEYS.get(key.addr())?, buffer)?;
        // SAFETY: checked above.
        unsafe {
            put(value, read);
            put(times, keel_times::of(&found));
        }
        Ok(())
    })
}

/// Reads a value with its type, and its text or bytes into `buffer`.
fn typed(key: &Key, buffer: &mut [u8]) -> Result<(keel_value, Times), Failure> {
    let (found, times) = key.read().map_err(of_client)?;
    let mut read = keel_value::default();
    match &found {
        Owned::Float(number) => (read.kind, read.number) = (KEEL_FLOAT, *number),
        Owned::Integer(number) => {
            (read.kind, read.integer) = (KEEL_INTEGER, *number);
            read.number = *number as f64;
        }
        Owned::Unsigned(number) => {
            (read.kind, read.natural) = (KEEL_UNSIGNED, *number);
            read.number = *number as f64;
        }
        Owned::Boolean(truth) => (read.kind, read.truth) = (KEEL_BOOLEAN, i32::from(*truth)),
        Owned::Text(text) => {
            read.kind = KEEL_TEXT;
            read.bytes = fill(buffer, text.as_bytes(), &[0])?;
        }
        Owned::Bytes(bytes) => {
            read.kind = KEEL_BYTES;
            read.bytes = fill(buffer, bytes, &[])?;
        }
    }
    Ok((read, times))
}

/// Copies bytes and their terminator into the buffer; returns the number of bytes without the terminator.
fn fill(buffer: &mut [u8], bytes: &[u8], end: &[u8]) -> Result<usize, Failure> {
    let needed = bytes.len() + end.len();
    let Some(room) = buffer.get_mut(..needed) else {
        let text = format!("the value needs {needed} bytes; pass a longer buffer");
        return Err(Failure::invalid(text));
    };
    let (first, last) = room.split_at_mut(bytes.len());
    first.copy_from_slice(bytes);
    last.copy_from_slice(end);
    Ok(bytes.len())
}

/// A function that reads the bytes of a value. It is called again if a write changed them during the call, so it must
/// start from the beginning each time. Only what it read in its last call is a value. It should be short, and must not
/// use the view after it returns.
#[allow(non_camel_case_types)]
pub type keel_look_at = Option<unsafe extern "C" fn(context: *mut c_void, view: *const keel_view)>;

/// Calls `look` with the stored bytes of the latest value, and passes `context` to it. If values are shared
/// (KEEL_SHARED), `look` reads them in place, where the node writes them, without a copy. `times` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_look(
    key: *mut keel_key,
    look: keel_look_at,
    context: *mut c_void,
    times: *mut keel_times,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { look_at(key, look, context, times, keel_times::of) })
}

/// Lets a function of the caller look at a value. `of` makes of its times what the caller has room for.
unsafe fn look_at<T>(
    key: *mut keel_key,
    look: keel_look_at,
    context: *mut c_void,
    times: *mut T,
    of: impl Fn(&Times) -> T,
) -> Result<(), Failure> {
    check_optional(times)?;
    let Some(look) = look else {
        return Err(Failure::invalid("the function to look is NULL"));
    };
    let looked = KEYS.get(key.addr())?.with_bytes(|bytes| {
        let view: *const Bytes<'_> = bytes;
        // SAFETY: the caller's function, with a view that is valid until it returns.
        unsafe { look(context, view.cast()) };
    });
    let ((), found) = looked.map_err(of_client)?;
    // SAFETY: checked above.
    unsafe { put(times, of(&found)) };
    Ok(())
}

/// Like keel_read_float(), with the exact time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_read_float_ns(
    key: *mut keel_key,
    value: *mut f64,
    times: *mut keel_times_ns,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { read_float(key, value, times, keel_times_ns::of) })
}

/// Like keel_read(), with the exact time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_read_ns(
    key: *mut keel_key,
    value: *mut keel_value,
    buffer: *mut c_void,
    buffer_bytes: usize,
    times: *mut keel_times_ns,
) -> i32 {
    guard(|| {
        check_output(value)?;
        check_optional(times)?;
        // SAFETY: the header's rules for pointers.
        let buffer = unsafe { self::buffer(buffer, buffer_bytes)? };
        let (read, found) = typed(&*KEYS.get(key.addr())?, buffer)?;
        // SAFETY: checked above.
        unsafe {
            put(value, read);
            put(times, keel_times_ns::of(&found));
        }
        Ok(())
    })
}

/// Like keel_look(), with the exact time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_look_ns(
    key: *mut keel_key,
    look: keel_look_at,
    context: *mut c_void,
    times: *mut keel_times_ns,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { look_at(key, look, context, times, keel_times_ns::of) })
}

/// Returns the number of bytes of the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_view_bytes(view: *const keel_view) -> usize {
    // SAFETY: the header's rules: a function was called with this view, and has not returned yet.
    unsafe { view.cast::<Bytes<'_>>().as_ref() }.map_or(0, Bytes::len)
}

/// Returns eight bytes of the value, from byte 8 × `index` on; the first byte is the lowest. Bytes past the end are
/// zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_view_word(view: *const keel_view, index: usize) -> u64 {
    // SAFETY: as above.
    let view = unsafe { view.cast::<Bytes<'_>>().as_ref() };
    view.and_then(|bytes| bytes.word(index)).unwrap_or(0)
}
