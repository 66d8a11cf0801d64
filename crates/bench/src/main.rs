//! Measurements of Evenkeel and of the systems it is compared with; the binary `keel-bench`.
//!
//! **Holds:** the cases, the peers, the stop-watch and the report of `keel bench`.
//!
//! **Must not know:** anything that a room keeps private; a bench uses a room as any caller does.
//!
//! **Invariants:** our operations and those of the peers alternate in one run on one file system. Latencies stay in
//! memory until the run is over. A figure that was not measured is absent, never estimated.
//!
//! **Files:** `main.rs` the command line, `output.rs` where a report goes, `store/` the file store's cases with one
//! file for each system, `paper/` the experiments of the paper it follows, `mem/` the in-memory file system's cases,
//! `node/` the node's cases with broker, publisher and peers, `stream/` programs that start from the network, `db/` the
//! data path's cases, `engine/` stores of latest values, `cluster/` messages between boards, `qos/` the experiments on
//! quality of service; `figures.rs` figures of rounds, `report.rs` those of single calls, table and JSON, `page.rs`
//! what all result pages share, `machine.rs` properties of the machine, `realtime.rs` measured threads, `progress.rs`
//! the progress line, `scratch.rs` the temporary folder of a run.

mod cluster;
mod db;
mod engine;
mod figures;
mod machine;
mod mem;
mod node;
mod output;
mod page;
mod paper;
mod progress;
mod qos;
mod realtime;
mod report;
mod scratch;
mod store;
mod stream;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use output::{Output, write, write_report};

/// Measures Evenkeel beside its peers.
#[derive(Parser)]
#[command(name = "keel-bench", version)]
struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// The flash store beside the device's floor, the kernel's file system and SQLite.
    Flash(store::Options),
    /// The in-memory file system beside those of the kernel that lie in memory; takes root and several GiB of memory.
    Mem(mem::Options),
    /// The whole node beside loggers that store in SQLite, behind a broker on this machine.
    Node(node::Options),
    /// Latest values in our database beside embedded stores and a hash map; takes several GiB of memory and disk.
    Db(db::Options),
    /// Experiments on quality of service, on this machine or on a simulated plant.
    Qos(qos::Options),
    /// Programs that start from the network beside sshfs, FUSE on demand and local disks; takes root.
    Stream(stream::Options),
    /// Writes the tables of the store's result page from two reports of `flash`.
    #[command(hide = true)]
    FlashPage(store::page::Options),
    /// Writes the tables of the in-memory file system's result page from a report of `mem --paper`.
    #[command(hide = true)]
    MemPage(mem::page::Options),
    /// Writes the tables of the data path's result page from a report of `db`.
    #[command(hide = true)]
    DbPage(db::page::Options),
    /// Writes the tables of the result page of `qos` from the reports of its experiments.
    #[command(hide = true)]
    QosPage(qos::page::Options),
    /// A loop of requests, as a program makes them; started by `mem`.
    #[command(hide = true)]
    MemCalls(mem::calls::Options),
    /// A process that attaches to a region; started by `mem`.
    #[command(hide = true)]
    MemAttach(mem::mapping::AttachOptions),
    /// A process that is killed; started by `mem`.
    #[command(hide = true)]
    MemTakeover(mem::takeover::Options),
    /// One start of a program; started by `stream`.
    #[command(hide = true)]
    StreamRun(stream::run::Options),
    /// Writes the tables of the result page of streaming from the reports of `stream`.
    #[command(hide = true)]
    StreamPage(stream::page::Options),
    /// A tree mounted on demand, as a peer; started by `stream`.
    #[command(hide = true)]
    StreamPlain(stream::plain::Options),
    /// Reads of a tree's blocks; started by `stream`.
    #[command(hide = true)]
    StreamPages(stream::PagesOptions),
    /// Devices that start a program; started by `stream`.
    #[command(hide = true)]
    StreamClients(stream::clients::Options),
    /// Reads of a disk; started by `stream`.
    #[command(hide = true)]
    StreamReads(stream::ReadsOptions),
    /// Messages between boards: the suite on MPI beside the same loops in C, and beside itself.
    Cluster(cluster::Options),
    /// Writes the result page of messages between boards from a report of `cluster`.
    #[command(hide = true)]
    ClusterPage(cluster::page::Options),
    /// A launcher that measures the time of a cache line first; started by `cluster`.
    #[command(hide = true)]
    ClusterLaunch(cluster::launch::Options),
    /// Writes the result page of the node from a report of `node`.
    #[command(hide = true)]
    NodePage(node::page::Options),
    /// A peer of the node; started by `node`.
    #[command(hide = true)]
    Consumer(node::consumer::Options),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            eprintln!("keel-bench: {}", in_one_line(&error.render().to_string()));
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    let done = match arguments.bench {
        Bench::Flash(options) => if options.paper {
            paper::run(&options)
        } else {
            store::run(&options)
        }
        .and_then(|report| write(&options.output, report.table(), &report.json())),
        Bench::Node(options) => write_report(&options.output, node::run(&options)),
        Bench::Mem(options) => write_report(&options.output, mem::run(&options)),
        Bench::Db(options) => write_report(&options.output, db::run(&options)),
        Bench::Qos(options) => qos::run(&options).and_then(|(json, table)| {
            let text = if options.json {
                serde_json::to_string_pretty(&json).map_err(|error| format!("report: {error}"))?
                    + "\n"
            } else {
                table
            };
            write(&Output { json: None }, text, &json)
        }),
        Bench::Stream(options) => write_report(&options.output, stream::run(&options)),
        Bench::Cluster(options) => write_report(&options.output, cluster::run(&options)),
        Bench::ClusterPage(options) => cluster::page::run(&options),
        Bench::ClusterLaunch(options) => cluster::launch::run(&options),
        Bench::DbPage(options) => db::page::run(&options),
        Bench::QosPage(options) => qos::page::run(&options),
        Bench::MemPage(options) => mem::page::run(&options),
        Bench::MemCalls(options) => mem::calls::run(&options),
        Bench::MemAttach(options) => mem::mapping::attach(&options),
        Bench::MemTakeover(options) => mem::takeover::hold(&options),
        Bench::StreamRun(options) => stream::run::run(&options),
        Bench::StreamPage(options) => stream::page::run(&options),
        Bench::StreamPlain(options) => stream::plain::run(&options),
        Bench::StreamPages(options) => stream::pages(&options),
        Bench::StreamClients(options) => stream::clients::run(&options),
        Bench::StreamReads(options) => stream::reads(&options),
        Bench::FlashPage(options) => store::page::run(&options),
        Bench::NodePage(options) => node::page::run(&options),
        Bench::Consumer(options) => node::consumer::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("keel-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns one line for a missing argument. `keel bench` first asks for the help of its arguments, which reveals all
/// other mistakes, but not this one.
fn in_one_line(error: &str) -> String {
    let first = error.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().skip(1).collect();
    format!("{}; see --help", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_argument_is_reported_in_one_line() {
        let error = Arguments::try_parse_from(["keel-bench", "qos", "transient"])
            .err()
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::MissingRequiredArgument);
        assert_eq!(
            in_one_line(&error.render().to_string()),
            "the following required arguments were not provided: --out <DIR>; see --help"
        );
    }
}
