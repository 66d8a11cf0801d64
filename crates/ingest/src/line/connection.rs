//! One sender: passes its lines to the intake, and sends acknowledgements back.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Write as _;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::LineOptions;
use super::buffer::{LineBuffer, Piece};
use super::places::{Place, Places};
use super::state::{Control, Counted, LineState};
use super::tally::Tally;
use crate::durable::{Durable, DurableWatch};
use crate::intake::{Destination, Intake, LineOutcome, LineProgress, Reason};

/// Largest number of acknowledgements that may be due; nothing more is read from a sender that asks for more.
pub const ACKS_PENDING_MAX: usize = 64;

/// Size of one read in bytes: the thread serves other connections after it.
const READ_BYTES_MAX: usize = 64 << 10;

/// Retry interval of a line that had to wait, if the log does not advance before.
const RETRY: Duration = Duration::from_millis(10);
const RETRY_FULL: Duration = Duration::from_millis(200);

/// How long a sender may leave its acknowledgements unread.
const WRITE_SECONDS_MAX: u64 = 30;

/// How long a sender may be silent within a quoted text that has contained a line break.
const TEXT_SECONDS_MAX: u64 = 10;

/// A connection that must close is read until it has been silent for this time, or until this many bytes have been
/// read. So lines that have already arrived are taken.
const LEAVING_SILENCE: Duration = Duration::from_millis(20);
const LEAVING_BYTES_MAX: usize = 8 << 20;

/// Timeout of the last message to a sender.
const FAREWELL_TOLD: Duration = Duration::from_millis(200);

/// U+FEFF: some programs begin with it, and then the first line is empty with it, too.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

const FAILED: &[u8] = b"error failed\n";
const MADE_ROOM: &[u8] = b"error made_room\n";
const TEXT_OPEN: &[u8] = b"error text_open\n";

/// What the connections share.
pub(super) struct Shared<D: Destination> {
    pub(super) intake: Rc<RefCell<Intake<D>>>,
    pub(super) durable: DurableWatch,
    pub(super) control: Control,
    pub(super) state: Arc<LineState>,
    pub(super) options: LineOptions,
    pub(super) places: Rc<Places>,
}

/// Why no further line was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    /// No complete line is left.
    Dry,
    /// Too many acknowledgements are due.
    Asking,
    Wait {
        full: bool,
    },
    Failed,
}

struct Sender {
    buffer: LineBuffer,
    /// Progress in a line that had to wait.
    progress: LineProgress,
    /// Counts since the last acknowledgement line.
    tally: Tally,
    due: VecDeque<Tally>,
    /// Whether it ever asked for an acknowledgement: only then it is told of a failure too.
    asked: bool,
    /// Whether it has left a quoted text open that is too long: nothing more from it is taken.
    text_is_lost: bool,
}

/// How far the end of a connection has progressed.
#[derive(Default)]
struct Ending {
    /// Nothing more is read.
    is_ended: bool,
    /// The connection must close: only what has already arrived is read. The number of bytes read since.
    leaving_bytes: Option<usize>,
    /// The sender no longer reads answers.
    is_deaf: bool,
    /// The last message, sent to any sender.
    farewell: Option<&'static [u8]>,
}

/// Serves a connection until it ends.
pub(super) async fn serve<D, S>(mut stream: S, shared: &Shared<D>, place: &Place)
where
    D: Destination,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let state = &*shared.state;
    let idle_max = match shared.options.idle_seconds_max {
        0 => Duration::MAX,
        seconds => Duration::from_secs(seconds),
    };
    let make_room_min = Duration::from_secs(shared.options.make_room_seconds_min).min(idle_max);
    let mut durable = shared.durable.clone();
    let mut control = shared.control.clone();
    let mut sender = Sender {
        buffer: LineBuffer::new(shared.options.line_bytes_max),
        progress: LineProgress::default(),
        tally: Tally::default(),
        due: VecDeque::with_capacity(ACKS_PENDING_MAX),
        asked: false,
        text_is_lost: false,
    };
    let mut answers = Vec::new();
    let mut ending = Ending::default();
    // Set once the node stops: the deadline of this connection.
    let mut stopping = pin!(None::<tokio::time::Sleep>);
    loop {
        let stopped = if stopping.is_none() {
            sender.take_lines(&shared.intake, state)
        } else {
            Stopped::Dry
        };
        if sender.text_is_lost && !ending.is_ended {
            ending.leave_text(state);
        }
        let now = durable.get();
        let is_failed = stopped == Stopped::Failed || now.failed;
        sender.answer(now, state, &mut answers);
        if is_failed && sender.asked {
            answers.extend_from_slice(FAILED);
        }
        if ending.is_deaf {
            answers.clear();
            sender.due.clear();
        }
        if !answers.is_empty() {
            let write = stream.write_all(&answers);
            let limit = Duration::from_secs(WRITE_SECONDS_MAX);
            let until_stop = async {
                match stopping.as_mut().as_pin_mut() {
                    Some(end) => end.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                written = tokio::time::timeout(limit, write) => {
                    if !matches!(written, Ok(Ok(()))) {
                        // Lines that have already arrived are taken nevertheless.
                        ending.end_early(state);
                        ending.leave(None);
                    }
                }
                () = until_stop => return,
            }
            answers.clear();
            if ending.is_deaf {
                continue;
            }
        }
        let is_dry = stopped == Stopped::Dry;
        if is_failed
            || (sender.due.is_empty() && (stopping.is_some() || (ending.is_ended && is_dry)))
        {
            break;
        }
        if stopped == Stopped::Asking && sender.due.len() < ACKS_PENDING_MAX {
            // Sending those answers has made room for lines that are already in the buffer.
            tokio::task::yield_now().await;
            continue;
        }
        let retry = match stopped {
            Stopped::Wait { full: true } => Some(RETRY_FULL),
            Stopped::Wait { full: false } => Some(RETRY),
            _ => None,
        };
        let _waiting = retry.map(|_| Counted::new(&state.waiting));
        let _waiting_full = (retry == Some(RETRY_FULL)).then(|| Counted::new(&state.waiting_full));
        let can_read = is_dry && !ending.is_ended && stopping.is_none();
        let is_idle = can_read && sender.due.is_empty();
        place.set_idle(is_idle);
        let silence_max = if !can_read {
            None
        } else if ending.leaving_bytes.is_some() {
            Some(LEAVING_SILENCE)
        } else if sender.buffer.text_is_open() {
            Some(Duration::from_secs(TEXT_SECONDS_MAX))
        } else if is_idle && place.is_silent() {
            (idle_max < Duration::MAX).then(|| idle_max - make_room_min)
        } else {
            is_idle.then_some(make_room_min)
        };
        let spare = sender.buffer.spare();
        let room = spare.len().min(READ_BYTES_MAX);
        tokio::select! {
            read = stream.read(&mut spare[..room]), if can_read => match read {
                Ok(bytes) if bytes > 0 => {
                    place.has_sent();
                    sender.buffer.filled(bytes);
                    state.bytes.fetch_add(bytes as u64, Relaxed);
                    ending.count(bytes);
                    // A sender without pauses must not keep the others waiting.
                    tokio::task::yield_now().await;
                }
                read => {
                    if read.is_err() {
                        ending.end_early(state);
                    }
                    ending.is_ended = true;
                    sender.end(&shared.intake, state);
                }
            },
            () = durable.changed(), if !sender.due.is_empty() || retry.is_some() => {}
            () = tokio::time::sleep(retry.unwrap_or_default()), if retry.is_some() => {}
            () = tokio::time::sleep(silence_max.unwrap_or_default()), if silence_max.is_some() => {
                if ending.leaving_bytes.is_some() {
                    ending.is_ended = true;
                    sender.end(&shared.intake, state);
                } else if sender.buffer.text_is_open() {
                    ending.leave_text(state);
                    sender.end(&shared.intake, state);
                } else if place.is_silent() {
                    state.connections_idle.fetch_add(1, Relaxed);
                    return;
                } else {
                    place.set_silent();
                }
            }
            () = place.has_to_go(), if ending.leaving_bytes.is_none() => {
                ending.leave(Some(MADE_ROOM));
            }
            wait = control.stopped(), if stopping.is_none() => {
                stopping.set(Some(tokio::time::sleep(wait)));
            }
            () = async {
                match stopping.as_mut().as_pin_mut() {
                    Some(end) => end.await,
                    None => std::future::pending().await,
                }
            } => return,
        }
    }
    if let Some(farewell) = ending.farewell.filter(|_| !ending.is_deaf) {
        let _ = tokio::time::timeout(FAREWELL_TOLD, stream.write_all(farewell)).await;
    }
}

impl Ending {
    /// Handles a sender that is gone without reading its answers, or unreachable.
    fn end_early(&mut self, state: &LineState) {
        if !self.is_deaf {
            self.is_deaf = true;
            state.connections_ended_early.fetch_add(1, Relaxed);
        }
    }

    /// From now on reads only what has already arrived.
    fn leave(&mut self, farewell: Option<&'static [u8]>) {
        self.leaving_bytes.get_or_insert(0);
        self.farewell = self.farewell.or(farewell);
    }

    /// Handles a sender that has left a quoted text open: its further data cannot be distinguished from that text.
    fn leave_text(&mut self, state: &LineState) {
        state.connections_text_open.fetch_add(1, Relaxed);
        self.is_ended = true;
        self.farewell = Some(TEXT_OPEN);
    }

    fn count(&mut self, bytes: usize) {
        if let Some(so_far) = &mut self.leaving_bytes {
            *so_far += bytes;
            self.is_ended |= *so_far >= LEAVING_BYTES_MAX;
        }
    }
}

impl Sender {
    fn take_lines<D: Destination>(
        &mut self,
        intake: &RefCell<Intake<D>>,
        state: &LineState,
    ) -> Stopped {
        let mut intake = intake.borrow_mut();
        let mut lines = 0;
        let stopped = loop {
            if self.text_is_lost {
                break Stopped::Dry;
            }
            if self.due.len() >= ACKS_PENDING_MAX {
                break Stopped::Asking;
            }
            match self.buffer.peek() {
                None => break Stopped::Dry,
                Some(Piece::Line(b"" | BYTE_ORDER_MARK)) => {
                    self.asked = true;
                    self.due.push_back(self.tally);
                    self.tally.accepted = 0;
                    self.tally.refused = 0;
                    self.tally.shed = 0;
                }
                Some(Piece::Oversized(beginning)) => {
                    intake.refuse_with(Reason::Oversized, beginning);
                    state.oversized.fetch_add(1, Relaxed);
                    self.tally.refused += 1;
                    lines += 1;
                }
                Some(Piece::TextOpen(beginning)) => {
                    intake.refuse_with(Reason::Oversized, beginning);
                    state.oversized.fetch_add(1, Relaxed);
                    self.tally.refused += 1;
                    self.text_is_lost = true;
                }
                Some(Piece::Line(line)) => {
                    let outcome = intake.line_from(line, &mut self.progress);
                    self.tally.add(outcome);
                    match outcome {
                        LineOutcome::Done { .. } => lines += 1,
                        LineOutcome::Wait { full } => break Stopped::Wait { full },
                        LineOutcome::Failed => break Stopped::Failed,
                    }
                }
            }
            self.buffer.consume();
        };
        state.lines.fetch_add(lines, Relaxed);
        stopped
    }

    /// Writes the acknowledgements that are due now, in the order of the requests.
    fn answer(&mut self, now: Durable, state: &LineState, answers: &mut Vec<u8>) {
        while let Some(due) = self.due.front().filter(|due| due.lsn_end <= now.end) {
            // Writing to a Vec does not fail.
            let _ = match due.shed {
                0 => writeln!(answers, "ok {} {}", due.accepted, due.refused),
                shed => writeln!(answers, "ok {} {} {shed}", due.accepted, due.refused),
            };
            state.acknowledged.fetch_add(1, Relaxed);
            self.due.pop_front();
        }
    }

    /// Handles the end of the sender's data. A line without an end may lack half of a number, so it is not taken.
    fn end<D: Destination>(&mut self, intake: &RefCell<Intake<D>>, state: &LineState) {
        let unfinished = self.buffer.unfinished();
        if !unfinished.is_empty() {
            intake
                .borrow_mut()
                .refuse_with(Reason::LineInvalid, unfinished);
            state.unfinished.fetch_add(1, Relaxed);
            self.tally.refused += 1;
        }
    }
}
