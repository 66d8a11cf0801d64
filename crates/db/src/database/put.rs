//! How a reading gets into the table and the log: alone, or with the others of one instance of a firm task. Also which
//! readings the table takes under overload.
//!
//! **Invariants:** slot and log are decided under the queue's lock, so their orders agree. Nothing here waits for the
//! store. Nothing allocates, except the buffer of [`Database::put_together`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Database;
use crate::error::Error;
use crate::log::entry::{self, Entries, Entry, EntryKind};
use crate::options::{Durability, ObjectId};
use crate::qos::admission::{AdmissionFigures, Offer, ShedPolicy, Verdict};
use crate::queue::{Queue, touched_buffer};
use crate::store::SegmentStore;
use crate::table::SlotValue;
use crate::ticket::Ticket;
use crate::time::Time;
use crate::wall::Wall;

/// Most readings that one instance of a firm task can put. They go into the table under one hold of a lock, for which
/// every producer waits.
pub const STAGED_PUTS_MAX: u32 = 128;

/// Most bytes of these readings, each counted as 24 bytes plus its value rounded up to 8; never more than half of the
/// queue.
pub const STAGED_BYTES_MAX: usize = 64 << 10;

impl<S: SegmentStore> Database<S> {
    /// Stores a reading in the table and queues it for the log. Never blocks on the store and never allocates. Makes
    /// system calls in two cases only. It wakes a commit thread that sleeps, and before that asks whether the clock is
    /// trusted. It waits for the queue's lock while another producer or the commit thread holds it.
    ///
    /// A reading whose timestamp is older than the slot's is logged but does not replace the newer value. Of equal
    /// timestamps the later put wins. `get` shows a value at once, before it is durable. A reading that is not admitted
    /// ([`set_admission`](Self::set_admission)) does not replace the older value either.
    ///
    /// # Errors
    /// [`Error::Busy`] when the queue is full; [`Error::LogFailed`], [`Error::Full`], [`Error::Closed`];
    /// [`Error::UnknownObject`], [`Error::ValueTooLong`], [`Error::TimestampInvalid`]. Then nothing has changed.
    pub fn put(
        &self,
        id: ObjectId,
        value: &[u8],
        time: Time,
        durability: Durability,
    ) -> Result<Ticket, Error> {
        self.put_timed(id, value, Some(time), false, durability)
    }

    /// As [`put`](Self::put) for a reading whose sensor gave no time. The node's clock gives the time, and the order of
    /// arrival decides which value is the latest. The time is corrected later if that clock was not trusted.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_now(
        &self,
        id: ObjectId,
        value: &[u8],
        durability: Durability,
    ) -> Result<Ticket, Error> {
        self.put_timed(id, value, None, false, durability)
    }

    /// As [`put`](Self::put), or without a time as [`put_now`](Self::put_now), for a reading that was kept for an
    /// unknown time before it arrived. It is marked. Without a time of its sensor it is never fresh, because its age is
    /// unknown. It ends no staleness: it shows nothing about its sensor.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn put_retained(
        &self,
        id: ObjectId,
        value: &[u8],
        sensor: Option<Time>,
        durability: Durability,
    ) -> Result<Ticket, Error> {
        self.put_timed(id, value, sensor, true, durability)
    }

    /// Checks whether a reading can be put, whose sensor gave this time, if any.
    fn check_reading(&self, id: ObjectId, sensor: Option<Time>, bytes: usize) -> Result<(), Error> {
        let time = sensor.unwrap_or(Time::from_ms(0));
        self.shared.table.check(id, time, bytes)?;
        if time.is_countable() {
            Ok(())
        } else {
            Err(Error::TimestampInvalid)
        }
    }

    fn put_timed(
        &self,
        id: ObjectId,
        value: &[u8],
        sensor: Option<Time>,
        retained: bool,
        durability: Durability,
    ) -> Result<Ticket, Error> {
        let shared = &*self.shared;
        self.check_reading(id, sensor, value.len())?;
        // Prefetch the slot's cache lines: they arrive while the clock is read and the lock is taken.
        shared.table.fetch(id, value.len());
        let (wall, has_looked) = self.wall();
        let arrival_ns = shared.clock.monotonic_ns();
        // Compute the node's time from the last clock sample, which also gave the trust flag. This saves a clock read
        // per put, and a time never gets the trust of another sample.
        let time = sensor.unwrap_or_else(|| wall.at(arrival_ns));
        let entry = Entry {
            kind: EntryKind::Reading,
            id: id.0,
            time,
            arrival_ns,
            wall_trusted: wall.trusted,
            node_time: sensor.is_none(),
            retained,
            value,
        };
        let (lsn, wake) = {
            let mut queue = shared.queue.lock();
            let mut taking = Self::check_taking(&mut queue, arrival_ns, 1);
            if taking.is_ok() && !queue.has_room(&entry) {
                queue.busy += 1;
                queue.busy_last_ns = Some(arrival_ns);
                taking = Err(Error::Busy);
            }
            if let Err(refused) = taking {
                // The reading is not kept but still valid: a full card, or one that stalls, must not silence an alarm.
                if queue.alarms.is_some() {
                    let newer = shared.table.is_news(id, time, entry.node_time);
                    queue.judge_alarms(&entry, newer);
                }
                return Err(refused);
            }
            let (_, is_temporal) = shared.table.validity(id);
            let is_judged = is_temporal && queue.is_shedding && shared.table.has_known_age(id);
            let verdict = match is_judged {
                true => shared.admission.judge(id.0 as usize, arrival_ns),
                false => Verdict::Admitted,
            };
            if verdict == Verdict::Admitted {
                // Slot and log under one lock: their orders agree.
                let newer = shared.table.write_alone(id, &self.slot(&entry))?;
                queue.outdated += u64::from(!newer);
                queue.judge_alarms(&entry, newer);
                if is_judged && newer {
                    shared.admission.note_new(id.0 as usize, arrival_ns);
                }
            } else {
                queue.shed += 1;
                // Judge the alarm although the reading is shed: it must not wait until the load falls.
                if queue.alarms.is_some() {
                    let newer = shared.table.is_news(id, time, entry.node_time);
                    queue.judge_alarms(&entry, newer);
                }
            }
            queue.offered += u64::from(is_temporal);
            if verdict == Verdict::Dropped {
                queue.dropped += 1;
                drop(queue);
                if has_looked {
                    // This put does not wake the commit thread: the put that does must sample the clock again.
                    shared.asleep.store(true, Ordering::Relaxed);
                }
                return Ok(Ticket::dropped(Arc::clone(&shared.progress)));
            }
            let lsn = queue.take(&entry);
            let hurry = durability == Durability::Now || queue.is_pressed();
            (lsn, queue.hurry(hurry))
        };
        if wake {
            shared.wake();
        }
        Ok(Ticket::new(lsn, Arc::clone(&shared.progress)))
    }

    /// Makes the waiting readings urgent, as if the last of them had been put with [`Durability::Now`]. A caller that
    /// puts many readings in a row uses [`Durability::Batched`] and then calls this once: they share a flush. Never
    /// blocks; does nothing while the queue is empty.
    pub fn hurry(&self) {
        let wake = {
            let mut queue = self.shared.queue.lock();
            !queue.is_empty() && queue.hurry(true)
        };
        if wake {
            self.shared.wake();
        }
    }

    /// Returns the last sample of the wall clock, and whether this call took it.
    fn wall(&self) -> (Wall, bool) {
        let asleep = &self.shared.asleep;
        // The commit thread takes samples; while it sleeps, the last sample may be hours old. So the put that is
        // about to wake it takes a sample itself. Later puts do not, although the thread may still be waking up.
        if asleep.load(Ordering::Relaxed) && asleep.swap(false, Ordering::Relaxed) {
            (self.shared.sample_wall(), true)
        } else {
            (self.shared.wall.get(), false)
        }
    }

    fn slot<'a>(&self, entry: &Entry<'a>) -> SlotValue<'a> {
        SlotValue {
            time: entry.time,
            arrival_ns: entry.arrival_ns,
            boot_tag: self.shared.boot_tag,
            wall_trusted: entry.wall_trusted,
            node_time: entry.node_time,
            retained: entry.retained,
            value: entry.value,
        }
    }

    /// Checks that readings are taken; counts `readings` as refused if not.
    fn check_taking(queue: &mut Queue, arrival_ns: u64, readings: u64) -> Result<(), Error> {
        let open = Self::check_open(queue);
        if let Err(error) = &open {
            if *error == Error::Full && queue.full {
                queue.refused_full += readings;
                queue.refused_full_last_ns = Some(arrival_ns);
            } else {
                queue.refused += readings;
            }
        }
        open
    }

    /// Returns the current time of the clock by which deadlines are judged ([`base::clock::Clock::monotonic_ns`]).
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.shared.clock.monotonic_ns()
    }

    /// Stores all of the readings, flushed as for [`Durability::Now`], or none of them, for example after `deadline_ns`
    /// of the clock ([`now_ns`](Self::now_ns)). The deadline is checked under the same lock hold that stores the
    /// readings. They are never shed, and their numbers are consecutive. The ticket is that of the last one, so when it
    /// is durable all of them are. Takes 1 to [`STAGED_PUTS_MAX`] readings of at most [`STAGED_BYTES_MAX`] in all.
    ///
    /// A power cut before that ticket is durable may leave a part of the readings. In the log these are the first ones.
    /// Among the latest values they are any of them, if a checkpoint was being written. None of them was stored after
    /// the deadline.
    ///
    /// # Errors
    /// [`Error::TooLate`]; [`Error::StagedFull`]; [`Error::OptionInvalid`] for no reading or too many; those of
    /// [`put`](Self::put). Then nothing has changed.
    pub fn put_together(
        &self,
        readings: &[TogetherReading<'_>],
        deadline_ns: u64,
    ) -> Result<Ticket, Error> {
        let count = readings.len() as u64;
        if count == 0 || count > u64::from(STAGED_PUTS_MAX) {
            return Err(Error::OptionInvalid {
                name: "readings",
                value: count,
                low: 1,
                high: u64::from(STAGED_PUTS_MAX),
            });
        }
        let mut staged = self.limits();
        for reading in readings {
            let TogetherReading { id, value, time } = *reading;
            self.stage(&mut staged, id, value, time, Durability::Now)?;
        }
        match self.commit_staged(&staged, deadline_ns) {
            Commit::Done { ticket, .. } => Ok(ticket),
            Commit::Late { .. } => Err(Error::TooLate),
            Commit::Refused { error, .. } => Err(error),
        }
    }

    /// Puts what an instance has staged, if its deadline has not passed: all of it under one hold of the queue's lock,
    /// or nothing. The deadline is checked under that lock. Results of an instance are no updates that could be shed.
    pub(crate) fn commit_staged(&self, staged: &Staged, deadline_ns: u64) -> Commit {
        let (wall, has_looked) = self.wall();
        let commit = self.commit_at(staged, deadline_ns, wall);
        if has_looked && !matches!(commit, Commit::Done { .. }) {
            // This call has not woken the commit thread: the put that does must sample the clock again.
            self.shared.asleep.store(true, Ordering::Relaxed);
        }
        commit
    }

    fn commit_at(&self, staged: &Staged, deadline_ns: u64, wall: Wall) -> Commit {
        let shared = &*self.shared;
        let readings = u64::from(staged.puts);
        let (lsn, decided_ns, wake) = {
            let mut queue = shared.queue.lock();
            let decided_ns = shared.clock.monotonic_ns();
            if decided_ns > deadline_ns {
                return Commit::Late { decided_ns };
            }
            let refused = |error| Commit::Refused { decided_ns, error };
            if let Err(error) = Self::check_taking(&mut queue, decided_ns, readings) {
                return refused(error);
            }
            if !queue.has_bytes(staged.buffer.len()) {
                queue.busy += readings;
                queue.busy_last_ns = Some(decided_ns);
                return refused(Error::Busy);
            }
            let node_time = wall.at(decided_ns);
            let entries = || {
                Entries(&staged.buffer).map(|entry| Entry {
                    time: match entry.node_time {
                        true => node_time,
                        false => entry.time,
                    },
                    arrival_ns: decided_ns,
                    wall_trusted: wall.trusted,
                    ..entry
                })
            };
            // The readings were checked when staged, but a shared table may have been overwritten since.
            let check = |entry: Entry<'_>| {
                shared
                    .table
                    .check(ObjectId(entry.id), entry.time, entry.value.len())
            };
            if let Err(error) = entries().try_for_each(check) {
                return refused(error);
            }
            let mut last = queue.next_lsn;
            for entry in entries() {
                let id = ObjectId(entry.id);
                let newer = shared
                    .table
                    .write_alone(id, &self.slot(&entry))
                    .unwrap_or(false);
                queue.outdated += u64::from(!newer);
                queue.offered += u64::from(shared.table.validity(id).1);
                shared.admission.count_unshed(id.0 as usize);
                queue.judge_alarms(&entry, newer);
                last = queue.take(&entry);
            }
            let hurry = staged.is_urgent || queue.is_pressed();
            (last, decided_ns, queue.hurry(hurry))
        };
        if wake {
            shared.wake();
        }
        Commit::Done {
            decided_ns,
            ticket: Ticket::new(lsn, Arc::clone(&shared.progress)),
        }
    }

    /// Returns a buffer for the puts of an instance. Made once per task.
    pub(crate) fn staging(&self) -> Staged {
        let limits = self.limits();
        Staged {
            buffer: touched_buffer(limits.bytes_max),
            ..limits
        }
    }

    /// Returns the same limits without a buffer.
    fn limits(&self) -> Staged {
        Staged {
            buffer: Vec::new(),
            bytes_max: STAGED_BYTES_MAX.min(self.shared.options.queue_bytes_max / 2),
            puts: 0,
            is_urgent: false,
        }
    }

    /// Stages a reading until the instance commits; the commit gives it the node's time if its sensor gave none.
    ///
    /// # Errors
    /// [`Error::StagedFull`], [`Error::UnknownObject`], [`Error::ValueTooLong`], [`Error::TimestampInvalid`].
    pub(crate) fn stage(
        &self,
        staged: &mut Staged,
        id: ObjectId,
        value: &[u8],
        sensor: Option<Time>,
        durability: Durability,
    ) -> Result<(), Error> {
        self.check_reading(id, sensor, value.len())?;
        let entry = Entry {
            kind: EntryKind::Reading,
            id: id.0,
            time: sensor.unwrap_or(Time::from_ms(0)),
            arrival_ns: 0,
            wall_trusted: false,
            node_time: sensor.is_none(),
            retained: false,
            value,
        };
        if staged.puts >= STAGED_PUTS_MAX || staged.buffer.len() + entry.bytes() > staged.bytes_max
        {
            return Err(Error::StagedFull {
                puts_max: STAGED_PUTS_MAX,
                bytes_max: staged.bytes_max,
            });
        }
        entry::encode(&mut staged.buffer, &entry);
        staged.puts += 1;
        staged.is_urgent |= durability == Durability::Now;
        Ok(())
    }

    /// Admits this fraction of the readings of temporal objects to the table from now on, as far as
    /// `admission_percent_min` allows; 1 admits all. Returns the result expected from the rates measured since the last
    /// call. DESIGN.md, "Quality of service", says which readings are shed, of which objects and in which order.
    ///
    /// A shed reading leaves the older value, with its age, and is still logged unless its object's policy is
    /// [`ShedPolicy::Drop`]. These are never shed: readings of objects that are not temporal, the first one of an
    /// object, those of [`never_shed`](Self::never_shed), and what firm tasks commit.
    ///
    /// With [`admission_quality`](crate::DbOptions::admission_quality) of freshness, the minimum depends on the rates
    /// of readings and their validity ([`AdmissionFigures::least`]), and readings that cost no freshness are shed
    /// first. Call this once per sampling period, also with 1, so that the rates are current.
    ///
    /// Makes several passes over all objects; no producer waits for them.
    pub fn set_admission(&self, fraction: f64) -> f64 {
        let shared = &*self.shared;
        let now_ns = shared.clock.monotonic_ns();
        let expected = shared.admission.set(fraction, now_ns, |object| {
            let admitted = shared.table.updates(object)?;
            let (valid_ms, _) = shared.table.validity(ObjectId(object as u32));
            let valid_ns = u64::from(valid_ms) * 1_000_000;
            Some(Offer { admitted, valid_ns })
        });
        let [wanted, ..] = shared.admission.wanted_expected_least();
        shared.queue.lock().is_shedding = wanted < 1.0;
        expected
    }

    /// Never sheds readings of this object, because each of them is acted upon. Ignores an unknown object.
    pub fn never_shed(&self, id: ObjectId) {
        self.shared.admission.exempt(id.0 as usize);
    }

    /// Sets how much an object's freshness counts when readings must be shed, and what happens to its shed readings. A
    /// higher weight means less shedding. A weight that is no number above 0 counts as 1, as does one never set. The
    /// weight takes effect with the next [`set_admission`](Self::set_admission). Ignores an unknown object.
    pub fn set_quality(&self, id: ObjectId, weight: f64, policy: ShedPolicy) {
        self.shared
            .admission
            .set_quality(id.0 as usize, weight, policy);
    }

    /// Returns what was requested and what was admitted.
    pub fn admission(&self) -> AdmissionFigures {
        let [wanted, expected, least] = self.shared.admission.wanted_expected_least();
        let queue = self.shared.queue.lock();
        AdmissionFigures {
            wanted,
            expected,
            least,
            offered: queue.offered,
            admitted: queue.offered - queue.shed,
            shed: queue.shed,
            dropped: queue.dropped,
        }
    }

    /// Returns the number of readings of an object not admitted to the table, logged or dropped, since the start.
    pub fn shed(&self, id: ObjectId) -> u64 {
        self.shared.admission.shed(id.0 as usize)
    }
}

/// One of the readings of [`Database::put_together`].
#[derive(Clone, Copy, Debug)]
pub struct TogetherReading<'a> {
    /// Its object.
    pub id: ObjectId,
    /// Its value.
    pub value: &'a [u8],
    /// The sensor's time; `None` if the node's clock gives it.
    pub time: Option<Time>,
}

/// What an instance of a firm task has put and not committed.
#[derive(Debug)]
pub(crate) struct Staged {
    buffer: Vec<u8>,
    bytes_max: usize,
    puts: u32,
    is_urgent: bool,
}

impl Staged {
    pub(crate) fn is_empty(&self) -> bool {
        self.puts == 0
    }

    pub(crate) fn clear(&mut self) {
        self.buffer.clear();
        self.puts = 0;
        self.is_urgent = false;
    }
}

/// The outcome of an instance's puts, and the time of the decision.
#[derive(Debug)]
pub(crate) enum Commit {
    /// They are in the table and in the queue; the ticket is that of the last one.
    Done { decided_ns: u64, ticket: Ticket },
    /// The deadline had passed.
    Late { decided_ns: u64 },
    /// The readings were refused, for example because the log takes none or not this many.
    Refused { decided_ns: u64, error: Error },
}
