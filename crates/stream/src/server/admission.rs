//! Admission: connections without `Hello`, and devices.

use super::counters::Reason;
use super::session::{Session, SessionKey};
use super::settings::Settings;
use super::tenant::Tenant;
use crate::sync::locked;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

/// The list of connections without `Hello`, and that of devices.
#[derive(Default)]
pub(super) struct Admission {
    half_open: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
    sessions: Mutex<Sessions>,
}

/// Connected devices, and their number for each certificate.
#[derive(Default)]
struct Sessions {
    map: HashMap<SessionKey, Arc<Session>>,
    of_certificate: HashMap<[u8; 32], usize>,
}

impl Sessions {
    /// Checks whether a new device may be admitted.
    fn has_room(&self, certificate: Option<[u8; 32]>, settings: &Settings) -> Result<(), Reason> {
        if self.map.len() >= settings.clients_max {
            return Err(Reason::Clients);
        }
        let of_certificate = certificate.and_then(|of| self.of_certificate.get(&of));
        match of_certificate {
            Some(count) if *count >= settings.clients_of_certificate_max => {
                Err(Reason::ClientsOfCertificate)
            }
            _ => Ok(()),
        }
    }

    fn insert(&mut self, key: SessionKey, session: Arc<Session>) {
        if let Some(certificate) = key.certificate {
            *self.of_certificate.entry(certificate).or_default() += 1;
        }
        self.map.insert(key, session);
    }

    fn remove(&mut self, key: &SessionKey) {
        if self.map.remove(key).is_none() {
            return;
        }
        if let Some(certificate) = key.certificate
            && let Entry::Occupied(mut count) = self.of_certificate.entry(certificate)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl Admission {
    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        locked(&self.sessions)
    }

    fn half_open(&self) -> MutexGuard<'_, BTreeMap<u64, oneshot::Sender<()>>> {
        locked(&self.half_open)
    }

    /// Registers a new connection. The receiver tells it to close because later connections need its place. An honest
    /// device completes `Hello` within a few round trips, so the oldest connections are most likely the others.
    pub(super) fn knock(&self, id: u64, half_open_max: usize) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut half_open = self.half_open();
        while half_open.len() >= half_open_max.max(1) {
            half_open.pop_first();
        }
        half_open.insert(id, sender);
        receiver
    }

    /// Removes a connection that has completed `Hello` or has ended.
    pub(super) fn settle(&self, id: u64) {
        self.half_open().remove(&id);
    }

    /// Admits a connection of a device.
    pub(super) fn enter(
        &self,
        settings: &Settings,
        key: &SessionKey,
        tenant: &Arc<Tenant>,
        id: u64,
        wake: &Arc<Notify>,
    ) -> Result<Arc<Session>, Reason> {
        let mut sessions = self.sessions();
        if let Some(session) = sessions.map.get(key) {
            return match session.join(id, wake, settings.connections_max) {
                true => Ok(Arc::clone(session)),
                false => Err(Reason::Connections),
            };
        }
        sessions.has_room(key.certificate, settings)?;
        let session = Arc::new(Session::new(Arc::clone(tenant)));
        if !session.join(id, wake, settings.connections_max) {
            return Err(Reason::Connections);
        }
        sessions.insert(key.clone(), Arc::clone(&session));
        Ok(session)
    }

    /// Removes a connection of a device.
    pub(super) fn leave(&self, session: &Session, key: &SessionKey, id: u64, now_ms: u64) {
        let tenant = &session.tenant;
        for token in session.leave(id) {
            tenant.predictor().cut(token, now_ms);
        }
        let mut sessions = self.sessions();
        // Another connection may have created a new session meanwhile.
        let is_this = |kept: &Arc<Session>| std::ptr::eq(&**kept, session);
        if session.connections() == 0 && sessions.map.get(key).is_some_and(is_this) {
            sessions.remove(key);
        }
    }

    /// Returns the numbers of connected devices, connections, and tasks.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let sessions = self.sessions();
        sessions.map.values().fold((0, 0, 0), |sum, session| {
            let (connections, tasks) = (session.connections(), session.tasks());
            (sum.0 + 1, sum.1 + connections, sum.2 + tasks)
        })
    }

    /// Returns the number of connections without `Hello`.
    pub(super) fn half_open_count(&self) -> usize {
        self.half_open().len()
    }
}
