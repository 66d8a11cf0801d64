//! A job's rank on MPI: the five operations that jobs need, with the library's own functions. `cluster::jobs` defines
//! what a job is and what a rank reports.

use crate::end::{ORDERLY_END, STATUS_FAILURE, STATUS_LATE, end_after};
use cluster::jobs::communicator::{Communicator, Failure, LENGTH_MAX, check_parts};
use cluster::jobs::worker::{self, Board, Options};
use mpi::collective::SystemOperation;
use mpi::datatype::{Partition, PartitionMut};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator as _, CommunicatorCollectives, Destination, Root, Source};
use std::process::ExitCode;
use std::time::Duration;

/// Exit status of a rank whose output no process reads any more.
const STATUS_ALONE: i32 = 4;

/// Tag of the message with which rank 0 reports that it has nothing more to do.
const TAG_END: i32 = 3;

/// Poll interval of the other ranks for that message.
const END_LOOK: Duration = Duration::from_millis(5);

/// The value that a rank sends instead of a length if it has no data.
const NOTHING: i64 = -1;

/// One rank from its beginning to its end.
pub(crate) fn run(options: &Options) -> ExitCode {
    // The launcher usually ends the ranks earlier; on a disconnected board only this timer does.
    end_after(Duration::from_secs(options.seconds_max), STATUS_LATE);
    // The thread that reports for the rank never calls MPI.
    let Some((universe, _)) = mpi::initialize_with_threading(mpi::Threading::Funneled) else {
        eprintln!("keel-mpi: MPI was begun already");
        return ExitCode::FAILURE;
    };
    let mut ranks = Ranks {
        all: universe.world(),
    };
    let is_done = worker::run(
        &mut ranks,
        &Board::here(),
        options,
        std::io::stdin(),
        std::io::stdout(),
        || std::process::exit(STATUS_ALONE),
    );
    if is_done || ranks.rank() == 0 {
        ranks.end_together();
    }
    // If one rank has failed, others may still wait for it in a call that it will not make: MPI's orderly end never
    // comes then. With more ranks than cores, MPICH's orderly end can also take minutes.
    end_after(ORDERLY_END, if is_done { 0 } else { STATUS_FAILURE });
    drop(ranks);
    drop(universe);
    if is_done {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Ranks that MPI connects. A lost rank is not an error here: MPI ends the other ranks, too.
struct Ranks {
    all: SimpleCommunicator,
}

impl Ranks {
    /// Waits until rank 0 has compared the answer with its own. During MPI's end, ranks poll: they would take cores
    /// from rank 0 on a shared board, and energy on other boards.
    fn end_together(&self) {
        let nothing: [u8; 0] = [];
        if self.all.rank() == 0 {
            for rank in 1..self.all.size() {
                self.all
                    .process_at_rank(rank)
                    .send_with_tag(&nothing[..], TAG_END);
            }
            return;
        }
        let first = self.all.process_at_rank(0);
        while first.immediate_probe_with_tag(TAG_END).is_none() {
            std::thread::sleep(END_LOOK);
        }
        let mut nothing = nothing;
        first.receive_into_with_tag(&mut nothing[..], TAG_END);
    }

    /// The lengths from rank 0, one for each rank, on every rank.
    fn lengths_of_first(&self, mine: Option<&[Vec<f64>]>) -> Vec<i64> {
        let mut lengths = vec![NOTHING; self.size()];
        if let Some(parts) = mine {
            for (length, part) in lengths.iter_mut().zip(parts) {
                *length = part.len() as i64;
            }
        }
        self.all.process_at_rank(0).broadcast_into(&mut lengths[..]);
        lengths
    }
}

/// Counts and offsets of consecutive parts; MPI's counts have 31 bits.
fn places(lengths: &[i64]) -> Result<(Vec<i32>, Vec<i32>), Failure> {
    let mut total = 0_i64;
    let mut counts = Vec::with_capacity(lengths.len());
    let mut places = Vec::with_capacity(lengths.len());
    for (rank, &length) in lengths.iter().enumerate() {
        if !(0..=LENGTH_MAX as i64).contains(&length) {
            return Err(Failure::of(
                rank,
                format!("has nothing to send, or more than {LENGTH_MAX} numbers"),
            ));
        }
        places.push(total as i32);
        counts.push(length as i32);
        total += length;
        if total > i64::from(i32::MAX) {
            return Err(Failure {
                rank: None,
                why: "the parts together are too long for a message".to_owned(),
            });
        }
    }
    Ok((counts, places))
}

impl Communicator for Ranks {
    fn rank(&self) -> usize {
        self.all.rank() as usize
    }

    fn size(&self) -> usize {
        self.all.size() as usize
    }

    fn scatter(&mut self, parts: Option<Vec<Vec<f64>>>) -> Result<Vec<f64>, Failure> {
        let first = self.all.process_at_rank(0);
        if self.rank() > 0 {
            let lengths = self.lengths_of_first(None);
            let (counts, _) = places(&lengths).map_err(|failure| Failure {
                rank: Some(0),
                ..failure
            })?;
            let mut mine = vec![0.0; counts[self.rank()] as usize];
            first.scatter_varcount_into(&mut mine[..]);
            return Ok(mine);
        }
        let parts = check_parts(parts, self.size());
        // The lengths tell the other ranks if there is no data.
        let lengths = self.lengths_of_first(parts.as_deref().ok());
        let parts = parts?;
        let (counts, places) = places(&lengths).map_err(|failure| Failure {
            rank: Some(0),
            ..failure
        })?;
        let together: Vec<f64> = parts.concat();
        let mut mine = vec![0.0; counts[0] as usize];
        first.scatter_varcount_into_root(
            &Partition::new(&together[..], &counts[..], &places[..]),
            &mut mine[..],
        );
        Ok(mine)
    }

    fn gather(&mut self, part: &[f64]) -> Result<Option<Vec<Vec<f64>>>, Failure> {
        let mut lengths = vec![0_i64; self.size()];
        self.all
            .all_gather_into(&(part.len() as i64), &mut lengths[..]);
        let (counts, places) = places(&lengths)?;
        let first = self.all.process_at_rank(0);
        if self.rank() > 0 {
            first.gather_varcount_into(part);
            return Ok(None);
        }
        let total: usize = counts.iter().map(|&count| count as usize).sum();
        let mut together = vec![0.0; total];
        first.gather_varcount_into_root(
            part,
            &mut PartitionMut::new(&mut together[..], &counts[..], &places[..]),
        );
        let parts = places.iter().zip(&counts).map(|(&place, &count)| {
            let place = place as usize;
            together[place..place + count as usize].to_vec()
        });
        Ok(Some(parts.collect()))
    }

    fn broadcast(&mut self, values: &mut Vec<f64>) -> Result<(), Failure> {
        let first = self.all.process_at_rank(0);
        let mut length = values.len() as i64;
        first.broadcast_into(&mut length);
        places(&[length])?;
        values.resize(length as usize, 0.0);
        first.broadcast_into(&mut values[..]);
        Ok(())
    }

    fn all_reduce_sum(&mut self, values: &mut [i64]) -> Result<(), Failure> {
        let mine = values.to_vec();
        self.all
            .all_reduce_into(&mine[..], values, SystemOperation::sum());
        Ok(())
    }

    fn all_reduce_max(&mut self, values: &mut [f64]) -> Result<(), Failure> {
        let mine = values.to_vec();
        self.all
            .all_reduce_into(&mine[..], values, SystemOperation::max());
        Ok(())
    }
}
