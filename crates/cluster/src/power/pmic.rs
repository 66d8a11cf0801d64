//! The power chip of a Raspberry Pi 5, as `vcgencmd pmic_read_adc` prints it: volts and amperes of the rails behind the
//! chip. The USB-C input has a voltage and no current, so the board's power is not measured. It is modelled after a fit
//! by the community: 1.1451 × the sum of the rails + 0.5879 W.

use super::source::{Meaning, Power, Source};
use base::clock::{Clock, SystemClock};
use base::error::io_text;
use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Timeout of the firmware's program, which answers within milliseconds. A rank that waits for it reports nothing
/// meanwhile.
const TIME_MAX: Duration = Duration::from_secs(1);

/// Largest number of rails of one reading.
const RAILS_MAX: usize = 64;

/// Largest size of one reading, in bytes.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// Smallest number of pairs of volts and amperes in a reading; a Raspberry Pi 5 has twelve. Fewer pairs indicate a text
/// that was cut.
const PAIRS_MIN: usize = 10;

const SLOPE: f64 = 1.1451;
const OFFSET_W: f64 = 0.5879;

/// Runs the command that prints the rails; returns the text, or why there is none.
pub type PmicText = Box<dyn FnMut() -> Result<String, String> + Send>;

/// The power chip.
pub struct Pmic {
    text: PmicText,
}

impl Pmic {
    /// Creates a chip whose text comes from a command.
    #[must_use]
    pub fn new(text: PmicText) -> Self {
        Self { text }
    }

    /// Creates the chip of this board, which is read with the firmware's program.
    #[must_use]
    pub fn of_this_board() -> Self {
        Self::new(Box::new(command_text))
    }
}

/// Runs the firmware's program.
fn command_text() -> Result<String, String> {
    let mut child = Command::new("vcgencmd")
        .arg("pmic_read_adc")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("vcgencmd: {}", io_text(&error)))?;
    let clock = SystemClock::new();
    let end_ns = clock.monotonic_ns() + TIME_MAX.as_nanos() as u64;
    // Its answer is smaller than the pipe, so it can end before the answer is read.
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if clock.monotonic_ns() < end_ns => {
                std::thread::sleep(Duration::from_millis(1))
            }
            Ok(None) => {
                let millis = TIME_MAX.as_millis();
                break Err(format!("vcgencmd does not end within {millis} ms"));
            }
            Err(error) => break Err(format!("vcgencmd: {}", io_text(&error))),
        }
    };
    let status = ended.inspect_err(|_| {
        child.kill().ok();
        child.wait().ok();
    })?;
    if !status.success() {
        return Err(format!(
            "vcgencmd ended with {status}: is this a Raspberry Pi 5?"
        ));
    }
    let mut text = String::new();
    let output = child.stdout.take().ok_or("vcgencmd has no output")?;
    output
        .take(TEXT_BYTES_MAX as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|error| format!("vcgencmd: {}", io_text(&error)))?;
    Ok(text)
}

impl Source for Pmic {
    fn name(&self) -> &str {
        "pi5 pmic"
    }

    fn covers(&self) -> &str {
        "the board without what hangs on its USB ports"
    }

    fn meaning(&self) -> Meaning {
        Meaning::Moment
    }

    fn read(&mut self, _now_ns: u64) -> Power {
        match (self.text)().and_then(|text| parse_pmic(&text)) {
            Ok(sum_w) => Power::Modelled {
                watts: SLOPE * sum_w + OFFSET_W,
                source: format!(
                    "rails of the PMIC, {SLOPE} x {sum_w:.3} W + {OFFSET_W} W, a fit of the community"
                ),
            },
            Err(why) => Power::unavailable(why),
        }
    }
}

/// Returns the sum of volts × amperes over rails that have both.
///
/// Lines are `3V7_WL_SW_A current(0)=0.08001108A`, in one firmware without the channel's number or the unit, and
/// others.
///
/// # Errors
/// Too long a text, an invalid number, or fewer rails than a Raspberry Pi 5 has.
pub fn parse_pmic(text: &str) -> Result<f64, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!(
            "the reading has {} bytes, at most {TEXT_BYTES_MAX}",
            text.len()
        ));
    }
    let mut rails: BTreeMap<&str, (Option<f64>, Option<f64>)> = BTreeMap::new();
    for line in text.lines() {
        let Some((left, value)) = line.split_once('=') else {
            continue;
        };
        let mut words = left.split_whitespace();
        let (Some(name), Some(kind)) = (words.next(), words.next()) else {
            continue;
        };
        let is_current = kind.starts_with("current");
        if !is_current && !kind.starts_with("volt") {
            continue;
        }
        let digits = value.trim().trim_end_matches(['A', 'V']);
        let number = digits
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite());
        let number =
            number.ok_or_else(|| format!("`{}` has no number", crate::error::excerpt(line)))?;
        let rail = name
            .strip_suffix("_A")
            .or(name.strip_suffix("_V"))
            .unwrap_or(name);
        let pair = rails.entry(rail).or_default();
        let place = if is_current { &mut pair.1 } else { &mut pair.0 };
        if place.replace(number).is_some() {
            return Err(format!(
                "the rail {} stands there twice",
                crate::error::excerpt(rail)
            ));
        }
        if rails.len() > RAILS_MAX {
            return Err(format!("more than {RAILS_MAX} rails"));
        }
    }
    let pairs = rails
        .values()
        .filter_map(|(volts, amperes)| Some((*volts)? * (*amperes)?));
    let powers: Vec<f64> = pairs.collect();
    if powers.len() < PAIRS_MIN {
        return Err(format!(
            "{} rails with volts and amperes, at least {PAIRS_MIN}",
            powers.len()
        ));
    }
    Ok(powers.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rails(with_numbers: bool, count: usize) -> String {
        let mut text = String::new();
        for (kind, value, letter) in [("current", 0.5, 'A'), ("volt", 0.75, 'V')] {
            for rail in 0..count {
                let (number, unit) = if with_numbers {
                    (format!("({rail})"), letter.to_string())
                } else {
                    Default::default()
                };
                text += &format!("   RAIL{rail}_{letter} {kind}{number}={value:.8}{unit}\n");
            }
        }
        text + "     EXT5V_V volt(24)=5.14220000V\n      BATT_V volt(25)=0.00683500V\n"
    }

    #[test]
    fn both_forms_give_a_modelled_value() {
        for with_numbers in [true, false] {
            let text = rails(with_numbers, 12);
            let mut pmic = Pmic::new(Box::new(move || Ok(text.clone())));
            let Power::Modelled { watts, source } = pmic.read(0) else {
                panic!("not modelled");
            };
            assert!((watts - (1.1451 * 12.0 * 0.375 + 0.5879)).abs() < 1e-9);
            assert!(source.contains("fit of the community"));
        }
    }

    #[test]
    fn a_reading_that_was_cut_or_failed_is_unavailable() {
        let text = rails(true, 12);
        for text in [
            &text[..text.len() / 2],
            "",
            "RAIL_A current(0)=xA\n",
            "Command not registered\n",
        ] {
            assert!(parse_pmic(text).is_err(), "{text}");
        }
        let twice = text.clone() + "RAIL0_A current(0)=1A\n";
        assert!(parse_pmic(&twice).is_err());
        let mut pmic = Pmic::new(Box::new(|| Err("vcgencmd is not there".to_owned())));
        assert_eq!(pmic.read(0), Power::unavailable("vcgencmd is not there"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in "([A-Z0-9_]{1,4} (volt|current)(\\([0-9]\\))?=[0-9.e]{0,6}[AV]?\n){0,30}",
        ) {
            if let Ok(watts) = parse_pmic(&text) {
                prop_assert!(!watts.is_nan());
            }
        }
    }
}
