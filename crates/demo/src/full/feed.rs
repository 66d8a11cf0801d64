//! The sensors: they send the trace to the node as line protocol over its Unix socket and record the acknowledgements.
//! A sensor keeps readings that were not acknowledged, and sends them again when the node is back.

use base::clock::{Clock, SystemClock};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use trace::Trace;
use trace::replay::{Offer, Replayer, Step, TraceTime};

/// Readings sent before the next query for an acknowledgement.
const BATCH_MAX: usize = 256;

/// Retry interval while the node is not available.
const RETRY: Duration = Duration::from_millis(20);

/// Timeout of an answer, after which the connection is given up.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// What identifies a reading: key, time in ms, bits of the value.
pub(super) type Known = (u16, i64, u64);

/// The record of the sensors.
#[derive(Default)]
pub(super) struct Record {
    /// How often each reading was acknowledged, and how often it was sent.
    pub(super) readings: HashMap<Known, (u32, u32)>,
    pub(super) refused: u64,
    pub(super) error: Option<String>,
}

/// The sensors' side of a run.
pub(super) struct Feed {
    pub(super) record: Arc<Mutex<Record>>,
    pub(super) acknowledged: Arc<AtomicU64>,
    pub(super) sent: Arc<AtomicU64>,
    /// Trace time, in ms.
    pub(super) now_ms: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Feed {
    pub(super) fn start(
        trace: Arc<Trace>,
        socket: &Path,
        end_ms: u64,
        speed: f64,
    ) -> std::io::Result<Self> {
        let mut feed = Self {
            record: Arc::default(),
            acknowledged: Arc::default(),
            sent: Arc::default(),
            now_ms: Arc::default(),
            stop: Arc::default(),
            thread: None,
        };
        let sender = Sender {
            trace,
            socket: socket.to_path_buf(),
            record: Arc::clone(&feed.record),
            acknowledged: Arc::clone(&feed.acknowledged),
            sent: Arc::clone(&feed.sent),
            now_ms: Arc::clone(&feed.now_ms),
            stop: Arc::clone(&feed.stop),
            speed,
            begun_ms: SystemClock::new().wall_ms(),
        };
        let thread = std::thread::Builder::new().name("sensors".into());
        feed.thread = Some(thread.spawn(move || sender.run(end_ms))?);
        Ok(feed)
    }

    pub(super) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the feed; its record stays.
    pub(super) fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.end();
    }
}

struct Sender {
    trace: Arc<Trace>,
    socket: PathBuf,
    record: Arc<Mutex<Record>>,
    acknowledged: Arc<AtomicU64>,
    sent: Arc<AtomicU64>,
    now_ms: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    speed: f64,
    begun_ms: i64,
}

impl Sender {
    fn run(&self, end_ms: u64) {
        let clock = SystemClock::new();
        let time = match TraceTime::start(&clock, 0, self.speed) {
            Ok(time) => time,
            Err(error) => return self.fail(error.to_string()),
        };
        let mut replayer = Replayer::new(&self.trace, time, 0, end_ms);
        let mut connection: Option<BufReader<UnixStream>> = None;
        let mut batch: Vec<Offer> = Vec::with_capacity(BATCH_MAX);
        let mut is_over = false;
        while !self.stop.load(Ordering::Relaxed) {
            self.now_ms
                .store(time.now_ms(&clock).min(end_ms), Ordering::Relaxed);
            let mut nap = RETRY;
            while !is_over && batch.len() < BATCH_MAX {
                match replayer.step(&clock) {
                    Step::Ready(offer) => batch.push(offer),
                    Step::Wait { ns } => {
                        nap = nap.min(Duration::from_nanos(ns));
                        break;
                    }
                    Step::End => is_over = true,
                }
            }
            if batch.is_empty() {
                if is_over {
                    return;
                }
                std::thread::sleep(nap);
                continue;
            }
            match self.send(&mut connection, &batch) {
                Ok(refused) => {
                    self.note(&batch, true);
                    let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
                    record.refused += refused;
                    drop(record);
                    self.acknowledged
                        .fetch_add(batch.len() as u64, Ordering::Relaxed);
                    batch.clear();
                }
                Err(_) => {
                    connection = None;
                    std::thread::sleep(RETRY);
                }
            }
        }
    }

    fn fail(&self, why: String) {
        self.record
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .error = Some(why);
    }

    fn known(&self, offer: &Offer) -> Known {
        let after_ms = (offer.time_ms as f64 / self.speed) as i64;
        (
            offer.sensor,
            self.begun_ms + after_ms,
            offer.value.to_bits(),
        )
    }

    fn note(&self, batch: &[Offer], is_acknowledged: bool) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        for offer in batch {
            let (acknowledged, sent) = record.readings.entry(self.known(offer)).or_default();
            if is_acknowledged {
                *acknowledged += 1;
            } else {
                *sent += 1;
            }
        }
    }

    /// Sends a batch and waits until it is on flash. Returns how many readings were refused.
    fn send(
        &self,
        connection: &mut Option<BufReader<UnixStream>>,
        batch: &[Offer],
    ) -> std::io::Result<u64> {
        if connection.is_none() {
            let stream = UnixStream::connect(&self.socket)?;
            stream.set_read_timeout(Some(ANSWER_MAX))?;
            *connection = Some(BufReader::new(stream));
        }
        let gone = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let Some(stream) = connection else {
            return Err(gone());
        };
        let mut text = String::new();
        for offer in batch {
            let Some(sensor) = self.trace.sensors().get(offer.sensor) else {
                continue;
            };
            let (_, time_ms, _) = self.known(offer);
            for letter in sensor.name.chars() {
                if matches!(letter, ' ' | ',') {
                    text.push('\\');
                }
                text.push(letter);
            }
            // Writing to a string never fails.
            writeln!(text, " value={} {time_ms}", offer.value).ok();
        }
        text.push('\n');
        // Record before sending, so that each stored reading is recorded as sent.
        self.note(batch, false);
        self.sent.fetch_add(batch.len() as u64, Ordering::Relaxed);
        stream.get_mut().write_all(text.as_bytes())?;
        let mut answer = String::new();
        if stream.read_line(&mut answer)? == 0 {
            return Err(gone());
        }
        let mut words = answer.split_whitespace();
        match (words.next(), words.next(), words.next().map(str::parse)) {
            (Some("ok"), Some(_), Some(Ok(refused))) => Ok(refused),
            _ => Err(std::io::Error::other(answer)),
        }
    }
}
