//! Durable puts on a file: a single one compared with the file's own time, and 64 writers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::block::{BLOCK_BYTES, BlockBuffer, BlockDevice, FileDevice, FileDeviceOptions};
use base::clock::SystemClock;
use base::histogram::Histogram;
use db::{Database, DbOptions, Durability};
use flash::{FormatOptions, Store};

const WRITERS: usize = 64;
const WAIT: Duration = Duration::from_secs(60);

fn device(path: &Path, bytes: u64) -> Result<FileDevice, Box<dyn std::error::Error>> {
    let options = FileDeviceOptions {
        create_bytes: Some(bytes),
        direct: true,
        ..FileDeviceOptions::default()
    };
    let mut device = FileDevice::open(path, &options)?;
    // Otherwise the first write to each block would also write the file system's own structures.
    device.write_zeros(&mut |_| ())?;
    device.flush()?;
    Ok(device)
}

pub(crate) fn run(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let (bare_path, store_path) = (folder.join("bare"), folder.join("store"));
    let mut bare = device(&bare_path, 16 << 20)?;
    let format = FormatOptions {
        files_max: 256,
        name_bytes_max: 64,
        uuid: [1; 16],
        hash_key: [2; 16],
    };
    let store = Store::format(device(&store_path, 256 << 20)?, &format)?;
    let db = Database::open(store, Arc::new(SystemClock::new()), DbOptions::default())?;
    let ids = crate::declare(&db, 1024)?;
    db.flush(WAIT)?;
    let (mut floor, mut lone) = (Histogram::new(), Histogram::new());
    let mut block = BlockBuffer::zeroed(1);
    let blocks = bare.geometry().block_count;
    // In turn, so that a device that is slow for some time is slow for both.
    for n in 0..1500_u64 {
        block[..8].copy_from_slice(&n.to_le_bytes());
        let begin = Instant::now();
        bare.write(n % blocks, &block[..BLOCK_BYTES])?;
        bare.flush()?;
        floor.record(begin.elapsed().as_nanos() as u64);
        let begin = Instant::now();
        db.put(
            ids[0],
            &[7; 64],
            db::Time::from_ms(n as i64),
            Durability::Now,
        )?
        .wait(WAIT)?;
        lone.record(begin.elapsed().as_nanos() as u64);
    }
    crate::show("one write and one flush of the file", &floor);
    crate::show("a lone durable put", &lone);
    let ratio = lone.percentile(50.0) as f64 / floor.percentile(50.0) as f64;
    println!("the put takes {ratio:.2} times the write and flush");
    let before = db.stats();
    let puts = AtomicU64::new(0);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (db, ids, puts) = (&db, &ids, &puts);
            scope.spawn(move || {
                while begin.elapsed() < Duration::from_secs(3) {
                    let ticket = db.put(
                        ids[writer],
                        &[7; 64],
                        db::Time::from_ms(1 << 40),
                        Durability::Now,
                    );
                    let done = ticket.and_then(|ticket| ticket.wait(WAIT));
                    puts.fetch_add(u64::from(done.is_ok()), Ordering::Relaxed);
                }
            });
        }
    });
    let rate = puts.load(Ordering::Relaxed) as f64 / begin.elapsed().as_secs_f64();
    let lone_rate = 1e9 / lone.mean();
    let after = db.stats();
    println!(
        "{WRITERS} writers: {rate:.0} durable puts a second, {:.1} times one writer's {lone_rate:.0}; {:.1} in \
         an append",
        rate / lone_rate,
        (after.readings - before.readings) as f64 / (after.appends - before.appends).max(1) as f64,
    );
    drop(db);
    std::fs::remove_file(bare_path)?;
    std::fs::remove_file(store_path)?;
    Ok(())
}
