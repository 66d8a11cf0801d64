//! Calls on an open store whose device is watched. None panics, exceeds its limit or returns a byte that was never
//! written to that file at that position.

use flash::{Bound, CheckReport, Error, FileHandle, OpenOptions, RepairReport, Store};

use super::device::{Allowance, Watched};
use super::history::History;

/// A walk that meets damage is restarted up to eight times, and as often from the position to which the runs of its
/// file lead.
const WALKS: u64 = 18;
/// Following the runs of a file reads each of its blocks at most this often.
const LOOKS_AT_BLOCK: u64 = 4;
/// A call that finds the free list damaged commits up to two more times.
const COMMITS: u64 = 3;
/// A failed request is repeated block by block, for at most five blocks.
const REPEATS: u64 = 6;
/// Making room in the list of free pieces takes up to four records.
const ROOM: Allowance = Allowance {
    reads: 4,
    writes: 8,
    flushes: 8,
};
/// Number of bytes read of each file at its beginning and at its end, and number of files read: reading more shows
/// nothing new.
const BYTES_READ_MAX: u64 = 48 << 10;
const BYTES_READ_AT_END_MAX: u64 = 12 << 10;
const FILES_READ_MAX: usize = 80;
/// Size of one read, in bytes.
const READ_BYTES: usize = 9_999;

/// One call of a script.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Create(String),
    Append(String, Vec<u8>),
    AppendNosync(String, Vec<u8>),
    WriteAt(String, u64, Vec<u8>),
    WriteAtNosync(String, u64, Vec<u8>),
    Truncate(String, u64),
    Rename(String, String),
    Delete(String),
    Replace(String, Vec<u8>),
    ReplaceFrom(String, Vec<u8>),
    Sync,
    CloseFile(String),
    Read(String, u64, usize),
    Check,
    List,
}

/// The treatment of the image, which determines the checks of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trust {
    /// Whether something was changed.
    pub(crate) is_damaged: bool,
    /// Whether checksums were made valid again, so that any content is possible.
    pub(crate) is_forged: bool,
    /// Whether some blocks are unreadable.
    pub(crate) is_unreadable: bool,
}

impl Trust {
    /// Returns the allowance of a call whose limit on a sound store is `bound`.
    pub(crate) fn allowance(self, bound: Bound) -> Allowance {
        let Bound {
            reads,
            writes,
            flushes,
            ..
        } = bound;
        if !self.is_damaged {
            return Allowance {
                reads,
                writes,
                flushes,
            };
        }
        let repeats = if self.is_unreadable { REPEATS } else { 1 };
        Allowance {
            reads: reads * WALKS * repeats,
            writes: writes * COMMITS,
            flushes: flushes * COMMITS,
        }
    }
}

/// Returns the allowance of a repair. It reads the table, every block of a file and those that no file owns, a few
/// times each. It writes at most the table, the records, the lists of free blocks and a header for each damaged block.
pub(crate) fn repair_allowance(blocks: u64, buckets: u64, entries: u64, trust: Trust) -> Allowance {
    let repeats = if trust.is_unreadable { REPEATS } else { 1 };
    Allowance {
        reads: ((8 + LOOKS_AT_BLOCK) * blocks + 8 * buckets + 4 * entries + 100) * repeats,
        writes: 2 * blocks + 8 * buckets + 100,
        flushes: 100,
    }
}

/// An open store and the expectations about it.
pub(crate) struct Session<'a> {
    pub(crate) store: Store<&'a mut Watched>,
    pub(crate) history: History,
    trust: Trust,
    handles: Vec<(String, FileHandle)>,
}

impl<'a> Session<'a> {
    /// Opens the store within `mount`, the limit for every store.
    pub(crate) fn open(
        device: &'a mut Watched,
        options: &OpenOptions,
        history: History,
        trust: Trust,
        mount: Bound,
    ) -> Result<Self, Error> {
        device.is_read_only = options.read_only;
        device.allow("open", trust.allowance(mount).plus(ROOM));
        let store = Store::open(device, options)?;
        Ok(Self::of(store, history, trust))
    }

    pub(crate) fn of(store: Store<&'a mut Watched>, history: History, trust: Trust) -> Self {
        Self {
            store,
            history,
            trust,
            handles: Vec::new(),
        }
    }

    pub(crate) fn close(mut self) -> (History, Result<(), Error>) {
        let bound = self.store.bounds().close();
        self.allow("close", bound);
        let closed = self.store.close().map(|_| ());
        (self.history, closed)
    }

    /// Lists, reads and checks everything.
    pub(crate) fn inspect(&mut self) {
        let names = self.list();
        for name in names.iter().take(FILES_READ_MAX) {
            let _ = self.read_ends(name);
        }
        self.check();
    }

    /// Makes one call. An error is a valid result.
    pub(crate) fn call(&mut self, call: &Call) -> Result<(), Error> {
        match call {
            Call::Create(name) => self.create(name).map(|_| ()),
            Call::Append(name, data) => self.append(name, data, true),
            Call::AppendNosync(name, data) => self.append(name, data, false),
            Call::WriteAt(name, offset, data) => self.write_at(name, *offset, data, true),
            Call::WriteAtNosync(name, offset, data) => self.write_at(name, *offset, data, false),
            Call::Truncate(name, length) => self.truncate(name, *length),
            Call::Rename(from, to) => {
                self.history.renamed(from, to);
                let bound = self.store.bounds().rename();
                self.allow("rename", bound);
                self.store.rename(from, to)?;
                for (name, _) in &mut self.handles {
                    if name == from {
                        to.clone_into(name);
                    }
                }
                Ok(())
            }
            Call::Delete(name) => {
                let bound = self.store.bounds().delete();
                self.allow("delete", bound);
                self.store.delete(name)
            }
            Call::Replace(name, data) => {
                self.history.wrote(name, 0, data);
                let bound = self.store.bounds().replace(data.len() as u64);
                self.allow("replace", bound);
                self.store.replace(name, data)
            }
            Call::ReplaceFrom(name, data) => {
                self.history.wrote(name, 0, data);
                let bound = self.store.bounds().replace(data.len() as u64);
                // Each piece from the source is a separate append.
                self.allow("replace from", bound.plus(bound));
                let mut rest = &data[..];
                let mut source = |buffer: &mut [u8]| {
                    let count = buffer.len().min(rest.len());
                    buffer[..count].copy_from_slice(&rest[..count]);
                    rest = &rest[count..];
                    Ok(count)
                };
                self.store.replace_from(name, &mut source).map(|_| ())
            }
            Call::Sync => {
                let bound = self.store.bounds().sync();
                self.allow("sync", bound);
                self.store.sync()
            }
            Call::CloseFile(name) => {
                self.close_handle(name);
                Ok(())
            }
            Call::Read(name, offset, bytes) => self.read(name, *offset, *bytes).map(|_| ()),
            Call::Check => {
                let _ = self.check();
                Ok(())
            }
            Call::List => {
                self.list();
                Ok(())
            }
        }
    }

    fn create(&mut self, name: &str) -> Result<FileHandle, Error> {
        self.history.created(name);
        let bound = self.store.bounds().create();
        self.allow("create", bound);
        let mut made = self.store.create(name);
        if matches!(made, Err(Error::TooManyOpenFiles)) {
            self.close_oldest();
            self.allow("create", bound);
            made = self.store.create(name);
        }
        let handle = made?;
        self.handles.push((name.to_owned(), handle));
        Ok(handle)
    }

    fn append(&mut self, name: &str, data: &[u8], durable: bool) -> Result<(), Error> {
        let file = self.handle_or_create(name)?;
        let length = self.store.length(file)?;
        self.history.wrote(name, length as usize, data);
        let bound = self.store.bounds().append(data.len() as u64);
        if durable {
            self.allow("append", bound);
            self.store.append(file, data)
        } else {
            self.allow("append without sync", bound);
            self.store.append_nosync(file, data)
        }
    }

    fn write_at(
        &mut self,
        name: &str,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<(), Error> {
        let file = self.handle_or_create(name)?;
        let length = self.store.length(file)?;
        let (gap, bytes) = (offset.saturating_sub(length), data.len() as u64);
        self.zeros_from(name, length, gap);
        self.history.wrote(name, offset as usize, data);
        let bounds = self.store.bounds();
        let inside = length.saturating_sub(offset).min(bytes);
        let mut bound = Bound::default();
        if inside > 0 {
            bound = bounds.overwrite(inside);
        }
        if inside < bytes {
            bound = bound.plus(bounds.write_beyond(gap, bytes - inside));
        }
        self.allow("write at", bound);
        if durable {
            self.store.write_at(file, offset, data)
        } else {
            self.store.write_at_nosync(file, offset, data)
        }
    }

    fn truncate(&mut self, name: &str, to: u64) -> Result<(), Error> {
        let file = self.handle(name)?;
        let length = self.store.length(file)?;
        let gap = to.saturating_sub(length);
        self.zeros_from(name, length, gap);
        let bounds = self.store.bounds();
        let bound = if gap > 0 {
            bounds.write_beyond(gap, 0)
        } else {
            bounds.truncate(length - to)
        };
        self.allow("truncate", bound);
        self.store.truncate(file, to)?;
        assert_eq!(self.store.length(file)?, to, "truncated");
        Ok(())
    }

    /// Zeros fill a gap, as far as the store has room for them.
    fn zeros_from(&mut self, name: &str, length: u64, gap: u64) {
        let most = self.store.layout().data_blocks() * flash::PAYLOAD_BYTES as u64;
        let zeros = vec![0; gap.min(most) as usize];
        if !zeros.is_empty() {
            self.history.wrote(name, length as usize, &zeros);
        }
    }

    fn read(&mut self, name: &str, offset: u64, bytes: usize) -> Result<usize, Error> {
        let file = self.handle(name)?;
        let length = self.store.length(file)?;
        let expected = length.saturating_sub(offset).min(bytes as u64) as usize;
        let mut buffer = vec![0xa5; bytes];
        let bound = self.store.bounds().read(bytes as u64);
        self.allow("read", bound);
        let count = self.store.read(file, offset, &mut buffer)?;
        assert_eq!(
            count, expected,
            "file {name:?} of {length} bytes at {offset}"
        );
        if !self.trust.is_forged {
            self.history.check(name, offset as usize, &buffer[..count]);
        }
        Ok(count)
    }

    /// Reads the beginning and the end of a file.
    fn read_ends(&mut self, name: &str) -> Result<(), Error> {
        let file = self.handle(name)?;
        let length = self.store.length(file)?;
        let bound = self.store.bounds().open();
        self.allow("stat", bound);
        let stat = self.store.stat(name)?;
        assert_eq!(stat.length_bytes, length, "file {name:?}");
        let end = length.saturating_sub(BYTES_READ_AT_END_MAX);
        for (start, stop) in [(0, length.min(BYTES_READ_MAX)), (end, length)] {
            for offset in (start..stop).step_by(READ_BYTES) {
                let read = self.read(name, offset, READ_BYTES);
                assert!(
                    read.is_ok() || self.trust.is_damaged || self.is_off(),
                    "file {name:?} at {offset}: {read:?}"
                );
            }
        }
        self.close_handle(name);
        Ok(())
    }

    fn list(&mut self) -> Vec<String> {
        let bound = self.store.bounds().list();
        self.allow("list", bound);
        let mut names = Vec::new();
        let listed = self.store.list(&mut |name, _| names.push(name.to_owned()));
        assert!(
            listed.is_ok() || self.trust.is_damaged || self.is_off(),
            "{listed:?}"
        );
        if !self.trust.is_forged {
            for name in &names {
                assert!(self.history.knows(name), "there never was a file {name:?}");
            }
        }
        names
    }

    /// After a repair, bytes of files may still be damaged, and otherwise only what the repair reported as left.
    pub(crate) fn expect_repaired(&mut self, repaired: &RepairReport) {
        let mut findings = repaired.findings.iter();
        let is_linked = findings.all(|finding| finding.mended || finding.data_lost);
        let problems = self.check().map_or_else(Vec::new, |report| report.problems);
        for problem in problems {
            let is_data = problem.data_lost && problem.file.is_some();
            assert!(
                is_data || !is_linked || self.trust.is_forged,
                "after a repair: {problem}"
            );
        }
    }

    fn check(&mut self) -> Option<CheckReport> {
        let layout = self.store.layout();
        let (blocks, buckets) = (layout.data_blocks(), u64::from(layout.bucket_count));
        let entries = buckets * u64::from(layout.entries_per_bucket);
        // The superblocks, three records, and each block of the table three times. Every list of free blocks, each run
        // and each file's block take one or two reads, and the end of each file's walk two more.
        let reads = 3 + 3 * 5 + 3 * buckets + (3 + LOOKS_AT_BLOCK) * blocks + 4 * entries;
        self.store.device_mut().allow(
            "check",
            Allowance {
                reads,
                ..Allowance::default()
            },
        );
        let report = self.store.check();
        if self.is_off() {
            return None;
        }
        let report = report.unwrap_or_else(|error| panic!("check: {error}"));
        assert!(
            self.trust.is_damaged || report.is_clean(),
            "{:?}",
            report.problems
        );
        assert!(report.problems.len() as u64 <= report.problems_total);
        Some(report)
    }

    /// Returns whether the device no longer answers.
    fn is_off(&self) -> bool {
        !self.store.device().inner.is_powered()
    }

    fn allow(&mut self, call: &'static str, bound: Bound) {
        let mut allowance = self.trust.allowance(bound);
        if self.trust.is_damaged {
            allowance = allowance.plus(ROOM);
            let repeats = if self.trust.is_unreadable { REPEATS } else { 1 };
            allowance.reads += LOOKS_AT_BLOCK * self.store.layout().data_blocks() * repeats;
        }
        self.store.device_mut().allow(call, allowance);
    }

    // ---- handles ----

    fn handle(&mut self, name: &str) -> Result<FileHandle, Error> {
        if let Some(place) = self.handles.iter().position(|(known, _)| known == name) {
            let (_, file) = self.handles[place];
            if self.store.length(file).is_ok() {
                return Ok(file);
            }
            self.handles.remove(place);
        }
        let bound = self.store.bounds().open();
        self.allow("open a file", bound);
        let mut opened = self.store.open_file(name);
        if matches!(opened, Err(Error::TooManyOpenFiles)) {
            self.close_oldest();
            self.allow("open a file", bound);
            opened = self.store.open_file(name);
        }
        let file = opened?;
        self.handles.push((name.to_owned(), file));
        Ok(file)
    }

    fn handle_or_create(&mut self, name: &str) -> Result<FileHandle, Error> {
        match self.handle(name) {
            Err(Error::NotFound) => self.create(name),
            handle => handle,
        }
    }

    fn close_handle(&mut self, name: &str) {
        if let Some(place) = self.handles.iter().position(|(known, _)| known == name) {
            let (_, file) = self.handles.remove(place);
            self.store.close_file(file);
        }
    }

    fn close_oldest(&mut self) {
        if !self.handles.is_empty() {
            let (_, file) = self.handles.remove(0);
            self.store.close_file(file);
        }
    }
}
