//! What a run is asked for: the arguments of the demo, and the run that follows from them.

use std::path::PathBuf;

/// What the demo does.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seconds of the trace to replay, from 1 to 14400
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=14_400))]
    pub(crate) seconds: u64,
    /// Speed of the replay, as a multiple of real time, from 0.1 to 1000
    #[arg(long, value_name = "X", default_value_t = 10.0, value_parser = speed)]
    pub(crate) speed: f64,
    /// Directory that keeps the store, as demo.img; created if absent
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Print plain lines instead of the live view
    #[arg(long)]
    pub(crate) headless: bool,
    /// Print one JSON object on standard output at the end, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
    /// Kill the writer with SIGKILL at random moments, at least ten times, and restart it
    #[arg(long)]
    pub(crate) kill: bool,
    /// Seed of the random moments [default: a new one, which is printed]
    #[arg(long, value_name = "N", requires = "kill")]
    pub(crate) seed: Option<u64>,
}

/// The requested run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunOptions {
    /// Time of the trace to replay.
    pub(crate) end_ms: u64,
    pub(crate) speed: f64,
    /// Seed of the kills; `None`: no kills.
    pub(crate) seed: Option<u64>,
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if (0.1..=1_000.0).contains(&speed) => Ok(speed),
        _ => Err("must be a number from 0.1 to 1000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_have_a_range() {
        assert_eq!(speed("10"), Ok(10.0));
        for bad in ["0", "nan", "inf", "-1", "1001", "x"] {
            assert!(speed(bad).is_err(), "{bad}");
        }
    }
}
