//! The paper's figures, as CSV and as drawings. The in-memory file system follows the paper (Sha et al., "The Design
//! and Implementation of an Efficient User-Space In-memory File System"). Figure 1 has the time of the software between
//! a call and its bytes, 2 the mapping of a file. Figure 5 has the throughput with one thread, 6 with several.

use std::fmt::Write;
use std::path::Path;

use super::case::{Case, Kind, Pattern, REQUESTS_BYTES, STACK, THROUGHPUT, TIME, bytes_text};
use super::mapping::SIZES;
use super::plot::{Curve, Frame, Panel, Scale, panels};
use super::systems::{
    EXT4_LARGE, EXT4_SMALL, KEEL, KEEL_TMPFS, MEMCPY, MEMCPY_TMPFS, TMPFS, TMPFS_HUGE,
};
use crate::figures::{Figures, Metric};
use crate::machine::Machine;
use crate::paper::chart::Color;
use crate::paper::render;

/// System, its label in a drawing, a colour that colour-blind readers can distinguish, dashed.
type Look = (&'static str, &'static str, Color, bool);

const OURS: Color = Color(0x00, 0x5A, 0xA8);
const LIGHT: Color = Color(0x6C, 0xA6, 0xD9);
const YELLOW: Color = Color(0xF0, 0xB4, 0x29);
const ORANGE: Color = Color(0xE0, 0x7B, 0x00);
const RED: Color = Color(0xC2, 0x3B, 0x00);
const GREEN: Color = Color(0x1B, 0x9E, 0x60);

const THROUGHPUTS: [Look; 6] = [
    (KEEL, "keel", OURS, false),
    (KEEL_TMPFS, "keel over tmpfs", LIGHT, true),
    (TMPFS, "tmpfs", YELLOW, false),
    (TMPFS_HUGE, "tmpfs huge=always", ORANGE, false),
    (EXT4_SMALL, "ext4 on RAM, 4 KiB folios", RED, false),
    (EXT4_LARGE, "ext4 on RAM, large folios", GREEN, false),
];

const MAPPINGS: [Look; 4] = [
    (KEEL, "keel: open and lend", OURS, false),
    (TMPFS, "tmpfs: open and mmap, populated", YELLOW, false),
    (TMPFS_HUGE, "tmpfs huge=always, same", ORANGE, false),
    (EXT4_LARGE, "ext4 on RAM, same", GREEN, false),
];

/// System, the copy of the same bytes, look.
const STACKS: [(&str, &str, &str, Color); 2] = [
    (TMPFS, MEMCPY_TMPFS, "tmpfs, by the kernel", YELLOW),
    (KEEL, MEMCPY, "keel, in the process", OURS),
];

/// Kind, name of the drawing, a case of it.
pub(crate) const FIGURES_6: [(Kind, &str, &str); 3] = [
    (
        Kind::OneThread,
        "figure-6-one-thread",
        "threads-1-random-read-4096",
    ),
    (Kind::TwoThreads, "figure-6", "threads-2-random-read-4096"),
    (
        Kind::FourThreads,
        "figure-6-four-threads",
        "threads-4-random-read-4096",
    ),
];

/// Writes all figures that have values into a folder.
///
/// # Errors
/// One line that names the file.
pub(crate) fn write(folder: &Path, figures: &Figures, machine: &Machine) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let machine = format!(
        "{}, {} cores, kernel {}",
        machine.cpu, machine.cores, machine.kernel
    );
    stack(folder, figures, &machine)?;
    mapping(folder, figures, &machine)?;
    throughput(folder, figures, &machine, Kind::Fio, "figure-5")?;
    for (kind, name, _) in FIGURES_6 {
        throughput(folder, figures, &machine, kind, name)?;
    }
    Ok(())
}

/// Returns the share of a call's time that is not the copy. A negative share means that the call takes less time than
/// the bare copy.
pub(crate) fn share(call_ns: f64, copy_ns: f64) -> f64 {
    (call_ns - copy_ns) / call_ns
}

fn stack(folder: &Path, figures: &Figures, machine: &str) -> Result<(), String> {
    let mut table = "request_bytes".to_owned();
    for (system, copy, ..) in STACKS {
        let _ = write!(table, ",{system}_ns,{copy}_ns,{system}_share");
    }
    table.push('\n');
    let mut curves: Vec<Curve> = STACKS
        .map(|(_, _, label, color)| Curve {
            label,
            color,
            dashed: false,
            values: Vec::new(),
        })
        .into();
    for (bytes, case) in STACK {
        let _ = write!(table, "{bytes}");
        for (place, (system, copy, ..)) in STACKS.into_iter().enumerate() {
            let call_ns = figures.value(case, system, TIME);
            let copy_ns = figures.value(case, copy, TIME);
            let share = call_ns.zip(copy_ns).map(|(call, copy)| share(call, copy));
            let cells = [(call_ns, 1), (copy_ns, 1), (share, 3)];
            for (value, decimals) in cells {
                table.push_str(&cell(value, decimals));
            }
            curves[place].values.push(share);
        }
        table.push('\n');
    }
    let labels = STACK.map(|(bytes, _)| bytes_text(bytes.into()));
    let frame = Frame {
        title: "Figure 1: the software between a read and its bytes, as a share of its time",
        subtitle: &format!("sequential pread less memcpy of the same bytes; {machine}"),
        scale: Scale::Share,
        labels: &labels,
        horizontal: "size of a request",
    };
    let panel = Panel {
        title: String::new(),
        curves,
    };
    put(folder, "figure-1", &table, &frame, &[panel])
}

fn mapping(folder: &Path, figures: &Figures, machine: &str) -> Result<(), String> {
    let cases = SIZES.map(|(mebibytes, case, _)| (mebibytes << 20, case));
    let table = table("file_bytes", &cases, &MAPPINGS, TIME, figures);
    let panel = Panel {
        title: String::new(),
        curves: curves(&cases.map(|(_, case)| case), &MAPPINGS, TIME, figures),
    };
    let labels = cases.map(|(bytes, _)| bytes_text(bytes));
    let frame = Frame {
        title: "Figure 2: until every byte of a file can be reached without a page fault",
        subtitle: &format!("logarithmic; {machine}"),
        scale: Scale::Time,
        labels: &labels,
        horizontal: "size of the file",
    };
    put(folder, "figure-2", &table, &frame, &[panel])
}

fn throughput(
    folder: &Path,
    figures: &Figures,
    machine: &str,
    kind: Kind,
    name: &str,
) -> Result<(), String> {
    let looks: Vec<Look> = THROUGHPUTS
        .into_iter()
        .filter(|(system, ..)| {
            let mut cases = Case::all(kind, &REQUESTS_BYTES).into_iter();
            cases.any(|case| figures.value(case.name(), system, THROUGHPUT).is_some())
        })
        .collect();
    if looks.is_empty() {
        return Ok(());
    }
    let mut text = String::new();
    let mut all = Vec::new();
    for pattern in Pattern::ALL {
        let cases = REQUESTS_BYTES.map(|request_bytes| {
            let case = Case {
                kind,
                pattern,
                request_bytes,
            };
            (u64::from(request_bytes), case.name())
        });
        let of_pattern = table("request_bytes", &cases, &looks, THROUGHPUT, figures);
        for (place, line) in of_pattern.lines().enumerate() {
            if place > 0 {
                let _ = writeln!(text, "{},{line}", pattern.name());
            } else if text.is_empty() {
                let _ = writeln!(text, "pattern,{line}");
            }
        }
        all.push(Panel {
            title: pattern.words().to_owned(),
            curves: curves(&cases.map(|(_, case)| case), &looks, THROUGHPUT, figures),
        });
    }
    let labels = ["1K", "4K", "16K", "64K", "1M"].map(str::to_owned);
    let threads = match kind.threads() {
        1 if kind == Kind::OneThread => "one thread, on the file of one of several".to_owned(),
        1 => "one thread".to_owned(),
        2 => "two threads, each on a file of its own".to_owned(),
        count => format!("{count} threads, each on a file of its own"),
    };
    let number = if kind == Kind::Fio { 5 } else { 6 };
    let frame = Frame {
        title: &format!("Figure {number}: throughput with {threads}"),
        subtitle: &format!("fio, psync, page cache hot; {machine}"),
        scale: Scale::Throughput,
        labels: &labels,
        horizontal: "size of a request",
    };
    put(folder, name, &text, &frame, &all)
}

fn curves(cases: &[&'static str], looks: &[Look], metric: Metric, figures: &Figures) -> Vec<Curve> {
    let curve = |(system, label, color, dashed): &Look| Curve {
        label,
        color: *color,
        dashed: *dashed,
        values: cases
            .iter()
            .map(|case| figures.value(case, system, metric))
            .collect(),
    };
    looks.iter().map(curve).collect()
}

/// Returns a table with a row for each case and a column for each system.
fn table(
    first: &str,
    cases: &[(u64, &'static str)],
    looks: &[Look],
    metric: Metric,
    figures: &Figures,
) -> String {
    let mut text = first.to_owned();
    let unit = metric.unit.replace('/', "_per_").to_lowercase();
    for (system, ..) in looks {
        let _ = write!(text, ",{system}_{unit}");
    }
    text.push('\n');
    for (bytes, case) in cases {
        let _ = write!(text, "{bytes}");
        for (system, ..) in looks {
            text.push_str(&cell(figures.value(case, system, metric), 1));
        }
        text.push('\n');
    }
    text
}

/// Returns a comma, followed by the value if there is one.
fn cell(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| ",".to_owned(), |value| format!(",{value:.decimals$}"))
}

fn put(
    folder: &Path,
    name: &str,
    table: &str,
    frame: &Frame<'_>,
    all: &[Panel],
) -> Result<(), String> {
    let path = folder.join(format!("{name}.csv"));
    std::fs::write(&path, table).map_err(|error| format!("{}: {error}", path.display()))?;
    render::write(folder, name, &panels(frame, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_software_excludes_the_copy() {
        assert_eq!(share(400.0, 100.0), 0.75);
        assert_eq!(share(100.0, 125.0), -0.25);
    }

    #[test]
    fn tables_and_drawings_show_the_recorded_figures() {
        let mut figures = Figures::new(Vec::new());
        for (case, system, metric, value) in [
            ("stack-1024", TMPFS, TIME, 400.0),
            ("stack-1024", MEMCPY_TMPFS, TIME, 100.0),
            ("map-16-mib", KEEL, TIME, 2000.0),
            ("fio-random-read-4096", KEEL, THROUGHPUT, 7000.0),
            ("fio-random-read-4096", TMPFS, THROUGHPUT, 3500.0),
        ] {
            figures.record(case, system, metric, value);
        }
        let folder = std::env::temp_dir().join(format!("keel-bench-plots-{}", std::process::id()));
        write(&folder, &figures, &Machine::detect()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert!(read("figure-1.csv").contains("\n1024,400.0,100.0,0.750,,,\n"));
        assert!(read("figure-2.csv").contains("\n16777216,2000.0,,,\n"));
        let fifth = read("figure-5.csv");
        let head = "pattern,request_bytes,keel_mib_per_s,tmpfs_mib_per_s\n";
        assert!(fifth.starts_with(head), "{fifth}");
        assert!(
            fifth.contains("\nrandom-read,4096,7000.0,3500.0\n"),
            "{fifth}"
        );
        assert!(read("figure-5.svg").contains("random read"));
        assert!(folder.join("figure-2.png").is_file());
        assert!(
            !folder.join("figure-6.csv").exists(),
            "nothing was measured for it"
        );
        std::fs::remove_dir_all(folder).unwrap();
    }
}
