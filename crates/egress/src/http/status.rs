//! What a node says of itself, asked of whoever knows it. An answer is shown for half a second, so that however many
//! ask, the node is asked twice a second.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// How long one answer is shown.
const SHOWN: Duration = Duration::from_millis(500);
/// Questions that wait, at most; whoever comes then is told that the node is busy.
const QUESTIONS_MAX: usize = 64;
/// How long an answer is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Whether the node does what it must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It does.
    Ok,
    /// It does, with a reservation.
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

/// What a node says of itself: the object of `keel status --json`.
#[derive(Clone, Debug)]
pub struct Status {
    /// The judgement.
    pub state: State,
    /// All of it.
    pub json: Value,
    /// The same, written.
    pub(crate) bytes: Bytes,
}

impl Status {
    /// Of its object.
    #[must_use]
    pub fn new(state: State, json: Value) -> Self {
        let bytes = Bytes::from(serde_json::to_vec(&json).unwrap_or_default());
        Self { state, json, bytes }
    }
}

/// The last answer, or that there was none, and since when that is known.
type Shown = Option<(Instant, Option<Arc<Status>>)>;

/// Asks the node.
#[derive(Clone)]
pub struct Asker {
    questions: mpsc::Sender<Question>,
    shown: Arc<Mutex<Shown>>,
    /// One asks at a time, and the others wait for the answer.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// One question, to be answered.
#[derive(Debug)]
pub struct Question(oneshot::Sender<Status>);

impl Question {
    /// Answers it. Whoever asked may have gone.
    pub fn answer(self, status: Status) {
        self.0.send(status).ok();
    }
}

/// What whoever knows the node listens to.
#[derive(Debug)]
pub struct Questions(mpsc::Receiver<Question>);

impl Questions {
    /// The next question; `None` when nobody will ask any more.
    pub async fn next(&mut self) -> Option<Question> {
        self.0.recv().await
    }
}

/// Both ends.
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
    /// What the node says, at most half a second old; `None`: it does not say.
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
