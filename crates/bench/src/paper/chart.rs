//! Cumulative latency distributions as a drawing. The whole is on the left, the slowest tenth on the right, where each
//! further grid line is ten times rarer. Both share a logarithmic axis of time. A drawing is a list of shapes, which
//! `render.rs` converts to both SVG and PNG.

/// Width and height of a drawing in pixels.
pub(crate) const SIZE: (f64, f64) = (1180.0, 470.0);

const TOP: f64 = 92.0;
const BOTTOM: f64 = 400.0;
/// Left and right edges of the two panels.
const PANELS: [(f64, f64); 2] = [(64.0, 440.0), (512.0, 888.0)];
const LEGEND_LEFT: f64 = 912.0;
const LEGEND_STEP: f64 = 46.0;

/// Maximum number of points of a curve; more are not visible.
const POINTS_MAX: usize = 400;

pub(crate) const INK: Color = Color(0x22, 0x22, 0x22);
pub(crate) const FAINT: Color = Color(0x66, 0x66, 0x66);
pub(crate) const GRID: Color = Color(0xDD, 0xDD, 0xDD);

/// Red, green, blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Color(pub(crate) u8, pub(crate) u8, pub(crate) u8);

/// The anchor point of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// Its left end.
    Start,
    /// Its middle.
    Middle,
    /// Its right end.
    End,
}

/// An element of a drawing.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// A line through points.
    Line {
        points: Vec<(f64, f64)>,
        color: Color,
        width: f64,
        dashed: bool,
    },
    /// One line of text; `y` is its baseline.
    Text {
        x: f64,
        y: f64,
        anchor: Anchor,
        text: String,
        color: Color,
        large: bool,
    },
}

/// One curve.
pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) color: Color,
    pub(crate) dashed: bool,
    /// In any order.
    pub(crate) latencies_ns: Vec<u64>,
}

/// Maps nanoseconds to a panel, logarithmically.
struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    /// Returns an axis of whole powers of ten that contains all latencies.
    fn around(series: &[Series]) -> Self {
        let all = || series.iter().flat_map(|series| &series.latencies_ns);
        let least = all().copied().min().unwrap_or(1000).max(100) as f64;
        let most = all().copied().max().unwrap_or(10_000).max(1000) as f64;
        let from = least.log10().floor();
        Self {
            from,
            to: most.log10().ceil().max(from + 1.0),
        }
    }

    fn x(&self, panel: (f64, f64), ns: f64) -> f64 {
        let share = (ns.max(1.0).log10() - self.from) / (self.to - self.from);
        panel.0 + share.clamp(0.0, 1.0) * (panel.1 - panel.0)
    }
}

/// Formats a time as a power of ten or a figure of three digits.
pub(crate) fn time_text(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let decimals = match value {
        value if value < 10.0 && value.fract() > 0.0 => 2,
        value if value < 100.0 && value.fract() > 0.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

pub(crate) fn text(x: f64, y: f64, anchor: Anchor, text: impl Into<String>, color: Color) -> Shape {
    Shape::Text {
        x,
        y,
        anchor,
        text: text.into(),
        color,
        large: false,
    }
}

pub(crate) fn line(points: Vec<(f64, f64)>, color: Color, width: f64) -> Shape {
    Shape::Line {
        points,
        color,
        width,
        dashed: false,
    }
}

/// Draws the distributions of `series` under a title and a line about their origin.
pub(crate) fn distributions(title: &str, subtitle: &str, mut series: Vec<Series>) -> Vec<Shape> {
    for series in &mut series {
        series.latencies_ns.sort_unstable();
    }
    let axis = Axis::around(&series);
    let mut shapes = vec![Shape::Text {
        x: PANELS[0].0,
        y: 30.0,
        anchor: Anchor::Start,
        text: title.to_owned(),
        color: INK,
        large: true,
    }];
    shapes.push(text(PANELS[0].0, 52.0, Anchor::Start, subtitle, FAINT));
    whole_scale(&mut shapes, &axis);
    tail_scale(&mut shapes, &axis);
    for series in &series {
        for (panel, height) in [
            (PANELS[0], whole_height as fn(f64) -> Option<f64>),
            (PANELS[1], tail_height),
        ] {
            shapes.push(Shape::Line {
                points: curve(&series.latencies_ns, &axis, panel, height),
                color: series.color,
                width: 2.2,
                dashed: series.dashed,
            });
        }
    }
    legend(&mut shapes, &series);
    shapes
}

/// Returns the height of the share of calls that were at most this slow.
fn whole_height(share: f64) -> Option<f64> {
    Some(BOTTOM - share * (BOTTOM - TOP))
}

/// Decades of rarity on the tail's panel: from one call in 10 to one in 10,000.
const TAIL_DECADES: (f64, f64) = (1.0, 4.0);

/// As [`whole_height`], but equal steps are ten times rarer; `None` below the slowest tenth.
fn tail_height(share: f64) -> Option<f64> {
    let decades = -(1.0 - share).max(1e-12).log10();
    if decades < TAIL_DECADES.0 {
        return None;
    }
    let part = (decades - TAIL_DECADES.0) / (TAIL_DECADES.1 - TAIL_DECADES.0);
    Some(BOTTOM - part.min(1.0) * (BOTTOM - TOP))
}

/// Returns points of a sorted distribution, with more of them in the tail.
fn curve(
    sorted_ns: &[u64],
    axis: &Axis,
    panel: (f64, f64),
    height: fn(f64) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let count = sorted_ns.len();
    let mut ranks: Vec<usize> = (0..=POINTS_MAX / 2)
        .map(|point| count * point / (POINTS_MAX / 2))
        .collect();
    ranks.extend((0..POINTS_MAX / 2).map(|point| {
        let rarer = 10_f64.powf(-(point as f64) / (POINTS_MAX / 2) as f64 * 5.0);
        ((count as f64) * (1.0 - rarer)).round() as usize
    }));
    ranks.sort_unstable();
    ranks.dedup();
    let points = ranks.into_iter().filter(|rank| (1..=count).contains(rank));
    points
        .filter_map(|rank| {
            let y = height(rank as f64 / count as f64)?;
            Some((axis.x(panel, sorted_ns[rank - 1] as f64), y))
        })
        .collect()
}

fn frame(shapes: &mut Vec<Shape>, axis: &Axis, panel: (f64, f64), heading: &str) {
    shapes.push(text(panel.0, TOP - 12.0, Anchor::Start, heading, INK));
    let mut decade = axis.from;
    while decade <= axis.to + 0.5 {
        let ns = 10_f64.powf(decade);
        let x = axis.x(panel, ns);
        shapes.push(line(vec![(x, TOP), (x, BOTTOM)], GRID, 1.0));
        shapes.push(text(x, BOTTOM + 20.0, Anchor::Middle, time_text(ns), INK));
        decade += 1.0;
    }
    let middle = f64::midpoint(panel.0, panel.1);
    let label = "latency of one call, logarithmic";
    shapes.push(text(middle, BOTTOM + 46.0, Anchor::Middle, label, FAINT));
}

fn rule(shapes: &mut Vec<Shape>, panel: (f64, f64), y: f64, label: &str) {
    shapes.push(line(vec![(panel.0, y), (panel.1, y)], GRID, 1.0));
    shapes.push(text(panel.0 - 8.0, y + 5.0, Anchor::End, label, INK));
}

fn edges(shapes: &mut Vec<Shape>, panel: (f64, f64)) {
    let corner = vec![(panel.0, TOP), (panel.0, BOTTOM), (panel.1, BOTTOM)];
    shapes.push(line(corner, INK, 1.2));
}

fn whole_scale(shapes: &mut Vec<Shape>, axis: &Axis) {
    let panel = PANELS[0];
    frame(shapes, axis, panel, "calls that took at most this time");
    for percent in [0, 25, 50, 75, 100] {
        if let Some(y) = whole_height(f64::from(percent) / 100.0) {
            rule(shapes, panel, y, &format!("{percent} %"));
        }
    }
    edges(shapes, panel);
}

fn tail_scale(shapes: &mut Vec<Shape>, axis: &Axis) {
    let panel = PANELS[1];
    frame(shapes, axis, panel, "the same, the slowest tenth enlarged");
    for (share, label) in [
        (0.9, "90 %"),
        (0.99, "99 %"),
        (0.999, "99.9 %"),
        (0.9999, "99.99 %"),
    ] {
        // Rounding would place 0.9 just outside the panel.
        if let Some(y) = tail_height(share + 1e-9) {
            rule(shapes, panel, y, label);
        }
    }
    edges(shapes, panel);
}

fn legend(shapes: &mut Vec<Shape>, series: &[Series]) {
    for (index, series) in series.iter().enumerate() {
        let y = TOP + 14.0 + index as f64 * LEGEND_STEP;
        shapes.push(Shape::Line {
            points: vec![(LEGEND_LEFT, y - 5.0), (LEGEND_LEFT + 34.0, y - 5.0)],
            color: series.color,
            width: 2.2,
            dashed: series.dashed,
        });
        let x = LEGEND_LEFT + 44.0;
        shapes.push(text(x, y, Anchor::Start, series.label.clone(), INK));
        let of = |per_mille| {
            let mut sorted = series.latencies_ns.clone();
            time_text(crate::report::percentile(&mut sorted, per_mille) as f64)
        };
        let figures = format!("p50 {}, p99.9 {}", of(500), of(999));
        shapes.push(text(x, y + 17.0, Anchor::Start, figures, FAINT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(latencies_ns: Vec<u64>) -> Series {
        Series {
            label: "a system".to_owned(),
            color: INK,
            dashed: false,
            latencies_ns,
        }
    }

    #[test]
    fn times_are_written_in_their_unit() {
        for (ns, expected) in [
            (100.0, "100 ns"),
            (1000.0, "1 µs"),
            (12_340.0, "12.3 µs"),
            (100_000.0, "100 µs"),
            (1_500_000.0, "1.50 ms"),
            (1e10, "10 s"),
        ] {
            assert_eq!(time_text(ns), expected);
        }
    }

    #[test]
    fn axes_are_whole_decades_around_everything() {
        let axis = Axis::around(&[series(vec![2_000, 70_000]), series(vec![500_000])]);
        assert_eq!((axis.from, axis.to), (3.0, 6.0));
        assert_eq!(axis.x((0.0, 300.0), 10_000.0), 100.0);
        assert_eq!(axis.x((0.0, 300.0), 1e12), 300.0);
    }

    #[test]
    fn a_curve_rises_from_the_fastest_to_the_slowest_call() {
        let sorted: Vec<u64> = (1..=10_000).map(|index| index * 100).collect();
        let axis = Axis::around(&[series(sorted.clone())]);
        for height in [whole_height as fn(f64) -> Option<f64>, tail_height] {
            let points = curve(&sorted, &axis, PANELS[0], height);
            assert!(points.len() > 50 && points.len() <= POINTS_MAX + 2);
            assert!(points.is_sorted_by(|one, next| one.0 <= next.0 && one.1 >= next.1));
            let (x, y) = points[points.len() - 1];
            assert_eq!((x, y), (axis.x(PANELS[0], 1e6), TOP));
        }
        assert!(curve(&[], &axis, PANELS[0], whole_height).is_empty());
    }
}
