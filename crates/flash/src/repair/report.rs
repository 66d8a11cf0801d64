//! The findings and results of a repair.

/// One problem found, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The affected file, if it is known.
    pub file: Option<String>,
    /// The block in which the problem was found, if there is one.
    pub block: Option<u64>,
    /// The problem, and what was done about it.
    pub text: String,
    /// Whether the problem is repaired.
    pub mended: bool,
    /// Whether bytes or the name of a file are lost.
    pub data_lost: bool,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(file) = &self.file {
            write!(formatter, "file {file:?}: ")?;
        }
        if let Some(block) = self.block {
            write!(formatter, "block {block}: ")?;
        }
        formatter.write_str(&self.text)
    }
}

/// A file that came back under another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFile {
    /// The name that it has now.
    pub name: String,
    /// Its identity.
    pub file_id: u64,
    /// Bytes in the file.
    pub length_bytes: u64,
    /// Of these, bytes in damaged blocks; reading them is an error.
    pub damaged_bytes: u64,
    /// Whether the file may have been deleted before. Other damage, to the list of free blocks or to a file that took
    /// over its blocks, leaves that open.
    pub may_be_old: bool,
}

/// The results of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Files in the store afterwards.
    pub files: u64,
    /// Blocks that no file owns afterwards.
    pub blocks_free: u64,
    /// Blocks of files that are intact.
    pub blocks_verified: u64,
    /// Blocks that the repair wrote; 0 if there was nothing to repair.
    pub blocks_written: u64,
    /// Whether no record was left, or not the newest one, or its numbers were used up. Files may then have back the
    /// bytes that the last calls cut off their end.
    pub root_rebuilt: bool,
    /// Whether bytes or names of files are lost.
    pub data_lost: bool,
    /// The first findings.
    pub findings: Vec<Finding>,
    /// All findings.
    pub findings_total: u64,
    /// Files that came back without their names.
    pub lost_files: Vec<LostFile>,
    /// Files that were found but have no name by which they can be opened, because the table has no room for one. Their
    /// blocks stay reserved; a repair after some files were deleted gives them names.
    pub files_unnamed: u64,
}

impl RepairReport {
    /// Returns whether no problem was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.findings_total == 0
    }
}
