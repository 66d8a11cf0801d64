//! Open stores and files, by the handles that the caller has.

use crate::failure::{KEELFLASH_BUSY, KEELFLASH_GONE, KEELFLASH_INTERNAL, of_store};
use base::block::FileDevice;
use c_interface::Failure;
use c_interface::handles::{PLACES_LIMIT, Table};
use flash::{FileHandle, Store};
use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of stores open in one process.
const STORES_MAX: usize = 256;
/// Maximum number of files open in one process, in all stores together.
pub(crate) const FILES_MAX: usize = PLACES_LIMIT;

/// The message about a closed store.
const CLOSED: &str = "the store of this handle has been closed";

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

static STORES: Table<Shared> = Table::new(1, "store", CLOSED, STORES_MAX);
static FILES: Table<File> = Table::new(
    2,
    "file",
    "the file of this handle, or its store, has been closed",
    FILES_MAX,
);

thread_local! {
    /// Whether this thread is in a caller's visitor function.
    static IS_VISITING: Cell<bool> = const { Cell::new(false) };
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
    STORES.insert(Arc::new(Turns {
        store: Mutex::new(Some(store)),
        process: std::process::id(),
    }))
}

/// Closes a store and its files; nothing of it stays open even if this fails.
pub(crate) fn close_store(handle: usize) -> Result<(), Failure> {
    refuse_visitor()?;
    // A child process leaves the store in place: closing would write, and release the lock of the parent.
    refuse_child(&*STORES.get(handle)?)?;
    let shared = STORES.remove(handle)?;
    drop(FILES.remove_all(|file| Arc::ptr_eq(&file.store, &shared)));
    let poisoned = shared.store.is_poisoned();
    let store = shared.store.lock();
    match store.unwrap_or_else(PoisonError::into_inner).take() {
        // After a panic the store is not closed, as after a power cut; the next opening recovers it.
        Some(open) if !poisoned => open.store.close().map(drop).map_err(of_store),
        _ => Ok(()),
    }
}

fn closed() -> Failure {
    Failure::new(KEELFLASH_GONE, CLOSED)
}

/// Runs a call on a store.
pub(crate) fn with_store<T>(
    handle: usize,
    work: impl FnOnce(&mut Store<FileDevice>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let shared = STORES.get(handle)?;
    let mut open = lock(&shared)?;
    work(&mut open.as_mut().ok_or_else(closed)?.store)
}

/// Runs a call on a store that opens a file, and gives the file a handle.
pub(crate) fn open_file(
    handle: usize,
    work: impl FnOnce(&mut Store<FileDevice>) -> Result<FileHandle, Failure>,
) -> Result<usize, Failure> {
    let shared = STORES.get(handle)?;
    let mut open = lock(&shared)?;
    let store = &mut open.as_mut().ok_or_else(closed)?.store;
    let file = work(store)?;
    let inserted = FILES.insert(File {
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
    refuse_child(&FILES.get(handle)?.store)?;
    let found = FILES.remove(handle)?;
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
    let found = FILES.get(handle)?;
    let mut open = lock(&found.store)?;
    let store = &mut open.as_mut().ok_or_else(closed)?.store;
    work(store, found.file).map_err(of_store)
}
