//! The maintenance thread of a client. It takes the answers of all connections, and checks ten times a second whether
//! the node still serves its values. Threads that read and put never do that themselves.

use crate::attachment::Attachment;
use crate::error::Error;
use crate::inbox::{Outbox, system};
use crate::pipe::Receiver;
use base::clock::{Clock, SystemClock};
use std::sync::Weak;
use std::time::Duration;

/// Interval of the checks whether the node lives.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Starts the thread. It ends soon after the last copy of the inbox.
pub(crate) fn start(outbox: Outbox<Receiver>, attachment: Weak<Attachment>) -> Result<(), Error> {
    let thread = std::thread::Builder::new().name("keel-client".to_owned());
    // Signals are for the program's own threads. A new thread inherits the signal mask of its creator.
    let before = block_signals();
    let spawned = thread.spawn(move || run(outbox, &attachment));
    restore_signals(&before);
    spawned
        .map(drop)
        .map_err(|error| system("a thread", &error))
}

fn run(mut outbox: Outbox<Receiver>, attachment: &Weak<Attachment>) {
    let clock = SystemClock::new();
    let mut receivers: Vec<Receiver> = Vec::new();
    let mut polled = Vec::new();
    let interval_ns = CHECK_INTERVAL.as_nanos() as u64;
    let mut next_check_ns = clock.monotonic_ns();
    loop {
        receivers.extend(outbox.added());
        let now_ns = clock.monotonic_ns();
        if now_ns >= next_check_ns {
            let Some(attachment) = attachment.upgrade() else {
                return;
            };
            attachment.refresh();
            next_check_ns = now_ns + interval_ns;
        }
        polled.clear();
        polled.push(libc::pollfd {
            fd: outbox.descriptor(),
            events: libc::POLLIN,
            revents: 0,
        });
        polled.extend(receivers.iter().map(Receiver::polled));
        let left_ms = next_check_ns.saturating_sub(now_ns).div_ceil(1_000_000);
        // SAFETY: the array outlives the call, and its length is given.
        let ready = unsafe {
            libc::poll(
                polled.as_mut_ptr(),
                polled.len() as libc::nfds_t,
                i32::try_from(left_ms).unwrap_or(i32::MAX),
            )
        };
        if ready <= 0 {
            continue;
        }
        if polled[0].revents != 0 && !outbox.has_rung() {
            // Dropping the receivers reports an error to all that still wait.
            return;
        }
        let mut events = polled[1..].iter().map(|one| one.revents);
        receivers.retain_mut(|receiver| match events.next() {
            Some(0) | None => true,
            Some(events) => receiver.serve(events),
        });
    }
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: plain data, for which all zeros are a value, filled and passed to calls that keep nothing of it.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: a mask that this thread had, in a call that keeps nothing of it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}
