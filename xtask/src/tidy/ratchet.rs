//! Rules that the tree does not keep yet: how often each room breaks each rule, and limits that may only shrink.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::{Finding, room_of};

/// Path of the limits, one a line: `rule room number`. Without a line, the limit is 0.
pub(crate) const LIST_PATH: &str = "xtask/ratchet.txt";

/// Rule of the sizes of rooms. Its limits leave some lines free, since every change alters the count.
pub(crate) const ROOM: &str = "room";

/// Places that a finding names.
const PLACES_MAX: usize = 5;

const HEADER: &str = "\
# Limits of rules that the tree does not keep yet: rule, room, number. A higher count is a finding, and so is a number
# that can be lower. `cargo xtask tidy --write-ratchet` lowers the numbers; `cargo xtask tidy --list` names the places.
# The limit of the rule `room` is in lines of code, at most 5 % above the count.
";

/// Counts by rule and room.
pub(crate) type Counts = BTreeMap<(String, String), Count>;

/// How often a room breaks a rule, and where.
#[derive(Default)]
pub(crate) struct Count {
    pub(crate) number: usize,
    pub(crate) places: Vec<Finding>,
}

/// Parsed limits.
pub(crate) struct Ratchet {
    limits: BTreeMap<(String, String), Limit>,
    malformed: Vec<Finding>,
}

struct Limit {
    line: usize,
    number: usize,
}

/// Counts findings by rule and room, and adds the lines of code of each room.
pub(crate) fn count(findings: Vec<Finding>, code_lines: BTreeMap<String, usize>) -> Counts {
    let mut counts = Counts::new();
    for finding in findings {
        let key = (finding.rule.to_owned(), room_of(&finding.path).to_owned());
        let count = counts.entry(key).or_default();
        count.number += 1;
        count.places.push(finding);
    }
    for (room, number) in code_lines {
        let text = format!("{number} lines of code without a limit in {LIST_PATH}");
        let places = vec![Finding::new(&room, 0, ROOM, text)];
        counts.insert((ROOM.to_owned(), room), Count { number, places });
    }
    counts
}

impl Ratchet {
    /// Parses `rule room number` lines; empty lines and lines that start with `#` are skipped.
    pub(crate) fn parse(list: &str) -> Self {
        let mut limits = BTreeMap::new();
        let mut malformed = Vec::new();
        for (index, text) in list.lines().enumerate() {
            let line = index + 1;
            let words: Vec<&str> = text.split_whitespace().collect();
            let number = words.get(2).and_then(|word| word.parse().ok());
            match (words.as_slice(), number) {
                ([], _) => {}
                ([first, ..], _) if first.starts_with('#') => {}
                ([rule, room, _], Some(number)) => {
                    let key = ((*rule).to_owned(), (*room).to_owned());
                    limits.insert(key, Limit { line, number });
                }
                _ => {
                    let text = "a limit is `rule room number`";
                    malformed.push(Finding::new(LIST_PATH, line, "ratchet", text));
                }
            }
        }
        Self { limits, malformed }
    }

    /// Finds counts above their limits, and limits that can be lower. Without a limit, each place is a finding.
    pub(crate) fn check(&self, counts: &Counts) -> Vec<Finding> {
        let mut findings = self.malformed.clone();
        let none = Count::default();
        let keys: BTreeSet<_> = self.limits.keys().chain(counts.keys()).collect();
        for key in keys {
            let (rule, room) = key;
            let count = counts.get(key).unwrap_or(&none);
            let Some(limit) = self.limits.get(key) else {
                findings.extend(count.places.iter().cloned());
                continue;
            };
            let (number, most) = (count.number, limit.number);
            let free = if rule == ROOM { number / 10 } else { 0 };
            let text = if number > most {
                let places = count.places.iter().take(PLACES_MAX);
                let places: Vec<String> = places
                    .map(|place| format!("{}:{}", place.path, place.line))
                    .collect();
                let places = places.join(", ");
                format!("`{rule}` in {room}: {number}, at most {most}: {places}")
            } else if number + free < most {
                format!("`{rule}` in {room}: {number}, so {most} is too high: use --write-ratchet")
            } else {
                continue;
            };
            findings.push(Finding::new(LIST_PATH, limit.line, "ratchet", text));
        }
        findings
    }

    /// Returns the list with limits lowered to the counts; with `raise`, those below their counts are raised as well.
    pub(crate) fn rewritten(&self, counts: &Counts, raise: bool) -> String {
        let mut list = HEADER.to_owned();
        for (key, count) in counts {
            let (rule, room) = key;
            let old = self.limits.get(key).map_or(0, |limit| limit.number);
            let free = if rule == ROOM { count.number / 20 } else { 0 };
            let new = count.number + free;
            let is_raised = raise && count.number > old;
            let number = if is_raised { new } else { new.min(old) };
            if number > 0 {
                list.push_str(&format!("{rule} {room} {number}\n"));
            }
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns counts of two rules in `db`, which has 1,000 lines of code.
    fn counts(sentences: usize, circles: usize) -> Counts {
        let finding = |rule, line| Finding::new("crates/db/src/a.rs", line, rule, "text");
        let mut findings: Vec<Finding> = (1..=sentences)
            .map(|line| finding("sentence", line))
            .collect();
        findings.extend((1..=circles).map(|line| finding("circle", line)));
        count(findings, BTreeMap::from([("db".to_owned(), 1000)]))
    }

    fn texts(list: &str, counts: &Counts) -> Vec<String> {
        let findings = Ratchet::parse(list).check(counts).into_iter();
        findings.map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn counts_at_their_limits_are_left_alone() {
        let list = "# comment\n\ncircle db 1\nroom db 1050\nsentence db 7\n";
        assert!(texts(list, &counts(7, 1)).is_empty());
    }

    #[test]
    fn a_count_above_its_limit_names_the_first_places() {
        let found = texts("room db 999\nsentence db 6\n", &counts(7, 0));
        assert_eq!(found.len(), 2);
        assert!(found[0].ends_with("`room` in db: 1000, at most 999: db:0"));
        assert!(
            found[1].starts_with("xtask/ratchet.txt:2: ratchet: `sentence` in db: 7, at most 6: ")
        );
        assert!(found[1].contains("a.rs:1, ") && found[1].ends_with("a.rs:5"));
    }

    #[test]
    fn places_without_a_limit_are_findings_of_their_own() {
        let found = texts("room db 1050\n", &counts(2, 0));
        assert_eq!(found[0], "crates/db/src/a.rs:1: sentence: text");
        assert_eq!(found.len(), 2);
        assert!(texts("", &counts(0, 0))[0].starts_with("db:0: room: 1000 lines"));
    }

    #[test]
    fn a_limit_that_can_be_lower_is_found() {
        let found = texts("circle db 2\nroom db 1101\nsentence db 1\n", &counts(0, 1));
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|text| text.contains("is too high")));
    }

    #[test]
    fn malformed_limits_are_found() {
        for line in ["circle db", "circle db many", "circle db 1 2"] {
            let found = texts(&format!("{line}\nroom db 1000\n"), &counts(0, 0));
            assert_eq!(found.len(), 1, "{line}");
            assert!(found[0].contains("`rule room number`"));
        }
    }

    #[test]
    fn writing_lowers_limits_and_raises_them_only_when_told() {
        let ratchet = Ratchet::parse("circle db 3\nname db 1\nroom db 2000\nsentence db 1\n");
        let lines = |raise| {
            let text = ratchet.rewritten(&counts(2, 1), raise);
            text.replace(HEADER, "")
        };
        assert_eq!(lines(false), "circle db 1\nroom db 1050\nsentence db 1\n");
        assert_eq!(lines(true), "circle db 1\nroom db 1050\nsentence db 2\n");
        assert_eq!(
            Ratchet::parse("").rewritten(&counts(0, 0), true),
            format!("{HEADER}room db 1050\n")
        );
    }
}
