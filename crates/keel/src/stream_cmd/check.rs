//! `keel stream check`: checks every byte of a store and reports the damage.

use super::store_error::{shell_word, store_error};
use crate::error::{CliError, STATUS_FAILURE, one_line};
use crate::mem_cmd::shown;
use crate::output::{Output, counted};
use clap::Args;
use command::progress::{Progress, bytes_text};
use serde_json::json;
use std::path::{Path, PathBuf};
use stream::manifest::PublicKey;
use stream::publish::{self, CheckReport};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream check plant.store && echo whole\n\n\
    The command reads and decompresses everything; a server may continue. Exit status 1 if anything is damaged;\n\
    each finding names files that need it.")]
pub(crate) struct CheckArgs {
    /// Store
    store: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &CheckArgs) -> Result<u8, CliError> {
    let store = &arguments.store;
    let progress = Progress::start(format!("checking {}", store.display()));
    let report = publish::check(store, &mut |bytes| progress.add(bytes))
        .map_err(|error| store_error(store, &error))?;
    drop(progress);
    let mut out = Output::new();
    if arguments.json {
        out.json(&as_value(&report))?;
    } else {
        tell(store, &report, &mut out)?;
    }
    out.flush()?;
    Ok(match is_whole(&report) {
        true => 0,
        false => STATUS_FAILURE,
    })
}

/// Returns whether a store has a version, and no damage. After an interrupted first publication there is neither.
fn is_whole(report: &CheckReport) -> bool {
    report.is_whole() && report.versions > 0
}

fn as_value(report: &CheckReport) -> serde_json::Value {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|found| {
            json!({
                "file": found.path.to_string_lossy(),
                "text": found.text,
                "needed_by": found.files.iter().map(|file| shown(file)).collect::<Vec<_>>(),
                "needed_by_version": found.version,
            })
        })
        .collect();
    json!({
        "whole": is_whole(report),
        "versions": report.versions,
        "newest": report.newest,
        "contents": report.contents,
        "contents_unused": report.contents_unused,
        "segments": report.segments,
        "blocks": report.blocks,
        "packs": report.packs,
        "pack_bytes": report.pack_bytes,
        "leftovers": report.leftovers,
        "findings": findings,
        "finding_count": report.finding_count,
    })
}

fn tell(store: &Path, report: &CheckReport, out: &mut Output) -> Result<(), CliError> {
    let name = store.display();
    for found in &report.findings {
        let files: Vec<String> = found.files.iter().map(|file| shown(file)).collect();
        let needed = match found.version {
            _ if files.is_empty() => String::new(),
            Some(version) if report.newest != Some(version) => {
                format!("; needed by {} of version {version}", files.join(", "))
            }
            Some(_) => format!("; needed by {}", files.join(", ")),
            None => String::new(),
        };
        let line = format_args!("{}: {}{needed}", found.path.display(), found.text).to_string();
        out.line(one_line(&line))?;
    }
    let counts = format!(
        "{}, {}, {}, {} of {}",
        counted(report.versions, "version"),
        match report.contents {
            1 => "1 file's content".to_owned(),
            count => format!("{count} files' contents"),
        },
        counted(report.blocks, "block"),
        counted(report.packs, "pack"),
        bytes_text(report.pack_bytes)
    );
    let word = shell_word(store);
    if report.is_whole() && report.versions == 0 && report.packs == 0 {
        out.line(format_args!(
            "{name}: no version; {counts}; publish a tree with `keel stream pack TREE {word}`"
        ))?;
    } else if report.is_whole() && report.versions == 0 {
        out.line(format_args!(
            "{name}: no version; {counts}; publish the tree with `keel stream pack`, and with --version-min above the \
             last version if devices have seen one"
        ))?;
    } else if is_whole(report) {
        out.line(format_args!("{name}: whole; {counts}"))?;
    } else if report.is_key_wrong && report.finding_count == 1 {
        out.line(format_args!("{name}: all but the key is whole; {counts}"))?;
    } else {
        out.line(format_args!(
            "{name}: {}; {counts}; {}",
            counted(report.finding_count, "finding"),
            remedy(store, report)
        ))?;
    }
    // Do not advise to prune a damaged store: content needed by damaged versions would count as unused.
    if is_whole(report) && (report.leftovers > 0 || report.contents_unused > 0) {
        out.line(format_args!(
            "{} and {} that no version needs; `keel stream prune {word} --keep {}` frees their room",
            counted(report.contents_unused, "content"),
            counted(report.leftovers, "file"),
            report.versions
        ))?;
    }
    Ok(())
}

/// Returns the remedy for this damage; damage that can be repaired in place does not require a new store.
fn remedy(store: &Path, report: &CheckReport) -> String {
    let damage = &report.damage;
    let shown = shell_word(store);
    let newest = report.newest.max(damage.version_lost).unwrap_or(0);
    let next = newest.saturating_add(1);
    let beside = [
        damage.others,
        damage.indexes,
        damage.notes,
        damage.publishers,
        damage.manifests,
    ];
    let is_of_versions = beside == [0; 5];
    let is_of_manifests = report.finding_count == damage.manifests;
    match damage.newest_lacking {
        _ if report.finding_count == damage.notes => format!(
            "take it away; `keel stream pack TREE {shown}` writes it again, with --version-min if the manifest of the \
             version that was published last is lost, too"
        ),
        _ if is_of_manifests && damage.manifest_newest == report.newest => format!(
            "move what is damaged aside: its versions are lost, and all others are whole; then publish the tree with \
             `keel stream pack TREE {shown} --version-min {next}`"
        ),
        _ if is_of_manifests => {
            "move what is damaged aside: its versions are lost, and all others are whole".to_owned()
        }
        _ if damage.no_files > 0 => format!(
            "move aside what is no file, then check again; what is published next takes --version-min {next}"
        ),
        _ if damage.publishers > 0 => remedy_of_publisher(store, damage.signer),
        // Without versions it is unknown which packs are needed: a prune would drop them all.
        _ if report.versions == 0 && report.finding_count > 1 => format!(
            "put its manifests back, if there is a copy of them; else publish the tree with `keel stream pack TREE \
             {shown} --version-min {next}`"
        ),
        _ if damage.version_lost.is_some() && report.finding_count == 1 => {
            format!(
                "publish the tree again with `keel stream pack TREE {shown}`, which makes version {next}"
            )
        }
        None if is_of_versions && report.versions > 0 => format!(
            "no version lacks anything, and `keel stream prune {shown} --keep {}` takes the damage away",
            report.versions.max(1)
        ),
        Some(lacking) if is_of_versions && damage.versions_whole > 0 => format!(
            "`keel stream prune {shown} --keep {}` drops the versions up to {lacking}, and what is newer is whole",
            damage.versions_whole
        ),
        // `pack` reads what it takes from the store, and has the right bytes of all that is in the tree.
        Some(_) if is_of_versions => format!(
            "`keel stream pack TREE {shown}` writes again what TREE has of it, then check again; what only older \
             versions need stays lost"
        ),
        _ => remedy_of_indexes(store, next),
    }
}

/// Returns the remedy for a damaged `publisher.pub`. `signer`: the key that it must hold, if that is known.
fn remedy_of_publisher(store: &Path, signer: Option<PublicKey>) -> String {
    match signer {
        Some(signer) => format!(
            "write publisher.pub again from the key: `echo {signer} > {}`, then check again",
            shell_word(&store.join("publisher.pub"))
        ),
        None => format!(
            "first take publisher.pub away, if it is there; `keel stream pack TREE {}` with the same key writes it \
             again, and then this command can verify the versions",
            shell_word(store)
        ),
    }
}

/// Returns the remedy for damaged indexes, or damage of several kinds. `next`: the number of the next version.
fn remedy_of_indexes(store: &Path, next: u64) -> String {
    format!(
        "move indexes and manifests that are damaged aside; then `keel stream pack TREE {} --version-min {next}` \
         writes again what TREE has; if that fails, publish into a new store: `keel stream pack TREE NEW --key {} \
         --version-min {next}`",
        shell_word(store),
        key(store)
    )
}

/// Returns the file of the key that signs the versions, as a word of a command.
fn key(store: &Path) -> String {
    let own = store.join("publisher.key");
    match own.exists() {
        true => shell_word(&own),
        false => "KEY".to_owned(),
    }
}
