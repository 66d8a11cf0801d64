//! Taking over from a killed process: a process is killed in the middle of a call while another one waits for its lock.
//! The measured time runs from the kill to the return of the waiting call.
//!
//! The holder is stopped before it is killed, so that the lock it holds is known. A waiter without progress meanwhile
//! waits for the stopped holder.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use base::sim::Random;
use clap::ValueEnum;
use mem::{Attachment, Error, ROOT_INODE, now_ns};

use super::systems::{KEEL, System, new_file};
use crate::figures::{Figures, Metric};

/// What the killed process is doing, and the name of the case.
pub(crate) const CASES: [(Doing, &str); 3] = [
    (Doing::Small, "takeover-write-16384"),
    (Doing::Large, "takeover-write-1048576"),
    (Doing::Names, "takeover-names"),
];

pub(crate) const WAIT_P50: Metric = Metric::shown("wait_p50", "us");
pub(crate) const WAIT_P99: Metric = Metric::shown("wait_p99", "us");
pub(crate) const WAIT_MAX: Metric = Metric::shown("wait_max", "us");

/// The file that both processes write.
const FILE: &str = "held";
const FILE_BYTES: u64 = 4 << 20;

/// Size of the waiter's write, in bytes.
const WAITER_BYTES: usize = 4 << 10;

/// Longer than any call that does not wait for a lock; after this time the waiter is taken to wait for the stopped
/// process.
const WAITS_AFTER: Duration = Duration::from_millis(4);
/// Maximum random time added to `WAITS_AFTER`, so that the kill falls at a random point of the waiter's sleep.
const WAITS_AFTER_US_MAX: u64 = 3000;

/// Timeout of the waiter, after which the lock counts as never taken over.
const PATIENCE: Duration = Duration::from_secs(20);

/// Maximum number of stops of one process until it is found to hold the lock.
const STOPS_MAX: u32 = 400;

/// What a process does when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Doing {
    /// Writes of 16 KiB, the largest that stay whole: half-done ones are finished or undone.
    Small,
    /// Writes of 1 MiB.
    Large,
    /// Makes, renames and removes files.
    Names,
}

/// `keel-bench mem-takeover`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Options {
    #[arg(long)]
    region: PathBuf,
    #[arg(long)]
    doing: Doing,
}

/// Reports that it begins, then repeats one action until it is killed.
///
/// # Errors
/// One line with the reason.
pub(crate) fn hold(options: &Options) -> Result<(), String> {
    // SAFETY: plain integers; the child must not outlive the process that measures.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let attachment = attach(&options.region).map_err(|error| error.to_string())?;
    println!("{FILE}");
    loop {
        act(&attachment, options.doing).map_err(|error| error.to_string())?;
    }
}

fn attach(region: &Path) -> mem::Result<Attachment> {
    Attachment::open(region, b"/mem-takeover", true)
}

/// One action of the holder.
fn act(attachment: &Attachment, doing: Doing) -> mem::Result<()> {
    let writer = attachment.writer()?;
    let bytes = match doing {
        Doing::Small => 16 << 10,
        Doing::Large => 1 << 20,
        Doing::Names => {
            let [one, other] = [&b"one"[..], b"other"];
            match writer.create(ROOT_INODE, one, &new_file()) {
                // The previous holder was killed in between.
                Ok(_) | Err(Error::Exists) => {}
                Err(error) => return Err(error),
            }
            writer.rename((ROOT_INODE, one), (ROOT_INODE, other), now_ns())?;
            return writer.remove(ROOT_INODE, other, now_ns());
        }
    };
    let file = writer.look_up(ROOT_INODE, FILE.as_bytes())?;
    let data = vec![7; bytes];
    for offset in (0..FILE_BYTES).step_by(bytes) {
        writer.write(file.inode, file.generation, offset, &data, now_ns())?;
    }
    Ok(())
}

/// One action of the waiter.
fn wait(attachment: &Attachment, doing: Doing) -> mem::Result<Instant> {
    const NAME: &[u8] = b"waited";
    let writer = attachment.writer()?;
    if doing == Doing::Names {
        writer.create(ROOT_INODE, NAME, &new_file())?;
        let end = Instant::now();
        writer.remove(ROOT_INODE, NAME, now_ns())?;
        return Ok(end);
    }
    let file = writer.look_up(ROOT_INODE, FILE.as_bytes())?;
    let data = [9; WAITER_BYTES];
    writer.write(file.inode, file.generation, 0, &data, now_ns())?;
    Ok(Instant::now())
}

/// The waiter: a thread with its own attachment, which acts on request.
struct Waiter {
    begin: Sender<()>,
    done: Receiver<mem::Result<Instant>>,
}

impl Waiter {
    fn start(region: &Path, doing: Doing) -> mem::Result<Self> {
        let attachment = attach(region)?;
        let (begin, begun) = channel();
        let (tell, done) = channel();
        // Not joined: if the thread waits for ever, this program can still end.
        std::thread::spawn(move || {
            while begun.recv().is_ok() && tell.send(wait(&attachment, doing)).is_ok() {}
        });
        Ok(Self { begin, done })
    }
}

/// The process that is killed.
struct Holder(Child);

impl Holder {
    fn start(program: &Path, region: &Path, doing: Doing) -> Result<Self, String> {
        let name = doing.to_possible_value();
        let mut child = Command::new(program)
            .arg("mem-takeover")
            .arg("--region")
            .arg(region)
            .args(["--doing", name.as_ref().map_or("", |name| name.get_name())])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("mem-takeover: {error}"))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let read = BufReader::new(stdout).read_line(&mut line);
            read.map_err(|error| format!("mem-takeover: {error}"))?;
        }
        if line.trim_end() != FILE {
            let _ = child.kill();
            let status = child
                .wait()
                .map_or_else(|e| e.to_string(), |s| s.to_string());
            return Err(format!("mem-takeover: it did not begin ({status})"));
        }
        Ok(Self(child))
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: plain integers, and a child that was not waited for, so its process ID is not reused.
        unsafe { libc::kill(self.0.id() as libc::pid_t, signal) };
    }

    /// Stops the process. Returns when it has stopped.
    fn stop(&self) -> Result<(), String> {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: a child of this process, and a number that lives as long as the call.
        let found =
            unsafe { libc::waitpid(self.0.id() as libc::pid_t, &raw mut status, libc::WUNTRACED) };
        if found > 0 && libc::WIFSTOPPED(status) {
            Ok(())
        } else {
            Err("mem-takeover: it ended by itself".to_owned())
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills one process that holds the lock that another one waits for. Returns the time that the other one then waits.
fn take_over(
    program: &Path,
    region: &Path,
    doing: Doing,
    waiter: &Waiter,
    random: &mut Random,
) -> Result<Duration, String> {
    let holder = Holder::start(program, region, doing)?;
    let gone = |_| "mem-takeover: the thread that waits has ended".to_owned();
    let failed = |error: Error| format!("mem-takeover: {error}");
    for attempt in 0..u64::from(STOPS_MAX) {
        crate::scratch::check_interrupted()?;
        // Sleep longer with each attempt: on a loaded machine the holder may not have run at all in between.
        std::thread::sleep(Duration::from_micros(random.below(500 + 50 * attempt)));
        holder.stop()?;
        waiter.begin.send(()).map_err(|_| gone(()))?;
        let patience = WAITS_AFTER + Duration::from_micros(random.below(WAITS_AFTER_US_MAX));
        if let Ok(done) = waiter.done.recv_timeout(patience) {
            // The holder did not hold the lock.
            done.map_err(failed)?;
            holder.signal(libc::SIGCONT);
            continue;
        }
        let killed = Instant::now();
        holder.signal(libc::SIGKILL);
        let done = waiter.done.recv_timeout(PATIENCE).map_err(|_| {
            let patience_s = PATIENCE.as_secs();
            format!(
                "mem-takeover: the lock of a killed process was not taken over in {patience_s} s"
            )
        })?;
        return Ok(done.map_err(failed)?.saturating_duration_since(killed));
    }
    Err("mem-takeover: it never held the lock when it was stopped".to_owned())
}

/// Measures how long a process waits for the lock of one that was killed, `kills` times of each kind.
///
/// # Errors
/// One line that names what failed.
pub(crate) fn measure(
    scratch: &Path,
    kills: u32,
    figures: &mut Figures,
    show: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let folder = scratch.join("takeover");
    std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let system = match System::over_huge_pages(&folder, FILE_BYTES) {
        Ok(system) => system,
        Err(reason) => {
            figures.missing(format!(
                "taking over in huge pages ({reason}); it is in tmpfs"
            ));
            System::over_tmpfs(KEEL, &folder, FILE_BYTES)?
        }
    };
    system.fill(FILE, FILE_BYTES, 1 << 20)?;
    let ours = system.ours.as_ref().ok_or("no region")?;
    let region = ours.attachment.region();
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let mut random = Random::new(0x6465_6164);
    for (doing, case) in CASES {
        let waiter = Waiter::start(region.path(), doing)
            .map_err(|error| format!("{}: {error}", region.path().display()))?;
        let mut waited = Vec::new();
        for kill in 0..kills {
            show(&format!("{case}: {} of {kills} are killed", kill + 1));
            let time = take_over(&program, region.path(), doing, &waiter, &mut random)?;
            waited.push(time.as_secs_f64() * 1e6);
        }
        waited.sort_unstable_by(f64::total_cmp);
        for (metric, permille) in [(WAIT_P50, 500), (WAIT_P99, 990), (WAIT_MAX, 1000)] {
            if let Some(us) = at_permille(&waited, permille) {
                figures.record(case, KEEL, metric, us);
            }
        }
    }
    let found = mem::check::check(region, false).map_err(|error| format!("check: {error}"))?;
    if !found.is_clean() {
        return Err(format!(
            "the region of the killed is damaged: {:?}",
            found.findings
        ));
    }
    figures.note(format!(
        "takeover: {kills} processes killed in each case while they held the lock that another one waited for; from \
         the kill until that one's call had returned. The region was whole afterwards"
    ));
    drop(system);
    std::fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// Returns the value that `permille` thousandths of the sorted values do not exceed.
fn at_permille(sorted: &[f64], permille: usize) -> Option<f64> {
    let place = (sorted.len() * permille).div_ceil(1000).max(1) - 1;
    sorted.get(place).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permilles_are_of_the_values_that_are_there() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(at_permille(&values, 500), Some(100.0));
        assert_eq!(at_permille(&values, 990), Some(198.0));
        assert_eq!(at_permille(&values, 1000), Some(200.0));
        assert_eq!(at_permille(&values[..1], 500), Some(1.0));
        assert_eq!(at_permille(&[], 500), None);
    }
}
