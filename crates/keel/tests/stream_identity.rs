//! `keel stream identity` as a process: creating, listing and revoking identities, and errors.

use crate::common::{TempDir, fails, keel, ok, ok_json, one_line};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

fn identity(arguments: &[&str]) -> Vec<u8> {
    ok(&[&["stream", "identity"], arguments].concat())
}

fn refused(arguments: &[&str], status: i32) -> String {
    fails(&[&["stream", "identity"], arguments].concat(), status)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn devices_are_made_listed_and_struck_off() {
    let dir = TempDir::new();
    let authority = dir.file("authority").display().to_string();
    let folder = |name: &str| dir.file(name).display().to_string();
    identity(&["authority", &authority]);
    let names = [
        "--name",
        "stream.example",
        "--name",
        "127.0.0.1",
        "--name",
        "::1",
    ];
    identity(&[&["server", &authority, &folder("server")], &names[..]].concat());
    identity(&["device", &authority, &folder("one"), "--name", "one"]);
    let two = [
        "device",
        &authority,
        &folder("two"),
        "--name",
        "two-2",
        "--tenant",
        "lab",
    ];
    identity(&two);

    for of in ["server", "one", "two"] {
        assert_eq!(mode(&dir.file(of).join("key.pem")), 0o600);
        assert_eq!(mode(&dir.file(of)), 0o700);
        let authority_pem = fs::read(dir.file("authority").join("ca.pem")).unwrap();
        assert_eq!(
            fs::read(dir.file(of).join("ca.pem")).unwrap(),
            authority_pem
        );
    }
    assert_eq!(mode(&dir.file("authority").join("ca.key")), 0o600);

    let listed = ok_json(&["stream", "identity", "list", &authority, "--json"]);
    let listed = listed["devices"].as_array().unwrap();
    assert_eq!(listed.len(), 2);
    assert_eq!(
        (&listed[0]["name"], &listed[0]["tenant"]),
        (&"one".into(), &"default".into())
    );
    assert_eq!(
        (&listed[1]["name"], &listed[1]["tenant"]),
        (&"two-2".into(), &"lab".into())
    );
    let fingerprint = listed[1]["fingerprint"].as_str().unwrap();
    assert_eq!(fingerprint.len(), 64);
    let text = fs::read_to_string(dir.file("authority").join("devices")).unwrap();
    assert!(
        text.ends_with(&format!("{fingerprint} two-2 lab\n")),
        "{text}"
    );
    // The server's folder has the same list.
    assert_eq!(
        fs::read_to_string(dir.file("server").join("devices")).unwrap(),
        text
    );

    // A list that cannot be written to the output is not a success.
    for options in [&[][..], &["--json"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = keel()
            .args(["stream", "identity", "list", &authority])
            .args(options)
            .stdout(full)
            .stderr(Stdio::piped())
            .spawn()
            .and_then(|child| child.wait_with_output())
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(one_line(&output.stderr).contains("standard output: "));
    }

    identity(&["revoke", &authority, "one"]);
    let text = String::from_utf8(identity(&["list", &authority])).unwrap();
    assert_eq!(text, format!("two-2  lab  {fingerprint}\n"));
    let text = fs::read_to_string(dir.file("server").join("devices")).unwrap();
    assert_eq!(text, format!("{fingerprint} two-2 lab\n"));
    let error = refused(&["revoke", &authority, "one"], 1);
    assert!(error.contains("one: is not on the list"), "{error}");
}

#[test]
fn a_folder_that_is_no_identity_is_refused() {
    let dir = TempDir::new();
    let authority = dir.file("authority").display().to_string();
    let out = dir.file("out").display().to_string();
    let error = refused(&["device", &authority, &out, "--name", "a"], 1);
    assert!(
        error.contains("is not the folder of an authority"),
        "{error}"
    );
    identity(&["authority", &authority]);
    let key = fs::read(dir.file("authority").join("ca.key")).unwrap();
    let error = refused(&["authority", &authority], 1);
    assert!(error.contains("is there already"), "{error}");
    assert_eq!(fs::read(dir.file("authority").join("ca.key")).unwrap(), key);

    let long = "a".repeat(65);
    for name in ["", "A", "a b", "../a", ".a", "-a", "ä", &long] {
        let name = format!("--name={name}");
        let error = refused(&["device", &authority, &out, &name], 2);
        assert!(error.contains("is no name"), "{error}");
        let tenant = name.replace("--name", "--tenant");
        refused(&["device", &authority, &out, "--name", "a", &tenant], 2);
    }
    for host in ["", "a host", "host:7000", "[::1]", "http://host/"] {
        let error = refused(&["server", &authority, &out, &format!("--name={host}")], 2);
        assert!(
            error.contains("is neither a host name nor an address"),
            "{error}"
        );
    }
    assert!(
        !dir.file("out").exists(),
        "a refused identity leaves nothing"
    );

    identity(&["device", &authority, &out, "--name", "a"]);
    let error = refused(&["device", &authority, &out, "--name", "b"], 1);
    assert!(
        error.contains("key.pem: is there already; choose another folder"),
        "{error}"
    );
    let other = dir.file("other").display().to_string();
    let error = refused(&["device", &authority, &other, "--name", "a"], 1);
    assert!(
        error.contains("a: is the name of a device on the list already; choose another --name"),
        "{error}"
    );

    let list = dir.file("authority").join("devices");
    for text in ["x\n", "00 a default\n", "\u{e4}\n"] {
        fs::write(&list, text).unwrap();
        let error = refused(&["list", &authority], 1);
        assert!(
            error.contains("line 1 is not FINGERPRINT NAME TENANT"),
            "{error}"
        );
    }
    fs::remove_file(dir.file("authority").join("ca.key")).unwrap();
    fs::write(dir.file("authority").join("ca.key"), "no key").unwrap();
    let error = refused(&["device", &authority, &other, "--name", "c"], 1);
    assert!(error.contains("ca.key"), "{error}");
}
