//! The figures of docs/cluster.md are those of the model.

use cluster::advisor::{CONFIDENCE, CONFIDENCE_FLOOR, INPUTS, LATE_PENALTY};
use cluster::model::{
    BoardPower, Boundary, Cluster, Curve, DataCentre, Exchange, Job, Objective,
    upload_rate_break_even,
};

fn page() -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cluster.md");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn says(page: &str, text: &str) {
    assert!(page.contains(text), "docs/cluster.md does not say: {text}");
}

/// A MinnowBoard MAX.
fn board() -> BoardPower {
    BoardPower::new(4.9871, 2.5663, 4.9871).expect("in range")
}

fn job(times: f64, bytes: f64) -> Job {
    Job {
        single_s: 10.0,
        parallel_fraction: 0.95,
        exchanges: vec![Exchange { times, bytes }],
        input_bytes: 10e6,
        output_bytes: 0.0,
    }
}

fn cluster(alpha_s: f64, rate: f64) -> Cluster {
    Cluster {
        board: board(),
        switch_w: 0.0,
        link: Curve::line(alpha_s, 1.0 / rate).expect("in range"),
    }
}

#[test]
fn the_kinds_of_jobs_that_suit_boards_follow_from_the_model() {
    let page = page();
    // Sending alone, by LTE without and with the network's energy.
    let rate = |joules: f64| upload_rate_break_even(&board(), joules).expect("above 0") / 1e6;
    let (least, most) = (rate(6.8e-6), rate(2e-6));
    says(
        &page,
        &format!("on LTE sending alone costs more energy above {least:.2} to {most:.1} MB/s"),
    );
    // Exchanges: the best number of boards with both links, for many small and for few large messages.
    let best = |link: &Cluster, job: &Job| {
        job.boards_best(link, Boundary::BoardsForJob, Objective::EnergyDelay, 16)
            .expect("no deadline")
    };
    let (small, large) = (job(200.0, 65_536.0), job(50.0, 1_048_576.0));
    let (gigabit, slow) = (cluster(10e-6, 122e6), cluster(60e-6, 12e6));
    assert_eq!((best(&gigabit, &small), best(&gigabit, &large)), (8, 4));
    assert_eq!((best(&slow, &small), best(&slow, &large)), (2, 1));
    says(&page, "at 1 Gbit/s 4 to 8 boards; at 100 Mbit/s 2, or 1");
    // Upload at 10 Mbit/s.
    let centre = |speed| DataCentre {
        speed,
        machine_w: 18.2385,
        pue: 1.5,
        up_bytes_per_s: 1.25e6,
        down_bytes_per_s: 1.25e6,
        round_trip_s: 0.05,
        radio_j_per_byte: 0.0,
        network_j_per_byte: 0.0,
    };
    let there = |speed| {
        centre(speed)
            .run(&small, &board(), Boundary::BoardsForJob)
            .time_s
    };
    says(
        &page,
        &format!(
            "takes {:.1} s in a data centre whose machine is 8 times as fast",
            there(8.0)
        ),
    );
    says(
        &page,
        &format!("and {:.2} s where it is 20 times as fast", there(20.0)),
    );
    says(
        &page,
        &format!("Four boards take {:.1} s.", small.time_s(&gigabit.link, 4)),
    );
    // Speeds from which on a machine needs less energy.
    for (boundary, machine_w) in [
        (Boundary::BoardsForJob, 18.2385),
        (Boundary::BoardsOn, 18.2385),
        (Boundary::BoardsOn, 18.2385 - 4.4801),
    ] {
        let speed = board()
            .speed_break_even(boundary, machine_w)
            .expect("charged");
        says(&page, &format!("{speed:.2}"));
    }
}

#[test]
fn the_page_names_assumed_inputs_and_the_weights_of_risk() {
    let page = page();
    for input in INPUTS {
        says(&page, &format!("`{}`", input.name()));
    }
    let row = |name: &str| {
        let start = format!("| `{name}` |");
        page.lines()
            .find(|line| line.starts_with(&start))
            .unwrap_or_else(|| panic!("{name}"))
            .to_owned()
    };
    for (name, value) in [
        ("confidence", CONFIDENCE),
        ("confidence_floor", CONFIDENCE_FLOOR),
        ("late_penalty", LATE_PENALTY),
    ] {
        assert!(
            row(name).ends_with(&format!("| {value} |")),
            "{}",
            row(name)
        );
    }
}
