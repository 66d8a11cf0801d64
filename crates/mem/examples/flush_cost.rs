//! Measures the cost of writing cache lines back: the same calls on two regions in turns, of which one writes lines
//! back.
//! `cargo run --release -p mem --example flush_cost [FOLDER]`; the result is the lowest tenth of the rounds.

use std::path::PathBuf;

use base::clock::{Clock, SystemClock};
use mem::{Attributes, Flush, NewInode, ROOT_INODE, Region, RegionOptions, Writer};

const ROUNDS: usize = 61;
const CALLS: u64 = 2000;
const FILE_BYTES: u64 = 32 << 20;

const FILE: NewInode = NewInode {
    mode: 0o100_600,
    user: 0,
    group: 0,
    now_ns: 1,
};

/// Makes one call. The last argument is its number in the round.
type Call = fn(&Writer<'_>, &Attributes, u64);

fn over<const BYTES: usize>(writer: &Writer<'_>, file: &Attributes, number: u64) {
    let places = FILE_BYTES / BYTES as u64;
    let at = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % places * BYTES as u64;
    let written = writer.write(file.inode, file.generation, at, &[7; BYTES], number);
    written.expect("there is room");
}

fn create(writer: &Writer<'_>, _: &Attributes, number: u64) {
    if number.is_multiple_of(2) {
        writer
            .create(ROOT_INODE, b"new", &FILE)
            .expect("there is room");
    } else {
        writer.remove(ROOT_INODE, b"new", 1).expect("it is there");
    }
}

fn append(writer: &Writer<'_>, file: &Attributes, number: u64) {
    let (inode, generation) = (file.inode, file.generation);
    if number == 0 {
        writer
            .set_size(inode, generation, 3 << 20, 1)
            .expect("it is longer");
    }
    let at = (3 << 20) + number * 1024;
    writer
        .write(inode, generation, at, &[7; 1024], 1)
        .expect("there is room");
}

fn main() {
    let folder = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "/dev/shm".to_owned());
    let options = RegionOptions {
        capacity_bytes: 128 << 20,
        files_max: Some(100),
        lanes: 2,
    };
    let root = NewInode {
        mode: 0o040_700,
        ..FILE
    };
    let regions = [Flush::None, Flush::CacheLines].map(|flush| {
        let name = format!(
            "keel-mem-flush-cost-{}-{}",
            flush.name(),
            std::process::id()
        );
        let path = PathBuf::from(&folder).join(name);
        let region = Region::create_with_flush(&path, &options, &root, Some(flush));
        (region.expect("the folder has room for 128 MiB"), path)
    });
    println!("{}", mem::instruction_name());
    println!("| call | ns | with write-back | times |\n|---|---|---|---|");
    let calls: [(&str, Call); 7] = [
        ("overwrite, 8 bytes", over::<8>),
        ("overwrite, 1 KiB", over::<1024>),
        ("overwrite, 4 KiB", over::<4096>),
        ("overwrite, 16 KiB", over::<16_384>),
        ("overwrite, 64 KiB", over::<65_536>),
        ("append, 1 KiB, with the pages that it takes", append),
        ("create and remove, each", create),
    ];
    let scenes = regions.each_ref().map(|(region, _)| {
        let writer = region.writer().expect("the only writer");
        let large = writer
            .create(ROOT_INODE, b"large", &FILE)
            .expect("there is room");
        let bytes = vec![1; FILE_BYTES as usize];
        let written = writer.write(large.inode, large.generation, 0, &bytes, 1);
        written.expect("there is room");
        let grows = writer
            .create(ROOT_INODE, b"grows", &FILE)
            .expect("there is room");
        let room = writer.allocate(grows.inode, grows.generation, (0, 6 << 20), false, 1);
        room.expect("there is room");
        (writer, large, grows)
    });
    let clock = SystemClock::new();
    for (name, call) in calls {
        let mut rounds = [Vec::new(), Vec::new()];
        for round in 0..2 * ROUNDS {
            let (writer, large, grows) = &scenes[round % 2];
            let file = if name.starts_with("append") {
                grows
            } else {
                large
            };
            let start = clock.monotonic_ns();
            (0..CALLS).for_each(|number| call(writer, file, number));
            rounds[round % 2].push((clock.monotonic_ns() - start) as f64 / CALLS as f64);
        }
        let [plain, flushed] = rounds.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 10]
        });
        println!(
            "| {name} | {plain:.0} | {flushed:.0} | {:.1} |",
            flushed / plain
        );
    }
    drop(scenes);
    for (region, path) in regions {
        drop(region);
        let _ = std::fs::remove_file(&path);
        let mut stubs = path.into_os_string();
        stubs.push(".stubs");
        let _ = std::fs::remove_dir_all(stubs);
    }
}
