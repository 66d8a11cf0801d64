//! A node and all processes that it has started: their processor time and memory. These are separate for the node's own
//! process, its mount, its task, and its jobs (all other processes).
//!
//! **Invariants:** the time of descendants that have ended counts, because the kernel adds it to the parent that has
//! waited for them. Memory that processes share is divided among them, so a sum counts it once.

use std::fs;
use std::io;
use std::time::Duration;

use super::process::{cpu_ns_of, kibibytes_in_status};

/// The groups, in the order of [`Each`].
pub(crate) const NODE: usize = 0;
pub(crate) const MOUNT: usize = 1;
pub(crate) const TASK: usize = 2;
pub(crate) const JOBS: usize = 3;

/// A figure for each group.
pub(crate) type Each = [u64; 4];

/// How often processor time is read again because a process has begun or ended meanwhile.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(5);

/// The processes by which the groups are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) node: u32,
    pub(crate) mount: Option<u32>,
    pub(crate) task: Option<u32>,
}

/// A process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    id: u32,
    parent: u32,
    /// Processor time of the children that it has waited for, in ticks of the kernel.
    ended_ticks: u64,
    group: usize,
}

/// Returns the processor time of each group in nanoseconds.
///
/// # Errors
/// One line: the node has ended, or its processes change all the time.
pub(crate) fn cpu_ns(heads: &Heads) -> Result<Each, String> {
    // SAFETY: a plain system call.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let tick_ns = 1_000_000_000 / u64::try_from(ticks).unwrap_or(0).max(1);
    for _ in 0..TRIES {
        let before = family(heads)?;
        let times = times(&before, tick_ns);
        // A process that ends in between would be missed, or counted twice.
        if let Some(times) = times.filter(|_| family(heads).is_ok_and(|after| after == before)) {
            return Ok(times);
        }
        std::thread::sleep(PAUSE);
    }
    Err("the node's processes begin and end too fast to be measured".to_owned())
}

/// Returns the memory of each group now, in bytes.
///
/// # Errors
/// One line: the node has ended.
pub(crate) fn memory_bytes(heads: &Heads) -> Result<Each, String> {
    let mut each = Each::default();
    for member in family(heads)? {
        each[member.group] += memory_of(member.id);
    }
    Ok(each)
}

/// Returns `None` if a process has ended meanwhile.
fn times(family: &[Member], tick_ns: u64) -> Option<Each> {
    let mut each = Each::default();
    for member in family {
        each[member.group] += cpu_ns_of(member.id).ok()?;
        // Mount and task still run, so the children of the node that have ended are jobs.
        let of_ended = match member.group {
            NODE => JOBS,
            group => group,
        };
        each[of_ended] += member.ended_ticks * tick_ns;
    }
    Some(each)
}

/// Lists the node and its descendants, parents first.
fn family(heads: &Heads) -> Result<Vec<Member>, String> {
    let mut all = Vec::new();
    let failed = |error: io::Error| format!("/proc: {error}");
    for entry in fs::read_dir("/proc").map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process that has ended meanwhile is left out.
        if let Ok(stat) = fs::read(format!("/proc/{id}/stat")) {
            all.extend(member(id, &String::from_utf8_lossy(&stat)));
        }
    }
    let found = below(&all, heads);
    match found.is_empty() {
        true => Err(format!("process {} has ended", heads.node)),
        false => Ok(found),
    }
}

/// Returns the node and its descendants out of all processes, each with its group.
fn below(all: &[Member], heads: &Heads) -> Vec<Member> {
    let mut found: Vec<Member> = all
        .iter()
        .filter(|one| one.id == heads.node)
        .copied()
        .collect();
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        for child in all.iter().filter(|one| one.parent == parent.id) {
            let group = match parent.group {
                NODE if Some(child.id) == heads.mount => MOUNT,
                NODE if Some(child.id) == heads.task => TASK,
                NODE => JOBS,
                group => group,
            };
            found.push(Member { group, ..*child });
        }
        at += 1;
    }
    found
}

/// Parses `/proc/ID/stat`.
fn member(id: u32, stat: &str) -> Option<Member> {
    // The name in parentheses may contain anything; the fields after it are numbered from 3.
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3);
    let ticks = |number| field(number)?.parse::<u64>().ok();
    Some(Member {
        id,
        parent: field(4)?.parse().ok()?,
        ended_ticks: ticks(16)? + ticks(17)?,
        group: NODE,
    })
}

/// Returns the memory of a process in bytes, 0 if it has ended.
fn memory_of(id: u32) -> u64 {
    let figure = |file: &str, key| {
        let text = fs::read_to_string(format!("/proc/{id}/{file}")).ok()?;
        kibibytes_in_status(&text, key)
    };
    // A kernel without the first file shows all that is resident: more, never less.
    let kibibytes = figure("smaps_rollup", "Pss:").or_else(|| figure("status", "VmRSS:"));
    (kibibytes.unwrap_or(0.0) * 1024.0) as u64
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    fn heads(node: u32) -> Heads {
        Heads {
            node,
            mount: None,
            task: None,
        }
    }

    #[test]
    fn descendants_have_the_group_of_the_head_that_they_are_below() {
        let process = |id, parent| Member {
            id,
            parent,
            ended_ticks: 0,
            group: NODE,
        };
        // 1 is no part of the node 2, and 60 is no child of the node although it has the mount's number.
        let all = [
            process(1, 0),
            process(2, 1),
            process(30, 2),
            process(31, 30),
            process(40, 2),
            process(41, 40),
            process(42, 41),
            process(50, 2),
            process(51, 50),
            process(60, 1),
        ];
        let heads = Heads {
            node: 2,
            mount: Some(30),
            task: Some(40),
        };
        let mut found: Vec<(u32, usize)> = below(&all, &heads)
            .iter()
            .map(|member| (member.id, member.group))
            .collect();
        found.sort_unstable();
        let expected = [
            (2, NODE),
            (30, MOUNT),
            (31, MOUNT),
            (40, TASK),
            (41, TASK),
            (42, TASK),
            (50, JOBS),
            (51, JOBS),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_stat_is_read_with_any_process_name() {
        let stat = "7 (a) b) S 5 7 7 0 -1 4194304 1 2 3 4 11 12 13 14 20 0 1 0 99 1 1";
        let expected = Member {
            id: 7,
            parent: 5,
            ended_ticks: 27,
            group: NODE,
        };
        assert_eq!(member(7, stat), Some(expected));
        assert_eq!(member(7, "7 (a) S 5"), None);
    }

    #[test]
    fn the_time_of_a_child_counts_while_it_runs_and_after_its_end() {
        // A shell that computes in a child, reports its end, and waits to be ended.
        let script =
            "( i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done ); echo over; read -r line";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let heads = heads(shell.id());
        let begun = Instant::now();
        loop {
            let times = cpu_ns(&heads).unwrap();
            assert_eq!((times[MOUNT], times[TASK]), (0, 0));
            if times[JOBS] > 0 {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        let mut said = [0; 5];
        io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut said).unwrap();
        // The loop takes far more than a tick of the kernel.
        assert!(cpu_ns(&heads).unwrap()[JOBS] > 0);
        assert!(memory_bytes(&heads).unwrap()[NODE] > 0);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(cpu_ns(&heads).is_err() && memory_bytes(&heads).is_err());
    }
}
