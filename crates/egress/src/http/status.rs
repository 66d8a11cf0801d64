//! The node's status, requested from its owner. An answer is reused for half a second, so that the node is asked at
//! most twice a second, however many clients ask.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// How long an answer is reused.
const SHOWN: Duration = Duration::from_millis(500);
/// Largest number of waiting requests; further clients are told that the node is busy.
const QUESTIONS_MAX: usize = 64;
/// Timeout of an answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Whether the node works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It works.
    Ok,
    /// It works, with restrictions.
    Degraded,
    /// No reading becomes durable.
    Failed,
}

impl State {
    /// `ok`, `degraded` or `failed`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
        }
    }
}

/// The status of a node: the object of `keel status --json`.
#[derive(Clone, Debug)]
pub struct Status {
    /// The overall state.
    pub state: State,
    /// The whole object.
    pub json: Value,
    /// The same, encoded.
    pub(crate) bytes: Bytes,
}

impl Status {
    /// Creates a status from its object.
    #[must_use]
    pub fn new(state: State, json: Value) -> Self {
        let bytes = Bytes::from(serde_json::to_vec(&json).unwrap_or_default());
        Self { state, json, bytes }
    }
}

/// The last answer, or its absence, and when it was determined.
type Shown = Option<(Instant, Option<Arc<Status>>)>;

/// Asks the node.
#[derive(Clone)]
pub struct Asker {
    questions: mpsc::Sender<Question>,
    shown: Arc<Mutex<Shown>>,
    /// One client asks at a time, and the others wait for its answer.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// One question, to be answered.
#[derive(Debug)]
pub struct Question(oneshot::Sender<Status>);

impl Question {
    /// Answers it. The client may be gone.
    pub fn answer(self, status: Status) {
        self.0.send(status).ok();
    }
}

/// The queue of questions that the owner of the status reads.
#[derive(Debug)]
pub struct Questions(mpsc::Receiver<Question>);

impl Questions {
    /// Returns the next question; `None` once every asker is gone.
    pub async fn next(&mut self) -> Option<Question> {
        self.0.recv().await
    }
}

/// Returns both ends.
#[must_use]
pub fn status_channel() -> (Asker, Questions) {
    let (questions, listens) = mpsc::channel(QUESTIONS_MAX);
    let asker = Asker {
        questions,
        shown: Arc::default(),
        turn: Arc::default(),
    };
    (asker, Questions(listens))
}

impl Asker {
    /// Returns the status, at most half a second old; `None` if the node does not answer.
    pub(crate) async fn status(&self) -> Option<Arc<Status>> {
        if let Some(known) = self.shown(Instant::now()) {
            return known;
        }
        let _turn = self.turn.lock().await;
        if let Some(known) = self.shown(Instant::now()) {
            return known;
        }
        let status = self.ask().await.map(Arc::new);
        *self.lock() = Some((Instant::now(), status.clone()));
        status
    }

    async fn ask(&self) -> Option<Status> {
        let (answer, answered) = oneshot::channel();
        self.questions.try_send(Question(answer)).ok()?;
        let answered = tokio::time::timeout(ANSWER_MAX, answered).await;
        answered.ok()?.ok()
    }

    fn shown(&self, now: Instant) -> Option<Option<Arc<Status>>> {
        let shown = self.lock();
        let (since, status) = shown.as_ref()?;
        (now.duration_since(*since) < SHOWN).then(|| status.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
