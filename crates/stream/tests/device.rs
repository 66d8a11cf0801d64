//! A device against a scripted server: correct and wrong answers, and waiting readers.

use crate::device_support as support;
use crate::device_support::{
    Fake, Flow, MemoryCache, PageCache, Tree, at, read_all, rejected, settings,
};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stream::device::{Device, ReadError, Reason, Settings};
use stream::wire::{Answer, Refusal, Request};
use stream::{BLOCK_BYTES, BlockAt, FileId, Token};

#[test]
fn every_block_of_every_file_equals_the_published_one() {
    let fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
    let device = Device::start(settings(&fake)).unwrap();
    assert_eq!(device.manifest().version, 1);
    read_all(&device, &fake.tree, &fake.tree.all());
    let none = at(1, 1000);
    assert_eq!(device.read(None, none), Err(ReadError::NoSuchBlock));
    assert_eq!(device.read(None, at(0, 0)), Err(ReadError::NoSuchBlock));
    let counters = device.counters();
    assert_eq!(counters.rejected_all, 0, "{counters:?}");
    let blocks = fake.tree.all().len() as u64;
    assert!(
        counters.requests * 4 < blocks,
        "neighbours come along: {counters:?}"
    );
    // On a loaded machine, a delayed reader may request a block that is already in flight.
    assert!(
        counters.neighbours_read + counters.requests >= blocks,
        "{counters:?}"
    );
}

#[test]
fn a_prefetched_start_needs_no_request_and_is_traced_in_order() {
    let tree = Tree::usual();
    let plan: Vec<BlockAt> = tree.all().into_iter().step_by(3).collect();
    let fake = Fake::start(tree, support::learned(plan.clone(), true));
    let device = Device::start(settings(&fake)).unwrap();
    let token = device.begin(FileId(1));
    fake.wait_for(|seen| seen.iter().any(|r| matches!(r, Request::AskPlan { .. })));
    support::wait_until(|| device.counters().pushed == plan.len() as u64);
    for at in &plan {
        let bytes = device.read(Some(token), *at).unwrap();
        assert_eq!(bytes[..], *fake.tree.block(*at));
    }
    device.end(token, true);
    fake.wait_for(|seen| seen.iter().any(|r| matches!(r, Request::End { .. })));
    let counters = device.counters();
    assert_eq!(counters.requests, 0, "{counters:?}");
    assert_eq!(counters.pushed_read, plan.len() as u64);
    assert_eq!(
        (counters.audited_pushed, counters.audited_unread),
        (plan.len() as u64, 0)
    );
    let traced: Vec<BlockAt> = fake
        .seen()
        .into_iter()
        .filter_map(|request| match request {
            Request::Trace { blocks, .. } => Some(blocks),
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!(traced, plan);
    let end = fake
        .seen()
        .into_iter()
        .rev()
        .find_map(|request| match request {
            Request::End {
                is_exact,
                has_exited,
                ..
            } => Some((is_exact, has_exited)),
            _ => None,
        });
    assert_eq!(end, Some((true, true)));
    let start = device.starts()[0];
    assert_eq!((start.unread, start.requests, start.is_exact), (0, 0, true));
}

#[test]
fn unread_blocks_of_a_plan_are_counted_and_missing_ones_requested() {
    let tree = Tree::usual();
    let all = tree.all();
    let (plan, others) = (all[..20].to_vec(), all[40..44].to_vec());
    let fake = Fake::start(tree, support::learned(plan.clone(), true));
    let device = Device::start(settings(&fake)).unwrap();
    let token = device.begin(FileId(1));
    support::wait_until(|| device.counters().pushed == plan.len() as u64);
    for at in plan[..15].iter().chain(&others) {
        let bytes = device.read(Some(token), *at).unwrap();
        assert_eq!(bytes[..], *fake.tree.block(*at));
    }
    device.end(token, true);
    let start = device.starts()[0];
    assert_eq!((start.pushed, start.unread, start.read), (20, 5, 19));
    assert!(start.requests >= 1);
}

/// Returns the first block of each file of a plan.
fn first_of_files(plan: &[BlockAt]) -> Vec<BlockAt> {
    let mut first: Vec<BlockAt> = Vec::new();
    for at in plan {
        if first.iter().all(|known| known.file != at.file) {
            first.push(*at);
        }
    }
    first
}

#[test]
fn prefetched_blocks_go_to_the_page_cache_but_not_while_all_reads_are_to_be_seen() {
    for is_audit in [false, true] {
        let tree = Tree::usual();
        let plan = tree.all();
        let fake = Fake::start(tree, support::learned(plan.clone(), is_audit));
        let device = Device::start(settings(&fake)).unwrap();
        let pages = Arc::new(PageCache::default());
        device.set_pages(Some(Arc::clone(&pages) as _));
        // Block the store call: all blocks that arrive meanwhile wait for the next run.
        let stored = pages.blocks.lock().unwrap();
        let token = device.begin(FileId(1));
        support::wait_until(|| device.counters().pushed == plan.len() as u64);
        drop(stored);
        if is_audit {
            assert_eq!(device.counters().pushed_stored, 0);
            assert!(pages.blocks.lock().unwrap().is_empty());
        } else {
            // The first block of each file is held back until it is read, which shows whether the file is used.
            let held_back = first_of_files(&plan);
            let stored_max = (plan.len() - held_back.len()) as u64;
            support::wait_until(|| device.counters().pushed_stored == stored_max);
            let stored = pages.blocks.lock().unwrap();
            for at in &plan {
                match held_back.contains(at) {
                    true => assert!(!stored.contains_key(at)),
                    false => assert_eq!(stored[at], fake.tree.block(*at)),
                }
            }
            assert!(
                pages.stores.load(Ordering::Relaxed) < plan.len() / 8,
                "runs together"
            );
        }
        device.end(token, true);
        assert_eq!(device.starts()[0].is_exact, is_audit);
    }
}

#[test]
fn a_page_cache_that_takes_nothing_costs_no_block() {
    let tree = Tree::usual();
    let plan = tree.all();
    let fake = Fake::start(tree, support::learned(plan.clone(), false));
    let device = Device::start(settings(&fake)).unwrap();
    let pages = Arc::new(PageCache::default());
    pages.refuses.store(true, Ordering::Relaxed);
    device.set_pages(Some(Arc::clone(&pages) as _));
    let token = device.begin(FileId(1));
    let refused = (plan.len() - first_of_files(&plan).len()) as u64;
    support::wait_until(|| device.counters().pushed_not_stored == refused);
    for at in &plan {
        assert_eq!(
            device.read(Some(token), *at).unwrap()[..],
            *fake.tree.block(*at)
        );
    }
    assert_eq!(device.counters().requests, 0);
}

#[test]
fn a_plan_longer_than_the_stage_waits_or_gives_way() {
    let tree = Tree::usual();
    let plan = tree.all();
    let fake = Fake::start(tree, support::learned(plan.clone(), true));
    let device = Device::start(Settings {
        pool_pages: 8,
        deadline: Duration::from_secs(4),
        ..settings(&fake)
    })
    .unwrap();
    let token = device.begin(FileId(1));
    support::wait_until(|| device.counters().waits_for_room > 0);
    assert!(device.counters().staged <= 8);
    // First in order: arriving blocks are held up until a read makes room. Then from the end: a demanded block comes
    // first.
    for at in plan[..50].iter().chain(plan[50..].iter().rev()) {
        assert_eq!(
            device.read(Some(token), *at).unwrap()[..],
            *fake.tree.block(*at)
        );
        assert!(device.counters().staged <= 8);
    }
    assert!(device.counters().gone_blocks > 0);
}

#[test]
fn a_filled_pool_has_its_pages_before_they_are_needed_and_its_thread_ends_with_the_device() {
    const PAGES: usize = 64;
    let fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
    let start = |pool_is_filled| {
        Device::start(Settings {
            pool_pages: PAGES,
            pool_is_filled,
            ..settings(&fake)
        })
        .unwrap()
    };
    let (plain, filled) = (start(false), start(true));
    let bytes = |device: &Device| device.counters().memory_bytes;
    let pages_bytes = (PAGES * BLOCK_BYTES) as u64;
    support::wait_until(|| bytes(&filled) == bytes(&plain) + pages_bytes);
    read_all(&filled, &fake.tree, &fake.tree.all());
    // It waits for the threads of the device.
    filled.stop();
}

fn survives(reason: Reason, wrong: fn(&mut support::Peer, u32, BlockAt)) {
    support::survives(Tree::usual(), reason, wrong);
}

#[test]
fn a_flipped_byte_is_found() {
    survives(Reason::Hash, |peer, id, at| {
        peer.prove(at);
        let mut block = peer.tree.block(at);
        block[7] ^= 1;
        peer.send_blocks(id, &[at], &[block]);
    });
}

#[test]
fn a_block_of_another_length_is_rejected() {
    survives(Reason::Length, |peer, id, at| {
        peer.prove(at);
        let mut block = peer.tree.block(at);
        block.pop();
        peer.send_blocks(id, &[at], &[block]);
    });
}

#[test]
fn a_block_of_another_file_is_refused() {
    survives(Reason::Place, |peer, id, at| {
        let other = BlockAt {
            file: FileId(3 - at.file.0),
            index: 0,
        };
        peer.prove(other);
        let block = peer.tree.block(other);
        peer.send_blocks(id, &[other], &[block]);
    });
}

#[test]
fn a_block_without_its_hash_list_is_not_taken() {
    survives(Reason::Unproven, |peer, id, at| {
        let block = peer.tree.block(at);
        peer.send_blocks(id, &[at], &[block]);
    });
}

#[test]
fn an_oversized_frame_ends_the_connection() {
    survives(Reason::Frame, |peer, _, _| {
        peer.send_raw(&u32::MAX.to_le_bytes())
    });
}

#[test]
fn a_frame_that_is_cut_off_is_nothing() {
    let told = Mutex::new(0);
    let fake = Fake::start(Tree::usual(), move |peer, request| match request {
        Request::Read { id, at, .. } => {
            let mut told = told.lock().unwrap();
            *told += 1;
            if *told > 2 {
                return Flow::Usual;
            }
            peer.prove(*at);
            let block = peer.tree.block(*at);
            let whole = peer.encode_blocks(*id, &[*at], &[block]);
            peer.send_raw(&whole[..whole.len() / 2]);
            Flow::Close
        }
        _ => Flow::Usual,
    });
    let device = Device::start(settings(&fake)).unwrap();
    read_all(&device, &fake.tree, &fake.tree.all());
}

#[test]
fn unrequested_blocks_are_ignored_and_their_server_is_quarantined() {
    let fake = Fake::start(Tree::usual(), |peer, request| {
        let at = match request {
            Request::Read { at, .. } => Some(*at),
            Request::Fetch { blocks, .. } => blocks.first().copied(),
            _ => None,
        };
        if let Some(at) = at {
            peer.prove(at);
            let block = peer.tree.block(at);
            peer.send_blocks(0, &[at], std::slice::from_ref(&block));
            peer.send_blocks(4_000_000_000, &[at], &[block]);
        }
        Flow::Usual
    });
    let device = Device::start(settings(&fake)).unwrap();
    read_all(&device, &fake.tree, &fake.tree.all()[..40]);
    support::wait_until(|| rejected(&device, Reason::Unrequested) >= 3);
    support::wait_until(|| device.counters().quarantines >= 1);
}

#[test]
fn a_server_that_ends_the_connection_at_every_message_costs_no_block() {
    let blocks = [at(1, 0), at(2, 3), at(1, 60), at(2, 40)];
    for ends_at in 0..12 {
        let count = Mutex::new(0);
        let plan = blocks[..2].to_vec();
        let learned = support::learned(plan, false);
        let fake = Fake::start(Tree::usual(), move |peer, request| {
            let mut count = count.lock().unwrap();
            *count += 1;
            if *count == ends_at + 1 {
                return Flow::Close;
            }
            drop(count);
            learned(peer, request)
        });
        let device = Device::start(settings(&fake)).unwrap();
        let token = device.begin(FileId(1));
        for at in blocks {
            assert_eq!(
                device.read(Some(token), at).unwrap()[..],
                *fake.tree.block(at)
            );
        }
        device.end(token, true);
        fake.wait_for(|seen| seen.iter().any(|r| matches!(r, Request::End { .. })) || ends_at > 4);
    }
}

#[test]
fn a_server_that_is_silent_makes_late_and_nothing_worse() {
    let fake = Fake::start(Tree::usual(), |_, request| match request {
        Request::Read { .. } | Request::Ping { .. } => Flow::Done,
        _ => Flow::Usual,
    });
    let device = Device::start(Settings {
        deadline: Duration::from_millis(300),
        ..settings(&fake)
    })
    .unwrap();
    assert_eq!(device.read(None, at(1, 0)), Err(ReadError::Late));
    let counters = device.counters();
    assert!(counters.requests >= 2, "it is asked again: {counters:?}");
    assert!(counters.connections_dead >= 1);
    assert_eq!((counters.reads_late, counters.reads_late_again), (1, 0));
    // The kernel retries at once, and its program must not wait twice.
    assert_eq!(device.read(None, at(1, 0)), Err(ReadError::Late));
    let again = device.counters();
    assert_eq!((again.reads_late, again.reads_late_again), (2, 1));
    assert_eq!(again.requests, counters.requests, "nothing was asked for");
    // Reads of another block, and of this one later, wait again.
    assert_eq!(device.read(None, at(1, 1)), Err(ReadError::Late));
    assert_eq!(device.counters().reads_late_again, 1);
}

#[test]
fn the_deadline_counts_from_the_request_and_cached_blocks_come_after_it() {
    let fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
    let cache = Arc::new(MemoryCache::default());
    let device = Device::start(Settings {
        cache: Some(Arc::clone(&cache) as _),
        around: false,
        ..settings(&fake)
    })
    .unwrap();
    read_all(&device, &fake.tree, &[at(1, 0)]);
    support::wait_until(|| cache.holds(&fake.tree.block(at(1, 0))));
    let asked = device.counters().requests;
    let long_ago = Instant::now()
        .checked_sub(settings(&fake).deadline)
        .unwrap();
    let late = device.read_since(None, at(2, 9), long_ago).map(drop);
    assert_eq!(late, Err(ReadError::Late));
    assert_eq!(device.counters().requests, asked);
    assert!(device.read_since(None, at(1, 0), long_ago).is_ok());
}

/// The maintenance thread reports what tasks have read, while another thread ends them.
#[test]
fn the_end_of_a_task_does_not_overtake_its_reads() {
    const TASKS: usize = 200;
    let (tell, told) = std::sync::mpsc::channel();
    let fake = Fake::start(Tree::usual(), move |_, request| {
        if matches!(request, Request::Trace { .. }) {
            tell.send(()).ok();
        }
        Flow::Usual
    });
    let cache = Arc::new(MemoryCache::default());
    let device = Device::start(Settings {
        cache: Some(Arc::clone(&cache) as _),
        ..settings(&fake)
    })
    .unwrap();
    let has_exited = |request: &Request| {
        matches!(
            request,
            Request::End {
                has_exited: true,
                ..
            }
        )
    };
    let blocks: Vec<_> = (0..8).map(|index| at(1, index)).collect();
    device.fetch(&blocks, &mut |_, _| {}).unwrap();
    for round in 1..=5 {
        let tokens: Vec<_> = (0..TASKS).map(|_| device.begin(FileId(2))).collect();
        for token in &tokens {
            for at in &blocks {
                device.read(Some(*token), *at).unwrap();
            }
        }
        // The maintenance thread has begun to report these tasks.
        told.recv().unwrap();
        for token in tokens {
            device.end(token, true);
        }
        fake.wait_for(|seen| seen.iter().filter(|r| has_exited(r)).count() == round * TASKS);
        while told.try_recv().is_ok() {}
    }
    let mut read: HashMap<Token, usize> = HashMap::new();
    for request in fake.seen() {
        match request {
            Request::Trace { token, blocks } => *read.entry(token).or_default() += blocks.len(),
            Request::End {
                token,
                has_exited: true,
                ..
            } => assert_eq!(read.remove(&token), Some(blocks.len())),
            _ => {}
        }
    }
    assert!(read.is_empty(), "traces came after the end: {read:?}");
}

#[test]
fn an_unanswered_request_is_followed_by_pings() {
    // Simulates a lost answer: the server sends it only at the fourth `Ping` that follows.
    let waiting = Mutex::new((None, 0));
    let fake = Fake::start(Tree::usual(), move |peer, request| {
        let mut waiting = waiting.lock().unwrap();
        match request {
            Request::Read { id, at, .. } => {
                waiting.0 = Some((*id, *at));
                return Flow::Done;
            }
            Request::Ping { .. } => waiting.1 += 1,
            _ => {}
        }
        if waiting.1 == 4
            && let Some((id, at)) = waiting.0.take()
        {
            peer.prove(at);
            let bytes = peer.tree.block(at);
            peer.send_blocks(id, &[at], &[bytes]);
        }
        Flow::Usual
    });
    let device = Device::start(Settings {
        deadline: Duration::from_secs(30),
        ..settings(&fake)
    })
    .unwrap();
    assert_eq!(
        device.read(None, at(2, 9)).unwrap()[..],
        *fake.tree.block(at(2, 9))
    );
    let counters = device.counters();
    assert_eq!((counters.requests, counters.connections_dead), (1, 0));
}

#[test]
fn a_server_that_is_gone_is_found_again() {
    let mut fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
    let device = Device::start(settings(&fake)).unwrap();
    read_all(&device, &fake.tree, &[at(1, 0)]);
    fake.stop();
    support::wait_until(|| !device.is_connected());
    let waiting = {
        let device = device.clone();
        std::thread::spawn(move || device.read(None, at(2, 50)))
    };
    fake.again();
    assert_eq!(
        waiting.join().unwrap().unwrap()[..],
        *fake.tree.block(at(2, 50))
    );
}

#[test]
fn a_refusal_fails_this_read_alone() {
    let told = Mutex::new(false);
    let fake = Fake::start(Tree::usual(), move |peer, request| match request {
        Request::Read { id, .. } if !std::mem::replace(&mut *told.lock().unwrap(), true) => {
            peer.send(&Answer::Refused {
                id: *id,
                token: None,
                reason: Refusal::Damaged,
            });
            Flow::Done
        }
        _ => Flow::Usual,
    });
    let device = Device::start(settings(&fake)).unwrap();
    assert_eq!(device.read(None, at(1, 0)), Err(ReadError::Damaged));
    read_all(&device, &fake.tree, &[at(1, 0)]);
}

#[test]
fn many_readers_of_one_block_share_a_request() {
    let fake = Fake::start(Tree::usual(), |_, request| {
        if matches!(request, Request::Read { .. }) {
            std::thread::sleep(Duration::from_millis(50));
        }
        Flow::Usual
    });
    let device = Device::start(settings(&fake)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let bytes = device.read(None, at(2, 9)).unwrap();
                assert_eq!(bytes[..], *fake.tree.block(at(2, 9)));
            });
        }
    });
    let asked = fake.seen();
    let asked = asked.iter().filter(|r| matches!(r, Request::Read { .. }));
    assert_eq!(asked.count(), 1);
}

#[test]
fn several_connections_share_the_requests() {
    let fake = Fake::start(Tree::usual(), |_, request| {
        if matches!(request, Request::Read { .. }) {
            std::thread::sleep(Duration::from_millis(2));
        }
        Flow::Usual
    });
    let device = Device::start(Settings {
        connections: 2,
        around: false,
        ..settings(&fake)
    })
    .unwrap();
    support::wait_until(|| device.counters().connected == 2);
    let all = fake.tree.all();
    std::thread::scope(|scope| {
        for part in all.chunks(all.len().div_ceil(4)) {
            scope.spawn(|| read_all(&device, &fake.tree, part));
        }
    });
    let reads = fake.reads_of_connections();
    assert_eq!(reads.len(), 2);
    assert!(reads.iter().all(|reads| *reads > 10), "{reads:?}");
}

#[test]
fn short_connections_are_made_for_each_demand() {
    let fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
    let device = Device::start(Settings {
        is_persistent: false,
        around: false,
        ..settings(&fake)
    })
    .unwrap();
    read_all(&device, &fake.tree, &fake.tree.all()[..10]);
    // A connection may also serve the next demand before its end is noticed.
    let connects = device.counters().connects;
    assert!(connects > 5, "{connects}");
}

#[test]
fn blocks_that_are_wanted_together_are_asked_for_together() {
    let fake = Fake::start(Tree::usual(), |_, _| Flow::Usual);
    let device = Device::start(settings(&fake)).unwrap();
    let blocks: Vec<BlockAt> = (20..44).map(|index| at(1, index)).collect();
    device.want(None, &blocks);
    read_all(&device, &fake.tree, &blocks);
    let asked = fake.seen();
    let asked = asked.iter().filter(|r| matches!(r, Request::Read { .. }));
    // One request for each run of 32 blocks; more only if the machine is so loaded that a reader retries.
    assert!(asked.count() < blocks.len() / 4);
}
