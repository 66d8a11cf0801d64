//! A progress line on standard error, for work that takes longer than one second in a terminal.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Work shorter than this shows nothing.
const QUIET: Duration = Duration::from_secs(1);

/// Time between two updates of the line.
const STEP: Duration = Duration::from_millis(200);

struct Shared {
    bytes: AtomicU64,
    /// The current step, shown after the total.
    part: Mutex<String>,
    done: Mutex<bool>,
    ended: Condvar,
}

/// Shows progress until dropped.
pub struct Progress {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts the line; `what` is shown, such as `storing notes.txt`. Shows nothing unless standard error is a
    /// terminal.
    #[must_use]
    pub fn start(what: String) -> Self {
        // Paths and names are untrusted, and could control the terminal.
        let what: String = what.chars().filter(|letter| !letter.is_control()).collect();
        let shared = Arc::new(Shared {
            bytes: AtomicU64::new(0),
            part: Mutex::new(String::new()),
            done: Mutex::new(false),
            ended: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let start = move || {
            std::thread::Builder::new()
                .name("progress".into())
                .spawn(move || {
                    block_signals();
                    show(&theirs, &what);
                })
        };
        // Without a thread there is no progress line, which is no reason to fail.
        let thread = std::io::stderr()
            .is_terminal()
            .then(start)
            .and_then(Result::ok);
        Self { shared, thread }
    }

    /// Sets the current step, such as `3 of 8`; it is shown at the end of the line.
    pub fn part(&self, part: &str) {
        let part = part.chars().filter(|letter| !letter.is_control()).collect();
        *self
            .shared
            .part
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = part;
    }

    /// Adds to the bytes that are done.
    pub fn add(&self, bytes: usize) {
        self.shared.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        *lock(&self.shared.done) = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Blocks signals in this thread. The working thread must receive them: a handler's undo must not run in the middle of
/// a change.
fn block_signals() {
    // SAFETY: all zeros are a valid set; both calls get a set that lives until they return.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

fn lock(done: &Mutex<bool>) -> MutexGuard<'_, bool> {
    done.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn show(shared: &Shared, what: &str) {
    let begun = Instant::now();
    let mut shown = false;
    let mut done = lock(&shared.done);
    let mut pause = QUIET;
    loop {
        let waited = shared.ended.wait_timeout_while(done, pause, |done| !*done);
        done = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        if *done {
            break;
        }
        pause = STEP;
        shown = true;
        let seconds = begun.elapsed().as_secs();
        let bytes = shared.bytes.load(Ordering::Relaxed);
        let amount = if bytes == 0 {
            String::new()
        } else {
            format!("  {}", bytes_text(bytes))
        };
        let part = shared
            .part
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone();
        let space = if part.is_empty() { "" } else { "  " };
        write!(
            std::io::stderr(),
            "\r\x1b[2K{what}{space}{part}{amount}  {seconds} s"
        )
        .ok();
    }
    if shown {
        write!(std::io::stderr(), "\r\x1b[2K").ok();
    }
}

/// Returns a number of bytes for people: `512 B`, `12.3 MiB`.
#[must_use]
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Returns seconds for people: `40 s`, `6 min 30 s`.
#[must_use]
pub fn span_text(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        _ => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::{bytes_text, span_text};

    #[test]
    fn spans_are_written_with_units() {
        assert_eq!(span_text(59), "59 s");
        assert_eq!(span_text(390), "6 min 30 s");
    }

    #[test]
    fn sizes_are_written_with_a_unit() {
        assert_eq!(bytes_text(0), "0 B");
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(1536), "1.5 KiB");
        assert_eq!(bytes_text(256 << 20), "256.0 MiB");
        assert_eq!(bytes_text(u64::MAX), "16777216.0 TiB");
    }
}
