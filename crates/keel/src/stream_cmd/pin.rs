//! `keel stream pin`: fetches what a task needs, or the whole tree, into the cache before the first run.

use super::link::{self, LinkArgs, Need};
use crate::error::CliError;
use crate::mem_cmd::shown;
use crate::output::{Output, counted};
use clap::{ArgGroup, Args};
use command::progress::{Progress, bytes_text};
use serde_json::json;
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use stream::block::block_bytes;
use stream::device::cache::{cache_bytes_for_blocks, cache_bytes_for_lists};
use stream::device::{
    Cache, CacheError, Device, DeviceError, PLAN_BLOCKS_MAX, PlanAnswer, PlanOrigin, TaskPlan,
};
use stream::manifest::{Kind, Manifest, PublicKey, ROOT};
use stream::{BLOCK_BYTES, BlockAt, FileId};

/// The most links on the way to a program, the same as the kernel's limit.
const LINKS_MAX: u32 = 40;

#[derive(Debug, Args)]
#[command(
    override_usage = "keel stream pin <SERVER> <TASK|--all> --cache <PLACE> <--identity <DIR>|--insecure>"
)]
#[command(group(ArgGroup::new("what").required(true).args(["task", "all"])))]
#[command(after_help = "Examples:\n  \
    keel stream pin plant.example:7007 bin/plant --identity device --cache /var/cache/plant\n  \
    keel stream pin plant.example:7007 --all --identity device --cache /var/cache/plant --cache-size 2G\n\n\
    The command fetches the program and what was learned about the task; of a task that has never run it fetches the\n\
    program alone. A cache has one user at a time: unmount first. Exit status 1: not all of it is in the cache, or it\n\
    is not known what else the program needs.")]
pub(crate) struct PinArgs {
    /// Server
    server: String,
    /// Path of the task's program in the tree
    task: Option<PathBuf>,
    /// Fetch the whole tree
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    link: LinkArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command. Returns 1 if some blocks are not in the cache.
pub(super) fn run(arguments: &PinArgs) -> Result<u8, CliError> {
    let server = &arguments.server;
    if arguments.link.cache.is_none() {
        return Err(CliError::usage(
            "stream pin",
            "there is nowhere to keep what is fetched",
            "say where with --cache",
        ));
    }
    let settings = link::settings(server, &arguments.link, Need::Must)?;
    let cache = settings.cache.clone();
    let device_error = |error: &DeviceError| link::device_error(server, &arguments.link, error);
    let device = Device::start(settings).map_err(|error| device_error(&error))?;
    // Before anything is fetched, which may evict blocks of the version before.
    let before = device.programs_before();
    let pinned = pin(&device, cache.as_deref(), arguments);
    let failure = device.server_failure();
    device.stop();
    let pinned = pinned.inspect_err(|_| link::tell_trust(server, &arguments.link, &device))?;
    let is_all_there = pinned.error.is_none() && pinned.there == pinned.wanted;
    let is_complete = is_all_there && pinned.learned.is_none_or(Learned::is_enough);
    tell(arguments, &pinned, is_complete)?;
    if pinned.first_seen.is_none() {
        link::tell_trust(server, &arguments.link, &device);
    }
    if !before.is_empty() {
        link::tell_lacking(server, &device, &before);
    }
    let is_full = |error: &&DeviceError| matches!(error, DeviceError::Cache(CacheError::Full(_)));
    if let Some(error) = pinned.error.as_ref().filter(|error| !is_full(error)) {
        let told = device_error(error);
        return Err(match (error, failure) {
            (DeviceError::Offline { .. }, Some(failure)) => told
                .with_note(&failure)
                .with_remedy(link::remedy_of(&device, failure.kind)),
            _ => told,
        });
    }
    if let (false, Some(cache)) = (is_all_there, cache) {
        tell_not_kept(arguments, &pinned, &*cache);
    }
    Ok(u8::from(!is_complete))
}

/// Says why the cache does not have all of it.
fn tell_not_kept(arguments: &PinArgs, pinned: &Pinned, cache: &dyn Cache) {
    let place = arguments.link.cache.as_deref().unwrap_or(Path::new(""));
    let missing = pinned.wanted - pinned.there;
    let counters = cache.counters();
    let failure = cache.failure().filter(|_| counters.dropped > 0);
    let size = size_for(pinned.wanted_bytes, arguments.link.cache_size);
    let (why, remedy) = match (counters.disk_full, &failure) {
        (0, Some(failure)) => (
            failure.as_str(),
            "look at the cache, or choose another place with --cache".to_owned(),
        ),
        (0, None) => (
            "the cache is too small for all of it",
            format!("make it larger: --cache-size {}M is enough", size >> 20),
        ),
        _ => disk_was_full(place, pinned.wanted_bytes),
    };
    let are = if missing == 1 { "is" } else { "are" };
    eprintln!(
        "keel: {}: {why}: {} {are} not kept; {remedy}",
        place.display(),
        counted(missing, "block")
    );
}

/// Returns the size of a cache that keeps all of it, where one of size `now` did not.
fn size_for(wanted_bytes: u64, now: u64) -> u64 {
    let larger = now.saturating_add(now / 4).div_ceil(1 << 20);
    cache_bytes_for_blocks(wanted_bytes).max(larger.saturating_mul(1 << 20))
}

/// Returns why a place did not keep all of it, and the remedy. At the end the place has room: when it was full, the
/// cache evicted a whole log.
fn disk_was_full(place: &Path, wanted_bytes: u64) -> (&'static str, String) {
    let size = cache_bytes_for_blocks(wanted_bytes);
    match place.is_file() {
        true => (
            "the flash store has not enough room for all of it: newer blocks evicted older ones",
            format!(
                "make a larger one with `keel flash format --size`: its room for the cache must be {}",
                bytes_text(size)
            ),
        ),
        false => (
            "its disk has not enough room for all of it: newer blocks evicted older ones",
            format!(
                "a cache of {} is enough: make that room on the disk, or choose another place with --cache",
                bytes_text(size)
            ),
        ),
    }
}

/// Returns what is wrong with a place that has no room, and the remedy.
fn full_disk(place: &Path) -> (&'static str, &'static str) {
    match place.is_file() {
        true => (
            "the flash store is full",
            "make a larger one with `keel flash format --size`",
        ),
        false => (
            "its disk is full",
            "free some space, or choose another place with --cache",
        ),
    }
}

/// What is known of a task beside its program's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Learned {
    answer: PlanAnswer,
    origin: PlanOrigin,
    /// Further blocks are left out.
    is_cut: bool,
}

impl Learned {
    fn of(plan: &TaskPlan) -> Self {
        Self {
            answer: plan.answer,
            origin: plan.origin(),
            is_cut: plan.is_cut,
        }
    }

    /// Returns whether the list is all that may be expected. That of a task that has never run has the program alone.
    fn is_enough(self) -> bool {
        let is_known = match self.answer {
            PlanAnswer::Blocks | PlanAnswer::Nothing => true,
            PlanAnswer::Missing => self.origin == PlanOrigin::Note,
            // A note that an older version of this program has made may be of a failed start, too.
            PlanAnswer::Part => false,
        };
        is_known && !self.is_cut
    }

    /// Returns where the list comes from, as a name for programs.
    fn source(self) -> Option<&'static str> {
        match self.origin {
            PlanOrigin::Server => Some("server"),
            PlanOrigin::Note => Some("device"),
            PlanOrigin::Nothing => None,
        }
    }

    /// Returns what is fetched of a task, and why not more.
    fn text(self, task: &str) -> String {
        let noted = "what this device has noted that it needs";
        let in_part = "the server has learned no whole start of it yet, as each one has failed or was cut off";
        let mut text = match (self.origin, self.answer) {
            (PlanOrigin::Server, _) => {
                format!("{task}, and what the server has learned that it needs")
            }
            (PlanOrigin::Note, PlanAnswer::Part) => format!("{task}, and {noted}: {in_part}"),
            (PlanOrigin::Note, PlanAnswer::Missing) => {
                format!("{task}, and {noted}, as no server answers")
            }
            (PlanOrigin::Note, _) => {
                format!("{task}, and {noted}, as the server has learned nothing of it")
            }
            (PlanOrigin::Nothing, PlanAnswer::Part) => format!("{task} alone: {in_part}"),
            (PlanOrigin::Nothing, PlanAnswer::Missing) => {
                format!("{task} alone: no server answers, and what else it needs is not known here")
            }
            (PlanOrigin::Nothing, _) => {
                format!("{task} alone, as nothing was learned of what else it needs")
            }
        };
        if self.is_cut {
            text.push_str(&format!(
                "; a list has at most {PLAN_BLOCKS_MAX} blocks, and what else it needs is left out: `keel stream pin \
                 --all` fetches it"
            ));
        }
        text
    }
}

/// The result of a run.
struct Pinned {
    version: u64,
    /// The publisher, if none was known before.
    first_seen: Option<PublicKey>,
    wanted: u64,
    /// Of these, the number in the cache at the end.
    there: u64,
    /// The size of the wanted blocks, and of the ones in the cache at the end, in bytes.
    wanted_bytes: u64,
    there_bytes: u64,
    /// The number of blocks that were fetched.
    fetched: u64,
    /// `None`: the whole tree is fetched.
    learned: Option<Learned>,
    error: Option<DeviceError>,
}

fn pin(
    device: &Device,
    cache: Option<&dyn Cache>,
    arguments: &PinArgs,
) -> Result<Pinned, CliError> {
    let manifest = device.manifest();
    let (blocks, learned) = match &arguments.task {
        Some(task) => {
            let (blocks, learned) = blocks_of_task(device, task, arguments)?;
            (blocks, Some(learned))
        }
        None => {
            let files = (0..manifest.nodes.len()).map(|node| FileId(node as u32));
            let blocks = files.flat_map(|file| whole(manifest, file)).collect();
            (blocks, None)
        }
    };
    check_lists(device, cache, arguments, &blocks)?;
    let progress = Progress::start(format!("fetching from {}", arguments.server));
    let mut before = 0;
    let fetched = device.fetch(&blocks, &mut |done, total| {
        progress.part(&format!("{done} of {total} blocks"));
        progress.add(done.saturating_sub(before) as usize * BLOCK_BYTES);
        before = done;
    });
    drop(progress);
    // The blocks that stay in the cache count, not the blocks that were received.
    device.flush_cache();
    let bytes = |at: &BlockAt| {
        let size = manifest.file(at.file).map(|(size_bytes, _)| size_bytes);
        size.map_or(0, |size_bytes| block_bytes(size_bytes, at.index) as u64)
    };
    let (mut there, mut there_bytes) = (0, 0);
    for at in blocks.iter().filter(|at| device.is_cached(**at)) {
        there += 1;
        there_bytes += bytes(at);
    }
    Ok(Pinned {
        version: manifest.version,
        first_seen: device
            .first_seen()
            .filter(|_| link::is_noted(&arguments.link, device)),
        wanted: blocks.len() as u64,
        there,
        wanted_bytes: blocks.iter().map(bytes).sum(),
        there_bytes,
        fetched: device.counters().fetched,
        learned,
        error: fetched.err(),
    })
}

/// Returns the blocks that a task needs, and where their list comes from.
fn blocks_of_task(
    device: &Device,
    task: &Path,
    arguments: &PinArgs,
) -> Result<(Vec<BlockAt>, Learned), CliError> {
    let manifest = device.manifest();
    let file = program(manifest, task)?;
    let plan = device.plan_noted(file);
    let plan =
        plan.map_err(|error| link::device_error(&arguments.server, &arguments.link, &error))?;
    let learned = Learned::of(&plan);
    let mut blocks = plan.blocks;
    blocks.retain(|at| at.index < manifest.blocks(at.file));
    Ok((with_program(manifest, blocks, file), learned))
}

/// Fails before anything is fetched if the cache cannot keep the lists of hashes: blocks are useless without them.
fn check_lists(
    device: &Device,
    cache: Option<&dyn Cache>,
    arguments: &PinArgs,
    blocks: &[BlockAt],
) -> Result<(), CliError> {
    let Some(max) = cache.and_then(Cache::lists_max) else {
        return Ok(());
    };
    let needed = device.lists_of(blocks);
    let place = arguments.link.cache.as_deref().unwrap_or(Path::new(""));
    if needed.count > max.count {
        return Err(CliError::failure(
            place.display(),
            format_args!(
                "{} lists of hashes are needed, one for each MiB of a file, and a cache keeps {}",
                needed.count, max.count
            ),
            "pin what tasks need, instead of the whole tree",
        ));
    }
    // A disk without room leaves less to the lists than --cache-size does.
    let is_disk_full = cache.is_some_and(|cache| cache.counters().disk_full > 0);
    let size_needed = cache_bytes_for_lists(needed.bytes);
    if needed.bytes > max.bytes && is_disk_full && size_needed <= arguments.link.cache_size {
        let (wrong, remedy) = full_disk(place);
        return Err(CliError::failure(
            place.display(),
            format_args!(
                "{wrong}: the lists of hashes that are needed take {}, and it keeps {} of them",
                bytes_text(needed.bytes),
                bytes_text(max.bytes)
            ),
            remedy,
        ));
    }
    if needed.bytes > max.bytes {
        return Err(CliError::failure(
            place.display(),
            format_args!(
                "the lists of hashes that are needed take {}, and a cache of this size keeps {} of them",
                bytes_text(needed.bytes),
                bytes_text(max.bytes)
            ),
            format_args!("give --cache-size {}M or more", size_needed >> 20),
        ));
    }
    Ok(())
}

fn whole(manifest: &Manifest, file: FileId) -> impl Iterator<Item = BlockAt> {
    (0..manifest.blocks(file)).map(move |index| BlockAt { file, index })
}

/// Returns the blocks of a plan, and behind them the rest of the program's file. A start that was learned in part must
/// not leave a task with less than one that has never run.
fn with_program(manifest: &Manifest, mut blocks: Vec<BlockAt>, file: FileId) -> Vec<BlockAt> {
    let planned: HashSet<BlockAt> = blocks.iter().copied().collect();
    blocks.extend(whole(manifest, file).filter(|at| !planned.contains(at)));
    blocks
}

/// Returns the regular file that a path names, following links that stay in the tree.
fn program(manifest: &Manifest, path: &Path) -> Result<FileId, CliError> {
    let none = || {
        CliError::failure(
            path.display(),
            "is no file of the published tree",
            "give its path in the tree, such as usr/bin/plant",
        )
    };
    let mut left: Vec<Vec<u8>> = parts(path.as_os_str().as_bytes());
    let (mut way, mut links) = (vec![ROOT], 0);
    while let Some(part) = left.pop() {
        if part == b".." {
            way.truncate(way.len().saturating_sub(1).max(1));
            continue;
        }
        let at = way.last().copied().unwrap_or(ROOT);
        let next = manifest.look_up(at, &part).ok_or_else(none)?;
        match manifest.node(next).map(|node| &node.kind) {
            Some(Kind::Link { target }) if links < LINKS_MAX => {
                links += 1;
                if target.first() == Some(&b'/') {
                    way.truncate(1);
                }
                left.extend(parts(target));
            }
            Some(Kind::Link { .. }) | None => return Err(none()),
            Some(_) => way.push(next),
        }
    }
    let found = way.last().copied().unwrap_or(ROOT);
    manifest.file(found).map(|_| found).ok_or_else(none)
}

/// Returns the parts of a path, the last one first.
fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .rev()
        .map(<[u8]>::to_vec)
        .collect()
}

fn tell(arguments: &PinArgs, pinned: &Pinned, is_complete: bool) -> Result<(), CliError> {
    let mut out = Output::new();
    let source = pinned.learned.and_then(Learned::source);
    if arguments.json {
        out.json(&json!({
            "server": arguments.server,
            "version": pinned.version,
            "blocks_wanted": pinned.wanted,
            "blocks_cached": pinned.there,
            "blocks_fetched": pinned.fetched,
            "is_learned": source.is_some(),
            "learned_by": source,
            "is_learned_in_part": pinned.learned.is_some_and(|one| one.answer == PlanAnswer::Part),
            "is_list_cut": pinned.learned.is_some_and(|one| one.is_cut),
            "is_complete": is_complete,
            "publisher_first_seen": pinned.first_seen.map(|key| key.to_string()),
        }))?;
    } else {
        let bytes = match pinned.there == pinned.wanted {
            true => bytes_text(pinned.there_bytes),
            false => format!(
                "{} of {}",
                bytes_text(pinned.there_bytes),
                bytes_text(pinned.wanted_bytes)
            ),
        };
        let what = match (&arguments.task, pinned.learned) {
            (Some(task), Some(learned)) => learned.text(&shown(task.as_os_str().as_bytes())),
            _ => "the whole tree".to_owned(),
        };
        out.line(format_args!(
            "version {}: {} of {} blocks in the cache ({bytes}): {what}",
            pinned.version, pinned.there, pinned.wanted
        ))?;
        if let Some(key) = &pinned.first_seen {
            out.line(format_args!(
                "publisher {key}, the first that was seen there, is trusted from now on"
            ))?;
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_as_a_whole_is_enough() {
        let learned = |answer, origin, is_cut| Learned {
            answer,
            origin,
            is_cut,
        };
        let (server, note, nothing) = (PlanOrigin::Server, PlanOrigin::Note, PlanOrigin::Nothing);
        let cases = [
            (
                learned(PlanAnswer::Blocks, server, false),
                true,
                "the server has learned that it",
            ),
            (
                learned(PlanAnswer::Blocks, server, true),
                false,
                "at most 32768 blocks",
            ),
            (
                learned(PlanAnswer::Nothing, nothing, false),
                true,
                "alone, as nothing was learned",
            ),
            (
                learned(PlanAnswer::Nothing, note, false),
                true,
                "has learned nothing of it",
            ),
            (
                learned(PlanAnswer::Missing, nothing, false),
                false,
                "alone: no server answers",
            ),
            (
                learned(PlanAnswer::Missing, note, false),
                true,
                "noted that it needs, as no server",
            ),
            (
                learned(PlanAnswer::Part, nothing, false),
                false,
                "alone: the server has learned no whole",
            ),
            (
                learned(PlanAnswer::Part, note, false),
                false,
                "needs: the server has learned no whole",
            ),
        ];
        for (one, is_enough, text) in cases {
            assert_eq!(one.is_enough(), is_enough, "{one:?}");
            let said = one.text("bin/task");
            assert!(
                said.starts_with("bin/task") && said.contains(text),
                "{said}"
            );
        }
    }
}
