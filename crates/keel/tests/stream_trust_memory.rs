//! A mount in a group with less memory than the size of its program.

use crate::common::TempDir;
use crate::common::group::Group;
use crate::stream_common::{
    Mount, Server, cannot_mount, is_whole, longer, publish, runs_well, tree_of, wait_learned,
};

/// Memory of the group in MiB, unless `KEEL_STREAM_MEMORY_MEBIBYTES` is set; the program's table is 50 % larger.
const MEBIBYTES: u64 = 32;

#[test]
fn a_mount_with_less_memory_than_its_program_has_bytes_serves_it_whole() {
    if cannot_mount() {
        return;
    }
    let mebibytes = longer("KEEL_STREAM_MEMORY_MEBIBYTES", MEBIBYTES);
    let Some(group) = Group::with(mebibytes << 20) else {
        return;
    };
    let dir = TempDir::new();
    let blocks = (mebibytes as usize) * 384;
    tree_of(&dir, blocks);
    let store = publish(&dir);
    let server = Server::start(&store, &[]);
    let all = format!("0-{}", blocks - 1);
    // The second run prefetches what the first one requested.
    for number in 0..2 {
        let mut mount = Mount::start(&dir, &format!("at{number}"), server.address, &[]);
        group.take(mount.id());
        runs_well(&dir, &mount, &[&all]);
        is_whole(&dir, &mount);
        assert_eq!(mount.count("reads_failed"), 0);
        if number == 1 {
            let pushed = mount.count("pushed");
            assert!(pushed as usize > blocks / 2, "{pushed} of {blocks}");
            assert!(group.limit_met() > 0, "the limit was never met");
        }
        assert_eq!(mount.end(libc::SIGTERM), Some(0));
        drop(mount);
        wait_learned(&store, 1);
    }
}
