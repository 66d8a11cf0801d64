//! Periodic jobs of the configuration. Each run is a process of its own (`keel cluster job`). It asks the node for the
//! history like any other client, lowers its own priority, and lets the advisor place it.
//!
//! One thread supervises the jobs and is idle most of the time. It holds nothing that a put needs.

use super::log;
use crate::status::JobFigures;
use config::{Config, JobConfig};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest delay of the first run: sources need a moment.
const FIRST_MAX: Duration = Duration::from_secs(60);

/// Poll interval for the end of a job.
const LOOK: Duration = Duration::from_millis(100);

/// Timeout for the remaining output of an ended job; normally it has arrived already.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The longest line read from a job, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Lines of a job that may wait to be processed.
const LINES_MAX: usize = 16;

/// Timeout for a job that was asked to end: the job itself waits 5 s for a launcher that does not end, then kills it.
const END_TIME_MAX: Duration = Duration::from_secs(7);

/// How much longer than `run_seconds_max` a job may last. The job enforces `run_seconds_max` itself.
const GRACE: Duration = Duration::from_secs(30);

/// Stack of the threads; they need little.
const STACK_BYTES: usize = 256 << 10;

/// The jobs; they run until this is dropped.
pub(crate) struct Jobs {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stop: Mutex<bool>,
    changed: Condvar,
    figures: Mutex<Vec<JobFigures>>,
}

impl Shared {
    fn figures(&self) -> MutexGuard<'_, Vec<JobFigures>> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `pause`. Returns whether the thread must end.
    fn pause(&self, pause: Duration) -> bool {
        let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(stop, pause, |stop| !*stop);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Jobs {
    /// Starts the thread, if there is a job.
    pub(crate) fn start(config: &Config, config_file: &Path) -> std::io::Result<Self> {
        let figures = config.job.iter().map(|job| JobFigures {
            name: job.name.clone(),
            kernel: job.kernel.name().to_owned(),
            key: job.key.clone(),
            period_seconds: job.period_seconds,
            ..JobFigures::default()
        });
        let shared = Arc::new(Shared {
            stop: Mutex::new(false),
            changed: Condvar::new(),
            figures: Mutex::new(figures.collect()),
        });
        let mut jobs = Self {
            shared: Arc::clone(&shared),
            thread: None,
        };
        if !config.job.is_empty() {
            let program = std::env::current_exe()?;
            let begun = Instant::now();
            let first = |job: &JobConfig| begun + period(job).min(FIRST_MAX);
            let mut all: Vec<Periodic> = config
                .job
                .iter()
                .map(|job| Periodic {
                    due: first(job),
                    job: job.clone(),
                    running: None,
                })
                .collect();
            // Jobs get the text that was just checked, even if the file changes later.
            let text: Arc<str> = std::fs::read_to_string(config_file)?.into();
            let config_file = config_file.to_path_buf();
            let look_after = move || {
                loop {
                    let mut next = Duration::from_secs(3_600);
                    for (at, one) in all.iter_mut().enumerate() {
                        next = next.min(one.look(at, &shared, (&program, &config_file), &text));
                    }
                    if shared.pause(next) {
                        break;
                    }
                }
                // Ask all jobs first, then wait for each one.
                for running in all.iter_mut().filter_map(|one| one.running.as_mut()) {
                    running.ask_to_end();
                }
                for one in &mut all {
                    one.running.take();
                }
            };
            let thread = std::thread::Builder::new()
                .name("jobs".into())
                .stack_size(STACK_BYTES);
            jobs.thread = Some(thread.spawn(look_after)?);
        }
        Ok(jobs)
    }

    /// Returns the figures for the status.
    pub(crate) fn figures(&self) -> Vec<JobFigures> {
        self.shared.figures().clone()
    }

    /// Asks the thread to end, without waiting.
    pub(crate) fn finish(&self) {
        *self
            .shared
            .stop
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.finish();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn period(job: &JobConfig) -> Duration {
    Duration::from_secs(u64::from(job.period_seconds))
}

struct Periodic {
    job: JobConfig,
    due: Instant,
    running: Option<Running>,
}

struct Running {
    child: Child,
    begun: Instant,
    lines: Receiver<String>,
    failed: Option<String>,
    is_placed: bool,
    is_done: bool,
    /// When the answer was written, if its check comes after it.
    published: Option<Instant>,
}

impl Periodic {
    /// Checks a running run and starts one that is due. Returns how long there is nothing to do.
    fn look(
        &mut self,
        at: usize,
        shared: &Shared,
        (program, config_file): (&Path, &Path),
        text: &Arc<str>,
    ) -> Duration {
        let now = Instant::now();
        if let Some(running) = &mut self.running {
            // Copy the figures: the thread that takes readings locks them for the status and must not wait for this.
            let mut figures = shared.figures()[at].clone();
            let is_over = running.look(&self.job, now, &mut figures);
            shared.figures()[at] = figures;
            if is_over {
                self.running = None;
            }
        }
        if now >= self.due {
            // Skip the starts that were missed while the machine was suspended.
            while self.due <= now {
                self.due += period(&self.job);
            }
            let mut figures = shared.figures()[at].clone();
            if self.running.is_some() {
                figures.skipped += 1;
                let text = format!(
                    "{} is skipped: the run before it still lasts",
                    self.job.name
                );
                log::event("job", text);
            } else {
                figures.runs += 1;
                match Running::start(&self.job, program, config_file, text, now) {
                    Ok(running) => {
                        self.running = Some(running);
                        figures.running = true;
                    }
                    Err(error) => fail(
                        &self.job,
                        &mut figures,
                        format!("cannot be started: {error}"),
                    ),
                }
            }
            shared.figures()[at] = figures;
        }
        if self.running.is_some() {
            LOOK
        } else {
            self.due.saturating_duration_since(now)
        }
    }
}

fn fail(job: &JobConfig, figures: &mut JobFigures, why: String) {
    figures.failed += 1;
    figures.failing = true;
    log::event("job", format!("{} failed: {why}", job.name));
    figures.last_error = Some(why);
}

/// Sends a job its configuration and starts to read its output.
fn attend(child: &mut Child, text: &Arc<str>) -> std::io::Result<Receiver<String>> {
    if let Some(mut input) = child.stdin.take() {
        let text = Arc::clone(text);
        let write = move || {
            // A job that has ended does not need it.
            input.write_all(text.as_bytes()).ok();
        };
        std::thread::Builder::new()
            .name("job".into())
            .stack_size(STACK_BYTES)
            .spawn(write)?;
    }
    let (sender, lines) = sync_channel(LINES_MAX);
    if let Some(output) = child.stdout.take() {
        let read = move || {
            let mut reader = BufReader::new(output);
            let mut line = String::new();
            while let Ok(1..) = reader.by_ref().take(LINE_BYTES_MAX).read_line(&mut line) {
                if sender.send(std::mem::take(&mut line)).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new()
            .name("job".into())
            .stack_size(STACK_BYTES)
            .spawn(read)?;
    }
    Ok(lines)
}

impl Running {
    fn start(
        job: &JobConfig,
        program: &Path,
        config_file: &Path,
        text: &Arc<str>,
        now: Instant,
    ) -> std::io::Result<Self> {
        let mut child = Command::new(program)
            .args(["cluster", "job", "--background"])
            .arg(std::process::id().to_string())
            .arg("--config")
            .arg(absolute(config_file))
            .arg(&job.name)
            // The node may be a program of another node, but the job is not.
            .env_remove("KEEL_TASK")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A group of its own: Ctrl-C reaches only the node, which then ends the job.
            .process_group(0)
            .spawn()?;
        let lines = match attend(&mut child, text) {
            Ok(lines) => lines,
            Err(error) => {
                child.kill().ok();
                child.wait().ok();
                return Err(error);
            }
        };
        Ok(Self {
            child,
            begun: now,
            lines,
            failed: None,
            is_placed: false,
            is_done: false,
            published: None,
        })
    }

    /// Processes the job's output. Returns whether the job has ended.
    fn look(&mut self, job: &JobConfig, now: Instant, figures: &mut JobFigures) -> bool {
        let ended = self.child.try_wait();
        // After the end all output is in the pipe. A late line would be lost with the reader thread, so wait for it.
        let patience = if matches!(ended, Ok(None)) {
            Duration::ZERO
        } else {
            LAST_WORDS
        };
        while let Ok(line) = self.lines.recv_timeout(patience) {
            self.take(job, figures, &line);
        }
        let limit = Duration::from_secs(u64::from(job.run_seconds_max)) + GRACE;
        let why = match ended {
            Ok(None) if now.saturating_duration_since(self.begun) <= limit => return false,
            Ok(None) => Some(format!("did not end within {} s", job.run_seconds_max)),
            Ok(Some(status)) if status.success() && self.is_done => None,
            Ok(Some(status)) => Some(
                self.failed
                    .take()
                    .unwrap_or_else(|| format!("was ended by {status}")),
            ),
            Err(error) => Some(error.to_string()),
        };
        figures.running = false;
        // Those of the run before do not belong to a run that failed before it was placed.
        if !self.is_placed {
            figures.boards_missing.clear();
        }
        let seconds = now.saturating_duration_since(self.begun).as_secs_f64();
        figures.last_seconds = Some(seconds);
        match why {
            Some(why) => fail(job, figures, why),
            None => {
                if figures.failing {
                    log::event("job", format!("{} succeeds again", job.name));
                }
                figures.failing = false;
                // The deadline is that of the answer.
                let answered = self.published.unwrap_or(now);
                let seconds = answered.saturating_duration_since(self.begun).as_secs_f64();
                if seconds > job.deadline_s() {
                    figures.late += 1;
                    let deadline_s = job.deadline_s();
                    log::event(
                        "job",
                        format!(
                            "{} is late: it took {seconds:.1} s, the deadline is {deadline_s} s",
                            job.name
                        ),
                    );
                }
            }
        }
        true
    }

    fn take(&mut self, job: &JobConfig, figures: &mut JobFigures, line: &str) {
        let Ok(said) = serde_json::from_str::<Value>(line) else {
            return;
        };
        if let Some(error) = said["failed"].as_str() {
            self.failed = Some(error.to_owned());
        }
        self.is_done |= said["done"].is_object();
        // Lost in the middle of the run.
        figures.boards_missing.extend(boards(&said["done"]["lost"]));
        if said["published"] == true {
            self.published = Some(Instant::now());
        }
        let placed = &said["placed"];
        let (Some(place), Some(why)) = (placed["place"].as_str(), placed["why"].as_str()) else {
            return;
        };
        let assumed: Vec<&str> = placed["assumed"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        // Log the placement only when it changes: a job that runs every minute would fill the log.
        if figures.place.as_deref() != Some(place) || figures.why.as_deref() != Some(why) {
            let expected = placed["expected_s"]
                .as_f64()
                .map_or(String::new(), |s| format!(", about {s:.2} s"));
            let elsewhere = placed["better_elsewhere"].as_str();
            let elsewhere =
                elsewhere.map_or(String::new(), |place| format!("; {place} would be better"));
            let assumed = if assumed.is_empty() {
                String::new()
            } else {
                format!("; assumed: {}", assumed.join(", "))
            };
            log::event(
                "job",
                format!(
                    "{} runs on {place}{expected}: {why}{elsewhere}{assumed}",
                    job.name
                ),
            );
        }
        self.is_placed = true;
        figures.boards_missing = boards(&placed["boards_missing"]).collect();
        figures.place = Some(place.to_owned());
        figures.why = Some(why.to_owned());
        figures.assumed = assumed.into_iter().map(str::to_owned).collect();
    }
}

/// Returns the boards of such a list, with the reasons.
fn boards(list: &Value) -> impl Iterator<Item = String> {
    let boards = list.as_array().into_iter().flatten();
    boards.filter_map(|board| {
        let (name, how) = (board["board"].as_str()?, board["how"].as_str()?);
        Some(format!("{name} ({how})"))
    })
}

impl Running {
    /// Asks the job to end; it ends the ranks that it started, then itself.
    fn ask_to_end(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let process = self.child.id() as libc::pid_t;
            // SAFETY: a plain system call. The child has not been waited for, so its number is its own.
            unsafe { libc::kill(process, libc::SIGTERM) };
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        self.ask_to_end();
        let group = self.child.id() as libc::pid_t;
        let until = Instant::now() + END_TIME_MAX;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // SAFETY: a plain system call. The child has not been waited for, so its number and its group's are its own.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        self.child.wait().ok();
    }
}

/// Makes a path absolute. The child has the same working directory today; this keeps it correct if that changes.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}
