//! Tenants: one predictor for each tenant and version. No other tenant influences it.

use super::bundles::Improver;
use super::counters::{self, add};
use super::learned::{self, LearnedError, Lock};
use super::names::Names;
use super::settings::Settings;
use crate::predict::{ActionInfo, Counters, Mode, Predictor};
use crate::store::Published;
use crate::sync::locked;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A tenant at one version.
pub(super) struct Tenant {
    pub(super) name: Arc<str>,
    pub(super) published: Arc<Published>,
    names: Arc<Names>,
    predictor: Mutex<Box<dyn Predictor>>,
    /// Its learned actions are to be written, although it has learned nothing since. Writing them has failed, or they
    /// are those of an older version, which no longer writes the file.
    is_unsaved: AtomicBool,
    /// Writing has failed, and the operator was told.
    has_failed: AtomicBool,
}

impl Tenant {
    /// Ignores poisoning: a panic leaves no update half done.
    pub(super) fn predictor(&self) -> MutexGuard<'_, Box<dyn Predictor>> {
        locked(&self.predictor)
    }

    /// Returns whether learned actions are missing in its file, from a new change or a failed write.
    fn is_to_save(&self) -> bool {
        self.predictor().take_changed() || self.is_unsaved.load(Ordering::Relaxed)
    }
}

/// Tenants by their name and version.
type TenantMap = HashMap<(Arc<str>, u64), Arc<Tenant>>;

/// All tenants in memory.
pub(super) struct Tenants {
    map: Mutex<TenantMap>,
    /// The highest version that each tenant has had since the start. Only the actions of that one are saved: a tenant
    /// has one file, and the next start serves the newest version. There is one entry for each tenant of the list of
    /// devices.
    newest: Mutex<HashMap<Arc<str>, u64>>,
    /// The counters of the predictors that have left memory. Without them the sums would fall.
    gone: Mutex<Counters>,
    names: Mutex<HashMap<u64, Weak<Names>>>,
    /// Held while files are written: two writers of one file would corrupt its temporary file.
    saving: Mutex<()>,
    settings: Arc<Settings>,
    counters: Arc<counters::Counters>,
    improver: Arc<Improver>,
    /// Prevents other processes from changing learned actions. `None` if learned actions are not saved. Released after
    /// the improver has ended, which writes files of the store, too.
    lock: Option<Lock>,
}

impl Tenants {
    pub(super) fn new(
        settings: &Arc<Settings>,
        improver: &Arc<Improver>,
        counters: &Arc<counters::Counters>,
        lock: Option<Lock>,
    ) -> Self {
        Self {
            map: Mutex::default(),
            newest: Mutex::default(),
            gone: Mutex::default(),
            names: Mutex::default(),
            saving: Mutex::default(),
            settings: Arc::clone(settings),
            counters: Arc::clone(counters),
            improver: Arc::clone(improver),
            lock,
        }
    }

    fn map(&self) -> MutexGuard<'_, TenantMap> {
        locked(&self.map)
    }

    /// Returns the tenant and creates it if needed. Reads the disk. `None` if the maximum number of tenants is in use.
    pub(super) fn get(&self, name: &str, published: &Arc<Published>) -> Option<Arc<Tenant>> {
        let key = (Arc::from(name), published.version);
        if let Some(tenant) = self.map().get(&key) {
            return Some(Arc::clone(tenant));
        }
        let names = self.names(published);
        let mut predictor = learned::predictor(self.settings.predict, self.settings.seg_max);
        // If a newer version has been here, its actions are on the disk, and those of the older one are not for it.
        let before = self.before(name, published.version);
        let before = before.filter(|before| self.is_newest(before));
        // A server that may not write saves nothing.
        let is_unsaved = before.is_some() && self.lock.is_some();
        match before {
            // Copy from memory, because it includes what is not saved yet.
            Some(before) => {
                let bytes = before.predictor().save(&*before.names);
                predictor.load(&bytes, &*names).ok();
            }
            None => self.load(name, &mut *predictor, &names),
        }
        // Loaded actions are not a change.
        predictor.take_changed();
        let tenant = Arc::new(Tenant {
            name: Arc::clone(&key.0),
            published: Arc::clone(published),
            names,
            predictor: Mutex::new(predictor),
            is_unsaved: AtomicBool::new(is_unsaved),
            has_failed: AtomicBool::new(false),
        });
        let (tenant, gone) = {
            let mut map = self.map();
            let mut gone = None;
            if map.len() >= self.settings.tenants_max && !map.contains_key(&key) {
                // Evict one that no device uses now, an older version of a tenant first.
                let idle = map.iter().filter(|(_, tenant)| is_idle(tenant));
                let idle = idle.min_by_key(|(_, tenant)| self.is_newest(tenant));
                let idle = idle.map(|(key, _)| key.clone())?;
                gone = map.remove(&idle);
                // While the map is locked, so that a sum of the counters has each tenant once.
                if let Some(gone) = &gone {
                    self.count_gone(gone);
                }
            }
            self.note(&key.0, key.1);
            (Arc::clone(map.entry(key).or_insert(tenant)), gone)
        };
        if let Some(gone) = gone
            && gone.is_to_save()
        {
            let _saving = locked(&self.saving);
            // Checked now: a newer version may have come while this thread waited.
            if self.is_newest(&gone) {
                self.save_one(&gone);
            }
        }
        // With this, a restarted server sends as few bytes as before.
        let mut tasks: Vec<_> = {
            let predictor = tenant.predictor();
            predictor
                .actions()
                .iter()
                .map(|action| action.task)
                .collect()
        };
        tasks.dedup();
        for task in tasks {
            let plan = tenant.predictor().plan(task);
            if let Some(plan) = plan {
                self.improver.plan(published, &plan);
            }
        }
        Some(tenant)
    }

    fn newest(&self) -> MutexGuard<'_, HashMap<Arc<str>, u64>> {
        locked(&self.newest)
    }

    /// Notes that a tenant is served at a version, so that older versions no longer write its file.
    pub(super) fn note(&self, name: &str, version: u64) {
        let mut newest = self.newest();
        let noted = newest.entry(Arc::from(name)).or_default();
        *noted = version.max(*noted);
    }

    /// Returns whether no newer version of the same tenant was served since the start.
    fn is_newest(&self, tenant: &Tenant) -> bool {
        self.newest().get(&tenant.name) == Some(&tenant.published.version)
    }

    /// Adds the counters of a tenant that leaves memory to those of the others that have left.
    fn count_gone(&self, tenant: &Tenant) {
        let mut gone = locked(&self.gone);
        *gone += tenant.predictor().counters();
    }

    /// Drops the older versions of tenants that no device uses now. Otherwise each publication would leave its
    /// predictors and its manifest in memory.
    fn drop_older(&self) {
        let mut map = self.map();
        let is_gone = |tenant: &Arc<Tenant>| is_idle(tenant) && !self.is_newest(tenant);
        for (_, tenant) in map.extract_if(|_, tenant| is_gone(tenant)) {
            self.count_gone(&tenant);
        }
    }

    /// Returns the same tenant at the highest lower version that is in memory.
    fn before(&self, name: &str, version: u64) -> Option<Arc<Tenant>> {
        let map = self.map();
        let same = map.values().filter(|tenant| *tenant.name == *name);
        let older = same.filter(|tenant| tenant.published.version < version);
        older
            .max_by_key(|tenant| tenant.published.version)
            .map(Arc::clone)
    }

    fn names(&self, published: &Published) -> Arc<Names> {
        let mut all = locked(&self.names);
        all.retain(|_, names| names.strong_count() > 0);
        if let Some(names) = all.get(&published.version).and_then(Weak::upgrade) {
            return names;
        }
        let names = Arc::new(Names::new(Arc::clone(&published.manifest)));
        all.insert(published.version, Arc::downgrade(&names));
        names
    }

    /// Returns the number of tenants.
    pub(super) fn count(&self) -> usize {
        self.map().len()
    }

    /// Ticks all predictors.
    pub(super) fn tick(&self, now_ms: u64) {
        for tenant in self.all() {
            tenant.predictor().tick(now_ms);
        }
    }

    /// Returns the sums of the counters of all predictors since the start.
    pub(super) fn counters(&self) -> Counters {
        let map = self.map();
        let mut sum = *locked(&self.gone);
        for tenant in map.values() {
            sum += tenant.predictor().counters();
        }
        sum
    }

    /// Returns the learned actions of all tenants of a version.
    pub(super) fn actions(&self, version: u64) -> Vec<ActionInfo> {
        self.all()
            .filter(|tenant| tenant.published.version == version)
            .flat_map(|tenant| tenant.predictor().actions())
            .collect()
    }

    /// Returns all tenants, one after another: if all were held at once, all would look used.
    fn all(&self) -> impl Iterator<Item = Arc<Tenant>> + use<> {
        let all: Vec<_> = self.map().values().map(Arc::downgrade).collect();
        all.into_iter().filter_map(|tenant| tenant.upgrade())
    }

    /// Saves what has changed. Writes to the disk. Of a tenant with several versions, only the newest one is written,
    /// since the next start serves that. What older versions learn meanwhile is lost.
    pub(super) fn save(&self) {
        let _saving = locked(&self.saving);
        self.drop_older();
        for tenant in self.all() {
            if tenant.is_to_save() && self.is_newest(&tenant) {
                self.save_one(&tenant);
            }
        }
    }

    fn save_one(&self, tenant: &Tenant) {
        if self.settings.predict == Mode::None {
            return;
        }
        if self.lock.is_none() {
            // Another server writes there; its learned actions would be lost.
            add(&self.counters.actions_unsaved, 1);
            return;
        }
        let bytes = tenant.predictor().save(&*tenant.names);
        match learned::save(&self.path(&tenant.name), &bytes) {
            Ok(()) => {
                tenant.is_unsaved.store(false, Ordering::Relaxed);
                tenant.has_failed.store(false, Ordering::Relaxed);
                add(&self.counters.actions_saved, 1);
            }
            Err(error) => {
                add(&self.counters.actions_unsaved, 1);
                // The server retries from now on, and logs this once.
                tenant.is_unsaved.store(true, Ordering::Relaxed);
                if !tenant.has_failed.swap(true, Ordering::Relaxed) {
                    let error = error.with_remedy();
                    self.settings
                        .log(&format!("learned actions cannot be saved: {error}"));
                }
            }
        }
    }

    fn path(&self, tenant: &str) -> PathBuf {
        learned::file(&self.settings.store, self.settings.predict, tenant)
    }

    /// Loads the learned actions of a tenant. Logs, counts and sets aside a damaged file.
    fn load(&self, name: &str, predictor: &mut dyn Predictor, names: &Names) {
        if self.settings.predict == Mode::None {
            return;
        }
        let path = self.path(name);
        let Err(error) = learned::load(&path, predictor, names) else {
            return;
        };
        add(&self.counters.actions_damaged, 1);
        let aside = match &error {
            LearnedError::Damaged { .. } if self.lock.is_some() => learned::set_aside(&path),
            LearnedError::Damaged { .. } | LearnedError::System { .. } | LearnedError::Busy(_) => {
                self.settings.log(&error.with_remedy());
                return;
            }
        };
        match aside {
            Ok(aside) => self.settings.log(&format!(
                "{error}; it is kept as {}, and learning begins anew",
                aside.display()
            )),
            Err(unmoved) => self
                .settings
                .log(&format!("{error}; {}", unmoved.with_remedy())),
        }
    }
}

/// Returns whether no device uses a tenant, whose only owner is then the map. Valid while the map is locked.
fn is_idle(tenant: &Arc<Tenant>) -> bool {
    Arc::strong_count(tenant) == 1
}
