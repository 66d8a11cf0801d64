//! The picture of `keel top`, made for 80 columns and 24 lines. Every state is a word as well as a colour.

use crate::progress::bytes_text;
use crate::status::{Report, State, grouped, span};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Padding, Paragraph, Sparkline};
use std::collections::VecDeque;

const INK: Color = Color::Indexed(252);
const DIM: Color = Color::Indexed(244);
const FAINT: Color = Color::Indexed(238);
const ACCENT: Color = Color::Indexed(75);
const GOOD: Color = Color::Indexed(114);
const WARN: Color = Color::Indexed(221);
const BAD: Color = Color::Indexed(203);

/// Time span of the small charts, in seconds.
const LINE_SECONDS: usize = 120;
/// Columns of a bar.
const BAR: usize = 12;

/// The answers so far.
#[derive(Default)]
pub(super) struct Seen {
    report: Option<Report>,
    /// Why there is no newer answer.
    lost: Option<String>,
    /// Readings per second; unknown before the second answer.
    rate: Option<f64>,
    rates: VecDeque<u64>,
    lags_ms: VecDeque<u64>,
}

impl Seen {
    /// Stores an answer of the node.
    pub(super) fn take(&mut self, report: Report) {
        if let Some(before) = &self.report {
            let (new, old) = (&report.figures, &before.figures);
            let ms = new.node.uptime_ms.saturating_sub(old.node.uptime_ms);
            self.rate = (new.node.pid == old.node.pid && ms > 0).then(|| {
                let taken = new
                    .log
                    .readings_taken
                    .saturating_sub(old.log.readings_taken);
                taken as f64 * 1e3 / ms as f64
            });
        }
        push(&mut self.rates, self.rate.unwrap_or(0.0) as u64);
        push(&mut self.lags_ms, report.figures.log.durable_lag_ms as u64);
        self.report = Some(report);
        self.lost = None;
    }

    /// Records that the node does not answer.
    pub(super) fn lose(&mut self, why: String) {
        self.lost = Some(why);
    }

    /// Returns the same exit status as `keel status`.
    pub(super) fn exit_status(&self) -> u8 {
        self.report
            .as_ref()
            .map_or(State::Failed, |report| report.state)
            .exit_status()
    }
}

fn push(line: &mut VecDeque<u64>, value: u64) {
    if line.len() >= LINE_SECONDS {
        line.pop_front();
    }
    line.push_back(value);
}

/// Draws everything.
pub(super) fn render(frame: &mut Frame<'_>, seen: &Seen) {
    let area = frame.area();
    let Some(report) = &seen.report else {
        let text = seen.lost.clone().unwrap_or_else(|| "asking".to_owned());
        frame.render_widget(Paragraph::new(text).fg(BAD), area);
        return;
    };
    let reasons = reason_lines(report, seen);
    let [title, top, middle, bottom, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    let halves = |area| Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    let [left, right]: [Rect; 2] = halves(top);
    let [qos, tasks]: [Rect; 2] = halves(middle);
    frame.render_widget(title_line(report, seen, area.width), title);
    path(frame, left, report, seen);
    figures(frame, right, "flash and card", &flash_lines(report));
    figures(frame, qos, "deadlines", &qos_lines(report));
    figures(frame, tasks, "tasks and clients", &task_lines(report));
    let block = panel("reasons");
    let inner = block.inner(bottom);
    frame.render_widget(block, bottom);
    frame.render_widget(Paragraph::new(reasons), inner);
    frame.render_widget(Paragraph::new(" q ends it").fg(DIM), footer);
}

fn panel(title: &str) -> Block<'_> {
    Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(Style::new().fg(FAINT))
        .title(Span::styled(format!(" {title} "), Style::new().fg(DIM)))
        .padding(Padding::horizontal(1))
}

fn title_line(report: &Report, seen: &Seen, width: u16) -> Line<'static> {
    let (state, colour) = match (&seen.lost, report.state) {
        (Some(_), _) => ("no answer", BAD),
        (None, State::Ok) => ("ok", GOOD),
        (None, State::Degraded) => ("degraded", WARN),
        (None, State::Failed) => ("failed", BAD),
    };
    let node = &report.figures.node;
    let left = format!("  keel {}, up {}", node.version, span(node.uptime_ms));
    let right = format!("● {state} ");
    let used = " Evenkeel".len() + left.chars().count() + right.chars().count();
    let gap = usize::from(width).saturating_sub(used);
    Line::from(vec![
        Span::styled(" Evenkeel", Style::new().fg(ACCENT).bold()),
        Span::styled(left, Style::new().fg(INK)),
        Span::raw(" ".repeat(gap)),
        Span::styled(right, Style::new().fg(colour).bold()),
    ])
}

/// A figure: name, value, colour.
type Figure = (String, String, Color);

fn figure(name: &str, value: impl Into<String>) -> Figure {
    (name.to_owned(), value.into(), INK)
}

fn figures(frame: &mut Frame<'_>, area: Rect, title: &str, all: &[Figure]) {
    let block = panel(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let lines: Vec<Line<'_>> = all
        .iter()
        .map(|one| figure_line(one, inner.width))
        .collect();
    frame.render_widget(Paragraph::new(lines), inner);
}

/// Returns a line with the name at the left and the value at the right edge.
fn figure_line((name, value, colour): &Figure, width: u16) -> Line<'static> {
    let gap = usize::from(width).saturating_sub(name.chars().count() + value.chars().count());
    Line::from(vec![
        Span::styled(name.clone(), Style::new().fg(DIM)),
        Span::raw(" ".repeat(gap.max(1))),
        Span::styled(value.clone(), Style::new().fg(*colour)),
    ])
}

fn path(frame: &mut Frame<'_>, area: Rect, report: &Report, seen: &Seen) {
    let figures = &report.figures;
    let log = &figures.log;
    let block = panel("sensor to flash");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [words, rates, lags] = Layout::vertical([
        Constraint::Fill(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(inner);
    let lag_high = f64::from(log.commit_interval_ms) * 4.0;
    let lag_colour = if log.durable_lag_ms > lag_high.max(1_000.0) {
        BAD
    } else {
        INK
    };
    let lost = figures.history.readings_dropped + log.refused_full;
    let lost_colour = if lost > 0 { BAD } else { INK };
    let rate = seen
        .rate
        .map_or("unknown".to_owned(), |rate| grouped(rate as u64));
    let all = [
        figure("readings a second", rate),
        figure("on flash", grouped(log.readings_durable)),
        (
            "durable lag".to_owned(),
            format!("{:.0} ms", log.durable_lag_ms),
            lag_colour,
        ),
        (
            "without room / refused".to_owned(),
            format!(
                "{} / {}",
                grouped(lost),
                grouped(figures.intake.refused_total)
            ),
            lost_colour,
        ),
    ];
    let lines: Vec<Line<'_>> = all
        .iter()
        .map(|one| figure_line(one, words.width))
        .collect();
    frame.render_widget(Paragraph::new(lines), words);
    line(frame, rates, "rate", &seen.rates);
    line(frame, lags, "lag", &seen.lags_ms);
}

fn line(frame: &mut Frame<'_>, area: Rect, name: &str, values: &VecDeque<u64>) {
    let [label, chart] =
        Layout::horizontal([Constraint::Length(6), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(name.to_owned()).fg(DIM), label);
    let skipped = values.len().saturating_sub(usize::from(chart.width));
    let shown: Vec<u64> = values.iter().skip(skipped).copied().collect();
    frame.render_widget(
        Sparkline::default()
            .data(&shown)
            .style(Style::new().fg(ACCENT)),
        chart,
    );
}

/// Returns a number, or the text for an unknown one.
fn known(value: Option<f64>, unit: &str) -> String {
    value.map_or("unknown".to_owned(), |value| {
        let decimals = if value.abs() >= 100.0 { 0 } else { 2 };
        format!("{value:.decimals$}{unit}")
    })
}

fn flash_lines(report: &Report) -> Vec<Figure> {
    let (figures, wear) = (&report.figures, &report.wear);
    let flash = &figures.flash;
    let bound = flash.operations_per_reading_bound;
    let is_over = flash
        .operations_per_reading
        .zip(bound)
        .is_some_and(|(done, bound)| done > bound);
    let each = known(flash.operations_per_reading, "");
    let store_colour = if figures.store.full { BAD } else { INK };
    vec![
        (
            "operations a reading".to_owned(),
            format!("{each} of {}", known(bound, "")),
            if is_over { BAD } else { INK },
        ),
        figure(
            "wear a day",
            known(
                wear.gigabytes_per_day_recent.or(wear.gigabytes_per_day),
                " GB",
            ),
        ),
        figure("card's years left", known(wear.card_years_left, "")),
        (
            "store".to_owned(),
            format!("{} free", bytes_text(figures.store.free_bytes)),
            store_colour,
        ),
        figure("history", bytes_text(figures.history.bytes)),
        figure("memory", bytes_text(figures.node.memory_resident_bytes)),
    ]
}

fn bar(part: f64) -> String {
    let filled = (part.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    format!(
        "{}{} {:>3.0} %",
        "━".repeat(filled),
        "─".repeat(BAR - filled),
        100.0 * part
    )
}

fn qos_lines(report: &Report) -> Vec<Figure> {
    let qos = &report.figures.qos;
    let last = qos.last.unwrap_or_default();
    let has_figures = qos.last.is_some();
    let tardiness = known(has_figures.then_some(last.tardiness_mean), "");
    let target = qos
        .tardiness_target
        .map_or(String::new(), |target| format!(" of {target:.2}"));
    let miss_colour = if last.miss_ratio > 0.0 { BAD } else { INK };
    vec![
        figure("controller", format!("{}, {}", qos.mode, qos.actuator)),
        figure("tardiness", format!("{tardiness}{target}")),
        (
            "deadlines missed".to_owned(),
            known(has_figures.then_some(100.0 * last.miss_ratio), " %"),
            miss_colour,
        ),
        figure(
            "fresh",
            format!(
                "{} of {}",
                grouped(qos.keys_fresh.into()),
                grouped(qos.keys_temporal.into())
            ),
        ),
        figure("speed", bar(qos.speed)),
        figure("updates", bar(qos.admitted)),
    ]
}

fn task_lines(report: &Report) -> Vec<Figure> {
    let figures = &report.figures;
    let mut lines = Vec::new();
    for task in figures.qos.tasks.iter().take(3) {
        let colour = if task.deadline_misses > 0 { WARN } else { INK };
        let late = format!(
            "{} late of {}",
            grouped(task.deadline_misses),
            grouped(task.instances)
        );
        lines.push((task.name.chars().take(18).collect(), late, colour));
    }
    let more = figures.qos.tasks.len().saturating_sub(3);
    if more > 0 {
        lines.push(figure("more tasks", grouped(more as u64)));
    }
    if let Some(mqtt) = &figures.mqtt {
        let (word, colour) = if mqtt.connected {
            ("connected", GOOD)
        } else {
            ("cut", BAD)
        };
        lines.push(("broker".to_owned(), word.to_owned(), colour));
    }
    lines.push(figure(
        "senders of lines",
        grouped(figures.line.connections),
    ));
    if let Some(http) = &figures.http {
        lines.push(figure(
            "http / streams",
            format!("{} / {}", http.connections, http.streams),
        ));
    }
    lines
}

fn reason_lines(report: &Report, seen: &Seen) -> Vec<Line<'static>> {
    if let Some(why) = &seen.lost {
        return vec![Line::from(why.clone()).fg(BAD)];
    }
    if report.reasons.is_empty() {
        return vec![Line::from("none: the node does what it must").fg(GOOD)];
    }
    let colour = if report.state == State::Failed {
        BAD
    } else {
        WARN
    };
    let line = |code: &str, text: &str| {
        Line::from(vec![
            Span::styled(format!("{code}  "), Style::new().fg(colour).bold()),
            Span::styled(text.to_owned(), Style::new().fg(INK)),
        ])
    };
    report
        .reasons
        .iter()
        .map(|reason| line(&reason.code, &reason.text))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::{PeriodState, TaskState};
    use crate::status::NodeFigures;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn report(taken: u64, uptime_ms: u64) -> Report {
        let mut figures = NodeFigures::default();
        figures.log.readings_taken = taken;
        figures.log.readings_durable = taken;
        figures.node.uptime_ms = uptime_ms;
        figures.flash.operations_per_reading = Some(0.5);
        figures.flash.operations_per_reading_bound = Some(1.25);
        figures.qos.speed = 0.5;
        figures.qos.last = Some(PeriodState {
            tardiness_mean: 0.75,
            miss_ratio: 0.25,
            ..PeriodState::default()
        });
        figures.qos.tasks = vec![TaskState {
            name: "valve".to_owned(),
            instances: 1000,
            deadline_misses: 7,
            ..TaskState::default()
        }];
        figures.mqtt = Some(crate::status::MqttFigures::default());
        Report::new(figures)
    }

    fn draw(columns: u16, lines: u16, seen: &Seen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
        terminal.draw(|frame| render(frame, seen)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| -> String { (0..columns).map(|x| buffer[(x, y)].symbol()).collect() };
        (0..lines).map(row).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn it_shows_rates_bounds_tasks_and_what_is_cut() {
        let mut seen = Seen::default();
        seen.take(report(1_000, 10_000));
        seen.take(report(1_520, 12_000));
        let text = draw(80, 24, &seen);
        for wanted in [
            "260",
            "0.50 of 1.25",
            "25.00 %",
            "7 late of 1,000",
            "cut",
            "1,520",
            "mqtt_disconnected",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in\n{text}");
        }
        seen.lose("node: no node answers; start it".to_owned());
        let text = draw(80, 24, &seen);
        assert!(
            text.contains("no answer") && text.contains("start it"),
            "{text}"
        );
    }

    #[test]
    fn any_size_of_terminal_is_drawn_without_a_panic() {
        let mut seen = Seen::default();
        for (columns, lines) in [(1, 1), (10, 3), (40, 12), (80, 24), (200, 60)] {
            draw(columns, lines, &Seen::default());
            seen.take(report(5, 5));
            draw(columns, lines, &seen);
        }
    }
}
