//! Who may come in: connections that have not said who they are, and devices.

use super::State;
use super::counters::Reason;
use super::session::{Session, SessionKey};
use super::tenant::Tenant;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// The two lists.
#[derive(Default)]
pub(super) struct Admission {
    half_open: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    sessions: Mutex<HashMap<SessionKey, Arc<Session>>>,
}

impl Admission {
    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionKey, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn half_open(&self) -> MutexGuard<'_, BTreeMap<u64, oneshot::Sender<()>>> {
        self.half_open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection comes in; what it gets tells it that it has to go, because later ones need its place: who means
    /// well is done in some round trips, so that the oldest ones are those that do not.
    pub(super) fn knock(&self, id: u64, half_open_max: usize) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut half_open = self.half_open();
        while half_open.len() >= half_open_max.max(1) {
            half_open.pop_first();
        }
        half_open.insert(id, sender);
        receiver
    }

    /// A connection has said who it is, or has ended.
    pub(super) fn settle(&self, id: u64) {
        self.half_open().remove(&id);
    }

    /// A connection of a device comes in.
    pub(super) fn enter(
        &self,
        state: &State,
        device: [u8; 16],
        tenant: &Arc<Tenant>,
        id: u64,
        wake: &Arc<Notify>,
    ) -> Result<Arc<Session>, Reason> {
        let key = (Arc::clone(&tenant.name), device, tenant.published.version);
        let mut sessions = self.sessions();
        if !sessions.contains_key(&key) && sessions.len() >= state.settings.clients_max {
            return Err(Reason::Clients);
        }
        let session = sessions
            .entry(key)
            .or_insert_with(|| Arc::new(Session::new(Arc::clone(tenant))));
        if session.join(id, wake, state.settings.connections_max) {
            Ok(Arc::clone(session))
        } else {
            Err(Reason::Connections)
        }
    }

    /// A connection of a device has ended.
    pub(super) fn leave(&self, session: &Session, device: [u8; 16], id: u64, now_ms: u64) {
        let tenant = &session.tenant;
        for token in session.leave(id) {
            tenant.predictor().cut(token, now_ms);
        }
        let mut sessions = self.sessions();
        if session.connections() == 0 {
            let key = (Arc::clone(&tenant.name), device, tenant.published.version);
            // Another connection may have made a new one meanwhile.
            if sessions
                .get(&key)
                .is_some_and(|kept| std::ptr::eq(&**kept, session))
            {
                sessions.remove(&key);
            }
        }
    }

    /// Devices that are connected, connections, and tasks.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let sessions = self.sessions();
        sessions.values().fold((0, 0, 0), |sum, session| {
            let (connections, tasks) = (session.connections(), session.tasks());
            (sum.0 + 1, sum.1 + connections, sum.2 + tasks)
        })
    }

    /// Connections that have not said who they are.
    pub(super) fn half_open_count(&self) -> usize {
        self.half_open().len()
    }
}
