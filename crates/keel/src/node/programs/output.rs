//! What programs write goes into the node's log, as much of it as does not hide the rest.

use crate::node::log;
use std::time::{Duration, Instant};

/// Lines of one program in the log within [`SPAN`]; more are counted.
const LINES_MAX: u32 = 20;
const SPAN: Duration = Duration::from_secs(10);

/// The output of one program.
pub(super) struct Output<'a> {
    /// `task` or `mount`.
    word: &'static str,
    name: &'a str,
    begun: Instant,
    said: u32,
    left_out: u64,
    last: Option<String>,
}

impl<'a> Output<'a> {
    pub(super) fn new(word: &'static str, name: &'a str) -> Self {
        Self {
            word,
            name,
            begun: Instant::now(),
            said: 0,
            left_out: 0,
            last: None,
        }
    }

    /// Takes a line; whether it is in the log.
    pub(super) fn line(&mut self, text: &str) -> bool {
        self.last = Some(text.to_owned());
        if self.begun.elapsed() >= SPAN {
            self.end_span();
        }
        if self.said >= LINES_MAX {
            self.left_out += 1;
            return false;
        }
        self.said += 1;
        log::event(self.word, format!("{}: {text}", self.name));
        true
    }

    /// The last line since this was asked.
    pub(super) fn take_last(&mut self) -> Option<String> {
        self.last.take()
    }

    fn end_span(&mut self) {
        if self.left_out > 0 {
            let text = format!("{}: {} more lines were left out", self.name, self.left_out);
            log::event(self.word, text);
        }
        (self.begun, self.said, self.left_out) = (Instant::now(), 0, 0);
    }
}

impl Drop for Output<'_> {
    fn drop(&mut self) {
        self.end_span();
    }
}
