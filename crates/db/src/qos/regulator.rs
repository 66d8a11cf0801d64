//! The loop that holds the quality of service: the figures of a sampling period in, speed and admission out. What the
//! law wants and what machine and database make of it meet here; when periods end is the caller's to say.

use super::actuator::{Actuator, ActuatorError};
use super::controller::{ADMISSION, Controller, Held, Mode, SPEED};
use super::figures::Figures;
use super::identify::{HALF_PERIODS, Sample, square_wave};

/// Periods without an instance after which an identification is given up, and a loop without gains is blind.
const MISSING_MAX: u32 = 3;

/// Periods in a row with another speed than the machine was told, after which an identification is given up: a reading
/// just after a change may be too early, the one of the next period is not.
const DISOBEYED_MAX: u32 = 2;

/// Greatest number of driven periods of an identification.
pub const DRIVEN_MAX: u32 = 2_000;

/// Greatest number of periods in which it looks on first.
pub const PROFILED_MAX: u32 = 200;

/// How the inputs are driven to find the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excitation {
    /// Periods at full speed with all updates, in which the least data response ratio is looked for.
    pub profiled: u32,
    /// Periods in which both inputs are driven.
    pub driven: u32,
    /// The middle of each input's square wave.
    pub center: [f64; 2],
    /// How far it goes from there.
    pub amplitude: [f64; 2],
}

/// Why an excitation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExcitationError {
    /// Too short or too long.
    #[error(
        "the run must have {} to {DRIVEN_MAX} driven periods and 1 to {PROFILED_MAX} before them",
        super::identify::SAMPLES_MIN
    )]
    Length,
    /// An input would leave its range, or not move.
    #[error(
        "the square wave of {0} must stay above {1} % and up to 100 %, and move by at least 2 %"
    )]
    Range(&'static str, u32),
}

impl Excitation {
    /// Whether it can be run. `least` is what each input may be at least.
    ///
    /// # Errors
    /// [`ExcitationError`].
    pub fn check(&self, least: [f64; 2]) -> Result<(), ExcitationError> {
        let is_long_enough = self.driven as usize >= super::identify::SAMPLES_MIN
            && self.driven <= DRIVEN_MAX
            && (1..=PROFILED_MAX).contains(&self.profiled);
        if !is_long_enough {
            return Err(ExcitationError::Length);
        }
        for (input, name) in [(SPEED, "the speed"), (ADMISSION, "the admitted fraction")] {
            let (center, amplitude) = (self.center[input], self.amplitude[input]);
            // A little room for what rounding makes of percentages.
            let is_inside = center - amplitude >= least[input] - 1e-9
                && center + amplitude <= 1.0 + 1e-9
                && amplitude >= 0.01 - 1e-9;
            // Also refuses what is no number.
            if !is_inside {
                let percent = (least[input] * 100.0).round() as u32;
                return Err(ExcitationError::Range(name, percent));
            }
        }
        Ok(())
    }
}

/// What an identification has measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Outputs of the periods at full speed with all updates.
    pub profiled: Vec<[f64; 2]>,
    /// The driven periods.
    pub driven: Vec<Sample>,
}

impl Run {
    /// The profiled minimum of the data response ratio: what a tenth of the profiled periods is below. The very least
    /// one would be that of a lucky moment, which no controller can hold.
    #[must_use]
    pub fn data_ratio_min(&self) -> Option<f64> {
        let mut ratios: Vec<f64> = self.profiled.iter().map(|outputs| outputs[1]).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 10).copied()
    }
}

/// How far an identification is.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Identification {
    /// There is none.
    #[default]
    None,
    /// It runs.
    Running(Excitation, Run),
    /// It has ended, and this is what it measured.
    Done(Run),
    /// It was given up: the words say why.
    GivenUp(String),
}

/// What a period has led to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The inputs in force from now on: speed and admitted fraction as they have become.
    pub inputs: [f64; 2],
    /// Where inputs are held at their limits.
    pub held: [Held; 2],
    /// Whether one input holds tardiness alone because the other one is at its limit.
    pub is_single: bool,
    /// Whether there is nothing to go by, so that everything is at full.
    pub is_blind: bool,
    /// Whether the model predicts what is measured.
    pub is_model_true: bool,
    /// Whether the machine did what it was told.
    pub is_obeyed: bool,
}

impl Decision {
    /// Whether no input has anything left.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.held.iter().all(|held| *held != Held::Free)
    }
}

/// Everything at full.
const FULL: [f64; 2] = [1.0, 1.0];

/// What an actuator is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    /// To leave the machine as it found it.
    Nothing,
    /// This speed.
    Speed(f64),
}

/// The loop: an actuator, a law once there are gains, and what is done at present.
pub struct Regulator {
    actuator: Box<dyn Actuator>,
    controller: Option<Controller>,
    mode: Mode,
    identification: Identification,
    /// What the actuator was asked for last; `None`: nothing that it did.
    asked: Option<Asked>,
    /// What was asked of the admission last.
    admitted: Option<f64>,
    decision: Decision,
    missing: u32,
    /// Periods in a row without an instance while there was no law to count them.
    unseen: u32,
    /// Times in a row that the machine made another speed of the one that it was told.
    disobeyed: u32,
    failures: u64,
    last_failure: Option<ActuatorError>,
}

impl std::fmt::Debug for Regulator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Regulator")
            .field("actuator", &self.actuator.name())
            .field("mode", &self.mode)
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}

impl Regulator {
    /// A loop without gains: full speed, all updates. Nothing is set before the first period.
    #[must_use]
    pub fn new(actuator: Box<dyn Actuator>) -> Self {
        Self {
            actuator,
            controller: None,
            mode: Mode::Open,
            identification: Identification::None,
            asked: None,
            admitted: None,
            decision: Decision {
                inputs: FULL,
                is_model_true: true,
                is_obeyed: true,
                ..Decision::default()
            },
            missing: 0,
            unseen: 0,
            disobeyed: 0,
            failures: 0,
            last_failure: None,
        }
    }

    /// Takes another actuator: the tasks whose processors it drives have changed. The old one puts back what it found.
    pub fn set_actuator(&mut self, actuator: Box<dyn Actuator>) {
        let mut old = std::mem::replace(&mut self.actuator, actuator);
        self.note(old.restore().err());
        self.asked = None;
    }

    /// Takes gains, from the next period on; `None`: none any more.
    pub fn set_controller(&mut self, controller: Option<Controller>) {
        self.controller = controller;
        if let Some(controller) = &mut self.controller {
            controller.applied(self.decision.inputs);
            controller.set_mode(self.mode);
        }
    }

    /// The law, for set points that change.
    pub fn controller(&mut self) -> Option<&mut Controller> {
        self.controller.as_mut()
    }

    /// The least fraction that may be admitted has changed: with [`Quality::Fresh`](super::admission::Quality) it
    /// follows the rates of the readings.
    pub fn set_admission_min(&mut self, min: f64) {
        if let Some(controller) = &mut self.controller {
            controller.set_min(ADMISSION, min);
        }
    }

    /// Whether there are gains.
    #[must_use]
    pub fn has_controller(&self) -> bool {
        self.controller.is_some()
    }

    /// Changes which inputs are driven, from the next period on. Without gains none is.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        if let Some(controller) = &mut self.controller {
            controller.set_mode(mode);
        }
    }

    /// The mode that was chosen.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Begins an identification with the next period; the law rests meanwhile.
    ///
    /// # Errors
    /// [`ExcitationError`]; nothing changes then.
    pub fn identify(
        &mut self,
        excitation: Excitation,
        least: [f64; 2],
    ) -> Result<(), ExcitationError> {
        excitation.check(least)?;
        (self.missing, self.disobeyed) = (0, 0);
        self.identification = Identification::Running(excitation, Run::default());
        Ok(())
    }

    /// There is no identification, for this reason; what was asked for is over.
    pub fn give_up(&mut self, why: &str) {
        self.stop_identification();
        self.identification = Identification::GivenUp(why.to_owned());
    }

    /// Ends an identification that runs, and forgets what one has measured.
    pub fn stop_identification(&mut self) {
        if let Identification::Running(..) = self.identification {
            self.resume();
        }
        self.identification = Identification::None;
    }

    /// Why there is no use in driving the speed any further.
    fn why_unmoved(&self) -> Option<String> {
        // Just now; what failed before the identification began is not its cause.
        if self.asked.is_none() {
            let why = self.last_failure.as_ref()?;
            return Some(format!("the speed cannot be set: {why}"));
        }
        (self.disobeyed >= DISOBEYED_MAX).then(|| {
            let speed = self.decision.inputs[SPEED] * 100.0;
            let name = self.actuator.name();
            format!("{name} does not set the speed that it is told, it stays at {speed:.0} %")
        })
    }

    /// How far an identification is.
    #[must_use]
    pub fn identification(&self) -> &Identification {
        &self.identification
    }

    /// What the last period has led to.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Which way the speed is set.
    #[must_use]
    pub fn actuator_name(&self) -> &'static str {
        self.actuator.name()
    }

    /// The smallest change of speed that does anything.
    #[must_use]
    pub fn speed_step(&self) -> f64 {
        self.actuator.step()
    }

    /// Speeds that could not be set, and why the last one could not.
    #[must_use]
    pub fn failures(&self) -> (u64, Option<&ActuatorError>) {
        (self.failures, self.last_failure.as_ref())
    }

    /// Says that nothing has been heard for so long that the next period without figures is blind.
    pub fn lose(&mut self) {
        self.unseen = self.unseen.max(MISSING_MAX - 1);
        if let Some(controller) = &mut self.controller {
            controller.lose();
        }
    }

    /// One sampling period: its figures, or `None` when no instance finished in it. `admit` sets the admitted fraction
    /// and says what that has become.
    pub fn period(
        &mut self,
        figures: Option<&Figures>,
        admit: &mut dyn FnMut(f64) -> f64,
    ) -> &Decision {
        let outputs = figures.map(Figures::outputs);
        if let Identification::Running(excitation, run) = &mut self.identification {
            match outputs {
                Some(outputs) => {
                    (self.missing, self.unseen) = (0, 0);
                    self.decision.is_blind = false;
                    match drive(excitation, run, outputs) {
                        Some(inputs) => {
                            if let Some(why) = self.apply_and_look(inputs, admit) {
                                self.give_up(&why);
                            } else {
                                // What was set, not what was wanted, is what the outputs follow.
                                let became = self.decision.inputs;
                                if let Identification::Running(_, run) = &mut self.identification
                                    && let Some(last) = run.driven.last_mut()
                                {
                                    last.inputs = became;
                                }
                                return &self.decision;
                            }
                        }
                        None => {
                            let run = std::mem::take(run);
                            self.identification = Identification::Done(run);
                            self.resume();
                        }
                    }
                }
                None => {
                    self.missing += 1;
                    let why = match self.asked {
                        Some(Asked::Speed(speed)) => {
                            let admitted = self.admitted.unwrap_or(FULL[ADMISSION]);
                            self.apply_and_look([speed, admitted], admit)
                        }
                        _ => None,
                    };
                    match why {
                        Some(why) => self.give_up(&why),
                        None if self.missing < MISSING_MAX => return &self.decision,
                        None => self.give_up("no instance of a task finished for three periods"),
                    }
                }
            }
        }
        self.hold(outputs, admit);
        &self.decision
    }

    /// The law goes on from where the inputs stand.
    fn resume(&mut self) {
        let inputs = self.decision.inputs;
        if let Some(controller) = &mut self.controller {
            controller.set_mode(Mode::Open);
            controller.set_mode(self.mode);
            controller.applied(inputs);
        }
    }

    fn hold(&mut self, outputs: Option<[f64; 2]>, admit: &mut dyn FnMut(f64) -> f64) {
        let Some(controller) = &mut self.controller else {
            self.decision.held = [Held::Free; 2];
            (self.decision.is_single, self.decision.is_model_true) = (false, true);
            // A task that has only just been declared reports when its first sampling period is over.
            self.unseen = match outputs {
                Some(_) => 0,
                None => self.unseen.saturating_add(1),
            };
            self.decision.is_blind = self.unseen >= MISSING_MAX;
            return self.leave_alone(admit);
        };
        let action = controller.step(outputs);
        self.decision.held = action.held;
        self.decision.is_single = action.is_single;
        self.decision.is_blind = action.is_blind;
        self.decision.is_model_true = action.is_model_true;
        if self.mode == Mode::Open {
            return self.leave_alone(admit);
        }
        if self.mode == Mode::AdmissionOnly {
            // Another mode may have left it slow, and nothing would make it faster again.
            self.leave_speed_alone();
            self.admit(action.inputs[ADMISSION], admit);
        } else {
            self.apply(action.inputs, admit);
        }
        let inputs = self.decision.inputs;
        if let Some(controller) = &mut self.controller {
            controller.applied(inputs);
        }
    }

    /// The machine's own speed, all updates.
    fn leave_alone(&mut self, admit: &mut dyn FnMut(f64) -> f64) {
        self.leave_speed_alone();
        self.admit(FULL[ADMISSION], admit);
    }

    fn leave_speed_alone(&mut self) {
        if self.asked != Some(Asked::Nothing) {
            let restored = self.actuator.restore();
            self.decision.is_obeyed = restored.is_ok();
            self.asked = restored.is_ok().then_some(Asked::Nothing);
            self.note(restored.err());
        }
        self.decision.inputs[SPEED] = FULL[SPEED];
    }

    /// Sets both inputs: why there is no use in going on.
    fn apply_and_look(
        &mut self,
        inputs: [f64; 2],
        admit: &mut dyn FnMut(f64) -> f64,
    ) -> Option<String> {
        self.apply(inputs, admit);
        self.why_unmoved()
    }

    /// Sets both inputs, and notes what they have become. The speed is set although it may be as before, so that a
    /// machine that has ceased to obey, or that somebody else has set, is found out in this period and not where the
    /// speed changes next.
    fn apply(&mut self, inputs: [f64; 2], admit: &mut dyn FnMut(f64) -> f64) {
        let speed = inputs[SPEED];
        match self.actuator.set(speed) {
            Ok(applied) => {
                self.asked = Some(Asked::Speed(speed));
                self.decision.inputs[SPEED] = applied.speed;
                self.decision.is_obeyed = applied.is_obeyed;
                self.disobeyed = if applied.is_obeyed {
                    0
                } else {
                    self.disobeyed.saturating_add(1)
                };
            }
            Err(error) => {
                // Tried again with the next period.
                self.asked = None;
                self.decision.is_obeyed = false;
                self.note(Some(error));
            }
        }
        self.admit(inputs[ADMISSION], admit);
    }

    fn admit(&mut self, wanted: f64, admit: &mut dyn FnMut(f64) -> f64) {
        // Each period anew: how often objects come changes, and with it what a fraction of all is.
        self.admitted = Some(wanted);
        let became = admit(wanted);
        self.decision.inputs[ADMISSION] = if became.is_finite() { became } else { wanted };
    }

    fn note(&mut self, failure: Option<ActuatorError>) {
        if failure.is_some() {
            self.failures += 1;
            self.last_failure = failure;
        }
    }

    /// Ends the loop: speed as it was found, all updates.
    ///
    /// # Errors
    /// What could not be put back.
    pub fn end(&mut self, admit: &mut dyn FnMut(f64) -> f64) -> Result<(), ActuatorError> {
        self.identification = Identification::None;
        admit(FULL[ADMISSION]);
        self.actuator.restore()
    }
}

/// The inputs of the next period of an identification; `None`: it is done.
fn drive(excitation: &Excitation, run: &mut Run, outputs: [f64; 2]) -> Option<[f64; 2]> {
    let begun = run.profiled.len() as u32 >= excitation.profiled;
    if !begun {
        run.profiled.push(outputs);
        if (run.profiled.len() as u32) < excitation.profiled {
            return Some(FULL);
        }
        // The first driven inputs; the outputs of this period belong to those before.
        return Some(inputs_of(excitation, 0));
    }
    let driven = run.driven.len() as u32;
    if driven >= excitation.driven {
        return None;
    }
    let inputs = inputs_of(excitation, u64::from(driven) + 1);
    run.driven.push(Sample { outputs, inputs });
    Some(inputs)
}

fn inputs_of(excitation: &Excitation, k: u64) -> [f64; 2] {
    [SPEED, ADMISSION].map(|input| {
        square_wave(
            k,
            HALF_PERIODS[input],
            excitation.center[input],
            excitation.amplitude[input],
        )
        .clamp(0.0, 1.0)
    })
}

#[cfg(test)]
#[path = "regulator_tests.rs"]
mod tests;
