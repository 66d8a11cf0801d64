//! What all programs share: where they run, what they are told, and how their threads start.

use crate::qos::OwnTasks;
use config::Config;
use std::path::{Path, PathBuf};

/// Stack of the threads; they need little.
pub(super) const STACK_BYTES: usize = 256 << 10;

/// What all programs are started with.
pub(super) struct Surroundings {
    /// Path of this executable.
    pub(super) program: PathBuf,
    /// The working directory of the processes: the folder of the configuration.
    pub(super) folder: PathBuf,
    pub(super) socket: PathBuf,
    /// Identity of the store and of its file.
    pub(super) store: String,
    pub(super) region: Option<PathBuf>,
    pub(super) own_tasks: OwnTasks,
}

impl Surroundings {
    /// Returns those of a node with this configuration and store.
    pub(super) fn new(
        config: &Config,
        config_file: &Path,
        store: String,
        own_tasks: OwnTasks,
    ) -> std::io::Result<Self> {
        Ok(Self {
            program: std::env::current_exe()?,
            folder: folder_of(config_file),
            socket: absolute(&config.node.socket),
            store,
            region: config.region.as_ref().map(|region| absolute(&region.file)),
            own_tasks,
        })
    }
}

/// Returns the builder of a thread with this name.
pub(super) fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new()
        .name(name.into())
        .stack_size(STACK_BYTES)
}

/// Returns the working directory of programs and commands: the folder of the configuration.
pub(crate) fn folder_of(config_file: &Path) -> PathBuf {
    let file = absolute(config_file);
    file.parent().unwrap_or(Path::new("/")).to_path_buf()
}

/// Returns the absolute form of a path, or the path itself where the working directory is unknown.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}
