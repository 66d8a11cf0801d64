//! The cost of a put when the slot table lies in a region, and while checkpoints of that region are taken:
//! `cargo run --release -p db --example region`. Rounds take turns; figures are of all rounds together.
//!
//! The region is made at the path that is given, or in `/dev/shm`, with 256 MiB.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use base::clock::SystemClock;
use base::histogram::Histogram;
use db::shared::{SharedTable, TableReader};
use db::table::TableMemory;
use db::{CommitDriver, Database, DbOptions, Durability, MemoryStore, ObjectId, ObjectSpec};
use mem::checkpoint::{MemoryStorage, SaveOptions, save};
use mem::{Attachment, NewInode, Node, ROOT_INODE, Region, RegionOptions};

type Failed = Box<dyn std::error::Error>;

const OBJECTS: u32 = 4096;
const ROUNDS: u32 = 5;
const PUTS: i64 = 200_000;
const FILES: u64 = 64;
const FILE_BYTES: u64 = 2 << 20;

/// The region's file, which is removed with its folder of stubs.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
        let mut stubs = self.0.clone().into_os_string();
        stubs.push(".stubs");
        std::fs::remove_dir_all(stubs).ok();
    }
}

fn options() -> DbOptions {
    DbOptions {
        objects_max: OBJECTS,
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    }
}

fn declare(db: &Database<MemoryStore>) -> Result<Vec<ObjectId>, db::Error> {
    let declare = |n| {
        let key = format!("storey {}/room {}/sensor {n}", n / 256, n / 32);
        db.declare(&ObjectSpec {
            key: &key,
            avi_ms: 5000,
            temporal: true,
        })
    };
    (0..OBJECTS).map(declare).collect()
}

/// Puts in random order; the log is written between batches, outside the times.
fn round(
    db: &Database<MemoryStore>,
    ids: &[ObjectId],
    puts: &mut Histogram,
) -> Result<(), db::Error> {
    let mut at = 1_u64;
    for n in 0..PUTS {
        if n % 1000 == 0 {
            db.pump()?;
        }
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let id = ids[(at >> 33) as usize % ids.len()];
        let begin = Instant::now();
        black_box(db.put(
            id,
            &[n as u8; 64],
            db::Time::from_ms(n),
            Durability::Batched,
        )?);
        puts.record(begin.elapsed().as_nanos() as u64);
    }
    Ok(())
}

fn show(name: &str, times: &Histogram) {
    let at = |percent| times.percentile(percent);
    println!(
        "{name}: p50 {} ns, p99 {} ns, p99.9 {} ns, p99.99 {} ns, max {} ns",
        at(50.0),
        at(99.0),
        at(99.9),
        at(99.99),
        times.max()
    );
}

/// Changes 16 KiB of each file and takes a checkpoint, again and again.
fn checkpoints(
    path: &Path,
    table: Node,
    stop: &AtomicBool,
    taken: &AtomicU64,
) -> Result<(), mem::checkpoint::CheckpointError> {
    let attachment = Attachment::open(path, b"/keel", true)?;
    let writer = attachment.writer()?;
    let mut storage = MemoryStorage::default();
    let mut files = Vec::new();
    for n in 0..FILES {
        let name = format!("file{n}");
        let found = writer.look_up(ROOT_INODE, name.as_bytes());
        files.push(found.or_else(|_| {
            let new = NewInode {
                mode: 0o100_644,
                user: 0,
                group: 0,
                now_ns: 1,
            };
            writer.create(ROOT_INODE, name.as_bytes(), &new)
        })?);
    }
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        for file in &files {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let bytes = number.to_le_bytes().repeat(2048);
            let offset = match taken.load(Ordering::Relaxed) {
                0 => FILE_BYTES - bytes.len() as u64,
                _ => (number >> 33) % (FILE_BYTES / 16_384) * 16_384,
            };
            writer.write(file.inode, file.generation, offset, &bytes, mem::now_ns())?;
        }
        let options = SaveOptions {
            name: "measure",
            now_ns: mem::now_ns(),
            random: number,
            verify: false,
            left_out: &[table],
        };
        save(&writer, &mut storage, &options, &mut |_, _| {})?;
        taken.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn main() -> Result<(), Failed> {
    let path = std::env::args_os().nth(1).map_or_else(
        || format!("/dev/shm/keel-measure-{}", std::process::id()).into(),
        PathBuf::from,
    );
    let region = RegionOptions {
        capacity_bytes: 256 << 20,
        files_max: None,
        lanes: 16,
    };
    let root = NewInode {
        mode: 0o040_755,
        user: 0,
        group: 0,
        now_ns: 1,
    };
    drop(Region::create(&path, &region, &root)?);
    let scratch = Scratch(path);
    let attachment: &'static Attachment =
        Box::leak(Box::new(Attachment::open(&scratch.0, b"/keel", true)?));
    let made = SharedTable::make(attachment, "latest", options().table_size(), 0o644)?;
    let shared: &'static SharedTable<'_> = Box::leak(Box::new(made));
    let (clock, other) = (Arc::new(SystemClock::new()), Arc::new(SystemClock::new()));
    let memory = TableMemory::Given(shared.lines());
    let databases = [
        Database::open(MemoryStore::new(), clock, options())?,
        Database::open_in(MemoryStore::new(), other, options(), memory)?,
    ];
    shared.publish([1; 16])?;
    let ids = [declare(&databases[0])?, declare(&databases[1])?];
    let mut puts = [Histogram::new(), Histogram::new(), Histogram::new()];
    let taken = AtomicU64::new(0);
    for _ in 0..ROUNDS {
        round(&databases[0], &ids[0], &mut puts[0])?;
        round(&databases[1], &ids[1], &mut puts[1])?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let saver = scope.spawn(|| checkpoints(&scratch.0, shared.node(), &stop, &taken));
            let done = round(&databases[1], &ids[1], &mut puts[2]);
            stop.store(true, Ordering::Relaxed);
            saver.join().map_err(|_| "the saver panicked")??;
            done.map_err(Failed::from)
        })?;
    }
    show("put, table in private memory", &puts[0]);
    show("put, table in the region", &puts[1]);
    let name = format!(
        "put, table in the region, {} checkpoints meanwhile",
        taken.load(Ordering::Relaxed)
    );
    show(&name, &puts[2]);
    let reading = Attachment::open(&scratch.0, b"/keel", false)?;
    let reader = TableReader::open(&reading, "latest")?;
    let mut buffer = [0; 64];
    let each = |what: &str, mut call: Box<dyn FnMut(ObjectId) + '_>| {
        let (begin, mut at) = (Instant::now(), 1_u64);
        for _ in 0..1_000_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            call(ids[1][(at >> 33) as usize % ids[1].len()]);
        }
        println!("{what}: {} ns each", begin.elapsed().as_nanos() / 1_000_000);
    };
    let copy = |id| drop(black_box(reader.read(id, &mut buffer)));
    each("another attachment: a copy of a value", Box::new(copy));
    let sum = |value: &db::table::InPlace<'_>| value.words().fold(0, u64::wrapping_add);
    let in_place = |id| drop(black_box(reader.with_value(id, sum)));
    each("a value where it lies", Box::new(in_place));
    each(
        "whether its writer lives",
        Box::new(|_| assert!(black_box(reader.is_live()))),
    );
    let begin = Instant::now();
    for _ in 0..1000 {
        let reading = Attachment::open(&scratch.0, b"/keel", false)?;
        black_box(TableReader::open(&reading, "latest")?.lookup("nosuch"));
    }
    println!(
        "attaching and looking a key up: {} us each",
        begin.elapsed().as_micros() / 1000
    );
    Ok(())
}
