//! A line that loses packets: programs get the published content, but later. Each run has its own network, which
//! disappears with its last process.

use crate::common::TempDir;
use crate::common::namespace::{disturbed, in_own_network, lose};
use crate::stream_common::{Mount, Server, cannot_mount, is_whole, publish, runs_well, tree};

/// Packet loss, in packets per 100,000.
const LOST: [u32; 4] = [1, 100, 1_000, 5_000];

#[test]
fn packets_that_a_line_loses_come_later_and_whole() {
    if cannot_mount() {
        return;
    }
    let dir = TempDir::new();
    tree(&dir);
    let store = publish(&dir);
    let ran = in_own_network(|| {
        let server = Server::start(&store, &[]);
        for packets in LOST {
            lose(packets).unwrap();
            let at = format!("at{packets}");
            let mount = Mount::start(&dir, &at, server.address, &[]);
            runs_well(&dir, &mount, &["20-60", "300-340"]);
            is_whole(&dir, &mount);
            let lost = disturbed();
            println!("{packets} of 100,000: {lost} lost");
            assert!(packets < 5_000 || lost > 0, "nothing was lost");
            drop(mount);
        }
        lose(0).unwrap();
        server.end();
    });
    if let Err(reason) = ran {
        println!("skipped: {reason}");
    }
}
