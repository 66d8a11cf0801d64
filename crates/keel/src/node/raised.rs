//! Which alarms are raised, kept in the store over a start: one that stands between its two thresholds is then still
//! raised, and one that is over is told so. `RAISED.md` beside this crate's manifest is the specification.

use super::image::Device;
use super::{Db, log};
use flash::Store;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Name of the file in the store.
const NAME: &str = "node-raised";
const MAGIC: [u8; 8] = *b"keelrais";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const CHECK_BYTES: usize = 4;
/// Alarms in the file at most; what is beyond is forgotten by a start.
const RAISED_MAX: usize = 4096;
/// Bytes of it at most: two names of 255 bytes with their lengths for each.
const BYTES_MAX: usize = HEADER_BYTES + RAISED_MAX * 512 + CHECK_BYTES;
/// Time between two writes: an alarm that flaps must not wear the card.
const PERIOD: Duration = Duration::from_secs(10);

/// Names of an alarm and of the key at which it is raised.
type Pair = (String, String);

/// The file, kept up to date.
pub(crate) struct Raised {
    db: Arc<Db>,
    /// Names of the alarms, by the places of their rules.
    alarms: Vec<String>,
    state: Mutex<State>,
}

struct State {
    written: Vec<u8>,
    /// Changes that had been counted at the last look.
    changes: Option<u64>,
    looked: Option<Instant>,
    is_failing: bool,
}

/// What the last run has left; nothing where it is damaged, or of another version, which is said.
pub(crate) fn read(db: &Db) -> (BTreeSet<Pair>, Vec<u8>) {
    let bytes = db.with_store(content).unwrap_or_default();
    if bytes.is_empty() {
        return (BTreeSet::new(), bytes);
    }
    let found = decode(&bytes).unwrap_or_else(|why| {
        let text = format!("which alarms were raised is not known: the file {NAME} {why}; what holds is raised anew");
        log::event("alarm", text);
        BTreeSet::new()
    });
    (found, bytes)
}

fn content(store: &mut Store<Device>) -> Vec<u8> {
    let Ok(file) = store.open_file(NAME) else {
        return Vec::new();
    };
    let length = store.length(file).unwrap_or(0).min(BYTES_MAX as u64) as usize;
    let mut bytes = vec![0; length];
    let read = store.read(file, 0, &mut bytes);
    store.close_file(file);
    // What cannot be read is as good as damaged.
    if read.is_err() {
        bytes.fill(0);
    }
    bytes
}

impl Raised {
    pub(crate) fn new(db: Arc<Db>, alarms: Vec<String>, written: Vec<u8>) -> Self {
        Self {
            db,
            alarms,
            state: Mutex::new(State {
                written,
                changes: None,
                looked: None,
                is_failing: false,
            }),
        }
    }

    /// Writes the file if alarms have changed, and not too often. `is_last`: at once.
    pub(crate) fn look(&self, is_last: bool) {
        let mut state = self.lock();
        if !is_last && state.looked.is_some_and(|looked| looked.elapsed() < PERIOD) {
            return;
        }
        let counted = self.db.alarm_figures();
        let changes = counted.rules.iter().map(|rule| rule.raised + rule.cleared);
        let changes = Some(changes.sum());
        if state.changes == changes {
            return;
        }
        state.looked = Some(Instant::now());
        let active = self.db.active_alarms(RAISED_MAX);
        let pairs = active.iter().filter_map(|active| {
            let alarm = self.alarms.get(active.rule as usize)?.clone();
            Some((alarm, self.db.key(active.object).as_str().to_owned()))
        });
        let bytes = encode(&pairs.collect());
        if bytes == state.written {
            state.changes = changes;
            return;
        }
        match self.db.with_store(|store| store.replace(NAME, &bytes)) {
            Some(Ok(())) => {
                (state.written, state.changes, state.is_failing) = (bytes, changes, false);
            }
            Some(Err(error)) if !state.is_failing => {
                state.is_failing = true;
                let text = format!(
                    "which alarms are raised cannot be kept: {error}; a start would forget it"
                );
                log::event("alarm", text);
            }
            _ => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    const GOLDEN: &[u8] = include_bytes!("../../tests/golden/node-raised-1");

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
    fn what_is_damaged_or_of_another_version_is_refused() {
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
        // A count and lengths beyond what is there, with a checksum that is right.
        for (at, value) in [(12, 200), (16, 255), (20, 255)] {
            let mut wrong = body.to_vec();
            wrong[at] = value;
            assert!(decode(&sealed(wrong)).is_err(), "{at}");
        }
    }

    #[test]
    fn there_is_a_limit() {
        let many = (0..RAISED_MAX + 10).map(|n| (format!("{n:0>300}"), format!("{n:0>300}")));
        let bytes = encode(&many.collect());
        assert!(bytes.len() <= BYTES_MAX);
        assert!(decode(&bytes).is_ok());
    }
}
