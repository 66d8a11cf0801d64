//! `keel stream identity`: an authority, the certificates that it signs, and the list of devices.

use crate::cli::StreamIdentityCommand;
use crate::error::{CliError, describe};
use crate::output::Output;
use serde_json::json;
use std::path::Path;
use stream::tls::{AUTHORITY_KEY_FILE, Authority, DEVICES_FILE, Device, TlsError};

pub(super) fn run(command: &StreamIdentityCommand) -> Result<u8, CliError> {
    match command {
        StreamIdentityCommand::Authority { authority } => {
            Authority::new(authority).map_err(failure)?;
        }
        StreamIdentityCommand::Server {
            authority,
            out,
            names,
        } => open(authority)?.issue_server(names, out).map_err(failure)?,
        StreamIdentityCommand::Device {
            authority,
            out,
            name,
            tenant,
        } => {
            open(authority)?
                .issue_device(name, tenant, out)
                .map_err(failure)?;
        }
        StreamIdentityCommand::List { authority, json } => list(authority, *json)?,
        StreamIdentityCommand::Revoke { authority, name } => {
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
                "put back a copy of the list; with an empty one nobody is let in",
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
