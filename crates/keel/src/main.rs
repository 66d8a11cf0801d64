//! `keel`: the one binary of Evenkeel.
//!
//! **Holds:** the command line ([`cli`]) and what each command does with the rooms: clients of a node, `keel flash`,
//! `keel mem`, `keel demo`.
//!
//! **Must not know:** the algorithms of a room; it only calls them.
//!
//! **Invariants:** exit status 0 is success, 1 failure, 2 wrong usage, 3 a state that the command's help names:
//! degraded (`keel status`, `keel doctor`), no advice (`keel advise`). A failure is one line on standard error that
//! names the object and the remedy. `--json` prints one JSON value on standard output and nothing else. A closed
//! standard output ends a command silently.
//!
//! **Files:** `cli.rs` the definition of the command line; a command with its options is one file. `run_cmd.rs` and
//! `demo_cmd.rs`, `config_cmd.rs` with `try_cmd.rs`, `client/` the commands that talk to a node, `flash_cmd/` those on
//! stores, `mem_cmd/` on regions, `qos_cmd/` of quality of service, `stream_cmd/` programs from the network,
//! `cluster_cmd/` several boards, `job_cmd/` jobs on them, `advise_cmd.rs` where to run a job, `doctor_cmd/` what this
//! machine permits, `power_cmd/` its power use, `bench_cmd.rs`. Shared by commands: `argument.rs` values of arguments,
//! `replacement.rs` a file that replaces another, `mounting.rs` the common part of mounts, `temporary.rs` files and
//! folders of a run. The crate `node` is what `keel run` starts, and `config` reads its configuration.

mod advise_cmd;
mod argument;
mod bench_cmd;
mod cli;
mod client;
mod cluster_cmd;
mod config_cmd;
mod demo_cmd;
mod doctor_cmd;
mod flash_cmd;
mod job_cmd;
mod mem_cmd;
mod mounting;
mod power_cmd;
mod qos_cmd;
mod replacement;
mod run_cmd;
mod stream_cmd;
mod temporary;
mod try_cmd;

use command::{descriptors, error, output, random, signals};
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = match cli::parse() {
        Ok(cli) => cli.command,
        Err(status) => return ExitCode::from(status),
    };
    let result = match command {
        cli::Command::Demo(arguments) => demo_cmd::run(&arguments),
        cli::Command::Run(arguments) => run_cmd::run(&arguments),
        cli::Command::Client(command) => client::run(&command),
        cli::Command::Backup(arguments) => client::backup(&arguments),
        cli::Command::Restore(arguments) => flash_cmd::restore::run(&arguments),
        cli::Command::Doctor(arguments) => doctor_cmd::run(&arguments),
        cli::Command::Config(arguments) => config_cmd::run(&arguments),
        cli::Command::Flash(arguments) => flash_cmd::run(&arguments),
        cli::Command::Mem(arguments) => mem_cmd::run(&arguments),
        cli::Command::Qos(arguments) => qos_cmd::run(&arguments),
        cli::Command::Stream(arguments) => stream_cmd::run(&arguments),
        cli::Command::Cluster(arguments) => cluster_cmd::run(&arguments),
        cli::Command::Power(arguments) => power_cmd::run(&arguments),
        cli::Command::Advise(arguments) => advise_cmd::run(&arguments),
        cli::Command::Bench { arguments } => bench_cmd::run(&arguments),
        cli::Command::DemoWriter { image, orphan_dir } => {
            demo::run_writer(&image, orphan_dir.as_deref())
        }
        cli::Command::DemoAnalysis { results } => demo::run_analysis(&results),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("keel: {error}");
            ExitCode::from(error.status())
        }
    }
}
