//! The live view: the building, the data path and the way out, in 80 columns and 24 lines.
//!
//! Every state has a letter as well as a colour. The terminal is restored on every exit path: when this is dropped, and
//! by ratatui's panic hook.

use super::analysis::{Picture, Verdict, WayOut};
use super::building::{OFFICES, Room, STOREYS};
use super::state::{Phase, Snapshot};
use super::summary::{duration, grouped};
use command::error::CliError;
use ratatui::DefaultTerminal;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Padding, Paragraph, Sparkline};
use std::time::Duration;

const INK: Color = Color::Indexed(252);
const DIM: Color = Color::Indexed(244);
const FAINT: Color = Color::Indexed(238);
const ACCENT: Color = Color::Indexed(75);
const GOOD: Color = Color::Indexed(114);
const WARN: Color = Color::Indexed(221);
const BAD: Color = Color::Indexed(203);

/// Size that the view is made for, in columns and lines; a larger terminal shows it with a margin.
const COLUMNS: u16 = 80;
const LINES: u16 = 24;

/// Columns per office on the map.
const OFFICE_COLUMNS: usize = 6;

/// The least range of the lag chart: one commit interval, in ns.
const LAG_NS_USUAL: u64 = 250_000_000;

/// A durable lag above this is unusual: two commit intervals, in ns.
const LAG_NS_HIGH: u64 = 500_000_000;

/// The terminal, controlled by the view.
pub(crate) struct View {
    terminal: DefaultTerminal,
}

impl View {
    /// Takes over the terminal.
    pub(crate) fn new() -> Result<Self, CliError> {
        let terminal = ratatui::try_init().map_err(|error| CliError::io("terminal", &error))?;
        Ok(Self { terminal })
    }

    /// Draws the snapshot. Returns whether the user wants to stop.
    pub(crate) fn draw(&mut self, snapshot: &Snapshot<'_>) -> Result<bool, CliError> {
        self.terminal
            .draw(|frame| render(frame, snapshot))
            .map_err(|error| CliError::io("terminal", &error))?;
        let mut stop = false;
        while event::poll(Duration::ZERO).unwrap_or(false) {
            if let Ok(Event::Key(key)) = event::read() {
                let control_c =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                let quit = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
                stop |= key.kind == KeyEventKind::Press && (quit || control_c);
            }
        }
        Ok(stop)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        ratatui::try_restore().ok();
    }
}

/// Draws the whole view in the middle of the frame.
fn render(frame: &mut Frame<'_>, snapshot: &Snapshot<'_>) {
    let whole = frame.area();
    let area = Rect {
        x: whole.x + whole.width.saturating_sub(COLUMNS) / 2,
        y: whole.y + whole.height.saturating_sub(LINES) / 2,
        width: whole.width.min(COLUMNS),
        height: whole.height.min(LINES),
    };
    let [title, bar, middle, bottom, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(14),
        Constraint::Length(7),
        Constraint::Length(1),
    ])
    .areas(area);
    let [map, figures] =
        Layout::horizontal([Constraint::Length(54), Constraint::Fill(1)]).areas(middle);
    let [fire, ways] =
        Layout::horizontal([Constraint::Length(40), Constraint::Fill(1)]).areas(bottom);
    frame.render_widget(title_line(snapshot), title);
    frame.render_widget(progress_line(snapshot, bar.width), bar);
    render_map(frame, map, snapshot.picture());
    render_figures(frame, figures, snapshot);
    render_fire(frame, fire, snapshot);
    render_ways(frame, ways, snapshot.picture());
    frame.render_widget(footer_line(), footer);
}

fn panel(title: &str) -> Block<'_> {
    Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(Style::new().fg(FAINT))
        .title(Span::styled(format!(" {title} "), Style::new().fg(DIM)))
        .padding(Padding::horizontal(1))
}

fn title_line(snapshot: &Snapshot<'_>) -> Paragraph<'static> {
    let (state, colour) = match snapshot.phase {
        Phase::Starting => ("starting", WARN),
        Phase::Running => ("running", GOOD),
        Phase::Recovering => ("killed, recovering", BAD),
        Phase::Finishing => ("finishing", ACCENT),
        Phase::Comparing => ("comparing with the record", ACCENT),
    };
    let left = " Evenkeel  1,024 sensors of a burning office block";
    let right = format!("● {state} ");
    let gap = usize::from(COLUMNS).saturating_sub(left.chars().count() + right.chars().count());
    Paragraph::new(Line::from(vec![
        Span::styled(
            " Evenkeel",
            Style::new().fg(ACCENT).add_modifier(Modifier::BOLD),
        ),
        Span::styled(
            "  1,024 sensors of a burning office block",
            Style::new().fg(INK),
        ),
        Span::raw(" ".repeat(gap)),
        Span::styled(right, Style::new().fg(colour).add_modifier(Modifier::BOLD)),
    ]))
}

fn clock(ms: u64) -> String {
    let seconds = ms / 1_000;
    format!("{:02}:{:02}", seconds / 60, seconds % 60)
}

fn progress_line(snapshot: &Snapshot<'_>, width: u16) -> Paragraph<'static> {
    let share = snapshot.share_done();
    let label = format!(
        " trace {} of {}",
        clock(snapshot.trace_ms()),
        clock(snapshot.end_ms)
    );
    let tail = format!("{:>4.0} %  at {}x ", 100.0 * share, snapshot.speed);
    let room = usize::from(width).saturating_sub(label.chars().count() + tail.chars().count() + 2);
    let filled = (share * room as f64).round() as usize;
    Paragraph::new(Line::from(vec![
        Span::styled(label, Style::new().fg(INK)),
        Span::raw("  "),
        Span::styled("━".repeat(filled), Style::new().fg(ACCENT)),
        Span::styled("─".repeat(room - filled), Style::new().fg(FAINT)),
        Span::styled(tail, Style::new().fg(DIM)),
    ]))
}

/// Returns the letter and colours of a room's state; the letter alone is sufficient. Corridors are a shade darker than
/// offices, which separates the storeys.
fn room_style(verdict: Verdict, corridor: bool) -> (char, Style) {
    let shade = |office: u8, corridor_shade: u8| {
        Color::Indexed(if corridor { corridor_shade } else { office })
    };
    let style = Style::new();
    match verdict {
        Verdict::Unknown => ('?', style.fg(DIM).bg(shade(236, 234))),
        Verdict::Safe => ('S', style.fg(Color::Indexed(194)).bg(shade(28, 22))),
        Verdict::Threatened(_) => ('T', style.fg(Color::Indexed(16)).bg(shade(221, 178))),
        Verdict::Lost(_) => (
            'X',
            style.fg(Color::Indexed(231)).bg(shade(160, 124)).bold(),
        ),
    }
}

fn heat_text(hottest_c: f64) -> String {
    if hottest_c > 0.0 {
        format!("{hottest_c:.0}°")
    } else {
        "·".to_owned()
    }
}

fn render_map(frame: &mut Frame<'_>, area: Rect, picture: &Picture) {
    let block = panel("building: offices, corridors, hottest gas in °C");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let mut lines = Vec::new();
    for storey in (0..STOREYS).rev() {
        let mut names = vec![Span::styled(
            format!("{} ", storey + 1),
            Style::new().fg(INK).bold(),
        )];
        let mut heats = vec![Span::raw("  ")];
        for office in 1..=OFFICES {
            let room = Room(Room::corridor(storey).0 + office as u8);
            let here = &picture.rooms[room.index()];
            let (letter, style) = room_style(here.verdict, false);
            let name = format!("{}{office} {letter}", storey + 1);
            names.push(Span::styled(format!("{name:^OFFICE_COLUMNS$}"), style));
            heats.push(Span::styled(
                format!("{:^OFFICE_COLUMNS$}", heat_text(here.hottest_c)),
                style,
            ));
            if office < OFFICES {
                names.push(Span::raw(" "));
                heats.push(Span::raw(" "));
            }
        }
        let corridor = &picture.rooms[Room::corridor(storey).index()];
        let (letter, style) = room_style(corridor.verdict, true);
        let text = format!(
            "corridor {} {letter}   {}",
            storey + 1,
            heat_text(corridor.hottest_c)
        );
        let exit = if storey == 0 { " ◀ door" } else { "" };
        const SIDE: usize = 8;
        const BODY: usize = OFFICES * (OFFICE_COLUMNS + 1) - 1 - 2 * SIDE;
        let walk = vec![
            Span::raw("  "),
            Span::styled(format!("{exit:<SIDE$}"), style),
            Span::styled(format!("{text:^BODY$}"), style),
            Span::styled(format!("{:>SIDE$}", "stair "), style),
        ];
        lines.extend([Line::from(names), Line::from(heats), Line::from(walk)]);
    }
    frame.render_widget(Paragraph::new(lines), inner);
}

/// Returns a line with a figure's name at the left and its value at the right edge.
fn figure(name: &str, value: String, colour: Color, width: u16) -> Line<'static> {
    let gap = usize::from(width).saturating_sub(name.chars().count() + value.chars().count());
    Line::from(vec![
        Span::styled(name.to_owned(), Style::new().fg(DIM)),
        Span::raw(" ".repeat(gap)),
        Span::styled(value, Style::new().fg(colour)),
    ])
}

fn render_figures(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot<'_>) {
    let block = panel("sensor to flash");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [top, chart, rest] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Length(1),
        Constraint::Fill(1),
    ])
    .areas(inner);
    let width = inner.width;
    let lag_ns = snapshot.stats.map_or(0, |stats| stats.lag_ns);
    let lag_colour = if lag_ns > LAG_NS_HIGH { WARN } else { INK };
    frame.render_widget(
        Paragraph::new(vec![
            figure(
                "readings",
                format!("{} /s", grouped(snapshot.rate_per_s)),
                INK,
                width,
            )
            .bold(),
            figure("on flash", grouped(snapshot.acknowledged), GOOD, width),
            figure("on their way", grouped(snapshot.open), INK, width),
            figure("durable lag", duration(lag_ns), lag_colour, width),
        ]),
        top,
    );
    // The lag over time: each fall is a group commit.
    let columns = snapshot.lag_history.len().min(usize::from(width));
    let history = &snapshot.lag_history[snapshot.lag_history.len() - columns..];
    let peak = history.iter().copied().max().unwrap_or(0).max(LAG_NS_USUAL);
    let line = Sparkline::default().data(history.iter().copied()).max(peak);
    frame.render_widget(line.style(Style::new().fg(ACCENT)), chart);
    let figures = &snapshot.figures;
    let missed = figures.late;
    let fresh = snapshot.stats.map_or(0.0, |stats| stats.fresh_last);
    let fresh_colour = if fresh > 0.9 { GOOD } else { WARN };
    let tardiness = snapshot.stats.map_or(0.0, |stats| stats.tardiness_last);
    let tardy_colour = if tardiness < 1.0 { INK } else { BAD };
    let per_reading = |count: u64| {
        let share = if snapshot.acknowledged == 0 {
            0.0
        } else {
            count as f64 / snapshot.acknowledged as f64
        };
        format!("{share:.4}")
    };
    let late = format!("{} of {}", grouped(missed), grouped(figures.releases));
    let lines = vec![
        figure(
            "fresh",
            format!("{:.1} %", 100.0 * fresh),
            fresh_colour,
            width,
        ),
        figure("tardiness", format!("{tardiness:.3}"), tardy_colour, width),
        figure("late", late, if missed == 0 { GOOD } else { WARN }, width),
        figure(
            "writes/reading",
            per_reading(figures.device_writes),
            INK,
            width,
        ),
        figure(
            "flushes/reading",
            per_reading(figures.device_flushes),
            INK,
            width,
        ),
        match snapshot.kills_planned {
            0 => figure(
                "elapsed",
                format!("{:.1} s", snapshot.elapsed_s),
                INK,
                width,
            ),
            planned => figure(
                "kills",
                format!("{} of {planned}", snapshot.kills),
                BAD,
                width,
            ),
        },
        figure(
            "device",
            if snapshot.direct {
                "O_DIRECT"
            } else {
                "page cache"
            }
            .to_owned(),
            DIM,
            width,
        ),
    ];
    frame.render_widget(Paragraph::new(lines), rest);
}

fn render_fire(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot<'_>) {
    let block = panel("fire");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let picture = snapshot.picture();
    let count = |wanted: fn(&Verdict) -> bool| {
        picture
            .rooms
            .iter()
            .filter(|room| wanted(&room.verdict))
            .count()
    };
    let lost = count(|verdict| matches!(verdict, Verdict::Lost(_)));
    let threatened = count(|verdict| matches!(verdict, Verdict::Threatened(_)));
    let hottest = picture.hottest.map_or("none".to_owned(), |room| {
        format!("{room}, {:.0} °C", picture.rooms[room.index()].hottest_c)
    });
    let cause = picture
        .hottest
        .and_then(|room| match picture.rooms[room.index()].verdict {
            Verdict::Lost(cause) => Some(format!("lost to {cause}")),
            Verdict::Threatened(cause) => Some(format!("threatened by {cause}")),
            _ => None,
        });
    let heading = picture
        .heading_to
        .map_or("nowhere yet".to_owned(), |room| room.to_string());
    let width = inner.width;
    let heat_colour = if lost > 0 { BAD } else { INK };
    let lines = vec![
        figure("hottest", hottest, heat_colour, width).bold(),
        figure(
            "there",
            cause.unwrap_or_else(|| "survivable".to_owned()),
            heat_colour,
            width,
        ),
        figure(
            "heading for",
            heading,
            if picture.heading_to.is_some() {
                WARN
            } else {
                INK
            },
            width,
        ),
        figure(
            "rooms lost",
            format!("{lost} of {}", picture.rooms.len()),
            heat_colour,
            width,
        ),
        figure(
            "threatened",
            threatened.to_string(),
            if threatened > 0 { WARN } else { INK },
            width,
        ),
    ];
    frame.render_widget(Paragraph::new(lines), inner);
}

fn render_ways(frame: &mut Frame<'_>, area: Rect, picture: &Picture) {
    let block = panel("way out by stairs and main door");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let width = inner.width;
    let mut lines = Vec::new();
    for storey in (0..STOREYS).rev() {
        let (text, colour) = match picture.ways_out[storey] {
            WayOut::Unknown => ("? unknown", DIM),
            WayOut::Open => ("✔ open", GOOD),
            WayOut::Threatened => ("! open, threatened", WARN),
            WayOut::Cut => ("✘ CUT OFF", BAD),
        };
        lines.push(figure(
            &format!("storey {}", storey + 1),
            text.to_owned(),
            colour,
            width,
        ));
    }
    let cut = picture
        .ways_out
        .iter()
        .filter(|way| **way == WayOut::Cut)
        .count();
    let advice = if cut > 0 {
        "rescue through the windows"
    } else {
        "leave by the stairs"
    };
    lines.push(figure(
        "advice",
        advice.to_owned(),
        if cut > 0 { BAD } else { INK },
        width,
    ));
    frame.render_widget(Paragraph::new(lines), inner);
}

fn footer_line() -> Paragraph<'static> {
    let mut spans = vec![Span::raw(" ")];
    for (verdict, word) in [
        (Verdict::Safe, "survivable"),
        (
            Verdict::Threatened(super::analysis::Cause::Smoke),
            "threatened",
        ),
        (Verdict::Lost(super::analysis::Cause::Smoke), "lost"),
        (Verdict::Unknown, "no data"),
    ] {
        let (letter, style) = room_style(verdict, false);
        spans.push(Span::styled(format!(" {letter} "), style));
        spans.push(Span::styled(format!(" {word}   "), Style::new().fg(DIM)));
    }
    spans.push(Span::styled("q", Style::new().fg(INK).bold()));
    spans.push(Span::styled(" stop", Style::new().fg(DIM)));
    Paragraph::new(Line::from(spans)).alignment(Alignment::Left)
}

#[cfg(test)]
mod tests {
    use super::super::analysis::{Cause, RoomPicture};
    use super::super::protocol::Stats;
    use super::super::state::tests_snapshot;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn draw(columns: u16, lines: u16, stats: Option<&Stats>) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
        let snapshot = tests_snapshot(stats);
        terminal.draw(|frame| render(frame, &snapshot)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let row = |y| {
            (0..buffer.area.width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..buffer.area.height)
            .map(row)
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn burning() -> Stats {
        let mut stats = Stats {
            trace_ms: 154_000,
            lag_ns: 121_000_000,
            fresh_last: 0.994,
            ..Stats::default()
        };
        let picture = &mut stats.picture;
        picture.rooms = [RoomPicture {
            verdict: Verdict::Safe,
            hottest_c: 20.0,
        }; 32];
        let office = Room::from_name("office 23").unwrap();
        picture.rooms[office.index()] = RoomPicture {
            verdict: Verdict::Lost(Cause::Heat),
            hottest_c: 511.0,
        };
        picture.hottest = Some(office);
        picture.heading_to = Some(Room::corridor(1));
        picture.ways_out = [
            WayOut::Open,
            WayOut::Threatened,
            WayOut::Threatened,
            WayOut::Cut,
        ];
        stats
    }

    #[test]
    fn the_view_repeats_its_colours_in_letters() {
        let text = draw(80, 24, Some(&burning()));
        for wanted in [
            "23 X",
            "22 S",
            "511°",
            "office 23, 511 °C",
            "corridor 2",
            "CUT OFF",
            "99.4 %",
            "02:34 of 05:00",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() == 80));
    }

    #[test]
    fn any_size_of_terminal_is_drawn_without_a_panic() {
        for (columns, lines) in [(1, 1), (10, 3), (40, 12), (80, 24), (79, 23), (200, 60)] {
            draw(columns, lines, Some(&burning()));
            draw(columns, lines, None);
        }
    }
}
