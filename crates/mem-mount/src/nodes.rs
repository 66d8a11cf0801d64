//! The inodes that the kernel knows. The kernel names an inode by its number alone, and a number is reused after a file
//! is deleted. The generation that the kernel got with the number tells the files apart.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use mem::{Node, ROOT_INODE};

struct Known {
    generation: u64,
    /// The number of lookups that the kernel has got and not yet forgotten.
    lookups: u64,
}

#[derive(Default)]
pub(crate) struct Nodes(RwLock<HashMap<u64, Known>>);

impl Nodes {
    // No code panics with the lock held; even after a panic the table would be whole.
    fn read(&self) -> RwLockReadGuard<'_, HashMap<u64, Known>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<u64, Known>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node that the kernel means by a number.
    pub(crate) fn get(&self, inode: u64) -> Option<Node> {
        if inode == ROOT_INODE {
            return Some(Node::ROOT);
        }
        let generation = self.read().get(&inode)?.generation;
        Some(Node { inode, generation })
    }

    /// Counts that the kernel gets a node.
    pub(crate) fn add(&self, node: Node) {
        let mut nodes = self.write();
        let known = nodes.entry(node.inode).or_insert(Known {
            generation: node.generation,
            lookups: 0,
        });
        // If the number is reused, the kernel drops the old inode as soon as it sees the new generation. It will forget
        // the sum of both lookup counts.
        known.generation = node.generation;
        known.lookups += 1;
    }

    /// Subtracts the lookups that the kernel has forgotten.
    pub(crate) fn forget(&self, inode: u64, lookups: u64) {
        if let Entry::Occupied(mut known) = self.write().entry(inode) {
            known.get_mut().lookups = known.get().lookups.saturating_sub(lookups);
            if known.get().lookups == 0 {
                known.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_comes_again_is_another_node() {
        let nodes = Nodes::default();
        let node = |generation| Node {
            inode: 7,
            generation,
        };
        assert_eq!(nodes.get(1), Some(Node::ROOT));
        assert_eq!(nodes.get(7), None);
        nodes.add(node(3));
        nodes.add(node(3));
        nodes.add(node(4));
        assert_eq!(nodes.get(7), Some(node(4)));
        nodes.forget(7, 2);
        assert_eq!(nodes.get(7), Some(node(4)));
        nodes.forget(7, 1);
        assert_eq!(nodes.get(7), None);
        nodes.forget(7, 1);
    }
}
