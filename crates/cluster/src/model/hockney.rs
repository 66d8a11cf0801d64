//! The cost of a message: Hockney's line, α + m β, one for each protocol segment (eager, rendezvous, …), fitted to a
//! measured curve. R. W. Hockney, "The communication challenge for MPP", 1994.
//!
//! The fit uses least relative squares, so that small messages count as much as large ones. It keeps α and β at 0 or
//! above, and finds the breaks by dynamic programming. A further segment must justify its three parameters (Bayesian
//! information criterion).

use crate::Error;

/// Largest number of segments of a curve.
pub const SEGMENTS_MAX: usize = 4;

/// Largest number of points of a curve; the time of a fit grows with their square.
const POINTS_MAX: usize = 1_024;

/// Smallest number of points in a segment: a line through two points proves nothing.
const SEGMENT_POINTS_MIN: usize = 3;

/// Residuals below this are rounding errors, and do not justify a further segment.
const RELATIVE_FLOOR: f64 = 1e-4;

/// One measured point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Size of the message.
    pub bytes: f64,
    /// Time of one message.
    pub seconds: f64,
}

/// A line that applies from one size on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Smallest size that it applies to; the first segment also applies to smaller ones.
    pub from_bytes: f64,
    /// Time of an empty message, α.
    pub alpha_s: f64,
    /// Time of a further byte, β.
    pub beta_s_per_byte: f64,
    /// Number of measured points it was fitted to.
    pub points: usize,
    /// Median of |fitted ÷ measured − 1| over them.
    pub error_median: f64,
    /// Greatest of these.
    pub error_max: f64,
}

impl Segment {
    fn seconds(&self, bytes: f64) -> f64 {
        self.alpha_s + bytes * self.beta_s_per_byte
    }
}

/// The cost of a message as a function of its size.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    segments: Vec<Segment>,
}

impl Curve {
    /// Creates one line for all sizes, without a fit.
    ///
    /// # Errors
    /// A parameter is negative or not finite.
    pub fn line(alpha_s: f64, beta_s_per_byte: f64) -> Result<Self, Error> {
        for (what, value) in [("alpha", alpha_s), ("beta", beta_s_per_byte)] {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(Error::invalid(
                    what,
                    format!("is {value}, must be 0 or above"),
                ));
            }
        }
        let mut line = Self::free();
        for segment in &mut line.segments {
            segment.alpha_s = alpha_s;
            segment.beta_s_per_byte = beta_s_per_byte;
        }
        Ok(line)
    }

    /// Messages that cost nothing.
    #[must_use]
    pub fn free() -> Self {
        let segment = Segment {
            from_bytes: 0.0,
            alpha_s: 0.0,
            beta_s_per_byte: 0.0,
            points: 0,
            error_median: 0.0,
            error_max: 0.0,
        };
        let segments = vec![segment];
        Self { segments }
    }

    /// Fits at most `segments_max` segments to a measured curve. Points may be in any order; sizes may repeat.
    ///
    /// # Errors
    /// Fewer than three points, too many, or one whose size is negative or whose time is not above 0.
    pub fn fit(points: &[Point], segments_max: usize) -> Result<Self, Error> {
        if !(SEGMENT_POINTS_MIN..=POINTS_MAX).contains(&points.len()) {
            let wrong = format!(
                "has {} points, must have {SEGMENT_POINTS_MIN} to {POINTS_MAX}",
                points.len()
            );
            return Err(Error::invalid("curve", wrong));
        }
        for point in points {
            let is_time = point.seconds > 1e-12 && point.seconds < 1e9;
            if !(point.bytes >= 0.0 && point.bytes < 1e18 && is_time) {
                let wrong = format!(
                    "has a point of {} bytes in {} s",
                    point.bytes, point.seconds
                );
                return Err(Error::invalid("curve", wrong));
            }
        }
        let mut sorted = points.to_vec();
        sorted.sort_by(|a, b| {
            a.bytes
                .total_cmp(&b.bytes)
                .then(a.seconds.total_cmp(&b.seconds))
        });
        let breaks = best_breaks(&sorted, segments_max.clamp(1, SEGMENTS_MAX));
        let ends = breaks.iter().skip(1).copied().chain([sorted.len()]);
        let segments = breaks.iter().zip(ends).map(|(&start, end)| {
            let part = &sorted[start..end];
            let line = Line::fit(part);
            let mut errors: Vec<f64> = part.iter().map(|point| line.error(point).abs()).collect();
            errors.sort_by(f64::total_cmp);
            Segment {
                from_bytes: if start == 0 { 0.0 } else { part[0].bytes },
                alpha_s: line.alpha,
                beta_s_per_byte: line.beta,
                points: part.len(),
                error_median: crate::statistics::quantile_sorted(&errors, 0.5),
                error_max: errors.last().copied().unwrap_or(0.0),
            }
        });
        let segments = segments.collect();
        Ok(Self { segments })
    }

    /// Returns its segments, by size.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the segment that messages of a size are in.
    #[must_use]
    pub fn segment(&self, bytes: f64) -> &Segment {
        // The first one also applies to smaller messages; a curve has at least one segment.
        let later = self.segments.iter().skip(1).rev();
        let mut reached = later.filter(|segment| segment.from_bytes <= bytes);
        reached.next().unwrap_or(&self.segments[0])
    }

    /// Returns the time of one message.
    #[must_use]
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.segment(bytes).seconds(bytes)
    }

    /// Returns the same curve with both parameters of each segment times a factor.
    #[must_use]
    pub fn scaled(&self, alpha_factor: f64, beta_factor: f64) -> Self {
        let mut segments = self.segments.clone();
        for segment in &mut segments {
            segment.alpha_s *= alpha_factor;
            segment.beta_s_per_byte *= beta_factor;
        }
        Self { segments }
    }
}

/// Returns α and β of the line with the least relative squares, both at 0 or above; points are in the order of their
/// sizes.
pub(super) fn least_relative(points: &[Point]) -> (f64, f64) {
    let line = Line::fit(points);
    (line.alpha, line.beta)
}

/// A fitted line and its sum of relative squares.
#[derive(Clone, Copy)]
struct Line {
    alpha: f64,
    beta: f64,
}

impl Line {
    /// Fits with least relative squares, with α and β at 0 or above.
    fn fit(points: &[Point]) -> Self {
        // In units of the part's own size, so that no sum loses the small values.
        let scale = points.last().map_or(1.0, |point| point.bytes.max(1.0));
        let (mut ww, mut wx, mut xx, mut w, mut x) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for point in points {
            let (one, size) = (1.0 / point.seconds, point.bytes / scale / point.seconds);
            ww += one * one;
            wx += one * size;
            xx += size * size;
            w += one;
            x += size;
        }
        let determinant = ww * xx - wx * wx;
        let (mut alpha, mut beta) = (
            (w * xx - x * wx) / determinant,
            (x * ww - w * wx) / determinant,
        );
        let is_flat = determinant <= 1e-12 * ww * xx || !alpha.is_finite() || !beta.is_finite();
        if is_flat || beta < 0.0 {
            (alpha, beta) = (w / ww, 0.0);
        } else if alpha < 0.0 {
            (alpha, beta) = (0.0, x / xx);
        }
        Self {
            alpha,
            beta: beta / scale,
        }
    }

    /// Returns fitted ÷ measured − 1.
    fn error(&self, point: &Point) -> f64 {
        (self.alpha + self.beta * point.bytes) / point.seconds - 1.0
    }

    fn squares(&self, points: &[Point]) -> f64 {
        points.iter().map(|point| self.error(point).powi(2)).sum()
    }
}

/// Returns the index of each segment's first point. All points of one size are in one segment.
fn best_breaks(points: &[Point], segments_max: usize) -> Vec<usize> {
    let count = points.len();
    let may_start = |at: usize| at == 0 || points[at].bytes > points[at - 1].bytes;
    let starts: Vec<usize> = (0..count).filter(|&at| may_start(at)).collect();
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([count]).collect();
    let cost = |start: usize, end: usize| {
        if end - start < SEGMENT_POINTS_MIN {
            return f64::INFINITY;
        }
        Line::fit(&points[start..end]).squares(&points[start..end])
    };
    // least[s][e]: least squares of the points before ends[e] in s + 1 segments, and where the last one starts.
    let mut least: Vec<Vec<(f64, usize)>> =
        vec![ends.iter().map(|&end| (cost(0, end), 0)).collect()];
    for segments in 1..segments_max {
        let before = &least[segments - 1];
        let row = ends.iter().enumerate().map(|(last, &end)| {
            let splits =
                (1..=last).map(|first| (before[first - 1].0 + cost(starts[first], end), first));
            splits.fold((f64::INFINITY, 0), |best, split| {
                if split.0 < best.0 { split } else { best }
            })
        });
        let row = row.collect();
        least.push(row);
    }
    let last = ends.len() - 1;
    let criterion = |segments: usize, squares: f64| {
        let mean = (squares / count as f64).max(RELATIVE_FLOOR * RELATIVE_FLOOR);
        let parameters = (3 * segments - 1) as f64;
        count as f64 * mean.ln() + parameters * (count as f64).ln()
    };
    let mut best = (f64::INFINITY, 1);
    for segments in 1..=segments_max {
        let squares = least[segments - 1][last].0;
        if squares.is_finite() && criterion(segments, squares) < best.0 {
            best = (criterion(segments, squares), segments);
        }
    }
    let mut breaks = Vec::new();
    let mut at = last;
    for segments in (0..best.1).rev() {
        let first = least[segments][at].1;
        breaks.push(starts[first]);
        at = first.saturating_sub(1);
    }
    breaks.reverse();
    breaks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes() -> impl Iterator<Item = f64> {
        (2..=22).map(|power| f64::from(1_u32 << power))
    }

    fn two_protocols(bytes: f64) -> f64 {
        if bytes <= 16_384.0 {
            10e-6 + bytes * 1e-9
        } else {
            150e-6 + bytes / 122e6
        }
    }

    #[test]
    fn segments_are_found_where_one_line_fits_badly() {
        let points: Vec<Point> = sizes()
            .map(|bytes| Point {
                bytes,
                seconds: two_protocols(bytes),
            })
            .collect();
        let one = Curve::fit(&points, 1).expect("a curve");
        assert!(one.segments()[0].error_max > 0.3, "{one:?}");
        let fitted = Curve::fit(&points, SEGMENTS_MAX).expect("a curve");
        let [eager, rendezvous] = fitted.segments() else {
            panic!("{fitted:?}");
        };
        assert!(
            (eager.alpha_s / 10e-6 - 1.0).abs() < 1e-6 && eager.error_max < 1e-9,
            "{eager:?}"
        );
        assert_eq!(rendezvous.from_bytes, 32_768.0);
        assert!(
            (rendezvous.beta_s_per_byte * 122e6 - 1.0).abs() < 1e-6,
            "{rendezvous:?}"
        );
        assert!((fitted.seconds(1e6) / two_protocols(1e6) - 1.0).abs() < 1e-6);
        assert!((fitted.seconds(0.0) / 10e-6 - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_single_line_stays_one_segment_under_noise() {
        let mut random = crate::random::Random::new(7);
        let points: Vec<Point> = sizes()
            .map(|bytes| Point {
                bytes,
                seconds: (60e-6 + bytes / 12e6) * (1.0 + 0.03 * random.normal()),
            })
            .collect();
        let fitted = Curve::fit(&points, SEGMENTS_MAX).expect("a curve");
        assert_eq!(fitted.segments().len(), 1, "{fitted:?}");
        assert!(fitted.segments()[0].error_median < 0.05);
    }

    #[test]
    fn malformed_curves_are_refused() {
        let point = |bytes, seconds| Point { bytes, seconds };
        let good = [point(1.0, 1.0), point(2.0, 1.0), point(3.0, 1.0)];
        assert!(Curve::fit(&good[..2], 1).is_err());
        for wrong in [
            point(-1.0, 1.0),
            point(1.0, 0.0),
            point(1.0, f64::NAN),
            point(f64::INFINITY, 1.0),
        ] {
            assert!(
                Curve::fit(&[good[0], good[1], wrong], 1).is_err(),
                "{wrong:?}"
            );
        }
        assert!(Curve::line(-1.0, 0.0).is_err() && Curve::line(0.0, f64::NAN).is_err());
    }

    proptest! {
        #[test]
        fn a_fit_is_finite_and_not_negative(
            points in proptest::collection::vec((0.0..1e7, 1e-7..10.0), 3..40),
            segments in 1_usize..6,
        ) {
            let points: Vec<Point> = points.into_iter().map(|(bytes, seconds)| Point { bytes, seconds }).collect();
            let curve = Curve::fit(&points, segments).expect("a curve");
            prop_assert_eq!(curve.segments().iter().map(|segment| segment.points).sum::<usize>(), points.len());
            for segment in curve.segments() {
                prop_assert!(segment.alpha_s >= 0.0 && segment.beta_s_per_byte >= 0.0);
                prop_assert!(segment.alpha_s.is_finite() && segment.beta_s_per_byte.is_finite());
                prop_assert!(segment.points >= 3);
            }
        }

        #[test]
        fn a_fit_recovers_the_line_of_a_link(alpha in 1e-7..1e-2, rate in 1e5..1e10) {
            let points: Vec<Point> =
                sizes().map(|bytes| Point { bytes, seconds: alpha + bytes / rate }).collect();
            let curve = Curve::fit(&points, SEGMENTS_MAX).expect("a curve");
            for point in &points {
                prop_assert!((curve.seconds(point.bytes) / point.seconds - 1.0).abs() < 1e-3);
            }
        }
    }
}
