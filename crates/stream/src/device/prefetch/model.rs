//! The prefetch part under randomly drawn thread schedules: the network places blocks, programs read them, the storer
//! hands them to the page cache. The tested code is the real one, with other locks. No wait ends by its timeout here,
//! so a lost wakeup shows as a deadlock.

mod sync {
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;
}

#[allow(dead_code, clippy::duplicate_mod)]
#[path = "monitor.rs"]
mod monitor;

use super::buffer::{Kind, RequestedBlock};
use super::tasks::Tasks;
use crate::block::{BlockAt, FileId, Token};
use monitor::{Prefetch, Step};
use shuttle::thread;
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

fn read(prefetch: &Prefetch, index: u32) {
    let waits = |_: &mut RequestedBlock, _: &mut Tasks| Step::<()>::Wait(LONG);
    let (found, _) = prefetch.wait(None, at(index), waits).unwrap();
    assert_eq!(found, bytes(index), "block {index}");
}

/// Stores until the prefetch is stopped. Blocks that are being stored must stay available to readers meanwhile.
fn store(prefetch: &Prefetch, takes: bool) {
    while let Some(run) = prefetch.take_run(4) {
        for (index, block) in (run.first..).zip(&run.blocks) {
            assert_eq!(*block, bytes(index));
            assert!(prefetch.is_buffered(at(index)), "freed while it is stored");
        }
        thread::yield_now();
        for index in (run.first..).take(run.blocks.len()) {
            assert!(prefetch.is_buffered(at(index)), "freed while it is stored");
        }
        prefetch.stored(&run, takes);
    }
}

#[test]
fn every_reader_gets_its_block_in_any_order() {
    shuttle::check_random(
        || {
            let prefetch = Arc::new(Prefetch::new(8, false, LONG));
            let (network, again) = (Arc::clone(&prefetch), Arc::clone(&prefetch));
            let brings = thread::spawn(move || {
                for index in 0..4 {
                    network.arrive(at(index), network.page(&bytes(index)), prefetched(false));
                }
            });
            let other = thread::spawn(move || read(&again, 3));
            for index in [2, 0, 1] {
                read(&prefetch, index);
            }
            // Block 0 is read twice: the second read has it requested again.
            let asked = Arc::clone(&prefetch);
            let repeats = thread::spawn(move || {
                while !asked.is_requested(at(0)) {
                    thread::yield_now();
                }
                asked.arrive(at(0), asked.page(&bytes(0)), Kind::Neighbour);
            });
            read(&prefetch, 0);
            for thread in [brings, other, repeats] {
                thread.join().unwrap();
            }
        },
        ORDERS,
    );
}

#[test]
fn a_block_stays_until_it_is_stored_and_readers_get_it_meanwhile() {
    for takes in [true, false] {
        shuttle::check_random(
            move || {
                let prefetch = Arc::new(Prefetch::new(4, false, LONG));
                let (network, storer) = (Arc::clone(&prefetch), Arc::clone(&prefetch));
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
                    let asked = Arc::clone(&prefetch);
                    let mut has_asked = false;
                    let waits = |_: &mut RequestedBlock, _: &mut Tasks| {
                        if !std::mem::replace(&mut has_asked, true) {
                            let asked = Arc::clone(&asked);
                            thread::spawn(move || {
                                asked.arrive(at(index), bytes(index), Kind::Neighbour);
                            });
                        }
                        Step::<()>::Wait(LONG)
                    };
                    let (found, _) = prefetch.wait(None, at(index), waits).unwrap();
                    assert_eq!(found, bytes(index));
                }
                brings.join().unwrap();
                // No reader takes the other blocks: they are stored anyway.
                while takes && [0, 2].iter().any(|index| prefetch.is_buffered(at(*index))) {
                    thread::yield_now();
                }
                prefetch.stop();
                stores.join().unwrap();
            },
            ORDERS,
        );
    }
}

#[test]
fn a_full_buffer_delays_the_network_until_a_block_is_read_stored_or_awaited() {
    for is_stored in [true, false] {
        shuttle::check_random(
            move || {
                let prefetch = Arc::new(Prefetch::new(2, false, LONG));
                let (network, storer) = (Arc::clone(&prefetch), Arc::clone(&prefetch));
                let stores = thread::spawn(move || store(&storer, true));
                let brings = thread::spawn(move || {
                    for index in 0..6 {
                        let kind = prefetched(is_stored);
                        network.arrive(at(index), network.page(&bytes(index)), kind);
                    }
                    // A block that was evicted or stored before it was read arrives again for its waiting reader.
                    while !network.is_requested(at(9)) {
                        for index in 0..6 {
                            if network.is_requested(at(index)) {
                                network.arrive(at(index), bytes(index), Kind::Neighbour);
                            }
                        }
                        thread::yield_now();
                    }
                    network.arrive(at(9), bytes(9), Kind::Neighbour);
                });
                for index in [5, 0] {
                    read(&prefetch, index);
                }
                read(&prefetch, 9);
                brings.join().unwrap();
                prefetch.stop();
                stores.join().unwrap();
                assert!(prefetch.counts().used <= 2);
            },
            ORDERS,
        );
    }
}

#[test]
fn readers_of_a_lost_connection_ask_again() {
    shuttle::check_random(
        || {
            let prefetch = Arc::new(Prefetch::new(4, false, LONG));
            let network = Arc::clone(&prefetch);
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
            let next = |requested: &mut RequestedBlock, _: &mut Tasks| {
                if requested.asked.is_none() {
                    requested.asked = Some((1, std::time::Instant::now()));
                    ask.send(()).unwrap();
                }
                Step::<()>::Requested(LONG)
            };
            assert_eq!(prefetch.wait(None, at(0), next).unwrap().0, bytes(0));
            ends.join().unwrap();
        },
        ORDERS,
    );
}

#[test]
fn a_reader_gets_its_block_while_its_task_ends() {
    shuttle::check_random(
        || {
            let prefetch = Arc::new(Prefetch::new(4, false, LONG));
            let (token, now) = (Token([1; 16]), std::time::Instant::now());
            prefetch.tasks(|tasks| tasks.begin(token, FileId(1), Arc::default(), false, now));
            let network = Arc::clone(&prefetch);
            let ends = thread::spawn(move || {
                network.tasks(|tasks| tasks.end(&token));
                network.end(token);
                network.arrive(at(0), bytes(0), prefetched(false));
            });
            let waits = |_: &mut RequestedBlock, _: &mut Tasks| Step::<()>::Wait(LONG);
            let (found, _) = prefetch.wait(Some(token), at(0), waits).unwrap();
            assert_eq!(found, bytes(0));
            ends.join().unwrap();
        },
        ORDERS,
    );
}

#[test]
fn a_filled_pool_is_full_again_after_pages_are_taken_and_its_thread_ends() {
    const PAGES: usize = 5;
    shuttle::check_random(
        || {
            let prefetch = Arc::new(Prefetch::new(PAGES, true, LONG));
            let (filler, network) = (Arc::clone(&prefetch), Arc::clone(&prefetch));
            let fills = thread::spawn(move || filler.fill());
            let brings = thread::spawn(move || {
                for index in 0..5 {
                    network.arrive(at(index), network.page(&bytes(index)), prefetched(false));
                }
            });
            for index in [4, 0, 2, 1, 3] {
                read(&prefetch, index);
            }
            brings.join().unwrap();
            let spare = || prefetch.counts().spare;
            while spare() < PAGES {
                thread::yield_now();
            }
            assert_eq!(spare(), PAGES);
            prefetch.stop();
            fills.join().unwrap();
            assert_eq!(spare(), PAGES);
        },
        ORDERS,
    );
}
