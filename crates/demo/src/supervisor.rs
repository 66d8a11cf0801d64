//! One life of the writer from the parent's view: start, messages, end; and the plan of the kills.

use super::protocol::{FrameReader, FrameWriter, FromWriter, Start, StreamError};
use base::sim::Random;
use command::error::CliError;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Messages that may wait between the reading thread and the parent; a full channel slows down the writer.
const EVENTS_MAX: usize = 256;

/// Bytes kept of the writer's standard error.
const COMPLAINT_BYTES_MAX: usize = 4096;

/// The events of the reading thread.
#[derive(Debug)]
pub(crate) enum Event {
    Message(FromWriter),
    /// The stream has ended: the writer has gone, or broke the protocol.
    Ended(Result<(), StreamError>),
}

/// A running writer. Dropping it kills the process, so no exit path leaves a writer behind.
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
    /// Starts this program again as the writer, and sends it its task.
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
        // Its own process group: Ctrl-C in the terminal reaches only the parent, which then stops the writer in order.
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
        // If the writer died before it read this, the end of its stream shows it.
        let told = life
            .commands
            .start(start)
            .and_then(|()| life.commands.again(again));
        told.and_then(|()| life.commands.go()).ok();
        Ok(life)
    }

    /// Returns the next event, or `None` after `timeout`.
    pub(crate) fn next_event(&mut self, timeout: Duration) -> Option<Event> {
        let event = match self.events.recv_timeout(timeout) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => Event::Ended(Ok(())),
        };
        self.ended |= matches!(event, Event::Ended(_));
        Some(event)
    }

    /// Asks the writer to finish.
    pub(crate) fn stop(&mut self) {
        self.commands.stop().ok();
    }

    /// Sends SIGKILL. The caller must still read the earlier messages of the writer with [`Life::next_event`].
    pub(crate) fn kill(&mut self) {
        self.child.kill().ok();
    }

    /// Waits for the end of the process. Returns its status and the last part of its standard error.
    pub(crate) fn end(mut self) -> (Option<ExitStatus>, String) {
        let status = self.child.wait().ok();
        // Drain the channel, so that the reading thread does not block.
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

/// Reads to the end and keeps the last bytes: a failing writer gives the reason in its last line.
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

/// When a life must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillAt {
    /// After `delay`, counted from the first reading at or after `time_ms` of the trace.
    Trace {
        time_ms: u64,
        delay: Duration,
        /// If set, kill this long after the next acknowledgement: this reveals an acknowledgement sent too early.
        acknowledged: Option<Duration>,
        /// Kill only while tickets are open. To make sure that some are, kill at the first such moment from this trace
        /// time on. Neither the delay nor an acknowledgement is then waited for.
        open_by_ms: u64,
    },
    /// This long after the start of the process, during its recovery.
    Start { delay: Duration },
}

/// A planned life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedLife {
    /// Last trace time that this life may offer.
    pub(crate) end_ms: u64,
    pub(crate) kill: Option<KillAt>,
}

/// Kills during replay.
const KILLS_IN_REPLAY: u64 = 10;

/// Additional kills during start-up.
const KILLS_IN_RECOVERY: usize = 2;

/// Kills during replay that follow an acknowledgement.
const KILLS_AFTER_ACKNOWLEDGEMENT: u64 = 4;

/// The longest time between that acknowledgement and the kill, in µs. Every second such kill follows immediately.
const AFTER_ACKNOWLEDGEMENT_US_MAX: u64 = 5_000;

/// The longest wait between reaching the chosen trace time and the kill, in ms. It exceeds one commit interval, so that
/// kills occur in every phase of a commit.
const DELAY_MS_MAX: u64 = 300;

/// The usual upper limit of a start, in ms; kills during recovery occur within it.
const START_MS_MAX: u64 = 60;

/// Returns the lives of a run. Without a seed it is one life without a kill. Otherwise the trace is divided into equal
/// parts. Each part except the last ends with a kill at a random trace time. Two further kills occur during recovery.
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
        // A start is killed only if there is a store to recover; the first life makes it.
        if in_recovery.contains(&part) {
            let delay = Duration::from_millis(random.below(START_MS_MAX));
            lives.push(PlannedLife {
                end_ms: part_end_ms,
                kill: Some(KillAt::Start { delay }),
            });
        }
        let kill = (part < KILLS_IN_REPLAY).then(|| {
            let after = aimed.binary_search(&part).ok();
            // Not in the last tenth of the part: a reading at or after this time must exist. Earlier in the part if the
            // kill must still wait for an acknowledgement.
            let tenths = if after.is_some() { 2 } else { 9 };
            let time_ms = begin_ms + random.below((part_end_ms - begin_ms) * tenths / 10 + 1);
            let left_ms = part_end_ms - time_ms;
            // The writer waits at the end of its part, and soon nothing is open: the kill must come earlier.
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
        // The kill comes before the end of a part, even if the part is very short.
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
