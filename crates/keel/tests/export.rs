//! `keel export`: the same readings from a node and from its store, as CSV and as lines, for the given keys and times.

use crate::common::node::{Node, SMALL};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

fn send(node: &Node, lines: &str) -> String {
    let mut stream = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    stream.write_all(lines.as_bytes()).unwrap();
    stream.write_all(b"\n").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

#[test]
fn a_node_and_its_store_export_the_same() {
    let mut node = Node::start(SMALL);
    let mut lines = String::new();
    for n in 0..500 {
        let time = (1_700_000_000_000_i64 + n * 1000) * 1_000_000;
        lines.push_str(&format!("hall,sensor={} t={n}.5 {time}\n", n % 3));
        lines.push_str(&format!("door open={} {time}\n", n % 2 == 0));
    }
    lines.push_str("note text=\"a,\\\"b\\\" c\" 1700000000000000000\n");
    lines.push_str("sum n=-3i,m=18446744073709551615u 1700000000000000000\n");
    assert_eq!(send(&node, &lines), "ok 1003 0\n");
    let csv = node.ok(&["export", "--format", "csv"]);
    assert!(csv.starts_with("key,time,time_ms,value,type,node_time,clock_trusted,lsn,time_ns\n"));
    assert_eq!(csv.lines().count(), 1004);
    assert!(csv.contains("\nnote/text,2023-11-14"), "{csv}");
    assert!(
        csv.contains(",1700000000000,\"a,\"\"b\"\" c\",text,false,"),
        "{csv}"
    );
    assert!(csv.contains(",18446744073709551615,unsigned,"));
    let range = ["--from", "1700000010000", "--to", "1700000020000"];
    let some = node.ok(&[&["export", "--format", "line", "hall/#"], &range[..]].concat());
    assert_eq!(some.lines().count(), 10, "{some}");
    assert_eq!(
        some.lines().find(|line| line.contains("=1/t")).unwrap(),
        "keel,key=hall/sensor\\=1/t value=10.5 1700000010000000000"
    );
    let all = node.ok(&["export", "--format", "line"]);
    let two = node.ok(&["export", "--format", "line", "door/open", "sum/+"]);
    assert_eq!(two.lines().count(), 502);
    // Exported readings can be sent back.
    let before = node.ok(&["history", "door/open"]).lines().count();
    assert!(send(&node, &two).starts_with("ok 502 0"));
    assert_eq!(node.ok(&["history", "door/open"]).lines().count(), before);
    assert_eq!(
        node.ok(&["history", "keel/key=door~1open/value"])
            .lines()
            .count(),
        before
    );
    node.fails(&["export", "--format", "csv", "a/#/b"], 2);
    node.fails(&["export"], 2);
    // While the node has the store open, no other program can read it.
    let image = ["--image", "keel-data/store.img"];
    node.fails(&[&["export", "--format", "line"], &image[..]].concat(), 1);
    assert!(node.stop().success());
    let stored = node.ok(&[&["export", "--format", "line"], &image[..]].concat());
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text
            .lines()
            .filter(|line| !line.starts_with("keel,key=keel/"))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&stored), sorted(&all));
    let csv = node.ok(&[&["export", "--format", "csv", "note/#"], &image[..]].concat());
    assert_eq!(csv.lines().count(), 2);
    assert!(csv.contains(",text,,,"), "{csv}");
}

/// `time.ms() * 1_000_000` instead of `time.ns()` in `Export::line`, or `format_ms` in `Export::csv`, makes it red.
#[test]
fn csv_and_lines_are_exact() {
    let mut node = Node::start(SMALL);
    let lines = "wave x=1 1700000000123456789\nwave x=2 1700000000123456790\nwave x=3 1700000000124000000\n";
    assert_eq!(send(&node, lines), "ok 3 0\n");
    let exported = "keel,key=wave/x value=1 1700000000123456789\n\
                    keel,key=wave/x value=2 1700000000123456790\n\
                    keel,key=wave/x value=3 1700000000124000000\n";
    let rows = [
        "wave/x,2023-11-14T22:13:20.123456789Z,1700000000123,1,float,false,true,0,1700000000123456789",
        "wave/x,2023-11-14T22:13:20.123456790Z,1700000000123,2,float,false,true,1,1700000000123456790",
        "wave/x,2023-11-14T22:13:20.124Z,1700000000124,3,float,false,true,2,1700000000124000000",
    ];
    // The third flag says whether the clock of the machine that runs the test is trusted.
    let without_trust = |csv: &str| {
        let rows = csv.lines().skip(1);
        let known = rows.map(|row| row.replace(",false,false,", ",false,true,"));
        known.collect::<Vec<_>>()
    };
    assert_eq!(node.ok(&["export", "--format", "line"]), exported);
    assert_eq!(
        without_trust(&node.ok(&["export", "--format", "csv"])),
        rows
    );
    // A range keeps apart what is 1 ns apart.
    let first = "2023-11-14T22:13:20.123456789Z";
    let second = "1700000000.123456790";
    let part = node.ok(&[
        "export", "--format", "line", "--from", first, "--to", second,
    ]);
    assert_eq!(
        part.lines().collect::<Vec<_>>(),
        [exported.lines().next().unwrap()]
    );
    let history = node.json(&["history", "wave/x", "--json", "--from", second]);
    let shown = |n: usize, field: &str| history[n][field].clone();
    assert_eq!(shown(0, "time_ns"), "1700000000123456790");
    assert_eq!(shown(1, "time_ns"), "1700000000124000000");
    assert_eq!(shown(0, "time"), "2023-11-14T22:13:20.123456790Z");
    assert_eq!(shown(1, "time"), "2023-11-14T22:13:20.124Z");
    let csv = node.ok(&["history", "wave/x", "--csv", "--limit", "1"]);
    let row = csv.lines().nth(1).unwrap();
    assert!(
        row.starts_with(first) && row.ends_with(",1700000000123456789"),
        "{csv}"
    );
    // What is put comes back the same, and is shown to programs even where it is a whole ms.
    for (time, ns) in [
        (second, "1700000000123456790"),
        ("2023-11-14T22:13:20.125Z", "1700000000125000000"),
    ] {
        let put = node.json(&["put", "given", "5", "--time", time, "--json"]);
        assert_eq!(put["time_ns"], ns);
        let found = node.json_degraded(&["get", "given", "--json"]);
        assert_eq!(found["time_ns"], ns);
    }
    assert!(node.stop().success());
    let image = ["--image", "keel-data/store.img"];
    let stored = node.ok(&[&["export", "--format", "line", "wave/#"], &image[..]].concat());
    assert_eq!(stored, exported);
    let csv = node.ok(&[&["export", "--format", "csv", "wave/#"], &image[..]].concat());
    let ends = rows.map(|row| row.replace(",false,true,", ",,,"));
    let found: Vec<_> = csv.lines().skip(1).collect();
    assert_eq!(found, ends);
    let part = ["--from", first, "--to", second];
    let part = [
        &["export", "--format", "line", "wave/x"],
        &image[..],
        &part[..],
    ]
    .concat();
    assert_eq!(node.ok(&part).lines().count(), 1);
}

#[test]
fn a_text_with_line_breaks_is_exported_and_can_be_sent_back() {
    let mut node = Node::start(SMALL);
    let sent = "msg=\"boiler,unit=1\r\n\\\"x\\\" \\\\\nv=1\" 1700000000000000000\n";
    assert_eq!(send(&node, &format!("log {sent}")), "ok 1 0\n");
    let exported = node.ok(&["export", "--format", "line", "log/msg"]);
    assert_eq!(
        exported,
        format!("keel,key=log/msg {}", sent.replacen("msg=", "value=", 1))
    );
    assert_eq!(send(&node, &exported), "ok 1 0\n");
    let value = |key| node.json_degraded(&["get", key, "--json"])["value"].clone();
    assert_eq!(value("log/msg"), "boiler,unit=1\r\n\"x\" \\\nv=1");
    assert_eq!(value("keel/key=log~1msg/value"), value("log/msg"));
    // Its end looks like the beginning of another line with a text, so no node takes it back.
    node.ok(&["put", "log/end", "one\ntwo of="]);
    let told = node.fails(&["export", "--format", "line", "log/end"], 1);
    assert!(told.contains("1 readings have no form in lines"), "{told}");
    assert!(node.stop().success());
    let image = ["--image", "keel-data/store.img"];
    let stored = node.ok(&[&["export", "--format", "line", "log/msg"], &image[..]].concat());
    assert_eq!(stored, exported);
}

#[test]
fn keys_with_wildcards_in_a_level_are_declared_watched_read_and_exported_by_name() {
    let keys = "[keys]\nauto_create = false\n[[key]]\npattern = \"lang/c++\"\n[[key]]\npattern = \"#1\"\n\
                [[key]]\npattern = \"m/#\"\n";
    // With `{values}`, a tag is a level of its own.
    let key = "key = \"{measurement}/{values}/{field}\"\n";
    let mut node = Node::start(&format!("{SMALL}{key}{keys}"));
    node.ok(&["put", "lang/c++", "1"]);
    node.ok(&["put", "#1", "2"]);
    node.fails(&["put", "lang/cxx", "3"], 1);
    node.fails(&["put", "11", "3"], 1);
    // A key that every pattern would read as a wildcard, and one that looks like another.
    for key in ["#", "lang/+", "m/#", "m/a/+", "lang/c++\u{200b}"] {
        let line = node.fails(&["put", key, "3"], 1);
        assert!(line.contains("is no key; use 1 to 255 bytes"), "{line}");
    }
    let lines = "m,t=+ v=1\nm,t=# v=1\nm,t=\u{202e}a v=1\nm,t=a+#b v=1 1700000000000000000\n";
    assert_eq!(send(&node, lines), "ok 1 3\n");
    assert_eq!(node.ok(&["get", "lang/c++"]), "1\n");
    assert_eq!(node.ok(&["history", "#1"]).lines().count(), 1);
    for (pattern, update) in [
        ("lang/c++", "lang/c++  1"),
        ("#1", "#1  2"),
        ("m/a+#b/+", "m/a+#b/v  1"),
    ] {
        let shown = node.ok(&["watch", pattern, "--current", "--count", "1"]);
        assert!(shown.contains(update), "{shown}");
    }
    let csv = node.ok(&["export", "--format", "csv", "lang/c++", "#1"]);
    assert_eq!(csv.lines().count(), 3, "{csv}");
    let line = node.ok(&["export", "--format", "line", "m/a+#b/v"]);
    assert_eq!(line, "keel,key=m/a+#b/v value=1 1700000000000000000\n");
    assert!(node.stop().success());
    let stored = node.ok(&[
        "export",
        "--format",
        "csv",
        "#1",
        "--image",
        "keel-data/store.img",
    ]);
    assert_eq!(stored.lines().count(), 2, "{stored}");
}

/// `records_damaged` instead of `places_unreadable()` in `Read::end` of `node/history.rs` makes it red.
#[test]
fn a_damaged_block_costs_the_status_of_history_and_export() {
    let mut node = Node::start(SMALL);
    // Only the first block of the log holds the first value: the latest values hold a later one.
    let mut lines = "note text=\"the first value\" 1700000000000000000\n".to_owned();
    for n in 1..1000_i64 {
        let time = 1_700_000_000_000_000_000 + n * 1_000_000;
        lines.push_str(&format!("note text=\"value {n}\" {time}\n"));
    }
    assert_eq!(send(&node, &lines), "ok 1000 0\n");
    assert_eq!(node.ok(&["history", "note/text"]).lines().count(), 1000);
    assert!(node.stop().success());
    let path = node.dir.file("keel-data/store.img");
    let mut image = std::fs::read(&path).unwrap();
    let needle = b"the first value";
    let mut damaged = 0;
    for block in image.chunks_mut(4096) {
        if block.windows(needle.len()).any(|bytes| bytes == needle) {
            block[100] ^= 0xff;
            damaged += 1;
        }
    }
    assert!(damaged > 0);
    std::fs::write(&path, image).unwrap();
    node.restart();
    let line = node.fails(&["history", "note/text"], 1);
    let is_counted = line.contains(" places unreadable") && !line.contains(": 0 places");
    assert!(is_counted, "{line}");
    let output = node.run(&["history", "note/text"]);
    let count = String::from_utf8(output.stdout).unwrap().lines().count();
    assert!((1..1000).contains(&count), "{count}");
    let export = ["export", "--format", "csv", "note/#"];
    node.fails(&export, 1);
    assert!(node.stop().success());
    let image = ["--image", "keel-data/store.img"];
    node.fails(&[&export[..], &image[..]].concat(), 1);
}
