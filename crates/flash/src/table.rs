//! The name table: a hash table of fixed size in which each name has two possible places.
//!
//! A name hashes to two blocks (buckets) and is stored in the one that was emptier when it was created. So it is found
//! in two read requests at any fill. Each bucket is stored twice, side by side, and written in one request. The commit
//! record repairs a torn request; the second copy replaces a rotten first one.

use base::block::BLOCK_BYTES;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

use crate::bytes::{get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::error::{Error, Result};
use crate::layout::{BUCKET_HEADER_BYTES, ENTRY_FIXED_BYTES, FORMAT_VERSION, Layout};
use crate::root::{FILE_STATE_BYTES, FileState};

const MAGIC: &[u8; 4] = b"EKTB";
const STATE_OFFSET: usize = 4;

/// Refuses names that no store can hold.
pub(crate) fn validate_name(name: &str, name_bytes_max: u16) -> Result<()> {
    let refuse = |reason| Err(Error::NameInvalid { reason });
    if name.is_empty() {
        return refuse("it is empty");
    }
    if name.len() > usize::from(name_bytes_max) {
        return refuse("it is longer than this store's names may be");
    }
    // A mounted store could not show such names.
    if name.bytes().any(|byte| byte == 0 || byte == b'/') {
        return refuse("it holds a slash or a NUL; the store has no directories");
    }
    if name == "." || name == ".." {
        return refuse("`.` and `..` are not names");
    }
    Ok(())
}

/// Returns the two different buckets that may hold `name`.
pub(crate) fn buckets_of(name: &str, layout: &Layout) -> [u32; 2] {
    let mut hasher = SipHasher24::new_with_key(&layout.hash_key);
    hasher.write(name.as_bytes());
    let hash = hasher.finish();
    let count = u64::from(layout.bucket_count);
    let first = ((hash & 0xffff_ffff) * count) >> 32;
    // The second bucket is chosen among the others, so that there are always two choices.
    let step = 1 + (((hash >> 32) * (count - 1)) >> 32);
    let second = (first + step) % count;
    [first as u32, second as u32]
}

/// One block of the table, intact.
pub(crate) struct Bucket<'a> {
    bytes: &'a [u8],
    layout: &'a Layout,
}

impl<'a> Bucket<'a> {
    /// Accepts `bytes` as bucket `bucket` only if checksum, identity and number agree.
    pub(crate) fn open(bytes: &'a [u8], bucket: u32, layout: &'a Layout) -> Option<Self> {
        let intact = &bytes[..4] == MAGIC
            && get_u32(bytes, 12) == bucket
            && get_u32(bytes, 8) == FORMAT_VERSION
            && crc32c::crc32c_append(layout.checksum_seed(), &bytes[8..BLOCK_BYTES])
                == get_u32(bytes, 4);
        intact.then_some(Self { bytes, layout })
    }

    fn entry(&self, entry: u16) -> &'a [u8] {
        let size = self.layout.entry_bytes();
        let offset = BUCKET_HEADER_BYTES + usize::from(entry) * size;
        &self.bytes[offset..offset + size]
    }

    /// Returns whether entry `entry` is used, even if it is not valid.
    pub(crate) fn is_used(&self, entry: u16) -> bool {
        self.entry(entry)[0] != 0
    }

    /// Returns name and state of entry `entry`, if it is used and valid.
    pub(crate) fn get(&self, entry: u16) -> Option<(&'a str, FileState)> {
        let bytes = self.entry(entry);
        if bytes[0] == 0 {
            return None;
        }
        let name_bytes = usize::from(bytes[1]);
        if name_bytes > usize::from(self.layout.name_bytes_max) {
            return None;
        }
        let name =
            std::str::from_utf8(&bytes[ENTRY_FIXED_BYTES..ENTRY_FIXED_BYTES + name_bytes]).ok()?;
        let state = FileState::decode(
            &bytes[STATE_OFFSET..STATE_OFFSET + FILE_STATE_BYTES],
            self.layout,
        )?;
        Some((name, state))
    }

    /// Returns the used entries that are valid.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u16, &'a str, FileState)> {
        (0..self.layout.entries_per_bucket)
            .filter_map(|entry| self.get(entry).map(|(name, state)| (entry, name, state)))
    }

    /// Returns the number of used entries, valid or not.
    pub(crate) fn used(&self) -> u16 {
        (0..self.layout.entries_per_bucket)
            .filter(|entry| self.entry(*entry)[0] != 0)
            .count() as u16
    }

    pub(crate) fn find(&self, name: &str) -> Option<(u16, FileState)> {
        self.entries()
            .find(|(_, other, _)| *other == name)
            .map(|(entry, _, state)| (entry, state))
    }

    pub(crate) fn first_free(&self) -> Option<u16> {
        (0..self.layout.entries_per_bucket).find(|entry| self.entry(*entry)[0] == 0)
    }

    /// Returns the number of the commit that wrote this block.
    pub(crate) fn record_sequence(&self) -> u64 {
        get_u64(self.bytes, 16)
    }
}

/// Makes `block` an empty bucket.
pub(crate) fn format_bucket(block: &mut [u8], bucket: u32, layout: &Layout) {
    block.fill(0);
    seal_bucket(block, bucket, 0, layout);
}

/// Seals a changed bucket as part of commit `record_sequence`.
pub(crate) fn seal_bucket(block: &mut [u8], bucket: u32, record_sequence: u64, layout: &Layout) {
    block[..4].copy_from_slice(MAGIC);
    put_u32(block, 8, FORMAT_VERSION);
    put_u32(block, 12, bucket);
    put_u64(block, 16, record_sequence);
    put_u16(block, 24, layout.entries_per_bucket);
    let checksum = crc32c::crc32c_append(layout.checksum_seed(), &block[8..BLOCK_BYTES]);
    put_u32(block, 4, checksum);
}

/// Changes one entry of an opened, not yet sealed bucket: `None` clears it.
pub(crate) fn set_entry(
    block: &mut [u8],
    entry: u16,
    value: Option<(&str, &FileState)>,
    layout: &Layout,
) {
    let size = layout.entry_bytes();
    let offset = BUCKET_HEADER_BYTES + usize::from(entry) * size;
    let bytes = &mut block[offset..offset + size];
    bytes.fill(0);
    if let Some((name, state)) = value {
        bytes[0] = 1;
        bytes[1] = name.len() as u8;
        state.encode(&mut bytes[STATE_OFFSET..STATE_OFFSET + FILE_STATE_BYTES]);
        bytes[ENTRY_FIXED_BYTES..ENTRY_FIXED_BYTES + name.len()].copy_from_slice(name.as_bytes());
    }
}

/// Changes the state, not the name, of a used entry.
pub(crate) fn set_entry_state(block: &mut [u8], entry: u16, state: &FileState, layout: &Layout) {
    let offset = BUCKET_HEADER_BYTES + usize::from(entry) * layout.entry_bytes() + STATE_OFFSET;
    state.encode(&mut block[offset..offset + FILE_STATE_BYTES]);
}

const _: () = assert!(STATE_OFFSET + FILE_STATE_BYTES <= ENTRY_FIXED_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::FormatOptions;
    use base::block::Geometry;

    fn layout() -> Layout {
        let options = FormatOptions {
            files_max: 100,
            name_bytes_max: 255,
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        Layout::plan(Geometry { block_count: 4096 }, &options).unwrap()
    }

    #[test]
    fn entries_are_found_changed_and_cleared() {
        let layout = layout();
        let mut block = vec![0; BLOCK_BYTES];
        format_bucket(&mut block, 7, &layout);
        let state = FileState {
            file_id: 3,
            ..FileState::default()
        };
        let long = "ä".repeat(127);
        set_entry(&mut block, 0, Some(("a", &state)), &layout);
        set_entry(&mut block, 11, Some((&long, &state)), &layout);
        seal_bucket(&mut block, 7, 1, &layout);
        let bucket = Bucket::open(&block, 7, &layout).unwrap();
        assert_eq!(bucket.used(), 2);
        assert_eq!(bucket.find(&long), Some((11, state)));
        assert_eq!(bucket.first_free(), Some(1));
        assert!(
            Bucket::open(&block, 8, &layout).is_none(),
            "another bucket's block"
        );
        set_entry(&mut block, 0, None, &layout);
        seal_bucket(&mut block, 7, 2, &layout);
        let bucket = Bucket::open(&block, 7, &layout).unwrap();
        assert_eq!(bucket.find("a"), None);
        assert_eq!(bucket.record_sequence(), 2);
    }

    #[test]
    fn the_two_places_of_a_name_differ() {
        let layout = layout();
        for number in 0..10_000 {
            let [first, second] = buckets_of(&format!("name {number}"), &layout);
            assert_ne!(first, second);
            assert!(first < layout.bucket_count && second < layout.bucket_count);
        }
    }

    #[test]
    fn names_that_no_store_holds_are_refused() {
        for bad in ["", ".", "..", "a/b", "a\0b"] {
            assert!(validate_name(bad, 255).is_err(), "{bad:?}");
        }
        assert!(validate_name(&"x".repeat(256), 255).is_err());
        assert!(validate_name(&"x".repeat(255), 255).is_ok());
    }
}
