//! The part of MQTT 3.1.1 that publisher and checks need, hand-written for low cost.

/// First byte of a PUBLISH with QoS 1.
const PUBLISH_QOS1: u8 = 0x32;

/// Appends a CONNECT without credentials and without keep-alive.
pub(crate) fn connect(out: &mut Vec<u8>, client_id: &str, clean_session: bool) {
    let body_bytes = 10 + 2 + client_id.len();
    out.push(0x10);
    remaining_length(out, body_bytes);
    out.extend_from_slice(&[
        0,
        4,
        b'M',
        b'Q',
        b'T',
        b'T',
        4,
        u8::from(clean_session) << 1,
        0,
        0,
    ]);
    text(out, client_id);
}

/// Appends a PUBLISH with QoS 1.
pub(crate) fn publish(out: &mut Vec<u8>, topic: &str, packet_id: u16, payload: &[u8]) {
    out.push(PUBLISH_QOS1);
    remaining_length(out, 2 + topic.len() + 2 + payload.len());
    text(out, topic);
    out.extend_from_slice(&packet_id.to_be_bytes());
    out.extend_from_slice(payload);
}

fn text(out: &mut Vec<u8>, text: &str) {
    // Topics and names in this bench are always short.
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn remaining_length(out: &mut Vec<u8>, mut bytes: usize) {
    loop {
        let low = (bytes & 0x7f) as u8;
        bytes >>= 7;
        if bytes == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

/// Kind of a packet: the upper half of its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    ConnAck,
    Publish,
    PubAck,
    Other,
}

/// Returns the first complete packet in `bytes`: its kind, its body and its size in bytes. `None` if it is incomplete.
pub(crate) fn packet(bytes: &[u8]) -> Option<(Kind, &[u8], usize)> {
    let first = *bytes.first()?;
    let (mut length, mut at) = (0usize, 1);
    loop {
        let byte = *bytes.get(at)?;
        length |= usize::from(byte & 0x7f) << (7 * (at - 1));
        at += 1;
        if byte & 0x80 == 0 || at > 4 {
            break;
        }
    }
    let body = bytes.get(at..at + length)?;
    let kind = match first >> 4 {
        2 => Kind::ConnAck,
        3 => Kind::Publish,
        4 => Kind::PubAck,
        _ => Kind::Other,
    };
    Some((kind, body, at + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_read_back_whole_or_not_at_all() {
        let mut bytes = Vec::new();
        publish(&mut bytes, "a/b", 7, &[9; 200]);
        let (kind, body, taken) = packet(&bytes).unwrap();
        assert_eq!((kind, taken), (Kind::Publish, bytes.len()));
        assert_eq!(body[..5], [0, 3, b'a', b'/', b'b']);
        assert_eq!(body[5..7], [0, 7]);
        for cut in 0..bytes.len() {
            assert!(packet(&bytes[..cut]).is_none());
        }
    }

    #[test]
    fn a_connect_has_the_agreed_bytes() {
        let mut bytes = Vec::new();
        connect(&mut bytes, "x", true);
        assert_eq!(
            bytes,
            [
                0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, 1, b'x'
            ]
        );
    }
}
