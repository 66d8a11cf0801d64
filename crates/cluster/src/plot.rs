//! Drawings as SVG: charts of curves, and charts of comparisons: one for each benchmark, number of ranks and carrier,
//! with a curve for each run. Their axes are logarithmic, since sizes and results span six orders of magnitude.

use crate::compare::{Comparison, Key};
use crate::results::{Benchmark, Transport};
use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 470.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 640.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 400.0;
const LEGEND_LEFT: f64 = 664.0;
const LEGEND_STEP: f64 = 24.0;

/// Colours that can also be distinguished with red-green colour blindness (after Okabe and Ito).
pub(crate) const COLORS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333",
];

/// The scale of an axis, and the format of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sizes, in powers of two.
    Bytes,
    /// In powers of ten.
    Decades,
    /// From 0, in equal steps.
    Steps,
    /// Whole numbers, from the smallest to the largest.
    Counts,
}

/// An axis of a chart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale<'a> {
    /// Its quantity, with the unit.
    pub(crate) label: &'a str,
    pub(crate) kind: Kind,
}

/// One curve.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// The ends of the interval of each point; empty if there are none.
    pub(crate) ends: Vec<(f64, f64)>,
    /// Whether each point is marked, because no line connects them.
    pub(crate) is_marked: bool,
    /// Whether it is a reference for the others, drawn grey and dashed.
    pub(crate) is_reference: bool,
    /// Its colour, if it is not the next one.
    pub(crate) color: Option<usize>,
}

/// A drawing and its file name without the suffix.
pub struct Drawing {
    /// For example `allreduce-2-network`.
    pub name: String,
    /// The drawing.
    pub svg: String,
}

/// Number of ranks and the carrier of their messages.
type Group = (u32, Transport);

/// Returns one drawing for each benchmark, number of ranks and carrier with at least two sizes. If a benchmark has
/// several of these, one more drawing contains them all, for example one board beside several.
#[must_use]
pub fn drawings(comparison: &Comparison) -> Vec<Drawing> {
    let mut kinds: Vec<(Benchmark, Vec<Group>)> = Vec::new();
    for (key, _) in &comparison.rows {
        let group = (key.ranks, key.transport);
        match kinds.iter_mut().find(|(known, _)| *known == key.benchmark) {
            Some((_, groups)) if groups.contains(&group) => {}
            Some((_, groups)) => groups.push(group),
            None => kinds.push((key.benchmark, vec![group])),
        }
    }
    let runs = 0..comparison.labels.len();
    let mut drawn = Vec::new();
    for (benchmark, groups) in kinds {
        let curve = |group: Group, run: usize| {
            let is_of = |key: &Key| {
                (key.benchmark, key.ranks, key.transport) == (benchmark, group.0, group.1)
            };
            curve(comparison, run, &is_of)
        };
        for &(ranks, transport) in &groups {
            let curves = runs
                .clone()
                .map(|run| curve((ranks, transport), run))
                .collect();
            let (carrier, through) = match transport {
                Transport::Memory => ("memory", "the memory of one host"),
                Transport::Network => ("network", "the network"),
            };
            let title = format!("{}, {ranks} ranks, through {through}", benchmark.name());
            let name = format!("{}-{ranks}-{carrier}", benchmark.name());
            drawn.extend(drawing(benchmark, name, &title, curves));
        }
        if groups.len() < 2 {
            continue;
        }
        let named = |group: Group, run: usize| {
            let of_one = curve(group, run);
            let place = match group.1 {
                Transport::Memory => "one host",
                Transport::Network => "network",
            };
            Curve {
                label: format!("{}, {} ranks, {place}", of_one.label, group.0),
                ..of_one
            }
        };
        let all = groups
            .iter()
            .flat_map(|group| runs.clone().map(|run| named(*group, run)));
        let all = all.filter(|curve| curve.points.len() > 1).collect();
        let title = format!("{}, by number of ranks", benchmark.name());
        drawn.extend(drawing(benchmark, benchmark.name().to_owned(), &title, all));
    }
    drawn
}

/// Draws results against sizes; `None` if no curve has two points.
fn drawing(benchmark: Benchmark, name: String, title: &str, curves: Vec<Curve>) -> Option<Drawing> {
    let results = Scale {
        label: benchmark.unit(),
        kind: Kind::Decades,
    };
    let is_drawn = curves.iter().any(|curve| curve.points.len() > 1);
    is_drawn.then(|| Drawing {
        name,
        svg: draw(title, [SIZES, results], &curves),
    })
}

fn curve(comparison: &Comparison, run: usize, is_of: &dyn Fn(&Key) -> bool) -> Curve {
    let rows = comparison.rows.iter().filter(|(key, _)| is_of(key));
    let found = rows.filter_map(|(key, cells)| {
        let cell = cells.get(run)?.as_ref()?;
        let of = |us: f64| key.benchmark.result(key.bytes, us);
        let interval = cell.median_us.interval;
        Some((
            (key.bytes as f64, cell.result),
            (of(interval.low), of(interval.high)),
        ))
    });
    let is_drawable = |value: f64| value > 0.0 && value.is_finite();
    let (points, ends) = found
        .filter(|((x, y), (low, high))| [*x, *y, *low, *high].into_iter().all(is_drawable))
        .unzip();
    Curve {
        label: comparison.labels[run].clone(),
        points,
        ends,
        is_marked: false,
        is_reference: false,
        color: None,
    }
}

/// The horizontal axis for message sizes.
pub(crate) const SIZES: Scale<'static> = Scale {
    label: "bytes of a message",
    kind: Kind::Bytes,
};

/// An axis and its position in the drawing.
struct Axis {
    kind: Kind,
    /// Ends, as logarithms if it is logarithmic, and the distance of grid lines.
    from: f64,
    to: f64,
    step: f64,
    at: (f64, f64),
}

impl Axis {
    /// Creates an axis around values. `most`: the largest number of grid lines.
    fn around(kind: Kind, values: impl Iterator<Item = f64>, most: f64, at: (f64, f64)) -> Self {
        let ends = values.map(|value| kind.part(value));
        let (least, greatest) = ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), end| {
            (from.min(end), to.max(end))
        });
        let (from, to, step) = match kind {
            Kind::Bytes | Kind::Decades => {
                let from = (least + 1e-9).floor();
                let to = (greatest - 1e-9).ceil().max(from + 1.0);
                let step = ((to - from) / most).ceil().max(1.0);
                (from, from + ((to - from) / step).ceil() * step, step)
            }
            Kind::Counts => {
                let to = greatest.max(least + 1.0);
                (least, to, ((to - least) / most).ceil().max(1.0))
            }
            Kind::Steps => {
                let step = round_step(greatest.max(1e-9) / most);
                (0.0, (greatest / step - 1e-9).ceil().max(1.0) * step, step)
            }
        };
        Self {
            kind,
            from,
            to,
            step,
            at,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let part = (self.kind.part(value) - self.from) / (self.to - self.from);
        self.at.0 + part * (self.at.1 - self.at.0)
    }

    /// Returns the values with a grid line.
    fn rules(&self) -> Vec<f64> {
        let count = ((self.to - self.from) / self.step + 1e-9).floor() as i32;
        (0..=count)
            .map(|number| self.kind.whole(self.from + f64::from(number) * self.step))
            .collect()
    }
}

impl Kind {
    /// Returns the position of a value on the axis.
    fn part(self, value: f64) -> f64 {
        match self {
            Self::Bytes => value.log2(),
            Self::Decades => value.log10(),
            Self::Steps | Self::Counts => value,
        }
    }

    fn whole(self, part: f64) -> f64 {
        match self {
            Self::Bytes => part.exp2(),
            Self::Decades => 10.0_f64.powf(part),
            Self::Steps | Self::Counts => part,
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Bytes => bytes_text(value),
            Self::Decades => value_text(value),
            Self::Steps | Self::Counts => format!("{}", (value * 1e3).round() / 1e3),
        }
    }
}

/// Returns one, two or five times a power of ten, not below a length.
fn round_step(length: f64) -> f64 {
    let power = 10.0_f64.powf(length.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps
        .into_iter()
        .find(|step| *step >= length * (1.0 - 1e-9))
        .unwrap_or(length)
}

/// Draws curves; the scales are horizontal, then vertical.
pub(crate) fn draw(title: &str, scales: [Scale<'_>; 2], curves: &[Curve]) -> String {
    let all = || curves.iter().flat_map(|curve| curve.points.iter());
    let ends = || curves.iter().flat_map(|curve| curve.ends.iter());
    let [along, up] = scales;
    let x = Axis::around(along.kind, all().map(|point| point.0), 11.0, (LEFT, RIGHT));
    let heights = all()
        .map(|point| point.1)
        .chain(ends().flat_map(|end| [end.0, end.1]));
    let y = Axis::around(up.kind, heights, 8.0, (BOTTOM, TOP));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"14\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"34\" font-size=\"18\">{}</text>\n",
        escaped(title)
    );
    // Writing to a string does not fail.
    let mut put = |line: std::fmt::Arguments<'_>| writeln!(out, "{line}").unwrap_or_default();
    for value in x.rules() {
        let at = x.place(value);
        put(format_args!(
            "<path d=\"M{at:.1} {TOP}V{BOTTOM}\" stroke=\"#ddd\"/>"
        ));
        let text = along.kind.text(value);
        put(format_args!(
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            BOTTOM + 20.0
        ));
    }
    for value in y.rules() {
        let at = y.place(value);
        put(format_args!(
            "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#ddd\"/>"
        ));
        let text = up.kind.text(value);
        put(format_args!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 8.0,
            at + 5.0
        ));
    }
    put(format_args!(
        "<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" stroke=\"#222\" fill=\"none\"/>"
    ));
    let middle = f64::midpoint(LEFT, RIGHT);
    put(format_args!(
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">{}</text>",
        BOTTOM + 46.0,
        escaped(along.label)
    ));
    put(format_args!(
        "<text transform=\"translate(20 {}) rotate(-90)\" text-anchor=\"middle\" fill=\"#666\">{}</text>",
        f64::midpoint(TOP, BOTTOM),
        escaped(up.label)
    ));
    let (mut number, mut row) = (0, 0.0);
    for curve in curves {
        // Each run keeps its colour in all drawings, even where it has no points.
        let place = curve.color.unwrap_or(number);
        let color = if curve.is_reference {
            "#888888"
        } else {
            COLORS[place % COLORS.len()]
        };
        let is_dashed = curve.is_reference || place >= COLORS.len();
        number += usize::from(!curve.is_reference && curve.color.is_none());
        if curve.points.is_empty() {
            continue;
        }
        // A mark without line shows the same difference by being hollow.
        let fill = match is_dashed {
            true => format!("#fff\" stroke=\"{color}"),
            false => color.to_owned(),
        };
        let mark = |at: f64, height: f64| {
            format!("<circle cx=\"{at:.1}\" cy=\"{height:.1}\" r=\"4\" fill=\"{fill}\"/>")
        };
        let dash = if is_dashed {
            " stroke-dasharray=\"6 4\""
        } else {
            ""
        };
        let points: Vec<String> = curve
            .points
            .iter()
            .map(|point| format!("{:.1},{:.1}", x.place(point.0), y.place(point.1)))
            .collect();
        put(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>",
            points.join(" ")
        ));
        if curve.is_marked {
            for point in &curve.points {
                let mark = mark(x.place(point.0), y.place(point.1));
                put(format_args!("{mark}"));
            }
        }
        for (point, end) in curve.points.iter().zip(&curve.ends) {
            let (at, low, high) = (x.place(point.0), y.place(end.0), y.place(end.1));
            put(format_args!(
                "<path d=\"M{at:.1} {low:.1}V{high:.1}\" stroke=\"{color}\" stroke-width=\"1.2\"/>"
            ));
        }
        if let (true, Some(point)) = (curve.is_reference, curve.points.first()) {
            // The label is beside the line itself: two grey lines would look alike in the legend.
            put(format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12\" fill=\"#666\">{}</text>",
                x.place(point.0) + 6.0,
                y.place(point.1) - 4.0,
                escaped(&curve.label)
            ));
            continue;
        }
        let height = TOP + 12.0 + row * LEGEND_STEP;
        row += 1.0;
        // A single point has no line.
        let sample = if curve.is_marked && curve.points.len() == 1 {
            mark(LEGEND_LEFT + 14.0, height)
        } else {
            format!(
                "<path d=\"M{LEGEND_LEFT} {height}h28\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>"
            )
        };
        put(format_args!(
            "{sample}<text x=\"{}\" y=\"{}\">{}</text>",
            LEGEND_LEFT + 36.0,
            height + 5.0,
            escaped(&curve.label.chars().take(20).collect::<String>())
        ));
    }
    out + "</svg>\n"
}

fn bytes_text(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 1_048_576.0 => format!("{}M", bytes / 1_048_576.0),
        bytes if bytes >= 1_024.0 => format!("{}K", bytes / 1_024.0),
        bytes => format!("{bytes}"),
    }
}

/// Formats a power of ten.
fn value_text(value: f64) -> String {
    match value {
        value if value >= 0.999e6 => format!("{}M", (value / 1e6).round()),
        value if value >= 0.999e3 => format!("{}k", (value / 1e3).round()),
        value if value >= 0.999 => format!("{}", value.round()),
        value => format!("{value:.3}").trim_end_matches('0').to_owned(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{BenchmarkRow, Row, Stopped, tests::file};

    fn comparison() -> Comparison {
        let mut files = [file(), file()];
        for (file, (label, factor)) in files.iter_mut().zip([("a<b>", 1.0), ("b", 2.0)]) {
            file.header.label = label.to_owned();
            let row = |at: u32| {
                Row::Benchmark(BenchmarkRow {
                    benchmark: Benchmark::Latency,
                    ranks: 2,
                    transport: Transport::Network,
                    bytes: 4 << at,
                    iterations: 1,
                    samples_us: (0..9)
                        .map(|sample| factor * (1.0 + 0.01 * f64::from(sample)))
                        .collect(),
                    starts: Vec::new(),
                    stopped: Stopped::Fixed,
                })
            };
            file.rows = (0..6).map(row).collect();
        }
        Comparison::new(&files).expect("comparable")
    }

    #[test]
    fn each_run_has_a_curve_inside_the_axes() {
        let drawn = drawings(&comparison());
        let [drawing] = &drawn[..] else {
            panic!("{}", drawn.len());
        };
        assert_eq!(drawing.name, "latency-2-network");
        let curves: Vec<&str> = drawing
            .svg
            .lines()
            .filter(|line| line.starts_with("<polyline"))
            .collect();
        assert_eq!(curves.len(), 2);
        for curve in &curves {
            let points = curve.split('"').nth(1).expect("points");
            assert_eq!(points.split(' ').count(), 6);
            for point in points.split(' ') {
                let (x, y) = point.split_once(',').expect("two");
                let (x, y): (f64, f64) = (x.parse().expect("x"), y.parse().expect("y"));
                assert!(
                    (LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y),
                    "{point}"
                );
            }
        }
        // Twice the time is higher on an axis of times.
        let height = |curve: &str| -> f64 {
            let point = curve
                .split('"')
                .nth(1)
                .and_then(|points| points.split(' ').next())
                .expect("a point");
            point.split_once(',').expect("two").1.parse().expect("y")
        };
        assert!(height(curves[1]) < height(curves[0]));
        assert!(drawing.svg.contains("a&lt;b&gt;") && !drawing.svg.contains("a<b>"));
    }

    /// As in the figure of the thesis with one board, two and more.
    #[test]
    fn groups_of_ranks_stand_side_by_side_in_a_drawing_of_their_own() {
        let mut comparison = comparison();
        // In the second run half of the rows have four ranks.
        for (key, cells) in comparison.rows.clone() {
            if key.bytes > 16 {
                let key = Key { ranks: 4, ..key };
                comparison.rows.push((key, vec![None, cells[1].clone()]));
            }
        }
        let drawn = drawings(&comparison);
        let names: Vec<&str> = drawn.iter().map(|drawing| drawing.name.as_str()).collect();
        assert_eq!(names, ["latency-2-network", "latency-4-network", "latency"]);
        let all = &drawn[2].svg;
        assert_eq!(all.matches("<polyline").count(), 3);
        assert!(all.contains("b, 4 ranks, network") && !all.contains("a&lt;b&gt;, 4 ranks"));
    }

    #[test]
    fn a_single_size_is_no_drawing() {
        let mut comparison = comparison();
        comparison.rows.truncate(1);
        assert!(drawings(&comparison).is_empty());
    }

    #[test]
    fn equal_steps_begin_at_zero_and_counts_at_the_least() {
        let steps = Axis::around(Kind::Steps, [3.0, 29.0].into_iter(), 8.0, (0.0, 30.0));
        assert_eq!(steps.rules(), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0]);
        assert_eq!(steps.place(15.0), 15.0);
        let counts = Axis::around(Kind::Counts, [1.0, 6.0].into_iter(), 11.0, (0.0, 5.0));
        assert_eq!(counts.rules(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(counts.place(2.0), 1.0);
        assert_eq!([0.3, 2.1, 30.0].map(round_step), [0.5, 5.0, 50.0]);
    }

    #[test]
    fn numbers_on_axes_are_short() {
        let shown: Vec<String> = [4.0, 1_024.0, 4_194_304.0].map(bytes_text).into();
        assert_eq!(shown, ["4", "1K", "4M"]);
        let shown: Vec<String> = [0.01, 1.0, 10.0_f64.powf(3.0), 1e7].map(value_text).into();
        assert_eq!(shown, ["0.01", "1", "1k", "10M"]);
    }
}
