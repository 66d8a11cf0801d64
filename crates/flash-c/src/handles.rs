//! Handles: numbers in the form of pointers, looked up in two tables and never dereferenced.
//!
//! The lowest bits of a number hold the kind of the object, then comes its place in the table, then how often that
//! place was used before. So a closed handle differs from the handle that has its place now, until the last part wraps
//! around: after 2^46 uses of one place, on 32-bit machines after 16,384.

use crate::failure::{Failure, KEELFLASH_BUSY, KEELFLASH_GONE, KEELFLASH_INTERNAL};
use base::block::FileDevice;
use flash::{FileHandle, Store};
use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of stores open in one process.
pub(crate) const STORES_MAX: usize = 256;
/// Maximum number of files open in one process, in all stores together.
pub(crate) const FILES_MAX: usize = 1 << 16;

const KIND_BITS: u32 = 2;
const PLACE_BITS: u32 = 16;
const GENERATION_MASK: usize = usize::MAX >> (KIND_BITS + PLACE_BITS);

/// The kind of object behind a handle; it is never 0, which would make NULL a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Store = 1,
    File = 2,
}

struct Place<T> {
    /// How often this place has been released.
    generation: usize,
    content: Option<T>,
}

/// Objects by handle.
struct Table<T> {
    kind: Kind,
    places: Vec<Place<T>>,
    free: Vec<usize>,
    places_max: usize,
}

impl<T> Table<T> {
    const fn new(kind: Kind, places_max: usize) -> Self {
        Self {
            kind,
            places: Vec::new(),
            free: Vec::new(),
            places_max,
        }
    }

    fn insert(&mut self, content: T) -> Result<usize, Failure> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() < self.places_max => {
                self.places.push(Place {
                    generation: 0,
                    content: None,
                });
                self.places.len() - 1
            }
            None => {
                let text = format!("{} are open in this process; close some", self.places_max);
                return Err(Failure::new(KEELFLASH_BUSY, text));
            }
        };
        self.places[place].content = Some(content);
        let generation = self.places[place].generation & GENERATION_MASK;
        Ok((generation << PLACE_BITS | place) << KIND_BITS | self.kind as usize)
    }

    fn find(&self, handle: usize) -> Result<usize, Failure> {
        if handle & ((1 << KIND_BITS) - 1) != self.kind as usize {
            return Err(Failure::invalid(match self.kind {
                Kind::Store => "this is no handle of a store",
                Kind::File => "this is no handle of a file",
            }));
        }
        let place = handle >> KIND_BITS & ((1 << PLACE_BITS) - 1);
        let generation = handle >> (KIND_BITS + PLACE_BITS);
        match self.places.get(place) {
            Some(found)
                if found.generation & GENERATION_MASK == generation && found.content.is_some() =>
            {
                Ok(place)
            }
            Some(_) => Err(Failure::new(
                KEELFLASH_GONE,
                match self.kind {
                    Kind::Store => "the store of this handle has been closed",
                    Kind::File => "the file of this handle, or its store, has been closed",
                },
            )),
            None => Err(Failure::invalid("this handle has never been given out")),
        }
    }

    fn get(&self, handle: usize) -> Result<&T, Failure> {
        let place = self.find(handle)?;
        let content = self.places[place].content.as_ref();
        content.ok_or_else(|| Failure::new(KEELFLASH_GONE, "this handle has been closed"))
    }

    fn remove(&mut self, handle: usize) -> Result<T, Failure> {
        let place = self.find(handle)?;
        self.take(place)
            .ok_or_else(|| Failure::new(KEELFLASH_GONE, "this handle has been closed"))
    }

    fn take(&mut self, place: usize) -> Option<T> {
        let found = self.places.get_mut(place)?;
        let content = found.content.take()?;
        found.generation = found.generation.wrapping_add(1);
        self.free.push(place);
        Some(content)
    }

    fn remove_all(&mut self, is_meant: impl Fn(&T) -> bool) {
        for place in 0..self.places.len() {
            if self.places[place].content.as_ref().is_some_and(&is_meant) {
                self.take(place);
            }
        }
    }
}

/// A store, and the lock on its image.
pub(crate) struct OpenStore {
    pub(crate) store: Store<FileDevice>,
    /// Keeps the image file locked if the store's own device does not; released last.
    pub(crate) _held: Option<FileDevice>,
}

/// A store that calls use in turn; `None` once it is closed.
struct Turns {
    store: Mutex<Option<OpenStore>>,
    /// The process that opened it.
    process: u32,
}

type Shared = Arc<Turns>;

#[derive(Clone)]
struct File {
    store: Shared,
    file: FileHandle,
}

static STORES: Mutex<Table<Shared>> = Mutex::new(Table::new(Kind::Store, STORES_MAX));
static FILES: Mutex<Table<File>> = Mutex::new(Table::new(Kind::File, FILES_MAX));

thread_local! {
    /// Whether this thread is in a caller's visitor function.
    static IS_VISITING: Cell<bool> = const { Cell::new(false) };
}

/// Locks a table, even a poisoned one: tables are changed in single steps that do not panic, so they are always
/// consistent.
fn table<T>(table: &Mutex<Table<T>>) -> MutexGuard<'_, Table<T>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses calls in a child process. Its writes would be unknown to its parent, and both would disagree about the free
/// space.
fn refuse_child(store: &Turns) -> Result<(), Failure> {
    if store.process == std::process::id() {
        return Ok(());
    }
    let text = format!(
        "this store belongs to process {}, which has opened it; open stores after fork()",
        store.process
    );
    Err(Failure::invalid(text))
}

/// Waits for a turn on the store, unless that could never come.
fn lock(store: &Shared) -> Result<MutexGuard<'_, Option<OpenStore>>, Failure> {
    refuse_visitor()?;
    refuse_child(store)?;
    store.store.lock().map_err(|_| {
        Failure::new(
            KEELFLASH_INTERNAL,
            "an earlier call has met a defect of libkeelflash; close the store and open it again",
        )
    })
}

/// Refuses calls from a visitor function: it runs while its store is locked, so a call would wait for itself.
pub(crate) fn refuse_visitor() -> Result<(), Failure> {
    if IS_VISITING.with(Cell::get) {
        let text = "a function that is shown a list must not use the library";
        return Err(Failure::new(KEELFLASH_BUSY, text));
    }
    Ok(())
}

/// Calls a function of the caller; during it [`refuse_visitor`] refuses calls.
pub(crate) fn visiting<T>(call: impl FnOnce() -> T) -> T {
    IS_VISITING.with(|visiting| visiting.set(true));
    let result = call();
    IS_VISITING.with(|visiting| visiting.set(false));
    result
}

/// Gives a store a handle.
pub(crate) fn insert_store(store: OpenStore) -> Result<usize, Failure> {
    table(&STORES).insert(Arc::new(Turns {
        store: Mutex::new(Some(store)),
        process: std::process::id(),
    }))
}

/// Closes a store and its files; nothing of it stays open even if this fails.
pub(crate) fn close_store(handle: usize) -> Result<(), Failure> {
    refuse_visitor()?;
    // A child process leaves the store in place: closing would write, and release the lock of the parent.
    refuse_child(table(&STORES).get(handle)?)?;
    let shared = table(&STORES).remove(handle)?;
    table(&FILES).remove_all(|file| Arc::ptr_eq(&file.store, &shared));
    let poisoned = shared.store.is_poisoned();
    let store = shared.store.lock();
    match store.unwrap_or_else(PoisonError::into_inner).take() {
        // After a panic the store is not closed, as after a power cut; the next opening recovers it.
        Some(open) if !poisoned => Ok(open.store.close().map(|_| ())?),
        _ => Ok(()),
    }
}

fn closed() -> Failure {
    Failure::new(KEELFLASH_GONE, "the store of this handle has been closed")
}

/// Runs a call on a store.
pub(crate) fn with_store<T>(
    handle: usize,
    work: impl FnOnce(&mut Store<FileDevice>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let shared = table(&STORES).get(handle)?.clone();
    let mut open = lock(&shared)?;
    work(&mut open.as_mut().ok_or_else(closed)?.store)
}

/// Runs a call on a store that opens a file, and gives the file a handle.
pub(crate) fn open_file(
    handle: usize,
    work: impl FnOnce(&mut Store<FileDevice>) -> Result<FileHandle, Failure>,
) -> Result<usize, Failure> {
    let shared = table(&STORES).get(handle)?.clone();
    let mut open = lock(&shared)?;
    let store = &mut open.as_mut().ok_or_else(closed)?.store;
    let file = work(store)?;
    let inserted = table(&FILES).insert(File {
        store: shared.clone(),
        file,
    });
    if inserted.is_err() {
        store.close_file(file);
    }
    inserted
}

/// Closes a file.
pub(crate) fn close_file(handle: usize) -> Result<(), Failure> {
    refuse_visitor()?;
    refuse_child(&table(&FILES).get(handle)?.store)?;
    let found = table(&FILES).remove(handle)?;
    if let Some(open) = lock(&found.store)?.as_mut() {
        open.store.close_file(found.file);
    }
    Ok(())
}

/// Runs a call on a file.
pub(crate) fn with_file<T>(
    handle: usize,
    work: impl FnOnce(&mut Store<FileDevice>, FileHandle) -> flash::Result<T>,
) -> Result<T, Failure> {
    let found = table(&FILES).get(handle)?.clone();
    let mut open = lock(&found.store)?;
    let store = &mut open.as_mut().ok_or_else(closed)?.store;
    Ok(work(store, found.file)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{KEELFLASH_INVALID, guard};

    fn code<T>(result: Result<T, Failure>) -> i32 {
        guard(|| result.map(|_| ()))
    }

    #[test]
    fn closed_and_foreign_handles_are_told_from_living_ones() {
        let mut files = Table::new(Kind::File, 3);
        let mut stores = Table::new(Kind::Store, 3);
        let first = files.insert("first").unwrap();
        let second = files.insert("second").unwrap();
        let store = stores.insert("store").unwrap();
        assert!(first != 0 && first != second && first != store);
        assert_eq!(*files.get(first).unwrap(), "first");
        assert_eq!(files.remove(first).unwrap(), "first");
        assert_eq!(code(files.get(first)), KEELFLASH_GONE);
        assert_eq!(code(files.remove(first)), KEELFLASH_GONE);
        // Another object in the same place has another handle.
        let third = files.insert("third").unwrap();
        assert_ne!(third, first);
        assert_eq!(code(files.get(first)), KEELFLASH_GONE);
        assert_eq!(*files.get(third).unwrap(), "third");
        for wrong in [
            0,
            store,
            usize::MAX,
            third | 3,
            1 << KIND_BITS,
            third + (1 << (KIND_BITS + 8)),
        ] {
            assert_eq!(code(files.get(wrong)), KEELFLASH_INVALID, "{wrong:x}");
        }
        files.insert("fourth").unwrap();
        assert_eq!(
            code(files.insert("one more than there are places")),
            KEELFLASH_BUSY
        );
        files.remove_all(|name| name.starts_with('t'));
        assert_eq!(code(files.get(third)), KEELFLASH_GONE);
        assert_eq!(*files.get(second).unwrap(), "second");
        files.insert("fifth").unwrap();
    }

    #[test]
    fn uses_of_a_place_wrap_around_without_harm() {
        let mut files = Table::new(Kind::File, 1);
        let first = files.insert(()).unwrap();
        files.remove(first).unwrap();
        files.places[0].generation = GENERATION_MASK;
        let last = files.insert(()).unwrap();
        assert!(files.get(last).is_ok() && files.get(first).is_err());
        files.remove(last).unwrap();
        let again = files.insert(()).unwrap();
        assert!(files.get(again).is_ok() && files.get(last).is_err());
    }
}
