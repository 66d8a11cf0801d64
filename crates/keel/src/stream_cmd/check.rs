//! `keel stream check`: every byte of a store, and what is damaged.

use super::store_error::store_error;
use crate::cli::StreamCheckArgs;
use crate::error::{CliError, STATUS_FAILURE};
use crate::output::{Output, counted};
use crate::progress::{Progress, bytes_text};
use serde_json::json;
use std::path::Path;
use stream::publish::{self, CheckReport};

pub(super) fn run(arguments: &StreamCheckArgs) -> Result<u8, CliError> {
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
    // Content that no version leads to is of use to nobody.
    let has_versions = report.versions > 0 || report.packs == 0;
    Ok(if report.is_whole() && has_versions {
        0
    } else {
        STATUS_FAILURE
    })
}

fn as_value(report: &CheckReport) -> serde_json::Value {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|found| json!({"file": found.path.to_string_lossy(), "text": found.text, "needed_by": found.files}))
        .collect();
    json!({
        "whole": report.is_whole(),
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
    let shown = store.display();
    for found in &report.findings {
        let needed = if found.files.is_empty() {
            String::new()
        } else {
            format!("; needed by {}", found.files.join(", "))
        };
        let line = format!("{}: {}{needed}", found.path.display(), found.text);
        out.line(line.replace(char::is_control, "?"))?;
    }
    let counts = format!(
        "{} versions, {} files' contents, {} blocks, {} packs of {}",
        report.versions,
        report.contents,
        report.blocks,
        report.packs,
        bytes_text(report.pack_bytes)
    );
    let has_lost_versions = report.versions == 0 && report.packs > 0;
    if report.is_whole() && has_lost_versions {
        out.line(format_args!(
            "{shown}: no version; {counts}; publish the tree with `keel stream pack`, and with --version-min above the \
             last version if devices have seen one"
        ))?;
    } else if report.is_whole() {
        out.line(format_args!("{shown}: whole; {counts}"))?;
    } else if report.is_key_wrong && report.finding_count == 1 {
        out.line(format_args!("{shown}: all but the key is whole; {counts}"))?;
    } else {
        out.line(format_args!(
            "{shown}: {}; {counts}; `keel stream pack` of the tree puts back packs and indexes that are \
             missing, and packs that are cut; for all else publish the tree into a new store with the same key and \
             --version-min {}",
            counted(report.finding_count, "finding"),
            report.newest.unwrap_or(0).saturating_add(1)
        ))?;
    }
    // A damaged store is not pruned: what its damage hides would count as needed by nobody.
    if report.is_whole()
        && !has_lost_versions
        && (report.leftovers > 0 || report.contents_unused > 0)
    {
        out.line(format_args!(
            "{} contents and {} files that no version needs; `keel stream prune {shown} --keep {}` frees their room",
            report.contents_unused,
            report.leftovers,
            report.versions.max(1)
        ))?;
    }
    Ok(())
}
