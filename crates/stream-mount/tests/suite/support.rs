//! A tree in memory, its mount, and the requests to it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use stream::block::block_bytes;
use stream::manifest::{Kind, Manifest, Name, Node, ROOT};
use stream::{BLOCK_BYTES, BlockAt, BlockHash, FileId, HashList, Token};
use stream_mount::{Guard, MountOptions, Mounted, PageCache, Source, Unreadable};

#[path = "../../../fuse/tests/common/calls.rs"]
mod calls;

pub use calls::*;

/// The time of all nodes: before 1970, to the nanosecond.
pub const MODIFIED: (i64, u32) = (-7, 123_456_789);

/// Builds a manifest.
#[derive(Default)]
pub struct TreeBuilder {
    nodes: Vec<Node>,
    names: Vec<Name>,
    contents: HashMap<FileId, Vec<u8>>,
}

impl TreeBuilder {
    pub fn new() -> Self {
        let mut builder = Self::default();
        builder.node(Kind::Directory, 0o755);
        builder
    }

    fn node(&mut self, kind: Kind, mode: u16) -> FileId {
        let (user, group) = base::mount::effective_ids();
        self.nodes.push(Node {
            kind,
            mode,
            user,
            group,
            modified_s: MODIFIED.0,
            modified_ns: MODIFIED.1,
        });
        FileId(self.nodes.len() as u32 - 1)
    }

    pub fn name(&mut self, directory: FileId, name: &str, node: FileId) -> FileId {
        self.names.push(Name {
            directory,
            name: name.as_bytes().into(),
            node,
        });
        node
    }

    pub fn directory(&mut self, above: FileId, name: &str) -> FileId {
        let node = self.node(Kind::Directory, 0o755);
        self.name(above, name, node)
    }

    pub fn link(&mut self, above: FileId, name: &str, target: &str) -> FileId {
        let target = target.as_bytes().into();
        let node = self.node(Kind::Link { target }, 0o777);
        self.name(above, name, node)
    }

    pub fn file(&mut self, above: FileId, name: &str, mode: u16, bytes: Vec<u8>) -> FileId {
        let hashes = bytes.chunks(BLOCK_BYTES).map(BlockHash::of).collect();
        let kind = Kind::File {
            size_bytes: bytes.len() as u64,
            content: HashList(hashes).content(),
        };
        let node = self.node(kind, mode);
        self.contents.insert(node, bytes);
        self.name(above, name, node)
    }

    /// Copies a file of this machine to the same path, with the directories that lead to it.
    pub fn copy(&mut self, path: &Path) -> FileId {
        let mut at = ROOT;
        let parts: Vec<_> = path.iter().skip(1).collect();
        let (name, above) = parts.split_last().unwrap();
        for part in above {
            let part = part.to_str().unwrap();
            at = match self.find(at, part) {
                Some(found) => found,
                None => self.directory(at, part),
            };
        }
        let name = name.to_str().unwrap();
        match self.find(at, name) {
            Some(found) => found,
            None => self.file(at, name, 0o755, std::fs::read(path).unwrap()),
        }
    }

    fn find(&self, directory: FileId, name: &str) -> Option<FileId> {
        let is_it = |it: &&Name| it.directory == directory && *it.name == *name.as_bytes();
        self.names.iter().find(is_it).map(|it| it.node)
    }

    pub fn build(mut self) -> Arc<Memory> {
        self.names
            .sort_by(|a, b| (a.directory, &a.name).cmp(&(b.directory, &b.name)));
        Arc::new(Memory {
            manifest: Arc::new(Manifest {
                version: 1,
                nodes: self.nodes,
                names: self.names,
            }),
            contents: self.contents,
            state: Mutex::default(),
            changed: Condvar::new(),
            tokens: AtomicU64::new(0),
        })
    }
}

/// The calls that a source has received, and its settings.
#[derive(Default)]
pub struct Seen {
    pub reads: Vec<(Option<Token>, BlockAt)>,
    /// Since when the deadline of each read is counted.
    pub since: Vec<Instant>,
    pub wanted: Vec<Vec<BlockAt>>,
    pub begun: Vec<(Token, FileId)>,
    pub ended: Vec<(Token, bool)>,
    /// Blocks that are held back until they are removed from this set.
    pub held: HashSet<BlockAt>,
    /// The number of readers that wait for them.
    pub waiting: usize,
    /// Blocks that fail.
    pub failing: HashSet<BlockAt>,
    /// Blocks that are returned too short.
    pub short: HashSet<BlockAt>,
    /// Blocks that `read_now` returns.
    pub at_hand: HashSet<BlockAt>,
    pub pages: Option<Arc<PageCache>>,
    is_over: bool,
}

/// A source with all blocks in memory.
pub struct Memory {
    pub manifest: Arc<Manifest>,
    pub contents: HashMap<FileId, Vec<u8>>,
    state: Mutex<Seen>,
    changed: Condvar,
    tokens: AtomicU64,
}

impl Memory {
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.state.lock().unwrap()
    }

    /// Waits until a condition holds.
    pub fn wait_until(&self, mut is_so: impl FnMut(&Seen) -> bool) -> MutexGuard<'_, Seen> {
        self.changed
            .wait_while(self.seen(), |seen| !is_so(seen))
            .unwrap()
    }

    pub fn release(&self) {
        self.seen().held.clear();
        self.changed.notify_all();
    }

    pub fn file(&self, path: &str) -> FileId {
        self.manifest.find(path.as_bytes()).unwrap()
    }

    pub fn block(&self, at: BlockAt) -> Arc<[u8]> {
        let bytes = &self.contents[&at.file];
        let from = at.index as usize * BLOCK_BYTES;
        bytes[from..from + block_bytes(bytes.len() as u64, at.index)].into()
    }

    /// Returns the requested blocks of a file, in order.
    pub fn blocks_read(&self, file: FileId) -> Vec<u32> {
        let seen = self.seen();
        let of = seen.reads.iter().filter(|(_, at)| at.file == file);
        of.map(|(_, at)| at.index).collect()
    }

    /// Returns the only task of a program that has begun.
    pub fn token_of(&self, task: FileId) -> Token {
        let seen = self.seen();
        let of: Vec<_> = seen.begun.iter().filter(|it| it.1 == task).collect();
        assert_eq!(of.len(), 1, "{:?}", seen.begun);
        of[0].0
    }
}

impl Source for Memory {
    fn manifest(&self) -> Arc<Manifest> {
        Arc::clone(&self.manifest)
    }

    fn begin(&self, task: FileId) -> Token {
        let number = self.tokens.fetch_add(1, Ordering::Relaxed) + 1;
        let token = Token(u128::from(number).to_le_bytes());
        self.seen().begun.push((token, task));
        self.changed.notify_all();
        token
    }

    fn end(&self, token: Token, has_exited: bool) {
        self.seen().ended.push((token, has_exited));
        self.changed.notify_all();
    }

    fn read(
        &self,
        token: Option<Token>,
        at: BlockAt,
        since: Instant,
    ) -> Result<Arc<[u8]>, Unreadable> {
        let mut seen = self.seen();
        seen.reads.push((token, at));
        seen.since.push(since);
        seen.waiting += 1;
        self.changed.notify_all();
        let is_held = |seen: &mut Seen| seen.held.contains(&at) && !seen.is_over;
        let mut seen = self.changed.wait_while(seen, is_held).unwrap();
        seen.waiting -= 1;
        if seen.failing.contains(&at) || seen.is_over {
            return Err(Unreadable("told to fail".to_owned()));
        }
        let block = self.block(at);
        if seen.short.contains(&at) {
            return Ok(block[..block.len() / 2].into());
        }
        Ok(block)
    }

    fn read_now(&self, token: Option<Token>, at: BlockAt) -> Option<Arc<[u8]>> {
        let mut seen = self.seen();
        if !seen.at_hand.contains(&at) {
            return None;
        }
        seen.reads.push((token, at));
        Some(self.block(at))
    }

    fn want(&self, _token: Option<Token>, blocks: &[BlockAt]) {
        self.seen().wanted.push(blocks.to_vec());
    }

    fn counters(&self) -> String {
        format!("{{\"reads\":{}}}", self.seen().reads.len())
    }

    fn set_pages(&self, pages: Option<Arc<PageCache>>) {
        self.seen().pages = pages;
    }
}

/// Returns whether mounting is impossible here, and prints the reason.
pub fn cannot_mount() -> bool {
    let reason = base::mount::why_root_cannot_mount();
    if let Some(reason) = &reason {
        println!("skipped: {reason}");
    }
    reason.is_some()
}

/// A folder that is removed with the mount in it.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("keel-stream-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::create_dir(folder.join("here")).unwrap();
        Self(folder)
    }

    pub fn directory(&self) -> PathBuf {
        self.0.join("here")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        unmount(&self.directory(), libc::MNT_DETACH).ok();
        // Do not delete the content of a directory that is still mounted.
        std::fs::remove_dir(self.directory()).ok();
        if !self.directory().exists() {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }
}

/// A mounted tree. It is unmounted and removed when it is dropped, even if the test fails.
pub struct Mount {
    pub source: Arc<Memory>,
    mounted: Option<Mounted>,
    pub folder: Folder,
}

impl Mount {
    pub fn new(builder: TreeBuilder) -> Self {
        Self::with(builder, &[])
    }

    pub fn with(builder: TreeBuilder, redirect: &[&str]) -> Self {
        let (source, folder) = (builder.build(), Folder::new());
        let options = MountOptions {
            source: "test".to_owned(),
            allows_other_users: true,
            redirect: redirect.iter().map(PathBuf::from).collect(),
            ..MountOptions::default()
        };
        let mounted = stream_mount::mount(
            source.clone(),
            &folder.directory(),
            &options,
            Some(Guard::start().unwrap()),
            || {},
        );
        Self {
            source,
            mounted: Some(mounted.unwrap()),
            folder,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.directory().join(name)
    }

    pub fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    pub fn end(&mut self) {
        let _ = self.mounted.take().unwrap().end();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let mut seen = match self.source.state.lock() {
            Ok(seen) => seen,
            Err(poisoned) => poisoned.into_inner(),
        };
        seen.is_over = true;
        drop(seen);
        self.source.changed.notify_all();
        drop(self.mounted.take());
    }
}

/// A file mapped into memory.
pub struct Mapped {
    from: *mut libc::c_void,
    length: usize,
}

impl Mapped {
    pub fn of(file: &std::fs::File, length: usize) -> Self {
        use std::os::fd::AsRawFd;
        // SAFETY: a new mapping, which the new value owns.
        let from = unsafe {
            let how = (libc::PROT_READ, libc::MAP_PRIVATE);
            libc::mmap(
                std::ptr::null_mut(),
                length,
                how.0,
                how.1,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(from, libc::MAP_FAILED);
        Self { from, length }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as this value, and nothing writes to the file.
        unsafe { std::slice::from_raw_parts(self.from.cast(), self.length) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `of`, and nothing refers to it any more.
        unsafe { libc::munmap(self.from, self.length) };
    }
}

/// Drops the kernel's cached pages of a file.
pub fn drop_pages(file: &std::fs::File) {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open; the other arguments are numbers.
    let dropped = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(dropped, 0);
}
