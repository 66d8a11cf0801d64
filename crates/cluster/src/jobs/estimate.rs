//! Figures of a job for the advisor: measured on this board, on growing parts of the input, and fitted.
//!
//! Parts grow until the measuring time is used up or the whole input was measured. Otherwise the time of the whole is
//! extrapolated on at most two lines over the work (`Settings::work`), and is called a forecast. The parallel fraction
//! comes from the largest part on several ranks of this board, if it has the cores. Otherwise, and if the two
//! contradict each other, it comes from the time in the sections that are shared out. Messages are counted, and grow
//! linearly with the input.

use super::communicator::{Alone, Failure};
use super::counted::Counted;
use super::order::{Order, Settings};
use super::readings::Readings;
use super::star::star;
use super::watch::Watch;
use super::worker::run_alone;
use crate::Error;
use crate::advisor::{Input, Origin, Question};
use crate::model::{Exchange, Growth, fit_fraction};
use std::time::{Duration, Instant};

/// Divisor of the input for the first part, if that is enough for a window.
const FIRST_PART: usize = 64;

/// A part that takes a shorter time than this is measured several times.
const SHORT_S: f64 = 0.2;

/// How often a short part is measured.
const REPEATS: usize = 5;

/// A fit over fewer parts is meaningless.
const SAMPLES_MIN: usize = 3;

/// Number of parts from which messages are predicted.
const PREDICTION_PARTS: usize = 2;

/// Smallest relative spread of a measured time.
const SPREAD_MIN: f64 = 0.02;

/// Parallel fractions of times and of sections that differ by more contradict each other: the machine was busy.
const FRACTION_DIFFERENCE_MAX: f64 = 0.1;

/// Spread of the serial part where they contradict each other: the most that a figure may have.
pub const FRACTION_SPREAD_MAX: f64 = 1.0;

/// Timeout of the ranks of one process for each other.
const PATIENCE: Duration = Duration::from_secs(600);

/// A measured part of the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Number of readings in each column.
    pub rows: usize,
    /// Rounds of k-means; 0 for other jobs.
    pub rounds: usize,
    /// Work, as [`Settings::work`] counts it.
    pub work: f64,
    /// Median time on one rank.
    pub seconds: f64,
    /// Fraction of it that is shared out with more ranks, from the sections.
    pub shared_fraction: f64,
    /// Messages.
    pub exchange: Exchange,
    /// Bytes of the answer.
    pub output_bytes: f64,
}

/// The origin of a parallel fraction.
#[derive(Clone, Debug, PartialEq)]
pub enum FractionFrom {
    /// Runs on one rank and on this number of ranks on this board.
    Ranks(Vec<u32>),
    /// Sections of the run on one rank; the reason why sections were used.
    Sections(String),
}

/// Figures of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// The job.
    pub kernel: &'static str,
    /// Measured parts, growing.
    pub samples: Vec<Sample>,
    /// Number of readings in each column of the whole input.
    pub rows: usize,
    /// Fit over the parts; `None` if there are fewer than three.
    pub growth: Option<Growth>,
    /// Time of the whole on one board.
    pub single_s: f64,
    /// Whether that is a forecast.
    pub is_forecast: bool,
    /// Its relative standard deviation.
    pub spread: f64,
    /// Fraction that can be shared out.
    pub parallel_fraction: f64,
    /// Its origin.
    pub fraction_from: FractionFrom,
    /// The parallel fraction by times on several ranks, if the sections contradict it.
    pub fraction_refuted: Option<f64>,
    /// Messages of the whole.
    pub exchange: Exchange,
    /// Bytes of the whole input.
    pub input_bytes: f64,
    /// Bytes of its answer.
    pub output_bytes: f64,
}

/// A shorter run on one rank, in s, gives another parallel fraction each time.
pub const FRACTION_S_MIN: f64 = 0.1;

/// Returns why the parallel fraction of a job that takes this time on one rank says little, if so.
#[must_use]
pub fn fraction_remark(single_s: f64) -> Option<String> {
    (single_s < FRACTION_S_MIN).then(|| {
        format!(
            "{single_s:.4} s on one rank: below {FRACTION_S_MIN} s the fraction differs at each run; give it more \
             readings"
        )
    })
}

/// Returns what a contradiction between the two parallel fractions means, if there is one.
#[must_use]
pub fn fraction_contradiction(times: f64, sections: f64) -> Option<String> {
    ((times - sections).abs() > FRACTION_DIFFERENCE_MAX).then(|| {
        format!(
            "times on several ranks give {times:.3}, the sections {sections:.3}: other programs took the cores, or \
             cores share a memory; measure on a quiet machine"
        )
    })
}

/// Measures a job on a part of the input, with `rows` rows.
///
/// # Errors
/// The job cannot be done with `rows` rows, or a rank is lost.
pub fn sample(settings: Settings, readings: &Readings, rows: usize) -> Result<Sample, Error> {
    let order = Order::new(settings, readings.head(rows))?;
    measure_order(&order)
}

/// Counts the messages of a job and the bytes of its answer.
fn count(order: &Order) -> Result<(Exchange, f64), Error> {
    let mut alone = Alone;
    let mut counted = Counted::new(&mut alone);
    let answer = super::run(&mut counted, &Watch::new(), Some(order)).map_err(lost)?;
    let output_bytes = answer.map_or(0.0, |answer| answer.bytes() as f64);
    Ok((counted.traffic().exchange(), output_bytes))
}

fn measure_order(order: &Order) -> Result<Sample, Error> {
    // Counted in a separate run, so that the counter does not affect the timed runs.
    let (exchange, output_bytes) = count(order)?;
    let (mut runs, mut rounds, mut total_s) = (Vec::new(), 0, 0.0);
    while runs.is_empty() || (runs.len() < REPEATS && total_s < SHORT_S) {
        let run = run_alone(order, &Watch::new()).map_err(lost)?;
        rounds = run.answer.rounds();
        total_s += run.seconds;
        runs.push((run.seconds, run.shared_fraction));
    }
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (seconds, shared_fraction) = runs[runs.len() / 2];
    Ok(Sample {
        rows: order.readings.rows(),
        rounds,
        work: order.settings.work(&order.readings, rounds),
        seconds,
        shared_fraction,
        exchange,
        output_bytes,
    })
}

fn lost(failure: Failure) -> Error {
    Error::invalid("job", failure.to_string())
}

/// Returns the numbers of rows of growing parts. The last one is the whole input.
fn parts(rows: usize) -> impl Iterator<Item = usize> {
    // A last part that is hardly larger than the previous one gives no further information.
    let next = move |part: &usize| match *part {
        part if part >= rows => None,
        part if 3 * part > rows => Some(rows),
        part => Some(2 * part),
    };
    std::iter::successors(Some((rows / FIRST_PART).max(1)), next)
}

/// Predicts the messages of a job, from those of two small parts of the input. It takes a small part of the time of
/// [`measure`].
///
/// # Errors
/// The job cannot be done with this input.
pub fn predict_exchange(order: &Order) -> Result<Exchange, Error> {
    let Order { settings, readings } = order;
    let rows = readings.rows();
    let mut counted = Vec::new();
    for part in parts(rows) {
        // A part that is too small for a window is skipped.
        if let Ok(head) = Order::new(*settings, readings.head(part)) {
            counted.push((part, count(&head)?.0));
        }
        if counted.len() == PREDICTION_PARTS {
            break;
        }
    }
    let (Some((first_rows, first)), Some((last_rows, last))) = (counted.first(), counted.last())
    else {
        return Err(too_few());
    };
    let bytes = |exchange: &Exchange| exchange.times * exchange.bytes;
    let whole = grow((*first_rows, bytes(first)), (*last_rows, bytes(last)), rows);
    Ok(Exchange {
        times: last.times,
        bytes: whole / last.times.max(1.0),
    })
}

fn too_few() -> Error {
    Error::invalid("readings", "are too few")
}

/// Measures growing parts of the input for about the given number of seconds. Measures the largest of them on up to
/// `ranks_max` ranks of this board, too. Calls `seen` with each part.
///
/// # Errors
/// The job cannot be done with this input.
pub fn measure(
    order: &Order,
    seconds_max: f64,
    ranks_max: u32,
    mut seen: impl FnMut(&Sample),
) -> Result<Estimate, Error> {
    let Order { settings, readings } = order;
    let begun = Instant::now();
    let rows = readings.rows();
    let mut samples: Vec<Sample> = Vec::new();
    for part in parts(rows) {
        let is_whole = part >= rows;
        let head = if is_whole {
            Ok(order.clone())
        } else {
            Order::new(*settings, readings.head(part))
        };
        // A part that is too small for a window is skipped; for the whole input this is an error.
        match head.and_then(|head| measure_order(&head)) {
            Ok(sample) => {
                seen(&sample);
                samples.push(sample);
            }
            Err(error) if is_whole => return Err(error),
            Err(_) => {}
        }
        // The next part takes two to four times as long, including its counting run: it must not exceed the time limit.
        let last_s = samples.last().map_or(0.0, |sample| sample.seconds);
        let is_enough = samples.len() >= SAMPLES_MIN;
        if is_enough && begun.elapsed().as_secs_f64() + 8.0 * last_s > seconds_max {
            break;
        }
    }
    let (Some(&first), Some(&last)) = (samples.first(), samples.last()) else {
        return Err(too_few());
    };
    let points: Vec<(f64, f64)> = samples
        .iter()
        .map(|sample| (sample.work, sample.seconds))
        .collect();
    let growth = (points.len() >= SAMPLES_MIN)
        .then(|| Growth::fit(&points))
        .transpose()?;
    let is_forecast = last.rows < rows;
    let whole = settings.work(readings, last.rounds);
    let (single_s, spread) = match &growth {
        Some(growth) if is_forecast => (growth.seconds(whole), growth.spread(whole)),
        _ => (last.seconds, 0.0),
    };
    let (parallel_fraction, fraction_from, fraction_refuted) = fraction(order, &last, ranks_max)?;
    let grown = |of: &dyn Fn(&Sample) -> f64| {
        let (begin, end) = ((first.rows, of(&first)), (last.rows, of(&last)));
        grow(begin, end, rows)
    };
    let times = last.exchange.times;
    let bytes = grown(&|sample| sample.exchange.times * sample.exchange.bytes) / times.max(1.0);
    Ok(Estimate {
        kernel: settings.kernel(),
        rows,
        growth,
        single_s,
        is_forecast,
        spread: spread.clamp(SPREAD_MIN, 1.0),
        parallel_fraction,
        fraction_from,
        fraction_refuted,
        exchange: Exchange { times, bytes },
        input_bytes: readings.bytes() as f64,
        output_bytes: grown(&|sample| sample.output_bytes),
        samples,
    })
}

/// Extrapolates a count that grows linearly with the rows, from that of two parts.
fn grow((first_rows, begin): (usize, f64), (last_rows, end): (usize, f64), rows: usize) -> f64 {
    if last_rows <= first_rows {
        return end;
    }
    let slope = (end - begin) / (last_rows - first_rows) as f64;
    (end + slope * (rows as f64 - last_rows as f64)).max(0.0)
}

/// A parallel fraction, its origin, and the one that it contradicts.
type Chosen = (f64, FractionFrom, Option<f64>);

/// Determines the parallel fraction of a part.
fn fraction(order: &Order, sample: &Sample, ranks_max: u32) -> Result<Chosen, Error> {
    let sections = |why: String| Ok((sample.shared_fraction, FractionFrom::Sections(why), None));
    if ranks_max < 2 {
        return sections("this board has one core".to_owned());
    }
    let part = Order::new(order.settings, order.readings.head(sample.rows))?;
    let mut points = vec![(1, sample.seconds)];
    for ranks in 2..=ranks_max {
        points.push((ranks, together_s(&part, ranks as usize)?));
    }
    match fit_fraction(&points) {
        Some(fit) => {
            let ranks = points.iter().map(|(ranks, _)| *ranks).collect();
            Ok(chosen(sample.shared_fraction, fit.parallel_fraction, ranks))
        }
        None => sections("the times on several ranks cannot be fitted".to_owned()),
    }
}

/// Chooses between the fraction of the sections and that of times on these numbers of ranks. Times count, unless the
/// two contradict each other: load of other programs changes the times of ranks, and hardly the parts of one rank's
/// time.
fn chosen(sections: f64, times: f64, ranks: Vec<u32>) -> Chosen {
    if fraction_contradiction(times, sections).is_none() {
        return (times, FractionFrom::Ranks(ranks), None);
    }
    let most = ranks.iter().max().copied().unwrap_or(1);
    let why = format!("times on up to {most} ranks contradict them, with {times:.3}");
    (sections, FractionFrom::Sections(why), Some(times))
}

/// Returns the longest computing time of the ranks; the median of several runs if they are short.
fn together_s(order: &Order, size: usize) -> Result<f64, Error> {
    let mut times: Vec<f64> = Vec::new();
    while times.is_empty() || (times.len() < REPEATS && times.iter().sum::<f64>() < SHORT_S) {
        let ranks = star(size, Some(PATIENCE)).map_err(lost)?;
        let ends: Vec<Result<f64, Failure>> = std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .into_iter()
                .enumerate()
                .map(|(rank, mut star)| {
                    scope.spawn(move || {
                        let mine = (rank == 0).then_some(order);
                        let begun = Instant::now();
                        let mut counted = Counted::new(&mut star);
                        super::run(&mut counted, &Watch::new(), mine)?;
                        Ok((begun.elapsed() - counted.traffic().time).as_secs_f64())
                    })
                })
                .collect();
            let gone = || Failure {
                rank: None,
                why: "a rank has ended in the middle".to_owned(),
            };
            let ended = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(gone())));
            ended.collect()
        });
        let times_of = ends
            .into_iter()
            .collect::<Result<Vec<f64>, Failure>>()
            .map_err(lost)?;
        times.push(times_of.into_iter().fold(0.0, f64::max));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

impl Estimate {
    /// The inputs that it gives.
    pub const INPUTS: [Input; 6] = [
        Input::SingleS,
        Input::ParallelFraction,
        Input::ExchangeTimes,
        Input::ExchangeBytes,
        Input::InputBytes,
        Input::OutputBytes,
    ];

    /// Returns why the parallel fraction says little, if so.
    #[must_use]
    pub fn fraction_remark(&self) -> Option<String> {
        let contradiction = self
            .fraction_refuted
            .and_then(|times| fraction_contradiction(times, self.parallel_fraction));
        contradiction.or_else(|| fraction_remark(self.single_s))
    }

    /// Puts the figures into a question, each with its origin. Earlier values of these figures are replaced.
    ///
    /// # Errors
    /// A figure is out of the advisor's range.
    pub fn give(&self, question: &mut Question) -> Result<(), Error> {
        let kernel = self.kernel;
        let count = self.samples.len();
        let last = self.samples.last().map_or(0, |sample| sample.rows);
        let error = self.growth.as_ref().map_or(0.0, |growth| growth.error_max);
        let single = if self.is_forecast {
            let percent = error * 100.0;
            format!(
                "forecast for {} readings from {kernel} on {count} parts up to {last}, fitted within {percent:.1} %",
                self.rows
            )
        } else {
            format!("{kernel} on this board with all {} readings", self.rows)
        };
        question.give_with_spread(
            Input::SingleS,
            self.single_s,
            Origin::Measured(single),
            self.spread,
        )?;
        let fraction = match &self.fraction_from {
            FractionFrom::Ranks(ranks) => {
                let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
                format!(
                    "{last} readings on {} ranks of this board",
                    ranks.join(", ")
                )
            }
            FractionFrom::Sections(why) => {
                format!("sections that are shared out, on one rank: {why}")
            }
        };
        let fraction = Origin::Measured(fraction);
        let spread = match self.fraction_refuted {
            Some(_) => FRACTION_SPREAD_MAX,
            None => Input::ParallelFraction.usual_spread(&fraction),
        };
        question.give_with_spread(
            Input::ParallelFraction,
            self.parallel_fraction,
            fraction,
            spread,
        )?;
        let mut count = |input: Input, value: f64, what: &str| {
            question.give(input, value, Origin::Stated(format!("counted: {what}")))
        };
        count(
            Input::ExchangeTimes,
            self.exchange.times,
            "operations of all ranks together",
        )?;
        count(Input::ExchangeBytes, self.exchange.bytes, "their mean size")?;
        count(Input::InputBytes, self.input_bytes, "readings of 8 bytes")?;
        count(
            Input::OutputBytes,
            self.output_bytes,
            "numbers of the answer",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advisor::{Privacy, advise};
    use crate::random::Random;

    #[test]
    fn the_fraction_of_a_tiny_job_has_a_remark() {
        let remark = fraction_remark(0.0123).expect("a remark");
        assert!(
            remark.starts_with("0.0123 s on one rank: below 0.1 s"),
            "{remark}"
        );
        assert_eq!(fraction_remark(FRACTION_S_MIN), None);
    }

    #[test]
    fn a_fraction_by_times_that_the_sections_contradict_is_not_taken_and_is_told() {
        let settings = Settings::Vibration {
            window: 64,
            step: 64,
        };
        let mut estimate = measure(&order(settings, 4_000), 0.0, 1, |_| ()).expect("measured");
        estimate.single_s = 10.0;
        for (times, sections, is_taken) in [
            (0.95, 0.997, true),
            (0.54, 0.997, false),
            (0.0, 0.997, false),
        ] {
            let chosen = chosen(sections, times, vec![1, 2]);
            let (fraction, from, refuted) = chosen;
            estimate.parallel_fraction = fraction;
            estimate.fraction_from = from;
            estimate.fraction_refuted = refuted;
            let mut question = Question::new("vibration");
            estimate.give(&mut question).expect("in range");
            let given = question.given[Input::ParallelFraction as usize].clone();
            let given = given.expect("given");
            let (value, spread) = if is_taken {
                (times, 0.1)
            } else {
                (sections, 1.0)
            };
            assert!((given.value - value).abs() < 1e-9, "{given:?}");
            assert!((given.spread - spread).abs() < 1e-9, "{given:?}");
            let remark = estimate.fraction_remark();
            assert_eq!(remark.is_none(), is_taken, "{remark:?}");
            let is_said = |text: String| text.contains(&format!("{times:.3}, the sections 0.997"));
            assert!(remark.is_none_or(is_said), "{times}");
        }
    }

    fn order(settings: Settings, rows: usize) -> Order {
        let mut random = Random::new(2);
        let readings = Readings {
            names: vec!["value".to_owned()],
            columns: vec![(0..rows).map(|_| random.normal()).collect()],
            ..Readings::default()
        };
        Order::new(settings, readings).expect("sound")
    }

    #[test]
    fn the_whole_is_measured_where_there_is_time_and_forecast_where_there_is_not() {
        let order = order(Settings::MatrixProfile { window: 16 }, 4_000);
        let mut seen = 0;
        let all = measure(&order, 1e6, 2, |_| seen += 1).expect("measured");
        assert!(!all.is_forecast && all.samples.len() == seen);
        assert_eq!(
            all.samples
                .last()
                .map(|sample| (sample.rows, sample.seconds)),
            Some((4_000, all.single_s))
        );
        // On a busy machine the sections contradict the times.
        let is_by_ranks = all.fraction_from == FractionFrom::Ranks(vec![1, 2]);
        assert_ne!(is_by_ranks, all.fraction_refuted.is_some(), "{all:?}");
        assert!((0.0..=1.0).contains(&all.parallel_fraction));
        let part = measure(&order, 0.0, 1, |_| ()).expect("measured");
        assert!(
            part.is_forecast && part.samples.len() == SAMPLES_MIN,
            "{part:?}"
        );
        assert!(matches!(part.fraction_from, FractionFrom::Sections(_)));
        // The whole is many times the largest part.
        assert_eq!(all.spread, SPREAD_MIN);
        assert!(part.spread > 0.3, "{part:?}");
        // Counts are exact, forecast or not: one broadcast of the series, two reductions of the profile.
        assert_eq!(
            (part.exchange.times, part.input_bytes),
            (all.exchange.times, 32_000.0)
        );
        assert!(
            (part.exchange.bytes - all.exchange.bytes).abs() < 1e-6,
            "{part:?}"
        );
        assert!((part.output_bytes - all.output_bytes).abs() < 1e-6);
        let predicted = predict_exchange(&order).expect("counted");
        assert_eq!(predicted.times, all.exchange.times);
        assert!(
            (predicted.bytes - all.exchange.bytes).abs() < 1e-6,
            "{predicted:?}"
        );
    }

    #[test]
    fn figures_are_given_with_where_they_come_from_and_suffice_for_boards() {
        let settings = Settings::KMeans {
            window: 16,
            step: 8,
            clusters: 3,
            rounds_max: 4,
            seed: 1,
        };
        let estimate = measure(&order(settings, 5_000), 1e6, 1, |_| ()).expect("measured");
        let mut question = Question::new("k-means");
        question.boards_max = 4;
        question.privacy = Privacy::Neighbours;
        estimate.give(&mut question).expect("in range");
        let missing = advise(&question)
            .expect_err("power is not known")
            .to_string();
        assert!(missing.starts_with("missing: board_active_w"), "{missing}");
        question.assume();
        let advice = advise(&question).expect("answered");
        let json = advice.json();
        let inputs = json["inputs"].as_array().expect("a list");
        let given = |name: &str| {
            inputs
                .iter()
                .find(|input| input["input"] == name)
                .expect("given")
        };
        assert!(
            given("single_s")["measured"]
                .as_str()
                .is_some_and(|text| text.contains("all 5000 readings"))
        );
        assert!(
            given("exchange_times")["stated"].is_string()
                && given("board_active_w")["assumed"].is_string()
        );
    }
}
