//! A device under the store of a node begins to answer EIO, at random moments and to random kinds of requests. The node
//! reports that its log has failed, and acknowledges nothing more. A start after the end of the fault finds everything
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
    let (mut failures, mut starts) = ([0, 0], 0);
    let mut rounds = Rounds::of(4);
    while rounds.more() {
        rounds.pause(400);
        // A command fails, or prints what is in memory.
        card.set(Fault::Reads);
        node.run(&["history", load::LINES]);
        card.set(Fault::None);
        rounds.pause(200);
        let kind = rounds.random.below(2) as usize;
        let fault = [Fault::Writes, Fault::Flushes][kind];
        card.set(fault);
        wait_until("the failure of the log", || {
            load::status(&node)["log"]["failed"] == "device"
        });
        assert_eq!(load::status(&node)["state"], "failed");
        failures[kind] += 1;
        if rounds.random.below(2) == 0 {
            // A node that starts in the middle of it may fail to, and loses nothing by trying.
            starts += 1;
            node.kill();
            node.spawn();
            wait_until("a start, or its failure", || {
                node.has_ended() || node.is_ready()
            });
            rounds.pause(100);
        }
        card.set(Fault::None);
        node.kill();
        node.restart();
    }
    // A last life without a fault, so that each source can finish.
    rounds.pause(400);
    let sent = load.end();
    load::judge(&mut node, &sent, image.to_str().unwrap(), 0);
    println!(
        "{failures:?} failures of writes and of flushes, {starts} starts in the middle of one"
    );
}
