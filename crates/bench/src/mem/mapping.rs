//! Making files addressable: the work until every byte of a file can be reached without a page fault. Our files already
//! lie in the region's mapping; for the peers, the file is mapped and its pages are populated.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use base::sim::Random;
use mem::{Attachment, ROOT_INODE, now_ns};
use serde::{Deserialize, Serialize};

use super::case::{FAULTS, RATE, TIME, bytes_text};
use super::child::{Limits, output};
use super::memory::{allocate, available_bytes};
use super::systems::{
    EXT4_LARGE, EXT4_SMALL, EXT4_WRITES, KEEL, REGION_TABLES_BYTES, System, TMPFS,
};
use crate::figures::{Figures, Metric};

/// File sizes in MiB, each with the case of making the file addressable and the case of reading a byte without mapping.
pub(crate) const SIZES: [(u64, &str, &str); 7] = [
    (1, "map-1-mib", "open-read-1-mib"),
    (4, "map-4-mib", "open-read-4-mib"),
    (16, "map-16-mib", "open-read-16-mib"),
    (64, "map-64-mib", "open-read-64-mib"),
    (256, "map-256-mib", "open-read-256-mib"),
    (1024, "map-1024-mib", "open-read-1024-mib"),
    (4096, "map-4096-mib", "open-read-4096-mib"),
];

/// The largest file of ext4, for whose mapping a goal is stated.
pub(crate) const EXT4_LARGEST: &str = "map-1024-mib";

/// The time of the slowest size divided by that of the fastest.
pub(crate) const GROWTH_CASE: &str = "map-growth";
pub(crate) const GROWTH: Metric = Metric::shown("slowest_of_fastest", "1");

/// The case of a second process that attaches to a region and touches each of its pages.
pub(crate) const ATTACH_CASE: &str = "attach-2048-mib";
const ATTACH_QUICK_CASE: &str = "attach-256-mib";
pub(crate) const ATTACH_TIME: Metric = Metric::shown("time", "us");

/// Limit for ext4, which needs its memory twice, for the disk and for the cache.
const EXT4_BYTES_MAX: u64 = 1 << 30;

/// Memory that must be available for the paper's peer: its own file and that of the other ext4 twice each, and a
/// reserve. Both files in tmpfs are resident, too, and our region if it is over tmpfs.
const PAPERS_PEER_BYTES: u64 = 8 * EXT4_BYTES_MAX;

/// Distance of touched addresses: the smallest page size.
const TOUCH_BYTES: usize = 4096;

const FILE: &str = "mapped";

/// How often our files are made addressable in a round.
const TIMES: usize = 301;

/// One way to access a file.
struct Way<'a> {
    case: &'static str,
    system: &'a System,
    is_read: bool,
}

/// Measures all sizes up to `bytes_max`, or as many of them as fit into the memory of the machine.
///
/// # Errors
/// One line that names what failed.
pub(crate) fn measure(
    scratch: &std::path::Path,
    bytes_max: u64,
    rounds: u32,
    figures: &mut Figures,
    show: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let asked_bytes = bytes_max;
    let mut bytes_max = bytes_max;
    // Our region, tmpfs and tmpfs with huge pages each hold the largest file; ext4 holds a smaller one twice. 2 GiB are
    // a reserve.
    while 3 * bytes_max + 2 * EXT4_BYTES_MAX.min(bytes_max) + (2 << 30) > available_bytes()?
        && bytes_max > 1 << 20
    {
        bytes_max /= 4;
    }
    let folder = scratch.join("mapping");
    std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut random = Random::new(0x6d61_7070);
    show("making files of all sizes addressable in turns");
    growth(&folder, bytes_max, rounds, &mut random, figures)?;
    show("preparing files to map");
    let mut systems = systems_of_all_sizes(&folder, bytes_max, figures)?;
    if bytes_max < asked_bytes {
        figures.missing(format!(
            "mapping of files larger than {}: the machine has no more memory available",
            bytes_text(bytes_max)
        ));
    }
    for (mebibytes, map_case, read_case) in SIZES {
        let bytes = mebibytes << 20;
        if bytes > bytes_max {
            continue;
        }
        show(&format!(
            "making files of {} addressable",
            bytes_text(bytes)
        ));
        if map_case == EXT4_LARGEST {
            match papers_peer(&folder) {
                Ok(system) => systems.push(system),
                Err(reason) => figures.missing(format!("{EXT4_SMALL} in {map_case} ({reason})")),
            }
        }
        of_size(
            &systems,
            [map_case, read_case],
            bytes,
            rounds,
            &mut random,
            figures,
        )?;
        // Larger files of the others need the memory.
        systems.retain(|system| system.name != EXT4_SMALL);
    }
    drop(systems);
    std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Returns our system and the peers that have files of more than one size.
fn systems_of_all_sizes(
    folder: &std::path::Path,
    bytes_max: u64,
    figures: &mut Figures,
) -> Result<Vec<System>, String> {
    let mut systems = Vec::new();
    match System::over_huge_pages(folder, bytes_max) {
        Ok(system) => systems.push(system),
        Err(reason) => {
            figures.missing(format!(
                "mapping over huge pages ({reason}); it is over tmpfs"
            ));
            systems.push(System::over_tmpfs(KEEL, folder, bytes_max)?);
        }
    }
    systems.push(System::tmpfs(folder, bytes_max, false)?);
    systems.push(System::tmpfs(folder, bytes_max, true)?);
    match System::ext4(EXT4_LARGE, folder, bytes_max.min(EXT4_BYTES_MAX)) {
        Ok(system) => systems.push(system),
        Err(reason) => figures.missing(format!("mapping a file of ext4 ({reason})")),
    }
    Ok(systems)
}

/// Creates the paper's peer, an ext4 with pages of 4 KiB. It has a file of one size only, that of [`EXT4_LARGEST`], by
/// which the goal is judged.
///
/// # Errors
/// One line that says why there is none.
fn papers_peer(folder: &std::path::Path) -> Result<System, String> {
    let available = available_bytes()?;
    if available < PAPERS_PEER_BYTES {
        return Err(format!(
            "{} of memory are available, and {} needed",
            bytes_text(available >> 20 << 20),
            bytes_text(PAPERS_PEER_BYTES)
        ));
    }
    System::ext4(EXT4_SMALL, folder, EXT4_BYTES_MAX)
}

fn of_size(
    systems: &[System],
    cases: [&'static str; 2],
    bytes: u64,
    rounds: u32,
    random: &mut Random,
    figures: &mut Figures,
) -> Result<(), String> {
    let mut ways = Vec::new();
    for system in systems {
        if let Some(missing) = left_out(system.name, cases[0], bytes) {
            figures.missing(missing);
            continue;
        }
        make(system, bytes)?;
        let way = |is_read: bool| Way {
            case: cases[usize::from(is_read)],
            system,
            is_read,
        };
        ways.push(way(false));
        if matches!(system.name, KEEL | TMPFS) {
            ways.push(way(true));
        }
    }
    // One pass before the measurement, so that memory is clean and one-time mappings of the process exist.
    for way in &ways {
        take(way, bytes, false)?;
    }
    for _ in 0..rounds {
        random.shuffle(&mut ways);
        for way in &ways {
            crate::scratch::check_interrupted()?;
            let times = match (way.system.ours.is_some() || way.is_read, bytes >> 20) {
                (true, _) => TIMES,
                (_, ..=16) => 31,
                (_, ..=256) => 5,
                _ => 1,
            };
            let mut taken = Vec::with_capacity(times);
            let mut faults = 0;
            for time in 1..=times {
                // Touch all pages only in the last repetition: touching a large file empties the caches. The next
                // repetition would then measure how they refill, which takes longer for larger files in every system.
                let once = take(way, bytes, time == times)?;
                taken.push(once.ns as f64);
                faults = once.faults;
            }
            let ns = crate::report::median(&mut taken);
            let name = way.system.name;
            figures.record(way.case, name, TIME, ns);
            figures.record(way.case, name, RATE, 1e9 / ns);
            if !way.is_read {
                figures.record(way.case, name, FAULTS, faults as f64);
            }
        }
    }
    for system in systems {
        remove(system)?;
    }
    Ok(())
}

/// Returns what is missing if a system has no file of this size.
fn left_out(system: &str, case: &str, bytes: u64) -> Option<String> {
    (system == EXT4_LARGE && bytes > EXT4_BYTES_MAX).then(|| {
        format!(
            "{system} in {case} (its largest file has {}: ext4 takes the memory twice, for the disk and for the cache)",
            bytes_text(EXT4_BYTES_MAX)
        )
    })
}

fn make(system: &System, bytes: u64) -> Result<(), String> {
    let failed = |error: String| format!("{}: {error}", system.name);
    let ext4 = EXT4_WRITES.iter().find(|(name, _)| *name == system.name);
    match (&system.ours, ext4) {
        (Some(ours), _) => {
            make_ours(&ours.attachment, FILE, bytes).map_err(|error| failed(error.to_string()))
        }
        (None, Some((_, write_bytes))) => {
            // Writing the file brings its pages into the cache. The kernel makes folios as large as the writes allow.
            system.fill(FILE, bytes, *write_bytes)?;
            system.settle()
        }
        (None, None) => {
            let file =
                File::create(system.file(FILE)).map_err(|error| failed(error.to_string()))?;
            allocate(&file, bytes).map_err(|error| failed(error.to_string()))
        }
    }
}

fn make_ours(attachment: &Attachment, name: &str, bytes: u64) -> mem::Result<()> {
    let writer = attachment.writer()?;
    let new = super::systems::new_file();
    let made = writer.create(ROOT_INODE, name.as_bytes(), &new)?;
    writer.allocate(made.inode, made.generation, (0, bytes), false, now_ns())
}

fn remove(system: &System) -> Result<(), String> {
    let failed = |error: String| format!("{}: {error}", system.name);
    match &system.ours {
        Some(ours) => {
            let writer = ours
                .attachment
                .writer()
                .map_err(|error| failed(error.to_string()))?;
            writer
                .remove(ROOT_INODE, FILE.as_bytes(), now_ns())
                .map_err(|error| failed(error.to_string()))?;
            drop(writer);
            let swept = ours.attachment.sweep();
            swept.map(drop).map_err(|error| failed(error.to_string()))
        }
        None => match std::fs::remove_file(system.file(FILE)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(failed(error.to_string()))
            }
            _ => Ok(()),
        },
    }
}

/// The time taken, and the page faults of touching the whole file after that, if requested.
struct Taken {
    ns: u64,
    faults: u64,
}

fn take(way: &Way<'_>, bytes: u64, touches: bool) -> Result<Taken, String> {
    let failed = |error: String| format!("{}: {error}", way.system.name);
    match &way.system.ours {
        Some(ours) if way.is_read => {
            open_and_read_ours(&ours.attachment, bytes).map_err(|error| failed(error.to_string()))
        }
        Some(ours) => address(&ours.attachment, FILE, bytes, touches)
            .map_err(|error| failed(error.to_string())),
        None if way.is_read => {
            open_and_read(way.system.file(FILE), bytes).map_err(|error| failed(error.to_string()))
        }
        None => populate(way.system.file(FILE), bytes, touches)
            .map_err(|error| failed(error.to_string())),
    }
}

/// Our file: looked up by name, and lent as a whole.
fn address(attachment: &Attachment, name: &str, bytes: u64, touches: bool) -> mem::Result<Taken> {
    let started = Instant::now();
    let attributes = attachment.look_up(ROOT_INODE, name.as_bytes())?;
    let lent = attachment.lend(&attributes, 0, bytes)?;
    let ns = started.elapsed().as_nanos() as u64;
    let faults = if touches {
        faults_of(|| touch(lent.bytes()))
    } else {
        0
    };
    Ok(Taken { ns, faults })
}

/// Our file: opened, its last byte read, closed.
fn open_and_read_ours(attachment: &Attachment, bytes: u64) -> mem::Result<Taken> {
    let started = Instant::now();
    let attributes = attachment.look_up(ROOT_INODE, FILE.as_bytes())?;
    let (descriptor, opened) = attachment.open_description(&attributes, libc::O_RDONLY)?;
    let mut byte = [0];
    let read = attachment.read_at(&opened, bytes - 1, &mut byte);
    attachment.closing(&opened);
    // SAFETY: a descriptor that was opened above and has no other owner.
    unsafe { libc::close(descriptor) };
    let closed = attachment.closed(&opened);
    let ns = started.elapsed().as_nanos() as u64;
    read?;
    closed?;
    Ok(Taken { ns, faults: 0 })
}

fn open_and_read(path: PathBuf, bytes: u64) -> std::io::Result<Taken> {
    use std::os::unix::fs::FileExt;
    let started = Instant::now();
    let file = File::open(path)?;
    file.read_exact_at(&mut [0], bytes - 1)?;
    drop(file);
    let ns = started.elapsed().as_nanos() as u64;
    Ok(Taken { ns, faults: 0 })
}

/// A peer's file: opened, and mapped with its pages populated by the same call.
fn populate(path: PathBuf, bytes: u64, touches: bool) -> std::io::Result<Taken> {
    let started = Instant::now();
    let file = File::open(path)?;
    // SAFETY: a new mapping at a place that the kernel chooses touches no memory that is in use.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            file.as_raw_fd(),
            0,
        )
    };
    let ns = started.elapsed().as_nanos() as u64;
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the mapping made above, of exactly this length, is unmapped only below; it is only read, by atomic loads.
    let mapped = unsafe { std::slice::from_raw_parts(start.cast::<AtomicU8>(), bytes as usize) };
    let faults = if touches {
        faults_of(|| touch(mapped))
    } else {
        0
    };
    // SAFETY: the mapping made above, which is not used any more.
    unsafe { libc::munmap(start, bytes as usize) };
    Ok(Taken { ns, faults })
}

fn touch(bytes: &[AtomicU8]) {
    for place in bytes.iter().step_by(TOUCH_BYTES) {
        std::hint::black_box(place.load(Ordering::Relaxed));
    }
}

/// Returns the page faults of this thread while `work` runs.
fn faults_of(work: impl FnOnce()) -> u64 {
    let before = faults_so_far();
    work();
    faults_so_far() - before
}

fn faults_so_far() -> u64 {
    // SAFETY: all-zero is a valid value of this plain structure of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a structure that lives as long as the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (usage.ru_minflt + usage.ru_majflt) as u64
}

/// Measures how much our time depends on the size. Files of all sizes lie in one region and take turns, so that nothing
/// else changes between them.
fn growth(
    folder: &std::path::Path,
    bytes_max: u64,
    rounds: u32,
    random: &mut Random,
    figures: &mut Figures,
) -> Result<(), String> {
    let sizes: Vec<u64> = SIZES
        .iter()
        .map(|(mebibytes, ..)| mebibytes << 20)
        .filter(|bytes| *bytes <= bytes_max)
        .collect();
    if sizes.len() < 2 {
        return Ok(());
    }
    let all_bytes = sizes.iter().sum();
    let system = System::over_huge_pages(folder, all_bytes)
        .or_else(|_| System::over_tmpfs(KEEL, folder, all_bytes))?;
    let Some(ours) = &system.ours else {
        return Ok(());
    };
    let failed = |error: mem::Error| format!("{}: {error}", system.name);
    let mut files = Vec::new();
    for bytes in sizes {
        let name = format!("mapped-{}", bytes >> 20);
        make_ours(&ours.attachment, &name, bytes).map_err(failed)?;
        // One pass before the measurement creates the one-time mappings of the process.
        address(&ours.attachment, &name, bytes, true).map_err(failed)?;
        files.push((name, bytes, Vec::new()));
    }
    for _ in 0..rounds {
        for _ in 0..TIMES {
            crate::scratch::check_interrupted()?;
            random.shuffle(&mut files);
            for (name, bytes, taken) in &mut files {
                let once = address(&ours.attachment, name, *bytes, false).map_err(failed)?;
                taken.push(once.ns as f64);
            }
        }
        let times: Vec<f64> = files
            .iter_mut()
            .map(|(_, _, taken)| crate::report::median(&mut std::mem::take(taken)))
            .collect();
        figures.record(GROWTH_CASE, KEEL, GROWTH, slowest_of_fastest(&times));
    }
    Ok(())
}

fn slowest_of_fastest(times: &[f64]) -> f64 {
    let slowest = times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let fastest = times.iter().copied().fold(f64::INFINITY, f64::min);
    slowest / fastest
}

/// `keel-bench mem-attach`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct AttachOptions {
    #[arg(long)]
    region: PathBuf,
    #[arg(long)]
    file_bytes: u64,
}

/// The result of attaching.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Attached {
    ns: u64,
    faults: u64,
}

/// Attaches, touches each huge page of the file, and prints the time to standard output.
///
/// # Errors
/// One line with the reason.
pub(crate) fn attach(options: &AttachOptions) -> Result<(), String> {
    let mut ns = 0;
    let mut failed = None;
    let faults = faults_of(|| {
        let started = Instant::now();
        let touched = attach_and_touch(options);
        ns = started.elapsed().as_nanos() as u64;
        failed = touched.err();
    });
    if let Some(error) = failed {
        return Err(error.to_string());
    }
    let attached = Attached { ns, faults };
    println!(
        "{}",
        serde_json::to_string(&attached).map_err(|error| error.to_string())?
    );
    Ok(())
}

fn attach_and_touch(options: &AttachOptions) -> mem::Result<()> {
    let attachment = Attachment::open(&options.region, b"/mem-attach", true)?;
    let attributes = attachment.look_up(ROOT_INODE, FILE.as_bytes())?;
    let lent = attachment.lend(&attributes, 0, options.file_bytes)?;
    for place in lent.bytes().iter().step_by(mem::PAGE_BYTES as usize) {
        std::hint::black_box(place.load(Ordering::Relaxed));
    }
    // The measured time ends here; the process keeps what it has attached.
    std::mem::forget(lent);
    std::mem::forget(attachment);
    Ok(())
}

/// Measures how long a second process takes until it has touched every huge page of a region of `bytes` bytes.
///
/// # Errors
/// One line that names what failed.
pub(crate) fn measure_attaching(
    scratch: &std::path::Path,
    bytes: u64,
    rounds: u32,
    figures: &mut Figures,
    show: &mut dyn FnMut(&str),
) -> Result<(), String> {
    show("preparing a region to attach to");
    let folder = scratch.join("attaching");
    std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    // `bytes` is the size of the region, not of the file.
    let system = match System::over_huge_pages(&folder, bytes - REGION_TABLES_BYTES) {
        Ok(system) => system,
        Err(reason) => {
            figures.missing(format!("{ATTACH_CASE} ({reason})"));
            return std::fs::remove_dir_all(&folder).map_err(|error| error.to_string());
        }
    };
    let case = match bytes >> 20 {
        2048 => ATTACH_CASE,
        _ => ATTACH_QUICK_CASE,
    };
    let ours = system.ours.as_ref().ok_or("no region")?;
    let file_bytes = ours.attachment.region().free_bytes();
    make(&system, file_bytes)?;
    // The first user of the region puts its pages into the page tables that all processes share.
    address(&ours.attachment, FILE, file_bytes, true).map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let limits = Limits::new(scratch);
    for round in 0..rounds {
        show(&format!("a second process attaches, round {}", round + 1));
        let mut taken = Vec::new();
        let mut faults = 0;
        for _ in 0..5 {
            let mut command = Command::new(&program);
            command
                .arg("mem-attach")
                .arg("--region")
                .arg(ours.attachment.region().path());
            command.args(["--file-bytes", &file_bytes.to_string()]);
            let text = output("mem-attach", &mut command, &limits)?;
            let attached: Attached =
                serde_json::from_str(&text).map_err(|error| format!("mem-attach: {error}"))?;
            taken.push(attached.ns as f64 / 1000.0);
            faults = attached.faults;
        }
        let us = crate::report::median(&mut taken);
        figures.record(case, KEEL, ATTACH_TIME, us);
        figures.record(case, KEEL, FAULTS, faults as f64);
    }
    let touched_pages = file_bytes / mem::PAGE_BYTES;
    figures.note(format!(
        "{case}: {touched_pages} huge pages of one file are touched, all that the region has for files"
    ));
    drop(system);
    std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cases_say_how_large_the_files_are() {
        for (mebibytes, map, read) in SIZES {
            assert_eq!(map, format!("map-{mebibytes}-mib"));
            assert_eq!(read, format!("open-read-{mebibytes}-mib"));
        }
    }

    #[test]
    fn a_size_that_ext4_does_not_have_is_noted() {
        for (mebibytes, case, _) in SIZES {
            let bytes = mebibytes << 20;
            let said = left_out(EXT4_LARGE, case, bytes);
            assert_eq!(said.is_some(), bytes > EXT4_BYTES_MAX, "{case}");
            assert_eq!(case == EXT4_LARGEST, bytes == EXT4_BYTES_MAX, "{case}");
            assert_eq!(left_out(TMPFS, case, bytes), None);
        }
        let said = left_out(EXT4_LARGE, "map-4096-mib", 4 << 30).unwrap();
        let begin = "ext4-large-folios in map-4096-mib (its largest file has 1 GiB: ";
        assert!(said.starts_with(begin), "{said}");
    }

    #[test]
    fn growth_is_of_the_slowest_and_the_fastest() {
        let times: Vec<f64> = (0..7)
            .map(|place| 1000.0 + 10.0 * f64::from(place))
            .collect();
        assert_eq!(slowest_of_fastest(&times), 1.06);
    }

    #[test]
    fn a_populated_file_has_no_faults_left_and_an_untouched_one_has() {
        let path = std::env::temp_dir().join(format!("keel-bench-map-{}", std::process::id()));
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        // A fault of other memory may occur in between, but not in each repetition.
        let faults = (0..20).map(|_| populate(path.clone(), 1 << 20, true).unwrap().faults);
        assert_eq!(faults.min(), Some(0));
        std::fs::remove_file(path).unwrap();
        let fresh = vec![0_u8; 8 << 20];
        // SAFETY: plain bytes that are never written; atomic bytes have the same size and alignment.
        let fresh = unsafe { std::slice::from_raw_parts(fresh.as_ptr().cast(), fresh.len()) };
        assert!(faults_of(|| touch(fresh)) > 0);
    }
}
