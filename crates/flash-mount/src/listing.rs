//! Reading the directory while files are created and deleted.
//!
//! Each open directory shows the names as they were at its first read or its last rewind. So a position means the same
//! name as long as the directory is open, and a file that exists all the time is listed once.

use std::collections::HashMap;

use fuser::Errno;

use fuse::answer::Result;

/// Maximum number of directories open at one time. Each keeps the names of all files.
const LISTINGS_MAX: usize = 64;

/// The names at one moment.
#[derive(Default)]
pub(crate) struct Listing {
    names: String,
    /// End of each name in `names`, and its inode.
    entries: Vec<(usize, u64)>,
    damage: Option<Errno>,
}

impl Listing {
    pub(crate) fn add(&mut self, name: &str, inode: u64) {
        self.names.push_str(name);
        self.entries.push((self.names.len(), inode));
    }

    /// Makes reading end with an error instead of the normal end.
    pub(crate) fn end_with(&mut self, damage: Errno) {
        self.damage = Some(damage);
    }

    pub(crate) fn get(&self, index: usize) -> Option<(&str, u64)> {
        let (end, inode) = *self.entries.get(index)?;
        let start = index
            .checked_sub(1)
            .map_or(0, |before| self.entries[before].0);
        Some((&self.names[start..end], inode))
    }

    /// Returns the result at the end of reading.
    pub(crate) fn end(&self) -> Result<()> {
        self.damage.map_or(Ok(()), Err)
    }
}

/// All open directories.
#[derive(Default)]
pub(crate) struct Listings {
    open: HashMap<u64, Listing>,
    next: u64,
}

impl Listings {
    pub(crate) fn open(&mut self) -> Result<u64> {
        if self.open.len() >= LISTINGS_MAX {
            return Err(Errno::ENFILE);
        }
        self.next += 1;
        self.open.insert(self.next, Listing::default());
        Ok(self.next)
    }

    pub(crate) fn set(&mut self, listing: u64, content: Listing) -> Result<()> {
        *self.open.get_mut(&listing).ok_or(Errno::EBADF)? = content;
        Ok(())
    }

    pub(crate) fn get(&self, listing: u64) -> Result<&Listing> {
        self.open.get(&listing).ok_or(Errno::EBADF)
    }

    pub(crate) fn close(&mut self, listing: u64) {
        self.open.remove(&listing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_one_by_one() {
        let mut listing = Listing::default();
        for (inode, name) in ["a", "größe", "c c"].iter().enumerate() {
            listing.add(name, inode as u64 + 2);
        }
        assert_eq!(listing.get(0), Some(("a", 2)));
        assert_eq!(listing.get(1), Some(("größe", 3)));
        assert_eq!(listing.get(2), Some(("c c", 4)));
        assert_eq!(listing.get(3), None);
    }

    #[test]
    fn open_listings_have_a_limit() {
        let mut listings = Listings::default();
        let open: Vec<u64> = (0..LISTINGS_MAX)
            .map(|_| listings.open().unwrap())
            .collect();
        assert_eq!(listings.open().unwrap_err().code(), libc::ENFILE);
        listings.close(open[3]);
        let again = listings.open().unwrap();
        assert!(listings.get(again).is_ok());
        assert!(listings.get(open[3]).is_err());
    }
}
