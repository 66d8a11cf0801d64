//! Drawings of comparisons as SVG: one for each benchmark, number of ranks and carrier, with a curve for each run. Both
//! axes are logarithmic, since sizes and results span six orders of magnitude.

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

/// Colours that are told apart also without seeing red and green (after Okabe and Ito).
const COLORS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333",
];

/// One curve: points with the ends of their intervals.
struct Curve<'a> {
    label: &'a str,
    /// Size, result, and the results at both ends of the interval.
    points: Vec<(f64, f64, f64, f64)>,
}

/// A drawing and the name of its file without the ending.
pub struct Drawing {
    /// Such as `allreduce-2-network`.
    pub name: String,
    /// The drawing.
    pub svg: String,
}

/// One drawing for each benchmark, number of ranks and carrier that has two sizes or more.
#[must_use]
pub fn drawings(comparison: &Comparison) -> Vec<Drawing> {
    let mut kinds: Vec<(Benchmark, u32, Transport)> = Vec::new();
    for (key, _) in &comparison.rows {
        let kind = (key.benchmark, key.ranks, key.transport);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let drawn = kinds
        .into_iter()
        .filter_map(|(benchmark, ranks, transport)| {
            let is_of = |key: &Key| {
                (key.benchmark, key.ranks, key.transport) == (benchmark, ranks, transport)
            };
            let curves: Vec<Curve<'_>> = (0..comparison.labels.len())
                .map(|run| curve(comparison, run, &is_of))
                .collect();
            if curves.iter().all(|curve| curve.points.len() < 2) {
                return None;
            }
            let carrier = match transport {
                Transport::Memory => "memory",
                Transport::Network => "network",
            };
            let title = format!(
                "{}, {ranks} ranks, through {}",
                benchmark.name(),
                match transport {
                    Transport::Memory => "the memory of one host",
                    Transport::Network => "the network",
                }
            );
            Some(Drawing {
                name: format!("{}-{ranks}-{carrier}", benchmark.name()),
                svg: draw(&title, benchmark.unit(), &curves),
            })
        });
    drawn.collect()
}

fn curve<'a>(comparison: &'a Comparison, run: usize, is_of: &dyn Fn(&Key) -> bool) -> Curve<'a> {
    let rows = comparison.rows.iter().filter(|(key, _)| is_of(key));
    let points = rows.filter_map(|(key, cells)| {
        let cell = cells.get(run)?.as_ref()?;
        let of = |us: f64| key.benchmark.result(key.bytes, us);
        let interval = cell.median_us.interval;
        Some((
            key.bytes as f64,
            cell.result,
            of(interval.low),
            of(interval.high),
        ))
    });
    let is_drawable = |value: f64| value > 0.0 && value.is_finite();
    Curve {
        label: &comparison.labels[run],
        points: points
            .filter(|(x, y, low, high)| [*x, *y, *low, *high].into_iter().all(is_drawable))
            .collect(),
    }
}

/// A logarithmic axis over whole steps of a base.
struct Axis {
    base: f64,
    from: f64,
    to: f64,
    at: (f64, f64),
}

impl Axis {
    fn around(base: f64, values: impl Iterator<Item = f64>, at: (f64, f64)) -> Self {
        let logs = values.map(|value| value.log(base));
        let (from, to) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), log| {
            (from.min(log), to.max(log))
        });
        let from = (from + 1e-9).floor();
        Self {
            base,
            from,
            to: (to - 1e-9).ceil().max(from + 1.0),
            at,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let part = (value.log(self.base) - self.from) / (self.to - self.from);
        self.at.0 + part * (self.at.1 - self.at.0)
    }

    /// Values that have a rule: at most so many.
    fn rules(&self, most: f64) -> Vec<f64> {
        let step = ((self.to - self.from) / most).ceil().max(1.0);
        let count = ((self.to - self.from) / step).floor() as i32;
        (0..=count)
            .map(|number| self.base.powf(self.from + f64::from(number) * step))
            .collect()
    }
}

fn draw(title: &str, unit: &str, curves: &[Curve<'_>]) -> String {
    let all = || curves.iter().flat_map(|curve| curve.points.iter());
    let x = Axis::around(2.0, all().map(|point| point.0), (LEFT, RIGHT));
    let y = Axis::around(
        10.0,
        all().flat_map(|point| [point.1, point.2, point.3]),
        (BOTTOM, TOP),
    );
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"14\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"34\" font-size=\"18\">{}</text>\n",
        escaped(title)
    );
    // Writing to a string does not fail.
    let mut put = |line: std::fmt::Arguments<'_>| writeln!(out, "{line}").unwrap_or_default();
    for bytes in x.rules(11.0) {
        let at = x.place(bytes);
        put(format_args!(
            "<path d=\"M{at:.1} {TOP}V{BOTTOM}\" stroke=\"#ddd\"/>"
        ));
        let text = bytes_text(bytes);
        put(format_args!(
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            BOTTOM + 20.0
        ));
    }
    for value in y.rules(8.0) {
        let at = y.place(value);
        put(format_args!(
            "<path d=\"M{LEFT} {at:.1}H{RIGHT}\" stroke=\"#ddd\"/>"
        ));
        let text = value_text(value);
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
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">bytes of a message</text>",
        BOTTOM + 46.0
    ));
    put(format_args!(
        "<text transform=\"translate(20 {}) rotate(-90)\" text-anchor=\"middle\" fill=\"#666\">{}</text>",
        f64::midpoint(TOP, BOTTOM),
        escaped(unit)
    ));
    for (number, curve) in curves
        .iter()
        .enumerate()
        .filter(|(_, curve)| !curve.points.is_empty())
    {
        let color = COLORS[number % COLORS.len()];
        let dash = if number < COLORS.len() {
            ""
        } else {
            " stroke-dasharray=\"6 4\""
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
        for point in &curve.points {
            let (at, low, high) = (x.place(point.0), y.place(point.2), y.place(point.3));
            put(format_args!(
                "<path d=\"M{at:.1} {low:.1}V{high:.1}\" stroke=\"{color}\" stroke-width=\"1.2\"/>"
            ));
        }
        let height = TOP + 12.0 + number as f64 * LEGEND_STEP;
        put(format_args!(
            "<path d=\"M{LEGEND_LEFT} {height}h28\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
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

/// A power of ten.
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
        // Twice as slow is higher on an axis of times.
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

    #[test]
    fn a_single_size_is_no_drawing() {
        let mut comparison = comparison();
        comparison.rows.truncate(1);
        assert!(drawings(&comparison).is_empty());
    }

    #[test]
    fn numbers_on_axes_are_short() {
        let shown: Vec<String> = [4.0, 1_024.0, 4_194_304.0].map(bytes_text).into();
        assert_eq!(shown, ["4", "1K", "4M"]);
        let shown: Vec<String> = [0.01, 1.0, 10.0_f64.powf(3.0), 1e7].map(value_text).into();
        assert_eq!(shown, ["0.01", "1", "1k", "10M"]);
    }
}
