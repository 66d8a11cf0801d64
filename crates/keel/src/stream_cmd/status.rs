//! `keel stream status`: shows what a mount has done so far.

use crate::error::{CliError, one_line};
use crate::mounting::mount_error;
use crate::output::Output;
use base::mount::answer_in_time;
use clap::Args;
use serde_json::Value;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use stream_mount::COUNTERS_NAME;

/// Bytes of the counters, at most: the kernel's limit of an attribute.
const VALUE_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream status /mnt/plant\n  \
    keel stream status /mnt/plant --json | jq .starts\n\n\
    docs/stream.md explains each figure.")]
pub(crate) struct StatusArgs {
    /// Directory of the mount
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &StatusArgs) -> Result<u8, CliError> {
    let directory = arguments.directory.as_path();
    let text =
        answer_in_time(directory, attribute).map_err(|error| mount_error(directory, &error))?;
    let text = text.map_err(|error| match error.raw_os_error() {
        Some(libc::ENODATA | libc::EOPNOTSUPP) => CliError::failure(
            directory.display(),
            "is no mount of a tree",
            "name a directory on which `keel stream mount` shows one",
        ),
        Some(libc::ENOTCONN) => CliError::failure(
            directory.display(),
            "is the mount of a process that has ended",
            "mount it again with `keel stream mount`, which takes away what is left",
        ),
        _ => CliError::io(directory.display(), &error),
    })?;
    let not_understood =
        |error| CliError::failure(directory.display(), error, "use the keel that mounted it");
    let mut value: Value = serde_json::from_slice(&text).map_err(not_understood)?;
    keep_missing(&mut value);
    let mut out = Output::new();
    if arguments.json {
        out.line(&value)?;
    } else {
        print(&value, &mut out)?;
    }
    out.flush()?;
    Ok(0)
}

/// Keeps only the loaders that are missing on this machine: as `loaders_in_tree` those that the tree has, as
/// `loaders_missing` the others.
fn keep_missing(value: &mut Value) {
    let Some(Value::Array(loaders)) = value.as_object_mut().and_then(|all| all.remove("loaders"))
    else {
        return;
    };
    let (mut missing, mut in_tree) = (Vec::new(), Vec::new());
    for mut named in loaders {
        let loader = named["loader"].as_str().unwrap_or_default();
        if !matches!(Path::new(loader).try_exists(), Ok(false)) {
            continue;
        }
        let is_in_tree = named
            .as_object_mut()
            .and_then(|named| named.remove("in_tree"));
        match is_in_tree {
            Some(Value::Bool(true)) => in_tree.push(named),
            _ => missing.push(named),
        }
    }
    value["loaders_missing"] = Value::Array(missing);
    value["loaders_in_tree"] = Value::Array(in_tree);
}

fn print(value: &Value, out: &mut Output) -> Result<(), CliError> {
    let Some(all) = value.as_object() else {
        return Ok(());
    };
    for (name, count) in all.iter().filter(|(_, count)| count.is_number()) {
        out.line(format_args!("{name:<22} {count}"))?;
    }
    if let Some(failure) = value["cache_failure"].as_str() {
        out.line(format_args!(
            "{:<22} the cache's last failure: {}",
            "cache_failure",
            one_line(&failure)
        ))?;
    }
    if let Some(failure) = value["server_failure"].as_str() {
        let what = match value["connected"].as_u64() {
            Some(1..) => "the server",
            _ => "no connection",
        };
        let failure = one_line(&failure);
        out.line(format_args!("{:<22} {what}: {failure}", "server_failure"))?;
    }
    let array = |name: &str| value[name].as_array().map_or(&[][..], Vec::as_slice);
    for named in array("loaders_missing") {
        out.line(format_args!(
            "{} needs {}, which is neither in the tree nor on this machine, and ends with `No such file or \
             directory`: install it here, or put it into the tree and run the program from its root",
            one_line(&named["file"]),
            one_line(&named["loader"])
        ))?;
    }
    for named in array("loaders_in_tree") {
        out.line(format_args!(
            "{} needs {}, which is only in the tree, and ends here with `No such file or directory`: run the program \
             from the tree's root (chroot), or install it here",
            one_line(&named["file"]),
            one_line(&named["loader"])
        ))?;
    }
    for start in array("starts") {
        out.line(start_line(start))?;
    }
    Ok(())
}

fn start_line(start: &Value) -> String {
    let said = |name: &str| start[name].as_u64().unwrap_or_default();
    format!(
        "start of {}: {} blocks read, {} sent ahead, {} of them not seen read{}, {} requests, {} round trips",
        // The name comes from the publisher, so it is untrusted.
        one_line(&start["task"].as_str().unwrap_or_default()),
        said("read"),
        said("pushed"),
        said("unread"),
        if start["is_exact"] == true {
            ""
        } else {
            " (not all reads are seen)"
        },
        said("requests"),
        said("round_trips"),
    )
}

/// Returns the counters of a mount, as JSON.
fn attribute(directory: &Path) -> io::Result<Vec<u8>> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let name = CString::new(COUNTERS_NAME)?;
    let mut value = vec![0_u8; VALUE_BYTES_MAX];
    // SAFETY: two C strings and a buffer of the given size, all alive until the call returns.
    let length = unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    value.truncate(length as usize);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_makes_no_second_line_and_sends_nothing_to_the_terminal() {
        let start = serde_json::json!({
            "task": "a\nstart of evil: 0 blocks\u{1b}[31m",
            "read": 1,
        });
        let line = start_line(&start);
        assert!(!line.contains(char::is_control), "{line:?}");
        assert!(line.contains("a\\nstart of evil"), "{line}");
    }
}
