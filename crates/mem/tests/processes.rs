//! Tests with real processes in one region: some are killed at any moment, others read memory that is freed. Each
//! process is this program again; an environment variable gives it its role.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::sim::Random;
use mem::{
    At, Attachment, Attributes, Error, LastFile, NewInode, Node, Opened, PAGE_BYTES, ROOT_INODE,
};
use mem::{Region, RegionOptions, Writer};

const FILE: NewInode = NewInode {
    mode: libc::S_IFREG | 0o600,
    user: 0,
    group: 0,
    now_ns: 1,
};
const DIRECTORY: NewInode = NewInode {
    mode: libc::S_IFDIR | 0o700,
    ..FILE
};

/// The role of a process of this test, and its region.
const ROLE: &str = "KEEL_MEM_TEST_ROLE";
const REGION: &str = "KEEL_MEM_TEST_REGION";
const SEED: &str = "KEEL_MEM_TEST_SEED";

/// A folder that is deleted at the end of the test.
struct Scratch {
    folder: PathBuf,
    is_mounted: bool,
}

impl Scratch {
    fn new(name: &str) -> Self {
        let shared = Path::new("/dev/shm");
        let parent = if shared.is_dir() {
            shared.to_owned()
        } else {
            std::env::temp_dir()
        };
        let folder = parent.join(format!("keel-mem-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self {
            folder,
            is_mounted: false,
        }
    }

    fn region(&self) -> PathBuf {
        self.folder.join("region")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = std::fs::remove_file(self.region());
            let _ = std::fs::remove_dir_all(self.folder.join("region.stubs"));
            let path = std::ffi::CString::new(self.folder.to_str().unwrap()).unwrap();
            // SAFETY: a path that ends with a zero byte.
            unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Starts this program again, with one test in a role.
fn again(test: &str, role: &str, region: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            test,
            "--nocapture",
            "--test-threads=1",
            "--quiet",
        ])
        .env(ROLE, role)
        .env(REGION, region)
        .env(SEED, seed.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// The region and the seed, if this process has the role.
fn in_role(role: &str) -> Option<(PathBuf, u64)> {
    (std::env::var(ROLE).ok()? == role).then(|| {
        // Die with the test process.
        // SAFETY: plain integers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let region = std::env::var_os(REGION).unwrap();
        (region.into(), std::env::var(SEED).unwrap().parse().unwrap())
    })
}

// --- killing

/// The number of kills; `KEEL_MEM_KILLS` sets another number, for longer runs.
const KILLS: u64 = 1000;
const KILLED_TEST: &str = "processes::killed_processes_leave_a_region_whole";

/// Maximum number of writes in a row.
const OVERWRITES_MAX: u64 = 300;

/// Counters of all processes, in a file that all have mapped.
#[repr(C)]
#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    writes: AtomicU64,
    blocks_read: AtomicU64,
    full: AtomicU64,
    failures: AtomicU64,
    slow: AtomicU64,
    slowest_us: AtomicU64,
}

impl Counts {
    fn map(region: &Path) -> &'static Self {
        use std::os::fd::AsRawFd;
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(region.with_extension("counts"))
            .unwrap();
        file.set_len(4096).unwrap();
        // SAFETY: a new mapping of a file that is long enough, which stays as long as the process does.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(mapped, libc::MAP_FAILED);
        // SAFETY: mapped above, aligned to a page; any content is valid.
        unsafe { &*mapped.cast::<Self>() }
    }
}

/// Size of the blocks in files whose names end with this letter, in bytes.
fn block_bytes(name: &[u8]) -> usize {
    [64, 1000, 4096, 16_384][usize::from(name[name.len() - 1] - b'a')]
}

/// A block that contains its writer and a checksum.
fn block(random: &mut Random, sequence: u64, bytes: usize) -> Vec<u8> {
    let mut block = Vec::with_capacity(bytes);
    block.extend(u64::from(std::process::id()).to_le_bytes());
    block.extend(sequence.to_le_bytes());
    block.resize(bytes, random.below(256) as u8);
    let checksum = checksum_of(&block[..bytes - 4]);
    block[bytes - 4..].copy_from_slice(&checksum.to_le_bytes());
    block
}

/// FNV-1a over words: fast enough for a test that reads a lot.
fn checksum_of(bytes: &[u8]) -> u32 {
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3);
    }
    (sum ^ sum >> 32) as u32
}

fn is_whole(block: &[u8]) -> bool {
    let (bytes, checksum) = block.split_at(block.len() - 4);
    block.iter().all(|byte| *byte == 0) || checksum == checksum_of(bytes).to_le_bytes()
}

/// Reads up to `blocks_max` blocks of a file from one on, and checks that each is whole.
fn verify(
    writer: &Writer<'_>,
    name: &[u8],
    found: &Attributes,
    (first, blocks_max): (u64, u64),
    counts: &Counts,
) -> mem::Result<()> {
    let bytes = block_bytes(name);
    let blocks = found.size / bytes as u64;
    let name = String::from_utf8_lossy(name);
    let size = found.size;
    assert!(
        size.is_multiple_of(bytes as u64),
        "{name}: {size} bytes are no whole blocks"
    );
    let mut read = vec![0; bytes];
    for place in first..blocks.min(first.saturating_add(blocks_max)) {
        let count = writer.read(
            found.inode,
            found.generation,
            place * bytes as u64,
            &mut read,
        )?;
        assert!(
            count == bytes || count == 0,
            "{name}: half a block is there"
        );
        assert!(
            count == 0 || is_whole(&read),
            "{name}: block {place} of {blocks} is torn"
        );
        counts.blocks_read.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Reads all files that are not deleted meanwhile.
fn verify_all(writer: &Writer<'_>, counts: &Counts) {
    for entry in writer.list(ROOT_INODE, 0, 1000).unwrap() {
        let verified = writer
            .look_up(ROOT_INODE, &entry.name)
            .and_then(|found| verify(writer, &entry.name, &found, (0, u64::MAX), counts));
        assert!(
            matches!(verified, Ok(()) | Err(Error::NotFound | Error::Stale)),
            "{verified:?}"
        );
    }
}

fn some_name(random: &mut Random) -> Vec<u8> {
    let long = random.index(4) * 30;
    format!(
        "{}{}",
        "n".repeat(long),
        ["a", "b", "c", "d"][random.index(4)]
    )
    .into_bytes()
}

/// Makes one call of a process that runs until it is killed.
fn call(
    writer: &Writer<'_>,
    random: &mut Random,
    sequence: u64,
    counts: &Counts,
) -> mem::Result<()> {
    let name = some_name(random);
    let bytes = block_bytes(&name);
    // Names and sizes less often: they move pages, which takes longer than all other calls.
    let kinds = if random.below(8) == 0 { 20 } else { 9 };
    let what = random.below(kinds);
    if random.below(300) == 0 {
        // As a mount of a region does regularly: killed processes leave files without names.
        writer.reclaim_orphans()?;
    }
    let found = match writer.look_up(ROOT_INODE, &name) {
        Err(Error::NotFound) => return writer.create(ROOT_INODE, &name, &FILE).map(drop),
        found => found?,
    };
    let Attributes {
        inode,
        generation,
        size,
        ..
    } = found;
    // Files of many blocks move from pieces into slots and take pages.
    let blocks_max = 3_000_000 / bytes as u64;
    let blocks_max = if random.below(10) == 0 {
        blocks_max
    } else {
        blocks_max.min(40)
    };
    match what {
        0..=8 => {
            let data = block(random, sequence, bytes);
            // Mostly over existing bytes, many times, so that many processes are killed during a write.
            for _ in 0..=random.below(OVERWRITES_MAX) {
                counts.writes.fetch_add(1, Ordering::Relaxed);
                let place = random.below(blocks_max) % (size / bytes as u64 + 2);
                writer.write(inode, generation, place * bytes as u64, &data, sequence)?;
            }
            Ok(())
        }
        9..=12 => {
            counts.writes.fetch_add(1, Ordering::Relaxed);
            let data = block(random, sequence, bytes);
            let (head, tail) = data.split_at(random.index(bytes));
            let pieces = [std::io::IoSlice::new(head), std::io::IoSlice::new(tail)];
            writer
                .write_vectored(inode, generation, At::End, &pieces, sequence)
                .map(drop)
        }
        13 | 14 => {
            let blocks = random.below(blocks_max + 1);
            writer.set_size(inode, generation, blocks * bytes as u64, sequence)
        }
        15 => {
            // To a name with the same block size.
            let mut other = some_name(random);
            *other.last_mut().unwrap() = name[name.len() - 1];
            writer.rename((ROOT_INODE, &name), (ROOT_INODE, &other), sequence)
        }
        16 => writer.remove(ROOT_INODE, &name, sequence),
        17 => {
            let (from, end) = (random.below(blocks_max), random.below(blocks_max));
            let range = (from * bytes as u64, end.max(from) * bytes as u64);
            writer.allocate(inode, generation, (range.0, range.1 + 1), true, sequence)
        }
        _ => {
            let first = random.below(size / bytes as u64 + 1);
            verify(writer, &name, &found, (first, 20), counts)
        }
    }
}

fn live_until_killed(path: &Path, seed: u64) -> ! {
    let counts = Counts::map(path);
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // Count at once: the process may be killed before it has ended.
        counts.failures.fetch_add(1, Ordering::Relaxed);
        print(info);
    }));
    let region = Region::open(path, true).unwrap();
    let writer = region.writer().unwrap();
    let mut random = Random::new(seed);
    for sequence in 1.. {
        let start = Instant::now();
        match call(&writer, &mut random, sequence, counts) {
            Ok(())
            | Err(
                Error::NotFound | Error::Exists | Error::Stale | Error::Full | Error::TablesFull,
            ) => {}
            Err(error) => panic!("{error}"),
        }
        let took = start.elapsed();
        counts.calls.fetch_add(1, Ordering::Relaxed);
        if took > Duration::from_millis(10) {
            counts.slow.fetch_add(1, Ordering::Relaxed);
        }
        counts
            .slowest_us
            .fetch_max(took.as_micros() as u64, Ordering::Relaxed);
    }
    unreachable!("numbers do not end")
}

/// Processes that run until they are killed.
struct Victims(Vec<Child>);

impl Drop for Victims {
    fn drop(&mut self) {
        for victim in &mut self.0 {
            let _ = victim.kill();
            let _ = victim.wait();
        }
    }
}

#[test]
fn killed_processes_leave_a_region_whole() {
    if let Some((region, seed)) = in_role("victim") {
        live_until_killed(&region, seed);
    }
    let scratch = Scratch::new("kills");
    let path = scratch.region();
    let options = RegionOptions {
        capacity_bytes: 64 << 20,
        files_max: Some(100),
        lanes: 16,
    };
    let region = Region::create(&path, &options, &DIRECTORY).unwrap();
    let writer = region.writer().unwrap();
    let counts = Counts::map(&path);
    let pool = region.free_bytes();
    let mut random = Random::new(std::process::id().into());
    let mut victims = Victims(
        (0..3)
            .map(|seed| again(KILLED_TEST, "victim", &path, seed))
            .collect(),
    );
    let kills_wanted = match std::env::var("KEEL_MEM_KILLS") {
        Ok(count) => count.parse().unwrap(),
        Err(_) => KILLS,
    };
    let mut kills = 0;
    let start = Instant::now();
    while kills < kills_wanted {
        std::thread::sleep(Duration::from_micros(random.below(12_000)));
        let place = random.index(victims.0.len());
        let victim = &mut victims.0[place];
        if let Some(status) = victim.try_wait().unwrap() {
            panic!("a process ended by itself: {status}");
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
        kills += 1;
        if kills % 3 == 0 {
            verify_all(&writer, counts);
        }
        // The other processes continue meanwhile.
        let found = mem::check::check(&region, false).unwrap();
        assert!(
            found.is_clean(),
            "after {kills} kills: {:?}",
            found.findings
        );
        let failures = counts.failures.load(Ordering::Relaxed);
        assert_eq!(failures, 0, "after {kills} kills, see above");
        *victim = again(KILLED_TEST, "victim", &path, random.below(u64::MAX));
    }
    drop(victims);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{kills} kills in {:.1} s; {} calls, {} writes, {} blocks read, {} calls found it full; {} took more \
         than 10 ms, the longest {} ms",
        start.elapsed().as_secs_f64(),
        count(&counts.calls),
        count(&counts.writes),
        count(&counts.blocks_read),
        count(&counts.full),
        count(&counts.slow),
        count(&counts.slowest_us) / 1000,
    );
    assert!(count(&counts.writes) > kills && count(&counts.blocks_read) > kills);
    // The next process recovers what the last ones left, and nothing is lost.
    let attachment = Attachment::open(&path, b"/keel", true).unwrap();
    attachment.sweep().unwrap();
    drop(attachment);
    assert_eq!(region.lanes_taken(), 1);
    verify_all(&writer, counts);
    let found = mem::check::check(&region, false).unwrap();
    assert!(found.is_clean(), "{:?}", found.findings);
    for entry in writer.list(ROOT_INODE, 0, 1000).unwrap() {
        writer.remove(ROOT_INODE, &entry.name, 1).unwrap();
    }
    assert_eq!((region.inodes(), region.orphans()), (1, 0));
    // A page may stay allocated for each piece size.
    let kept = (pool - region.free_bytes()) / PAGE_BYTES;
    assert!(kept <= 11, "{kept} pages are lost");
}

// --- readers of memory that is freed

const READERS_TEST: &str = "processes::freed_memory_is_read_by_no_process";
const HUGE_BYTES: u64 = 24 << 20;

/// A hugetlbfs with only the pages of the region: a process that touches a freed page is killed.
fn mount_huge_pages(scratch: &mut Scratch) -> Result<(), String> {
    let path = std::ffi::CString::new(scratch.folder.to_str().unwrap()).unwrap();
    let options = std::ffi::CString::new(format!("pagesize=2M,size={HUGE_BYTES}")).unwrap();
    // SAFETY: strings that end with a zero byte.
    let failed = unsafe {
        libc::mount(
            c"none".as_ptr(),
            path.as_ptr(),
            c"hugetlbfs".as_ptr(),
            0,
            options.as_ptr().cast(),
        )
    } != 0;
    if failed {
        return Err(format!("hugetlbfs: {}", std::io::Error::last_os_error()));
    }
    scratch.is_mounted = true;
    let options = RegionOptions {
        capacity_bytes: HUGE_BYTES,
        files_max: Some(100),
        lanes: 8,
    };
    Region::create(&scratch.region(), &options, &DIRECTORY)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// Stops the readers, also if the writer has panicked.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The short path of reading, repeatedly by the same thread.
fn read_as_before(attachment: &Attachment, inode: u64, generation: u64, is_done: &AtomicBool) {
    let opened = Opened {
        description: 0,
        node: Node { inode, generation },
        flags: libc::O_RDWR,
    };
    let last = LastFile::default();
    let mut random = Random::new(9);
    let mut bytes = vec![0; 100_000];
    let mut short = 0;
    while !is_done.load(Ordering::Relaxed) {
        let length = 1 + random.index(bytes.len());
        let offset = random.below(6 << 20);
        if last
            .read(attachment, offset, &mut bytes[..length])
            .is_some()
        {
            short += 1;
            continue;
        }
        let writer = attachment.writer().unwrap();
        writer
            .read(inode, generation, offset, &mut bytes[..length])
            .unwrap();
        last.remember(attachment, &opened, (1, 1), false);
    }
    assert!(short > 20, "{short} reads were short ones");
}

fn read_while_it_goes(path: &Path) {
    let attachment = Attachment::open(path, b"/keel", true).unwrap();
    let region = attachment.region();
    let writer = region.writer().unwrap();
    let pool = region.free_bytes();
    let made = writer.create(ROOT_INODE, b"file", &FILE).unwrap();
    let (inode, generation) = (made.inode, made.generation);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let is_done = &is_done;
            scope.spawn(move || {
                let writer = region.writer().unwrap();
                let mut random = Random::new(seed);
                let mut bytes = vec![0; 200_000];
                while !is_done.load(Ordering::Relaxed) {
                    let length = 1 + random.index(bytes.len());
                    let offset = random.below(6 << 20);
                    writer
                        .read(inode, generation, offset, &mut bytes[..length])
                        .unwrap();
                }
            });
        }
        scope.spawn(|| read_as_before(&attachment, made.inode, made.generation, &is_done));
        let _done = Done(&is_done);
        let block = vec![7; 1 << 20];
        for step in 0..400u64 {
            for place in 0..6 {
                writer
                    .write(inode, generation, place << 20, &block, step)
                    .unwrap();
            }
            if step % 2 == 0 {
                writer
                    .set_size(inode, generation, step % 3 * 1_000_000, step)
                    .unwrap();
            } else {
                writer.punch(inode, generation, (0, 6 << 20), step).unwrap();
            }
        }
    });
    writer.remove(ROOT_INODE, b"file", 1).unwrap();
    assert!(pool - region.free_bytes() <= PAGE_BYTES);
}

#[test]
fn freed_memory_is_read_by_no_process() {
    if let Some((region, _)) = in_role("reader") {
        return read_while_it_goes(&region);
    }
    let mut scratch = Scratch::new("readers");
    if let Err(reason) = mount_huge_pages(&mut scratch) {
        println!("skipped: {reason}");
        return;
    }
    let status = again(READERS_TEST, "reader", &scratch.region(), 0)
        .wait()
        .unwrap();
    assert!(status.success(), "{status}");
}
