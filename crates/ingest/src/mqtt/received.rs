//! Messages of QoS 2 that have been taken and not released: the broker sends one again when it has heard no PUBREC, and
//! it is one message all the same. The session at the broker outlives connections, and so does this.

use std::collections::HashMap;

/// Packet identifiers, each with how many readings are durable when its message is. There are 65,535 of them.
#[derive(Debug, Default)]
pub(super) struct Received(HashMap<u16, u64>);

impl Received {
    /// A message has been taken; it is durable when `lsn_end` readings are.
    pub(super) fn take(&mut self, packet_id: u16, lsn_end: u64) {
        self.0.insert(packet_id, lsn_end);
    }

    /// When a message that came before is durable; `None` where it is a new one.
    pub(super) fn before(&self, packet_id: u16) -> Option<u64> {
        self.0.get(&packet_id).copied()
    }

    /// PUBREL: the next message with this identifier is another one.
    pub(super) fn release(&mut self, packet_id: u16) {
        self.0.remove(&packet_id);
    }

    /// The broker knows nothing of the session.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}
