//! Our database over a flash store in an image file, with its commit thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use base::block::FileDevice;
use base::clock::SystemClock;
use db::{Database, DbOptions, Durability, FullPolicy, ObjectId, ObjectSpec, Retention};
use flash::{FormatOptions, Store};

use super::{Engine, Key, Session, Size};

/// Validity of an object, in milliseconds; no figure depends on it.
const AVI_MS: u32 = 10_000;

/// Timeout for the disk.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Maximum bytes of a waiting reading besides its value.
const HEAD_BYTES: usize = 40;

/// Number of bursts whose readings are kept as history; older readings are dropped.
const BURSTS_KEPT: u64 = 8;

type FileDatabase = Database<Store<FileDevice>>;

/// A database whose objects are numbered in the order of their declaration.
pub(crate) struct Keel {
    database: FileDatabase,
    is_durable: AtomicBool,
    /// Time of the next reading, in milliseconds; later than all earlier ones.
    now_ms: AtomicI64,
    queue_bytes: usize,
}

impl Keel {
    /// Creates an image file with a store and a database.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn create(folder: &Path, size: &Size) -> Result<Self, String> {
        let image = folder.join("store.img");
        let waiting = size.burst as usize * (size.value_bytes + HEAD_BYTES);
        let queue_bytes = waiting.clamp(1 << 20, 512 << 20);
        // Room for the latest values twice (a checkpoint that is being replaced), the history, and the same again as
        // work space. A store reserves at most a quarter of itself for a checkpoint: a larger table may find no room
        // for one.
        let values = u64::from(size.objects) * (size.value_bytes + 128) as u64;
        let history_bytes = (waiting as u64 * BURSTS_KEPT).clamp(24 << 20, 256 << 20);
        let bytes = (5 * values + 2 * history_bytes + (64 << 20)).next_multiple_of(1 << 20);
        crate::store::write_through(&image, bytes, |_, chunk| chunk.fill(0))?;
        let device = crate::store::open_direct(&image)?;
        let format = FormatOptions {
            files_max: 512,
            name_bytes_max: 64,
            uuid: [7; 16],
            hash_key: [9; 16],
        };
        let store = Store::format(device, &format).map_err(|error| error.to_string())?;
        let options = DbOptions {
            objects_max: size.objects,
            value_bytes_max: size.value_bytes,
            queue_bytes_max: queue_bytes,
            commit_interval_ms: 50,
            append_bytes_max: 1 << 20,
            segment_bytes_max: 4 << 20,
            checkpoint_bytes: history_bytes / 2,
            checkpoint_piece_bytes_max: 64 << 10,
            retention: Retention {
                history_bytes_max: history_bytes,
                history_age_ms_max: 0,
                backlog_bytes_max: 0,
                full_policy: FullPolicy::DropOldest,
            },
            ..DbOptions::default()
        };
        let database =
            Database::open(store, Arc::new(SystemClock::new()), options).map_err(describe)?;
        for number in 0..size.objects {
            let id = database.declare(&ObjectSpec {
                key: Key::new(number).text(),
                avi_ms: AVI_MS,
                temporal: true,
            });
            if id.map_err(describe)? != ObjectId(number) {
                return Err("keel: objects are not numbered as they were declared".to_owned());
            }
        }
        Ok(Self {
            database,
            is_durable: AtomicBool::new(false),
            now_ms: AtomicI64::new(1),
            queue_bytes,
        })
    }
}

impl Engine for Keel {
    fn name(&self) -> &'static str {
        crate::figures::OURS
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, String> {
        Ok(Box::new(self))
    }

    fn set_durable(&self, is_durable: bool) -> Result<(), String> {
        self.is_durable.store(is_durable, Ordering::Relaxed);
        Ok(())
    }

    fn settle(&self) -> Result<(), String> {
        self.database.flush(WAIT_MAX).map_err(describe)?;
        while self.database.maintain().map_err(describe)? {}
        Ok(())
    }

    fn setup(&self) -> String {
        format!(
            "image file past the page cache; queue_bytes_max {} MiB, commit_interval_ms 50; objects by their numbers, \
             as programs use them after one lookup",
            self.queue_bytes >> 20
        )
    }
}

impl Session for &Keel {
    fn get(&mut self, key: &Key, value: &mut [u8]) -> Result<usize, String> {
        let got = self.database.get(ObjectId(key.number), value);
        got.map(|got| got.value_bytes).map_err(describe)
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<bool, String> {
        let is_durable = self.is_durable.load(Ordering::Relaxed);
        let durability = if is_durable {
            Durability::Now
        } else {
            Durability::Batched
        };
        let now_ms = self.now_ms.fetch_add(1, Ordering::Relaxed);
        match self.database.put(
            ObjectId(key.number),
            value,
            db::Time::from_ms(now_ms),
            durability,
        ) {
            Ok(ticket) => {
                if is_durable {
                    ticket.wait(WAIT_MAX).map_err(describe)?;
                }
                Ok(true)
            }
            Err(db::Error::Busy) => Ok(false),
            Err(error) => Err(describe(error)),
        }
    }
}

fn describe(error: db::Error) -> String {
    format!("keel: {error}")
}
