//! A measured plant as a file: the model, its residuals, and what each load adds. The format is JSON, so that people
//! can read it; `crates/bench/data/README.md` describes the content.

use std::path::Path;

use control::identify::Model;
use serde::{Deserialize, Serialize};

use super::scenario::{ADMITTED_MIN, Load, Mix};
use super::work::Costs;

/// The format identifier at the beginning of a file.
pub(crate) const FORMAT: &str = "evenkeel plant 1";

/// Minimum change of tardiness over the range of an input for the input to have authority.
const AUTHORITY: f64 = 0.1;

/// Maximum size of such a file, in bytes.
const BYTES_MAX: u64 = 4 << 20;

/// Allowed range of the cost of a get, a put or a round of computing, in µs; and the maximum rate of updates, per
/// second.
const COST_US: (f64, f64) = (0.001, 10_000.0);
const UPDATES_MAX: f64 = 100e6;

/// Allowed number of residuals from which noise is drawn.
const RESIDUALS: std::ops::RangeInclusive<usize> = 20..=100_000;

/// One identified plant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Identified {
    pub(crate) format: String,
    /// Its origin: engine, command, machine, date.
    pub(crate) origin: Origin,
    pub(crate) speed_min: f64,
    pub(crate) speed_step: f64,
    pub(crate) model: ModelText,
    /// Errors of the model one step ahead, in time order: tardiness and data response ratio.
    pub(crate) residuals: Vec<[f64; 2]>,
    /// Data response ratio without best-effort transactions, with all updates and the speed at which tardiness is 1.
    pub(crate) data_ratio_min: f64,
    /// What each load adds to the outputs at the same inputs, compared with no load.
    pub(crate) loads: Vec<Added>,
}

/// The origin of a plant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) engine: String,
    pub(crate) command: String,
    pub(crate) cpu: String,
    pub(crate) kernel: String,
    pub(crate) cores: usize,
    pub(crate) actuator: String,
    pub(crate) date: String,
    pub(crate) updates_per_second: f64,
    /// Cost of each kind of work alone, used to size the transactions: a later run on the machine makes the same ones.
    #[serde(default)]
    pub(crate) costs: Option<Costs>,
    pub(crate) notes: Vec<String>,
}

/// [`Model`] as text.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelText {
    a: [[f64; 2]; 2],
    b: [[f64; 2]; 2],
    inputs: [f64; 2],
    outputs: [f64; 2],
    r2: [f64; 2],
    residual: [f64; 2],
    condition: f64,
    samples: u32,
}

impl From<Model> for ModelText {
    fn from(model: Model) -> Self {
        Self {
            a: model.a,
            b: model.b,
            inputs: model.inputs,
            outputs: model.outputs,
            r2: model.r2,
            residual: model.residual,
            condition: model.condition,
            samples: model.samples,
        }
    }
}

impl From<ModelText> for Model {
    fn from(text: ModelText) -> Self {
        Self {
            a: text.a,
            b: text.b,
            inputs: text.inputs,
            outputs: text.outputs,
            r2: text.r2,
            residual: text.residual,
            condition: text.condition,
            samples: text.samples,
        }
    }
}

/// What a load adds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Added {
    pub(crate) mix: String,
    pub(crate) cores: u32,
    pub(crate) outputs: [f64; 2],
    /// The number of sampling periods in the mean.
    pub(crate) samples: u32,
}

impl Identified {
    pub(crate) fn model(&self) -> Model {
        self.model.into()
    }

    /// Reads a file. Rejects values that no plant can have.
    ///
    /// # Errors
    /// One line that names the file and what is wrong.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let failed = |what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
        let bytes = std::fs::metadata(path)
            .map_err(|error| failed(&error))?
            .len();
        if bytes > BYTES_MAX {
            return Err(failed(&"too long for the file of a plant"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
        Self::parse(&text).map_err(|error| failed(&error))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let plant: Self = serde_json::from_str(text).map_err(|error| {
            format!(
                "is no file of a plant ({error}); name the identified.json that `keel qos experiment identification \
                 --plant real` has written"
            )
        })?;
        plant.check()?;
        Ok(plant)
    }

    pub(crate) fn text(&self) -> Result<String, String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        Ok(text + "\n")
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("its form is '{}', not '{FORMAT}'", self.format));
        }
        let model = &self.model;
        let matrices = model.a.iter().chain(&model.b).flatten();
        let points = model.inputs.iter().chain(&model.outputs);
        let noise = self.residuals.iter().flatten();
        let added = self.loads.iter().flat_map(|load| &load.outputs);
        if !matrices
            .chain(points)
            .chain(noise)
            .chain(added)
            .all(|value| value.is_finite())
        {
            return Err("a figure of it is no number".to_owned());
        }
        let is_cost = self.origin.costs.is_none_or(|costs| {
            let all = [costs.get_us, costs.put_us, costs.compute_us];
            all.iter()
                .all(|cost| (COST_US.0..=COST_US.1).contains(cost))
        });
        let is_rate = (0.0..=UPDATES_MAX).contains(&self.origin.updates_per_second);
        if !(is_cost && is_rate) {
            return Err(
                "its costs or its updates in a second are none that a machine has".to_owned(),
            );
        }
        let is_step = self.speed_step > 0.0 && self.speed_step <= 0.5;
        if !(is_step && self.speed_min > 0.0 && self.speed_min < 1.0) {
            return Err("speed_min and speed_step lie between 0 and 1".to_owned());
        }
        let is_ratio = self.data_ratio_min > 0.0 && self.data_ratio_min < 1.0;
        if !is_ratio {
            return Err("data_ratio_min lies between 0 and 1".to_owned());
        }
        if !RESIDUALS.contains(&self.residuals.len()) {
            return Err(format!(
                "{} residuals; {} to {} are needed",
                self.residuals.len(),
                RESIDUALS.start(),
                RESIDUALS.end()
            ));
        }
        if self.added_by(Mix::C50D50).is_none() {
            return Err("it does not say what one processor of C50-D50 adds".to_owned());
        }
        Ok(())
    }

    /// Returns the static gain from inputs to settled outputs: (1 - A)⁻¹ B.
    fn gain(&self) -> [[f64; 2]; 2] {
        let (a, b) = (self.model.a, self.model.b);
        let (p, q, r, s) = (1.0 - a[0][0], -a[0][1], -a[1][0], 1.0 - a[1][1]);
        let determinant = p * s - q * r;
        let inverse = [
            [s / determinant, -q / determinant],
            [-r / determinant, p / determinant],
        ];
        [0, 1].map(|row| {
            [0, 1].map(|column| inverse[row][0] * b[0][column] + inverse[row][1] * b[1][column])
        })
    }

    /// Returns the outputs at which the model settles with these inputs under a load.
    pub(crate) fn settled(&self, inputs: [f64; 2], load: Load) -> Result<[f64; 2], String> {
        let (gain, added) = (self.gain(), self.added(load)?);
        let change = [0, 1].map(|input| inputs[input] - self.model.inputs[input]);
        Ok([0, 1].map(|output| {
            self.model.outputs[output]
                + gain[output][0] * change[0]
                + gain[output][1] * change[1]
                + added[output]
        }))
    }

    /// Returns the speed at which tardiness settles at a goal, without limits.
    pub(crate) fn speed_for(
        &self,
        tardiness: f64,
        admitted: f64,
        load: Load,
    ) -> Result<f64, String> {
        let center = self.model.inputs[0];
        let settled = self.settled([center, admitted], load)?;
        Ok(center + (tardiness - settled[0]) / self.gain()[0][0])
    }

    /// Whether the inputs can control tardiness at a goal under a load and have an effect. This is a change of at least
    /// 0.1 over the range of one of them.
    pub(crate) fn is_in_reach(&self, tardiness: f64, load: Load) -> Result<bool, String> {
        let gain = self.gain();
        let ranges = [1.0 - self.speed_min, 1.0 - ADMITTED_MIN];
        let has_authority = (0..2).any(|input| (gain[0][input] * ranges[input]).abs() >= AUTHORITY);
        let corners = [
            [self.speed_min, 1.0],
            [self.speed_min, ADMITTED_MIN],
            [1.0, 1.0],
            [1.0, ADMITTED_MIN],
        ];
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for corner in corners {
            let settled = self.settled(corner, load)?[0];
            (least, most) = (least.min(settled), most.max(settled));
        }
        Ok(has_authority && least < tardiness && tardiness < most)
    }

    fn added_by(&self, mix: Mix) -> Option<[f64; 2]> {
        let of_one = |added: &&Added| added.mix == mix.name() && added.cores == 1;
        self.loads.iter().find(of_one).map(|added| added.outputs)
    }

    /// Returns what a load adds to the outputs. A load that was not measured counts once per processor, as if each
    /// processor added the same.
    ///
    /// # Errors
    /// If the mix was not measured at all.
    pub(crate) fn added(&self, load: Load) -> Result<[f64; 2], String> {
        if load == Load::NONE {
            return Ok([0.0; 2]);
        }
        let name = load.mix.name();
        let measured = self
            .loads
            .iter()
            .find(|added| added.mix == name && added.cores == load.cores);
        if let Some(added) = measured {
            return Ok(added.outputs);
        }
        let one = self
            .added_by(load.mix)
            .ok_or_else(|| format!("the plant's file does not say what {name} adds"))?;
        Ok(one.map(|added| added * f64::from(load.cores)))
    }
}

/// A calculated plant that was not measured anywhere, for tests of the arithmetic that uses it.
#[cfg(test)]
pub(crate) fn worked_out() -> Identified {
    let mut random = base::sim::Random::new(3);
    let mut normal = || (0..12).map(|_| random.unit_f64()).sum::<f64>() - 6.0;
    let residuals = (0..400)
        .map(|_| [0.02 * normal(), 0.01 * normal()])
        .collect();
    let added = |mix: Mix, outputs| Added {
        mix: mix.name().to_owned(),
        cores: 1,
        outputs,
        samples: 30,
    };
    Identified {
        format: FORMAT.to_owned(),
        origin: Origin::default(),
        speed_min: 0.1,
        speed_step: 0.05,
        model: ModelText {
            a: [[0.35, 0.10], [0.02, 0.40]],
            b: [[-0.90, 0.45], [0.12, 0.30]],
            inputs: [0.55, 0.8],
            outputs: [0.8, 0.3],
            r2: [0.99, 0.98],
            residual: [0.02, 0.01],
            condition: 3.7,
            samples: 400,
        },
        residuals,
        data_ratio_min: 0.33,
        loads: vec![
            added(Mix::C90D10, [0.04, 0.006]),
            added(Mix::C70D30, [0.12, 0.018]),
            added(Mix::C50D50, [0.22, 0.03]),
            added(Mix::C30D70, [0.30, 0.05]),
            added(Mix::C10D90, [0.38, 0.07]),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plant_comes_back_from_its_file() {
        let plant = worked_out();
        assert_eq!(Identified::parse(&plant.text().unwrap()).unwrap(), plant);
    }

    #[test]
    fn an_impossible_plant_is_refused() {
        let broken = |change: &dyn Fn(&mut Identified)| {
            let mut plant = worked_out();
            change(&mut plant);
            Identified::parse(&plant.text().unwrap()).unwrap_err()
        };
        assert!(broken(&|plant| plant.format = "evenkeel plant 2".to_owned()).contains("form"));
        assert!(broken(&|plant| plant.speed_step = 0.0).contains("speed_step"));
        assert!(broken(&|plant| plant.origin.updates_per_second = f64::MAX).contains("updates"));
        let costs = Costs {
            get_us: 0.0,
            put_us: 1.0,
            compute_us: 1.0,
        };
        assert!(broken(&|plant| plant.origin.costs = Some(costs)).contains("costs"));
        assert!(broken(&|plant| plant.data_ratio_min = 1.5).contains("data_ratio_min"));
        assert!(broken(&|plant| plant.residuals.truncate(3)).contains("3 residuals"));
        assert!(broken(&|plant| plant.loads.clear()).contains("C50-D50"));
        let text = worked_out().text().unwrap();
        assert!(Identified::parse(&text.replace("0.35", "null")).is_err());
        assert!(Identified::parse(&text[..text.len() / 2]).is_err());
    }

    #[test]
    fn a_plant_settles_where_its_model_does() {
        use super::super::scenario::Plant;
        let identified = worked_out();
        let load = Load::of(Mix::C10D90, 1);
        let mut plant = super::super::sim::SimPlant::quiet(&identified);
        let mut last = [0.0; 2];
        for _ in 0..200 {
            last = plant.sample([0.8, 0.6], load).unwrap().outputs.unwrap();
        }
        let settled = identified.settled([0.8, 0.6], load).unwrap();
        assert!(
            (0..2).all(|output| (settled[output] - last[output]).abs() < 1e-9),
            "{settled:?} {last:?}"
        );
        let speed = identified.speed_for(1.0, 0.6, load).unwrap();
        assert!((identified.settled([speed, 0.6], load).unwrap()[0] - 1.0).abs() < 1e-9);
        assert!(identified.is_in_reach(1.0, load).unwrap());
        assert!(
            !identified
                .is_in_reach(1.0, Load::of(Mix::C10D90, 9))
                .unwrap()
        );
    }

    #[test]
    fn loads_that_were_not_measured_count_by_their_processors() {
        let plant = worked_out();
        assert_eq!(plant.added(Load::NONE), Ok([0.0; 2]));
        assert_eq!(plant.added(Load::of(Mix::C50D50, 1)), Ok([0.22, 0.03]));
        assert_eq!(plant.added(Load::of(Mix::C50D50, 3)), Ok([0.66, 0.09]));
        let mut without = worked_out();
        without.loads.retain(|added| added.mix == "C50-D50");
        assert!(without.added(Load::of(Mix::C10D90, 1)).is_err());
    }
}
