//! Acknowledgements that are due, in the order in which their messages arrived.

use std::collections::VecDeque;

const PUBACK: u8 = 0x40;
const PUBREC: u8 = 0x50;
const PUBCOMP: u8 = 0x70;
/// Size of an acknowledgement in bytes. MQTT 5 omits the reason code for success, so both versions look the same.
const ACK_BYTES: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Ack {
    lsn_end: u64,
    packet_id: u16,
    kind: u8,
}

/// The queue; [`super::MqttOptions::inflight_max`] bounds it.
#[derive(Debug, Default)]
pub(super) struct Acks {
    queue: VecDeque<Ack>,
}

impl Acks {
    /// Adds a message of QoS 1 or 2 that has been taken; it is durable when `lsn_end` readings are (0: nothing of it
    /// was kept).
    pub(super) fn push(&mut self, packet_id: u16, qos: u8, lsn_end: u64) {
        let kind = if qos == 2 { PUBREC } else { PUBACK };
        self.queue.push_back(Ack {
            lsn_end,
            packet_id,
            kind,
        });
    }

    /// Appends the acknowledgements that are allowed now to `out`, as long as that stays below `out_bytes_max`. Returns
    /// how many.
    pub(super) fn collect(
        &mut self,
        durable_end: u64,
        out: &mut Vec<u8>,
        out_bytes_max: usize,
    ) -> u64 {
        let mut count = 0;
        while let Some(ack) = self.queue.front() {
            // A message that is not durable delays all later acknowledgements: brokers want them in order.
            if ack.lsn_end > durable_end || out.len() + ACK_BYTES > out_bytes_max {
                break;
            }
            append(out, ack.kind, ack.packet_id);
            self.queue.pop_front();
            count += 1;
        }
        count
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Writes the last step of QoS 2, which follows the broker's PUBREL at once.
pub(super) fn complete(out: &mut Vec<u8>, packet_id: u16) {
    append(out, PUBCOMP, packet_id);
}

fn append(out: &mut Vec<u8>, kind: u8, packet_id: u16) {
    let id = packet_id.to_be_bytes();
    out.extend_from_slice(&[kind, 2, id[0], id[1]]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_wait_behind_a_message_that_is_not_durable() {
        let mut acks = Acks::default();
        let mut out = Vec::new();
        acks.push(1, 1, 5);
        acks.push(2, 1, 0);
        acks.push(3, 2, 6);
        assert_eq!(acks.collect(4, &mut out, 100), 0);
        assert_eq!(acks.collect(5, &mut out, 100), 2);
        assert_eq!(out, [0x40, 2, 0, 1, 0x40, 2, 0, 2]);
        assert_eq!(acks.collect(6, &mut out, 11), 0);
        assert_eq!(acks.collect(6, &mut out, 12), 1);
        assert_eq!(out[8..], [0x50, 2, 0, 3]);
        assert!(acks.is_empty());
        complete(&mut out, 0x0102);
        assert_eq!(out[12..], [0x70, 2, 1, 2]);
    }
}
