//! Power sensors. Each value is measured, modelled or unavailable with the reason; "none" is never shown as zero.
//!
//! Every path is below a [`Root`], which is `/` on a machine and a folder in a test. At each read a sensor is found
//! again by its identity. The number of its folder may belong to another sensor after the next start.
//!
//! **Files:** `rapl.rs` counters of processors, `hwmon.rs` chips on a board, `battery.rs` batteries, `pmic.rs` the
//! power chip of a Raspberry Pi 5, `meter.rs` the file of a meter, `sampler.rs` averages and energy from values,
//! `source.rs` the interface of a sensor, `root.rs` small files below a root.

mod battery;
mod hwmon;
mod meter;
mod pmic;
mod rapl;
mod root;
mod sampler;
mod source;

pub use battery::Battery;
pub use hwmon::Channel;
pub use meter::{Meter, MeterLog, MeterPoint};
pub use pmic::{Pmic, PmicText, parse_pmic};
pub use rapl::Zone;
pub use root::Root;
pub(crate) use root::{read_large, read_text};
pub use sampler::{Phase, Sampler, Summary};
pub use source::{Meaning, Power, SOURCES_MAX, Source};

/// Finds every sensor of a machine that is always read in the same way: processors, chips, batteries. The caller must
/// name a meter's file and the power chip of a Raspberry Pi 5.
#[must_use]
pub fn discover(root: &Root) -> Vec<Box<dyn Source>> {
    let kinds = [
        boxed(hwmon::discover(root)),
        boxed(rapl::discover(root)),
        boxed(battery::discover(root)),
    ];
    kinds.into_iter().flatten().take(SOURCES_MAX).collect()
}

fn boxed<S: Source + 'static>(found: Vec<S>) -> Vec<Box<dyn Source>> {
    found
        .into_iter()
        .map(|one| Box::new(one) as Box<dyn Source>)
        .collect()
}

/// Finds the sensors of a board for one of its ranks: those of [`discover`], and the power chip if it is `pmic`.
/// Returns only those with `wanted` in their name.
///
/// # Errors
/// Why there are none.
pub fn sensors(
    root: &Root,
    pmic: bool,
    wanted: Option<&str>,
) -> Result<Vec<Box<dyn Source>>, String> {
    let mut found = discover(root);
    if pmic {
        found.push(Box::new(Pmic::of_this_board()));
    }
    if found.is_empty() {
        return Err(why_none(root));
    }
    let wanted = wanted.unwrap_or_default();
    found.retain(|source| source.name().contains(wanted));
    if found.is_empty() {
        return Err(format!("no sensor has `{wanted}` in its name"));
    }
    Ok(found)
}

/// Returns why a machine has no sensor, if [`discover`] finds none.
#[must_use]
pub fn why_none(root: &Root) -> String {
    let there = |path: &str| {
        if root.path(path).is_dir() {
            "has none"
        } else {
            "is not there"
        }
    };
    format!(
        "no sensor of power: /sys/class/powercap {}, no INA219, INA226 or INA3221 in /sys/class/hwmon, no battery; \
         name the file of a meter with --meter, or the chip of a Raspberry Pi 5 with --pmic",
        there("sys/class/powercap")
    )
}

#[cfg(test)]
pub(crate) mod fake;

#[cfg(test)]
mod tests {
    use super::*;

    /// Result files hold 256 bytes of a reason.
    #[test]
    fn the_reason_of_a_machine_without_a_sensor_fits_into_a_result_file() {
        let why = why_none(&Root::new("/no/such"));
        assert!(why.len() <= 256, "{} bytes", why.len());
        assert_eq!(crate::host::printable(&why), why);
    }
}
