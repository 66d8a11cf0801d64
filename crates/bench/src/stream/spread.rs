//! What chance makes of a comparison: how far two systems come out apart that lose the same.

use base::sim::Random;

use crate::report::median;

/// Comparisons that are drawn.
const DRAWS: usize = 4000;

/// Of so many, in a hundred, the bound is not passed by chance.
const SURE_PERCENT: usize = 95;

/// The slowdown of one copy, divided by that of the median of the others, median of the rounds: what it is at most in
/// 95 of 100 comparisons of copies with copies. `without` and `with` are the times of all copies without and with
/// losses, those of a round together, so many in each. A start without any losses is not always as long either, and
/// its slowdown is one time of it divided by another: by `starts`, its times without losses, each comparison is
/// multiplied with such a quotient. None: there are not as many.
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

/// One of these, and the median of the others.
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
        // One that is late in 35 is no reason to let ours be late always.
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
        // One that was late once is no reason, either.
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
