//! Writes the figures of the paper as CSV and as drawings, for the results that exist.

use std::fmt::Write;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::bars::{self, Series};
use super::bed::{CARD, EXT4, KEEL, READAHEAD, SSHFS};
use super::cases::{NEEDED_BLOCKS, PAGE_TIME, READS, RUN_TIME, named};
use super::paper::{
    ARMS, FIGURE_1, FIGURE_7A, FIGURE_7C, FIGURE_8, FIGURE_10, FIGURE_11, FIGURE_11_WAY,
    LOSSES_PERCENT, MODES, ORDERS, PATHS, PRE_READ_BLOCKS, TABLE_1, TABLE_2, TOTAL_BLOCKS,
    WAYS_OF_OURS, WIRED, WIRELESS,
};
use super::table_1::{PART_TIME, PARTS};
use super::tasks::Program;
use crate::figures::{Figures, Metric};
use crate::machine::Machine;
use crate::paper::render;
use crate::qos::plot::{COLORS, Curve, Horizontal, Panel, panels};

/// Writes all figures that have values into a folder.
///
/// # Errors
/// One line that names the file.
pub(crate) fn write(folder: &Path, figures: &Figures, machine: &Machine) -> Result<(), String> {
    write_of_two(folder, figures, machine, machine)
}

/// As [`write`], with figure 7c from another run, on the machine that the last argument names.
fn write_of_two(
    folder: &Path,
    figures: &Figures,
    machine: &Machine,
    of_arms: &Machine,
) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let [machine, of_arms] = [machine, of_arms].map(|machine| {
        format!(
            "{}, {} cores, kernel {}",
            machine.cpu, machine.cores, machine.kernel
        )
    });
    let drawing = Drawing {
        folder,
        figures,
        machine: &machine,
    };
    let arms_drawing = Drawing {
        machine: &of_arms,
        ..drawing
    };
    drawing.tables()?;
    let of = |part: &'static str| move |name: &str| format!("{part}-{name}");
    let wired = |name: &str| format!("{FIGURE_8}-{name}-{}", WIRED.name());
    let systems = [KEEL, READAHEAD, SSHFS, CARD, EXT4].map(|system| (system, system));
    let path_names = PATHS.map(|(system, _)| (system, system.trim_start_matches("keel-")));
    let arm_names = ARMS.map(|(system, label)| (system, label));
    let mode_names = WAYS_OF_OURS.map(|way| (way.system, way.system));
    drawing.by_program(
        "figure-7a",
        "Figure 7a: a page by connections and pages",
        &of(FIGURE_7A),
        &path_names,
        PAGE_TIME,
    )?;
    drawing.by_program(
        "figure-7b",
        "Figure 7b: a page on each system, 1 Gbit/s",
        &wired,
        &systems,
        PAGE_TIME,
    )?;
    arms_drawing.by_program(
        "figure-7c",
        "Figure 7c: a page by what the server has in memory",
        &of(FIGURE_7C),
        &arm_names,
        PAGE_TIME,
    )?;
    drawing.by_program(
        "figure-8",
        "Figure 8: a start on each system, 1 Gbit/s",
        &wired,
        &systems,
        RUN_TIME,
    )?;
    drawing.by_program(
        "modes",
        "A start by how it is prefetched, 100 Mbit/s, 10 ms",
        &of(MODES),
        &mode_names,
        RUN_TIME,
    )?;
    let read = [CARD, EXT4, READAHEAD, "keel-on-demand"].map(|system| (system, system));
    for (letter, order) in ["a", "b"].into_iter().zip(ORDERS) {
        drawing.by_program(
            &format!("figure-1{letter}"),
            &format!("Figure 1, {order} order: a page of the needed blocks"),
            &|name| format!("{FIGURE_1}-{order}-{name}"),
            &read,
            PAGE_TIME,
        )?;
    }
    drawing.distributions(
        "figure-9",
        "Figure 9: a page where packets get lost",
        PAGE_TIME,
    )?;
    drawing.distributions(
        "figure-10",
        "Figure 10: a start where packets get lost",
        RUN_TIME,
    )?;
    drawing.losses()
}

/// The rounds of figure 7c, which is a part of the other run.
const ARMS_TABLE: &str = "goals-arms.csv";

/// Rewrites all figures from the rounds that a run has left in a folder, `paper.csv` and `paper.json`, and from those
/// of figure 7c. Does nothing if the files of the paper are missing.
///
/// # Errors
/// One line that names the file.
pub(crate) fn write_again(folder: &Path) -> Result<(), String> {
    let paths = ["csv", "json"].map(|kind| folder.join("paper").with_extension(kind));
    if !paths.iter().all(|path| path.is_file()) {
        return Ok(());
    }
    let read = |path: &Path| {
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let wrong = |path: &Path, what: &str| format!("{}: {what}", path.display());
    let machine_of = |path: &Path| {
        let report: Value =
            serde_json::from_str(&read(path)?).map_err(|error| wrong(path, &error.to_string()))?;
        Machine::deserialize(&report["machine"]).map_err(|error| wrong(path, &error.to_string()))
    };
    let machine = machine_of(&paths[1])?;
    let mut figures = Figures::new(Vec::new());
    let arms = folder.join(ARMS_TABLE);
    let table = if arms.is_file() {
        read(&arms)?
    } else {
        String::new()
    };
    let has_arms = table.lines().any(|line| line.starts_with(FIGURE_7C));
    record(&mut figures, &read(&paths[0])?, !has_arms).map_err(|line| wrong(&paths[0], &line))?;
    record(&mut figures, &table, true).map_err(|line| wrong(&arms, &line))?;
    let of_arms = if has_arms {
        machine_of(&arms.with_extension("json"))?
    } else {
        machine.clone()
    };
    write_of_two(folder, &figures, &machine, &of_arms)
}

/// Records the results to draw from a table with the value of each round, with or without those of figure 7c. An error
/// names the invalid line.
fn record(figures: &mut Figures, table: &str, with_arms: bool) -> Result<(), String> {
    let drawn = [
        RUN_TIME,
        PAGE_TIME,
        PART_TIME,
        READS,
        TOTAL_BLOCKS,
        NEEDED_BLOCKS,
        PRE_READ_BLOCKS,
    ];
    for line in table.lines().skip(1) {
        let columns: Vec<&str> = line.split(',').collect();
        let [case, system, metric, unit, _, value] = columns[..] else {
            return Err(line.to_owned());
        };
        if !with_arms && case.starts_with(FIGURE_7C) {
            continue;
        }
        let value: f64 = value.parse().map_err(|_| line.to_owned())?;
        let of = |known: &&Metric| (known.name, known.unit) == (metric, unit);
        if let Some(metric) = drawn.iter().find(of) {
            figures.record(
                named(case.to_owned()),
                named(system.to_owned()),
                *metric,
                value,
            );
        }
    }
    Ok(())
}

struct Drawing<'a> {
    folder: &'a Path,
    figures: &'a Figures,
    machine: &'a str,
}

/// Systems with their labels in a drawing.
type Systems<'a> = &'a [(&'static str, &'static str)];

impl Drawing<'_> {
    fn put(
        &self,
        name: &str,
        table: &str,
        title: &str,
        horizontal: &Horizontal,
        shown: &[Panel],
    ) -> Result<(), String> {
        let is_empty = shown
            .iter()
            .all(|panel| panel.curves.iter().all(|curve| curve.points.is_empty()));
        if is_empty {
            return Ok(());
        }
        self.csv(name, table)?;
        render::write(
            self.folder,
            name,
            &panels(title, self.machine, horizontal, shown),
        )
    }

    fn csv(&self, name: &str, table: &str) -> Result<(), String> {
        let path = self.folder.join(format!("{name}.csv"));
        std::fs::write(&path, table).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Draws one value for each program and system.
    fn by_program(
        &self,
        name: &str,
        title: &str,
        case_of: &dyn Fn(&str) -> String,
        systems: Systems<'_>,
        metric: Metric,
    ) -> Result<(), String> {
        let mut table = format!("program,system,{}_{}\n", metric.name, metric.unit);
        let mut all = Vec::new();
        // Programs without results are left out.
        let programs = Program::ALL.into_iter().filter(|program| {
            let case = case_of(program.name());
            let has = |system: &&str| self.figures.value(&case, system, metric).is_some();
            systems.iter().any(|(system, _)| has(system))
        });
        let programs: Vec<Program> = programs.collect();
        for (system, label) in systems {
            let mut values = Vec::new();
            for program in &programs {
                let value = self.figures.value(&case_of(program.name()), system, metric);
                if let Some(value) = value {
                    let _ = writeln!(table, "{},{system},{value:.3}", program.name());
                }
                values.push(value);
            }
            if values.iter().any(Option::is_some) {
                let label = (*label).to_owned();
                all.push(Series { label, values });
            }
        }
        if all.is_empty() {
            return Ok(());
        }
        self.csv(name, &table)?;
        let names: Vec<String> = programs.iter().map(|one| one.name().to_owned()).collect();
        let unit = format!("{}, {}", metric.name.replace('_', " "), metric.unit);
        let shapes = bars::draw(title, self.machine, &unit, &names, &all);
        render::write(self.folder, name, &shapes)
    }

    fn tables(&self) -> Result<(), String> {
        let mut table = "program,system,part,us\n".to_owned();
        for program in Program::ALL {
            let case = format!("{TABLE_1}-{}", program.name());
            for (system, parts) in PARTS {
                for part in parts {
                    let name = part.strip_prefix(system).unwrap_or(part);
                    let name = name.strip_prefix('-').unwrap_or("all");
                    if let Some(us) = self.figures.value(&case, part, PART_TIME) {
                        let _ = writeln!(table, "{},{system},{name},{us:.1}", program.name());
                    }
                }
            }
        }
        self.csv("table-1", &table)?;
        let mut table = "program,total,needed,pre_read,requests\n".to_owned();
        for program in Program::ALL {
            let case = format!("{TABLE_2}-{}", program.name());
            let counts = [TOTAL_BLOCKS, NEEDED_BLOCKS, PRE_READ_BLOCKS, READS]
                .map(|metric| self.figures.value(&case, READAHEAD, metric));
            if let [Some(total), Some(needed), Some(read), requests] = counts {
                let requests = requests.unwrap_or(f64::NAN);
                let _ = writeln!(
                    table,
                    "{},{total},{needed},{read},{requests}",
                    program.name()
                );
            }
        }
        self.csv("table-2", &table)
    }

    /// Figures 9 and 10: a panel for each program with the share of starts that took at most a given time.
    fn distributions(&self, name: &str, title: &str, metric: Metric) -> Result<(), String> {
        let mut table = format!("program,system,{}_{},share\n", metric.name, metric.unit);
        let mut shown = Vec::new();
        let mut range: Option<(f64, f64)> = None;
        for program in Program::ALL {
            let case = format!("{FIGURE_10}-{}-{}", program.name(), WIRELESS.name());
            let mut curves = Vec::new();
            for (color, system) in [KEEL, READAHEAD, SSHFS].into_iter().enumerate() {
                let mut values = self.figures.rounds(&case, system, metric).to_vec();
                values.sort_unstable_by(f64::total_cmp);
                let count = values.len() as f64;
                let mut points = Vec::new();
                for (place, value) in values.iter().enumerate() {
                    let share = (place + 1) as f64 / count;
                    let _ = writeln!(table, "{},{system},{value:.3},{share:.4}", program.name());
                    // The range of the systems is large, so the axis is logarithmic. The curve has one step per start.
                    let x = value.max(SHOWN_MIN).log10();
                    points.extend([(x, place as f64 / count), (x, share)]);
                    let (least, most) = range.unwrap_or((x, x));
                    range = Some((least.min(x), most.max(x)));
                }
                let mut curve = curve(system, color, points);
                curve.marked = false;
                curves.push(curve);
            }
            if curves.iter().any(|curve| !curve.points.is_empty()) {
                shown.push(panel(program.name().to_owned(), curves));
            }
        }
        let label = format!(
            "{}, {}, logarithmic: share of starts with at most that",
            metric.name.replace('_', " "),
            metric.unit
        );
        let (least, most) = range.unwrap_or((0.0, 1.0));
        let horizontal = logarithmic(&label, least, most);
        self.put(name, &table, title, &horizontal, &shown)
    }

    /// Figure 11.
    fn losses(&self) -> Result<(), String> {
        let way = FIGURE_11_WAY;
        let mut table = "program,loss_percent,system,page_time_us,run_time_ms\n".to_owned();
        let mut shown = Vec::new();
        for program in Program::ALL {
            let mut curves = Vec::new();
            for (color, system) in [KEEL, SSHFS].into_iter().enumerate() {
                let mut points = Vec::new();
                for (place, percent) in LOSSES_PERCENT.into_iter().enumerate() {
                    let case = format!("{FIGURE_11}-{percent}-{}-{}", program.name(), way.name());
                    let values = [PAGE_TIME, RUN_TIME]
                        .map(|metric| self.figures.value(&case, system, metric));
                    if let [Some(page), Some(run)] = values {
                        let _ = writeln!(
                            table,
                            "{},{percent},{system},{page:.3},{run:.3}",
                            program.name()
                        );
                        points.push((place as f64, run));
                    }
                }
                curves.push(curve(system, color, points));
            }
            if curves.iter().any(|curve| !curve.points.is_empty()) {
                shown.push(panel(format!("{}, ms", program.name()), curves));
            }
        }
        let names: Vec<String> = LOSSES_PERCENT.map(|percent| percent.to_string()).into();
        let horizontal = Horizontal::names("packets lost, %", &names);
        self.put(
            "figure-11",
            &table,
            "Figure 11: a start by the packets that get lost",
            &horizontal,
            &shown,
        )
    }
}

/// Smaller values are shown as this value, because zero has no logarithm.
const SHOWN_MIN: f64 = 0.1;

/// Returns an axis with the powers of ten around this range of logarithms, labelled as numbers.
fn logarithmic(label: &str, least: f64, most: f64) -> Horizontal {
    let (from, to) = (least.floor(), most.ceil().max(least.floor() + 1.0));
    let powers = from as i32..=to as i32;
    // Labels are short, so that those of neighbouring panels do not overlap.
    let name = |power: i32| match power {
        3.. => format!("{}k", 10_u64.pow(power as u32 - 3)),
        _ => format!("{}", 10_f64.powi(power)),
    };
    let mark = |power: i32| (f64::from(power), name(power));
    Horizontal {
        label: label.to_owned(),
        from,
        to,
        marks: powers.map(mark).collect(),
    }
}

fn curve(label: &str, color: usize, points: Vec<(f64, f64)>) -> Curve {
    Curve {
        label: label.to_owned(),
        color: COLORS[color % COLORS.len()],
        dashed: false,
        marked: true,
        points,
    }
}

fn panel(title: String, curves: Vec<Curve>) -> Panel {
    Panel {
        title,
        curves,
        goal: None,
        least: 0.0,
        most: 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_show_all_programs_with_figures() {
        let folder =
            std::env::temp_dir().join(format!("keel-bench-stream-plots-{}", std::process::id()));
        let mut figures = Figures::new(Vec::new());
        let wired = |name: &str| named(format!("{FIGURE_8}-{name}-{}", WIRED.name()));
        let wireless = |name: &str| named(format!("{FIGURE_10}-{name}-{}", WIRELESS.name()));
        for value in [30.0, 20.0] {
            figures.record(wired("perl"), KEEL, RUN_TIME, value);
            figures.record(wireless("perl"), KEEL, RUN_TIME, value);
        }
        // All other programs have all results, with realistic differences.
        for (number, name) in ["python3", "gcc", "java", "openssl"]
            .into_iter()
            .enumerate()
        {
            let size = (number + 1) as f64;
            for (place, system) in [KEEL, READAHEAD, SSHFS, CARD, EXT4].into_iter().enumerate() {
                let ms = size * 90.0 * 3.0_f64.powi(place as i32 % 3);
                figures.record(wired(name), system, RUN_TIME, ms);
                figures.record(wired(name), system, PAGE_TIME, ms * 1.7);
                for order in ORDERS {
                    let case = named(format!("{FIGURE_1}-{order}-{name}"));
                    figures.record(case, system, PAGE_TIME, ms / 2.0);
                }
                for turn in 0..6 {
                    let ms = ms * (1.0 + f64::from(turn * turn) / 30.0);
                    figures.record(wireless(name), system, RUN_TIME, ms);
                    figures.record(wireless(name), system, PAGE_TIME, ms / 3.0);
                }
            }
            for (place, (system, _)) in PATHS.into_iter().enumerate() {
                let case = named(format!("{FIGURE_7A}-{name}"));
                figures.record(case, system, PAGE_TIME, 180.0 + 900.0 * place as f64);
            }
        }
        for (place, percent) in LOSSES_PERCENT.into_iter().enumerate() {
            let way = FIGURE_11_WAY.name();
            let case = named(format!("{FIGURE_11}-{percent}-python3-{way}"));
            for (system, ms) in [(KEEL, 300.0), (SSHFS, 1500.0)] {
                figures.record(case, system, RUN_TIME, ms * (1 + place * place) as f64);
                figures.record(case, system, PAGE_TIME, ms);
            }
        }
        write(&folder, &figures, &Machine::detect()).unwrap();
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert!(text("figure-8.csv").contains("\nperl,keel,25.000\n"));
        assert!(
            text("figure-10.csv").contains("perl,keel,20.000,0.5000\nperl,keel,30.000,1.0000\n")
        );
        let all = [
            "figure-1a",
            "figure-1b",
            "figure-7a",
            "figure-7b",
            "figure-8",
            "figure-9",
            "figure-10",
            "figure-11",
        ];
        for name in all {
            for kind in ["png", "svg", "csv"] {
                assert!(
                    folder.join(name).with_extension(kind).is_file(),
                    "{name}.{kind}"
                );
            }
        }
        assert!(
            !folder.join("modes.png").exists(),
            "nothing is known of these"
        );
        assert!(
            !folder.join("figure-7c.csv").exists(),
            "no header without rows"
        );
        // Repeat the plots from the files that a run leaves. Those of figure 7c are the other run's, if it has any.
        for (place, (system, _)) in ARMS.into_iter().enumerate() {
            let case = named(format!("{FIGURE_7C}-gcc"));
            figures.record(case, system, PAGE_TIME, 100.0 + 10.0 * place as f64);
        }
        let mut report = serde_json::json!({"machine": Machine::detect()});
        std::fs::write(folder.join("paper.json"), report.to_string()).unwrap();
        report["machine"]["kernel"] = "another".into();
        let of_arms = folder.join(ARMS_TABLE).with_extension("json");
        std::fs::write(of_arms, report.to_string()).unwrap();
        let csv = figures.csv();
        let (head, rows) = csv.split_once('\n').unwrap();
        let (arms, others): (Vec<_>, Vec<_>) =
            rows.lines().partition(|line| line.starts_with(FIGURE_7C));
        let all: Vec<&str> = rows.lines().collect();
        let drawn = text("figure-10.svg");
        for (of_paper, of_arms) in [(&others, &arms), (&all, &Vec::new())] {
            for (name, rows) in [("paper.csv", of_paper), (ARMS_TABLE, of_arms)] {
                let lines = [&[head], &rows[..]].concat();
                std::fs::write(folder.join(name), lines.join("\n")).unwrap();
            }
            std::fs::remove_file(folder.join("figure-10.svg")).unwrap();
            write_again(&folder).unwrap();
            assert_eq!(text("figure-10.svg"), drawn);
            assert!(text("figure-7c.csv").ends_with("gcc,keel-async,130.000\n"));
            let is_others = text("figure-7c.svg").contains("kernel another");
            assert_eq!(is_others, !of_arms.is_empty());
            for kind in ["png", "svg", "csv"] {
                std::fs::remove_file(folder.join("figure-7c").with_extension(kind)).unwrap();
            }
        }
        let mut figures = Figures::new(Vec::new());
        assert_eq!(
            record(&mut figures, "\na,b,c\n", true),
            Err("a,b,c".to_owned())
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
