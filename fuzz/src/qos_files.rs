//! The body of the fuzz target `qos_files`. A test of `config` includes this file too and runs the committed corpus
//! through it.

use actuator::Saved;
use config::qos::{Gains, Identified};
use control::controller::Mode;
use control::identify::Sample;

/// The file of a model contains a run.
const RUN: Sample = Sample {
    outputs: [0.8, 0.3],
    inputs: [0.5, 0.75],
};

/// A file of saved settings, of a model or of gains; the first byte selects which.
pub(crate) fn qos_files(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match (kind % 4, std::str::from_utf8(bytes)) {
        (0, _) => settings(bytes),
        // With the valid checksum, which no fuzzer finds.
        (3, _) => {
            let sum = format!("end {:08x}\n", crc32c::crc32c(bytes));
            settings(&[bytes, sum.as_bytes()].concat());
        }
        (1, Ok(text)) => model(text),
        (2, Ok(text)) => gains(text),
        _ => {}
    }
}

/// Accepted settings are written, in the newest form, and read back equal.
fn settings(bytes: &[u8]) {
    let Ok(saved) = Saved::parse(bytes, &[]) else {
        return;
    };
    let text = match saved.text() {
        Ok(text) => text,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(Saved::parse(text.as_bytes(), &[]), Ok(saved));
}

fn is_line((wrong, remedy): &(String, &'static str)) {
    assert!(!wrong.contains('\n') && wrong.len() < 12_000, "{wrong}");
    assert!(!remedy.is_empty());
}

fn model(text: &str) {
    match Identified::parse(text) {
        Ok(found) => assert_eq!(Identified::parse(&found.text(&[RUN])), Ok(found)),
        Err(wrong) => is_line(&wrong),
    }
}

/// With any accepted gains, the control law keeps both inputs in their ranges.
fn gains(text: &str) {
    let found = match Gains::parse(text) {
        Ok(found) => found,
        Err(wrong) => return is_line(&wrong),
    };
    assert_eq!(Gains::parse(&found.text()), Ok(found.clone()));
    let limits = found.identified.limits;
    for mode in [Mode::Open, Mode::SpeedOnly, Mode::AdmissionOnly, Mode::Both] {
        if !found.is_for(mode) {
            continue;
        }
        let mut law = match found.controller([0.5; 2], 3) {
            Ok(law) => law,
            Err(error) => panic!("taken and then refused: {error}"),
        };
        law.set_mode(mode);
        for outputs in [
            Some([0.0, 0.0]),
            Some([1e300, 1.0]),
            None,
            Some([0.8, 0.3]),
            Some([f64::NAN, 0.3]),
            Some([4.0, 1.0]),
        ] {
            for _ in 0..5 {
                let [speed, admitted] = law.step(outputs).inputs;
                assert!((limits.speed_min..=1.0).contains(&speed), "{speed}");
                assert!(
                    (limits.admission_min..=1.0).contains(&admitted),
                    "{admitted}"
                );
            }
        }
    }
}
