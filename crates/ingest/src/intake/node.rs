//! The destination in the node: the database, with the operator's rules about keys.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::clock::Clock;
use db::{Database, Durability, ObjectId, ObjectSpec, SegmentStore, ShedPolicy, Ticket, Time};

use super::rules::RuleIndex;
use super::{Destination, KeyOwner, KeyRule, KeyRules, LogGone, PutError, Reason, check_key};
use crate::pattern;

/// Creates and finds objects by the rules, and puts readings with batched durability.
pub struct NodeDestination<S: SegmentStore> {
    database: Arc<Database<S>>,
    clock: Arc<dyn Clock>,
    rules: Mutex<ActiveRules>,
    /// Second of the wall clock at which `trusted` was last queried, since the query is a system call.
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
    /// Creates a destination with these rules. [`declare_exact`](Self::declare_exact) creates the declared keys.
    pub fn new(database: Arc<Database<S>>, clock: Arc<dyn Clock>, rules: KeyRules) -> Self {
        Self {
            database,
            clock,
            rules: Mutex::new(ActiveRules::new(rules)),
            trusted_at_s: AtomicI64::new(i64::MIN),
            trusted: AtomicBool::new(false),
        }
    }

    /// Returns the database behind it.
    pub fn database(&self) -> &Arc<Database<S>> {
        &self.database
    }

    /// Creates every key that is declared without wildcards, and gives existing keys the validity that the current
    /// rules say. Returns the number of existing keys. Never waits. A key that cannot be created does not affect the
    /// others; [`declare_failures`](Self::declare_failures) reports it.
    ///
    /// # Errors
    /// Errors of the database as a whole; at present there are none.
    pub fn declare_exact(&self) -> Result<u32, db::Error> {
        self.apply(&mut self.rules())
    }

    /// Sets new rules, from a reloaded configuration, and applies them as [`declare_exact`](Self::declare_exact) does.
    /// Intakes must be told with `Intake::reload` afterwards.
    ///
    /// # Errors
    /// As [`declare_exact`](Self::declare_exact); the rules are in force nevertheless.
    pub fn set_rules(&self, rules: KeyRules) -> Result<u32, db::Error> {
        let mut active = self.rules();
        let same = active.rules.rules == rules.rules
            && active.rules.default_validity_ms == rules.default_validity_ms;
        let applied = active.applied && same;
        *active = ActiveRules {
            applied,
            ..ActiveRules::new(rules)
        };
        self.apply(&mut active)
    }

    /// Returns which declared keys could not be created when the rules were last applied, and why, as text; `None` if
    /// all exist.
    #[must_use]
    pub fn declare_failures(&self) -> Option<String> {
        self.rules().failures.clone()
    }

    fn apply(&self, active: &mut ActiveRules) -> Result<u32, db::Error> {
        let (mut declared, mut failed) = (0_u64, 0_u64);
        let mut first: Option<(&str, db::Error)> = None;
        let mut general = None;
        for rule in &active.rules.rules {
            if !pattern::is_exact(&rule.pattern) {
                continue;
            }
            declared += 1;
            match self.declare(active, &rule.pattern) {
                Ok(_) => {}
                Err(
                    error @ (db::Error::KeyInvalid { .. }
                    | db::Error::TableFull { .. }
                    | db::Error::KeysFull { .. }),
                ) => {
                    failed += 1;
                    first.get_or_insert((&rule.pattern, error));
                }
                Err(error) => {
                    general.get_or_insert(error);
                }
            }
        }
        let failures = first.map(|(key, error)| {
            let key = super::excerpt(key.as_bytes());
            format!(
                "{failed} of {declared} declared keys cannot be made; the first is `{key}`: {error}"
            )
        });
        // Keys created later get their validity then, so the rules need to be applied only once.
        if !active.applied {
            for id in (0..self.database.objects()).map(ObjectId) {
                let key = self.database.key(id);
                let key = key.as_str();
                // Damage can lose a key; its object remains without a name.
                if key.is_empty() {
                    continue;
                }
                self.set_quality(active, id, key);
                if self.database.validity(id) == active.validity_of(key) {
                    continue;
                }
                if let Err(error) = self.declare(active, key) {
                    general.get_or_insert(error);
                }
            }
        }
        active.failures = failures;
        active.applied = general.is_none();
        match general {
            Some(error) => Err(error),
            None => Ok(self.database.objects()),
        }
    }

    /// Declares a key. Never waits, because the caller's thread serves others too. A declaration that finds no room in
    /// the queue reaches flash with the object's first reading.
    fn declare(&self, active: &ActiveRules, key: &str) -> Result<ObjectId, db::Error> {
        let (avi_ms, temporal) = active.validity_of(key);
        let id = self.database.try_declare(&ObjectSpec {
            key,
            avi_ms,
            temporal,
        })?;
        self.set_quality(active, id, key);
        Ok(id)
    }

    /// Returns the object of a key. Declares a new one; never waits.
    fn object_of(&self, active: &ActiveRules, key: &str) -> Result<u32, Reason> {
        check_key(key)?;
        if !active.rules.auto_create && active.rule_of(key).is_none() {
            return Err(Reason::KeyUnknown);
        }
        if let Some(id) = self.database.lookup(key) {
            return Ok(id.0);
        }
        if self.database.objects() >= active.rules.keys_max {
            return Err(Reason::KeysMax);
        }
        match self.declare(active, key) {
            Ok(id) => Ok(id.0),
            Err(db::Error::KeyInvalid { .. }) => Err(Reason::KeyInvalid),
            Err(db::Error::TableFull { .. } | db::Error::KeysFull { .. }) => Err(Reason::KeysMax),
            // The table has the key although the log accepts nothing now. The put of the reading reports that, so that
            // its sender waits or fails instead of being refused here.
            Err(_) => self
                .database
                .lookup(key)
                .map(|id| id.0)
                .ok_or(Reason::KeysMax),
        }
    }

    fn set_quality(&self, active: &ActiveRules, id: ObjectId, key: &str) {
        let (weight, shed) = active.quality_of(key);
        self.database.set_quality(id, weight, shed);
    }

    fn rules(&self) -> MutexGuard<'_, ActiveRules> {
        // Rules are replaced as a whole, so a panic of another lock holder does no harm.
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rules in force.
#[derive(Debug)]
struct ActiveRules {
    rules: KeyRules,
    index: RuleIndex,
    /// Whether the existing keys have the validity that the rules say.
    applied: bool,
    failures: Option<String>,
}

impl ActiveRules {
    fn new(rules: KeyRules) -> Self {
        Self {
            index: RuleIndex::new(rules.rules.iter().map(|rule| rule.pattern.as_str())),
            rules,
            applied: false,
            failures: None,
        }
    }

    /// Returns the first rule that matches.
    fn rule_of(&self, key: &str) -> Option<&KeyRule> {
        self.rules.rules.get(self.index.find(key)?)
    }

    fn validity_of(&self, key: &str) -> (u32, bool) {
        match self.rule_of(key) {
            Some(rule) => (rule.validity_ms, rule.temporal),
            None => (self.rules.default_validity_ms, true),
        }
    }

    fn quality_of(&self, key: &str) -> (f64, ShedPolicy) {
        match self.rule_of(key) {
            Some(rule) => (rule.weight, rule.shed),
            None => (1.0, ShedPolicy::Log),
        }
    }
}

/// Returns the number of a reading that was put, or why there is none.
fn number_of(put: Result<Ticket, db::Error>) -> Result<u64, PutError> {
    let ticket = put.map_err(|error| match error {
        db::Error::Busy => PutError::Wait { full: false },
        db::Error::Full => PutError::Wait { full: true },
        db::Error::ValueTooLong { .. } => PutError::Refused(Reason::ValueTooLong),
        db::Error::TimestampInvalid => PutError::Refused(Reason::TimeAbsurd),
        db::Error::UnknownObject => PutError::Refused(Reason::KeyUnknown),
        _ => PutError::Failed,
    })?;
    ticket.lsn().ok_or(PutError::Shed)
}

impl<S: SegmentStore + 'static> Destination for NodeDestination<S> {
    fn resolve(&self, key: &str) -> Result<u32, Reason> {
        self.object_of(&self.rules(), key)
    }

    fn resolve_for(
        &self,
        key: &str,
        owner: KeyOwner<'_>,
        first: &mut String,
    ) -> Result<u32, Reason> {
        let object = self.resolve(key)?;
        // A key that was made here has no owner yet, so nothing is made for a series that is refused.
        let (own, relatives) = (owner.of(object), owner.relatives);
        let claimed = self.database.claim_beside(&own, relatives);
        claimed.map_err(|other| {
            *first = other;
            Reason::KeyShared
        })?;
        Ok(object)
    }

    fn put(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError> {
        let id = ObjectId(object);
        number_of(match time {
            Some(time) => self.database.put(id, value, time, Durability::Batched),
            None => self.database.put_now(id, value, Durability::Batched),
        })
    }

    fn put_retained(&self, object: u32, value: &[u8], time: Option<Time>) -> Result<u64, PutError> {
        let (id, durability) = (ObjectId(object), Durability::Batched);
        number_of(self.database.put_retained(id, value, time, durability))
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
