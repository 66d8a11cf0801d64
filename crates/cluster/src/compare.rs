//! Compares labelled results, as the thesis compares operating systems. For each size of each benchmark it shows the
//! median of each run, and its ratio to the first run.
//!
//! Only comparable measurements are compared: the same benchmark, number of ranks, size and carrier. Differences
//! between whole runs (mode, library, link) are listed above the table. Power is listed by benchmark and label, as in
//! the thesis's tables 5.6 and 5.7, with the benchmark's result ÷ watts and ÷ joules.

use crate::Error;
use crate::results::{
    Benchmark, BenchmarkRow, Known, Origin, PowerRow, ResultFile, Row, Transport,
};
use crate::starts::run_ratio;
use crate::statistics::{Median, ratio_interval};
use crate::thesis::{Efficiency, best_of, unit};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Largest number of runs in a comparison.
pub const RUNS_MAX: usize = 32;

/// The result of comparing two medians.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval of the ratio is on the better side.
    Better,
    /// The whole interval is on the worse side.
    Worse,
    /// The interval contains 1: these samples do not distinguish the two.
    Alike,
}

/// One run's value in one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Median time of one operation in microseconds.
    pub median_us: Median,
    /// The benchmark's result at the median, in its unit.
    pub result: f64,
    /// Whether the interval of the median stayed wide.
    pub is_wide: bool,
    /// Its time ÷ that of the first run with this row; `None` in that run.
    pub ratio: Option<Median>,
    /// The verdict on the ratio.
    pub verdict: Option<Verdict>,
}

/// Identifies a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The benchmark.
    pub benchmark: Benchmark,
    /// What carried the messages.
    pub transport: Transport,
    /// Number of ranks.
    pub ranks: u32,
    /// Size of the message.
    pub bytes: u64,
}

/// Results of several runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The runs' labels.
    pub labels: Vec<String>,
    /// Differences between the runs, one line each.
    pub remarks: Vec<String>,
    /// One cell for each run; `None` if the run has not measured this.
    pub rows: Vec<(Key, Vec<Option<Cell>>)>,
}

impl Comparison {
    /// Compares runs, the first with each other one.
    ///
    /// # Errors
    /// No run, too many, two with the same label, or one with a duplicate row.
    pub fn new(files: &[ResultFile]) -> Result<Self, Error> {
        if files.is_empty() || files.len() > RUNS_MAX {
            let wrong = format!("are {}, must be 1 to {RUNS_MAX}", files.len());
            return Err(Error::invalid("runs", wrong));
        }
        let labels: Vec<String> = files.iter().map(|file| file.header.label.clone()).collect();
        for (at, label) in labels.iter().enumerate() {
            if labels[..at].contains(label) {
                let wrong = "is the label of two runs: measure one again with another `--label`";
                return Err(Error::invalid(format!("`{label}`"), wrong));
            }
        }
        let mut table: BTreeMap<Key, Vec<Option<&BenchmarkRow>>> = BTreeMap::new();
        for (run, file) in files.iter().enumerate() {
            for row in &file.rows {
                let Row::Benchmark(row) = row else {
                    continue;
                };
                let key = Key {
                    benchmark: row.benchmark,
                    transport: row.transport,
                    ranks: row.ranks,
                    bytes: row.bytes,
                };
                let cells = table.entry(key).or_insert_with(|| vec![None; files.len()]);
                if cells[run].replace(row).is_some() {
                    let wrong =
                        format!("has {} of {} bytes twice", key.benchmark.name(), key.bytes);
                    return Err(Error::invalid(format!("`{}`", labels[run]), wrong));
                }
            }
        }
        let mut rows = Vec::new();
        for (key, found) in table {
            rows.push((key, cells(key, &found)?));
        }
        Ok(Self {
            labels,
            remarks: remarks(files),
            rows,
        })
    }

    /// Returns comma-separated values, one line for each cell.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "benchmark,transport,ranks,bytes,label,median_us,low_us,high_us,samples,result,unit,\
             ratio,ratio_low,ratio_high\n",
        );
        for (key, cells) in &self.rows {
            for (label, cell) in self.labels.iter().zip(cells) {
                let Some(cell) = cell else {
                    continue;
                };
                let median = &cell.median_us;
                let carrier = match key.transport {
                    Transport::Memory => "memory",
                    Transport::Network => "network",
                };
                let ratio = cell.ratio.map_or(",,".to_owned(), |ratio| {
                    format!(
                        "{},{},{}",
                        ratio.value, ratio.interval.low, ratio.interval.high
                    )
                });
                // Writing to a string does not fail.
                writeln!(
                    text,
                    "{},{carrier},{},{},{},{},{},{},{},{},{},{ratio}",
                    key.benchmark.name(),
                    key.ranks,
                    key.bytes,
                    quoted(label),
                    median.value,
                    median.interval.low,
                    median.interval.high,
                    median.samples,
                    cell.result,
                    key.benchmark.unit(),
                )
                .ok();
            }
        }
        text
    }
}

/// One row of the power table.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelledPower<'a> {
    /// The label of the run.
    pub label: &'a str,
    /// The power of one source.
    pub power: &'a PowerRow,
    /// The result of the same benchmark ÷ the watts of all hosts, at the size with the greatest result. `None` if the
    /// run's file has no result of it.
    pub best: Option<Efficiency>,
}

/// Returns the power rows of all runs with their labels, by activity. The benchmarks come in the thesis's order, then
/// others as they appear. Rows of one activity are in the order of the runs.
#[must_use]
pub fn power_rows(files: &[ResultFile]) -> Vec<LabelledPower<'_>> {
    let mut found: Vec<LabelledPower<'_>> = Vec::new();
    for file in files {
        found.extend(file.rows.iter().filter_map(|row| match row {
            Row::Power(power) => Some(LabelledPower {
                label: &file.header.label,
                power,
                best: best_of(file, &power.during),
            }),
            Row::Benchmark(_) => None,
        }));
    }
    let mut activities: Vec<&str> = Benchmark::ALL.iter().map(|one| one.name()).collect();
    for row in &found {
        if !activities.contains(&row.power.during.as_str()) {
            activities.push(&row.power.during);
        }
    }
    found.sort_by_key(|row| activities.iter().position(|one| *one == row.power.during));
    found
}

/// Returns power rows as comma-separated values. An unavailable row has the reason and no numbers.
#[must_use]
pub fn power_csv(rows: &[LabelledPower<'_>]) -> String {
    let mut text = String::from(
        "during,label,host,source,origin,average_w,maximum_w,minimum_w,idle_w,energy_j,seconds,why,\
         result_per_watt,result_per_joule,result_unit,result_bytes,result_watts_from\n",
    );
    for LabelledPower { label, power, best } in rows {
        let (origin, why) = match &power.origin {
            Origin::Measured => ("measured", ""),
            Origin::Modelled(after) => ("modelled", after.as_str()),
            Origin::Unavailable(why) => ("unavailable", why.as_str()),
        };
        let number = |value: f64| match power.origin {
            Origin::Unavailable(_) => String::new(),
            _ => value.to_string(),
        };
        let idle_w = power.idle_w.value().map_or(String::new(), f64::to_string);
        // Writing to a string does not fail.
        writeln!(
            text,
            "{},{},{},{},{origin},{},{},{},{idle_w},{},{},{},{}",
            quoted(&power.during),
            quoted(label),
            quoted(&power.host),
            quoted(&power.source),
            number(power.average_w),
            number(power.maximum_w),
            number(power.minimum_w),
            number(power.energy_j),
            number(power.seconds),
            quoted(why),
            efficiency_csv(best.as_ref()),
        )
        .ok();
    }
    text
}

/// Returns the last five columns of a power row; without watts of all hosts they are empty.
fn efficiency_csv(best: Option<&Efficiency>) -> String {
    let columns = best.and_then(|best| {
        Some(format!(
            "{},{},{},{},{}",
            best.per_watt()?,
            best.per_joule()?,
            unit(best.benchmark),
            best.bytes,
            quoted(&best.watts_from)
        ))
    });
    columns.unwrap_or_else(|| ",,,,".to_owned())
}

/// Returns a text as one column.
fn quoted(text: &str) -> String {
    if text.contains([',', '"']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn cells(key: Key, found: &[Option<&BenchmarkRow>]) -> Result<Vec<Option<Cell>>, Error> {
    let first = found.iter().flatten().next().copied();
    let mut cells = Vec::new();
    for row in found {
        let Some(row) = *row else {
            cells.push(None);
            continue;
        };
        let median_us = row.median_us()?;
        let ratio = match first {
            Some(first) if !std::ptr::eq(first, row) => Some(ratio(row, first)?),
            _ => None,
        };
        // For times less is better, also where the benchmark's own unit is a rate.
        let verdict = ratio.map(|ratio| match ratio.interval {
            interval if interval.high < 1.0 => Verdict::Better,
            interval if interval.low > 1.0 => Verdict::Worse,
            _ => Verdict::Alike,
        });
        let result = key.benchmark.result(key.bytes, median_us.value);
        cells.push(Some(Cell {
            is_wide: row.is_wide(&median_us),
            median_us,
            result,
            ratio,
            verdict,
        }));
    }
    Ok(cells)
}

/// Returns the ratio of one row's times to another's; over starts if both have them.
fn ratio(row: &BenchmarkRow, first: &BenchmarkRow) -> Result<Median, Error> {
    if row.has_starts() && first.has_starts() {
        run_ratio(
            (&row.samples_us, &row.starts),
            (&first.samples_us, &first.starts),
        )
    } else {
        ratio_interval(&row.samples_us, &first.samples_us)
    }
}

/// Returns the differences of runs to the first one.
fn remarks(files: &[ResultFile]) -> Vec<String> {
    let mut remarks = Vec::new();
    let Some((first, others)) = files.split_first() else {
        return remarks;
    };
    let of = |file: &ResultFile| {
        let header = &file.header;
        let hosts = &header.hosts;
        let text = |known: &Known<String>| match known {
            Known::Value(text) => text.clone(),
            Known::Unavailable(_) => "unknown".to_owned(),
        };
        let number = |known: &Known<u64>| match known {
            Known::Value(number) => number.to_string(),
            Known::Unavailable(_) => "unknown".to_owned(),
        };
        let each = |of: fn(&crate::results::Host) -> &Known<String>| {
            let mut texts: Vec<String> = hosts.iter().map(|host| text(of(host))).collect();
            texts.sort();
            texts.dedup();
            texts.join(" and ")
        };
        [
            ("the mode", format!("{:?}", header.mode).to_lowercase()),
            ("the MPI library", text(&header.mpi)),
            (
                "the link's rate in bits per second",
                number(&header.link.rate_bits_per_s),
            ),
            (
                "the link's burst in bytes",
                number(&header.link.burst_bytes),
            ),
            ("the number of hosts", hosts.len().to_string()),
            ("the processor", each(|host| &host.processor)),
            ("the operating system", each(|host| &host.system)),
            ("the kernel", each(|host| &host.kernel)),
            (
                "the set of the kernel's frequency options",
                each(|host| &host.frequency_options),
            ),
            ("the governor", each(|host| &host.governor)),
            ("the pinning", each(|host| &host.pinning)),
        ]
    };
    let ours = of(first);
    for other in others {
        for ((what, ours), (_, theirs)) in ours.iter().zip(of(other)) {
            let (label, to) = (&other.header.label, &first.header.label);
            if *ours != theirs {
                remarks.push(format!("{what} is {theirs} in {label} and {ours} in {to}"));
            } else if ours == "unknown" {
                remarks.push(format!("{what} is unknown in both, {label} and {to}"));
            }
        }
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::file;

    fn labelled(label: &str, factor: f64) -> ResultFile {
        let mut file = file();
        file.header.label = label.to_owned();
        if let Row::Benchmark(row) = &mut file.rows[0] {
            row.samples_us = (0..40)
                .map(|at| factor * (10.0 + f64::from(at % 7) * 0.1))
                .collect();
        }
        file
    }

    #[test]
    fn worse_alike_and_better_runs_get_their_verdict() {
        let files = [
            labelled("a", 1.0),
            labelled("b", 1.5),
            labelled("c", 1.0),
            labelled("d", 0.7),
        ];
        let found = Comparison::new(&files).expect("comparable");
        let [(key, cells)] = &found.rows[..] else {
            panic!("{:?}", found.rows);
        };
        assert_eq!((key.benchmark, key.bytes), (Benchmark::Allreduce, 1_024));
        let verdicts: Vec<_> = cells
            .iter()
            .map(|cell| cell.as_ref().expect("measured").verdict)
            .collect();
        let expected = [
            None,
            Some(Verdict::Worse),
            Some(Verdict::Alike),
            Some(Verdict::Better),
        ];
        assert_eq!(verdicts, expected);
        let ratio = cells[1]
            .as_ref()
            .and_then(|cell| cell.ratio)
            .expect("compared");
        assert!((ratio.value - 1.5).abs() < 1e-9, "{ratio:?}");
        assert_eq!(found.csv().lines().count(), 5);
    }

    #[test]
    fn memory_and_network_are_two_rows() {
        let mut other = labelled("b", 1.0);
        if let Row::Benchmark(row) = &mut other.rows[0] {
            row.transport = Transport::Memory;
        }
        let found = Comparison::new(&[labelled("a", 1.0), other]).expect("comparable");
        assert_eq!(found.rows.len(), 2);
        for (_, cells) in &found.rows {
            assert_eq!(cells.iter().flatten().count(), 1);
            assert!(cells.iter().flatten().all(|cell| cell.ratio.is_none()));
        }
    }

    #[test]
    fn differences_between_headers_are_reported() {
        let mut other = labelled("b", 1.0);
        other.header.link.burst_bytes = Known::Value(8_192);
        other.header.hosts[1].kernel = Known::Value("6.1.0".to_owned());
        let found = Comparison::new(&[labelled("a", 1.0), other]).expect("comparable");
        // The governor is unknown in both, so it may differ.
        assert_eq!(
            found.remarks,
            [
                "the link's burst in bytes is 8192 in b and 32768 in a",
                "the kernel is 4.4.0 and 6.1.0 in b and 4.4.0 in a",
                "the governor is unknown in both, b and a",
            ]
        );
    }

    #[test]
    fn different_frequency_options_are_reported() {
        let mut other = labelled("b", 1.0);
        for host in &mut other.header.hosts {
            host.frequency_options = Known::Value("CONFIG_CPU_FREQ=n".to_owned());
        }
        let found = Comparison::new(&[labelled("a", 1.0), other]).expect("comparable");
        let mut remarks = found.remarks.iter();
        let said = remarks.find(|remark| remark.contains("CONFIG_CPU_FREQ=n in b"));
        assert!(said.is_some(), "{:?}", found.remarks);
    }

    #[test]
    fn power_is_listed_by_benchmark_and_then_by_label() {
        let power = |during: &str, source: &str, origin: Origin, watts: f64| {
            Row::Power(PowerRow {
                during: during.to_owned(),
                host: "b1".to_owned(),
                source: source.to_owned(),
                covers: "a board".to_owned(),
                origin,
                seconds: 2.0,
                samples: 20,
                gap_s_max: 0.1,
                average_w: watts,
                maximum_w: watts,
                minimum_w: watts,
                energy_j: 2.0 * watts,
                idle_w: Known::Value(2.5),
            })
        };
        let mut files = [labelled("yocto", 1.0), labelled("fedora", 1.0)];
        for (file, watts) in files.iter_mut().zip([4.0, 5.0]) {
            file.rows = vec![
                power("sleep", "ina219", Origin::Measured, watts - 1.0),
                power("reduce", "ina219", Origin::Measured, watts),
                power(
                    "allreduce",
                    "pmic",
                    Origin::Modelled("a fit, by them".to_owned()),
                    watts,
                ),
            ];
        }
        if let Row::Power(row) = &mut files[1].rows[0] {
            row.origin = Origin::Unavailable("switched off".to_owned());
            row.idle_w = Known::Unavailable("switched off".to_owned());
            (row.average_w, row.maximum_w, row.minimum_w, row.energy_j) = (0.0, 0.0, 0.0, 0.0);
        }
        let csv = power_csv(&power_rows(&files));
        assert_eq!(
            csv,
            "during,label,host,source,origin,average_w,maximum_w,minimum_w,idle_w,energy_j,seconds,why,\
             result_per_watt,result_per_joule,result_unit,result_bytes,result_watts_from\n\
             allreduce,yocto,b1,pmic,modelled,4,4,4,2.5,8,2,\"a fit, by them\",,,,,\n\
             allreduce,fedora,b1,pmic,modelled,5,5,5,2.5,10,2,\"a fit, by them\",,,,,\n\
             reduce,yocto,b1,ina219,measured,4,4,4,2.5,8,2,,,,,,\n\
             reduce,fedora,b1,ina219,measured,5,5,5,2.5,10,2,,,,,,\n\
             sleep,yocto,b1,ina219,measured,3,3,3,2.5,6,2,,,,,,\n\
             sleep,fedora,b1,ina219,unavailable,,,,,,,switched off,,,,,\n"
        );
    }

    #[test]
    fn the_power_table_has_the_greatest_result_per_watt_and_joule_of_all_boards() {
        let mut run = labelled("yocto", 1.0);
        let [Row::Benchmark(first), Row::Power(power)] = &run.rows[..2] else {
            panic!("{:?}", run.rows);
        };
        let sized = |bytes: u64, us: f64| {
            Row::Benchmark(BenchmarkRow {
                bytes,
                samples_us: vec![us; 5],
                ..first.clone()
            })
        };
        let of_board = |host: &str, watts: f64| {
            Row::Power(PowerRow {
                host: host.to_owned(),
                average_w: watts,
                ..power.clone()
            })
        };
        // 1 KB in 1 ms and 10 KB in 2 ms: 1,000 and 5,000 KB/s. At 3 + 5 W, 2 ms take 16 mJ.
        run.rows = vec![
            sized(10_240, 2_000.0),
            sized(1_024, 1_000.0),
            of_board("b1", 3.0),
            of_board("b2", 5.0),
        ];
        let mut files = [run];
        let rows = power_rows(&files);
        assert_eq!(rows.len(), 2);
        for row in &rows {
            let best = row.best.as_ref().expect("a result");
            assert_eq!((best.bytes, best.watts_from.as_str()), (10_240, "measured"));
            let per_watt = best.per_watt().expect("watts");
            let per_joule = best.per_joule().expect("watts");
            assert!((per_watt - 625.0).abs() < 1e-6, "{per_watt}");
            assert!((per_joule - 312_500.0).abs() < 1e-3, "{per_joule}");
        }
        // One board has no value: nothing is shown as measured.
        files[0].rows.pop();
        let rows = power_rows(&files);
        assert!(
            rows[0]
                .best
                .as_ref()
                .is_some_and(|best| best.watts.is_err())
        );
        assert!(power_csv(&rows).ends_with(",,,,,\n"));
    }

    #[test]
    fn runs_that_cannot_be_told_apart_are_refused() {
        assert!(Comparison::new(&[]).is_err());
        assert!(Comparison::new(&[labelled("a", 1.0), labelled("a", 1.0)]).is_err());
        let mut twice = labelled("a", 1.0);
        twice.rows.push(twice.rows[0].clone());
        assert!(Comparison::new(&[twice]).is_err());
    }

    #[test]
    fn a_label_with_a_comma_stays_one_column() {
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("plain"), "plain");
    }
}
