//! The model of memory: what is durable, what may be durable, and the states that a crash may leave.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use base::sim::Random;

use crate::layout::PAGE_BYTES;
use crate::memory::LINE_BYTES;

use super::Event;

const BLOCK_BYTES: u64 = 4096;
const WORDS_IN_BLOCK: usize = BLOCK_BYTES as usize / 8;

/// Up to this number of combinations, all states are checked.
const EVERY_STATE_MAX: usize = 1 << 12;

/// The words of a region.
#[derive(Clone, Default)]
pub(super) struct Image {
    blocks: HashMap<u64, Box<[u64; WORDS_IN_BLOCK]>>,
}

impl Image {
    pub(super) fn get(&self, at: u64) -> u64 {
        let block = self.blocks.get(&(at / BLOCK_BYTES));
        block.map_or(0, |words| words[(at % BLOCK_BYTES / 8) as usize])
    }

    pub(super) fn set(&mut self, at: u64, value: u64) {
        let block = self.blocks.entry(at / BLOCK_BYTES);
        let words = block.or_insert_with(|| Box::new([0; WORDS_IN_BLOCK]));
        words[(at % BLOCK_BYTES / 8) as usize] = value;
    }

    fn clear(&mut self, at: u64, bytes: u64) {
        for block in at / BLOCK_BYTES..(at + bytes) / BLOCK_BYTES {
            self.blocks.remove(&block);
        }
    }

    /// The words of a range of whole blocks.
    pub(super) fn words_in(&self, at: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let blocks = at / BLOCK_BYTES..(at + bytes) / BLOCK_BYTES;
        blocks
            .filter_map(|block| Some((block, self.blocks.get(&block)?)))
            .flat_map(|(block, words)| {
                let at = block * BLOCK_BYTES;
                (at..).step_by(8).zip(words.iter().copied())
            })
    }

    pub(super) fn words(&self) -> impl Iterator<Item = (u64, u64)> {
        self.blocks.iter().flat_map(|(block, words)| {
            let at = block * BLOCK_BYTES;
            (0..)
                .step_by(8)
                .zip(words.iter())
                .map(move |(place, word)| (at + place, *word))
        })
    }
}

/// One store of a word that may not have reached memory.
#[derive(Clone)]
struct Pending {
    event: usize,
    value: u64,
    /// It is being written back: the next fence waits for it.
    is_on_its_way: bool,
}

/// A change of the set of pages.
#[derive(Clone, Copy)]
pub(super) struct PagesChange {
    event: usize,
    pub(super) at: u64,
    pub(super) pages: u64,
    pub(super) is_there: bool,
}

impl PagesChange {
    fn range(&self) -> Range<u64> {
        self.at..self.at + self.pages * PAGE_BYTES
    }

    pub(super) fn numbers(&self) -> Range<u64> {
        self.at / PAGE_BYTES..self.at / PAGE_BYTES + self.pages
    }
}

/// What memory certainly holds, and what it may hold.
#[derive(Clone)]
pub(super) struct Model {
    pub(super) durable: Image,
    /// Numbers of the pages that certainly have memory.
    pub(super) present: BTreeSet<u64>,
    latest: Image,
    words: BTreeMap<u64, Vec<Pending>>,
    pages: Vec<PagesChange>,
    events: usize,
}

/// A state that a crash may leave, as differences from the durable image: first pages, then words.
#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) pages: Vec<PagesChange>,
    pub(super) words: Vec<(u64, u64)>,
}

impl Model {
    pub(super) fn new(durable: Image, present: BTreeSet<u64>) -> Self {
        Self {
            latest: durable.clone(),
            durable,
            present,
            words: BTreeMap::new(),
            pages: Vec::new(),
            events: 0,
        }
    }

    /// Whether the event makes earlier operations certain: then a crash just before it may leave several states.
    pub(super) fn closes_interval(event: &Event) -> bool {
        !matches!(event, Event::Store { .. } | Event::WriteBack { .. })
    }

    pub(super) fn apply(&mut self, event: &Event) {
        self.events += 1;
        match event {
            Event::Store {
                at,
                bytes,
                past_cache,
            } => self.store(*at, bytes, *past_cache),
            Event::WriteBack { at, bytes } => {
                let first = at / LINE_BYTES * LINE_BYTES;
                let end = (at + bytes).next_multiple_of(LINE_BYTES);
                for (_, pending) in self.words.range_mut(first..end) {
                    pending.iter_mut().for_each(|one| one.is_on_its_way = true);
                }
            }
            Event::Fence => self.fence(),
            Event::Take { at, pages } => self.change_pages(*at, *pages, true),
            Event::GiveBack { at, pages } => self.change_pages(*at, *pages, false),
            Event::PagesSynced => {
                for change in std::mem::take(&mut self.pages) {
                    self.durable.clear(change.at, change.pages * PAGE_BYTES);
                    for page in change.numbers() {
                        match change.is_there {
                            true => self.present.insert(page),
                            false => self.present.remove(&page),
                        };
                    }
                    for (_, pending) in self.words.range_mut(change.range()) {
                        pending.retain(|one| one.event > change.event);
                    }
                }
                self.words.retain(|_, pending| !pending.is_empty());
            }
        }
    }

    fn store(&mut self, at: u64, bytes: &[u8], past_cache: bool) {
        let end = at + bytes.len() as u64;
        for word_at in (at / 8 * 8..end).step_by(8) {
            let mut word = self.latest.get(word_at).to_ne_bytes();
            for (place, byte) in (word_at..).zip(&mut word) {
                if (at..end).contains(&place) {
                    *byte = bytes[(place - at) as usize];
                }
            }
            let value = u64::from_ne_bytes(word);
            self.latest.set(word_at, value);
            self.words.entry(word_at).or_default().push(Pending {
                event: self.events,
                value,
                is_on_its_way: past_cache,
            });
        }
    }

    fn fence(&mut self) {
        let durable = &mut self.durable;
        self.words.retain(|at, pending| {
            if let Some(last) = pending.iter().rposition(|one| one.is_on_its_way) {
                durable.set(*at, pending[last].value);
                pending.drain(..=last);
            }
            !pending.is_empty()
        });
    }

    /// From now on another processor works. Its fences do not wait for write-backs of the previous one.
    pub(super) fn change_processor(&mut self) {
        for pending in self.words.values_mut() {
            pending.iter_mut().for_each(|one| one.is_on_its_way = false);
        }
    }

    fn change_pages(&mut self, at: u64, pages: u64, is_there: bool) {
        self.latest.clear(at, pages * PAGE_BYTES);
        self.pages.push(PagesChange {
            event: self.events,
            at,
            pages,
            is_there,
        });
    }

    /// The states that a crash now may leave: all of them if there are few, else a sample. Words for which
    /// `is_volatile` is true mean nothing after a reboot, and take any of their values.
    pub(super) fn states(
        &self,
        random: &mut Random,
        samples: usize,
        is_volatile: &dyn Fn(u64) -> bool,
    ) -> Vec<State> {
        let mut states = Vec::new();
        for done in 0..=self.pages.len() {
            let pages = &self.pages[..done];
            let (volatile, words): (Words, Words) = self
                .words_with(pages)
                .into_iter()
                .partition(|(at, _)| is_volatile(*at));
            let choices = words.iter().try_fold(1_usize, |product, (_, values)| {
                product
                    .checked_mul(values.len())
                    .filter(|product| *product <= EVERY_STATE_MAX)
            });
            let chosen = match choices {
                Some(count) => every_choice(&words, count),
                None => some_choices(&words, random, samples),
            };
            for mut words in chosen {
                for (at, values) in &volatile {
                    words.push((*at, values[random.index(values.len())]));
                }
                let pages = pages.to_vec();
                states.push(State { pages, words });
            }
        }
        states
    }

    /// Words that may have several values, with these values. The first value is the one without any pending store.
    fn words_with(&self, pages: &[PagesChange]) -> Words {
        let mut words = Vec::new();
        for (at, pending) in &self.words {
            let changed = pages
                .iter()
                .rev()
                .find(|change| change.range().contains(at));
            let (base, since) = match changed {
                None if !self.present.contains(&(at / PAGE_BYTES)) => continue,
                None => (self.durable.get(*at), 0),
                Some(change) if !change.is_there => continue,
                Some(change) => (0, change.event),
            };
            let mut values = vec![base];
            let later = pending.iter().filter(|one| one.event > since);
            for one in later {
                // Keep equal values only once; the newest value is last.
                if let Some(same) = values.iter().skip(1).position(|value| *value == one.value) {
                    values.remove(same + 1);
                }
                if values[0] != one.value || values.len() > 1 {
                    values.push(one.value);
                }
            }
            if values.len() > 1 {
                words.push((*at, values));
            }
        }
        words
    }
}

type Words = Vec<(u64, Vec<u64>)>;

fn every_choice(words: &Words, count: usize) -> Vec<Vec<(u64, u64)>> {
    let choose = |mut number: usize| {
        let mut chosen = Vec::new();
        for (at, values) in words {
            chosen.push((*at, values[number % values.len()]));
            number /= values.len();
        }
        chosen
    };
    (0..count).map(choose).collect()
}

/// Nothing, everything, everything except one thing, one thing only, whole lines, random words; the most relevant
/// choices come first.
fn some_choices(words: &Words, random: &mut Random, samples: usize) -> Vec<Vec<(u64, u64)>> {
    let none = |values: &Vec<u64>| values[0];
    let all = |values: &Vec<u64>| values[values.len() - 1];
    let mut chosen = Vec::new();
    let mut choose = |choice: &mut dyn FnMut(usize, u64, &Vec<u64>) -> u64| {
        let state = words.iter().enumerate();
        chosen.push(
            state
                .map(|(place, (at, values))| (*at, choice(place, *at, values)))
                .collect(),
        );
    };
    choose(&mut |_, _, values| none(values));
    choose(&mut |_, _, values| all(values));
    let lines: Vec<u64> = {
        let mut lines: Vec<u64> = words.iter().map(|(at, _)| at / LINE_BYTES).collect();
        lines.dedup();
        lines
    };
    for sample in 0..samples {
        let line = lines[random.index(lines.len())];
        let word = random.index(words.len());
        let kind = if sample < lines.len().min(samples / 3) * 2 {
            sample % 2
        } else {
            2 + sample % 6
        };
        // The lines of tables come before those of bytes, and each of them is tried in turn.
        let turn = lines[sample / 2 % lines.len()];
        match kind {
            0 => choose(&mut |_, at, values| match at / LINE_BYTES == turn {
                true => none(values),
                false => all(values),
            }),
            1 => choose(&mut |_, at, values| match at / LINE_BYTES == turn {
                true => all(values),
                false => none(values),
            }),
            2 => choose(&mut |place, _, values| match place == word {
                true => none(values),
                false => all(values),
            }),
            3 => choose(&mut |place, _, values| match place == word {
                true => all(values),
                false => none(values),
            }),
            4 => choose(&mut |_, at, values| match at / LINE_BYTES < line {
                true => all(values),
                false => none(values),
            }),
            5 => choose(&mut |_, at, values| match at / LINE_BYTES < line {
                true => none(values),
                false => all(values),
            }),
            6 => {
                let mut current = (u64::MAX, false);
                choose(&mut |_, at, values| {
                    if current.0 != at / LINE_BYTES {
                        current = (at / LINE_BYTES, random.below(2) == 0);
                    }
                    if current.1 { all(values) } else { none(values) }
                });
            }
            _ => choose(&mut |_, _, values| values[random.index(values.len())]),
        }
    }
    chosen
}
