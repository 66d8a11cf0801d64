//! Loop devices, all of one kind: direct transfers to a file that was written through before. Each system has its own
//! device, so that the counters belong to this system alone. Dropping a device detaches it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::floor::write_through;

/// An attached loop device over a file.
pub(crate) struct LoopDevice {
    image: PathBuf,
    device: PathBuf,
}

impl LoopDevice {
    /// Attaches a loop device of `bytes` bytes, with its file `name.disk` in `parent`.
    ///
    /// # Errors
    /// One line that says what is missing: permission, or a tool.
    pub(crate) fn create(parent: &Path, name: &str, bytes: u64) -> Result<Self, String> {
        let image = parent.join(format!("{name}.disk"));
        // Write the file instead of only reserving it: filling a hole would cause work in the file system below.
        write_through(&image, bytes, |_, chunk| chunk.fill(0))?;
        let mut command = Command::new("losetup");
        command.args(["--show", "--direct-io=on", "-f"]).arg(&image);
        let device = PathBuf::from(tool(&mut command)?.trim());
        Ok(Self { image, device })
    }

    /// Checks whether a loop device can be attached on this machine.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn probe(parent: &Path) -> Result<(), String> {
        Self::create(parent, "probe", 1 << 20).map(drop)
    }

    /// Returns the path of the block device.
    pub(crate) fn path(&self) -> &Path {
        &self.device
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = tool(Command::new("losetup").arg("-d").arg(&self.device)) {
            let device = self.device.display();
            eprintln!("keel-bench: {device}: {error}; detach it by hand: losetup -d {device}");
        }
        // The rest of the run needs the space. An error does not matter, because the folder is removed later.
        let _ = fs::remove_file(&self.image);
    }
}

/// A mounted ext4 with a journal, on its own loop device.
pub(crate) struct Ext4Disk {
    folder: PathBuf,
    is_mounted: bool,
    // Declared after the mount, so that the device is detached after the unmount.
    device: LoopDevice,
}

impl Ext4Disk {
    /// Creates the disk; the mount point `name` lies in `parent`.
    ///
    /// # Errors
    /// One line that says what is missing.
    pub(crate) fn create(parent: &Path, name: &str, bytes: u64) -> Result<Self, String> {
        let device = LoopDevice::create(parent, name, bytes)?;
        let mut disk = Self {
            folder: parent.join(name),
            is_mounted: false,
            device,
        };
        // The kernel must have nothing left to initialise in the background during a measurement. The file system needs
        // room for many small files, and the block size of all but small disks.
        let mut mkfs = Command::new("mkfs.ext4");
        let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        mkfs.args(["-q", "-F", "-b", "4096", "-i", "4096", "-E", options]);
        tool(mkfs.arg(disk.device.path()))?;
        fs::create_dir(&disk.folder)
            .map_err(|error| format!("{}: {error}", disk.folder.display()))?;
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&mut self) -> Result<(), String> {
        let mut mount = Command::new("mount");
        tool(mount.arg(self.device.path()).arg(&self.folder))?;
        self.is_mounted = true;
        Ok(())
    }

    /// Unmounts and mounts it again, so that the kernel's caches contain nothing of it. No file may be open.
    ///
    /// # Errors
    /// One line with the tool's reason.
    pub(crate) fn remount(&mut self) -> Result<(), String> {
        tool(Command::new("umount").arg(&self.folder))?;
        self.is_mounted = false;
        self.mount()
    }

    /// Returns the mount point.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Ext4Disk {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(error) = tool(Command::new("umount").arg(&self.folder))
        {
            let folder = self.folder.display();
            eprintln!("keel-bench: {error}; unmount it by hand: umount {folder}");
        }
    }
}

/// Runs a system tool. Returns its standard output, or one line that says what went wrong.
pub(crate) fn tool(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().next().unwrap_or("failed");
    // Most tools prefix their messages with their name.
    Err(line
        .strip_prefix(&format!("{name}: "))
        .map_or_else(|| line.to_owned(), |reason| format!("{name}: {reason}")))
}
