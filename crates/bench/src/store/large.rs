//! Cases that need size: random reads in a large file, and opening by name among many names on the real device. The
//! last case opens a large store after a power loss.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use base::block::{BLOCK_BYTES, BlockBuffer, BlockDevice, FileDevice, FileDeviceOptions};
use base::sim::{FlatDevice, Random};
use flash::{Bound, FileHandle, OpenOptions, PAYLOAD_BYTES, Store};

use super::counted::{FILES_FEW, KEEL_FEW, many_name};
use super::counts::counts_of;
use super::floor::open_direct;
use super::keel::{describe, format_options};
use super::timed::{OPERATION_BYTES, check_pattern, fill_pattern, timed};
use crate::report::{FLOOR, Figure, Samples, percentile};
use crate::scratch::check_interrupted;

/// Size of the store that is opened after power losses, in bytes.
const MOUNT_BYTES: u64 = 16 << 30;

/// Maximum number of names in that store.
const MOUNT_FILES_MAX: u64 = 10_000;

/// Number of files that are being appended to at a power loss: more than the store caches the tails of.
const MOUNT_FILES_OPEN: usize = 48;

/// Unit in bytes in which an image is written, or left as a hole.
const IMAGE_PIECE_BYTES: usize = 1 << 20;

/// Maximum number of open files in the store whose memory use is published.
const OPEN_FILES: usize = 32;

/// Size of the requests that fill the large file, in bytes.
const FILL_BYTES: usize = 1 << 20;

fn figure(case: &'static str, metric: &'static str, unit: &'static str, value: f64) -> Figure {
    Figure {
        case,
        system: "keel".to_owned(),
        metric,
        unit,
        value,
    }
}

/// Random reads of 4,096 bytes in a file of `file_bytes`, with cold caches. One is with the default memory, one with an
/// index of block addresses that is large enough. The floor is one 4 KiB read in the same image.
///
/// # Errors
/// One line that names the folder or what the store refused.
pub(crate) fn random_reads(
    folder: &Path,
    file_bytes: u64,
    rounds: u32,
    round_steps: u32,
    show: &mut dyn FnMut(&str),
) -> Result<(Vec<Samples>, Vec<Figure>, u64), String> {
    let path = folder.join("large.img");
    let image_bytes = file_bytes + file_bytes / 4 + (64 << 20);
    let options = FileDeviceOptions {
        create_bytes: Some(image_bytes),
        direct: true,
        exclusive: true,
        ..FileDeviceOptions::default()
    };
    let device = FileDevice::open(&path, &options).map_err(|error| error.to_string())?;
    let mut store = Store::format(device, &format_options(16)).map_err(describe)?;
    let file = store.create("large").map_err(describe)?;
    let mut chunk = vec![0; FILL_BYTES];
    for offset in (0..file_bytes).step_by(FILL_BYTES) {
        show(&format!(
            "filling a large file: {} of {} MiB",
            offset >> 20,
            file_bytes >> 20
        ));
        check_interrupted()?;
        fill_pattern(offset, &mut chunk);
        store.append_nosync(file, &chunk).map_err(describe)?;
    }
    store.sync().map_err(describe)?;
    let blocks = store.stat("large").map_err(describe)?.blocks;
    store.close().map_err(describe)?;

    let floor_options = FileDeviceOptions {
        direct: true,
        read_only: true,
        ..FileDeviceOptions::default()
    };
    let mut samples = Vec::new();
    let mut figures = vec![
        figure(
            "read-4096-large-file",
            "file_size",
            "MiB",
            (file_bytes >> 20) as f64,
        ),
        figure("read-4096-large-file", "file_blocks", "1", blocks as f64),
    ];
    // Twice the number of blocks, since several blocks may map to the same place of the address table.
    let index_addresses = (2 * blocks).next_power_of_two() as usize;
    let default = OpenOptions::default();
    let indexed = OpenOptions {
        addresses_max: index_addresses,
        ..default
    };
    for (case, options, is_indexed) in [
        ("read-4096-large-file", default, false),
        ("read-4096-large-file-index", indexed, true),
    ] {
        let mut store = Store::open(open_direct(&path)?, &options).map_err(describe)?;
        let mut floor =
            FileDevice::open(&path, &floor_options).map_err(|error| error.to_string())?;
        let file = store.open_file("large").map_err(describe)?;
        if is_indexed {
            show("filling the index of block addresses");
            for offset in (0..file_bytes).step_by(FILL_BYTES) {
                check_interrupted()?;
                store.read(file, offset, &mut chunk).map_err(describe)?;
            }
        }
        let memory = store.bounds().memory_bytes() as f64 / 1024.0;
        figures.push(figure(case, "memory", "KiB", memory));
        show(case);
        let mut reads = Reads {
            store: &mut store,
            floor: &mut floor,
            file,
            file_bytes,
            image_blocks: image_bytes / BLOCK_BYTES as u64,
        };
        let (of_case, mut requests) = reads.measure(case, rounds, round_steps)?;
        samples.extend(of_case);
        for (per_mille, metric) in [(500, "device_reads_p50"), (990, "device_reads_p99")] {
            let value = percentile(&mut requests, per_mille) as f64;
            figures.push(figure(case, metric, "1", value));
        }
    }
    std::fs::remove_file(&path).map_err(|error| error.to_string())?;
    Ok((samples, figures, blocks))
}

struct Reads<'a> {
    store: &'a mut Store<FileDevice>,
    floor: &'a mut FileDevice,
    file: FileHandle,
    file_bytes: u64,
    image_blocks: u64,
}

impl Reads<'_> {
    fn measure(
        &mut self,
        case: &'static str,
        rounds: u32,
        round_steps: u32,
    ) -> Result<([Samples; 2], Vec<u64>), String> {
        let mut ours = Samples::new(case, "keel", Some("exact"), rounds, round_steps);
        let mut floors = Samples::new(case, FLOOR, Some("exact"), rounds, round_steps);
        let mut requests = Vec::with_capacity(rounds as usize * round_steps as usize);
        let mut random = Random::new(5);
        let mut buffer = BlockBuffer::zeroed(1);
        for step in 0..rounds * round_steps {
            check_interrupted()?;
            let places = self.file_bytes / OPERATION_BYTES as u64;
            let offset = random.below(places) * OPERATION_BYTES as u64;
            let block = random.below(self.image_blocks);
            for turn in 0..2 {
                if (step + turn) % 2 == 0 {
                    let before = counts_of(self.store.device());
                    let (read, elapsed_ns) =
                        timed(|| self.store.read(self.file, offset, &mut buffer));
                    if read.map_err(describe)? != OPERATION_BYTES {
                        return Err(format!("read at {offset}: too few bytes"));
                    }
                    check_pattern(offset, &buffer)?;
                    let after = counts_of(self.store.device());
                    requests.push(after.since(before).reads);
                    ours.record(elapsed_ns, Some(before), Some(after));
                } else {
                    let before = counts_of(self.floor);
                    let (read, elapsed_ns) = timed(|| self.floor.read(block, &mut buffer));
                    read.map_err(|error| error.to_string())?;
                    floors.record(elapsed_ns, Some(before), Some(counts_of(self.floor)));
                }
            }
        }
        Ok(([ours, floors], requests))
    }
}

/// Writes the device's content to a new file, with holes for blocks that were never written.
///
/// # Errors
/// One line that names the path.
fn write_image(device: &FlatDevice, path: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::create_new(path).map_err(failed)?;
    let content = device.content();
    file.set_len(content.len() as u64).map_err(failed)?;
    let zeros = vec![0_u8; IMAGE_PIECE_BYTES];
    for (index, piece) in content.chunks(IMAGE_PIECE_BYTES).enumerate() {
        if piece != &zeros[..piece.len()] {
            let offset = (index * IMAGE_PIECE_BYTES) as u64;
            file.write_all_at(piece, offset).map_err(failed)?;
        }
    }
    file.sync_all().map_err(failed)
}

/// Latencies of opening by name, creating and deleting among many names, beside opening among few. All are on image
/// files of the folder, bypassing the page cache.
///
/// # Errors
/// One line that names the folder or what the store refused.
pub(crate) fn names_on_disk(
    folder: &Path,
    devices: [FlatDevice; 2],
    files: u64,
    rounds: u32,
    round_steps: u32,
    show: &mut dyn FnMut(&str),
) -> Result<Vec<Samples>, String> {
    show("writing the stores with many and few files to the disk");
    let mut stores = Vec::new();
    let mut paths = Vec::new();
    for (device, name) in devices.into_iter().zip(["many.img", "few.img"]) {
        let path = folder.join(name);
        write_image(&device, &path)?;
        drop(device);
        let opened = Store::open(open_direct(&path)?, &OpenOptions::default());
        stores.push(opened.map_err(describe)?);
        paths.push(path);
    }
    let counts = [files, FILES_FEW];
    let names = ["keel", KEEL_FEW];
    let of = |case, system| Samples::new(case, system, Some("exact"), rounds, round_steps);
    let mut open = names.map(|system| of("open-by-name-disk", system));
    let mut create = of("create-many-files-disk", "keel");
    let mut delete = of("delete-many-files-disk", "keel");
    show("open-by-name");
    let mut random = Random::new(6);
    for step in 0..(rounds * round_steps) as usize {
        check_interrupted()?;
        for turn in 0..2 {
            let which = (step + turn) % 2;
            let store = &mut stores[which];
            let name = many_name(random.below(counts[which]));
            let before = counts_of(store.device());
            let (opened, elapsed_ns) = timed(|| store.open_file(&name));
            let after = counts_of(store.device());
            store.close_file(opened.map_err(describe)?);
            open[which].record(elapsed_ns, Some(before), Some(after));
        }
        // The created file is deleted at once, so that the store stays as it is.
        let store = &mut stores[0];
        let name = format!("new-{step}");
        let before = counts_of(store.device());
        let (created, elapsed_ns) = timed(|| store.create(&name));
        let after = counts_of(store.device());
        store.close_file(created.map_err(describe)?);
        create.record(elapsed_ns, Some(before), Some(after));
        let (deleted, elapsed_ns) = timed(|| store.delete(&name));
        deleted.map_err(describe)?;
        delete.record(elapsed_ns, Some(after), Some(counts_of(store.device())));
    }
    drop(stores);
    for path in paths {
        std::fs::remove_file(&path).map_err(|error| error.to_string())?;
    }
    let [many, few] = open;
    Ok(vec![many, few, create, delete])
}

/// Opens a store of 16 GiB after `cuts` power losses, each during appends to many files; the image is sparse. Returns
/// the figures and the bound that the store publishes for an opening.
///
/// # Errors
/// One line that names the folder or what the store refused.
pub(crate) fn mounts(
    folder: &Path,
    cuts: u32,
    show: &mut dyn FnMut(&str),
) -> Result<(Vec<Figure>, Bound), String> {
    let path = folder.join("mount.img");
    let options = FileDeviceOptions {
        create_bytes: Some(MOUNT_BYTES),
        direct: true,
        exclusive: true,
        ..FileDeviceOptions::default()
    };
    let device = FileDevice::open(&path, &options).map_err(|error| error.to_string())?;
    show("formatting a store of 16 GiB");
    let mut store = Store::format(device, &format_options(MOUNT_FILES_MAX)).map_err(describe)?;
    for index in 0..MOUNT_FILES_OPEN {
        let file = store.create(&format!("log-{index}")).map_err(describe)?;
        store.close_file(file);
    }
    drop(store);
    let opening = OpenOptions {
        open_files_max: OPEN_FILES,
        ..OpenOptions::default()
    };
    let mut random = Random::new(7);
    let payload = [0x5A; 3 * PAYLOAD_BYTES];
    let (mut slowest_ns, mut blocks_max, mut requests_max) = (0, 0, 0);
    let (mut bound, mut memory) = (Bound::default(), 0);
    for cut in 0..=cuts {
        show(&format!(
            "opening a store of 16 GiB after a cut: {cut} of {cuts}"
        ));
        check_interrupted()?;
        let device = open_direct(&path)?;
        let (opened, elapsed_ns) = timed(|| Store::open(device, &opening));
        let mut store = opened.map_err(describe)?;
        let spent = counts_of(store.device());
        bound = store.bounds().mount();
        memory = store.bounds().memory_bytes();
        // Only creations precede the first one, so it is not counted.
        if cut > 0 {
            slowest_ns = slowest_ns.max(elapsed_ns);
            blocks_max = blocks_max.max(spent.bytes_read / BLOCK_BYTES as u64);
            requests_max = requests_max.max(spent.reads);
        }
        for _ in 0..500 {
            let name = format!("log-{}", random.index(MOUNT_FILES_OPEN));
            let file = store.open_file(&name).map_err(describe)?;
            let bytes = 1 + random.index(payload.len());
            store.append(file, &payload[..bytes]).map_err(describe)?;
            store.close_file(file);
        }
    }
    std::fs::remove_file(&path).map_err(|error| error.to_string())?;
    let case = "mount-after-cut-16gib";
    Ok((
        vec![
            figure(case, "cuts", "1", f64::from(cuts)),
            figure(case, "latency_max", "us", slowest_ns as f64 / 1000.0),
            figure(case, "device_blocks_read_max", "1", blocks_max as f64),
            figure(case, "device_reads_max", "1", requests_max as f64),
            figure(case, "device_reads_bound", "1", bound.reads as f64),
            figure(
                case,
                "device_blocks_read_bound",
                "1",
                bound.blocks_read as f64,
            ),
            figure("memory-16gib-32-open", "memory", "B", memory as f64),
        ],
        bound,
    ))
}
