//! The pace of checkpoints. The log that a start reads is bounded under any load and after any crashes. A round writes
//! hardly more of a checkpoint than of the log, and a lone put waits for one piece. Bytes and operations are counted.

use crate::common::{declare, open, sim_clock, small_options};
use base::block::BlockDevice;
use base::sim::{Random, SimClock, SimDevice};
use db::*;

const OBJECTS: u32 = 300;
const VALUE_BYTES: usize = 60;
const PIECE_BYTES: u64 = 1024;

/// A table whose checkpoint takes more than 30 pieces.
fn options(checkpoint_bytes: u64) -> DbOptions {
    DbOptions {
        objects_max: OBJECTS,
        value_bytes_max: VALUE_BYTES,
        queue_bytes_max: 40 << 10,
        append_bytes_max: 8 << 10,
        segment_bytes_max: 64 << 10,
        checkpoint_bytes,
        checkpoint_piece_bytes_max: PIECE_BYTES as usize,
        ..small_options()
    }
}

/// The bytes written by one round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    log_bytes: u64,
    checkpoint_bytes: u64,
    pieces: u64,
}

/// A database, and the contents of its store before the last round.
struct Watched {
    db: Database<MemoryStore>,
    clock: SimClock,
    before: Round,
    /// Log bytes of the largest round so far, bytes of the largest checkpoint.
    round_bytes_max: u64,
    checkpoint_bytes_max: u64,
    next: u64,
}

impl Watched {
    fn new(options: DbOptions) -> Self {
        let clock = sim_clock();
        let db = open(MemoryStore::new(), &clock, options);
        declare(&db, OBJECTS);
        Self {
            db,
            clock,
            before: Round::default(),
            round_bytes_max: 0,
            checkpoint_bytes_max: 0,
            next: 0,
        }
    }

    /// Returns the counts since the start, including the checkpoint that is being written.
    fn counts(&self) -> Round {
        let stats = self.db.stats();
        let (appends, files) = self
            .db
            .with_store(|store| {
                let names = store.names().filter(|name| name.starts_with("ckpt-"));
                let files: Vec<_> = names
                    .map(|name| store.file(name).map_or(0, |file| file.len() as u64))
                    .collect();
                (store.appends(), files)
            })
            .expect("open");
        let has_whole = stats.checkpoints > 0 || self.db.recovery().checkpoint.is_some();
        let whole = usize::from(has_whole);
        Round {
            log_bytes: stats.log_bytes,
            checkpoint_bytes: stats.checkpoint_bytes + files.iter().skip(whole).sum::<u64>(),
            pieces: appends - stats.appends,
        }
    }

    /// Puts this many values and commits them in one round.
    fn round(&mut self, puts: u32, value_bytes: usize) -> Round {
        for _ in 0..puts {
            self.clock.advance_ns(1_000_000);
            let id = ObjectId((self.next % u64::from(OBJECTS)) as u32);
            let mut value = [7; VALUE_BYTES];
            value[..8].copy_from_slice(&self.next.to_le_bytes());
            self.db
                .put_now(id, &value[..value_bytes], Durability::Now)
                .expect("taken");
            self.next += 1;
        }
        self.db.pump().expect("a round");
        let now = self.counts();
        let did = Round {
            log_bytes: now.log_bytes - self.before.log_bytes,
            // Less: what a crash has left of a checkpoint is deleted when the next one begins.
            checkpoint_bytes: now
                .checkpoint_bytes
                .saturating_sub(self.before.checkpoint_bytes),
            pieces: now.pieces - self.before.pieces,
        };
        self.before = now;
        self.round_bytes_max = self.round_bytes_max.max(did.log_bytes);
        did
    }

    /// Puts this many values and commits them in one round. Returns whether the power is still there.
    fn try_round(&mut self, puts: u64) -> bool {
        for _ in 0..puts {
            self.clock.advance_ns(1_000_000);
            let id = ObjectId((self.next % u64::from(OBJECTS)) as u32);
            let put = self.db.put_now(id, &[7; VALUE_BYTES], Durability::Now);
            if put.is_err() {
                return false;
            }
            self.next += 1;
        }
        self.db.pump().is_ok()
    }

    /// Ends the database as a crash does, and starts one on what is left. The power may fail again in this start.
    fn crash(&mut self, options: DbOptions, cut: Option<PowerCut>) {
        let mut store = self.db.abandon().expect("the store");
        store.restart();
        if let Some(cut) = cut {
            store.set_power_cut(cut);
        }
        self.db = open(store, &self.clock, options);
    }

    /// Checks that the log that a start reads matches the figures and is within its bound.
    fn check_replay(&mut self, options: DbOptions) {
        let replay_bytes = self.db.stats().replay_bytes;
        let largest = self.db.with_store(|store| {
            let names = store.names().filter(|name| name.starts_with("ckpt-"));
            let bytes = names.map(|name| store.file(name).map_or(0, |file| file.len() as u64));
            bytes.max().unwrap_or(0)
        });
        self.checkpoint_bytes_max = self.checkpoint_bytes_max.max(largest.expect("open"));
        let interval = options.checkpoint_bytes.max(self.checkpoint_bytes_max);
        let bound = 2 * interval + 2 * self.round_bytes_max + PIECE_BYTES;
        assert!(
            replay_bytes < bound,
            "{replay_bytes} bytes of log behind the checkpoint, {bound} is the bound"
        );
        if self.next.is_multiple_of(7) {
            let mut crashed = self.db.with_store(|store| store.clone()).expect("open");
            crashed.restart();
            let after = open(crashed, &self.clock, options);
            assert_eq!(after.recovery().log_bytes_read, replay_bytes);
            let stats = after.stats();
            let within = options.checkpoint_bytes.max(stats.table_checkpoint_bytes);
            let expected = if replay_bytes < within {
                (0, replay_bytes)
            } else {
                (1, 0)
            };
            assert_eq!((stats.checkpoints, stats.replay_bytes), expected);
        }
    }
}

/// Runs rounds of any size, with far more log than the interval.
fn loads_keep_the_bound(options: DbOptions) -> Stats {
    let mut watched = Watched::new(options);
    let mut random = Random::new(5);
    for round in 0..300 {
        // Long runs of rounds of one size each, and some in which each round has another size.
        let puts = match round / 50 {
            0 => 300,
            1 => 40,
            2 => 300,
            3 => 1,
            _ => random.below(300) as u32 + 1,
        };
        let bytes = if round / 50 == 5 {
            random.index(52) + 8
        } else {
            VALUE_BYTES
        };
        let did = watched.round(puts, bytes);
        // One piece that was begun, and one of the next checkpoint.
        assert!(
            did.checkpoint_bytes <= did.log_bytes + 2 * PIECE_BYTES,
            "round {round}: {did:?}"
        );
        watched.check_replay(options);
    }
    watched.db.stats()
}

#[test]
fn the_log_that_a_start_reads_is_bounded_under_any_load() {
    let options = options(64 << 10);
    let stats = loads_keep_the_bound(options);
    // The table takes less than the interval: the interval bounds the log, and a checkpoint is begun once per interval.
    assert!(stats.table_checkpoint_bytes < options.checkpoint_bytes);
    let begun_at_most = stats.log_bytes / options.checkpoint_bytes;
    assert!(
        (begun_at_most / 2..=begun_at_most).contains(&stats.checkpoints),
        "{stats:?}"
    );
}

#[test]
fn a_table_larger_than_the_interval_is_written_no_faster_than_the_log() {
    let options = options(2 << 10);
    let stats = loads_keep_the_bound(options);
    assert!(stats.checkpoints > 20, "{stats:?}");
    assert!(
        stats.checkpoint_bytes <= stats.log_bytes + 400 * PIECE_BYTES,
        "{stats:?}"
    );
}

/// For any amount of checkpoint that earlier rounds have left to be written.
#[test]
fn a_lone_put_waits_for_one_piece() {
    for checkpoint_bytes in [2 << 10, 64 << 10] {
        let mut watched = Watched::new(options(checkpoint_bytes));
        let mut random = Random::new(6);
        let mut pieces = 0;
        for _burst in 0..20 {
            for _ in 0..random.below(5) {
                watched.round(300, VALUE_BYTES);
            }
            for _ in 0..120 {
                let did = watched.round(1, VALUE_BYTES);
                assert!(did.pieces <= 1, "{did:?} after {} puts", watched.next);
                pieces += did.pieces;
            }
        }
        assert!(pieces > 100, "{pieces}");
    }
}

/// After a start that found much log, too: no put pays for it.
#[test]
fn a_lone_put_after_a_crash_waits_for_one_piece() {
    for checkpoint_bytes in [2 << 10, 64 << 10] {
        let options = options(checkpoint_bytes);
        let mut watched = Watched::new(options);
        let mut caught_up = 0;
        for burst in 0..12 {
            for _ in 0..3 + burst % 3 {
                watched.round(300, VALUE_BYTES);
            }
            watched.crash(options, None);
            watched.before = watched.counts();
            caught_up += watched.db.stats().checkpoints;
            for _ in 0..60 {
                let did = watched.round(1, VALUE_BYTES);
                assert!(did.pieces <= 1, "{did:?} after {} puts", watched.next);
            }
        }
        // Six of the twelve starts find that much log.
        assert!(caught_up >= 4, "{caught_up}");
    }
}

/// Power fails again and again before the first checkpoint of a life is whole, at any call of its rounds or its start.
#[test]
fn crashes_in_a_row_do_not_add_up() {
    let (mut caught_up, mut cut_starts) = (0, 0);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let options = options([2 << 10, 64 << 10][random.index(2)]);
        let mut watched = Watched::new(options);
        // The longest round, because it names every object too. Each later one may begin a segment and an anchor.
        watched.round(300, VALUE_BYTES);
        let round_bytes_max = watched.round_bytes_max + 512;
        let mut acknowledged_end = watched.db.durable_end();
        for life in 0..60 {
            let mut cut = |calls| PowerCut {
                after_calls: random.below(calls),
                bytes_kept: random.index(8 << 10),
            };
            // A checkpoint takes more than 30 calls. Those of the start count only where its own cut is tried.
            let (in_start, later) = if life % 4 == 0 {
                (Some(cut(60)), None)
            } else {
                (None, Some(cut(30)))
            };
            watched.crash(options, in_start);
            let (read, stats) = (watched.db.recovery().log_bytes_read, watched.db.stats());
            let within = options.checkpoint_bytes.max(stats.table_checkpoint_bytes);
            let bound = 2 * within + 2 * round_bytes_max + PIECE_BYTES;
            assert!(
                read < bound,
                "seed {seed}, life {life}: {read} bytes of log read, {bound} is the bound"
            );
            let end = watched.db.durable_end();
            assert!(end >= acknowledged_end, "{end} of {acknowledged_end}");
            if read >= within {
                caught_up += stats.checkpoints;
                cut_starts += 1 - stats.checkpoints;
                assert!(in_start.is_some() || stats.replay_bytes == 0, "{stats:?}");
            }
            if let Some(later) = later {
                let set = watched.db.with_store(|store| store.set_power_cut(later));
                set.expect("open");
            }
            let puts = random.below(300) + 1;
            while watched.try_round(puts) {}
            acknowledged_end = watched.db.durable_end();
        }
    }
    println!("{caught_up} starts wrote a checkpoint, {cut_starts} were cut while they did");
    assert!(
        caught_up > 100 && cut_starts > 10,
        "{caught_up} {cut_starts}"
    );
}

/// A start that finds much log, as a version that did not keep pace left it, has it behind a checkpoint at once.
#[test]
fn the_log_left_by_an_earlier_run_is_caught_up_with() {
    let mut watched = Watched::new(options(1 << 30));
    for _ in 0..40 {
        watched.round(300, VALUE_BYTES);
    }
    let options = options(64 << 10);
    watched.crash(options, None);
    watched.before = watched.counts();
    let left = watched.db.recovery().log_bytes_read;
    assert!(left > 8 * options.checkpoint_bytes);
    let stats = watched.db.stats();
    assert_eq!((stats.checkpoints, stats.replay_bytes), (1, 0));
    for _ in 0..10 {
        watched.round(300, VALUE_BYTES);
        watched.check_replay(options);
    }
}

/// On the file store: the pieces of one round are made durable together.
#[test]
fn pieces_of_one_round_share_their_flush() {
    let format = flash::FormatOptions {
        files_max: 64,
        name_bytes_max: 64,
        uuid: [1; 16],
        hash_key: [2; 16],
    };
    // Flushes and write requests while one checkpoint is written, without those of the log.
    let cost_of = |puts: u32| {
        let clock = sim_clock();
        let store = flash::Store::format(SimDevice::new(16 << 10, 3), &format).expect("formatted");
        let options = DbOptions {
            objects_max: 8000,
            value_bytes_max: 200,
            queue_bytes_max: 2 << 20,
            append_bytes_max: 512 << 10,
            segment_bytes_max: 32 << 20,
            checkpoint_bytes: 1 << 20,
            checkpoint_piece_bytes_max: 16 << 10,
            ..small_options()
        };
        let db = open(store, &clock, options);
        declare(&db, 8000);
        let mut next = 0;
        let mut round = |puts| {
            for _ in 0..puts {
                clock.advance_ns(1_000_000);
                let id = ObjectId(next % 8000);
                next += 1;
                db.put_now(id, &[7; 200], Durability::Now).expect("taken");
            }
            let device = || {
                db.with_store(|store| store.device().counters())
                    .expect("open")
            };
            let (before, appends) = (device(), db.stats().appends);
            db.pump().expect("a round");
            let after = device();
            let appended = db.stats().appends - appends;
            (
                after.flushes - before.flushes - appended,
                after.writes - before.writes,
            )
        };
        // Until the first checkpoint has been begun.
        while db.with_store(|store| store.stat("ckpt-00000001").is_err()) == Some(true) {
            round(4000);
        }
        let (mut flushes, mut writes) = (0, 0);
        while db.stats().checkpoints == 0 {
            let (more, written) = round(puts);
            flushes += more;
            writes += written;
        }
        (flushes, writes, db.stats().checkpoint_bytes / (16 << 10))
    };
    let (alone, _, pieces) = cost_of(1);
    let (together, _, _) = cost_of(4000);
    println!("{pieces} pieces: {alone} flushes one by one, {together} in large rounds");
    assert!(
        alone >= pieces,
        "each piece that a lone put meets is durable"
    );
    // One for each round, and two for each run of blocks that the file takes.
    assert!(2 * together < alone, "{together} flushes, {alone} alone");
}
