//! The peer "FUSE on demand": the same mount and the same wire as ours, and nothing else. No neighbours are asked for
//! with a block, nothing is prefetched, nothing is put into the page cache: what the kernel asks for is what comes.

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

/// Mounts, and unmounts when it is asked to end.
///
/// # Errors
/// One line: no server, or the directory cannot be mounted on.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    // Before there are threads, which take it over.
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

/// Lets signals that ask for an end wait until somebody asks for them.
fn block_ends() -> libc::sigset_t {
    // SAFETY: all-zero is a valid value of this plain structure, which the calls fill; it lives as long as they run.
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
