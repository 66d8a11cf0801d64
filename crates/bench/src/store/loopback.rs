//! Loop devices, all of one kind: direct transfers to a file that was written through before. Each system has one
//! for itself, so that its counters are those of this system alone. Dropping one takes it away.

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
    /// Attaches one of `bytes` bytes, whose file `name.disk` is made in `parent`.
    ///
    /// # Errors
    /// One line that says what is lacking: the right to do so, or a tool.
    pub(crate) fn create(parent: &Path, name: &str, bytes: u64) -> Result<Self, String> {
        let image = parent.join(format!("{name}.disk"));
        // Written, not only reserved: a hole that fills would be work of the file system below.
        write_through(&image, bytes, |_, chunk| chunk.fill(0))?;
        let mut command = Command::new("losetup");
        command.args(["--show", "--direct-io=on", "-f"]).arg(&image);
        let device = PathBuf::from(tool(&mut command)?.trim());
        Ok(Self { image, device })
    }

    /// Whether this machine lets us attach one at all; if not, why.
    ///
    /// # Errors
    /// One line with the reason.
    pub(crate) fn probe(parent: &Path) -> Result<(), String> {
        Self::create(parent, "probe", 1 << 20).map(drop)
    }

    /// The path of the block device.
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
        // A run that goes on needs the room; a folder that is removed later does not mind.
        let _ = fs::remove_file(&self.image);
    }
}

/// An ext4 with a journal, on a loop device of its own, mounted.
pub(crate) struct Ext4Disk {
    folder: PathBuf,
    is_mounted: bool,
    // After the mount in order, so detached after it is gone.
    device: LoopDevice,
}

impl Ext4Disk {
    /// Makes one; the mount point `name` lies in `parent`.
    ///
    /// # Errors
    /// One line that says what is lacking.
    pub(crate) fn create(parent: &Path, name: &str, bytes: u64) -> Result<Self, String> {
        let device = LoopDevice::create(parent, name, bytes)?;
        let mut disk = Self {
            folder: parent.join(name),
            is_mounted: false,
            device,
        };
        // Nothing may be left to initialise in the background of a measurement; room for many small files; and blocks
        // of the size that every disk but a small one gets.
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

    /// Unmounts it and mounts it again, after which the kernel has nothing of it in its caches. No file may be open.
    ///
    /// # Errors
    /// One line with the tool's reason.
    pub(crate) fn remount(&mut self) -> Result<(), String> {
        tool(Command::new("umount").arg(&self.folder))?;
        self.is_mounted = false;
        self.mount()
    }

    /// Where it is mounted.
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

/// Runs a tool of the system; its standard output, or one line about what went wrong.
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
    // Most tools name themselves.
    Err(line
        .strip_prefix(&format!("{name}: "))
        .map_or_else(|| line.to_owned(), |reason| format!("{name}: {reason}")))
}
