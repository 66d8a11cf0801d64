//! `keel-demo`: the demo alone, which is built in a part of the time that `keel` takes. `keel demo` does the same.

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Run the main job from end to end: 1,024 sensors of a burning building, from reading to flash
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    arguments: demo::Args,
    #[command(subcommand)]
    command: Option<Hidden>,
}

#[derive(Debug, Subcommand)]
enum Hidden {
    /// The writer of the demo; started by the demo
    #[command(hide = true)]
    DemoWriter {
        /// Device image
        #[arg(long)]
        image: PathBuf,
        /// Directory to remove if the demo has died
        #[arg(long)]
        orphan_dir: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Some(Hidden::DemoWriter { image, orphan_dir }) => {
            demo::run_writer(&image, orphan_dir.as_deref())
        }
        None => demo::run(&cli.arguments),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("keel-demo: {error}");
            ExitCode::from(error.status())
        }
    }
}
