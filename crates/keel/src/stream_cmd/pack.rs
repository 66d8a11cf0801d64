//! `keel stream pack`: publishes a tree.

use super::store_error::{publish_error, shell_word};
use crate::error::{CliError, one_line};
use crate::output::{Output, counted};
use clap::Args;
use command::progress::{Progress, bytes_text};
use serde_json::json;
use std::path::{Path, PathBuf};
use stream::publish::{self, PackOptions, PackReport, TreeCounts, VERSION_MIN_MAX};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream pack /opt/plant plant.store\n  \
    keel stream pack /srv/board-root board.store --key plant.key --level 12\n\n\
    The command makes a new version if anything has changed; a running server serves it to mounts from then on.\n\
    Only changed content takes space. A power cut at any moment leaves the new version or those before. Sockets,\n\
    FIFOs and devices are left out.")]
pub(crate) struct PackArgs {
    /// Directory to publish
    tree: PathBuf,
    /// Store to publish into; created if absent
    store: PathBuf,
    /// Key to sign with [default: the key of the store, made at the first publication]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Level of compression, from 1 to 19
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=19))]
    level: i32,
    /// Include other file systems that are mounted in the tree
    #[arg(long)]
    all_file_systems: bool,
    /// Minimum number of the version; for a store that replaces a lost one, as devices refuse to go back
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=VERSION_MIN_MAX))]
    version_min: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &PackArgs) -> Result<u8, CliError> {
    let store = &arguments.store;
    let options = PackOptions {
        level: arguments.level,
        key: arguments.key.clone(),
        crosses_file_systems: arguments.all_file_systems,
        version_min: arguments.version_min,
    };
    let progress = Progress::start(format!("publishing {}", arguments.tree.display()));
    let mut before_bytes = 0;
    let report = publish::pack(&arguments.tree, store, &options, &mut |done| {
        progress.add((done.read_bytes - before_bytes) as usize);
        before_bytes = done.read_bytes;
    })
    .map_err(|error| publish_error(store, &error))?;
    drop(progress);
    let mut out = Output::new();
    if arguments.json {
        out.json(&as_value(&report))?;
    } else {
        tell(store, &report, &mut out)?;
    }
    out.flush()?;
    Ok(0)
}

fn as_value(report: &PackReport) -> serde_json::Value {
    let (tree, written) = (&report.tree, &report.written);
    let needs = |needs: &[(PathBuf, PathBuf)]| {
        let each = needs.iter().map(|(file, loader)| {
            json!({
                "file": file.to_string_lossy(),
                "loader": loader.to_string_lossy(),
            })
        });
        each.collect::<Vec<_>>()
    };
    json!({
        "version": report.version,
        "new": report.is_new,
        "publisher": report.publisher.to_string(),
        "files": tree.files,
        "directories": tree.directories,
        "links": tree.links,
        "hard_links": tree.hard_links,
        "bytes": tree.bytes,
        "special_left_out": tree.special,
        "vanished": tree.vanished,
        "read_again": tree.read_again,
        "other_file_systems_left_out": tree.other_file_systems,
        "attributes_left_out": tree.with_attributes,
        "loaders_missing": needs(&report.loaders_missing),
        "loaders_in_tree": needs(&report.loaders_in_tree),
        "contents_new": written.contents,
        "segments_new": written.segments,
        "segments_shared": written.shared_segments,
        "segment_bytes_new": written.segment_bytes,
        "compressed_bytes_new": written.compressed_bytes,
        "manifest_bytes": report.manifest_bytes,
        "packs_lacking": report.packs_lacking.iter().map(|pack| pack.to_string_lossy()).collect::<Vec<_>>(),
        "packs_damaged": report.packs_damaged.iter().map(|pack| pack.to_string_lossy()).collect::<Vec<_>>(),
        "indexes_damaged": report.indexes_damaged.iter().map(|index| index.to_string_lossy()).collect::<Vec<_>>(),
        "had_no_version": report.had_no_version,
        "had_no_note": report.had_no_note,
        "note_failure": report.note_failure,
    })
}

fn tell(store: &Path, report: &PackReport, out: &mut Output) -> Result<(), CliError> {
    let (tree, written) = (&report.tree, &report.written);
    let directories = match tree.directories {
        1 => "1 directory".to_owned(),
        count => format!("{count} directories"),
    };
    let counts = format!(
        "{}, {directories}, {}, {}",
        counted(tree.files, "file"),
        counted(tree.links, "link"),
        bytes_text(tree.bytes)
    );
    if report.is_new {
        out.line(format_args!("version {}: {counts}", report.version))?;
        out.line(format_args!(
            "new: {}, {}, compressed {}; manifest {}",
            counted(written.contents, "file"),
            bytes_text(written.segment_bytes),
            bytes_text(written.compressed_bytes),
            bytes_text(report.manifest_bytes)
        ))?;
    } else {
        out.line(format_args!(
            "version {} is this tree already: {counts}",
            report.version
        ))?;
    }
    tell_left_out(tree, out)?;
    for (file, loader) in &report.loaders_missing {
        out.line(format_args!(
            "{:?} needs {:?}, which is neither in the tree nor on this machine: a device without it says \
             `No such file or directory`",
            file,
            loader
        ))?;
    }
    for (file, loader) in &report.loaders_in_tree {
        out.line(format_args!(
            "note: {file:?} needs {loader:?}, which is in the tree and not on this machine: on a device without it, \
             run the program from the tree's root (chroot), or install it there"
        ))?;
    }
    let word = shell_word(store);
    for pack in &report.packs_lacking {
        out.line(format_args!(
            "{} is missing or too short: what this tree has of it was packed anew; `keel stream check {word}` says \
             what other versions lack, and `keel stream prune {word} --keep 1` drops them",
            pack.display()
        ))?;
    }
    for damaged in report.packs_damaged.iter().chain(&report.indexes_damaged) {
        out.line(format_args!(
            "{} has damaged content: what this tree has of it was packed anew; `keel stream check {word}` says what \
             other versions lack, and `keel stream prune {word} --keep 1` drops them",
            damaged.display()
        ))?;
    }
    if report.had_no_version {
        out.line(format_args!(
            "the store had content and no version: devices that have seen a version of it refuse this one unless it is \
             higher; if there are any, publish again with --version-min above the last one"
        ))?;
    }
    if report.had_no_note {
        out.line(
            "the note which version was published last could not be read: if the manifest of a higher version is lost, \
             too, publish again with --version-min above it",
        )?;
    }
    if let Some(failure) = &report.note_failure {
        let text = format!(
            "the version is published, and its number could not be noted: {failure}; `keel stream check {word}` says \
             what to do"
        );
        out.line(one_line(&text))?;
    }
    out.line(format_args!("publisher {}", report.publisher))
}

/// Tells what of the tree is not in the version, or only after a second attempt.
fn tell_left_out(tree: &TreeCounts, out: &mut Output) -> Result<(), CliError> {
    for (count, one, several) in [
        (
            tree.special,
            "socket, FIFO or device left out",
            "sockets, FIFOs or devices left out",
        ),
        (
            tree.other_file_systems,
            "directory left empty, as another file system is mounted there",
            "directories left empty, as other file systems are mounted there",
        ),
        (
            tree.vanished,
            "file had gone before it was read",
            "files had gone before they were read",
        ),
        (
            tree.read_again,
            "file read again, as it changed",
            "files read again, as they changed",
        ),
        (
            tree.with_attributes,
            "file or directory has capabilities or other extended attributes, which are not published",
            "files or directories have capabilities or other extended attributes, which are not published",
        ),
    ] {
        match count {
            0 => {}
            1 => out.line(format_args!("1 {one}"))?,
            _ => out.line(format_args!("{count} {several}"))?,
        }
    }
    Ok(())
}
