//! Model and gains files: a written file is read back and written again byte for byte; an invalid one is refused with a
//! reason.

use super::*;
use control::design::Weights;
use proptest::prelude::*;

const GAINS_EXAMPLE: &str = include_str!("../../../keel/tests/golden/qos-gains-1.toml");
const MODEL_GOLDEN: &str = include_str!("../../../keel/tests/golden/qos-model-1.toml");

fn identified() -> Identified {
    Identified {
        model: Model {
            a: [[0.35, 0.10], [0.02, 0.40]],
            b: [[-0.90, 0.45], [0.12, 0.30]],
            inputs: [0.55, 0.75],
            outputs: [0.8, 0.3],
            r2: [0.992, 0.9873],
            residual: [0.02, 0.01],
            condition: 3.7,
            samples: 400,
        },
        data_ratio_min: 0.28,
        limits: Limits {
            speed_min: 0.2,
            speed_step: 0.05,
            admission_min: 0.5,
        },
        actuator: "rtgroup".to_owned(),
        sampling_period_ms: 1000,
        machine: "a \"board\" with 4 cores, Linux 6.18".to_owned(),
        made: "2026-11-22T12:00:00Z".to_owned(),
    }
}

fn gains() -> Gains {
    Gains {
        identified: identified(),
        design: Design::new(&identified().model, &Weights::default()).unwrap(),
        set_points: SetPoints {
            tardiness: 0.8,
            data_ratio: 0.28,
        },
    }
}

fn run() -> [Sample; 2] {
    [
        Sample {
            outputs: [0.81, 0.3],
            inputs: [0.7, 0.95],
        },
        Sample {
            outputs: [0.7, 1e-3],
            inputs: [0.4, 0.55],
        },
    ]
}

/// Asserts equality except for the last digits, which depend on the processor's order of additions.
fn assert_like(found: &Gains, expected: &Gains) {
    let near = |one: &[[f64; 2]; 2], other: &[[f64; 2]; 2]| {
        let pairs = one.iter().flatten().zip(other.iter().flatten());
        pairs.fold(0.0, |most: f64, (one, other)| most.max((one - other).abs()))
    };
    assert!(near(&found.design.proportional, &expected.design.proportional) < 1e-9);
    assert!(near(&found.design.integral, &expected.design.integral) < 1e-9);
    assert_eq!(found.identified, expected.identified);
    assert_eq!(found.set_points, expected.set_points);
}

#[test]
fn files_of_version_1_are_read_and_written_as_before() {
    let model = identified().text(&run());
    assert_eq!(model, MODEL_GOLDEN, "what is written now:\n{model}");
    assert_eq!(Identified::parse(MODEL_GOLDEN), Ok(identified()));
    let golden = Gains::parse(GAINS_EXAMPLE).unwrap();
    assert_like(&golden, &gains());
    // Use the numbers of the file unchanged, so that all of it is compared.
    assert_eq!(
        golden.text(),
        GAINS_EXAMPLE,
        "what is written now:\n{}",
        gains().text()
    );
}

#[test]
fn the_loop_of_a_file_is_the_loop_that_was_designed() {
    let made = gains();
    let read = Gains::parse(&made.text()).unwrap();
    assert_eq!(read.design.single, made.design.single);
    for (read, made) in read.design.poles.iter().zip(&made.design.poles) {
        assert!((read[0] - made[0]).abs() < 1e-9);
    }
    read.controller([0.1, 0.1], 3).unwrap();
}

#[test]
fn a_wrong_gains_file_is_refused_in_words() {
    let refused = |from: &str, to: &str| {
        let text = GAINS_EXAMPLE.replacen(from, to, 1);
        assert_ne!(text, GAINS_EXAMPLE, "{from}");
        Gains::parse(&text).unwrap_err().0
    };
    for (from, to, said) in [
        ("version = 1", "version = 2", "version 2"),
        (
            "kind = \"gains\"",
            "kind = \"model\"",
            "is a model file, no gains file",
        ),
        ("speed_min = 0.2", "speed_min = 0.0", "limits"),
        ("speed_min = 0.2", "speed_min = nan", "limits"),
        ("admission_min = 0.5", "admission_min = 1.0", "limits"),
        (
            "data_ratio_min = 0.28",
            "data_ratio_min = 1.5",
            "data_ratio_min is 1.5",
        ),
        (
            "tardiness = 0.8",
            "tardiness = -1.0",
            "set_points: tardiness is -1.0, it lies between 0.05 and 10",
        ),
        (
            "tardiness = 0.8",
            "tardiness = 1e6",
            "set_points: tardiness",
        ),
        (
            "data_ratio = 0.28\n\n# u",
            "data_ratio = 1.0\n\n# u",
            "data_ratio is 1.0",
        ),
        (
            "sampling_period_ms = 1000",
            "sampling_period_ms = 1",
            "sampling_period_ms is 1",
        ),
        ("condition = 3.7", "condition = inf", "no"),
        ("[set_points]", "[set_pionts]", "unknown field `set_pionts`"),
        ("a = [[0.35", "a = [[1e300", "a is 1e300, it lies between"),
        ("a = [[0.35", "a = [[nan", "a is NaN"),
        (
            "inputs = [0.55",
            "inputs = [55.0",
            "inputs: the speed is 55.0",
        ),
        (
            "inputs = [0.55, 0.75",
            "inputs = [0.55, -0.75",
            "inputs: the admitted fraction is -0.75",
        ),
        (
            "outputs = [0.8",
            "outputs = [-3.0",
            "outputs: the tardiness is -3.0",
        ),
        (
            "outputs = [0.8, 0.3",
            "outputs = [0.8, 1.3",
            "outputs: the data response ratio is 1.3",
        ),
        ("r2 = [0.992", "r2 = [1.5", "r2 is 1.5, it is at most 1"),
        ("r2 = [0.992, 0.9873", "r2 = [0.992, -inf", "no number"),
        ("residual = [0.02", "residual = [-0.02", "residual is -0.02"),
        (
            "condition = 3.7",
            "condition = 0.5",
            "condition is 0.5, it is at least 1",
        ),
        ("samples = 400", "samples = 0", "samples is 0"),
        ("riccati_residual = 7", "riccati_residual = -7", "none"),
        (
            "\"rtgroup\"",
            "\"bogus\"",
            "actuator is \"bogus\", it is cpufreq",
        ),
        ("\"rtgroup\"", "\"none\"", "actuator is \"none\""),
        (
            "made = \"2026",
            "made = \"\\u001B[2J2026",
            "made has a control character",
        ),
        (
            "machine = \"a ",
            "machine = \"a \\u009B",
            "machine has a control character",
        ),
        (
            "\n[limits]",
            "run = []\n\n[limits]",
            "run does not belong into a gains file",
        ),
        // With the opposite sign the loop would be unstable.
        ("proportional = [[0.", "proportional = [[-90.", "a pole at"),
        ("proportional = [[0.", "proportional = [[nan, 0.", "none"),
        // For a single input: a pole that differs from that of the gains, and gains whose loop is too slow or unstable.
        (
            "pole_max = 0.506",
            "pole_max = 0.516",
            "pole_max of speed_alone is 0.516030, but its gains have 0.506030",
        ),
        (
            "pole_max = 0.392",
            "pole_max = nan # ",
            "pole_max of admission_alone is NaN",
        ),
        (
            "proportional = 0.895",
            "proportional = 0.795",
            "pole_max of speed_alone is 0.506030, but",
        ),
        (
            "integral = 0.528",
            "integral = 0.001",
            "with the gains of speed_alone the closed loop has a pole at 0.99",
        ),
        (
            "proportional = -1.579",
            "proportional = 9.579",
            "with the gains of admission_alone the closed loop has a pole at",
        ),
        ("integral = 0.528", "integral = nan # ", "none"),
    ] {
        let wrong = refused(from, to);
        assert!(wrong.contains(said), "{from} -> {to}: {wrong}");
        assert!(!wrong.contains("expected one of"), "{wrong}");
    }
    let long = format!("machine = \"{}", "m".repeat(300));
    assert!(refused("machine = \"", &long).contains("longer than 256"));
    assert!(Gains::parse(MODEL_GOLDEN).is_err());
    assert!(Identified::parse(GAINS_EXAMPLE).is_err());
    assert!(Gains::parse("").is_err());
}

#[test]
fn a_wrong_model_file_is_refused() {
    let refused = |from: &str, to: &str| {
        let text = MODEL_GOLDEN.replacen(from, to, 1);
        assert_ne!(text, MODEL_GOLDEN, "{from}");
        Identified::parse(&text).unwrap_err().0
    };
    let rows = "run = [\n  [0.81, 0.3, 0.7, 0.95],\n  [0.7, 0.001, 0.4, 0.55],\n]";
    for (from, to, said) in [
        (rows, "run = []", "missing or empty"),
        (rows, "", "missing or empty"),
        (
            "[0.81, 0.3, 0.7",
            "[-0.81, 0.3, 0.7",
            "run: a tardiness is -0.81",
        ),
        (
            "[0.81, 0.3, 0.7",
            "[0.81, 3.0, 0.7",
            "run: a data response ratio is 3.0",
        ),
        ("[0.81, 0.3, 0.7", "[0.81, 0.3, 70", "run: a speed is 70.0"),
        (
            "0.7, 0.95]",
            "0.7, nan]",
            "run: an admitted fraction is NaN",
        ),
        (
            "inputs = [0.55",
            "inputs = [55.0",
            "inputs: the speed is 55.0",
        ),
    ] {
        let wrong = refused(from, to);
        assert!(wrong.contains(said), "{from} -> {to}: {wrong}");
    }
    let points = format!("{MODEL_GOLDEN}[set_points]\ntardiness = 0.8\ndata_ratio = 0.3\n");
    let wrong = Identified::parse(&points).unwrap_err().0;
    assert!(wrong.contains("[set_points] does not belong"), "{wrong}");
}

#[test]
fn a_trial_file_is_as_long_as_the_longest_model() {
    let longest = Sample {
        outputs: [1.0 / 3.0 * 1e-3, -1.0 / 3.0 * 1e-300],
        inputs: [1.0 / 3.0, 2.0 / 3.0],
    };
    let text = identified().text(&vec![longest; 400]);
    assert!(text.len() < model_bytes(400), "{}", text.len());
}

#[test]
fn a_model_of_tardiness_alone_is_no_model_for_both() {
    let worse = GAINS_EXAMPLE.replacen("r2 = [0.992, 0.9873]", "r2 = [0.992, 0.5]", 1);
    let gains = Gains::parse(&worse).unwrap();
    assert!(!gains.explains_both() && gains.identified.model.check_tardiness().is_ok());
    assert!(Gains::parse(GAINS_EXAMPLE).unwrap().explains_both());
    let mut one = Gains::parse(GAINS_EXAMPLE).unwrap();
    assert!(one.is_for(Mode::AdmissionOnly) && one.is_for(Mode::SpeedOnly));
    one.design.single[ADMISSION] = None;
    assert!(!one.is_for(Mode::AdmissionOnly) && one.is_for(Mode::SpeedOnly));
    let none = GAINS_EXAMPLE.replacen("r2 = [0.992, 0.9873]", "r2 = [0.5, 0.9]", 1);
    let model = Gains::parse(&none).unwrap().identified.model;
    assert!(model.check_tardiness().is_err());
    // Its gains are for one input at a time; a file without them is refused.
    let alone = Gains {
        design: Design::alone(&identified().model, &Weights::default()).unwrap(),
        ..self::gains()
    };
    let text = alone.text();
    assert!(!text.contains("[gains.both]"), "{text}");
    assert_eq!(Gains::parse(&text).unwrap(), alone);
    let mut controller = alone.controller([1.0; 2], 3).unwrap();
    controller.set_mode(control::controller::Mode::Both);
    assert_eq!(controller.mode(), control::controller::Mode::Open);
    let empty = text.split("\n# Tardiness by").next().unwrap().to_owned() + "[gains]\n";
    assert!(
        Gains::parse(&empty).unwrap_err().0.contains("no gains"),
        "{empty}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_reader_panic(
        at in 0..GAINS_EXAMPLE.len(),
        length in 0..20_usize,
        with in "\\PC{0,8}",
    ) {
        let mut text = String::from_utf8_lossy(&GAINS_EXAMPLE.as_bytes()[..at]).into_owned();
        text.push_str(&with);
        let end = (at + length).min(GAINS_EXAMPLE.len());
        text.push_str(&String::from_utf8_lossy(&GAINS_EXAMPLE.as_bytes()[end..]));
        // Accepted gains must be usable by a controller.
        if let Ok(gains) = Gains::parse(&text) {
            prop_assert!(gains.design.pole_max() < POLE_MAX);
            let mut controller = gains.controller([1.0; 2], 3).unwrap();
            controller.set_mode(control::controller::Mode::Both);
            for _ in 0..20 {
                let inputs = controller.step(Some([1.4, 0.4])).inputs;
                prop_assert!(inputs.iter().all(|input| (0.0..=1.0).contains(input)), "{inputs:?}");
            }
        }
    }

    #[test]
    fn any_text_is_a_text_of_toml(text in "\\PC{0,40}[\\x00-\\x1f\"\\\\]{0,4}") {
        let is_shown = !text.chars().any(char::is_control);
        let named = Identified { machine: text, ..identified() };
        let read = Identified::parse(&named.text(&run()));
        if is_shown {
            prop_assert_eq!(read, Ok(named));
        } else {
            // It is a TOML text, but must not be shown on a terminal.
            prop_assert!(read.is_err_and(|(wrong, _)| wrong.contains("control character")));
            let named = Identified { machine: super::super::clean(&named.machine), ..named };
            prop_assert_eq!(Identified::parse(&named.text(&run())), Ok(named));
        }
    }
}
