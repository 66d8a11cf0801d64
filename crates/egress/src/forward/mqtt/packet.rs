//! The packets that a publisher writes and reads, as functions on bytes. Nothing that a broker sends makes them panic.
//!
//! CONNECT and CONNACK go through the codec of `rumqttc`; the others are a few bytes long, and there are as many of
//! them as readings.

use super::super::options::MqttVersion;
use bytes::BytesMut;
use rumqttc::mqttbytes::v4;
use rumqttc::v5::mqttbytes::v5;

/// Size of the largest packet that a broker may send, in bytes: a publisher receives only short ones.
pub const PACKET_BYTES_MAX: usize = 64 << 10;
/// Keep-alive probe.
pub const PINGREQ: [u8; 2] = [0xc0, 0];
/// RETAIN flag in the first byte of a message: the broker keeps the message for later subscribers.
pub(crate) const RETAIN: u8 = 1;
/// DISCONNECT, in both versions.
pub const DISCONNECT: [u8; 2] = [0xe0, 0];

/// A protocol error: nothing after it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// The accepted CONNACK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The broker's keep-alive interval: it expects a packet from the node at least this often.
    pub keep_alive_seconds: Option<u16>,
    /// Largest number of unacknowledged messages that it allows.
    pub inflight_max: Option<u16>,
    /// Size of the largest packet that it accepts, in bytes.
    pub packet_bytes_max: Option<u32>,
}

/// What a broker sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Answer to CONNECT: accepted, or the reason why not.
    ConnAck(Result<Welcome, String>),
    /// Answer to a message: its packet id, and the reason (0 and 16: taken).
    PubAck(u16, u8),
    /// Answer to a keep-alive probe.
    PingResp,
    /// MQTT 5: the broker ends the connection: the reason code, and its meaning.
    Disconnect(u8, String),
}

/// Writes CONNECT. Each connection starts a clean session: messages without acknowledgement are in the log.
pub(crate) fn connect(
    version: MqttVersion,
    client_id: &str,
    login: Option<&(String, String)>,
    keep_alive_seconds: u16,
) -> Option<Vec<u8>> {
    let mut out = BytesMut::new();
    let (user, password) = login.cloned().unwrap_or_default();
    let written = match version {
        MqttVersion::V311 => {
            let mut packet = v4::Connect::new(client_id);
            packet.keep_alive = keep_alive_seconds;
            packet.clean_session = true;
            if login.is_some() {
                packet.set_login(user, password);
            }
            packet.write(&mut out).is_ok()
        }
        MqttVersion::V5 => {
            let packet = v5::Connect {
                keep_alive: keep_alive_seconds,
                client_id: client_id.to_owned(),
                clean_start: true,
                properties: None,
            };
            let login = login.map(|_| v5::Login::new(user, password));
            packet.write(&None, &login, &mut out).is_ok()
        }
    };
    written.then(|| out.to_vec())
}

/// Returns the size of a PUBLISH with QoS 1, in bytes.
pub(crate) fn publish_bytes(version: MqttVersion, topic: usize, payload: usize) -> usize {
    let rest = rest_bytes(version, topic, payload);
    1 + length_bytes(rest) + rest
}

fn rest_bytes(version: MqttVersion, topic: usize, payload: usize) -> usize {
    2 + topic + 2 + usize::from(version == MqttVersion::V5) + payload
}

fn length_bytes(value: usize) -> usize {
    match value {
        0..=0x7f => 1,
        0x80..=0x3fff => 2,
        0x4000..=0x1f_ffff => 3,
        _ => 4,
    }
}

/// Writes a message with QoS 1. The topic has at most 65,535 bytes.
pub fn publish(
    version: MqttVersion,
    packet_id: u16,
    topic: &[u8],
    payload: &[u8],
    out: &mut Vec<u8>,
) {
    let mut rest = rest_bytes(version, topic.len(), payload.len());
    out.reserve(5 + rest);
    out.push(0x32);
    loop {
        let byte = (rest & 0x7f) as u8;
        rest >>= 7;
        out.push(if rest > 0 { byte | 0x80 } else { byte });
        if rest == 0 {
            break;
        }
    }
    let topic_bytes = u16::try_from(topic.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&topic_bytes.to_be_bytes());
    out.extend_from_slice(&topic[..usize::from(topic_bytes)]);
    out.extend_from_slice(&packet_id.to_be_bytes());
    if version == MqttVersion::V5 {
        // No properties.
        out.push(0);
    }
    out.extend_from_slice(payload);
}

/// Reads the first packet of `bytes`. Returns it and its length; `None` if it is not complete yet.
///
/// # Errors
/// [`Malformed`].
pub fn next(bytes: &[u8], version: MqttVersion) -> Result<Option<(Packet, usize)>, Malformed> {
    let Some((&first, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let mut length = 0usize;
    let mut header = 1;
    loop {
        let Some(&byte) = rest.get(header - 1) else {
            return Ok(None);
        };
        length |= usize::from(byte & 0x7f) << (7 * (header - 1));
        header += 1;
        if byte & 0x80 == 0 {
            break;
        }
        if header > 4 {
            return Err(Malformed("a length of more than four bytes"));
        }
    }
    if length > PACKET_BYTES_MAX {
        return Err(Malformed("a packet above 64 KiB"));
    }
    let Some(packet) = bytes.get(..header + length) else {
        return Ok(None);
    };
    let body = &packet[header..];
    let packet_id = || match body {
        [high, low, ..] if (*high, *low) != (0, 0) => Ok(u16::from_be_bytes([*high, *low])),
        _ => Err(Malformed("an acknowledgement without a packet id")),
    };
    let found = match first {
        0x20 => Packet::ConnAck(welcome(version, packet)?),
        0x40 => match (version, body.len()) {
            (_, 2) => Packet::PubAck(packet_id()?, 0),
            (MqttVersion::V5, 3..) => Packet::PubAck(packet_id()?, body[2]),
            _ => return Err(Malformed("a PUBACK of a wrong length")),
        },
        0xd0 if body.is_empty() => Packet::PingResp,
        0xe0 if version == MqttVersion::V5 => {
            let code = body.first().copied().unwrap_or(0);
            let reason = match v5::DisconnectReasonCode::try_from(code) {
                Ok(reason) => words(&format!("{reason:?}")),
                Err(_) => format!("reason {code}"),
            };
            Packet::Disconnect(code, reason)
        }
        _ => return Err(Malformed("a packet that no publisher is sent")),
    };
    Ok(Some((found, header + length)))
}

fn welcome(version: MqttVersion, packet: &[u8]) -> Result<Result<Welcome, String>, Malformed> {
    let unreadable = Malformed("a CONNACK that cannot be read");
    let plain = Welcome {
        keep_alive_seconds: None,
        inflight_max: None,
        packet_bytes_max: None,
    };
    match version {
        MqttVersion::V311 => match v4::Packet::read(&mut BytesMut::from(packet), usize::MAX) {
            Ok(v4::Packet::ConnAck(ack)) => Ok(match ack.code {
                v4::ConnectReturnCode::Success => Ok(plain),
                code => Err(words(&format!("{code:?}"))),
            }),
            _ => Err(unreadable),
        },
        // A broker that only speaks 3.1.1 answers in that version.
        MqttVersion::V5 if packet.len() == 4 => Ok(Err("it does not speak MQTT 5".into())),
        MqttVersion::V5 => match v5::Packet::read(&mut BytesMut::from(packet), None) {
            Ok(v5::Packet::ConnAck(ack)) if ack.code == v5::ConnectReturnCode::Success => {
                let Some(found) = ack.properties else {
                    return Ok(Ok(plain));
                };
                if found.max_qos == Some(0) {
                    return Ok(Err("it takes no messages with QoS 1".into()));
                }
                if found.receive_max == Some(0) || found.max_packet_size == Some(0) {
                    return Err(Malformed("a CONNACK with a limit of 0"));
                }
                Ok(Ok(Welcome {
                    keep_alive_seconds: found.server_keep_alive,
                    inflight_max: found.receive_max,
                    packet_bytes_max: found.max_packet_size,
                }))
            }
            Ok(v5::Packet::ConnAck(ack)) => {
                let reason = ack.properties.and_then(|found| found.reason_string);
                let code = words(&format!("{:?}", ack.code));
                Ok(Err(reason.unwrap_or(code)))
            }
            _ => Err(unreadable),
        },
    }
}

/// Turns a name such as `NotAuthorized` into words.
fn words(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 8);
    for (index, letter) in name.chars().enumerate() {
        if letter.is_ascii_uppercase() && index > 0 {
            text.push(' ');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_readable_by_the_codec() {
        for (version, length) in [(MqttVersion::V311, 3), (MqttVersion::V5, 20_000)] {
            let payload = vec![b'x'; length];
            let mut out = Vec::new();
            publish(version, 77, b"a/b", &payload, &mut out);
            assert_eq!(out.len(), publish_bytes(version, 3, length));
            let mut bytes = BytesMut::from(&out[..]);
            let (topic, id, found) = match version {
                MqttVersion::V311 => match v4::Packet::read(&mut bytes, usize::MAX) {
                    Ok(v4::Packet::Publish(publish)) => {
                        (publish.topic.clone(), publish.pkid, publish.payload)
                    }
                    other => panic!("{other:?}"),
                },
                MqttVersion::V5 => match v5::Packet::read(&mut bytes, None) {
                    Ok(v5::Packet::Publish(publish)) => {
                        let topic = String::from_utf8_lossy(&publish.topic).into_owned();
                        (topic, publish.pkid, publish.payload)
                    }
                    other => panic!("{other:?}"),
                },
            };
            assert_eq!((topic.as_str(), id), ("a/b", 77));
            assert_eq!(&found[..], &payload[..]);
        }
    }

    #[test]
    fn answers_are_read_however_they_are_cut() {
        let stream = [
            &[0x20u8, 2, 0, 0][..],
            &[0x40, 2, 0, 5],
            &[0xd0, 0],
            &[0x40, 2, 1, 0],
        ]
        .concat();
        let version = MqttVersion::V311;
        let mut at = 0;
        let mut found = Vec::new();
        for end in 0..=stream.len() {
            while let Some((packet, length)) = next(&stream[at..end], version).unwrap() {
                found.push(packet);
                at += length;
            }
        }
        assert_eq!(found.len(), 4);
        assert_eq!(found[1], Packet::PubAck(5, 0));
        assert_eq!(found[3], Packet::PubAck(256, 0));
        assert!(matches!(&found[0], Packet::ConnAck(Ok(_))));
        let refused = next(&[0x20, 2, 0, 5], version).unwrap();
        assert!(matches!(refused, Some((Packet::ConnAck(Err(why)), 4)) if why.contains("auth")));
    }

    #[test]
    fn a_packet_that_no_publisher_gets_ends_the_connection() {
        for bytes in [
            &[0x30u8, 0][..],
            &[0x40, 2, 0, 0],
            &[0x40, 1, 0],
            &[0x40, 0xff, 0xff, 0xff, 0xff],
            &[0x20, 0xff, 0xff, 0x7f],
            &[0, 0],
            &[0xd0, 1, 0],
        ] {
            assert!(next(bytes, MqttVersion::V311).is_err(), "{bytes:?}");
        }
        assert_eq!(
            next(&[0x40, 4, 0, 9, 0x87, 0], MqttVersion::V5),
            Ok(Some((Packet::PubAck(9, 0x87), 6)))
        );
    }
}
