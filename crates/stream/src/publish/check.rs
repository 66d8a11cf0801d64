//! Looks at every byte of a store: checksums of packs and indexes, signatures, and the hash of every block.

use super::PublishError;
use crate::block::{ContentId, FileId, blocks_of};
use crate::manifest::{self, Kind, Manifest, PublicKey};
use crate::store::files::{self, Layout};
use crate::store::index::{Index, SEGMENT_BYTES_MAX, word};
use crate::store::{
    Location, PACK_FORMAT, PACK_HEADER_BYTES, PACK_MAGIC, SEGMENT_HEADER_BYTES, State, StoreError,
    first_block, read_publisher, unpack,
};
use crate::wire::MANIFEST_BYTES_MAX;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Findings that are told; all are counted.
pub const FINDINGS_MAX: usize = 100;

/// What is said of a key that does not fit.
const KEY_FINDING: &str = "it is not the key of this store, and nothing can be published with it; put back a copy of \
     it, or take it away and name the key with --key";

/// Files of the tree that a finding names.
const FILES_NAMED_MAX: usize = 3;

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file of the store.
    pub path: PathBuf,
    /// What is wrong.
    pub text: String,
    /// Files of the newest version that need it, the first few.
    pub files: Vec<String>,
}

/// What a store holds, and what is wrong with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Its versions.
    pub versions: u64,
    /// The newest one.
    pub newest: Option<u64>,
    /// Contents of files.
    pub contents: u64,
    /// Segments that these consist of.
    pub segments: u64,
    /// Blocks whose hashes are right.
    pub blocks: u64,
    /// Packs.
    pub packs: u64,
    /// Bytes of all packs.
    pub pack_bytes: u64,
    /// Contents that no version needs; pruning frees them.
    pub contents_unused: u64,
    /// Files that a publication or a prune left that was cut off; pruning removes them.
    pub leftovers: u64,
    /// What is wrong, the first [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// How much is wrong.
    pub finding_count: u64,
    /// The secret key in the store is damaged or another one; of the versions that says nothing.
    pub is_key_wrong: bool,
}

impl CheckReport {
    /// Nothing is wrong.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.finding_count == 0
    }
}

/// Checks a store. `progress` is told how many bytes of it were read since it was told last.
///
/// # Errors
/// There is no store, or the operating system refuses; what is damaged is in the report.
pub fn check(store: &Path, progress: &mut dyn FnMut(usize)) -> Result<CheckReport, StoreError> {
    let layout = Layout::new(store);
    layout.check_format()?;
    let mut check = Check {
        layout: &layout,
        report: CheckReport::default(),
        newest: None,
        needed: HashMap::new(),
        broken: HashMap::new(),
        progress,
    };
    check.run()?;
    Ok(check.report)
}

struct Check<'c> {
    layout: &'c Layout,
    report: CheckReport,
    newest: Option<Manifest>,
    /// Contents that versions need, with their blocks.
    needed: HashMap<ContentId, u32>,
    /// Segments whose checksum is wrong, by pack and offset: they are told with what needs them.
    broken: HashMap<(u32, u64), String>,
    progress: &'c mut dyn FnMut(usize),
}

impl Check<'_> {
    fn run(&mut self) -> Result<(), StoreError> {
        let publisher = match read_publisher(self.layout) {
            Err(StoreError::Damaged { path, what }) => {
                self.find(&path, what, &[]);
                None
            }
            other => other?,
        };
        self.manifests(publisher)?;
        self.key(publisher)?;
        let (packs, indexes) = self.layout.numbers()?;
        for number in &packs {
            self.pack(*number)?;
        }
        let state = self.indexes(&indexes)?;
        self.contents(&state)?;
        self.report.leftovers += self.leftovers()?;
        // What is broken and nobody needs is broken all the same.
        for ((number, _), text) in std::mem::take(&mut self.broken) {
            self.find(&self.layout.pack(number), text, &[]);
        }
        Ok(())
    }

    fn find(&mut self, path: &Path, text: impl Into<String>, contents: &[ContentId]) {
        self.report.finding_count += 1;
        if self.report.findings.len() < FINDINGS_MAX {
            let files = self.files_of(contents);
            self.report.findings.push(Finding {
                path: path.to_path_buf(),
                text: text.into(),
                files,
            });
        }
    }

    fn files_of(&self, contents: &[ContentId]) -> Vec<String> {
        let Some(manifest) = &self.newest else {
            return Vec::new();
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

    fn manifests(&mut self, publisher: Option<PublicKey>) -> Result<(), StoreError> {
        let versions = self.layout.versions()?;
        self.report.versions = versions.len() as u64;
        self.report.newest = versions.last().copied();
        let Some(publisher) = publisher else {
            if !versions.is_empty() {
                let path = self.layout.public_key();
                self.find(
                    &path,
                    "it is missing or damaged: no version can be verified",
                    &[],
                );
            }
            return Ok(());
        };
        for version in versions {
            let path = self.layout.manifest(version);
            let signed = files::read_limited(&path, MANIFEST_BYTES_MAX)
                .map_err(|error| StoreError::system(&path, "cannot be read", error))?;
            (self.progress)(signed.len());
            let manifest = match manifest::verify(&signed, &publisher) {
                Ok(manifest) if manifest.version == version => manifest,
                Ok(_) => {
                    self.find(&path, "it is another version", &[]);
                    continue;
                }
                Err(error) => {
                    self.find(&path, error.to_string(), &[]);
                    continue;
                }
            };
            for node in &manifest.nodes {
                if let Kind::File {
                    size_bytes: size_bytes @ 1..,
                    content,
                } = node.kind
                {
                    self.needed.insert(content, blocks_of(size_bytes));
                }
            }
            self.newest = Some(manifest);
        }
        Ok(())
    }

    /// The secret key, where the store has it and whoever checks may read it: for all else the public one is enough.
    fn key(&mut self, publisher: Option<PublicKey>) -> Result<(), StoreError> {
        let path = self.layout.secret_key();
        match super::key::load(&path) {
            Ok(pair) if publisher.is_none_or(|publisher| pair.public() == publisher) => {}
            Err(PublishError::Store(StoreError::System { source, .. }))
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                ) => {}
            Err(PublishError::Store(error)) => return Err(error),
            _ => {
                self.report.is_key_wrong = true;
                self.find(&path, KEY_FINDING, &[]);
            }
        }
        Ok(())
    }

    /// The checksum of each segment of a pack, in the order they lie in.
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
                header[..8] == PACK_MAGIC
                    && word(&header, 8) == PACK_FORMAT
                    && header[12..] == [0; 4]
            }
        };
        if !is_pack {
            self.find(&path, "its header", &[]);
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
                // Where the next one begins is not known any more.
                self.find(&path, format!("no segment begins at byte {at}"), &[]);
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
            match Index::open(&self.layout.index(*number)) {
                Ok(index) if index.is_whole => break,
                Ok(_) => {}
                Err(StoreError::Damaged { path, what }) => {
                    self.find(&path, what, &[]);
                    is_right = false;
                }
                Err(error) => return Err(error),
            }
        }
        if is_right {
            State::load(self.layout)
        } else {
            Ok(State::default())
        }
    }

    fn contents(&mut self, state: &State) -> Result<(), StoreError> {
        let has_state = !state.contents.is_empty() || self.report.finding_count == 0;
        let missing: Vec<ContentId> = self
            .needed
            .keys()
            .filter(|content| has_state && !state.contents.contains_key(content))
            .copied()
            .collect();
        for content in missing {
            let text = format!("no index has content {content}");
            self.find(&self.layout.packs(), text, &[content]);
        }
        let mut contents: Vec<ContentId> = state.contents.keys().copied().collect();
        contents.sort_unstable();
        let mut seen = HashSet::new();
        for content in contents {
            self.report.contents += 1;
            let needed = self.needed.get(&content).copied();
            self.report.contents_unused += u64::from(needed.is_none());
            let record = match state.record(self.layout, &content) {
                Ok(Some(record)) => record,
                Ok(None) => continue,
                Err(StoreError::Damaged { path, what }) => {
                    self.find(&path, what, &[content]);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if needed.is_some_and(|blocks| blocks as usize != record.list.0.len()) {
                let text = format!("content {content} has another length in its manifest");
                self.find(&self.layout.packs(), text, &[content]);
            }
            for (segment, at) in record.segments.iter().enumerate() {
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
            self.find(&path, "it is missing", &[*content]);
            return Ok(());
        };
        let mut compressed = vec![0; at.bytes as usize];
        let wrong = match pack.read_exact_at(&mut compressed, at.offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Some("is cut off"),
            Err(error) => return Err(StoreError::system(&path, "cannot be read", error)),
            Ok(()) => unpack(&compressed, at, hashes)
                .is_none()
                .then_some("has a block with another hash"),
        };
        let told = self.broken.remove(&(at.pack, at.offset));
        let text = wrong
            .map(|wrong| format!("the segment at byte {} {wrong}", at.offset))
            .or(told);
        if let Some(text) = text {
            self.find(&path, text, &[*content]);
        }
        Ok(())
    }

    fn leftovers(&self) -> Result<u64, StoreError> {
        Ok(super::prune::leftovers(self.layout)?.len() as u64)
    }
}

/// The path of a name of a directory, from the root.
fn path_of(manifest: &Manifest, directory: FileId, name: &[u8]) -> String {
    let mut parts = vec![String::from_utf8_lossy(name).into_owned()];
    let mut at = directory;
    while at != manifest::ROOT {
        let Some(found) = manifest.names.iter().find(|name| name.node == at) else {
            break;
        };
        parts.push(String::from_utf8_lossy(&found.name).into_owned());
        at = found.directory;
    }
    parts.reverse();
    parts.join("/")
}
