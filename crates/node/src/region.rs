//! The node's region: at the start it is opened, made, or restored from its newest checkpoint. It contains the slot
//! table, which other processes read. Checkpoints are taken while the node runs.
//!
//! Nothing here keeps the node from starting: a failure is reported, and the node runs without the region.

use super::{image, log};
use crate::regions::{CHECKPOINT_NAME, FlashStorage, checkpoint_error, checkpoint_now};
use crate::regions::{clear_up, make_plainly, region_error};
use crate::status::RegionFigures;
use crate::stores::{open_alone, store_error};
use crate::time_text::{age_text, format_ms};
use command::error::CliError;
use command::progress::bytes_text;
use config::{Config, RegionConfig};
use db::shared::{SharedError, SharedTable};
use db::table::Line;
use libkeel::whereabouts::{self, AT, Whereabouts, path_beside, run_text};
use mem::checkpoint::{CheckpointError, RestoreReport};
use mem::{Attachment, PAGE_BYTES, ROOT_INODE, RegionOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Permissions of a region that the node makes: users of its socket may read it.
const MODE: u16 = 0o640;

/// Time between two sweeps for what dead processes have left.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Sweeps per memory lock: every tenth sweep also locks the memory.
const SWEEPS_PER_LOCK: u32 = 10;

/// What is known about checkpoints.
#[derive(Default)]
struct Saved {
    /// When the last finished checkpoint of this run was begun, else when the restore was begun: older data are saved.
    begun: Option<Instant>,
    generation: u64,
    count: u64,
    failed: u64,
    is_failing: bool,
    error: Option<String>,
    /// Why no checkpoint is taken: the saved ones were not restored, and a new one would push them out.
    suspended: Option<String>,
}

/// The configured region of a node.
pub(crate) struct NodeRegion {
    config: RegionConfig,
    /// `None` if the region cannot be used. It lives as long as the program, because the table's memory does.
    attachment: Option<&'static Attachment>,
    table: Option<&'static SharedTable<'static>>,
    run: [u8; 16],
    /// Why the region or its table is not used.
    error: Mutex<Option<String>>,
    saved: Mutex<Saved>,
    restored: Option<RestoreReport>,
    /// Whether its content was written before this run, possibly in part after its newest checkpoint.
    is_of_before: bool,
}

impl NodeRegion {
    /// Opens, makes or restores the configured region, and makes room for the table in it.
    pub(crate) fn open(config: &Config) -> Option<Arc<Self>> {
        let wanted = config.region.as_ref()?;
        let mut region = Self {
            config: wanted.clone(),
            attachment: None,
            table: None,
            run: [0; 16],
            error: Mutex::new(None),
            saved: Mutex::default(),
            restored: None,
            is_of_before: false,
        };
        if let Err(error) = region.attach() {
            region.give_up(&error);
            return Some(Arc::new(region));
        }
        if let Err(error) = region.make_table(config.keys.table_size()) {
            region.give_up(&error);
        }
        Some(Arc::new(region))
    }

    /// Removes the table, which is no longer needed.
    pub(crate) fn remove_table(&self) {
        if let Some(table) = self.table {
            table.remove();
        }
    }

    fn give_up(&self, error: &CliError) {
        let text = format!("{error}; values are kept in memory of the node's own");
        log::event("warning", &text);
        *self.lock_error() = Some(error.to_string());
    }

    fn lock_error(&self) -> MutexGuard<'_, Option<String>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_saved(&self) -> MutexGuard<'_, Saved> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attach(&mut self) -> Result<(), CliError> {
        let file = self.config.file.clone();
        if file.symlink_metadata().is_err() {
            // Use another name until the region is complete: a killed start then leaves no partial region.
            let draft = image::with_suffix(&file, ".new");
            image::make_parent(&file)?;
            std::fs::remove_file(&draft).ok();
            let options = self.options();
            let text = format!(
                "making {}, {}",
                file.display(),
                bytes_text(options.capacity_bytes)
            );
            log::event("region", text);
            let smaller = match options.capacity_bytes > self.config.create_mebibytes << 20 {
                true => "make a smaller one with `keel mem create` before the node starts",
                false => "choose another region.create_mebibytes",
            };
            drop(make_plainly(&draft, &options, MODE, smaller)?);
            self.restore(&draft)?;
            mem::Region::rename(&draft, &file).map_err(|error| region_error(&file, &error))?;
        } else {
            self.restore(&file)?;
        }
        let attachment =
            Attachment::open(&file, AT, true).map_err(|error| region_error(&file, &error))?;
        // Free what killed runs of the node and killed programs have left.
        attachment.sweep().ok();
        if let Some((generation, _)) = attachment.region().newest_checkpoint() {
            self.lock_saved().generation = generation;
            self.is_of_before = self.restored.is_none();
        }
        self.attachment = Some(Box::leak(Box::new(attachment)));
        Ok(())
    }

    /// Returns the options of a new region: as configured, but at least the size that the checkpoint needs.
    fn options(&self) -> RegionOptions {
        let configured = RegionOptions {
            capacity_bytes: (self.config.create_mebibytes << 20) / PAGE_BYTES * PAGE_BYTES,
            files_max: None,
            lanes: RegionOptions::lanes_for(self.config.create_mebibytes << 20),
        };
        let shape = self.existing_image().and_then(|image| {
            let mut storage = FlashStorage::new(open_alone(image, false).ok()?);
            mem::checkpoint::shape(&mut storage, CHECKPOINT_NAME).ok()?
        });
        match shape {
            Some(shape) if shape.capacity_bytes >= configured.capacity_bytes => shape,
            _ => configured,
        }
    }

    fn existing_image(&self) -> Option<&Path> {
        let image = self.config.checkpoint_image.as_deref()?;
        image.try_exists().unwrap_or(true).then_some(image)
    }

    /// Restores the newest checkpoint, if the region is empty and there is one; logs the result.
    fn restore(&mut self, region: &Path) -> Result<(), CliError> {
        let Some(image) = self.existing_image() else {
            return Ok(());
        };
        let failed = |error: &mem::Error| region_error(region, error);
        let attachment = Attachment::open(region, AT, true).map_err(|error| failed(&error))?;
        let mut begun = Instant::now();
        let report = attachment
            .writer()
            .map_err(CheckpointError::from)
            .and_then(|writer| {
                if !writer.list(ROOT_INODE, 0, 1)?.is_empty() {
                    let is_of_them = attachment.region().newest_checkpoint().is_some();
                    return match checkpoint_there(image) {
                        Err(error) if !is_of_them => Ok(Some(Err(error))),
                        Ok(Some(other)) if !is_of_them => Ok(Some(Err(not_of_them(image, other)))),
                        _ => Ok(None),
                    };
                }
                begun = Instant::now();
                let restored = open_alone(image, false).map(|store| {
                    let mut storage = FlashStorage::new(store);
                    let restored = mem::checkpoint::restore(
                        &writer,
                        &mut storage,
                        CHECKPOINT_NAME,
                        &mut |_, _| {},
                    );
                    // It was only read.
                    storage.close().ok();
                    restored
                });
                match restored {
                    Ok(restored) => restored.map(|report| Some(Ok(report))),
                    Err(error) => Ok(Some(Err(error))),
                }
            });
        attachment.thread_ends();
        let why = match report {
            Ok(None) => return Ok(()),
            Ok(Some(Ok(report))) => {
                tell_restored(&self.config.file, image, &report);
                // The whole content is saved as of now: no program could write to it before.
                if report.generation != 0 {
                    self.lock_saved().begun = Some(begun);
                }
                self.restored = Some(report);
                return Ok(());
            }
            Ok(Some(Err(error))) => error,
            Err(error) => checkpoint_error(region, image, &error),
        };
        let text = format!(
            "nothing was restored ({why}), and no checkpoint is taken, because it would replace the one in the image: \
             remove the cause and the region, then start the node again"
        );
        log::event("warning", &text);
        let mut saved = self.lock_saved();
        saved.failed += 1;
        saved.is_failing = true;
        saved.error = Some(text.clone());
        saved.suspended = Some(text);
        Ok(())
    }

    fn make_table(&mut self, size: db::TableSize) -> Result<(), CliError> {
        let Some(attachment) = self.attachment else {
            return Ok(());
        };
        self.run = command::random::bytes()?;
        let made = SharedTable::make(attachment, &self.config.table, size, 0o644)
            .map_err(|error| self.table_error(&error))?;
        self.table = Some(Box::leak(Box::new(made)));
        Ok(())
    }

    fn table_error(&self, error: &SharedError) -> CliError {
        let file = &self.config.file;
        let table = &self.config.table;
        match error {
            SharedError::Region(mem::Error::Full) => CliError::failure(
                file.display(),
                "has no room for the values of keys.keys_max keys",
                "delete files in it, or remove it for a new one of a larger region.create_mebibytes",
            ),
            SharedError::Region(error) => region_error(file, error),
            SharedError::InUse => CliError::failure(
                format_args!("{}: {table}", file.display()),
                "another node keeps its values there",
                "choose another region.table",
            ),
            SharedError::NotATable => CliError::failure(
                format_args!("{}: {table}", file.display()),
                error,
                "choose another region.table, or remove it",
            ),
            other => CliError::failure(file.display(), other, ""),
        }
    }

    /// Returns memory for the slot table, if the table is in the region.
    pub(crate) fn lines(&self) -> Option<&'static [Line]> {
        Some(self.table?.lines())
    }

    /// Lets readers find the values, which are now present.
    pub(crate) fn publish(&self) {
        if let Some(table) = self.table
            && let Err(error) = table.publish(self.run)
        {
            self.give_up(&self.table_error(&error));
        }
    }

    fn is_served(&self) -> bool {
        self.table.is_some() && self.lock_error().is_none()
    }

    /// Writes a file beside the socket that says where the values are; the returned value removes it when dropped.
    pub(crate) fn announce(self: &Arc<Self>, socket: &Path) -> Announcement {
        let path = path_beside(socket);
        // Left over from a killed run.
        std::fs::remove_file(&path).ok();
        let region = std::fs::canonicalize(&self.config.file).ok();
        let shown = region.as_deref().and_then(Path::to_str);
        if let (Some(region), true) = (shown, self.is_served()) {
            let whereabouts = Whereabouts {
                version: whereabouts::VERSION,
                region: region.to_owned(),
                table: self.config.table.clone(),
                run: run_text(self.run),
            };
            if let Err(error) = write_whole(&path, &whereabouts) {
                let text = format!(
                    "{} cannot be written ({}): `keel get` asks the node instead",
                    path.display(),
                    command::error::describe(&error)
                );
                log::event("warning", text);
            }
            let text = format!("values are in {region}, file {}", self.config.table);
            log::event("region", text);
        }
        Announcement {
            region: Arc::clone(self),
            path,
        }
    }

    /// Takes a checkpoint; keeps its result for the status.
    fn save(&self) {
        let (Some(attachment), Some(image)) =
            (self.attachment, self.config.checkpoint_image.as_deref())
        else {
            return;
        };
        if self.lock_saved().suspended.is_some() {
            return;
        }
        let begun = Instant::now();
        // Leave out the table: its values are in the log, and outdated by the time a checkpoint is read.
        let left_out: Vec<_> = self.table.map(SharedTable::node).into_iter().collect();
        let saved = make_image(image, self.config.checkpoint_create_mebibytes)
            .and_then(|()| checkpoint_now(attachment, image, CHECKPOINT_NAME, &left_out));
        let mut known = self.lock_saved();
        match saved {
            Ok(report) => {
                if known.is_failing {
                    log::event("failing", "no more: a checkpoint of the region was taken");
                }
                known.is_failing = false;
                known.begun = Some(begun);
                known.generation = report.generation;
                known.count += 1;
            }
            Err(error) => {
                let text = error.to_string();
                if !known.is_failing || known.error.as_deref() != Some(&text) {
                    log::event("failing", format!("no checkpoint of the region: {text}"));
                }
                known.is_failing = true;
                known.failed += 1;
                known.error = Some(text);
            }
        }
    }

    /// Returns the figures for the status.
    pub(crate) fn figures(&self) -> RegionFigures {
        let saved = self.lock_saved();
        let region = self.attachment.map(Attachment::region);
        // For a checkpoint from before this run, only the wall clock gives the age.
        let earlier = region.and_then(mem::Region::newest_checkpoint);
        let now_ns = mem::now_ns();
        let loss_window_seconds = match (saved.begun, earlier) {
            (Some(begun), _) => Some(begun.elapsed().as_secs_f64()),
            (None, Some((_, taken_ns))) => Some(now_ns.saturating_sub(taken_ns) as f64 / 1e9),
            (None, None) => None,
        };
        let restored = self.restored.as_ref();
        RegionFigures {
            file: self.config.file.display().to_string(),
            table: self.config.table.clone(),
            served: self.is_served(),
            error: self.lock_error().clone(),
            capacity_bytes: region.map_or(0, |region| region.layout().capacity_bytes),
            free_bytes: region.map_or(0, mem::Region::free_bytes),
            checkpoint_image: self
                .config
                .checkpoint_image
                .as_ref()
                .map(|image| image.display().to_string()),
            checkpoint_interval_seconds: self.config.checkpoint_interval_seconds,
            checkpoint_generation: saved.generation,
            checkpoints: saved.count,
            checkpoints_failed: saved.failed,
            checkpoint_failing: saved.is_failing,
            checkpoint_error: saved.error.clone(),
            loss_window_seconds: loss_window_seconds
                .filter(|_| self.config.checkpoint_image.is_some()),
            restored_generation: restored.map_or(0, |report| report.generation),
            restored_files: restored.map_or(0, |report| report.files),
            restored_files_lost: restored.map_or(0, |report| report.lost_count),
        }
    }
}

/// Returns the number of the newest checkpoint in an image.
fn checkpoint_there(image: &Path) -> Result<Option<u64>, CliError> {
    let mut storage = FlashStorage::new(open_alone(image, false)?);
    let newest = mem::checkpoint::newest(&mut storage, CHECKPOINT_NAME)
        .map_err(|error| checkpoint_error(image, image, &error));
    storage.close().ok();
    Ok(newest?.map(|taken| taken.generation))
}

fn not_of_them(image: &Path, generation: u64) -> CliError {
    CliError::failure(
        image.display(),
        format_args!(
            "holds checkpoint {generation} of a region that this one was not restored from"
        ),
        "or remove the image if it is not needed",
    )
}

/// Logs what was restored from a checkpoint.
fn tell_restored(region: &Path, image: &Path, report: &RestoreReport) {
    let (region, image) = (region.display(), image.display());
    if report.generation == 0 {
        let text = format!("{region} is empty: {image} holds no checkpoint that can be read");
        return log::event("restored", text);
    }
    let taken_ms = (report.taken_ns as i64).div_euclid(1_000_000);
    let age_ms = (mem::now_ns() as i64).div_euclid(1_000_000) - taken_ms;
    let mut text = format!(
        "{region} from {image}: checkpoint {} of {}, {} files of {}; what was written in the {} since, if \
         anything, is lost",
        report.generation,
        format_ms(taken_ms),
        report.files,
        bytes_text(report.bytes),
        age_text(age_ms)
    );
    for (count, what) in [
        (
            report.generations_skipped,
            "newer checkpoints could not be taken",
        ),
        (report.parts_damaged, "parts of the list could not be read"),
        (report.missed, "files were missing in it"),
        (
            report.older_count,
            "files are as the checkpoint before had them",
        ),
        (report.lost_count, "files are lost"),
    ] {
        if count > 0 {
            text.push_str(&format!("; {count} {what}"));
        }
    }
    log::event("restored", text);
    for lost in &report.lost {
        log::event(
            "restored",
            format!("{}: {}", lost.path, lost.because.name()),
        );
    }
}

/// Makes the image for checkpoints if it does not exist.
fn make_image(image: &Path, create_mebibytes: u64) -> Result<(), CliError> {
    if image::exists(image)? {
        return Ok(());
    }
    let (store, ..) = image::make(image, create_mebibytes)?;
    store
        .close()
        .map(drop)
        .map_err(|error| store_error(image, &error))
}

/// Writes the file beside the socket atomically, so that no reader finds a partial file.
fn write_whole(path: &Path, whereabouts: &Whereabouts) -> std::io::Result<()> {
    let draft = image::with_suffix(path, ".new");
    std::fs::remove_file(&draft).ok();
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o640)
        .open(&draft)?;
    writeln!(file, "{}", serde_json::to_string(whereabouts)?)?;
    std::fs::rename(&draft, path)
}

/// The file beside the socket. Dropping this removes it and tells readers that the values are no longer served.
pub(crate) struct Announcement {
    region: Arc<NodeRegion>,
    path: PathBuf,
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let own = run_text(self.region.run);
        let socket_path = self.path.with_extension("");
        // Another node may have taken the socket meanwhile.
        let found = Whereabouts::beside(&socket_path).ok().flatten();
        if found.is_some_and(|found| found.run == own) {
            std::fs::remove_file(&self.path).ok();
        }
        if let Some(table) = self.region.table {
            table.withdraw();
        }
    }
}

/// The threads of a region: one frees what dead processes have left, one takes checkpoints. On drop, the second takes a
/// last checkpoint, and the drop waits for it.
pub(crate) struct Attendants {
    senders: Vec<SyncSender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Attendants {
    /// Starts the threads.
    pub(crate) fn start(region: &Arc<NodeRegion>) -> std::io::Result<Self> {
        let mut attendants = Self {
            senders: Vec::new(),
            threads: Vec::new(),
        };
        let Some(attachment) = region.attachment else {
            return Ok(attendants);
        };
        let mut sweeps = 0_u32;
        attendants.add("region", SWEEP_INTERVAL, SWEEP_INTERVAL, move |is_over| {
            if !is_over {
                clear_up(attachment, sweeps.is_multiple_of(SWEEPS_PER_LOCK));
                sweeps = sweeps.wrapping_add(1);
            }
        })?;
        if region.config.checkpoint_image.is_some() {
            let interval = Duration::from_secs(region.config.checkpoint_interval_seconds.into());
            let region = Arc::clone(region);
            // Data that an earlier run did not save have waited long enough.
            let first = match region.is_of_before {
                true => Duration::ZERO,
                false => interval,
            };
            attendants.add("checkpoints", first, interval, move |_| {
                region.save();
            })?;
        }
        Ok(attendants)
    }

    fn add(
        &mut self,
        name: &str,
        first: Duration,
        interval: Duration,
        mut work: impl FnMut(bool) + Send + 'static,
    ) -> std::io::Result<()> {
        let (sender, receiver) = sync_channel::<()>(1);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let mut pause = first;
                loop {
                    let next = receiver.recv_timeout(pause);
                    pause = interval;
                    let is_over = matches!(next, Err(RecvTimeoutError::Disconnected));
                    work(is_over);
                    if is_over {
                        return;
                    }
                }
            })?;
        self.senders.push(sender);
        self.threads.push(thread);
        Ok(())
    }

    /// Tells the threads to end, without waiting; the checkpoint thread takes a last checkpoint.
    pub(crate) fn finish(&mut self) {
        self.senders.clear();
    }
}

impl Drop for Attendants {
    fn drop(&mut self) {
        self.finish();
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}
