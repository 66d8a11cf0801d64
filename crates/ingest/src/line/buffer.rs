//! Splits a stream into lines, in a buffer that does not grow.

use super::end::{Found, LineEnd};

/// The next piece of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A line without its line feed, and without a carriage return before that. Its quoted texts can contain line
    /// feeds.
    Line(&'a [u8]),
    /// The beginning of a line above the limit. The rest of it is skipped as it arrives.
    Oversized(&'a [u8]),
    /// The beginning of a line with a quoted text that contains line breaks, and that is too long or was cut off. What
    /// follows cannot be distinguished from the text: the stream must end here.
    TextOpen(&'a [u8]),
}

/// Splits a stream into lines. Take pieces until there are none, then fill the buffer again.
#[derive(Debug)]
pub struct LineBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    line_bytes_max: usize,
    /// Finds the end of the line that begins at `start`, or of the line that is being skipped.
    line_end: LineEnd,
    /// Number of bytes of that line that have been skipped; 0: it is not being skipped.
    skipped: usize,
    /// What `consume` will do.
    next: Next,
}

#[derive(Clone, Copy, Debug)]
enum Next {
    /// The next line begins here.
    Line(usize),
    /// The rest of the line is to be skipped.
    Skip,
    Stay,
}

impl LineBuffer {
    /// Creates a buffer for lines of up to `line_bytes_max` bytes without their ends.
    #[must_use]
    pub fn new(line_bytes_max: usize) -> Self {
        /// A smaller buffer would need many reads for little data.
        const BYTES_MIN: usize = 8 << 10;
        Self {
            bytes: vec![0; line_bytes_max.saturating_add(3).max(BYTES_MIN)].into_boxed_slice(),
            start: 0,
            end: 0,
            line_bytes_max,
            line_end: LineEnd::new(line_bytes_max),
            skipped: 0,
            next: Next::Stay,
        }
    }

    /// Returns the space for more of the stream; not empty once [`peek`](Self::peek) has returned `None`.
    pub fn spare(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }

    /// Records how much of [`spare`](Self::spare) has been filled.
    pub fn filled(&mut self, bytes: usize) {
        self.end = self.end.saturating_add(bytes).min(self.bytes.len());
    }

    /// Returns the next piece, which stays the next one until [`consume`](Self::consume) is called.
    pub fn peek(&mut self) -> Option<Piece<'_>> {
        self.next = Next::Stay;
        if self.skipped > 0 {
            let bytes = &self.bytes[self.start..self.end];
            match self.line_end.follow(self.skipped, bytes) {
                Found::At(at) => {
                    let begin = self.start + (at + 1).saturating_sub(self.skipped);
                    self.begin_line(begin);
                }
                Found::More => {
                    self.skipped += bytes.len();
                    self.start = self.end;
                    return None;
                }
                Found::Open => return Some(Piece::TextOpen(&[])),
            }
        }
        // Stop at the first byte that shows that a line is too long. So the pieces do not depend on how the stream is
        // cut into reads.
        let seen = (self.start + self.line_bytes_max + 2).min(self.end);
        let line = &self.bytes[self.start..seen];
        match self.line_end.find(0, line) {
            Found::At(at) => {
                self.next = Next::Line(self.start + at + 1);
                let line = &line[..at];
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                Some(if line.len() > self.line_bytes_max {
                    Piece::Oversized(line)
                } else {
                    Piece::Line(line)
                })
            }
            Found::More if line.len() > self.line_bytes_max + 1 => {
                self.next = Next::Skip;
                Some(Piece::Oversized(line))
            }
            Found::More => None,
            Found::Open => Some(Piece::TextOpen(line)),
        }
    }

    /// Drops the piece that [`peek`](Self::peek) last returned, except [`Piece::TextOpen`].
    pub fn consume(&mut self) {
        match std::mem::replace(&mut self.next, Next::Stay) {
            Next::Line(begin) => self.begin_line(begin),
            Next::Skip => {
                let seen = (self.start + self.line_bytes_max + 2).min(self.end);
                // `peek` has already searched these bytes for the end.
                let bytes = &self.bytes[self.start..seen];
                let _ = self.line_end.follow(0, bytes);
                self.skipped = bytes.len();
                self.start = seen;
            }
            Next::Stay => {}
        }
    }

    fn begin_line(&mut self, begin: usize) {
        self.start = begin;
        self.skipped = 0;
        self.line_end = LineEnd::new(self.line_bytes_max);
    }

    /// Returns whether the stream is within a quoted text that has contained a line break.
    #[must_use]
    pub fn text_is_open(&self) -> bool {
        self.line_end.is_open()
    }

    /// Returns the unfinished line at the end of the stream; empty when the rest of a line is being skipped.
    #[must_use]
    pub fn unfinished(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}
