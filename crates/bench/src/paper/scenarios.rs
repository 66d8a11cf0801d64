//! Runs of the paper's four scenarios. Each system has a variant that is durable call by call and one that uses
//! volatile caches. Each variant has its own loop device; all devices are of the same kind. The variants take turns
//! call by call.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use base::block::FileDevice;
use base::sim::Random;
use flash::{FileHandle, OpenOptions as StoreOptions, Store};

use super::variant::{READ_BLOCKS, Scenario, Variant, name};
use crate::machine::Disk;
use crate::report::Samples;
use crate::scratch::check_interrupted;
use crate::store::{
    Ext4Disk, LoopDevice, OPERATION_BYTES, check_pattern, describe, fill_pattern, format_options,
    open_direct, timed,
};

/// Time limit of one variant in one scenario, in seconds. Otherwise a system whose calls become slower with each file
/// would delay the rest; its report then contains fewer repetitions.
const VARIANT_SECONDS_MAX: u64 = 30;

/// Our store. Creating and deleting are always durable, so its volatile variant has only two of the scenarios.
struct Keel {
    label: &'static str,
    is_volatile: bool,
    path: PathBuf,
    store: Option<Store<FileDevice>>,
    file: Option<FileHandle>,
    payload: Vec<u8>,
}

impl Keel {
    fn create(path: &Path, files: u32, is_volatile: bool) -> Result<Self, String> {
        let device = open_direct(path)?;
        let options = format_options(u64::from(files) + 16);
        let mut store = Store::format(device, &options).map_err(describe)?;
        let read_file = store.create("read").map_err(describe)?;
        let mut payload = vec![0; READ_BLOCKS as usize * OPERATION_BYTES];
        fill_pattern(0, &mut payload);
        store.append(read_file, &payload).map_err(describe)?;
        payload.truncate(OPERATION_BYTES);
        let append_file = store.create("append").map_err(describe)?;
        store.append(append_file, &payload).map_err(describe)?;
        Ok(Self {
            label: if is_volatile {
                "keel-nosync"
            } else {
                "keel-sync"
            },
            is_volatile,
            path: path.to_path_buf(),
            store: Some(store),
            file: None,
            payload,
        })
    }
}

impl Variant for Keel {
    fn label(&self) -> &'static str {
        self.label
    }

    fn takes(&self, scenario: Scenario) -> bool {
        !self.is_volatile || matches!(scenario, Scenario::Append | Scenario::Read)
    }

    fn prepare(&mut self, scenario: Scenario) -> Result<(), String> {
        // Reopened, so that its caches are empty.
        if let Some(store) = self.store.take() {
            store.close().map_err(describe)?;
        }
        let device = open_direct(&self.path)?;
        let mut store = Store::open(device, &StoreOptions::default()).map_err(describe)?;
        self.file = match scenario {
            Scenario::Append => Some(store.open_file("append").map_err(describe)?),
            Scenario::Read => Some(store.open_file("read").map_err(describe)?),
            Scenario::OpenNew | Scenario::UnlinkEmpty => None,
        };
        self.store = Some(store);
        Ok(())
    }

    fn step(&mut self, scenario: Scenario, index: u32, block: u64) -> Result<u64, String> {
        let store = self.store.as_mut().ok_or("not prepared")?;
        let name = name(index);
        let opened = self.file.ok_or("no file is open".to_owned());
        let (done, elapsed_ns) = match scenario {
            Scenario::Append => {
                let file = opened?;
                if self.is_volatile {
                    timed(|| store.append_nosync(file, &self.payload))
                } else {
                    timed(|| store.append(file, &self.payload))
                }
            }
            Scenario::Read => {
                let (file, offset) = (opened?, block * OPERATION_BYTES as u64);
                let (read, elapsed_ns) = timed(|| store.read(file, offset, &mut self.payload));
                read.map_err(describe)?;
                check_pattern(offset, &self.payload)?;
                (Ok(()), elapsed_ns)
            }
            Scenario::OpenNew => {
                let (created, elapsed_ns) = timed(|| store.create(&name));
                store.close_file(created.map_err(describe)?);
                (Ok(()), elapsed_ns)
            }
            Scenario::UnlinkEmpty => timed(|| store.delete(&name)),
        };
        done.map(|()| elapsed_ns).map_err(describe)
    }

    fn finish(&mut self, _scenario: Scenario) -> Result<(), String> {
        let store = self.store.as_mut().ok_or("not prepared")?;
        if let Some(file) = self.file.take() {
            store.close_file(file);
        }
        store.sync().map_err(describe)
    }
}

/// ext4 with its journal, through the kernel's page cache.
struct Ext4 {
    label: &'static str,
    is_volatile: bool,
    folder: PathBuf,
    /// Open from `prepare` to `finish`.
    directory: Option<File>,
    file: Option<File>,
    payload: Vec<u8>,
    // Declared last, so that it is unmounted after everything above is closed.
    disk: Ext4Disk,
}

impl Ext4 {
    fn create(disk: Ext4Disk, is_volatile: bool) -> Result<Self, String> {
        let folder = disk.folder().join("files");
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir(&folder).map_err(failed)?;
        let mut payload = vec![0; READ_BLOCKS as usize * OPERATION_BYTES];
        fill_pattern(0, &mut payload);
        fs::write(folder.join("read"), &payload).map_err(failed)?;
        payload.truncate(OPERATION_BYTES);
        fs::write(folder.join("append"), &payload).map_err(failed)?;
        Ok(Self {
            label: if is_volatile {
                "ext4-nosync"
            } else {
                "ext4-sync"
            },
            is_volatile,
            folder,
            directory: None,
            file: None,
            payload,
            disk,
        })
    }
}

impl Variant for Ext4 {
    fn label(&self) -> &'static str {
        self.label
    }

    fn prepare(&mut self, scenario: Scenario) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        // The journal would otherwise keep blocks in memory that dropping the caches does not release.
        self.disk.remount()?;
        self.directory = Some(File::open(&self.folder).map_err(failed)?);
        self.file = match scenario {
            Scenario::Append => {
                let path = self.folder.join("append");
                Some(OpenOptions::new().append(true).open(path).map_err(failed)?)
            }
            Scenario::Read => Some(File::open(self.folder.join("read")).map_err(failed)?),
            Scenario::OpenNew | Scenario::UnlinkEmpty => None,
        };
        Ok(())
    }

    fn step(&mut self, scenario: Scenario, index: u32, block: u64) -> Result<u64, String> {
        let path = self.folder.join(name(index));
        let is_durable = !self.is_volatile;
        let directory = self.directory.as_ref().ok_or("not prepared")?;
        let (done, elapsed_ns) = match scenario {
            Scenario::Append => {
                let file = self.file.as_mut().ok_or("no file is open")?;
                timed(|| {
                    file.write_all(&self.payload)?;
                    if is_durable { file.sync_data() } else { Ok(()) }
                })
            }
            Scenario::Read => {
                let file = self.file.as_ref().ok_or("no file is open")?;
                let offset = block * OPERATION_BYTES as u64;
                let (read, elapsed_ns) = timed(|| file.read_exact_at(&mut self.payload, offset));
                check_pattern(offset, &self.payload)?;
                (read, elapsed_ns)
            }
            Scenario::OpenNew => {
                let (opened, elapsed_ns) = timed(|| {
                    let mut options = OpenOptions::new();
                    let file = options.write(true).create_new(true).open(&path)?;
                    if is_durable {
                        file.sync_all()?;
                        directory.sync_all()?;
                    }
                    // Returned to the caller, so that closing the file is not timed.
                    std::io::Result::Ok(file)
                });
                (opened.map(drop), elapsed_ns)
            }
            Scenario::UnlinkEmpty => timed(|| {
                fs::remove_file(&path)?;
                if is_durable {
                    directory.sync_all()
                } else {
                    Ok(())
                }
            }),
        };
        done.map(|()| elapsed_ns).map_err(|error| error.to_string())
    }

    fn finish(&mut self, _scenario: Scenario) -> Result<(), String> {
        self.file = None;
        let directory = self.directory.take().ok_or("not prepared")?;
        // SAFETY: the descriptor is open; no memory is passed.
        match unsafe { libc::syncfs(directory.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().to_string()),
        }
    }
}

/// Requests the kernel to drop its caches. Without the permission for it, reads are warmer than they should be.
///
/// # Errors
/// One line with the reason.
pub(crate) fn drop_caches() -> Result<(), String> {
    // SAFETY: takes no argument, touches no memory.
    unsafe { libc::sync() };
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| format!("drop_caches: {error}"))
}

/// A variant with the counters of its own device.
struct Seated {
    variant: Box<dyn Variant>,
    disk: Option<Disk>,
    /// Files that it has created and not deleted: the number left to delete if its time limit was reached.
    files: u32,
}

/// Runs all scenarios in `folder`. Returns the samples of each scenario and variant, in the order of the scenarios.
///
/// # Errors
/// One line that names variant, scenario and reason.
pub(crate) fn run(
    folder: &Path,
    repetitions: u32,
    missing: &mut Vec<String>,
    show: &mut dyn FnMut(&str),
) -> Result<Vec<(Scenario, Vec<Samples>)>, String> {
    show("preparing loop devices");
    // Space for the appends of one variant, and 16 KiB for each file.
    let bytes = (64 << 20) + u64::from(repetitions) * 24 * 1024;
    // Declared before the variants, so that the loop devices outlive them.
    let mut loops = Vec::new();
    let mut seats = Vec::new();
    for (index, is_volatile) in [false, true].into_iter().enumerate() {
        let device = LoopDevice::create(folder, &format!("keel-{index}"), bytes)?;
        seats.push(Seated {
            variant: Box::new(Keel::create(device.path(), repetitions, is_volatile)?),
            disk: Disk::at(device.path()),
            files: 0,
        });
        loops.push(device);
        let disk = Ext4Disk::create(folder, &format!("ext4-{index}"), bytes)?;
        seats.push(Seated {
            disk: Disk::below(disk.folder()),
            files: 0,
            variant: Box::new(Ext4::create(disk, is_volatile)?),
        });
        #[cfg(feature = "littlefs")]
        {
            let device = LoopDevice::create(folder, &format!("littlefs-{index}"), bytes)?;
            let littlefs = super::littlefs::Littlefs::create(device.path(), bytes, is_volatile)?;
            seats.push(Seated {
                variant: Box::new(littlefs),
                disk: Disk::at(device.path()),
                files: 0,
            });
            loops.push(device);
        }
    }
    #[cfg(not(feature = "littlefs"))]
    missing.push(
        "littlefs (built without it: cargo build --release -p bench --features littlefs, which takes libclang)"
            .to_owned(),
    );
    let mut all = Vec::new();
    for scenario in Scenario::ALL {
        let mut taking: Vec<_> = seats
            .iter_mut()
            .filter(|seat| seat.variant.takes(scenario))
            .collect();
        all.push((
            scenario,
            repeat(&mut taking, scenario, repetitions, missing, show)?,
        ));
    }
    missing.push("keel-nosync in open-new and unlink-empty (names are always durable)".to_owned());
    // Dropped before the loop devices.
    drop(seats);
    Ok(all)
}

fn repeat(
    seats: &mut [&mut Seated],
    scenario: Scenario,
    repetitions: u32,
    missing: &mut Vec<String>,
    show: &mut dyn FnMut(&str),
) -> Result<Vec<Samples>, String> {
    let case = scenario.case();
    let failed = |label: &str, error| format!("{label}, {}: {error}", scenario.file_name());
    let mut samples = Vec::new();
    for seat in seats.iter_mut() {
        let label = seat.variant.label();
        let source = seat.disk.as_ref().map(|_| "own disk");
        samples.push(Samples::new(case, label, source, 1, repetitions));
        let prepared = seat.variant.prepare(scenario);
        prepared.map_err(|error| failed(label, error))?;
    }
    drop_caches()?;
    let counts = |seat: &Seated| seat.disk.as_ref().and_then(Disk::counts);
    let before: Vec<_> = seats.iter().map(|seat| counts(seat)).collect();
    let mut spent_ns = vec![0; seats.len()];
    let mut random = Random::new(8);
    for index in 0..repetitions {
        if index.is_multiple_of(100) {
            show(&format!(
                "{}: {index} of {repetitions}",
                scenario.file_name()
            ));
        }
        check_interrupted()?;
        let block = random.below(READ_BLOCKS);
        for turn in 0..seats.len() {
            let position = (index as usize + turn) % seats.len();
            let is_gone = scenario == Scenario::UnlinkEmpty && index >= seats[position].files;
            if is_gone || spent_ns[position] > VARIANT_SECONDS_MAX * 1_000_000_000 {
                continue;
            }
            seats[position].files += u32::from(scenario == Scenario::OpenNew);
            let variant = &mut seats[position].variant;
            let done = variant.step(scenario, index, block);
            let elapsed_ns = done.map_err(|error| failed(variant.label(), error))?;
            spent_ns[position] += elapsed_ns;
            samples[position].record_latency(elapsed_ns);
        }
    }
    for (position, seat) in seats.iter_mut().enumerate() {
        let label = seat.variant.label();
        let finished = seat.variant.finish(scenario);
        finished.map_err(|error| failed(label, error))?;
        // Cached data has been written by now, and is included in the counts.
        if let (Some(before), Some(after)) = (before[position], counts(seat)) {
            samples[position].set_totals(after.since(before));
        }
        let calls = samples[position].calls();
        if calls < repetitions as usize {
            missing.push(format!(
                "{label} in {}: {calls} of {repetitions} repetitions, for it had used its {VARIANT_SECONDS_MAX} s",
                scenario.file_name()
            ));
        }
    }
    Ok(samples)
}
