//! Reading a store: the published versions, the contents of their files, and the compressed segments.
//!
//! A store may be published to and pruned while others read it.
//!
//! **Files:** `store/files.rs` the files of a store and their replacement, `store/index.rs` the bytes of an index,
//! `store/error.rs` the errors, `store/published.rs` a version, `store/leases.rs` the versions in use,
//! `store/newest.rs` the version to serve if the newest one is damaged, `store/damage.rs` the known damaged manifests.

mod damage;
pub(crate) mod error;
pub(crate) mod files;
pub(crate) mod index;
mod leases;
mod newest;
mod published;

pub use error::StoreError;
pub use files::format_line;
pub use index::Location;
pub use published::Published;

use crate::block::{BLOCK_BYTES, BlockHash, ContentId, SEGMENT_BLOCKS};
use crate::group::{Group, Outline, groups_of};
use crate::manifest::{self, Kind, Manifest, PublicKey};
use crate::recent::Recent;
use crate::regular;
use crate::sync::locked;
use crate::wire::MANIFEST_BYTES_MAX;
use damage::Damage;
use files::Layout;
use index::{GROUP_SEGMENTS, Index, Part, Record, Row, SEGMENT_BYTES_MAX};
use leases::Leases;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub(crate) use error::system;
pub(crate) use leases::Lease;
pub(crate) use newest::{Newest, Passed};

/// The maximum number of packs of a store. Readers hold each pack open.
pub const PACKS_MAX: usize = 512;

/// The maximum number of attempts to read the indexes of a store that changes meanwhile. A publication or a prune takes
/// longer than one attempt.
const LOADS_MAX: u32 = 5;

/// The maximum memory of the cache of hash groups and the locations of their segments, in bytes.
pub const GROUPS_BYTES_MAX: usize = 16 << 20;

/// The maximum memory of the cache of outlines, in bytes. Outlines prove groups of long files; one takes some 64 bytes
/// for each MiB of a recently requested file.
pub const OUTLINES_BYTES_MAX: usize = 16 << 20;

/// The maximum number of versions cached in memory.
const PUBLISHED_MAX: usize = 3;

pub(crate) const PACK_MAGIC: [u8; 8] = *b"keelpack";
pub(crate) const PACK_FORMAT: u32 = 1;
pub(crate) const PACK_HEADER_BYTES: usize = 16;

/// The size of the length and checksum before each segment, in bytes.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 8;

/// A store, open for reading.
#[derive(Debug)]
pub struct Store {
    layout: Layout,
    publisher: PublicKey,
    state: RwLock<Arc<State>>,
    published: Mutex<VecDeque<Arc<Published>>>,
    parts: Mutex<Recent<(ContentId, u32), Arc<Part>>>,
    outlines: Mutex<Recent<ContentId, Arc<Outline>>>,
    /// Held while a long record is read from end to end, so that concurrent requests read only one at a time.
    outlining: Mutex<()>,
    leases: Arc<Leases>,
    damage: Damage,
    /// Held while the indexes are read again. Readers continue with the previous ones.
    refreshing: Mutex<()>,
}

/// The location of the record of a content.
struct Lies {
    row: Row,
    file: Arc<File>,
    path: PathBuf,
}

/// The contents of the indexes, and the open packs.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The numbers of the packs and indexes that were present.
    listed: (Vec<u32>, Vec<u32>),
    /// The pruned versions that are kept open because they are in use.
    kept: Vec<u64>,
    /// The numbers of the valid indexes, and of the indexes that kept versions need.
    pub(crate) numbers: Vec<u32>,
    indexes: Vec<Arc<File>>,
    /// For each content the position of its index in `indexes`, and its row.
    pub(crate) contents: HashMap<ContentId, (u32, Row)>,
    pub(crate) packs: HashMap<u32, Arc<File>>,
}

impl Store {
    /// Opens a store.
    ///
    /// # Errors
    /// There is no store, it has another format, or it is damaged.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let layout = Layout::new(path);
        layout.check_format()?;
        let publisher = match read_publisher(&layout)? {
            Some(publisher) => publisher,
            None if layout.versions()?.is_empty() => {
                let path = path.to_path_buf();
                return Err(StoreError::Empty { path });
            }
            None => return Err(StoreError::damaged(&layout.public_key(), "it is missing")),
        };
        let state = State::load(&layout)?;
        Ok(Self {
            layout,
            publisher,
            state: RwLock::new(Arc::new(state)),
            published: Mutex::default(),
            parts: Mutex::new(Recent::new(GROUPS_BYTES_MAX)),
            outlines: Mutex::new(Recent::new(OUTLINES_BYTES_MAX)),
            outlining: Mutex::default(),
            leases: Arc::default(),
            damage: Damage::default(),
            refreshing: Mutex::default(),
        })
    }

    /// Returns the publisher that signed its versions.
    #[must_use]
    pub fn publisher(&self) -> &PublicKey {
        &self.publisher
    }

    /// Returns the newest version, even if it was published after the store was opened.
    ///
    /// # Errors
    /// Nothing is published, or the folder cannot be read.
    pub fn newest(&self) -> Result<u64, StoreError> {
        self.versions()?
            .last()
            .copied()
            .ok_or_else(|| StoreError::Empty {
                path: self.layout.folder.clone(),
            })
    }

    /// Returns all versions, ascending.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn versions(&self) -> Result<Vec<u64>, StoreError> {
        self.layout.versions()
    }

    /// Returns a version. The last few requested versions stay in memory.
    ///
    /// # Errors
    /// There is no such version, or its manifest is damaged.
    pub fn published(&self, version: u64) -> Result<Arc<Published>, StoreError> {
        let mut kept = locked(&self.published);
        if let Some(at) = kept.iter().position(|kept| kept.version == version)
            && let Some(found) = kept.remove(at)
        {
            kept.push_front(Arc::clone(&found));
            return Ok(found);
        }
        if let Some(leased) = self.leases.get(version) {
            return Ok(leased);
        }
        let (manifest, signed) = match read_manifest(&self.layout, version, &self.publisher) {
            Err(StoreError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NoSuchVersion { version });
            }
            read => read?,
        };
        let found = Arc::new(Published {
            version,
            signed: signed.into(),
            manifest: Arc::new(manifest),
        });
        kept.push_front(Arc::clone(&found));
        kept.truncate(PUBLISHED_MAX);
        Ok(found)
    }

    /// Keeps a version open for its user, even after it is pruned.
    pub(crate) fn lease(&self, published: &Arc<Published>) -> Lease {
        self.leases.lease(published)
    }

    /// Must be called every few seconds. Loads what was published and pruned. Closes files that only pruned versions
    /// need, once these have been unused for [`leases::ROUNDS_UNUSED`] calls. Until then these files occupy disk space.
    ///
    /// # Errors
    /// The store cannot be read; nothing changes then.
    pub(crate) fn tidy(&self) -> Result<(), StoreError> {
        self.leases.pass();
        let _alone = locked(&self.refreshing);
        let before = self.state();
        let is_unused = |version: &u64| self.leases.get(*version).is_none();
        if before.kept.iter().any(is_unused) || before.listed != self.layout.numbers()? {
            self.reload(&before)?;
        }
        let versions = self.layout.versions()?;
        locked(&self.published).retain(|kept| {
            versions.binary_search(&kept.version).is_ok() || !is_unused(&kept.version)
        });
        Ok(())
    }

    /// Returns the hashes of a group of blocks of a content, checked against it, and their proof.
    ///
    /// # Errors
    /// The store has no such content, the content has no such group, or the index is damaged.
    pub fn group(&self, content: &ContentId, group: u32) -> Result<Group, StoreError> {
        // An empty content has no record.
        if group == 0 && *content == manifest::empty_content() {
            return Ok(Group::default());
        }
        let part = self.part(content, group)?;
        let proof = self.outline(&self.row(content)?)?;
        Ok(Group {
            hashes: part.hashes.clone(),
            proof: proof.map_or_else(Box::default, |outline| outline.proof(group)),
        })
    }

    /// Returns the memory of cached hashes and outlines, in bytes.
    #[must_use]
    pub fn hashes_bytes(&self) -> usize {
        locked(&self.parts).bytes() + locked(&self.outlines).bytes()
    }

    /// Returns the location of a segment of a content: the one that begins with block `SEGMENT_BLOCKS × segment`.
    ///
    /// # Errors
    /// As [`Store::group`]; or there is no such segment.
    pub fn locate(&self, content: &ContentId, segment: u32) -> Result<Location, StoreError> {
        self.place(content, segment).map(|(_, at)| at)
    }

    /// Returns the compressed bytes of a segment, after checking the checksum.
    ///
    /// # Errors
    /// The pack is missing, cannot be read, or is damaged there.
    pub fn read(&self, at: &Location) -> Result<Vec<u8>, StoreError> {
        let pack = self.pack(at)?.ok_or_else(|| self.missing(at))?;
        self.read_from(&pack, at)
    }

    fn read_from(&self, pack: &File, at: &Location) -> Result<Vec<u8>, StoreError> {
        read_segment(pack, &self.layout.pack(at.pack), at)
    }

    /// Lets the kernel read a segment ahead. Returns whether the kernel was asked. Errors are ignored; a later read
    /// reports them.
    pub fn advise(&self, at: &Location) -> bool {
        let Ok(Some(pack)) = self.pack(at) else {
            return false;
        };
        let from = at.offset.saturating_sub(SEGMENT_HEADER_BYTES as u64);
        let length = u64::from(at.bytes) + SEGMENT_HEADER_BYTES as u64;
        let size = |bytes: u64| libc::off_t::try_from(bytes).unwrap_or(libc::off_t::MAX);
        // SAFETY: the descriptor is open; the call changes no memory of this process.
        let failed = unsafe {
            libc::posix_fadvise(
                pack.as_raw_fd(),
                size(from),
                size(length),
                libc::POSIX_FADV_WILLNEED,
            )
        };
        failed == 0
    }

    /// Returns the concatenated blocks of a segment. Each has the hash from the content's record.
    ///
    /// # Errors
    /// As [`Store::locate`] and [`Store::read`].
    pub fn segment(&self, content: &ContentId, segment: u32) -> Result<Vec<u8>, StoreError> {
        let (mut part, mut at) = self.place(content, segment)?;
        let mut pack = self.pack(&at)?;
        if pack.is_none() {
            // The cached location may predate a prune that moved the segment to another pack.
            locked(&self.parts).clear();
            (part, at) = self.place(content, segment)?;
            pack = self.pack(&at)?;
        }
        let pack = pack.ok_or_else(|| self.missing(&at))?;
        let bytes = unpack(
            &self.read_from(&pack, &at)?,
            &at,
            &part.hashes[first_block(segment % GROUP_SEGMENTS)..],
        );
        bytes.ok_or_else(|| {
            let text = format!("the segment at {}", at.offset);
            StoreError::damaged(&self.layout.pack(at.pack), text)
        })
    }

    fn place(
        &self,
        content: &ContentId,
        segment: u32,
    ) -> Result<(Arc<Part>, Location), StoreError> {
        let part = self.part(content, segment / GROUP_SEGMENTS)?;
        let place = segment % GROUP_SEGMENTS;
        let at = part.segments.get(place as usize).copied();
        let at = at.ok_or(StoreError::NoSuchContent { content: *content })?;
        Ok((part, at))
    }

    /// Returns the pack of a segment; `None` if it is missing.
    fn pack(&self, at: &Location) -> Result<Option<Arc<File>>, StoreError> {
        if let Some(pack) = self.state().packs.get(&at.pack) {
            return Ok(Some(Arc::clone(pack)));
        }
        self.refresh()?;
        Ok(self.state().packs.get(&at.pack).cloned())
    }

    fn missing(&self, at: &Location) -> StoreError {
        StoreError::damaged(&self.layout.pack(at.pack), "it is missing")
    }

    fn part(&self, content: &ContentId, group: u32) -> Result<Arc<Part>, StoreError> {
        if let Some(part) = locked(&self.parts).get(&(*content, group)) {
            return Ok(part);
        }
        let lies = self.row(content)?;
        if group >= groups_of(lies.row.blocks) {
            return Err(StoreError::NoSuchContent { content: *content });
        }
        let outline = self.outline(&lies)?;
        let Lies { row, file, path } = &lies;
        let part = Arc::new(row.part(file, path, outline.as_deref(), group)?);
        let bytes = size_of_val(&part.hashes[..]) + size_of_val(&part.segments[..]);
        locked(&self.parts).put((*content, group), Arc::clone(&part), bytes);
        Ok(part)
    }

    /// Returns the outline that proves the groups of a content; `None` if it has only one group.
    fn outline(&self, lies: &Lies) -> Result<Option<Arc<Outline>>, StoreError> {
        let Lies { row, file, path } = lies;
        if groups_of(row.blocks) == 1 {
            return Ok(None);
        }
        let kept = || locked(&self.outlines).get(&row.content);
        if let Some(outline) = kept() {
            return Ok(Some(outline));
        }
        let _alone = locked(&self.outlining);
        if let Some(outline) = kept() {
            return Ok(Some(outline));
        }
        let outline = row.outline(file, path)?.map(Arc::new);
        if let Some(outline) = &outline {
            let bytes = outline.bytes();
            locked(&self.outlines).put(row.content, Arc::clone(outline), bytes);
        }
        Ok(outline)
    }

    /// The location of the record of a content.
    fn row(&self, content: &ContentId) -> Result<Lies, StoreError> {
        let mut state = self.state();
        let mut found = state.contents.get(content).copied();
        if found.is_none() {
            self.refresh()?;
            state = self.state();
            found = state.contents.get(content).copied();
        }
        let (place, row) = found.ok_or(StoreError::NoSuchContent { content: *content })?;
        Ok(Lies {
            row,
            file: Arc::clone(&state.indexes[place as usize]),
            path: self.layout.index(state.numbers[place as usize]),
        })
    }

    pub(crate) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the indexes again if the list of indexes and packs has changed.
    fn refresh(&self) -> Result<(), StoreError> {
        let _alone = locked(&self.refreshing);
        let before = self.state();
        if before.listed != self.layout.numbers()? {
            self.reload(&before)?;
        }
        Ok(())
    }

    /// Reads the indexes again.
    fn reload(&self, before: &State) -> Result<(), StoreError> {
        let state = State::load_behind(&self.layout, before, &self.leases.all())?;
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
        // The locations of segments may have changed.
        locked(&self.parts).clear();
        Ok(())
    }
}

impl State {
    /// Reads all valid indexes.
    pub(crate) fn load(layout: &Layout) -> Result<Self, StoreError> {
        Self::load_behind(layout, &Self::default(), &[])
    }

    /// Like [`Self::load`], but skips packs that are no regular files or cannot be read.
    pub(crate) fn load_readable(layout: &Layout) -> Result<Self, StoreError> {
        let (packs, indexes) = layout.numbers()?;
        Self::load_listed(layout, &Self::default(), &packs, &indexes, true)
    }

    /// Like [`Self::load`], with a previous state. Keeps what `leased` versions need from it, because they may be
    /// pruned meanwhile.
    fn load_behind(
        layout: &Layout,
        before: &Self,
        leased: &[Arc<Published>],
    ) -> Result<Self, StoreError> {
        let mut listed = layout.numbers()?;
        for _ in 0..LOADS_MAX {
            let mut state = Self::load_listed(layout, before, &listed.0, &listed.1, false)?;
            let now = layout.numbers()?;
            if now == listed {
                for published in leased {
                    state.keep(before, published, layout);
                }
                state.listed = listed;
                return Ok(state);
            }
            listed = now;
        }
        Err(StoreError::Busy {
            path: layout.folder.clone(),
        })
    }

    fn load_listed(
        layout: &Layout,
        before: &Self,
        packs: &[u32],
        numbers: &[u32],
        passes_packs: bool,
    ) -> Result<Self, StoreError> {
        let mut state = Self::default();
        let mut opened = Vec::new();
        for &number in numbers.iter().rev() {
            let path = layout.index(number);
            let index = match Index::open(&path) {
                // It was pruned meanwhile: a newer index then replaces all older ones.
                Err(StoreError::System { source, .. })
                    if source.kind() == io::ErrorKind::NotFound =>
                {
                    continue;
                }
                other => other?,
            };
            let is_whole = index.is_whole;
            opened.push((number, index));
            if is_whole {
                break;
            }
        }
        for (number, index) in opened.into_iter().rev() {
            let place = state.indexes.len() as u32;
            state.numbers.push(number);
            state.indexes.push(Arc::new(index.file));
            let rows = index.rows.into_iter();
            let rows = rows.map(|row| (row.content, (place, row)));
            state.contents.extend(rows);
        }
        if packs.len() > 2 * PACKS_MAX {
            return Err(StoreError::damaged(&layout.packs(), "too many packs"));
        }
        for &number in packs {
            let path = layout.pack(number);
            let pack = match before.packs.get(&number) {
                Some(pack) => Arc::clone(pack),
                None => match regular::open(&path) {
                    Ok(pack) => Arc::new(pack),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    // The content of this pack is then missing, and everything else is still checked.
                    Err(error) if passes_packs && regular::is_of_the_file(&error) => continue,
                    Err(error) => return Err(system(&path, "cannot be opened", error)),
                },
            };
            state.packs.insert(number, pack);
        }
        Ok(state)
    }

    /// Keeps what a version needs and no current index contains. Skips what cannot be read: a later request for it
    /// fails.
    fn keep(&mut self, before: &Self, published: &Published, layout: &Layout) {
        let mut places = HashMap::new();
        for node in &published.manifest.nodes {
            let Kind::File {
                size_bytes: 1..,
                content,
            } = node.kind
            else {
                continue;
            };
            let Some((place, row)) = before.contents.get(&content) else {
                continue;
            };
            if self.contents.contains_key(&content) {
                continue;
            }
            let path = layout.index(before.numbers[*place as usize]);
            let Ok(packs) = row.packs(&before.indexes[*place as usize], &path) else {
                continue;
            };
            for number in packs {
                // A limit, in case versions of hundreds of prunes are in use.
                if let Some(pack) = before.packs.get(&number)
                    && self.packs.len() < 2 * PACKS_MAX
                {
                    self.packs.entry(number).or_insert_with(|| Arc::clone(pack));
                }
            }
            let to = *places.entry(*place).or_insert_with(|| {
                self.numbers.push(before.numbers[*place as usize]);
                self.indexes
                    .push(Arc::clone(&before.indexes[*place as usize]));
                self.indexes.len() as u32 - 1
            });
            self.contents.insert(content, (to, *row));
        }
        if !places.is_empty() {
            self.kept.push(published.version);
        }
    }

    /// Returns the first pack that a content needs and that is missing or too short.
    pub(crate) fn pack_lacking(
        &self,
        layout: &Layout,
        content: &ContentId,
        packs: &HashMap<u32, u64>,
    ) -> Result<Option<u32>, StoreError> {
        let Some((place, row)) = self.contents.get(content) else {
            return Ok(None);
        };
        let path = layout.index(self.numbers[*place as usize]);
        row.pack_lacking(&self.indexes[*place as usize], &path, packs)
    }

    /// Returns the length of each pack, in bytes.
    pub(crate) fn pack_lengths(&self, layout: &Layout) -> Result<HashMap<u32, u64>, StoreError> {
        let length = |(number, pack): (&u32, &Arc<File>)| {
            let found = pack.metadata();
            let found =
                found.map_err(|error| system(&layout.pack(*number), "cannot be read", error))?;
            Ok((*number, found.len()))
        };
        self.packs.iter().map(length).collect()
    }

    /// Reads the record of a content without a cache.
    pub(crate) fn record(
        &self,
        layout: &Layout,
        content: &ContentId,
    ) -> Result<Option<Record>, StoreError> {
        let Some((place, row)) = self.contents.get(content) else {
            return Ok(None);
        };
        let path = layout.index(self.numbers[*place as usize]);
        row.record(&self.indexes[*place as usize], &path).map(Some)
    }
}

/// Returns the public key of a store; `None` before the first publication.
pub(crate) fn read_publisher(layout: &Layout) -> Result<Option<PublicKey>, StoreError> {
    let path = layout.public_key();
    let text = match files::read_small(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(system(&path, "cannot be read", error)),
    };
    let key = String::from_utf8_lossy(&text).parse();
    key.map(Some)
        .map_err(|error| StoreError::damaged(&path, error))
}

/// Reads and verifies the manifest of a version. Returns it, and the signed bytes.
///
/// # Errors
/// The file cannot be read, is not signed by this publisher, or holds another version.
pub(crate) fn read_manifest(
    layout: &Layout,
    version: u64,
    publisher: &PublicKey,
) -> Result<(Manifest, Vec<u8>), StoreError> {
    let path = layout.manifest(version);
    let signed = files::read_limited(&path, MANIFEST_BYTES_MAX)
        .map_err(|error| system(&path, "cannot be read", error))?;
    let manifest =
        manifest::verify(&signed, publisher).map_err(|error| StoreError::damaged(&path, error))?;
    match manifest.version == version {
        true => Ok((manifest, signed)),
        false => Err(StoreError::damaged(&path, "it is another version")),
    }
}

/// Returns whether this is the header of a pack.
pub(crate) fn is_pack_header(header: &[u8; PACK_HEADER_BYTES]) -> bool {
    header[..8] == PACK_MAGIC
        && header[8..12] == PACK_FORMAT.to_le_bytes()
        && header[12..] == [0; 4]
}

/// Returns the first block of a segment.
pub(crate) fn first_block(segment: u32) -> usize {
    segment as usize * SEGMENT_BLOCKS as usize
}

/// Returns the compressed bytes of a segment of this pack, after checking the checksum.
pub(crate) fn read_segment(pack: &File, path: &Path, at: &Location) -> Result<Vec<u8>, StoreError> {
    let damaged = || StoreError::damaged(path, format_args!("the segment at {}", at.offset));
    if at.bytes > SEGMENT_BYTES_MAX || at.offset < SEGMENT_HEADER_BYTES as u64 {
        return Err(damaged());
    }
    let mut bytes = vec![0; SEGMENT_HEADER_BYTES + at.bytes as usize];
    let from = at.offset - SEGMENT_HEADER_BYTES as u64;
    pack.read_exact_at(&mut bytes, from).map_err(|error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            damaged()
        } else {
            system(path, "cannot be read", error)
        }
    })?;
    let sum = crc32c::crc32c(&bytes[SEGMENT_HEADER_BYTES..]);
    if index::word(&bytes, 0) != at.bytes || index::word(&bytes, 4) != sum {
        return Err(damaged());
    }
    bytes.drain(..SEGMENT_HEADER_BYTES);
    Ok(bytes)
}

/// Unpacks a segment; `None` if a block does not match its hash. `hashes` begins with that of the segment's first
/// block.
pub(crate) fn unpack(compressed: &[u8], at: &Location, hashes: &[BlockHash]) -> Option<Vec<u8>> {
    let blocks = at.blocks as usize;
    let bytes = zstd::bulk::decompress(compressed, blocks * BLOCK_BYTES).ok()?;
    let is_right = bytes.len().div_ceil(BLOCK_BYTES) == blocks
        && bytes
            .chunks(BLOCK_BYTES)
            .zip(hashes)
            .all(|(block, hash)| BlockHash::of(block) == *hash);
    is_right.then_some(bytes)
}
