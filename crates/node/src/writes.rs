//! Lines that clients of the HTTP side write: taken by the node's one intake, and answered once they are on flash.
//!
//! A body that has to wait, for the queue of the log or for flash, holds up no other. Clients of InfluxDB give up after
//! a few seconds and send the whole body again, so the wait for the queue is shorter than that.

use super::state::Node;
use egress::http::{RefusedLine, Taken, TimeUnit, WriteRequest, Writes, Written};
use ingest::durable::DurableWatch;
use ingest::intake::{Destination, Intake};
use ingest::line::{BodyStopped, BodyTaken, LineBody, Precision};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch as latest;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// How long a body may wait for room in the queue before its next line is taken.
const QUEUE_MAX: Duration = Duration::from_secs(3);

/// How long a body may wait until its readings are on flash. Twice the commit interval, if that is longer: the readings
/// of a lone sender come to flash no sooner than the interval says.
const DURABLE_MAX: Duration = Duration::from_secs(30);

/// Retry interval of a line that has to wait, if the log does not advance before.
const RETRY: Duration = Duration::from_millis(10);

/// Takes bodies until the HTTP side has ended.
pub(crate) async fn serve(node: Rc<Node>, mut writes: Writes) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            write = writes.next() => {
                let Some(write) = write else { break };
                tasks.spawn_local(serve_one(Rc::clone(&node), write));
            }
            Some(_) = tasks.join_next() => {}
        }
    }
    while tasks.join_next().await.is_some() {}
}

async fn serve_one(node: Rc<Node>, mut write: WriteRequest) {
    let (line_bytes_max, commit_interval_ms) = {
        let config = node.config.borrow();
        (
            config.line.line_bytes_max as usize,
            config.store.commit_interval_ms,
        )
    };
    let patience = Patience::of(commit_interval_ms);
    let precision = precision(write.unit);
    let body = LineBody::new(write.take_lines(), precision, line_bytes_max);
    let (durable, stop) = (node.durable.clone(), node.stop.clone());
    let written = tokio::select! {
        written = take(&node.intake, body, durable, stop, patience) => written,
        // What was taken stays; the client sends everything again.
        () = write.gone() => return,
    };
    write.answer(written);
}

/// How long a body may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Patience {
    /// For room in the queue, before its next line is taken.
    queue: Duration,
    /// For flash, once all lines are taken.
    durable: Duration,
}

impl Patience {
    fn of(commit_interval_ms: u32) -> Self {
        let interval = Duration::from_millis(u64::from(commit_interval_ms));
        Self {
            queue: QUEUE_MAX,
            durable: DURABLE_MAX.max(interval * 2),
        }
    }
}

fn precision(unit: TimeUnit) -> Precision {
    match unit {
        TimeUnit::Nanoseconds => Precision::Nanoseconds,
        TimeUnit::Microseconds => Precision::Microseconds,
        TimeUnit::Milliseconds => Precision::Milliseconds,
        TimeUnit::Seconds => Precision::Seconds,
        TimeUnit::Minutes => Precision::Minutes,
        TimeUnit::Hours => Precision::Hours,
    }
}

/// Takes the lines of a body, and waits until their readings are durable.
async fn take<D: Destination>(
    intake: &RefCell<Intake<D>>,
    mut body: LineBody,
    mut durable: DurableWatch,
    mut stop: latest::Receiver<bool>,
    patience: Patience,
) -> Written {
    let mut queue_end = Instant::now() + patience.queue;
    let mut seen = body.at();
    loop {
        let stopped = body.take(&mut intake.borrow_mut());
        match stopped {
            BodyStopped::Done => break,
            // Other senders have their turn.
            BodyStopped::Slice => tokio::task::yield_now().await,
            BodyStopped::Failed => return Written::Failed,
            BodyStopped::Wait { full } => {
                // A large body on a slow card makes progress, and is not given up as long as it does.
                if body.at() > seen {
                    seen = body.at();
                    queue_end = Instant::now() + patience.queue;
                }
                if Instant::now() >= queue_end {
                    return if full { Written::Full } else { Written::Busy };
                }
                tokio::select! {
                    () = durable.changed() => {}
                    () = sleep(RETRY) => {}
                    () = sleep_until(queue_end) => {}
                    _ = stop.wait_for(|stop| *stop) => return Written::Stopping,
                }
            }
        }
    }
    let taken = body.into_taken();
    let durable_end = Instant::now() + patience.durable;
    loop {
        let now = durable.get();
        if now.end >= taken.lsn_end {
            return Written::Durable(told(taken));
        }
        if now.failed {
            return Written::Failed;
        }
        if timeout_at(durable_end, durable.changed()).await.is_err() {
            return Written::Late;
        }
    }
}

fn told(taken: BodyTaken) -> Taken {
    let lines = taken.lines.into_iter().map(|line| RefusedLine {
        line: line.line,
        reasons: line.reasons.iter().map(|reason| reason.name()).collect(),
        text: line.text,
    });
    Taken {
        accepted: taken.accepted,
        refused: taken.refused,
        shed: taken.shed,
        lines: lines.collect(),
        text_open_line: taken.text_open_line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingest::intake::{IntakeOptions, LogGone, PutError, Reason};
    use std::sync::{Arc, Condvar, Mutex};

    const MINUTE: Patience = patient(Duration::from_secs(60));

    const fn patient(queue: Duration) -> Patience {
        Patience {
            queue,
            durable: Duration::from_secs(60),
        }
    }

    /// A log that behaves as a test tells it.
    #[derive(Default)]
    struct Log {
        state: Mutex<State>,
        moved: Condvar,
    }

    #[derive(Default)]
    struct State {
        /// Puts that are taken before the others have to wait.
        room: u64,
        full: bool,
        failed: bool,
        taken: u64,
        durable: u64,
    }

    impl Log {
        fn new(room: u64) -> Arc<Self> {
            let log = Self::default();
            log.set(|state| state.room = room);
            Arc::new(log)
        }

        fn set<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
            let result = change(&mut self.state.lock().unwrap());
            self.moved.notify_all();
            result
        }
    }

    impl Destination for Log {
        fn resolve(&self, _: &str) -> Result<u32, Reason> {
            Ok(0)
        }
        fn resolve_for(
            &self,
            key: &str,
            _: ingest::intake::KeyOwner<'_>,
            _: &mut String,
        ) -> Result<u32, Reason> {
            self.resolve(key)
        }
        fn put(&self, _: u32, _: &[u8], _: Option<db::Time>) -> Result<u64, PutError> {
            self.set(|state| {
                if state.failed {
                    return Err(PutError::Failed);
                }
                if state.taken >= state.room {
                    return Err(PutError::Wait { full: state.full });
                }
                state.taken += 1;
                Ok(state.taken - 1)
            })
        }
        fn put_retained(
            &self,
            object: u32,
            value: &[u8],
            time: Option<db::Time>,
        ) -> Result<u64, PutError> {
            self.put(object, value, time)
        }
        fn durable_end(&self) -> u64 {
            self.set(|state| state.durable)
        }
        fn wait_durable_past(&self, seen: u64, timeout: Duration) -> Result<u64, LogGone> {
            let state = self.state.lock().unwrap();
            let waits = |state: &mut State| state.durable <= seen && !state.failed;
            let (state, _) = self
                .moved
                .wait_timeout_while(state, timeout, waits)
                .unwrap();
            if state.failed {
                Err(LogGone)
            } else {
                Ok(state.durable)
            }
        }
        fn wall_ms(&self) -> i64 {
            1_780_272_000_000
        }
        fn wall_trusted(&self) -> bool {
            true
        }
    }

    /// A body of three readings and one refused line.
    fn body() -> LineBody {
        let text = b"a v=1\nbad\na v=2,w=3\n".to_vec();
        LineBody::new(text, Precision::Nanoseconds, 1000)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    /// Takes the body, while `meanwhile` changes the log.
    fn written(
        log: &Arc<Log>,
        patience: Patience,
        meanwhile: impl AsyncFnOnce(&latest::Sender<bool>),
    ) -> Written {
        let durable = DurableWatch::start(Arc::clone(log)).unwrap();
        let intake = RefCell::new(Intake::new(IntakeOptions::default(), Arc::clone(log)));
        let (stop, stopped) = latest::channel(false);
        runtime().block_on(async {
            let taken = take(&intake, body(), durable, stopped, patience);
            tokio::join!(taken, meanwhile(&stop)).0
        })
    }

    #[test]
    fn a_body_is_answered_once_its_last_reading_is_durable() {
        let log = Log::new(3);
        let durable = DurableWatch::start(Arc::clone(&log)).unwrap();
        let intake = RefCell::new(Intake::new(IntakeOptions::default(), Arc::clone(&log)));
        let (_stop, stopped) = latest::channel(false);
        runtime().block_on(async {
            let mut taken = Box::pin(take(&intake, body(), durable, stopped, MINUTE));
            let mut waits = async || {
                let wait = Duration::from_millis(300);
                tokio::time::timeout(wait, &mut taken).await
            };
            assert!(waits().await.is_err());
            log.set(|state| state.durable = 2);
            assert!(waits().await.is_err());
            log.set(|state| state.durable = 3);
            let Written::Durable(found) = taken.await else {
                panic!("it is durable");
            };
            assert_eq!((found.accepted, found.refused, found.shed), (3, 1, 0));
            assert_eq!(found.lines[0].line, 2);
            assert_eq!(found.lines[0].reasons, ["line_invalid"]);
            assert_eq!(found.lines[0].text, "bad");
        });
    }

    #[test]
    fn a_queue_that_stays_without_room_and_a_full_store_are_told_apart() {
        for (full, wanted) in [(false, Written::Busy), (true, Written::Full)] {
            let log = Log::new(1);
            log.set(|state| state.full = full);
            let wait = patient(Duration::from_millis(50));
            assert_eq!(written(&log, wait, async |_| {}), wanted);
        }
    }

    #[test]
    fn room_that_comes_in_time_is_used() {
        let log = Log::new(1);
        let found = written(&log, MINUTE, async |_| {
            tokio::time::sleep(Duration::from_millis(50)).await;
            log.set(|state| (state.room, state.durable) = (3, 3));
        });
        assert!(matches!(found, Written::Durable(taken) if taken.accepted == 3));
    }

    #[test]
    fn a_body_that_makes_progress_is_not_given_up() {
        let log = Log::new(1);
        log.set(|state| state.durable = 3);
        let durable = DurableWatch::start(Arc::clone(&log)).unwrap();
        let intake = RefCell::new(Intake::new(IntakeOptions::default(), Arc::clone(&log)));
        let (_stop, stopped) = latest::channel(false);
        let lines = b"a v=1\na v=2\na v=3\n".to_vec();
        let body = LineBody::new(lines, Precision::Nanoseconds, 1000);
        let patience = patient(Duration::from_secs(3));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let found = runtime.block_on(async {
            // Longer than the patience in all, and shorter for each line.
            let meanwhile = async {
                for room in 2..=3 {
                    sleep(Duration::from_secs(2)).await;
                    log.set(|state| state.room = room);
                }
            };
            let taken = take(&intake, body, durable, stopped, patience);
            tokio::join!(taken, meanwhile).0
        });
        assert!(matches!(found, Written::Durable(taken) if taken.accepted == 3));
    }

    #[test]
    fn a_long_commit_interval_is_waited_for_twice() {
        assert_eq!(Patience::of(250).durable, DURABLE_MAX);
        assert_eq!(Patience::of(60_000).durable, Duration::from_secs(120));
    }

    #[test]
    fn a_log_that_fails_ends_the_wait() {
        let log = Log::new(0);
        log.set(|state| state.failed = true);
        assert_eq!(written(&log, MINUTE, async |_| {}), Written::Failed);
        let log = Log::new(3);
        let found = written(&log, MINUTE, async |_| {
            tokio::time::sleep(Duration::from_millis(50)).await;
            log.set(|state| state.failed = true);
        });
        assert_eq!(found, Written::Failed);
    }

    #[test]
    fn a_node_that_stops_waits_for_no_room() {
        let log = Log::new(1);
        let found = written(&log, MINUTE, async |stop| {
            tokio::time::sleep(Duration::from_millis(50)).await;
            stop.send_replace(true);
        });
        assert_eq!(found, Written::Stopping);
    }
}
