//! One line on a terminal that shows the progress of the run.

use std::io::{IsTerminal, Write};

/// Silent if standard error is not a terminal.
pub(crate) struct Progress(bool);

impl Progress {
    /// Checks whether standard error is a terminal.
    pub(crate) fn new() -> Self {
        Self(std::io::stderr().is_terminal())
    }

    /// Replaces the line.
    pub(crate) fn show(&self, text: &str) {
        if self.0 {
            eprint!("\r\x1b[K{text}");
            // Failure to show a progress line must not stop the run.
            let _ = std::io::stderr().flush();
        }
    }

    /// Clears the line.
    pub(crate) fn clear(&self) {
        if self.0 {
            eprint!("\r\x1b[K");
        }
    }
}
