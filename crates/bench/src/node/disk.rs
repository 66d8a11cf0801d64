//! A block device for one system only: a loop device over a file, with a new ext4 on it. All that the system writes is
//! counted at the device, and nothing else is: data, the file system's journal and its tables.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine::Disk;
use crate::store::DeviceCounts;

/// A mounted loop device. Dropping it unmounts and detaches the device.
pub(crate) struct LoopDisk {
    device: PathBuf,
    folder: PathBuf,
    is_mounted: bool,
    disk: Option<Disk>,
}

impl LoopDisk {
    /// Creates a device of `bytes` bytes; its file and mount point are in `parent`.
    ///
    /// # Errors
    /// One line that says what is lacking: the right to do so, or a tool.
    pub(crate) fn create(parent: &Path, name: &str, bytes: u64) -> Result<Self, String> {
        let image = parent.join(format!("{name}.disk"));
        // Write the file instead of only reserving it: filling a hole would cause work in the file system below.
        crate::store::write_through(&image, bytes, |_, chunk| chunk.fill(0))?;
        let attached = run(Command::new("losetup")
            .args(["--show", "--direct-io=on", "-f"])
            .arg(&image))?;
        let mut disk = Self {
            device: PathBuf::from(attached.trim()),
            folder: parent.join(name),
            is_mounted: false,
            disk: None,
        };
        // The kernel must have nothing left to initialise in the background during a measurement.
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-E", options])
            .arg(&disk.device))?;
        fs::create_dir(&disk.folder)
            .map_err(|error| format!("{}: {error}", disk.folder.display()))?;
        run(Command::new("mount").arg(&disk.device).arg(&disk.folder))?;
        disk.is_mounted = true;
        disk.disk = Disk::below(&disk.folder);
        Ok(disk)
    }

    /// Returns the mount point of its file system.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the operations of the device since it was attached, after all pending writes.
    pub(crate) fn counts(&self) -> Result<DeviceCounts, String> {
        crate::scratch::write_back(&self.folder)?;
        let counts = self.disk.as_ref().and_then(Disk::counts);
        counts.ok_or_else(|| format!("{}: no counters", self.device.display()))
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let unmounted = !self.is_mounted || run(Command::new("umount").arg(&self.folder)).is_ok();
        let detached = run(Command::new("losetup").arg("-d").arg(&self.device));
        if !unmounted || detached.is_err() {
            eprintln!(
                "keel-bench: {} is still in use; umount {} and losetup -d {} by hand",
                self.device.display(),
                self.folder.display(),
                self.device.display()
            );
        }
    }
}

/// Runs a tool. Returns its standard output, or one line that says what went wrong.
fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{name}: {}",
        text.lines().next().unwrap_or("failed")
    ))
}
