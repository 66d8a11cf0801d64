//! `keel mem ls`: the names of a directory, or one file.

use super::entry::{AT, Line, looking, outside, path_error, walk};
use super::text::{hex, milliseconds, mode_text, shown};
use crate::error::{CliError, STATUS_FAILURE};
use crate::output::Output;
use clap::Args;
use mem::{Attachment, Attributes, Entry, Error, Last};
use node::time_text::format_ms;
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names read from a directory at a time.
const NAMES_AT_ONCE: usize = 512;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel mem ls /dev/hugepages/plant\n  \
    keel mem ls /dev/hugepages/plant logs -l\n  \
    keel mem ls /dev/hugepages/plant --json | jq -r '.[].name'\n\n\
    Damaged files come last, with ! and the reason (in --json: error), and make the exit status 1. Bytes of\n\
    names that are not UTF-8 are shown as \\xff; --json has such a name in name_hex, too.")]
pub(crate) struct LsArgs {
    /// File of the region
    region: PathBuf,
    /// Directory or file in it
    #[arg(default_value = "/")]
    path: PathBuf,
    /// Also print type and permissions, number of names, owner, size and time
    #[arg(short, long)]
    long: bool,
    /// Print one JSON array
    #[arg(long, conflicts_with = "long")]
    json: bool,
}

pub(super) fn run(arguments: &LsArgs) -> Result<u8, CliError> {
    let (region, path) = (&arguments.region, &arguments.path);
    let (is_long, as_json) = (arguments.long, arguments.json);
    let last = if is_long {
        Last::NoFollow
    } else {
        Last::Follow
    };
    let mut listed = looking(region, |attachment| list(attachment, path, last))?;
    let is_left_undone = |damaged: &Damaged| matches!(damaged.error, Error::ReadOnly);
    if let Ok(Some((_, damaged))) = &listed
        && damaged.iter().any(is_left_undone)
        && let Ok(attachment) = Attachment::open(region, AT, true)
    {
        // A dead writer's change is unfinished: open for writing to finish it.
        listed = list(&attachment, path, last);
    }
    let (mut lines, mut damaged) = listed
        .map_err(|error| path_error(region, path, &error))?
        .ok_or_else(|| outside(path))?;
    lines.sort_by(|one, other| one.name.cmp(&other.name));
    damaged.sort_by(|one, other| one.name.cmp(&other.name));
    let mut out = Output::new();
    if as_json {
        let lines = lines.iter().map(Line::json);
        let lines: Vec<Value> = lines.chain(damaged.iter().map(Damaged::json)).collect();
        out.json(&json!(lines))?;
    } else if is_long {
        let width = |of: fn(&Attributes) -> u64| {
            let digits = lines
                .iter()
                .map(|line| of(&line.attributes).to_string().len());
            digits.max().unwrap_or(0)
        };
        let links = width(|found| found.links.into());
        let users = width(|found| found.user.into());
        let groups = width(|found| found.group.into());
        let sizes = width(|found| found.size);
        for line in &lines {
            let found = &line.attributes;
            let target = line
                .target
                .as_ref()
                .map_or_else(String::new, |target| format!(" -> {}", shown(target)));
            out.line(format_args!(
                "{}  {:>links$}  {:>users$} {:>groups$}  {:>sizes$}  {}  {}{target}",
                mode_text(found.mode),
                found.links,
                found.user,
                found.group,
                found.size,
                format_ms(milliseconds(found.modified_ns)),
                shown(&line.name),
            ))?;
        }
    } else {
        for line in &lines {
            out.line(shown(&line.name))?;
        }
    }
    if !as_json {
        let mark = if is_long { "??????????  " } else { "" };
        for damaged in &damaged {
            let Damaged { name, error, .. } = damaged;
            out.line(format_args!("{mark}{}  ! {error}", shown(name)))?;
        }
    }
    out.flush()?;
    if damaged.is_empty() {
        return Ok(0);
    }
    if !as_json {
        eprintln!(
            "keel: {}: {} of these cannot be read; see all damage with `keel mem check {}`",
            path.display(),
            damaged.len(),
            region.display()
        );
    }
    Ok(STATUS_FAILURE)
}

/// The lines of a listing, and its damaged names; `None` if the path leads out of the region.
type Listed = Option<(Vec<Line>, Vec<Damaged>)>;

fn list(attachment: &Attachment, path: &Path, last: Last) -> Result<Listed, Error> {
    let Some(found) = walk(attachment, path, last)? else {
        return Ok(None);
    };
    if !found.is_directory() {
        let name = path.as_os_str().as_bytes().to_vec();
        return Ok(Some((
            vec![Line::new(attachment, name, found)?],
            Vec::new(),
        )));
    }
    let (mut lines, mut damaged) = (Vec::new(), Vec::new());
    for Entry { name, inode, .. } in names(attachment, found.inode)? {
        let line = attachment
            .region()
            .attributes(inode)
            .and_then(|attributes| Line::new(attachment, name.clone(), attributes));
        match line {
            Ok(line) => lines.push(line),
            // Skip a file that was deleted meanwhile.
            Err(Error::Stale) => {}
            Err(error) => damaged.push(Damaged { name, inode, error }),
        }
    }
    Ok(Some((lines, damaged)))
}

fn names(attachment: &Attachment, directory: u64) -> Result<Vec<Entry>, Error> {
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let behind = all.last().map_or(0, |entry| entry.position);
        let more = if attachment.region().is_writable() {
            attachment.writer()?.list(directory, behind, NAMES_AT_ONCE)
        } else {
            attachment.region().list(directory, behind, NAMES_AT_ONCE)
        }?;
        if more.is_empty() {
            return Ok(all);
        }
        all.extend(more);
    }
}

/// A name in a directory whose file cannot be examined, and the reason.
struct Damaged {
    name: Vec<u8>,
    inode: u64,
    error: Error,
}

impl Damaged {
    fn json(&self) -> Value {
        json!({
            "name": String::from_utf8_lossy(&self.name),
            "name_hex": hex(&self.name),
            "error": self.error.to_string(),
            "type": null,
            "mode": null,
            "links": null,
            "user": null,
            "group": null,
            "length_bytes": null,
            "modified_ms": null,
            "changed_ms": null,
            "accessed_ms": null,
            "target": null,
            "target_hex": null,
            "inode": self.inode,
        })
    }
}
