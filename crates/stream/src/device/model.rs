//! The stage under randomly drawn thread schedules: the network places blocks, programs read them, the storer hands
//! them to the page cache. The tested code is the real one, with other locks. No wait ends by its timeout here, so a
//! lost wakeup shows as a deadlock.

mod sync {
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;
}

#[allow(dead_code, clippy::duplicate_mod)]
#[path = "stage.rs"]
mod stage;

use crate::block::{BlockAt, FileId, Token};
use shuttle::thread;
use stage::{Kind, Stage, Step};
use std::sync::Arc;
use std::time::Duration;

const ORDERS: usize = 2000;

/// A timeout that no wait reaches.
const LONG: Duration = Duration::from_secs(3600);

fn at(index: u32) -> BlockAt {
    BlockAt {
        file: FileId(1),
        index,
    }
}

fn bytes(index: u32) -> Arc<[u8]> {
    vec![index as u8; 4096].into()
}

fn prefetched(is_storable: bool) -> Kind {
    Kind::Prefetched {
        token: Token([1; 16]),
        is_storable,
    }
}

fn read(stage: &Stage, index: u32) {
    let waits = |_: &mut stage::Wanted| Step::<()>::Wait(LONG);
    let (found, _) = stage.read(at(index), waits).unwrap();
    assert_eq!(found, bytes(index), "block {index}");
}

/// Stores until the stage is stopped. Blocks that are being stored must stay available to readers meanwhile.
fn store(stage: &Stage, takes: bool) {
    while let Some(run) = stage.take_run(4) {
        for (index, block) in (run.first..).zip(&run.blocks) {
            assert_eq!(*block, bytes(index));
            assert!(stage.is_staged(at(index)), "freed while it is stored");
        }
        thread::yield_now();
        for index in (run.first..).take(run.blocks.len()) {
            assert!(stage.is_staged(at(index)), "freed while it is stored");
        }
        stage.stored(&run, takes);
    }
}

#[test]
fn every_reader_gets_its_block_whoever_comes_first() {
    shuttle::check_random(
        || {
            let stage = Arc::new(Stage::new(8, LONG));
            let (network, again) = (Arc::clone(&stage), Arc::clone(&stage));
            let brings = thread::spawn(move || {
                for index in 0..4 {
                    network.arrive(at(index), network.page(&bytes(index)), prefetched(false));
                }
            });
            let other = thread::spawn(move || read(&again, 3));
            for index in [2, 0, 1] {
                read(&stage, index);
            }
            // Block 0 is read twice: the second read has it requested again.
            let asked = Arc::clone(&stage);
            let repeats = thread::spawn(move || {
                while !asked.is_wanted(at(0)) {
                    thread::yield_now();
                }
                asked.arrive(at(0), asked.page(&bytes(0)), Kind::Neighbour);
            });
            read(&stage, 0);
            for thread in [brings, other, repeats] {
                thread.join().unwrap();
            }
        },
        ORDERS,
    );
}

#[test]
fn what_is_stored_stays_until_it_is_and_readers_get_it_meanwhile() {
    for takes in [true, false] {
        shuttle::check_random(
            move || {
                let stage = Arc::new(Stage::new(4, LONG));
                let (network, storer) = (Arc::clone(&stage), Arc::clone(&stage));
                let stores = thread::spawn(move || store(&storer, takes));
                let brings = thread::spawn(move || {
                    for index in 0..4 {
                        network.arrive(at(index), network.page(&bytes(index)), prefetched(true));
                    }
                    network.store_arrived();
                });
                // A program reads blocks that the page cache does not have; a block that was stored before is requested
                // again.
                for index in [1, 3] {
                    let asked = Arc::clone(&stage);
                    let mut has_asked = false;
                    let waits = |_: &mut stage::Wanted| {
                        if !std::mem::replace(&mut has_asked, true) {
                            let asked = Arc::clone(&asked);
                            thread::spawn(move || {
                                asked.arrive(at(index), bytes(index), Kind::Neighbour);
                            });
                        }
                        Step::<()>::Wait(LONG)
                    };
                    let (found, _) = stage.read(at(index), waits).unwrap();
                    assert_eq!(found, bytes(index));
                }
                brings.join().unwrap();
                // No reader takes the other blocks: they are stored anyway.
                while takes && [0, 2].iter().any(|index| stage.is_staged(at(*index))) {
                    thread::yield_now();
                }
                stage.stop();
                stores.join().unwrap();
            },
            ORDERS,
        );
    }
}

#[test]
fn a_full_stage_holds_up_the_network_until_somebody_reads_stores_or_waits() {
    for is_stored in [true, false] {
        shuttle::check_random(
            move || {
                let stage = Arc::new(Stage::new(2, LONG));
                let (network, storer) = (Arc::clone(&stage), Arc::clone(&stage));
                let stores = thread::spawn(move || store(&storer, true));
                let brings = thread::spawn(move || {
                    for index in 0..6 {
                        let kind = prefetched(is_stored);
                        network.arrive(at(index), network.page(&bytes(index)), kind);
                    }
                    // A block that was evicted or stored before it was read arrives again for its waiting reader.
                    while !network.is_wanted(at(9)) {
                        for index in 0..6 {
                            if network.is_wanted(at(index)) {
                                network.arrive(at(index), bytes(index), Kind::Neighbour);
                            }
                        }
                        thread::yield_now();
                    }
                    network.arrive(at(9), bytes(9), Kind::Neighbour);
                });
                for index in [5, 0] {
                    read(&stage, index);
                }
                read(&stage, 9);
                brings.join().unwrap();
                stage.stop();
                stores.join().unwrap();
                let (_, staged, _) = stage.counts();
                assert!(staged <= 2);
            },
            ORDERS,
        );
    }
}

#[test]
fn readers_of_a_lost_connection_ask_again() {
    shuttle::check_random(
        || {
            let stage = Arc::new(Stage::new(4, LONG));
            let network = Arc::clone(&stage);
            let (ask, asked) = std::sync::mpsc::channel();
            let ends = thread::spawn(move || {
                while asked.try_recv().is_err() {
                    thread::yield_now();
                }
                network.lost_connection(1);
                while asked.try_recv().is_err() {
                    thread::yield_now();
                }
                network.arrive(at(0), bytes(0), Kind::Neighbour);
            });
            let next = |wanted: &mut stage::Wanted| {
                if wanted.asked.is_none() {
                    wanted.asked = Some((1, std::time::Instant::now()));
                    ask.send(()).unwrap();
                }
                Step::<()>::Wait(LONG)
            };
            assert_eq!(stage.read(at(0), next).unwrap().0, bytes(0));
            ends.join().unwrap();
        },
        ORDERS,
    );
}

#[test]
fn a_filled_pool_is_full_again_whoever_takes_pages_and_its_thread_ends() {
    const PAGES: usize = 5;
    shuttle::check_random(
        || {
            let stage = Arc::new(Stage::filled(PAGES, LONG));
            let (filler, network) = (Arc::clone(&stage), Arc::clone(&stage));
            let fills = thread::spawn(move || filler.fill());
            let brings = thread::spawn(move || {
                for index in 0..5 {
                    network.arrive(at(index), network.page(&bytes(index)), prefetched(false));
                }
            });
            for index in [4, 0, 2, 1, 3] {
                read(&stage, index);
            }
            brings.join().unwrap();
            let spare = || stage.counts().2;
            while spare() < PAGES {
                thread::yield_now();
            }
            assert_eq!(spare(), PAGES);
            stage.stop();
            fills.join().unwrap();
            assert_eq!(spare(), PAGES);
        },
        ORDERS,
    );
}
