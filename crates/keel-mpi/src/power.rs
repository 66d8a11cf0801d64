//! The power of each board during each benchmark. The first rank of a board reads its sensors.

use crate::report::{Failure, say};
use crate::world::{World, said_or_failed};
use cluster::measure::{Event, Plan, Watts, merge_power};
use mpi::traits::CommunicatorCollectives;
use std::time::Duration;

/// Maximum size of a board's report of its power, in bytes.
const ROWS_BYTES_MAX: usize = 1 << 20;

/// Waits without load, together with all ranks, and starts the readings. `None` if the plan does not ask for power, or
/// if another rank of the board reads it.
pub(crate) fn start(world: &World<'_>, plan: &Plan) -> Option<Watts> {
    let power = plan.power.as_ref()?;
    // No rank may poll for messages while other ranks wait without load.
    world.all.barrier();
    let watts = world
        .is_first_of_host()
        .then(|| Watts::start(power.sensors(), world.name()));
    std::thread::sleep(Duration::from_millis(power.idle_ms));
    world.all.barrier();
    watts
}

/// Reports the power of all boards; rank 0 writes it.
///
/// # Errors
/// No process reads the output.
pub(crate) fn finish(world: &World<'_>, watts: Option<Watts>) -> Result<(), Failure> {
    let rows = watts.map(Watts::finish).unwrap_or_default();
    let mut text = serde_json::to_string(&rows).unwrap_or_default();
    if text.len() > ROWS_BYTES_MAX {
        // Report no sensor instead: half a list cannot be parsed.
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
