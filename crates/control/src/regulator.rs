//! The loop that holds the quality of service: figures of a sampling period in, speed and admission out. It joins what
//! the law wants with what machine and database make of it; the caller says when periods end.

use std::fmt::{self, Display};

use crate::actuator::Actuator;
use crate::controller::{ADMISSION, Controller, Mode, SPEED, Saturation};
use crate::figures::Figures;
use crate::identify::{HALF_PERIODS, SAMPLES_MIN, Sample, square_wave};

/// Consecutive periods without an instance after which an identification is given up, and a loop without gains is
/// blind.
const MISSING_MAX: u32 = 3;

/// Consecutive periods with another speed than the machine was told, after which an identification is given up. A
/// reading just after a change may be too early; the one of the next period is not.
const DISOBEYED_MAX: u32 = 2;

/// Greatest number of driven periods of an identification.
pub const DRIVEN_MAX: u32 = 2_000;

/// Greatest number of periods in which it only observes first.
pub const PROFILED_MAX: u32 = 200;

/// How the inputs are driven to find the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excitation {
    /// Periods at full speed with all updates, which give the least data response ratio.
    pub profiled: u32,
    /// Periods in which both inputs are driven.
    pub driven: u32,
    /// The middle of each input's square wave.
    pub center: [f64; 2],
    /// The amplitude of each square wave.
    pub amplitude: [f64; 2],
}

/// Why an excitation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExcitationError {
    /// Too short or too long.
    #[error(
        "the run must have {SAMPLES_MIN} to {DRIVEN_MAX} driven periods and 1 to {PROFILED_MAX} before them"
    )]
    Length,
    /// An input would leave its range, or not move.
    #[error(
        "the square wave of {0} must stay above {1} % and up to 100 %, and move by at least 2 %"
    )]
    Range(&'static str, u32),
}

impl Excitation {
    /// Checks whether it can be run. `least` is the least value of each input.
    ///
    /// # Errors
    /// [`ExcitationError`].
    pub fn check(&self, least: [f64; 2]) -> Result<(), ExcitationError> {
        let is_long_enough = self.driven as usize >= SAMPLES_MIN
            && self.driven <= DRIVEN_MAX
            && (1..=PROFILED_MAX).contains(&self.profiled);
        if !is_long_enough {
            return Err(ExcitationError::Length);
        }
        for (input, name) in [(SPEED, "the speed"), (ADMISSION, "the admitted fraction")] {
            let (center, amplitude) = (self.center[input], self.amplitude[input]);
            // Leave a little room for the rounding of percentages.
            let is_inside = center - amplitude >= least[input] - 1e-9
                && center + amplitude <= 1.0 + 1e-9
                && amplitude >= 0.01 - 1e-9;
            // This form also refuses NaN.
            if !is_inside {
                let percent = (least[input] * 100.0).round() as u32;
                return Err(ExcitationError::Range(name, percent));
            }
        }
        Ok(())
    }
}

/// The measurements of an identification.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Outputs of the periods at full speed with all updates.
    pub profiled: Vec<[f64; 2]>,
    /// The driven periods.
    pub driven: Vec<Sample>,
}

impl Run {
    /// Returns the profiled minimum of the data response ratio: the value that a tenth of the profiled periods is
    /// below. The very least value would be that of a lucky moment, which no controller can hold.
    #[must_use]
    pub fn data_ratio_min(&self) -> Option<f64> {
        let mut ratios: Vec<f64> = self.profiled.iter().map(|outputs| outputs[1]).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 10).copied()
    }
}

/// The state of an identification.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Identification {
    /// There is none.
    #[default]
    None,
    /// It runs.
    Running(Excitation, Run),
    /// It has ended, and this is what it measured.
    Done(Run),
    /// It was given up, for this reason.
    GivenUp(String),
}

/// The result of a period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The inputs in force from now on: speed and admitted fraction as they were applied.
    pub inputs: [f64; 2],
    /// Where inputs are held at their limits.
    pub held: [Saturation; 2],
    /// Whether one input holds tardiness alone because the other one is at its limit.
    pub is_single: bool,
    /// Whether there are no samples, so that everything is at full.
    pub is_blind: bool,
    /// Whether the model predicts what is measured.
    pub is_model_true: bool,
    /// Whether the machine did what it was told.
    pub is_obeyed: bool,
}

impl Decision {
    /// Whether both inputs are at their limits.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.held.iter().all(|held| *held != Saturation::Free)
    }
}

/// Everything at full.
const FULL: [f64; 2] = [1.0, 1.0];

/// What an actuator is requested to do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    /// To leave the machine as it found it.
    Nothing,
    /// This speed.
    Speed(f64),
}

/// The loop: an actuator, a law once there are gains, and its present activity.
pub struct Regulator<E: Display> {
    actuator: Box<dyn Actuator<Error = E>>,
    controller: Option<Controller>,
    mode: Mode,
    identification: Identification,
    /// The last request to the actuator; `None` if it failed, or if there was none yet.
    asked: Option<Asked>,
    /// The last fraction that was requested from the admission.
    admitted: Option<f64>,
    decision: Decision,
    missing: u32,
    /// Consecutive periods without an instance while there was no law to count them.
    unseen: u32,
    /// Consecutive times that the machine made another speed of the one that it was told.
    disobeyed: u32,
    failures: u64,
    last_failure: Option<E>,
}

impl<E: Display> fmt::Debug for Regulator<E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Regulator")
            .field("actuator", &self.actuator.name())
            .field("mode", &self.mode)
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}

impl<E: Display> Regulator<E> {
    /// Makes a loop without gains: full speed, all updates. Nothing is set before the first period.
    #[must_use]
    pub fn new(actuator: Box<dyn Actuator<Error = E>>) -> Self {
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

    /// Takes another actuator: the tasks whose processors it drives have changed. The old one restores what it found.
    pub fn set_actuator(&mut self, actuator: Box<dyn Actuator<Error = E>>) {
        let mut old = std::mem::replace(&mut self.actuator, actuator);
        self.note(old.restore().err());
        self.asked = None;
    }

    /// Takes gains, from the next period on; `None` removes them.
    pub fn set_controller(&mut self, controller: Option<Controller>) {
        self.controller = controller;
        if let Some(controller) = &mut self.controller {
            controller.applied(self.decision.inputs);
            controller.set_mode(self.mode);
        }
    }

    /// Returns the law, to change its set points.
    pub fn controller(&mut self) -> Option<&mut Controller> {
        self.controller.as_mut()
    }

    /// Takes a changed least fraction that may be admitted: where freshness counts, it follows the rates of the
    /// readings.
    pub fn set_admission_min(&mut self, min: f64) {
        if let Some(controller) = &mut self.controller {
            controller.set_min(ADMISSION, min);
        }
    }

    /// Changes which inputs are driven, from the next period on. Without gains no input is driven.
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

    /// Begins an identification with the next period; the law pauses meanwhile.
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

    /// Gives up an identification for this reason.
    pub fn give_up(&mut self, why: &str) {
        self.stop_identification();
        self.identification = Identification::GivenUp(why.to_owned());
    }

    /// Ends a running identification, and forgets the measurements of one that has ended.
    pub fn stop_identification(&mut self) {
        if let Identification::Running(..) = self.identification {
            self.resume();
        }
        self.identification = Identification::None;
    }

    /// Returns why it is of no use to drive the speed any further.
    fn why_unmoved(&self) -> Option<String> {
        // Only the last request counts: a failure before the identification began is not the cause.
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

    /// Returns the state of the identification.
    #[must_use]
    pub fn identification(&self) -> &Identification {
        &self.identification
    }

    /// Returns the result of the last period.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns the name of the way in which the speed is set.
    #[must_use]
    pub fn actuator_name(&self) -> &'static str {
        self.actuator.name()
    }

    /// Returns the smallest change of speed that has an effect.
    #[must_use]
    pub fn speed_step(&self) -> f64 {
        self.actuator.step()
    }

    /// Returns how many speeds could not be set, and why the last one could not.
    #[must_use]
    pub fn failures(&self) -> (u64, Option<&E>) {
        (self.failures, self.last_failure.as_ref())
    }

    /// Notes a long time without figures: the next period without figures is blind.
    pub fn lose(&mut self) {
        self.unseen = self.unseen.max(MISSING_MAX - 1);
        if let Some(controller) = &mut self.controller {
            controller.lose();
        }
    }

    /// Runs one sampling period, with its figures, or `None` if no instance finished in it. `admit` sets the admitted
    /// fraction and returns what it has become.
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
                                // The outputs follow the inputs that were applied, not those that were wanted.
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

    /// Lets the law continue from the present inputs.
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
            self.decision.held = [Saturation::Free; 2];
            (self.decision.is_single, self.decision.is_model_true) = (false, true);
            // A newly declared task reports only when its first sampling period is over.
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
            // Another mode may have left the machine slow, and nothing would make it faster again.
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

    /// Leaves the machine at its own speed, and admits all updates.
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

    /// Sets both inputs. Returns a reason if it is of no use to go on.
    fn apply_and_look(
        &mut self,
        inputs: [f64; 2],
        admit: &mut dyn FnMut(f64) -> f64,
    ) -> Option<String> {
        self.apply(inputs, admit);
        self.why_unmoved()
    }

    /// Sets both inputs, and notes what they have become. The speed is set even if it is unchanged. So a machine that
    /// no longer obeys, or that another program has set, is found in this period, not at the next change.
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
                // The next period tries again.
                self.asked = None;
                self.decision.is_obeyed = false;
                self.note(Some(error));
            }
        }
        self.admit(inputs[ADMISSION], admit);
    }

    fn admit(&mut self, wanted: f64, admit: &mut dyn FnMut(f64) -> f64) {
        // Set it again in each period: the rates of objects change, and with them the meaning of a fraction of all.
        self.admitted = Some(wanted);
        let became = admit(wanted);
        self.decision.inputs[ADMISSION] = if became.is_finite() { became } else { wanted };
    }

    fn note(&mut self, failure: Option<E>) {
        if failure.is_some() {
            self.failures += 1;
            self.last_failure = failure;
        }
    }

    /// Ends the loop: restores the speed, and admits all updates.
    ///
    /// # Errors
    /// What could not be restored.
    pub fn end(&mut self, admit: &mut dyn FnMut(f64) -> f64) -> Result<(), E> {
        self.identification = Identification::None;
        admit(FULL[ADMISSION]);
        self.actuator.restore()
    }
}

/// Returns the inputs of the next period of an identification; `None` if it is done.
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
mod tests;
