//! The content of messages, so that a lost, cut, doubled or misdirected message is noticed. Each byte depends on the
//! sender, the receiver and its position.

/// Returns the byte at a position of a message from one rank to another.
#[must_use]
pub fn byte(from: u32, to: u32, at: usize) -> u8 {
    // Each factor is odd: neighbours differ, and the pattern does not repeat within a page.
    let mixed = (at as u32)
        .wrapping_mul(0x9e37_79b1)
        .wrapping_add(from.wrapping_mul(0x85eb_ca6b))
        .wrapping_add(to.wrapping_mul(0xc2b2_ae35));
    (mixed >> 24) as u8
}

/// Fills a message.
pub fn fill(message: &mut [u8], from: u32, to: u32) {
    for (at, place) in message.iter_mut().enumerate() {
        *place = byte(from, to, at);
    }
}

/// Returns the first wrong position.
#[must_use]
pub fn wrong_at(message: &[u8], from: u32, to: u32) -> Option<usize> {
    message
        .iter()
        .enumerate()
        .find(|(at, found)| **found != byte(from, to, *at))
        .map(|(at, _)| at)
}

/// Returns what one rank adds to a sum at a position: at most 186, so that the sum over 65,536 ranks fits.
#[must_use]
pub fn addend(rank: u32, at: usize) -> i32 {
    (rank % 61) as i32 + (at % 127) as i32
}

/// Returns the first wrong position of a sum over all ranks.
#[must_use]
pub fn wrong_sum_at(sum: &[i32], ranks: u32) -> Option<usize> {
    let of_ranks: i32 = (0..ranks).map(|rank| addend(rank, 0)).sum();
    let expected = |at: usize| of_ranks.wrapping_add(ranks as i32 * (at % 127) as i32);
    sum.iter()
        .enumerate()
        .find(|(at, found)| **found != expected(*at))
        .map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found_at_its_offset() {
        let mut message = vec![0; 5_000];
        fill(&mut message, 1, 2);
        assert_eq!(wrong_at(&message, 1, 2), None);
        // A message of other ranks, in the other direction, shifted by one, by a page, and with one bit flipped.
        assert!(wrong_at(&message, 2, 1).is_some() && wrong_at(&message, 1, 3).is_some());
        assert!(
            wrong_at(&message[1..], 1, 2).is_some() && wrong_at(&message[4_096..], 1, 2).is_some()
        );
        message[4_321] ^= 1;
        assert_eq!(wrong_at(&message, 1, 2), Some(4_321));
        assert!(wrong_at(&[0; 4], 0, 1).is_some(), "what was never written");
    }

    #[test]
    fn sums_include_every_rank() {
        for ranks in [2, 6, 65_536] {
            let mut sum: Vec<i32> = (0..300)
                .map(|at| (0..ranks).map(|rank| addend(rank, at)).sum())
                .collect();
            assert_eq!(wrong_sum_at(&sum, ranks), None);
            sum[200] -= addend(1, 200);
            assert_eq!(wrong_sum_at(&sum, ranks), Some(200), "a rank is missing");
        }
    }
}
