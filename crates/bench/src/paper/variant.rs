//! The paper's four scenarios, and the interface of a system that runs them.

/// Blocks of 4,096 bytes in the file that is read: 16 MiB.
pub(crate) const READ_BLOCKS: u64 = 4096;

/// One of the paper's scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Append a block of 4,096 bytes to an existing file.
    Append,
    /// Read a block of 4,096 bytes from an existing, non-empty file.
    Read,
    /// Open a non-existing file, which implicitly creates it.
    OpenNew,
    /// Delete an empty file.
    UnlinkEmpty,
}

impl Scenario {
    /// All scenarios, in an order in which each finds the files that it needs.
    pub(crate) const ALL: [Self; 4] = [Self::Append, Self::Read, Self::OpenNew, Self::UnlinkEmpty];

    /// Returns the name of files and plots.
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Read => "read",
            Self::OpenNew => "open-new",
            Self::UnlinkEmpty => "unlink-empty",
        }
    }

    /// Returns the name of the case in reports.
    pub(crate) fn case(self) -> &'static str {
        match self {
            Self::Append => "paper-append",
            Self::Read => "paper-read",
            Self::OpenNew => "paper-open-new",
            Self::UnlinkEmpty => "paper-unlink-empty",
        }
    }

    /// Returns the title of its plot.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Append => "append: 4,096 bytes to an existing file",
            Self::Read => {
                "read: 4,096 bytes at random from a file of 16 MiB, caches empty at the start"
            }
            Self::OpenNew => "open-new: open a file that does not exist, which creates it",
            Self::UnlinkEmpty => "unlink-empty: delete an empty file",
        }
    }
}

/// Returns the name that a step creates or deletes.
pub(crate) fn name(index: u32) -> String {
    format!("file-{index}")
}

/// A system in one of its variants.
pub(crate) trait Variant {
    /// `system-sync` or `system-nosync`.
    fn label(&self) -> &'static str;

    /// Whether the system has this variant in `scenario`.
    fn takes(&self, scenario: Scenario) -> bool {
        let _ = scenario;
        true
    }

    /// Empties its own caches and opens the files that the steps need.
    fn prepare(&mut self, scenario: Scenario) -> Result<(), String>;

    /// Runs one step. Returns the nanoseconds of the call alone. `block` is the block that is read.
    fn step(&mut self, scenario: Scenario, index: u32, block: u64) -> Result<u64, String>;

    /// Closes open files and writes out all cached data.
    fn finish(&mut self, scenario: Scenario) -> Result<(), String>;
}
