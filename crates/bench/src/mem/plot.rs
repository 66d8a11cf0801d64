//! Panels side by side that share one vertical axis: a value by request size or similar, with a curve for each system.

use crate::paper::chart::{Anchor, Color, FAINT, GRID, INK, SIZE, Shape, line, text, time_text};

const TOP: f64 = 104.0;
const BOTTOM: f64 = 356.0;
/// Left edge of the first panel, right edge of the last one, and the gap between two panels.
const EDGES: (f64, f64) = (76.0, SIZE.0 - 24.0);
const GAP: f64 = 26.0;
const LEGEND_Y: f64 = 436.0;
/// Width of one letter in the legend, and of a curve's sample.
const LETTER: f64 = 7.4;
const SAMPLE: f64 = 44.0;
/// Maximum number of grid lines of a linear axis.
const RULES_MAX: f64 = 6.0;

/// How values are shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// From 0, in MiB/s, written as GiB/s.
    Throughput,
    /// Shares of one, up to 100 %, from 0, or for negative values from the multiple of 25 % at or below the least one.
    Share,
    /// Nanoseconds, on a logarithmic scale.
    Time,
}

/// One curve of a panel, with an optional value for each label.
pub(crate) struct Curve {
    pub(crate) label: &'static str,
    pub(crate) color: Color,
    pub(crate) dashed: bool,
    pub(crate) values: Vec<Option<f64>>,
}

/// One panel.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) curves: Vec<Curve>,
}

/// The properties that all panels share.
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    pub(crate) subtitle: &'a str,
    pub(crate) scale: Scale,
    /// Labels below the horizontal axis, at equal distances.
    pub(crate) labels: &'a [String],
    /// The unit of the labels.
    pub(crate) horizontal: &'a str,
}

/// Maps values to heights.
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
}

impl Axis {
    fn around(scale: Scale, panels: &[Panel]) -> Self {
        let curves = panels.iter().flat_map(|panel| &panel.curves);
        let values: Vec<f64> = curves
            .flat_map(|curve| curve.values.iter().copied().flatten())
            .collect();
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let (from, to) = match scale {
            Scale::Share => ((least.min(0.0) * 4.0).floor() / 4.0, 1.0),
            Scale::Throughput => {
                let step = step(most.max(1.0));
                (0.0, (most.max(1.0) / step).ceil() * step)
            }
            Scale::Time => {
                let from = least.clamp(1.0, 1e12).log10().floor();
                (from, most.clamp(10.0, 1e13).log10().ceil().max(from + 1.0))
            }
        };
        Self { scale, from, to }
    }

    fn y(&self, value: f64) -> f64 {
        let value = match self.scale {
            Scale::Time => value.max(1.0).log10(),
            Scale::Throughput | Scale::Share => value,
        };
        let share = ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        BOTTOM - share * (BOTTOM - TOP)
    }

    /// Returns the values of the grid lines, with their labels.
    fn rules(&self) -> Vec<(f64, String)> {
        let steps = |step: f64| (0..=((self.to - self.from) / step).round() as u32).map(f64::from);
        match self.scale {
            Scale::Share => steps(0.25)
                .map(|count| self.from + count * 0.25)
                .map(|share| (share, format!("{} %", share * 100.0)))
                .collect(),
            Scale::Throughput => {
                let step = step(self.to);
                let written = |count: f64| {
                    let value = count * step;
                    (value, format!("{} GiB/s", value / 1024.0))
                };
                steps(step).map(written).collect()
            }
            Scale::Time => steps(1.0)
                .map(|count| {
                    let ns = 10_f64.powf(self.from + count);
                    (ns, time_text(ns))
                })
                .collect(),
        }
    }
}

/// Returns the distance of the grid lines: 1, 2 or 5 times a power of ten of GiB/s, so that there are not too many.
fn step(most: f64) -> f64 {
    let mut power = 1024.0 / 1000.0;
    loop {
        for factor in [1.0, 2.0, 5.0] {
            if most / (power * factor) <= RULES_MAX {
                return power * factor;
            }
        }
        power *= 10.0;
    }
}

/// Draws panels.
pub(crate) fn panels(frame: &Frame<'_>, panels: &[Panel]) -> Vec<Shape> {
    let axis = Axis::around(frame.scale, panels);
    let mut shapes = vec![Shape::Text {
        x: EDGES.0,
        y: 30.0,
        anchor: Anchor::Start,
        text: frame.title.to_owned(),
        color: INK,
        large: true,
    }];
    shapes.push(text(EDGES.0, 52.0, Anchor::Start, frame.subtitle, FAINT));
    let count = panels.len().max(1) as f64;
    let width = (EDGES.1 - EDGES.0 - GAP * (count - 1.0)) / count;
    for (place, panel) in panels.iter().enumerate() {
        let left = EDGES.0 + place as f64 * (width + GAP);
        one(
            &mut shapes,
            frame,
            &axis,
            panel,
            (left, left + width),
            place == 0,
        );
    }
    if let Some(panel) = panels.first() {
        legend(&mut shapes, &panel.curves);
    }
    shapes
}

fn one(
    shapes: &mut Vec<Shape>,
    frame: &Frame<'_>,
    axis: &Axis,
    panel: &Panel,
    (left, right): (f64, f64),
    is_first: bool,
) {
    shapes.push(text(
        left,
        TOP - 14.0,
        Anchor::Start,
        panel.title.clone(),
        INK,
    ));
    for (value, label) in axis.rules() {
        let y = axis.y(value);
        shapes.push(line(vec![(left, y), (right, y)], GRID, 1.0));
        if is_first {
            shapes.push(text(left - 8.0, y + 5.0, Anchor::End, label, INK));
        }
    }
    let distance = (right - left) / frame.labels.len().max(1) as f64;
    let x = |place: usize| left + (place as f64 + 0.5) * distance;
    for (place, label) in frame.labels.iter().enumerate() {
        shapes.push(text(
            x(place),
            BOTTOM + 20.0,
            Anchor::Middle,
            label.clone(),
            INK,
        ));
    }
    let middle = f64::midpoint(left, right);
    shapes.push(text(
        middle,
        BOTTOM + 42.0,
        Anchor::Middle,
        frame.horizontal,
        FAINT,
    ));
    let corner = vec![(left, TOP), (left, BOTTOM), (right, BOTTOM)];
    shapes.push(line(corner, INK, 1.2));
    for curve in &panel.curves {
        let values = curve.values.iter().enumerate();
        let points: Vec<(f64, f64)> = values
            .filter_map(|(place, value)| Some((x(place), axis.y((*value)?))))
            .collect();
        for (x, y) in points.iter().copied() {
            shapes.push(line(vec![(x - 2.5, y), (x + 2.5, y)], curve.color, 5.0));
        }
        shapes.push(Shape::Line {
            points,
            color: curve.color,
            width: 2.2,
            dashed: curve.dashed,
        });
    }
}

fn legend(shapes: &mut Vec<Shape>, curves: &[Curve]) {
    let mut x = EDGES.0;
    for curve in curves {
        shapes.push(Shape::Line {
            points: vec![(x, LEGEND_Y - 5.0), (x + SAMPLE - 10.0, LEGEND_Y - 5.0)],
            color: curve.color,
            width: 2.2,
            dashed: curve.dashed,
        });
        shapes.push(text(x + SAMPLE, LEGEND_Y, Anchor::Start, curve.label, INK));
        x += SAMPLE + curve.label.chars().count() as f64 * LETTER + 26.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(values: &[f64]) -> Panel {
        Panel {
            title: "a panel".to_owned(),
            curves: vec![Curve {
                label: "a system",
                color: INK,
                dashed: false,
                values: values.iter().copied().map(Some).collect(),
            }],
        }
    }

    #[test]
    fn axes_reach_beyond_all_values_by_round_steps() {
        let axis = Axis::around(Scale::Throughput, &[panel(&[1000.0]), panel(&[23_000.0])]);
        assert_eq!((axis.from, axis.to), (0.0, 25.0 * 1024.0));
        let rules: Vec<_> = axis.rules().into_iter().map(|(_, text)| text).collect();
        assert_eq!(
            rules,
            [
                "0 GiB/s", "5 GiB/s", "10 GiB/s", "15 GiB/s", "20 GiB/s", "25 GiB/s"
            ]
        );
        assert_eq!(axis.y(0.0), BOTTOM);
        assert_eq!(axis.y(25.0 * 1024.0), TOP);
        let axis = Axis::around(Scale::Time, &[panel(&[2_000.0, 400_000_000.0])]);
        assert_eq!((axis.from, axis.to), (3.0, 9.0));
        assert_eq!(axis.rules()[0].1, "1 µs");
        let axis = Axis::around(Scale::Share, &[panel(&[0.5])]);
        assert_eq!(axis.rules()[4].1, "100 %");
        let axis = Axis::around(Scale::Share, &[panel(&[0.5, -0.3])]);
        let rules: Vec<_> = axis.rules().into_iter().map(|(_, label)| label).collect();
        let expected = ["-50 %", "-25 %", "0 %", "25 %", "50 %", "75 %", "100 %"];
        assert_eq!(rules, expected);
        assert!(axis.y(-0.3) < BOTTOM && axis.y(-0.3) > axis.y(0.0));
    }

    #[test]
    fn a_value_that_is_missing_is_left_out() {
        let mut gap = panel(&[1.0, 2.0, 3.0]);
        gap.curves[0].values[1] = None;
        let labels = ["1", "2", "3"].map(str::to_owned);
        let frame = Frame {
            title: "t",
            subtitle: "s",
            scale: Scale::Throughput,
            labels: &labels,
            horizontal: "h",
        };
        let shapes = panels(&frame, &[gap]);
        let curve = shapes.iter().find_map(|shape| match shape {
            Shape::Line { points, width, .. } if *width == 2.2 => Some(points),
            _ => None,
        });
        assert_eq!(curve.map(Vec::len), Some(2));
        assert!(panels(&frame, &[]).len() >= 2);
    }
}
