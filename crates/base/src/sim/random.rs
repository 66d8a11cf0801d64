//! The generator behind every simulated choice.

/// A deterministic generator: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014). The sequence for a seed does not change between versions, so that a seed in a bug report keeps its meaning.
/// Not for secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator for `seed`; every seed is a good one.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number from 0 to `bound - 1`, each as likely as the next to within one in 2^64 / `bound`; 0 for
    /// `bound` 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product maps the whole range onto the bound without a division.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// As [`below`](Self::below), for an index.
    pub fn index(&mut self, bound: usize) -> usize {
        self.below(bound as u64) as usize
    }

    /// True with a probability of `ppm` in a million. Draws one number, also when the answer is certain.
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// True or false, evenly.
    pub fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }

    /// A number from 0 up to but not including 1, in steps of 2^-53.
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Puts `items` in a random order, each order as likely as the next.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// Fills `bytes` with random bits.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// A generator of its own, whose sequence does not depend on how this one is used afterwards.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        // One more mixing step, so that the child does not simply follow its parent's numbers.
        Self::new(mix(self.next_u64() ^ 0x6a09_e667_f3bc_c909))
    }
}

/// SplitMix64's output function: a bijection on 64 bits in which every input bit moves every output bit.
pub(super) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_is_the_published_one() {
        // First outputs of the reference implementation for seed 1234567.
        let mut random = Random::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(
            expected,
            [random.next_u64(), random.next_u64(), random.next_u64()]
        );
    }

    #[test]
    fn bounds_hold_and_all_values_come() {
        let mut random = Random::new(7);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[random.index(10)] = true;
            assert!(random.unit_f64() < 1.0);
        }
        assert_eq!(seen, [true; 10]);
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
        assert!(!(0..1000).any(|_| random.chance_ppm(0)));
        assert!((0..1000).all(|_| random.chance_ppm(1_000_000)));
    }

    #[test]
    fn shuffle_keeps_the_items() {
        let mut items: Vec<u32> = (0..50).collect();
        Random::new(3).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
        Random::new(3).shuffle::<u32>(&mut []);
    }

    #[test]
    fn forks_differ_from_each_other_and_from_the_parent() {
        let mut parent = Random::new(9);
        let mut first = parent.fork();
        let mut second = parent.fork();
        let mut bytes = [0; 11];
        first.fill(&mut bytes);
        assert_ne!(bytes, [0; 11]);
        assert_ne!(first.next_u64(), second.next_u64());
        assert_ne!(second.next_u64(), parent.next_u64());
    }
}
