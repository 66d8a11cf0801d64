//! `keel mem ls` and `keel mem stat`.

use super::backing::Ground;
use super::checkpoint;
use super::create::flush_text;
use super::region_error;
use crate::error::{CliError, STATUS_FAILURE};
use crate::flash_cmd::shown_name;
use crate::output::Output;
use crate::progress::bytes_text;
use crate::time_text::{age_text, format_ms};
use mem::{Attachment, Attributes, Credentials, Entry, Error, Last, Node, PathBuffer, Walked};
use serde_json::{Value, json};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where the region appears for these commands; links to absolute paths lead elsewhere for each program.
const AT: &[u8] = b"/keel";

/// Names read from a directory at a time.
const NAMES_AT_ONCE: usize = 512;

/// Bytes of the longest path, which may be the target of a symbolic link.
const PATH_BYTES_MAX: usize = 4096;

/// Calls `look`, first with the region open only for reading. If a writer has died during a change, the region must be
/// opened for writing, so that the change is finished.
fn looking<T>(
    region: &Path,
    look: impl Fn(&Attachment) -> Result<T, Error>,
) -> Result<Result<T, Error>, CliError> {
    let open = |writable| {
        Attachment::open(region, AT, writable).map_err(|error| region_error(region, &error))
    };
    Ok(match look(&open(false)?) {
        Err(Error::Stale) => look(&open(true)?),
        seen => seen,
    })
}

fn walk(attachment: &Attachment, path: &Path, last: Last) -> Result<Option<Attributes>, Error> {
    let root = Credentials {
        user: 0,
        group: 0,
        groups: &[],
    };
    let path = path.as_os_str().as_bytes();
    let inside = attachment.inside(path).unwrap_or(path);
    let start = inside.iter().take_while(|byte| **byte == b'/').count();
    let path = match &inside[start..] {
        b"" => b".",
        path => path,
    };
    let mut buffer = PathBuffer::new();
    match attachment.walk(Node::ROOT, path, last, &root, &mut buffer)? {
        Walked::Found { attributes, .. } => Ok(Some(attributes)),
        Walked::Missing { .. } => Err(Error::NotFound),
        Walked::Outside => Ok(None),
    }
}

fn path_error(region: &Path, path: &Path, error: &Error) -> CliError {
    // The root directory of all paths always exists.
    let is_root = matches!(path.as_os_str().as_bytes(), b"/" | b"." | b"/keel");
    match error {
        Error::NotFound if is_root => CliError::failure(
            region.display(),
            "damaged: its root cannot be found",
            format!("see all damage with `keel mem check {}`", region.display()),
        ),
        Error::NotFound => CliError::failure(
            path.display(),
            error,
            format!("list the files with `keel mem ls {}`", region.display()),
        ),
        Error::NotADirectory | Error::NameTooLong | Error::LinksTooMany => {
            CliError::failure(path.display(), error, "check the path")
        }
        other => region_error(region, other),
    }
}

fn outside(path: &Path) -> CliError {
    CliError::failure(
        path.display(),
        "leads out of the region",
        "name what the link leads to",
    )
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

/// The content of a line of a listing.
struct Line {
    name: Vec<u8>,
    attributes: Attributes,
    target: Option<Vec<u8>>,
}

impl Line {
    fn new(attachment: &Attachment, name: Vec<u8>, attributes: Attributes) -> Result<Self, Error> {
        let target = if attributes.is_symbolic_link() {
            let mut target = vec![0; PATH_BYTES_MAX];
            let region = attachment.region();
            let length = region.read(attributes.inode, attributes.generation, 0, &mut target)?;
            target.truncate(length);
            Some(target)
        } else {
            None
        };
        Ok(Self {
            name,
            attributes,
            target,
        })
    }

    fn json(&self) -> Value {
        let found = &self.attributes;
        json!({
            "name": String::from_utf8_lossy(&self.name),
            "name_hex": hex(&self.name),
            "error": null,
            "type": type_text(found.mode),
            "mode": format!("{:04o}", found.mode & 0o7777),
            "links": found.links,
            "user": found.user,
            "group": found.group,
            "length_bytes": found.size,
            "modified_ms": milliseconds(found.modified_ns),
            "changed_ms": milliseconds(found.changed_ns),
            "accessed_ms": milliseconds(found.accessed_ns),
            "target": self.target.as_deref().map(String::from_utf8_lossy),
            "target_hex": self.target.as_deref().and_then(hex),
            "inode": found.inode,
        })
    }
}

/// Returns a name for people: bytes that are no UTF-8 are shown as `\xff`. A backslash in a name is doubled, so no two
/// names look the same.
pub(crate) fn shown(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.push_str(&shown_name(chunk.valid()));
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Returns the bytes of a name that is no UTF-8, for programs; `None` for other names.
pub(crate) fn hex(name: &[u8]) -> Option<String> {
    let is_text = std::str::from_utf8(name).is_ok();
    (!is_text).then(|| name.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn milliseconds(time_ns: u64) -> i64 {
    (time_ns as i64).div_euclid(1_000_000)
}

fn type_text(mode: u32) -> &'static str {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "link",
        _ => "file",
    }
}

/// Returns the mode as `ls -l` shows it: `drwxr-xr-x`.
pub(crate) fn mode_text(mode: u32) -> String {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFDIR => 'd',
        libc::S_IFLNK => 'l',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [
        (6, libc::S_ISUID, 's'),
        (3, libc::S_ISGID, 's'),
        (0, libc::S_ISVTX, 't'),
    ] {
        let bits = mode >> shift;
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
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

pub(super) fn ls(region: &Path, path: &Path, is_long: bool, as_json: bool) -> Result<u8, CliError> {
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

pub(super) fn stat(region: &Path, path: &Path, as_json: bool) -> Result<u8, CliError> {
    let found = looking(region, |attachment| {
        let Some(found) = walk(attachment, path, Last::NoFollow)? else {
            return Ok(None);
        };
        let name = path.as_os_str().as_bytes().to_vec();
        Line::new(attachment, name, found).map(Some)
    })?;
    let line = found
        .map_err(|error| path_error(region, path, &error))?
        .ok_or_else(|| outside(path))?;
    let mut out = Output::new();
    if as_json {
        out.json(&line.json())?;
    } else {
        let found = &line.attributes;
        let time = |time_ns| format_ms(milliseconds(time_ns));
        out.line(format_args!("name          {}", shown(&line.name)))?;
        out.line(format_args!("type          {}", type_text(found.mode)))?;
        if let Some(target) = &line.target {
            out.line(format_args!("leads to      {}", shown(target)))?;
        }
        out.line(format_args!(
            "length        {} bytes ({})",
            found.size,
            bytes_text(found.size)
        ))?;
        out.line(format_args!(
            "permissions   {:04o} ({})",
            found.mode & 0o7777,
            mode_text(found.mode)
        ))?;
        out.line(format_args!("owner         {}:{}", found.user, found.group))?;
        out.line(format_args!("names         {}", found.links))?;
        out.line(format_args!("inode         {}", found.inode))?;
        out.line(format_args!("modified      {}", time(found.modified_ns)))?;
        out.line(format_args!("changed       {}", time(found.changed_ns)))?;
        out.line(format_args!("read          {}", time(found.accessed_ns)))?;
    }
    out.flush()?;
    Ok(0)
}

pub(super) fn stat_region(
    region: &Path,
    image: Option<&Path>,
    name: &str,
    as_json: bool,
) -> Result<u8, CliError> {
    let taken = image
        .map(|image| checkpoint::newest(region, image, name))
        .transpose()?;
    let attachment =
        Attachment::open(region, AT, false).map_err(|error| region_error(region, &error))?;
    let ground = Ground::of(region)?;
    let seen = attachment.region();
    let layout = seen.layout();
    let data_bytes = layout.data_pages() * mem::PAGE_BYTES;
    let used_bytes = data_bytes.saturating_sub(seen.free_bytes());
    // Deleted files that are still open have inode numbers, too, and so has the root.
    let files = seen.inodes().saturating_sub(seen.orphans() + 1);
    let mut out = Output::new();
    if as_json {
        out.json(&json!({
            "capacity_bytes": layout.capacity_bytes,
            "data_bytes": data_bytes,
            "free_bytes": seen.free_bytes(),
            "files": files,
            "files_max": layout.inode_count - 2,
            "deleted_open_files": seen.orphans(),
            "lanes_taken": seen.lanes_taken(),
            "lanes": layout.lane_count,
            "backing": ground.name(),
            "huge_pages": ground.has_huge_pages(),
            "flush": seen.flush().name(),
            "persistent_memory": seen.is_persistent(),
            "format": seen.format_version(),
            "checkpoint": taken.flatten().map(|taken| json!({
                "generation": taken.generation,
                "taken_ms": milliseconds(taken.taken_ns),
                "age_ms": milliseconds(mem::now_ns()) - milliseconds(taken.taken_ns),
            })),
        }))?;
    } else {
        out.line(format_args!(
            "memory        {}, {}",
            bytes_text(layout.capacity_bytes),
            ground.short()
        ))?;
        out.line(format_args!("for files     {}", bytes_text(data_bytes)))?;
        out.line(format_args!("used          {}", bytes_text(used_bytes)))?;
        out.line(format_args!(
            "free          {}",
            bytes_text(seen.free_bytes())
        ))?;
        out.line(format_args!(
            "files         {files}, directories included (room for {})",
            layout.inode_count - 2
        ))?;
        out.line(format_args!("deleted open  {}", seen.orphans()))?;
        out.line(format_args!(
            "writers       {} (room for {})",
            seen.lanes_taken(),
            layout.lane_count
        ))?;
        out.line(format_args!(
            "flush         {}",
            flush_text(seen).unwrap_or_else(|| seen.flush().name().to_owned())
        ))?;
        out.line(format_args!("format        {}", seen.format_version()))?;
        match taken {
            None => {}
            Some(None) => out.line("checkpoint    none: a power cut would take all")?,
            Some(Some(taken)) => {
                let taken_ms = milliseconds(taken.taken_ns);
                out.line(format_args!(
                    "checkpoint    {} of {}: a power cut would take what was written in the last {}",
                    taken.generation,
                    format_ms(taken_ms),
                    age_text(milliseconds(mem::now_ns()) - taken_ms)
                ))?;
            }
        }
    }
    out.flush()?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_text_are_told_apart() {
        assert_eq!(shown(b"plain"), "plain");
        assert_eq!(shown(b"\xff"), r"\xff");
        assert_eq!(shown(b"\\xff"), r"\\xff");
        assert_eq!(shown("\u{fffd}".as_bytes()), "\u{fffd}");
        assert_eq!(shown(b"a\xc3b\nc"), r"a\xc3b\nc");
        assert_eq!(hex(b"a\xc3"), Some("61c3".into()));
        assert_eq!(hex("\u{fffd}".as_bytes()), None);
    }

    #[test]
    fn permissions_read_as_ls_shows_them() {
        for (mode, expected) in [
            (0o040_755, "drwxr-xr-x"),
            (0o100_640, "-rw-r-----"),
            (0o120_777, "lrwxrwxrwx"),
            (0o104_755, "-rwsr-xr-x"),
            (0o102_644, "-rw-r-Sr--"),
            (0o041_777, "drwxrwxrwt"),
            (0o041_776, "drwxrwxrwT"),
        ] {
            assert_eq!(mode_text(mode), expected);
        }
        assert_eq!(milliseconds(-1_i64 as u64), -1);
    }
}
