//! What the kernel permits a node to do, beside the rights of its user. These are the system calls of a list (seccomp),
//! and the files that the configuration names (Landlock). Both are off unless the configuration turns them on, and both
//! last until the process ends. A node that starts programs cannot have them: programs inherit them.
//!
//! **Files:** `calls.rs` the list of system calls, `filter.rs` the filter that the kernel runs, `paths.rs` the rules of
//! files.

mod calls;
mod filter;
mod paths;

use super::log;
use command::error::CliError;
use config::{Config, SystemCalls};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use paths::version as landlock_version;

/// The folders and files that this process can open, once the kernel restricts it to them. This lasts until it ends.
static LISTED: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Returns whether the kernel lets this process open a file at this path. Links are resolved now, while those of the
/// rules were resolved at the start.
pub(crate) fn permits(path: &Path) -> bool {
    LISTED
        .get()
        .is_none_or(|listed| paths::are_in(listed, path))
}

/// Confines this thread, and those that it starts from now on, to the files of the configuration at `path`. A kernel
/// without Landlock is logged: the other protections remain.
pub(crate) fn confine_files(config: &Config, path: &Path) -> Result<(), CliError> {
    if !config.node.are_paths_listed {
        return Ok(());
    }
    let version = match landlock_version() {
        Ok(version) => version,
        Err(error) => {
            let text = format!("skipped: this kernel has no Landlock ({error})");
            log::event("paths", text);
            return Ok(());
        }
    };
    let rules = paths::rules(config, path);
    let listed = paths::places(&rules);
    paths::restrict(&rules, version).map_err(|error| failed("node.paths", &error))?;
    // A process is restricted once.
    let _ = LISTED.set(listed);
    config::files_are_listed();
    let text = format!("{} places, with version {version} of Landlock", rules.len());
    log::event("paths", text);
    Ok(())
}

/// Confines all threads to the system calls of the list, or has the kernel log the others.
pub(crate) fn confine_calls(mode: SystemCalls) -> Result<(), CliError> {
    let others = match mode {
        SystemCalls::All => return Ok(()),
        SystemCalls::Logged => "permitted, and logged by the kernel",
        SystemCalls::Listed => "refused",
    };
    filter::install(mode).map_err(|error| failed("node.system_calls", &error))?;
    let listed = calls::LISTED.len();
    let text = format!("{listed} are listed; others are {others}");
    log::event("system-calls", text);
    Ok(())
}

fn failed(key: &'static str, error: &io::Error) -> CliError {
    let wrong = format!("the kernel refuses it: {error}");
    CliError::failure(key, wrong, "remove the key")
}
