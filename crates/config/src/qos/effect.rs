//! The effect of `[qos]` in a configuration: the gains that drive a node, or why there are none. The effect has also
//! the mode in which it starts, and missing features of the machine. `keel config check` prints it, and the node logs
//! it at its start.

use super::file::Gains;
use super::names::{actuator_name, mode_name};
use crate::{ActuatorKind, QosConfig};
use actuator::RtGroup;
use control::controller::Mode;
use std::path::Path;

/// The gains that a configuration names.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The gains; `None` if none are named, or if they cannot be used.
    pub gains: Option<Gains>,
    /// Why the named gains cannot be used.
    pub error: Option<String>,
}

impl Loaded {
    /// Reads the gains file that the configuration names, if any.
    #[must_use]
    pub fn of(config: &QosConfig) -> Self {
        let Some(path) = &config.gains else {
            return Self::default();
        };
        let read = Gains::load(path).map_err(|error| error.to_string());
        let fitting = read.and_then(|gains| match foreign(&gains, config) {
            None => Ok(gains),
            Some(wrong) => Err(format!("{}: {wrong}", path.display())),
        });
        match fitting {
            Ok(gains) => Self {
                gains: Some(gains),
                error: None,
            },
            Err(error) => Self {
                gains: None,
                error: Some(error),
            },
        }
    }

    /// Returns the mode that the configuration requests, or `open` and the reason.
    #[must_use]
    pub fn mode(&self, config: &QosConfig) -> (Mode, Option<String>) {
        let wanted = config.mode;
        match mode_refused(wanted, self.gains.as_ref(), self.error.as_deref(), config) {
            None => (wanted, None),
            Some((wrong, remedy)) => {
                let name = mode_name(wanted);
                let why = format!("the mode {name} cannot be: {wrong}; {remedy}");
                (Mode::Open, Some(why))
            }
        }
    }
}

/// Returns why gains do not fit this configuration. A model that was measured with another sampling period or another
/// actuator describes a different system: its gains would react too late, or too strongly.
fn foreign(gains: &Gains, config: &QosConfig) -> Option<String> {
    let made = &gains.identified;
    let again = "identify and design again";
    if made.sampling_period_ms != config.sampling_period_ms {
        return Some(format!(
            "was made for periods of {} ms, and qos.sampling_period_ms is {}; {again}, or set that to {0}",
            made.sampling_period_ms, config.sampling_period_ms
        ));
    }
    // With `none` only the updates are driven, and `auto` takes the actuator of the gains.
    let is_any = matches!(config.actuator, ActuatorKind::None | ActuatorKind::Auto);
    let is_same = made.kind().is_ok_and(|kind| kind == config.actuator);
    (!is_any && !is_same).then(|| {
        format!(
            "was made with the actuator {}, and qos.actuator is {}; {again}, or set that to {0}",
            made.actuator,
            actuator_name(config.actuator)
        )
    })
}

/// Returns why a node cannot be in a mode, and the remedy. `error`: why its gains cannot be used.
#[must_use]
pub fn mode_refused(
    mode: Mode,
    gains: Option<&Gains>,
    error: Option<&str>,
    config: &QosConfig,
) -> Option<(String, String)> {
    if mode == Mode::Open {
        return None;
    }
    let Some(gains) = gains else {
        return Some(match error {
            Some(error) => (format!("the gains cannot be used: {error}"), String::new()),
            None => (
                "there are no gains".to_owned(),
                "make some with `keel qos identify` and `keel qos design`, name them in qos.gains and send the \
                 node SIGHUP"
                    .to_owned(),
            ),
        });
    };
    if !gains.is_for(mode) {
        let wrong = match mode {
            Mode::Both if gains.identified.model.check().is_ok() => {
                "the gains are for one input at a time"
            }
            Mode::Both => "the model explains the data response ratio too little",
            Mode::SpeedOnly => "by the model the speed alone cannot hold tardiness",
            _ => "by the model updates alone cannot hold tardiness",
        };
        let others: Vec<&str> = [Mode::SpeedOnly, Mode::AdmissionOnly, Mode::Both]
            .into_iter()
            .filter(|other| gains.is_for(*other))
            .map(mode_name)
            .collect();
        let remedy = if others.is_empty() {
            "identify under a load that uses the same values".to_owned()
        } else {
            format!(
                "take the mode {}, or identify under a load that uses the same values",
                others.join(" or ")
            )
        };
        return Some((wrong.to_owned(), remedy));
    }
    let drives_speed = matches!(mode, Mode::SpeedOnly | Mode::Both);
    if drives_speed && config.actuator == ActuatorKind::None {
        return Some((
            "nothing sets the speed".to_owned(),
            "name an actuator in qos.actuator and send the node SIGHUP, or take the mode qod-only"
                .to_owned(),
        ));
    }
    None
}

/// Returns one sentence on what a node drives, and how. `mode`: the mode in force.
#[must_use]
pub fn sentence(config: &QosConfig, gains: Option<&Gains>, mode: Mode) -> String {
    let mut said = format!("mode {}", mode_name(mode));
    if mode != config.mode {
        said.push_str(&format!(" (qos.mode is {})", mode_name(config.mode)));
    }
    said.push_str(&format!(", actuator {}", actuator_name(config.actuator)));
    match (gains, &config.gains) {
        (Some(gains), Some(path)) => {
            let tardiness = config.tardiness.unwrap_or(gains.set_points.tardiness);
            let ratio = config.data_ratio.unwrap_or(gains.set_points.data_ratio);
            said.push_str(&format!(
                ", gains {}: tardiness {tardiness:.3}, data response ratio {ratio:.3}",
                path.display()
            ));
        }
        (None, Some(path)) => said.push_str(&format!(", gains {} NOT USED", path.display())),
        (_, None) => said.push_str(", no gains"),
    }
    said
}

/// Returns configured features that the machine lacks.
#[must_use]
pub fn machine_warnings(config: &QosConfig) -> Vec<String> {
    let root = &config.machine_root;
    let shown = root.display();
    if !root.is_dir() {
        return vec![format!(
            "qos.machine_root {shown} is no folder, so no speed can be set; name the one below which sys/ lies"
        )];
    }
    let has_policy = |folder: &Path| {
        std::fs::read_dir(folder).is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|entry| entry.file_name().as_encoded_bytes().starts_with(b"policy"))
            })
        })
    };
    let cpufreq = root.join("sys/devices/system/cpu/cpufreq");
    let rtgroup = RtGroup::places(root).map(|place| place.join("cpu.rt_runtime_us"));
    let missing = match config.actuator {
        ActuatorKind::Cpufreq if !has_policy(&cpufreq) => {
            format!("{} has no policy", cpufreq.display())
        }
        ActuatorKind::RtGroup if !rtgroup.iter().any(|file| file.exists()) => {
            format!("there is no {}", rtgroup[0].display())
        }
        // All Linux systems schedule by deadline; the node finds out whether this user may use it.
        _ => return Vec::new(),
    };
    vec![format!(
        "qos.actuator is {}, and {missing}, so the speed stays as it is; docs/qos.md says which one this machine has",
        actuator_name(config.actuator)
    )]
}

/// Returns the message that nothing is driven although it is configured, and the reason.
#[must_use]
pub fn undriven(gains: Option<&Gains>, why: &str) -> String {
    let of = if gains.is_none() { "qos.gains: " } else { "" };
    format!("nothing is driven: {of}{why}")
}

/// Returns the sentence and the warnings for `keel config check`.
pub(crate) fn look(config: &QosConfig) -> (String, Vec<String>) {
    let loaded = Loaded::of(config);
    let (mode, refused) = loaded.mode(config);
    let mut warnings = machine_warnings(config);
    // If the gains are unusable, the mode is refused for the same reason: report it only once.
    let why = loaded.error.clone().or(refused);
    warnings.extend(why.map(|why| undriven(loaded.gains.as_ref(), &why)));
    (sentence(config, loaded.gains.as_ref(), mode), warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_wherever_the_actuator_finds_them() {
        let root = std::env::temp_dir().join(format!("keel-qos-effect-{}", std::process::id()));
        let config = QosConfig {
            actuator: ActuatorKind::RtGroup,
            machine_root: root.clone(),
            ..crate::Config::parse("", "test", Path::new("/nowhere"))
                .unwrap()
                .qos
        };
        for place in RtGroup::places(&root) {
            std::fs::create_dir_all(&place).unwrap();
            let warnings = machine_warnings(&config);
            assert!(warnings[0].contains("there is no"), "{warnings:?}");
            std::fs::write(place.join("cpu.rt_runtime_us"), "950000\n").unwrap();
            assert_eq!(machine_warnings(&config), [""; 0]);
            std::fs::remove_dir_all(&root).unwrap();
        }
    }
}
