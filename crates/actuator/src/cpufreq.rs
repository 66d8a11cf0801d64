//! Processor frequency, by the files of Linux's cpufreq.
//!
//! If there is a governor `userspace`, it is selected and told the frequency. Otherwise, as with `intel_pstate` and
//! `amd_pstate`, the least and the greatest frequency are set to the same value. A policy may have several processors:
//! all of them get the speed.

use std::path::{Path, PathBuf};

use control::actuator::{Actuator, Applied};

use crate::error::{ActuatorError, SavedError, Unset};
use crate::files::Files;
use crate::lock::Lock;
use crate::saved::{POLICIES, Saved};

/// Part of the greatest frequency: a machine that is further off than this, and than its next step, does not obey.
const TOLERANCE: f64 = 0.05;

/// Steps that are assumed for a machine without a table of frequencies.
const STEPS_OF_RANGE: f64 = 100.0;

/// How the frequency of a policy is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the governor `userspace`.
    Told,
    /// By a range of a single value.
    Clamped,
}

#[derive(Debug)]
struct Policy {
    folder: PathBuf,
    way: Way,
    /// Its frequencies, kHz, ascending; empty if it lists none.
    steps: Vec<u64>,
    least_khz: u64,
    greatest_khz: u64,
}

/// The policies of some processors.
pub struct Cpufreq {
    files: Box<dyn Files>,
    policies: Vec<Policy>,
    saved: Saved,
    /// Settings that an earlier one saved and that do not exist at present.
    left: Saved,
    saved_path: PathBuf,
    /// The file has all settings that are changed.
    is_kept: bool,
    /// The policies are ready to be told a frequency.
    is_begun: bool,
    is_changed: bool,
    /// Released after everything else.
    _lock: Lock,
}

impl std::fmt::Debug for Cpufreq {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Cpufreq")
            .field("policies", &self.policies)
            .finish_non_exhaustive()
    }
}

impl Cpufreq {
    /// Opens the policies below `root` of the processors `cores`. First restores what killed programs have left in
    /// `saved_path`, and where earlier holders of the lock have saved it. Changes nothing else before the first speed
    /// is set. Saved settings that no longer exist stay in their file.
    ///
    /// # Errors
    /// [`SavedError`]; [`ActuatorError::Missing`] if no policy has such a processor. [`ActuatorError::NotPutBack`] if
    /// settings are not what they were before: their present values must not be taken for the original ones.
    pub fn open(
        files: Box<dyn Files>,
        root: &Path,
        cores: &[u32],
        saved_path: &Path,
        lock: Lock,
    ) -> Result<Self, SavedError> {
        // What one of them has set must not be taken for the original value.
        for path in lock.earlier() {
            restore_saved(path, files.as_ref())?;
        }
        let left = match restore_saved(saved_path, files.as_ref())? {
            Some((left, _)) if left.root() == root => left,
            // Settings of another machine must not be mixed with those of this one.
            Some((_, unset)) if !unset.is_empty() => {
                let saved = saved_path.to_owned();
                return Err(ActuatorError::NotPutBack { saved, unset }.into());
            }
            _ => Saved::now(files.as_ref(), root),
        };
        let policies = policies(files.as_ref(), root, cores)?;
        let mut saved = Saved::now(files.as_ref(), root);
        for policy in &policies {
            policy.save(files.as_ref(), &mut saved)?;
        }
        Ok(Self {
            files,
            policies,
            saved,
            left,
            saved_path: saved_path.to_owned(),
            is_kept: false,
            is_begun: false,
            is_changed: false,
            _lock: lock,
        })
    }

    /// Checks whether there are policies of these processors; changes nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn check(files: &dyn Files, root: &Path, cores: &[u32]) -> Result<(), ActuatorError> {
        policies(files, root, cores).map(drop)
    }

    fn begin(&mut self) -> Result<(), ActuatorError> {
        if !self.is_kept {
            // Settings left by an earlier one keep their original value.
            let all = self.left.and(&self.saved);
            all.keep(&self.saved_path)
                .map_err(|error| ActuatorError::saved(&self.saved_path, &error))?;
            self.is_kept = true;
        }
        self.is_changed = true;
        if self.is_begun {
            return Ok(());
        }
        for policy in &self.policies {
            if policy.way == Way::Told {
                write(
                    self.files.as_ref(),
                    &policy.folder,
                    "scaling_governor",
                    "userspace",
                )?;
            }
        }
        self.is_begun = true;
        Ok(())
    }

    fn set_all(&self, speed: f64) -> Result<Applied, ActuatorError> {
        let mut applied = Applied {
            speed: 1.0,
            is_obeyed: true,
        };
        for policy in &self.policies {
            let wanted_khz = policy.nearest(speed * policy.greatest_khz as f64);
            policy.set(self.files.as_ref(), wanted_khz)?;
            let found_khz = number(self.files.as_ref(), &policy.folder, "scaling_cur_freq")?;
            let greatest = policy.greatest_khz as f64;
            let off = (found_khz as f64 - wanted_khz as f64).abs() / greatest;
            let is_obeyed = off <= TOLERANCE;
            // A processor takes a moment: the requested frequency counts, unless the found one is far off.
            let speed = if is_obeyed { wanted_khz } else { found_khz } as f64 / greatest;
            applied = Applied {
                speed: applied.speed.min(speed),
                is_obeyed: applied.is_obeyed && is_obeyed,
            };
        }
        Ok(applied)
    }
}

/// Restores what a killed program has saved in a file; settings that do not exist at present stay there. `None` if
/// there is no such file, or if it is from before the machine was restarted; then it is removed.
fn restore_saved(
    path: &Path,
    files: &dyn Files,
) -> Result<Option<(Saved, Vec<Unset>)>, SavedError> {
    let Some(saved) = Saved::load(path, &[])? else {
        return Ok(None);
    };
    if saved.is_of_another_start(files) {
        Saved::default().keep_or_remove(path)?;
        return Ok(None);
    }
    let unset = saved.put_back(files);
    if unset.iter().any(|unset| !unset.is_gone) {
        let saved = path.to_owned();
        return Err(ActuatorError::NotPutBack { saved, unset }.into());
    }
    let left = saved.only(&unset);
    left.keep_or_remove(path)?;
    Ok(Some((left, unset)))
}

/// Returns the policies of these processors.
fn policies(files: &dyn Files, root: &Path, cores: &[u32]) -> Result<Vec<Policy>, ActuatorError> {
    let folder = root.join(POLICIES);
    let missing = |what| ActuatorError::Missing {
        path: folder.clone(),
        what,
    };
    let names = files
        .list(&folder)
        .map_err(|_| missing("this machine has no cpufreq"))?;
    let mut policies = Vec::new();
    for name in names.iter().filter(|name| name.starts_with("policy")) {
        let policy = folder.join(name);
        let affected = read(files, &policy, "affected_cpus")?;
        let is_ours = affected
            .split_whitespace()
            .filter_map(|core| core.parse().ok())
            .any(|core: u32| cores.contains(&core));
        if is_ours {
            policies.push(Policy::look(files, policy)?);
        }
    }
    if policies.is_empty() {
        return Err(missing("no policy of cpufreq has these processors"));
    }
    Ok(policies)
}

impl Actuator for Cpufreq {
    type Error = ActuatorError;

    fn name(&self) -> &'static str {
        "cpufreq"
    }

    fn set(&mut self, speed: f64) -> Result<Applied, ActuatorError> {
        if !(speed > 0.0 && speed <= 1.0) {
            return Err(ActuatorError::Speed);
        }
        let applied = self.begin().and_then(|()| self.set_all(speed));
        if applied.is_err() {
            // A policy that reappears has the governor that its driver begins with.
            self.is_begun = false;
        }
        applied
    }

    fn step(&self) -> f64 {
        let steps = self.policies.iter().map(Policy::step);
        steps.fold(0.0, f64::max)
    }

    fn restore(&mut self) -> Result<(), ActuatorError> {
        if !self.is_changed {
            return Ok(());
        }
        self.is_begun = false;
        if !self.saved_path.exists() {
            // If the file was removed, the settings of an earlier one in it were taken care of.
            self.left = Saved::now(self.files.as_ref(), self.left.root());
        }
        let unset = self.saved.put_back(self.files.as_ref());
        if !unset.is_empty() {
            // The file keeps all of them.
            let saved = self.saved_path.clone();
            return Err(ActuatorError::NotPutBack { saved, unset });
        }
        self.is_changed = false;
        self.is_kept = false;
        self.left
            .keep_or_remove(&self.saved_path)
            .map_err(|error| ActuatorError::saved(&self.saved_path, &error))
    }
}

impl Drop for Cpufreq {
    /// Restores the settings, also when the program panics. What cannot be restored now is restored by the next start.
    fn drop(&mut self) {
        let _ = self.restore();
    }
}

impl Policy {
    fn look(files: &dyn Files, folder: PathBuf) -> Result<Self, ActuatorError> {
        let governors = read(files, &folder, "scaling_available_governors").unwrap_or_default();
        let way = if governors.split_whitespace().any(|name| name == "userspace") {
            Way::Told
        } else {
            Way::Clamped
        };
        let table = read(files, &folder, "scaling_available_frequencies").unwrap_or_default();
        let mut steps: Vec<u64> = table
            .split_whitespace()
            .filter_map(|step| step.parse().ok())
            .filter(|step| *step > 0)
            .collect();
        steps.sort_unstable();
        steps.dedup();
        let least_khz = number(files, &folder, "cpuinfo_min_freq")?;
        let greatest_khz = number(files, &folder, "cpuinfo_max_freq")?;
        if greatest_khz == 0 || least_khz > greatest_khz {
            return Err(ActuatorError::Missing {
                path: folder,
                what: "it has no range of frequencies",
            });
        }
        Ok(Self {
            folder,
            way,
            steps,
            least_khz,
            greatest_khz,
        })
    }

    /// Saves the present values of what is changed, in the order in which they are restored.
    fn save(&self, files: &dyn Files, saved: &mut Saved) -> Result<(), ActuatorError> {
        let names: &[_] = match self.way {
            Way::Told => &["scaling_setspeed", "scaling_governor"],
            Way::Clamped => &["scaling_max_freq", "scaling_min_freq"],
        };
        for name in names {
            let value = read(files, &self.folder, name)?;
            // Without the governor `userspace` there is no speed to save.
            if value.starts_with('<') {
                continue;
            }
            saved.add(&self.folder.join(name), &value);
        }
        Ok(())
    }

    fn nearest(&self, wanted_khz: f64) -> u64 {
        let nearest = self.steps.iter().copied().min_by(|one, other| {
            let off = |step: u64| (step as f64 - wanted_khz).abs();
            off(*one).total_cmp(&off(*other))
        });
        let khz = nearest.unwrap_or(wanted_khz.round() as u64);
        khz.clamp(self.least_khz, self.greatest_khz)
    }

    fn step(&self) -> f64 {
        let gaps = self.steps.windows(2).map(|pair| pair[1] - pair[0]);
        match gaps.max() {
            Some(gap) => gap as f64 / self.greatest_khz as f64,
            None => 1.0 / STEPS_OF_RANGE,
        }
    }

    fn set(&self, files: &dyn Files, khz: u64) -> Result<(), ActuatorError> {
        let text = khz.to_string();
        match self.way {
            Way::Told => write(files, &self.folder, "scaling_setspeed", &text),
            Way::Clamped => {
                // The least frequency must never be above the greatest.
                let greatest_now = number(files, &self.folder, "scaling_max_freq")?;
                let names = if khz > greatest_now {
                    ["scaling_max_freq", "scaling_min_freq"]
                } else {
                    ["scaling_min_freq", "scaling_max_freq"]
                };
                for name in names {
                    write(files, &self.folder, name, &text)?;
                }
                Ok(())
            }
        }
    }
}

fn read(files: &dyn Files, folder: &Path, name: &str) -> Result<String, ActuatorError> {
    let path = folder.join(name);
    files
        .read(&path)
        .map_err(|error| ActuatorError::file(&path, &error))
}

fn number(files: &dyn Files, folder: &Path, name: &str) -> Result<u64, ActuatorError> {
    let text = read(files, folder, name)?;
    text.parse().map_err(|_| ActuatorError::NoNumber {
        path: folder.join(name),
        text,
    })
}

fn write(files: &dyn Files, folder: &Path, name: &str, text: &str) -> Result<(), ActuatorError> {
    let path = folder.join(name);
    files
        .write(&path, text)
        .map_err(|error| ActuatorError::file(&path, &error))
}

#[cfg(test)]
mod tests;
