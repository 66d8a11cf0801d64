//! Power parity: how many boards use as much power as one larger machine. Tables of average, maximum, minimum and idle
//! power; a row that contradicts itself is reported and not used.

use crate::Error;
use crate::error::excerpt;

/// Largest number of rows of a table.
const ROWS_MAX: usize = 1_000;

/// One row of a table: power in watts during one benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchmarkPower {
    /// The benchmark.
    pub benchmark: String,
    /// Average.
    pub average_w: f64,
    /// Greatest.
    pub maximum_w: f64,
    /// Least.
    pub minimum_w: f64,
    /// Average without load.
    pub idle_w: f64,
}

/// Why a row cannot be correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The average is below the row's own minimum.
    AverageBelowMinimum,
    /// The average is above the row's own maximum.
    AverageAboveMaximum,
    /// The average is below idle power: a load that saves power.
    AverageBelowIdle,
}

impl Fault {
    /// Returns the fault as text, to be put after the name of the row.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::AverageBelowMinimum => "its average is below its own minimum",
            Self::AverageAboveMaximum => "its average is above its own maximum",
            Self::AverageBelowIdle => "its average is below idle power",
        }
    }
}

impl BenchmarkPower {
    /// Returns the contradictions; empty for a usable row. A minimum slightly below idle is no contradiction: idle is
    /// itself an average.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let all = [
            (self.average_w < self.minimum_w, Fault::AverageBelowMinimum),
            (self.average_w > self.maximum_w, Fault::AverageAboveMaximum),
            (self.average_w < self.idle_w, Fault::AverageBelowIdle),
        ];
        all.into_iter()
            .filter_map(|(holds, fault)| holds.then_some(fault))
            .collect()
    }

    /// Returns idle power ÷ average power, k of the model; above 1 in a faulty row.
    #[must_use]
    pub fn idle_ratio(&self) -> f64 {
        self.idle_w / self.average_w
    }
}

/// Reads `benchmark,avg_w,max_w,min_w,idle_w`.
///
/// # Errors
/// Another heading, a row without five columns, an invalid number or one not above 0, a duplicate benchmark.
pub fn parse_power_table(text: &str) -> Result<Vec<BenchmarkPower>, Error> {
    const HEADING: &str = "benchmark,avg_w,max_w,min_w,idle_w";
    let mut lines = (1..).zip(text.lines());
    if lines.next().map(|(_, heading)| heading.trim()) != Some(HEADING) {
        return Err(Error::malformed(
            1,
            format!("must be the heading `{HEADING}`"),
        ));
    }
    let mut rows: Vec<BenchmarkPower> = Vec::new();
    for (line, row) in lines.filter(|(_, row)| !row.trim().is_empty()) {
        let columns: Vec<&str> = row.split(',').map(str::trim).collect();
        let [benchmark, average, maximum, minimum, idle] = columns[..] else {
            let wrong = format!("{} columns, must be 5", columns.len());
            return Err(Error::malformed(line, wrong));
        };
        let watts = |text: &str| match text.parse::<f64>() {
            Ok(watts) if watts > 0.0 && watts.is_finite() => Ok(watts),
            _ => {
                let wrong = format!("`{}` is no power in watts above 0", excerpt(text));
                Err(Error::malformed(line, wrong))
            }
        };
        if benchmark.is_empty() || rows.iter().any(|row| row.benchmark == benchmark) {
            let wrong = format!("benchmark `{}` is empty or named twice", excerpt(benchmark));
            return Err(Error::malformed(line, wrong));
        }
        rows.push(BenchmarkPower {
            benchmark: benchmark.to_owned(),
            average_w: watts(average)?,
            maximum_w: watts(maximum)?,
            minimum_w: watts(minimum)?,
            idle_w: watts(idle)?,
        });
        if rows.len() > ROWS_MAX {
            return Err(Error::Limit {
                what: "rows of a power table",
                value: rows.len() as u64,
                limit: ROWS_MAX as u64,
            });
        }
    }
    Ok(rows)
}

/// Returns the thesis's tables 5.6 (MinnowBoard MAX) and 5.7 (NUC), as printed.
///
/// # Errors
/// None: both are part of the program, and a test reads them.
pub fn thesis_tables() -> Result<(Vec<BenchmarkPower>, Vec<BenchmarkPower>), Error> {
    let board = parse_power_table(include_str!("../../data/thesis_5_6_minnow.csv"))?;
    let machine = parse_power_table(include_str!("../../data/thesis_5_7_nuc.csv"))?;
    Ok((board, machine))
}

/// One benchmark of two comparable tables.
#[derive(Clone, Debug, PartialEq)]
pub struct Parity {
    /// The benchmark.
    pub benchmark: String,
    /// Average power of one board.
    pub board_w: f64,
    /// Average power of the larger machine.
    pub machine_w: f64,
    /// Idle power of a board ÷ its average.
    pub idle_ratio: f64,
    /// Number of boards that use as much power as the machine.
    pub boards: f64,
}

impl Parity {
    /// Returns the number of boards up to which Perf/W of the cluster is at least the machine's, if it reaches `share`
    /// of its performance.
    #[must_use]
    pub fn boards_at(&self, share: f64) -> f64 {
        share * self.boards
    }

    /// Returns the part of the machine's performance that this many boards must reach for equal Perf/W.
    #[must_use]
    pub fn share_needed(&self, boards: u32) -> f64 {
        f64::from(boards) / self.boards
    }
}

/// The combination of two tables.
#[derive(Clone, Debug, PartialEq)]
pub struct ParityTable {
    /// Usable benchmarks, in the order of the first table.
    pub rows: Vec<Parity>,
    /// Rows that contradict themselves: table (0 the board's, 1 the machine's), row, fault.
    pub faulty: Vec<(usize, BenchmarkPower, Vec<Fault>)>,
    /// Benchmarks that are missing in one of the tables.
    pub unmatched: Vec<String>,
}

impl ParityTable {
    /// Pairs the rows of a board with those of a machine.
    #[must_use]
    pub fn new(board: &[BenchmarkPower], machine: &[BenchmarkPower]) -> Self {
        let mut faulty = Vec::new();
        for (table, rows) in [board, machine].into_iter().enumerate() {
            for row in rows {
                let faults = row.faults();
                if !faults.is_empty() {
                    faulty.push((table, row.clone(), faults));
                }
            }
        }
        let mut rows = Vec::new();
        let mut unmatched: Vec<String> = Vec::new();
        let in_board = |name: &str| board.iter().any(|row| row.benchmark == name);
        let extra = machine.iter().filter(|row| !in_board(&row.benchmark));
        for ours in board {
            let Some(theirs) = machine.iter().find(|row| row.benchmark == ours.benchmark) else {
                unmatched.push(ours.benchmark.clone());
                continue;
            };
            if !ours.faults().is_empty() || !theirs.faults().is_empty() {
                continue;
            }
            rows.push(Parity {
                benchmark: ours.benchmark.clone(),
                board_w: ours.average_w,
                machine_w: theirs.average_w,
                idle_ratio: ours.idle_ratio(),
                boards: theirs.average_w / ours.average_w,
            });
        }
        unmatched.extend(extra.map(|row| row.benchmark.clone()));
        Self {
            rows,
            faulty,
            unmatched,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_thesis_parity_is_reproduced_and_its_faulty_row_reported() {
        let (board, machine) = thesis_tables().expect("part of the program");
        let table = ParityTable::new(&board, &machine);
        // Benchmark, k, boards at parity, boards if the cluster reaches 85 % of the machine.
        let worked = [
            ("allreduce", 0.606, 4.27, 3.63),
            ("alltoall", 0.892, 6.49, 5.51),
            ("bandwidth", 0.515, 3.66, 3.11),
            ("bibandwidth", 0.536, 3.94, 3.35),
            ("broadcast", 0.527, 4.00, 3.40),
            ("latency", 0.622, 4.58, 3.89),
            ("roundtrip", 0.528, 4.05, 3.44),
        ];
        assert_eq!(table.rows.len(), worked.len());
        for (row, (benchmark, idle, boards, boards_85)) in table.rows.iter().zip(worked) {
            assert_eq!(row.benchmark, benchmark);
            assert!((row.idle_ratio - idle).abs() <= 0.000_51, "{row:?}");
            assert!((row.boards - boards).abs() <= 0.005_1, "{row:?}");
            assert!(
                (row.boards_at(0.85) - boards_85).abs() <= 0.005_1,
                "{row:?}"
            );
        }
        let [(0, row, faults)] = &table.faulty[..] else {
            panic!("{:?}", table.faulty);
        };
        assert_eq!(row.benchmark, "reduce");
        assert_eq!(
            faults[..],
            [Fault::AverageBelowMinimum, Fault::AverageBelowIdle]
        );
        assert!((row.idle_ratio() - 1.15).abs() < 0.005);
        assert!(table.unmatched.is_empty());
    }

    #[test]
    fn four_boards_need_most_of_the_machines_performance() {
        let (board, machine) = thesis_tables().expect("part of the program");
        let rows = ParityTable::new(&board, &machine).rows;
        let shares: Vec<f64> = rows
            .iter()
            .filter(|row| row.benchmark != "alltoall")
            .map(|row| row.share_needed(4))
            .collect();
        let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
        let most = shares.iter().copied().fold(0.0, f64::max);
        assert!(
            (least - 0.87).abs() < 0.005 && (most - 1.09).abs() < 0.005,
            "{least} {most}"
        );
    }

    #[test]
    fn tables_of_another_shape_are_refused_with_their_line() {
        let heading = "benchmark,avg_w,max_w,min_w,idle_w\n";
        for (text, line) in [
            (String::new(), 1),
            ("a,b\n".to_owned(), 1),
            (format!("{heading}x,1,2,3\n"), 2),
            (format!("{heading}x,1,2,3,nan\n"), 2),
            (format!("{heading}x,1,2,3,0\n"), 2),
            (format!("{heading}x,2,3,1,1\nx,2,3,1,1\n"), 3),
        ] {
            let error = parse_power_table(&text).expect_err(&text);
            assert!(
                matches!(error, Error::Malformed { line: at, .. } if at == line),
                "{error}"
            );
        }
    }

    #[test]
    fn rows_of_one_table_alone_are_named() {
        let row = |name: &str| BenchmarkPower {
            benchmark: name.to_owned(),
            average_w: 2.0,
            maximum_w: 3.0,
            minimum_w: 1.0,
            idle_w: 1.0,
        };
        let table = ParityTable::new(&[row("a"), row("b")], &[row("b"), row("c")]);
        assert_eq!(table.unmatched, ["a", "c"]);
        assert_eq!(table.rows.len(), 1);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(benchmark,avg_w,max_w,min_w,idle_w\n)?[a-z0-9.,\n-]{0,80}") {
            for row in parse_power_table(&text).unwrap_or_default() {
                prop_assert!(row.average_w > 0.0);
            }
        }
    }
}
