//! `keel stream actions`: shows what was learned, and forgets it on request.

use super::store_error::{shell_word, store_error};
use crate::error::CliError;
use crate::mem_cmd::{hex, shown};
use crate::output::Output;
use clap::Args;
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stream::FileId;
use stream::predict::paper::SEG_MAX;
use stream::predict::{ActionInfo, ActionKind, Mode};
use stream::server::Names;
use stream::server::learned::{self, LearnedError, Lock};
use stream::store::{Store, StoreError};

/// The modes that learn, with their names.
const MODES: [(Mode, &str); 2] = [(Mode::Task, "task"), (Mode::Paper, "paper")];

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel stream actions plant.store\n  \
    keel stream actions plant.store bin/plant --tenant hall --json\n  \
    keel stream actions plant.store bin/plant --forget\n\n\
    TASK is the path in the tree of the program that was run. BLOCKS is the number of blocks of 4 KiB that are sent\n\
    ahead at its start, SOME that of further ones that only some of its last runs have read. Behind a task that is\n\
    known from failed runs alone is the remark `in part`.")]
pub(crate) struct ActionsArgs {
    /// Store
    store: PathBuf,
    /// Path of a task's program in the tree [default: all tasks; --forget needs one]
    task: Option<PathBuf>,
    /// Tenant [default: all tenants]
    #[arg(long)]
    tenant: Option<String>,
    /// Forget what was learned about TASK, for --tenant or for all tenants; stop the server first
    #[arg(long, requires = "task")]
    forget: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &ActionsArgs) -> Result<u8, CliError> {
    if let Some(tenant) = arguments.tenant.as_deref()
        && !learned::is_tenant(tenant)
    {
        return Err(CliError::usage(
            shown(tenant.as_bytes()),
            "is no name of a tenant",
            "use 1 to 64 of a-z, 0-9, dot, underscore and hyphen",
        ));
    }
    let failed = |error: StoreError| store_error(&arguments.store, &error);
    let store = Store::open(&arguments.store).map_err(failed)?;
    let newest = store.newest().map_err(failed)?;
    let published = store.published(newest).map_err(failed)?;
    let names = Names::new(Arc::clone(&published.manifest));
    let task = match &arguments.task {
        None => None,
        Some(path) => {
            let found = published.manifest.find(path.as_os_str().as_bytes());
            let file = found.filter(|file| published.manifest.file(*file).is_some());
            Some(file.ok_or_else(|| no_such_file(path, newest))?)
        }
    };
    let _lock = match arguments.forget {
        true => Some(Lock::take(&arguments.store).map_err(|error| locked(&error))?),
        false => None,
    };
    let mut listed = Vec::new();
    let mut forgotten = 0;
    for (mode, mode_name) in MODES {
        for tenant in tenants(arguments, mode)? {
            let file = learned::file(&arguments.store, mode, &tenant);
            let mut predictor = learned::predictor(mode, SEG_MAX);
            learned::load(&file, &mut *predictor, &names).map_err(|error| unreadable(&error))?;
            if let (true, Some(task)) = (arguments.forget, task) {
                if predictor.forget(task) {
                    learned::save(&file, &predictor.save(&names))
                        .map_err(|error| unreadable(&error))?;
                    forgotten += 1;
                }
                continue;
            }
            let actions = predictor.actions().into_iter();
            let wanted = actions.filter(|action| task.is_none_or(|task| action.task == task));
            listed.extend(wanted.map(|action| Listed {
                tenant: tenant.clone(),
                mode: mode_name,
                path: names.path(action.task).unwrap_or_default().to_vec(),
                action,
            }));
        }
    }
    let mut out = Output::new();
    if arguments.forget {
        said_forgotten(arguments, forgotten, &mut out)?;
    } else {
        list(arguments, newest, &listed, &mut out)?;
    }
    out.flush()?;
    Ok(0)
}

struct Listed {
    tenant: String,
    mode: &'static str,
    path: Vec<u8>,
    action: ActionInfo,
}

fn list(
    arguments: &ActionsArgs,
    version: u64,
    listed: &[Listed],
    out: &mut Output,
) -> Result<(), CliError> {
    if arguments.json {
        let actions: Vec<_> = listed
            .iter()
            .map(|one| {
                json!({
                    "tenant": one.tenant,
                    "mode": one.mode,
                    "task": String::from_utf8_lossy(&one.path),
                    "task_hex": hex(&one.path),
                    "kind": kind(one.action.kind),
                    "runs": one.action.runs,
                    "is_whole": one.action.is_whole,
                    "segments": one.action.segments.len(),
                    "blocks": blocks(&one.action),
                    "blocks_of_some_runs": one.action.others,
                    "files": files(&one.action),
                })
            })
            .collect();
        return out.json(&json!({ "version": version, "actions": actions }));
    }
    if listed.is_empty() {
        return out.line(nothing(arguments));
    }
    out.line(format_args!(
        "{:<12} {:<6} {:<9} {:>6} {:>9} {:>8} {:>6} {:>6}  TASK",
        "TENANT", "MODE", "KIND", "RUNS", "SEGMENTS", "BLOCKS", "SOME", "FILES"
    ))?;
    for one in listed {
        out.line(format_args!(
            "{:<12} {:<6} {:<9} {:>6} {:>9} {:>8} {:>6} {:>6}  {}{}",
            one.tenant,
            one.mode,
            kind(one.action.kind),
            one.action.runs,
            one.action.segments.len(),
            blocks(&one.action),
            one.action.others,
            files(&one.action),
            shown(&one.path),
            remark(&one.action)
        ))?;
    }
    Ok(())
}

fn said_forgotten(
    arguments: &ActionsArgs,
    forgotten: usize,
    out: &mut Output,
) -> Result<(), CliError> {
    let task = arguments.task.as_deref().unwrap_or(Path::new(""));
    let task = shown(task.as_os_str().as_bytes());
    if arguments.json {
        return out.json(&json!({ "forgotten": forgotten }));
    }
    match forgotten {
        0 => out.line(nothing(arguments)),
        count => out.line(format_args!(
            "forgotten: {task}, for {count} tenant{}",
            if count == 1 { "" } else { "s" }
        )),
    }
}

/// Returns the line that nothing was found. The store knows only tenants for which something was learned, so an unknown
/// tenant is no error.
fn nothing(arguments: &ActionsArgs) -> String {
    let task = arguments.task.as_deref();
    let of = task.map(|task| format!(" of {}", shown(task.as_os_str().as_bytes())));
    let tenant = arguments.tenant.as_deref();
    let (tenant, all) = match tenant {
        None => (String::new(), String::new()),
        Some(tenant) => (
            format!(" for the tenant {}", shown(tenant.as_bytes())),
            format!(
                "; `keel stream actions {}` lists all tenants",
                shell_word(&arguments.store)
            ),
        ),
    };
    format!(
        "nothing was learned{}{tenant} yet{all}",
        of.unwrap_or_default()
    )
}

fn tenants(arguments: &ActionsArgs, mode: Mode) -> Result<Vec<String>, CliError> {
    let mut tenants =
        learned::tenants(&arguments.store, mode).map_err(|error| unreadable(&error))?;
    if let Some(wanted) = &arguments.tenant {
        tenants.retain(|tenant| tenant == wanted);
    }
    Ok(tenants)
}

fn kind(kind: ActionKind) -> &'static str {
    match kind {
        ActionKind::Startup => "startup",
        ActionKind::Workload => "workload",
        ActionKind::Exit => "exit",
    }
}

/// Returns what stands behind the task of an action that no whole run has taught.
fn remark(action: &ActionInfo) -> &'static str {
    match action.is_whole {
        true => "",
        false => " (in part: no whole run yet)",
    }
}

fn blocks(action: &ActionInfo) -> usize {
    action.segments.iter().map(Vec::len).sum()
}

fn files(action: &ActionInfo) -> usize {
    let mut files: Vec<FileId> = action.segments.iter().flatten().map(|at| at.file).collect();
    files.sort_unstable();
    files.dedup();
    files.len()
}

fn no_such_file(path: &Path, version: u64) -> CliError {
    CliError::failure(
        path.display(),
        format_args!("is no file of version {version}"),
        "list them with `keel stream ls STORE PATH`",
    )
}

fn locked(error: &LearnedError) -> CliError {
    let remedy = match error {
        LearnedError::Busy(_) => {
            "end the server first: it has them in memory, and would write them over the change"
        }
        _ => remedy(error),
    };
    CliError::coded(error.code(), "learned actions", error, remedy)
}

fn unreadable(error: &LearnedError) -> CliError {
    let remedy = match error {
        LearnedError::Damaged { .. } => {
            "a server sets a damaged file aside when it starts, and learns anew"
        }
        _ => remedy(error),
    };
    CliError::coded(error.code(), "learned actions", error, remedy)
}

/// Returns the remedy if the operating system refused.
fn remedy(error: &LearnedError) -> &'static str {
    error
        .remedy()
        .unwrap_or("try again, and check the disk if it stays")
}
