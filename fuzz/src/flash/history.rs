//! Every byte that was ever written to a file, by name and position: the data that a damaged store may still return for
//! it.

use std::collections::BTreeMap;

/// Bytes written at an offset.
#[derive(Clone, PartialEq)]
struct Patch {
    offset: usize,
    bytes: Vec<u8>,
}

/// The data written under each name, oldest first.
#[derive(Clone, Default)]
pub(crate) struct History {
    files: BTreeMap<String, Vec<Patch>>,
}

impl History {
    /// Returns all names that ever existed.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.files.keys()
    }

    /// Returns whether a file of this name existed, or a repair may have created it for a file that had lost its name.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.files.contains_key(name) || name.starts_with("lost-")
    }

    pub(crate) fn created(&mut self, name: &str) {
        self.files.entry(name.to_owned()).or_default();
    }

    pub(crate) fn wrote(&mut self, name: &str, offset: usize, bytes: &[u8]) {
        let patches = self.files.entry(name.to_owned()).or_default();
        match patches.last_mut() {
            Some(last) if last.offset + last.bytes.len() == offset => {
                last.bytes.extend_from_slice(bytes);
            }
            _ => patches.push(Patch {
                offset,
                bytes: bytes.to_vec(),
            }),
        }
    }

    /// Renames the file `from` to `to`.
    pub(crate) fn renamed(&mut self, from: &str, to: &str) {
        let patches = self.files.get(from).cloned().unwrap_or_default();
        let known = self.files.entry(to.to_owned()).or_default();
        for patch in patches {
            // Renaming back and forth must not make the history longer each time.
            if !known.contains(&patch) {
                known.push(patch);
            }
        }
    }

    /// Panics if a byte was never written there. A file that lost its name may be any file.
    pub(crate) fn check(&self, name: &str, offset: usize, bytes: &[u8]) {
        let patches: Vec<&Patch> = if name.starts_with("lost-") {
            self.files.values().flatten().collect()
        } else if let Some(patches) = self.files.get(name) {
            patches.iter().collect()
        } else {
            panic!("there never was a file {name:?}");
        };
        let mut at = 0;
        while at < bytes.len() {
            // The longest match of one patch from here on.
            let agrees = |patch: &&Patch| {
                let skip = (offset + at).checked_sub(patch.offset)?;
                let written = patch.bytes.get(skip..)?;
                let pairs = written.iter().zip(&bytes[at..]);
                Some(pairs.take_while(|(one, other)| one == other).count())
            };
            let longest = patches.iter().rev().filter_map(agrees).max().unwrap_or(0);
            assert!(
                longest > 0,
                "file {name:?} at {}: byte {:#x} was never written there",
                offset + at,
                bytes[at]
            );
            at += longest;
        }
    }
}
