//! Raised alarms, kept in the store over a start. So an alarm whose value lies between its two thresholds is still
//! raised after the start, and the end of an alarm is still reported. `RAISED.md` beside this crate's manifest is the
//! specification.

use super::database::Db;
use super::image::Device;
use super::log;
use egress::urgent::UrgentState;
use flash::Store;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Name of the file in the store.
const NAME: &str = "node-raised";
const MAGIC: [u8; 8] = *b"keelrais";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const CHECK_BYTES: usize = 4;
/// The most alarms in the file; a start forgets alarms beyond it.
const RAISED_MAX: usize = 4096;
/// The largest size of the file, in bytes: two names of 255 bytes with their lengths per alarm.
const BYTES_MAX: usize = HEADER_BYTES + RAISED_MAX * 512 + CHECK_BYTES;
/// Time between two writes, for each begun piece of the file: a flapping alarm must not wear out the card.
const PERIOD: Duration = Duration::from_secs(10);
const PIECE_BYTES: usize = 16 << 10;

/// Names of an alarm and of the key for which it is raised.
pub(crate) type Pair = (String, String);

/// The file of alarms that their recipients believe to be raised, kept up to date. An alarm that is over stays in it
/// until its recipients have been told.
pub(crate) struct Raised {
    db: Arc<Db>,
    /// Names of the alarms, by the index of their rules.
    alarms: Vec<String>,
    /// The delivery; unset before it starts, or if there is none in this run.
    delivery: OnceLock<Arc<UrgentState>>,
    state: Mutex<State>,
    /// The number of writes of the file in this run, and its largest size in bytes.
    writes: AtomicU64,
    bytes_max: AtomicU64,
}

struct State {
    kept: BTreeSet<Pair>,
    written: Vec<u8>,
    /// The count of changes of each alarm at the last look.
    changes: Vec<u64>,
    /// Whether nothing needs to be written until alarms change.
    is_settled: bool,
    tried: Option<Instant>,
    is_failing: bool,
}

/// Returns what the last run left; `None` if it is damaged or of another version, which is logged.
pub(crate) fn read(db: &Db) -> Option<BTreeSet<Pair>> {
    let bytes = db.with_store(content).flatten();
    let Some(bytes) = bytes else {
        return Some(BTreeSet::new());
    };
    let found = decode(&bytes);
    if let Err(why) = &found {
        let text = format!(
            "the alarms raised before are unknown, because the file {NAME} {why}; those that hold are raised again"
        );
        log::event("alarm", text);
    }
    found.ok()
}

/// Returns the bytes of the file; `None` if it does not exist.
fn content(store: &mut Store<Device>) -> Option<Vec<u8>> {
    let file = match store.open_file(NAME) {
        Ok(file) => file,
        Err(flash::Error::NotFound) => return None,
        // Treat an unreadable file like a damaged one.
        Err(_) => return Some(Vec::new()),
    };
    let length = store.length(file).unwrap_or(0).min(BYTES_MAX as u64) as usize;
    let mut bytes = vec![0; length];
    let read = store.read(file, 0, &mut bytes);
    store.close_file(file);
    Some(read.map_or_else(|_| Vec::new(), |_| bytes))
}

impl Raised {
    /// Creates the file's state. `before`: what the last run left.
    pub(crate) fn new(db: Arc<Db>, alarms: Vec<String>, before: Option<BTreeSet<Pair>>) -> Self {
        Self {
            db,
            alarms,
            delivery: OnceLock::new(),
            state: Mutex::new(State {
                // A damaged file is replaced.
                written: before.as_ref().map(encode).unwrap_or_default(),
                kept: before.unwrap_or_default(),
                changes: Vec::new(),
                is_settled: false,
                tried: None,
                is_failing: false,
            }),
            writes: AtomicU64::new(0),
            bytes_max: AtomicU64::new(0),
        }
    }

    /// Sets the delivery.
    pub(crate) fn delivered_by(&self, state: &Arc<UrgentState>) {
        // It is set only once in a run.
        self.delivery.set(Arc::clone(state)).ok();
    }

    /// Returns the number of writes of the file in this run, and its largest size in bytes.
    pub(crate) fn writes(&self) -> (u64, u64) {
        let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        (of(&self.writes), of(&self.bytes_max))
    }

    /// Writes the file if alarms have changed, but not too often. `is_last`: writes at once; delivery has ended.
    pub(crate) fn look(&self, is_last: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let changes = |counted: &db::AlarmFigures| -> Vec<u64> {
            let rules = counted.rules.iter();
            rules.map(|rule| rule.raised + rule.cleared).collect()
        };
        if state.is_settled && changes(&self.db.alarm_figures()) == state.changes {
            return;
        }
        state.is_settled = false;
        let period = PERIOD * (1 + state.written.len() / PIECE_BYTES) as u32;
        if !is_last && state.tried.is_some_and(|tried| tried.elapsed() < period) {
            return;
        }
        // The list includes alarms that were raised and cleared since the last look.
        let active = self.db.raised_alarms(RAISED_MAX);
        // Read the counts after the list, so that no change is missed.
        let counted = self.db.alarm_figures();
        let before = std::mem::replace(&mut state.changes, changes(&counted));
        let delivered = self.delivery.get().map(|state| state.figures().alarms);
        let delivered = delivered.unwrap_or_default();
        let is_told: Vec<bool> = (0..self.alarms.len())
            .map(|rule| {
                // A change at this moment may be between two queues and in neither count.
                let is_quiet = before.get(rule) == state.changes.get(rule);
                // Without figures there is no delivery.
                let is_delivered = delivered
                    .get(rule)
                    .is_some_and(|alarm| alarm.mqtt.waiting + alarm.command.waiting == 0);
                (is_quiet || is_last) && counted.waiting == 0 && is_delivered
            })
            .collect();
        let active = active.iter().filter_map(|(rule, object, is_raised)| {
            let rule = *rule as usize;
            if is_told.get(rule) == Some(&true) && !is_raised {
                return None;
            }
            let alarm = self.alarms.get(rule)?.clone();
            Some((alarm, self.db.key(*object).as_str().to_owned()))
        });
        let stays = |(alarm, key): &&Pair| {
            let rule = self.alarms.iter().position(|name| name == alarm);
            let is_known = self.db.lookup(key).is_some();
            rule.is_some_and(|rule| !(is_told[rule] && is_known))
        };
        let kept = state.kept.iter().filter(stays).cloned();
        let is_all_told = is_told.iter().all(|told| *told);
        let raised: BTreeSet<Pair> = active.chain(kept).take(RAISED_MAX).collect();
        let bytes = encode(&raised);
        state.kept = raised;
        if bytes == state.written {
            state.is_settled = is_all_told;
            return;
        }
        state.tried = Some(Instant::now());
        match self.db.with_store(|store| store.replace(NAME, &bytes)) {
            Some(Ok(())) => {
                self.writes.fetch_add(1, Ordering::Relaxed);
                let length = bytes.len() as u64;
                self.bytes_max.fetch_max(length, Ordering::Relaxed);
                if std::mem::take(&mut state.is_failing) {
                    log::event("alarm", "raised alarms are saved again");
                }
                (state.written, state.is_settled) = (bytes, is_all_told);
            }
            Some(Err(error)) if !state.is_failing => {
                state.is_failing = true;
                let text = format!(
                    "raised alarms cannot be saved: {error}; a start would report an older state"
                );
                log::event("alarm", text);
            }
            _ => {}
        }
    }
}

fn encode(raised: &BTreeSet<Pair>) -> Vec<u8> {
    let raised = || raised.iter().take(RAISED_MAX);
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(raised().count() as u32).to_le_bytes());
    for (alarm, key) in raised() {
        for name in [alarm, key] {
            let name = name.as_bytes();
            let name = name.get(..name.len().min(255)).unwrap_or_default();
            bytes.push(name.len() as u8);
            bytes.extend_from_slice(name);
        }
    }
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Result<BTreeSet<Pair>, String> {
    let damaged = || "is damaged".to_owned();
    let (body, check) = bytes
        .len()
        .checked_sub(CHECK_BYTES)
        .map(|end| bytes.split_at(end))
        .ok_or_else(damaged)?;
    let check: [u8; CHECK_BYTES] = check.try_into().map_err(|_| damaged())?;
    if body.get(..8) != Some(&MAGIC[..]) || crc32c::crc32c(body) != u32::from_le_bytes(check) {
        return Err(damaged());
    }
    let number = |at: usize| {
        let bytes: Option<[u8; 4]> = body.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_le_bytes).ok_or_else(damaged)
    };
    let version = number(8)?;
    if version != VERSION {
        return Err(format!(
            "has version {version}, this program knows {VERSION}"
        ));
    }
    let count = number(12)? as usize;
    let mut rest = body.get(HEADER_BYTES..).unwrap_or_default();
    let mut found = BTreeSet::new();
    for _ in 0..count.min(RAISED_MAX) {
        let mut name = || {
            let (length, more) = rest.split_first()?;
            let (name, more) = more.split_at_checked(usize::from(*length))?;
            rest = more;
            String::from_utf8(name.to_vec()).ok()
        };
        found.insert((name().ok_or_else(damaged)?, name().ok_or_else(damaged)?));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &[u8] = include_bytes!("../tests/golden/node-raised-1");

    fn golden() -> BTreeSet<Pair> {
        let pairs = [
            ("hot", "hall/1/temperature"),
            ("silent", "hall/door"),
            ("hot", "küche/herd"),
        ];
        pairs
            .map(|(alarm, key)| (alarm.to_owned(), key.to_owned()))
            .into()
    }

    #[test]
    fn the_file_is_the_bytes_that_the_specification_says() {
        assert_eq!(encode(&golden()), GOLDEN);
        assert_eq!(decode(GOLDEN), Ok(golden()));
        assert_eq!(decode(&encode(&BTreeSet::new())), Ok(BTreeSet::new()));
    }

    #[test]
    fn a_damaged_file_or_one_of_another_version_is_refused() {
        for bit in 0..GOLDEN.len() * 8 {
            let mut bytes = GOLDEN.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bytes), Err("is damaged".to_owned()));
        }
        for end in 0..GOLDEN.len() {
            assert!(decode(&GOLDEN[..end]).is_err());
        }
        let sealed = |mut body: Vec<u8>| {
            body.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
            body
        };
        let body = &GOLDEN[..GOLDEN.len() - CHECK_BYTES];
        let mut later = body.to_vec();
        later[8] = 2;
        assert!(decode(&sealed(later)).unwrap_err().contains("version 2"));
        // A count and lengths beyond the content, with a correct checksum.
        for (at, value) in [(12, 200), (16, 255), (20, 255)] {
            let mut wrong = body.to_vec();
            wrong[at] = value;
            assert!(decode(&sealed(wrong)).is_err(), "{at}");
        }
    }

    #[test]
    fn the_file_of_raised_alarms_has_a_limit() {
        let many = (0..RAISED_MAX + 10).map(|n| (format!("{n:0>300}"), format!("{n:0>300}")));
        let bytes = encode(&many.collect());
        assert!(bytes.len() <= BYTES_MAX);
        assert!(decode(&bytes).is_ok());
    }
}
