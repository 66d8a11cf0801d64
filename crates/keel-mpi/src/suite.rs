//! From a plan to rows: checks each case, finds the number of repetitions of an operation, takes samples.

use crate::check::{check, connect};
use crate::loops::{Buffers, repeat};
use crate::power;
use crate::report::{Failure, say};
use crate::world::{World, said_or_failed};
use cluster::measure::{Case, Event, Plan, Steps};
use cluster::results::{BenchmarkRow, Stopped};
use cluster::statistics::{StopRule, Verdict};
use mpi::traits::CommunicatorCollectives;
use std::time::Instant;

/// Maximum number of operations in a sample, if the number is found here.
const ITERATIONS_MAX: u64 = 10_000;

/// Messages of rank 0 to the others: a number of further samples, or one of these values to stop.
const STOP_NARROW: u64 = u64::MAX;
const STOP_EXHAUSTED: u64 = u64::MAX - 1;
const STOP_FIXED: u64 = u64::MAX - 2;

/// Measures all cases of a plan and reports each row at once.
///
/// # Errors
/// A message did not arrive as it was sent.
pub(crate) fn run(world: &World<'_>, plan: &Plan) -> Result<(), Failure> {
    let mut buffers = Buffers::new(plan.bytes_max(), world.ranks);
    let mut flushed = match plan.steps {
        Steps::Mpbench { flush_bytes, .. } => vec![0_u8; flush_bytes as usize],
        Steps::Sound { .. } => Vec::new(),
    };
    connect(world);
    let watts = power::start(world, plan);
    for (at, case) in plan.cases.iter().enumerate() {
        if let Some(watts) = &watts {
            watts.during(Some(case.benchmark.name()));
        }
        if world.rank == 0 {
            said_or_failed(say(&Event::Begin {
                at,
                benchmark: case.benchmark,
                bytes: case.bytes,
            }))?;
        }
        world.agree(check(
            world,
            &mut buffers,
            case.benchmark,
            case.bytes as usize,
        ))?;
        let (iterations, samples_ns, stopped) = match plan.steps {
            Steps::Sound { .. } => sound(world, &mut buffers, case, plan.steps),
            Steps::Mpbench { repetitions, .. } => {
                mpbench(world, &mut buffers, case, repetitions, &mut flushed)
            }
        };
        if world.rank == 0 {
            let row = BenchmarkRow {
                benchmark: case.benchmark,
                ranks: world.ranks,
                transport: world.transport,
                bytes: case.bytes,
                iterations,
                // A clock that did not move would give a time of 0, which is impossible for a message.
                samples_us: samples_ns
                    .iter()
                    .map(|ns| (ns / iterations as f64).max(1e-3) / 1e3)
                    .collect(),
                starts: Vec::new(),
                stopped,
            };
            said_or_failed(say(&Event::Row { row }))?;
        }
    }
    if plan.power.is_some() {
        power::finish(world, watts)?;
    }
    if world.rank == 0 {
        said_or_failed(say(&Event::End {
            rows: plan.cases.len(),
        }))?;
    }
    Ok(())
}

/// Takes one sample: all ranks begin together, and the slowest rank's time counts. Returns this rank's nanoseconds.
fn sample(world: &World<'_>, buffers: &mut Buffers, case: &Case, iterations: u64) -> f64 {
    world.all.barrier();
    repeat(
        world,
        buffers,
        case.benchmark,
        case.bytes as usize,
        iterations,
    )
}

/// Takes samples until their interval is narrow, or the maximum number is reached, or the case's time is over.
fn sound(
    world: &World<'_>,
    buffers: &mut Buffers,
    case: &Case,
    steps: Steps,
) -> (u64, Vec<f64>, Stopped) {
    let Steps::Sound {
        half_width_max,
        samples_min,
        samples_max,
        sample_us_min,
        case_ms_max,
    } = steps
    else {
        return (1, Vec::new(), Stopped::Fixed);
    };
    let begun = Instant::now();
    let iterations = match case.iterations {
        Some(iterations) => {
            sample(world, buffers, case, 1);
            iterations
        }
        None => find_iterations(world, buffers, case, sample_us_min),
    };
    // With fewer than five samples, or if minimum and maximum are equal, there is nothing to judge.
    let rule = StopRule::new(half_width_max, samples_min, samples_max)
        .ok()
        .filter(|_| samples_min < samples_max);
    let mut samples = Vec::new();
    let mut more = samples_min as u64;
    let stopped = loop {
        let mine: Vec<f64> = (0..more)
            .map(|_| sample(world, buffers, case, iterations))
            .collect();
        samples.extend(world.greatest(&mine));
        let verdict = rule.map_or(Ok(Verdict::Exhausted), |rule| rule.judge(&samples));
        let said = match verdict {
            _ if rule.is_none() => STOP_FIXED,
            Ok(Verdict::Narrow) => STOP_NARROW,
            Ok(Verdict::More(more)) if begun.elapsed().as_millis() < u128::from(case_ms_max) => {
                more as u64
            }
            _ => STOP_EXHAUSTED,
        };
        more = match world.of_first(said) {
            STOP_NARROW => break Stopped::Narrow,
            STOP_EXHAUSTED => break Stopped::Exhausted,
            STOP_FIXED => break Stopped::Fixed,
            more => more,
        };
    };
    (iterations, samples, stopped)
}

/// Finds the number of repetitions that makes a sample long enough for the clock; it is the same on every rank.
fn find_iterations(
    world: &World<'_>,
    buffers: &mut Buffers,
    case: &Case,
    sample_us_min: f64,
) -> u64 {
    let goal_ns = sample_us_min * 1e3;
    let mut iterations = 1;
    loop {
        // The first operations of a size are slow: pages are touched, connections are made.
        for _ in 0..2 {
            sample(world, buffers, case, iterations);
        }
        let mine = [sample(world, buffers, case, iterations)];
        let ns = world.greatest(&mine)[0];
        let is_enough = ns >= goal_ns || iterations == ITERATIONS_MAX;
        let wanted = (iterations as f64 * goal_ns / ns.max(1.0) * 1.2).ceil() as u64;
        let next = if is_enough {
            0
        } else {
            wanted.clamp(iterations + 1, ITERATIONS_MAX)
        };
        match world.of_first(next) {
            0 => return iterations,
            next => iterations = next,
        }
    }
}

/// The original's steps; only rank 0 measures the time.
fn mpbench(
    world: &World<'_>,
    buffers: &mut Buffers,
    case: &Case,
    repetitions: usize,
    flushed: &mut [u8],
) -> (u64, Vec<f64>, Stopped) {
    let iterations = case.iterations.unwrap_or(1);
    let mut samples = Vec::with_capacity(repetitions);
    for repetition in 0..repetitions {
        // Read it back, so that the compiler does not remove the writes.
        flushed.fill(repetition as u8);
        std::hint::black_box(&mut *flushed);
        world.all.barrier();
        repeat(world, buffers, case.benchmark, case.bytes as usize, 1);
        world.all.barrier();
        samples.push(repeat(
            world,
            buffers,
            case.benchmark,
            case.bytes as usize,
            iterations,
        ));
    }
    (iterations, samples, Stopped::Fixed)
}
