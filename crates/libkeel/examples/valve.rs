//! Opens a valve further the colder a boiler is, fifty times a second, and prints the result at the end.
//!
//!     valve SOCKET [INSTANCES]

use libkeel::{Error, Node, TaskSpec, Value};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (socket, instances) = (arguments.next(), arguments.next());
    let instances = instances.map_or(Ok(50), |text| text.parse());
    let (Some(socket), Ok(instances)) = (socket, instances) else {
        eprintln!("valve: name the node's socket, and perhaps how often to run");
        return ExitCode::from(2);
    };
    match run(&socket, instances) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("valve: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(socket: &str, instances: u64) -> Result<(), Error> {
    let node = Node::attach(socket)?;
    let celsius = node.key("boiler/celsius")?;
    let valve = node.key("boiler/valve")?;
    let ms = Duration::from_millis;
    let mut task = node.periodic_task(TaskSpec::new("valve", ms(20), ms(10)))?;
    let mut last = None;
    let mut misread = 0;
    task.run(|task| {
        // Read in place, where the node writes it: no copy, no lock, no system call.
        match task.data(|| celsius.float()) {
            Ok((degrees, times)) if times.fresh => {
                // Sent at once; the ticket tells when it is on flash.
                let opening = (100.0 - degrees).clamp(0.0, 100.0);
                last = task.put(&valve, Value::Float(opening), None).ok();
            }
            _ => misread += 1,
        }
        match task.counts().instances + 1 < instances {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    if let Some(ticket) = last {
        println!(
            "boiler/valve is on flash as reading {}",
            ticket.wait(ms(10_000))?
        );
    }
    let counts = task.counts();
    println!(
        "{} instances, {} late, {} releases missed, {misread} without a fresh value, values {}",
        counts.instances,
        counts.deadline_misses,
        counts.releases_missed,
        if node.is_shared() {
            "shared"
        } else {
            "asked for"
        },
    );
    Ok(())
}
