//! Settings of TLS: what they mean, what is refused, and what is warned of.

use super::*;
use authority::{Authority, Folder, Purpose};
use base::clock::{Clock, SystemClock};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

#[path = "../../tls/tests/authority.rs"]
mod authority;

const MQTT: &str = "[mqtt]\naddress = \"h:8883\"\nclient_id = \"k\"\n";
const SUBSCRIBE: &str = "[[mqtt.subscribe]]\nfilter = \"#\"\n";
const BROKER: &str = "[[broker]]\nname = \"b\"\naddress = \"h:8883\"\nclient_id = \"c\"\n";
const MQTT_UP: &str =
    "[[upstream]]\nname = \"u\"\nkind = \"mqtt\"\naddress = \"h:8883\"\nclient_id = \"c\"\n";
const HTTP_UP: &str = "[[upstream]]\nname = \"u\"\nkind = \"http\"\n";

fn parse_in(text: &str, folder: &Path) -> Result<Config, String> {
    Config::parse(text, "keel.toml", folder).map_err(|error| error.to_string())
}

fn parse(text: &str) -> Result<Config, String> {
    parse_in(text, Path::new("/etc/keel"))
}

#[test]
fn each_client_has_its_authority_its_certificate_and_its_servers_name() {
    let keys = "ca_file = \"ca.pem\"\ncertificate_file = \"node.pem\"\nkey_file = \"node.key\"\n\
                server_name = \"broker.example\"\n";
    let expected = tls::ClientOptions {
        ca_file: Some("/etc/keel/ca.pem".into()),
        identity: Some(tls::Identity {
            certificate_file: "/etc/keel/node.pem".into(),
            key_file: "/etc/keel/node.key".into(),
        }),
        server_name: Some("broker.example".to_owned()),
    };
    let mqtt = parse(&format!("{MQTT}tls = true\n{keys}{SUBSCRIBE}")).unwrap();
    let said = mqtt.sources_sentence();
    assert!(said.contains("MQTT 5 over TLS from h:8883"), "{said}");
    assert_eq!(mqtt.mqtt.unwrap().tls, Some(expected.clone()));
    let broker = parse(&format!("{BROKER}tls = true\n{keys}")).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let options = broker.urgent.room_options(&clock).options;
    let client = tls::Client::new(expected.clone(), Arc::clone(&clock));
    assert_eq!(options.brokers[0].tls, Some(client.clone()));
    let url = "url = \"https://broker.example/w\"\n";
    for (text, sentence) in [
        (
            format!("{MQTT_UP}tls = true\n{keys}"),
            "MQTT over TLS to h:8883",
        ),
        (
            format!("{HTTP_UP}{url}{keys}"),
            "HTTPS to broker.example:443/w",
        ),
    ] {
        let config = parse(&text).unwrap();
        let upstream = &config.upstream[0];
        assert!(upstream.sentence().starts_with(sentence), "{text}");
        assert_eq!(upstream.to_options(&clock).tls, Some(client.clone()));
    }
    // With TLS alone, the authorities of the system count; without it, nothing is encrypted.
    let system = parse(&format!("{BROKER}tls = true\n")).unwrap();
    let system = &system.urgent.brokers[0];
    assert_eq!(system.tls, Some(tls::ClientOptions::default()));
    for text in [
        format!("{MQTT_UP}tls = false\n"),
        format!("{HTTP_UP}url = \"http://h/w\"\n"),
    ] {
        assert_eq!(
            parse(&text).unwrap().upstream[0].to_options(&clock).tls,
            None
        );
    }
}

#[test]
fn a_mistake_in_a_certificate_is_told_with_its_line_and_the_remedy() {
    let http = "[http]\n";
    for (text, told) in [
        (
            format!("{MQTT}ca_file = \"c\"\n{SUBSCRIBE}"),
            "keel.toml:4: mqtt.ca_file is for connections with TLS only; set tls = true, or remove the line",
        ),
        (
            format!("{BROKER}server_name = \"s\"\n"),
            "keel.toml:5: broker.server_name is for connections with TLS only; set tls = true, or remove the line",
        ),
        (
            format!("{HTTP_UP}url = \"http://h/w\"\nca_file = \"c\"\n"),
            "keel.toml:5: upstream.ca_file is for connections with TLS only; give a url with https://, or remove the \
             line",
        ),
        (
            format!("{BROKER}tls = true\ncertificate_file = \"c\"\n"),
            "keel.toml:6: broker.certificate_file lacks a key_file; give key_file as well",
        ),
        (
            format!("{http}key_file = \"k\"\n"),
            "keel.toml:2: http.key_file lacks a certificate_file; give certificate_file as well",
        ),
        (
            format!("{http}client_ca_file = \"c\"\n"),
            "keel.toml:2: http.client_ca_file lacks a certificate; give certificate_file and key_file as well",
        ),
        (
            format!("{BROKER}tls = true\nserver_name = \"a b\"\n"),
            "keel.toml:6: broker.server_name is \"a b\"; give a host name or an address, as the server's certificate \
             has it",
        ),
    ] {
        assert_eq!(parse(&text).unwrap_err(), told, "{text}");
    }
}

#[test]
fn certificates_of_clients_open_an_address_to_readers_alone() {
    let open = "[http]\nlisten = \"0.0.0.0:8095\"\ncertificate_file = \"c\"\nkey_file = \"k\"\n";
    assert!(parse(open).unwrap_err().contains("there are no tokens"));
    let asks = format!("{open}client_ca_file = \"a\"\n");
    let config = parse(&asks).unwrap().http.unwrap();
    assert!(config.asks_certificates());
    assert_eq!(config.scheme(), "https");
    let writes = format!("{asks}write = true\n");
    let told = parse(&writes).unwrap_err();
    assert!(told.contains("without tokens"), "{told}");
}

#[test]
fn a_key_that_others_can_read_is_warned_of_and_so_are_unusable_files() {
    let folder = Folder::new("config");
    let authority = Authority::new("servers");
    let issued = authority.issue(&["h"], Purpose::Server);
    let (_, key) = issued.write(&folder, "own");
    folder.write("ca.pem", &authority.certificate);
    let own = "certificate_file = \"own.pem\"\nkey_file = \"own.key\"\n";
    let of_client = format!("tls = true\nca_file = \"ca.pem\"\n{own}");
    let alarm = "[[alarm]]\nname = \"a\"\npattern = \"#\"\nabove = 1\nbroker = \"b\"\n";
    let mode =
        |mode| std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
    for (section, text) in [
        ("http", format!("[http]\n{own}")),
        ("mqtt", format!("{MQTT}{of_client}{SUBSCRIBE}")),
        ("upstream u", format!("{MQTT_UP}{of_client}")),
        ("broker b", format!("{BROKER}{of_client}{alarm}")),
    ] {
        let config = parse_in(&text, folder.path()).unwrap();
        mode(0o600);
        assert_eq!(config.warnings(), [""; 0], "{text}");
        mode(0o644);
        let shown = key.display();
        assert_eq!(
            config.warnings(),
            [format!(
                "{section}: key_file {shown} is open to every user of this machine; chmod 600 {shown}"
            )]
        );
        let missing = parse_in(&text, Path::new("/nowhere")).unwrap().warnings();
        assert_eq!(missing.len(), 1, "{missing:?}");
        let begin = format!("{section}: /nowhere/");
        assert!(missing[0].starts_with(&begin), "{missing:?}");
        assert!(missing[0].ends_with("is not there; name the right file"));
    }
}

#[test]
fn a_broker_at_the_port_for_tls_without_tls_is_warned_of() {
    let alarm = "[[alarm]]\nname = \"a\"\npattern = \"#\"\nabove = 1\nbroker = \"b\"\n";
    for (section, text) in [
        ("mqtt", format!("{MQTT}{SUBSCRIBE}")),
        ("upstream u", MQTT_UP.to_owned()),
        ("broker b", format!("{BROKER}{alarm}")),
    ] {
        let told = format!("{section}: h:8883 has the port for TLS, and tls is not set; ");
        let about = |text: &str| {
            let warnings = parse(text).unwrap().warnings();
            warnings.iter().any(|warning| warning.starts_with(&told))
        };
        assert!(about(&text), "{text}");
        assert!(!about(&text.replace("8883", "1883")), "{text}");
        assert!(!about(
            &text.replace("h:8883\"\n", "h:8883\"\ntls = true\n")
        ));
    }
}

#[test]
fn an_address_with_a_scheme_for_tls_has_the_key_as_its_remedy() {
    for text in [
        format!("{MQTT}{SUBSCRIBE}"),
        MQTT_UP.to_owned(),
        BROKER.to_owned(),
    ] {
        let told = parse(&text.replace("h:8883", "mqtts://h:8883")).unwrap_err();
        assert!(told.contains("address is \"mqtts://h:8883\"; "), "{told}");
        assert!(told.contains("set tls = true"), "{told}");
        let told = parse(&text.replace("h:8883", "mqtt://h:1883")).unwrap_err();
        assert!(!told.contains("tls"), "{told}");
    }
}
