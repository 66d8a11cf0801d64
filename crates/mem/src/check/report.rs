//! What a check found, for programs and for people.

/// Maximum number of findings in a report.
const FINDINGS_MAX: usize = 200;

/// The kind of damage, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A lane has an invalid state, or a dead writer's log could not be replayed.
    Lane,
    /// A lock has no holder.
    Lock,
    /// A file is marked as being changed, but no writer changes it.
    Change,
    /// A name cannot be read, or names an invalid inode; or two names of a directory are the same.
    Name,
    /// A list of a directory or a chain of names does not agree with the names.
    List,
    /// An inode does not agree with its names: their number, its parent, its type.
    Links,
    /// A file or directory that no name leads to.
    Lost,
    /// A free list does not agree with what is in use, or a count is wrong.
    Free,
    /// A file's place is invalid, or its size is larger than its place.
    Place,
    /// Two files claim the same memory.
    Shared,
    /// A map of memory does not agree with the files.
    Map,
    /// Pages that no file or pool has, or more pages than exist.
    Pages,
    /// The superblock, or the length of the file.
    Superblock,
    /// An open file description of an invalid file.
    Description,
}

impl Kind {
    /// Its name in reports that programs read.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lane => "lane",
            Self::Lock => "lock",
            Self::Change => "change",
            Self::Name => "name",
            Self::List => "list",
            Self::Links => "links",
            Self::Lost => "lost",
            Self::Free => "free",
            Self::Place => "place",
            Self::Shared => "shared",
            Self::Map => "map",
            Self::Pages => "pages",
            Self::Superblock => "superblock",
            Self::Description => "description",
        }
    }
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its kind.
    pub kind: Kind,
    /// Offset from the beginning of the region's file, in bytes.
    pub at: u64,
    /// A description for people.
    pub text: String,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The number of named files and other entries that are not directories.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// The number of names.
    pub names: u64,
    /// The number of deleted files that a process may still have open.
    pub orphans: u64,
    /// Pages of memory in the pool, in the packed zone and in slots.
    pub pages_pool: u64,
    /// See [`pages_pool`](Self::pages_pool).
    pub pages_packed: u64,
    /// See [`pages_pool`](Self::pages_pool).
    pub pages_slots: u64,
    /// The number of lanes of dead writers that were freed before the check.
    pub settled: u64,
    /// Of these, the number of writers that died in the middle of a change, which was finished or undone.
    pub interrupted: u64,
    /// The region cannot be opened as it is, and only that was checked: nothing is known of its files.
    pub is_unreadable: bool,
    /// The violations, as many as fit.
    pub findings: Vec<Finding>,
    /// The number of violations.
    pub finding_count: u64,
    /// The region was mended: a later check finds nothing, unless damage continues.
    pub is_mended: bool,
    /// Names and bytes that mending could not keep, as many as fit.
    pub losses: Vec<String>,
    /// The number of losses.
    pub loss_count: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.finding_count == 0
    }

    pub(super) fn find(&mut self, kind: Kind, at: u64, text: impl Into<String>) {
        self.finding_count += 1;
        if self.findings.len() < FINDINGS_MAX {
            let text = text.into();
            self.findings.push(Finding { kind, at, text });
        }
    }

    pub(super) fn lose(&mut self, text: impl Into<String>) {
        self.loss_count += 1;
        if self.losses.len() < FINDINGS_MAX {
            self.losses.push(text.into());
        }
    }
}
