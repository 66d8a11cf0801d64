//! The experiments on quality of service, after Kang and Chung, "QoS Management for Embedded Databases in
//! Multicore-Based Embedded Systems", section 5. They run on this machine or on a simulated plant that was identified
//! on one.
//!
//! **Invariants:** all approaches run on the same plant, with the same model, in a new random order for each run. An
//! experiment that a machine does not support is listed as missing. A simulated figure is marked as such.
//!
//! **Files:** `setting.rs` the setting of an experiment, `scenario.rs` mixes and the interface of plants,
//! `identified.rs` a measured plant as a file, `sim.rs` a plant simulated from it, `real.rs` this machine with
//! `work.rs` and `updates.rs` for its threads, `approach.rs` the compared approaches, `interference.rs`,
//! `identification.rs`, `averages.rs`, `transient.rs` the experiments, `line.rs` the distance of two processors,
//! `response.rs` the response to a load change, `findings.rs` figures and files, `plot.rs` drawings, `page.rs` the
//! result page.

mod approach;
mod averages;
mod findings;
mod identification;
mod identified;
mod interference;
mod line;
pub(crate) mod page;
pub(crate) mod plot;
mod real;
mod response;
mod scenario;
mod setting;
mod sim;
#[cfg(test)]
mod tests;
mod transient;
mod updates;
mod work;

use std::path::PathBuf;

use clap::{ValueEnum, value_parser};
use serde_json::json;

use crate::machine::{Machine, today};
use crate::progress::Progress;
use crate::report::Json;
use crate::scratch::Scratch;
use findings::Findings;
use identified::{Identified, Origin};
pub(crate) use plot::COLORS;
use real::{ActuatorKind, EngineKind, RealOptions, RealPlant};
use scenario::{Mix, Plant};
use setting::{NO_MODEL, PAPER, QUICK, QUICK_REAL, REAL, Setting};
use sim::SimPlant;

/// The default simulated plant.
const MEASURED: &str = include_str!("../../data/berkeley-db.json");

/// `keel-bench qos`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    /// Which experiment.
    #[arg(value_enum, value_name = "NAME")]
    experiment: Experiment,
    /// Folder for tables, drawings and the report; made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// This machine, or one that is computed from an identification.
    #[arg(long, value_enum, default_value_t = PlantKind::Sim)]
    plant: PlantKind,
    /// The store below a real plant.
    #[arg(long, value_enum, default_value_t = EngineKind::Bdb)]
    engine: EngineKind,
    /// What sets the speed of a real plant.
    #[arg(long, value_enum, default_value_t = ActuatorKind::Auto)]
    actuator: ActuatorKind,
    /// Part of a processor that the updates of a real plant take alone, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = value_parser!(u32).range(1..=95))]
    update_share: u32,
    /// Let the updates of a real plant run on any processor, also the task's while it waits, as in the paper.
    #[arg(long)]
    free_updates: bool,
    /// Keep the processors of a real plant from halting: a host moves a virtual one that does.
    #[arg(long)]
    keep_awake: bool,
    /// Count only sampling periods of a real plant in which a cache line takes at least NS nanoseconds from one
    /// processor to the next. A host can move virtual processors nearer together, where they hardly disturb each other.
    /// 0 counts all periods.
    #[arg(long, value_name = "NS", default_value_t = 0, value_parser = value_parser!(u32).range(0..=10_000))]
    line_ns_min: u32,
    /// What runs while `identification` drives the inputs. A load that comes and goes within a sampling period is
    /// noise.
    #[arg(long, value_enum, default_value_t = Mix::None)]
    mix: Mix,
    /// Folder for the stores of a real plant.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// File that `identification` has written on a machine: the model, and the simulated plant. Without it, a simulated
    /// plant is that of Berkeley DB. A real plant makes transactions and updates as large as those in the file.
    #[arg(long, value_name = "FILE")]
    identified: Option<PathBuf>,
    /// Print the report as JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Runs, each with all approaches; 25 on the simulated plant, 400 of `transient`, 5 on a machine. `interference`
    /// and `identification` have one.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Few and short runs: shows that everything works; the figures mean little.
    #[arg(long)]
    quick: bool,
    /// Draws the order of the runs and the noise of a simulated plant.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// The experiments, by the paper's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// Figures 3 and 4: time with data and with computing, beside other processors.
    Interference,
    /// Figure 6: the model against the plant; on a machine it makes the file of a simulated one.
    Identification,
    /// Figure 7: approaches under mixes of best-effort transactions.
    Workloads,
    /// Figures 8 and 9: approaches under more and more processors with best-effort transactions.
    Cores,
    /// Figure 10: a load that comes and goes.
    Transient,
}

impl Options {
    /// Returns how often all approaches run. The first two experiments compare no approaches, and say so in their
    /// reports.
    fn runs(&self) -> u32 {
        let is_simulated = self.plant == PlantKind::Sim;
        match (self.experiment, self.runs, self.quick, is_simulated) {
            (Experiment::Interference | Experiment::Identification, ..) => 1,
            (_, Some(runs), _, _) => runs,
            (_, None, true, _) => 1,
            // The response of a loop in its first samples is smaller than the noise of a single run.
            (Experiment::Transient, None, false, true) => 400,
            (_, None, false, true) => 25,
            (_, None, false, false) => 5,
        }
    }
}

impl Experiment {
    fn name(self) -> &'static str {
        match self {
            Self::Interference => "qos-interference",
            Self::Identification => "qos-identification",
            Self::Workloads => "qos-workloads",
            Self::Cores => "qos-cores",
            Self::Transient => "qos-transient",
        }
    }
}

/// What is controlled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PlantKind {
    /// This machine.
    Real,
    /// A model of one.
    Sim,
}

/// Runs an experiment. Returns its report, and the table as text.
///
/// # Errors
/// One line that names what failed.
pub(crate) fn run(options: &Options) -> Result<(Json, String), String> {
    let is_simulated = options.plant == PlantKind::Sim;
    let identified = match &options.identified {
        Some(path) => Some(Identified::load(path)?),
        None if is_simulated => Some(Identified::parse(MEASURED)?),
        None => None,
    };
    let takes_model = matches!(
        options.experiment,
        Experiment::Workloads | Experiment::Cores | Experiment::Transient
    );
    if takes_model && identified.is_none() {
        return Err(NO_MODEL.to_owned());
    }
    let mut findings = Findings::new(options.experiment.name(), &options.out)?;
    let runs = options.runs();
    let extent = match (options.quick, is_simulated) {
        (false, true) => PAPER,
        (false, false) => REAL,
        (true, true) => QUICK,
        (true, false) => QUICK_REAL,
    };
    let machine = Machine::detect();
    let method = |origin: &Origin| {
        json!({
            "plant": if is_simulated { "simulated" } else { "real" },
            "quick": options.quick,
            "runs": runs,
            "seed": options.seed,
            "samples": extent.samples,
            "starting": extent.starting,
            "settling": extent.settling,
            "driven": extent.driven,
            "driven_under": options.mix.name(),
            "swept": extent.swept,
            "phases": [extent.phases.0, extent.phases.1, extent.phases.2],
            "origin": origin,
        })
    };
    let mut course = |plant: &mut dyn Plant, origin: Origin| {
        let mut setting = Setting {
            plant,
            identified: identified.clone(),
            origin,
            is_simulated,
            runs,
            seed: options.seed,
            extent,
            driven_under: options.mix,
            progress: Progress::new(),
        };
        measure(options.experiment, &mut setting, &mut findings)?;
        for note in setting.plant.notes() {
            findings.note(note);
        }
        Ok::<_, String>(setting.origin)
    };
    let origin = if let Some(identified) = identified.as_ref().filter(|_| is_simulated) {
        let mut plant = SimPlant::new(identified, options.seed);
        course(&mut plant, identified.origin.clone())?
    } else {
        let scratch = Scratch::create(&options.dir, REAL_BYTES)?;
        let real = RealOptions {
            engine: options.engine,
            actuator: options.actuator,
            update_share: f64::from(options.update_share) / 100.0,
            are_updates_free: options.free_updates,
            is_awake: options.keep_awake,
            line_ns_min: f64::from(options.line_ns_min),
            before: identified
                .as_ref()
                .and_then(|plant| Some((plant.origin.costs?, plant.origin.updates_per_second))),
        };
        let mut plant = RealPlant::start(scratch.path(), &real)?;
        let origin = Origin {
            engine: options.engine.words().to_owned(),
            command: format!(
                "keel qos experiment identification --plant real --update-share {} --mix {} --line-ns-min {}{}{}",
                options.update_share,
                options.mix.name(),
                options.line_ns_min,
                if options.keep_awake {
                    " --keep-awake"
                } else {
                    ""
                },
                if options.free_updates {
                    " --free-updates"
                } else {
                    ""
                }
            ),
            cpu: machine.cpu.clone(),
            kernel: machine.kernel.clone(),
            cores: machine.cores,
            actuator: plant.actuator_name().to_owned(),
            date: today(),
            updates_per_second: plant.updates_per_second(),
            costs: Some(plant.costs()),
            notes: Vec::new(),
        };
        course(&mut plant, origin)?
    };
    if options.quick {
        findings.unjudged();
    }
    findings.finish(&machine, method(&origin))
}

/// Free bytes of the folder that a real plant needs.
const REAL_BYTES: u64 = 3 << 30;

fn measure(
    experiment: Experiment,
    setting: &mut Setting<'_>,
    findings: &mut Findings,
) -> Result<(), String> {
    match experiment {
        Experiment::Interference => interference::interference(setting, findings),
        Experiment::Identification => identification::identification(setting, findings),
        Experiment::Workloads => averages::workloads(setting, findings),
        Experiment::Cores => averages::cores(setting, findings),
        Experiment::Transient => transient::transient(setting, findings),
    }
}
