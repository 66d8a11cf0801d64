//! `keel stream serve`: serves a store until a signal ends it.

use super::identity::failure;
use super::store_error::store_error;
use crate::cli::{StreamPredict, StreamProvide, StreamServeArgs};
use crate::error::CliError;
use crate::mounting::Stops;
use crate::output::Output;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use stream::predict::Mode;
use stream::provide::Arm;
use stream::server::{Identity, Server, ServerError, Settings};
use stream::tls::{CERTIFICATE_FILE, DEVICES_FILE, TlsError};

/// Threads that read the disk and compress.
const BLOCKING_THREADS_MAX: usize = 4;

/// One part in `BUNDLE_SHARE` of the given memory is for compressed pieces of plans; the rest is for content.
const BUNDLE_SHARE: u64 = 4;

pub(super) fn run(arguments: &StreamServeArgs) -> Result<u8, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
        .map_err(|error| CliError::io("stream serve", &error))?;
    let settings = settings(arguments)?;
    runtime.block_on(async {
        // Do this before anything that takes time: the parent may end this process at once.
        let mut stops = Stops::heed()?;
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
        server.run(stops.come()).await.map_err(failed)?;
        Ok(0)
    })
}

fn settings(arguments: &StreamServeArgs) -> Result<Settings, CliError> {
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
        StreamProvide::None => Arm::None,
        StreamProvide::Madvise => Arm::Madvise,
        StreamProvide::Variance => Arm::Variance,
        StreamProvide::Async => Arm::Async,
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
pub(super) fn mode(predict: StreamPredict) -> Mode {
    match predict {
        StreamPredict::Task => Mode::Task,
        StreamPredict::Paper => Mode::Paper,
        StreamPredict::None => Mode::None,
    }
}

fn server_error(arguments: &StreamServeArgs, error: &ServerError) -> CliError {
    match error {
        ServerError::Store(error) => store_error(&arguments.store, error),
        ServerError::NotLoopback(address) => CliError::usage(
            address,
            "is not a loopback address, and without an identity anybody who reaches it would get everything",
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
