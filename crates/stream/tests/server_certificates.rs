//! The limits of one certificate on a server.

use crate::common::Scratch;
use crate::server_support::{Device, Running, published, settings, until};
use stream::server::{Identity, Reason};
use stream::tls::{Authority, CERTIFICATE_FILE, DEVICES_FILE, TlsError};
use stream::wire::Refusal;

#[test]
fn one_certificate_does_not_take_the_places_of_all() {
    let scratch = published("server-certificates");
    let authority = Authority::new(&scratch.path("authority")).unwrap();
    let server = scratch.path("server");
    authority
        .issue_server(&["127.0.0.1".to_owned()], &server)
        .unwrap();
    for name in ["greedy", "modest"] {
        authority
            .issue_device(name, "default", &scratch.path(name))
            .unwrap();
    }
    let mut with = settings(&scratch);
    (with.clients_max, with.clients_of_certificate_max) = (6, 3);
    let devices = scratch.path("authority").join(DEVICES_FILE);
    with.identity = Some(Identity::load(&server, &devices).unwrap());
    let running = Running::start(with);
    let greet = |name, number| {
        let identity = scratch.path(name);
        Device::try_with_tls(&running, &scratch, &identity, number)
    };
    let mut kept: Vec<Device> = (1..=3)
        .map(|number| greet("greedy", number).unwrap())
        .collect();
    // Another connection of a connected device does not count as a further device.
    kept.push(greet("greedy", 1).unwrap());
    let counters = running.watch.counters();
    for count in 1..=5 {
        assert_eq!(greet("greedy", 10).err(), Some(Refusal::Limit));
        until("it is counted", || {
            counters.refused(Reason::ClientsOfCertificate) == count
        });
    }
    // The same numbers as the other devices: only the certificates identify them.
    let others: Vec<Device> = (1..=3)
        .map(|number| greet("modest", number).unwrap())
        .collect();
    assert_eq!(counters.refused(Reason::Clients), 0);
    assert_eq!(greet("modest", 4).err(), Some(Refusal::Limit));
    drop(others);
    // A freed place can be taken again, but no more than that.
    kept.truncate(2);
    until("there is a place again", || greet("greedy", 4).is_ok());
}

#[test]
fn a_device_s_folder_is_no_identity_of_a_server() {
    let scratch = Scratch::new("server-of-a-device");
    let authority = Authority::new(&scratch.path("authority")).unwrap();
    let (server, device) = (scratch.path("server"), scratch.path("device"));
    authority
        .issue_server(&["a.example".to_owned()], &server)
        .unwrap();
    authority.issue_device("a", "default", &device).unwrap();
    let list = scratch.path("authority").join(DEVICES_FILE);
    assert!(Identity::load(&server, &list).is_ok());
    // With the list, and without: the wrong folder is what is to be said.
    for list in [list, device.join(DEVICES_FILE)] {
        let refused = Identity::load(&device, &list).err();
        let is_right = matches!(&refused, Some(TlsError::NotAServer(path)) if *path == device.join(CERTIFICATE_FILE));
        assert!(is_right, "{refused:?}");
    }
}
