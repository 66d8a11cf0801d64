//! Options of a session: the broker's address, the subscriptions, and every limit.

use base::error::Code;
use std::fmt;

/// Largest number of subscriptions of one session.
pub const SUBSCRIPTIONS_MAX: usize = 1_000;
/// Longest topic filter, in bytes.
pub const FILTER_BYTES_MAX: usize = 1_024;
/// Longest client id, user name or password, in bytes.
pub const CREDENTIAL_BYTES_MAX: usize = 4_096;
/// Range of `packet_bytes_max`.
pub const PACKET_BYTES_RANGE: std::ops::RangeInclusive<usize> = 128..=(16 << 20);
/// Longest `connect_ms_max`, `reconnect_ms_min` and `reconnect_ms_max`: one hour.
pub const WAIT_MS_MAX: u64 = 3_600_000;

/// The protocol's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// MQTT 3.1.1.
    V311,
    /// MQTT 5.
    V5,
}

/// The delivery guarantee of a subscription. QoS 2 is not supported here: it costs two more packets per message and
/// prevents duplicates only while neither side restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    /// QoS 0: a message is sent once; it is lost if the connection fails or the node is away.
    AtMostOnce,
    /// QoS 1: a message is sent until it has been acknowledged, which happens once its readings are on flash.
    AtLeastOnce,
}

/// A topic filter and its QoS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// With `+` for one level and `#` for all further ones; `$share/NAME/` before it shares the subscription with other
    /// clients.
    pub filter: String,
    /// The requested QoS.
    pub qos: Qos,
}

/// The options of a session.
#[derive(Clone, PartialEq, Eq)]
pub struct MqttOptions {
    /// `host:port` of the broker.
    pub address: String,
    /// The protocol version to use.
    pub version: Version,
    /// Encrypts the connection; without it, the connection is plain.
    pub tls: Option<tls::Client>,
    /// The name of the session at the broker; no two nodes may have the same.
    pub client_id: String,
    /// Sent with CONNECT if set.
    pub username: Option<String>,
    /// Sent with CONNECT if set; MQTT 3.1.1 allows it only together with a user name.
    pub password: Option<String>,
    /// Keep-alive interval: the node sends a packet to the broker at least this often. At least 1.
    pub keep_alive_seconds: u16,
    /// How long the broker keeps the session while the node is away; the maximum means for ever. MQTT 5 only: with
    /// 3.1.1 the broker's own setting applies.
    pub session_expiry_seconds: u32,
    /// Largest message accepted, in bytes including its topic; larger ones are counted and skipped. Limits the memory
    /// of the session to the larger of this and 64 KiB, plus at most about 1 MiB for acknowledgements that are due.
    pub packet_bytes_max: usize,
    /// Largest number of unacknowledged messages. MQTT 5 tells the broker; at the limit the node stops reading. At
    /// least 1.
    pub inflight_max: u16,
    /// Timeout from the look-up of the address to the broker's CONNACK, with the handshake of TLS. Also for the answer
    /// to a SUBSCRIBE, from the last bytes of the broker on.
    pub connect_ms_max: u64,
    /// Wait after the first failed connection; doubled after each further one.
    pub reconnect_ms_min: u64,
    /// Longest wait between two connections. A connection that lasted this long resets the wait.
    pub reconnect_ms_max: u64,
    /// The subscriptions.
    pub subscriptions: Vec<Subscription>,
}

impl MqttOptions {
    /// Returns the defaults: MQTT 5, 30 s keep-alive, a session that never expires, and no subscription. Messages have
    /// up to 256 KiB, 65,535 may be in flight, and reconnection follows after 0.5 to 30 s.
    #[must_use]
    pub fn new(address: impl Into<String>, client_id: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            version: Version::V5,
            tls: None,
            client_id: client_id.into(),
            username: None,
            password: None,
            keep_alive_seconds: 30,
            session_expiry_seconds: u32::MAX,
            packet_bytes_max: 256 << 10,
            inflight_max: u16::MAX,
            connect_ms_max: 10_000,
            reconnect_ms_min: 500,
            reconnect_ms_max: 30_000,
            subscriptions: Vec::new(),
        }
    }

    /// Checks that every option is in its range.
    ///
    /// # Errors
    /// The first option that is out of range.
    pub fn check(&self) -> Result<(), OptionInvalid> {
        let port = self
            .address
            .rsplit_once(':')
            .filter(|(host, _)| !host.is_empty());
        if !port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0)) {
            return bad("address", "must be host:port");
        }
        text("client_id", &self.client_id, false)?;
        text(
            "username",
            self.username.as_deref().unwrap_or_default(),
            true,
        )?;
        text(
            "password",
            self.password.as_deref().unwrap_or_default(),
            true,
        )?;
        if self.version == Version::V311 && self.password.is_some() && self.username.is_none() {
            return bad("password", "MQTT 3.1.1 allows none without a username");
        }
        if self.keep_alive_seconds == 0 {
            return bad("keep_alive_seconds", "must be at least 1");
        }
        if !PACKET_BYTES_RANGE.contains(&self.packet_bytes_max) {
            return bad("packet_bytes_max", "must be from 128 to 16777216");
        }
        if self.inflight_max == 0 {
            return bad("inflight_max", "must be at least 1");
        }
        if !(1..=WAIT_MS_MAX).contains(&self.connect_ms_max) {
            return bad("connect_ms_max", "must be from 1 to 3600000");
        }
        if !(1..=WAIT_MS_MAX).contains(&self.reconnect_ms_max) {
            return bad("reconnect_ms_max", "must be from 1 to 3600000");
        }
        if !(1..=self.reconnect_ms_max).contains(&self.reconnect_ms_min) {
            return bad("reconnect_ms_min", "must be from 1 to reconnect_ms_max");
        }
        self.check_subscriptions()
    }

    fn check_subscriptions(&self) -> Result<(), OptionInvalid> {
        if self.subscriptions.len() > SUBSCRIPTIONS_MAX {
            return bad("subscriptions", "more than 1000");
        }
        let mut filters: Vec<&str> = Vec::with_capacity(self.subscriptions.len());
        for Subscription { filter, .. } in &self.subscriptions {
            if filter.len() > FILTER_BYTES_MAX {
                return bad("subscriptions", "a filter of more than 1024 bytes");
            }
            if filter.contains('\0') || !rumqttc::mqttbytes::valid_filter(filter) {
                return bad(
                    "subscriptions",
                    "not a topic filter: `+` and `#` stand alone between slashes, `#` at the end only",
                );
            }
            if filter.starts_with("$share/") && crate::pattern::check_filter(filter).is_err() {
                return bad(
                    "subscriptions",
                    "a shared subscription is `$share/NAME/FILTER` of at most 256 bytes",
                );
            }
            filters.push(filter);
        }
        filters.sort_unstable();
        if filters.windows(2).any(|pair| pair[0] == pair[1]) {
            return bad("subscriptions", "the same filter twice");
        }
        Ok(())
    }

    /// Returns whether a session with `other` can continue with these options: nothing differs that only CONNECT can
    /// say.
    #[must_use]
    pub(super) fn same_session(&self, other: &Self) -> bool {
        let without = |options: &Self| Self {
            packet_bytes_max: 0,
            connect_ms_max: 0,
            reconnect_ms_min: 0,
            reconnect_ms_max: 0,
            subscriptions: Vec::new(),
            inflight_max: match options.version {
                Version::V311 => 0,
                Version::V5 => options.inflight_max,
            },
            ..options.clone()
        };
        without(self) == without(other)
    }

    /// Returns whether the broker keeps the same session for both.
    pub(super) fn same_owner(&self, other: &Self) -> bool {
        (&self.address, &self.client_id, &self.username)
            == (&other.address, &other.client_id, &other.username)
    }
}

impl fmt::Debug for MqttOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secret = self.password.as_ref().map(|_| "(hidden)");
        formatter
            .debug_struct("MqttOptions")
            .field("address", &self.address)
            .field("version", &self.version)
            .field("tls", &self.tls)
            .field("client_id", &self.client_id)
            .field("username", &self.username)
            .field("password", &secret)
            .field("keep_alive_seconds", &self.keep_alive_seconds)
            .field("session_expiry_seconds", &self.session_expiry_seconds)
            .field("packet_bytes_max", &self.packet_bytes_max)
            .field("inflight_max", &self.inflight_max)
            .field("connect_ms_max", &self.connect_ms_max)
            .field("reconnect_ms_min", &self.reconnect_ms_min)
            .field("reconnect_ms_max", &self.reconnect_ms_max)
            .field("subscriptions", &self.subscriptions)
            .finish()
    }
}

/// An option out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {problem}")]
pub struct OptionInvalid {
    /// The field of [`MqttOptions`].
    pub option: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl OptionInvalid {
    /// Returns always [`Code::Invalid`].
    #[must_use]
    pub fn code(&self) -> Code {
        Code::Invalid
    }
}

fn bad(option: &'static str, problem: &'static str) -> Result<(), OptionInvalid> {
    Err(OptionInvalid { option, problem })
}

fn text(option: &'static str, text: &str, may_be_empty: bool) -> Result<(), OptionInvalid> {
    if text.is_empty() && !may_be_empty {
        return bad(
            option,
            "must not be empty: the broker keeps the session under it",
        );
    }
    if text.len() > CREDENTIAL_BYTES_MAX {
        return bad(option, "more than 4096 bytes");
    }
    if text.contains('\0') {
        return bad(option, "must not contain a zero byte");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut MqttOptions)) -> Option<&'static str> {
        let mut options = MqttOptions::new("localhost:1883", "node");
        change(&mut options);
        options.check().err().map(|error| error.option)
    }

    fn filters(filters: &[&str]) -> Vec<Subscription> {
        let one = |filter: &&str| Subscription {
            filter: (*filter).to_string(),
            qos: Qos::AtLeastOnce,
        };
        filters.iter().map(one).collect()
    }

    #[test]
    fn each_option_has_its_range() {
        assert_eq!(with(|_| ()), None);
        assert_eq!(with(|o| o.address = "[::1]:1883".into()), None);
        for address in ["", "host", ":1883", "host:0", "host:65536", "host:x"] {
            assert_eq!(with(|o| o.address = address.into()), Some("address"));
        }
        assert_eq!(with(|o| o.client_id = String::new()), Some("client_id"));
        assert_eq!(with(|o| o.username = Some("a\0b".into())), Some("username"));
        assert_eq!(with(|o| o.password = Some("x".into())), None);
        let alone = |o: &mut MqttOptions| {
            o.version = Version::V311;
            o.password = Some("x".into());
        };
        assert_eq!(with(alone), Some("password"));
        assert_eq!(
            with(|o| o.keep_alive_seconds = 0),
            Some("keep_alive_seconds")
        );
        assert_eq!(with(|o| o.packet_bytes_max = 127), Some("packet_bytes_max"));
        assert_eq!(with(|o| o.inflight_max = 0), Some("inflight_max"));
        assert_eq!(with(|o| o.connect_ms_max = 0), Some("connect_ms_max"));
        assert_eq!(
            with(|o| o.reconnect_ms_min = 30_001),
            Some("reconnect_ms_min")
        );
        assert_eq!(
            with(|o| o.reconnect_ms_max = u64::MAX),
            Some("reconnect_ms_max")
        );
        assert_eq!(
            with(|o| o.subscriptions =
                filters(&["a/+/b", "#", "a/#", "$share/g/a", "$share/g/#", "$shared/a"])),
            None
        );
        let shared = [
            "$share/",
            "$share/g",
            "$share/g/",
            "$share//a",
            "$share/+/a",
        ];
        for wrong in ["", "a+", "#/a", "a/b#", "a\0"].into_iter().chain(shared) {
            assert_eq!(
                with(|o| o.subscriptions = filters(&[wrong])),
                Some("subscriptions")
            );
        }
        assert_eq!(
            with(|o| o.subscriptions = filters(&["a", "b", "a"])),
            Some("subscriptions")
        );
    }

    #[test]
    fn the_password_is_not_shown() {
        let mut options = MqttOptions::new("localhost:1883", "node");
        options.password = Some("hunter2".into());
        assert!(!format!("{options:?}").contains("hunter2"));
    }

    #[test]
    fn only_fields_of_connect_need_another_connection() {
        let one = MqttOptions::new("localhost:1883", "node");
        let mut other = one.clone();
        other.subscriptions = filters(&["a"]);
        other.reconnect_ms_max += 1;
        assert!(one.same_session(&other) && one.same_owner(&other));
        other.keep_alive_seconds += 1;
        assert!(!one.same_session(&other) && one.same_owner(&other));
        other.client_id.push('2');
        assert!(!one.same_owner(&other));
    }
}
