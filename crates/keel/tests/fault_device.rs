//! A device under the store of a node begins to answer EIO, at random moments and to each kind of request.
//!
//! What was written since the last flush is gone if the next one fails. The node reports that its log has failed. It
//! acknowledges nothing more, also when the device works again. A start after the end of the fault finds everything
//! that was acknowledged.

use crate::common::TempDir;
use crate::common::card::{Card, Fault, IMAGE};
use crate::common::load::{self, Load, Rounds};
use crate::common::namespace::in_own_mounts;
use crate::common::node::Node;
use crate::common::wait_until;
use crate::stream_common::cannot_mount;

#[test]
fn a_device_that_answers_eio_costs_no_acknowledged_reading() {
    if cannot_mount() {
        return;
    }
    if let Err(reason) = in_own_mounts(run) {
        println!("skipped: {reason}");
    }
}

fn run() {
    let dir = TempDir::new();
    let (folder, content) = (dir.file("card"), dir.file("content"));
    std::fs::create_dir(&folder).unwrap();
    let image = folder.join(IMAGE);
    let store = format!("image = \"{}\"\ncreate_mebibytes = 16\n", image.display());
    // The store is made in an ordinary file, which then moves behind the card.
    let mut node = Node::start(&load::config(&store, None));
    assert!(node.stop().success());
    std::fs::rename(&image, &content).unwrap();
    let card = Card::mount(&folder, &content);
    node.restart();
    let load = Load::start(&node);
    let mut rounds = Rounds::of(4);
    // Four rounds have each kind of failure twice: the node is started again before the end of the fault, and after it.
    let mut drawn = rounds.random.below(4);
    while rounds.more() {
        rounds.pause(400);
        // A command fails, or prints what is in memory.
        card.set(Fault::Reads);
        node.run(&["history", load::LINES]);
        card.set(Fault::None);
        rounds.pause(200);
        card.set([Fault::Writes, Fault::Flushes][(drawn % 2) as usize]);
        wait_until("the failure of the log", || {
            load::status(&node)["log"]["failed"] == "device"
        });
        assert_eq!(load::status(&node)["state"], "failed");
        if (drawn / 2).is_multiple_of(2) {
            load.require_no_acknowledgement();
            try_start(&mut node);
            rounds.pause(100);
        } else {
            card.set(Fault::None);
            load.require_no_acknowledgement();
        }
        node.kill();
        // A node that cannot read its store does not make another one.
        card.set(Fault::Reads);
        node.spawn();
        assert!(!node.ended().success());
        card.set(Fault::None);
        node.restart();
        drawn += 1;
    }
    // A last life without a fault, so that each source can finish.
    rounds.pause(400);
    let sent = load.end();
    load::judge(&mut node, &sent, image.to_str().unwrap(), 0);
    let failed = [Fault::Writes, Fault::Flushes, Fault::Reads].map(|fault| card.failed(fault));
    let taken_back = card.taken_back();
    println!(
        "{failed:?} writes, flushes and reads have failed; {taken_back} writes were taken back"
    );
    assert!(!failed.contains(&0) && taken_back > 0);
}

/// Starts a node again in the middle of a fault. It may fail to start, and loses nothing by trying.
fn try_start(node: &mut Node) {
    node.kill();
    node.spawn();
    wait_until("a start, or its failure", || {
        node.has_ended() || node.is_ready()
    });
}
