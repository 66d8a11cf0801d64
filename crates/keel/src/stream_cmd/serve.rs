//! `keel stream serve`: serves a store until a signal ends it.

use super::identity::failure;
use super::store_error::store_error;
use crate::argument::size;
use crate::error::CliError;
use crate::mounting::StopSignals;
use crate::output::Output;
use clap::{ArgGroup, Args, ValueEnum};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stream::predict::Mode;
use stream::predict::paper::{SEG_MAX_MAX, SEG_MAX_MIN};
use stream::provide::Arm;
use stream::server::{Identity, Server, ServerError, Settings};
use stream::tls::{CERTIFICATE_FILE, DEVICES_FILE, TlsError};

/// Threads that read the disk and compress.
const BLOCKING_THREADS_MAX: usize = 4;

/// One part in `BUNDLE_SHARE` of the given memory is for compressed pieces of plans; the rest is for content.
const BUNDLE_SHARE: u64 = 4;

/// The least memory of a server.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// How a server predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PredictMode {
    /// One action for a task across all files, sent at once
    Task,
    /// As in the paper: actions of an executable, sent segment by segment
    Paper,
    /// Nothing
    None,
}

/// What a server loads into memory before a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProvideMode {
    /// Nothing
    None,
    /// When a task begins, its program and the files that its known actions name, read ahead by the kernel; with
    /// --predict paper all files with actions
    Madvise,
    /// At the start, segments whose blocks are scattered over their file, and first segments
    Variance,
    /// The same as variance, and the next three segments of what is being sent
    Async,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("trust").required(true).args(["identity", "insecure"])))]
#[command(after_help = "Examples:\n  \
    keel stream serve plant.store --listen 127.0.0.1:7007 --insecure\n  \
    keel stream serve plant.store --listen 0.0.0.0:7007 --identity server --metrics 127.0.0.1:9107\n\n\
    The server runs until Ctrl-C or SIGTERM, and then saves what it has learned in the store. It detects new\n\
    versions, and changes of the list of devices, without a restart. `keel stream identity` makes the folder of\n\
    --identity.")]
pub(crate) struct ServeArgs {
    /// Store
    store: PathBuf,
    /// Address to listen on, such as 0.0.0.0:7007; port 0: any free port
    #[arg(long, value_name = "ADDR", value_parser = address)]
    listen: SocketAddr,
    /// Folder with the server's certificate
    #[arg(long, value_name = "DIR")]
    identity: Option<PathBuf>,
    /// The authority's list of devices [default: file devices in the folder of --identity]
    #[arg(
        long,
        value_name = "FILE",
        requires = "identity",
        conflicts_with = "insecure"
    )]
    devices: Option<PathBuf>,
    /// Use no TLS and no certificates: only on a loopback address
    #[arg(long)]
    insecure: bool,
    /// Method of prediction
    #[arg(long, value_enum, default_value = "task")]
    predict: PredictMode,
    /// Number of blocks of a segment with --predict paper, from 4 to 1024. Above 32, actions are matched at three
    /// places instead of two [default: 32]
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(i64::from(SEG_MAX_MIN)..=i64::from(SEG_MAX_MAX)))]
    seg_max: Option<u32>,
    /// What to load into memory before a request
    #[arg(long, value_enum, default_value = "async")]
    provide: ProvideMode,
    /// Do not compress learned actions ahead at the start: for comparisons, since a start then waits for the disk
    #[arg(long, hide = true)]
    no_preparation: bool,
    /// Memory for content, in bytes or with K, M or G; at least 1M
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = memory)]
    memory: u64,
    /// Address of the metrics for Prometheus, such as 127.0.0.1:9107
    #[arg(long, value_name = "ADDR", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// Maximum number of devices at the same time, from 1 to 65536
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    clients_max: u32,
    /// Maximum number of mounts and other programs at the same time with one device's certificate
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    clients_max_per_device: u32,
}

/// Where a server listens.
fn address(text: &str) -> Result<SocketAddr, String> {
    let example = "write an address and a port, such as 0.0.0.0:7007, or 127.0.0.1:7007 for this machine alone";
    text.parse().map_err(|_| example.to_owned())
}

/// Memory for content: less than some segments would be as good as none, and is a slip of the pen.
fn memory(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes @ MEMORY_BYTES_MIN.. => Ok(bytes),
        _ => Err("give 1M or more".to_owned()),
    }
}

pub(super) fn run(arguments: &ServeArgs) -> Result<u8, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
        .map_err(|error| CliError::io("stream serve", &error))?;
    let settings = settings(arguments)?;
    runtime.block_on(async {
        // Do this before anything that takes time: the parent may end this process at once.
        let mut stops = StopSignals::catch()?;
        let failed = |error| server_error(arguments, &error);
        let server = Server::bind(settings).await.map_err(failed)?;
        let mut out = Output::new();
        out.line(format_args!(
            "serving version {} of {} on {}",
            server.version(),
            arguments.store.display(),
            server.address().unwrap_or(arguments.listen)
        ))?;
        if let Some(address) = server.metrics_address() {
            out.line(format_args!("metrics on http://{address}/metrics"))?;
        }
        out.flush()?;
        server.run(stops.wait()).await.map_err(failed)?;
        Ok(0)
    })
}

fn settings(arguments: &ServeArgs) -> Result<Settings, CliError> {
    let mut settings = Settings::new(arguments.store.clone(), arguments.listen);
    if let Some(folder) = &arguments.identity {
        settings.identity = Some(identity(folder, arguments.devices.as_deref())?);
    }
    settings.metrics = arguments.metrics;
    settings.predict = mode(arguments.predict);
    if let Some(seg_max) = arguments.seg_max {
        if settings.predict != Mode::Paper {
            let wrong = "only --predict paper has segments";
            return Err(CliError::usage(
                "--seg-max",
                wrong,
                "leave it out, or add --predict paper",
            ));
        }
        settings.seg_max = seg_max;
    }
    settings.provide = match arguments.provide {
        ProvideMode::None => Arm::None,
        ProvideMode::Madvise => Arm::Madvise,
        ProvideMode::Variance => Arm::Variance,
        ProvideMode::Async => Arm::Async,
    };
    if arguments.no_preparation {
        // Nothing is compressed once more, so nothing is read for it.
        settings.bundle_level = 0;
    }
    settings.bundle_bytes_max = arguments.memory / BUNDLE_SHARE;
    settings.memory_bytes_max = arguments.memory - settings.bundle_bytes_max;
    settings.clients_max = arguments.clients_max as usize;
    settings.clients_of_certificate_max = arguments.clients_max_per_device as usize;
    settings.say = Arc::new(|line| eprintln!("keel: {line}"));
    Ok(settings)
}

/// Returns the server's certificate, and the devices that may connect.
fn identity(folder: &Path, devices: Option<&Path>) -> Result<Identity, CliError> {
    const REMEDY: &str =
        "name the folder that `keel stream identity server` made, or make one with it";
    let beside = folder.join(DEVICES_FILE);
    let is_server = folder.join(CERTIFICATE_FILE);
    if let Err(error) = is_server.metadata() {
        let told = CliError::io(is_server.display(), &error);
        return Err(match error.kind() {
            ErrorKind::PermissionDenied => told,
            _ => told.with_remedy(REMEDY),
        });
    }
    Identity::load(folder, devices.unwrap_or(&beside)).map_err(|error| match &error {
        // In a copied folder the link to the authority's folder is dangling.
        TlsError::File { path, source }
            if devices.is_none() && *path == beside && source.kind() == ErrorKind::NotFound =>
        {
            CliError::io(path.display(), source).with_remedy(
                "copy the file devices of the authority there, or name it with --devices",
            )
        }
        TlsError::NotAServer(path) => CliError::failure(
            path.display(),
            "is the certificate of a device, not of a server",
            REMEDY,
        ),
        _ => failure(error),
    })
}

/// Returns how to predict.
pub(super) fn mode(predict: PredictMode) -> Mode {
    match predict {
        PredictMode::Task => Mode::Task,
        PredictMode::Paper => Mode::Paper,
        PredictMode::None => Mode::None,
    }
}

fn server_error(arguments: &ServeArgs, error: &ServerError) -> CliError {
    match error {
        ServerError::Store(error) => store_error(&arguments.store, error),
        ServerError::NotLoopback(address) => CliError::usage(
            address,
            "is not a loopback address, and without an identity any program that reaches it can read the store",
            "name the server's certificate with --identity, or listen on 127.0.0.1",
        ),
        ServerError::Listen { address, source } => {
            let error = CliError::io(address, source);
            match source.raw_os_error() {
                Some(libc::EADDRINUSE) => {
                    error.with_remedy("end what listens there, or choose another port")
                }
                Some(libc::EADDRNOTAVAIL) => error.with_remedy("name an address of this machine"),
                _ => error,
            }
        }
        ServerError::Descriptors { .. } => CliError::failure(
            format_args!("--clients-max {}", arguments.clients_max),
            error,
            "lower it, or raise the hard limit with `ulimit -Hn` (LimitNOFILE= of systemd)",
        ),
        ServerError::Thread => CliError::failure(
            arguments.store.display(),
            error,
            "see what it said before, and start it anew",
        ),
    }
}
