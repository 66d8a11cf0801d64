//! The simulated plant: an identified model, with effects that the model lacks. Speed has steps and limits, a load adds
//! to the outputs at once, and noise is drawn from the residuals of the identification.

use base::sim::Random;
use control::identify::{Model, Sample};

use super::identified::Identified;
use super::scenario::{DEADLINE_MS, Facts, Load, Observed, PERIOD_MS, Plant, SWEPT_MIN};

/// The number of processors with best-effort transactions on the paper's machine.
const CORES_MAX: u32 = 3;

/// Lower limits of the outputs, since no machine produces less.
const TARDINESS_MIN: f64 = 0.02;
const DATA_RATIO: (f64, f64) = (0.01, 0.99);

/// A simulated plant.
#[derive(Clone, Debug)]
pub(crate) struct SimPlant {
    identified: Identified,
    model: Model,
    random: Random,
    is_noisy: bool,
    /// The outputs of the last period, without the load's part.
    outputs: [f64; 2],
}

impl SimPlant {
    /// Creates a plant at its operating point; the seed determines its noise.
    pub(crate) fn new(identified: &Identified, seed: u64) -> Self {
        let model = identified.model();
        Self {
            identified: identified.clone(),
            model,
            random: Random::new(seed),
            is_noisy: true,
            outputs: model.outputs,
        }
    }

    /// The same without noise.
    #[cfg(test)]
    pub(crate) fn quiet(identified: &Identified) -> Self {
        Self {
            is_noisy: false,
            ..Self::new(identified, 0)
        }
    }

    fn applied(&self, inputs: [f64; 2]) -> [f64; 2] {
        let Identified {
            speed_min,
            speed_step,
            ..
        } = self.identified;
        let speed = (inputs[0] / speed_step).round() * speed_step;
        [speed.clamp(speed_min, 1.0), inputs[1].clamp(SWEPT_MIN, 1.0)]
    }
}

impl Plant for SimPlant {
    fn facts(&self) -> Facts {
        Facts {
            speed_min: self.identified.speed_min,
            speed_step: self.identified.speed_step,
            cores_max: CORES_MAX,
        }
    }

    fn begin(&mut self, seed: u64) -> Result<(), String> {
        self.random = Random::new(seed);
        self.outputs = self.model.outputs;
        Ok(())
    }

    fn sample(&mut self, inputs: [f64; 2], load: Load) -> Result<Observed, String> {
        let applied = self.applied(inputs);
        let last = Sample {
            outputs: self.outputs,
            inputs: applied,
        };
        let predicted = self.model.predict(&last);
        let noise = if self.is_noisy {
            self.identified.residuals[self.random.index(self.identified.residuals.len())]
        } else {
            [0.0; 2]
        };
        self.outputs = [0, 1].map(|output| predicted[output] + noise[output]);
        let added = self.identified.added(load)?;
        let outputs = [
            (self.outputs[0] + added[0]).max(TARDINESS_MIN),
            (self.outputs[1] + added[1]).clamp(DATA_RATIO.0, DATA_RATIO.1),
        ];
        Ok(Observed {
            outputs: Some(outputs),
            applied,
            busy: (outputs[0] * DEADLINE_MS / PERIOD_MS).min(1.0),
            ..Observed::default()
        })
    }

    fn notes(&self) -> Vec<String> {
        let origin = &self.identified.origin;
        let mut notes = vec![format!(
            "simulated plant: identified from {} by {} on {} ({} processors, kernel {}), {}",
            origin.engine, origin.actuator, origin.cpu, origin.cores, origin.kernel, origin.date
        )];
        notes.extend(origin.notes.iter().cloned());
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::super::identified::worked_out;
    use super::super::scenario::Mix;
    use super::*;

    #[test]
    fn speed_has_steps_and_both_inputs_have_limits() {
        let plant = SimPlant::quiet(&worked_out());
        let applied = plant.applied([0.537, 0.7]);
        assert!((applied[0] - 0.55).abs() < 1e-9, "{applied:?}");
        assert_eq!(plant.applied([0.01, 0.01]), [0.1, SWEPT_MIN]);
        assert_eq!(plant.applied([7.0, 1.5]), [1.0, 1.0]);
    }

    #[test]
    fn a_load_acts_at_once_and_ends_at_once() {
        let mut plant = SimPlant::quiet(&worked_out());
        let still = plant
            .sample([0.55, 0.8], Load::NONE)
            .unwrap()
            .outputs
            .unwrap();
        assert!((still[0] - 0.8).abs() < 1e-9 && (still[1] - 0.3).abs() < 1e-9);
        let load = Load::of(Mix::C50D50, 1);
        let loaded = plant.sample([0.55, 0.8], load).unwrap().outputs.unwrap();
        assert!((loaded[0] - still[0] - 0.22).abs() < 1e-9, "{loaded:?}");
        let after = plant
            .sample([0.55, 0.8], Load::NONE)
            .unwrap()
            .outputs
            .unwrap();
        assert!((after[0] - still[0]).abs() < 1e-9, "{after:?}");
    }

    #[test]
    fn noise_is_that_of_the_residuals_and_the_seed_repeats_it() {
        let run = |seed| {
            let mut plant = SimPlant::new(&worked_out(), seed);
            (0..2000)
                .map(|_| {
                    plant
                        .sample([0.55, 0.8], Load::NONE)
                        .unwrap()
                        .outputs
                        .unwrap()[0]
                })
                .collect::<Vec<_>>()
        };
        let one = run(1);
        assert_eq!(one, run(1));
        assert_ne!(one, run(2));
        let mean = one.iter().sum::<f64>() / one.len() as f64;
        let deviation =
            one.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / one.len() as f64;
        assert!((mean - 0.8).abs() < 0.02, "{mean}");
        assert!(
            (0.015..0.035).contains(&deviation.sqrt()),
            "{}",
            deviation.sqrt()
        );
    }
}
