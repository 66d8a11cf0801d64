//! The region for the calls, and another one of the same shape, the stage. The states that a crash may leave are loaded
//! into the stage and checked there.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use base::sim::Random;

use crate::attach::Attachment;
use crate::check::check;
use crate::flush::Flush;
use crate::inode::NewInode;
use crate::lane::{SLEEPERS, word};
use crate::layout::{
    DESCRIPTION_BYTES, INODE_BYTES, LANE_BYTES, Layout, PAGE_BYTES, RegionOptions, attribute, state,
};
use crate::memory::{LINE_BYTES, give_back_pages, take_pages};
use crate::node::ROOT_INODE;
use crate::region::Region;
use crate::writer::Writer;

use super::Event;
use super::states::{Image, Model, State};

pub(super) const FILE: NewInode = NewInode {
    mode: libc::S_IFREG | 0o644,
    user: 7,
    group: 8,
    now_ns: 1,
};

pub(super) const DIRECTORY: NewInode = NewInode {
    mode: libc::S_IFDIR | 0o755,
    ..FILE
};

/// Small, because each state is checked completely.
const OPTIONS: RegionOptions = RegionOptions {
    capacity_bytes: 24 << 20,
    files_max: Some(30),
    lanes: 3,
};

/// The owner word of a process that never existed: real process numbers are smaller.
const DEAD: u64 = 0x7f_ffff << 40 | 1;

/// The number of states that are checked when the machine crashes during recovery.
const SAMPLES_AGAIN: usize = 10;
const STATES_AGAIN_MAX: usize = 8;

/// Words of the superblock for an earlier run of the machine.
const OTHER_RUN: [(u64, u64); 2] = [(state::BOOT, 1), (state::BOOT + 8, 1)];

/// The file that a name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    mode: u32,
    links: u32,
    pub(super) bytes: Vec<u8>,
}

/// All paths of a region.
pub(super) type View = BTreeMap<Vec<u8>, Item>;

fn view(writer: &Writer<'_>) -> crate::Result<View> {
    let mut view = View::new();
    let mut directories = vec![(ROOT_INODE, Vec::new())];
    while let Some((directory, path)) = directories.pop() {
        for entry in writer.list(directory, 0, 100)? {
            let found = writer.look_up(directory, &entry.name)?;
            let mut path: Vec<u8> = path.clone();
            path.push(b'/');
            path.extend(&entry.name);
            let mut bytes = vec![0; found.size as usize];
            if found.is_directory() {
                directories.push((found.inode, path.clone()));
            } else {
                writer.read(found.inode, found.generation, 0, &mut bytes)?;
            }
            let item = Item {
                mode: found.mode,
                links: found.links,
                bytes,
            };
            view.insert(path, item);
        }
    }
    Ok(view)
}

/// The part of a call's effect that need not be atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// Nothing.
    All,
    /// The bytes of this file: each byte is an old one or a new one.
    AllBut(&'static [u8]),
}

/// What dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// The machine: memory keeps what has reached it.
    Machine,
    /// The process: all its stores are there.
    Process,
}

/// A call that was made.
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) whole: Whole,
    before: View,
    after: View,
    pub(super) events: Vec<Event>,
}

/// The operations of a call for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) lines: u64,
    pub(super) fences: u64,
    /// Synchronisations of the file's pages.
    pub(super) syncs: u64,
}

impl Call {
    pub(super) fn cost(&self) -> Cost {
        let mut cost = Cost {
            lines: 0,
            fences: 0,
            syncs: 0,
        };
        for event in &self.events {
            match event {
                Event::WriteBack { at, bytes } => {
                    let end = (at + bytes).next_multiple_of(LINE_BYTES);
                    cost.lines += (end - at / LINE_BYTES * LINE_BYTES) / LINE_BYTES;
                }
                Event::Fence => cost.fences += 1,
                Event::PagesSynced => cost.syncs += 1,
                Event::Store { .. } | Event::Take { .. } | Event::GiveBack { .. } => {}
            }
        }
        cost
    }
}

pub(super) struct Scene {
    paths: [PathBuf; 2],
    pub(super) attachment: Attachment,
    stage: Region,
    /// Words and pages of the stage that may differ from the model's durable ones.
    other_words: BTreeSet<u64>,
    other_pages: BTreeSet<u64>,
    /// Pages for which the stage has memory.
    stage_pages: BTreeSet<u64>,
    random: Random,
    samples: usize,
    pub(super) states: u64,
}

fn folder() -> PathBuf {
    let shared = std::path::Path::new("/dev/shm");
    match shared.is_dir() {
        true => shared.to_owned(),
        false => std::env::temp_dir(),
    }
}

impl Scene {
    /// If there are too many states, `samples` of them are checked each time.
    pub(super) fn new(name: &str, flush: Flush, samples: usize) -> Self {
        let path = |what| {
            folder().join(format!(
                "keel-mem-crash-{name}-{what}-{}",
                std::process::id()
            ))
        };
        let paths = [path("scene"), path("stage")];
        let create =
            |path| Region::create_with_flush(path, &OPTIONS, &DIRECTORY, Some(flush)).unwrap();
        drop(create(&paths[0]));
        let attachment = Attachment::open(&paths[0], b"/keel", true).unwrap();
        let stage = create(&paths[1]);
        let mut scene = Self {
            paths,
            attachment,
            stage,
            other_words: BTreeSet::new(),
            other_pages: BTreeSet::new(),
            stage_pages: BTreeSet::new(),
            random: Random::new(11),
            samples,
            states: 0,
        };
        let (image, present) = image(&scene.stage);
        scene.other_words.extend(image.words().map(|(at, _)| at));
        scene.other_pages.extend(&present);
        scene.stage_pages = present;
        scene
    }

    pub(super) fn region(&self) -> &Region {
        self.attachment.region()
    }

    /// The durable state when a record begins: everything.
    pub(super) fn model(&mut self) -> Model {
        let (image, present) = image(self.region());
        self.other_words.extend(image.words().map(|(at, _)| at));
        self.other_pages.extend(&present);
        self.start();
        Model::new(image, present)
    }

    /// Starts a record.
    pub(super) fn start(&self) {
        self.region().memory.recorder.take();
        self.region().memory.recorder.start();
    }

    /// Stops the record and returns its events.
    pub(super) fn stop(&self) -> Vec<Event> {
        self.region().memory.recorder.stop();
        self.region().memory.recorder.take()
    }

    fn view(&self) -> View {
        let writer = self.region().writer().unwrap();
        view(&writer).unwrap()
    }

    /// Makes a call and records its operations.
    pub(super) fn call(&self, name: &'static str, whole: Whole, call: &dyn Fn(&Self)) -> Call {
        let before = self.view();
        call(self);
        let after = self.view();
        let events = self.region().memory.recorder.take();
        Call {
            name,
            whole,
            before,
            after,
            events,
        }
    }

    /// Lets the machine crash at each point of a call, and after it has returned. `left_out` is the number of an event
    /// that is skipped, to check that the test detects this.
    ///
    /// # Errors
    /// The error found after one of the crashes.
    pub(super) fn die_in(
        &mut self,
        model: &mut Model,
        call: &Call,
        left_out: Option<usize>,
    ) -> Result<(), String> {
        model.change_processor();
        for (number, event) in call.events.iter().enumerate() {
            if left_out == Some(number) {
                continue;
            }
            if Model::closes_interval(event) {
                self.die_now(model, call, false)
                    .map_err(|wrong| format!("{}, before event {number}: {wrong}", call.name))?;
            }
            self.note(model, event);
        }
        self.die_now(model, call, true)
            .map_err(|wrong| format!("{}, after it has returned: {wrong}", call.name))
    }

    fn note(&mut self, model: &mut Model, event: &Event) {
        model.apply(event);
        self.note_on_stage(event);
        if let Event::Take { at, pages } | Event::GiveBack { at, pages } = event {
            // The stage still has the content of the page that was there before.
            for page in at / PAGE_BYTES..at / PAGE_BYTES + pages {
                give_back_pages(&self.stage.file, page * PAGE_BYTES, 1).unwrap();
                self.stage_pages.remove(&page);
            }
        }
    }

    /// Records an operation of the stage itself.
    fn note_of_stage(&mut self, event: &Event) {
        self.note_on_stage(event);
        match event {
            Event::Take { at, pages } => self
                .stage_pages
                .extend(at / PAGE_BYTES..at / PAGE_BYTES + pages),
            Event::GiveBack { at, pages } => {
                let pages = at / PAGE_BYTES..at / PAGE_BYTES + pages;
                self.stage_pages.retain(|page| !pages.contains(page));
            }
            _ => {}
        }
    }

    /// Records where the stage and the model may differ.
    pub(super) fn note_on_stage(&mut self, event: &Event) {
        match event {
            Event::Store { at, bytes, .. } => {
                let end = at + bytes.len() as u64;
                self.other_words.extend((at / 8 * 8..end).step_by(8));
            }
            Event::Take { at, pages } | Event::GiveBack { at, pages } => {
                let first = at / PAGE_BYTES;
                self.other_pages.extend(first..first + pages);
            }
            Event::WriteBack { .. } | Event::Fence | Event::PagesSynced => {}
        }
    }

    fn die_now(&mut self, model: &Model, call: &Call, is_done: bool) -> Result<(), String> {
        let layout = self.stage.layout;
        let is_volatile = |at| is_volatile(&layout, at);
        for state in model.states(&mut self.random, self.samples, &is_volatile) {
            self.look(model, &state, Death::Machine, call, is_done)?;
            if self.states.is_multiple_of(40) {
                self.die_again(model, &state, call, is_done)?;
            }
        }
        Ok(())
    }

    /// Lets the machine crash again during recovery.
    fn die_again(
        &mut self,
        model: &Model,
        state: &State,
        call: &Call,
        is_done: bool,
    ) -> Result<(), String> {
        self.bring(model, state, Death::Machine);
        let brought = self.other_words.clone();
        let layout = self.stage.layout;
        let is_volatile = |at| is_volatile(&layout, at);
        let (image, present) = image(&self.stage);
        let mut model = Model::new(image, present);
        self.stage.memory.recorder.start();
        let recovered = self.stage.enter_run(crate::run::InvalidLog::Refused);
        self.stage.memory.recorder.stop();
        let events = self.stage.memory.recorder.take();
        recovered.map_err(|error| error.to_string())?;
        // All these events have happened on the stage.
        events.iter().for_each(|event| self.note_of_stage(event));
        let mut survived = Ok(());
        for event in &events {
            if Model::closes_interval(event) {
                let states = model.states(&mut self.random, SAMPLES_AGAIN, &is_volatile);
                let step = states.len().div_ceil(STATES_AGAIN_MAX);
                for state in states.iter().step_by(step.max(1)) {
                    survived = self.look(&model, state, Death::Machine, call, is_done);
                    if survived.is_err() {
                        break;
                    }
                }
            }
            if survived.is_err() {
                break;
            }
            self.note(&mut model, event);
        }
        // The stage was compared with this model's durable words; restore the differences from the outer model.
        self.other_words.extend(brought);
        events.iter().for_each(|event| self.note_on_stage(event));
        let pages = state.pages.iter().flat_map(|change| change.numbers());
        self.other_pages.extend(pages);
        survived.map_err(|wrong| format!("dead again while recovering: {wrong}"))
    }

    /// Lets the process die after each store of a call.
    ///
    /// # Errors
    /// As [`die_in`](Self::die_in).
    pub(super) fn kill_in(&mut self, model: &mut Model, call: &Call) -> Result<(), String> {
        for (number, event) in call.events.iter().enumerate() {
            self.note(model, event);
            if let Event::Store { at, bytes, .. } = event {
                let bytes = bytes.len() as u64;
                model.apply(&Event::WriteBack { at: *at, bytes });
                model.apply(&Event::Fence);
            } else {
                model.apply(&Event::PagesSynced);
            }
            self.look(model, &State::default(), Death::Process, call, false)
                .map_err(|wrong| format!("{}, killed after event {number}: {wrong}", call.name))?;
        }
        self.look(model, &State::default(), Death::Process, call, true)
            .map_err(|wrong| format!("{}, killed after it has returned: {wrong}", call.name))
    }

    /// Loads a state into the stage, lets the next process recover it, and checks the result.
    fn look(
        &mut self,
        model: &Model,
        state: &State,
        death: Death,
        call: &Call,
        is_done: bool,
    ) -> Result<(), String> {
        self.states += 1;
        self.bring(model, state, death);
        self.stage.memory.recorder.start();
        // A recovery from invalid records may panic.
        let found = catch_unwind(AssertUnwindSafe(|| recover(&self.stage, death)));
        self.stage.memory.recorder.stop();
        let events = self.stage.memory.recorder.take();
        events.iter().for_each(|event| self.note_of_stage(event));
        let found = found.map_err(|_| "the recovery panics".to_owned())??;
        if found == call.after || !is_done && found == call.before {
            return Ok(());
        }
        match call.whole {
            Whole::AllBut(path) if !is_done => is_mixture(&found, &call.before, &call.after, path),
            _ => Err(format!(
                "neither before nor after: {}",
                differs(&found, &call.before, &call.after)
            )),
        }
    }

    fn bring(&mut self, model: &Model, state: &State, death: Death) {
        let memory = &self.stage.memory;
        let mut pages = std::mem::take(&mut self.other_pages);
        pages.extend(state.pages.iter().flat_map(|change| change.numbers()));
        let changed = |page: u64| {
            let covers = state
                .pages
                .iter()
                .rev()
                .find(|change| change.numbers().contains(&page));
            covers.map(|change| change.is_there)
        };
        let is_there = |page: u64| changed(page).unwrap_or_else(|| model.present.contains(&page));
        for page in pages {
            let at = page * PAGE_BYTES;
            // A page that the state has just given to a file is all zeros.
            let is_new = changed(page).is_some();
            let was_there = self.stage_pages.contains(&page);
            if was_there && (is_new || !is_there(page)) {
                give_back_pages(&self.stage.file, at, 1).unwrap();
                self.stage_pages.remove(&page);
            }
            if !is_there(page) {
                continue;
            }
            if self.stage_pages.insert(page) {
                take_pages(&self.stage.file, at, 1).unwrap();
            }
            if !is_new {
                // Any other word stored there is among `other_words`.
                for (at, word) in model.durable.words_in(at, PAGE_BYTES) {
                    memory.store(at, word);
                }
            }
        }
        for at in std::mem::take(&mut self.other_words) {
            let page = at / PAGE_BYTES;
            if changed(page).is_none() && is_there(page) {
                memory.store(at, model.durable.get(at));
            }
        }
        let mut words = state.words.clone();
        match death {
            Death::Machine => words.extend(OTHER_RUN),
            Death::Process => {
                for lane in 0..self.stage.layout.lane_count {
                    let at = self.stage.layout.lane(lane) + word::OWNER;
                    if memory.load(at) != 0 {
                        words.push((at, DEAD));
                    }
                }
            }
        }
        for (at, word) in words {
            memory.store(at, word);
            self.other_words.insert(at);
        }
        self.other_pages
            .extend(state.pages.iter().flat_map(|change| change.numbers()));
    }
}

const LOCK_SLEEPERS: u64 = state::LOCK + SLEEPERS;
const INODE_SLEEPERS: u64 = attribute::LOCK + SLEEPERS;

/// Whether a word means nothing after a reboot: locks, owners, and flags of changes in progress.
fn is_volatile(layout: &Layout, at: u64) -> bool {
    let within = |from: u64, count: u64, bytes: u64| {
        (from..from + count * bytes)
            .contains(&at)
            .then(|| (at - from) % bytes)
    };
    if let Some(word) = within(layout.inodes_at, layout.inode_count, INODE_BYTES) {
        return matches!(
            word,
            attribute::SEQUENCE | attribute::LOCK | INODE_SLEEPERS | attribute::HAS_STUB
        );
    }
    if let Some(word) = within(layout.lanes_at, layout.lane_count, LANE_BYTES) {
        let notes = word::NOTES..word::PAIRS;
        return matches!(word, word::OWNER | word::LAST_END) || notes.contains(&word);
    }
    matches!(at, state::LOCK | LOCK_SLEEPERS | state::SEQUENCE)
        || within(
            layout.descriptions_at,
            layout.description_count,
            DESCRIPTION_BYTES,
        )
        .is_some()
}

fn recover(region: &Region, death: Death) -> Result<View, String> {
    let text = |error: crate::Error| error.to_string();
    match death {
        Death::Machine => region
            .enter_run(crate::run::InvalidLog::Refused)
            .map_err(text)?,
        Death::Process => drop(region.settle_dead_lanes().map_err(text)?),
    }
    let writer = region.writer().map_err(text)?;
    writer.reclaim_orphans().map_err(text)?;
    let found = view(&writer).map_err(text)?;
    let report = check(region, false).map_err(text)?;
    if report.is_clean() {
        Ok(found)
    } else {
        Err(format!("{:?}", report.findings))
    }
}

/// All words of a region, and the pages that have memory.
fn image(region: &Region) -> (Image, BTreeSet<u64>) {
    let layout = &region.layout;
    let mut present: BTreeSet<u64> = (0..layout.metadata_bytes / PAGE_BYTES).collect();
    let mut filled = present.clone();
    for page in 0..layout.packed_pages {
        if region.memory.load(layout.packed_map(page)) != 0 {
            filled.insert(layout.packed_at / PAGE_BYTES + page);
        }
    }
    for slot in 0..layout.slot_count {
        for page in 0..layout.slot_bytes / PAGE_BYTES {
            if region.is_present(slot, page) {
                filled.insert(layout.slot(slot) / PAGE_BYTES + page);
            }
        }
    }
    present.extend(&filled);
    let pool = region.memory.load(state::POOL_PAGES);
    let pool_at = layout.pool_at / PAGE_BYTES;
    present.extend(pool_at..pool_at + pool);
    let mut image = Image::default();
    let mut block = [0_u8; 4096];
    for at in filled
        .iter()
        .flat_map(|page| (page * PAGE_BYTES..(page + 1) * PAGE_BYTES).step_by(4096))
    {
        region.memory.read(at, &mut block);
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        for (place, word) in (at..).step_by(8).zip(block.chunks_exact(8)) {
            image.set(place, u64::from_ne_bytes(word.try_into().unwrap()));
        }
    }
    (image, present)
}

/// Checks that only the bytes of one file differ from both views, and that each byte of it is from one of the views.
fn is_mixture(found: &View, before: &View, after: &View, path: &[u8]) -> Result<(), String> {
    for other in [before, after] {
        let mut found = found.clone();
        let (Some(mixed), Some(old), Some(new)) =
            (found.get(path).cloned(), before.get(path), after.get(path))
        else {
            return Err("the file is gone".to_owned());
        };
        found.insert(path.to_vec(), other[path].clone());
        if found != *other {
            continue;
        }
        if mixed.bytes.len() != old.bytes.len() && mixed.bytes.len() != new.bytes.len() {
            return Err(format!("the file has {} bytes", mixed.bytes.len()));
        }
        let wrong = mixed.bytes.iter().enumerate().position(|(place, byte)| {
            Some(byte) != old.bytes.get(place) && Some(byte) != new.bytes.get(place)
        });
        return match wrong {
            None => Ok(()),
            Some(place) => Err(format!("byte {place} is neither old nor new")),
        };
    }
    Err(format!(
        "another file is not as it was: {}",
        differs(found, before, after)
    ))
}

/// A short description of the differences.
fn differs(found: &View, before: &View, after: &View) -> String {
    let mut text = String::new();
    let paths: BTreeSet<_> = found
        .keys()
        .chain(before.keys())
        .chain(after.keys())
        .collect();
    for path in paths {
        let [found, before, after] = [found, before, after].map(|view| view.get(path));
        if found == before && found == after {
            continue;
        }
        let about = |item: Option<&Item>| match item {
            None => "none".to_owned(),
            Some(item) => {
                let sum = crc32c::crc32c(&item.bytes);
                format!(
                    "{} bytes, sum {sum:x}, mode {:o}, {} links",
                    item.bytes.len(),
                    item.mode,
                    item.links
                )
            }
        };
        let path = String::from_utf8_lossy(path);
        text += &format!(
            "{path}: {} (before {}, after {}); ",
            about(found),
            about(before),
            about(after)
        );
    }
    text
}

impl Drop for Scene {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = std::fs::remove_file(path);
            let mut stubs = path.clone().into_os_string();
            stubs.push(".stubs");
            let _ = std::fs::remove_dir_all(stubs);
        }
    }
}
