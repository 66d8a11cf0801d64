//! Taking a mutex whose other holder may have panicked.

use std::sync::{Mutex, MutexGuard};

/// Waits until the mutex is free and takes it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every structure behind these locks is valid between two statements, so a panic of another holder does no harm.
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}
