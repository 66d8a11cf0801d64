//! The arithmetic against a reference case that was worked out elsewhere, and the loop on plants with known answers.

use base::sim::Random;
use nalgebra::{Matrix2, Matrix4, Matrix4x2, SMatrix, Vector2};

use crate::controller::{ADMISSION, Controller, Mode, Range, SPEED, Saturation, SetPoints};
use crate::design::{Design, DesignError, POLE_MAX, SingleGains, Weights, solve_riccati};
use crate::identify::{HALF_PERIODS, IdentifyError, Model, Sample, matrix, square_wave};

const A: [[f64; 2]; 2] = [[0.35, 0.10], [0.02, 0.40]];
const B: [[f64; 2]; 2] = [[-0.90, 0.45], [0.12, 0.30]];

fn model() -> Model {
    Model {
        a: A,
        b: B,
        inputs: [0.55, 0.8],
        outputs: [0.8, 0.3],
        r2: [0.99, 0.98],
        residual: [0.02, 0.01],
        condition: 3.7,
        samples: 400,
    }
}

fn weights(error: [f64; 2], integral: [f64; 2]) -> Weights {
    Weights {
        error,
        integral,
        effort: [1.0, 1.0],
    }
}

fn assert_near(found: &[[f64; 2]; 2], expected: &[[f64; 2]; 2]) {
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        assert!((found - expected).abs() < 1e-8, "{found} {expected}");
    }
}

#[test]
fn gains_match_the_reference_case() {
    let design = Design::new(&model(), &weights([10.0, 1.0], [1.0, 0.1])).unwrap();
    assert_near(
        &design.proportional,
        &[
            [0.5207073884, -0.1636980882],
            [-0.2578779957, -0.5408747287],
        ],
    );
    assert_near(
        &design.integral,
        &[[0.2335597755, -0.1241854873], [-0.105210432, -0.2489847046]],
    );
    let poles = [0.0309639041, 0.3578675371, 0.7339784097, 0.8606022122];
    for (found, expected) in design.poles.iter().zip(poles) {
        assert!(
            (found[0] - expected).abs() < 1e-8 && found[1] == 0.0,
            "{found:?}"
        );
    }
    assert!(design.riccati_residual < 1e-12);
}

#[test]
fn gains_of_the_default_weights_match_the_second_case() {
    let design = Design::new(&model(), &Weights::default()).unwrap();
    assert_near(
        &design.proportional,
        &[
            [0.7291102109, -0.3568869627],
            [-0.3513059441, -0.9315982203],
        ],
    );
    assert_near(
        &design.integral,
        &[[0.437388674, -0.2567153796], [-0.1922730758, -0.5146237461]],
    );
    let poles = [0.031343501, 0.373892778, 0.5034402817, 0.704730673];
    for (found, expected) in design.poles.iter().zip(poles) {
        assert!((found[0] - expected).abs() < 1e-8, "{found:?}");
    }
}

/// The plain iteration, as a second opinion.
fn iterate<const STATES: usize, const INPUTS: usize>(
    a: &SMatrix<f64, STATES, STATES>,
    b: &SMatrix<f64, STATES, INPUTS>,
    q: &SMatrix<f64, STATES, STATES>,
    r: &SMatrix<f64, INPUTS, INPUTS>,
) -> SMatrix<f64, STATES, STATES> {
    let mut x = *q;
    for _ in 0..20_000 {
        let inverse = (r + b.transpose() * x * b).try_inverse().unwrap();
        let next =
            a.transpose() * x * a - a.transpose() * x * b * inverse * b.transpose() * x * a + q;
        if (next - x).abs().max() < 1e-14 * x.abs().max() {
            return next;
        }
        x = next;
    }
    x
}

#[test]
fn two_ways_to_solve_the_equation_agree_on_drawn_systems() {
    let mut random = Random::new(5);
    let mut draw = |least: f64, most: f64| {
        least + (most - least) * (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    };
    for _ in 0..200 {
        let a = Matrix4::from_fn(|_, _| draw(-0.6, 0.6));
        let b = Matrix4x2::from_fn(|_, _| draw(-1.0, 1.0));
        let q = Matrix4::from_diagonal(&nalgebra::Vector4::from_fn(|_, _| draw(0.1, 10.0)));
        let r = Matrix2::from_diagonal(&Vector2::from_fn(|_, _| draw(0.2, 3.0)));
        let x = solve_riccati(&a, &b, &q, &r).unwrap();
        let other = iterate(&a, &b, &q, &r);
        let miss = (x - other).abs().max() / other.abs().max();
        assert!(miss < 1e-8, "{miss} {a} {b}");
    }
}

#[test]
fn an_uncontrollable_plant_is_refused() {
    // No input reaches tardiness, which grows by itself.
    let unstable = Model {
        a: [[1.2, 0.0], [0.0, 0.4]],
        b: [[0.0, 0.0], [0.1, 0.3]],
        ..model()
    };
    let refused = Design::new(&unstable, &Weights::default());
    assert!(
        matches!(refused, Err(DesignError::NoSolution | DesignError::Pole(_))),
        "{refused:?}"
    );
    let slow = weights([1e-6, 1e-6], [1e-7, 1e-7]);
    assert!(matches!(
        Design::new(&model(), &slow),
        Err(DesignError::Pole(_))
    ));
    let wrong = weights([10.0, 1.0], [f64::NAN, 1.0]);
    assert_eq!(Design::new(&model(), &wrong), Err(DesignError::Weights));
    // One input has no authority over tardiness: it gets no single loop, and in the loop of both the other input acts.
    let deaf = Model {
        b: [[-0.9, 0.0], [0.12, 0.30]],
        ..model()
    };
    let design = Design::new(&deaf, &Weights::default()).unwrap();
    assert!(design.single[SPEED].is_some() && design.single[ADMISSION].is_none());
}

/// A plant that is the model, with noise and a load.
struct Plant {
    outputs: Vector2<f64>,
    load: Vector2<f64>,
    noise: [f64; 2],
    random: Random,
}

impl Plant {
    fn new(noise: [f64; 2]) -> Self {
        Self {
            outputs: Vector2::zeros(),
            load: Vector2::zeros(),
            noise,
            random: Random::new(11),
        }
    }

    fn normal(&mut self) -> f64 {
        let uniform = |random: &mut Random| (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        (0..12).map(|_| uniform(&mut self.random)).sum::<f64>() - 6.0
    }

    /// One period with these inputs: what it gives.
    fn run(&mut self, inputs: [f64; 2]) -> [f64; 2] {
        let model = model();
        let u = Vector2::from(inputs) - Vector2::from(model.inputs);
        let noise = Vector2::new(self.noise[0] * self.normal(), self.noise[1] * self.normal());
        self.outputs = matrix(&A) * self.outputs + matrix(&B) * u + self.load + noise;
        (self.outputs + Vector2::from(model.outputs)).into()
    }
}

fn driven(samples: u64, noise: [f64; 2]) -> Vec<Sample> {
    let mut plant = Plant::new(noise);
    let mut inputs = [0.55, 0.8];
    (0..samples)
        .map(|k| {
            let outputs = plant.run(inputs);
            inputs = [
                square_wave(k, HALF_PERIODS[0], 0.55, 0.15),
                square_wave(k, HALF_PERIODS[1], 0.8, 0.2),
            ];
            Sample { outputs, inputs }
        })
        .collect()
}

#[test]
fn a_driven_plant_is_found_again() {
    let found = Model::fit(&driven(400, [0.02, 0.01])).unwrap();
    found.check().unwrap();
    for (found, expected) in [(found.a, A), (found.b, B)] {
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!((found - expected).abs() < 0.05, "{found} {expected}");
        }
    }
    assert!(found.r2[0] > 0.97 && found.r2[1] > 0.95, "{:?}", found.r2);
    assert!(
        found.condition > 1.0 && found.condition < 20.0,
        "{}",
        found.condition
    );
    assert!((found.outputs[0] - 0.8).abs() < 0.05, "{:?}", found.outputs);
    let design = Design::new(&found, &Weights::default()).unwrap();
    assert!(design.poles[3][0] < 0.8);
}

#[test]
fn runs_without_information_are_refused() {
    let few = driven(39, [0.0; 2]);
    assert_eq!(Model::fit(&few), Err(IdentifyError::TooFew(39)));
    let mut wrong = driven(100, [0.01; 2]);
    wrong[7].outputs[1] = f64::NAN;
    assert_eq!(Model::fit(&wrong), Err(IdentifyError::NoNumber(7)));
    // Inputs that never move.
    let mut still = Plant::new([0.02, 0.01]);
    let still: Vec<_> = (0..100)
        .map(|_| Sample {
            outputs: still.run([0.6, 0.9]),
            inputs: [0.6, 0.9],
        })
        .collect();
    assert!(matches!(
        Model::fit(&still),
        Err(IdentifyError::Condition(_))
    ));
    // Noise that covers everything.
    let noisy = Model::fit(&driven(400, [0.6, 0.3])).unwrap();
    assert!(
        matches!(noisy.check(), Err(IdentifyError::Fit(_))),
        "{:?}",
        noisy.r2
    );
}

/// What was identified on a machine with Berkeley DB: least squares took its drift for memory of the tardiness.
fn drifting() -> Model {
    Model {
        a: [[0.3934, -0.0064], [0.0875, 0.0421]],
        b: [[-0.8762, 0.2603], [0.0410, 0.2225]],
        inputs: [0.6, 0.75],
        outputs: [0.776, 0.535],
        ..model()
    }
}

/// Returns tardiness over 80 samples of a loop on a real machine. There the time of a task is proportional to
/// 1 / speed, there is no memory, and a load comes after 40 samples.
fn on_a_machine(design: &Design, mode: Mode) -> Vec<f64> {
    let set_points = SetPoints {
        tardiness: 1.0,
        data_ratio: 0.59,
    };
    let mut controller = Controller::new(drifting(), design, RANGES, set_points, 3).unwrap();
    controller.set_mode(mode);
    let mut inputs = [1.0; 2];
    (0..80)
        .map(|sample| {
            let [speed, admitted] = inputs;
            let load = if sample < 40 { 0.0 } else { 0.15 };
            let tardiness = (0.40 + load + 0.25 * (admitted - 0.75)) * 0.95 / speed;
            let data_ratio =
                0.535 + 0.08 * load / 0.15 + 0.27 * (admitted - 0.75) - 0.09 * (speed - 0.6);
            inputs = controller.step(Some([tardiness, data_ratio])).inputs;
            tardiness
        })
        .collect()
}

#[test]
fn gains_do_not_count_on_a_memory_that_is_noise() {
    let near = |tardiness: &[f64]| tardiness.iter().all(|value| (value - 1.0).abs() < 0.05);
    let plain = Design::new(&drifting(), &Weights::default()).unwrap();
    let robust = Design::robust(&drifting(), &Weights::default()).unwrap();
    // The figures of DESIGN.md.
    let near_to = |found: [f64; 2], said: [f64; 2]| {
        let misses = found
            .iter()
            .zip(said)
            .map(|(found, said)| (found - said).abs());
        assert!(misses.fold(0.0, f64::max) < 2e-3, "{found:?} {said:?}");
    };
    near_to(plain.poles_at_once(&drifting()).unwrap(), [1.004, 2.319]);
    near_to(robust.poles_at_once(&drifting()).unwrap(), [0.851, 0.851]);
    let cautious = Weights {
        effort: [30.0; 2],
        ..Weights::default()
    };
    let refused = Design::new(&drifting(), &cautious);
    assert!(
        matches!(refused, Err(DesignError::Pole(pole)) if (pole - 0.97).abs() < 2e-3),
        "{refused:?}"
    );
    assert!(robust.pole_max() < POLE_MAX);
    // With the gains of the model the loop swings for ever; with the others it answers the load in a few samples.
    let swinging = on_a_machine(&plain, Mode::Both);
    assert!(!near(&swinging[30..40]), "{swinging:?}");
    let alone = Design::alone(&drifting(), &Weights::default()).unwrap();
    for (design, mode) in [
        (&robust, Mode::Both),
        (&robust, Mode::SpeedOnly),
        (&alone, Mode::SpeedOnly),
    ] {
        let held = on_a_machine(design, mode);
        assert!(
            near(&held[30..40]) && near(&held[46..]),
            "{mode:?} {held:?}"
        );
    }
    for (input, gains) in robust.single.iter().enumerate() {
        let pole = gains.unwrap().pole_max_with(&drifting(), input).unwrap();
        assert!((pole - gains.unwrap().pole_max).abs() < 1e-12);
    }
}

#[test]
fn a_model_whose_memory_is_needed_keeps_its_gains() {
    // There is little of it: the gains also hold a machine that has none.
    let quick = Model {
        a: [[0.05, 0.0], [0.0, 0.05]],
        b: [[-0.4, 0.1], [0.05, 0.3]],
        ..model()
    };
    let weights = weights([1.0, 1.0], [0.5, 0.5]);
    let plain = Design::new(&quick, &weights).unwrap();
    assert!(
        plain
            .poles_at_once(&quick)
            .unwrap()
            .iter()
            .all(|pole| *pole < POLE_MAX)
    );
    assert_eq!(Design::robust(&quick, &weights).unwrap(), plain);
    // Outputs that grow by themselves come to no rest: there is nothing to compare with.
    let growing = Model {
        a: [[1.05, 0.0], [0.0, 0.4]],
        ..model()
    };
    let plain = Design::new(&growing, &Weights::default()).unwrap();
    assert_eq!(plain.poles_at_once(&growing), None);
    assert_eq!(
        Design::robust(&growing, &Weights::default()).unwrap(),
        plain
    );
}

const RANGES: [Range; 2] = [
    Range {
        min: 0.1,
        max: 1.0,
        change_max: 1.0,
        dead_band: 0.0,
    },
    Range {
        min: 0.5,
        max: 1.0,
        change_max: 1.0,
        dead_band: 0.0,
    },
];

fn controller(ranges: [Range; 2]) -> Controller {
    let design = Design::new(&model(), &Weights::default()).unwrap();
    let set_points = SetPoints {
        tardiness: 0.8,
        data_ratio: 0.3,
    };
    Controller::new(model(), &design, ranges, set_points, 3).unwrap()
}

/// Runs a loop on a plant; returns tardiness after each period.
fn close(controller: &mut Controller, plant: &mut Plant, samples: usize) -> Vec<f64> {
    let mut inputs = controller.step(None).inputs;
    (0..samples)
        .map(|_| {
            let outputs = plant.run(inputs);
            inputs = controller.step(Some(outputs)).inputs;
            outputs[0]
        })
        .collect()
}

fn is_settled(tardiness: &[f64]) -> bool {
    tardiness
        .iter()
        .all(|value| (value - 0.8).abs() <= 0.8 * 0.05)
}

#[test]
fn a_load_that_comes_and_goes_is_answered_within_three_samples() {
    let (mut controller, mut plant) = (controller(RANGES), Plant::new([0.0; 2]));
    controller.set_mode(Mode::Both);
    let begun = close(&mut controller, &mut plant, 40);
    assert!(is_settled(&begun[30..]), "{begun:?}");
    plant.load = Vector2::new(0.25, 0.03);
    let on = close(&mut controller, &mut plant, 40);
    assert!(is_settled(&on[4..]), "{on:?}");
    plant.load = Vector2::zeros();
    let off = close(&mut controller, &mut plant, 40);
    assert!(is_settled(&off[4..]), "{off:?}");
}

#[test]
fn both_inputs_at_their_limits_are_said_at_once_and_left_within_eight_samples() {
    let (mut controller, mut plant) = (controller(RANGES), Plant::new([0.0; 2]));
    controller.set_mode(Mode::Both);
    close(&mut controller, &mut plant, 40);
    plant.load = Vector2::new(0.9, 0.12);
    let mut inputs = controller.step(None).inputs;
    let mut told = None;
    for sample in 0..40 {
        let outputs = plant.run(inputs);
        let action = controller.step(Some(outputs));
        inputs = action.inputs;
        let is_at_both = inputs == [RANGES[SPEED].max, RANGES[ADMISSION].min];
        if is_at_both {
            told.get_or_insert(sample);
            assert_eq!(
                action.held,
                [Saturation::High, Saturation::Low],
                "sample {sample}: {action:?}"
            );
        }
        assert!(inputs[ADMISSION] >= RANGES[ADMISSION].min);
    }
    assert!(told.is_some_and(|sample| sample < 6), "{told:?}");
    plant.load = Vector2::zeros();
    let off = close(&mut controller, &mut plant, 40);
    assert!(is_settled(&off[8..]), "{off:?}");
}

#[test]
fn one_input_at_its_limit_leaves_tardiness_to_the_other() {
    let (mut controller, mut plant) = (controller(RANGES), Plant::new([0.0; 2]));
    controller.set_mode(Mode::Both);
    close(&mut controller, &mut plant, 40);
    // More data time than admission can take away.
    plant.load = Vector2::new(0.2, 0.25);
    let on = close(&mut controller, &mut plant, 60);
    assert!(is_settled(&on[20..]), "{on:?}");
    let action = controller.step(Some(
        (plant.outputs + Vector2::from(model().outputs)).into(),
    ));
    assert!(
        action.inputs[ADMISSION] <= RANGES[ADMISSION].min + 1e-9,
        "{action:?} {on:?}"
    );
    plant.load = Vector2::zeros();
    let off = close(&mut controller, &mut plant, 60);
    assert!(is_settled(&off[12..]), "{off:?}");
}

#[test]
fn a_change_of_mode_makes_no_jump_of_the_inputs() {
    let (mut controller, mut plant) = (controller(RANGES), Plant::new([0.0; 2]));
    let mut inputs = controller.step(None).inputs;
    assert_eq!(inputs, [1.0, 1.0]);
    for (mode, samples) in [
        (Mode::Both, 40),
        (Mode::SpeedOnly, 30),
        (Mode::Both, 30),
        (Mode::AdmissionOnly, 30),
        (Mode::Both, 30),
    ] {
        let before = inputs;
        controller.set_mode(mode);
        for sample in 0..samples {
            let outputs = plant.run(inputs);
            inputs = controller.step(Some(outputs)).inputs;
            if sample == 0 && mode == Mode::Both {
                for (now, before) in inputs.iter().zip(before) {
                    assert!((now - before).abs() < 1e-9, "{mode:?}: {before} {now}");
                }
            }
        }
        if mode != Mode::AdmissionOnly {
            assert!(
                (plant.outputs[0]).abs() < 0.04,
                "{mode:?} {}",
                plant.outputs
            );
        }
    }
    controller.set_mode(Mode::Open);
    assert_eq!(controller.step(Some([0.8, 0.3])).inputs, [1.0, 1.0]);
}

#[test]
fn inputs_are_at_full_without_samples_and_regulated_afterwards() {
    let (mut controller, mut plant) = (controller(RANGES), Plant::new([0.0; 2]));
    controller.set_mode(Mode::Both);
    close(&mut controller, &mut plant, 40);
    let before = controller.step(None);
    assert!(!before.is_blind && before.inputs[SPEED] < 0.99);
    controller.step(Some([f64::NAN, 0.3]));
    let blind = controller.step(None);
    assert!(blind.is_blind, "{blind:?}");
    assert_eq!(blind.inputs, [1.0, 1.0]);
    let again = close(&mut controller, &mut plant, 40);
    assert!(is_settled(&again[20..]), "{again:?}");
}

/// For any figures that a program reports, the loop recovers within eight samples.
#[test]
fn an_absurd_sample_is_got_over_within_eight() {
    for mode in [Mode::Both, Mode::SpeedOnly, Mode::AdmissionOnly] {
        for absurd in [[1e308, 0.3], [f64::MAX, 1e308], [f64::INFINITY, 0.3]] {
            let (mut controller, mut plant) = (controller(RANGES), Plant::new([0.0; 2]));
            controller.applied([0.55, 0.8]);
            controller.set_mode(mode);
            let begun = close(&mut controller, &mut plant, 60);
            assert!(is_settled(&begun[40..]), "{mode:?} {begun:?}");
            // An infinite value is no sample, and after three periods without a sample the loop is blind.
            let times = if absurd[0].is_finite() { 3 } else { 1 };
            for _ in 0..times {
                controller.step(Some(absurd));
            }
            let after = close(&mut controller, &mut plant, 40);
            assert!(is_settled(&after[8..]), "{mode:?} {absurd:?} {after:?}");
            let outputs = plant.run([0.55, 0.8]);
            assert!(controller.step(Some(outputs)).is_model_true);
        }
    }
}

#[test]
fn a_model_that_has_become_wrong_is_told_from_a_load() {
    let (mut controller, mut plant) = (controller(RANGES), Plant::new([0.02, 0.01]));
    controller.set_mode(Mode::Both);
    let mut inputs = controller.step(None).inputs;
    let mut is_model_true = Vec::new();
    for sample in 0..300 {
        if sample == 100 {
            plant.load = Vector2::new(0.25, 0.03);
        }
        let mut outputs = plant.run(inputs);
        if sample >= 200 {
            // Speed has four times its earlier effect in every other sample.
            outputs[0] += if sample % 2 == 0 { 0.2 } else { -0.2 };
        }
        let action = controller.step(Some(outputs));
        inputs = action.inputs;
        is_model_true.push(action.is_model_true);
    }
    // The step of the load itself may look like a model error for some samples.
    assert!(is_model_true[..100].iter().all(|is_true| *is_true));
    assert!(is_model_true[160..200].iter().all(|is_true| *is_true));
    assert!(is_model_true[230..].iter().all(|is_true| !*is_true));
}

#[test]
fn inputs_keep_to_their_changes_and_dead_bands() {
    let narrow = [
        Range {
            change_max: 0.1,
            dead_band: 0.025,
            ..RANGES[0]
        },
        Range {
            change_max: 0.05,
            dead_band: 0.01,
            ..RANGES[1]
        },
    ];
    let (mut controller, mut plant) = (controller(narrow), Plant::new([0.02, 0.01]));
    controller.set_mode(Mode::Both);
    let mut inputs = controller.step(None).inputs;
    let mut moves = 0;
    for sample in 0..300 {
        plant.load = Vector2::new(if sample % 60 < 30 { 0.25 } else { 0.0 }, 0.0);
        let next = controller.step(Some(plant.run(inputs))).inputs;
        for input in 0..2 {
            let change = (next[input] - inputs[input]).abs();
            assert!(
                change <= narrow[input].change_max + 1e-12,
                "sample {sample}: {change}"
            );
            let is_limit = next[input] <= narrow[input].min || next[input] >= narrow[input].max;
            assert!(change == 0.0 || is_limit || change >= narrow[input].dead_band);
            moves += u32::from(change > 0.0);
        }
        inputs = next;
    }
    assert!(moves > 20, "{moves}");
}

/// A plain iteration never ends for them: each step gives the same matrix again.
#[test]
fn loops_whose_poles_lie_on_a_circle_are_refused() {
    let model = |a, b| Model { a, b, ..model() };
    // A cycle of three around 1: their closed loop is [[1, 1, 0], [0, 1, 1], [1, 0, 1]].
    let of_three = model([[1.0, 1.0], [0.0, 1.0]], [[0.0, 0.0], [1.0, 1.0]]);
    let gains = SingleGains {
        proportional: 0.0,
        integral: 1.0,
        pole_max: 2.0,
    };
    let pole = gains.pole_max_with(&of_three, SPEED).unwrap();
    assert!(pole >= POLE_MAX, "{pole}");
    // Found by trying small random numbers: a million steps are not enough.
    let (p, i) = ([[0.0; 2]; 2], [[1.0, 0.0], [0.0, 1.0]]);
    let of_four = model([[-1.0, 0.0], [0.0, -1.0]], [[0.0, -1.0], [1.0, 0.0]]);
    assert_eq!(Design::poles(&of_four, &p, &i), None);
}
