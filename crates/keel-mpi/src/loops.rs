//! The eight loops of the suite, each as in the original: how rank 0, the last rank and the ranks between repeat an
//! operation. `peer/loops.c` is the same in C.

use crate::exchange::exchange;
use crate::world::World;
use cluster::measure::BYTES_MAX;
use cluster::results::Benchmark;
use mpi::Rank;
use mpi::collective::SystemOperation;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Root, Source};
use std::time::Instant;

/// Tag of messages.
pub(crate) const TAG: i32 = 1;

/// Tag of the last rank's confirmation that it has received everything.
pub(crate) const TAG_DONE: i32 = 2;

/// Size of that confirmation, in bytes.
const DONE_BYTES: usize = 4;

/// Buffers for messages, as long as the longest message of the plan.
pub(crate) struct Buffers {
    pub(crate) sent: Vec<u8>,
    pub(crate) received: Vec<u8>,
    pub(crate) addends: Vec<i32>,
    pub(crate) sums: Vec<i32>,
}

impl Buffers {
    /// Buffers for messages of at most `bytes_max` bytes on `ranks` ranks.
    pub(crate) fn new(bytes_max: u64, ranks: u32) -> Self {
        let bytes = bytes_max.min(BYTES_MAX) as usize;
        // All-to-all sends at least one byte to each.
        let length = bytes.max(ranks as usize);
        Self {
            sent: vec![0; length],
            received: vec![0; length],
            addends: vec![0; bytes / 4],
            sums: vec![0; bytes / 4],
        }
    }
}

/// The part of a rank in a benchmark between two ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Rank 0.
    First,
    /// The last rank.
    Last,
    /// A rank that only waits.
    Other,
}

impl World<'_> {
    pub(crate) fn part(&self) -> Part {
        match self.rank {
            0 => Part::First,
            rank if rank + 1 == self.ranks => Part::Last,
            _ => Part::Other,
        }
    }
}

/// The number of bytes for each rank, if all ranks together have `bytes`.
pub(crate) fn share(bytes: usize, ranks: u32) -> usize {
    (bytes / ranks as usize).max(1)
}

/// Repeats an operation. Returns this rank's time in nanoseconds, or 0 if its time does not count.
pub(crate) fn repeat(
    world: &World<'_>,
    buffers: &mut Buffers,
    benchmark: Benchmark,
    bytes: usize,
    times: u64,
) -> f64 {
    let all = world.all;
    let part = world.part();
    if benchmark.is_between_two() && part == Part::Other {
        return 0.0;
    }
    let first = all.process_at_rank(0);
    let last = all.process_at_rank(world.ranks as Rank - 1);
    let sent = &buffers.sent[..bytes];
    let received = &mut buffers.received[..bytes];
    let begun = Instant::now();
    match (benchmark, part) {
        (Benchmark::Bandwidth, Part::First) => {
            for _ in 0..times {
                last.send_with_tag(sent, TAG);
            }
            let mut done = [0_u8; DONE_BYTES];
            last.receive_into_with_tag(&mut done[..], TAG_DONE);
        }
        (Benchmark::Bandwidth, _) => {
            for _ in 0..times {
                first.receive_into_with_tag(received, TAG);
            }
            first.send_with_tag(&[1_u8; DONE_BYTES][..], TAG_DONE);
        }
        (Benchmark::Bibandwidth, _) => {
            let other = if part == Part::First {
                world.ranks as Rank - 1
            } else {
                0
            };
            for _ in 0..times {
                exchange(all, other, TAG, sent, received);
            }
        }
        (Benchmark::Roundtrip, Part::First) => {
            for _ in 0..times {
                last.send_with_tag(sent, TAG);
                last.receive_into_with_tag(received, TAG);
            }
        }
        (Benchmark::Roundtrip, _) => {
            for _ in 0..times {
                first.receive_into_with_tag(received, TAG);
                first.send_with_tag(received, TAG);
            }
        }
        (Benchmark::Latency, Part::First) => {
            for _ in 0..times {
                last.send_with_tag(sent, TAG);
            }
        }
        (Benchmark::Latency, _) => {
            for _ in 0..times {
                first.receive_into_with_tag(received, TAG);
            }
            // Only the sender's time until its call returns is measured.
            return 0.0;
        }
        (Benchmark::Broadcast, _) => {
            // In place: a rank sends on what it receives.
            let message = if part == Part::First {
                &mut buffers.sent[..bytes]
            } else {
                received
            };
            for _ in 0..times {
                first.broadcast_into(message);
            }
        }
        (Benchmark::Reduce, _) => {
            let addends = &buffers.addends[..bytes / 4];
            let sums = &mut buffers.sums[..bytes / 4];
            for _ in 0..times {
                if part == Part::First {
                    first.reduce_into_root(addends, sums, SystemOperation::sum());
                } else {
                    first.reduce_into(addends, SystemOperation::sum());
                }
            }
        }
        (Benchmark::Allreduce, _) => {
            let addends = &buffers.addends[..bytes / 4];
            let sums = &mut buffers.sums[..bytes / 4];
            for _ in 0..times {
                all.all_reduce_into(addends, sums, SystemOperation::sum());
            }
        }
        (Benchmark::Alltoall, _) => {
            let length = share(bytes, world.ranks) * world.ranks as usize;
            let (sent, received) = (&buffers.sent[..length], &mut buffers.received[..length]);
            for _ in 0..times {
                all.all_to_all_into(sent, received);
            }
        }
    }
    begun.elapsed().as_nanos() as f64
}
