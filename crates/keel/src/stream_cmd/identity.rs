//! `keel stream identity`: an authority, the certificates that it signs, and the list of devices.

use crate::error::{CliError, describe};
use crate::output::Output;
use clap::{Args, Subcommand};
use serde_json::json;
use std::path::{Path, PathBuf};
use stream::tls::{AUTHORITY_KEY_FILE, Authority, DEVICES_FILE, Device, TlsError};

#[derive(Debug, Args)]
#[command(after_help = "Examples, in this order for a new installation:\n  \
    keel stream identity authority plant-authority\n  \
    keel stream identity server plant-authority server --name plant.example\n  \
    keel stream identity device plant-authority hall-7 --name hall-7\n  \
    keel stream identity list plant-authority\n\n\
    Then `keel stream serve --identity server`, and `keel stream mount --identity hall-7` with the folder copied to\n\
    the device.")]
pub(crate) struct IdentityArgs {
    #[command(subcommand)]
    command: IdentityCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum IdentityCommand {
    /// Make an authority, which signs the certificates of one installation
    #[command(after_help = "Examples:\n  \
        keel stream identity authority plant-authority\n\n\
        Keep its folder where no device is: the owner of ca.key can admit any device.")]
    Authority {
        /// Folder to create
        authority: PathBuf,
    },
    /// Make the certificate of a server
    #[command(after_help = "Examples:\n  \
        keel stream identity server plant-authority server --name plant.example --name 192.168.1.7\n\n\
        Copy the folder to the server, and also the authority's file devices whenever it changes.")]
    Server {
        /// Folder of the authority
        authority: PathBuf,
        /// Folder to create
        out: PathBuf,
        /// Host name or address by which devices reach the server; may be repeated
        #[arg(long = "name", required = true)]
        names: Vec<String>,
    },
    /// Make the certificate of a device, and add it to the authority's list
    #[command(after_help = "Examples:\n  \
        keel stream identity device plant-authority hall-7 --name hall-7 --tenant hall\n\n\
        Copy the folder to the device. Servers that read this list admit the device at once.")]
    Device {
        /// Folder of the authority
        authority: PathBuf,
        /// Folder to create
        out: PathBuf,
        /// Name of the device
        #[arg(long)]
        name: String,
        /// Tenant of the device; its runs change only what the server prefetches for the same tenant
        #[arg(long, default_value = "default")]
        tenant: String,
    },
    /// List devices
    #[command(after_help = "Examples:\n  \
        keel stream identity list plant-authority\n\n\
        The command prints one line for each device: name, tenant, fingerprint of the certificate.")]
    List {
        /// Folder of the authority
        authority: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove a device from the list; servers refuse it from its next connection on
    #[command(after_help = "Examples:\n  \
        keel stream identity revoke plant-authority hall-7\n\n\
        Existing connections of the device stay until they end.")]
    Revoke {
        /// Folder of the authority
        authority: PathBuf,
        /// Name of the device
        name: String,
    },
}

pub(super) fn run(arguments: &IdentityArgs) -> Result<u8, CliError> {
    match &arguments.command {
        IdentityCommand::Authority { authority } => {
            Authority::new(authority).map_err(failure)?;
        }
        IdentityCommand::Server {
            authority,
            out,
            names,
        } => open(authority)?.issue_server(names, out).map_err(failure)?,
        IdentityCommand::Device {
            authority,
            out,
            name,
            tenant,
        } => {
            open(authority)?
                .issue_device(name, tenant, out)
                .map_err(failure)?;
        }
        IdentityCommand::List { authority, json } => list(authority, *json)?,
        IdentityCommand::Revoke { authority, name } => {
            open(authority)?.revoke(name).map_err(failure)?;
        }
    }
    Ok(0)
}

fn open(authority: &Path) -> Result<Authority, CliError> {
    let key = authority.join(AUTHORITY_KEY_FILE);
    if key.symlink_metadata().is_err() {
        return Err(CliError::failure(
            authority.display(),
            "is not the folder of an authority",
            "make one with keel stream identity authority",
        ));
    }
    Authority::open(authority).map_err(failure)
}

fn list(authority: &Path, as_json: bool) -> Result<(), CliError> {
    let devices = open(authority)?.devices().map_err(failure)?;
    let mut output = Output::new();
    if as_json {
        let shown = |device: &Device| {
            json!({
                "name": device.name,
                "tenant": device.tenant,
                "fingerprint": hexadecimal(&device.fingerprint),
            })
        };
        let devices: Vec<_> = devices.list().iter().map(shown).collect();
        output.json(&json!({ "devices": devices }))?;
        return output.flush();
    }
    let width =
        |of: fn(&Device) -> &str| devices.list().iter().map(|device| of(device).len()).max();
    let name_width = width(|device| &device.name).unwrap_or(0);
    let tenant_width = width(|device| &device.tenant).unwrap_or(0);
    for device in devices.list() {
        output.line(format_args!(
            "{:name_width$}  {:tenant_width$}  {}",
            device.name,
            device.tenant,
            hexadecimal(&device.fingerprint)
        ))?;
    }
    output.flush()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns whether a file is the list of devices.
fn is_list(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == DEVICES_FILE)
}

/// Returns the failure with its remedy, for all commands that use an identity.
pub(super) fn failure(error: TlsError) -> CliError {
    let code = error.code();
    let coded = |thing: &dyn std::fmt::Display, wrong: &dyn std::fmt::Display, remedy: &str| {
        CliError::coded(code, thing, wrong, remedy)
    };
    match &error {
        TlsError::File { path, source } if source.kind() == std::io::ErrorKind::InvalidInput => {
            coded(
                &path.display(),
                &describe(source),
                "put the file there that `keel stream identity` made",
            )
        }
        TlsError::File { path, source }
            if is_list(path) && source.kind() == std::io::ErrorKind::NotFound =>
        {
            coded(
                &path.display(),
                &describe(source),
                "put back a copy of the list; an empty list lets no device in",
            )
        }
        TlsError::File { path, source } => CliError::io(path.display(), source),
        TlsError::Damaged { path, problem } if is_list(path) => coded(
            &path.display(),
            problem,
            "mend or delete what is wrong, or put back a copy of the list",
        ),
        TlsError::Damaged { path, problem } => coded(
            &path.display(),
            problem,
            "put back the file as it was made, or make the identity again in another folder",
        ),
        TlsError::Cryptography { path, problem } => coded(
            &path.display(),
            problem,
            "put back the files of this folder that were made together, or make the identity again in another one",
        ),
        TlsError::Name(name) => coded(
            name,
            &"is no name",
            "use 1 to 64 of a-z, 0-9, dot, underscore and hyphen, a letter or digit first",
        ),
        TlsError::Host(name) => coded(
            name,
            &"is neither a host name nor an address",
            "name it as devices reach it, without a port",
        ),
        TlsError::Exists(thing) => coded(thing, &"is there already", "choose another folder"),
        TlsError::Listed(name) => coded(
            name,
            &"is the name of a device on the list already",
            "choose another --name, or strike that device off with keel stream identity revoke",
        ),
        TlsError::NoSuchDevice(name) => coded(
            name,
            &"is not on the list of devices",
            "see keel stream identity list",
        ),
        TlsError::Full => coded(
            &"the list of devices",
            &"is full",
            "revoke devices that are gone",
        ),
        TlsError::Busy(path) => coded(
            &path.display(),
            &"is being changed by another process",
            "try again when it has ended",
        ),
        // An error that this command does not know.
        other => coded(&"identity", other, "try again"),
    }
}
