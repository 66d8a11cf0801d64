//! The node's log: one line per event on standard error, with the time, for a terminal or a journal.
//!
//! A separate thread writes the lines: their reader may stall, and must not block the node. Lines that do not fit into
//! the queue are dropped, and their number is logged afterwards.

use crate::time_text::format_ms;
use std::fmt;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Capacity of the queue of events.
const WAITING_MAX: usize = 256;
/// How long the end of the node waits for a stalled reader.
const FINISH: Duration = Duration::from_millis(200);

enum Message {
    Line(String),
    /// Signal when all earlier messages are written.
    Finish(SyncSender<()>),
}

/// The channel to the writing thread; `None` if the system refused the thread.
static SENDER: OnceLock<Option<SyncSender<Message>>> = OnceLock::new();
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

fn sender() -> Option<&'static SyncSender<Message>> {
    let start = || {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("log".into());
        thread
            .spawn(move || write_all(&receiver, &mut std::io::stderr()))
            .ok()
            .map(|_| sender)
    };
    SENDER.get_or_init(start).as_ref()
}

fn write_all(receiver: &Receiver<Message>, out: &mut dyn Write) {
    while let Ok(message) = receiver.recv() {
        match message {
            // The reader may have gone; the node continues.
            Message::Line(line) => drop(writeln!(out, "{line}")),
            Message::Finish(done) => drop(done.try_send(())),
        }
        let left_out = LEFT_OUT.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            let line = line(
                "log",
                format_args!(
                    "{left_out} events were left out: the reader of the output is too slow"
                ),
            );
            writeln!(out, "{line}").ok();
        }
    }
}

fn line(word: &str, text: impl fmt::Display) -> String {
    // Use the system time directly: a default clock would also read the boot id from a file, which is not needed here.
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
        });
    let text = text
        .to_string()
        .replace(|letter: char| letter.is_control(), " ");
    format!("{} {word}: {text}", format_ms(now_ms))
}

/// Logs an event. `word` names its kind, such as `ready`. Never waits.
pub(crate) fn event(word: &str, text: impl fmt::Display) {
    let line = line(word, text);
    match sender() {
        Some(sender) => {
            if sender.try_send(Message::Line(line)).is_err() {
                LEFT_OUT.fetch_add(1, Ordering::Relaxed);
            }
        }
        None => drop(writeln!(std::io::stderr(), "{line}")),
    }
}

/// From now on the warnings of a client with TLS are events, as those of a configuration are.
pub(crate) fn of_client(client: Option<&tls::Client>) {
    if let Some(client) = client {
        client.say_with(|line| event("warning", line));
    }
}

/// Waits until all events are written, at most [`FINISH`].
pub(crate) fn finish() {
    if let Some(sender) = SENDER.get().and_then(Option::as_ref) {
        let (done, written) = sync_channel(1);
        if sender.try_send(Message::Finish(done)).is_ok() {
            written.recv_timeout(FINISH).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_in_order_and_the_end_waits_for_them() {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let (done, written) = sync_channel(1);
        for text in ["one", "two\nlines"] {
            sender.send(Message::Line(line("word", text))).unwrap();
        }
        sender.send(Message::Finish(done)).unwrap();
        drop(sender);
        let mut out = Vec::new();
        write_all(&receiver, &mut out);
        assert!(written.try_recv().is_ok());
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() == 2 && lines[0].ends_with(" word: one"));
        assert!(lines[1].ends_with(" word: two lines"));
    }
}
