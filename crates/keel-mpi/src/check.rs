//! Checks that messages arrive whole, before any timing: a benchmark of messages that do not arrive measures nothing.

use crate::loops::{Buffers, Part, TAG, repeat, share};
use crate::world::World;
use cluster::measure::pattern::{addend, fill, wrong_at, wrong_sum_at};
use cluster::results::Benchmark;
use mpi::Rank;
use mpi::traits::{Communicator, Destination, Source};

/// The number of repetitions of each operation. More than one, so that a late message is not taken for the next one.
const TIMES: u64 = 2;

/// Runs the operation on known messages, and checks what has arrived.
///
/// # Errors
/// The error of this rank, in one line.
pub(crate) fn check(
    world: &World<'_>,
    buffers: &mut Buffers,
    benchmark: Benchmark,
    bytes: usize,
) -> Result<(), String> {
    let (rank, ranks) = (world.rank, world.ranks);
    let part = world.part();
    let other = if part == Part::First { ranks - 1 } else { 0 };
    let length = match benchmark {
        Benchmark::Alltoall => share(bytes, ranks) * ranks as usize,
        _ => bytes,
    };
    // No data of an earlier case may look like a result.
    buffers.received[..length].fill(0x55);
    buffers.sums[..bytes / 4].fill(-1);
    match benchmark {
        Benchmark::Alltoall => {
            for (to, message) in (0..).zip(buffers.sent[..length].chunks_mut(share(bytes, ranks))) {
                fill(message, rank, to);
            }
        }
        _ => fill(&mut buffers.sent[..length], rank, other),
    }
    for (at, place) in buffers.addends[..bytes / 4].iter_mut().enumerate() {
        *place = addend(rank, at);
    }
    repeat(world, buffers, benchmark, bytes, TIMES);
    let said = |wrong: Option<usize>| match wrong {
        Some(at) => Err(format!(
            "{} of {bytes} bytes: the byte at {at} is not what was sent",
            benchmark.name()
        )),
        None => Ok(()),
    };
    let received = &buffers.received[..length];
    let sum = || match wrong_sum_at(&buffers.sums[..bytes / 4], ranks) {
        Some(at) => Err(format!(
            "{} of {bytes} bytes: the sum at {at} is wrong",
            benchmark.name()
        )),
        None => Ok(()),
    };
    match (benchmark, part) {
        (Benchmark::Bandwidth | Benchmark::Latency, Part::Last) => {
            said(wrong_at(received, 0, ranks - 1))
        }
        // The echo equals what was sent; the last rank has sent it back unchanged.
        (Benchmark::Roundtrip, Part::First) => said(wrong_at(received, 0, ranks - 1)),
        (Benchmark::Roundtrip, Part::Last) => said(wrong_at(received, 0, ranks - 1)),
        (Benchmark::Bibandwidth, Part::First | Part::Last) => said(wrong_at(received, other, rank)),
        (Benchmark::Broadcast, Part::Last | Part::Other) => said(wrong_at(received, 0, ranks - 1)),
        (Benchmark::Reduce, Part::First) => sum(),
        (Benchmark::Allreduce, _) => sum(),
        (Benchmark::Alltoall, _) => {
            let parts = (0..).zip(received.chunks(share(bytes, ranks)));
            let wrong = parts
                .map(|(from, part)| (from, wrong_at(part, from, rank)))
                .find_map(|(from, wrong)| Some((from, wrong?)));
            match wrong {
                Some((from, at)) => Err(format!(
                    "{} of {bytes} bytes: of what rank {from} has sent, the byte at {at} is wrong",
                    benchmark.name()
                )),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// One empty round between the first and the last rank, so that the connection exists before the timing.
pub(crate) fn connect(world: &World<'_>) {
    let mut word = [0_u8; 4];
    match world.part() {
        Part::First => {
            let last = world.all.process_at_rank(world.ranks as Rank - 1);
            last.send_with_tag(&word[..], TAG);
            last.receive_into_with_tag(&mut word[..], TAG);
        }
        Part::Last => {
            let first = world.all.process_at_rank(0);
            first.receive_into_with_tag(&mut word[..], TAG);
            first.send_with_tag(&word[..], TAG);
        }
        Part::Other => {}
    }
}
