//! The destination in the node: the database, with the operator's rules about keys.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::clock::Clock;
use db::{Database, Durability, ObjectId, ObjectSpec, SegmentStore};

use super::{Destination, KeyRules, LogGone, PutError, Reason, check_key};
use crate::pattern;

/// Makes and finds objects by the rules, and puts readings with batched durability.
pub struct NodeDestination<S: SegmentStore> {
    database: Arc<Database<S>>,
    clock: Arc<dyn Clock>,
    rules: Mutex<KeyRules>,
    /// Second of the wall clock in which `trusted` was last asked for: asking is a system call.
    trusted_at_s: AtomicI64,
    trusted: AtomicBool,
}

impl<S: SegmentStore> std::fmt::Debug for NodeDestination<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeDestination")
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

impl<S: SegmentStore> NodeDestination<S> {
    /// A destination with these rules. [`declare_exact`](Self::declare_exact) makes the declared keys.
    pub fn new(database: Arc<Database<S>>, clock: Arc<dyn Clock>, rules: KeyRules) -> Self {
        Self {
            database,
            clock,
            rules: Mutex::new(rules),
            trusted_at_s: AtomicI64::new(i64::MIN),
            trusted: AtomicBool::new(false),
        }
    }

    /// The database behind it.
    pub fn database(&self) -> &Arc<Database<S>> {
        &self.database
    }

    /// Makes every key that is declared without wildcards, and gives those that exist the validity that the rules
    /// say now. Returns the keys there are. May wait while the database's queue is full.
    ///
    /// # Errors
    /// As [`Database::declare`].
    pub fn declare_exact(&self) -> Result<u32, db::Error> {
        let rules = self.rules();
        let exact = rules
            .rules
            .iter()
            .filter(|rule| pattern::is_exact(&rule.pattern));
        for rule in exact {
            self.declare(&rules, &rule.pattern)?;
        }
        for id in 0..self.database.objects() {
            let key = self.database.key(ObjectId(id));
            // Damage can cost a key; its object stays without a name.
            if !key.as_str().is_empty() {
                self.declare(&rules, key.as_str())?;
            }
        }
        Ok(self.database.objects())
    }

    /// Takes other rules, from a configuration that was read again, and applies them as
    /// [`declare_exact`](Self::declare_exact) does. Intakes must be told with `Intake::reload` afterwards.
    ///
    /// # Errors
    /// As [`Database::declare`]; the rules hold all the same.
    pub fn set_rules(&self, rules: KeyRules) -> Result<u32, db::Error> {
        *self.rules() = rules;
        self.declare_exact()
    }

    fn declare(&self, rules: &KeyRules, key: &str) -> Result<ObjectId, db::Error> {
        let rule = rule_of(rules, key);
        self.database.declare(&ObjectSpec {
            key,
            avi_ms: rule.map_or(rules.default_validity_ms, |rule| rule.validity_ms),
            temporal: rule.is_none_or(|rule| rule.temporal),
        })
    }

    fn rules(&self) -> MutexGuard<'_, KeyRules> {
        // Rules are replaced as a whole, so a holder that panicked has done no harm.
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn rule_of<'r>(rules: &'r KeyRules, key: &str) -> Option<&'r super::KeyRule> {
    rules
        .rules
        .iter()
        .find(|rule| pattern::matches(&rule.pattern, key))
}

impl<S: SegmentStore + 'static> Destination for NodeDestination<S> {
    /// A new key is declared here, which may wait while the database's queue is full.
    fn resolve(&self, key: &str) -> Result<u32, Reason> {
        check_key(key)?;
        let rules = self.rules();
        if rule_of(&rules, key).is_none() && !rules.auto_create {
            return Err(Reason::KeyUnknown);
        }
        if let Some(id) = self.database.lookup(key) {
            return Ok(id.0);
        }
        if self.database.objects() >= rules.keys_max {
            return Err(Reason::KeysMax);
        }
        match self.declare(&rules, key) {
            Ok(id) => Ok(id.0),
            Err(db::Error::KeyInvalid { .. }) => Err(Reason::KeyInvalid),
            Err(db::Error::TableFull { .. }) => Err(Reason::KeysMax),
            // The table has it although the log takes nothing now: the reading that follows shall be told so,
            // and wait or fail, not be refused.
            Err(_) => self
                .database
                .lookup(key)
                .map(|id| id.0)
                .ok_or(Reason::KeysMax),
        }
    }

    fn put(&self, object: u32, value: &[u8], time_ms: Option<i64>) -> Result<u64, PutError> {
        let id = ObjectId(object);
        let put = match time_ms {
            Some(time_ms) => self.database.put(id, value, time_ms, Durability::Batched),
            None => self.database.put_now(id, value, Durability::Batched),
        };
        put.map(|ticket| ticket.lsn()).map_err(|error| match error {
            db::Error::Busy => PutError::Wait { full: false },
            db::Error::Full => PutError::Wait { full: true },
            db::Error::ValueTooLong { .. } => PutError::Refused(Reason::ValueTooLong),
            db::Error::TimestampInvalid => PutError::Refused(Reason::TimeAbsurd),
            db::Error::UnknownObject => PutError::Refused(Reason::KeyUnknown),
            _ => PutError::Failed,
        })
    }

    fn durable_end(&self) -> u64 {
        self.database.durable_end()
    }

    fn wait_durable_past(&self, seen: u64, timeout: Duration) -> Result<u64, LogGone> {
        self.database
            .wait_durable_past(seen, timeout)
            .map_err(|_| LogGone)
    }

    fn wall_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    fn wall_trusted(&self) -> bool {
        let now_s = self.clock.wall_ms().div_euclid(1000);
        if self.trusted_at_s.swap(now_s, Ordering::Relaxed) != now_s {
            self.trusted
                .store(self.clock.wall_is_trusted(), Ordering::Relaxed);
        }
        self.trusted.load(Ordering::Relaxed)
    }
}
