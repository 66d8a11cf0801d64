//! Computes averages and energy from values: for each sensor, under load and without. Memory does not grow with time.
//!
//! Time without values of a sensor is not bridged: it is excluded from energy and average. The longest such time is
//! reported, and all of it together, with its reasons.

use super::source::{Meaning, Power, SOURCES_MAX, Source};
use crate::Error;
use crate::results::{Known, Origin, PowerRow};

/// Two reads closer than this are one: counters move about every millisecond.
const READ_NS_MIN: u64 = 5_000_000;

/// Two values further apart than this give no information about the time between them.
const BRIDGE_NS_MAX: u64 = 10_000_000_000;

/// The most reasons that are kept of readings without a value; further ones are counted together.
const REASONS_MAX: usize = 4;

/// The reason of the readings whose reasons are not kept.
const OTHER_REASONS: &str = "other reasons";

/// What runs while a value is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing that is measured: before and after the load.
    Idle,
    /// The measured load.
    Load,
}

/// The summary of one sensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The sensor.
    pub source: String,
    /// What its value covers.
    pub covers: String,
    /// Origin of the values.
    pub origin: Origin,
    /// Time covered by values.
    pub seconds: f64,
    /// Number of values.
    pub samples: u64,
    /// Longest time without a value.
    pub gap_s_max: f64,
    /// Total time that no values cover: energy and average do not have it.
    pub without_s: f64,
    /// Reasons of readings without a value, each in the words of its first reading, with their number.
    pub reasons: Vec<(String, u64)>,
    /// What is doubtful about the values, if anything.
    pub remark: Option<String>,
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

impl Summary {
    /// Returns it as a row of a result file.
    #[must_use]
    pub fn row(&self, during: &str, host: &str) -> PowerRow {
        PowerRow {
            during: during.to_owned(),
            host: host.to_owned(),
            source: self.source.clone(),
            covers: self.covers.clone(),
            origin: self.origin.clone(),
            seconds: self.seconds,
            samples: self.samples,
            gap_s_max: self.gap_s_max,
            average_w: self.average_w,
            maximum_w: self.maximum_w,
            minimum_w: self.minimum_w,
            energy_j: self.energy_j,
            idle_w: self.idle_w.clone(),
        }
    }
}

/// Values of one sensor in one phase.
#[derive(Clone, Debug, Default)]
struct Sum {
    /// Length of the phase.
    length_ns: u64,
    covered_ns: u64,
    energy_j: f64,
    samples: u64,
    maximum_w: f64,
    minimum_w: f64,
    gap_ns_max: u64,
    reasons: Vec<(String, u64)>,
    modelled: Option<String>,
    why: Option<String>,
}

struct Tracked {
    source: Box<dyn Source>,
    load: Sum,
    idle: Sum,
    /// The last read and its value, in the current phase.
    last: Option<(u64, Option<f64>)>,
    /// Why the last read had no value, if so.
    why_none: Option<String>,
    /// Time of the last value, or the beginning of the phase.
    valued_ns: u64,
}

/// Reads sensors and summarises their values.
pub struct Sampler {
    tracked: Vec<Tracked>,
    phase: Phase,
    /// When the phase began.
    begun_ns: u64,
}

impl Sampler {
    /// Starts in a phase, with a first read of each sensor.
    ///
    /// # Errors
    /// No sensor, too many, or two with the same name.
    pub fn new(sources: Vec<Box<dyn Source>>, phase: Phase, now_ns: u64) -> Result<Self, Error> {
        if sources.is_empty() || sources.len() > SOURCES_MAX {
            let wrong = format!("are {}, must be 1 to {SOURCES_MAX}", sources.len());
            return Err(Error::invalid("sensors", wrong));
        }
        for (at, source) in sources.iter().enumerate() {
            if sources[..at]
                .iter()
                .any(|other| other.name() == source.name())
            {
                return Err(Error::invalid(source.name(), "is the name of two sensors"));
            }
        }
        let tracked = sources.into_iter().map(|source| Tracked {
            source,
            load: Sum::default(),
            idle: Sum::default(),
            last: None,
            why_none: None,
            valued_ns: now_ns,
        });
        let mut sampler = Self {
            tracked: tracked.collect(),
            phase,
            begun_ns: now_ns,
        };
        sampler.sample(now_ns);
        Ok(sampler)
    }

    /// Reads each sensor; returns its name and value. Two reads within 5 ms are one: the second gives nothing.
    pub fn sample(&mut self, now_ns: u64) -> Vec<(&str, Power)> {
        let phase = self.phase;
        let mut values = Vec::new();
        for tracked in &mut self.tracked {
            if let Some((last_ns, _)) = tracked.last
                && now_ns.saturating_sub(last_ns) < READ_NS_MIN
            {
                continue;
            }
            let power = tracked.source.read(now_ns);
            tracked.take(phase, now_ns, &power);
            values.push((tracked.source.name(), power));
        }
        values
    }

    /// Ends one phase and begins another with a read of each sensor, which belongs to both.
    pub fn switch(&mut self, phase: Phase, now_ns: u64) {
        self.sample(now_ns);
        self.end(now_ns);
        self.phase = phase;
        self.begin(now_ns);
    }

    /// A value of this moment also counts as the first of the phase.
    fn begin(&mut self, now_ns: u64) {
        let phase = self.phase;
        for tracked in &mut self.tracked {
            tracked.valued_ns = now_ns;
            let moment = tracked.source.meaning() == Meaning::Moment;
            if let Some((_, Some(watts))) = tracked.last
                && moment
            {
                tracked.sum(phase).value(watts);
            }
            // A phase that is over before the next read gets the reason of the read that began it.
            let why_none = tracked.why_none.clone();
            tracked.sum(phase).why = why_none;
        }
    }

    /// Returns the summary of each sensor under load up to now, and begins another load. One read of each sensor
    /// belongs to both.
    pub fn take_load(&mut self, now_ns: u64) -> Vec<Summary> {
        self.sample(now_ns);
        self.end(now_ns);
        let summaries = self.tracked.iter().map(Tracked::summary).collect();
        if self.phase == Phase::Load {
            for tracked in &mut self.tracked {
                tracked.load = Sum::default();
            }
            self.begin(now_ns);
        }
        summaries
    }

    /// Records the length of the phase, and the time without a value up to now.
    fn end(&mut self, now_ns: u64) {
        let phase = self.phase;
        let length_ns = now_ns.saturating_sub(self.begun_ns);
        self.begun_ns = now_ns;
        for tracked in &mut self.tracked {
            let gap_ns = now_ns.saturating_sub(tracked.valued_ns);
            let sum = tracked.sum(phase);
            sum.gap_ns_max = sum.gap_ns_max.max(gap_ns);
            sum.length_ns += length_ns;
        }
    }

    /// Returns the summary of each sensor under load, and its idle power.
    pub fn finish(mut self, now_ns: u64) -> Vec<Summary> {
        self.end(now_ns);
        self.tracked.iter().map(Tracked::summary).collect()
    }
}

impl Sum {
    fn value(&mut self, watts: f64) {
        (self.minimum_w, self.maximum_w) = if self.samples == 0 {
            (watts, watts)
        } else {
            (self.minimum_w.min(watts), self.maximum_w.max(watts))
        };
        self.samples += 1;
    }

    /// Counts a reading without a value.
    fn count(&mut self, why: &str) {
        let kind = kind_of(why);
        let mut known = self.reasons.iter();
        let same = known.position(|(known, _)| kind_of(known) == kind);
        let there = self.reasons.len();
        match same.unwrap_or(there.min(REASONS_MAX)) {
            at if at < there => self.reasons[at].1 += 1,
            REASONS_MAX => self.reasons.push((OTHER_REASONS.to_owned(), 1)),
            _ => self.reasons.push((why.to_owned(), 1)),
        }
    }

    fn average_w(&self) -> Option<f64> {
        (self.covered_ns > 0).then(|| self.energy_j / (self.covered_ns as f64 / 1e9))
    }

    fn why(&self) -> String {
        let why = self.why.clone();
        why.unwrap_or_else(|| "too short for two values".to_owned())
    }
}

/// Returns a reason without its numbers and without what it quotes: these differ from reading to reading.
fn kind_of(why: &str) -> String {
    let parts = why.split('`').step_by(2);
    let plain = parts.flat_map(str::chars);
    plain.filter(|letter| !letter.is_ascii_digit()).collect()
}

impl Tracked {
    fn sum(&mut self, phase: Phase) -> &mut Sum {
        match phase {
            Phase::Idle => &mut self.idle,
            Phase::Load => &mut self.load,
        }
    }

    fn take(&mut self, phase: Phase, now_ns: u64, power: &Power) {
        let meaning = self.source.meaning();
        let last = self.last.replace((now_ns, power.watts()));
        let valued_ns = self.valued_ns;
        self.why_none = match power {
            Power::Unavailable { why } => Some(why.clone()),
            _ => None,
        };
        let sum = self.sum(phase);
        let watts = match power {
            Power::Unavailable { why } => {
                sum.why = Some(why.clone());
                sum.count(why);
                return;
            }
            Power::Measured { watts } => *watts,
            Power::Modelled { watts, source } => {
                sum.modelled = Some(source.clone());
                *watts
            }
        };
        sum.value(watts);
        sum.gap_ns_max = sum.gap_ns_max.max(now_ns.saturating_sub(valued_ns));
        if let Some((last_ns, last_w)) = last {
            let length_ns = now_ns.saturating_sub(last_ns);
            let mean_w = match (meaning, last_w) {
                (Meaning::MeanSinceLast, _) => Some(watts),
                (Meaning::Moment, Some(last_w)) if length_ns <= BRIDGE_NS_MAX => {
                    Some((last_w + watts) / 2.0)
                }
                (Meaning::Moment, _) => None,
            };
            if let Some(mean_w) = mean_w {
                sum.covered_ns += length_ns;
                sum.energy_j += mean_w * (length_ns as f64 / 1e9);
            }
        }
        self.valued_ns = now_ns;
    }

    fn summary(&self) -> Summary {
        let load = &self.load;
        let average_w = load.average_w();
        let origin = match (&load.modelled, average_w) {
            (_, None) => Origin::Unavailable(load.why()),
            (Some(source), Some(_)) => Origin::Modelled(source.clone()),
            (None, Some(_)) => Origin::Measured,
        };
        let shown = |value: f64| if average_w.is_some() { value } else { 0.0 };
        Summary {
            source: self.source.name().to_owned(),
            covers: self.source.covers().to_owned(),
            origin,
            seconds: load.covered_ns as f64 / 1e9,
            samples: load.samples,
            gap_s_max: load.gap_ns_max as f64 / 1e9,
            without_s: load.length_ns.saturating_sub(load.covered_ns) as f64 / 1e9,
            reasons: load.reasons.clone(),
            remark: self.source.remark(),
            average_w: average_w.unwrap_or(0.0),
            maximum_w: shown(load.maximum_w),
            minimum_w: shown(load.minimum_w),
            energy_j: shown(load.energy_j),
            idle_w: match self.idle.average_w() {
                Some(watts) => Known::Value(watts),
                None => Known::Unavailable(self.idle.why()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::Tree;
    use super::super::{Root, discover};
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;
    const RAPL: &str = "sys/class/powercap/intel-rapl:0";

    /// Returns the values of a list.
    struct Listed {
        values: std::vec::IntoIter<Power>,
        meaning: Meaning,
    }

    impl Source for Listed {
        fn name(&self) -> &str {
            "listed"
        }
        fn covers(&self) -> &str {
            "a test"
        }
        fn meaning(&self) -> Meaning {
            self.meaning
        }
        fn read(&mut self, _now_ns: u64) -> Power {
            self.values.next().expect("as many as are read")
        }
    }

    fn listed(meaning: Meaning, values: &[Option<f64>]) -> Vec<Box<dyn Source>> {
        let values: Vec<Power> = values
            .iter()
            .map(|value| match value {
                Some(watts) => Power::Measured { watts: *watts },
                None => Power::unavailable("gone"),
            })
            .collect();
        vec![Box::new(Listed {
            values: values.into_iter(),
            meaning,
        })]
    }

    #[test]
    fn moments_give_average_maximum_minimum_idle_and_energy() {
        let values = [2.0, 2.0, 4.0, 6.0, 4.0, 2.0].map(Some);
        let mut sampler =
            Sampler::new(listed(Meaning::Moment, &values), Phase::Idle, 0).expect("one");
        sampler.switch(Phase::Load, SECOND);
        sampler.sample(2 * SECOND);
        sampler.sample(3 * SECOND);
        sampler.switch(Phase::Idle, 4 * SECOND);
        sampler.sample(5 * SECOND);
        let found = sampler.finish(5 * SECOND).remove(0);
        assert_eq!(found.origin, Origin::Measured);
        assert_eq!((found.seconds, found.energy_j), (3.0, 3.0 + 5.0 + 5.0));
        assert!((found.average_w - 13.0 / 3.0).abs() < 1e-12);
        assert_eq!((found.maximum_w, found.minimum_w), (6.0, 2.0));
        assert_eq!(found.idle_w, Known::Value(2.5));
        assert_eq!(found.gap_s_max, 1.0);
    }

    /// A battery that is charged, or a sensor whose current flows back.
    #[test]
    fn negative_power_values_count_with_their_sign() {
        let values = [2.0, -4.0, -6.0, 1.0].map(Some);
        let mut sampler =
            Sampler::new(listed(Meaning::Moment, &values), Phase::Load, 0).expect("one");
        for second in 1..4 {
            sampler.sample(second * SECOND);
        }
        let found = sampler.finish(3 * SECOND).remove(0);
        assert_eq!((found.seconds, found.energy_j), (3.0, -1.0 - 5.0 - 2.5));
        assert_eq!((found.maximum_w, found.minimum_w), (2.0, -6.0));
    }

    /// The chip multiplies without the sign, which only its current has.
    #[test]
    fn an_ina219_with_negative_current_has_negative_power_and_energy() {
        let tree = Tree::new();
        let folder = "sys/class/hwmon/hwmon0";
        tree.write(&format!("{folder}/name"), "ina219\n");
        tree.write(&format!("{folder}/power1_input"), "176000\n");
        tree.write(&format!("{folder}/curr1_input"), "-35\n");
        let mut sampler = Sampler::new(discover(&tree.root()), Phase::Load, 0).expect("one");
        sampler.sample(SECOND);
        sampler.sample(2 * SECOND);
        let found = sampler.finish(2 * SECOND).remove(0);
        assert_eq!(found.origin, Origin::Measured);
        assert_eq!((found.average_w, found.energy_j), (-0.176, -0.352));
        assert_eq!((found.maximum_w, found.minimum_w), (-0.176, -0.176));
    }

    #[test]
    fn a_counter_is_integrated_over_its_wrap() {
        let tree = Tree::new();
        let count = |counter: u64| tree.write(&format!("{RAPL}/energy_uj"), format!("{counter}\n"));
        tree.write(&format!("{RAPL}/name"), "package-0\n");
        tree.write(&format!("{RAPL}/max_energy_range_uj"), "262143328850\n");
        count(262_143_328_850 - 3_999_999);
        let mut sampler = Sampler::new(discover(&tree.root()), Phase::Load, 0).expect("one");
        count(262_143_328_850 - 999_999);
        sampler.sample(SECOND);
        count(4_000_000);
        sampler.sample(2 * SECOND);
        let found = sampler.finish(2 * SECOND).remove(0);
        assert_eq!((found.energy_j, found.seconds), (8.0, 2.0));
        assert_eq!((found.minimum_w, found.maximum_w), (3.0, 5.0));
    }

    #[test]
    fn time_without_values_is_no_part_of_the_average_and_reported() {
        let values = [Some(4.0), Some(4.0), None, None, Some(2.0), Some(2.0)];
        let mut sampler =
            Sampler::new(listed(Meaning::Moment, &values), Phase::Load, 0).expect("one");
        for second in 1..6 {
            sampler.sample(second * SECOND);
        }
        let found = sampler.finish(5 * SECOND).remove(0);
        assert_eq!(
            (found.seconds, found.energy_j, found.average_w),
            (2.0, 6.0, 3.0)
        );
        assert_eq!(found.gap_s_max, 3.0);
        assert_eq!(found.without_s, 3.0);
        assert_eq!(found.reasons, [("gone".to_owned(), 2)]);
    }

    #[test]
    fn reasons_of_readings_without_a_value_are_counted_by_kind_within_a_bound() {
        let mut sum = Sum::default();
        for at in 0..60 {
            sum.count(&format!(
                "its last row is `{at},4,7`: more fields than the heading"
            ));
            sum.count(&format!("its last value is of {at} s ago"));
        }
        for name in ["a", "b", "c", "d", "c"] {
            sum.count(name);
        }
        let found: Vec<(&str, u64)> = sum
            .reasons
            .iter()
            .map(|(why, count)| (why.as_str(), *count))
            .collect();
        assert_eq!(
            found,
            [
                ("its last row is `0,4,7`: more fields than the heading", 60),
                ("its last value is of 0 s ago", 60),
                ("a", 1),
                ("b", 1),
                (OTHER_REASONS, 3),
            ]
        );
    }

    #[test]
    fn a_sensor_without_a_value_is_unavailable_and_says_why() {
        let mut sampler =
            Sampler::new(listed(Meaning::Moment, &[None, None]), Phase::Load, 0).expect("one");
        sampler.sample(SECOND);
        let found = sampler.finish(2 * SECOND).remove(0);
        assert_eq!(found.origin, Origin::Unavailable("gone".to_owned()));
        assert_eq!(
            (found.average_w, found.energy_j, found.gap_s_max),
            (0.0, 0.0, 2.0)
        );
        // A single moment has a value and no energy.
        let sampler =
            Sampler::new(listed(Meaning::Moment, &[Some(3.0)]), Phase::Load, 0).expect("one");
        let found = sampler.finish(SECOND).remove(0);
        assert_eq!(
            found.origin,
            Origin::Unavailable("too short for two values".to_owned())
        );
        assert_eq!((found.maximum_w, found.idle_w.value()), (0.0, None));
    }

    #[test]
    fn a_phase_without_a_read_of_its_own_has_the_reason_of_the_one_before() {
        let mut sampler =
            Sampler::new(listed(Meaning::Moment, &[None]), Phase::Idle, 0).expect("one");
        sampler.switch(Phase::Load, 1_000_000);
        let found = sampler.take_load(2_000_000).remove(0);
        assert_eq!(found.origin, Origin::Unavailable("gone".to_owned()));
        let found = sampler.take_load(3_000_000).remove(0);
        assert_eq!(found.origin, Origin::Unavailable("gone".to_owned()));
        assert_eq!(found.idle_w, Known::Unavailable("gone".to_owned()));
    }

    #[test]
    fn reads_that_are_too_near_are_one() {
        let values = [Some(1.0), Some(1.0)];
        let mut sampler =
            Sampler::new(listed(Meaning::MeanSinceLast, &values), Phase::Load, 0).expect("one");
        assert!(sampler.sample(1_000_000).is_empty());
        assert_eq!(sampler.sample(SECOND).len(), 1);
    }

    #[test]
    fn sensors_that_cannot_be_told_apart_are_refused() {
        assert!(Sampler::new(Vec::new(), Phase::Load, 0).is_err());
        let two = [listed(Meaning::Moment, &[]), listed(Meaning::Moment, &[])];
        assert!(Sampler::new(two.into_iter().flatten().collect(), Phase::Load, 0).is_err());
        assert!(discover(&Root::new("/nowhere")).is_empty());
    }

    proptest! {
        #[test]
        fn the_average_lies_between_the_extremes_and_explains_the_energy(
            values in proptest::collection::vec(proptest::option::weighted(0.8, -50.0..50.0), 3..60),
            steps in proptest::collection::vec(5_000_000_u64..3_000_000_000, 60),
            mean in any::<bool>(),
        ) {
            let meaning = if mean { Meaning::MeanSinceLast } else { Meaning::Moment };
            let mut sampler = Sampler::new(listed(meaning, &values), Phase::Load, 0).expect("one");
            let mut now_ns = 0;
            for step in &steps[1..values.len()] {
                now_ns += step;
                sampler.sample(now_ns);
            }
            let found = sampler.finish(now_ns).remove(0);
            if found.seconds > 0.0 {
                prop_assert!(found.minimum_w <= found.average_w + 1e-9);
                prop_assert!(found.average_w <= found.maximum_w + 1e-9);
                prop_assert!((found.average_w * found.seconds - found.energy_j).abs() < 1e-6);
                prop_assert!(found.seconds <= now_ns as f64 / 1e9 + 1e-9);
            } else {
                prop_assert!(matches!(found.origin, Origin::Unavailable(_)));
            }
        }
    }
}
