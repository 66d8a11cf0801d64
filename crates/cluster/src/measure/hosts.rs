//! Lists of boards: one per line, with its number of ranks.

use crate::Error;
use crate::error::excerpt;

/// Largest size of a list, in bytes.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Largest number of boards, as in a result file.
const HOSTS_MAX: usize = 1_024;

/// Largest number of ranks on one board.
const HOST_RANKS_MAX: u32 = 1_024;

/// Largest number of ranks of a run.
const RANKS_MAX: u32 = 65_536;

/// One board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEntry {
    /// Its name or address.
    pub name: String,
    /// Number of ranks on it.
    pub ranks: u32,
}

/// Reads a list: a name or an IPv4 address on each line. A line is `NAME`, `NAME:RANKS` (as in MPICH) or `NAME
/// slots=RANKS` (as in Open MPI). The default is one rank. Text after `#` is a comment.
///
/// # Errors
/// A line of another form with its number, a board twice, no board, or too many.
pub fn parse_hosts(text: &str) -> Result<Vec<HostEntry>, Error> {
    if text.len() > FILE_BYTES_MAX {
        return Err(Error::Limit {
            what: "bytes of a list of hosts",
            value: text.len() as u64,
            limit: FILE_BYTES_MAX as u64,
        });
    }
    let mut hosts: Vec<HostEntry> = Vec::new();
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let host = parse_line(number, line)?;
        if hosts.iter().any(|known| known.name == host.name) {
            let wrong = format!(
                "{} is there already: say `{}:2` for two ranks",
                host.name, host.name
            );
            return Err(Error::malformed(number, wrong));
        }
        if hosts.len() == HOSTS_MAX {
            return Err(Error::Limit {
                what: "hosts of a run",
                value: HOSTS_MAX as u64 + 1,
                limit: HOSTS_MAX as u64,
            });
        }
        hosts.push(host);
    }
    if hosts.is_empty() {
        return Err(Error::malformed(1, "there is no host"));
    }
    let ranks = ranks_of(&hosts);
    if ranks > RANKS_MAX {
        return Err(Error::Limit {
            what: "ranks of a run",
            value: u64::from(ranks),
            limit: u64::from(RANKS_MAX),
        });
    }
    Ok(hosts)
}

/// Returns the number of ranks on all of them.
#[must_use]
pub fn ranks_of(hosts: &[HostEntry]) -> u32 {
    // 1,024 hosts with 1,024 ranks each fit.
    hosts.iter().map(|host| host.ranks).sum()
}

fn parse_line(number: usize, line: &str) -> Result<HostEntry, Error> {
    let (name, ranks) = match line.split_once(char::is_whitespace) {
        Some((name, rest)) => {
            let slots = rest.trim().strip_prefix("slots=").ok_or_else(|| {
                let wrong = format!(
                    "`{}` is neither NAME:RANKS nor NAME slots=RANKS",
                    excerpt(line)
                );
                Error::malformed(number, wrong)
            })?;
            if let Some((_, further)) = slots.split_once(char::is_whitespace) {
                let wrong = format!(
                    "`{}` behind slots= has no meaning here: leave it out",
                    excerpt(further.trim())
                );
                return Err(Error::malformed(number, wrong));
            }
            (name, Some(slots))
        }
        None if line.matches(':').count() > 1 => {
            let wrong = format!(
                "`{}` looks like an address of IPv6: give the board a name in /etc/hosts, and write that",
                excerpt(line)
            );
            return Err(Error::malformed(number, wrong));
        }
        None => match line.split_once(':') {
            Some((name, ranks)) => (name, Some(ranks)),
            None => (line, None),
        },
    };
    // Names become words of other programs' command lines, so they must not look like an option, a path or two words.
    let is_name = !name.is_empty()
        && name.len() <= 253
        && !name.starts_with(['-', '.'])
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_'));
    if !is_name {
        let wrong = format!("`{}` is no name of a host", excerpt(name));
        return Err(Error::malformed(number, wrong));
    }
    let ranks = match ranks {
        None => 1,
        Some(text) => text
            .parse()
            .ok()
            .filter(|ranks| (1..=HOST_RANKS_MAX).contains(ranks))
            .ok_or_else(|| {
                let wrong = format!("`{}` ranks, must be 1 to {HOST_RANKS_MAX}", excerpt(text));
                Error::malformed(number, wrong)
            })?,
    };
    Ok(HostEntry {
        name: name.to_owned(),
        ranks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_forms_comments_and_addresses_are_read() {
        let found = parse_hosts("\u{feff}# boards\nb1\n b2:2 # two\n\nb3 slots=4\n10.77.0.4\n")
            .expect("a list");
        let shown: Vec<_> = found
            .iter()
            .map(|host| (host.name.as_str(), host.ranks))
            .collect();
        assert_eq!(shown, [("b1", 1), ("b2", 2), ("b3", 4), ("10.77.0.4", 1)]);
        assert_eq!(ranks_of(&found), 8);
    }

    #[test]
    fn an_invalid_list_of_hosts_is_refused_with_its_line() {
        for (text, said) in [
            ("", "line 1: there is no host"),
            ("# none\n", "line 1: there is no host"),
            ("b1\nb1\n", "line 2: b1 is there already"),
            (
                "b1\n-oProxyCommand=x\n",
                "line 2: `-oProxyCommand=x` is no name",
            ),
            ("b1;reboot\n", "line 1: `b1;reboot` is no name"),
            ("b1:0\n", "line 1: `0` ranks"),
            ("b1:many\n", "line 1: `many` ranks"),
            ("b1 max_slots=2\n", "line 1: `b1 max_slots=2` is neither"),
            (
                "b1 slots=2 max_slots=2\n",
                "line 1: `max_slots=2` behind slots= has no meaning here",
            ),
            (
                "b1\nfe80::1\n",
                "line 2: `fe80::1` looks like an address of IPv6",
            ),
            (
                "[::1]:2\n",
                "line 1: `[::1]:2` looks like an address of IPv6",
            ),
        ] {
            let error = parse_hosts(text).expect_err(text).to_string();
            assert!(error.starts_with(said), "{error}");
        }
        let many: String = (0..1_025).map(|at| format!("b{at}\n")).collect();
        assert!(
            parse_hosts(&many)
                .expect_err("too many")
                .to_string()
                .contains("1025, at most 1024")
        );
        let many: String = (0..1_024).map(|at| format!("b{at}:1024\n")).collect();
        assert!(
            parse_hosts(&many)
                .expect_err("too many")
                .to_string()
                .contains("at most 65536")
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_an_error(text in "[-a-z0-9:= #\n\\PC]{0,80}") {
            if let Ok(hosts) = parse_hosts(&text) {
                prop_assert!(hosts.iter().all(|host| host.ranks >= 1 && !host.name.starts_with('-')));
            }
        }
    }
}
