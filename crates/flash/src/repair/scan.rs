//! The intact blocks that a repair found, by address and by file.

use std::collections::BTreeSet;

use crate::block::Header;
use crate::numbers::REPAIRED_FILE_ID_MAX;
use crate::root::Root;

/// An intact block of some file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) address: u32,
    pub(crate) file_id: u64,
    pub(crate) sequence: u64,
}

/// The intact blocks found, with their files. Uses 24 + 4 bytes for each block.
#[derive(Default)]
pub(crate) struct Scan {
    /// By address.
    blocks: Vec<Seen>,
    /// Positions in `blocks`, by file and address.
    by_file: Vec<u32>,
    pub(crate) sequence_max: u64,
    pub(crate) file_id_max: u64,
    /// The highest number of the records that spilled lists left in the data region.
    pub(crate) record_sequence_max: u64,
}

/// A file of which blocks are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remains {
    pub(crate) file_id: u64,
    pub(crate) sequence_max: u64,
    first: usize,
    pub(crate) count: usize,
}

impl Scan {
    /// Records a file identity. Those from `REPAIRED_FILE_ID_MAX` on are ignored, because new identities stay away from
    /// them anyway.
    fn note_file_id(&mut self, file_id: u64) {
        if file_id < REPAIRED_FILE_ID_MAX {
            self.file_id_max = self.file_id_max.max(file_id);
        }
    }

    /// Adds an intact block.
    pub(crate) fn note_block(&mut self, address: u32, header: &Header) {
        self.blocks.push(Seen {
            address,
            file_id: header.file_id,
            sequence: header.sequence,
        });
        self.sequence_max = self.sequence_max.max(header.sequence);
        self.note_file_id(header.file_id);
    }

    /// Records the numbers of a record that a spilled list left in the data region.
    pub(crate) fn note_root(&mut self, root: &Root) {
        self.record_sequence_max = self.record_sequence_max.max(root.record_sequence);
        self.sequence_max = self.sequence_max.max(root.next_sequence);
        self.note_file_id(root.next_file_id);
    }

    /// Sorts the blocks by file, after the last one was added. They were added by address.
    pub(crate) fn sort_by_file(&mut self) {
        self.by_file = (0..self.blocks.len() as u32).collect();
        let blocks = &self.blocks;
        self.by_file.sort_unstable_by_key(|position| {
            let seen = blocks[*position as usize];
            (seen.file_id, seen.address)
        });
    }

    /// Returns the addresses of a file's blocks, in order.
    pub(crate) fn addresses_of(&self, remains: &Remains) -> impl Iterator<Item = u32> {
        self.by_file[remains.first..remains.first + remains.count]
            .iter()
            .map(move |position| self.blocks[*position as usize].address)
    }

    /// Returns every file of which blocks are left, the most recently written first.
    pub(crate) fn remains(&self) -> Vec<Remains> {
        let mut all: Vec<Remains> = Vec::new();
        for (first, position) in self.by_file.iter().enumerate() {
            let seen = self.blocks[*position as usize];
            match all.last_mut().filter(|last| last.file_id == seen.file_id) {
                Some(last) => {
                    last.count += 1;
                    last.sequence_max = last.sequence_max.max(seen.sequence);
                }
                None => all.push(Remains {
                    file_id: seen.file_id,
                    sequence_max: seen.sequence,
                    first,
                    count: 1,
                }),
            }
        }
        all.sort_by_key(|remains| std::cmp::Reverse(remains.sequence_max));
        all
    }

    /// Returns the remains of one file.
    pub(crate) fn remains_of(&self, file_id: u64) -> Option<Remains> {
        let id = |position: &u32| self.blocks[*position as usize].file_id;
        let first = self
            .by_file
            .partition_point(|position| id(position) < file_id);
        let end = self
            .by_file
            .partition_point(|position| id(position) <= file_id);
        let sequences = self.by_file[first..end]
            .iter()
            .map(|position| self.blocks[*position as usize].sequence);
        sequences.max().map(|sequence_max| Remains {
            file_id,
            sequence_max,
            first,
            count: end - first,
        })
    }

    /// Returns the addresses of blocks that belong to files other than `known`.
    pub(crate) fn addresses_but_of(&self, known: &BTreeSet<u64>) -> Vec<u32> {
        let others = self
            .blocks
            .iter()
            .filter(|seen| !known.contains(&seen.file_id));
        others.map(|seen| seen.address).collect()
    }

    /// Returns the blocks found at `[start, start + blocks)`.
    pub(crate) fn within(&self, start: u32, blocks: u32) -> &[Seen] {
        let first = self.blocks.partition_point(|seen| seen.address < start);
        let end = self
            .blocks
            .partition_point(|seen| seen.address < start.saturating_add(blocks));
        &self.blocks[first..end]
    }

    pub(crate) fn sequence_at(&self, address: u32) -> Option<u64> {
        self.within(address, 1).first().map(|seen| seen.sequence)
    }
}
