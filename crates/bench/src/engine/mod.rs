//! Stores of latest values behind one trait: our database and the peers.
//!
//! **Invariants:** each operation is its own transaction. A peer that is a C library is opened at run time if it is
//! installed, and otherwise listed as missing. A put of a durable session is on the disk when the call returns.
//!
//! **Files:** `library.rs` opening C libraries, and one file for each engine.

pub(crate) mod berkeley;
pub(crate) mod dashmap;
pub(crate) mod keel;
mod library;
pub(crate) mod lmdb;
pub(crate) mod rocksdb;
pub(crate) mod sqlite;

use std::path::Path;

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

/// The engines that can be measured, under the names in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Keel,
    DashMap,
    Lmdb,
    Berkeley,
    Sqlite,
    RocksDb,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Keel,
        Self::DashMap,
        Self::Lmdb,
        Self::Berkeley,
        Self::Sqlite,
        Self::RocksDb,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Keel => crate::figures::OURS,
            Self::DashMap => "dashmap",
            Self::Lmdb => "lmdb",
            Self::Berkeley => "berkeleydb",
            Self::Sqlite => "sqlite",
            Self::RocksDb => "rocksdb",
        }
    }

    /// Whether a value survives the end of the process.
    pub(crate) fn is_durable(self) -> bool {
        self != Self::DashMap
    }

    /// Creates an empty store in its own folder below `folder`.
    ///
    /// # Errors
    /// One line; [`Missing`](OpenError::Missing) where the engine is not installed.
    pub(crate) fn open(self, folder: &Path, size: &Size) -> Result<Box<dyn Engine>, OpenError> {
        let folder = folder.join(self.name());
        std::fs::create_dir(&folder)
            .map_err(|error| OpenError::Failed(format!("{}: {error}", folder.display())))?;
        Ok(match self {
            Self::Keel => Box::new(keel::Keel::create(&folder, size)?),
            Self::DashMap => Box::new(dashmap::Map::create(size)),
            Self::Lmdb => Box::new(lmdb::Lmdb::create(&folder, size)?),
            Self::Berkeley => Box::new(berkeley::Berkeley::create(&folder, size)?),
            Self::Sqlite => Box::new(sqlite::Sqlite::create(&folder)?),
            Self::RocksDb => Box::new(rocksdb::RocksDb::create(&folder)?),
        })
    }
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

    /// Each engine keeps the values put from any thread, durably or not.
    #[test]
    fn engines_keep_the_latest_value_of_each_key() {
        let folder = std::env::temp_dir().join(format!("keel-engines-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let size = Size {
            objects: 500,
            value_bytes: 64,
            burst: 1000,
            is_log_in_memory: false,
        };
        for kind in Kind::ALL {
            let engine = match kind.open(&folder, &size) {
                Ok(engine) => engine,
                Err(OpenError::Missing(what)) => {
                    println!("skipped: {}: {what}", kind.name());
                    continue;
                }
                Err(OpenError::Failed(what)) => panic!("{}: {what}", kind.name()),
            };
            fill(&*engine, &size).unwrap();
            for is_durable in [false, true] {
                engine.set_durable(is_durable).unwrap();
                std::thread::scope(|scope| {
                    for thread in 0..3_u32 {
                        let engine = &*engine;
                        scope.spawn(move || {
                            let mut session = engine.session().unwrap();
                            for number in (thread..60).step_by(3) {
                                let value = [number as u8 + u8::from(is_durable); 64];
                                while !session.put(&Key::new(number), &value).unwrap() {
                                    std::thread::yield_now();
                                }
                            }
                        });
                    }
                });
                let mut session = engine.session().unwrap();
                let together: Vec<Key> = (200..220).map(Key::new).collect();
                assert_eq!(session.put_together(&together, &[9; 64]).unwrap(), 20);
                let mut value = [0; 64];
                session.get(&Key::new(219), &mut value).unwrap();
                assert_eq!(value, [9; 64], "{}", kind.name());
                for number in 0..100_u32 {
                    assert_eq!(
                        session.get(&Key::new(number), &mut value).unwrap(),
                        64,
                        "{}",
                        kind.name()
                    );
                    let expected = if number < 60 {
                        number as u8 + u8::from(is_durable)
                    } else {
                        0x5a
                    };
                    assert_eq!(value, [expected; 64], "{} {number}", kind.name());
                }
                drop(session);
                engine.settle().unwrap();
            }
            assert!(!engine.setup().is_empty());
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
