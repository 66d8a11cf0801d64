//! Facts about a machine, for the header of a result file: each fact, or why it is unknown.

use crate::error::excerpt;
use crate::power::{Root, read_large, read_text};
use crate::results::{Host, Known};
use std::io::Read;

/// Options of a kernel's configuration that affect the frequency.
const OPTIONS: &[&str] = &[
    "CPU_FREQ",
    "CPU_FREQ_STAT",
    "CPU_FREQ_DEFAULT_GOV_ONDEMAND",
    "CPU_FREQ_DEFAULT_GOV_PERFORMANCE",
    "CPU_FREQ_DEFAULT_GOV_POWERSAVE",
    "CPU_FREQ_DEFAULT_GOV_SCHEDUTIL",
    "CPU_FREQ_GOV_ONDEMAND",
    "CPU_FREQ_GOV_PERFORMANCE",
    "X86_ACPI_CPUFREQ",
    "X86_INTEL_PSTATE",
];

/// Longest text in bytes; a result file accepts 256.
const TEXT_BYTES_MAX: usize = 250;

/// Largest kernel configuration in bytes, decompressed.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// Describes the machine below a root, on which `ranks` ranks run.
#[must_use]
pub fn describe(root: &Root, ranks: u32) -> Host {
    let small = |path: &str| read_text(&root.path(path));
    let release = small("proc/sys/kernel/osrelease");
    let options = release
        .clone()
        .and_then(|release| frequency_options(root, &release));
    let cores = read_large(&root.path("proc/cpuinfo")).and_then(|text| {
        let count = text
            .lines()
            .filter(|line| line.starts_with("processor"))
            .count();
        u32::try_from(count)
            .ok()
            .filter(|count| *count > 0)
            .ok_or("/proc/cpuinfo lists no processor".to_owned())
    });
    Host {
        name: small("proc/sys/kernel/hostname")
            .map_or_else(|_| "unnamed".to_owned(), |name| excerpt(&name)),
        ranks,
        pinning: Known::Unavailable("nothing was pinned".to_owned()),
        cores: known(cores),
        processor: known_text(processor(root)),
        system: known_text(system(root)),
        kernel: known_text(release),
        frequency_options: known_text(options),
        forks_since_boot: known(forks(root)),
        governor: known_text(small(
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        )),
    }
}

fn known<T>(found: Result<T, String>) -> Known<T> {
    match found {
        Ok(value) => Known::Value(value),
        Err(why) => Known::Unavailable(printable(&why)),
    }
}

fn known_text(found: Result<String, String>) -> Known<String> {
    known(found.map(|text| printable(&text)))
}

/// Returns a text in the form that a result file accepts; one that is cut ends with `…`.
pub(crate) fn printable(text: &str) -> String {
    let mut clean = String::new();
    for letter in text.chars().filter(|letter| !letter.is_control()) {
        if clean.len() + letter.len_utf8() > TEXT_BYTES_MAX {
            clean.push('…');
            break;
        }
        clean.push(letter);
    }
    if clean.is_empty() {
        "empty".to_owned()
    } else {
        clean
    }
}

/// Returns the value after a name, as in `model name : Atom`.
fn field(text: &str, name: &str, separator: char) -> Option<String> {
    let mut values = text.lines().filter_map(|line| {
        let (left, right) = line.split_once(separator)?;
        (left.trim() == name).then(|| right.trim().trim_matches('"').to_owned())
    });
    values.find(|value| !value.is_empty())
}

fn processor(root: &Root) -> Result<String, String> {
    let text = read_large(&root.path("proc/cpuinfo"))?;
    let named = field(&text, "model name", ':').or_else(|| field(&text, "Model", ':'));
    named.ok_or_else(|| "/proc/cpuinfo has no model".to_owned())
}

fn system(root: &Root) -> Result<String, String> {
    let text = read_large(&root.path("etc/os-release"))?;
    field(&text, "PRETTY_NAME", '=').ok_or_else(|| "/etc/os-release has no PRETTY_NAME".to_owned())
}

fn forks(root: &Root) -> Result<u64, String> {
    let text = read_large(&root.path("proc/stat"))?;
    let forks = text
        .lines()
        .find_map(|line| line.strip_prefix("processes "));
    let forks = forks.and_then(|text| text.trim().parse().ok());
    forks.ok_or_else(|| "/proc/stat has no number of processes".to_owned())
}

fn frequency_options(root: &Root, release: &str) -> Result<String, String> {
    let text = configuration(root, release)?;
    let is_set = |option: &&&str| {
        text.lines().any(|line| {
            let rest = line.strip_prefix("CONFIG_");
            let value = rest.and_then(|rest| rest.strip_prefix(**option));
            matches!(value, Some("=y" | "=m"))
        })
    };
    let set: Vec<&str> = OPTIONS.iter().filter(is_set).copied().collect();
    Ok(if set.is_empty() {
        "none of them".to_owned()
    } else {
        set.join(" ")
    })
}

/// Returns the configuration of the running kernel: from the kernel itself if possible, otherwise from the usual place
/// of distributions.
fn configuration(root: &Root, release: &str) -> Result<String, String> {
    let own = root.path("proc/config.gz");
    if let Ok(file) = std::fs::OpenOptions::new().read(true).open(&own) {
        let mut text = String::new();
        let mut unpacked = flate2::read::GzDecoder::new(file).take(CONFIG_BYTES_MAX);
        let read = unpacked.read_to_string(&mut text);
        read.map_err(|error| format!("{}: {error}", own.display()))?;
        return Ok(text);
    }
    let release = excerpt(release);
    let places = [
        format!("boot/config-{release}"),
        format!("lib/modules/{release}/config"),
    ];
    let mut found = places.iter().map(|place| read_large(&root.path(place)));
    found
        .find_map(Result::ok)
        .ok_or_else(|| format!("neither /proc/config.gz nor /{}", places.join(" nor /")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::power::fake::Tree;
    use std::io::Write;

    #[test]
    fn a_text_that_is_cut_says_so_and_fits() {
        let cut = printable(&"ab".repeat(200));
        assert!(cut.ends_with("b…") && cut.len() <= 256, "{cut}");
        assert_eq!(printable("a\nb"), "ab");
    }

    #[test]
    fn a_machine_is_described_with_reasons_for_unknown_values() {
        let tree = Tree::new();
        tree.write("proc/sys/kernel/hostname", "b1\n");
        tree.write("proc/sys/kernel/osrelease", "4.4.0-yocto\n");
        tree.write(
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Atom E3825\nprocessor\t: 1\n",
        );
        tree.write("proc/stat", "cpu 1 2 3\nprocesses 1234\n");
        tree.write("etc/os-release", "ID=poky\nPRETTY_NAME=\"Poky 2.1\"\n");
        tree.write(
            "boot/config-4.4.0-yocto",
            "CONFIG_CPU_FREQ=y\n# CONFIG_CPU_FREQ_STAT is not set\n",
        );
        let found = describe(&tree.root(), 1);
        assert_eq!(found.name, "b1");
        assert_eq!(found.cores, Known::Value(2));
        assert_eq!(found.processor, Known::Value("Atom E3825".to_owned()));
        assert_eq!(found.system, Known::Value("Poky 2.1".to_owned()));
        assert_eq!(found.frequency_options, Known::Value("CPU_FREQ".to_owned()));
        assert_eq!(found.forks_since_boot, Known::Value(1_234));
        assert_eq!(found.governor.value(), None);
        // The kernel's own configuration has priority; all set options are listed, even if the list is long.
        let all: Vec<String> = OPTIONS
            .iter()
            .map(|option| format!("CONFIG_{option}=m\n"))
            .collect();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(all.concat().as_bytes()).expect("memory");
        tree.write("proc/config.gz", packed.finish().expect("memory"));
        let found = describe(&tree.root(), 1).frequency_options;
        assert_eq!(found, Known::Value(OPTIONS.join(" ")));
        tree.write("proc/config.gz", "CONFIG_CPU_FREQ=y\n");
        let broken = describe(&tree.root(), 1).frequency_options;
        assert!(broken.value().is_none(), "{broken:?}");
        let nothing = describe(&Tree::new().root(), 1);
        assert_eq!(
            (nothing.name.as_str(), nothing.cores.value()),
            ("unnamed", None)
        );
    }
}
