//! Which series has the key of an object: for each template that makes keys of series, the text of the first one. Only
//! the intake understands it; here it is compared and kept.
//!
//! **Invariants:** a series that has a key keeps it, over every restart, until an operator releases the key. Its record
//! is in the append of the key's first reading or before it, and in each checkpoint from then on. A release is a record
//! like any other, because the last one of a key and a template holds. An object has owners by at most
//! [`OWNERS_PER_KEY`] templates; one more takes the place of the oldest.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use crate::mutex::lock;

use super::codec::{OWNER_BYTES_BESIDES, Owner, SERIES_BYTES_MAX};

/// Most templates by which the key of an object has an owner.
pub const OWNERS_PER_KEY: usize = 4;

/// Stands for the series of a key that an operator has released: the next one to send gets it. No series has this text:
/// what tells one from others names it, or has a line feed at each end.
const RELEASED: &str = "\n";

/// The owner of a key by one template.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    template: u32,
    series: Box<str>,
}

/// The owners of all keys. It takes the bytes of each series, and about 100 more.
#[derive(Debug, Default)]
pub struct Owners {
    /// By object; those of one object, the oldest first.
    of: HashMap<u32, Vec<Kept>>,
    /// Object and template of each owner that the log does not have yet, the oldest first.
    waiting: VecDeque<(u32, u32)>,
    /// How many of these are staged for the log.
    staged: usize,
    /// How many have left `waiting` because the log has them.
    logged: u64,
    /// Most bytes that they take in a checkpoint.
    bytes: u64,
}

/// An owner that the log does not have yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) id: u32,
    pub(crate) template: u32,
    /// `None` if others have taken its place meanwhile.
    pub(crate) series: Option<String>,
}

impl Owners {
    /// Gives the key of an object to a series, unless another one has it by this template. A text that is empty or
    /// longer than [`SERIES_BYTES_MAX`] tells no series from another and is not kept.
    ///
    /// # Errors
    /// The series that has the key.
    pub fn claim(&mut self, owner: &Owner<'_>) -> Result<(), String> {
        match self.get(owner.id, owner.template) {
            Some(first) if first == owner.series => Ok(()),
            Some(RELEASED) => {
                if can_be_kept(owner.series) {
                    self.restore(owner);
                    self.wait((owner.id, owner.template));
                }
                Ok(())
            }
            Some(first) => Err(first.to_owned()),
            None => {
                let place = (owner.id, owner.template);
                // One that others have replaced may still wait: templates that take turns must not fill the memory
                // while the log takes nothing. A key's first owners do not, so they need no search.
                let may_wait = self.of(owner.id).count() >= OWNERS_PER_KEY;
                if self.add(owner) {
                    match may_wait {
                        true => self.wait(place),
                        false => self.waiting.push_back(place),
                    }
                }
                Ok(())
            }
        }
    }

    /// As [`claim`](Self::claim), for a template with `relatives`: others that make keys of the same form. Of the
    /// series that these and this template know, the first one has the key.
    ///
    /// # Errors
    /// The series that has the key.
    pub fn claim_beside(&mut self, owner: &Owner<'_>, relatives: &[u32]) -> Result<(), String> {
        let first = self
            .of(owner.id)
            .filter(|one| one.template == owner.template || relatives.contains(&one.template))
            .find(|one| one.series != RELEASED)
            .filter(|first| first.series != owner.series)
            .map(|first| first.series.to_owned());
        match first {
            Some(first) => Err(first),
            None => self.claim(owner),
        }
    }

    /// Takes the key of an object from the series that have it, one by each template. The next series by each template
    /// gets it. Returns how many series had it.
    pub fn release(&mut self, id: u32) -> usize {
        let of_object = self.of.get_mut(&id).into_iter().flatten();
        let mut released = Vec::new();
        for kept in of_object.filter(|kept| *kept.series != *RELEASED) {
            self.bytes -= record_bytes_max(&kept.series);
            self.bytes += record_bytes_max(RELEASED);
            kept.series = RELEASED.into();
            released.push(kept.template);
        }
        for template in &released {
            self.wait((id, *template));
        }
        released.len()
    }

    /// Has the log told of this object and template, once.
    fn wait(&mut self, place: (u32, u32)) {
        // What is staged has the earlier text.
        let mut unstaged = self.waiting.range(self.staged..);
        if !unstaged.any(|one| *one == place) {
            self.waiting.push_back(place);
        }
    }

    /// Takes what a record says. The last record of a template holds.
    pub(crate) fn restore(&mut self, owner: &Owner<'_>) {
        let mut of_object = self.of.get_mut(&owner.id).into_iter().flatten();
        match of_object.find(|kept| kept.template == owner.template) {
            Some(kept) => {
                self.bytes -= record_bytes_max(&kept.series);
                self.bytes += record_bytes_max(owner.series);
                kept.series = owner.series.into();
            }
            None => {
                self.add(owner);
            }
        }
    }

    /// Forgets the owners of objects from this number on. Where damage has taken the name and every reading of an
    /// object, the next key gets its number.
    pub(crate) fn forget_from(&mut self, objects: u32) {
        self.of.retain(|id, _| *id < objects);
        let kept = self.of.values().flatten();
        self.bytes = kept.map(|one| record_bytes_max(&one.series)).sum();
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Most bytes that they take in a checkpoint.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The owners of an object, the oldest first.
    pub(crate) fn of(&self, id: u32) -> impl Iterator<Item = Owner<'_>> {
        let kept = self.of.get(&id).map(Vec::as_slice).unwrap_or_default();
        kept.iter().map(move |kept| Owner {
            id,
            template: kept.template,
            series: &kept.series,
        })
    }

    /// Returns the oldest one that is neither staged nor in the log.
    pub(crate) fn next_waiting(&self) -> Option<Waiting> {
        let (id, template) = *self.waiting.get(self.staged)?;
        Some(Waiting {
            id,
            template,
            series: self.get(id, template).map(str::to_owned),
        })
    }

    /// As [`next_waiting`](Self::next_waiting), for a caller that stages it.
    pub(crate) fn stage_next(&mut self) -> Option<Waiting> {
        let next = self.next_waiting()?;
        self.staged += 1;
        Some(next)
    }

    /// Notes that nothing is staged any more: it is staged again later.
    pub(crate) fn unstage(&mut self) {
        self.staged = 0;
    }

    /// Notes that the log has what was staged.
    pub(crate) fn settle(&mut self) {
        let settled = std::mem::take(&mut self.staged);
        self.waiting.drain(..settled);
        self.logged += settled as u64;
    }

    /// How many the log has had.
    pub(crate) fn logged(&self) -> u64 {
        self.logged
    }

    /// Returns how many the log has had once it has all that wait now, and the object of the last of them; `None` if
    /// none waits.
    pub(crate) fn last_waiting(&self) -> Option<(u64, u32)> {
        let (id, _) = *self.waiting.back()?;
        Some((self.logged + self.waiting.len() as u64, id))
    }

    fn get(&self, id: u32, template: u32) -> Option<&str> {
        let mut kept = self.of.get(&id)?.iter();
        let found = kept.find(|kept| kept.template == template)?;
        Some(&*found.series)
    }

    /// Returns whether it can be kept.
    fn add(&mut self, owner: &Owner<'_>) -> bool {
        if !can_be_kept(owner.series) {
            return false;
        }
        let kept = self.of.entry(owner.id).or_default();
        if kept.len() >= OWNERS_PER_KEY {
            let oldest = kept.remove(0);
            self.bytes -= record_bytes_max(&oldest.series);
        }
        kept.push(Kept {
            template: owner.template,
            series: owner.series.into(),
        });
        self.bytes += record_bytes_max(owner.series);
        true
    }
}

fn can_be_kept(series: &str) -> bool {
    (1..=SERIES_BYTES_MAX).contains(&series.len())
}

fn record_bytes_max(series: &str) -> u64 {
    (OWNER_BYTES_BESIDES + series.len()) as u64
}

/// The owners, for the threads of the intake and the commit side. It is held while memory is copied and never around a
/// call of the store; no put takes it.
#[derive(Debug)]
pub(crate) struct SharedOwners(Mutex<Owners>);

impl SharedOwners {
    pub(crate) fn new(owners: Owners) -> Self {
        Self(Mutex::new(owners))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Owners> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(id: u32, template: u32, series: &str) -> Owner<'_> {
        Owner {
            id,
            template,
            series,
        }
    }

    #[test]
    fn the_first_series_of_each_template_has_the_key() {
        let mut owners = Owners::default();
        assert_eq!(owners.claim(&owner(7, 1, "a")), Ok(()));
        assert_eq!(owners.claim(&owner(7, 1, "b")), Err("a".to_owned()));
        assert_eq!(owners.claim(&owner(7, 1, "a")), Ok(()));
        // Another template and another key have owners of their own.
        assert_eq!(owners.claim(&owner(7, 2, "b")), Ok(()));
        assert_eq!(owners.claim(&owner(8, 1, "b")), Ok(()));
        // The last record of a template holds.
        owners.restore(&owner(9, 1, "b"));
        owners.restore(&owner(9, 1, "cc"));
        assert_eq!(owners.claim(&owner(9, 1, "d")), Err("cc".to_owned()));
        let lengths = [1_u64, 1, 1, 2].map(|bytes| 16 + bytes);
        assert_eq!(owners.bytes(), lengths.iter().sum::<u64>());
        owners.forget_from(8);
        assert_eq!((owners.bytes(), owners.of(9).count()), (2 * 17, 0));
        let found: Vec<_> = owners.of(7).map(|one| (one.template, one.series)).collect();
        assert_eq!(found, [(1, "a"), (2, "b")]);
        assert_eq!(owners.of(6).count(), 0);
        // What a record cannot hold tells no series apart.
        let long = "x".repeat(SERIES_BYTES_MAX + 1);
        for series in ["", long.as_str()] {
            assert_eq!(owners.claim(&owner(5, 1, series)), Ok(()));
            assert_eq!(owners.of(5).count(), 0);
        }
        assert_eq!(owners.claim(&owner(5, 1, &long[1..])), Ok(()));
        assert_eq!(owners.of(5).count(), 1);
    }

    #[test]
    fn one_more_template_takes_the_place_of_the_oldest() {
        let mut owners = Owners::default();
        for template in 0..6 {
            assert_eq!(owners.claim(&owner(0, template, "first")), Ok(()));
        }
        let templates: Vec<_> = owners.of(0).map(|one| one.template).collect();
        assert_eq!(templates, [2, 3, 4, 5]);
        assert_eq!(owners.bytes(), 4 * record_bytes_max("first"));
        assert_eq!(owners.claim(&owner(0, 0, "other")), Ok(()));
        assert_eq!(owners.claim(&owner(0, 3, "other")), Err("first".to_owned()));
        // Those that are gone before the log had them leave their places.
        let (first, other) = (Some("first".to_owned()), Some("other".to_owned()));
        let expected = [
            (0, other),
            (1, None),
            (2, None),
            (3, first.clone()),
            (4, first.clone()),
            (5, first),
        ];
        // What is staged and does not reach the log is staged again.
        for _ in 0..2 {
            owners.unstage();
            assert_eq!(staged(&mut owners), expected);
        }
        // One that is replaced while it is staged waits again.
        assert_eq!(owners.claim(&owner(0, 2, "third")), Ok(()));
        owners.settle();
        assert_eq!(staged(&mut owners), [(2, Some("third".to_owned()))]);
        owners.settle();
        assert_eq!(owners.next_waiting(), None);
        owners.clear();
        assert_eq!((owners.bytes(), owners.of(0).count()), (0, 0));
    }

    fn staged(owners: &mut Owners) -> Vec<(u32, Option<String>)> {
        let mut staged = Vec::new();
        while let Some(next) = owners.stage_next() {
            staged.push((next.template, next.series));
        }
        staged
    }

    #[test]
    fn a_released_key_goes_to_the_next_series_of_each_template() {
        let mut owners = Owners::default();
        for template in [1, 2] {
            assert_eq!(owners.claim(&owner(7, template, "old")), Ok(()));
        }
        assert_eq!(owners.claim(&owner(8, 1, "old")), Ok(()));
        assert_eq!(owners.last_waiting(), Some((3, 8)));
        assert_eq!(staged(&mut owners).len(), 3);
        owners.settle();
        assert_eq!((owners.logged(), owners.last_waiting()), (3, None));
        // Both templates; what is released already is not counted, and other keys keep their owners.
        assert_eq!((owners.release(7), owners.release(7)), (2, 0));
        assert_eq!(owners.release(9), 0);
        assert_eq!(owners.bytes(), 2 * 17 + 16 + 3);
        assert_eq!(owners.last_waiting(), Some((5, 7)));
        assert_eq!(owners.claim(&owner(8, 1, "new")), Err("old".to_owned()));
        // Released and claimed before the log takes anything: one record, of the series that has it now.
        assert_eq!(owners.claim(&owner(7, 1, "new")), Ok(()));
        assert_eq!(owners.claim(&owner(7, 1, "old")), Err("new".to_owned()));
        let (new, none) = (Some("new".to_owned()), Some(RELEASED.to_owned()));
        assert_eq!(staged(&mut owners), [(1, new.clone()), (2, none)]);
        // What is staged has the earlier text, so this one waits, too.
        assert_eq!(owners.claim(&owner(7, 2, "new")), Ok(()));
        owners.settle();
        assert_eq!((owners.logged(), owners.last_waiting()), (5, Some((6, 7))));
        assert_eq!(staged(&mut owners), [(2, new)]);
        owners.settle();
        // The same from the records of a log.
        let mut owners = Owners::default();
        for series in ["old", RELEASED] {
            owners.restore(&owner(7, 1, series));
        }
        assert_eq!((owners.release(7), owners.of(7).count()), (0, 1));
        // A text that nothing keeps takes no key.
        assert_eq!(owners.claim(&owner(7, 1, "")), Ok(()));
        assert_eq!(owners.claim(&owner(7, 1, "old")), Ok(()));
        assert_eq!(owners.claim(&owner(7, 1, "new")), Err("old".to_owned()));
    }

    #[test]
    fn the_first_series_of_related_templates_has_the_key() {
        let mut owners = Owners::default();
        assert_eq!(owners.claim_beside(&owner(7, 1, "a"), &[2]), Ok(()));
        let refused = owners.claim_beside(&owner(7, 2, "b"), &[1]);
        assert_eq!(refused, Err("a".to_owned()));
        // One that is refused has nothing, and templates that are no relatives are apart.
        assert_eq!(owners.of(7).count(), 1);
        assert_eq!(owners.claim_beside(&owner(7, 2, "b"), &[3]), Ok(()));
        // If both have it, because they were no relatives before, the first one remains.
        assert_eq!(owners.claim_beside(&owner(7, 1, "a"), &[2]), Ok(()));
        let refused = owners.claim_beside(&owner(7, 2, "b"), &[1]);
        assert_eq!(refused, Err("a".to_owned()));
        assert_eq!(owners.claim_beside(&owner(8, 2, "b"), &[1]), Ok(()));
        // A released key has none.
        assert_eq!(owners.release(7), 2);
        assert_eq!(owners.claim_beside(&owner(7, 2, "b"), &[1]), Ok(()));
        let refused = owners.claim_beside(&owner(7, 1, "a"), &[2]);
        assert_eq!(refused, Err("b".to_owned()));
    }

    #[test]
    fn keys_that_are_released_again_and_again_wait_once() {
        let mut owners = Owners::default();
        for turn in 0..1000 {
            let series = ["a", "b"][turn % 2];
            assert_eq!(owners.claim(&owner(0, 1, series)), Ok(()));
            assert_eq!(owners.release(0), 1);
        }
        assert_eq!(staged(&mut owners), [(1, Some(RELEASED.to_owned()))]);
    }

    #[test]
    fn templates_that_take_turns_wait_once() {
        let mut owners = Owners::default();
        for turn in 0..1000 {
            assert_eq!(owners.claim(&owner(0, turn % 6, "series")), Ok(()));
        }
        assert_eq!(staged(&mut owners).len(), 6);
    }
}
