//! Cases in which only the device operations matter, on a device in memory. These are a long varied run in a store that
//! is nearly full, and a store with very many names. The report contains the maximum cost of any single call.

use base::block::{BLOCK_BYTES, BlockDevice};
use base::error::Code;
use base::sim::{FlatDevice, Random};
use flash::{FileHandle, OpenOptions, Store};

use super::counts::{DeviceCounts, counts_of};
use super::keel::{describe, format_options};
use crate::report::{Figure, percentile};
use crate::scratch::check_interrupted;

/// Device bytes of the varied run: small, so that the store fills up again and again.
const VARIED_BYTES: u64 = 64 << 20;

/// Number of names in the varied run. The store caches the tails of 32 files, so most appends go to a file whose tail
/// is not cached.
const VARIED_FILES_MAX: usize = 200;

/// Longest append of the varied run, in bytes.
const VARIED_APPEND_BYTES_MAX: u64 = 30_000;

/// Steps between two power losses in the varied run.
const STEPS_BETWEEN_CUTS: u32 = 5_000;

/// Number of files in the small store, for comparison of opening by name.
pub(crate) const FILES_FEW: u64 = 100;

/// The system name of a store with few names in reports.
pub(crate) const KEEL_FEW: &str = "keel-100-files";

/// The cost of the calls of one kind.
struct Tally {
    case: &'static str,
    calls: u64,
    totals: DeviceCounts,
    maxima: DeviceCounts,
    /// The number of blocks read by each call.
    blocks_read: Vec<u64>,
}

impl Tally {
    fn new(case: &'static str) -> Self {
        let none = DeviceCounts {
            flushes: Some(0),
            ..DeviceCounts::default()
        };
        Self {
            case,
            calls: 0,
            totals: none,
            maxima: none,
            blocks_read: Vec::new(),
        }
    }

    /// Does a call and counts its cost, whether or not it succeeds.
    fn count<D: BlockDevice, T>(
        &mut self,
        store: &mut Store<D>,
        call: impl FnOnce(&mut Store<D>) -> T,
    ) -> T {
        let before = counts_of(store.device());
        let result = call(store);
        let spent = counts_of(store.device()).since(before);
        self.calls += 1;
        self.totals.add(spent);
        self.maxima.raise_to(spent);
        self.blocks_read.push(spent.bytes_read / 4096);
        result
    }

    fn figures(mut self, system: &str) -> Vec<Figure> {
        let p99 = percentile(&mut self.blocks_read, 990) as f64;
        let calls = self.calls.max(1) as f64;
        let flushes = self.totals.flushes.unwrap_or(0) as f64;
        let own = [
            ("calls", "1", self.calls as f64),
            ("device_reads_per_op", "1", self.totals.reads as f64 / calls),
            (
                "device_writes_per_op",
                "1",
                self.totals.writes as f64 / calls,
            ),
            ("device_flushes_per_op", "1", flushes / calls),
            ("device_blocks_read_p99", "1", p99),
        ];
        own.into_iter()
            .chain(self.maxima.figures_max())
            .map(|(metric, unit, value)| Figure {
                case: self.case,
                system: system.to_owned(),
                metric,
                unit,
                value,
            })
            .collect()
    }
}

/// Makes a long run of all kinds of calls, on more files than the store caches the tails of. The store is nearly full
/// most of the time, and power losses occur in between.
///
/// # Errors
/// One line about the operation that the store refused.
pub(crate) fn varied(steps: u32, show: &mut dyn FnMut(&str)) -> Result<Vec<Figure>, String> {
    let mut device = FlatDevice::new(VARIED_BYTES / BLOCK_BYTES as u64);
    let options = format_options(VARIED_FILES_MAX as u64);
    drop(Store::format(&mut device, &options).map_err(describe)?);
    let mut run = Varied {
        random: Random::new(3),
        names: Vec::new(),
        next_name: 0,
        payload: vec![0x5A; VARIED_APPEND_BYTES_MAX as usize],
        append: Tally::new("append-4096-varied"),
        create: Tally::new("create-varied"),
        delete: Tally::new("delete-varied"),
        overwrite: Tally::new("overwrite-4096-varied"),
        truncate: Tally::new("truncate-varied"),
        rename: Tally::new("rename-varied"),
    };
    for first in (0..steps).step_by(STEPS_BETWEEN_CUTS as usize) {
        show(&format!("counting a varied run: {first} of {steps} calls"));
        check_interrupted()?;
        // Dropped without closing, like in a power loss.
        let mut store = Store::open(&mut device, &OpenOptions::default()).map_err(describe)?;
        for _ in first..steps.min(first + STEPS_BETWEEN_CUTS) {
            run.step(&mut store).map_err(describe)?;
        }
    }
    let tallies = [
        run.append,
        run.create,
        run.delete,
        run.overwrite,
        run.truncate,
        run.rename,
    ];
    Ok(tallies
        .into_iter()
        .flat_map(|tally| tally.figures("keel"))
        .collect())
}

struct Varied {
    random: Random,
    names: Vec<String>,
    next_name: u64,
    payload: Vec<u8>,
    append: Tally,
    create: Tally,
    delete: Tally,
    overwrite: Tally,
    truncate: Tally,
    rename: Tally,
}

impl Varied {
    fn step<D: BlockDevice>(&mut self, store: &mut Store<D>) -> flash::Result<()> {
        let done = self.call(store);
        match done {
            // A full store is the purpose of this run: delete some files and continue.
            Err(error) if error.code() == Code::Full => {
                for _ in 0..1 + self.random.below(4) {
                    self.delete_one(store)?;
                }
                Ok(())
            }
            done => done,
        }
    }

    fn call<D: BlockDevice>(&mut self, store: &mut Store<D>) -> flash::Result<()> {
        let choice = self.random.below(100);
        if self.names.len() < 2 || (choice < 12 && self.names.len() < VARIED_FILES_MAX) {
            let name = self.new_name();
            let file = self.create.count(store, |store| store.create(&name))?;
            store.close_file(file);
            self.names.push(name);
            return Ok(());
        }
        if choice < 20 {
            return self.delete_one(store);
        }
        let at = self.random.index(self.names.len());
        if choice < 24 {
            let to = self.new_name();
            let from = &self.names[at];
            self.rename.count(store, |store| store.rename(from, &to))?;
            self.names[at] = to;
            return Ok(());
        }
        let file = store.open_file(&self.names[at])?;
        let done = self.change(store, file, choice);
        store.close_file(file);
        done
    }

    fn change<D: BlockDevice>(
        &mut self,
        store: &mut Store<D>,
        file: FileHandle,
        choice: u64,
    ) -> flash::Result<()> {
        let length = store.length(file)?;
        // The store does not write unchanged bytes.
        for byte in self.payload[..4096].iter_mut().step_by(64) {
            *byte = byte.wrapping_add(1);
        }
        let block = &self.payload[..4096];
        if choice < 30 && length > 4096 {
            let offset = self.random.below(length - 4096);
            return self
                .overwrite
                .count(store, |store| store.write_at(file, offset, block));
        }
        if choice < 34 {
            let shorter = self.random.below(length + 1);
            return self
                .truncate
                .count(store, |store| store.truncate(file, shorter));
        }
        if choice < 44 {
            let bytes = 1 + self.random.below(VARIED_APPEND_BYTES_MAX) as usize;
            return store.append(file, &self.payload[..bytes]);
        }
        self.append.count(store, |store| store.append(file, block))
    }

    fn delete_one<D: BlockDevice>(&mut self, store: &mut Store<D>) -> flash::Result<()> {
        if self.names.is_empty() {
            return Ok(());
        }
        let name = self.names.swap_remove(self.random.index(self.names.len()));
        self.delete.count(store, |store| store.delete(&name))
    }

    fn new_name(&mut self) -> String {
        self.next_name += 1;
        format!("file-{}", self.next_name)
    }
}

/// Returns the name of file `index` in a store with many.
pub(crate) fn many_name(index: u64) -> String {
    format!("sensor-{index}.log")
}

/// Blocks of a store with many names, for each call on it: the table, and twice the space of the files of the calls.
const BLOCKS_OF_CALL: u64 = 13;

/// Creates a store on a device in memory with `files` empty files, and room for `calls`. `create` counts the cost of
/// creating them.
fn filled(
    files: u64,
    calls: u64,
    create: &mut Tally,
    show: &mut dyn FnMut(&str),
) -> Result<FlatDevice, String> {
    let mut device = FlatDevice::new(files + calls * BLOCKS_OF_CALL);
    let options = format_options(files + calls);
    let mut store = Store::format(&mut device, &options).map_err(describe)?;
    for index in 0..files {
        if index.is_multiple_of(10_000) {
            show(&format!("creating files: {index} of {files}"));
            check_interrupted()?;
        }
        let name = many_name(index);
        let created = create.count(&mut store, |store| store.create(&name));
        store.close_file(created.map_err(describe)?);
    }
    drop(store);
    Ok(device)
}

/// Counts `calls` of each kind in a store with `files` names, and opening in one with few. Returns the figures and both
/// devices.
///
/// # Errors
/// One line about what the store refused.
pub(crate) fn many_names(
    files: u64,
    calls: u64,
    show: &mut dyn FnMut(&str),
) -> Result<(Vec<Figure>, FlatDevice, FlatDevice), String> {
    let mut create = Tally::new("create-many-files");
    let mut many = filled(files, calls, &mut create, show)?;
    let mut few = filled(FILES_FEW, calls, &mut Tally::new("-"), show)?;
    let mut figures = vec![Figure {
        case: "create-many-files",
        system: "keel".to_owned(),
        metric: "files",
        unit: "1",
        value: files as f64,
    }];
    for (device, count, system) in [(&mut many, files, "keel"), (&mut few, FILES_FEW, KEEL_FEW)] {
        show("counting opens by name");
        check_interrupted()?;
        let mut random = Random::new(4);
        let mut open = Tally::new("open-by-name");
        let mut store = Store::open(&mut *device, &OpenOptions::default()).map_err(describe)?;
        for _ in 0..calls {
            let name = many_name(random.below(count));
            let file = open.count(&mut store, |store| store.open_file(&name));
            store.close_file(file.map_err(describe)?);
        }
        figures.extend(open.figures(system));
    }

    show("counting calls among many names");
    let mut store = Store::open(&mut many, &OpenOptions::default()).map_err(describe)?;
    let mut append = Tally::new("append-4096-many-files");
    let mut rename = Tally::new("rename-many-files");
    let mut delete = Tally::new("delete-many-files");
    let block = [0x5A; 4096];
    for index in 0..calls {
        if index.is_multiple_of(1_000) {
            check_interrupted()?;
        }
        let name = many_name(files + index);
        let file = create
            .count(&mut store, |store| store.create(&name))
            .map_err(describe)?;
        // Files of different lengths, including empty ones.
        for _ in 0..index % 5 {
            append
                .count(&mut store, |store| store.append(file, &block))
                .map_err(describe)?;
        }
        store.close_file(file);
        let other = format!("renamed-{index}");
        rename
            .count(&mut store, |store| store.rename(&name, &other))
            .map_err(describe)?;
        // Half of them are deleted at once, the other half when all exist.
        if index.is_multiple_of(2) {
            delete
                .count(&mut store, |store| store.delete(&other))
                .map_err(describe)?;
        }
    }
    for index in (1..calls).step_by(2) {
        delete
            .count(&mut store, |store| {
                store.delete(&format!("renamed-{index}"))
            })
            .map_err(describe)?;
    }
    drop(store);
    for tally in [create, append, rename, delete] {
        figures.extend(tally.figures("keel"));
    }
    Ok((figures, many, few))
}
