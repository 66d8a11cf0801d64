//! A device against a scripted server: correct and wrong groups of hashes, and refused tokens.

use crate::common;
use crate::device_support as support;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use stream::device::{Cache, Device, Reason, Settings};
use stream::group::{GROUP_BLOCKS, Group, GroupAt};
use stream::wire::{Answer, Refusal, Request};
use stream::{BLOCK_BYTES, BlockAt, BlockHash, FileId, Token};
use support::{Fake, Flow, MemoryCache, Peer, Tree, at, read_all, settings, survives};

/// A file of four groups, and one of two.
fn long() -> Tree {
    Tree::of(vec![
        common::bytes(800 * BLOCK_BYTES + 100, 1),
        common::bytes(300 * BLOCK_BYTES, 2),
    ])
}

/// Sends a block with a changed byte, and its group with the matching hash; `change` makes the group look correct.
fn lie(peer: &mut Peer, id: u32, at: BlockAt, change: fn(&Tree, &mut GroupAt, &mut Group)) {
    let mut block = peer.tree.block(at);
    block[0] ^= 1;
    let mut place = GroupAt::from(at);
    let mut group = peer.tree.group(place);
    group.hashes[(at.index % GROUP_BLOCKS) as usize] = BlockHash::of(&block);
    change(&peer.tree, &mut place, &mut group);
    peer.send(&Answer::Group { at: place, group });
    peer.send_blocks(id, &[at], &[block]);
}

#[test]
fn a_hash_that_is_not_proven_is_found() {
    survives(long(), Reason::Hashes, |peer, id, at| {
        lie(peer, id, at, |_, _, _| {});
    });
}

#[test]
fn a_proof_that_is_longer_or_shorter_is_found() {
    survives(long(), Reason::Hashes, |peer, id, at| {
        lie(peer, id, at, |_, _, group| {
            let longer = group.proof.iter().chain(&[[7; 32]]);
            group.proof = longer.copied().collect();
        });
    });
    survives(long(), Reason::Hashes, |peer, id, at| {
        lie(peer, id, at, |_, _, group| group.proof = Box::default());
    });
}

#[test]
fn a_right_group_in_another_place_is_found() {
    survives(long(), Reason::Hashes, |peer, id, at| {
        lie(peer, id, at, |tree, place, group| {
            *group = tree.group(GroupAt {
                group: place.group ^ 1,
                ..*place
            });
        });
    });
    survives(long(), Reason::Hashes, |peer, id, at| {
        lie(peer, id, at, |tree, place, group| {
            let file = FileId(3 - place.file.0);
            *group = tree.group(GroupAt { file, group: 0 });
        });
    });
}

#[test]
fn a_group_that_the_file_does_not_have_is_found() {
    for number in [4, 1 << 20, u32::MAX] {
        static NUMBER: Mutex<u32> = Mutex::new(0);
        *NUMBER.lock().unwrap() = number;
        survives(long(), Reason::Hashes, |peer, id, at| {
            lie(peer, id, at, |_, place, _| {
                place.group = *NUMBER.lock().unwrap();
            });
        });
    }
}

#[test]
fn too_few_or_too_many_hashes_are_found() {
    survives(long(), Reason::Hashes, |peer, id, at| {
        lie(peer, id, at, |_, _, group| {
            group.hashes = group.hashes[1..].into();
        });
    });
    survives(long(), Reason::Hashes, |peer, id, at| {
        let group = peer.tree.group(GroupAt {
            file: FileId(1),
            group: 3,
        });
        // The last group of a file, with one more hash behind its end.
        let hashes = group.hashes.iter().chain(&group.hashes[..1]);
        let group = Group {
            hashes: hashes.copied().collect(),
            ..group
        };
        let place = GroupAt {
            file: FileId(1),
            group: 3,
        };
        peer.send(&Answer::Group { at: place, group });
        peer.prove(at);
        let block = peer.tree.block(at);
        peer.send_blocks(id, &[at], &[block]);
    });
}

#[test]
fn hashes_of_no_file_are_refused() {
    survives(long(), Reason::Place, |peer, id, at| {
        lie(peer, id, at, |_, place, _| place.file = FileId(4_000));
    });
}

#[test]
fn a_group_is_asked_for_alone_and_kept_alone() {
    let mut fake = Fake::start(long(), |_, _| Flow::Usual);
    let cache = Arc::new(MemoryCache::default());
    let with_cache = Settings {
        cache: Some(Arc::clone(&cache) as _),
        around: false,
        ..settings(&fake)
    };
    let device = Device::start(with_cache.clone()).unwrap();
    let read = [at(1, 3), at(1, 790), at(1, 800), at(2, 256)];
    read_all(&device, &fake.tree, &read);
    let content = device.manifest().file(FileId(1)).unwrap().1;
    let is_kept = |group: u32| cache.has_note(&format!("hashes-{content}-{group}"));
    support::wait_until(|| is_kept(0) && is_kept(3));
    support::wait_until(|| cache.has_note("hashes-") && !is_kept(1));
    assert!(!is_kept(1) && !is_kept(2));
    device.stop();
    fake.stop();
    // Reads from the cache without a server, with these groups.
    let device = Device::start(with_cache).unwrap();
    read_all(&device, &fake.tree, &read);
    assert_eq!(device.counters().requests, 0);
    assert!(!device.is_cached(at(1, 300)));
    // Cached groups are verified like those from a server.
    let name = format!("hashes-{content}-3");
    let mut note = cache.note(&name).unwrap();
    note[7] ^= 1;
    cache.set_note(&name, &note).unwrap();
    device.stop();
    let device = Device::start(Settings {
        cache: Some(cache as _),
        ..settings(&fake)
    })
    .unwrap();
    assert!(device.is_cached(at(1, 3)) && !device.is_cached(at(1, 790)));
}

/// Returns the tokens that these requests name.
fn named(requests: &[Request]) -> Vec<Token> {
    let name = |request: &Request| match request {
        Request::Read { token, .. } => *token,
        Request::Trace { token, .. } | Request::End { token, .. } => Some(*token),
        _ => None,
    };
    requests.iter().filter_map(name).collect()
}

#[test]
fn a_token_that_was_refused_is_not_named_again() {
    // The first token is refused at its begin, the second one at a read, like by a server that has forgotten it. A
    // third one is known.
    let begun = Mutex::new(Vec::new());
    let fake = Fake::start(Tree::usual(), move |peer, request| {
        let mut begun = begun.lock().unwrap();
        let mut refuse = |token, reason| {
            peer.send(&Answer::Refused {
                id: 0,
                token: Some(token),
                reason,
            });
        };
        match request {
            Request::Begin { token, .. } => {
                begun.push(*token);
                if begun.len() == 1 {
                    refuse(*token, Refusal::Limit);
                    return Flow::Done;
                }
            }
            Request::Read {
                token: Some(token), ..
            } if begun.get(2) != Some(token) => refuse(*token, Refusal::NoSuchToken),
            _ => {}
        }
        Flow::Usual
    });
    let device = Device::start(Settings {
        around: false,
        ..settings(&fake)
    })
    .unwrap();
    let run = |first: u32| {
        let token = device.begin(FileId(1));
        let before = fake.seen().len();
        for index in first..first + 15 {
            let bytes = device.read(Some(token), at(1, index)).unwrap();
            assert_eq!(bytes[..], *fake.tree.block(at(1, index)));
        }
        device.end(token, true);
        support::wait_until(|| fake.seen().len() >= before + 15);
        fake.seen()[before..].to_vec()
    };
    let refused_at_begin = named(&run(0));
    // A request that was in flight during the refusal may name it once.
    assert!(refused_at_begin.len() <= 1, "{refused_at_begin:?}");
    let refused_at_read = named(&run(20));
    assert!(
        (1..=2).contains(&refused_at_read.len()),
        "{refused_at_read:?}"
    );
    run(40);
    fake.wait_for(|seen| matches!(seen.last(), Some(Request::End { .. })));
    let known = named(&fake.seen());
    let tokens: HashSet<Token> = known.iter().copied().collect();
    assert_eq!(
        known.len() - refused_at_begin.len() - refused_at_read.len(),
        17
    );
    assert!(tokens.len() <= 3);
    assert_eq!(
        device.counters().refused,
        1 + refused_at_read.len() as u64 + refused_at_begin.len() as u64
    );
}
