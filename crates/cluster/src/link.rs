//! What a message between boards costs, as the advisor takes it: a curve fitted to the round trips of a result file.

use crate::Error;
use crate::advisor::{Input, Origin, Question};
use crate::error::excerpt;
use crate::model::{Curve, Point, Segment};
use crate::results::{Benchmark, ResultFile, Row, Transport};

/// Largest number of segments: eager, rendezvous, and one more for a library that changes its algorithm.
pub const SEGMENTS: usize = 3;

/// Smallest number of sizes: points of fewer sizes determine no line that could be wrong.
const SIZES_MIN: usize = 3;

/// Largest error of a segment, |fitted ÷ measured − 1|, for an advice: a line that is off by half says nothing.
pub const ERROR_MAX: f64 = 0.5;

/// Largest part of a run's label, in bytes, in the origin of a figure: a file of figures takes 256 bytes of origin.
const LABEL_BYTES_MAX: usize = 80;

/// The fitted curve of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkCurve {
    label: String,
    curve: Curve,
    /// The smallest and the largest size that was measured.
    bytes_min: f64,
    bytes_max: f64,
}

impl LinkCurve {
    /// The inputs that it gives.
    pub const INPUTS: [Input; 2] = [Input::MessageAlphaS, Input::MessageBytesPerS];

    /// Fits a curve to the round trips over a network. A message takes half of a round trip.
    ///
    /// # Errors
    /// The run has round trips of fewer than three sizes over a network.
    pub fn fit(file: &ResultFile) -> Result<Self, Error> {
        let mut label = excerpt(&file.header.label);
        while label.len() > LABEL_BYTES_MAX {
            label.pop();
        }
        let mut points = Vec::new();
        for row in &file.rows {
            let Row::Benchmark(row) = row else { continue };
            if row.benchmark == Benchmark::Roundtrip && row.transport == Transport::Network {
                points.push(Point {
                    bytes: row.bytes as f64,
                    seconds: row.median_us()?.value / 2.0 * 1e-6,
                });
            }
        }
        let mut sizes: Vec<f64> = points.iter().map(|point| point.bytes).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        if sizes.len() < SIZES_MIN {
            let wrong = format!(
                "has round trips of {} sizes over a network, must have {SIZES_MIN} or more",
                sizes.len()
            );
            return Err(Error::invalid(format!("run {label}"), wrong));
        }
        let curve = Curve::fit(&points, SEGMENTS)?;
        Ok(Self {
            label,
            curve,
            bytes_min: sizes[0],
            bytes_max: sizes[sizes.len() - 1],
        })
    }

    /// Returns the curve.
    #[must_use]
    pub fn curve(&self) -> &Curve {
        &self.curve
    }

    /// Checks that messages of some size have a usable line.
    ///
    /// # Errors
    /// The error of each segment is above [`ERROR_MAX`].
    pub fn check(&self) -> Result<(), Error> {
        let mut segments = self.curve.segments().iter();
        if segments.any(|segment| segment.error_max <= ERROR_MAX) {
            return Ok(());
        }
        let wrong = format!(
            "has no usable line: for each size of messages it is off by more than {:.0} %; measure again without \
             --samples, and more sizes",
            ERROR_MAX * 100.0
        );
        Err(Error::invalid(format!("run {}", self.label), wrong))
    }

    /// Whether messages of some size have no usable line.
    #[must_use]
    pub fn has_unusable(&self) -> bool {
        let mut segments = self.curve.segments().iter();
        segments.any(|segment| segment.error_max > ERROR_MAX)
    }

    /// Checks that messages of about this size have a usable line: of this size, of half of it or of twice of it.
    ///
    /// # Errors
    /// The error of each of these segments is above [`ERROR_MAX`].
    pub fn check_near(&self, bytes: f64) -> Result<(), Error> {
        let near = [bytes / 2.0, bytes * 2.0];
        match near.iter().any(|bytes| self.usable(*bytes).is_ok()) {
            true => Ok(()),
            false => self.usable(bytes).map(|_| ()),
        }
    }

    /// Returns the segment of messages of a size.
    fn usable(&self, bytes: f64) -> Result<&Segment, Error> {
        let segment = self.curve.segment(bytes);
        if segment.error_max <= ERROR_MAX {
            return Ok(segment);
        }
        let wrong = format!(
            "has no usable line for messages of {bytes} bytes: it is off by up to {:.0} %, at most {:.0} % is used; \
             measure again without --samples, and more sizes near it",
            segment.error_max * 100.0,
            ERROR_MAX * 100.0
        );
        Err(Error::invalid(format!("run {}", self.label), wrong))
    }

    /// Gives a question the parameters of the segment that its messages are in, with the segment's greatest error as
    /// the spread. Below the smallest and above the largest measured size nothing is known, and the spread is 1.
    /// Without the size of the messages it gives nothing: the answer then names that size as missing, if it needs it.
    ///
    /// # Errors
    /// The error of the segment is above [`ERROR_MAX`].
    pub fn give(&self, question: &mut Question) -> Result<(), Error> {
        let Some(bytes) = &question.given[Input::ExchangeBytes as usize] else {
            return Ok(());
        };
        let segment = self.usable(bytes.value)?;
        let beyond = if bytes.value < self.bytes_min {
            Some(("below", self.bytes_min))
        } else if bytes.value > self.bytes_max {
            Some(("above", self.bytes_max))
        } else {
            None
        };
        let mut by = format!(
            "round trips of {} from {} bytes on, {} sizes within {:.1} %",
            self.label,
            segment.from_bytes,
            segment.points,
            segment.error_max * 100.0
        );
        if let Some((side, bytes)) = beyond {
            by.push_str(&format!("; none {side} {bytes} bytes was measured"));
        }
        let figures = [
            (Input::MessageAlphaS, segment.alpha_s),
            // A flat segment has no rate of its own: the greatest one adds nothing to alpha.
            (Input::MessageBytesPerS, 1.0 / segment.beta_s_per_byte),
        ];
        for (input, value) in figures {
            let (least, most) = input.range();
            let origin = Origin::Measured(by.clone());
            let spread = if beyond.is_some() {
                1.0
            } else {
                segment.error_max.min(1.0)
            };
            question.give_with_spread(input, value.clamp(least, most), origin, spread)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advisor::question_text;
    use crate::results::{BenchmarkRow, Stopped};

    /// The golden file's header, with these round trips in microseconds.
    fn file(transport: Transport, points: &[(u64, f64)]) -> ResultFile {
        let golden = include_bytes!("../tests/golden/result-v1.jsonl");
        let mut file = ResultFile::parse(golden).expect("a result file");
        file.header.label = "pair".to_owned();
        let row = |&(bytes, us): &(u64, f64)| {
            Row::Benchmark(BenchmarkRow {
                benchmark: Benchmark::Roundtrip,
                ranks: 2,
                transport,
                bytes,
                iterations: 10,
                samples_us: vec![us; 3],
                starts: Vec::new(),
                stopped: Stopped::Fixed,
            })
        };
        file.rows = points.iter().map(row).collect();
        file
    }

    fn question(exchange_bytes: f64) -> Question {
        let mut question = Question::new("job");
        let counted = Origin::Stated("counted".to_owned());
        question
            .give(Input::ExchangeBytes, exchange_bytes, counted)
            .expect("in range");
        question
    }

    /// Eager messages of 10 us and 1 GB/s up to 16 KiB, then 150 us and 122 MB/s; there and back.
    fn two_protocols(bytes: u64) -> (u64, f64) {
        let (alpha_us, rate) = if bytes <= 16_384 {
            (10.0, 1e9)
        } else {
            (150.0, 122e6)
        };
        (bytes, 2.0 * (alpha_us + bytes as f64 / rate * 1e6))
    }

    #[test]
    fn a_question_gets_the_parameters_of_the_segment_its_messages_are_in() {
        let points: Vec<_> = (2..=22).map(|power| two_protocols(1 << power)).collect();
        let link = LinkCurve::fit(&file(Transport::Network, &points)).expect("a curve");
        for (bytes, alpha_s, rate) in [(4_096.0, 10e-6, 1e9), (1e6, 150e-6, 122e6)] {
            let mut question = question(bytes);
            link.give(&mut question).expect("in range");
            for (input, value) in [
                (Input::MessageAlphaS, alpha_s),
                (Input::MessageBytesPerS, rate),
            ] {
                let given = question.given[input as usize].as_ref().expect("given");
                assert!((given.value / value - 1.0).abs() < 1e-6, "{given:?}");
                assert!(given.spread < 1e-6, "{given:?}");
                assert!(
                    matches!(&given.origin, Origin::Measured(by) if by.starts_with("round trips of pair from ")),
                    "{given:?}"
                );
            }
        }
        // Messages of this size were not measured.
        for (bytes, said) in [
            (3.0, "none below 4 bytes was measured"),
            (1e8, "none above 4194304 bytes was measured"),
        ] {
            let mut beyond = question(bytes);
            link.give(&mut beyond).expect("in range");
            for input in [Input::MessageAlphaS, Input::MessageBytesPerS] {
                let given = beyond.given[input as usize].as_ref().expect("given");
                assert_eq!(given.spread, 1.0, "{given:?}");
                assert!(
                    matches!(&given.origin, Origin::Measured(by) if by.ends_with(said)),
                    "{given:?}"
                );
            }
        }
        // Without the size of the messages there is no segment.
        let mut question = Question::new("job");
        link.give(&mut question).expect("nothing to give");
        assert_eq!(question, Question::new("job"));
    }

    #[test]
    fn the_spread_is_the_residual_and_a_flat_segment_has_a_rate() {
        let points = [(4, 20.0), (8, 22.0), (16, 20.0)];
        let link = LinkCurve::fit(&file(Transport::Network, &points)).expect("a curve");
        let [segment] = link.curve().segments() else {
            panic!("{link:?}");
        };
        assert!(segment.error_max > 0.03, "{segment:?}");
        let mut question = question(8.0);
        link.give(&mut question).expect("in range");
        let given = |input: Input| question.given[input as usize].clone().expect("given");
        assert_eq!(given(Input::MessageAlphaS).spread, segment.error_max);
        assert!(given(Input::MessageBytesPerS).value <= Input::MessageBytesPerS.range().1);
    }

    #[test]
    fn a_line_that_is_off_by_more_than_half_is_no_measured_cost() {
        let wild = [(4, 100.0), (8, 10.0), (16, 400.0), (32, 20.0)];
        let link = LinkCurve::fit(&file(Transport::Network, &wild)).expect("a curve");
        assert!(link.curve().segment(8.0).error_max > ERROR_MAX, "{link:?}");
        // Four points are one segment.
        link.check().expect_err("refused");
        let said = link
            .give(&mut question(8.0))
            .expect_err("refused")
            .to_string();
        for wanted in ["messages of 8 bytes", "at most 50 %", "without --samples"] {
            assert!(said.contains(wanted), "{wanted}: {said}");
        }
    }

    #[test]
    fn only_a_size_far_from_each_usable_line_is_refused_before_a_measurement() {
        let mut points: Vec<_> = (2..=14).map(|power| two_protocols(1 << power)).collect();
        let good = LinkCurve::fit(&file(Transport::Network, &points)).expect("a curve");
        assert!(!good.has_unusable(), "{good:?}");
        // Four points are one segment.
        points.extend([(32_768, 1.0), (65_536, 0.1), (131_072, 4.0), (262_144, 0.2)]);
        let link = LinkCurve::fit(&file(Transport::Network, &points)).expect("a curve");
        assert_eq!(link.curve().segments().len(), 2, "{link:?}");
        link.check().expect("some sizes have a line");
        assert!(link.has_unusable(), "{link:?}");
        for bytes in [8.0, 1_024.0, 32_768.0] {
            link.check_near(bytes).expect("a usable line is near");
        }
        link.check_near(200_000.0).expect_err("none is near");
    }

    #[test]
    fn a_question_with_a_run_of_a_long_label_can_be_written() {
        let mut file = file(Transport::Network, &[4, 8, 16].map(two_protocols));
        file.header.label = "\u{1f9ea}".repeat(200);
        let link = LinkCurve::fit(&file).expect("a curve");
        let mut question = question(1e8);
        link.give(&mut question).expect("in range");
        question_text(&question).expect("within the limits");
    }

    #[test]
    fn runs_that_determine_no_line_are_refused() {
        let three: Vec<_> = [4, 8, 16].map(two_protocols).to_vec();
        let repeated = [two_protocols(4); 5];
        for (transport, points, sizes) in [
            (Transport::Memory, &three[..], 0),
            (Transport::Network, &three[..2], 2),
            (Transport::Network, &repeated[..], 1),
        ] {
            let error = LinkCurve::fit(&file(transport, points)).expect_err("no line");
            let wanted = format!(
                "run pair has round trips of {sizes} sizes over a network, must have 3 or more"
            );
            assert_eq!(error.to_string(), wanted);
        }
    }
}
