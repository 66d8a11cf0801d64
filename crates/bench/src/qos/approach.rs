//! The compared approaches, and the loop that runs one of them on a plant.

use control::controller::{ADMISSION, Controller, Mode, Range, SPEED, Saturation, SetPoints};
use control::design::{Design, Weights};
use control::identify::Model;
use db::qos::admission::Quality;

use super::scenario::{ADMITTED_MIN, Facts, Load, Observed, Plant};

/// Utilisation below which the emulated OnDemand lowers the speed, and above which it sets full speed.
const BUSY: (f64, f64) = (0.2, 0.9);

/// Factor by which it lowers the speed: 20 % less, as the governor of Pallipadi and Starikovskiy.
const DOWN: f64 = 0.8;

/// Minimum change of the admitted fraction; smaller changes are not applied.
const ADMISSION_STEP: f64 = 0.01;

/// Number of sampling periods without an instance after which the control law returns to full inputs.
const MISSING_MAX: u32 = 3;

/// The approaches of the paper's table 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Approach {
    /// No control; speed as an operating system sets it by utilisation alone.
    Open,
    /// Speed controls tardiness.
    DvfsOnly,
    /// Admission controls tardiness, at a fixed speed in percent.
    QodOnly(u32),
    /// Both control tardiness and the data response ratio. The minimum of a sensor is a fraction of its updates.
    Mimo,
    /// As [`Self::Mimo`], but the minimum of a sensor is a fraction of its freshness, the paper's quality of data.
    MimoFresh,
}

impl Approach {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Open => "open".to_owned(),
            Self::DvfsOnly => "dvfs-only".to_owned(),
            Self::QodOnly(percent) => format!("qod-only-{percent}"),
            Self::Mimo => "mimo".to_owned(),
            Self::MimoFresh => "mimo-fresh".to_owned(),
        }
    }

    pub(crate) fn quality(self) -> Quality {
        match self {
            Self::MimoFresh => Quality::Fresh,
            _ => Quality::Admitted,
        }
    }
}

/// The decision of an approach after a sampling period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Decision {
    pub(crate) inputs: [f64; 2],
    pub(crate) held: [Saturation; 2],
    pub(crate) is_single: bool,
    pub(crate) is_model_true: bool,
}

/// One running approach.
pub(crate) struct Pilot {
    approach: Approach,
    controller: Controller,
    facts: Facts,
    speed: f64,
}

impl Pilot {
    /// Creates a pilot with the gains that follow from the model.
    ///
    /// # Errors
    /// One line: the model gives no gains.
    pub(crate) fn new(
        approach: Approach,
        model: &Model,
        set_points: SetPoints,
        facts: Facts,
    ) -> Result<Self, String> {
        let design =
            Design::robust(model, &Weights::default()).map_err(|error| error.to_string())?;
        let ranges = [
            Range {
                min: facts.speed_min,
                max: 1.0,
                change_max: 1.0,
                dead_band: facts.speed_step / 2.0,
            },
            Range {
                min: ADMITTED_MIN,
                max: 1.0,
                change_max: 1.0,
                dead_band: ADMISSION_STEP,
            },
        ];
        let controller = Controller::new(*model, &design, ranges, set_points, MISSING_MAX);
        let mut controller = controller.map_err(|error| error.to_string())?;
        let mut speed = 1.0;
        controller.set_mode(match approach {
            Approach::Open => Mode::Open,
            Approach::DvfsOnly => Mode::SpeedOnly,
            Approach::QodOnly(percent) => {
                speed = f64::from(percent) / 100.0;
                Mode::AdmissionOnly
            }
            Approach::Mimo | Approach::MimoFresh => Mode::Both,
        });
        controller.applied([speed, 1.0]);
        Ok(Self {
            approach,
            controller,
            facts,
            speed,
        })
    }

    /// Returns the inputs of the first period.
    pub(crate) fn begin(&self) -> [f64; 2] {
        [self.speed, 1.0]
    }

    /// Returns the inputs of the next period.
    pub(crate) fn step(&mut self, observed: &Observed) -> Decision {
        if self.approach == Approach::Open {
            self.speed = ondemand(self.speed, observed.busy).max(self.facts.speed_min);
            return Decision {
                inputs: [self.speed, 1.0],
                held: [Saturation::Free; 2],
                is_single: false,
                is_model_true: true,
            };
        }
        if let Some(least) = observed.least {
            self.controller.set_min(ADMISSION, least);
        }
        // The applied inputs may differ because of speed steps and other programs.
        self.controller.applied(observed.applied);
        let action = self.controller.step(observed.outputs);
        Decision {
            inputs: action.inputs,
            held: action.held,
            is_single: action.is_single,
            is_model_true: action.is_model_true,
        }
    }
}

/// Returns the next speed of a governor that uses utilisation alone.
fn ondemand(speed: f64, busy: f64) -> f64 {
    if busy > BUSY.1 {
        1.0
    } else if busy < BUSY.0 {
        speed * DOWN
    } else {
        speed
    }
}

/// One sampling period of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Record {
    pub(crate) load: Load,
    /// The inputs requested for this period.
    pub(crate) inputs: [f64; 2],
    pub(crate) observed: Observed,
    /// The decision made from it.
    pub(crate) decision: Decision,
}

impl Record {
    /// Relative energy of a processor whose frequency and voltage follow the speed. It is the cube of the speed, times
    /// the share of time in which the task runs. A value of 1 is a task that always runs at full speed.
    pub(crate) fn energy(&self) -> f64 {
        self.observed.busy * self.observed.applied[SPEED].powi(3)
    }

    pub(crate) fn speed(&self) -> f64 {
        self.observed.applied[SPEED]
    }

    pub(crate) fn admitted(&self) -> f64 {
        self.observed.applied[ADMISSION]
    }

    pub(crate) fn tardiness(&self) -> Option<f64> {
        self.observed.outputs.map(|outputs| outputs[0])
    }

    pub(crate) fn data_ratio(&self) -> Option<f64> {
        self.observed.outputs.map(|outputs| outputs[1])
    }
}

/// Runs an approach on a plant for a number of sampling periods; `load` returns the load of each.
///
/// # Errors
/// The plant's, or an interruption.
pub(crate) fn run(
    pilot: &mut Pilot,
    plant: &mut dyn Plant,
    samples: u32,
    load: &dyn Fn(u32) -> Load,
) -> Result<Vec<Record>, String> {
    let mut inputs = pilot.begin();
    let mut records = Vec::with_capacity(samples as usize);
    for sample in 0..samples {
        crate::scratch::check_interrupted()?;
        let load = load(sample);
        let observed = plant.sample(inputs, load)?;
        let decision = pilot.step(&observed);
        records.push(Record {
            load,
            inputs,
            observed,
            decision,
        });
        inputs = decision.inputs;
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::super::identified::worked_out;
    use super::super::scenario::Mix;
    use super::super::sim::SimPlant;
    use super::*;

    #[test]
    fn the_governor_knows_utilisation_alone() {
        assert_eq!(ondemand(0.5, 0.95), 1.0);
        assert_eq!(ondemand(0.5, 0.5), 0.5);
        assert!((ondemand(0.5, 0.1) - 0.4).abs() < 1e-12);
    }

    #[test]
    fn each_approach_drives_its_own_inputs() {
        let identified = worked_out();
        let set_points = SetPoints {
            tardiness: 1.0,
            data_ratio: 0.33,
        };
        for approach in [
            Approach::Open,
            Approach::DvfsOnly,
            Approach::QodOnly(60),
            Approach::Mimo,
        ] {
            let mut plant = SimPlant::new(&identified, 1);
            let facts = plant.facts();
            let mut pilot = Pilot::new(approach, &identified.model(), set_points, facts).unwrap();
            let load = Load::of(Mix::C10D90, 1);
            let records = run(&mut pilot, &mut plant, 60, &|_| load).unwrap();
            assert_eq!(records.len(), 60);
            let speeds: Vec<_> = records.iter().map(Record::speed).collect();
            let admitted: Vec<_> = records.iter().map(Record::admitted).collect();
            let moves = |values: &[f64]| values.windows(2).any(|pair| pair[0] != pair[1]);
            match approach {
                Approach::Open | Approach::DvfsOnly => {
                    assert!(admitted.iter().all(|admitted| *admitted == 1.0));
                    assert!(moves(&speeds) || approach == Approach::Open, "{speeds:?}");
                }
                Approach::QodOnly(_) => {
                    assert!(
                        speeds.iter().all(|speed| (speed - 0.6).abs() < 1e-9),
                        "{speeds:?}"
                    );
                    assert!(moves(&admitted), "{admitted:?}");
                }
                Approach::Mimo | Approach::MimoFresh => assert!(moves(&speeds)),
            }
        }
    }
}
