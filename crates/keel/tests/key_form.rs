//! What `{tags}` stands for depends on the store, is said, and never changes for a store with keys.

use crate::common::node::{Node, SMALL};
use crate::common::{ok, wait_until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

fn send(node: &Node, lines: &str) -> String {
    let stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    (&stream).write_all(lines.as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

/// Returns why a node is degraded. Whether its clock is trusted makes no difference here.
fn codes(status: &Value) -> Vec<&str> {
    let reasons = status["reasons"].as_array().unwrap();
    let codes = reasons.iter().filter_map(|reason| reason["code"].as_str());
    codes.filter(|code| *code != "clock_untrusted").collect()
}

/// `TagsForm::OF_NEW_STORES = Values` turns it red.
#[test]
fn a_new_store_gets_pairs() {
    let mut node = Node::start(SMALL);
    let long = "cpu,host=gw-14.site-7.example.net,cpu=cpu-total,region=north,rack=rack-00012 usage_guest_nice=0.5";
    let lines =
        format!("disk,path=sda1 used=1\ndisk,device=sda1 used=2\ncpu,cpu=+ v=3\n{long}\n\n");
    assert_eq!(send(&node, &lines), "ok 4 0\n");
    for _ in 0..2 {
        for (key, value) in [
            ("disk/path=sda1/used", "1\n"),
            ("disk/device=sda1/used", "2\n"),
            ("cpu/cpu=+/v", "3\n"),
            (
                "cpu/cpu=cpu-total/host=gw-14.site-7.example.net/rack=rack-00012/region=north/usage_guest_nice",
                "0.5\n",
            ),
        ] {
            assert_eq!(node.ok(&["get", key]), value, "{key}");
        }
        let found = node.json_degraded(&["status", "--json"]);
        assert_eq!(found["keys"]["count"], 4, "{found}");
        assert_eq!(found["keys"]["tags_form"], "pairs");
        assert!(found["keys"]["tags_note"].is_null(), "{found}");
        assert_eq!(codes(&found), Vec::<&str>::new(), "{found}");
        assert!(node.stop().success());
        node.restart();
    }
    assert!(node.stop().success());
}

#[test]
fn an_old_configuration_keeps_the_keys_of_an_old_store() {
    let mut node = Node::prepare(&format!(
        "{SMALL}key = \"{{measurement}}/{{values}}/{{field}}\"\n"
    ));
    node.restart();
    let line = "disk,path=var/log,host=a used=1\n\n";
    assert_eq!(send(&node, line), "ok 1 0\n");
    assert_eq!(node.ok(&["get", "disk/a/var/log/used"]), "1\n");
    assert!(node.stop().success());
    // Programs of before made no mark, and their configurations left the form to the program.
    let image = node.dir.file("keel-data/store.img");
    ok(&["flash", "rm", image.to_str().unwrap(), "node-keys"]);
    for (config, value) in [
        (SMALL.to_owned(), 2),
        (
            format!("{SMALL}key = \"{{measurement}}/{{tags}}/{{field}}\"\n"),
            3,
        ),
    ] {
        std::fs::write(node.dir.file("keel.toml"), config).unwrap();
        node.restart();
        let sent = line.replace("=1", &format!("={value}"));
        assert_eq!(send(&node, &sent), "ok 1 0\n");
        assert_eq!(
            node.ok(&["get", "disk/a/var/log/used"]),
            format!("{value}\n")
        );
        let found = node.json_degraded(&["status", "--json"]);
        assert_eq!(found["keys"]["count"], 1, "{found}");
        assert_eq!(found["keys"]["tags_form"], "values");
        assert_eq!(codes(&found), Vec::<&str>::new(), "{found}");
        // Both lines are named.
        let note = found["keys"]["tags_note"].as_str().unwrap();
        for part in ["pairs", "values"] {
            let wanted = format!("key = \"{{measurement}}/{{{part}}}/{{field}}\"");
            assert!(note.contains(&wanted), "{note}");
        }
        wait_until("the note in the log", || node.log().contains(note));
        assert!(node.stop().success());
    }
}

#[test]
fn a_store_keeps_the_meaning_of_tags_with_another_default() {
    let mut node = Node::prepare(&format!(
        "{SMALL}key = \"{{measurement}}/{{values}}/{{field}}\"\n"
    ));
    node.restart();
    let line = "disk,path=var/log,host=a used=1\n\n";
    assert_eq!(send(&node, line), "ok 1 0\n");
    assert_eq!(node.ok(&["get", "disk/a/var/log/used"]), "1\n");
    assert!(node.stop().success());
    // The store is marked, and the configuration leaves the form to it.
    let image = node.dir.file("keel-data/store.img");
    let mark = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../node/tests/golden/node-keys-1"
    );
    ok(&["flash", "put", image.to_str().unwrap(), "node-keys", mark]);
    std::fs::write(node.dir.file("keel.toml"), SMALL).unwrap();
    node.restart();
    assert_eq!(send(&node, &line.replace("=1", "=2")), "ok 1 0\n");
    assert_eq!(node.ok(&["get", "disk/host=a/path=var~1log/used"]), "2\n");
    assert_eq!(node.ok(&["get", "disk/a/var/log/used"]), "1\n");
    let found = node.json_degraded(&["status", "--json"]);
    assert_eq!(found["keys"]["tags_form"], "pairs");
    assert!(found["keys"]["tags_note"].is_null(), "{found}");
    assert_eq!(codes(&found), Vec::<&str>::new(), "{found}");
    // What the configuration says itself counts more than the store.
    let own = format!("{SMALL}key = \"{{measurement}}/{{values}}/{{field}}\"\n");
    std::fs::write(node.dir.file("keel.toml"), own).unwrap();
    node.signal(libc::SIGHUP);
    wait_until("the reload", || node.log().contains(" reload: applied"));
    assert_eq!(send(&node, &line.replace("=1", "=3")), "ok 1 0\n");
    assert_eq!(node.ok(&["get", "disk/a/var/log/used"]), "3\n");
    assert!(node.stop().success());
}

#[test]
fn a_mark_of_a_later_program_is_refused_where_a_key_depends_on_it() {
    let mut node = Node::start(SMALL);
    assert!(node.stop().success());
    let mut later = std::fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../node/tests/golden/node-keys-1"
    ))
    .unwrap();
    later.truncate(16);
    later[8] = 2;
    later.extend_from_slice(&crc32c::crc32c(&later).to_le_bytes());
    let file = node.dir.file("later");
    std::fs::write(&file, later).unwrap();
    let image = node.dir.file("keel-data/store.img");
    ok(&[
        "flash",
        "put",
        image.to_str().unwrap(),
        "node-keys",
        file.to_str().unwrap(),
    ]);
    node.spawn();
    assert!(!node.ended().success());
    let log = node.log();
    assert!(
        log.contains("node-keys")
            && log.contains("version 2")
            && log.contains("{pairs} or {values}"),
        "{log}"
    );
    let own = format!("{SMALL}key = \"{{measurement}}/{{pairs}}/{{field}}\"\n");
    std::fs::write(node.dir.file("keel.toml"), own).unwrap();
    node.restart();
    assert_eq!(send(&node, "m,a=b v=1\n\n"), "ok 1 0\n");
    assert_eq!(node.ok(&["get", "m/a=b/v"]), "1\n");
    assert!(node.stop().success());
}

#[test]
fn readings_that_share_a_key_on_purpose_are_counted_and_named() {
    let mut node = Node::start(&format!(
        "{SMALL}key = \"{{measurement}}/{{tag:room}}/{{field}}\"\n"
    ));
    let lines = "m,room=1,fw=1 v=1\nm,room=1,fw=2 v=2\nm,room=1,fw=2 v=3\n\n";
    assert_eq!(send(&node, lines), "ok 3 0\n");
    let found = node.json_degraded(&["status", "--json"]);
    assert_eq!(found["intake"]["key_merged"], 2, "{found}");
    assert_eq!(
        found["intake"]["key_merged_last"],
        "m,fw=2,room=1 v has the key of m,fw=1,room=1 v: m/1/v"
    );
    assert_eq!(codes(&found), Vec::<&str>::new(), "{found}");
    assert!(node.stop().success());
}
