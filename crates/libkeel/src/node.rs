//! A node as an external program uses it.

use crate::attachment::Attachment;
use crate::error::Error;
use crate::inbox;
use crate::key::{Key, check_key};
use crate::maintenance;
use crate::task::{Task, TaskSpec};
use crate::ticket::Ticket;
use db::Time;
use db::value::Value;
use std::path::Path;
use std::sync::Arc;

/// An attached node. Copies share the attachment; it ends when its last copy, key and task have been dropped.
#[derive(Clone)]
pub struct Node {
    attachment: Arc<Attachment>,
}

impl Node {
    /// Attaches to the node that serves `socket`. If the node keeps its values in a region, they are read there;
    /// otherwise the node is asked for each. Starts one thread.
    ///
    /// # Errors
    /// [`Code::NotFound`](base::error::Code::NotFound) and others if no node serves the socket,
    /// [`Code::Late`](base::error::Code::Late) if it does not answer within 2 s.
    pub fn attach(socket: impl AsRef<Path>) -> Result<Self, Error> {
        let socket = socket.as_ref();
        let opened = Attachment::connect(socket);
        let connection = opened.map_err(|error| Error::connection(socket.display(), &error))?;
        let (inbox, outbox) = inbox::pair()?;
        let attachment = Arc::new(Attachment::new(socket, connection, inbox));
        attachment.refresh();
        maintenance::start(outbox, Arc::downgrade(&attachment))?;
        Ok(Self { attachment })
    }

    /// Returns whether values are read in place, where the node writes them. Otherwise each read asks the node through
    /// its socket.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.attachment.is_shared()
    }

    /// Returns why values are not read in place, although the node announces them.
    #[must_use]
    pub fn why_not_shared(&self) -> Option<Error> {
        self.attachment.why_not_shared()
    }

    /// Returns whether the node that has written the values lived a tenth of a second ago. If they are not shared:
    /// whether it answers now.
    #[must_use]
    pub fn is_live(&self) -> bool {
        match self.is_shared() {
            true => self.attachment.was_live(),
            false => Attachment::connect(&self.attachment.socket).is_ok(),
        }
    }

    /// Returns a key. It need not exist yet.
    ///
    /// # Errors
    /// [`Code::Invalid`](base::error::Code::Invalid) unless it has 1 to 255 bytes without control or invisible
    /// characters, and no level that is `+` or `#` alone.
    pub fn key(&self, name: &str) -> Result<Key, Error> {
        check_key(name)?;
        Ok(Key::new(&self.attachment, name))
    }

    /// Sends a reading to the node and does not wait for it; see [`Key::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(&self, key: &Key, value: Value<'_>, time_ms: Option<i64>) -> Result<Ticket, Error> {
        key.send(&self.attachment, value, time_ms.map(Time::from_ms))
    }

    /// As [`put`](Self::put), with a time in ns since 1970; see [`Key::put_ns`].
    ///
    /// # Errors
    /// As there.
    pub fn put_ns(
        &self,
        key: &Key,
        value: Value<'_>,
        time_ns: Option<i64>,
    ) -> Result<Ticket, Error> {
        key.send(&self.attachment, value, time_ns.map(Time::from_ns))
    }

    /// Prepares a periodic task, which begins with its first [`Task::next_instance`].
    ///
    /// # Errors
    /// [`Code::Invalid`](base::error::Code::Invalid) for times, a name or a weight that no node accepts.
    pub fn periodic_task(&self, spec: TaskSpec) -> Result<Task, Error> {
        self.attachment.usable()?;
        Task::new(&self.attachment, spec)
    }
}
