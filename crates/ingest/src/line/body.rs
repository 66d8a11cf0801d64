//! The lines of a whole body, for example of a request: taken in slices, so that other senders get their turn.

use super::Precision;
use super::end::{Found, LineEnd};
use super::tally::Tally;
use crate::intake::{Destination, Intake, LineOutcome, LineProgress, Reason, excerpt};

/// Largest number of refused lines that are kept with their reasons; more are only counted.
pub const REFUSED_LINES_MAX: usize = 32;

/// Bytes that are taken in one call, and a line more at most.
const SLICE_BYTES: usize = 64 << 10;

/// A body of lines, and how far it is taken. Its last line needs no line feed: a body that has come whole is not cut.
#[derive(Debug)]
pub struct LineBody {
    bytes: Vec<u8>,
    /// Where the next line begins.
    at: usize,
    line_bytes_max: usize,
    precision: Precision,
    /// Progress in a line that had to wait.
    progress: LineProgress,
    /// Reasons of that line so far.
    reasons: Vec<Reason>,
    /// Number of line feeds before `at`.
    breaks: u64,
    /// How far a line above the limit is followed, and the number of its bytes seen for that.
    following: Option<(LineEnd, usize)>,
    tally: Tally,
    /// Everything but the counts, which `tally` has.
    taken: BodyTaken,
}

/// What has become of the lines of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyTaken {
    /// Readings that were taken.
    pub accepted: u64,
    /// Lines that were refused as a whole, and single refused readings.
    pub refused: u64,
    /// Readings that were dropped to shed load.
    pub shed: u64,
    /// All readings are durable once the log has reached this number.
    pub lsn_end: u64,
    /// The first refused lines, at most [`REFUSED_LINES_MAX`].
    pub lines: Vec<RefusedLine>,
    /// Number of the line with a quoted text that has line breaks and no certain end. This line and all after it were
    /// refused as one.
    pub text_open_line: Option<u64>,
}

/// A line that was refused, as a whole or in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedLine {
    /// Its number in the body, from 1. A quoted text with line breaks counts as many lines as it has.
    pub line: u64,
    /// Each reason once.
    pub reasons: Vec<Reason>,
    /// Its beginning, escaped.
    pub text: String,
}

/// Why [`LineBody::take`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyStopped {
    /// Every line is finished.
    Done,
    /// Others have their turn; call again.
    Slice,
    /// The destination accepts nothing now; call again later.
    Wait {
        /// Whether the store is full.
        full: bool,
    },
    /// The log has failed for good.
    Failed,
}

/// The next piece of a body.
enum Piece {
    /// A line with its number of bytes, without its end.
    Line(usize),
    /// A line whose quoted text does not end within the body, and whether that text has line breaks.
    Cut(bool),
    /// A line above the limit.
    Oversized,
    /// A quoted text without a certain end.
    TextOpen,
}

impl LineBody {
    /// Creates a body whose times are in `precision` instead of the configured unit. `line_bytes_max`: size of the
    /// longest line without its end.
    #[must_use]
    pub fn new(bytes: Vec<u8>, precision: Precision, line_bytes_max: usize) -> Self {
        Self {
            bytes,
            at: 0,
            line_bytes_max,
            precision,
            progress: LineProgress::default(),
            reasons: Vec::new(),
            breaks: 0,
            following: None,
            tally: Tally::default(),
            taken: BodyTaken::default(),
        }
    }

    /// Takes further lines.
    pub fn take<D: Destination>(&mut self, intake: &mut Intake<D>) -> BodyStopped {
        let slice_end = self.at.saturating_add(SLICE_BYTES);
        while self.at < self.bytes.len() {
            if self.at >= slice_end {
                return BodyStopped::Slice;
            }
            let Some((piece, next)) = self.next_piece() else {
                return BodyStopped::Slice;
            };
            let refused_before = self.tally.refused;
            match piece {
                Piece::Line(length) => {
                    // Reasons of other sources are not those of this line.
                    drop(intake.take_line_reasons());
                    let line = &self.bytes[self.at..self.at + length];
                    let outcome = intake.line_in(line, self.precision, &mut self.progress);
                    self.reasons.extend(intake.take_line_reasons());
                    self.tally.add(outcome);
                    match outcome {
                        LineOutcome::Done { .. } => {}
                        LineOutcome::Wait { full } => return BodyStopped::Wait { full },
                        LineOutcome::Failed => return BodyStopped::Failed,
                    }
                }
                Piece::Cut(_) | Piece::Oversized | Piece::TextOpen => {
                    let reason = match piece {
                        Piece::Cut(_) => Reason::LineInvalid,
                        _ => Reason::Oversized,
                    };
                    intake.refuse_with(reason, &self.bytes[self.at..next]);
                    self.reasons.push(reason);
                    self.tally.refused += 1;
                    if matches!(piece, Piece::Cut(true) | Piece::TextOpen) {
                        self.taken.text_open_line = Some(self.breaks + 1);
                    }
                }
            }
            self.finish_piece(next, self.tally.refused > refused_before);
        }
        BodyStopped::Done
    }

    /// Returns the number of bytes of the lines that are finished.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// Returns what has become of the lines so far.
    #[must_use]
    pub fn into_taken(self) -> BodyTaken {
        let Tally {
            accepted,
            refused,
            shed,
            lsn_end,
        } = self.tally;
        BodyTaken {
            accepted,
            refused,
            shed,
            lsn_end,
            ..self.taken
        }
    }

    /// Returns the piece at `at`, and where the one after it begins. `None` as long as a line above the limit has not
    /// been followed to its end.
    fn next_piece(&mut self) -> Option<(Piece, usize)> {
        let body_end = self.bytes.len();
        let rest = &self.bytes[self.at..];
        let (mut end, seen) = match self.following.take() {
            Some(following) => following,
            None => {
                // As many bytes as show that a line is too long, so that the lines are those of a stream.
                let seen = rest.len().min(self.line_bytes_max.saturating_add(2));
                let mut end = LineEnd::new(self.line_bytes_max);
                match end.find(0, &rest[..seen]) {
                    Found::At(length) => {
                        return Some((self.line(length), self.at + length + 1));
                    }
                    Found::More if seen < rest.len() => (end, seen),
                    Found::More if end.is_in_text() => {
                        return Some((Piece::Cut(end.is_open()), body_end));
                    }
                    Found::More => return Some((self.line(seen), body_end)),
                    Found::Open => return Some((Piece::TextOpen, body_end)),
                }
            }
        };
        let seen = rest.len().min(seen.saturating_add(SLICE_BYTES));
        match end.follow(0, &rest[..seen]) {
            Found::At(length) => Some((Piece::Oversized, self.at + length + 1)),
            Found::More if seen < rest.len() => {
                self.following = Some((end, seen));
                None
            }
            Found::More => Some((Piece::Oversized, body_end)),
            Found::Open => Some((Piece::TextOpen, body_end)),
        }
    }

    fn line(&self, length: usize) -> Piece {
        let line = &self.bytes[self.at..self.at + length];
        let length = line.strip_suffix(b"\r").unwrap_or(line).len();
        if length > self.line_bytes_max {
            Piece::Oversized
        } else {
            Piece::Line(length)
        }
    }

    fn finish_piece(&mut self, next: usize, is_refused: bool) {
        let piece = &self.bytes[self.at..next];
        let mut reasons = std::mem::take(&mut self.reasons);
        if is_refused && self.taken.lines.len() < REFUSED_LINES_MAX {
            // A line that had to wait may have met the same reason twice.
            reasons.sort_unstable();
            reasons.dedup();
            self.taken.lines.push(RefusedLine {
                line: self.breaks + 1,
                reasons,
                text: excerpt(piece.trim_ascii_end()),
            });
        }
        self.breaks += memchr::memchr_iter(b'\n', piece).count() as u64;
        self.at = next;
    }
}
