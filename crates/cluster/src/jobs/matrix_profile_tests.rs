use super::*;
use crate::jobs::together::alone_and_together;
use crate::random::Random;
use proptest::prelude::*;

fn readings(values: Vec<f64>, breaks: Vec<usize>) -> Readings {
    Readings {
        names: vec!["value".to_owned()],
        columns: vec![values],
        breaks,
        ..Readings::default()
    }
}

fn job(
    window: usize,
    readings: &Readings,
) -> impl Fn(&mut dyn Communicator, &Watch) -> Result<Option<Answer>, Failure> + Sync {
    move |star, watch| {
        let mine = (star.rank() == 0).then_some(readings);
        run(star, watch, window, mine)
    }
}

/// Returns the correlation of two windows from the definition; `None` if they are not compared.
fn naive(values: &[f64], window: usize, breaks: &[usize], a: usize, b: usize) -> Option<f64> {
    let is_broken = |at: usize| {
        breaks
            .iter()
            .any(|&place| at < place && place < at + window)
    };
    if a.abs_diff(b) <= window.div_ceil(4) || is_broken(a) || is_broken(b) {
        return None;
    }
    let normal = |at: usize| {
        let values = &values[at..at + window];
        let mean = values.iter().sum::<f64>() / window as f64;
        let variance = values
            .iter()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>()
            / window as f64;
        let is_still = values.iter().all(|value| *value == values[0]);
        let deviation = variance.sqrt();
        (!is_still).then(|| {
            values
                .iter()
                .map(|value| (value - mean) / deviation)
                .collect::<Vec<_>>()
        })
    };
    // The distance between normalised windows, and back to a correlation.
    let square = match (normal(a), normal(b)) {
        (Some(a), Some(b)) => a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum(),
        (None, None) => 0.0,
        _ => window as f64,
    };
    Some(1.0 - square / (2.0 * window as f64))
}

#[test]
fn a_shape_that_comes_twice_is_the_motif_and_one_that_comes_once_the_discord() {
    let mut random = Random::new(5);
    let mut values: Vec<f64> = (0..900)
        .map(|row| (row as f64 / 6.0).sin() + 0.3 * random.normal())
        .collect();
    for at in 0..40 {
        let shape = f64::from((at * at % 17) as u8) / 3.0;
        values[200 + at] = shape;
        values[700 + at] = 2.0 * shape + 5.0;
        values[450 + at] = if at % 2 == 0 { 1.0 } else { -1.0 };
    }
    let (answer, together) = alone_and_together(4, job(40, &readings(values, vec![])));
    let (first, second, distance) = answer.motif().expect("one");
    assert_eq!((first, second), (200, 700));
    assert!(distance < 1e-4, "{distance}");
    let (discord, _, far) = answer.discord().expect("one");
    assert!(
        (420..480).contains(&discord) && far > 3.0,
        "{discord} {far}"
    );
    assert_eq!(answer, together);
}

#[test]
fn still_windows_are_alike_and_half_like_others() {
    let mut values = vec![3.0; 60];
    for (at, value) in values[20..30].iter_mut().enumerate() {
        *value += f64::from(at as u8).sin();
    }
    let (answer, _) = alone_and_together(2, job(8, &readings(values, vec![])));
    assert_eq!(answer.distance(0), Some(0.0));
    assert_eq!(answer.neighbours[0], Some(3));
    assert!(answer.correlations[22] >= 0.5);
}

#[test]
fn windows_across_breaks_and_series_that_are_too_short_have_no_neighbours() {
    let values: Vec<f64> = (0..40).map(|row| f64::from(row * row % 13)).collect();
    let (answer, _) = alone_and_together(2, job(8, &readings(values.clone(), vec![20])));
    assert!((13..20).all(|at| answer.neighbours[at].is_none() && answer.distance(at).is_none()));
    assert!(answer.neighbours[12].is_some() && answer.neighbours[20].is_some());
    let (answer, _) = alone_and_together(3, job(8, &readings(values[..10].to_vec(), vec![])));
    assert_eq!(
        (answer.motif(), answer.discord(), answer.correlations.len()),
        (None, None, 3)
    );
    let short = readings(values[..5].to_vec(), vec![]);
    let end = run(&mut crate::jobs::Alone, &Watch::new(), 8, Some(&short));
    assert_eq!(
        end.map(|_| ()).map_err(|failure| failure.rank),
        Err(Some(0))
    );
}

#[test]
fn diagonals_are_shared_out_evenly() {
    for size in 1..=6 {
        let mut work = vec![0; size];
        for block in 0..240 {
            work[owner(block, size)] += 240 - block;
        }
        let (least, most) = (
            work.iter().min().expect("one"),
            work.iter().max().expect("one"),
        );
        assert!(most - least <= 240 / 8, "{work:?}");
    }
}

#[test]
fn errors_do_not_add_up_along_a_diagonal() {
    let mut random = Random::new(9);
    // Readings with a large offset and steps: the worst case for running sums.
    let values: Vec<f64> = (0..4_000)
        .map(|row| 1e6 + f64::from(row / 1_000) * 1e3 + random.normal())
        .collect();
    let (window, count) = (32, 4_000 - 31);
    let answer = run(
        &mut crate::jobs::Alone,
        &Watch::new(),
        window,
        Some(&readings(values.clone(), vec![])),
    )
    .expect("alone")
    .expect("rank 0");
    for at in (0..count).step_by(97) {
        let wanted = (0..count).filter_map(|other| naive(&values, window, &[], at, other));
        let wanted = wanted.fold(f64::NEG_INFINITY, f64::max);
        assert!(
            (answer.correlations[at] - wanted).abs() < 1e-6,
            "{at}: {} {wanted}",
            answer.correlations[at]
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Within 1e-9, not bitwise: the definition sums in another order.
    #[test]
    fn the_profile_is_that_of_the_definition(
        values in proptest::collection::vec(prop_oneof![(-10.0..10.0), Just(0.0), Just(1.0)], 20..120),
        window in 4_usize..12, breaks in proptest::collection::btree_set(1_usize..120, 0..3),
    ) {
        let breaks: Vec<usize> = breaks.into_iter().filter(|&at| at < values.len()).collect();
        let count = values.len() - window + 1;
        let given = readings(values.clone(), breaks.clone());
        let answer = run(&mut crate::jobs::Alone, &Watch::new(), window, Some(&given));
        let answer = answer.expect("alone").expect("rank 0");
        prop_assert_eq!(answer.correlations.len(), count);
        for at in 0..count {
            let offers: Vec<Option<f64>> = (0..count).map(|other| naive(&values, window, &breaks, at, other)).collect();
            let best = offers.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
            match answer.neighbours[at] {
                None => prop_assert_eq!(best, f64::NEG_INFINITY),
                Some(neighbour) => {
                    let found = answer.correlations[at];
                    prop_assert!((found - best).abs() < 1e-9, "{}: {} {best}", at, found);
                    let its = offers[neighbour].expect("compared");
                    prop_assert!((its - best).abs() < 1e-9, "{}: neighbour {neighbour} has {its}, best {best}", at);
                }
            }
        }
    }

    /// Bitwise: one rank follows a diagonal from its beginning, and maxima do not depend on the order.
    #[test]
    fn the_answer_does_not_depend_on_the_number_of_ranks(
        rows in 16_usize..400, window in 4_usize..16, size in 2_usize..7, seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        // Integers: many windows are equally similar, and the first must win everywhere.
        let values = (0..rows).map(|_| random.between(-3.0, 3.0).round()).collect();
        let readings = readings(values, vec![rows / 2]);
        let (alone, together) = alone_and_together(size, job(window, &readings));
        let bits = |answer: &Answer| answer.correlations.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&alone), bits(&together));
        prop_assert_eq!(alone.neighbours, together.neighbours);
    }
}
