//! Periodic tasks.

use crate::failure::{KEEL_BUSY, KEEL_INTERRUPTED, KEEL_OK, guard, of_client};
use crate::handles::{KEYS, NODES, SharedTask, TASKS};
use crate::interface::ticket::{hand_out, time};
use crate::interface::{keel_key, keel_node, keel_ticket};
use crate::pointer;
use c_interface::Failure;
use c_interface::pointer::{check_optional, check_output, items, put};
use libkeel::{Error, Key, Outcome, Task, TaskKind, TaskSpec, Ticket, Value};
use std::ffi::{CString, c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// The task is firm: a late instance is aborted, and none of its puts is stored. All puts of an instance, at most 128
/// readings, are sent in one request at its end. The node checks the deadline again: it stores all of them or none, and
/// none after the deadline. Without this flag a late instance finishes and is counted.
pub const KEEL_FIRM: u32 = 1;

/// The instance ended within the deadline. The puts of a firm instance may still reach the node too late;
/// keel_counts() then shows this.
pub const KEEL_IN_TIME: i32 = 1;
/// The instance ended after the deadline.
pub const KEEL_TOO_LATE: i32 = 2;
/// The instance belongs to a firm task, and none of its puts was sent.
pub const KEEL_ABORTED: i32 = 3;

/// The handle of a periodic task. Opaque.
#[allow(non_camel_case_types, missing_debug_implementations)]
pub struct keel_task {
    _opaque: [u8; 0],
}

/// The parameters of a periodic task. Fill the structure with zeros first: later versions have more fields, and 0 in
/// them means the behaviour without them.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct keel_task_spec {
    /// Name of the task, 1 to 64 bytes without control characters.
    pub name: *const c_char,
    /// Time between releases in nanoseconds, 1,000 (1 µs) to 3,600,000,000,000 (1 hour).
    pub period_ns: u64,
    /// Maximum response time in nanoseconds, up to 1 hour.
    pub deadline_ns: u64,
    /// Weight of the task in the figures that the node controls, up to 1000; 0 means 1.
    pub weight: f64,
    /// Array of `cores_count` cores that the thread may run on; NULL with `cores_count` 0 means all cores.
    pub cores: *const u16,
    /// Number of cores in `cores`.
    pub cores_count: usize,
    /// Bytes of the thread's stack that are touched and locked in memory before the first release; 0 means none.
    pub stack_bytes: usize,
    /// KEEL_FIRM or 0.
    pub flags: u32,
    /// Real-time priority of the thread, 1 to 99 (SCHED_FIFO); 0 leaves the scheduling unchanged.
    pub fifo_priority: u32,
}

/// Counts of the instances and reports of a task since it was created.
#[allow(non_camel_case_types)]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct keel_task_counts {
    /// Number of instances that ended, including late and aborted ones.
    pub instances: u64,
    /// Number of these that ended after the deadline, or whose puts the node refused because they came after it.
    pub deadline_misses: u64,
    /// Number of instances of a firm task of which no put was stored: the puts were not sent, or the node refused them.
    pub aborted: u64,
    /// Number of releases that passed while an earlier instance ran.
    pub releases_missed: u64,
    /// Number of reports that were sent to the node.
    pub reports: u64,
    /// Number of reports that were dropped because no node could receive them.
    pub reports_lost: u64,
}

/// Returns the task of a handle. It may be running in another thread: [`own`] checks this.
fn task(handle: *mut keel_task) -> Result<SharedTask, Failure> {
    TASKS.get(handle.addr())
}

fn own(task: &SharedTask) -> Result<MutexGuard<'_, Task>, Failure> {
    match task.try_lock() {
        Ok(task) => Ok(task),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Failure::new(
            KEEL_BUSY,
            "another thread runs this task; a task belongs to one thread",
        )),
    }
}

/// Returns the locked task for a call that runs it; fails in a child after fork(), which must not run it.
fn run_by_caller(task: &SharedTask) -> Result<MutexGuard<'_, Task>, Failure> {
    let task = own(task)?;
    task.usable().map_err(of_client)?;
    Ok(task)
}

/// Creates a periodic task. It starts with the first keel_next(). `spec_bytes` is sizeof(keel_task_spec).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_make_task(
    node: *mut keel_node,
    spec: *const keel_task_spec,
    spec_bytes: usize,
    task: *mut *mut keel_task,
) -> i32 {
    guard(|| {
        check_output(task)?;
        if spec_bytes != size_of::<keel_task_spec>() {
            return Err(Failure::invalid(format!(
                "spec_bytes is {spec_bytes}, not sizeof(keel_task_spec)"
            )));
        }
        // SAFETY: the header's rules for pointers.
        let spec = unsafe { items(spec, 1)? }[0];
        // SAFETY: as above.
        let wanted = unsafe { spec.read()? };
        let made = NODES.get(node.addr())?.periodic_task(wanted);
        let made = made.map_err(of_client)?;
        let handle = TASKS.insert(Arc::new(Mutex::new(made)))?;
        // SAFETY: checked above.
        unsafe { put(task, std::ptr::without_provenance_mut(handle)) };
        Ok(())
    })
}

impl keel_task_spec {
    /// # Safety
    /// The pointers obey the rules of the header.
    unsafe fn read(&self) -> Result<TaskSpec, Failure> {
        // SAFETY: the caller's promise.
        let name = unsafe { pointer::text(self.name, "name of the task")? };
        // SAFETY: as above.
        let cores = unsafe { items(self.cores, self.cores_count)? };
        if self.flags & !KEEL_FIRM != 0 {
            return Err(Failure::invalid(format!(
                "the flags {:#x} mean nothing here",
                self.flags
            )));
        }
        let ns = Duration::from_nanos;
        let mut wanted = TaskSpec::new(name, ns(self.period_ns), ns(self.deadline_ns));
        if self.flags & KEEL_FIRM != 0 {
            wanted.kind = TaskKind::Firm;
        }
        // Only a structure filled with zeros has exactly zero here.
        if self.weight.to_bits() != 0 {
            wanted.weight = self.weight;
        }
        wanted.fifo_priority = match self.fifo_priority {
            0 => None,
            priority => Some(u8::try_from(priority).unwrap_or(u8::MAX)),
        };
        wanted.cores = cores.to_vec();
        wanted.stack_bytes = self.stack_bytes;
        Ok(wanted)
    }
}

/// Ends the running instance, and waits for the next release; the first release is immediate. Returns KEEL_INTERRUPTED
/// if a signal comes first: the next call waits for the same release. Returns KEEL_STALE in a child after fork(): the
/// child must attach again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_next(task: *mut keel_task) -> i32 {
    let mut is_there = false;
    let code = guard(|| {
        let task = self::task(task)?;
        is_there = run_by_caller(&task)?.next_unless(|by_signal| by_signal);
        Ok(())
    });
    match code {
        KEEL_OK if !is_there => KEEL_INTERRUPTED,
        code => code,
    }
}

/// Ends the running instance without waiting for the next release. Writes KEEL_IN_TIME, KEEL_TOO_LATE or KEEL_ABORTED
/// to `outcome`, or 0 if no instance was running. `outcome` may be NULL. Returns KEEL_STALE in a child after fork(),
/// where nothing is sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_end(task: *mut keel_task, outcome: *mut i32) -> i32 {
    guard(|| {
        check_optional(outcome)?;
        let task = self::task(task)?;
        let found = match run_by_caller(&task)?.end_instance() {
            None => 0,
            Some(Outcome::InTime) => KEEL_IN_TIME,
            Some(Outcome::Late) => KEEL_TOO_LATE,
            Some(Outcome::Aborted) => KEEL_ABORTED,
        };
        // SAFETY: checked above.
        unsafe { put(outcome, found) };
        Ok(())
    })
}

/// Marks the start of a data access of the instance, which lasts until keel_data_end(). Reads of keys belong between
/// these two calls, many reads in one pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_data_begin(task: *mut keel_task) -> i32 {
    guard(|| {
        let task = self::task(task)?;
        own(&task)?.data_begin();
        Ok(())
    })
}

/// Marks the end of the data access of keel_data_begin().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_data_end(task: *mut keel_task) -> i32 {
    guard(|| {
        let task = self::task(task)?;
        own(&task)?.data_end();
        Ok(())
    })
}

/// Puts a value. `send` says the unit of `at`.
unsafe fn put_value(
    send: impl Fn(&mut Task, &Key, Value<'_>, Option<i64>) -> Result<Ticket, Error>,
    task: *mut keel_task,
    key: *mut keel_key,
    value: Value<'_>,
    at: i64,
    ticket: *mut *mut keel_ticket,
) -> Result<(), Failure> {
    check_optional(ticket)?;
    let task = self::task(task)?;
    let key = KEYS.get(key.addr())?;
    let sent = send(&mut *own(&task)?, &key, value, time(at)).map_err(of_client)?;
    // SAFETY: checked above, and else the header's rules for pointers.
    unsafe { hand_out(ticket, sent) }
}

/// Like keel_put_float(), but over the task's own connection, and counted as data time. In a firm task the reading is
/// buffered until the instance ends. It is stored together with the other readings of the instance, or not at all. If
/// the instance was late, or its puts reached the node after the deadline, the ticket ends with KEEL_LATE, and none of
/// them is stored. After KEEL_IO and KEEL_GONE some of them may be stored; after any other error none is. KEEL_BUSY
/// means that the instance puts too much.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_task_put_float(
    task: *mut keel_task,
    key: *mut keel_key,
    value: f64,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Task::put, task, key, Value::Float(value), time_ms, ticket) })
}

/// Like keel_task_put_float(), with an integer. Up to 2^53 in magnitude it becomes a double.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_task_put_integer(
    task: *mut keel_task,
    key: *mut keel_key,
    value: i64,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    let value = Value::Integer(value);
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Task::put, task, key, value, time_ms, ticket) })
}

/// Like keel_task_put_integer(), with an unsigned integer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_task_put_unsigned(
    task: *mut keel_task,
    key: *mut keel_key,
    value: u64,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    let value = Value::Unsigned(value);
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Task::put, task, key, value, time_ms, ticket) })
}

/// Like keel_task_put_float(), with a truth value: 0 is false.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_task_put_boolean(
    task: *mut keel_task,
    key: *mut keel_key,
    value: i32,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe {
        put_value(
            Task::put,
            task,
            key,
            Value::Boolean(value != 0),
            time_ms,
            ticket,
        )
    })
}

/// Like keel_task_put_float(), with a text of UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_task_put_text(
    task: *mut keel_task,
    key: *mut keel_key,
    value: *const c_char,
    time_ms: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    guard(|| {
        // SAFETY: the header's rules for pointers.
        let text = unsafe { pointer::text(value, "value")? };
        // SAFETY: as above.
        unsafe { put_value(Task::put, task, key, Value::Text(text), time_ms, ticket) }
    })
}

/// Like keel_task_put_float(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_task_put_float_ns(
    task: *mut keel_task,
    key: *mut keel_key,
    value: f64,
    time_ns: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe {
        put_value(
            Task::put_ns,
            task,
            key,
            Value::Float(value),
            time_ns,
            ticket,
        )
    })
}

/// Like keel_task_put_integer(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_task_put_integer_ns(
    task: *mut keel_task,
    key: *mut keel_key,
    value: i64,
    time_ns: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    let value = Value::Integer(value);
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Task::put_ns, task, key, value, time_ns, ticket) })
}

/// Like keel_task_put_unsigned(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_task_put_unsigned_ns(
    task: *mut keel_task,
    key: *mut keel_key,
    value: u64,
    time_ns: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    let value = Value::Unsigned(value);
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Task::put_ns, task, key, value, time_ns, ticket) })
}

/// Like keel_task_put_boolean(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_task_put_boolean_ns(
    task: *mut keel_task,
    key: *mut keel_key,
    value: i32,
    time_ns: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    let value = Value::Boolean(value != 0);
    // SAFETY: the header's rules for pointers.
    guard(|| unsafe { put_value(Task::put_ns, task, key, value, time_ns, ticket) })
}

/// Like keel_task_put_text(), with the time in nanoseconds since 1970-01-01 UTC, or KEEL_NOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_task_put_text_ns(
    task: *mut keel_task,
    key: *mut keel_key,
    value: *const c_char,
    time_ns: i64,
    ticket: *mut *mut keel_ticket,
) -> i32 {
    guard(|| {
        // SAFETY: the header's rules for pointers.
        let text = unsafe { pointer::text(value, "value")? };
        // SAFETY: as above.
        unsafe { put_value(Task::put_ns, task, key, Value::Text(text), time_ns, ticket) }
    })
}

/// Writes 1 to `has_missed` if the deadline of the running instance has passed, else 0. The task may then stop early.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_has_missed(task: *mut keel_task, has_missed: *mut i32) -> i32 {
    guard(|| {
        check_output(has_missed)?;
        let task = self::task(task)?;
        let missed = i32::from(own(&task)?.has_missed());
        // SAFETY: checked above.
        unsafe { put(has_missed, missed) };
        Ok(())
    })
}

/// In a firm task: drops everything that this instance has put or will put; none of it is sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_give_up(task: *mut keel_task) -> i32 {
    guard(|| {
        let task = self::task(task)?;
        own(&task)?.give_up();
        Ok(())
    })
}

/// Writes the counts of instances and reports so far to `counts`. An instance that the node refused is counted when its
/// tickets end. `counts_bytes` is sizeof(keel_task_counts).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_counts(
    task: *mut keel_task,
    counts: *mut keel_task_counts,
    counts_bytes: usize,
) -> i32 {
    guard(|| {
        check_output(counts)?;
        if counts_bytes != size_of::<keel_task_counts>() {
            return Err(Failure::invalid(format!(
                "counts_bytes is {counts_bytes}, not sizeof(keel_task_counts)"
            )));
        }
        let task = self::task(task)?;
        let found = own(&task)?.counts();
        let found = keel_task_counts {
            instances: found.instances,
            deadline_misses: found.deadline_misses,
            aborted: found.aborted,
            releases_missed: found.releases_missed,
            reports: found.reports,
            reports_lost: found.reports_lost,
        };
        // SAFETY: checked above.
        unsafe { put(counts, found) };
        Ok(())
    })
}

/// A function that is called with a text. The text is valid until the function returns.
#[allow(non_camel_case_types)]
pub type keel_visit_text = Option<unsafe extern "C" fn(context: *mut c_void, text: *const c_char)>;

/// Calls `visit` for each warning of a task, with one line of text, and passes `context` to it. The warnings are what
/// the machine did not permit the thread (known from the first release on), and the last error between task and node.
/// If there is no warning, there is no problem.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_task_warnings(
    task: *mut keel_task,
    visit: keel_visit_text,
    context: *mut c_void,
) -> i32 {
    guard(|| {
        let Some(visit) = visit else {
            return Err(Failure::invalid("the function to visit texts is NULL"));
        };
        let task = self::task(task)?;
        let lines: Vec<String> = {
            let task = own(&task)?;
            let error = task.last_error().map(|error| error.to_string());
            task.warnings().iter().cloned().chain(error).collect()
        };
        for line in lines {
            let line = CString::new(line).unwrap_or_default();
            // SAFETY: the caller's function, with a text that is valid until it returns.
            unsafe { visit(context, line.as_ptr()) };
        }
        Ok(())
    })
}

/// Ends the running instance, and closes the task. Sends the last report to the node; this takes up to 1 s if the node
/// has not answered the declaration of the task yet. A program that ends without this call loses that report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn keel_close_task(task: *mut keel_task) -> i32 {
    guard(|| {
        // Refuse the call while another thread runs the task.
        drop(own(&self::task(task)?)?);
        TASKS.remove(task.addr()).map(drop)
    })
}
