//! `keel top`: the node's figures in a terminal, polled over its socket once per second.

use super::connection::Connection;
use super::endpoint::NodeArgs;
use super::error::strange;
use super::top_view::{Seen, render};
use crate::error::CliError;
use crate::output::Output;
use crate::signals;
use clap::Args;
use libkeel::protocol::{self, Kind};
use node::status::Report;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Poll interval of the node.
const PERIOD: Duration = Duration::from_secs(1);
/// Poll interval of the keyboard.
const KEY_PERIOD: Duration = Duration::from_millis(100);
/// Size of the picture of `--once`.
const COLUMNS: u16 = 80;
const LINES: u16 = 24;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel top\n  \
    keel top --once --node /run/keel/keel.sock\n\n\
    Press q to quit. The view asks the node once a second; if the node does not answer, the view says so and waits.")]
pub(crate) struct TopArgs {
    /// Print one view as text, and end; for logs, and where there is no terminal
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    node: NodeArgs,
}

pub(super) fn run(arguments: &TopArgs) -> Result<u8, CliError> {
    let mut seen = Seen::default();
    if arguments.once {
        // Ask twice, because rates are differences.
        let mut connection = Connection::open(&arguments.node)?;
        seen.take(ask(&mut connection)?);
        std::thread::sleep(PERIOD);
        seen.take(ask(&mut connection)?);
        return once(&seen);
    }
    if !std::io::stdout().is_terminal() {
        let remedy = "take --once, or `keel status`";
        return Err(CliError::usage("standard output", "is no terminal", remedy));
    }
    // A node that is not available at the start is an error of the user.
    let mut connection = Some(Connection::open(&arguments.node)?);
    signals::catch_stop();
    let mut terminal = ratatui::try_init().map_err(|error| CliError::io("terminal", &error))?;
    let result = watch(&mut terminal, &mut seen, &mut connection, &arguments.node);
    ratatui::try_restore().ok();
    result.map(|()| 0)
}

fn once(seen: &Seen) -> Result<u8, CliError> {
    let unable = |_| CliError::failure("terminal", "cannot be drawn", "");
    let mut terminal = Terminal::new(TestBackend::new(COLUMNS, LINES)).map_err(unable)?;
    terminal.draw(|frame| render(frame, seen)).map_err(unable)?;
    let buffer = terminal.backend().buffer();
    let mut output = Output::new();
    for y in 0..LINES {
        let row: String = (0..COLUMNS).map(|x| buffer[(x, y)].symbol()).collect();
        output.line(row.trim_end())?;
    }
    output.flush()?;
    Ok(seen.exit_status())
}

fn ask(connection: &mut Connection) -> Result<Report, CliError> {
    let state: serde_json::Value =
        connection.ask(Kind::Status, &protocol::Status {}, Kind::State)?;
    serde_json::from_value(state).map_err(|error| strange("status", error))
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    seen: &mut Seen,
    connection: &mut Option<Connection>,
    node: &NodeArgs,
) -> Result<(), CliError> {
    loop {
        let begun = Instant::now();
        let asked = match connection.as_mut() {
            Some(open) => ask(open),
            None => Connection::open(node).and_then(|mut open| {
                let report = ask(&mut open)?;
                *connection = Some(open);
                Ok(report)
            }),
        };
        match asked {
            Ok(report) => seen.take(report),
            Err(error) => {
                *connection = None;
                seen.lose(error.to_string());
            }
        }
        terminal
            .draw(|frame| render(frame, seen))
            .map_err(|error| CliError::io("terminal", &error))?;
        // Check at least once: a node that does not answer may delay longer than a period.
        loop {
            if signals::stop_requested() || is_ended(terminal, seen)? {
                return Ok(());
            }
            if begun.elapsed() >= PERIOD {
                break;
            }
        }
    }
}

/// Waits briefly for a key. Returns whether it asks for the end.
fn is_ended(terminal: &mut ratatui::DefaultTerminal, seen: &Seen) -> Result<bool, CliError> {
    if !event::poll(KEY_PERIOD).unwrap_or(false) {
        return Ok(false);
    }
    match event::read() {
        Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => {
            let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
            Ok(matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
                || (is_control && key.code == KeyCode::Char('c')))
        }
        Ok(Event::Resize(..)) => {
            let drawn = terminal.draw(|frame| render(frame, seen));
            drawn.map_err(|error| CliError::io("terminal", &error))?;
            Ok(false)
        }
        _ => Ok(false),
    }
}
