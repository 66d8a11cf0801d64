//! The commands of quality of service.

use super::NodeArgs;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples, in this order on a new board:\n  \
    keel qos status                              the tasks, and how well they meet their deadlines\n  \
    keel qos identify --out qos-model.toml       drive the running node, fit a model\n  \
    keel qos design qos-model.toml --out qos-gains.toml\n  \
    keel qos mode mimo                           once qos.gains of the configuration names that file\n\n\
    docs/qos.md explains the purpose of these steps.")]
pub(crate) struct QosArgs {
    #[command(subcommand)]
    pub(crate) command: QosCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QosCommand {
    /// Show the tasks, how well they meet their deadlines, and what the controller does
    #[command(after_help = "Examples:\n  \
        keel qos status\n  \
        keel qos status --json | jq .tasks\n\n\
        Exit status 3 if nothing is left to hold deadlines with (full speed, and the fewest updates allowed), the\n\
        model no longer predicts, the speed is not the required one or cannot be set, settings of the processors\n\
        were not restored, or the gains cannot be used.")]
    Status {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Choose what the node controls to hold deadlines, until its next start
    #[command(after_help = "Examples:\n  \
        keel qos mode mimo\n  \
        keel qos mode open                       the machine's own speed, all updates: nothing is controlled\n\n\
        dvfs-only controls the speed of the tasks' processors, qod-only the admitted updates, mimo both. All modes\n\
        but open need gains (`keel qos design`). The mode of the next start is qos.mode of the configuration.\n\
        During an identification, the mode is noted and takes effect at its end.")]
    Mode {
        /// open, dvfs-only, qod-only or mimo
        #[arg(value_parser = ["open", "dvfs-only", "qod-only", "mimo"])]
        mode: String,
        /// Print one JSON object, the same as `keel qos status --json`
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Drive speed and updates of the running node with square waves, and fit a model of its tasks
    #[command(after_help = "Examples:\n  \
        keel qos identify --out qos-model.toml\n  \
        keel qos identify --periods 100 --speed 50-90 --updates 60-100\n\n\
        The tasks must run all the time. By default the command takes 420 sampling periods, seven minutes with\n\
        periods of 1 s: first those of --profile at full speed, which give the least data response ratio and should\n\
        see no load beside the tasks; then square waves that change every 7 and every 5 periods, which may make\n\
        tasks late. The node stays within --speed and --updates, and returns to what it did before when the command\n\
        ends for any reason. A model that explains less than 0.8 of either output (R2 over the last quarter, which\n\
        the fit has not seen) is refused.")]
    Identify {
        /// File to write; an existing regular file is replaced when the new one is complete
        #[arg(long, value_name = "FILE", default_value = "qos-model.toml")]
        out: PathBuf,
        /// Number of sampling periods with square waves, from 40 to 2000
        #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(40..=2_000))]
        periods: u32,
        /// Number of sampling periods at full speed before the square waves, from 1 to 200
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
        profile: u32,
        /// Range of the speed, in percent of full speed
        #[arg(long, value_name = "LOW-HIGH", default_value = "40-70", value_parser = percents)]
        speed: (u32, u32),
        /// Range of the admitted updates, in percent
        #[arg(long, value_name = "LOW-HIGH", default_value = "60-100", value_parser = percents)]
        updates: (u32, u32),
        /// Accept a model that explains only tardiness, for the modes dvfs-only and qod-only
        #[arg(long)]
        tardiness_only: bool,
        /// Print one JSON object: the model, and the file
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Design gains from a model, in a file that a node loads
    #[command(after_help = "Examples:\n  \
        keel qos design qos-model.toml --out qos-gains.toml\n  \
        keel qos design qos-model.toml --tardiness 0.7 --data-ratio 0.4\n  \
        keel qos design qos-model.toml --weight-effort 1,4      prefer speed to fewer updates\n\n\
        The command solves the discrete Riccati equation for the errors and their sums. Gains whose closed loop has\n\
        a pole at or beyond 0.95 are refused, because the loop would respond too slowly. This is the case for both\n\
        inputs together if one of them has no effect, such as updates that disturb no task; --tardiness-only still\n\
        gives the other input its gains.")]
    Design {
        /// File written by `keel qos identify`
        model: PathBuf,
        /// File to write, but not the model; an existing regular file is replaced when the new one is complete
        #[arg(long, value_name = "FILE", default_value = "qos-gains.toml")]
        out: PathBuf,
        /// Setpoint of the mean tardiness: response time / deadline
        #[arg(long, value_name = "X", default_value_t = 0.8)]
        tardiness: f64,
        /// Setpoint of the data response ratio: time in the database / response time [default: the model's profiled
        /// minimum]
        #[arg(long, value_name = "X")]
        data_ratio: Option<f64>,
        /// Weights of the errors: of tardiness, of the data response ratio
        #[arg(long, value_name = "X,X", default_value = "10,1", value_parser = pair)]
        weight_error: (f64, f64),
        /// Weights of the sums of errors: of tardiness, of the data response ratio
        #[arg(long, value_name = "X,X", default_value = "5,0.5", value_parser = pair)]
        weight_integral: (f64, f64),
        /// Weights of the changes: of speed, of the admitted fraction
        #[arg(long, value_name = "X,X", default_value = "1,1", value_parser = pair)]
        weight_effort: (f64, f64),
        /// Make gains for one input at a time: for the modes dvfs-only and qod-only
        #[arg(long)]
        tardiness_only: bool,
        /// Print one JSON object: gains, poles, and the file
        #[arg(long)]
        json: bool,
    },
    /// Reproduce an experiment of the published method, with the program keel-bench
    #[command(
        disable_help_flag = true,
        disable_version_flag = true,
        after_help = "Examples:\n  \
            keel qos experiment transient --out transient                    on a simulated plant\n  \
            keel qos experiment identification --plant real --out found      on this machine, as root\n  \
            keel qos experiment workloads --plant real --identified found/identified.json --out workloads\n\n\
            `keel qos experiment --help` lists the options of keel-bench."
    )]
    Experiment {
        /// Experiment (interference, identification, workloads, cores or transient), and the options of keel-bench
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGUMENTS"
        )]
        arguments: Vec<OsString>,
    },
}

/// `40-70`
fn percents(text: &str) -> Result<(u32, u32), String> {
    let expected =
        || "two percentages such as 40-70, the first below the second, 100 at most".to_owned();
    let (low, high) = text.split_once('-').ok_or_else(expected)?;
    let number = |text: &str| text.trim_end_matches('%').parse().ok();
    let pair: Option<(u32, u32)> = number(low).zip(number(high));
    pair.filter(|(low, high)| low < high && *high <= 100)
        .ok_or_else(expected)
}

/// `10,1`
fn pair(text: &str) -> Result<(f64, f64), String> {
    let expected = || "two numbers above 0 such as 10,1".to_owned();
    let (one, other) = text.split_once(',').ok_or_else(expected)?;
    let number = |text: &str| {
        let number: f64 = text.trim().parse().ok()?;
        (number.is_finite() && number > 0.0).then_some(number)
    };
    number(one).zip(number(other)).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_and_pairs_are_read() {
        assert_eq!(percents("40-70"), Ok((40, 70)));
        assert_eq!(percents("60%-100%"), Ok((60, 100)));
        for wrong in ["", "40", "70-40", "40-101", "-1-5", "a-b", "40-40"] {
            assert!(percents(wrong).is_err(), "{wrong}");
        }
        assert_eq!(pair("10, 0.5"), Ok((10.0, 0.5)));
        for wrong in ["", "1", "0,1", "1,-1", "nan,1", "1,inf", "1,2,3"] {
            assert!(pair(wrong).is_err(), "{wrong}");
        }
    }
}
