//! The peer "FUSE on demand": the same mount and protocol as ours, without other features. It fetches only what the
//! kernel requests: no neighbours of a block, no prefetched blocks, no blocks stored into the page cache in advance.

use std::path::PathBuf;
use std::sync::Arc;

use stream::device::{Device, Publisher, Settings};
use stream_mount::MountOptions;

/// `keel-bench stream-plain`, with the words of `keel stream mount`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// Address of the server.
    #[arg(value_name = "ADDR")]
    server: String,
    /// An empty directory.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Folder of the device's certificate.
    #[arg(long, value_name = "DIR")]
    identity: PathBuf,
    /// Folder for the note of versions seen.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// What the kernel reads ahead.
    #[arg(long, value_name = "KIB", default_value_t = 0)]
    readahead_kb: u32,
}

/// Mounts, and unmounts on a termination signal.
///
/// # Errors
/// One line: no server, or the directory cannot be used as a mount point.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    // Called before threads are started, because they inherit the signal mask.
    let ends = block_ends();
    let mut settings = Settings::new(&options.server, Publisher::FirstSeen);
    settings.tls = Some(options.identity.clone());
    settings.state = Some(options.state.clone());
    settings.around = false;
    let device = Device::start(settings).map_err(|error| error.to_string())?;
    let how = MountOptions {
        source: options.server.clone(),
        read_ahead_kib: options.readahead_kb,
        ..MountOptions::default()
    };
    let source = Arc::new(device.clone());
    let mounted = stream_mount::mount(source, &options.directory, &how, None, || {})
        .map_err(|error| error.to_string())?;
    let mut signal = 0;
    // SAFETY: both live as long as the call.
    unsafe { libc::sigwait(&raw const ends, &raw mut signal) };
    let _ = mounted.end();
    device.stop();
    Ok(())
}

/// Blocks termination signals, so that they wait for `sigwait`.
fn block_ends() -> libc::sigset_t {
    // SAFETY: all-zero is a valid value of this plain structure, which the calls fill; it lives during the calls.
    unsafe {
        let mut ends: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut ends);
        for signal in [libc::SIGINT, libc::SIGTERM] {
            libc::sigaddset(&raw mut ends, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const ends, std::ptr::null_mut());
        ends
    }
}
