//! Stores of latest values behind one trait: our database and the peers.
//!
//! **Invariants:** each operation is its own transaction. A peer that is a C library is opened at run time if it is
//! installed, and otherwise listed as missing. A put of a durable session is on the disk when the call returns.
//!
//! **Files:** `kind.rs` the engines by name, `library.rs` opening C libraries, and one file for each engine.

mod berkeley;
mod dashmap;
mod keel;
pub(crate) mod kind;
mod library;
mod lmdb;
mod rocksdb;
mod sqlite;

/// Size of a key, in bytes.
pub(crate) const KEY_BYTES: usize = 16;

/// An object: its number, and its name as hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) number: u32,
    pub(crate) name: [u8; KEY_BYTES],
}

impl Key {
    /// Returns the key of object `number`. Names of neighbours differ strongly, so that no engine stores them in the
    /// order of creation.
    pub(crate) fn new(number: u32) -> Self {
        let mut mixed = u64::from(number)
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut name = [0; KEY_BYTES];
        for digit in name.iter_mut().rev() {
            *digit = b"0123456789abcdef"[(mixed & 15) as usize];
            mixed >>= 4;
        }
        Self { number, name }
    }

    pub(crate) fn text(&self) -> &str {
        // Hexadecimal digits are text.
        std::str::from_utf8(&self.name).unwrap_or_default()
    }
}

/// The required capacity of a store, and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) objects: u32,
    pub(crate) value_bytes: usize,
    /// Maximum number of puts that may follow each other without a pause.
    pub(crate) burst: u32,
    /// Whether an engine keeps its log in memory if it can; the cost of a log on disk is then not measured.
    pub(crate) is_log_in_memory: bool,
}

/// One store.
pub(crate) trait Engine: Send + Sync {
    /// Returns the name in reports.
    fn name(&self) -> &'static str;

    /// Opens a session for one thread.
    ///
    /// # Errors
    /// One line.
    fn session(&self) -> Result<Box<dyn Session + '_>, String>;

    /// Sets whether later puts wait until they are on the disk.
    ///
    /// # Errors
    /// One line.
    fn set_durable(&self, is_durable: bool) -> Result<(), String>;

    /// Writes pending data from memory to the disk, and keeps logs short.
    ///
    /// # Errors
    /// One line.
    fn settle(&self) -> Result<(), String>;

    /// Describes notable parts of its setup.
    fn setup(&self) -> String;
}

/// A thread's access to a store.
pub(crate) trait Session {
    /// Copies the latest value. Returns its length.
    ///
    /// # Errors
    /// One line.
    fn get(&mut self, key: &Key, value: &mut [u8]) -> Result<usize, String>;

    /// Stores a value. Returns `false` if the store refuses it for the moment.
    ///
    /// # Errors
    /// One line.
    fn put(&mut self, key: &Key, value: &[u8]) -> Result<bool, String>;

    /// Stores a value for each of some keys, as one transaction if the store supports that. Returns the number of
    /// values stored.
    ///
    /// # Errors
    /// One line.
    fn put_together(&mut self, keys: &[Key], value: &[u8]) -> Result<usize, String> {
        let mut taken = 0;
        for key in keys {
            taken += usize::from(self.put(key, value)?);
        }
        Ok(taken)
    }
}

/// Gives every object a value.
///
/// # Errors
/// One line.
pub(crate) fn fill(engine: &dyn Engine, size: &Size) -> Result<(), String> {
    engine.set_durable(false)?;
    let mut session = engine.session()?;
    let value = vec![0x5a; size.value_bytes];
    for number in 0..size.objects {
        if number % 4096 == 0 {
            crate::scratch::check_interrupted()?;
        }
        let key = Key::new(number);
        while !session.put(&key, &value)? {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    drop(session);
    engine.settle()
}

/// Why an engine is unavailable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// It is not installed; holds what would install it.
    Missing(String),
    /// It does not work.
    Failed(String),
}

impl From<String> for OpenError {
    fn from(text: String) -> Self {
        Self::Failed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinct_text_far_apart() {
        let names: std::collections::BTreeSet<_> =
            (0..10_000).map(|number| Key::new(number).name).collect();
        assert_eq!(names.len(), 10_000);
        let (one, next) = (Key::new(7), Key::new(8));
        assert_eq!(one.text().len(), KEY_BYTES);
        assert_ne!(one.text()[..2], next.text()[..2]);
    }
}
