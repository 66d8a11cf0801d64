//! Bar charts: a group of bars for each program, a bar for each system, with its value above it.

use crate::paper::chart::{Anchor, FAINT, GRID, INK, SIZE, Shape, line, text};
use crate::qos::plot::COLORS;

const TOP: f64 = 96.0;
const BOTTOM: f64 = 376.0;
const EDGES: (f64, f64) = (64.0, SIZE.0 - 20.0);
const LEGEND_Y: f64 = 436.0;
const LETTER: f64 = 7.4;
/// The share of a group's width that its bars fill.
const FILLED: f64 = 0.84;
/// If the ratio of the values exceeds this, the axis is logarithmic, because small bars would be invisible.
const LINEAR_MAX: f64 = 20.0;

/// A system with its values, in the order of the groups.
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) values: Vec<Option<f64>>,
}

/// The vertical axis.
enum Axis {
    /// From 0 to this value.
    Linear(f64),
    /// From one power of ten to another, as exponents.
    Log(f64, f64),
}

impl Axis {
    fn around(series: &[Series]) -> Self {
        let values = || {
            series
                .iter()
                .flat_map(|series| series.values.iter().flatten())
        };
        let most = values().copied().fold(0.0, f64::max).max(1e-3);
        let least = values().copied().filter(|value| *value > 0.0);
        let least = least.fold(most, f64::min);
        if most / least <= LINEAR_MAX {
            Self::Linear(most * 1.1)
        } else {
            // Begin below the smallest value, so that its bar is visible.
            Self::Log((least / 1.5).log10().floor(), (most * 1.2).log10().ceil())
        }
    }

    fn y(&self, value: f64) -> f64 {
        let share = match *self {
            Self::Linear(most) => value / most,
            Self::Log(from, to) => (value.max(1e-9).log10() - from) / (to - from),
        };
        BOTTOM - share.clamp(0.0, 1.0) * (BOTTOM - TOP)
    }

    fn rules(&self) -> Vec<f64> {
        match *self {
            Self::Linear(most) => {
                let power = 10_f64.powf((most / 5.0).log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
                let step = step.into_iter().find(|step| most / step <= 6.0);
                let step = step.unwrap_or(most);
                (0..=(most / step) as u32)
                    .map(|count| f64::from(count) * step)
                    .collect()
            }
            Self::Log(from, to) => {
                let powers = (to - from).round() as i32;
                (0..=powers)
                    .map(|power| 10_f64.powf(from + f64::from(power)))
                    .collect()
            }
        }
    }
}

/// Draws the bars under a title and a line about their origin.
pub(crate) fn draw(
    title: &str,
    subtitle: &str,
    unit: &str,
    names: &[String],
    series: &[Series],
) -> Vec<Shape> {
    let axis = Axis::around(series);
    let kind = if matches!(axis, Axis::Log(..)) {
        ", logarithmic"
    } else {
        ""
    };
    let mut shapes = vec![Shape::Text {
        x: EDGES.0,
        y: 30.0,
        anchor: Anchor::Start,
        text: title.to_owned(),
        color: INK,
        large: true,
    }];
    shapes.push(text(EDGES.0, 52.0, Anchor::Start, subtitle, FAINT));
    shapes.push(text(
        EDGES.0,
        TOP - 18.0,
        Anchor::Start,
        format!("{unit}{kind}"),
        INK,
    ));
    for value in axis.rules() {
        let y = axis.y(value);
        shapes.push(line(vec![(EDGES.0, y), (EDGES.1, y)], GRID, 1.0));
        shapes.push(text(EDGES.0 - 6.0, y + 5.0, Anchor::End, short(value), INK));
    }
    let room = (EDGES.1 - EDGES.0) / names.len().max(1) as f64;
    let width = room * FILLED / series.len().max(1) as f64;
    for (place, name) in names.iter().enumerate() {
        let left = EDGES.0 + room * (place as f64 + (1.0 - FILLED) / 2.0);
        for (number, series) in series.iter().enumerate() {
            let Some(value) = series.values.get(place).copied().flatten() else {
                continue;
            };
            let from = left + width * number as f64;
            bar(
                &mut shapes,
                (from + 1.0, from + width - 1.0),
                axis.y(value),
                number,
            );
            let middle = from + width / 2.0;
            shapes.push(text(
                middle,
                axis.y(value) - 5.0,
                Anchor::Middle,
                short(value),
                INK,
            ));
        }
        let middle = EDGES.0 + room * (place as f64 + 0.5);
        shapes.push(text(
            middle,
            BOTTOM + 20.0,
            Anchor::Middle,
            name.clone(),
            INK,
        ));
    }
    shapes.push(line(
        vec![(EDGES.0, TOP), (EDGES.0, BOTTOM), (EDGES.1, BOTTOM)],
        INK,
        1.2,
    ));
    let mut x = EDGES.0;
    for (number, series) in series.iter().enumerate() {
        bar(&mut shapes, (x, x + 22.0), LEGEND_Y - 10.0, number);
        shapes.push(line(vec![(x, LEGEND_Y), (x + 22.0, LEGEND_Y)], GRID, 1.0));
        shapes.push(text(
            x + 30.0,
            LEGEND_Y,
            Anchor::Start,
            series.label.clone(),
            INK,
        ));
        x += 30.0 + series.label.chars().count() as f64 * LETTER + 26.0;
    }
    shapes
}

/// Draws a filled bar from adjacent lines; a bar of the legend ends at its text.
fn bar(shapes: &mut Vec<Shape>, (left, right): (f64, f64), top: f64, color: usize) {
    let bottom = if top > BOTTOM { LEGEND_Y } else { BOTTOM };
    let mut x = left + 0.5;
    while x < right {
        shapes.push(line(
            vec![(x, bottom), (x, top)],
            COLORS[color % COLORS.len()],
            1.6,
        ));
        x += 1.0;
    }
}

/// Formats a value with three digits, or with all digits of a large one.
fn short(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: [f64; 2]) -> Series {
        Series {
            label: "one".to_owned(),
            values: values.map(Some).into(),
        }
    }

    #[test]
    fn bars_stand_on_the_axis_and_small_ones_are_seen() {
        for (values, is_log) in [([10.0, 40.0], false), ([2.0, 4000.0], true)] {
            let axis = Axis::around(&[series(values)]);
            assert_eq!(matches!(axis, Axis::Log(..)), is_log);
            let heights = values.map(|value| BOTTOM - axis.y(value));
            assert!(heights[0] > 10.0 && heights[0] < heights[1], "{heights:?}");
            assert!(heights[1] <= BOTTOM - TOP, "{heights:?}");
            assert!((2..=8).contains(&axis.rules().len()), "{:?}", axis.rules());
        }
    }

    #[test]
    fn values_are_written_short() {
        let values = [0.0, 0.456, 12.34, 99.96, 1234.5].map(short);
        assert_eq!(values, ["0", "0.46", "12.3", "100", "1234"]);
    }

    #[test]
    fn all_bars_and_labels_are_inside_the_drawing() {
        let names = ["a", "b"].map(str::to_owned);
        let shapes = draw(
            "t",
            "s",
            "ms",
            &names,
            &[series([1.0, 2.0]), series([3.0, 900.0])],
        );
        for shape in &shapes {
            if let Shape::Line { points, .. } = shape {
                for (x, y) in points {
                    assert!(
                        (0.0..=SIZE.0).contains(x) && (0.0..=SIZE.1).contains(y),
                        "{x} {y}"
                    );
                }
            }
        }
        let labels = shapes
            .iter()
            .filter(|shape| matches!(shape, Shape::Text { text, .. } if text == "900"));
        assert_eq!(labels.count(), 1);
    }
}
