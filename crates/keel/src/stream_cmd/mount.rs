//! `keel stream mount`: a published tree as a directory, until it is unmounted or told to stop.

use super::complete::CompleteMode;
use super::link::{self, LinkArgs, Need};
use super::store_error::shell_word;
use crate::error::CliError;
use crate::mounting::{self, StopSignals, unmount_command};
use crate::output::{Output, counted};
use clap::Args;
use node::status::MountTraffic;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stream::device::{Device, DeviceError, FailureKind, Settings};
use stream_mount::{Guard, MountError, MountOptions};
use tokio::sync::{Notify, oneshot};

/// Connections of a mount, at most: the number that a server allows one device.
const CONNECTIONS_MAX: u32 = 16;

/// Poll interval of the server's state, and the pause after a message about it.
const LOOK: Duration = Duration::from_secs(1);
const TOLD_PAUSE: Duration = Duration::from_secs(5);

/// Failures of the cache that are reported, at most; `keel stream status` shows the last one.
const CACHE_TOLD_MAX: usize = 8;

/// The text in each failure for lack of room.
const DISK_FULL: &str = "the disk is full";

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream mount 127.0.0.1:7007 /mnt/plant --insecure\n  \
    keel stream mount plant.example:7007 /mnt/plant --identity device --publisher plant.key.pub\n  \
    keel stream mount plant.example:7007 /mnt/plant --identity device --cache /var/cache/plant --complete=files\n\n\
    The mount runs until `umount DIR`, Ctrl-C or SIGTERM. With --cache, a program that has run once runs again\n\
    without a network. docs/semantics-stream.md lists what programs can do there.")]
pub(crate) struct MountArgs {
    /// Server, such as plant.example:7007
    server: String,
    /// Empty directory to mount the tree on
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    link: LinkArgs,
    /// Maximum number of blocks of 4 KiB that wait in memory until they are read; 0: none are pooled
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pool_pages: u32,
    /// Have a thread allocate free pages for --pool-pages more blocks ahead of their use, as the paper's Allocator
    /// does. Without this option, used pages are taken again
    #[arg(long)]
    pool_filled: bool,
    /// Number of connections to the server: up to 16, or `each` for one for each processor
    #[arg(long, value_name = "N", default_value = "1")]
    connections: String,
    /// Timeout after which a program that waits for a block gets an error, in s, from 1 to 3600
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    deadline_s: u64,
    /// What to fetch into the cache when the mount is idle; without a value `files`
    #[arg(long, value_name = "WHAT", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(
        default_value = "near",
        default_missing_value = "files",
        requires = "cache"
    )]
    complete: CompleteMode,
    /// Give other users access
    #[arg(long)]
    allow_other: bool,
    /// Show only this part of the tree, with everything in it; may be repeated [default: the whole tree]
    #[arg(long = "only", value_name = "PATH")]
    redirect: Vec<PathBuf>,
    /// Interval between two lines of JSON with figures of the mount's reads, for a supervisor, in s, from 1 to 3600
    #[arg(long = "figures", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    figures_s: Option<u32>,
    /// Readahead of the kernel, in KiB; for comparisons
    #[arg(long, value_name = "KIB", default_value_t = 0, hide = true)]
    readahead_kb: u32,
}

/// Runs until the mount ends.
pub(super) fn run(arguments: &MountArgs) -> Result<u8, CliError> {
    let directory = arguments.directory.as_path();
    let wrong = |error: MountError| match &error {
        MountError::Refused(text) if text.ends_with("is not in the tree") => CliError::usage(
            "--only",
            text,
            "give paths of the published tree, such as bin",
        ),
        _ => mounting::mount_error(directory, &error),
    };
    // Start it while this process is small and has only one thread.
    let guard = Guard::start().map_err(|error| CliError::io("guard process", &error))?;
    // First remove what a killed mount has left. Then the cheap checks: a mistyped directory should not contact a
    // server.
    if stream_mount::clear_dead(directory).map_err(wrong)? {
        eprintln!(
            "keel: {}: the mount of a process that has ended was there, and is taken away",
            directory.display()
        );
    }
    base::mount::check_directory(directory).map_err(wrong)?;
    link::check_places(directory, &arguments.link)?;
    // Before a folder or a cache is made.
    if arguments.pool_filled && arguments.pool_pages == 0 {
        return Err(CliError::usage(
            "--pool-filled",
            "a pool of 0 pages has none to allocate",
            "leave it out, or give --pool-pages 1 or more",
        ));
    }
    let connections = connections(&arguments.connections)?;
    let mut settings = link::settings(&arguments.server, &arguments.link, Need::May)?;
    settings.pool_pages = arguments.pool_pages as usize;
    settings.pool_is_filled = arguments.pool_filled;
    settings.connections = connections;
    settings.deadline = Duration::from_secs(arguments.deadline_s);
    // If the kernel reads ahead, keel does not: this mode is for comparison with the kernel's read-ahead alone.
    settings.around = arguments.readahead_kb == 0;
    let options = MountOptions {
        source: arguments.server.clone(),
        allows_other_users: arguments.allow_other,
        redirect: arguments.redirect.clone(),
        read_ahead_kib: arguments.readahead_kb,
    };
    mounting::runtime()?.block_on(async {
        // Catch signals from here on: the parent may stop this process as soon as it is mounted.
        let mut stops = StopSignals::catch()?;
        let starting = started(settings)?;
        let device = tokio::select! {
            device = starting => device.map_err(|_| CliError::failure("start", "has ended", "try again"))?,
            signal = stops.wait_number() => return Ok(interrupted(signal)),
        };
        let device = device
            .map_err(|error| link::device_error(&arguments.server, &arguments.link, &error))?;
        let unmounted = Arc::new(Notify::new());
        let tell = Arc::clone(&unmounted);
        let source = Arc::new(device.clone());
        let mounted = stream_mount::mount(source, directory, &options, Some(guard), move || {
            tell.notify_one();
        })
        .map_err(wrong)?;
        link::warn(&arguments.server, &arguments.link, &device);
        say_ready(arguments, &device);
        if arguments.link.cache.is_some() && arguments.complete != CompleteMode::None {
            super::complete::start(device.clone(), arguments.complete)?;
        }
        tokio::select! {
            () = stops.wait() => tell_running(directory, &device),
            () = unmounted.notified() => {}
            () = tell_failures(arguments, &device) => {}
            () = print_figures(arguments.figures_s, &device) => {}
        }
        let ending = mounted.end();
        device.stop();
        let kept_in = "nowhere: the mount is read-only";
        mounting::tell_end(
            directory,
            &ending,
            kept_in,
            "what has come is kept in the cache",
        );
        Ok(u8::from(ending.was_aborted))
    })
}

/// Starts the device on a thread of its own. On a signal that thread is abandoned, because a name lookup or a silent
/// server may take long.
fn started(settings: Settings) -> Result<oneshot::Receiver<Result<Device, DeviceError>>, CliError> {
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new()
        .name("stream-start".to_owned())
        .spawn(move || {
            tell.send(Device::start(settings)).ok();
        })
        .map_err(|error| CliError::io("thread", &error))?;
    Ok(told)
}

/// Returns the exit status of a command that a signal ended before it did anything, as shells define it.
fn interrupted(signal: libc::c_int) -> u8 {
    u8::try_from(128 + signal).unwrap_or(1)
}

/// Reports why there is no server, what the server cannot give, and failures of the cache: once for each reason, and
/// when it is over. Never returns.
async fn tell_failures(arguments: &MountArgs, device: &Device) {
    let server = arguments.server.as_str();
    let mut told: Option<FailureKind> = None;
    let place = arguments.link.cache.as_deref().unwrap_or(Path::new(""));
    // Failures at the start have already been reported.
    let mut told_of_cache: Vec<String> = device.cache_failure().map(kind_of).into_iter().collect();
    loop {
        let cache_failure = device.cache_failure();
        match &cache_failure {
            Some(failure) if told_of_cache.len() < CACHE_TOLD_MAX => {
                let kind = kind_of(failure.clone());
                if !told_of_cache.contains(&kind) {
                    eprintln!(
                        "keel: {}: the cache fails: {failure}; what it does not keep is fetched each time",
                        place.display()
                    );
                    told_of_cache.push(kind);
                }
            }
            None if told_of_cache.iter().any(|kind| kind == DISK_FULL) => {
                eprintln!("keel: {}: its disk has room again", place.display());
                told_of_cache.retain(|kind| kind != DISK_FULL);
            }
            _ => {}
        }
        let failure = device.server_failure();
        match failure {
            Some(failure) if told != Some(failure.kind) => {
                told = Some(failure.kind);
                let remedy = link::remedy_of(device, failure.kind);
                let what = match device.is_connected() {
                    true => "",
                    false => "no connection: ",
                };
                eprintln!("keel: {server}: {what}{failure}; {remedy}");
            }
            None if told == Some(FailureKind::Damaged) && device.is_connected() => {
                told = None;
                eprintln!("keel: {server}: what was damaged there has come");
            }
            None if told.is_some() && device.is_connected() => {
                told = None;
                eprintln!("keel: {server}: connected again");
            }
            _ => {
                tokio::time::sleep(LOOK).await;
                continue;
            }
        }
        // Pause, so that an unstable server does not fill a log.
        tokio::time::sleep(TOLD_PAUSE).await;
    }
}

/// Prints a [`MountTraffic`] at each interval. Never returns; a supervisor that does not read any more stops nothing.
async fn print_figures(interval_s: Option<u32>, device: &Device) {
    let Some(interval_s) = interval_s else {
        return std::future::pending().await;
    };
    let mut out = Output::new();
    while out.is_open() {
        tokio::time::sleep(Duration::from_secs(interval_s.into())).await;
        let counters = device.counters();
        let figures = MountTraffic {
            connections: Some(counters.connected),
            reads: counters.reads,
            reads_local: counters.reads_staged + counters.reads_cached,
            reads_failed: counters.reads_late + counters.reads_failed,
            bytes_received: counters.bytes_received,
        };
        out.json(&json!({"figures": figures})).ok();
        out.flush().ok();
    }
    std::future::pending().await
}

/// Returns the kind of a failure: the same failure in other words is reported once.
fn kind_of(failure: String) -> String {
    match failure.contains(DISK_FULL) {
        true => DISK_FULL.to_owned(),
        false => failure,
    }
}

/// Warns that programs still run from the mount that must end.
fn tell_running(directory: &Path, device: &Device) {
    let running = device.counters().tasks_now;
    if running > 0 {
        eprintln!(
            "keel: {}: {} running from here; a block that is not read yet ends a program (SIGBUS)",
            directory.display(),
            counted(running, "program")
        );
    }
}

fn say_ready(arguments: &MountArgs, device: &Device) {
    let manifest = device.manifest();
    let mut out = Output::new();
    let said = out
        .line(format_args!(
            "version {} of {} is mounted on {}: {} files, directories and links{}; `{} {}` or Ctrl-C ends it",
            manifest.version,
            arguments.server,
            arguments.directory.display(),
            manifest.nodes.len(),
            match device.counters().connects {
                0 => ", without network, from the cache",
                _ => "",
            },
            unmount_command(),
            shell_word(&arguments.directory)
        ))
        .and_then(|()| out.flush());
    // The mount is valid even if its parent does not read the message.
    said.ok();
    link::tell_lacking(&arguments.server, device, &device.programs_before());
}

fn connections(text: &str) -> Result<u32, CliError> {
    if text == "each" {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        return Ok((processors as u32).min(CONNECTIONS_MAX));
    }
    let number: Option<u32> = text.parse().ok();
    number
        .filter(|number| (1..=CONNECTIONS_MAX).contains(number))
        .ok_or_else(|| {
            let remedy = format!("give a number from 1 to {CONNECTIONS_MAX}, or `each`");
            let wrong = format!("{text} is neither a number that is allowed nor `each`");
            CliError::usage("--connections", wrong, remedy)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_a_number_or_one_for_each_processor() {
        assert_eq!(connections("3").unwrap(), 3);
        assert!((1..=CONNECTIONS_MAX).contains(&connections("each").unwrap()));
        for text in ["0", "17", "-1", "all", ""] {
            assert!(connections(text).is_err(), "{text}");
        }
    }
}
