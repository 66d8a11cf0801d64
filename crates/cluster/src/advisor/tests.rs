use super::*;
use crate::advisor::{Estimate, INPUTS, Machine, Privacy, choose, parse_question, question_text};
use crate::model::Boundary;
use proptest::prelude::*;

/// The notes' job: 10 s, 10 MB, 10 Mbit/s, four boards at 1 Gbit/s, 200 exchanges of 64 KiB.
fn worked() -> Question {
    let text = r#"{
        "version": 1, "name": "worked", "boards_max": 4, "boundary": "boards-for-job", "machine": "dedicated",
        "inputs": {
            "single_s": {"value": 10, "measured": "a run"},
            "parallel_fraction": {"value": 0.95, "measured": "runs on one and two boards"},
            "exchange_times": {"value": 200, "stated": "the kernel"},
            "exchange_bytes": {"value": 65536, "stated": "the kernel"},
            "input_bytes": {"value": 1e7, "stated": "the file"},
            "up_bytes_per_s": {"value": 1.25e6, "measured": "a transfer"},
            "down_bytes_per_s": {"value": 1.25e6, "measured": "a transfer"},
            "machine_speed": {"value": 8, "measured": "the same run there"}
        }
    }"#;
    parse_question(text).expect("a question")
}

fn assumed() -> Question {
    let mut question = worked();
    question.assume();
    question
}

fn time_of(choice: &Choice, place: Place) -> f64 {
    let option = choice.options.iter().find(|option| option.place == place);
    option.expect("an option").time_s
}

#[test]
fn missing_inputs_are_refused_all_at_once_unless_told_to_assume() {
    let question = worked();
    let Err(Error::Missing { names }) = advise(&question) else {
        panic!("answered");
    };
    assert!(
        names.contains(&"board_active_w".to_owned()) && names.contains(&"pue".to_owned()),
        "{names:?}"
    );
    let advice = advise(&assumed()).expect("answered");
    let json = advice.json();
    let inputs = json["inputs"].as_array().expect("a list");
    let told = |name: &str| {
        inputs
            .iter()
            .find(|input| input["input"] == name)
            .expect("told")
    };
    assert!(told("pue")["assumed"].is_string() && told("single_s")["measured"].is_string());
    // A value that only the user can know is never assumed.
    let mut prices = assumed();
    prices.minimise = Minimise::Cost;
    prices.assume();
    let Err(Error::Missing { names }) = advise(&prices) else {
        panic!("answered");
    };
    assert_eq!(
        names,
        [
            "energy_price_per_kwh",
            "network_price_per_gb",
            "machine_price_per_hour"
        ]
    );
}

#[test]
fn inputs_that_come_later_are_not_missing() {
    let mut question = Question::new("job");
    question.privacy = Privacy::Board;
    let Err(Error::Missing { names }) = question.check_with([Input::SingleS]) else {
        panic!("sound");
    };
    assert_eq!(names, ["board_active_w", "board_idle_w"]);
    question.assume();
    question
        .check_with([Input::SingleS])
        .expect("power is assumed");
    question.check().expect_err("time is missing");
}

/// What was taken from another machine is less certain than a measurement, and an order of magnitude is least certain.
#[test]
fn assumed_figures_have_a_larger_spread_than_measured_ones() {
    let question = assumed();
    let spread = |question: &Question, input: Input| {
        let given = question.given[input as usize].as_ref();
        given.expect("given").spread
    };
    for (input, expected) in [
        (Input::SingleS, 0.1),
        (Input::ExchangeTimes, 0.0),
        (Input::BoardActiveW, 0.5),
        (Input::RoundTripS, 0.5),
        (Input::RadioJPerByte, 1.0),
        (Input::NetworkJPerByte, 1.0),
    ] {
        assert_eq!(spread(&question, input), expected, "{}", input.name());
    }
    // A file that says `assumed` itself gets the same; a spread in it stays.
    let of = |origin: &str| {
        let text = format!(
            r#"{{"version": 1, "name": "a", "inputs": {{"radio_j_per_byte": {{"value": 1e-6, {origin}}}}}}}"#
        );
        spread(
            &parse_question(&text).expect("a question"),
            Input::RadioJPerByte,
        )
    };
    assert_eq!(of(r#""assumed": "a table""#), 1.0);
    assert_eq!(of(r#""measured": "a meter""#), 0.1);
    assert_eq!(of(r#""assumed": "a table", "spread": 0.3"#), 0.3);
}

#[test]
fn the_worked_numbers_are_reproduced() {
    let choice = choose(&assumed()).expect("answered");
    assert!((time_of(&choice, Place::DataCentre) - 9.3).abs() < 0.01);
    assert!((time_of(&choice, Place::Boards(4)) - 3.09).abs() < 0.01);
    assert!((time_of(&choice, Place::Boards(1)) - 10.0).abs() < 1e-9);
    assert_eq!(choice.options.len(), 5);
}

/// The spread of an assumed idle power once made the expected energy of every option 0, and the most boards won.
#[test]
fn idle_power_near_active_power_is_no_reason_for_more_boards() {
    let mut question = Question {
        boundary: Boundary::BoardsOn,
        privacy: Privacy::Neighbours,
        boards_max: 2,
        ..worked()
    };
    for input in [Input::BoardActiveW, Input::BoardCommunicatingW] {
        let by = Origin::Measured("a sensor".to_owned());
        question.give(input, 2.8, by).expect("in range");
    }
    let by = Origin::Assumed("a table".to_owned());
    question
        .give(Input::BoardIdleW, 2.5663, by)
        .expect("in range");
    question.assume();
    let choice = choose(&question).expect("answered");
    let (one, two) = (&choice.options[0], &choice.options[1]);
    assert!(
        0.0 < one.expected && one.expected < two.expected,
        "{one:?} {two:?}"
    );
    assert_eq!(choice.advised, Some(0));
}

#[test]
fn assumed_idle_power_is_not_above_measured_active_power() {
    for (idle, active) in [
        (Input::BoardIdleW, Input::BoardActiveW),
        (Input::MachineIdleW, Input::MachineActiveW),
    ] {
        let mut question = Question {
            machine: Machine::Shared,
            ..worked()
        };
        let by = Origin::Measured("a sensor".to_owned());
        question.give(active, 2.0, by).expect("in range");
        let by = Origin::Assumed("a table".to_owned());
        question.give(idle, 4.0, by).expect("in range");
        question.assume();
        let given = question.given[idle as usize].as_ref().expect("assumed");
        assert_eq!(
            (given.value, &given.origin),
            (2.0, &Origin::Assumed("not above active power".to_owned()))
        );
        assert!(advise(&question).is_ok());
    }
}

/// A stated active power below the assumed power of another board once made each option free.
#[test]
fn assumed_powers_of_a_board_follow_from_its_stated_active_power() {
    for active_w in [0.5, 2.0, 30.0] {
        let mut question = Question {
            boundary: Boundary::BoardsOn,
            ..worked()
        };
        let by = Origin::Stated("a data sheet".to_owned());
        question
            .give(Input::BoardActiveW, active_w, by)
            .expect("in range");
        question.assume();
        let given = |input: Input| question.given[input as usize].as_ref().expect("assumed");
        let idle = given(Input::BoardIdleW);
        assert!((idle.value / active_w - 0.5146).abs() < 1e-3, "{idle:?}");
        let communicating = given(Input::BoardCommunicatingW);
        assert!((communicating.value - active_w).abs() < 1e-9);
        for (figure, source) in [
            (idle, "the part of active power"),
            (communicating, "as active"),
        ] {
            let is_said =
                matches!(&figure.origin, Origin::Assumed(after) if after.contains(source));
            assert!(is_said, "{figure:?}");
        }
        let choice = choose(&question).expect("answered");
        let joules = choice.options[0].energy_j;
        assert!(
            (joules / (10.0 * active_w) - 0.4854).abs() < 1e-3,
            "{joules}"
        );
    }
}

/// With a `parallel_fraction` of 0 the advice was once three boards, because of rounding of equal losses.
#[test]
fn equal_losses_are_decided_by_time_and_then_by_few_boards() {
    let advised = |fraction: f64| {
        let mut question = assumed();
        question.given[Input::ParallelFraction as usize]
            .as_mut()
            .expect("given")
            .value = fraction;
        question.given[Input::ExchangeTimes as usize]
            .as_mut()
            .expect("given")
            .value = 0.0;
        question.given[Input::BoardIdleW as usize]
            .as_mut()
            .expect("given")
            .value = 0.0;
        question.privacy = Privacy::Neighbours;
        advise(&question).expect("an answer").advised()
    };
    assert_eq!(advised(0.0), Some(Place::Boards(1)));
    assert_eq!(advised(1.0), Some(Place::Boards(4)));
}

#[test]
fn a_deadline_moves_the_job_to_more_boards_and_then_nowhere() {
    let advised = |deadline_s: Option<f64>| {
        let question = Question {
            deadline_s,
            ..assumed()
        };
        advise(&question).expect("answered")
    };
    assert_eq!(advised(None).advised(), Some(Place::Boards(1)));
    // Three boards take 3.9 s, and more with the margin.
    assert_eq!(advised(Some(4.0)).advised(), Some(Place::Boards(4)));
    let none = advised(Some(3.2));
    assert_eq!(none.advised(), None);
    assert!(
        none.why_none()
            .expect("none")
            .contains("the likeliest is 4 boards")
    );
    assert_eq!(none.json()["likeliest_in_time"], "4 boards");
    assert_eq!(none.json()["least_loss"], "4 boards");
    assert_eq!(advised(None).json()["least_loss"], serde_json::Value::Null);
    // Where all are late for sure, all losses are equal: then it is the likeliest, and not the first.
    let hopeless = advised(Some(0.01)).choice;
    assert!(hopeless.likeliest.is_some_and(|at| at > 0));
    assert_eq!(hopeless.least_loss, hopeless.likeliest);
}

#[test]
fn privacy_needs_fewer_inputs_and_forbids_places() {
    for (privacy, places) in [(Privacy::Board, 2), (Privacy::Neighbours, 5)] {
        let question = Question {
            privacy,
            ..assumed()
        };
        let choice = choose(&question).expect("answered");
        assert_eq!(choice.options.len(), places);
        let centre = choice.options.last().expect("one");
        assert_eq!(
            (centre.place, centre.fit),
            (Place::DataCentre, Fit::Private)
        );
        assert!(!question.needed().contains(&Input::UpBytesPerS));
    }
}

#[test]
fn the_uplink_decides_and_the_break_even_point_says_where() {
    let question = Question {
        minimise: Minimise::Time,
        boards_max: 1,
        ..assumed()
    };
    let advice = advise(&question).expect("answered");
    assert_eq!(advice.advised(), Some(Place::DataCentre));
    let point = advice
        .break_even
        .iter()
        .find(|point| point.input == Input::UpBytesPerS && point.at < point.now)
        .expect("the answer changes");
    assert_eq!(point.then, Some(Place::Boards(1)));
    // 10 MB in the remaining time of 10 s: without curvature 1e7 / (10 - 1.25 - 0.05); noise changes it slightly.
    assert!((point.at / (1e7 / 8.7) - 1.0).abs() < 0.03, "{point:?}");
    let uplink = advice
        .sensitivity
        .iter()
        .find(|one| one.input == Input::UpBytesPerS)
        .expect("one");
    assert!(
        (uplink.time + 8.0 / 9.3).abs() < 0.01 && uplink.at_half == Some(Place::Boards(1)),
        "{uplink:?}"
    );
}

#[test]
fn break_even_points_are_figures_of_a_machine() {
    let mut question = Question {
        boards_max: 4,
        boundary: Boundary::BoardsOn,
        deadline_s: Some(30.0),
        ..assumed()
    };
    let given = &mut question.given[Input::ParallelFraction as usize];
    given.as_mut().expect("given").spread = 0.05;
    let value = |input: Input| {
        let given = question.given[input as usize].as_ref();
        given.map(|given| given.value).expect("given")
    };
    let busy = [Input::BoardActiveW, Input::BoardCommunicatingW];
    let (least, idle) = (
        busy.map(value)[0].min(busy.map(value)[1]),
        value(Input::BoardIdleW),
    );
    let advice = advise(&question).expect("answered");
    assert!(!advice.break_even.is_empty());
    for point in &advice.break_even {
        if busy.contains(&point.input) {
            assert!(point.at >= idle, "{point:?}");
        } else if point.input == Input::BoardIdleW {
            assert!(point.at <= least, "{point:?}");
        }
    }
}

/// A board would just miss the deadline with the margin, and sending costs thousands of times its energy.
#[test]
fn a_risk_is_taken_where_all_safe_options_cost_a_multiple_and_the_answer_says_so() {
    let mut question = Question {
        boards_max: 1,
        deadline_s: Some(10.5),
        ..assumed()
    };
    let mut give = |input: Input, value: f64| {
        question
            .give(input, value, Origin::Stated("a test".into()))
            .expect("in range");
    };
    give(Input::InputBytes, 1e10);
    give(Input::UpBytesPerS, 1e10);
    let bold = advise(&question).expect("answered");
    assert_eq!(bold.advised(), Some(Place::Boards(1)));
    let (advised, safe) = bold.risked().expect("a risk");
    assert!((0.2..0.5).contains(&advised.late_probability) && safe.place == Place::DataCentre);
    let json = bold.json();
    assert!(
        json["risked"]["safe_costs_times"].as_f64() > Some(100.0),
        "{json}"
    );
    let careful = Question {
        confidence_floor: question.confidence,
        ..question.clone()
    };
    let careful = advise(&careful).expect("answered");
    assert_eq!(careful.advised(), Some(Place::DataCentre));
    assert!(careful.risked().is_none() && careful.json()["risked"].is_null());
    // If nothing is safe, no risk is taken either.
    let near = Question {
        privacy: Privacy::Board,
        ..question.clone()
    };
    assert_eq!(advise(&near).expect("answered").advised(), None);
    let wrong = Question {
        confidence_floor: 0.9,
        ..question
    };
    assert!(matches!(advise(&wrong), Err(Error::Invalid { .. })));
}

#[test]
fn the_accounting_boundary_is_named_and_changes_the_energy() {
    let on = Question {
        boundary: Boundary::BoardsOn,
        ..assumed()
    };
    let (on, off) = (
        advise(&on).expect("answered"),
        advise(&assumed()).expect("answered"),
    );
    assert!(on.choice.options[0].energy_j < off.choice.options[0].energy_j);
    assert!(
        on.json()["boundary"]
            .as_str()
            .expect("a text")
            .contains("run anyway")
    );
}

#[test]
fn questions_of_another_shape_are_refused() {
    let with = |from: &str, to: &str| {
        let text = r#"{"version":1,"name":"a","inputs":{"single_s":{"value":10,"measured":"a"}}}"#;
        assert!(text.contains(from));
        parse_question(&text.replacen(from, to, 1))
    };
    assert!(with("10", "10").is_ok());
    assert_eq!(
        with("\"version\":1", "\"version\":2"),
        Err(Error::Version {
            version: 2,
            known: 1
        })
    );
    for (from, to) in [
        ("\"name\":\"a\"", "\"name\":\"\""),
        ("\"name\":\"a\"", "\"name\":\"a\",\"deadline\":1"),
        ("single_s", "singles"),
        ("10", "-10"),
        ("10", "1e400"),
        (",\"measured\":\"a\"", ""),
        (
            ",\"measured\":\"a\"",
            ",\"measured\":\"a\",\"assumed\":\"b\"",
        ),
        ("\"measured\":\"a\"", "\"measured\":\"a\\nb\""),
        ("\"measured\":\"a\"", "\"measured\":\"a\",\"spread\":2"),
    ] {
        assert!(with(from, to).is_err(), "{to}");
    }
    let twice = with(
        "\"inputs\":{",
        "\"inputs\":{\"single_s\":{\"value\":9,\"measured\":\"b\"},",
    );
    let twice = twice.expect_err("an input twice").to_string();
    assert!(twice.contains("duplicate input `single_s`"), "{twice}");
    let mut idle = assumed();
    idle.give(Input::BoardIdleW, 6.0, Origin::Stated("a test".into()))
        .expect("in range");
    assert!(advise(&idle).is_err());
    for (boards_max, deadline_s, confidence) in [
        (0, None, 0.9),
        (65, None, 0.9),
        (1, Some(0.0), 0.9),
        (1, None, 1.0),
    ] {
        let question = Question {
            boards_max,
            deadline_s,
            confidence,
            ..assumed()
        };
        assert!(matches!(advise(&question), Err(Error::Invalid { .. })));
    }
}

#[test]
fn a_question_comes_back_from_its_text() {
    let mut question = assumed();
    question.deadline_s = Some(0.1 + 0.2);
    question.privacy = Privacy::Neighbours;
    question.minimise = Minimise::Time;
    question.confidence = 0.9;
    let text = question_text(&question).expect("fits");
    assert_eq!(parse_question(&text), Ok(question.clone()));
    let marked = format!("\u{feff}{text}");
    assert_eq!(parse_question(&marked), Ok(question.clone()));
    question.deadline_s = None;
    question.boundary = Boundary::BoardsOn;
    let text = question_text(&question).expect("fits");
    assert_eq!(parse_question(&text), Ok(question.clone()));
    question.name = String::new();
    assert!(question_text(&question).is_err());
}

#[test]
fn inputs_are_in_the_order_of_their_table() {
    for (at, input) in INPUTS.into_iter().enumerate() {
        assert_eq!(input as usize, at);
        assert_eq!(Input::from_name(input.name()), Some(input));
        if let Some((value, _)) = input.assumed() {
            let (least, most) = input.range();
            assert!((least..=most).contains(&value));
        }
    }
}

/// Ranges of luck within which the same options are in time, and the middle of each.
fn strata(late: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    let mut ends: Vec<f64> = late.map(|late| 1.0 - late).chain([0.0, 1.0]).collect();
    ends.sort_by(f64::total_cmp);
    let pairs = ends.windows(2);
    pairs
        .map(|pair| (pair[1] - pair[0], f64::midpoint(pair[0], pair[1])))
        .collect()
}

/// Losses by enumeration: each combination of the boards' and the data centre's lateness has its cheapest option in
/// time.
fn played_losses(options: &[Estimate], late_penalty: f64) -> Vec<f64> {
    let late = |is_centre: bool| {
        let there = options
            .iter()
            .filter(move |option| (option.place == Place::DataCentre) == is_centre);
        there.map(|option| option.late_probability)
    };
    let mut losses = vec![0.0; options.len()];
    for (boards_part, boards) in strata(late(false)) {
        for (centre_part, centre) in strata(late(true)) {
            let is_in_time = |option: &&Estimate| {
                let luck = if option.place == Place::DataCentre {
                    centre
                } else {
                    boards
                };
                luck < 1.0 - option.late_probability
            };
            let costs = options
                .iter()
                .filter(is_in_time)
                .map(|option| option.expected);
            let best = costs.fold(f64::INFINITY, f64::min);
            for (loss, option) in losses.iter_mut().zip(options) {
                *loss += (option.expected / best - 1.0).max(0.0) * boards_part * centre_part;
            }
        }
    }
    losses
        .iter()
        .zip(options)
        .map(|(loss, option)| loss + late_penalty * option.late_probability)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_advised_option_is_the_least_within_the_deadline(
        factors in proptest::collection::vec(0.1..10.0, INPUTS.len()), deadline_s in 0.1..100.0,
    ) {
        let mut question = Question { deadline_s: Some(deadline_s), ..assumed() };
        for (input, factor) in INPUTS.into_iter().zip(factors) {
            let fixed = [Input::ParallelFraction, Input::Pue, Input::BoardIdleW, Input::MachineIdleW];
            if let Some(given) = question.given[input as usize].as_mut()
                && !fixed.contains(&input)
            {
                given.value *= factor;
            }
        }
        for (idle, active) in [(Input::BoardIdleW, Input::BoardActiveW), (Input::MachineIdleW, Input::MachineActiveW)] {
            let active = question.given[active as usize].as_ref().map_or(1.0, |given| given.value);
            if let Some(given) = question.given[idle as usize].as_mut() {
                given.value = active / 2.0;
            }
        }
        let choice = choose(&question).expect("answered");
        let has_safe = choice.options.iter().any(|option| option.fit == Fit::Fits);
        let may_be = |option: &&Estimate| {
            option.fit == Fit::Fits || (has_safe && option.late_probability <= 1.0 - question.confidence_floor)
        };
        let least = choice.options.iter().filter(may_be).map(|option| option.loss);
        let least = if has_safe { least.fold(f64::INFINITY, f64::min) } else { f64::INFINITY };
        for (option, loss) in choice.options.iter().zip(played_losses(&choice.options, question.late_penalty)) {
            // A board that is less likely in time than a cheaper one may itself be late in the case where it is
            // regretted.
            prop_assert!((option.loss - loss).abs() <= 1e-9 * loss.max(1.0), "{option:?}, played {loss}");
        }
        match choice.advised {
            Some(at) => {
                let option = &choice.options[at];
                prop_assert!(option.loss <= least && may_be(&option));
                prop_assert!(option.fit != Fit::Fits || option.time_with_margin_s <= deadline_s);
                prop_assert!(option.time_with_margin_s >= option.time_s);
            }
            None => prop_assert!(least == f64::INFINITY && choice.likeliest.is_some() && choice.least_loss.is_some()),
        }
    }
}

#[test]
fn errors_of_form_have_no_words_of_the_program() {
    for (text, wanted) in [
        ("[1]", "expected an object"),
        (
            r#"{"version": 1, "name": "a", "inputs": {"pue": 2}}"#,
            "expected an object such as",
        ),
        (
            r#"{"version": 1, "name": "a", "inputs": {"pue": {"value": "2"}}}"#,
            "expected a number",
        ),
        (
            r#"{"version": 1, "name": "a", "boards_max": -1, "inputs": {}}"#,
            "expected a whole number",
        ),
        (
            r#"{"version": "1", "name": "a", "inputs": {}}"#,
            "expected a whole number",
        ),
        (
            r#"{"version": 1, "name": "a", "inputs": 3}"#,
            "expected an object",
        ),
    ] {
        let error = parse_question(text).expect_err("no question").to_string();
        assert!(error.contains(wanted), "{error}");
        for word in ["struct", "u32", "u64", "f64", "map"] {
            assert!(!error.contains(word), "{error}");
        }
    }
}
