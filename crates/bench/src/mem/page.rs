//! The result page of the in-memory file system: regenerates the text between its marks from a report of `keel-bench
//! mem --paper`; the text around the marks stays.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::Value;

use super::calls::LOGS;
use super::case::{
    Case, FAULTS, Kind, OF_ONE_THREAD, Pattern, RATE, REQUESTS_BYTES, STACK, THROUGHPUT, TIME,
    bytes_text,
};
use super::goals::{MAPPING_MIN, PAPERS_CASE};
use super::mapping::{ATTACH_CASE, ATTACH_TIME, EXT4_LARGEST, GROWTH_CASE, SIZES};
use super::paper::{FIGURES_6, share};
use super::systems::{
    EXT4_LARGE, EXT4_SMALL, KEEL, KEEL_TMPFS, MEMCPY, MEMCPY_TMPFS, PEERS, TMPFS, TMPFS_HUGE,
};
use super::takeover::{CASES as TAKEOVERS, Doing, WAIT_MAX, WAIT_P50, WAIT_P99};
use crate::page::{Run, cell, fill, goals_of_rounds, head, number, text};

/// `keel-bench mem-page`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// Report of `keel-bench mem --paper --json`.
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    /// The page to change.
    #[arg(long, value_name = "FILE")]
    page: PathBuf,
}

/// Systems as columns: name in reports and heading.
type Columns<'a> = &'a [(&'a str, &'a str)];

const ALL: Columns<'_> = &[
    (KEEL, "keel"),
    (KEEL_TMPFS, "keel over tmpfs"),
    (TMPFS, "tmpfs"),
    (TMPFS_HUGE, "tmpfs huge=always"),
    (EXT4_SMALL, "ext4, 4 KiB folios"),
    (EXT4_LARGE, "ext4, large folios"),
];

const LOOPS: Columns<'_> = &[
    (KEEL, "keel"),
    ("keel-library", "the library itself"),
    (MEMCPY, "memcpy"),
    (KEEL_TMPFS, "keel over tmpfs"),
    ("keel-tmpfs-library", "the library over tmpfs"),
    (TMPFS, "tmpfs"),
    (TMPFS_HUGE, "tmpfs huge=always"),
    (EXT4_SMALL, "ext4, 4 KiB folios"),
    (EXT4_LARGE, "ext4, large folios"),
];

const MAPPINGS: Columns<'_> = &[
    (KEEL, "keel: open and lend"),
    (TMPFS, "tmpfs, populated"),
    (TMPFS_HUGE, "tmpfs huge=always, populated"),
    (EXT4_SMALL, "ext4, 4 KiB folios, populated"),
    (EXT4_LARGE, "ext4, large folios, populated"),
];

const READS: Columns<'_> = &[
    (KEEL, "keel: open, read, close"),
    (TMPFS, "tmpfs: open, read, close"),
];

/// Text that refers to the raw figures.
const RAW: &str = "The raw figures: [mem.json](mem.json), and the tables of the drawings beside them in \
                   `docs/results/mem`.\n";

/// Ratios from this value up to 1 count as equal.
const SAME_RATIO: f64 = 0.98;

/// Regenerates the page.
///
/// # Errors
/// One line that names the file.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let run = Run::read(&options.json)?;
    let parts = [
        ("run", run_text(&run)),
        ("goals", goals(&run)),
        ("fio", by_pattern(&run, Kind::Fio, ALL, THROUGHPUT.name)),
        ("best", against_best(&run)),
        ("tight", by_pattern(&run, Kind::Tight, LOOPS, TIME.name)),
        ("logs", logs(&run)),
        ("threads", threads(&run)),
        ("mapping", mapping(&run)),
        ("attach", attach(&run)),
        ("takeover", takeover(&run)),
        ("stack", stack(&run)),
        ("figure-1", drawing(&run, STACK[0].1, "figure-1")),
        ("figure-2", drawing(&run, SIZES[0].1, "figure-2")),
        (
            "figure-5",
            drawing(&run, "fio-random-read-4096", "figure-5"),
        ),
        ("figure-6", several(&run)),
        ("slower", slower(&run)),
        ("missing", run.missing()),
        ("raw", RAW.to_owned()),
    ];
    fill(&options.page, &parts)
}

/// Describes a case for a reader.
fn words(case: &str) -> String {
    let kinds = [
        (Kind::Fio, "fio"),
        (Kind::Tight, "loop"),
        (Kind::Packed, "loop, small file"),
        (Kind::OneThread, "fio, one thread"),
        (Kind::TwoThreads, "fio, two threads"),
        (Kind::FourThreads, "fio, four threads"),
    ];
    for (kind, by) in kinds {
        let mut cases = Case::all(kind, &REQUESTS_BYTES).into_iter();
        if let Some(found) = cases.find(|found| found.name() == case) {
            let bytes = bytes_text(found.request_bytes.into());
            return format!("{by}, {}, {bytes}", found.pattern.words());
        }
    }
    for (mebibytes, map, read) in SIZES {
        let bytes = bytes_text(mebibytes << 20);
        if case == map {
            return format!("making {bytes} addressable");
        }
        if case == read {
            return format!("opening {bytes}, reading a byte, closing");
        }
    }
    if let Some((doing, _)) = TAKEOVERS.iter().find(|(_, found)| *found == case) {
        return format!("a process is killed while it {}", doing_words(*doing));
    }
    match case {
        PAPERS_CASE => "fio, sequential write, the best of 1 to 16 KiB".to_owned(),
        GROWTH_CASE => "making a file addressable, all sizes".to_owned(),
        ATTACH_CASE => "a second process, until it has touched 2 GiB".to_owned(),
        other => other.to_owned(),
    }
}

/// Describes for a reader what a process does when it is killed.
fn doing_words(doing: Doing) -> &'static str {
    match doing {
        Doing::Small => "writes 16 KiB",
        Doing::Large => "writes 1 MiB",
        Doing::Names => "changes names",
    }
}

/// Describes a metric for a reader.
fn metric_words(metric: &str) -> &str {
    match metric {
        "operations" => "calls in a second",
        "time_per_operation" => "time",
        "of_one_thread" => "throughput of one thread, times",
        "slowest_of_fastest" => "the slowest divided by the fastest",
        "most_of_ext4-4k-folios" => "throughput, divided by ext4-4k-folios",
        "time" => "time, µs",
        "wait_max" => "longest wait, µs",
        other => other,
    }
}

fn run_text(run: &Run) -> String {
    let method = &run.report["method"];
    let bytes = |name: &str| bytes_text(method[name].as_u64().unwrap_or(0));
    let backing = match method["backing"][KEEL].as_str() {
        Some("HugePages") => "huge pages of hugetlbfs",
        Some("SharedMemory") => "tmpfs",
        _ => "a file",
    };
    // A run of several rounds has the number of rounds of each part here.
    let rounds = method["rounds"].as_array().map_or_else(
        || method["rounds"].as_u64().unwrap_or(0),
        |all| {
            let values = all.iter().filter_map(|row| row["values"].as_array());
            values.map(Vec::len).max().unwrap_or(0) as u64
        },
    );
    format!(
        "{}; {}. keel is over {backing}. {rounds} rounds; a file of {}, of several threads {} each; fio {} ms, of \
         several threads {} ms, the loop {} ms.{}\n",
        run.origin(),
        method["fio"].as_str().unwrap_or("no fio"),
        bytes("file_bytes"),
        bytes("file_of_a_thread_bytes"),
        method["fio_ms"],
        method["threads_ms"],
        method["tight_ms"],
        run.load(),
    )
}

fn goals(run: &Run) -> String {
    let metric_words = |metric: &str| metric_words(metric).to_owned();
    let mut out = goals_of_rounds(&with_the_papers_peer(run), words, metric_words, |row| {
        let [case, metric] = ["case", "metric"].map(|key| text(&row[key]));
        above_processors(case, metric, row["value"].as_f64())
    });
    out.push_str(&mappings(run));
    out
}

/// Returns the report without a goal for mapping against ext4 with large folios. Reports of November 2026 have one.
fn with_the_papers_peer(run: &Run) -> Run {
    let mut report = run.report.clone();
    let ratios = report["ratios"].as_array_mut();
    for row in ratios.into_iter().flatten() {
        if is_mapping(row, EXT4_LARGE)
            && let Some(row) = row.as_object_mut()
        {
            row.remove("goal");
        }
    }
    Run { report }
}

/// Whether a ratio is that of making the largest file of ext4 addressable, against this peer.
fn is_mapping(row: &Value, peer: &str) -> bool {
    row["case"] == EXT4_LARGEST && row["metric"] == RATE.name && row["peer"] == peer
}

/// Returns the rows of the mapping that [`goals_of_rounds`] lacks. The row of the paper's peer is among them if it was
/// not measured. The row of large folios has no goal.
fn mappings(run: &Run) -> String {
    let ratio = |peer: &str| {
        let mut ratios = run.list("ratios").iter();
        ratios.find(|row| is_mapping(row, peer))
    };
    let (case, metric) = (words(EXT4_LARGEST), metric_words(RATE.name));
    let mut out = String::new();
    if ratio(EXT4_SMALL).is_none() {
        let at_least = number(MAPPING_MIN);
        let _ = writeln!(
            out,
            "| {case} | {metric}, divided by {EXT4_SMALL} | – | | at least {at_least} | not measured |"
        );
    }
    if let Some(row) = ratio(EXT4_LARGE) {
        let [low, high] = [0_usize, 1].map(|place| cell(row["of_rounds"][place].as_f64()));
        let _ = writeln!(
            out,
            "| {case} | {metric}, divided by {EXT4_LARGE} | {} | {low} to {high} | none | |",
            cell(row["ratio"].as_f64())
        );
    }
    out
}

/// Says so if several threads do more than as many processors can: another cause than the threads has a part in it.
fn above_processors(case: &str, metric: &str, value: Option<f64>) -> String {
    let of_kind = |kind: &Kind| {
        let cases = Case::all(*kind, &REQUESTS_BYTES);
        cases.iter().any(|found| found.name() == case)
    };
    let mut kinds = [Kind::TwoThreads, Kind::FourThreads].into_iter();
    match (kinds.find(of_kind).map(Kind::threads), value) {
        (Some(most), Some(value)) if metric == OF_ONE_THREAD.name && value > most as f64 => {
            format!(", above what {most} processors give")
        }
        _ => String::new(),
    }
}

/// Returns a table with a row for each case and a column for each system that has a figure in one of them.
fn grid(
    run: &Run,
    first: &str,
    cases: &[(String, &str)],
    columns: Columns<'_>,
    metric: &str,
) -> String {
    let columns: Vec<_> = columns
        .iter()
        .filter(|(system, _)| {
            let has = |case: &str| run.value(case, system, metric).is_some();
            cases.iter().any(|(_, case)| has(case))
        })
        .collect();
    if columns.is_empty() {
        return String::new();
    }
    let mut out = format!("| {first} |");
    for (_, heading) in &columns {
        let _ = write!(out, " {heading} |");
    }
    let _ = writeln!(out, "\n|---|{}", "---|".repeat(columns.len()));
    for (label, case) in cases {
        let _ = write!(out, "| {label} |");
        for (system, _) in &columns {
            let _ = write!(out, " {} |", cell(run.value(case, system, metric)));
        }
        out.push('\n');
    }
    out
}

/// The cases of a kind and a pattern, by size.
fn cases(kind: Kind, pattern: Pattern) -> Vec<(String, &'static str)> {
    let of_kind = Case::all(kind, &REQUESTS_BYTES).into_iter();
    of_kind
        .filter(|case| case.pattern == pattern)
        .map(|case| (bytes_text(case.request_bytes.into()), case.name()))
        .collect()
}

fn by_pattern(run: &Run, kind: Kind, columns: Columns<'_>, metric: &str) -> String {
    let mut out = String::new();
    for pattern in Pattern::ALL {
        let first = pattern.words();
        let table = grid(run, first, &cases(kind, pattern), columns, metric);
        if !table.is_empty() {
            out.push_str(&table);
            out.push('\n');
        }
    }
    out
}

/// Returns our throughput divided by that of the fastest peer, for each case of fio.
fn against_best(run: &Run) -> String {
    let mut out = "| request |".to_owned();
    for pattern in Pattern::ALL {
        let _ = write!(out, " {} |", pattern.words());
    }
    out.push_str("\n|---|---|---|---|---|\n");
    for request_bytes in REQUESTS_BYTES {
        let _ = write!(out, "| {} |", bytes_text(request_bytes.into()));
        for pattern in Pattern::ALL {
            let case = Case {
                kind: Kind::Fio,
                pattern,
                request_bytes,
            }
            .name();
            let value = |peer: &&str| run.value(case, peer, THROUGHPUT.name);
            let best = PEERS
                .into_iter()
                .filter(|peer| value(peer).is_some())
                .max_by(|one, other| {
                    value(one)
                        .partial_cmp(&value(other))
                        .unwrap_or(std::cmp::Ordering::Equal)
                });
            let shown = best.and_then(|peer| {
                let ratio = run.ratio(case, peer, THROUGHPUT.name)?;
                Some(format!("{} ({peer})", number(ratio)))
            });
            let _ = write!(out, " {} |", shown.unwrap_or_else(|| "–".to_owned()));
        }
        out.push('\n');
    }
    out
}

fn logs(run: &Run) -> String {
    let mut out = String::new();
    let columns = LOGS.map(|(_, system)| {
        let heading = match system.strip_prefix("keel-library-") {
            None => "by size (default)",
            Some("posix") => "posix (nothing logged)",
            Some("copy-on-write") => "copy on write",
            Some(other) => other,
        };
        (system, heading)
    });
    for (kind, file) in [
        (Kind::Tight, "large file"),
        (Kind::Packed, "file of 64 KiB"),
    ] {
        for pattern in [Pattern::SequentialWrite, Pattern::RandomWrite] {
            let first = format!("{}, {file}", pattern.words());
            let cases = &cases(kind, pattern)[..3];
            let table = grid(run, &first, cases, &columns, TIME.name);
            if !table.is_empty() {
                out.push_str(&table);
                out.push('\n');
            }
        }
    }
    out
}

fn threads(run: &Run) -> String {
    let mut out = String::new();
    let cores = run.report["machine"]["cores"].as_u64().unwrap_or(u64::MAX);
    for (kind, count) in [
        (Kind::OneThread, "one thread"),
        (Kind::TwoThreads, "two threads"),
        (Kind::FourThreads, "four threads"),
    ] {
        for pattern in Pattern::ALL {
            let mut first = format!("{}, {count}", pattern.words());
            if kind.threads() as u64 > cores {
                let _ = write!(first, " on {cores} processors");
            }
            let table = grid(run, &first, &cases(kind, pattern), ALL, THROUGHPUT.name);
            if table.is_empty() {
                continue;
            }
            if kind == Kind::OneThread {
                let _ = writeln!(out, "{table}");
                continue;
            }
            // Adds a column: our throughput divided by that of one thread of ours.
            for (place, line) in table.lines().enumerate() {
                let case = place
                    .checked_sub(2)
                    .map(|place| cases(kind, pattern)[place].1);
                let more = match (place, case) {
                    (0, _) => " keel, of one thread |".to_owned(),
                    (_, None) => "---|".to_owned(),
                    (_, Some(case)) => {
                        format!(" {} |", cell(run.value(case, KEEL, OF_ONE_THREAD.name)))
                    }
                };
                let _ = writeln!(out, "{line}{more}");
            }
            out.push('\n');
        }
    }
    out
}

fn mapping(run: &Run) -> String {
    let cases = SIZES.map(|(mebibytes, case, _)| (bytes_text(mebibytes << 20), case));
    let mut out = grid(run, "file, ns", &cases, MAPPINGS, TIME.name);
    let faults = |system: &str| {
        let all = cases
            .iter()
            .filter_map(|(_, case)| run.value(case, system, FAULTS.name));
        all.fold(0.0, f64::max)
    };
    if !out.is_empty() {
        let (ours, peers) = (faults(KEEL), faults(TMPFS));
        let (largest_bytes, largest) = &cases[cases.len() - 1];
        let times: Vec<_> = MAPPINGS[1..]
            .iter()
            .filter_map(|(peer, heading)| {
                let ratio = run.ratio(largest, peer, RATE.name)?;
                Some(format!("{} times faster than {heading}", number(ratio)))
            })
            .collect();
        if !times.is_empty() {
            let _ = writeln!(out, "\nAt {largest_bytes}, keel is {}.", times.join(", "));
        }
        let _ = writeln!(
            out,
            "\nPage faults when all of the file is touched after that, at most: keel {}, tmpfs {}.",
            number(ours),
            number(peers)
        );
    }
    let cases = SIZES.map(|(mebibytes, _, case)| (bytes_text(mebibytes << 20), case));
    let reads = grid(run, "file, ns", &cases, READS, TIME.name);
    if !reads.is_empty() {
        let _ = write!(out, "\n{reads}");
    }
    out
}

fn attach(run: &Run) -> String {
    let value = |metric| cell(run.value(ATTACH_CASE, KEEL, metric));
    format!(
        "{} µs, with {} page faults.\n",
        value(ATTACH_TIME.name),
        value(FAULTS.name)
    )
}

fn takeover(run: &Run) -> String {
    let mut out = head("it is killed while it | p50, µs | p99, µs | longest, µs");
    for (doing, case) in TAKEOVERS {
        let waits = [WAIT_P50, WAIT_P99, WAIT_MAX].map(|metric| run.value(case, KEEL, metric.name));
        let [p50, p99, longest] = waits.map(cell);
        let _ = writeln!(
            out,
            "| {} | {p50} | {p99} | {longest} |",
            doing_words(doing)
        );
    }
    let _ = writeln!(
        out,
        "\n{} kills of each.",
        run.report["method"]["takeover_kills"]
    );
    out
}

fn stack(run: &Run) -> String {
    let mut out =
        head("request | tmpfs, ns | copy, ns | software | keel, ns | copy, ns | software");
    for (bytes, case) in STACK {
        let _ = write!(out, "| {} |", bytes_text(bytes.into()));
        for (system, copy) in [(TMPFS, MEMCPY_TMPFS), (KEEL, MEMCPY)] {
            let call_ns = run.value(case, system, TIME.name);
            let copy_ns = run.value(case, copy, TIME.name);
            let part = call_ns
                .zip(copy_ns)
                // Adding 0.0 turns -0.0 into 0.0, since the sign of a value rounded to 0 has no meaning.
                .map(|(call, copy)| (share(call, copy) * 100.0).round() + 0.0);
            let part = part.map_or_else(|| "–".to_owned(), |part| format!("{part:.0} %"));
            let _ = write!(out, " {} | {} | {part} |", cell(call_ns), cell(copy_ns));
        }
        out.push('\n');
    }
    out
}

/// Returns a link to a drawing if its case was measured.
fn drawing(run: &Run, case: &str, name: &str) -> String {
    let mut rows = run.list("rows").iter();
    if rows.any(|row| row["case"] == case) {
        format!("[![{name}](mem/{name}.png)](mem/{name}.svg)\n")
    } else {
        String::new()
    }
}

/// Returns the drawings of several threads.
fn several(run: &Run) -> String {
    let drawings = FIGURES_6.map(|(_, name, case)| drawing(run, case, name));
    let made: Vec<_> = drawings
        .into_iter()
        .filter(|made| !made.is_empty())
        .collect();
    made.join("\n")
}

/// Lists the cases in which a peer was faster than our system.
fn slower(run: &Run) -> String {
    let mut out = String::new();
    for row in run.list("ratios") {
        let (case, peer) = (text(&row["case"]), text(&row["peer"]));
        // A time repeats what the number of calls per second already says.
        let is_judged = PEERS.contains(&peer) && row["better"] == "higher";
        let ratio = row["ratio"].as_f64().unwrap_or(f64::NAN);
        if is_judged && ratio < SAME_RATIO {
            let _ = writeln!(
                out,
                "- {}: {} times the {} of {peer}",
                words(case),
                number(ratio),
                metric_words(text(&row["metric"]))
            );
        }
    }
    if out.is_empty() {
        out.push_str("Nothing in this run.\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run() -> Run {
        let row = |case: &str, system: &str, metric: &str, value: f64| {
            json!({"case": case, "system": system, "metric": metric,
                   "value": value})
        };
        let read = "fio-random-read-4096";
        Run {
            report: json!({
                "rows": [
                    row(read, "keel", "throughput", 6000.0),
                    row(read, "tmpfs", "throughput", 3000.0),
                    row(read, "ext4-large-folios", "throughput", 6500.0),
                    row("tight-random-write-1024", "keel-library", "time_per_operation", 200.0),
                    row("tight-random-write-1024", "keel-library-undo", "time_per_operation", 500.0),
                    row("threads-2-random-read-1024", "keel", "throughput", 100.0),
                    row("threads-2-random-read-1024", "keel", "of_one_thread", 1.9),
                    {"case": "threads-2-sequential-write-1024", "system": "keel", "metric": "of_one_thread",
                     "value": 2.16, "goal": 1.7, "better": "higher", "met": true},
                    row("map-4096-mib", "keel", "page_faults", 0.0),
                    row("map-4096-mib", "keel", "time_per_operation", 2200.0),
                    row("stack-1024", "tmpfs", "time_per_operation", 400.0),
                    row("stack-1024", "memcpy-of-tmpfs", "time_per_operation", 100.0),
                    {"case": "attach-2048-mib", "system": "keel", "metric": "time", "value": 90.5,
                     "goal": 1000.0, "better": "lower", "met": true},
                    row("takeover-names", "keel", "wait_p50", 900.0),
                    {"case": "takeover-names", "system": "keel", "metric": "wait_max", "value": 2500.0,
                     "goal": 10000.0, "better": "lower", "met": true},
                ],
                "method": {"takeover_kills": 200, "rounds": [
                    {"case": "attach-2048-mib", "system": "keel", "metric": "time", "values": [90.5, 97.5, 88.5]},
                    {"case": "takeover-names", "system": "keel", "metric": "wait_max", "values": [2500.0]},
                ]},
                "ratios": [
                    {"case": read, "peer": "ext4-large-folios", "metric": "throughput", "ratio": 0.92,
                     "of_rounds": [0.9, 1.1], "better": "higher", "goal": 1.6, "met": false},
                    {"case": read, "peer": "tmpfs", "metric": "throughput", "ratio": 2.0, "better": "higher"},
                ],
                "missing": ["perf"],
            }),
        }
    }

    #[test]
    fn the_first_line_of_a_run_counts_its_rounds() {
        let text = run_text(&run());
        assert!(text.contains(" 3 rounds; "), "{text}");
    }

    #[test]
    fn goals_show_misses_and_the_spread_of_the_rounds() {
        let goals = goals(&run());
        let missed = "| fio, random read, 4 KiB | throughput, divided by ext4-large-folios | 0.92 | 0.90 to 1.10 | \
                      at least 1.60 | **missed** |";
        assert!(goals.contains(missed), "{goals}");
        let met = "until it has touched 2 GiB | time, µs | 90.50 | 88.50 to 97.50 | at most 1,000 | met |";
        assert!(goals.contains(met), "{goals}");
        let met =
            "killed while it changes names | longest wait, µs | 2,500 | | at most 10,000 | met |";
        assert!(goals.contains(met), "{goals}");
        let above = "| at least 1.70 | met, above what 2 processors give |";
        assert!(goals.contains(above), "{goals}");
        assert_eq!(goals.matches("above what").count(), 1, "{goals}");
    }

    #[test]
    fn a_mapping_is_judged_by_the_papers_peer_alone() {
        let mut run = run();
        let ratio = |peer: &str, ratio: f64| {
            let of_rounds = [ratio, ratio];
            json!({"case": EXT4_LARGEST, "peer": peer, "metric": RATE.name, "ratio": ratio, "better": "higher",
                   "of_rounds": of_rounds, "goal": 8700.0, "met": true})
        };
        let ratios = run.report["ratios"].as_array_mut().unwrap();
        ratios.push(ratio(EXT4_LARGE, 9729.0));
        let text = goals(&run);
        let first = "| making 1 GiB addressable | calls in a second, divided by";
        let large = format!("{first} ext4-large-folios | 9,729 | 9,729 to 9,729 | none | |\n");
        let missing =
            format!("{first} ext4-4k-folios | – | | at least 8,700 | not measured |\n{large}");
        assert!(text.ends_with(&missing), "{text}");
        let ratios = run.report["ratios"].as_array_mut().unwrap();
        ratios.push(ratio(EXT4_SMALL, 17_000.0));
        let text = goals(&run);
        let met = format!(
            "{first} ext4-4k-folios | 17,000 | 17,000 to 17,000 | at least 8,700 | met |\n"
        );
        assert!(text.contains(&met) && text.ends_with(&large), "{text}");
        assert_eq!(text.matches(first).count(), 2, "{text}");
    }

    #[test]
    fn tables_have_a_column_for_each_system_that_was_measured() {
        let run = run();
        let fio = by_pattern(&run, Kind::Fio, ALL, THROUGHPUT.name);
        assert!(
            fio.contains(
                "| random read | keel | tmpfs | ext4, large folios |\n|---|---|---|---|\n"
            ),
            "{fio}"
        );
        assert!(fio.contains("| 4 KiB | 6,000 | 3,000 | 6,500 |"), "{fio}");
        assert!(!fio.contains("sequential"), "{fio}");
        assert!(against_best(&run).contains("| 0.92 (ext4-large-folios) |"));
        let logs = logs(&run);
        assert!(
            logs.contains("| random write, large file | by size (default) | undo |"),
            "{logs}"
        );
        assert!(logs.contains("| 1 KiB | 200 | 500 |"), "{logs}");
        let threads = threads(&run);
        assert!(
            threads.contains("two threads | keel | keel, of one thread |\n|---|---|---|\n"),
            "{threads}"
        );
        assert!(threads.contains("| 1 KiB | 100 | 1.90 |"), "{threads}");
        assert!(mapping(&run).contains("| 4 GiB | 2,200 |"));
        assert!(stack(&run).contains("| 1 KiB | 400 | 100 | 75 % | – | – | – |"));
        let takeover = takeover(&run);
        assert!(
            takeover.contains("| changes names | 900 | – | 2,500 |"),
            "{takeover}"
        );
        assert!(takeover.ends_with("\n200 kills of each.\n"));
        assert!(drawing(&run, "stack-1024", "figure-1").contains("(mem/figure-1.svg)"));
        assert_eq!(several(&run), "", "no drawing of what was not measured");
    }

    #[test]
    fn cases_in_which_a_peer_was_faster_are_listed() {
        let slower = slower(&run());
        assert_eq!(
            slower,
            "- fio, random read, 4 KiB: 0.92 times the throughput of ext4-large-folios\n"
        );
    }
}
