//! One life of the writer, as the parent sees it: start, messages, end; and the plan of when to kill it.

use super::protocol::{FrameReader, FrameWriter, FromWriter, Start, StreamError};
use crate::error::CliError;
use base::sim::Random;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Messages that may wait between the reading thread and the parent; a full channel slows the writer down.
const EVENTS_MAX: usize = 256;

/// Bytes kept of what the writer says on standard error.
const COMPLAINT_BYTES_MAX: usize = 4096;

/// What the reading thread passes on.
#[derive(Debug)]
pub(crate) enum Event {
    Message(FromWriter),
    /// The stream has ended: the writer is gone, or makes no sense.
    Ended(Result<(), StreamError>),
}

/// A running writer. Dropping it kills the process: no exit path leaves one behind.
pub(crate) struct Life {
    child: Child,
    commands: FrameWriter<ChildStdin>,
    events: Receiver<Event>,
    reader: Option<JoinHandle<()>>,
    complaint: Option<JoinHandle<String>>,
    /// When the process was started.
    pub(crate) begun: Instant,
    ended: bool,
}

impl Life {
    /// Starts this program again as the writer, and tells it what to do.
    pub(crate) fn begin(
        image: &Path,
        orphan_dir: Option<&Path>,
        start: &Start,
        again: &[u64],
    ) -> Result<Self, CliError> {
        let failed = |error: &std::io::Error| CliError::io("demo writer", error);
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        let mut command = Command::new(program);
        command.arg("demo-writer").arg("--image").arg(image);
        if let Some(dir) = orphan_dir {
            command.arg("--orphan-dir").arg(dir);
        }
        // Its own process group: Ctrl-C in the terminal is for the parent, which then stops the writer in order.
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let begun = Instant::now();
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            child.kill().ok();
            child.wait().ok();
            return Err(CliError::failure(
                "demo writer",
                "has no pipes",
                "try again",
            ));
        };
        let (sender, events) = sync_channel(EVENTS_MAX);
        let mut life = Self {
            child,
            commands: FrameWriter::new(stdin),
            events,
            reader: None,
            complaint: None,
            begun,
            ended: false,
        };
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let reading =
            thread("demo-reader").spawn(move || read_all(FrameReader::new(stdout), &sender));
        life.reader = Some(reading.map_err(|error| failed(&error))?);
        let complaining = thread("demo-complaint").spawn(move || read_tail(stderr));
        life.complaint = Some(complaining.map_err(|error| failed(&error))?);
        // A writer that died before it listened is noticed by the end of its stream.
        let told = life
            .commands
            .start(start)
            .and_then(|()| life.commands.again(again));
        told.and_then(|()| life.commands.go()).ok();
        Ok(life)
    }

    /// The next event, or `None` when `timeout` has passed.
    pub(crate) fn next_event(&mut self, timeout: Duration) -> Option<Event> {
        let event = match self.events.recv_timeout(timeout) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => Event::Ended(Ok(())),
        };
        self.ended |= matches!(event, Event::Ended(_));
        Some(event)
    }

    /// Asks the writer to finish what it has begun.
    pub(crate) fn stop(&mut self) {
        self.commands.stop().ok();
    }

    /// SIGKILL, now. What the writer had already said is still to be read with [`Life::next_event`].
    pub(crate) fn kill(&mut self) {
        self.child.kill().ok();
    }

    /// Waits for the end of the process; answers its status and the last of what it said on standard error.
    pub(crate) fn end(mut self) -> (Option<ExitStatus>, String) {
        let status = self.child.wait().ok();
        // Whatever waits in the channel must not block the reading thread.
        while !self.ended && self.next_event(Duration::from_secs(1)).is_some() {}
        let complaint = self
            .complaint
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default();
        (status, complaint)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn read_all(mut frames: FrameReader<impl Read>, events: &SyncSender<Event>) {
    loop {
        let event = match frames.next_from_writer() {
            Ok(Some(message)) => Event::Message(message),
            Ok(None) => Event::Ended(Ok(())),
            Err(error) => Event::Ended(Err(error)),
        };
        let last = matches!(event, Event::Ended(_));
        if events.send(event).is_err() || last {
            return;
        }
    }
}

/// Reads to the end, keeps the last bytes: a writer that fails says why in its last line.
fn read_tail(mut source: impl Read) -> String {
    let mut tail = Vec::new();
    let mut piece = [0; 1024];
    while let Ok(bytes @ 1..) = source.read(&mut piece) {
        tail.extend_from_slice(&piece[..bytes]);
        let excess = tail.len().saturating_sub(COMPLAINT_BYTES_MAX);
        tail.drain(..excess);
    }
    String::from_utf8_lossy(&tail).trim().to_owned()
}

/// When a life is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillAt {
    /// So long after the first reading at or after this time of the trace.
    Trace {
        time_ms: u64,
        delay: Duration,
        /// So long after an acknowledgement that arrives then: where one that came too early shows.
        acknowledged: Option<Duration>,
        /// Only at a moment when tickets are open; and, so that there is one, at the first such moment from this
        /// time of the trace on, whatever is left of the delay and whether or not an acknowledgement came.
        open_by_ms: u64,
    },
    /// So long after the start of the process: while it recovers.
    Start { delay: Duration },
}

/// A life of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedLife {
    /// Last time of the trace that this life may offer.
    pub(crate) end_ms: u64,
    pub(crate) kill: Option<KillAt>,
}

/// Kills during replay.
const KILLS_IN_REPLAY: u64 = 10;

/// Kills during start-up, in addition.
const KILLS_IN_RECOVERY: usize = 2;

/// Of those, the ones that follow an acknowledgement.
const KILLS_AFTER_ACKNOWLEDGEMENT: u64 = 4;

/// Longest time between that acknowledgement and the kill. Every other kill comes at once.
const AFTER_ACKNOWLEDGEMENT_US_MAX: u64 = 5_000;

/// The longest wait between reaching the chosen place of the trace and the kill: longer than one commit interval,
/// so that kills fall into every phase of a commit.
const DELAY_MS_MAX: u64 = 300;

/// A start takes about this long at most; kills during recovery fall into it.
const START_MS_MAX: u64 = 60;

/// The lives of a run: one without kills; otherwise the trace is cut into equal parts, each part but the last ends
/// in a kill at a random place and moment, and two further kills come while the writer recovers.
pub(crate) fn plan(end_ms: u64, speed: f64, seed: Option<u64>) -> Vec<PlannedLife> {
    let Some(seed) = seed else {
        return vec![PlannedLife { end_ms, kill: None }];
    };
    let mut random = Random::new(seed);
    let mut in_recovery: Vec<u64> = (1..=KILLS_IN_REPLAY).collect();
    random.shuffle(&mut in_recovery);
    in_recovery.truncate(KILLS_IN_RECOVERY);
    let mut aimed: Vec<u64> = (0..KILLS_IN_REPLAY).collect();
    random.shuffle(&mut aimed);
    aimed.truncate(KILLS_AFTER_ACKNOWLEDGEMENT as usize);
    aimed.sort_unstable();
    let mut lives = Vec::new();
    for part in 0..=KILLS_IN_REPLAY {
        let begin_ms = end_ms * part / (KILLS_IN_REPLAY + 1);
        let part_end_ms = end_ms * (part + 1) / (KILLS_IN_REPLAY + 1);
        // A start is killed only when there is a store to recover, which the first life makes.
        if in_recovery.contains(&part) {
            let delay = Duration::from_millis(random.below(START_MS_MAX));
            lives.push(PlannedLife {
                end_ms: part_end_ms,
                kill: Some(KillAt::Start { delay }),
            });
        }
        let kill = (part < KILLS_IN_REPLAY).then(|| {
            let after = aimed.binary_search(&part).ok();
            // Never in the last tenth of the part: there must be a reading at or after it. Early in the part where
            // an acknowledgement is still to come.
            let tenths = if after.is_some() { 2 } else { 9 };
            let time_ms = begin_ms + random.below((part_end_ms - begin_ms) * tenths / 10 + 1);
            let left_ms = part_end_ms - time_ms;
            // At the end of its part the writer waits, and soon nothing is open any more: the kill comes before.
            let delay_ms_max = (DELAY_MS_MAX as f64).min(left_ms as f64 / speed * 0.75) as u64;
            let delay = Duration::from_millis(random.below(delay_ms_max + 1));
            let after_us = random.below(AFTER_ACKNOWLEDGEMENT_US_MAX + 1);
            let acknowledged = after
                .map(|number| Duration::from_micros(if number % 2 == 0 { 0 } else { after_us }));
            KillAt::Trace {
                time_ms,
                delay: acknowledged.map_or(delay, |_| Duration::ZERO),
                acknowledged,
                open_by_ms: time_ms + left_ms * 3 / 4,
            }
        });
        lives.push(PlannedLife {
            end_ms: part_end_ms,
            kill,
        });
    }
    lives
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_kills_is_one_life() {
        assert_eq!(
            plan(1_000, 10.0, None),
            [PlannedLife {
                end_ms: 1_000,
                kill: None
            }]
        );
    }

    #[test]
    fn a_plan_is_made_by_its_seed_and_covers_the_trace() {
        for seed in 0..200 {
            let lives = plan(300_000, 10.0, Some(seed));
            assert_eq!(lives, plan(300_000, 10.0, Some(seed)));
            assert_eq!(
                lives.len() as u64,
                KILLS_IN_REPLAY + KILLS_IN_RECOVERY as u64 + 1
            );
            assert_eq!(
                lives.last(),
                Some(&PlannedLife {
                    end_ms: 300_000,
                    kill: None
                })
            );
            let mut begin_ms = 0;
            for life in &lives {
                match life.kill {
                    Some(KillAt::Trace { time_ms, .. }) => {
                        assert!(
                            (begin_ms..life.end_ms).contains(&time_ms),
                            "{seed}: {life:?}"
                        );
                        begin_ms = life.end_ms;
                    }
                    Some(KillAt::Start { .. }) => assert!(begin_ms > 0, "{seed}"),
                    None => {}
                }
            }
            let in_replay = |life: &&PlannedLife| matches!(life.kill, Some(KillAt::Trace { .. }));
            assert!(lives.iter().filter(in_replay).count() * 2 > lives.len());
            let aimed = lives.iter().filter_map(|life| match life.kill {
                Some(KillAt::Trace { acknowledged, .. }) => acknowledged,
                _ => None,
            });
            let delays: Vec<Duration> = aimed.collect();
            assert_eq!(delays.len() as u64, KILLS_AFTER_ACKNOWLEDGEMENT);
            assert!(delays.iter().all(|delay| delay.as_micros() <= 5_000));
        }
        // However short a part is, its kill comes before its end.
        for speed in [0.1, 20.0, 1_000.0] {
            for life in plan(20_000, speed, Some(1)) {
                if let Some(KillAt::Trace {
                    time_ms,
                    delay,
                    open_by_ms,
                    ..
                }) = life.kill
                {
                    let at_ms = time_ms as f64 + delay.as_millis() as f64 * speed;
                    assert!(at_ms <= life.end_ms as f64, "{speed}: {life:?}");
                    assert!((time_ms..=life.end_ms).contains(&open_by_ms));
                }
            }
        }
        assert_ne!(plan(300_000, 10.0, Some(1)), plan(300_000, 10.0, Some(2)));
    }
}
