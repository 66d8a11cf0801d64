//! Standard output that ends silently when its reader goes away (`keel flash ls IMAGE
//! head -1`).

use crate::error::CliError;
use std::io::{self, Write};

/// Standard output. Once its reader has gone, all output is dropped and [`is_open`](Self::is_open) returns `false`.
pub struct Output {
    sink: io::BufWriter<io::Stdout>,
    open: bool,
}

impl Output {
    /// Takes standard output.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sink: io::BufWriter::with_capacity(1 << 16, io::stdout()),
            open: true,
        }
    }

    /// Returns whether there is still a reader.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    fn settle(&mut self, result: io::Result<()>) -> Result<(), CliError> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.open = false;
                Ok(())
            }
            Err(error) => Err(CliError::io("standard output", &error)),
            Ok(()) => Ok(()),
        }
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// The output cannot be written, for another reason than a reader that has gone.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        if !self.open {
            return Ok(());
        }
        let result = self.sink.write_all(bytes);
        self.settle(result)
    }

    /// Writes one line.
    ///
    /// # Errors
    /// The output cannot be written, for another reason than a reader that has gone.
    pub fn line(&mut self, text: impl std::fmt::Display) -> Result<(), CliError> {
        if !self.open {
            return Ok(());
        }
        let result = writeln!(self.sink, "{text}");
        self.settle(result)
    }

    /// Writes one line of JSON.
    ///
    /// # Errors
    /// The output cannot be written, for another reason than a reader that has gone.
    pub fn json(&mut self, value: &serde_json::Value) -> Result<(), CliError> {
        self.line(value)
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// The output cannot be written, for another reason than a reader that has gone.
    pub fn flush(&mut self) -> Result<(), CliError> {
        if !self.open {
            return Ok(());
        }
        let result = self.sink.flush();
        self.settle(result)
    }
}

impl Default for Output {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.open {
            // Dropping a buffered writer would write to the closed pipe again, which is harmless but useless.
            self.sink.get_mut().flush().ok();
        }
    }
}

/// Returns a count with its noun: `1 file`, `2 files`.
#[must_use]
pub fn counted(count: u64, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}
