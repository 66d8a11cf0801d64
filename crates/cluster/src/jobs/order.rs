//! A job with its input, as rank 0 gets it: one line of JSON, the columns, and a checksum of both. So the input need
//! not be copied to boards beforehand: it arrives wherever rank 0 runs.

use super::k_means::CLUSTERS_MAX;
use super::matrix_profile::{self, ROWS_MAX};
use super::readings::Readings;
use super::windows::{WINDOWS_MAX, starts};
use crate::Error;
use crate::error::excerpt;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};

/// The format name of an order.
const FORMAT: &str = "evenkeel-job";
const VERSION: u64 = 1;

/// Size of the longest line, in bytes: it contains the breaks.
const LINE_BYTES_MAX: usize = 64 << 20;

/// Range of the number of readings in a window.
const WINDOW: (usize, usize) = (4, 65_536);

/// Largest number of rounds of k-means.
pub const ROUNDS_MAX: usize = 1_000;

/// Seeds are sent as floating-point numbers.
const SEED_MAX: u64 = 1 << 53;

/// Names of the jobs.
pub const KERNELS: [&str; 3] = ["vibration", "k-means", "matrix-profile"];

/// The job and its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kernel", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Settings {
    /// Features of each window's spectrum.
    Vibration {
        /// Number of readings in a window.
        window: usize,
        /// Number of readings from one window's beginning to the next one's.
        step: usize,
    },
    /// Usual and unusual windows.
    KMeans {
        /// Number of readings in a window.
        window: usize,
        /// Number of readings from one window's beginning to the next one's.
        step: usize,
        /// Number of clusters.
        clusters: usize,
        /// Largest number of rounds.
        rounds_max: usize,
        /// Seed of the random initial centres.
        seed: u64,
    },
    /// The nearest neighbour of each window.
    MatrixProfile {
        /// Number of readings in a window.
        window: usize,
    },
}

impl Settings {
    /// Returns the job's name.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        match self {
            Self::Vibration { .. } => KERNELS[0],
            Self::KMeans { .. } => KERNELS[1],
            Self::MatrixProfile { .. } => KERNELS[2],
        }
    }

    /// Returns the number of readings in a window.
    #[must_use]
    pub fn window(&self) -> usize {
        match *self {
            Self::Vibration { window, .. }
            | Self::KMeans { window, .. }
            | Self::MatrixProfile { window } => window,
        }
    }

    /// Checks that the job can be done with these readings.
    ///
    /// # Errors
    /// A setting or the input is out of its range, or missing.
    pub fn check(&self, readings: &Readings) -> Result<(), Error> {
        readings.check()?;
        let within = |what: &str, value: usize, (least, most): (usize, usize)| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(Error::invalid(
                what,
                format!("is {value}, must be from {least} to {most}"),
            ))
        };
        let window = self.window();
        within("window", window, WINDOW)?;
        let rows = readings.rows();
        let step = match *self {
            Self::Vibration { step, .. } => step,
            Self::KMeans {
                step,
                clusters,
                rounds_max,
                seed,
                ..
            } => {
                within("clusters", clusters, (1, CLUSTERS_MAX))?;
                within("rounds", rounds_max, (1, ROUNDS_MAX))?;
                if seed >= SEED_MAX {
                    return Err(Error::invalid(
                        "seed",
                        format!("is {seed}, must be below {SEED_MAX}"),
                    ));
                }
                step
            }
            Self::MatrixProfile { .. } => {
                if readings.columns.len() != 1 {
                    let wrong =
                        format!("are {}, a matrix profile takes one", readings.columns.len());
                    return Err(Error::invalid("columns", wrong));
                }
                check_range(&readings.columns[0])?;
                within(
                    "number of readings",
                    rows,
                    (window + matrix_profile::apart(window), ROWS_MAX),
                )?;
                1
            }
        };
        within("step", step, (1, WINDOWS_MAX))?;
        let windows = starts(readings, window, step).len();
        if windows == 0 {
            return Err(fits_nowhere(window, readings));
        }
        if windows > WINDOWS_MAX {
            return Err(Error::Limit {
                what: "windows of a job",
                value: windows as u64,
                limit: WINDOWS_MAX as u64,
            });
        }
        Ok(())
    }

    /// Returns the amount of work, in operations of about equal duration, for a number of rounds of k-means. The time
    /// of a job on one board is a line over it.
    #[must_use]
    pub fn work(&self, readings: &Readings, rounds: usize) -> f64 {
        let columns = readings.columns.len() as f64;
        match *self {
            Self::Vibration { window, step } => {
                let windows = starts(readings, window, step).len() as f64;
                windows * columns * window as f64 * (window as f64).log2()
            }
            Self::KMeans {
                window,
                step,
                clusters,
                ..
            } => {
                let windows = starts(readings, window, step).len() as f64;
                let features = super::k_means::FEATURES as f64 * columns;
                // Each window is described once and compared in each round, and twice at the end.
                windows
                    * (columns * window as f64 + (rounds + 2) as f64 * clusters as f64 * features)
            }
            Self::MatrixProfile { window } => {
                let count = (readings.rows() + 1).saturating_sub(window);
                let pairs = count.saturating_sub(matrix_profile::apart(window)) as f64;
                pairs * (pairs + 1.0) / 2.0
            }
        }
    }
}

/// Returns the error of a window for which no stretch between breaks has enough readings.
fn fits_nowhere(window: usize, readings: &Readings) -> Error {
    let (rows, breaks) = (readings.rows(), readings.breaks.len());
    let plural = if breaks == 1 { "" } else { "s" };
    let wrong = format!(
        "of {window} readings fits nowhere between breaks: {rows} readings, {breaks} break{plural}"
    );
    Error::invalid("window", wrong)
}

/// Limit of the ratio between the farthest reading and the median of the others that vary. Beyond it a matrix profile
/// cannot distinguish the others, because products of two readings have 16 digits.
const RANGE_MAX: f64 = 1e6;

/// Checks that no reading is so large that the others vanish beside it.
fn check_range(values: &[f64]) -> Result<(), Error> {
    let median = |mut values: Vec<f64>| {
        let middle = values.len() / 2;
        *values.select_nth_unstable_by(middle, f64::total_cmp).1
    };
    if values.is_empty() {
        return Ok(());
    }
    let centre = median(values.to_vec());
    let distances: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    let farthest = distances.iter().copied().fold(0.0, f64::max);
    let moving: Vec<f64> = distances
        .into_iter()
        .filter(|distance| *distance > 0.0)
        .collect();
    if moving.is_empty() {
        return Ok(());
    }
    let usual = median(moving);
    if farthest / usual > RANGE_MAX {
        let wrong = format!(
            "reach {farthest:e} from their median, and half of the moving ones lie within {usual:e}: leave out what is \
             no reading"
        );
        return Err(Error::invalid("readings", wrong));
    }
    Ok(())
}

/// A job with its input.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// The job.
    pub settings: Settings,
    /// Its input.
    pub readings: Readings,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    format: String,
    version: u64,
    settings: Settings,
    names: Vec<String>,
    rows: usize,
    step_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    steps_s: Vec<f64>,
    breaks: Vec<usize>,
}

impl Order {
    /// Creates an order, and checks that the job can be done.
    ///
    /// # Errors
    /// As [`Settings::check`].
    pub fn new(settings: Settings, readings: Readings) -> Result<Self, Error> {
        settings.check(&readings)?;
        Ok(Self { settings, readings })
    }

    /// Writes the order. Times of the rows are not included: a job uses their mean steps.
    ///
    /// # Errors
    /// The writer's errors.
    pub fn write(&self, writer: &mut impl Write) -> std::io::Result<()> {
        let readings = &self.readings;
        let line = Line {
            format: FORMAT.to_owned(),
            version: VERSION,
            settings: self.settings,
            names: readings.names.clone(),
            rows: readings.rows(),
            step_s: readings.step_s,
            steps_s: readings.steps_s.clone(),
            breaks: readings.breaks.clone(),
        };
        let mut line = serde_json::to_vec(&line)?;
        line.push(b'\n');
        let mut sum = crc32c::crc32c(&line);
        writer.write_all(&line)?;
        for column in &readings.columns {
            for chunk in column.chunks(8_192) {
                let bytes: Vec<u8> = chunk.iter().flat_map(|value| value.to_le_bytes()).collect();
                sum = crc32c::crc32c_append(sum, &bytes);
                writer.write_all(&bytes)?;
            }
        }
        writer.write_all(&sum.to_le_bytes())?;
        writer.flush()
    }

    /// Reads an order and checks it.
    ///
    /// # Errors
    /// It was cut or damaged in transit, is of another version, or cannot be done.
    pub fn read(reader: &mut impl Read) -> Result<Self, Error> {
        let failed =
            |error: std::io::Error| Error::invalid("order", format!("cannot be read: {error}"));
        let mut bytes = Vec::new();
        // Byte by byte, so that nothing after the line is consumed; the caller has buffered the reader.
        loop {
            let mut byte = [0];
            reader.read_exact(&mut byte).map_err(failed)?;
            bytes.push(byte[0]);
            if byte[0] == b'\n' {
                break;
            }
            if bytes.len() > LINE_BYTES_MAX {
                return Err(Error::invalid("order", "has a line without an end"));
            }
        }
        let wrong = |error: serde_json::Error| Error::malformed(1, excerpt(&error.to_string()));
        let line: Line = serde_json::from_slice(&bytes).map_err(wrong)?;
        if line.format != FORMAT || line.version != VERSION {
            return Err(Error::Version {
                version: line.version,
                known: VERSION,
            });
        }
        let count = line.names.len();
        let limit = super::readings::VALUES_MAX as u64;
        let value = (line.rows as u64).saturating_mul(count as u64);
        if count > super::readings::COLUMNS_MAX || value > limit {
            return Err(Error::Limit {
                what: "numbers of a job",
                value,
                limit,
            });
        }
        let mut sum = crc32c::crc32c(&bytes);
        let mut columns = Vec::with_capacity(count);
        for _ in 0..count {
            let mut column = Vec::new();
            while column.len() < line.rows {
                let part = 8_192.min(line.rows - column.len());
                let mut bytes = vec![0; 8 * part];
                reader.read_exact(&mut bytes).map_err(failed)?;
                sum = crc32c::crc32c_append(sum, &bytes);
                let (values, _) = bytes.as_chunks::<8>();
                column.extend(values.iter().map(|value| f64::from_le_bytes(*value)));
            }
            columns.push(column);
        }
        let mut end = [0; 4];
        reader.read_exact(&mut end).map_err(failed)?;
        if u32::from_le_bytes(end) != sum {
            return Err(Error::invalid(
                "order",
                "was damaged on the way: its checksum does not fit",
            ));
        }
        let readings = Readings {
            names: line.names,
            columns,
            step_s: line.step_s,
            steps_s: line.steps_s,
            breaks: line.breaks,
            ..Readings::default()
        };
        Self::new(line.settings, readings)
    }

    /// Returns the settings that ranks other than 0 need, as numbers.
    #[must_use]
    pub fn numbers(&self) -> Vec<f64> {
        let columns = self.readings.columns.len() as f64;
        let rate = self.readings.step_s.map_or(1.0, |step_s| 1.0 / step_s);
        let mut numbers = vec![columns, rate];
        match self.settings {
            Settings::Vibration { window, step } => {
                numbers.extend([0.0, window as f64, step as f64]);
            }
            Settings::KMeans {
                window,
                step,
                clusters,
                rounds_max,
                seed,
            } => {
                numbers.extend([1.0, window as f64, step as f64]);
                numbers.extend([clusters as f64, rounds_max as f64, seed as f64]);
            }
            Settings::MatrixProfile { window } => numbers.extend([2.0, window as f64]),
        }
        numbers
    }
}

/// The settings that every rank knows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// The job.
    pub settings: Settings,
    /// Number of columns.
    pub columns: usize,
    /// Readings per second; 1 if they have no times.
    pub rate: f64,
}

impl Head {
    /// Decodes the numbers from [`Order::numbers`].
    #[must_use]
    pub fn from_numbers(numbers: &[f64]) -> Option<Self> {
        let [columns, rate, kernel, rest @ ..] = numbers else {
            return None;
        };
        let settings = match (*kernel as u64, rest) {
            (0, &[window, step]) => Settings::Vibration {
                window: window as usize,
                step: step as usize,
            },
            (1, &[window, step, clusters, rounds_max, seed]) => Settings::KMeans {
                window: window as usize,
                step: step as usize,
                clusters: clusters as usize,
                rounds_max: rounds_max as usize,
                seed: seed as u64,
            },
            (2, &[window]) => Settings::MatrixProfile {
                window: window as usize,
            },
            _ => return None,
        };
        Some(Self {
            settings,
            columns: *columns as usize,
            rate: *rate,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(rows: usize, columns: usize) -> Readings {
        let column = |at: usize| (0..rows).map(|row| (row * 7 + at) as f64 / 3.0).collect();
        Readings {
            names: (0..columns).map(|at| format!("c{at}")).collect(),
            columns: (0..columns).map(column).collect(),
            step_s: Some(0.25),
            steps_s: vec![0.25, 0.5],
            breaks: vec![rows / 2],
            ..Readings::default()
        }
    }

    #[test]
    fn a_reading_beside_which_the_others_vanish_is_refused_by_a_matrix_profile() {
        let settings = Settings::MatrixProfile { window: 16 };
        let mut wild = readings(500, 1);
        wild.columns[0][77] = 1e20;
        let error = Order::new(settings, wild.clone()).expect_err("refused");
        assert!(
            error.to_string().contains("leave out what is no reading"),
            "{error}"
        );
        wild.columns[0][77] = 1e7;
        assert!(Order::new(settings, wild).is_ok());
        // Most of it is constant, and the rest is hidden nevertheless.
        let mut still = readings(500, 1);
        still.columns[0][100..].fill(0.0);
        still.columns[0][77] = 1e20;
        assert!(Order::new(settings, still).is_err());
        let flat = Readings {
            columns: vec![vec![3.0; 500]],
            ..readings(500, 1)
        };
        assert!(Order::new(settings, flat).is_ok());
    }

    fn all(columns: usize) -> Vec<Order> {
        let window = 16;
        let k_means = Settings::KMeans {
            window,
            step: 8,
            clusters: 4,
            rounds_max: 9,
            seed: SEED_MAX - 1,
        };
        let several = [Settings::Vibration { window, step: 3 }, k_means];
        let mut orders: Vec<Order> = several
            .into_iter()
            .map(|settings| Order::new(settings, readings(20_000, columns)).expect("sound"))
            .collect();
        let profile = Settings::MatrixProfile { window };
        orders.push(Order::new(profile, readings(500, 1)).expect("sound"));
        orders
    }

    #[test]
    fn an_order_comes_back_as_it_was() {
        for order in all(3) {
            let mut bytes = Vec::new();
            order.write(&mut bytes).expect("in memory");
            assert_eq!(Order::read(&mut bytes.as_slice()), Ok(order.clone()));
            let head = Head::from_numbers(&order.numbers()).expect("a head");
            let wanted = Head {
                settings: order.settings,
                columns: order.readings.columns.len(),
                rate: 4.0,
            };
            assert_eq!(head, wanted);
        }
        assert_eq!(Head::from_numbers(&[]), None);
        assert_eq!(Head::from_numbers(&[1.0, 1.0, 3.0, 4.0]), None);
    }

    #[test]
    fn a_cut_or_damaged_order_is_refused() {
        let order = &all(1)[2];
        let mut bytes = Vec::new();
        order.write(&mut bytes).expect("in memory");
        for at in 0..bytes.len() {
            assert!(Order::read(&mut &bytes[..at]).is_err(), "cut at {at}");
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(
                Order::read(&mut damaged.as_slice()).is_err(),
                "damaged at {at}"
            );
        }
    }

    #[test]
    fn an_impossible_order_is_refused_with_the_reason() {
        let said = |settings: Settings, readings: Readings| {
            Order::new(settings, readings)
                .expect_err("refused")
                .to_string()
        };
        let vibration = |window, step| Settings::Vibration { window, step };
        assert_eq!(
            said(vibration(3, 1), readings(100, 1)),
            "window is 3, must be from 4 to 65536"
        );
        assert!(said(vibration(8, 0), readings(100, 1)).starts_with("step is 0"));
        assert_eq!(
            said(vibration(80, 1), readings(100, 1)),
            "window of 80 readings fits nowhere between breaks: 100 readings, 1 break"
        );
        assert!(
            said(Settings::MatrixProfile { window: 8 }, readings(100, 2)).contains("takes one")
        );
        assert!(
            said(Settings::MatrixProfile { window: 90 }, readings(100, 1))
                .contains("number of readings")
        );
        let k_means = |clusters, rounds_max, seed| Settings::KMeans {
            window: 8,
            step: 4,
            clusters,
            rounds_max,
            seed,
        };
        assert!(said(k_means(0, 1, 1), readings(100, 1)).starts_with("clusters is 0"));
        assert!(said(k_means(1, 0, 1), readings(100, 1)).starts_with("rounds is 0"));
        assert!(said(k_means(1, 1, SEED_MAX), readings(100, 1)).starts_with("seed"));
        let mut wrong = readings(100, 1);
        wrong.columns[0][3] = f64::NAN;
        assert!(said(vibration(8, 1), wrong).contains("not finite"));
    }

    #[test]
    fn work_grows_as_the_job_does() {
        let work = |settings: Settings, rows| settings.work(&readings(rows, 1), 5);
        let vibration = Settings::Vibration {
            window: 16,
            step: 16,
        };
        let profile = Settings::MatrixProfile { window: 16 };
        let ratio = |settings| work(settings, 32_000) / work(settings, 16_000);
        assert!((ratio(vibration) - 2.0).abs() < 0.01 && (ratio(profile) - 4.0).abs() < 0.02);
    }
}
