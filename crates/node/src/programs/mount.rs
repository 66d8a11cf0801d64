//! A mount: `keel stream mount` as a process of its own. So a FUSE file system can block only its callers and not the
//! node. It is restarted while the node runs.

use super::output::Output;
use super::process::{self, Process};
use super::surroundings::{Surroundings, absolute};
use super::watch::{self, Event, Watch};
use crate::log;
use crate::status::{MountFigures, MountTraffic};
use config::MountConfig;
use serde::Deserialize;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Poll interval of the mount's state.
const LOOK: Duration = Duration::from_millis(500);

/// Pauses before a restart.
const RESTART_MS_MIN: u64 = 500;
const RESTART_MS_MAX: u64 = 30_000;

/// A mount that is not available after this time counts as failing: an unreachable server keeps it waiting.
const COMING_MAX: Duration = Duration::from_secs(10);

/// Interval at which the process prints its figures. The node does not ask the mount itself: a call to a mount that
/// hangs cannot be ended.
const FIGURES_SECONDS: &str = "2";

/// Part of the line by which the process reports that the tree is mounted.
const READY: &str = " is mounted on ";

/// Returns the figures before the first start.
pub(super) fn figures(config: &MountConfig) -> MountFigures {
    MountFigures {
        name: config.name.clone(),
        server: config.server.clone(),
        directory: config.directory.display().to_string(),
        ..MountFigures::default()
    }
}

/// Returns the figures for the status.
pub(super) fn shown(watch: &Watch<MountFigures>) -> MountFigures {
    watch.figures().clone()
}

/// Runs the mount until the end is requested.
pub(super) fn run(
    config: &MountConfig,
    around: &Surroundings,
    watch: &Watch<MountFigures>,
    events: &Receiver<Event>,
) {
    let mut output = Output::new("mount", &config.name);
    let (mut number, mut pause_ms) = (0, RESTART_MS_MIN);
    while !watch.is_stopped() {
        number += 1;
        let begun = Instant::now();
        let why = match start(config, around, watch, number) {
            Ok(process) => match attend(process, watch, events, &mut output) {
                Some(why) => why,
                None => return,
            },
            Err(why) => why,
        };
        log::event("mount", format!("{} failed: {why}", config.name));
        {
            let mut figures = watch.figures();
            figures.is_gone();
            figures.failed += 1;
            figures.failing = true;
            figures.last_error = Some(why);
        }
        if begun.elapsed() >= Duration::from_millis(RESTART_MS_MAX) {
            pause_ms = RESTART_MS_MIN;
        }
        let until = Instant::now() + Duration::from_millis(pause_ms);
        pause_ms = (pause_ms * 2).min(RESTART_MS_MAX);
        while !watch.is_stopped() && Instant::now() < until {
            watch::next(events, until.saturating_duration_since(Instant::now()));
        }
    }
}

fn start(
    config: &MountConfig,
    around: &Surroundings,
    watch: &Watch<MountFigures>,
    number: u64,
) -> Result<Process, String> {
    watch.figures().starts += 1;
    let directory = absolute(&config.directory);
    // A stale mount of a killed process fails `stat` with another error; the next mount replaces it.
    if directory
        .symlink_metadata()
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
    {
        let made = make_readable(&directory);
        made.map_err(|error| {
            let why = command::error::describe(&error);
            format!("{} cannot be made: {why}", directory.display())
        })?;
    }
    let process = Process::start(command(config, around), number, &[], watch)
        .map_err(|error| format!("cannot be started: {}", command::error::describe(&error)))?;
    watch.figures().process = Some(process.id());
    Ok(process)
}

/// Makes a folder, and those above it that are missing. Programs of all users reach the mount through them, also under
/// the node's umask.
fn make_readable(folder: &Path) -> std::io::Result<()> {
    let missing = folder.ancestors().take_while(|one| !one.exists());
    let missing: Vec<&Path> = missing.collect();
    std::fs::create_dir_all(folder)?;
    for one in missing {
        std::fs::set_permissions(one, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn command(config: &MountConfig, around: &Surroundings) -> Command {
    let mut command = process::command(&around.program, around);
    command
        .args(["stream", "mount", &config.server])
        .arg(absolute(&config.directory))
        .args(["--figures", FIGURES_SECONDS]);
    match &config.identity {
        Some(folder) => command.arg("--identity").arg(absolute(folder)),
        None => command.arg("--insecure"),
    };
    if let Some(key) = &config.publisher {
        command.args(["--publisher", key]);
    }
    if let Some(cache) = &config.cache {
        let bytes = u64::from(config.cache_mebibytes_max) << 20;
        command.arg("--cache").arg(absolute(cache));
        command.args(["--cache-size", &bytes.to_string()]);
    }
    if let Some(state) = &config.state {
        command.arg("--state").arg(absolute(state));
    }
    command
}

/// Attends a mount until it ends. Returns why it ended; `None` if that was requested.
fn attend(
    process: Process,
    watch: &Watch<MountFigures>,
    events: &Receiver<Event>,
    output: &mut Output<'_>,
) -> Option<String> {
    let number = process.number();
    loop {
        match watch::next(events, LOOK) {
            Some(Event::Line(_, text)) if take_traffic(&text, watch) => {}
            Some(Event::Line(_, text)) => {
                output.line(&text);
                let mut figures = watch.figures();
                if !figures.mounted && text.contains(READY) {
                    (figures.mounted, figures.failing) = (true, false);
                } else if !figures.mounted {
                    figures.last_error = Some(plain(&text));
                }
            }
            Some(Event::Ended(of, at_ns)) if of == number => {
                process::last_lines(events, number, |text| {
                    if !take_traffic(text, watch) {
                        output.line(text);
                    }
                });
                let end = process.ended(at_ns);
                return Some(
                    match output.take_last().filter(|last| !last.contains(READY)) {
                        Some(last) => plain(&last),
                        None => end.text(),
                    },
                );
            }
            _ => {}
        }
        if watch.is_stopped() {
            process.end(events, |text| {
                if !take_traffic(text, watch) {
                    output.line(text);
                }
            });
            let mut figures = watch.figures();
            figures.is_gone();
            return None;
        }
        let mut figures = watch.figures();
        if !figures.mounted && !figures.failing && process.begun.elapsed() >= COMING_MAX {
            figures.failing = true;
            figures
                .last_error
                .get_or_insert_with(|| "its server has not answered yet".to_owned());
        }
    }
}

/// Takes the figures from a line of the process. Returns whether the line holds figures.
fn take_traffic(line: &str, watch: &Watch<MountFigures>) -> bool {
    #[derive(Deserialize)]
    struct Line {
        figures: MountTraffic,
    }
    if !line.starts_with('{') {
        return false;
    }
    let found: Option<Line> = serde_json::from_str(line).ok();
    if let Some(Line { figures }) = &found {
        watch.figures().traffic = *figures;
    }
    found.is_some()
}

/// Returns a line of `keel` without the program name.
fn plain(line: &str) -> String {
    line.strip_prefix("keel: ").unwrap_or(line).to_owned()
}
