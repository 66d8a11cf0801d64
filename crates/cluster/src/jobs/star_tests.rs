use super::*;
use std::thread;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// Runs the same work on every rank; returns the results in the order of ranks.
fn on_each<T: Send>(size: usize, work: impl Fn(&mut Star) -> T + Sync) -> Vec<T> {
    let ranks = star(size, PATIENCE).expect("sockets");
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|mut rank| scope.spawn(move || work(&mut rank)))
            .collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        ended.collect()
    })
}

#[test]
fn each_operation_has_its_defined_result_on_one_to_six_ranks() {
    for size in 1..=6 {
        let results = on_each(size, |star| {
            let rank = star.rank();
            let parts =
                (rank == 0).then(|| (0..size).map(|part| vec![part as f64; part]).collect());
            let part = star.scatter(parts)?;
            let gathered = star.gather(&part)?;
            let mut sent = if rank == 0 {
                vec![7.0, f64::NEG_INFINITY]
            } else {
                vec![1.0]
            };
            star.broadcast(&mut sent)?;
            let mut sums = [rank as i64, -1, if rank == 0 { i64::MIN } else { 0 }];
            star.all_reduce_sum(&mut sums)?;
            let mut greatest = [rank as f64, -(rank as f64), f64::NEG_INFINITY];
            star.all_reduce_max(&mut greatest)?;
            Ok::<_, Failure>((part, gathered, sent, sums, greatest))
        });
        for (rank, result) in results.into_iter().enumerate() {
            let (part, gathered, sent, sums, greatest) = result.expect("all are there");
            assert_eq!(part, vec![rank as f64; rank]);
            assert_eq!(gathered.is_some(), rank == 0);
            if let Some(parts) = gathered {
                let lengths: Vec<usize> = parts.iter().map(Vec::len).collect();
                assert_eq!(lengths, (0..size).collect::<Vec<_>>());
                assert!(
                    parts
                        .iter()
                        .enumerate()
                        .all(|(at, part)| part.iter().all(|&value| value == at as f64))
                );
            }
            assert_eq!(sent, [7.0, f64::NEG_INFINITY]);
            let last = (size - 1) as i64;
            assert_eq!(sums, [last * (last + 1) / 2, -(size as i64), i64::MIN]);
            assert_eq!(greatest, [last as f64, 0.0, f64::NEG_INFINITY]);
        }
    }
}

#[test]
fn a_rank_that_dies_is_named_on_every_other_rank() {
    let ends = on_each(4, |star| {
        let mut values = [1];
        star.all_reduce_sum(&mut values)?;
        if star.rank() == 2 {
            // Its streams close, as those of a killed process do.
            star.streams.clear();
            return Ok(());
        }
        for _ in 0..3 {
            star.all_reduce_sum(&mut values)?;
        }
        Ok::<_, Failure>(())
    });
    for (rank, end) in ends.into_iter().enumerate() {
        if rank == 2 {
            continue;
        }
        let failure = end.expect_err("rank 2 is gone");
        assert_eq!(failure.rank, Some(2), "on rank {rank}: {failure}");
        assert_eq!(
            failure.to_string(),
            "rank 2 has ended in the middle of the job"
        );
    }
}

#[test]
fn a_rank_that_hangs_is_named_when_patience_ends() {
    let mut ranks = star(2, Some(Duration::from_millis(50)))
        .expect("sockets")
        .into_iter();
    let (mut first, _silent) = (ranks.next().expect("rank 0"), ranks.next().expect("rank 1"));
    let failure = first.gather(&[]).expect_err("rank 1 says nothing");
    assert_eq!(failure.to_string(), "rank 1 has been silent for too long");
    // A further operation fails at once: the job is over.
    assert_eq!(first.broadcast(&mut Vec::new()), Err(failure));
}

#[test]
fn ranks_that_are_not_in_step_are_found_out() {
    let ends = on_each(2, |star| {
        if star.rank() == 0 {
            star.all_reduce_max(&mut [1.0])
        } else {
            star.gather(&[1.0])
                .map(|_| ())
                .and_then(|()| star.broadcast(&mut Vec::new()))
        }
    });
    let first = ends[0].clone().expect_err("not in step");
    assert!(
        first.to_string().starts_with("rank 1 is out of step"),
        "{first}"
    );
    assert_eq!(ends[1].clone().expect_err("told"), first);
    let ends = on_each(2, |star| star.all_reduce_sum(&mut vec![0; 1 + star.rank()]));
    let text = ends[1].clone().expect_err("not one length").to_string();
    assert_eq!(text, "rank 1 combines 2 numbers with 1");
}

#[test]
fn sums_that_overflow_fail_instead_of_wrapping() {
    let ends = on_each(2, |star| star.all_reduce_sum(&mut [i64::MAX]));
    assert!(ends.iter().all(|end| {
        end.as_ref()
            .is_err_and(|failure| failure.why.contains("overflows"))
    }));
}

#[test]
fn large_messages_pass_in_both_directions() {
    // Larger than any buffer of a socket.
    let count = 300_000;
    let sums = on_each(3, |star| {
        let mut values = vec![star.rank() as i64; count];
        star.all_reduce_sum(&mut values)
            .map(|()| (values, star.sent_bytes()))
    });
    for (rank, end) in sums.into_iter().enumerate() {
        let (values, sent_bytes) = end.expect("all are there");
        assert!(values.iter().all(|&value| value == 3));
        assert_eq!(sent_bytes, 8 * count as u64 * if rank == 0 { 2 } else { 1 });
    }
}

#[test]
fn processes_meet_at_a_socket_and_one_that_does_not_come_is_named() {
    let folder = std::env::temp_dir().join(format!("keel-star-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let socket = folder.join("ranks");
    thread::scope(|scope| {
        for rank in (0..3).rev() {
            let socket = &socket;
            scope.spawn(move || {
                let mut star =
                    Star::meet(socket, rank, 3, Duration::from_secs(20)).expect("all come");
                let mut greatest = [rank as f64];
                star.all_reduce_max(&mut greatest).expect("all are there");
                assert_eq!(greatest, [2.0]);
            });
        }
    });
    let lonely = Star::meet(&folder.join("lonely"), 0, 2, Duration::from_millis(30));
    let failure = lonely.expect_err("no other rank comes");
    assert_eq!(failure.rank, Some(1));
    assert!(Star::meet(&socket, 0, 2, Duration::from_millis(30)).is_err());
    std::fs::remove_dir_all(&folder).expect("removed");
}
