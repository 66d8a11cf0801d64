//! `keel stream ls`: the versions of a store, and what a version holds.

use super::store_error::store_error;
use crate::error::CliError;
use crate::mem_cmd::{hex, mode_text, shown};
use crate::output::Output;
use clap::Args;
use command::progress::bytes_text;
use node::time_text::format_ms;
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use stream::FileId;
use stream::manifest::{Kind, Manifest, Node};
use stream::store::Store;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream ls plant.store                    the versions\n  \
    keel stream ls plant.store bin -l\n  \
    keel stream ls plant.store bin --of 3 --json")]
pub(crate) struct LsArgs {
    /// Store
    store: PathBuf,
    /// Directory or file in the store; without it, list the versions
    path: Option<PathBuf>,
    /// Number of the version [default: the newest]
    #[arg(long = "of", value_name = "VERSION")]
    version_wanted: Option<u64>,
    /// Also print permission bits, owner, size and time
    #[arg(short = 'l')]
    long: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &LsArgs) -> Result<u8, CliError> {
    let failed = |error| store_error(&arguments.store, &error);
    if arguments.long && arguments.path.is_none() && arguments.version_wanted.is_none() {
        return Err(CliError::usage(
            "-l",
            "says more about files, and without a path versions are listed",
            format_args!(
                "name one, such as `keel stream ls {} / -l`",
                arguments.store.display()
            ),
        ));
    }
    let store = Store::open(&arguments.store).map_err(failed)?;
    match (&arguments.path, arguments.version_wanted) {
        (None, None) => versions(arguments, &store),
        (path, version) => {
            let newest = store.newest().map_err(failed)?;
            let version = version.unwrap_or(newest);
            let published = store.published(version).map_err(failed)?;
            let path = path.as_deref().unwrap_or(Path::new("/"));
            files(arguments, &published.manifest, path)
        }
    }
}

fn versions(arguments: &LsArgs, store: &Store) -> Result<u8, CliError> {
    let failed = |error| store_error(&arguments.store, &error);
    let mut out = Output::new();
    let mut values = Vec::new();
    for version in store.versions().map_err(failed)? {
        let published = store.published(version).map_err(failed)?;
        let manifest = &published.manifest;
        let sizes = manifest.nodes.iter().filter_map(|node| match node.kind {
            Kind::File { size_bytes, .. } => Some(size_bytes),
            _ => None,
        });
        let (files, bytes) = sizes.fold((0_u64, 0_u64), |(files, bytes), size_bytes| {
            (files + 1, bytes.saturating_add(size_bytes))
        });
        let manifest_bytes = published.signed.len() as u64;
        if arguments.json {
            values.push(json!({
                "version": version,
                "files": files,
                "nodes": manifest.nodes.len(),
                "bytes": bytes,
                "manifest_bytes": manifest_bytes,
            }));
        } else {
            out.line(format_args!(
                "{version}  {files} files, {}; manifest {}",
                bytes_text(bytes),
                bytes_text(manifest_bytes)
            ))?;
        }
    }
    if arguments.json {
        out.json(&json!({
            "publisher": store.publisher().to_string(),
            "versions": values,
        }))?;
    }
    out.flush()?;
    Ok(0)
}

fn files(arguments: &LsArgs, manifest: &Manifest, path: &Path) -> Result<u8, CliError> {
    let bytes = path.as_os_str().as_bytes();
    let found = manifest
        .find(bytes)
        .and_then(|file| Some((file, manifest.node(file)?)));
    let Some((file, node)) = found else {
        return Err(CliError::failure(
            path.display(),
            format_args!("is not in version {}", manifest.version),
            format_args!(
                "list what is with `keel stream ls {} /`",
                arguments.store.display()
            ),
        ));
    };
    let lines: Vec<(&[u8], FileId, &Node)> = if matches!(node.kind, Kind::Directory) {
        let entries = manifest.entries(file).iter();
        entries
            .filter_map(|name| Some((&*name.name, name.node, manifest.node(name.node)?)))
            .collect()
    } else {
        vec![(bytes, file, node)]
    };
    let mut out = Output::new();
    if arguments.json {
        let values: Vec<Value> = lines.iter().map(as_value).collect();
        out.json(&json!({"version": manifest.version, "files": values}))?;
    } else if arguments.long {
        long(&lines, &mut out)?;
    } else {
        for (name, _, _) in &lines {
            out.line(shown(name))?;
        }
    }
    out.flush()?;
    Ok(0)
}

fn as_value((name, file, node): &(&[u8], FileId, &Node)) -> Value {
    let (kind, size_bytes, content, target) = match &node.kind {
        Kind::Directory => ("directory", None, None, None),
        Kind::File {
            size_bytes,
            content,
        } => ("file", Some(*size_bytes), Some(content.to_string()), None),
        Kind::Link { target } => ("link", None, None, Some(target)),
    };
    json!({
        "name": String::from_utf8_lossy(name),
        "name_hex": hex(name),
        "number": file.0,
        "type": kind,
        "mode": format!("{:04o}", node.mode),
        "user": node.user,
        "group": node.group,
        "length_bytes": size_bytes,
        "modified_ms": modified_ms(node),
        "content": content,
        "target": target.map(|target| String::from_utf8_lossy(target)),
        "target_hex": target.and_then(|target| hex(target)),
    })
}

fn modified_ms(node: &Node) -> i64 {
    let ms = i64::from(node.modified_ns / 1_000_000);
    node.modified_s.saturating_mul(1000).saturating_add(ms)
}

fn long(lines: &[(&[u8], FileId, &Node)], out: &mut Output) -> Result<(), CliError> {
    let size = |node: &Node| match node.kind {
        Kind::File { size_bytes, .. } => size_bytes,
        _ => 0,
    };
    let width = |of: &dyn Fn(&Node) -> u64| {
        let digits = lines.iter().map(|(_, _, node)| of(node).to_string().len());
        digits.max().unwrap_or(0)
    };
    let users = width(&|node| node.user.into());
    let groups = width(&|node| node.group.into());
    let sizes = width(&size);
    for (name, _, node) in lines {
        let (kind, target) = match &node.kind {
            Kind::Directory => (libc::S_IFDIR, String::new()),
            Kind::File { .. } => (libc::S_IFREG, String::new()),
            Kind::Link { target } => (libc::S_IFLNK, format!(" -> {}", shown(target))),
        };
        out.line(format_args!(
            "{}  {:>users$} {:>groups$}  {:>sizes$}  {}  {}{target}",
            mode_text(kind | u32::from(node.mode)),
            node.user,
            node.group,
            size(node),
            format_ms(modified_ms(node)),
            shown(name),
        ))?;
    }
    Ok(())
}
