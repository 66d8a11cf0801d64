//! The engine at work on a database: reads the log into it, and writes its cursor. It does everything except the
//! network.

use super::cursor::{CursorRecord, Span};
use super::engine::{Engine, Entry};
use super::options::{Begin, UpstreamOptions};
use super::place::{CursorFile, Kept};
use crate::Error;
use base::block::BlockDevice;
use base::clock::Clock;
use db::{Database, LogCursor};
use flash::Store;
use std::cell::RefCell;
use std::sync::Arc;

/// Forwarding for one upstream.
pub struct Forwarder<D: BlockDevice + 'static> {
    db: Arc<Database<Store<D>>>,
    clock: Arc<dyn Clock>,
    /// Decides what is sent, sent again and passed over.
    pub engine: Engine,
    file: CursorFile,
    /// The log cursor of each part.
    cursors: Vec<(u32, LogCursor)>,
    clock_wait_ms_max: u64,
    was_lost: bool,
    writes: u64,
    /// When this was created, on the monotonic clock, in ms.
    begun_ms: u64,
    /// Whether it has waited for the node's clock since then.
    has_waited: bool,
    /// Whether every segment is indexed, so that readings of earlier boots can be dated.
    is_indexed: bool,
    /// Number of the oldest unacknowledged reading, and when it arrived, on the monotonic clock, in ms.
    oldest: Option<(u64, i64)>,
}

/// Largest number of log steps in the search for the oldest wanted reading.
const SEARCH_STEPS_MAX: u32 = 100;

/// The clocks that readings are dated with.
#[derive(Clone, Copy)]
struct Moment {
    now_us: u64,
    wall_ms: i64,
    wall_trusted: bool,
    boot_id: [u8; 16],
}

impl Moment {
    fn of(clock: &dyn Clock) -> Self {
        Self {
            now_us: clock.monotonic_ns() / 1_000,
            wall_ms: clock.wall_ms(),
            wall_trusted: clock.wall_is_trusted(),
            boot_id: clock.boot_id(),
        }
    }

    fn age_ms(&self, entry: &db::HistoryEntry<'_>) -> Option<u64> {
        let is_dated = !entry.node_time || entry.wall_trusted || entry.time_corrected;
        if self.wall_trusted && is_dated {
            return Some(u64::try_from(self.wall_ms.saturating_sub(entry.time.ms())).unwrap_or(0));
        }
        (entry.boot_id == self.boot_id)
            .then(|| self.now_us.saturating_sub(entry.arrival_us) / 1_000)
    }
}

impl<D: BlockDevice + 'static> Forwarder<D> {
    /// Finds or creates the cursor of this upstream. Must be called before readings are taken: a new upstream begins
    /// where the log ends now.
    ///
    /// # Errors
    /// [`Error::OptionInvalid`], [`Error::CursorVersion`], [`Error::CursorStore`], [`Error::Database`].
    pub fn open(
        db: Arc<Database<Store<D>>>,
        clock: Arc<dyn Clock>,
        options: UpstreamOptions,
    ) -> Result<Self, Error> {
        options.check()?;
        let mut file = CursorFile::new(&options.name);
        let kept = db
            .with_store(|store| file.load(store))
            .ok_or(db::Error::Closed)??;
        let (durable_end, oldest) = (db.durable_end(), db.oldest_lsn()?);
        let from = |next: u64, clean: bool| CursorRecord {
            sequence: 0,
            clean,
            window_readings_max: options.window_readings_max,
            spans: vec![Span {
                next,
                end: u64::MAX,
            }],
            counters: Default::default(),
        };
        // Everything in the log may have been sent.
        let unknown = || CursorRecord {
            window_readings_max: u32::MAX,
            ..from(oldest, false)
        };
        // A cursor beyond the log's end belongs to another log.
        let is_ours = |record: &CursorRecord| {
            let last = record.spans.last();
            last.is_some_and(|span| span.next <= durable_end)
        };
        let (record, is_new, was_lost) = match kept {
            Kept::New => {
                let next = match options.begin {
                    Begin::Now => durable_end,
                    Begin::Oldest => oldest,
                };
                (from(next, true), true, false)
            }
            Kept::Cursor(record) if is_ours(&record) => (record, false, false),
            Kept::Cursor(record) => {
                let sequence = record.sequence;
                let record = CursorRecord {
                    sequence,
                    ..unknown()
                };
                (record, true, true)
            }
            Kept::Lost => (unknown(), true, true),
        };
        let mut forwarder = Self {
            clock_wait_ms_max: options.clock_wait_ms_max,
            engine: Engine::new(options, &record, durable_end),
            begun_ms: clock.monotonic_ns() / 1_000_000,
            has_waited: false,
            is_indexed: false,
            db,
            clock,
            file,
            cursors: Vec::new(),
            was_lost,
            writes: 0,
            oldest: None,
        };
        forwarder.engine.log_begins(oldest);
        if is_new {
            forwarder.write_cursor(false)?;
        }
        Ok(forwarder)
    }

    /// Returns whether the cursor's file was unusable.
    #[must_use]
    pub fn was_lost(&self) -> bool {
        self.was_lost
    }

    /// Writes of the cursor since the start.
    #[must_use]
    pub fn cursor_writes(&self) -> u64 {
        self.writes
    }

    /// Returns the current time, in ms on the monotonic clock.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.clock.monotonic_ns() / 1_000_000
    }

    /// Returns the number below which all readings are on flash.
    #[must_use]
    pub fn durable_end(&self) -> u64 {
        self.db.durable_end()
    }

    /// Returns the age of the oldest unacknowledged reading, as it was last determined.
    #[must_use]
    pub fn backlog_age_ms(&self) -> Option<u64> {
        if self.engine.backlog(self.db.durable_end()) == 0 {
            return None;
        }
        let (_, born_ms) = self.oldest?;
        let now_ms = i64::try_from(self.now_ms()).unwrap_or(i64::MAX);
        u64::try_from(now_ms.saturating_sub(born_ms)).ok()
    }

    /// Finds out when the oldest unacknowledged reading arrived.
    fn date_oldest(&mut self) -> Result<(), Error> {
        let wanted = self.engine.oldest_wanted();
        if let Some(born_ms) = self.engine.front_born_ms() {
            self.oldest = Some((wanted, born_ms));
        }
        if self.oldest.is_some_and(|(lsn, _)| lsn == wanted) {
            return Ok(());
        }
        self.oldest = None;
        let moment = Moment::of(&*self.clock);
        let mut cursor = LogCursor::new(wanted);
        for _ in 0..SEARCH_STEPS_MAX {
            let mut age_ms = None;
            let step = self
                .db
                .follow(&mut cursor, u64::MAX, 1, &mut |_| true, &mut |entry| {
                    age_ms = moment.age_ms(entry);
                })?;
            if let Some(age) = age_ms.and_then(|age| i64::try_from(age).ok()) {
                let now_ms = i64::try_from(moment.now_us / 1_000).unwrap_or(i64::MAX);
                self.oldest = Some((wanted, now_ms.saturating_sub(age)));
                break;
            }
            if !step.more {
                break;
            }
        }
        Ok(())
    }

    /// Records what retention has deleted.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn look(&mut self) -> Result<(), Error> {
        let oldest = self.db.oldest_lsn()?;
        self.engine.log_begins(oldest);
        self.date_oldest()
    }

    /// Returns whether nothing is read yet, because readings dated now would keep a wrong time upstream for good.
    #[must_use]
    pub fn waits_for_clock(&self) -> bool {
        !self.has_waited
    }

    fn wait_for_clock(&mut self) {
        let waited_ms = self.now_ms().saturating_sub(self.begun_ms);
        self.has_waited |= self.clock.wall_is_trusted() || waited_ms >= self.clock_wait_ms_max;
    }

    /// Reads one step of the log into the engine, or indexes one more segment of it. Returns whether another step may
    /// find more at once.
    ///
    /// # Errors
    /// [`Error::Database`].
    pub fn pull(&mut self) -> Result<bool, Error> {
        self.wait_for_clock();
        if self.waits_for_clock() {
            return Ok(false);
        }
        if !self.is_indexed {
            // Segments that cannot be indexed are read nevertheless; the status reports it.
            self.is_indexed = !self.db.index_step().unwrap_or(false);
            if !self.is_indexed {
                return Ok(true);
            }
        }
        let Some(want) = self.engine.want(self.db.durable_end()) else {
            return Ok(false);
        };
        let known = self.cursors.iter().position(|(part, _)| *part == want.part);
        let index = known.unwrap_or_else(|| {
            // A part that is gone needs no log cursor.
            let engine = &self.engine;
            self.cursors.retain(|(part, _)| engine.has_part(*part));
            self.cursors.push((want.part, LogCursor::new(want.from)));
            self.cursors.len() - 1
        });
        let Some((_, cursor)) = self.cursors.get_mut(index) else {
            return Ok(false);
        };
        cursor.seek(want.from);
        let moment = Moment::of(&*self.clock);
        let now_ms = moment.now_us / 1_000;
        let engine = RefCell::new(&mut self.engine);
        let db = &self.db;
        let step = db.follow(
            cursor,
            want.end,
            want.readings_max,
            &mut |id| engine.borrow_mut().is_wanted(id.0, || db.key(id)),
            &mut |entry| {
                let entry = Entry {
                    object: entry.id.0,
                    lsn: entry.lsn,
                    time: entry.time,
                    age_ms: moment.age_ms(entry),
                    value: entry.value,
                };
                engine.borrow_mut().take(want.part, &entry, now_ms);
            },
        )?;
        self.engine.read_until(
            want.part,
            cursor.next_lsn(),
            step.readings_gone,
            step.readings_missing,
        );
        Ok(step.more)
    }

    /// Writes the cursor if it is due. With `force`, any movement of the cursor is enough.
    ///
    /// # Errors
    /// [`Error::CursorStore`], [`Error::Database`].
    pub fn write_cursor_if_due(&mut self, force: bool) -> Result<bool, Error> {
        if !self.engine.is_cursor_due(self.now_ms(), force) {
            return Ok(false);
        }
        self.write_cursor(false)?;
        Ok(true)
    }

    /// Writes the cursor. `stopping`: nothing more will be sent in this run.
    ///
    /// # Errors
    /// As [`write_cursor_if_due`](Self::write_cursor_if_due).
    pub fn write_cursor(&mut self, stopping: bool) -> Result<(), Error> {
        let record = self.engine.record(stopping);
        let file = &mut self.file;
        self.db
            .with_store(|store| file.save(store, &record))
            .ok_or(db::Error::Closed)??;
        self.writes += 1;
        self.engine.record_written(self.now_ms());
        Ok(())
    }
}
