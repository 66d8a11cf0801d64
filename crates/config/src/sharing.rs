//! Checks what parts of a configuration must not share: a client id at a broker, a port, and a topic with readings in
//! both directions.

use super::Config;
use egress::forward::Target;
use ingest::intake::{JsonTake, PayloadKind};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Returns the warnings for the owner.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = clients(config);
    warnings.extend(ports(config));
    warnings.extend(circles(config));
    warnings.extend(keys(config));
    warnings.extend(registers(config));
    warnings.extend(names(config));
    warnings.extend(topics(config));
    warnings
}

/// Warns of several keys whose numbers go to one topic: a subscriber cannot tell the keys apart.
fn topics(config: &Config) -> Vec<String> {
    let unclear = config
        .upstream
        .iter()
        .filter(|one| !one.options.tells_keys_apart());
    unclear
        .map(|upstream| {
            format!(
                "upstream {} may send several keys to one topic, and the payload does not say which; put {{key}} into \
                 its topic, set payload = \"json\", or narrow the patterns of its keys",
                upstream.options.name
            )
        })
        .collect()
}

/// Warns of several single-value topics with one key: their readings cannot be told apart later. Lines and metrics of
/// Sparkplug have their own keys.
fn keys(config: &Config) -> Vec<String> {
    let subscribe = config.mqtt.iter().flat_map(|mqtt| &mqtt.subscribe);
    let rules: Vec<_> = subscribe
        .filter(|rule| !matches!(rule.payload, PayloadKind::Line | PayloadKind::Sparkplug(_)))
        .filter(|rule| !rule.key.contains("{topic}"))
        .map(|rule| (rule, levels(&rule.filter)))
        .collect();
    let mut warnings = Vec::new();
    for (place, (rule, levels)) in rules.iter().enumerate() {
        let is_drawn = |at: usize| rule.key.contains(&format!("{{{}}}", at + 1));
        let is_open = |(at, level): (usize, &&str)| *level == "#" || *level == "+" && !is_drawn(at);
        if levels.iter().enumerate().any(is_open) {
            warnings.push(format!(
                "mqtt.subscribe {} makes one key of several topics: `+` and `#` stand for levels that key \"{}\" \
                 leaves out, and their readings share a history; use {{topic}}, or a filter for each, unless that \
                 is meant",
                rule.filter, rule.key
            ));
        }
        for (other, theirs) in &rules[..place] {
            let pairs = || levels.iter().zip(theirs).enumerate();
            let is_other =
                |(at, (one, other)): (usize, (&&str, &&str))| one != other && !is_drawn(at);
            // Whether the key distinguishes two topics by a level that both have.
            let is_clear = |(at, (one, other)): (usize, (&&str, &&str))| {
                one != other && !is_wild(one) && !is_wild(other) && is_drawn(at)
            };
            let may_share = levels.len() != theirs.len() || pairs().any(is_other);
            if rule.key == other.key && may_share && !pairs().any(is_clear) {
                warnings.push(format!(
                    "mqtt.subscribe {} and {} make the same keys (\"{}\"): their readings share a history; give each a \
                     key of its own, unless that is meant",
                    other.filter, rule.filter, rule.key
                ));
            }
        }
    }
    warnings
}

/// Warns of registers of Modbus devices whose key every message of a subscription of one value has. Nothing tells which
/// of the two a later reading is of. Keys that only some topics, paths or lines have are not told.
fn registers(config: &Config) -> Vec<String> {
    let registers = config.modbus.iter().flat_map(|device| &device.registers);
    let keys: BTreeSet<&str> = registers.map(|register| register.key.as_str()).collect();
    let subscribe = config.mqtt.iter().flat_map(|mqtt| &mqtt.subscribe);
    subscribe
        .filter_map(|rule| {
            let topic = of_group(&rule.filter);
            let mut key = rule.key.clone();
            if !topic.split('/').any(is_wild) {
                key = key.replace("{topic}", topic);
                for (at, level) in topic.split('/').enumerate() {
                    key = key.replace(&format!("{{{}}}", at + 1), level);
                }
            }
            keys.contains(key.as_str()).then(|| {
                format!(
                    "mqtt.subscribe {} and a [[modbus.register]] have the key \"{key}\": their readings share a \
                     history; give each a key of its own, unless that is meant",
                    rule.filter
                )
            })
        })
        .collect()
}

/// Warns of one name for several paths: of a message that has both, only one value gets the key. Without a name nothing
/// is lost: what lies below the paths tells the keys apart.
fn names(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    for rule in config.mqtt.iter().flat_map(|mqtt| &mqtt.subscribe) {
        let PayloadKind::Json(json) = &rule.payload else {
            continue;
        };
        let JsonTake::Several(members) = &json.take else {
            continue;
        };
        let mut names = BTreeSet::new();
        let own = members.own.iter().filter_map(|own| own.name.as_deref());
        for name in own.filter(|name| !name.is_empty()) {
            if !names.insert(name) {
                warnings.push(format!(
                    "mqtt.subscribe {} gives the name \"{name}\" to several paths: in a message that has them, the \
                     first keeps the key and the others are refused (key_shared); give each another, unless a device \
                     sends one of them only",
                    rule.filter
                ));
            }
        }
    }
    warnings
}

/// Returns the levels of the topics that a filter matches.
fn levels(filter: &str) -> Vec<&str> {
    of_group(filter).split('/').collect()
}

fn is_wild(level: &str) -> bool {
    matches!(level, "+" | "#")
}

/// Returns a shared filter without the name of its group.
fn of_group(filter: &str) -> &str {
    match filter.strip_prefix("$share/") {
        Some(rest) => rest.split_once('/').map_or("", |(_, filter)| filter),
        None => filter,
    }
}

fn input_broker(config: &Config) -> Option<String> {
    let mqtt = config.mqtt.as_ref()?;
    let (host, port) = (&mqtt.host, mqtt.port);
    Some(match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    })
}

/// Warns of a shared client id: a broker disconnects a client when another one with the same id connects.
fn clients(config: &Config) -> Vec<String> {
    let mut users: BTreeMap<(String, &str), Vec<String>> = BTreeMap::new();
    if let (Some(address), Some(mqtt)) = (input_broker(config), &config.mqtt) {
        let users = users.entry((address, &mqtt.client_id)).or_default();
        users.push("[mqtt]".to_owned());
    }
    for upstream in &config.upstream {
        if let Target::Mqtt {
            address, client_id, ..
        } = &upstream.options.target
        {
            let users = users.entry((address.clone(), client_id)).or_default();
            users.push(format!("upstream {}", upstream.options.name));
        }
    }
    for broker in &config.urgent.brokers {
        let of = (
            broker.options.address.clone(),
            broker.options.client_id.as_str(),
        );
        let users = users.entry(of).or_default();
        users.push(format!("broker {}", broker.options.name));
    }
    let shared = users.into_iter().filter(|(_, users)| users.len() > 1);
    shared
        .map(|((address, client_id), users)| {
            format!(
                "{} have the same client_id \"{client_id}\" at {address}: each ends the connection of the other; \
                 give each its own",
                users.join(" and ")
            )
        })
        .collect()
}

fn ports(config: &Config) -> Option<String> {
    let (line, http) = (config.line.tcp_listen?, config.http.as_ref()?.listen);
    // `::` also accepts IPv4 connections.
    let takes_all =
        |one: IpAddr, other: IpAddr| one.is_unspecified() && (one.is_ipv6() || other.is_ipv4());
    let same_address = line.ip() == http.ip()
        || takes_all(line.ip(), http.ip())
        || takes_all(http.ip(), line.ip());
    (same_address && line.port() == http.port() && line.port() != 0).then(|| {
        format!("line.tcp_listen {line} and http.listen {http} are the same port; give one of them another")
    })
}

/// Warns of a circle: a reading sent to a topic that the node subscribes to returns as another reading, and is sent
/// again.
fn circles(config: &Config) -> Vec<String> {
    let (Some(input), Some(mqtt)) = (input_broker(config), &config.mqtt) else {
        return Vec::new();
    };
    let mut warnings = Vec::new();
    for upstream in &config.upstream {
        let Target::Mqtt { address, topic, .. } = &upstream.options.target else {
            continue;
        };
        let mut filters = mqtt.subscribe.iter().map(|subscribe| &subscribe.filter);
        if *address == input
            && let Some(filter) = filters.find(|filter| may_fit(filter, topic))
        {
            warnings.push(format!(
                "upstream {} sends to {topic} at {input}, where mqtt.subscribe {filter} may take it: a reading then \
                 comes back and goes again, for ever; change one of them",
                upstream.options.name
            ));
        }
    }
    warnings
}

/// Returns whether a filter matches a topic that is made from a template.
fn may_fit(filter: &str, template: &str) -> bool {
    let (mut filter, mut topic) = (of_group(filter).split('/'), template.split('/'));
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) | (None, None) => return true,
            // A key has any number of levels.
            (Some(wanted), Some(level)) if level.contains("{key}") => {
                let literal = level.split('{').next().unwrap_or("");
                return wanted == "+" || wanted.starts_with(literal);
            }
            (Some(_), Some(level)) if level.contains('{') => {}
            (Some("+"), Some(_)) => {}
            (Some(wanted), Some(level)) if wanted == level => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_filter_accepts_the_topics_of_a_template() {
        for (filter, template, fits) in [
            ("#", "keel/{key}", true),
            ("keel/#", "keel/{key}", true),
            ("keel/+", "keel/{key}", true),
            ("keel/+/x", "keel/{1}/x", true),
            ("$share/g/keel/#", "keel/{key}", true),
            ("keel", "keel", true),
            ("keel/#", "keel", true),
            ("sensors/#", "keel/{key}", false),
            ("keel/+/y", "keel/{1}/x", false),
            ("keel/+", "keel", false),
            ("keel", "keel/all", false),
            ("keel", "keel/{key}", false),
            ("other/#", "site-{key}", false),
            ("site-a/#", "site-{key}", true),
        ] {
            assert_eq!(may_fit(filter, template), fits, "{filter} {template}");
        }
    }

    #[test]
    fn topics_that_come_to_one_key_are_warned_of() {
        let found = |rules: &[(&str, &str)]| {
            let rules: String = rules
                .iter()
                .map(|(filter, more)| {
                    format!("[[mqtt.subscribe]]\nfilter = \"{filter}\"\n{more}\n")
                })
                .collect();
            let text = format!("[mqtt]\naddress = \"h:1883\"\nclient_id = \"me\"\n{rules}");
            let config = Config::parse(&text, "keel.toml", Path::new(""));
            keys(&config.map_err(|error| error.to_string()).unwrap())
        };
        let key = |text| format!("key = \"{text}\"");
        let (first, second, all) = (key("k/{2}"), key("{1}/{2}"), key("x/{topic}"));
        for rules in [
            &[("a/#", ""), ("b/#", all.as_str())][..],
            &[("a/+", &first)],
            &[("a/+/t", &second), ("b/+/t", &second)],
            &[("a/+", "key = \"a/{2}\""), ("b/+", "key = \"b/{2}\"")],
            &[("a/#", "payload = \"line\""), ("b/#", "payload = \"line\"")],
            // An exception beside its rule, and two groups: each key belongs to one topic.
            &[("p/7/state", &first), ("p/+/state", &first)],
            &[("$share/g/a/+", &first), ("$share/h/a/+", &first)],
        ] {
            assert_eq!(found(rules), [""; 0], "{rules:?}");
        }
        let one = found(&[("js/+/#", &first)]);
        assert_eq!(one.len(), 1);
        assert!(one[0].starts_with("mqtt.subscribe js/+/# makes one key of several topics"));
        assert_eq!(found(&[("$share/g/+/x", &first)]).len(), 1);
        let two = found(&[("m/+/temp", &first), ("m/+/hum", &first)]);
        assert_eq!(two.len(), 1);
        assert!(
            two[0]
                .starts_with("mqtt.subscribe m/+/temp and m/+/hum make the same keys (\"k/{2}\")")
        );
    }

    #[test]
    fn a_register_and_a_topic_with_one_key_are_warned_of() {
        let found = |filter: &str, more: &str| {
            let text = format!(
                "[mqtt]\naddress = \"h:1883\"\nclient_id = \"me\"\n[[mqtt.subscribe]]\nfilter = \"{filter}\"\n{more}\n\
                 [[modbus]]\naddress = \"tcp://h:502\"\n[[modbus.register]]\nkey = \"hall/level\"\n\
                 table = \"input\"\naddress = 0\n"
            );
            let config = Config::parse(&text, "keel.toml", Path::new(""));
            warnings(&config.map_err(|error| error.to_string()).unwrap())
        };
        for (filter, more) in [
            ("hall/level", ""),
            ("$share/g/hall/level", ""),
            ("other", "key = \"hall/level\""),
            ("level", "key = \"hall/{topic}\""),
            ("x/hall/level", "key = \"{2}/{3}\""),
        ] {
            let expected = format!(
                "mqtt.subscribe {filter} and a [[modbus.register]] have the key \"hall/level\": their readings share \
                 a history; give each a key of its own, unless that is meant"
            );
            assert_eq!(found(filter, more), [expected], "{filter} {more}");
        }
        for (filter, more) in [
            ("hall/#", ""),
            ("hall/other", ""),
            ("hall/level", "key = \"mqtt/{topic}\""),
        ] {
            assert_eq!(found(filter, more), [""; 0], "{filter} {more}");
        }
    }

    #[test]
    fn one_name_for_two_paths_is_warned_of() {
        let found = |second: &str| {
            let field = |path: &str, name: &str| {
                format!("[[mqtt.subscribe.field]]\npath = \"{path}\"\nname = \"{name}\"\n")
            };
            let text = format!(
                "[mqtt]\naddress = \"h:1883\"\nclient_id = \"me\"\n[[mqtt.subscribe]]\nfilter = \"a/+\"\n\
                 payload = \"json\"\n{}{}",
                field("temp", "t"),
                field("temperature", second)
            );
            let config = Config::parse(&text, "keel.toml", Path::new(""));
            warnings(&config.map_err(|error| error.to_string()).unwrap())
        };
        assert_eq!(found("u"), [""; 0]);
        let same = found("t");
        assert_eq!(same.len(), 1, "{same:?}");
        assert!(same[0].starts_with("mqtt.subscribe a/+ gives the name \"t\" to several paths"));
    }

    #[test]
    fn shared_addresses_and_names_give_a_warning() {
        let text = "[line]\ntcp_listen = \"127.0.0.1:8094\"\n[http]\nlisten = \"127.0.0.1:8094\"\n\
            [mqtt]\naddress = \"h:1883\"\nclient_id = \"me\"\n[[mqtt.subscribe]]\nfilter = \"keel/#\"\n\
            [[upstream]]\nname = \"up\"\nkind = \"mqtt\"\naddress = \"h:1883\"\nclient_id = \"me\"\n";
        let found = |text: &str| {
            let config =
                Config::parse(text, "keel.toml", Path::new("")).map_err(|error| error.to_string());
            let config = config.unwrap();
            warnings(&config)
        };
        let all = found(text);
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(
            all[0].starts_with("[mqtt] and upstream up have the same client_id \"me\" at h:1883")
        );
        assert!(all[1].contains("are the same port"));
        assert!(all[2].starts_with(
            "upstream up sends to keel/{key} at h:1883, where mqtt.subscribe keel/# may take it"
        ));
        let number = |topic: &str| format!("{text}payload = \"number\"\ntopic = \"up/{topic}\"\n");
        let one = found(&number("{1}"));
        assert!(
            one.last()
                .unwrap()
                .starts_with("upstream up may send several keys to one topic")
        );
        assert_eq!(found(&number("{key}")).len(), 2);
        let apart = text
            .replacen("8094", "8095", 1)
            .replace("filter = \"keel/#\"", "filter = \"in/#\"")
            .replacen("client_id = \"me\"", "client_id = \"in\"", 1);
        assert_eq!(found(&apart), [""; 0]);
    }
}
