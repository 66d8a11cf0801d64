//! Drawings of the experiments: panels side by side, each with its own vertical axis.

use crate::paper::chart::{Anchor, Color, FAINT, GRID, INK, SIZE, Shape, line, text};

const TOP: f64 = 104.0;
const BOTTOM: f64 = 356.0;
const EDGES: (f64, f64) = (60.0, SIZE.0 - 20.0);
/// Space for the labels of a panel's axis.
const GAP: f64 = 58.0;
const LEGEND_Y: f64 = 436.0;
const LETTER: f64 = 7.4;
const SAMPLE: f64 = 40.0;
const RULES_MAX: f64 = 6.0;

/// Colours that can be distinguished without seeing red and green (after Okabe and Ito).
pub(crate) const COLORS: [Color; 7] = [
    Color(0x33, 0x33, 0x33),
    Color(0x00, 0x72, 0xB2),
    Color(0xE6, 0x9F, 0x00),
    Color(0xCC, 0x79, 0xA7),
    Color(0xD5, 0x5E, 0x00),
    Color(0x00, 0x9E, 0x73),
    Color(0x56, 0xB4, 0xE9),
];

/// One curve.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) label: String,
    pub(crate) color: Color,
    pub(crate) dashed: bool,
    /// Whether each point is marked.
    pub(crate) marked: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

/// One panel.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) curves: Vec<Curve>,
    /// The target value.
    pub(crate) goal: Option<f64>,
    /// Minimum upper end of the axis.
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// The horizontal axis that all panels share.
#[derive(Clone, Debug)]
pub(crate) struct Horizontal {
    pub(crate) label: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// Positions with a name.
    pub(crate) marks: Vec<(f64, String)>,
}

impl Horizontal {
    /// An axis of names at equal distances, at 0, 1, 2.
    pub(crate) fn names(label: &str, names: &[String]) -> Self {
        Self {
            label: label.to_owned(),
            from: -0.5,
            to: names.len() as f64 - 0.5,
            marks: names
                .iter()
                .enumerate()
                .map(|(place, name)| (place as f64, name.clone()))
                .collect(),
        }
    }

    /// An axis for a range of numbers.
    pub(crate) fn range(label: &str, from: f64, to: f64) -> Self {
        let step = step(to - from);
        let first = (from / step).ceil() as i64;
        let last = (to / step + 1e-9).floor() as i64;
        Self {
            label: label.to_owned(),
            from,
            to,
            marks: (first..=last)
                .map(|count| count as f64 * step)
                .map(|value| (value, number(value)))
                .collect(),
        }
    }
}

/// Draws panels under a title and a line about their origin.
pub(crate) fn panels(
    title: &str,
    subtitle: &str,
    horizontal: &Horizontal,
    panels: &[Panel],
) -> Vec<Shape> {
    let mut shapes = vec![Shape::Text {
        x: EDGES.0,
        y: 30.0,
        anchor: Anchor::Start,
        text: title.to_owned(),
        color: INK,
        large: true,
    }];
    shapes.push(text(EDGES.0, 52.0, Anchor::Start, subtitle, FAINT));
    let count = panels.len().max(1) as f64;
    let width = (EDGES.1 - EDGES.0 - GAP * (count - 1.0)) / count;
    for (place, panel) in panels.iter().enumerate() {
        let left = EDGES.0 + place as f64 * (width + GAP);
        one(&mut shapes, horizontal, panel, (left, left + width));
    }
    // One label for all panels, since they share the axis.
    let middle = f64::midpoint(EDGES.0, EDGES.1);
    shapes.push(text(
        middle,
        BOTTOM + 56.0,
        Anchor::Middle,
        horizontal.label.clone(),
        FAINT,
    ));
    legend(&mut shapes, panels);
    shapes
}

/// Returns the distance of grid lines: 1, 2 or 5 times a power of ten, so that there are not too many.
fn step(range: f64) -> f64 {
    let mut power = 10_f64.powf((range.max(1e-9) / RULES_MAX).log10().floor());
    loop {
        for factor in [1.0, 2.0, 5.0] {
            if range / (power * factor) <= RULES_MAX {
                return power * factor;
            }
        }
        power *= 10.0;
    }
}

fn number(value: f64) -> String {
    let rounded = (value * 1000.0).round() / 1000.0;
    format!("{rounded}")
}

fn one(shapes: &mut Vec<Shape>, horizontal: &Horizontal, panel: &Panel, (left, right): (f64, f64)) {
    shapes.push(text(
        left,
        TOP - 14.0,
        Anchor::Start,
        panel.title.clone(),
        INK,
    ));
    let values = || {
        panel
            .curves
            .iter()
            .flat_map(|curve| curve.points.iter().map(|point| point.1))
    };
    let (from, to) = (
        values().fold(panel.least, f64::min),
        values().fold(panel.most, f64::max),
    );
    let step = step(to - from);
    let (from, to) = (
        (from / step + 1e-9).floor() * step,
        (to / step - 1e-9).ceil() * step,
    );
    let y = |value: f64| BOTTOM - (value - from) / (to - from) * (BOTTOM - TOP);
    let x = |value: f64| {
        left + (value - horizontal.from) / (horizontal.to - horizontal.from) * (right - left)
    };
    for count in 0..=((to - from) / step).round() as u32 {
        let value = from + f64::from(count) * step;
        shapes.push(line(vec![(left, y(value)), (right, y(value))], GRID, 1.0));
        shapes.push(text(
            left - 6.0,
            y(value) + 5.0,
            Anchor::End,
            number(value),
            INK,
        ));
    }
    // Names that would overlap alternate between two lines.
    let widest = horizontal
        .marks
        .iter()
        .map(|(_, name)| name.chars().count())
        .max()
        .unwrap_or(0);
    let room = (right - left) / horizontal.marks.len().max(1) as f64;
    let is_tight = widest as f64 * LETTER > room;
    for (place, (value, name)) in horizontal.marks.iter().enumerate() {
        let lower = if is_tight && place % 2 == 1 {
            16.0
        } else {
            0.0
        };
        shapes.push(text(
            x(*value),
            BOTTOM + 20.0 + lower,
            Anchor::Middle,
            name.clone(),
            INK,
        ));
    }
    if let Some(goal) = panel.goal {
        shapes.push(Shape::Line {
            points: vec![(left, y(goal)), (right, y(goal))],
            color: FAINT,
            width: 1.4,
            dashed: true,
        });
    }
    let corner = vec![(left, TOP), (left, BOTTOM), (right, BOTTOM)];
    shapes.push(line(corner, INK, 1.2));
    for curve in &panel.curves {
        let points: Vec<_> = curve
            .points
            .iter()
            .map(|point| (x(point.0), y(point.1)))
            .collect();
        if curve.marked {
            for (x, y) in points.iter().copied() {
                shapes.push(line(vec![(x - 2.5, y), (x + 2.5, y)], curve.color, 5.0));
            }
        }
        shapes.push(Shape::Line {
            points,
            color: curve.color,
            width: if curve.marked { 2.2 } else { 1.4 },
            dashed: curve.dashed,
        });
    }
}

fn legend(shapes: &mut Vec<Shape>, panels: &[Panel]) {
    let mut labels: Vec<&Curve> = Vec::new();
    for curve in panels.iter().flat_map(|panel| &panel.curves) {
        if !labels.iter().any(|known| known.label == curve.label) {
            labels.push(curve);
        }
    }
    let mut x = EDGES.0;
    for curve in labels {
        shapes.push(Shape::Line {
            points: vec![(x, LEGEND_Y - 5.0), (x + SAMPLE - 10.0, LEGEND_Y - 5.0)],
            color: curve.color,
            width: 2.2,
            dashed: curve.dashed,
        });
        shapes.push(text(
            x + SAMPLE,
            LEGEND_Y,
            Anchor::Start,
            curve.label.clone(),
            INK,
        ));
        x += SAMPLE + curve.label.chars().count() as f64 * LETTER + 24.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_round_and_few() {
        for range in [0.03, 0.5, 1.0, 7.0, 550.0] {
            let step = step(range);
            assert!(
                range / step <= RULES_MAX && range / step > 2.0,
                "{range} {step}"
            );
        }
        let horizontal = Horizontal::range("samples", 0.0, 550.0);
        assert_eq!(
            horizontal.marks.first().map(|mark| mark.1.as_str()),
            Some("0")
        );
        assert_eq!(
            horizontal.marks.last().map(|mark| mark.1.as_str()),
            Some("500")
        );
    }

    #[test]
    fn every_panel_has_its_curves_inside_its_edges() {
        let curve = |points| Curve {
            label: "one".to_owned(),
            color: COLORS[1],
            dashed: false,
            marked: true,
            points,
        };
        let panel = |values: [f64; 2]| Panel {
            title: "t".to_owned(),
            curves: vec![curve(vec![(0.0, values[0]), (1.0, values[1])])],
            goal: Some(1.0),
            least: 0.0,
            most: 1.0,
        };
        let names = ["a", "b"].map(str::to_owned);
        let shapes = panels(
            "t",
            "s",
            &Horizontal::names("h", &names),
            &[panel([0.2, 1.7]), panel([0.0, 0.1])],
        );
        let curves: Vec<_> = shapes
            .iter()
            .filter_map(|shape| match shape {
                Shape::Line {
                    points,
                    width,
                    color,
                    ..
                } if *width == 2.2 && *color == COLORS[1] => Some(points),
                _ => None,
            })
            .collect();
        assert_eq!(curves.len(), 3, "two panels and the legend");
        for (x, y) in curves[..2].iter().copied().flatten() {
            assert!(
                (EDGES.0..=EDGES.1).contains(x) && (TOP..=BOTTOM).contains(y),
                "{x} {y}"
            );
        }
        let labels = shapes
            .iter()
            .filter(|shape| matches!(shape, Shape::Text { text, .. } if text == "one"));
        assert_eq!(labels.count(), 1);
    }
}
