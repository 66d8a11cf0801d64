//! The loop around a plant that is a model: what is set, what is noted, what is restored.

use super::*;
use crate::actuator::Applied;
use crate::controller::{Range, SetPoints};
use crate::design::{Design, Weights};
use crate::identify::Model;
use std::sync::{Arc, Mutex};

const A: [[f64; 2]; 2] = [[0.35, 0.10], [0.02, 0.40]];
const B: [[f64; 2]; 2] = [[-0.90, 0.45], [0.12, 0.30]];
const CENTER: [f64; 2] = [0.55, 0.75];
const SETTLED: [f64; 2] = [0.8, 0.3];
const LEAST: [f64; 2] = [0.1, 0.5];

fn model() -> Model {
    Model {
        a: A,
        b: B,
        inputs: CENTER,
        outputs: SETTLED,
        r2: [0.99, 0.99],
        residual: [0.02, 0.01],
        condition: 4.0,
        samples: 400,
    }
}

fn controller() -> Controller {
    let range = |min| Range {
        min,
        max: 1.0,
        change_max: 1.0,
        dead_band: 0.0,
    };
    let set_points = SetPoints {
        tardiness: 0.8,
        data_ratio: 0.3,
    };
    let design = Design::new(&model(), &Weights::default()).unwrap();
    Controller::new(model(), &design, LEAST.map(range), set_points, 3).unwrap()
}

/// What the machine was told, and whether it refuses.
#[derive(Debug, Default)]
struct Machine {
    told: Vec<f64>,
    restored: u32,
    refuses: bool,
    /// It accepts each speed, and stays at full speed.
    is_deaf: bool,
}

struct Fake(Arc<Mutex<Machine>>);

impl Actuator for Fake {
    type Error = &'static str;

    fn name(&self) -> &'static str {
        "fake"
    }

    fn set(&mut self, speed: f64) -> Result<Applied, Self::Error> {
        let mut machine = self.0.lock().unwrap();
        if machine.refuses {
            return Err("the machine refuses");
        }
        machine.told.push(speed);
        // In steps of a hundredth.
        let became = (speed * 100.0).round() / 100.0;
        Ok(if machine.is_deaf {
            Applied {
                speed: 1.0,
                is_obeyed: speed == 1.0,
            }
        } else {
            Applied {
                speed: became,
                is_obeyed: true,
            }
        })
    }

    fn step(&self) -> f64 {
        0.01
    }

    fn restore(&mut self) -> Result<(), Self::Error> {
        self.0.lock().unwrap().restored += 1;
        Ok(())
    }
}

fn regulator() -> (Regulator<&'static str>, Arc<Mutex<Machine>>) {
    let machine = Arc::default();
    (
        Regulator::new(Box::new(Fake(Arc::clone(&machine)))),
        machine,
    )
}

/// The model as a plant.
struct Plant([f64; 2]);

impl Plant {
    fn run(&mut self, inputs: [f64; 2]) -> Figures {
        let sample = Sample {
            outputs: self.0,
            inputs,
        };
        self.0 = model().predict(&sample);
        Figures {
            instances: 10,
            tardiness_mean: self.0[0],
            data_ratio: self.0[1],
            ..Figures::default()
        }
    }
}

fn excitation(driven: u32) -> Excitation {
    Excitation {
        profiled: 5,
        driven,
        center: [0.55, 0.75],
        amplitude: [0.15, 0.2],
    }
}

#[test]
fn an_identification_finds_the_plant_and_gives_the_inputs_back() {
    let (mut regulator, machine) = regulator();
    let mut plant = Plant(SETTLED);
    regulator.identify(excitation(80), LEAST).unwrap();
    let mut admitted = 1.0;
    let mut periods = 0;
    while let Identification::Running(..) = regulator.identification() {
        let inputs = regulator.decision().inputs;
        let figures = plant.run(inputs);
        regulator.period(Some(&figures), &mut |fraction| {
            admitted = fraction;
            fraction
        });
        periods += 1;
        assert!(periods < 200);
    }
    let Identification::Done(run) = regulator.identification() else {
        panic!("{:?}", regulator.identification());
    };
    assert_eq!((run.profiled.len(), run.driven.len()), (5, 80));
    // Without noise the fit finds the plant exactly; the samples contain the steps of the actuator.
    let found = Model::fit(&run.driven).unwrap();
    for (found, expected) in found.a.iter().flatten().zip(A.iter().flatten()) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    let least = run.data_ratio_min().unwrap();
    let all = || run.profiled.iter().map(|outputs| outputs[1]);
    assert_eq!(least, all().fold(f64::INFINITY, f64::min));
    // Without gains: everything at full again, and the machine as it was.
    assert_eq!((regulator.decision().inputs, admitted), ([1.0, 1.0], 1.0));
    assert_eq!(machine.lock().unwrap().restored, 1);
}

#[test]
fn without_gains_one_period_without_an_instance_is_not_blind_yet() {
    let (mut regulator, _) = regulator();
    let figures = Plant(SETTLED).run([1.0, 1.0]);
    let is_blind = |regulator: &mut Regulator<&'static str>, figures: Option<&Figures>| {
        regulator.period(figures, &mut |fraction| fraction).is_blind
    };
    let found = [(); 3].map(|()| is_blind(&mut regulator, None));
    assert_eq!(found, [false, false, true]);
    assert!(!is_blind(&mut regulator, Some(&figures)));
    // A caller that knows that no figures will come says so.
    regulator.lose();
    assert!(is_blind(&mut regulator, None));
    // An identification sees the tasks' figures just as the law does.
    regulator.identify(excitation(80), LEAST).unwrap();
    assert!(!is_blind(&mut regulator, Some(&figures)));
}

#[test]
fn an_identification_ends_when_the_tasks_do() {
    let (mut regulator, _) = regulator();
    regulator.set_controller(Some(controller()));
    regulator.set_mode(Mode::Both);
    regulator.identify(excitation(80), LEAST).unwrap();
    let mut plant = Plant(SETTLED);
    for _ in 0..20 {
        let figures = plant.run(regulator.decision().inputs);
        regulator.period(Some(&figures), &mut |fraction| fraction);
    }
    for _ in 0..MISSING_MAX {
        assert!(matches!(
            regulator.identification(),
            Identification::Running(..)
        ));
        regulator.period(None, &mut |fraction| fraction);
    }
    assert!(matches!(
        regulator.identification(),
        Identification::GivenUp(_)
    ));
    // The law counts missing samples as well, and in the end goes blind.
    for _ in 0..3 {
        regulator.period(None, &mut |fraction| fraction);
    }
    assert!(regulator.decision().is_blind);
    assert_eq!(regulator.decision().inputs, [1.0, 1.0]);
}

#[test]
fn an_identification_ends_when_the_speed_cannot_be_set() {
    let given_up = |regulator: &mut Regulator<&'static str>, periods_max: u32| -> String {
        let mut plant = Plant(SETTLED);
        for _ in 0..periods_max {
            let figures = plant.run(regulator.decision().inputs);
            regulator.period(Some(&figures), &mut |fraction| fraction);
        }
        match regulator.identification() {
            Identification::GivenUp(why) => why.clone(),
            other => panic!("{other:?}"),
        }
    };
    // At once if the speed is refused, also in the middle.
    let (mut regulator, machine) = regulator();
    regulator.identify(excitation(80), LEAST).unwrap();
    machine.lock().unwrap().refuses = true;
    let why = given_up(&mut regulator, 1);
    assert!(why.contains("cannot be set: the machine refuses"), "{why}");
    assert_eq!(regulator.decision().inputs, [1.0, 1.0]);
    machine.lock().unwrap().refuses = false;
    regulator.identify(excitation(80), LEAST).unwrap();
    let mut plant = Plant(SETTLED);
    for _ in 0..20 {
        let figures = plant.run(regulator.decision().inputs);
        regulator.period(Some(&figures), &mut |fraction| fraction);
    }
    assert!(matches!(
        regulator.identification(),
        Identification::Running(..)
    ));
    machine.lock().unwrap().refuses = true;
    // In the same period, not at the next edge of the square wave.
    given_up(&mut regulator, 1);
    assert_eq!(regulator.decision().inputs, [1.0, 1.0]);

    // Also while nothing is measured.
    let (mut regulator, machine) = self::regulator();
    regulator.identify(excitation(80), LEAST).unwrap();
    for _ in 0..20 {
        let figures = plant.run(regulator.decision().inputs);
        regulator.period(Some(&figures), &mut |fraction| fraction);
    }
    regulator.period(None, &mut |fraction| fraction);
    machine.lock().unwrap().refuses = true;
    regulator.period(None, &mut |fraction| fraction);
    let now = regulator.identification();
    assert!(matches!(now, Identification::GivenUp(why) if why.contains("cannot be set")));

    // If the machine only does not obey, a period later: a first reading may have been too early.
    let (mut regulator, machine) = self::regulator();
    regulator.identify(excitation(80), LEAST).unwrap();
    let mut run = |regulator: &mut Regulator<&'static str>, periods: u32| {
        for _ in 0..periods {
            let figures = plant.run(regulator.decision().inputs);
            regulator.period(Some(&figures), &mut |fraction| fraction);
        }
    };
    run(&mut regulator, 20);
    for is_deaf in [true, false, true] {
        machine.lock().unwrap().is_deaf = is_deaf;
        run(&mut regulator, 1);
    }
    let restored = machine.lock().unwrap().restored;
    let why = given_up(&mut regulator, 1);
    assert!(
        why.starts_with("fake does not") && why.contains("it stays at 100 %"),
        "{why}"
    );
    assert_eq!(machine.lock().unwrap().restored, restored + 1);
}

#[test]
fn excitations_beyond_the_ranges_are_refused() {
    let (mut regulator, _) = regulator();
    let refused = |change: &dyn Fn(&mut Excitation)| {
        let mut wrong = excitation(80);
        change(&mut wrong);
        wrong.check(LEAST).is_err()
    };
    assert!(!refused(&|_| {}));
    assert!(refused(&|it| it.driven = 39));
    assert!(refused(&|it| it.driven = DRIVEN_MAX + 1));
    assert!(refused(&|it| it.profiled = 0));
    assert!(refused(&|it| it.amplitude[1] = 0.3));
    assert!(refused(&|it| it.amplitude[0] = 0.0));
    assert!(refused(&|it| it.center[0] = 0.2));
    assert!(refused(&|it| it.center[0] = f64::NAN));
    assert!(regulator.identify(excitation(1), LEAST).is_err());
    assert_eq!(*regulator.identification(), Identification::None);
}

#[test]
fn the_loop_holds_tardiness_and_reports_the_real_inputs() {
    let (mut regulator, machine) = regulator();
    let mut plant = Plant([1.1, 0.35]);
    regulator.set_controller(Some(controller()));
    regulator.set_mode(Mode::Both);
    for _ in 0..60 {
        let figures = plant.run(regulator.decision().inputs);
        regulator.period(Some(&figures), &mut |fraction| fraction);
    }
    assert!((plant.0[0] - 0.8).abs() < 0.02, "{:?}", plant.0);
    let speed = regulator.decision().inputs[SPEED];
    assert!((speed * 100.0 - (speed * 100.0).round()).abs() < 1e-9);
    let told = machine.lock().unwrap().told.len();
    // What stands is not set again.
    regulator.set_mode(Mode::Open);
    for _ in 0..5 {
        let figures = plant.run(regulator.decision().inputs);
        regulator.period(Some(&figures), &mut |fraction| fraction);
    }
    assert_eq!(machine.lock().unwrap().told.len(), told);
    assert_eq!(machine.lock().unwrap().restored, 1);
    let mut last = 0.0;
    regulator
        .end(&mut |fraction| {
            last = fraction;
            fraction
        })
        .unwrap();
    assert_eq!((last, machine.lock().unwrap().restored), (1.0, 2));
}

#[test]
fn a_machine_that_refuses_is_asked_again_and_counted() {
    let (mut regulator, machine) = regulator();
    regulator.set_controller(Some(controller()));
    regulator.set_mode(Mode::SpeedOnly);
    machine.lock().unwrap().refuses = true;
    let figures = Plant(SETTLED).run(CENTER);
    for failed in 1..4 {
        let decision = regulator.period(Some(&figures), &mut |fraction| fraction);
        assert!(!decision.is_obeyed);
        assert_eq!(decision.inputs, [1.0, 1.0]);
        assert_eq!(regulator.failures().0, failed);
    }
    machine.lock().unwrap().refuses = false;
    let decision = regulator.period(Some(&figures), &mut |fraction| fraction);
    assert!(decision.is_obeyed);
    let told = machine.lock().unwrap().told.clone();
    assert_eq!(told.len(), 1);
    let other = Arc::<Mutex<Machine>>::default();
    regulator.set_actuator(Box::new(Fake(Arc::clone(&other))));
    regulator.period(Some(&figures), &mut |fraction| fraction);
    assert_eq!(machine.lock().unwrap().restored, 1);
    assert_eq!(other.lock().unwrap().told.len(), 1);
}

#[test]
fn the_speed_is_the_machines_own_where_only_updates_are_driven() {
    let (mut regulator, machine) = regulator();
    let mut plant = Plant(SETTLED);
    regulator.set_controller(Some(controller()));
    regulator.set_mode(Mode::SpeedOnly);
    let mut run = |regulator: &mut Regulator<&'static str>| {
        for _ in 0..20 {
            let figures = plant.run(regulator.decision().inputs);
            regulator.period(Some(&figures), &mut |fraction| fraction);
        }
        regulator.decision().inputs[SPEED]
    };
    assert!(run(&mut regulator) < 0.9);
    assert_eq!(machine.lock().unwrap().restored, 0);
    regulator.set_mode(Mode::AdmissionOnly);
    assert_eq!(run(&mut regulator), 1.0);
    assert_eq!(machine.lock().unwrap().restored, 1, "once, not each period");
    // And driven again when it is to be.
    regulator.set_mode(Mode::Both);
    assert!(run(&mut regulator) < 0.9);
}

#[test]
fn a_speed_set_by_another_program_is_found_although_it_stays() {
    let early = Figures {
        instances: 10,
        tardiness_mean: 0.2,
        data_ratio: 0.3,
        ..Figures::default()
    };
    let settled = || {
        let (mut regulator, machine) = regulator();
        regulator.set_controller(Some(controller()));
        regulator.set_mode(Mode::SpeedOnly);
        for _ in 0..10 {
            regulator.period(Some(&early), &mut |fraction| fraction);
        }
        let told = machine.lock().unwrap().told.clone();
        assert_eq!(told[told.len() - 2..], [LEAST[SPEED]; 2], "{told:?}");
        assert!(regulator.decision().is_obeyed);
        (regulator, machine)
    };
    let (mut regulator, machine) = settled();
    machine.lock().unwrap().is_deaf = true;
    regulator.period(Some(&early), &mut |fraction| fraction);
    assert!(!regulator.decision().is_obeyed);
    assert_eq!(regulator.decision().inputs[SPEED], 1.0);
    // Also where nothing is measured.
    let (mut regulator, machine) = settled();
    machine.lock().unwrap().refuses = true;
    regulator.period(None, &mut |fraction| fraction);
    assert!(!regulator.decision().is_obeyed);
    assert_eq!(regulator.failures().0, 1);
}
