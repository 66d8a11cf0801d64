//! Lines out of a stream, in a buffer that does not grow.

/// What the stream holds next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A line without its line feed; a carriage return before that is left out too.
    Line(&'a [u8]),
    /// The beginning of a line above the limit. The rest of it is skipped as it comes.
    Oversized(&'a [u8]),
}

/// Splits a stream into lines. Take pieces until there are none, then let it be filled.
#[derive(Debug)]
pub struct LineBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// Where to go on looking for a line feed.
    scanned: usize,
    line_bytes_max: usize,
    skipping: bool,
    /// What `consume` does: the next start, and whether the rest of the line is to be skipped.
    next: (usize, bool),
}

impl LineBuffer {
    /// A buffer for lines of up to `line_bytes_max` bytes without their ends.
    #[must_use]
    pub fn new(line_bytes_max: usize) -> Self {
        /// Below this, reads would be many for what they bring.
        const BYTES_MIN: usize = 8 << 10;
        Self {
            bytes: vec![0; line_bytes_max.saturating_add(3).max(BYTES_MIN)].into_boxed_slice(),
            start: 0,
            end: 0,
            scanned: 0,
            line_bytes_max,
            skipping: false,
            next: (0, false),
        }
    }

    /// Room for more of the stream; not empty once [`peek`](Self::peek) has returned `None`.
    pub fn spare(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.scanned = self.scanned.saturating_sub(self.start);
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }

    /// Says how much of [`spare`](Self::spare) has been filled.
    pub fn filled(&mut self, bytes: usize) {
        self.end = self.end.saturating_add(bytes).min(self.bytes.len());
    }

    /// The next piece, which stays the next one until [`consume`](Self::consume) is called.
    pub fn peek(&mut self) -> Option<Piece<'_>> {
        if self.skipping {
            match self.line_feed() {
                Some(at) => {
                    (self.start, self.scanned) = (at + 1, at + 1);
                    self.skipping = false;
                }
                None => {
                    self.start = self.end;
                    return None;
                }
            }
        }
        let found = self.line_feed();
        let line = &self.bytes[self.start..found.unwrap_or(self.end)];
        let length = line.strip_suffix(b"\r").unwrap_or(line).len();
        if found.is_none() && line.len() <= self.line_bytes_max + 1 {
            return None;
        }
        self.next = (found.map_or(self.end, |at| at + 1), found.is_none());
        Some(if length > self.line_bytes_max {
            Piece::Oversized(line)
        } else {
            Piece::Line(&line[..length])
        })
    }

    /// Lets go of the piece that [`peek`](Self::peek) showed last.
    pub fn consume(&mut self) {
        (self.start, self.skipping) = self.next;
        self.scanned = self.start;
        self.next = (self.start, self.skipping);
    }

    /// What the stream has begun and not ended; empty when the rest of a line is being skipped.
    #[must_use]
    pub fn unfinished(&self) -> &[u8] {
        if self.skipping {
            return &[];
        }
        &self.bytes[self.start..self.end]
    }

    fn line_feed(&mut self) -> Option<usize> {
        let from = self.scanned.max(self.start);
        let found = self.bytes[from..self.end]
            .iter()
            .position(|byte| *byte == b'\n')
            .map(|offset| from + offset);
        self.scanned = found.unwrap_or(self.end);
        found
    }
}
