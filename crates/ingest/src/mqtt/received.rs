//! Messages of QoS 2 that have been taken and not released. The broker repeats such a message when it has received no
//! PUBREC. The broker's session outlives connections, and so does this state.

use std::collections::HashMap;

/// Packet identifiers, each with the number of readings that must be durable for its message. There are at most 65,535
/// of them.
#[derive(Debug, Default)]
pub(super) struct Received(HashMap<u16, u64>);

impl Received {
    /// Adds a message that has been taken; it is durable when `lsn_end` readings are.
    pub(super) fn take(&mut self, packet_id: u16, lsn_end: u64) {
        self.0.insert(packet_id, lsn_end);
    }

    /// Returns when a repeated message is durable (its `lsn_end`); `None` if the message is new.
    pub(super) fn before(&self, packet_id: u16) -> Option<u64> {
        self.0.get(&packet_id).copied()
    }

    /// Handles PUBREL: the next message with this identifier is another one.
    pub(super) fn release(&mut self, packet_id: u16) {
        self.0.remove(&packet_id);
    }

    /// Forgets everything, because the broker does not know the session.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}
