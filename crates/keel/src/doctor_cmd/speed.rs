//! The processors' frequencies, by the files of Linux's cpufreq: what each policy permits, and its steps while
//! something runs. Nothing is written.

use super::finding::text_of;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folder of the policies, below the folder that stands for `/`.
const POLICIES: &str = "sys/devices/system/cpu/cpufreq";

/// Why a machine has no frequencies.
pub(super) const WHY_NONE: &str = "the kernel offers none (no policy of cpufreq)";

/// One policy: processors with a common frequency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) folder: PathBuf,
    pub(super) name: String,
    /// Its processors' numbers.
    pub(super) cores: Vec<u32>,
    pub(super) driver: Option<String>,
    pub(super) governor: Option<String>,
    /// Its frequencies in kHz, ascending; empty if the driver lists none.
    pub(super) steps_khz: Vec<u64>,
    /// The least and the greatest frequency of the hardware.
    pub(super) range_khz: Option<(u64, u64)>,
    /// The least and the greatest frequency that are permitted at present.
    pub(super) permitted_khz: Option<(u64, u64)>,
}

/// Returns the policies below `root`, in order.
pub(super) fn policies(root: &Path) -> Vec<Policy> {
    let names = std::fs::read_dir(root.join(POLICIES)).into_iter().flatten();
    let names = names
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("policy")).collect();
    // `policy10` after `policy9`.
    names.sort_by_key(|name| (name.len(), name.clone()));
    let policy = |name: String| Policy::look(root.join(POLICIES).join(&name), name);
    names.into_iter().map(policy).collect()
}

/// Returns the numbers in a text; other words are left out.
fn numbers<T: std::str::FromStr>(text: Option<String>) -> Vec<T> {
    let text = text.unwrap_or_default();
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

impl Policy {
    fn look(folder: PathBuf, name: String) -> Self {
        let file = |name: &str| text_of(folder.join(name));
        let number = |name: &str| file(name)?.parse::<u64>().ok();
        let mut steps_khz: Vec<u64> = numbers(file("scaling_available_frequencies"));
        steps_khz.sort_unstable();
        steps_khz.dedup();
        Self {
            cores: numbers(file("affected_cpus")),
            driver: file("scaling_driver"),
            governor: file("scaling_governor"),
            steps_khz,
            range_khz: number("cpuinfo_min_freq").zip(number("cpuinfo_max_freq")),
            permitted_khz: number("scaling_min_freq").zip(number("scaling_max_freq")),
            name,
            folder,
        }
    }

    /// Returns the frequency at this moment, in kHz.
    fn now_khz(&self) -> Option<u64> {
        text_of(self.folder.join("scaling_cur_freq"))?.parse().ok()
    }

    /// Returns the time at each frequency since the machine started, in ticks of 10 ms by kHz; empty if it is unknown.
    fn ticks(&self) -> BTreeMap<u64, u64> {
        let text = text_of(self.folder.join("stats/time_in_state")).unwrap_or_default();
        let line = |line: &str| {
            let (khz, ticks) = line.split_once(' ')?;
            Some((khz.parse().ok()?, ticks.trim().parse().ok()?))
        };
        text.lines().filter_map(line).collect()
    }
}

/// The frequencies of one policy while something ran.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Speeds {
    /// The policy's name.
    pub(super) policy: String,
    /// Before, in kHz.
    pub(super) before: Option<u64>,
    /// The least and the greatest one that was read, with those before and after.
    pub(super) least_most: Option<(u64, u64)>,
    /// Number of frequencies read.
    pub(super) reads: u32,
    /// After, in kHz.
    pub(super) after: Option<u64>,
    /// The part of the time at each frequency that was used, in per cent by kHz, or why it is unknown.
    pub(super) times: Result<Vec<(u64, f64)>, &'static str>,
    ticks_before: BTreeMap<u64, u64>,
}

impl Speeds {
    /// Begins with the frequency before.
    pub(super) fn begin(policy: &Policy) -> Self {
        let mut speeds = Self {
            policy: policy.name.clone(),
            before: None,
            least_most: None,
            reads: 0,
            after: None,
            times: Err("it has not ended"),
            ticks_before: policy.ticks(),
        };
        speeds.before = speeds.read(policy);
        speeds
    }

    /// Reads the frequency once.
    pub(super) fn read(&mut self, policy: &Policy) -> Option<u64> {
        let khz = policy.now_khz()?;
        let (least, most) = self.least_most.unwrap_or((khz, khz));
        self.least_most = Some((least.min(khz), most.max(khz)));
        self.reads += 1;
        Some(khz)
    }

    /// Ends with the frequency after, and the times since the beginning.
    pub(super) fn end(&mut self, policy: &Policy) {
        self.after = self.read(policy);
        let ticks = policy.ticks();
        let spent = ticks.iter().map(|(khz, ticks)| {
            let before = self.ticks_before.get(khz).copied().unwrap_or(0);
            (*khz, ticks.saturating_sub(before))
        });
        let spent: Vec<(u64, u64)> = spent.filter(|(_, ticks)| *ticks > 0).collect();
        let total: u64 = spent.iter().map(|(_, ticks)| ticks).sum();
        self.times = if self.ticks_before.is_empty() || ticks.is_empty() {
            Err("the kernel does not count it (CONFIG_CPU_FREQ_STAT)")
        } else if total == 0 {
            Err("no tick of 10 ms was counted")
        } else {
            let part = |(khz, ticks)| (khz, 100.0 * ticks as f64 / total as f64);
            Ok(spent.into_iter().map(part).collect())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that stands for `/`, removed at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let own = format!("keel-speed-{}-{name}", std::process::id());
            let root = std::env::temp_dir().join(own);
            std::fs::create_dir_all(&root).unwrap();
            Self(root)
        }

        fn write(&self, policy: &str, file: &str, text: &str) {
            let path = self.0.join(POLICIES).join(policy).join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn policies_are_listed_with_their_readable_settings_only() {
        let tree = Tree::new("policies");
        assert!(policies(&tree.0).is_empty());
        tree.write("policy10", "affected_cpus", "10\n");
        tree.write("policy2", "affected_cpus", "2 3\n");
        tree.write(
            "policy2",
            "scaling_available_frequencies",
            "1500000 600000 x \n",
        );
        tree.write("policy2", "scaling_driver", "cpufreq-dt\n");
        tree.write("policy2", "scaling_min_freq", "600000\n");
        tree.write("policy2", "scaling_max_freq", "1000000\n");
        tree.write("policy2", "cpuinfo_min_freq", "600000\n");
        let found = policies(&tree.0);
        assert_eq!(found.len(), 2);
        let policy = &found[0];
        assert_eq!(
            (policy.name.as_str(), &policy.cores[..]),
            ("policy2", &[2, 3][..])
        );
        assert_eq!(policy.steps_khz, [600_000, 1_500_000]);
        assert_eq!(policy.driver.as_deref(), Some("cpufreq-dt"));
        assert_eq!(policy.governor, None);
        assert_eq!(policy.permitted_khz, Some((600_000, 1_000_000)));
        assert_eq!(policy.range_khz, None);
        assert_eq!(found[1].name, "policy10");
    }

    #[test]
    fn frequencies_before_during_and_after_and_the_time_at_each_are_noted() {
        let tree = Tree::new("speeds");
        let states = "stats/time_in_state";
        tree.write("policy0", "scaling_cur_freq", "600000\n");
        tree.write("policy0", states, "600000 1000\n1000000 50\n1500000 0\n");
        let policy = &policies(&tree.0)[0];
        let mut speeds = Speeds::begin(policy);
        tree.write("policy0", "scaling_cur_freq", "1500000\n");
        assert_eq!(speeds.read(policy), Some(1_500_000));
        tree.write("policy0", "scaling_cur_freq", "1000000\n");
        tree.write("policy0", states, "600000 1025\n1000000 50\n1500000 75\n");
        speeds.end(policy);
        assert_eq!(
            (speeds.before, speeds.after, speeds.reads),
            (Some(600_000), Some(1_000_000), 3)
        );
        assert_eq!(speeds.least_most, Some((600_000, 1_500_000)));
        assert_eq!(speeds.times, Ok(vec![(600_000, 25.0), (1_500_000, 75.0)]));
    }

    #[test]
    fn a_frequency_that_the_kernel_does_not_tell_has_a_reason() {
        let tree = Tree::new("unknown");
        tree.write("policy0", "scaling_cur_freq", "<unknown>\n");
        let policy = &policies(&tree.0)[0];
        let mut speeds = Speeds::begin(policy);
        speeds.end(policy);
        assert_eq!(
            (speeds.before, speeds.least_most, speeds.reads),
            (None, None, 0)
        );
        assert!(speeds.times.unwrap_err().contains("CONFIG_CPU_FREQ_STAT"));
        // A count that has not moved is no time at a frequency.
        tree.write("policy0", "stats/time_in_state", "600000 7\n");
        let mut speeds = Speeds::begin(policy);
        speeds.end(policy);
        assert!(speeds.times.unwrap_err().contains("no tick"));
    }
}
