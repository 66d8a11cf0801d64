use super::*;
use crate::jobs::together::alone_and_together;
use proptest::prelude::*;

fn settings(clusters: usize) -> Settings {
    Settings {
        window: 8,
        step: 4,
        clusters,
        rounds_max: 50,
        seed: 1,
    }
}

fn readings(columns: Vec<Vec<f64>>) -> Readings {
    Readings {
        names: (0..columns.len()).map(|at| at.to_string()).collect(),
        columns,
        ..Readings::default()
    }
}

/// Lloyd's rounds as in a textbook: on one machine, means of lists, no integers.
fn naive(
    points: &[Vec<f64>],
    centres: &[Vec<f64>],
    rounds_max: usize,
) -> (Vec<Vec<f64>>, Vec<usize>) {
    let mut centres = centres.to_vec();
    let mut assigned = vec![usize::MAX; points.len()];
    for _ in 0..rounds_max {
        let before = assigned.clone();
        for (place, point) in assigned.iter_mut().zip(points) {
            let squares = centres.iter().map(|centre| {
                let differences = centre.iter().zip(point).map(|(a, b)| (a - b).powi(2));
                differences.sum::<f64>()
            });
            let squares: Vec<f64> = squares.collect();
            let least = squares.iter().copied().fold(f64::INFINITY, f64::min);
            *place = squares
                .iter()
                .position(|square| *square == least)
                .expect("one");
        }
        for (cluster, centre) in centres.iter_mut().enumerate() {
            let members = points
                .iter()
                .zip(&assigned)
                .filter(|(_, place)| **place == cluster);
            let members: Vec<&Vec<f64>> = members.map(|(point, _)| point).collect();
            if !members.is_empty() {
                for (at, value) in centre.iter_mut().enumerate() {
                    *value =
                        members.iter().map(|point| point[at]).sum::<f64>() / members.len() as f64;
                }
            }
        }
        if before == assigned {
            break;
        }
    }
    (centres, assigned)
}

fn job(
    columns: usize,
    settings: Settings,
    readings: &Readings,
) -> impl Fn(&mut dyn Communicator, &Watch) -> Result<Option<Answer>, Failure> + Sync {
    move |star, watch| {
        let mine = (star.rank() == 0).then_some(readings);
        run(star, watch, settings, columns, mine)
    }
}

#[test]
fn two_modes_of_a_machine_are_two_clusters_and_a_fault_is_unusual() {
    let mut random = Random::new(3);
    // A machine that idles, works, idles; for a moment it does neither.
    let level = |row: usize| if (400..800).contains(&row) { 10.0 } else { 1.0 };
    let mut values: Vec<f64> = (0..1_200)
        .map(|row| level(row) + 0.1 * random.normal())
        .collect();
    for value in &mut values[600..604] {
        *value = -30.0;
    }
    let readings = readings(vec![values]);
    let (answer, _) = alone_and_together(3, job(1, settings(2), &readings));
    let means: Vec<f64> = answer
        .clusters
        .iter()
        .map(|cluster| cluster.centre[0])
        .collect();
    assert!(answer.has_settled && answer.windows == 299, "{answer:?}");
    assert!(
        means.iter().any(|mean| (mean - 1.0).abs() < 0.2),
        "{means:?}"
    );
    // Two windows contain the fault.
    let rows: Vec<usize> = answer.unusual.iter().take(2).map(|one| one.row).collect();
    assert!(
        rows.iter().all(|row| (593..604).contains(row)),
        "{answer:?}"
    );
    assert!(answer.unusual[0].score > 3.0, "{answer:?}");
    assert_eq!(answer.unusual.len(), UNUSUAL_MAX);
    assert_eq!(
        answer
            .clusters
            .iter()
            .map(|cluster| cluster.windows)
            .sum::<u64>(),
        299
    );
}

#[test]
fn windows_that_do_not_differ_make_one_cluster() {
    let readings = readings(vec![vec![5.0; 100]]);
    let (answer, together) = alone_and_together(4, job(1, settings(6), &readings));
    assert_eq!(answer.clusters.len(), 1);
    assert_eq!((answer.clusters[0].centre[0], answer.distance), (5.0, 0.0));
    assert!(answer.unusual.iter().all(|one| one.score == 0.0));
    assert_eq!(answer, together);
}

#[test]
fn the_most_unusual_are_kept_in_order() {
    let mut kept = Vec::new();
    for at in 0..40 {
        keep_best(&mut kept, (at, f64::from((at * 7 % 20) as u8)));
    }
    let wanted: Vec<(usize, f64)> = (10..20)
        .rev()
        .flat_map(|score| {
            (0..40)
                .filter(move |at| at * 7 % 20 == score)
                .map(move |at| (at, score as f64))
        })
        .take(UNUSUAL_MAX)
        .collect();
    assert_eq!(kept, wanted);
}

#[test]
fn values_at_the_limits_of_doubles_are_clustered_alike() {
    let mut values = vec![0.0; 64];
    values[10] = f64::MAX;
    values[20] = -f64::MAX;
    let readings = readings(vec![values]);
    let (answer, together) = alone_and_together(2, job(1, settings(3), &readings));
    assert_eq!(format!("{answer:?}"), format!("{together:?}"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Sums of integers below 2^53 are exact in both, so the centres agree to the last bits.
    #[test]
    fn rounds_follow_the_algorithm_of_lloyd(
        width in 1_usize..6, clusters in 1_usize..6, rounds_max in 1_usize..12,
        seed in any::<u64>(), count in 6_usize..80,
    ) {
        let mut random = Random::new(seed);
        let points: Vec<Vec<f64>> = (0..count)
            .map(|_| (0..width).map(|_| (random.between(-1.0, 1.0) * UNIT).round()).collect())
            .collect();
        let flat: Vec<f64> = points.iter().flatten().copied().collect();
        let mut centres = draw(&flat, width, clusters, seed);
        prop_assert!(centres.chunks(width).all(|centre| points.iter().any(|point| point == centre)));
        let first: Vec<Vec<f64>> = centres.chunks(width).map(<[f64]>::to_vec).collect();
        let (wanted, places) = naive(&points, &first, rounds_max);
        let mut assigned = vec![usize::MAX; count];
        for _ in 0..rounds_max {
            let sums = add_up(&flat, width, &centres, &mut assigned);
            if move_centres(&mut centres, &sums, width) {
                break;
            }
        }
        prop_assert_eq!(assigned, places);
        for (found, wanted) in centres.iter().zip(wanted.iter().flatten()) {
            prop_assert!((found - wanted).abs() <= 1e-6, "{found} {wanted}");
        }
    }

    #[test]
    fn windows_are_described_as_defined(values in proptest::collection::vec(-50.0..50.0, 2..40)) {
        let [mean, deviation, least, greatest, roughness] = describe(&values);
        let count = values.len() as f64;
        let squares = values.iter().map(|value| value * value).sum::<f64>() / count;
        prop_assert!((deviation * deviation + mean * mean - squares).abs() < 1e-6);
        prop_assert!(values.iter().all(|value| (least..=greatest).contains(value)));
        let steps: f64 = (1..values.len()).map(|at| (values[at] - values[at - 1]).powi(2)).sum();
        prop_assert!((roughness * roughness * (count - 1.0) - steps).abs() < 1e-6);
    }

    /// Bitwise: all sums are of integers, and the sample for the initial centres is of all windows.
    #[test]
    fn the_answer_does_not_depend_on_the_number_of_ranks(
        rows in 8_usize..400, columns in 1_usize..4, clusters in 1_usize..6, size in 2_usize..7, seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let columns: Vec<Vec<f64>> =
            (0..columns).map(|_| (0..rows).map(|_| random.normal()).collect()).collect();
        let readings = Readings { breaks: vec![rows / 2], ..readings(columns) };
        let settings = Settings { seed: seed >> 11, rounds_max: 6, ..settings(clusters) };
        let (alone, together) = alone_and_together(size, job(readings.columns.len(), settings, &readings));
        let bits = |answer: &Answer| {
            let centres = answer.clusters.iter().flat_map(|cluster| cluster.centre.iter());
            let scores = answer.unusual.iter().map(|one| &one.score);
            let values = centres.chain(scores).chain([&answer.distance]);
            values.map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        prop_assert_eq!(bits(&alone), bits(&together));
        prop_assert_eq!(alone, together);
    }
}
