//! Every byte of a checkpoint; SPEC.md describes them. All values are checked when they are read.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::flush::Flush;
use crate::layout::NAME_BYTES_MAX;

/// Version of the format of checkpoints.
pub const FORMAT_VERSION: u32 = 1;

/// The unit in which a checkpoint compares and writes file data, in bytes.
pub(super) const EXTENT_BYTES: u64 = 16 << 10;
/// Bytes at the beginning of each file.
pub(super) const HEADER_BYTES: usize = 64;
/// Bytes at its end.
pub(super) const FOOTER_BYTES: usize = 128;
/// Bytes of an entry of the index.
pub(super) const ENTRY_BYTES: usize = 48;
/// The number of extents in an inode's record; a file with more has lists.
pub(super) const INLINE_EXTENTS_MAX: usize = 16;
/// The number of extents of a file that one list covers.
pub(super) const LIST_EXTENTS: u64 = 1024;
/// The number of inodes that one part of the table covers.
pub(super) const GROUP_INODES: u64 = 256;
/// A sequence number that no inode at rest has. It means that the file changed while it was copied.
pub(super) const SEQUENCE_UNKNOWN: u64 = u64::MAX;
/// Maximum size of a piece, in bytes: a part of the table with as many names as fit.
pub(super) const PIECE_BYTES_MAX: u64 = 64 << 20;
/// Maximum size of an index, in bytes.
const INDEX_BYTES_MAX: u64 = 1 << 30;

const HEADER_MAGIC: &[u8; 8] = b"KEELMCKP";
const FOOTER_MAGIC: &[u8; 8] = b"KEELMEND";
const IN_LISTS: u32 = u32::MAX;

/// The place of a piece, and its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Locator {
    /// Generation whose file holds it.
    pub(super) generation: u64,
    /// Offset in the file.
    pub(super) offset: u64,
    pub(super) identity: Identity,
}

/// The identity of a piece: two pieces with the same identity are treated as equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub(super) bytes: u32,
    pub(super) checksum: u32,
    /// Keyed, so that 96 bits decide, and an attacker cannot construct two pieces with the same identity.
    pub(super) fingerprint: u64,
}

impl Identity {
    pub(super) fn of(key: u64, bytes: &[u8]) -> Self {
        let mut hasher = SipHasher13::new_with_keys(key, u64::from_le_bytes(*HEADER_MAGIC));
        hasher.write(bytes);
        Self {
            bytes: bytes.len() as u32,
            checksum: crc32c::crc32c(bytes),
            fingerprint: hasher.finish(),
        }
    }
}

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) key: u64,
    pub(super) generation: u64,
}

/// The footer of a valid file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) key: u64,
    pub(super) generation: u64,
    pub(super) index_at: u64,
    pub(super) index_bytes: u64,
    pub(super) index_checksum: u32,
    /// Also stored in the region. If both are equal, the region's inodes and sequence numbers are those of the table.
    pub(super) token: u64,
    /// When it was begun, in nanoseconds since 1970.
    pub(super) taken_ns: u64,
    pub(super) capacity_bytes: u64,
    pub(super) files_max: u64,
    pub(super) lanes: u32,
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) bytes: u64,
    /// The number of files that are missing because they could not be read.
    pub(super) missed: u64,
    /// How the region made its changes survive a crash of the machine.
    pub(super) flush: Flush,
}

/// A part of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Part {
    /// Records of the inodes whose numbers divided by [`GROUP_INODES`] are this.
    Inodes(u64),
    /// The extents of an inode whose numbers divided by [`LIST_EXTENTS`] are this.
    Extents(u64, u64),
}

/// An extent of a file that is not all zeros: its number in the file, and where its bytes are.
pub(super) type Extent = (u64, Locator);

/// A name that an inode has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) directory: u64,
    pub(super) position: u64,
    pub(super) name: Vec<u8>,
}

/// What is kept of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) inode: u64,
    pub(super) generation: u64,
    pub(super) sequence: u64,
    pub(super) mode: u32,
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) size: u64,
    pub(super) modified_ns: u64,
    pub(super) changed_ns: u64,
    pub(super) accessed_ns: u64,
    pub(super) names: Vec<Name>,
    /// In the order of their numbers.
    pub(super) extents: Vec<Extent>,
}

/// The data read is not in this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

pub(super) type Parsed<T> = std::result::Result<T, Malformed>;

struct Source<'b>(&'b [u8]);

impl<'b> Source<'b> {
    fn bytes(&mut self, count: usize) -> Parsed<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        self.bytes(N)?.try_into().map_err(|_| Malformed)
    }

    fn half(&mut self) -> Parsed<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn word(&mut self) -> Parsed<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn locator(&mut self) -> Parsed<Locator> {
        Ok(Locator {
            generation: self.word()?,
            offset: self.word()?,
            identity: Identity {
                bytes: self.half()?,
                checksum: self.half()?,
                fingerprint: self.word()?,
            },
        })
    }

    fn extent(&mut self) -> Parsed<Extent> {
        let extent = (self.word()?, self.locator()?);
        let fits = (1..=EXTENT_BYTES).contains(&u64::from(extent.1.identity.bytes));
        fits.then_some(extent).ok_or(Malformed)
    }
}

fn put_locator(into: &mut Vec<u8>, locator: &Locator) {
    into.extend(locator.generation.to_le_bytes());
    into.extend(locator.offset.to_le_bytes());
    into.extend(locator.identity.bytes.to_le_bytes());
    into.extend(locator.identity.checksum.to_le_bytes());
    into.extend(locator.identity.fingerprint.to_le_bytes());
}

fn put_extent(into: &mut Vec<u8>, extent: &Extent) {
    into.extend(extent.0.to_le_bytes());
    put_locator(into, &extent.1);
}

/// Writes the frame of header and footer: magic number, version, checksum of the bytes that follow.
fn seal(magic: &[u8; 8], bytes: &mut [u8]) {
    bytes[..8].copy_from_slice(magic);
    bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
}

fn unseal<'b>(magic: &[u8; 8], bytes: &'b [u8]) -> Parsed<Source<'b>> {
    let mut source = Source(bytes);
    let is_ours = source.bytes(8)? == magic
        && source.half()? == FORMAT_VERSION
        && source.half()? == crc32c::crc32c(source.0);
    is_ours.then_some(source).ok_or(Malformed)
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[16..24].copy_from_slice(&self.key.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.generation.to_le_bytes());
        bytes[32..40].copy_from_slice(&EXTENT_BYTES.to_le_bytes());
        seal(HEADER_MAGIC, &mut bytes);
        bytes
    }
}

impl Footer {
    pub(super) fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        let words = [
            self.key,
            self.generation,
            self.index_at,
            self.index_bytes,
            u64::from(self.index_checksum) | u64::from(self.lanes) << 32,
            self.token,
            self.taken_ns,
            self.capacity_bytes,
            self.files_max,
            self.files,
            self.directories,
            self.bytes,
            self.missed,
            u64::from(self.flush.as_number()),
        ];
        for (place, word) in words.into_iter().enumerate() {
            bytes[16 + place * 8..24 + place * 8].copy_from_slice(&word.to_le_bytes());
        }
        seal(FOOTER_MAGIC, &mut bytes);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Parsed<Self> {
        let mut source = unseal(FOOTER_MAGIC, bytes)?;
        let (key, generation) = (source.word()?, source.word()?);
        let (index_at, index_bytes) = (source.word()?, source.word()?);
        let (index_checksum, lanes) = (source.half()?, source.half()?);
        let footer = Self {
            key,
            generation,
            index_at,
            index_bytes,
            index_checksum,
            lanes,
            token: source.word()?,
            taken_ns: source.word()?,
            capacity_bytes: source.word()?,
            files_max: source.word()?,
            files: source.word()?,
            directories: source.word()?,
            bytes: source.word()?,
            missed: source.word()?,
            // An unknown number from a later version must not make the checkpoint unreadable.
            flush: Flush::from_number(source.half()?).unwrap_or_default(),
        };
        (footer.index_bytes <= INDEX_BYTES_MAX)
            .then_some(footer)
            .ok_or(Malformed)
    }
}

/// The index: the parts of the table, in order, with their places.
pub(super) fn encode_index(parts: &[(Part, Locator)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.len() * ENTRY_BYTES);
    for (part, locator) in parts {
        // No inode has number 0, so such an entry is a part of inodes.
        let (inode, number) = match part {
            Part::Inodes(group) => (0, *group),
            Part::Extents(inode, list) => (*inode, *list),
        };
        bytes.extend(inode.to_le_bytes());
        bytes.extend(number.to_le_bytes());
        put_locator(&mut bytes, locator);
    }
    bytes
}

pub(super) fn decode_index(bytes: &[u8]) -> Parsed<Vec<(Part, Locator)>> {
    let mut source = Source(bytes);
    let mut parts = Vec::with_capacity(bytes.len() / ENTRY_BYTES);
    while !source.0.is_empty() {
        let part = match (source.word()?, source.word()?) {
            (0, group) => Part::Inodes(group),
            (inode, list) => Part::Extents(inode, list),
        };
        let locator = source.locator()?;
        let follows = parts.last().is_none_or(|(last, _)| *last < part);
        if !follows || u64::from(locator.identity.bytes) > PIECE_BYTES_MAX {
            return Err(Malformed);
        }
        parts.push((part, locator));
    }
    Ok(parts)
}

impl Record {
    pub(super) fn has_lists(&self) -> bool {
        self.extents.len() > INLINE_EXTENTS_MAX
    }

    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        for word in [self.inode, self.generation, self.sequence] {
            into.extend(word.to_le_bytes());
        }
        for half in [self.mode, self.user, self.group, self.names.len() as u32] {
            into.extend(half.to_le_bytes());
        }
        for word in [
            self.size,
            self.modified_ns,
            self.changed_ns,
            self.accessed_ns,
        ] {
            into.extend(word.to_le_bytes());
        }
        let extents = match self.has_lists() {
            true => IN_LISTS,
            false => self.extents.len() as u32,
        };
        into.extend(extents.to_le_bytes());
        for name in &self.names {
            into.extend(name.directory.to_le_bytes());
            into.extend(name.position.to_le_bytes());
            into.push(name.name.len() as u8);
            into.extend(&name.name);
        }
        if !self.has_lists() {
            self.extents
                .iter()
                .for_each(|extent| put_extent(into, extent));
        }
    }
}

/// The records of a part of the table, without extents that are in lists.
pub(super) fn decode_group(group: u64, bytes: &[u8]) -> Parsed<Vec<Record>> {
    let mut source = Source(bytes);
    let mut records: Vec<Record> = Vec::new();
    while !source.0.is_empty() {
        let (inode, generation, sequence) = (source.word()?, source.word()?, source.word()?);
        let follows = records.last().is_none_or(|last| last.inode < inode);
        if !follows || inode / GROUP_INODES != group {
            return Err(Malformed);
        }
        let (mode, user, owner_group) = (source.half()?, source.half()?, source.half()?);
        let name_count = source.half()?;
        let (size, modified_ns) = (source.word()?, source.word()?);
        let (changed_ns, accessed_ns) = (source.word()?, source.word()?);
        let extent_count = source.half()?;
        let mut names = Vec::new();
        for _ in 0..name_count {
            let (directory, position) = (source.word()?, source.word()?);
            let [length] = source.array()?;
            let name = source.bytes(usize::from(length))?.to_vec();
            debug_assert!(name.len() <= NAME_BYTES_MAX);
            names.push(Name {
                directory,
                position,
                name,
            });
        }
        let is_in_lists = extent_count == IN_LISTS;
        let mut extents: Vec<Extent> = Vec::new();
        for _ in 0..if is_in_lists { 0 } else { extent_count } {
            let extent = source.extent()?;
            if extents.last().is_some_and(|(last, _)| *last >= extent.0) {
                return Err(Malformed);
            }
            extents.push(extent);
        }
        records.push(Record {
            inode,
            generation,
            sequence,
            mode,
            user,
            group: owner_group,
            size,
            modified_ns,
            changed_ns,
            accessed_ns,
            names,
            extents,
        });
    }
    Ok(records)
}

pub(super) fn encode_list(extents: &[Extent]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(extents.len() * 40);
    extents
        .iter()
        .for_each(|extent| put_extent(&mut bytes, extent));
    bytes
}

pub(super) fn decode_list(list: u64, bytes: &[u8]) -> Parsed<Vec<Extent>> {
    let mut source = Source(bytes);
    let mut extents: Vec<Extent> = Vec::new();
    while !source.0.is_empty() {
        let extent = source.extent()?;
        let follows = extents.last().is_none_or(|(last, _)| *last < extent.0);
        if !follows || extent.0 / LIST_EXTENTS != list {
            return Err(Malformed);
        }
        extents.push(extent);
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use base::sim::Random;

    use super::*;

    fn records() -> Vec<Record> {
        let locator = |number: u64| Locator {
            generation: number,
            offset: number * 100,
            identity: Identity::of(3, &number.to_le_bytes()),
        };
        let record = |inode: u64| Record {
            inode,
            generation: inode * 3,
            sequence: 8,
            mode: 0o100_644,
            user: 1,
            group: 2,
            size: 1 << 20,
            modified_ns: 4,
            changed_ns: 5,
            accessed_ns: 6,
            names: (0..inode % 3)
                .map(|number| Name {
                    directory: number + 1,
                    position: inode,
                    name: vec![b'n'; inode as usize],
                })
                .collect(),
            extents: (0..inode % 17).map(|it| (it, locator(it))).collect(),
        };
        (256..290).map(record).map(shorten).collect()
    }

    fn shorten(mut record: Record) -> Record {
        for name in &mut record.names {
            name.name.truncate(NAME_BYTES_MAX);
        }
        record
    }

    #[test]
    fn records_are_read_as_written_and_damaged_ones_cause_no_panic() {
        let records = records();
        let mut group = Vec::new();
        records.iter().for_each(|record| record.encode(&mut group));
        assert_eq!(decode_group(1, &group).as_ref(), Ok(&records));
        assert_eq!(decode_group(2, &group), Err(Malformed));
        let extents: Vec<Extent> = (1024..1100)
            .map(|number| (number, records[15].extents[0].1))
            .collect();
        let list = encode_list(&extents);
        assert_eq!(decode_list(1, &list).as_ref(), Ok(&extents));
        let parts: Vec<_> = extents
            .iter()
            .map(|(number, locator)| (Part::Extents(7, *number), *locator))
            .collect();
        let index = encode_index(&parts);
        assert_eq!(decode_index(&index).as_ref(), Ok(&parts));
        let mut random = Random::new(4);
        for original in [group, list, index] {
            let mut refused = 0;
            for _ in 0..3000 {
                let mut bytes = original.clone();
                for _ in 0..1 + random.below(3) {
                    let at = random.index(bytes.len());
                    bytes[at] = random.next_u64() as u8;
                }
                if random.below(4) == 0 {
                    bytes.truncate(random.index(bytes.len()));
                }
                refused += u64::from(decode_group(1, &bytes).is_err());
                let _ = decode_list(1, &bytes);
                let _ = decode_index(&bytes);
            }
            assert!(refused > 100);
        }
    }
}
