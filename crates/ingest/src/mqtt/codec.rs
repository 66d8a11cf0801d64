//! The rare packets: written and read with the codec of `rumqttc`, which only gets whole packets of bounded size.

use super::options::{MqttOptions, Qos, Subscription, Version};
use super::packet::Malformed;
use bytes::BytesMut;
use rumqttc::mqttbytes::{QoS as Qos4, v4};
use rumqttc::v5::mqttbytes::{QoS as Qos5, v5};

/// Keep-alive probe, the same in both versions.
pub(super) const PINGREQ: [u8; 2] = [0xc0, 0];
/// Length of the answer to it.
pub(super) const PINGRESP_BYTES: usize = 2;

/// Why the node ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Farewell {
    Normal,
    Malformed,
}

/// The accepted CONNACK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Welcome {
    /// Whether the broker had kept the session.
    pub session_present: bool,
    /// The broker's keep-alive, which overrides the node's.
    pub keep_alive_seconds: Option<u16>,
    /// Whether the broker names the subscription of each message, if it was asked to.
    pub names_subscriptions: bool,
}

/// The result for one filter of a SUBSCRIBE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    Granted(u8),
    Refused(String),
}

/// Everything that [`MqttOptions::check`] accepts is small enough to be written.
const UNWRITABLE: &str = "a packet could not be written";

pub(super) fn connect(options: &MqttOptions) -> Result<BytesMut, &'static str> {
    let mut out = BytesMut::new();
    let username = options.username.clone().unwrap_or_default();
    let password = options.password.clone().unwrap_or_default();
    let written = match options.version {
        Version::V311 => {
            let mut packet = v4::Connect::new(options.client_id.as_str());
            packet.keep_alive = options.keep_alive_seconds;
            packet.clean_session = false;
            packet.set_login(username, password);
            packet.write(&mut out).is_ok()
        }
        Version::V5 => {
            let mut properties = v5::ConnectProperties::new();
            properties.session_expiry_interval = Some(options.session_expiry_seconds);
            properties.receive_maximum = Some(options.inflight_max);
            let packet = v5::Connect {
                keep_alive: options.keep_alive_seconds,
                client_id: options.client_id.clone(),
                clean_start: false,
                properties: Some(properties),
            };
            let login = v5::Login::new(username, password);
            packet.write(&None, &Some(login), &mut out).is_ok()
        }
    };
    written.then_some(out).ok_or(UNWRITABLE)
}

pub(super) fn subscribe(
    version: Version,
    packet_id: u16,
    wanted: &[Subscription],
    id: Option<u32>,
) -> Result<BytesMut, &'static str> {
    let mut out = BytesMut::new();
    let written = match version {
        Version::V311 => {
            let one = |wanted: &Subscription| {
                let qos = match wanted.qos {
                    Qos::AtMostOnce => Qos4::AtMostOnce,
                    Qos::AtLeastOnce => Qos4::AtLeastOnce,
                };
                v4::SubscribeFilter::new(wanted.filter.clone(), qos)
            };
            let mut packet = v4::Subscribe::new_many(wanted.iter().map(one));
            packet.pkid = packet_id;
            packet.write(&mut out).is_ok()
        }
        Version::V5 => {
            let one = |wanted: &Subscription| {
                let qos = match wanted.qos {
                    Qos::AtMostOnce => Qos5::AtMostOnce,
                    Qos::AtLeastOnce => Qos5::AtLeastOnce,
                };
                let mut filter = v5::Filter::new(wanted.filter.clone(), qos);
                // Retained messages are sent for a new subscription, not on each connection.
                filter.retain_forward_rule = v5::RetainForwardRule::OnNewSubscribe;
                filter
            };
            let properties = id.map(|id| v5::SubscribeProperties {
                id: Some(id as usize),
                user_properties: Vec::new(),
            });
            let mut packet = v5::Subscribe::new_many(wanted.iter().map(one), properties);
            packet.pkid = packet_id;
            packet.write(&mut out).is_ok()
        }
    };
    written.then_some(out).ok_or(UNWRITABLE)
}

pub(super) fn unsubscribe(
    version: Version,
    packet_id: u16,
    filters: &[String],
) -> Result<BytesMut, &'static str> {
    let mut out = BytesMut::new();
    let written = match version {
        Version::V311 => v4::Unsubscribe {
            pkid: packet_id,
            topics: filters.to_vec(),
        }
        .write(&mut out)
        .is_ok(),
        Version::V5 => v5::Unsubscribe {
            pkid: packet_id,
            filters: filters.to_vec(),
            properties: None,
        }
        .write(&mut out)
        .is_ok(),
    };
    written.then_some(out).ok_or(UNWRITABLE)
}

/// Writes a message that is sent once.
pub(super) fn publish(
    version: Version,
    topic: &str,
    payload: &[u8],
) -> Result<BytesMut, &'static str> {
    let mut out = BytesMut::new();
    let written = match version {
        Version::V311 => {
            let packet = v4::Publish::new(topic, Qos4::AtMostOnce, payload);
            packet.write(&mut out).is_ok()
        }
        Version::V5 => {
            let packet = v5::Publish::new(topic, Qos5::AtMostOnce, payload.to_vec(), None);
            packet.write(&mut out).is_ok()
        }
    };
    written.then_some(out).ok_or(UNWRITABLE)
}

pub(super) fn farewell(version: Version, farewell: Farewell) -> &'static [u8] {
    match (version, farewell) {
        (Version::V5, Farewell::Malformed) => &[0xe0, 1, 0x81],
        _ => &[0xe0, 0],
    }
}

/// Reads CONNACK; the inner error is the broker's refusal.
pub(super) fn welcome(
    version: Version,
    packet: &[u8],
) -> Result<Result<Welcome, String>, Malformed> {
    match version {
        Version::V311 => match v4::Packet::read(&mut BytesMut::from(packet), usize::MAX) {
            Ok(v4::Packet::ConnAck(ack)) if ack.code == v4::ConnectReturnCode::Success => {
                Ok(Ok(Welcome {
                    session_present: ack.session_present,
                    keep_alive_seconds: None,
                    names_subscriptions: false,
                }))
            }
            Ok(v4::Packet::ConnAck(ack)) => Ok(Err(words(&format!("{:?}", ack.code)))),
            _ => Err(Malformed("a CONNACK that cannot be read")),
        },
        // A broker that only speaks 3.1.1 answers in that version.
        Version::V5 if packet.len() == 4 => Ok(Err("it does not speak MQTT 5".into())),
        Version::V5 => match v5::Packet::read(&mut BytesMut::from(packet), None) {
            Ok(v5::Packet::ConnAck(ack)) if ack.code == v5::ConnectReturnCode::Success => {
                let found = ack.properties.as_ref();
                let names = found.and_then(|found| found.subscription_identifiers_available);
                Ok(Ok(Welcome {
                    session_present: ack.session_present,
                    keep_alive_seconds: found.and_then(|found| found.server_keep_alive),
                    names_subscriptions: names != Some(0),
                }))
            }
            Ok(v5::Packet::ConnAck(ack)) => {
                let reason = ack.properties.and_then(|found| found.reason_string);
                Ok(Err(
                    reason.unwrap_or_else(|| words(&format!("{:?}", ack.code)))
                ))
            }
            _ => Err(Malformed("a CONNACK that cannot be read")),
        },
    }
}

/// Reads SUBACK: its packet id, and one grant per filter.
pub(super) fn grants(version: Version, packet: &[u8]) -> Result<(u16, Vec<Grant>), Malformed> {
    let unreadable = Malformed("a SUBACK that cannot be read");
    match version {
        Version::V311 => match v4::Packet::read(&mut BytesMut::from(packet), usize::MAX) {
            Ok(v4::Packet::SubAck(ack)) => {
                let one = |code| match code {
                    v4::SubscribeReasonCode::Success(qos) => Grant::Granted(qos as u8),
                    v4::SubscribeReasonCode::Failure => Grant::Refused("not allowed".into()),
                };
                Ok((ack.pkid, ack.return_codes.into_iter().map(one).collect()))
            }
            _ => Err(unreadable),
        },
        Version::V5 => match v5::Packet::read(&mut BytesMut::from(packet), None) {
            Ok(v5::Packet::SubAck(ack)) => {
                let one = |code| match code {
                    v5::SubscribeReasonCode::Success(qos) => Grant::Granted(qos as u8),
                    other => Grant::Refused(words(&format!("{other:?}"))),
                };
                Ok((ack.pkid, ack.return_codes.into_iter().map(one).collect()))
            }
            _ => Err(unreadable),
        },
    }
}

/// Returns the reason of a broker's DISCONNECT. Parsed here because the codec refuses one without properties, which
/// brokers do send.
pub(super) fn reason_of_disconnect(packet: &[u8], header: usize) -> String {
    let code = packet.get(header).copied().unwrap_or(0);
    match v5::DisconnectReasonCode::try_from(code) {
        Ok(reason) => words(&format!("{reason:?}")),
        Err(_) => format!("reason {code}"),
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
