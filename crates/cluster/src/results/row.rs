//! The content of a result file, and its ranges.

use crate::Error;
use crate::starts::{STARTS_MIN, repeat_interval};
use crate::statistics::{Median, SAMPLES_MAX, median_interval};
use serde::{Deserialize, Serialize};

/// Size of the longest name or text, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// A wider half of an interval, as a part of the median, is marked where the number of samples was fixed.
pub const HALF_WIDTH_WIDE: f64 = 0.05;

/// Largest number of hosts of a run.
const HOSTS_MAX: usize = 1_024;

/// Largest number of ranks of a run.
const RANKS_MAX: u32 = 65_536;

/// A known value, or the reason why it is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Known<T> {
    /// The value.
    Value(T),
    /// The reason.
    Unavailable(String),
}

impl<T> Known<T> {
    /// Returns the value, if it is known.
    #[must_use]
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Unavailable(_) => None,
        }
    }
}

/// How a run measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Synchronised start, raw samples.
    Sound,
    /// The original's loops.
    Mpbench,
    /// Power alone.
    Power,
}

/// The link between hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its rate.
    pub rate_bits_per_s: Known<u64>,
    /// Bytes that pass before the rate limit applies.
    pub burst_bytes: Known<u64>,
}

/// One machine of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Ranks on it.
    pub ranks: u32,
    /// Which rank is bound to which core.
    pub pinning: Known<String>,
    /// Its cores.
    pub cores: Known<u32>,
    /// Its processor.
    pub processor: Known<String>,
    /// Its operating system.
    pub system: Known<String>,
    /// Its kernel.
    pub kernel: Known<String>,
    /// The kernel's frequency options.
    pub frequency_options: Known<String>,
    /// Number of processes created since its start: an indication of other activity.
    pub forks_since_boot: Known<u64>,
    /// The governor of its processor's frequency.
    pub governor: Known<String>,
}

/// The first line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The label of the run.
    pub label: String,
    /// When it began.
    pub created_ms: i64,
    /// How it measured.
    pub mode: Mode,
    /// The MPI library.
    pub mpi: Known<String>,
    /// The link between hosts.
    pub link: Link,
    /// The machines.
    pub hosts: Vec<Host>,
    /// The source of power values.
    pub power_source: Known<String>,
}

/// The eight benchmarks of MPBench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Benchmark {
    /// Messages one way.
    Bandwidth,
    /// Messages both ways at once.
    Bibandwidth,
    /// A message and its echo.
    Roundtrip,
    /// Sending without an acknowledgement.
    Latency,
    /// Broadcast: one to all.
    Broadcast,
    /// Reduction: all to one, summed.
    Reduce,
    /// All to all, summed.
    Allreduce,
    /// All to all, a separate part for each.
    Alltoall,
}

impl Benchmark {
    /// All benchmarks, in the thesis's order.
    pub const ALL: [Self; 8] = [
        Self::Allreduce,
        Self::Reduce,
        Self::Alltoall,
        Self::Bandwidth,
        Self::Bibandwidth,
        Self::Broadcast,
        Self::Latency,
        Self::Roundtrip,
    ];

    /// Returns its name in files and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bandwidth",
            Self::Bibandwidth => "bibandwidth",
            Self::Roundtrip => "roundtrip",
            Self::Latency => "latency",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Allreduce => "allreduce",
            Self::Alltoall => "alltoall",
        }
    }

    /// Returns the unit of its result.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Roundtrip => "transactions/s",
            Self::Latency => "us",
            _ => "KB/s",
        }
    }

    /// Returns whether only the first and the last rank work, so that more boards cannot make it faster.
    #[must_use]
    pub fn is_between_two(self) -> bool {
        matches!(
            self,
            Self::Bandwidth | Self::Bibandwidth | Self::Roundtrip | Self::Latency
        )
    }

    /// Returns its result for one operation of `bytes` bytes in `us` microseconds.
    #[must_use]
    pub fn result(self, bytes: u64, us: f64) -> f64 {
        let kilobytes_per_s = bytes as f64 / 1024.0 / (us * 1e-6);
        match self {
            Self::Latency => us,
            Self::Roundtrip => 1e6 / us,
            Self::Bibandwidth => 2.0 * kilobytes_per_s,
            _ => kilobytes_per_s,
        }
    }
}

/// The carrier of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Shared memory between ranks of one host.
    Memory,
    /// A network.
    Network,
}

/// Why sampling stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stopped {
    /// The interval of the median was narrow enough.
    Narrow,
    /// It was not, and no more samples were allowed.
    Exhausted,
    /// The number of samples was fixed.
    Fixed,
}

/// One size of one benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchmarkRow {
    /// The benchmark.
    pub benchmark: Benchmark,
    /// Number of ranks.
    pub ranks: u32,
    /// The carrier.
    pub transport: Transport,
    /// Size of the message.
    pub bytes: u64,
    /// Operations in each sample.
    pub iterations: u64,
    /// Times of one operation.
    pub samples_us: Vec<f64>,
    /// Number of samples from each start of the measuring program, in order; empty if there was one start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<u32>,
    /// Why sampling stopped.
    pub stopped: Stopped,
}

impl BenchmarkRow {
    /// Returns the median time of one operation and its interval. With starts it is the interval of another run's
    /// median; without starts it can only be that of more samples from the same start.
    ///
    /// # Errors
    /// None for a row that was read or checked.
    pub fn median_us(&self) -> Result<Median, Error> {
        if self.has_starts() {
            repeat_interval(&self.samples_us, &self.starts)
        } else {
            median_interval(&self.samples_us)
        }
    }

    /// Returns whether the interval of this median stayed wider than the limit. Where the number of samples was fixed,
    /// that is [`HALF_WIDTH_WIDE`].
    #[must_use]
    pub fn is_wide(&self, median: &Median) -> bool {
        match self.stopped {
            Stopped::Narrow => false,
            Stopped::Exhausted => true,
            Stopped::Fixed => {
                let half_width = (median.interval.high - median.interval.low) / 2.0;
                median.samples > 1 && half_width > HALF_WIDTH_WIDE * median.value
            }
        }
    }

    /// Returns whether there are enough starts to determine their variation.
    #[must_use]
    pub fn has_starts(&self) -> bool {
        self.starts.len() >= STARTS_MIN
    }
}

/// The origin of a power value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A sensor.
    Measured,
    /// A formula, with its source.
    Modelled(String),
    /// Unavailable, with the reason.
    Unavailable(String),
}

/// The power from one source during an activity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerRow {
    /// The activity.
    pub during: String,
    /// The machine.
    pub host: String,
    /// The sensor.
    pub source: String,
    /// What its value covers.
    pub covers: String,
    /// Its origin.
    pub origin: Origin,
    /// Duration.
    pub seconds: f64,
    /// Number of values.
    pub samples: u64,
    /// Longest time without a value.
    pub gap_s_max: f64,
    /// Average power.
    pub average_w: f64,
    /// Greatest power.
    pub maximum_w: f64,
    /// Least power.
    pub minimum_w: f64,
    /// Total energy.
    pub energy_j: f64,
    /// Average power without load.
    pub idle_w: Known<f64>,
}

/// A line between header and end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Row {
    /// One size of one benchmark.
    Benchmark(BenchmarkRow),
    /// The power of one source.
    Power(PowerRow),
}

/// Checks members of one line.
struct Line(usize);

impl Line {
    fn wrong(&self, member: &str, wrong: impl std::fmt::Display) -> Error {
        Error::malformed(self.0, format!("{member} {wrong}"))
    }

    fn text(&self, member: &str, text: &str) -> Result<(), Error> {
        if text.is_empty() || text.len() > TEXT_BYTES_MAX {
            let wrong = format!("has {} bytes, must have 1 to {TEXT_BYTES_MAX}", text.len());
            return Err(self.wrong(member, wrong));
        }
        if text.chars().any(char::is_control) {
            return Err(self.wrong(member, "has a control character"));
        }
        Ok(())
    }

    fn known_text(&self, member: &str, known: &Known<String>) -> Result<(), Error> {
        match known {
            Known::Value(text) | Known::Unavailable(text) => self.text(member, text),
        }
    }

    fn known<T>(&self, member: &str, known: &Known<T>) -> Result<(), Error> {
        match known {
            Known::Value(_) => Ok(()),
            Known::Unavailable(why) => self.text(member, why),
        }
    }

    fn number(&self, member: &str, value: f64, may_be_negative: bool) -> Result<(), Error> {
        if !value.is_finite() || (value < 0.0 && !may_be_negative) {
            return Err(self.wrong(member, format!("is {value}")));
        }
        Ok(())
    }

    fn count(&self, member: &str, value: usize, least: usize, most: usize) -> Result<(), Error> {
        if !(least..=most).contains(&value) {
            return Err(self.wrong(
                member,
                format!("is {value}, must be from {least} to {most}"),
            ));
        }
        Ok(())
    }
}

impl Header {
    pub(super) fn check(&self, line: usize) -> Result<(), Error> {
        let line = Line(line);
        line.text("label", &self.label)?;
        line.known_text("mpi", &self.mpi)?;
        line.known("rate_bits_per_s", &self.link.rate_bits_per_s)?;
        line.known("burst_bytes", &self.link.burst_bytes)?;
        line.known_text("power_source", &self.power_source)?;
        line.count("number of hosts", self.hosts.len(), 1, HOSTS_MAX)?;
        for host in &self.hosts {
            line.text("name", &host.name)?;
            line.count("ranks", host.ranks as usize, 0, RANKS_MAX as usize)?;
            for (member, known) in [
                ("pinning", &host.pinning),
                ("processor", &host.processor),
                ("system", &host.system),
                ("kernel", &host.kernel),
                ("frequency_options", &host.frequency_options),
                ("governor", &host.governor),
            ] {
                line.known_text(member, known)?;
            }
            line.known("cores", &host.cores)?;
            line.known("forks_since_boot", &host.forks_since_boot)?;
        }
        Ok(())
    }
}

impl Row {
    pub(super) fn check(&self, line: usize) -> Result<(), Error> {
        let line = Line(line);
        match self {
            Self::Benchmark(row) => row.check(&line),
            Self::Power(row) => row.check(&line),
        }
    }
}

impl BenchmarkRow {
    fn check(&self, line: &Line) -> Result<(), Error> {
        line.count("ranks", self.ranks as usize, 2, RANKS_MAX as usize)?;
        line.count("number of samples", self.samples_us.len(), 1, SAMPLES_MAX)?;
        if self.iterations == 0 {
            return Err(line.wrong("iterations", "is 0"));
        }
        let of_starts: u64 = self.starts.iter().map(|&count| u64::from(count)).sum();
        if !self.starts.is_empty()
            && (self.starts.contains(&0) || of_starts != self.samples_us.len() as u64)
        {
            let wrong = format!(
                "have {of_starts} samples, there are {}",
                self.samples_us.len()
            );
            return Err(line.wrong("starts", wrong));
        }
        match self
            .samples_us
            .iter()
            .find(|us| !(**us > 0.0 && us.is_finite()))
        {
            Some(us) => Err(line.wrong("samples_us", format!("has {us}, must be above 0"))),
            None => Ok(()),
        }
    }
}

impl PowerRow {
    fn check(&self, line: &Line) -> Result<(), Error> {
        for (member, text) in [
            ("during", &self.during),
            ("host", &self.host),
            ("source", &self.source),
            ("covers", &self.covers),
        ] {
            line.text(member, text)?;
        }
        line.number("seconds", self.seconds, false)?;
        line.number("gap_s_max", self.gap_s_max, false)?;
        let powers = [
            ("average_w", self.average_w),
            ("maximum_w", self.maximum_w),
            ("minimum_w", self.minimum_w),
            ("energy_j", self.energy_j),
        ];
        for (member, value) in powers {
            line.number(member, value, true)?;
        }
        line.known("idle_w", &self.idle_w)?;
        if let Known::Value(watts) = self.idle_w {
            line.number("idle_w", watts, true)?;
        }
        match &self.origin {
            Origin::Measured => {}
            Origin::Modelled(text) => return line.text("origin", text),
            Origin::Unavailable(why) => {
                line.text("origin", why)?;
                // A value beside "unavailable" would be read as a measurement.
                if powers.iter().any(|(_, value)| *value != 0.0) {
                    return Err(line.wrong("origin", "is unavailable, and there are values"));
                }
                return Ok(());
            }
        }
        if self.minimum_w > self.maximum_w {
            return Err(line.wrong("minimum_w", "is above maximum_w"));
        }
        Ok(())
    }
}
