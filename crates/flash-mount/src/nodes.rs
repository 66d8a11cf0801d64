//! The inodes that the kernel knows: the name of each, its openings, and its times.
//!
//! There is one node for each inode in the kernel's own cache, and the kernel reports when it forgets one. So the
//! memory for nodes is proportional to the kernel's, and a fraction of it.

use std::collections::HashMap;
use std::time::SystemTime;

use flash::FileHandle;

/// The inode of the directory, defined by FUSE.
pub(crate) const ROOT: u64 = 1;

/// Times of an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) accessed: SystemTime,
    pub(crate) modified: SystemTime,
    pub(crate) changed: SystemTime,
}

impl Times {
    pub(crate) fn all(time: SystemTime) -> Self {
        Self {
            accessed: time,
            modified: time,
            changed: time,
        }
    }
}

/// A file that the kernel knows.
pub(crate) struct Node {
    /// Its name in the store; `None` once the file is deleted.
    pub(crate) name: Option<String>,
    /// Number of its hidden name, if it was deleted while open.
    pub(crate) hidden: Option<u16>,
    /// How often the kernel was told of it, minus how often it forgot it.
    lookups: u64,
    /// Number of openings not yet released.
    pub(crate) openings: u64,
    /// The store's handle, while the file is open.
    pub(crate) handle: Option<FileHandle>,
    pub(crate) times: Times,
}

/// All nodes, by inode and by name.
#[derive(Default)]
pub(crate) struct Nodes {
    by_inode: HashMap<u64, Node>,
    by_name: HashMap<String, u64>,
}

impl Nodes {
    pub(crate) fn get(&self, inode: u64) -> Option<&Node> {
        self.by_inode.get(&inode)
    }

    pub(crate) fn get_mut(&mut self, inode: u64) -> Option<&mut Node> {
        self.by_inode.get_mut(&inode)
    }

    /// Returns the inode of a visible name, if the kernel knows it.
    pub(crate) fn inode_of(&self, name: &str) -> Option<u64> {
        self.by_name.get(name).copied()
    }

    /// Records that the kernel is told of the file called `name`, and returns its inode. The store never reuses the
    /// identity of a file, so inodes are never reused either; a node keeps its first inode.
    pub(crate) fn told(&mut self, name: &str, file_id: u64, times: Times) -> u64 {
        if let Some(inode) = self.inode_of(name) {
            if let Some(node) = self.by_inode.get_mut(&inode) {
                node.lookups += 1;
            }
            return inode;
        }
        let inode = inode_of_file(file_id);
        self.by_name.insert(name.to_owned(), inode);
        self.by_inode.insert(
            inode,
            Node {
                name: Some(name.to_owned()),
                hidden: None,
                lookups: 1,
                openings: 0,
                handle: None,
                times,
            },
        );
        inode
    }

    /// Records that the kernel forgot an inode `count` times.
    pub(crate) fn forget(&mut self, inode: u64, count: u64) {
        let Some(node) = self.by_inode.get_mut(&inode) else {
            return;
        };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups == 0 && node.openings == 0 {
            self.remove(inode);
        }
    }

    /// Removes a node that the kernel has already forgotten, after its last opening was released.
    pub(crate) fn remove_if_forgotten(&mut self, inode: u64) {
        if self
            .get(inode)
            .is_some_and(|node| node.lookups == 0 && node.openings == 0)
        {
            self.remove(inode);
        }
    }

    fn remove(&mut self, inode: u64) {
        let Some(node) = self.by_inode.remove(&inode) else {
            return;
        };
        if let Some(name) = node.name
            && self.inode_of(&name) == Some(inode)
        {
            self.by_name.remove(&name);
        }
    }

    /// Gives the file another name; a file that had that name is gone.
    pub(crate) fn rename(&mut self, from: &str, to: &str, changed: SystemTime) {
        self.gone(to);
        if let Some(inode) = self.by_name.remove(from) {
            self.by_name.insert(to.to_owned(), inode);
            if let Some(node) = self.by_inode.get_mut(&inode) {
                node.name = Some(to.to_owned());
                node.times.changed = changed;
            }
        }
    }

    /// Records that the file of this name does not exist any more.
    pub(crate) fn gone(&mut self, name: &str) {
        if let Some(inode) = self.by_name.remove(name)
            && let Some(node) = self.by_inode.get_mut(&inode)
        {
            node.name = None;
        }
    }

    /// Records that the open file of this name was deleted and continues under a hidden name.
    pub(crate) fn hide(&mut self, name: &str, hidden_name: String, number: u16, now: SystemTime) {
        if let Some(inode) = self.by_name.remove(name)
            && let Some(node) = self.by_inode.get_mut(&inode)
        {
            node.name = Some(hidden_name);
            node.hidden = Some(number);
            node.times.changed = now;
        }
    }

    /// Returns the nodes and handles of all open files.
    pub(crate) fn open(&self) -> impl Iterator<Item = (&Node, FileHandle)> {
        self.by_inode
            .values()
            .filter_map(|node| node.handle.map(|handle| (node, handle)))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_inode.len()
    }
}

/// Returns the inode of a file, unless the kernel knows it by another one. File identities begin at 1.
pub(crate) fn inode_of_file(file_id: u64) -> u64 {
    file_id + ROOT
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times {
        accessed: SystemTime::UNIX_EPOCH,
        modified: SystemTime::UNIX_EPOCH,
        changed: SystemTime::UNIX_EPOCH,
    };

    #[test]
    fn a_node_lives_until_it_is_forgotten_and_closed() {
        let mut nodes = Nodes::default();
        let inode = nodes.told("a", 5, TIMES);
        assert_eq!(nodes.told("a", 9, TIMES), inode, "it keeps its inode");
        nodes.get_mut(inode).unwrap().openings = 1;
        nodes.forget(inode, 2);
        assert!(nodes.get(inode).is_some());
        nodes.get_mut(inode).unwrap().openings = 0;
        nodes.remove_if_forgotten(inode);
        assert_eq!(nodes.len(), 0);
        assert_eq!(nodes.inode_of("a"), None);
        // A count that is too large must not wrap around.
        let inode = nodes.told("a", 9, TIMES);
        nodes.forget(inode, 100);
        assert_eq!(nodes.len(), 0);
    }

    #[test]
    fn names_follow_renames_and_deletions() {
        let mut nodes = Nodes::default();
        let first = nodes.told("a", 1, TIMES);
        let second = nodes.told("b", 2, TIMES);
        nodes.rename("a", "b", SystemTime::UNIX_EPOCH);
        assert_eq!(nodes.inode_of("b"), Some(first));
        assert_eq!(nodes.get(second).unwrap().name, None);
        // The replaced file must not take the name with it when the kernel forgets it.
        nodes.forget(second, 1);
        assert_eq!(nodes.inode_of("b"), Some(first));
        nodes.hide("b", "hidden".to_owned(), 0, SystemTime::UNIX_EPOCH);
        assert_eq!(nodes.inode_of("b"), None);
        let third = nodes.told("b", 3, TIMES);
        nodes.forget(first, 1);
        assert_eq!(nodes.inode_of("b"), Some(third));
    }
}
