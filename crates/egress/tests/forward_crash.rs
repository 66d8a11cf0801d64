//! Store-and-forward under all faults. The simulated device loses power at any write. The link breaks with units in
//! flight. Answers get lost, arrive unrequested or twice, and units are refused.
//!
//! **What must hold:** every reading that was acknowledged to its sender reaches the upstream, unless the upstream
//! refuses it. A crash repeats at most one window, a lost connection what was in flight, a clean stop nothing. With
//! oldest first, each key's readings arrive in order. The count of repeated readings over all runs is at least the
//! number of readings that arrived twice.
//!
//! The seeded bugs `cursor-before-ack`, `ack-of-another` and `window-unbounded` make it fail.

use crate::common::{
    Db, KEYS, Received, batched, clock, declare, forwarder, open, put, reopen, single,
};
use base::sim::{Random, SimClock, SimDevice};
use db::Ticket;
use egress::forward::{Begin, Forwarder, Order, UpstreamOptions};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

const SEEDS: u64 = 120;
const LIVES: u64 = 4;

/// The link and the upstream at its end.
struct Upstream {
    received: Received,
    connected: bool,
    /// Answers in flight to the node.
    answers: VecDeque<u64>,
    /// Whether the units of this connection will never be answered.
    silent: bool,
    /// Readings in flight on lost connections: at most this many may arrive twice.
    repeats_max: u64,
    /// The number that it refuses.
    unwanted: u64,
    refused: BTreeSet<u64>,
}

struct World {
    random: Random,
    clock: SimClock,
    puts: Vec<(usize, Option<Ticket>)>,
    durable: BTreeSet<u64>,
    upstream: Upstream,
}

impl World {
    /// Executes one random step. Returns `false` if the device is dead.
    fn step(&mut self, db: &Arc<Db>, forwarder: &mut Forwarder<SimDevice>) -> bool {
        self.clock.advance_ns(self.random.below(3_000_000));
        match self.random.below(16) {
            0..=4 => {
                let ids: Vec<_> = KEYS.iter().filter_map(|key| db.lookup(key)).collect();
                for _ in 0..=self.random.below(12) {
                    let n = self.puts.len() as u64;
                    let key = self.random.index(KEYS.len());
                    let time_ms = 1_700_000_000_000 + self.random.below(50_000) as i64;
                    self.puts.push((key, put(db, &ids, key, n, time_ms)));
                }
                return db.pump().is_ok();
            }
            5..=7 => {
                if self.upstream.connected && forwarder.pull().is_err() {
                    return false;
                }
                let now_ms = forwarder.now_ms();
                forwarder.engine.close_due(now_ms);
            }
            8..=10 => {
                if !self.upstream.connected {
                    return true;
                }
                for _ in 0..=self.random.below(6) {
                    if forwarder
                        .write_cursor_if_due(self.random.below(20) == 0)
                        .is_err()
                    {
                        return false;
                    }
                    let Some(unit) = forwarder.engine.send() else {
                        break;
                    };
                    // On a broken link the unit is lost, with everything after it.
                    if self.upstream.silent {
                        continue;
                    }
                    let holds = crate::common::parse(unit.payload);
                    let unwanted = self.upstream.unwanted;
                    let (token, readings) = (unit.token, unit.readings);
                    assert_eq!(holds.len(), readings as usize);
                    if holds.iter().any(|(_, n)| n % 64 == unwanted) {
                        if readings == 1 {
                            self.upstream.refused.insert(holds[0].1);
                            forwarder.engine.refuse(token);
                        } else {
                            self.lose(forwarder, Some(token));
                        }
                        continue;
                    }
                    self.upstream.received.take(unit.payload);
                    if self.random.below(40) == 0 {
                        // The unit arrived, and no answer will ever come.
                        self.upstream.silent = self.random.coin();
                    } else {
                        self.upstream.answers.push_back(token);
                    }
                }
            }
            11..=13 => {
                for _ in 0..=self.random.below(6) {
                    // Some upstreams answer out of order.
                    let swap = self.upstream.answers.len() > 1 && self.random.below(4) == 0;
                    let at = if swap { 1 } else { 0 };
                    if let Some(token) = self.upstream.answers.remove(at) {
                        assert!(forwarder.engine.acknowledge(token));
                        if self.random.below(30) == 0 {
                            assert!(!forwarder.engine.acknowledge(token), "answered twice");
                            assert!(!forwarder.engine.acknowledge(token + 1_000_000));
                        }
                    }
                }
            }
            14 => {
                if self.upstream.connected {
                    if self.random.below(3) == 0 {
                        self.lose(forwarder, None);
                    }
                } else {
                    self.upstream.connected = true;
                    self.upstream.silent = false;
                    forwarder.engine.connected(db.durable_end());
                }
            }
            _ => {
                if forwarder.write_cursor_if_due(false).is_err() {
                    return false;
                }
                if self.random.below(50) == 0 && db.maintain().is_err() {
                    return false;
                }
            }
        }
        true
    }

    fn lose(&mut self, forwarder: &mut Forwarder<SimDevice>, refused: Option<u64>) {
        // Units answered out of order or not at all are sent again.
        self.upstream.repeats_max += forwarder.engine.sent_unpassed();
        match refused {
            Some(token) => forwarder.engine.split(token),
            None => {
                forwarder.engine.go_back();
                self.upstream.connected = false;
            }
        }
        self.upstream.answers.clear();
        self.upstream.silent = false;
        if refused.is_some() {
            forwarder.engine.connected(forwarder.durable_end());
        }
    }

    fn note_durable(&mut self) {
        for (n, (_, ticket)) in self.puts.iter().enumerate() {
            if ticket.as_ref().is_some_and(Ticket::is_durable) {
                self.durable.insert(n as u64);
            }
        }
    }
}

fn run(seed: u64, cuts: bool) -> (u64, u64) {
    let mut random = Random::new(seed);
    let options = UpstreamOptions {
        window_readings_max: 4 + random.below(60) as u32,
        order: [Order::OldestFirst, Order::RecentFirst][random.index(2)],
        begin: Begin::Oldest,
        ..if random.coin() { single() } else { batched() }
    };
    let window = u64::from(options.window_readings_max);
    let order = options.order;
    let mut world = World {
        upstream: Upstream {
            received: Received::default(),
            connected: false,
            answers: VecDeque::new(),
            silent: false,
            repeats_max: 0,
            unwanted: 64 * random.below(2) + random.below(64),
            refused: BTreeSet::new(),
        },
        random,
        clock: clock(),
        puts: Vec::new(),
        durable: BTreeSet::new(),
    };
    let mut store = Some(crate::common::format(2048, seed));
    let (mut crashes, mut repeated_by_crash) = (0, BTreeSet::new());
    let (mut came_again, mut counted) = (0, 0);
    for life in 0..LIVES {
        let mut powered = store.take().expect("a store");
        let is_last = life + 1 == LIVES;
        if cuts && !is_last {
            let writes = 20 + world.random.below(260);
            powered
                .device_mut()
                .set_power_cut_after_writes(Some(writes));
        }
        let db = open(powered, &world.clock, crate::common::options());
        declare(&db);
        let before = world.upstream.received.numbers();
        let seen = world.upstream.received.all.len();
        world.upstream.connected = false;
        world.upstream.answers.clear();
        let opened = Forwarder::open(
            Arc::clone(&db),
            Arc::new(world.clock.clone()),
            options.clone(),
        );
        let mut is_clean = false;
        if let Ok(mut forwarder) = opened {
            assert!(!forwarder.was_lost(), "seed {seed}");
            let counted_before = forwarder.engine.counters().sent_twice;
            let steps = if cuts && !is_last { 20_000 } else { 600 };
            for _ in 0..steps {
                if !world.step(&db, &mut forwarder) {
                    break;
                }
            }
            world.note_durable();
            if is_last || !cuts {
                drain(&mut world, &db, &mut forwarder);
                if !is_last && world.random.coin() {
                    forwarder.write_cursor(true).expect("written");
                    is_clean = true;
                }
            }
            let mut known = before.clone();
            let came = world.upstream.received.all[seen..].iter();
            came_again += came.filter(|(_, n)| !known.insert(*n)).count() as u64;
            counted += forwarder.engine.counters().sent_twice - counted_before;
            assert!(
                counted >= came_again,
                "seed {seed}: {came_again} came twice up to life {life}, {counted} were counted"
            );
        }
        world.note_durable();
        // Readings that arrived before this run and again in it.
        let again = world.upstream.received.all[seen..].iter();
        repeated_by_crash.extend(again.map(|(_, n)| *n).filter(|n| before.contains(n)));
        assert!(
            repeated_by_crash.len() as u64 <= crashes * window,
            "seed {seed}: {} readings came again after {crashes} crashes with a window of {window}",
            repeated_by_crash.len()
        );
        let Some(db) = Arc::into_inner(db) else {
            panic!("the database is still in use")
        };
        let cut = db.abandon().expect("the store comes back");
        crashes += u64::from(!is_clean);
        let image = match cut.device().is_powered() {
            true => cut.device().clone(),
            false => cut.device().crash_image_random(world.random.next_u64()),
        };
        store = Some(reopen(image));
        world.clock.reboot();
    }
    let received = world.upstream.received.numbers();
    let lost: Vec<_> = world
        .durable
        .iter()
        .filter(|n| !received.contains(n) && !world.upstream.refused.contains(n))
        .collect();
    assert!(
        lost.is_empty(),
        "seed {seed}: acknowledged and never forwarded: {lost:?}"
    );
    if order == Order::OldestFirst {
        world.upstream.received.assert_in_order();
    }
    let times: u64 = world
        .upstream
        .received
        .times
        .values()
        .map(|times| u64::from(*times))
        .sum();
    let repeats = times - received.len() as u64;
    let allowed = world.upstream.repeats_max + crashes * window;
    assert!(
        repeats <= allowed,
        "seed {seed}: {repeats} came twice, {allowed} may have"
    );
    (received.len() as u64, repeats)
}

/// Runs without faults until nothing is left.
fn drain(world: &mut World, db: &Arc<Db>, forwarder: &mut Forwarder<SimDevice>) {
    db.pump().expect("committed");
    world.note_durable();
    for _ in 0..200_000 {
        if !world.upstream.connected {
            world.upstream.connected = true;
            forwarder.engine.connected(db.durable_end());
        }
        if forwarder.engine.backlog(db.durable_end()) == 0 {
            return;
        }
        forwarder.pull().expect("read");
        forwarder.engine.close_now();
        forwarder.write_cursor_if_due(false).expect("written");
        if let Some(unit) = forwarder.engine.send() {
            let holds = crate::common::parse(unit.payload);
            let (token, unwanted) = (unit.token, world.upstream.unwanted);
            if holds.iter().any(|(_, n)| n % 64 == unwanted) {
                if holds.len() == 1 {
                    world.upstream.refused.insert(holds[0].1);
                    forwarder.engine.refuse(token);
                } else {
                    world.lose(forwarder, Some(token));
                }
                continue;
            }
            if !world.upstream.silent {
                world.upstream.received.take(unit.payload);
                world.upstream.answers.push_back(token);
            }
        } else if world.upstream.answers.is_empty() && forwarder.engine.in_flight() > 0 {
            // No answer will arrive: the connection is given up.
            world.lose(forwarder, None);
        }
        while let Some(token) = world.upstream.answers.pop_front() {
            forwarder.engine.acknowledge(token);
        }
    }
    panic!("it does not end: {}", forwarder.engine.explain());
}

#[test]
fn acknowledged_readings_are_kept_and_one_window_at_most_comes_twice() {
    let (mut received, mut repeats) = (0, 0);
    for seed in 0..SEEDS {
        let (some, again) = run(seed, true);
        received += some;
        repeats += again;
    }
    println!("readings received: {received}, of them again: {repeats}");
    assert!(received > 5_000 && repeats > 100);
}

/// Tests ends without a power cut, clean and unclean.
#[test]
fn restarts_repeat_no_more_than_the_window_allows() {
    for seed in 0..30 {
        run(1_000_000 + seed, false);
    }
}

/// Cuts power at each single write of a short scenario.
#[test]
fn each_write_of_a_story_can_be_the_last() {
    let mut cuts = 0;
    for writes in 1..400 {
        let clock = clock();
        let mut store = crate::common::format(2048, writes);
        store.device_mut().set_power_cut_after_writes(Some(writes));
        let mut received = Received::default();
        let mut acknowledged = 0;
        let options = UpstreamOptions {
            window_readings_max: 10,
            begin: Begin::Oldest,
            ..single()
        };
        let db = open(store, &clock, crate::common::options());
        let ids = declare(&db);
        let opened = Forwarder::open(Arc::clone(&db), Arc::new(clock.clone()), options.clone());
        if let Ok(mut forwarder) = opened {
            forwarder.engine.connected(0);
            'story: for n in 0..120u64 {
                let ticket = put(&db, &ids, (n % 4) as usize, n, n as i64);
                if db.pump().is_err() {
                    break;
                }
                if ticket.is_some_and(|ticket| ticket.is_durable()) {
                    acknowledged = n + 1;
                }
                if forwarder.pull().is_err() {
                    break;
                }
                loop {
                    if forwarder.write_cursor_if_due(false).is_err() {
                        break 'story;
                    }
                    let Some(unit) = forwarder.engine.send() else {
                        break;
                    };
                    received.take(unit.payload);
                    let token = unit.token;
                    // Every seventh answer arrives together with the next one.
                    if n % 7 > 0 {
                        for token in token.saturating_sub(1)..=token {
                            forwarder.engine.acknowledge(token);
                        }
                    }
                }
            }
        }
        let db = Arc::into_inner(db).expect("this is the only owner");
        let cut = db.abandon().expect("the store");
        if cut.device().is_powered() {
            break;
        }
        cuts += 1;
        let before = received.numbers();
        let db = open(
            reopen(cut.device().crash_image_random(writes)),
            &clock,
            crate::common::options(),
        );
        let mut forwarder = forwarder(&db, &clock, options);
        assert!(!forwarder.was_lost());
        let mut again = Received::default();
        forwarder.engine.connected(db.durable_end());
        while forwarder.engine.backlog(db.durable_end()) > 0 {
            forwarder.pull().expect("read");
            forwarder.write_cursor_if_due(false).expect("written");
            while let Some(unit) = forwarder.engine.send() {
                again.take(unit.payload);
                let token = unit.token;
                forwarder.engine.acknowledge(token);
            }
        }
        let twice = again.numbers().intersection(&before).count() as u64;
        assert!(twice <= 10, "cut at {writes}: {twice} came twice");
        assert!(forwarder.engine.counters().sent_twice >= twice);
        for n in 0..acknowledged {
            assert!(
                before.contains(&n) || again.times.contains_key(&n),
                "cut at {writes}: {n} was acknowledged and never forwarded"
            );
        }
    }
    println!("cuts: {cuts}");
    assert!(cuts > 100, "{cuts}");
}
