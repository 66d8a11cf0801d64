//! Measurements of Evenkeel beside the systems it is compared with; the binary `keel-bench`.
//!
//! **Holds:** the cases, the peers, the stop-watch and the report of `keel bench`.
//!
//! **Must not know:** anything that a room keeps private; a bench uses a room as any caller does.
//!
//! **Invariants:** ours and the peers' operations alternate in one run on one file system; latencies stay in
//! memory until the run is over; a figure that was not measured is absent, never estimated.
//!
//! **Files:** `main.rs` the command line, `store/` the file store's cases with one file for each system,
//! `report.rs` figures, table and JSON, `machine.rs` what the measurement ran on, `scratch.rs` the folder
//! that a run leaves no trace of.

mod machine;
mod report;
mod scratch;
mod store;

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures Evenkeel beside its peers.
#[derive(Parser)]
#[command(name = "keel-bench", version)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// The flash store beside the device's floor and the kernel's file system in the same folder.
    Flash(store::Options),
}

/// Where the JSON report goes; shared by every bench.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Output {
    /// Write the figures as JSON to FILE.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Arguments {
        bench: Bench::Flash(options),
    } = Arguments::parse();
    match run_flash(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("keel-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_flash(options: &store::Options) -> Result<(), String> {
    let report = store::run(options)?;
    let mut text = report.table();
    if let Some(path) = &options.output.json {
        let json = serde_json::to_string_pretty(&report.json())
            .map_err(|error| format!("report: {error}"))?;
        std::fs::write(path, json + "\n")
            .map_err(|error| format!("{}: {error}", path.display()))?;
        text.push_str(&format!("\nwritten: {}\n", path.display()));
    }
    match std::io::stdout().write_all(text.as_bytes()) {
        // Whoever reads no further has seen enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("standard output: {error}"))
        }
        _ => Ok(()),
    }
}
