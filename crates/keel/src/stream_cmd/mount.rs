//! `keel stream mount`: a published tree as a directory, until it is unmounted or told to stop.

use super::link::{self, Need};
use crate::cli::{StreamComplete, StreamMountArgs};
use crate::error::CliError;
use crate::mounting::{self, Stops, unmount_command};
use crate::output::Output;
use std::sync::Arc;
use std::time::Duration;
use stream::device::Device;
use stream_mount::{Guard, MountError, MountOptions};
use tokio::sync::Notify;

/// Connections of a mount, at most: as many as a server allows one device.
const CONNECTIONS_MAX: u32 = 16;

/// Runs until the end of the mount.
pub(super) fn run(arguments: &StreamMountArgs) -> Result<u8, CliError> {
    let directory = arguments.directory.as_path();
    let wrong = |error: MountError| match &error {
        MountError::Refused(text) if text.ends_with("is not in the tree") => CliError::usage(
            "--only",
            text,
            "give paths of the published tree, such as bin",
        ),
        _ => mounting::mount_error(directory, &error),
    };
    // While this process is small and has one thread.
    let guard = Guard::start().map_err(|error| CliError::io("guard process", &error))?;
    // What a killed mount has left is taken away; then what costs nothing: a mistyped directory asks no server.
    if stream_mount::clear_dead(directory).map_err(wrong)? {
        eprintln!(
            "keel: {}: the mount of a process that has ended was there, and is taken away",
            directory.display()
        );
    }
    base::mount::check_directory(directory).map_err(wrong)?;
    let mut settings = link::settings(&arguments.server, &arguments.link, Need::May)?;
    settings.pool_pages = arguments.pool_pages as usize;
    settings.connections = connections(&arguments.connections)?;
    settings.deadline = Duration::from_secs(arguments.deadline_s);
    // Where the kernel reads ahead, nothing else does: what is compared with is that alone.
    settings.around = arguments.readahead_kb == 0;
    let options = MountOptions {
        source: arguments.server.clone(),
        allows_other_users: arguments.allow_other,
        redirect: arguments.redirect.clone(),
        read_ahead_kib: arguments.readahead_kb,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::io("signals", &error))?;
    runtime.block_on(async {
        // Signals count from here on: whoever starts this may stop it as soon as it is mounted.
        let mut stops = Stops::heed()?;
        let device = Device::start(settings)
            .map_err(|error| link::device_error(&arguments.server, &error))?;
        let unmounted = Arc::new(Notify::new());
        let tell = Arc::clone(&unmounted);
        let source = Arc::new(device.clone());
        let mounted = stream_mount::mount(source, directory, &options, Some(guard), move || {
            tell.notify_one();
        })
        .map_err(wrong)?;
        link::warn(&arguments.server, &arguments.link, &device);
        say_ready(arguments, &device);
        if arguments.link.cache.is_some() && arguments.complete != StreamComplete::None {
            super::complete::start(device.clone(), arguments.complete)?;
        }
        tokio::select! {
            () = stops.come() => {}
            () = unmounted.notified() => {}
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

fn say_ready(arguments: &StreamMountArgs, device: &Device) {
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
            arguments.directory.display()
        ))
        .and_then(|()| out.flush());
    // A mount whose starter does not listen is a mount all the same.
    said.ok();
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
            CliError::usage("--connections", format!("{text} is neither"), remedy)
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
