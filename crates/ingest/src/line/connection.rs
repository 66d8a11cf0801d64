//! One sender: its lines into the intake, acknowledgements back.

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
use super::state::{Control, Counted, LineState};
use crate::durable::{Durable, DurableWatch};
use crate::intake::{Destination, Intake, LineOutcome, LineProgress, Reason};

/// Acknowledgements that may be due at a time; nothing more is read from a sender that asks for more.
pub const ACKS_PENDING_MAX: usize = 64;

/// Bytes of one read: the thread serves others after it.
const READ_BYTES_MAX: usize = 64 << 10;

/// How soon a line that had to wait is offered again, when the log does not move before.
const RETRY: Duration = Duration::from_millis(10);
const RETRY_FULL: Duration = Duration::from_millis(200);

/// How long a sender may leave its acknowledgements unread.
const WRITE_SECONDS_MAX: u64 = 30;

const FAILED: &[u8] = b"error failed\n";

/// What the connections have in common.
pub(super) struct Shared<D: Destination> {
    pub(super) intake: Rc<RefCell<Intake<D>>>,
    pub(super) durable: DurableWatch,
    pub(super) control: Control,
    pub(super) state: Arc<LineState>,
    pub(super) options: LineOptions,
}

/// What is acknowledged by one line.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    accepted: u64,
    refused: u64,
    shed: u64,
    /// Everything so far is durable when the log is at least here.
    lsn_end: u64,
}

/// Why no further line was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    /// There is none.
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
    /// Place in a line that had to wait.
    progress: LineProgress,
    tally: Tally,
    due: VecDeque<Tally>,
    /// Whether it ever asked for an acknowledgement: then it is told of failure too.
    asked: bool,
}

/// Serves a connection until it ends.
pub(super) async fn serve<D, S>(mut stream: S, shared: &Shared<D>)
where
    D: Destination,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let state = &*shared.state;
    let idle_seconds_max = shared.options.idle_seconds_max;
    let mut durable = shared.durable.clone();
    let mut control = shared.control.clone();
    let mut sender = Sender {
        buffer: LineBuffer::new(shared.options.line_bytes_max),
        progress: LineProgress::default(),
        tally: Tally::default(),
        due: VecDeque::with_capacity(ACKS_PENDING_MAX),
        asked: false,
    };
    let mut answers = Vec::new();
    let mut is_ended = false;
    // Set once the node stops: when this connection has to be done.
    let mut stopping = pin!(None::<tokio::time::Sleep>);
    loop {
        let stopped = if stopping.is_none() {
            sender.take_lines(&shared.intake, state)
        } else {
            Stopped::Dry
        };
        let now = durable.get();
        let is_failed = stopped == Stopped::Failed || now.failed;
        sender.answer(now, state, &mut answers);
        if is_failed && sender.asked {
            answers.extend_from_slice(FAILED);
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
                        return;
                    }
                }
                () = until_stop => return,
            }
            answers.clear();
        }
        let is_dry = stopped == Stopped::Dry;
        if is_failed || (sender.due.is_empty() && (stopping.is_some() || (is_ended && is_dry))) {
            return;
        }
        if stopped == Stopped::Asking && sender.due.len() < ACKS_PENDING_MAX {
            // Those answers have made room for lines that are here already.
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
        let can_read = is_dry && !is_ended && stopping.is_none();
        let may_idle = can_read && sender.due.is_empty() && idle_seconds_max > 0;
        let spare = sender.buffer.spare();
        let room = spare.len().min(READ_BYTES_MAX);
        tokio::select! {
            read = stream.read(&mut spare[..room]), if can_read => match read {
                Ok(0) | Err(_) => {
                    is_ended = true;
                    sender.end(&shared.intake, state);
                }
                Ok(bytes) => {
                    sender.buffer.filled(bytes);
                    state.bytes.fetch_add(bytes as u64, Relaxed);
                    // One that sends without pause shall not keep the others waiting.
                    tokio::task::yield_now().await;
                }
            },
            () = durable.changed(), if !sender.due.is_empty() || retry.is_some() => {}
            () = tokio::time::sleep(retry.unwrap_or_default()), if retry.is_some() => {}
            () = tokio::time::sleep(Duration::from_secs(idle_seconds_max)), if may_idle => {
                state.connections_idle.fetch_add(1, Relaxed);
                return;
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
            if self.due.len() >= ACKS_PENDING_MAX {
                break Stopped::Asking;
            }
            match self.buffer.peek() {
                None => break Stopped::Dry,
                Some(Piece::Line(b"")) => {
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
                Some(Piece::Line(line)) => match intake.line_from(line, &mut self.progress) {
                    LineOutcome::Done {
                        accepted,
                        refused,
                        shed,
                        lsn_end,
                    } => {
                        self.tally.accepted += u64::from(accepted);
                        self.tally.refused += u64::from(refused);
                        self.tally.shed += u64::from(shed);
                        self.tally.lsn_end = self.tally.lsn_end.max(lsn_end);
                        lines += 1;
                    }
                    LineOutcome::Wait { full } => break Stopped::Wait { full },
                    LineOutcome::Failed => break Stopped::Failed,
                },
            }
            self.buffer.consume();
        };
        state.lines.fetch_add(lines, Relaxed);
        stopped
    }

    /// Writes what is due now, in the order in which it was asked for.
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

    /// The sender is gone or has said that nothing more comes. A line without an end may lack half of a number, so
    /// it is not taken.
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
