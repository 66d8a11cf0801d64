//! The picture of `keel top`, made for 80 columns and 24 lines. Every state is a word as well as a colour.

use command::progress::bytes_text;
use node::status::{AlarmFigures, MountFigures, Report, State, UpstreamFigures, grouped, span};
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
/// Height of the terminal that the picture is made for, and of a panel's borders.
const HEIGHT: u16 = 24;
const BORDERS: u16 = 2;
/// Lines of a panel in the middle, and of the reasons, at that height.
const MIDDLE_LINES: u16 = 6;
const REASON_LINES: u16 = 4;

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
    let around = around_lines(report);
    let [title, top, middle, bottom, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(8),
        Constraint::Length(middle_height(area.height, reasons.len(), around.len())),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    let halves = |area| Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    let [left, right]: [Rect; 2] = halves(top);
    let [qos, others]: [Rect; 2] = halves(middle);
    frame.render_widget(title_line(report, seen, area.width), title);
    path(frame, left, report, seen);
    figures(frame, right, "flash and card", &flash_lines(report));
    figures(frame, qos, "deadlines", &qos_lines(report));
    let room = usize::from(others.height.saturating_sub(BORDERS));
    let around = fitting(around, room);
    figures(frame, others, "alarms, links, programs", &around);
    let block = panel("reasons");
    let inner = block.inner(bottom);
    frame.render_widget(block, bottom);
    frame.render_widget(Paragraph::new(reasons), inner);
    frame.render_widget(Paragraph::new(" q ends it").fg(DIM), footer);
}

/// Returns the height of the panels in the middle. What a terminal has beyond [`HEIGHT`] goes to reasons that have no
/// room, then to these panels.
fn middle_height(height: u16, reasons: usize, around: usize) -> u16 {
    let beyond = |lines: usize, room| {
        let lines = u16::try_from(lines).unwrap_or(u16::MAX);
        lines.saturating_sub(room)
    };
    let spare = height.saturating_sub(HEIGHT);
    let spare = spare.saturating_sub(beyond(reasons, REASON_LINES));
    BORDERS + MIDDLE_LINES + beyond(around, MIDDLE_LINES).min(spare)
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

/// Returns a line with the name at the left and the value at the right edge. A long name is cut, not the value.
fn figure_line((name, value, colour): &Figure, width: u16) -> Line<'static> {
    let columns = |text: &str| Span::raw(text).width();
    let room = usize::from(width).saturating_sub(columns(value) + 1);
    let mut name = name.clone();
    if columns(&name) > room {
        while !name.is_empty() && columns(&name) + 1 > room {
            name.pop();
        }
        name.push('…');
    }
    let gap = usize::from(width).saturating_sub(columns(&name) + columns(value));
    Line::from(vec![
        Span::styled(name, Style::new().fg(DIM)),
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

/// Returns as many lines as there is room for; the last one counts those that are left out.
fn fitting(mut all: Vec<Figure>, room: usize) -> Vec<Figure> {
    if all.len() > room {
        let shown = room.saturating_sub(1);
        let more = all.len() - shown;
        all.truncate(shown);
        all.push(figure("more", grouped(more as u64)));
    }
    all
}

/// Returns what surrounds the way to flash, the most important first: what is wrong comes before what is well.
fn around_lines(report: &Report) -> Vec<Figure> {
    let mut lines = alarm_lines(report);
    lines.extend(report.figures.upstream.iter().map(upstream_line));
    lines.extend(broker_lines(report));
    lines.extend(task_lines(report));
    lines.extend(report.figures.mounts.iter().map(mount_line));
    lines.extend(program_lines(report));
    lines.extend(client_lines(report));
    lines.sort_by_key(|(_, _, colour)| match *colour {
        BAD => 0,
        WARN => 1,
        _ => 2,
    });
    lines
}

/// Returns the raised alarms, with the time since the first of their keys raised them.
fn alarm_lines(report: &Report) -> Vec<Figure> {
    let urgent = &report.figures.urgent;
    let raised = urgent.alarms.iter().filter(|alarm| alarm.active > 0);
    let line = |alarm: &AlarmFigures| {
        let active = urgent.alarms_active.iter();
        let own = active.filter(|one| one.alarm == alarm.name);
        let since = own.map(|one| one.since_ms).max();
        let since = since.map_or(String::new(), |ms| format!(", {}", span(ms)));
        let value = format!("{} active{since}", grouped(alarm.active));
        (format!("alarm {}", alarm.name), value, BAD)
    };
    raised.map(line).collect()
}

fn upstream_line(one: &UpstreamFigures) -> Figure {
    let name = format!("to {}", one.name);
    if one.unusable.is_some() {
        return (name, "not used".to_owned(), BAD);
    }
    let gone = one.forward_lost.saturating_add(one.missing);
    let (word, colour) = match one.connected {
        true if gone > 0 => ("up", WARN),
        true => ("up", GOOD),
        false if one.is_new() => ("new", INK),
        false => ("cut", BAD),
    };
    let lost = match gone {
        0 => String::new(),
        count => format!(", {} lost", grouped(count)),
    };
    let value = format!("{word}, {} wait{lost}", grouped(one.backlog_readings));
    (name, value, colour)
}

/// Returns the broker that readings come from, and those of alarms and actuators.
fn broker_lines(report: &Report) -> Vec<Figure> {
    let word = |connected| match connected {
        true => ("connected", GOOD),
        false => ("cut", BAD),
    };
    let mut lines = Vec::new();
    if let Some(mqtt) = &report.figures.mqtt {
        let (word, colour) = word(mqtt.connected);
        lines.push(("broker".to_owned(), word.to_owned(), colour));
    }
    for broker in &report.figures.urgent.brokers {
        let (word, colour) = match broker.last_error.is_none() && broker.connects == 0 {
            true => ("new", INK),
            false => word(broker.connected),
        };
        let waiting = match broker.waiting {
            0 => String::new(),
            count => format!(", {} wait", grouped(count)),
        };
        let name = format!("broker {}", broker.name);
        lines.push((name, format!("{word}{waiting}"), colour));
    }
    lines
}

fn task_lines(report: &Report) -> Vec<Figure> {
    let tasks = report.figures.qos.tasks.iter();
    tasks
        .map(|task| {
            let colour = if task.deadline_misses > 0 { WARN } else { INK };
            let (misses, instances) = (grouped(task.deadline_misses), grouped(task.instances));
            let late = format!("{misses} late of {instances}");
            (format!("task {}", task.name), late, colour)
        })
        .collect()
}

fn mount_line(mount: &MountFigures) -> Figure {
    let (word, colour) = match (mount.mounted, mount.failing) {
        (true, _) if mount.traffic.connections == Some(0) => ("no server", WARN),
        (true, _) => ("mounted", GOOD),
        (false, true) => ("not there", BAD),
        (false, false) => ("on its way", INK),
    };
    (format!("mount {}", mount.name), word.to_owned(), colour)
}

/// Returns the programs that the node keeps running, and its jobs.
fn program_lines(report: &Report) -> Vec<Figure> {
    let programs = report.figures.tasks.iter().map(|program| {
        let colour = match program.state.as_str() {
            state if program.failing || state == "given_up" => BAD,
            "running" => GOOD,
            _ => INK,
        };
        let state = program.state.replace('_', " ");
        (format!("program {}", program.name), state, colour)
    });
    let jobs = report.figures.jobs.iter().map(|job| {
        let colour = if job.failing { WARN } else { INK };
        let mut value = match job.running {
            true => "runs now".to_owned(),
            false => format!("{} runs", grouped(job.runs)),
        };
        if job.failed > 0 {
            value.push_str(&format!(", {} failed", grouped(job.failed)));
        }
        (format!("job {}", job.name), value, colour)
    });
    programs.chain(jobs).collect()
}

/// Returns power, then the connected clients.
fn client_lines(report: &Report) -> Vec<Figure> {
    let figures = &report.figures;
    let mut lines: Vec<Figure> = figures
        .power
        .iter()
        .map(|sensor| {
            let watts = sensor.watts.map(|watts| format!("{watts:.2} W"));
            let name = format!("power {}", sensor.name);
            figure(&name, watts.unwrap_or_else(|| "no value".to_owned()))
        })
        .collect();
    lines.push(figure(
        "senders of lines",
        grouped(figures.line.connections),
    ));
    if let Some(http) = &figures.http {
        let value = format!("{} / {}", http.connections, http.streams);
        lines.push(figure("http / streams", value));
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
    use node::status::{
        ActiveFigures, JobFigures, MountTraffic, NodeFigures, PeriodState, PowerFigures,
        TaskFigures, TaskState,
    };
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
        figures.mqtt = Some(node::status::MqttFigures::default());
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
    fn a_wide_name_is_cut_and_the_value_stays_whole() {
        let line = figure_line(
            &("温度制御温度制御温度制御".to_owned(), "7 late".into(), INK),
            20,
        );
        let text: String = line.spans.iter().map(|span| &*span.content).collect();
        assert_eq!((&*text, line.width()), ("温度制御温度… 7 late", 20));
    }

    #[test]
    fn the_view_shows_rates_bounds_tasks_and_cut_upstreams() {
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

    /// A node with everything that can surround it; the upstream `attic`, the mount and a program are in trouble.
    fn crowded() -> Seen {
        let mut figures = report(1_520, 12_000).figures;
        let upstream = |name: &str, connected, backlog_readings, forward_lost| UpstreamFigures {
            name: name.to_owned(),
            connected,
            connects: 1,
            backlog_readings,
            forward_lost,
            missing: forward_lost.min(1),
            ..UpstreamFigures::default()
        };
        figures.upstream = vec![
            upstream("cloud", true, 12, 0),
            upstream("attic", false, 1_234_567, 41),
        ];
        let urgent = &mut figures.urgent;
        let named = |name: &str, active| AlarmFigures {
            name: name.to_owned(),
            active,
            ..AlarmFigures::default()
        };
        urgent.alarms = vec![named("cold", 0), named("hot", 2)];
        for since_ms in [5_000, 312_000] {
            urgent.alarms_active.push(ActiveFigures {
                alarm: "hot".to_owned(),
                since_ms,
                ..ActiveFigures::default()
            });
        }
        urgent.brokers.resize_with(1, Default::default);
        if let Some(broker) = urgent.brokers.first_mut() {
            "plant".clone_into(&mut broker.name);
            (broker.connected, broker.connects, broker.waiting) = (true, 1, 3);
        }
        figures.mounts = vec![MountFigures {
            name: "tools".to_owned(),
            mounted: true,
            traffic: MountTraffic {
                connections: Some(0),
                ..MountTraffic::default()
            },
            ..MountFigures::default()
        }];
        let program = |name: &str, state: &str, failing| TaskFigures {
            name: name.to_owned(),
            state: state.to_owned(),
            failing,
            ..TaskFigures::default()
        };
        figures.tasks = vec![
            program("pump", "running", false),
            program("a-program-with-a-long-name-that-is-cut", "given_up", true),
        ];
        figures.jobs = vec![JobFigures {
            name: "knock".to_owned(),
            runs: 12,
            failed: 1,
            ..JobFigures::default()
        }];
        figures.power = vec![PowerFigures {
            name: "board".to_owned(),
            watts: Some(3.256),
            ..PowerFigures::default()
        }];
        let mut seen = Seen::default();
        seen.take(Report::new(figures));
        seen
    }

    #[test]
    fn alarms_upstreams_and_programs_are_shown_as_far_as_they_fit_and_failures_first() {
        let seen = crowded();
        let line = |text: &str, wanted: &str| {
            let found = text.lines().position(|line| line.contains(wanted));
            found.unwrap_or_else(|| panic!("{wanted} is not in\n{text}"))
        };
        let small = draw(80, 24, &seen);
        println!("{small}");
        let alarm = line(&small, "2 active, 5 min 12 s");
        let upstream = line(&small, "cut, 1,234,567 wait, 42 lost");
        let program = line(&small, "given up");
        assert!(alarm < upstream && upstream < program, "{small}");
        line(&small, "program a-program-with-a-l…");
        // Of 12 lines five are shown, and the number of the others.
        let more = line(&small, "more   ");
        assert!(small.lines().nth(more).unwrap().contains(" 7 │"), "{small}");
        for absent in ["to cloud", "power board", "senders of lines", "alarm cold"] {
            assert!(!small.contains(absent), "{absent} is in\n{small}");
        }
        // The reasons keep their lines.
        line(&small, "mqtt_disconnected");
        let large = draw(120, 40, &seen);
        println!("{large}");
        for (name, value) in [
            ("alarm hot", "2 active, 5 min 12 s"),
            ("to attic", "cut, 1,234,567 wait, 42 lost"),
            ("program a-program-with-a-long-name-that-is-cut", "given up"),
            ("to cloud", "up, 12 wait"),
            ("broker plant", "connected, 3 wait"),
            ("task valve", "7 late of 1,000"),
            ("mount tools", "no server"),
            ("program pump", "running"),
            ("job knock", "12 runs, 1 failed"),
            ("power board", "3.26 W"),
            ("senders of lines", "0"),
        ] {
            let row = large.lines().nth(line(&large, name)).unwrap();
            assert!(row.contains(value), "{name}: {value} is not in\n{large}");
        }
        assert!(!large.contains("more   "), "{large}");
        line(&large, "upstream_disconnected");
    }

    #[test]
    fn any_size_of_terminal_is_drawn_without_a_panic() {
        let mut seen = Seen::default();
        for (columns, lines) in [(1, 1), (10, 3), (40, 12), (80, 24), (200, 60)] {
            draw(columns, lines, &Seen::default());
            seen.take(report(5, 5));
            draw(columns, lines, &seen);
            draw(columns, lines, &crowded());
        }
    }
}
