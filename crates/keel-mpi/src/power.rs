//! What each board uses during each benchmark. The first rank of a board reads its sensors.

use crate::world::{World, said_or_failed};
use crate::{Failure, say};
use cluster::measure::{Event, Plan, Watts, merge_power};
use mpi::traits::CommunicatorCollectives;
use std::time::Duration;

/// Bytes that a board may say of its power.
const ROWS_BYTES_MAX: usize = 1 << 20;

/// Waits without load, together with all ranks, and begins to read; nothing where it is not asked for, or another
/// rank's business.
pub(crate) fn start(world: &World<'_>, plan: &Plan) -> Option<Watts> {
    let power = plan.power.as_ref()?;
    // Nobody may poll for messages while others still wait.
    world.all.barrier();
    let watts = world
        .is_first_of_host()
        .then(|| Watts::start(power.sensors(), world.name()));
    std::thread::sleep(Duration::from_millis(power.idle_ms));
    world.all.barrier();
    watts
}

/// What all boards have used, said by rank 0.
///
/// # Errors
/// Nobody listens.
pub(crate) fn finish(world: &World<'_>, watts: Option<Watts>) -> Result<(), Failure> {
    let rows = watts.map(Watts::finish).unwrap_or_default();
    let mut text = serde_json::to_string(&rows).unwrap_or_default();
    if text.len() > ROWS_BYTES_MAX {
        // As if it had no sensor: half a list cannot be read.
        text.clear();
    }
    for text in world.texts(&text, ROWS_BYTES_MAX) {
        let rows = merge_power(serde_json::from_str(&text).unwrap_or_default());
        if world.rank == 0 && !rows.is_empty() {
            said_or_failed(say(&Event::Power { rows }))?;
        }
    }
    Ok(())
}
