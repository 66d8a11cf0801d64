//! `keel status` and `keel top`: the figures of a node.

use super::NodeArgs;
use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel status\n  \
    keel status --json --node /run/keel/keel.sock\n\n\
    Exit status: 0 the node is ok, 3 it is degraded (the output names the reasons), 1 it has failed or does not\n\
    answer.")]
pub(crate) struct StatusArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    keel top\n  \
    keel top --once --node /run/keel/keel.sock\n\n\
    Press q to quit. The view asks the node once a second; if the node does not answer, the view says so and waits.")]
pub(crate) struct TopArgs {
    /// Print one view as text, and end; for logs, and where there is no terminal
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) node: NodeArgs,
}
