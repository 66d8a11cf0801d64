//! Programs that stand in for MPI, as shell scripts: `keel-mpi`, and a launcher in place of `mpiexec`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The line with which `keel-mpi` names its library.
pub const LIBRARY: &str = "MPICH Version: 4.0.2, MPICH Device: ch4:ucx";

/// Writes an executable shell script to a folder. Returns its path.
pub fn script(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// The paths of both programs.
pub struct FakeMpi {
    pub program: String,
    pub launcher: String,
}

impl FakeMpi {
    /// Writes a `keel-mpi` that only names its library, and a launcher with this name. When it is not asked for its
    /// version, the launcher executes `run`.
    pub fn new(folder: &Path, launcher: &str, run: &str) -> Self {
        let says_version = "[ \"$1\" = --version ] && echo HYDRA && exit";
        Self {
            program: script(folder, "keel-mpi", &format!("echo '{LIBRARY}'")),
            launcher: script(folder, launcher, &format!("{says_version}\n{run}")),
        }
    }
}
