//! Files of certificates: which are read again, and which are refused.

use super::*;
use authority::{Authority, Folder, Purpose};
use std::os::unix::fs::PermissionsExt;

#[path = "../tests/authority.rs"]
mod authority;

#[test]
fn authorities_of_the_system_are_read_once_for_all_clients_and_again_when_they_change() {
    let folder = Folder::new("bundle");
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let bundle = folder.write("bundle.crt", &first.certificate);
    let known = Mutex::new(None);
    let one = shared_authorities(&bundle, &known).unwrap();
    let other = shared_authorities(&bundle, &known).unwrap();
    assert!(Arc::ptr_eq(&one, &other));
    let both = format!("{}{}", first.certificate, second.certificate);
    folder.write("bundle.crt", &both);
    let next = shared_authorities(&bundle, &known).unwrap();
    assert_eq!((one.len(), next.len()), (1, 2));
    // What cannot be read any more is not used any more.
    fs::remove_file(&bundle).unwrap();
    assert!(shared_authorities(&bundle, &known).is_err());
}

#[test]
fn a_certificate_that_is_cut_off_before_a_good_one_is_refused() {
    let folder = Folder::new("cut-off");
    let good = Authority::new("good").certificate;
    let lines: Vec<&str> = good.lines().collect();
    // Nothing of it, the half of it, and all but its end.
    for left in [1, lines.len() / 2, lines.len() - 1] {
        let cut = format!("{}\n{good}", lines[..left].join("\n"));
        let error = authorities(&folder.write("ca.pem", &cut)).unwrap_err();
        assert_eq!(error.wrong, "holds a damaged certificate", "{left} lines");
        // Lines that end as on Windows.
        let cut = cut.replace('\n', "\r\n");
        assert!(authorities(&folder.write("ca.pem", &cut)).is_err());
    }
    // The second beginning stands behind the first end, or the first one behind a byte order mark.
    let joined = format!("{}{good}", good.trim_end());
    let marked = format!("\u{feff}{good}{good}");
    for damaged in [joined, marked] {
        let error = authorities(&folder.write("ca.pem", &damaged)).unwrap_err();
        assert_eq!(error.wrong, "holds a damaged certificate", "{damaged}");
    }
    let words = format!("# an authority\n{good}# another\n{good}");
    assert_eq!(
        authorities(&folder.write("ca.pem", &words)).unwrap().len(),
        2
    );
}

#[test]
fn a_key_that_others_can_read_has_a_warning() {
    let folder = Folder::new("mode");
    let issued = Authority::new("nodes").issue(&[], Purpose::Client);
    let (certificate_file, key_file) = issued.write(&folder, "node");
    let own = Identity {
        certificate_file,
        key_file,
    };
    let mode = |mode| fs::set_permissions(&own.key_file, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o640);
    assert_eq!(own.warning(), None);
    mode(0o604);
    let said = own.warning().unwrap();
    assert!(
        said.contains("chmod 600") && said.contains("node.key"),
        "{said}"
    );
}
