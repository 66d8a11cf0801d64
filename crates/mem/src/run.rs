//! The run of the machine and the namespace of processes that a region belongs to. Process numbers mean nothing in
//! another one.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use crate::error::{Error, Result, system_error};
use crate::file_lock::FileLock;
use crate::lane::{Lane, word};
use crate::layout::{attribute, state};
use crate::memory::WORDS_IN_LINE;
use crate::node::ROOT_INODE;
use crate::owner::Owner;
use crate::region::{LEFT, NO_NAMESPACE, Region};

/// How to treat an invalid log of a dead writer.
#[derive(Clone, Copy)]
pub(crate) enum InvalidLog {
    /// The region is not opened.
    Refused,
    /// The log stays as it is, for a repair of the region.
    Left,
}

/// One run of a machine, with the namespace that process numbers belong to.
#[derive(PartialEq, Eq)]
struct RunOfMachine {
    boot: [u64; 2],
    namespace: u64,
}

impl RunOfMachine {
    fn current() -> Result<Self> {
        const BOOT: &str = "/proc/sys/kernel/random/boot_id";
        let failed = |path: &'static str| system_error(Path::new(path), "cannot be read");
        let text = std::fs::read_to_string(BOOT).map_err(failed(BOOT))?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let number = u128::from_str_radix(&digits, 16)
            .map_err(|_| failed(BOOT)(std::io::Error::from_raw_os_error(libc::EINVAL)))?;
        Ok(Self {
            boot: [number as u64, (number >> 64) as u64],
            namespace: namespace_of_this()?,
        })
    }
}

/// The namespace of this process's number. Allocates nothing: a child may be in a signal handler.
fn namespace_of_this() -> Result<u64> {
    const NAMESPACE: &str = "/proc/self/ns/pid";
    let found = std::fs::metadata(NAMESPACE);
    let found = found.map_err(system_error(Path::new(NAMESPACE), "cannot be read"))?;
    Ok(found.ino())
}

impl Region {
    /// Makes the region belong to this run of the machine. Owners from another run are dead, even if a live process has
    /// the same number.
    pub(crate) fn enter_run(&self, invalid_log: InvalidLog) -> Result<()> {
        let run = RunOfMachine::current()?;
        self.namespace.store(run.namespace, Ordering::Relaxed);
        if self.run() == run {
            return Ok(());
        }
        let _locked = FileLock::take(&self.file, &self.path, libc::LOCK_EX)?;
        self.enter_run_alone(&run, invalid_log)
    }

    fn enter_run_alone(&self, run: &RunOfMachine, invalid_log: InvalidLog) -> Result<()> {
        let before = self.run();
        if before == *run {
            return Ok(());
        }
        if before.boot != run.boot {
            self.settle_after_reboot(invalid_log)?;
        } else {
            let namespace = before.namespace & !LEFT;
            if namespace == run.namespace {
                // A process of another namespace died while it was entering.
                self.memory.store(state::NAMESPACE, namespace);
                return Ok(());
            }
            self.leave_namespace(namespace)?;
        }
        self.memory.store(state::BOOT, run.boot[0]);
        self.memory.store(state::BOOT + 8, run.boot[1]);
        self.memory.store(state::NAMESPACE, run.namespace);
        Ok(())
    }

    /// Takes the region from another namespace of the same run, if no process has a lane. An owner may be alive, and
    /// cannot be checked from here. Until the caller enters its own namespace, the region is marked, so that no process
    /// of either namespace uses the region before it is ready. If the caller dies, the region still says to which
    /// namespace the lanes belong that were taken meanwhile.
    fn leave_namespace(&self, before: u64) -> Result<()> {
        if self.lanes_taken() == 0 {
            // A process of the other namespace may be taking its first lane. It takes the lane and then looks at the
            // namespace; here it is the other way round. So one of the two sees the other.
            self.memory.store(state::NAMESPACE, before | LEFT);
            fence(Ordering::SeqCst);
            if self.lanes_taken() == 0 {
                return Ok(());
            }
        }
        self.memory.store(state::NAMESPACE, before);
        Err(self.namespace_error())
    }

    /// Settles all lanes, and resets the words that mean nothing in another run of the machine. Locks and process
    /// numbers are such words. They are never written back, so memory that kept its content may hold any value of them.
    fn settle_after_reboot(&self, invalid_log: InvalidLog) -> Result<()> {
        let lanes = || (0..self.layout.lane_count).map(Lane);
        for lane in lanes() {
            // No reader exists, so a writer that frees memory need not wait for notes.
            for note in 0..WORDS_IN_LINE as u64 {
                self.clear_word(self.layout.lane(lane.0) + word::NOTES + note * 8);
            }
        }
        for lane in lanes() {
            // The log may be durable although the owner word is not.
            match (self.settle_of_another_run(lane), invalid_log) {
                (Err(Error::Damaged { .. }), InvalidLog::Left) => {}
                (settled, _) => settled?,
            }
        }
        let memory = &self.memory;
        let make_even = |at| {
            let sequence = memory.load(at);
            if sequence % 2 == 1 {
                memory.store(at, sequence.wrapping_add(1));
            }
        };
        self.clear_word(state::LOCK);
        make_even(state::SEQUENCE);
        let inodes = memory.load(state::FRESH_INODE).min(self.layout.inode_count);
        for inode in ROOT_INODE..inodes {
            let at = self.layout.inode(inode);
            self.clear_word(at + attribute::LOCK);
            make_even(at + attribute::SEQUENCE);
        }
        // A file's bytes may differ although its sequence number is the same, so the next checkpoint reads all files.
        self.clear_word(state::CHECKPOINT_TOKEN);
        // Not so in another namespace: a process without a lane may have a file open, which the lock of its stub shows.
        for description in 0..self.layout.description_count {
            self.clear_word(self.layout.description(description));
        }
        Ok(())
    }

    /// Most of these words are zero already, so store only where needed.
    fn clear_word(&self, at: u64) {
        if self.memory.load(at) != 0 {
            self.memory.store(at, 0);
        }
    }

    fn run(&self) -> RunOfMachine {
        RunOfMachine {
            boot: [
                self.memory.load(state::BOOT),
                self.memory.load(state::BOOT + 8),
            ],
            namespace: self.memory.load(state::NAMESPACE),
        }
    }

    /// Updates the owner after a fork: the child is another process.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn forked(&self) -> Result<()> {
        // The child may be in another namespace of process numbers: then it is refused a lane.
        let namespace = namespace_of_this()?;
        self.owner
            .store(Owner::current()?.as_word(), Ordering::Relaxed);
        if self.namespace.load(Ordering::Relaxed) != NO_NAMESPACE {
            self.namespace.store(namespace, Ordering::Relaxed);
        }
        Ok(())
    }
}
