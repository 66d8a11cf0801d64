//! `keel`: the one binary of Evenkeel.
//!
//! **Holds:** the command line ([`cli`]) and the wiring of the rooms for each command: the node (`keel run`) and its
//! clients, `keel flash`, `keel mem`, `keel demo`.
//!
//! **Must not know:** the algorithms of a room; it only calls them.
//!
//! **Invariants:** exit status 0 is success, 1 failure, 2 wrong usage, 3 a state that the command's help names:
//! degraded (`keel status`, `keel doctor`), no advice (`keel advise`). A failure is one line on standard error that
//! names the object and the remedy. `--json` prints one JSON value on standard output and nothing else. A closed
//! standard output ends a command silently.
//!
//! **Files:** `cli.rs` the definition of the command line, `progress.rs`, `replacement.rs` a file that replaces
//! another, `lasting.rs` whether a file outlives a reboot, `mounting.rs` the common part of mounts, `time_text.rs`
//! times as people write them, `volatile.rs` a device that loses unflushed data, `node/` the node (`NODE.md`
//! specifies its socket), `client/` the commands that talk to it, `config/` its configuration, `status/` its status,
//! `flash_cmd/` the commands on stores, `mem_cmd/` the commands on regions, `qos/` files and texts of quality of
//! service (`QOS.md` specifies them), `qos_cmd/` its commands, `stream_cmd/` programs from the network,
//! `cluster_cmd/` several boards, `job_cmd/` jobs on them, `kernel.rs` the kinds of jobs, `temporary.rs` files and
//! folders of a run, `doctor_cmd/` what this machine permits, `power_cmd/` its power use, `advise_cmd.rs` where to
//! run a job, `try_cmd.rs` what a node would make of a message, `bench_cmd.rs`.

mod advise_cmd;
mod bench_cmd;
mod cli;
mod client;
mod cluster_cmd;
mod config;
mod doctor_cmd;
mod flash_cmd;
mod job_cmd;
mod kernel;
mod lasting;
mod mem_cmd;
mod mounting;
mod node;
mod power_cmd;
mod progress;
mod qos;
mod qos_cmd;
mod replacement;
#[cfg(test)]
#[path = "../../../fuzz/src/replay.rs"]
mod replay;
mod status;
mod stream_cmd;
mod temporary;
mod time_text;
mod try_cmd;
mod volatile;

use command::{descriptors, error, output, random, signals};
use std::process::ExitCode;

/// `keel config`
fn config_command(command: &cli::ConfigCommand) -> Result<u8, error::CliError> {
    match command {
        cli::ConfigCommand::Check { file, json } => config::check(file, *json, qos::look),
        cli::ConfigCommand::Try(arguments) => try_cmd::run(arguments),
        cli::ConfigCommand::Example => {
            let mut output = output::Output::new();
            output.bytes(config::example().as_bytes())?;
            output.flush()?;
            Ok(0)
        }
    }
}

/// `keel backup`, `restore`, `doctor`
fn care_command(command: &cli::CareCommand) -> Result<u8, error::CliError> {
    match command {
        cli::CareCommand::Backup(arguments) => client::backup(arguments),
        cli::CareCommand::Restore(arguments) => flash_cmd::restore::restore(arguments),
        cli::CareCommand::Doctor(arguments) => doctor_cmd::run(arguments),
    }
}

fn main() -> ExitCode {
    let command = match cli::parse() {
        Ok(cli) => cli.command,
        Err(status) => return ExitCode::from(status),
    };
    let result = match command {
        cli::Command::Demo(arguments) if arguments.full => {
            let no_library = mem_cmd::library().err().map(|error| error.to_string());
            demo::run_full(&arguments.demo, no_library)
        }
        cli::Command::Demo(arguments) => demo::run(&arguments.demo),
        cli::Command::Run(arguments) => {
            node::run_and_finish(&arguments.config, arguments.volatile_device)
        }
        cli::Command::Client(command) => client::run(&command),
        cli::Command::Care(command) => care_command(&command),
        cli::Command::Config(arguments) => config_command(&arguments.command),
        cli::Command::Flash(arguments) => flash_cmd::run(&arguments.command),
        cli::Command::Mem(arguments) => mem_cmd::run(&arguments.command),
        cli::Command::Qos(arguments) => qos_cmd::run(&arguments.command),
        cli::Command::Stream(arguments) => stream_cmd::run(&arguments.command),
        cli::Command::Cluster(arguments) => cluster_cmd::run(&arguments.command),
        cli::Command::Power(arguments) => power_cmd::run(&arguments.command),
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
