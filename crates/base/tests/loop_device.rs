//! A loop device for tests. Those of other crates load this file, too.

// Each test program uses its own part of this.
#![allow(dead_code)]

use std::fs::File;
use std::process::Command;

/// A loop device; unmounted at the end. The kernel detaches it with its last user, also if the test is killed.
pub struct Loop {
    pub path: String,
    pub mounted: Option<String>,
    _user: File,
}

impl Loop {
    /// Attaches a loop device. Returns `None`, and prints the reason, if this machine does not allow it.
    pub fn attach(file: &str, options: &[&str]) -> Option<Self> {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .args(options)
            .arg(file)
            .output();
        match output {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8(output.stdout).unwrap();
                Some(Self::of(path.trim().to_owned()))
            }
            Ok(output) => {
                let reason = String::from_utf8_lossy(&output.stderr);
                println!("skipped: no loop device: {}", reason.trim());
                None
            }
            Err(error) => {
                println!("skipped: no losetup: {error}");
                None
            }
        }
    }

    fn of(path: String) -> Self {
        let user = File::options().read(true).open(&path);
        // The device stays as long as it has users.
        Command::new("losetup")
            .args(["--detach", &path])
            .status()
            .ok();
        Self {
            _user: user.unwrap(),
            path,
            mounted: None,
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Some(place) = &self.mounted {
            Command::new("umount").arg(place).status().ok();
        }
    }
}
