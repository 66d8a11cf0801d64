//! Determines what this machine permits, without writing anything.

use super::finding::{Fact, Finding, text_of};
use super::observer::Names;
use super::speed;
use crate::power_cmd::sources::{self, PowerSourceArgs};
use base::clock::{Clock, SystemClock};
use cluster::power::{Power, Root, why_none};
use db::realtime;
use node::landlock_version;
use std::path::Path;
use std::time::Duration;

/// The tested priority; a task of a node has a priority of 1 to 99.
const PRIORITY: u8 = 50;

/// The tested size of locked memory: more than the tables of a node with 4,096 keys.
const LOCKED_BYTES: usize = 4 << 20;

/// Open files that the largest configuration of a node may need, with a margin.
const FILES_MIN: u64 = 1024;

/// Time between two reads of an energy counter.
const COUNTER_PAUSE: Duration = Duration::from_millis(20);

/// Returns all findings except that of the card. Frequencies and sensors are looked for below the root of `sensors`.
pub(super) fn all(sensors: &PowerSourceArgs) -> Vec<Finding> {
    vec![
        real_time(),
        kernel_preemption(),
        locked_memory(),
        huge_pages(),
        frequency(&sensors.root),
        power(sensors),
        fuse(),
        clock(),
        confinement(),
        open_files(),
    ]
}

/// What the kernel has for `node.system_calls` and `node.paths`. Both are off unless a configuration turns them on, so
/// nothing is missing without them.
fn confinement() -> Finding {
    let actions = text_of("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let calls = match actions.split_whitespace().any(|action| action == "log") {
        true => "filters of system calls",
        false => "no filters of system calls",
    };
    let files = match landlock_version() {
        Ok(version) => format!("Landlock of version {version}"),
        Err(_) => "no Landlock".to_owned(),
    };
    Finding::ok(
        "confinement",
        format!("the kernel has {calls}, and {files}"),
    )
}

/// Returns the result of a test on a separate thread, which then ends.
fn on_a_thread(tried: impl FnOnce() -> Option<String> + Send) -> Option<String> {
    std::thread::scope(|scope| scope.spawn(tried).join())
        .unwrap_or_else(|_| Some("it broke off".to_owned()))
}

fn real_time() -> Finding {
    const SUBJECT: &str = "real-time scheduling";
    match on_a_thread(|| realtime::set_fifo(PRIORITY)) {
        None => Finding::ok(
            SUBJECT,
            format!("priority {PRIORITY} of SCHED_FIFO is given"),
        ),
        Some(_) => Finding::missing(
            SUBJECT,
            "this user gets no priority of SCHED_FIFO; tasks and commits can be held up by other programs",
            "the unit keel.service gives it (LimitRTPRIO=80); by hand: a line `USER - rtprio 80` in \
             /etc/security/limits.d/keel.conf, or the capability CAP_SYS_NICE",
        ),
    }
}

fn kernel_preemption() -> Finding {
    const SUBJECT: &str = "kernel preemption";
    let is_rt = text_of("/sys/kernel/realtime").as_deref() == Some("1");
    let version = text_of("/proc/version").unwrap_or_default();
    if is_rt || version.contains("PREEMPT_RT") {
        return Finding::ok(SUBJECT, "a kernel with PREEMPT_RT");
    }
    let kind = if version.contains("PREEMPT_DYNAMIC") || version.contains(" PREEMPT ") {
        "a preemptible kernel without PREEMPT_RT"
    } else {
        "a kernel that is not preemptible"
    };
    Finding::limited(
        SUBJECT,
        format!("{kind}: a driver can hold up a task for milliseconds"),
        "where deadlines are below ten milliseconds, a kernel with PREEMPT_RT (Debian: linux-image-rt-ARCH)",
    )
}

fn locked_memory() -> Finding {
    const SUBJECT: &str = "locked memory";
    let words = vec![1_u8; LOCKED_BYTES];
    let refused = realtime::lock_memory("memory", &words);
    // SAFETY: plain memory of this function; unlocking changes no byte of it.
    unsafe { libc::munlock(words.as_ptr().cast(), words.len()) };
    match refused {
        None => Finding::ok(SUBJECT, format!("{} MiB can be locked", LOCKED_BYTES >> 20)),
        Some(_) => Finding::missing(
            SUBJECT,
            format!(
                "less than {} MiB can be locked: values can be swapped out",
                LOCKED_BYTES >> 20
            ),
            "the unit keel.service allows it (LimitMEMLOCK=256M); by hand: a line `USER - memlock 262144` in \
             /etc/security/limits.d/keel.conf",
        ),
    }
}

fn number_in(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn huge_pages() -> Finding {
    const SUBJECT: &str = "huge pages";
    let memory = text_of("/proc/meminfo").unwrap_or_default();
    let number = |name| number_in(&memory, name).unwrap_or(0);
    let (total, free, kib) = (
        number("HugePages_Total"),
        number("HugePages_Free"),
        number("Hugepagesize"),
    );
    let is_mounted =
        text_of("/proc/self/mountinfo").is_some_and(|table| table.contains(" - hugetlbfs "));
    if total > 0 && is_mounted {
        return Finding::ok(
            SUBJECT,
            format!("{free} of {total} pages of {kib} KiB are free"),
        );
    }
    let enabled = text_of("/sys/kernel/mm/transparent_hugepage/enabled");
    let is_transparent = enabled.is_some_and(|text| !text.contains("[never]"));
    let remedy = "for a region on hugetlbfs: `vm.nr_hugepages = 64` in /etc/sysctl.d/keel.conf, \
                  and a mount of hugetlbfs";
    if is_transparent {
        let text = "none are set aside; the kernel gives large pages where it can";
        return Finding::limited(SUBJECT, text, remedy);
    }
    Finding::missing(SUBJECT, "none: regions take ordinary pages", remedy)
}

fn frequency(root: &Path) -> Finding {
    const SUBJECT: &str = "frequency control";
    let remedy_none = "on a board: a kernel with its cpufreq driver; in a virtual machine the host decides. \
                       `qos.actuator = \"rtgroup\"` holds deadlines without it";
    let policies = speed::policies(root);
    let Some(policy) = policies.first() else {
        return Finding::missing(SUBJECT, speed::WHY_NONE, remedy_none);
    };
    let driver = policy.driver.as_deref().unwrap_or("an unnamed driver");
    let count = policies.len();
    if std::fs::OpenOptions::new()
        .write(true)
        .open(policy.folder.join("scaling_max_freq"))
        .is_err()
    {
        return Finding::limited(
            SUBJECT,
            format!("{count} policies of {driver}, which this user may not set"),
            "a node that sets the speed runs as root: docs/operate.md, \"As a service\"",
        );
    }
    let range = match policy.range_khz {
        Some((least, greatest)) => format!("{least} to {greatest} kHz"),
        None => "of an unknown range".to_owned(),
    };
    Finding::ok(SUBJECT, format!("{count} policies of {driver}, {range}"))
}

fn power(sensors: &PowerSourceArgs) -> Finding {
    const SUBJECT: &str = "power sources";
    let names = Names::of(sensors);
    let now_ns = SystemClock::new().monotonic_ns();
    let (mut readable, mut reasons) = (Vec::new(), Vec::new());
    let Ok(mut found) = sources::find(sensors) else {
        return Finding::missing(
            SUBJECT,
            "no sensor tells what the machine uses",
            why_none(&Root::new(&sensors.root)),
        );
    };
    for source in &mut found {
        // A counter gives its first value only at the second read.
        source.read(now_ns);
        std::thread::sleep(COUNTER_PAUSE);
        let later_ns = SystemClock::new().monotonic_ns();
        let power = source.read(later_ns);
        let name = names.name(source.name());
        match power {
            Power::Unavailable { why } => reasons.push(format!("{name}: {}", names.reason(&why))),
            _ => readable.push(format!("{name} ({})", source.covers())),
        }
    }
    if readable.is_empty() {
        let remedy = "run it as root, or as the node's user with the right to read them";
        return Finding::limited(SUBJECT, reasons.join("; "), remedy);
    }
    let unreadable = match reasons.is_empty() {
        true => String::new(),
        false => format!("; not readable: {}", reasons.join("; ")),
    };
    Finding::ok(SUBJECT, format!("{}{unreadable}", readable.join(", ")))
}

fn fuse() -> Finding {
    const SUBJECT: &str = "FUSE";
    if base::mount::check_fuse().is_err() {
        return Finding::missing(
            SUBJECT,
            "there is no /dev/fuse that this user can open: stores, regions and published trees cannot be mounted",
            "load the module (`modprobe fuse`); in a container give it the device /dev/fuse",
        );
    }
    let is_root = base::mount::effective_ids().0 == 0;
    if let (true, Some(why)) = (is_root, base::mount::why_root_cannot_mount()) {
        return Finding::missing(
            SUBJECT,
            format!("{why}: stores, regions and published trees cannot be mounted"),
            "start the container with this capability (`--cap-add SYS_ADMIN`)",
        );
    }
    let has_helper = ["/bin", "/usr/bin", "/usr/local/bin"]
        .iter()
        .any(|folder| Path::new(folder).join("fusermount3").exists());
    match (is_root, has_helper) {
        (_, true) => Finding::ok(SUBJECT, "every user can mount (fusermount3 is there)"),
        (true, false) => Finding::ok(SUBJECT, "root can mount; others need the package fuse3"),
        (false, false) => Finding::limited(
            SUBJECT,
            "only root can mount",
            "install the package fuse3, which has fusermount3",
        ),
    }
}

fn clock() -> Finding {
    const SUBJECT: &str = "clock trust";
    let clock = SystemClock::new();
    if clock.wall_is_trusted() {
        return Finding::ok(SUBJECT, "a time service has set the clock");
    }
    Finding::missing(
        SUBJECT,
        "the kernel does not know that the clock is right: readings are marked `clock not trusted`",
        "run a time service (chrony, systemd-timesyncd), or set time.wall_clock = \"trusted\" where the clock is \
         always right",
    )
}

fn open_files() -> Finding {
    const SUBJECT: &str = "open files";
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a plain system call, which writes the structure.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    #[allow(clippy::useless_conversion, reason = "it has 32 bits on some boards")]
    let files_max = u64::from(limit.rlim_max);
    if files_max >= FILES_MIN {
        return Finding::ok(SUBJECT, format!("up to {files_max}"));
    }
    Finding::limited(
        SUBJECT,
        format!("at most {files_max}: fewer connections than a node may be configured for"),
        format!("LimitNOFILE=16384 of the service, or `ulimit -n` above {FILES_MIN}"),
    )
}

/// Returns a description of the machine below `root`, without a name.
pub(super) fn machine(root: &Path) -> Vec<Fact> {
    let text = |path: &str| text_of(root.join(path));
    let info = text("proc/cpuinfo").unwrap_or_default();
    let named = |name: &str| {
        let mut lines = info.lines();
        let line =
            lines.find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let memory = text("proc/meminfo").unwrap_or_default();
    let memory_kib = number_in(&memory, "MemTotal");
    // Both say what kind of board it is; their neighbours `serial-number` and `product_serial` would say which one.
    let by_bios = || {
        let vendor = text("sys/class/dmi/id/sys_vendor")?;
        Some(format!(
            "{vendor} {}",
            text("sys/class/dmi/id/product_name")?
        ))
    };
    let board = text("proc/device-tree/model").or_else(by_bios);
    let cpu = named("model name").or_else(|| named("Model"));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    vec![
        Fact::new("board", board, "neither a device tree nor DMI names it"),
        Fact::new("cpu", cpu, "/proc/cpuinfo does not name it"),
        Fact::known("architecture", std::env::consts::ARCH),
        Fact::known("cores", cores),
        Fact::new(
            "memory_mebibytes",
            memory_kib.map(|kib| kib / 1024),
            "/proc/meminfo does not say",
        ),
        Fact::new(
            "kernel",
            text("proc/sys/kernel/osrelease"),
            "/proc/sys/kernel/osrelease cannot be read",
        ),
        Fact::known("keel", env!("CARGO_PKG_VERSION")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_names() {
        let text =
            "HugePages_Total:      64\nHugePages_Free:       60\nHugepagesize:       2048 kB\n";
        assert_eq!(number_in(text, "HugePages_Total"), Some(64));
        assert_eq!(number_in(text, "Hugepagesize"), Some(2048));
        assert_eq!(number_in(text, "HugePages"), None);
        assert_eq!(number_in("a: x", "a"), None);
    }

    #[test]
    fn each_subject_has_one_line_and_a_remedy_where_something_is_wrong() {
        let findings = all(&PowerSourceArgs {
            meter: None,
            pmic: false,
            sensor: None,
            root: "/".into(),
        });
        for (index, finding) in findings.iter().enumerate() {
            assert!(
                !finding.text.is_empty() && !finding.text.contains('\n'),
                "{finding:?}"
            );
            let is_ok = finding.verdict == super::super::finding::Verdict::Ok;
            assert_eq!(is_ok, finding.remedy.is_empty(), "{finding:?}");
            let others = &findings[index + 1..];
            assert!(others.iter().all(|other| other.subject != finding.subject));
        }
    }
}
