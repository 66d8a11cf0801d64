//! The place where the fuzz targets of the intake put readings, and what must hold for the outcome of a message.
//!
//! **Holds:** a destination in memory, the time of its clock, and the longest value.
//!
//! **Must not know:** what is put.
//!
//! **Invariants:** the destination depends on what is put alone.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use db::value::Value;
use db::{Owners, Time};
use ingest::intake::{
    Destination, Intake, KeyOwner, LogGone, Outcome, PutError, Reason, check_key,
};

/// 2026-06-01.
pub(crate) const NOW_MS: i64 = 1_780_272_000_000;
pub(crate) const VALUE_BYTES_MAX: usize = 40;

/// Key, value and time of a reading.
pub(crate) type Put = (String, Vec<u8>, Option<Time>);

/// Takes every reading, but after each `halt` puts the next one must wait once; 0: none must wait.
pub(crate) struct Store {
    halt: usize,
    keys_max: usize,
    is_known: fn(&str) -> bool,
    inner: Mutex<StoreInner>,
}

#[derive(Default)]
pub(crate) struct StoreInner {
    pub(crate) keys: Vec<String>,
    owners: Owners,
    pub(crate) puts: Vec<Put>,
    since: usize,
}

impl Store {
    /// Returns a store of at most `keys_max` keys, all of which `is_known` admits.
    pub(crate) fn new(halt: usize, keys_max: usize, is_known: fn(&str) -> bool) -> Arc<Self> {
        Arc::new(Self {
            halt,
            keys_max,
            is_known,
            inner: Mutex::default(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, StoreInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Destination for Store {
    fn resolve(&self, key: &str) -> Result<u32, Reason> {
        assert_eq!(check_key(key), Ok(()));
        let mut inner = self.lock();
        if !(self.is_known)(key) {
            return Err(Reason::KeyUnknown);
        }
        if let Some(place) = inner.keys.iter().position(|known| known == key) {
            return Ok(place as u32);
        }
        if inner.keys.len() >= self.keys_max {
            return Err(Reason::KeysMax);
        }
        inner.keys.push(key.to_owned());
        Ok(inner.keys.len() as u32 - 1)
    }

    fn resolve_for(
        &self,
        key: &str,
        owner: KeyOwner<'_>,
        first: &mut String,
    ) -> Result<u32, Reason> {
        let object = self.resolve(key)?;
        let (own, relatives) = (owner.of(object), owner.relatives);
        let claimed = self.lock().owners.claim_beside(&own, relatives);
        claimed.map_err(|other| {
            *first = other;
            Reason::KeyShared
        })?;
        Ok(object)
    }

    fn put(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError> {
        assert!(value.len() <= VALUE_BYTES_MAX);
        match Value::decode(value) {
            Some(Value::Float(value)) => assert!(value.is_finite()),
            Some(_) => {}
            None => panic!("no value: {value:?}"),
        }
        if let Some(time) = time {
            assert!((time.ms() - NOW_MS).abs() <= 86_400_000);
        }
        let mut inner = self.lock();
        if self.halt > 0 && inner.since >= self.halt {
            inner.since = 0;
            return Err(PutError::Wait { full: false });
        }
        inner.since += 1;
        let key = inner.keys[object as usize].clone();
        inner.puts.push((key, value.to_vec(), time));
        Ok(inner.puts.len() as u64 - 1)
    }

    fn put_retained(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError> {
        self.put(object, value, time)
    }

    fn durable_end(&self) -> u64 {
        self.lock().puts.len() as u64
    }

    fn wait_durable_past(&self, _seen: u64, _timeout: Duration) -> Result<u64, LogGone> {
        Ok(self.durable_end())
    }

    fn wall_ms(&self) -> i64 {
        NOW_MS
    }

    fn wall_trusted(&self) -> bool {
        true
    }
}

/// Checks what an intake says about a message whose whole content it was offered. `puts` and `refusals`: the numbers
/// before it.
pub(crate) fn check_outcome(
    outcome: Outcome,
    store: &Store,
    intake: &Intake<Store>,
    (puts, refusals): (usize, u64),
) {
    let end = store.lock().puts.len();
    let taken = end - puts;
    match outcome {
        Outcome::Accepted { lsn_end } if taken > 0 => assert_eq!(lsn_end, end as u64),
        Outcome::Accepted { lsn_end } => assert_eq!(lsn_end, 0),
        Outcome::Refused => {
            assert_eq!(taken, 0);
            assert!(intake.counters().refused_total() > refusals);
        }
        Outcome::Wait { .. } | Outcome::Failed => panic!("{outcome:?}"),
    }
}
