//! RAPL counters of processors, `/sys/class/powercap/intel-rapl:N/energy_uj`: energy in microjoules that wraps at
//! `max_energy_range_uj`. They cover the processor, never the board.
//!
//! Zones within a zone (`intel-rapl:0:1`) are part of it and not read, except memory, which is not part of the package.
//! `intel-rapl-mmio` shows the packages again.

use super::root::{Root, read_number, read_text};
use super::source::{Meaning, Power, Source};

const FOLDER: &str = "sys/class/powercap";

/// More than any package uses. An interval in which a counter could wrap twice at this power gives no value.
const ZONE_W_MAX: f64 = 1_000.0;

/// The counter moves about every millisecond: a shorter interval would measure these steps.
const INTERVAL_NS_MIN: u64 = 5_000_000;

/// One zone with a counter.
#[derive(Debug)]
pub struct Zone {
    root: Root,
    name: String,
    covers: String,
    /// The kernel's name of the zone's folder. It follows the order of the hardware, and is checked at each read.
    folder: String,
    /// The zone's own name.
    label: String,
    last: Option<(u64, u64)>,
}

/// Finds the zones of a machine that cover different things.
pub(super) fn discover(root: &Root) -> Vec<Zone> {
    let mut zones = Vec::new();
    for folder in root.names(FOLDER) {
        let Some(numbers) = folder.strip_prefix("intel-rapl:") else {
            continue;
        };
        let Ok(label) = read_text(&root.path(&format!("{FOLDER}/{folder}/name"))) else {
            continue;
        };
        let is_part = numbers.contains(':');
        let covers = match (label.as_str(), is_part) {
            ("dram", true) => "memory beside a processor package".to_owned(),
            ("psys", false) => "what the processor's maker counts as the platform".to_owned(),
            (_, false) => "a processor package, not the board".to_owned(),
            _ => continue,
        };
        let name = if is_part {
            format!("rapl {label} {}", numbers.split(':').next().unwrap_or(""))
        } else {
            format!("rapl {label}")
        };
        zones.push(Zone {
            root: root.clone(),
            name,
            covers,
            folder,
            label,
            last: None,
        });
    }
    zones
}

impl Zone {
    fn counter(&self) -> Result<(u64, u64), String> {
        let path = |file: &str| self.root.path(&format!("{FOLDER}/{}/{file}", self.folder));
        let label = read_text(&path("name"))?;
        if label != self.label {
            return Err(format!(
                "{} is another zone now, `{}`",
                self.folder,
                crate::error::excerpt(&label)
            ));
        }
        let range = read_number(&path("max_energy_range_uj"))?;
        let counter = read_number(&path("energy_uj"))?;
        match (u64::try_from(counter), u64::try_from(range)) {
            (Ok(counter), Ok(range)) if range > 0 && counter <= range => Ok((counter, range)),
            _ => Err(format!(
                "{}: a counter of {counter} in a range of {range}",
                self.folder
            )),
        }
    }
}

impl Source for Zone {
    fn name(&self) -> &str {
        &self.name
    }

    fn covers(&self) -> &str {
        &self.covers
    }

    fn meaning(&self) -> Meaning {
        Meaning::MeanSinceLast
    }

    fn read(&mut self, now_ns: u64) -> Power {
        let (counter, range) = match self.counter() {
            Ok(read) => read,
            Err(why) => {
                // A later difference would cover a time for which nothing is known.
                self.last = None;
                return Power::unavailable(why);
            }
        };
        let Some((before_ns, before)) = self.last else {
            self.last = Some((now_ns, counter));
            return Power::unavailable("a counter says nothing until its second reading");
        };
        let interval_ns = now_ns.saturating_sub(before_ns);
        if interval_ns < INTERVAL_NS_MIN {
            return Power::unavailable("read again within 5 ms");
        }
        self.last = Some((now_ns, counter));
        let seconds = interval_ns as f64 / 1e9;
        if range as f64 / 1e6 <= ZONE_W_MAX * seconds {
            return Power::unavailable(format!(
                "the counter may have wrapped more than once in {seconds:.0} s; read it more often"
            ));
        }
        // The counter goes from 0 to its range, inclusive.
        let moved_uj = if counter >= before {
            counter - before
        } else {
            range - before + counter + 1
        };
        if moved_uj == 0 {
            return Power::unavailable("the counter does not move");
        }
        let watts = moved_uj as f64 / 1e6 / seconds;
        if watts > ZONE_W_MAX {
            let why =
                format!("{watts:.0} W is more than a processor uses: the counter was set back");
            return Power::unavailable(why);
        }
        Power::Measured { watts }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::Tree;
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const RANGE: u64 = 262_143_328_850;

    fn tree() -> Tree {
        let tree = Tree::new();
        for (folder, name) in [
            ("intel-rapl:0", "package-0"),
            ("intel-rapl:0:0", "core"),
            ("intel-rapl:0:1", "dram"),
            ("intel-rapl:1", "psys"),
            ("intel-rapl-mmio:0", "package-0"),
        ] {
            tree.write(&format!("{FOLDER}/{folder}/name"), format!("{name}\n"));
            tree.write(
                &format!("{FOLDER}/{folder}/max_energy_range_uj"),
                format!("{RANGE}\n"),
            );
            tree.write(&format!("{FOLDER}/{folder}/energy_uj"), "1000000\n");
        }
        tree.write(&format!("{FOLDER}/intel-rapl/enabled"), "1\n");
        tree
    }

    fn count(tree: &Tree, counter: u64) {
        tree.write(
            &format!("{FOLDER}/intel-rapl:0/energy_uj"),
            format!("{counter}\n"),
        );
    }

    fn package(tree: &Tree) -> Zone {
        let zones = discover(&tree.root());
        zones
            .into_iter()
            .find(|zone| zone.name == "rapl package-0")
            .expect("a package")
    }

    fn why(power: &Power) -> &str {
        match power {
            Power::Unavailable { why } => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn zones_within_zones_and_packages_shown_twice_are_left_out() {
        let zones = discover(&tree().root());
        let names: Vec<&str> = zones.iter().map(|zone| zone.name.as_str()).collect();
        assert_eq!(names, ["rapl package-0", "rapl psys", "rapl dram 0"]);
        assert!(discover(&Tree::new().root()).is_empty());
    }

    #[test]
    fn a_difference_is_power_also_over_the_wrap() {
        let tree = tree();
        let mut zone = package(&tree);
        assert!(why(&zone.read(0)).contains("second reading"));
        count(&tree, 6_000_000);
        assert_eq!(zone.read(SECOND), Power::Measured { watts: 5.0 });
        count(&tree, RANGE - 999_999);
        zone.read(100 * SECOND);
        count(&tree, 2_000_000);
        assert_eq!(zone.read(101 * SECOND), Power::Measured { watts: 3.0 });
    }

    #[test]
    fn an_unknown_power_is_unavailable_and_never_zero() {
        let tree = tree();
        let mut zone = package(&tree);
        zone.read(0);
        assert!(why(&zone.read(SECOND)).contains("does not move"));
        count(&tree, 2_000_000);
        assert!(why(&zone.read(SECOND + 1)).contains("5 ms"));
        // 262 kJ are 262 s at 1 kW.
        assert!(why(&zone.read(300 * SECOND)).contains("more than once"));
        count(&tree, 1_000_000);
        assert!(why(&zone.read(301 * SECOND)).contains("set back"));
        for text in ["", "\n", "9000000", "12x\n", "-5\n", "999999999999999999\n"] {
            tree.write(&format!("{FOLDER}/intel-rapl:0/energy_uj"), text);
            why(&zone.read(302 * SECOND));
        }
        tree.remove(&format!("{FOLDER}/intel-rapl:0/energy_uj"));
        assert!(why(&zone.read(303 * SECOND)).contains("no such file"));
        // After a failure the next reading counts as a first one.
        count(&tree, 9_000_000);
        assert!(why(&zone.read(304 * SECOND)).contains("second reading"));
    }

    #[test]
    fn another_zone_under_the_same_number_is_not_taken_for_the_old_one() {
        let tree = tree();
        let mut zone = package(&tree);
        zone.read(0);
        tree.write(&format!("{FOLDER}/intel-rapl:0/name"), "package-1\n");
        count(&tree, 6_000_000);
        assert!(why(&zone.read(SECOND)).contains("another zone"));
    }

    #[test]
    fn an_unreadable_counter_is_named_in_the_reason() {
        let tree = tree();
        let mut zone = package(&tree);
        // A folder instead of the file fails even for root, which permissions do not stop.
        tree.remove(&format!("{FOLDER}/intel-rapl:0/energy_uj"));
        std::fs::create_dir(tree.path(&format!("{FOLDER}/intel-rapl:0/energy_uj")))
            .expect("a folder");
        assert!(why(&zone.read(0)).contains("energy_uj"));
    }
}
