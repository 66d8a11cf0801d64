//! One line on a terminal that says how far the run is.

use std::io::{IsTerminal, Write};

/// Silent where standard error is no terminal.
pub(crate) struct Progress(bool);

impl Progress {
    /// Looks where standard error goes.
    pub(crate) fn new() -> Self {
        Self(std::io::stderr().is_terminal())
    }

    /// Replaces the line.
    pub(crate) fn show(&self, text: &str) {
        if self.0 {
            eprint!("\r\x1b[K{text}");
            // A progress line that cannot be shown is no reason to stop.
            let _ = std::io::stderr().flush();
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        if self.0 {
            eprint!("\r\x1b[K");
        }
    }
}
