//! Features of vibration: the spectrum of each window, and from that the few numbers by which machines are judged.
//!
//! Rank 0 distributes the windows, each rank transforms its own, rank 0 collects the features: about a hundred bytes
//! for kilobytes of readings. The mean of a window is subtracted, and the window is weighted after Hann.

use super::communicator::{Communicator, Failure};
use super::readings::Readings;
use super::watch::Watch;
use super::windows::{deal, starts, take};
use realfft::RealFftPlanner;
use std::f64::consts::TAU;

/// Number of features of a window.
pub const FEATURES: usize = 12;

/// Their names. Frequencies are in hertz, or in cycles per reading if readings have no times.
pub const NAMES: [&str; FEATURES] = [
    "mean",
    "rms",
    "peak",
    "crest",
    "kurtosis",
    "frequency",
    "amplitude",
    "centroid",
    "band_1",
    "band_2",
    "band_3",
    "band_4",
];

/// Number of bands of equal width between 0 and half the rate of readings.
const BANDS: usize = 4;

/// Number of windows between two updates of the progress.
const LOOK: usize = 16;

/// Indices of the features that a summary uses.
const RMS: usize = 1;
const KURTOSIS: usize = 4;
const FREQUENCY: usize = 5;

/// Index of the other feature that is a frequency.
const CENTROID: usize = 7;

/// How windows are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of readings in a window.
    pub window: usize,
    /// Number of readings from one window's beginning to the next one's.
    pub step: usize,
}

/// Features of all windows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// First row of each window.
    pub starts: Vec<usize>,
    /// The features, for each window and each column.
    pub features: Vec<[f64; FEATURES]>,
}

impl Answer {
    /// Returns, for one column, the window with the greatest value of a feature, and the value.
    fn greatest(&self, columns: usize, column: usize, feature: usize) -> Option<(usize, f64)> {
        let values = self.features.iter().skip(column).step_by(columns.max(1));
        let mut best: Option<(usize, f64)> = None;
        for (window, features) in values.enumerate() {
            let value = features[feature];
            if best.is_none_or(|(_, most)| value > most) {
                best = Some((window, value));
            }
        }
        best
    }

    /// Returns the summary for a person, for one of `columns` columns.
    #[must_use]
    pub fn summary(&self, columns: usize, column: usize) -> Summary {
        let values = self.features.iter().skip(column).step_by(columns.max(1));
        let mut frequencies: Vec<f64> = values.map(|features| features[FREQUENCY]).collect();
        frequencies.sort_by(f64::total_cmp);
        let row = |(window, value): (usize, f64)| (self.starts[window], value);
        Summary {
            rms_max: self.greatest(columns, column, RMS).map(row),
            kurtosis_max: self.greatest(columns, column, KURTOSIS).map(row),
            frequency_median: frequencies.get(frequencies.len() / 2).copied(),
        }
    }
}

/// A summary for a person.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// First row and value of the window with the strongest vibration.
    pub rms_max: Option<(usize, f64)>,
    /// First row and value of the window with the sharpest knocks: a failing bearing knocks before it vibrates.
    pub kurtosis_max: Option<(usize, f64)>,
    /// Median over the windows of the strongest frequency.
    pub frequency_median: Option<f64>,
}

/// Runs the job on each rank. Rank 0 has the readings and gets the answer.
///
/// # Errors
/// The ranks no longer work together.
pub fn run(
    communicator: &mut dyn Communicator,
    watch: &Watch,
    settings: Settings,
    columns: usize,
    rate: f64,
    readings: Option<&Readings>,
) -> Result<Option<Answer>, Failure> {
    let Settings { window, step } = settings;
    let size = communicator.size();
    let starts = readings.map(|readings| starts(readings, window, step));
    let parts = readings.zip(starts.as_deref());
    let parts = parts.map(|(readings, starts)| deal(readings, starts, window, size));
    let part = communicator.scatter(parts)?;
    let dealt = take(&part, columns, window)?;
    drop(part);
    let features = watch.share(|| {
        let mut transform = Transform::new(window);
        let mut features = Vec::with_capacity(dealt.starts.len() * columns * FEATURES);
        for (at, &start) in dealt.starts.iter().enumerate() {
            for column in &dealt.columns {
                features.extend(transform.features(&column[start..start + window], rate));
            }
            if at % LOOK == 0 {
                watch.at(at, dealt.starts.len());
            }
        }
        features
    });
    watch.at(1, 1);
    let gathered = communicator.gather(&features)?;
    let (Some(parts), Some(starts)) = (gathered, starts) else {
        return Ok(None);
    };
    let values: Vec<f64> = parts.into_iter().flatten().collect();
    let (features, rest) = values.as_chunks::<FEATURES>();
    if !rest.is_empty() || features.len() != starts.len() * columns {
        return Err(Failure {
            rank: None,
            why: format!("{} windows came back of {}", features.len(), starts.len()),
        });
    }
    let mut features = features.to_vec();
    if let Some(readings) = readings {
        follow_own_steps(&mut features, &starts, columns, rate, readings);
    }
    Ok(Some(Answer { starts, features }))
}

/// Corrects frequencies that follow from `rate` where the stretch of a window has a step of its own. Rank 0 does it for
/// all windows, so that the answer is the same on any number of ranks.
fn follow_own_steps(
    features: &mut [[f64; FEATURES]],
    starts: &[usize],
    columns: usize,
    rate: f64,
    readings: &Readings,
) {
    for (start, features) in starts.iter().zip(features.chunks_mut(columns.max(1))) {
        if let Some(step_s) = readings.own_step_s(*start) {
            for one in features {
                one[FREQUENCY] /= rate * step_s;
                one[CENTROID] /= rate * step_s;
            }
        }
    }
}

/// One transform and its memory, reused for all windows.
struct Transform {
    plan: std::sync::Arc<dyn realfft::RealToComplex<f64>>,
    weights: Vec<f64>,
    input: Vec<f64>,
    output: Vec<realfft::num_complex::Complex<f64>>,
    scratch: Vec<realfft::num_complex::Complex<f64>>,
    squares: Vec<f64>,
}

impl Transform {
    fn new(window: usize) -> Self {
        let plan = RealFftPlanner::<f64>::new().plan_fft_forward(window);
        Self {
            weights: hann(window),
            input: plan.make_input_vec(),
            output: plan.make_output_vec(),
            scratch: plan.make_scratch_vec(),
            squares: vec![0.0; window / 2 + 1],
            plan,
        }
    }

    fn features(&mut self, values: &[f64], rate: f64) -> [f64; FEATURES] {
        let mean = mean(values);
        for ((place, value), weight) in self.input.iter_mut().zip(values).zip(&self.weights) {
            *place = (value - mean) * weight;
        }
        let lengths_fit =
            self.plan
                .process_with_scratch(&mut self.input, &mut self.output, &mut self.scratch);
        debug_assert!(lengths_fit.is_ok(), "the plan made the vectors");
        for (place, value) in self.squares.iter_mut().zip(&self.output) {
            *place = value.norm_sqr();
        }
        describe(values, mean, &self.squares, rate)
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns Hann's window, periodic.
fn hann(window: usize) -> Vec<f64> {
    let weight = |at: usize| 0.5 - 0.5 * (TAU * at as f64 / window as f64).cos();
    (0..window).map(weight).collect()
}

/// Returns the features of a window with this mean, from the squares of its spectrum's magnitudes from 0 to half the
/// rate.
fn describe(values: &[f64], mean: f64, squares: &[f64], rate: f64) -> [f64; FEATURES] {
    let count = values.len() as f64;
    let (mut second, mut fourth, mut peak) = (0.0, 0.0, 0.0_f64);
    for value in values {
        let square = (value - mean) * (value - mean);
        second += square;
        fourth += square * square;
        peak = peak.max((value - mean).abs());
    }
    second /= count;
    fourth /= count;
    let rms = second.sqrt();
    let ratio = |above: f64, below: f64| if below > 0.0 { above / below } else { 0.0 };
    // The mean was subtracted; the rest at frequency 0 comes from the window's weights.
    let (mut total, mut moment, mut strongest) = (0.0, 0.0, 0);
    let mut bands = [0.0; BANDS];
    let tones = squares.len() - 1;
    for (at, &square) in squares.iter().enumerate().skip(1) {
        total += square;
        moment += at as f64 * square;
        bands[(at - 1) * BANDS / tones] += square;
        if strongest == 0 || square > squares[strongest] {
            strongest = at;
        }
    }
    let per_tone = rate / count;
    let is_flat = total <= 0.0;
    let frequency = if is_flat {
        0.0
    } else {
        strongest as f64 * per_tone
    };
    // The weights of Hann's window have the sum count ÷ 2.
    let amplitude = squares[strongest].sqrt() * 4.0 / count;
    let [first, second_band, third, last] = bands.map(|band| ratio(band, total));
    [
        mean,
        rms,
        peak,
        ratio(peak, rms),
        ratio(fourth, second * second),
        frequency,
        if is_flat { 0.0 } else { amplitude },
        ratio(moment, total) * per_tone,
        first,
        second_band,
        third,
        last,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::together::alone_and_together;
    use proptest::prelude::*;

    /// The definition: one sum for each frequency.
    fn naive_squares(values: &[f64]) -> Vec<f64> {
        let (count, mean) = (values.len(), mean(values));
        let weights = hann(count);
        let square = |tone: usize| {
            let (mut real, mut imaginary) = (0.0, 0.0);
            for (at, value) in values.iter().enumerate() {
                // Modulo the window, so that the angle stays exact.
                let angle = TAU * ((at * tone) % count) as f64 / count as f64;
                real += (value - mean) * weights[at] * angle.cos();
                imaginary -= (value - mean) * weights[at] * angle.sin();
            }
            real * real + imaginary * imaginary
        };
        (0..=count / 2).map(square).collect()
    }

    #[test]
    fn a_tone_is_found_with_its_frequency_and_amplitude() {
        let tone = |row: usize| 3.0 + 2.0 * (TAU * 50.0 * row as f64 / 1_000.0).sin();
        let values: Vec<f64> = (0..400).map(tone).collect();
        let [
            mean,
            rms,
            peak,
            crest,
            kurtosis,
            frequency,
            amplitude,
            centroid,
            bands @ ..,
        ] = Transform::new(400).features(&values, 1_000.0);
        let near =
            |value: f64, wanted: f64| assert!((value - wanted).abs() < 1e-6, "{value} {wanted}");
        near(mean, 3.0);
        near(rms, 2.0_f64.sqrt());
        near(peak, 2.0);
        near(crest, 2.0_f64.sqrt());
        near(kurtosis, 1.5);
        near(frequency, 50.0);
        near(amplitude, 2.0);
        near(centroid, 50.0);
        near(bands[0], 1.0);
        near(bands[1], 0.0);
    }

    /// The rate is that of the mean step, 100 Hz; the stretches have 200 and 50 Hz.
    #[test]
    fn frequencies_follow_the_step_of_their_stretch() {
        let value = |row: usize| (TAU * row as f64 / 8.0).sin();
        let readings = Readings {
            names: vec!["value".to_owned()],
            columns: vec![(0..128).map(value).collect()],
            step_s: Some(0.01),
            steps_s: vec![0.005, 0.02],
            breaks: vec![64],
            ..Readings::default()
        };
        let settings = Settings {
            window: 64,
            step: 64,
        };
        let (alone, _) = alone_and_together(2, |star, watch| {
            let mine = (star.rank() == 0).then_some(&readings);
            run(star, watch, settings, 1, 100.0, mine)
        });
        for (features, rate) in alone.features.iter().zip([200.0, 50.0]) {
            assert!((features[FREQUENCY] - rate / 8.0).abs() < 1e-9, "{rate}");
            assert!((features[CENTROID] / rate - 0.125).abs() < 0.01, "{rate}");
        }
        assert_eq!(alone.starts, [0, 64]);
    }

    #[test]
    fn a_window_that_stands_still_has_no_tone() {
        let features = Transform::new(16).features(&[4.0; 16], 1.0);
        assert_eq!(
            features,
            [4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn spectra_match_the_definition(values in proptest::collection::vec(-100.0..100.0, 4..130)) {
            let mut transform = Transform::new(values.len());
            let features = transform.features(&values, 1.0);
            let naive = naive_squares(&values);
            let most = naive.iter().copied().fold(0.0, f64::max);
            for (found, wanted) in transform.squares.iter().zip(&naive) {
                prop_assert!((found - wanted).abs() <= 1e-9 * most, "{found} {wanted}");
            }
            let wanted = describe(&values, mean(&values), &naive, 1.0);
            for (at, (found, wanted)) in features.into_iter().zip(wanted).enumerate() {
                // If two tones are equally strong to the last bits, either may be the strongest.
                if at != FREQUENCY {
                    let error_max = 1e-6 * wanted.abs().max(1.0);
                    prop_assert!((found - wanted).abs() <= error_max, "{}: {found} {wanted}", NAMES[at]);
                }
            }
        }

        /// Bitwise: each window is transformed as a whole on one rank, with the same plan.
        #[test]
        fn the_answer_does_not_depend_on_the_number_of_ranks(
            rows in 8_usize..300, columns in 1_usize..3, window in 4_usize..40, step in 1_usize..40, size in 2_usize..7,
            seed in any::<u64>(),
        ) {
            let mut random = crate::random::Random::new(seed);
            let readings = Readings {
                names: (0..columns).map(|at| at.to_string()).collect(),
                columns: (0..columns).map(|_| (0..rows).map(|_| random.normal()).collect()).collect(),
                step_s: Some(0.01),
                steps_s: vec![0.01, 0.013],
                breaks: vec![rows / 3],
                ..Readings::default()
            };
            let settings = Settings { window, step };
            let (alone, together) = alone_and_together(size, |star, watch| {
                let mine = (star.rank() == 0).then_some(&readings);
                run(star, watch, settings, columns, 100.0, mine)
            });
            prop_assert_eq!(&alone.starts, &starts(&readings, window, step));
            prop_assert_eq!(alone.features.len(), alone.starts.len() * columns);
            let bits = |answer: &Answer| {
                let values = answer.features.iter().flatten();
                values.map(|value| value.to_bits()).collect::<Vec<_>>()
            };
            prop_assert_eq!(bits(&alone), bits(&together));
        }
    }
}
