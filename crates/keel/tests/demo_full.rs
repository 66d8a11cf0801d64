//! `keel demo --full` as a process. Each promise has a figure, and the exit status agrees with the figures. The page
//! `docs/start.md` shows what is printed, and nothing is left behind. The program is in a folder of its own. The
//! library for files in memory is where a build or a package leaves it, or is missing.

use crate::common::{TempDir, mem};
use crate::page_common::{self, fits};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Where a build leaves the library of `bin/keel`.
const OF_A_BUILD: &str = "bin/libkeelmem.so";

/// Where a package leaves it.
const OF_A_PACKAGE: &str = "lib/keel/libkeelmem.so";

/// Beginnings of the promises that a loaded machine may break.
const LATE: [&str; 2] = ["Deadlines hold", "After a power cut"];

fn put(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    if fs::hard_link(from, to).is_err() {
        fs::copy(from, to).unwrap();
    }
}

/// Runs the demo with its library at a place; `None` if the library is not built. Checks that nothing is left.
fn demo(library: Option<&str>, arguments: &[&str]) -> Option<Output> {
    let installed = TempDir::new();
    let program = installed.file("bin/keel");
    put(Path::new(env!("CARGO_BIN_EXE_keel")), &program);
    if let Some(place) = library {
        put(&mem::library()?, &installed.file(place));
    }
    let dir = TempDir::new();
    let demo = Command::new(program)
        .args(["demo", "--full"])
        .args(arguments)
        .env("TMPDIR", dir.path())
        .env_remove("KEEL_MEM_LIBRARY")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let name = format!("keel-demo-{}.", demo.id());
    let output = demo.wait_with_output().unwrap();
    if let Ok(entries) = fs::read_dir("/dev/shm") {
        let left = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<_> = left.filter(|left| left.starts_with(&name)).collect();
        assert_eq!(left, [""; 0]);
    }
    assert!(dir.entries().is_empty(), "{:?}", dir.entries());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(
        !mounts.contains(&dir.path().display().to_string()),
        "{mounts}"
    );
    Some(output)
}

/// Returns whether each promise was kept, in the order of the summary.
fn kept(summary: &Value) -> Vec<Option<bool>> {
    let promises = summary["promises"].as_array().unwrap();
    promises
        .iter()
        .map(|promise| promise["kept"].as_bool())
        .collect()
}

/// A promise as it is printed: the word before it, its text, and the lines of its figure.
struct Shown<'a> {
    word: &'a str,
    text: &'a str,
    figure: Vec<&'a str>,
}

/// Splits what is printed into the lines before the promises, and the promises.
fn split(printed: &str) -> (Vec<&str>, Vec<Shown<'_>>) {
    let (mut before, mut promises) = (Vec::new(), Vec::<Shown<'_>>::new());
    for line in printed.lines() {
        if let (Some(last), Some(rest)) = (promises.last_mut(), line.strip_prefix("            ")) {
            last.figure.push(rest);
            continue;
        }
        // The words take ten columns.
        let promise = line
            .strip_prefix("  ")
            .and_then(|rest| rest.split_at_checked(10));
        match promise.map(|(word, text)| (word.trim_end(), text)) {
            Some((word @ ("kept" | "NOT KEPT" | "not shown"), text)) => promises.push(Shown {
                word,
                text,
                figure: Vec::new(),
            }),
            _ => before.push(line),
        }
    }
    (before, promises)
}

/// Checks that only lateness has broken a promise, and that the exit status says so.
fn is_kept_but_for_lateness(output: &Output, promises: &[Shown<'_>]) {
    let broken = promises.iter().filter(|one| one.word == "NOT KEPT");
    let mut count = 0;
    for one in broken {
        let is_late = LATE.iter().any(|begin| one.text.starts_with(begin));
        assert!(is_late, "{}: {:?}", one.text, one.figure);
        count += 1;
    }
    assert_eq!(
        output.status.code(),
        Some(i32::from(count > 0)),
        "{output:?}"
    );
}

#[test]
fn every_promise_has_its_figure_and_nothing_is_left() {
    let arguments = ["--json", "--seconds", "120", "--speed", "10"];
    let Some(output) = demo(Some(OF_A_PACKAGE), &arguments) else {
        return;
    };
    let summary: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let all = kept(&summary);
    assert_eq!(all.len(), 9, "{summary}");
    let failures = summary["failures"].as_array().unwrap();
    assert_eq!(
        all.contains(&Some(false)),
        !failures.is_empty(),
        "{summary}"
    );
    assert_eq!(
        output.status.code(),
        Some(i32::from(!failures.is_empty())),
        "{summary}"
    );
    let promise = |begin: &str| {
        let promises = summary["promises"].as_array().unwrap();
        let found = promises
            .iter()
            .find(|one| one["promise"].as_str().unwrap().starts_with(begin));
        found
            .unwrap_or_else(|| panic!("{begin}: {summary}"))
            .clone()
    };
    for failure in failures {
        let text = failure.as_str().unwrap();
        assert!(
            LATE.iter()
                .any(|begin| text.starts_with(&format!("not kept: {begin}"))),
            "{text}"
        );
    }
    let durable = promise("A reading that was acknowledged");
    assert_eq!(durable["values"]["missing"], 0);
    assert!(
        durable["values"]["acknowledged"].as_u64() > Some(20_000),
        "{durable}"
    );
    let back = promise("After a power cut");
    assert!(
        back["values"]["restored_generation"].as_u64() > Some(0),
        "{back}"
    );
    assert!(
        back["values"]["readings_ms"].is_number() && back["values"]["task_ms"].is_number(),
        "{back}"
    );
    let controlled = promise("For that, the node lowers freshness");
    assert!(controlled["kept"].is_null(), "{controlled}");
    assert_eq!(controlled["values"]["mode"], "open", "{controlled}");
    let shared = promise("Hot files");
    assert!(shared["values"]["reads"].as_u64() > Some(20), "{shared}");
    let streamed = promise("A program runs from the network");
    if streamed["kept"].is_null() {
        println!("skipped: {}", streamed["figure"]);
    } else {
        assert_eq!(streamed["values"]["connects"], 0, "{streamed}");
    }
    let placed = promise("The node says");
    assert!(placed["values"]["runs"].as_u64() > Some(0), "{placed}");
    let options = placed["values"]["options"].as_array().unwrap();
    let options: Vec<_> = options.iter().map(|option| &option["place"]).collect();
    assert_eq!(options, ["one board", "the data centre"], "{placed}");
    let forwarded = promise("What was stored goes upstream");
    assert!(
        forwarded["values"]["lines"].as_u64() > Some(20_000),
        "{forwarded}"
    );
    assert!(
        forwarded["values"]["results"].as_u64() > Some(0),
        "{forwarded}"
    );
}

#[test]
fn without_its_library_the_demo_says_so_first_and_shows_the_rest() {
    let output = demo(None, &["--seconds", "60", "--speed", "10"]).unwrap();
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    let (before, promises) = split(&printed);
    let said: Vec<_> = before
        .iter()
        .filter(|line| line.contains("files in memory cannot be shown here"))
        .collect();
    assert_eq!(said.len(), 1, "{printed}");
    for part in [
        "libkeelmem.so: found neither beside this program nor in ../lib/keel",
        "the package evenkeel has it",
        "`cargo build --release -p mem-preload`",
    ] {
        assert!(said[0].contains(part), "{}", said[0]);
    }
    assert_eq!(promises.len(), 9, "{printed}");
    let shared = promises
        .iter()
        .find(|one| one.text.starts_with("Hot files"));
    let shared = shared.unwrap();
    assert_eq!(shared.word, "not shown");
    assert!(
        shared.figure[0].contains("libkeelmem.so"),
        "{:?}",
        shared.figure
    );
    is_kept_but_for_lateness(&output, &promises);
}

#[test]
fn the_page_shows_the_output_of_the_demo() {
    let page = page_common::text("start.md");
    let (_, rest) = page.split_once("\n```sh\nkeel demo --full ").unwrap();
    let (arguments, rest) = rest.split_once("\n```\n\n```text\n").unwrap();
    let (shown, _) = rest.split_once("\n```\n").unwrap();
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let Some(output) = demo(Some(OF_A_BUILD), &arguments) else {
        return;
    };
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    let (page_before, page_promises) = split(shown);
    let (before, promises) = split(&printed);
    is_kept_but_for_lateness(&output, &promises);
    assert_eq!(promises.len(), page_promises.len(), "{printed}");
    for (one, shown) in promises.iter().zip(&page_promises) {
        assert_eq!(one.text, shown.text);
        match one.word {
            "NOT KEPT" => {}
            // A mount is not permitted everywhere.
            "not shown" if shown.word == "kept" => {
                println!("skipped: {}: {}", one.text, one.figure.join("; "));
            }
            word => {
                assert_eq!(word, shown.word, "{}", one.text);
                assert!(
                    fits(&shown.figure, &one.figure),
                    "{:?} instead of {:?}",
                    one.figure,
                    shown.figure
                );
            }
        }
    }
    // If a slow start lets the trace end before the cut, no readings come back.
    if !printed.contains(" cannot be mounted here") && !printed.contains(" after never") {
        assert!(fits(&page_before, &before), "{before:?}");
    }
}
