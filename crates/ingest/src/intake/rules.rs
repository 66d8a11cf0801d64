//! Finds the first of many patterns that matches a key, without trying them all.

use std::collections::HashMap;

/// Patterns by their levels. The cost of a key depends on its levels and the wildcards on its path, not on the number
/// of patterns. This matters because every key is looked up when rules change, on a thread that also serves
/// connections.
#[derive(Debug, Default)]
pub(super) struct RuleIndex {
    root: Level,
}

/// What can follow the levels so far. Numbers are indices in the list of patterns; the lowest one decides.
#[derive(Debug, Default)]
struct Level {
    named: HashMap<Box<str>, Level>,
    /// After a `+`.
    any: Option<Box<Level>>,
    /// A pattern that has `#` here.
    rest: Option<usize>,
    /// A pattern that ends here.
    end: Option<usize>,
}

impl RuleIndex {
    /// Creates an index of these patterns. A pattern that [`pattern::check`](crate::pattern::check) refuses because of
    /// its `#` matches nothing.
    pub(super) fn new<'p>(patterns: impl Iterator<Item = &'p str>) -> Self {
        let mut index = Self::default();
        for (place, pattern) in patterns.enumerate() {
            index.root.add(pattern, place);
        }
        index
    }

    /// Returns the index of the first pattern that matches.
    pub(super) fn find(&self, key: &str) -> Option<usize> {
        self.root.find(Some(key))
    }
}

impl Level {
    fn add(&mut self, pattern: &str, place: usize) {
        let mut level = self;
        let mut names = pattern.split('/').peekable();
        while let Some(name) = names.next() {
            level = match name {
                "#" => {
                    if names.peek().is_none() {
                        level.rest.get_or_insert(place);
                    }
                    return;
                }
                "+" => level.any.get_or_insert_default(),
                name => level.named.entry(name.into()).or_default(),
            };
        }
        level.end.get_or_insert(place);
    }

    /// `rest`: the levels of the key from here on; `None` after its last level.
    fn find(&self, rest: Option<&str>) -> Option<usize> {
        let Some(rest) = rest else {
            return least(self.rest, self.end);
        };
        let (name, rest) = match rest.split_once('/') {
            Some((name, rest)) => (name, Some(rest)),
            None => (rest, None),
        };
        let named = self.named.get(name).and_then(|level| level.find(rest));
        let any = self.any.as_ref().and_then(|level| level.find(rest));
        least(self.rest, least(named, any))
    }
}

fn least(one: Option<usize>, other: Option<usize>) -> Option<usize> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern;
    use proptest::prelude::*;

    fn name() -> impl Strategy<Value = String> {
        let level = prop::sample::select(&["a", "b", "", "cc", "$x", "a#", "+b"][..]);
        prop::collection::vec(level, 1..5).prop_map(|levels| levels.join("/"))
    }

    fn wild() -> impl Strategy<Value = String> {
        let level = prop::sample::select(&["a", "b", "", "cc", "+", "+", "#", "a#", "+b"][..]);
        prop::collection::vec(level, 1..5).prop_map(|levels| levels.join("/"))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_index_finds_the_first_matching_pattern(
            patterns in prop::collection::vec(wild(), 0..12),
            key in name(),
        ) {
            let index = RuleIndex::new(patterns.iter().map(String::as_str));
            let tried = patterns.iter().position(|pattern| pattern::matches(pattern, &key));
            prop_assert_eq!(index.find(&key), tried);
        }
    }
}
