//! Checks every byte of a store: checksums of packs and indexes, signatures, and the hash of every block.

use super::PublishError;
use crate::block::{ContentId, FileId, blocks_of};
use crate::manifest::{self, Kind, Manifest, PublicKey};
use crate::regular::is_of_the_file;
use crate::store::files::Layout;
use crate::store::index::{Index, SEGMENT_BYTES_MAX, word};
use crate::store::{
    Location, PACK_HEADER_BYTES, SEGMENT_HEADER_BYTES, State, StoreError, first_block,
    is_pack_header, read_manifest, read_publisher, unpack,
};
use std::collections::{HashMap, HashSet};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The maximum number of reported findings; all are counted.
pub const FINDINGS_MAX: usize = 100;

/// The text of a finding about a key that does not match.
const KEY_FINDING: &str = "it is not the key of this store, and nothing can be published with it; put back a copy of \
     it, or take it away and name the key with --key";

/// The maximum number of files of the tree that a finding names.
const FILES_NAMED_MAX: usize = 3;

/// A problem of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file of the store.
    pub path: PathBuf,
    /// What is wrong.
    pub text: String,
    /// Paths of files that need the damaged data: the first few, in the newest version that needs it.
    pub files: Vec<Vec<u8>>,
    /// That version; `None` if it is unknown or no version needs the data.
    pub version: Option<u64>,
}

/// The counts of damage, grouped by remedy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// The newest version that lacks something.
    pub newest_lacking: Option<u64>,
    /// The number of sound versions newer than that one.
    pub versions_whole: u64,
    /// The number of findings in packs, in data that no version needs.
    pub unneeded: u64,
    /// The number of findings in indexes.
    pub indexes: u64,
    /// The number of findings in the note of the last published version.
    pub notes: u64,
    /// The number of findings in manifests.
    pub manifests: u64,
    /// The newest version whose manifest is damaged.
    pub manifest_newest: Option<u64>,
    /// The number of findings about paths that exist but are not regular files.
    pub no_files: u64,
    /// The number of findings in the public key, without which no manifest can be verified.
    pub publishers: u64,
    /// The key that signs the versions, if `publisher.pub` holds another one and `publisher.key` is that of the
    /// versions.
    pub signer: Option<PublicKey>,
    /// The number of other findings: the secret key, a version that is lost.
    pub others: u64,
    /// The last published version, if its manifest is missing.
    pub version_lost: Option<u64>,
}

/// The contents of a store, and its problems.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The number of versions.
    pub versions: u64,
    /// The newest version.
    pub newest: Option<u64>,
    /// The number of contents of files.
    pub contents: u64,
    /// The number of segments that these consist of.
    pub segments: u64,
    /// The number of blocks in all segments of these contents.
    pub blocks: u64,
    /// The number of packs.
    pub packs: u64,
    /// The size of all packs, in bytes.
    pub pack_bytes: u64,
    /// The number of contents that no version needs; pruning frees them.
    pub contents_unused: u64,
    /// The number of files that an interrupted publication or prune left; pruning removes them.
    pub leftovers: u64,
    /// The first [`FINDINGS_MAX`] findings.
    pub findings: Vec<Finding>,
    /// The number of all findings.
    pub finding_count: u64,
    /// The secret key in the store is damaged or a different one. That says nothing about the versions.
    pub is_key_wrong: bool,
    /// The counts of damage, grouped by remedy.
    pub damage: Damage,
}

impl CheckReport {
    /// Returns whether there are no findings.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.finding_count == 0
    }
}

/// Checks a store. `progress` is called with the number of bytes read since its last call.
///
/// # Errors
/// There is no store, or the operating system refuses. Damage is in the report instead.
pub fn check(store: &Path, progress: &mut dyn FnMut(usize)) -> Result<CheckReport, StoreError> {
    let layout = Layout::new(store);
    layout.check_format()?;
    let mut check = Check {
        layout: &layout,
        report: CheckReport::default(),
        newest: None,
        needed: HashMap::new(),
        sound: Vec::new(),
        publisher: None,
        broken: HashMap::new(),
        told: HashSet::new(),
        has_indexes: true,
        progress,
    };
    check.run()?;
    Ok(check.report)
}

/// The need for a content.
#[derive(Clone, Copy)]
struct Need {
    blocks: u32,
    /// The newest version that needs it.
    version: u64,
}

/// The subject of a finding.
#[derive(Clone, Copy)]
enum About<'a> {
    Contents(&'a [ContentId]),
    Pack,
    Index,
    Note,
    Publisher,
    /// The manifest of a version.
    Manifest(u64),
    Other,
}

struct Check<'c> {
    layout: &'c Layout,
    report: CheckReport,
    newest: Option<Manifest>,
    /// Contents that versions need, with their number of blocks.
    needed: HashMap<ContentId, Need>,
    /// Versions whose manifests are sound, ascending.
    sound: Vec<u64>,
    publisher: Option<PublicKey>,
    /// Segments with a wrong checksum, by pack and offset. They are reported together with the contents that need them.
    broken: HashMap<(u32, u64), String>,
    /// The segments that were reported.
    told: HashSet<(u32, u64)>,
    /// Whether all valid indexes could be read.
    has_indexes: bool,
    progress: &'c mut dyn FnMut(usize),
}

impl Check<'_> {
    fn run(&mut self) -> Result<(), StoreError> {
        let found = read_publisher(self.layout);
        let mut publisher = self.or_finding(found, About::Publisher)?.flatten();
        if let Some(signer) = publisher.and_then(|published| self.signer(&published)) {
            let path = self.layout.public_key();
            let text = "it is not the key that signs the versions, and publisher.key is";
            self.find(&path, text, About::Publisher);
            self.report.damage.signer = Some(signer);
            publisher = Some(signer);
        }
        self.manifests(publisher)?;
        self.key(publisher)?;
        let (packs, indexes) = self.layout.numbers()?;
        for number in &packs {
            let checked = self.pack(*number);
            self.or_finding(checked, About::Pack)?;
        }
        let state = self.indexes(&indexes)?;
        self.contents(&state)?;
        self.report.leftovers += self.leftovers()?;
        // Also report broken segments that no content needs.
        for (at, text) in std::mem::take(&mut self.broken) {
            if !self.told.contains(&at) {
                self.find(&self.layout.pack(at.0), text, About::Pack);
            }
        }
        let damage = &mut self.report.damage;
        let whole = |version: &&u64| {
            damage
                .newest_lacking
                .is_none_or(|lacking| **version > lacking)
        };
        damage.versions_whole = self.sound.iter().filter(whole).count() as u64;
        Ok(())
    }

    /// Returns the store's own key if it signs versions, and the published key none: then `publisher.pub` is damaged,
    /// and the rest can be checked. What cannot be read here is found later.
    fn signer(&self, published: &PublicKey) -> Option<PublicKey> {
        let own = super::key::load(&self.layout.secret_key()).ok()?.public();
        if own == *published {
            return None;
        }
        let mut is_signer = false;
        for version in self.layout.versions().ok()? {
            if read_manifest(self.layout, version, published).is_ok() {
                return None;
            }
            is_signer |= read_manifest(self.layout, version, &own).is_ok();
        }
        is_signer.then_some(own)
    }

    /// Turns an error about one file into a finding; there is no value then. Other errors end the check.
    fn or_finding<T>(
        &mut self,
        found: Result<T, StoreError>,
        about: About<'_>,
    ) -> Result<Option<T>, StoreError> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error) => {
                let (path, what) = of_a_file(error)?;
                self.find(&path, what, about);
                Ok(None)
            }
        }
    }

    fn find(&mut self, path: &Path, text: impl Into<String>, about: About<'_>) {
        self.report.finding_count += 1;
        let mut version = None;
        let damage = &mut self.report.damage;
        match about {
            About::Contents(contents) => {
                let needs = contents
                    .iter()
                    .filter_map(|content| self.needed.get(content));
                version = needs.map(|need| need.version).max();
                match version {
                    Some(_) => damage.newest_lacking = damage.newest_lacking.max(version),
                    None => damage.unneeded += 1,
                }
            }
            About::Pack => damage.unneeded += 1,
            About::Index => damage.indexes += 1,
            About::Note => damage.notes += 1,
            About::Publisher => damage.publishers += 1,
            About::Manifest(version) => {
                damage.manifests += 1;
                damage.manifest_newest = damage.manifest_newest.max(Some(version));
            }
            About::Other => damage.others += 1,
        }
        // Content that is missing in all packs is reported for their folder.
        let is_no_file =
            path != self.layout.packs() && path.symlink_metadata().is_ok() && !path.is_file();
        damage.no_files += u64::from(is_no_file);
        if self.report.findings.len() < FINDINGS_MAX {
            let files = match (about, version) {
                (About::Contents(contents), Some(version)) => self.files_of(contents, version),
                _ => Vec::new(),
            };
            self.report.findings.push(Finding {
                path: path.to_path_buf(),
                text: text.into(),
                files,
                version,
            });
        }
    }

    /// Returns the paths of contents in a version.
    fn files_of(&self, contents: &[ContentId], version: u64) -> Vec<Vec<u8>> {
        let older;
        let manifest = match &self.newest {
            Some(newest) if newest.version == version => newest,
            _ => match self.manifest(version) {
                Ok(Ok(found)) => {
                    older = found;
                    &older
                }
                // It was readable before and was removed meanwhile.
                _ => return Vec::new(),
            },
        };
        manifest
            .names
            .iter()
            .filter(|name| {
                let file = manifest.file(name.node);
                file.is_some_and(|(size, content)| size > 0 && contents.contains(&content))
            })
            .take(FILES_NAMED_MAX)
            .map(|name| path_of(manifest, name.directory, &name.name))
            .collect()
    }

    /// Returns a version's manifest, or what is wrong with it.
    fn manifest(&self, version: u64) -> Result<Result<Manifest, String>, StoreError> {
        let Some(publisher) = self.publisher else {
            return Ok(Err("its publisher is unknown".to_owned()));
        };
        match read_manifest(self.layout, version, &publisher) {
            Ok((manifest, _)) => Ok(Ok(manifest)),
            Err(error) => of_a_file(error).map(|(_, what)| Err(what)),
        }
    }

    fn manifests(&mut self, publisher: Option<PublicKey>) -> Result<(), StoreError> {
        // Read the note before the versions are listed, so that a version published meanwhile is not reported as lost.
        let published = self.layout.published_last();
        let published = self.or_finding(published, About::Note)?.flatten();
        let versions = self.layout.versions()?;
        self.report.versions = versions.len() as u64;
        self.report.newest = versions.last().copied();
        if published > versions.last().copied() {
            self.report.damage.version_lost = published;
            let version = published.unwrap_or_default();
            let path = self.layout.manifest(version);
            let text = format!("version {version} was published, and its manifest is missing");
            self.find(&path, text, About::Other);
        }
        self.publisher = publisher;
        if publisher.is_none() {
            if !versions.is_empty() && self.report.damage.publishers == 0 {
                let path = self.layout.public_key();
                let text = "it is missing: no version can be verified";
                self.find(&path, text, About::Publisher);
            }
            return Ok(());
        }
        for &version in &versions {
            let path = self.layout.manifest(version);
            let manifest = match self.manifest(version)? {
                Ok(manifest) => manifest,
                Err(text) => {
                    self.find(&path, text, About::Manifest(version));
                    continue;
                }
            };
            (self.progress)(std::fs::metadata(&path).map_or(0, |found| found.len() as usize));
            for node in &manifest.nodes {
                if let Kind::File {
                    size_bytes: size_bytes @ 1..,
                    content,
                } = node.kind
                {
                    let blocks = blocks_of(size_bytes);
                    self.needed.insert(content, Need { blocks, version });
                }
            }
            self.sound.push(version);
            self.newest = Some(manifest);
        }
        Ok(())
    }

    /// Checks the secret key, if the store has it and this process may read it. Everything else needs only the public
    /// key.
    fn key(&mut self, publisher: Option<PublicKey>) -> Result<(), StoreError> {
        let path = self.layout.secret_key();
        match super::key::load(&path) {
            Ok(pair) if publisher.is_none_or(|publisher| pair.public() == publisher) => {}
            Err(PublishError::Store(StoreError::System { source, .. }))
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                ) => {}
            Err(PublishError::Store(error)) => {
                let (path, what) = of_a_file(error)?;
                self.report.is_key_wrong = true;
                self.find(&path, what, About::Other);
            }
            _ => {
                self.report.is_key_wrong = true;
                self.find(&path, KEY_FINDING, About::Other);
            }
        }
        Ok(())
    }

    /// Checks the checksum of each segment of a pack, in the order of their location.
    fn pack(&mut self, number: u32) -> Result<(), StoreError> {
        let path = self.layout.pack(number);
        let failed = |error| StoreError::system(&path, "cannot be read", error);
        let file = crate::regular::open(&path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        self.report.packs += 1;
        self.report.pack_bytes += length;
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut header = [0; PACK_HEADER_BYTES];
        let is_pack = match reader.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            other => {
                other.map_err(failed)?;
                is_pack_header(&header)
            }
        };
        if !is_pack {
            self.find(&path, "its header is damaged", About::Pack);
            return Ok(());
        }
        let mut at = PACK_HEADER_BYTES as u64;
        let mut bytes = Vec::new();
        while at < length {
            let mut head = [0; SEGMENT_HEADER_BYTES];
            let offset = at + SEGMENT_HEADER_BYTES as u64;
            let segment_bytes = if offset <= length {
                reader.read_exact(&mut head).map_err(failed)?;
                word(&head, 0)
            } else {
                0
            };
            let end = offset + u64::from(segment_bytes);
            if segment_bytes == 0 || segment_bytes > SEGMENT_BYTES_MAX || end > length {
                // The start of the next segment is unknown now.
                let text = format!("no segment begins at byte {at}");
                self.find(&path, text, About::Pack);
                return Ok(());
            }
            bytes.resize(segment_bytes as usize, 0);
            reader.read_exact(&mut bytes).map_err(failed)?;
            if crc32c::crc32c(&bytes) != word(&head, 4) {
                let text = format!("the checksum of the segment at byte {offset}");
                self.broken.insert((number, offset), text);
            }
            at = end;
            (self.progress)(bytes.len());
        }
        Ok(())
    }

    /// Opens the indexes one by one, so that a damaged one does not hide the others.
    fn indexes(&mut self, numbers: &[u32]) -> Result<State, StoreError> {
        let mut is_right = true;
        for number in numbers.iter().rev() {
            let opened = Index::open(&self.layout.index(*number));
            match self.or_finding(opened, About::Index)? {
                Some(index) if index.is_whole => break,
                found => is_right &= found.is_some(),
            }
        }
        self.has_indexes = is_right;
        if is_right {
            State::load_readable(self.layout)
        } else {
            Ok(State::default())
        }
    }

    fn contents(&mut self, state: &State) -> Result<(), StoreError> {
        let missing: Vec<ContentId> = self
            .needed
            .keys()
            .filter(|content| self.has_indexes && !state.contents.contains_key(content))
            .copied()
            .collect();
        for content in missing {
            let text = format!("no index has content {content}");
            self.find(&self.layout.packs(), text, About::Contents(&[content]));
        }
        let mut contents: Vec<ContentId> = state.contents.keys().copied().collect();
        contents.sort_unstable();
        let mut seen = HashSet::new();
        for content in contents {
            self.report.contents += 1;
            let needed = self.needed.get(&content).copied();
            self.report.contents_unused += u64::from(needed.is_none());
            let record = state.record(self.layout, &content);
            let record = self
                .or_finding(record, About::Contents(&[content]))?
                .flatten();
            let Some(record) = record else { continue };
            if needed.is_some_and(|need| need.blocks as usize != record.list.0.len()) {
                let text = format!("content {content} has another length in its manifest");
                self.find(&self.layout.packs(), text, About::Contents(&[content]));
            }
            let mut packs_missing = HashSet::new();
            for (segment, at) in record.segments.iter().enumerate() {
                // One finding for each content of a missing pack, not for each of its segments.
                if !state.packs.contains_key(&at.pack) && !packs_missing.insert(at.pack) {
                    continue;
                }
                let hashes = &record.list.0[first_block(segment as u32)..];
                self.report.blocks += u64::from(at.blocks);
                self.report.segments += u64::from(seen.insert((at.pack, at.offset)));
                self.segment(state, at, &content, hashes)?;
            }
        }
        Ok(())
    }

    fn segment(
        &mut self,
        state: &State,
        at: &Location,
        content: &ContentId,
        hashes: &[crate::BlockHash],
    ) -> Result<(), StoreError> {
        let path = self.layout.pack(at.pack);
        let Some(pack) = state.packs.get(&at.pack) else {
            self.find(&path, "it is missing", About::Contents(&[*content]));
            return Ok(());
        };
        let mut bytes = vec![0; SEGMENT_HEADER_BYTES + at.bytes as usize];
        let begin = at.offset.saturating_sub(SEGMENT_HEADER_BYTES as u64);
        let broken = self.broken.get(&(at.pack, at.offset)).cloned();
        let of_segment = |wrong: &str| format!("the segment at byte {} {wrong}", at.offset);
        let wrong = match pack.read_exact_at(&mut bytes, begin) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Some(of_segment("is cut off"))
            }
            Err(error) if is_of_the_file(&error) => Some(of_segment("cannot be read")),
            Err(error) => return Err(StoreError::system(&path, "cannot be read", error)),
            Ok(()) => {
                let (head, compressed) = bytes.split_at(SEGMENT_HEADER_BYTES);
                let is_sealed =
                    word(head, 0) == at.bytes && word(head, 4) == crc32c::crc32c(compressed);
                match unpack(compressed, at, hashes) {
                    None => Some(of_segment("has a block with another hash")),
                    Some(_) if !is_sealed => {
                        Some(broken.unwrap_or_else(|| of_segment("has a damaged header")))
                    }
                    Some(_) => None,
                }
            }
        };
        if let Some(text) = wrong {
            self.told.insert((at.pack, at.offset));
            self.find(&path, text, About::Contents(&[*content]));
        }
        Ok(())
    }

    fn leftovers(&self) -> Result<u64, StoreError> {
        Ok(super::prune::leftovers(self.layout)?.len() as u64)
    }
}

/// Returns the file that an error is about, and what is wrong with it. Returns the error itself if it is about no file.
fn of_a_file(error: StoreError) -> Result<(PathBuf, String), StoreError> {
    match error {
        StoreError::Damaged { path, what } => Ok((path, what)),
        StoreError::System { path, source, .. } if is_of_the_file(&source) => {
            Ok((path, unreadable(&source)))
        }
        error => Err(error),
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("it cannot be read: {}", base::error::io_text(error))
}

/// Returns the path of a name in a directory, from the root.
fn path_of(manifest: &Manifest, directory: FileId, name: &[u8]) -> Vec<u8> {
    let mut parts = vec![name];
    let mut at = directory;
    while at != manifest::ROOT {
        let Some(found) = manifest.names.iter().find(|name| name.node == at) else {
            break;
        };
        parts.push(&found.name);
        at = found.directory;
    }
    parts.reverse();
    parts.join(&b'/')
}
