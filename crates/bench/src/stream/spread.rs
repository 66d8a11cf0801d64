//! The effect of chance on a comparison: how much two systems differ although they have the same losses.

use base::sim::Random;

use crate::report::median;

/// Number of random comparisons.
const DRAWS: usize = 4000;

/// Percentage of the comparisons that do not exceed the bound by chance.
const SURE_PERCENT: usize = 95;

/// Returns the bound for a ratio of slowdowns. It is that of one copy divided by that of the median of the others, as
/// the median of the rounds. In 95 of 100 comparisons of copies with copies the ratio is at most this bound. `without`
/// and `with` are the times of all copies without and with losses, `in_round` adjacent ones in each round. A start
/// varies without losses, too, and its slowdown is a quotient of two of its times. Therefore each comparison is
/// multiplied by a quotient of two of `starts`, its times without losses. Returns `None` if there are too few times.
pub(crate) fn of_copies(
    without: &[f64],
    with: &[f64],
    in_round: usize,
    starts: &[f64],
) -> Option<f64> {
    if in_round < 2
        || starts.len() < 2
        || with.is_empty()
        || with.len() != without.len()
        || !with.len().is_multiple_of(in_round)
    {
        return None;
    }
    let mut random = Random::new(0x636f_7069_6573);
    let mut ratios: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let rounds = with.chunks(in_round).zip(without.chunks(in_round));
            let mut ratios: Vec<f64> = rounds
                .map(|(with, without)| {
                    let (one_with, others_with) = draw(with, &mut random);
                    let (one_without, others_without) = draw(without, &mut random);
                    let first = random.below(starts.len() as u64) as usize;
                    let apart = 1 + random.below(starts.len() as u64 - 1) as usize;
                    let start = starts[first] / starts[(first + apart) % starts.len()];
                    start * (one_with / one_without) / (others_with / others_without)
                })
                .collect();
            median(&mut ratios)
        })
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    Some(ratios[DRAWS * SURE_PERCENT / 100])
}

/// Draws one of these times. Also returns the median of the others.
fn draw(times: &[f64], random: &mut Random) -> (f64, f64) {
    let one = random.below(times.len() as u64) as usize;
    let mut others: Vec<f64> = times.to_vec();
    let one = others.swap_remove(one);
    (one, median(&mut others))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTS: [f64; 7] = [400.0; 7];

    #[test]
    fn copies_that_do_not_differ_leave_no_room_and_others_do() {
        let same = [100.0; 35];
        assert_eq!(of_copies(&same, &[130.0; 35], 5, &STARTS), Some(1.0));
        // Half of them take twice as long.
        let apart: Vec<f64> = (0..35)
            .map(|number| 100.0 + f64::from(number % 2) * 100.0)
            .collect();
        let bound = of_copies(&same, &apart, 5, &STARTS).unwrap();
        assert!(bound > 1.2 && bound <= 2.0, "{bound}");
        // A single late copy in 35 does not loosen the bound for ours.
        let mut late = same;
        late[7] = 1000.0;
        assert_eq!(of_copies(&same, &late, 5, &STARTS), Some(1.0));
    }

    #[test]
    fn starts_that_differ_without_losses_leave_as_much_room() {
        let same = [100.0; 35];
        let starts = [400.0, 404.0, 408.0, 400.0, 404.0, 408.0, 400.0];
        let bound = of_copies(&same, &same, 5, &starts).unwrap();
        assert!(bound > 1.005 && bound < 1.02, "{bound}");
        // A single late start does not loosen the bound, either.
        let starts = [400.0, 400.0, 400.0, 400.0, 400.0, 400.0, 900.0];
        assert_eq!(of_copies(&same, &same, 5, &starts), Some(1.0));
        assert_eq!(of_copies(&same, &same, 5, &[400.0]), None);
    }

    #[test]
    fn rounds_that_are_not_whole_are_not_judged() {
        assert_eq!(of_copies(&[1.0; 10], &[1.0; 9], 5, &STARTS), None);
        assert_eq!(of_copies(&[1.0; 9], &[1.0; 9], 5, &STARTS), None);
        assert_eq!(of_copies(&[], &[], 5, &STARTS), None);
    }
}
