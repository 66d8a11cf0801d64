//! The engines that can be measured: their names, and how each is opened.

use std::path::Path;

use super::berkeley::Berkeley;
use super::dashmap::Map;
use super::keel::Keel;
use super::lmdb::Lmdb;
use super::rocksdb::RocksDb;
use super::sqlite::Sqlite;
use super::{Engine, OpenError, Size};

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
            Self::Keel => Box::new(Keel::create(&folder, size)?),
            Self::DashMap => Box::new(Map::create(size)),
            Self::Lmdb => Box::new(Lmdb::create(&folder, size)?),
            Self::Berkeley => Box::new(Berkeley::create(&folder, size)?),
            Self::Sqlite => Box::new(Sqlite::create(&folder)?),
            Self::RocksDb => Box::new(RocksDb::create(&folder)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Key, fill};
    use super::*;

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
