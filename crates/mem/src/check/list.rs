//! Lists in the tables of a region. A link is a number plus 1, or 0 at the end.

use std::collections::HashSet;

/// Follows a list from the link `first` on; `behind` returns the link behind an entry. A list is broken where `behind`
/// returns `None`, or an entry comes again. Returns the entries up to there, and whether the list is whole.
pub(super) fn follow(
    first: u64,
    mut behind: impl FnMut(u64) -> Option<u64>,
) -> (HashSet<u64>, bool) {
    let mut listed = HashSet::new();
    let mut link = first;
    while let Some(entry) = link.checked_sub(1) {
        match behind(entry) {
            Some(next) if listed.insert(entry) => link = next,
            _ => return (listed, false),
        }
    }
    (listed, true)
}
