//! Tests of the short path of reading and writing. If the file changes in between, the path reads the file's current
//! bytes and writes to the file's current place, or does nothing.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use base::sim::Random;
use mem::{Attachment, LastFile, NewInode, Node, Opened, PAGE_BYTES, ROOT_INODE};
use mem::{Region, RegionOptions};

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
const NAME: &[u8] = b"file";
const KEY: (u64, u64) = (7, 1);

/// A region that is deleted at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let file = format!("keel-mem-last-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(file);
        let options = RegionOptions {
            capacity_bytes: 32 << 20,
            files_max: Some(100),
            lanes: 8,
        };
        Region::create(&path, &options, &DIRECTORY).unwrap();
        Self(path)
    }

    fn attach(&self) -> Attachment {
        Attachment::open(&self.0, b"/keel", true).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.with_extension("stubs"));
        let _ = std::fs::remove_file(&self.0);
    }
}

fn create(attachment: &Attachment) -> Node {
    let writer = attachment.writer().unwrap();
    let made = writer.create(ROOT_INODE, NAME, &FILE).unwrap();
    Node {
        inode: made.inode,
        generation: made.generation,
    }
}

fn opened(node: Node) -> Opened {
    Opened {
        description: 0,
        node,
        flags: libc::O_RDWR,
    }
}

fn set_size(attachment: &Attachment, node: Node, size: u64) {
    let writer = attachment.writer().unwrap();
    writer
        .set_size(node.inode, node.generation, size, 1)
        .unwrap();
}

#[test]
fn the_last_file_reads_current_bytes_or_nothing_after_any_change() {
    let scratch = Scratch::new("model");
    // Half of the changes come from a second attachment, which stands for another process.
    let attachments = [scratch.attach(), scratch.attach()];
    let last = LastFile::default();
    let mut random = Random::new(17);
    let mut node = create(&attachments[0]);
    let mut model: Vec<u8> = Vec::new();
    let (mut short, mut changes, mut writes) = (0, 0, 0);
    for step in 0..6000_u64 {
        let by = &attachments[random.below(2) as usize];
        let size = model.len() as u64;
        // Small files in pieces, and large ones of several pages in slots.
        let limit = if random.below(2) == 0 {
            3000
        } else {
            2 * PAGE_BYTES + 5000
        };
        match random.below(40) {
            0 => {
                let offset = random.below(size.min(limit) + 1);
                let bytes = vec![step as u8; 1 + random.below(5000) as usize];
                let writer = by.writer().unwrap();
                writer
                    .write(node.inode, node.generation, offset, &bytes, 1)
                    .unwrap();
                let end = offset as usize + bytes.len();
                model.resize(model.len().max(end), 0);
                model[offset as usize..end].copy_from_slice(&bytes);
            }
            1 => {
                // Set a size behind the end: there may be holes.
                let length = random.below(limit);
                set_size(by, node, length);
                model.resize(length as usize, 0);
            }
            2 => {
                let writer = by.writer().unwrap();
                writer.remove(ROOT_INODE, NAME, 1).unwrap();
                writer.reclaim_orphans().unwrap();
                drop(writer);
                let before = node;
                node = create(by);
                assert_ne!(before.generation, node.generation);
                model.clear();
            }
            3 => {
                let from = random.below(size + 1);
                let end = from + random.below(size - from + 1);
                let writer = by.writer().unwrap();
                writer
                    .punch(node.inode, node.generation, (from, end), 1)
                    .unwrap();
                model[from as usize..end as usize].fill(0);
            }
            4 => last.forget(),
            5..16 => {
                // Over existing bytes, and slightly behind the end.
                let offset = random.below(size + 1);
                let left = (size - offset + random.below(2)) as usize;
                let bytes = vec![step as u8; left.min(1 + random.below(5000) as usize)];
                if bytes.is_empty() {
                    continue;
                }
                let end = offset as usize + bytes.len();
                let is_short = last.key() == KEY
                    && last.write(&attachments[0], offset, &bytes) == Some(bytes.len());
                if is_short {
                    assert!(end <= model.len());
                    writes += 1;
                } else {
                    let writer = attachments[0].writer().unwrap();
                    writer
                        .write(node.inode, node.generation, offset, &bytes, 1)
                        .unwrap();
                    last.remember(&attachments[0], &opened(node), KEY, true);
                }
                model.resize(model.len().max(end), 0);
                model[offset as usize..end].copy_from_slice(&bytes);
            }
            _ => changes -= 1,
        }
        changes += 1;
        let offset = random.below(model.len() as u64 + 100);
        let mut into = vec![0xee; random.below(6000) as usize];
        let rest = model.get(offset as usize..).unwrap_or_default();
        let expected = &rest[..rest.len().min(into.len())];
        if last.key() == KEY
            && let Some(count) = last.read(&attachments[0], offset, &mut into)
        {
            assert_eq!(&into[..count], expected, "step {step}");
            short += 1;
            continue;
        }
        let writer = attachments[0].writer().unwrap();
        let count = writer
            .read(node.inode, node.generation, offset, &mut into)
            .unwrap();
        assert_eq!(&into[..count], expected, "step {step}");
        last.remember(&attachments[0], &opened(node), KEY, false);
    }
    // Each change costs two long reads. Reads behind the end or in holes are always long ones.
    assert!(
        short > 1000 && writes > 200 && changes > 400,
        "{short} {writes} {changes}"
    );
    assert_eq!(last.read(&attachments[1], 0, &mut [0; 9]), None);
}

#[test]
fn the_last_file_has_no_torn_bytes_while_others_write_and_free_memory() {
    const BYTES: usize = 4096;
    let scratch = Scratch::new("torn");
    let node = create(&scratch.attach());
    let writers = AtomicU32::new(2);
    let written = AtomicU64::new(0);
    let (mut short, mut kinds) = (0_u64, std::collections::BTreeSet::new());
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (scratch, writers, written) = (&scratch, &writers, &written);
            scope.spawn(move || {
                let attachment = scratch.attach();
                let last = LastFile::default();
                let mut random = Random::new(seed);
                for round in 0..1500_u64 {
                    // A long file lies in a slot, whose pages are freed when the file is cut.
                    if random.below(8) == 0 {
                        set_size(&attachment, node, PAGE_BYTES + BYTES as u64);
                        set_size(&attachment, node, 0);
                    }
                    for time in 0..8 {
                        let bytes = [1 + ((round * 8 + time) % 250) as u8; BYTES];
                        if last.write(&attachment, 0, &bytes).is_some() {
                            written.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        let writer = attachment.writer().unwrap();
                        writer
                            .write(node.inode, node.generation, 0, &bytes, 1)
                            .unwrap();
                        last.remember(&attachment, &opened(node), KEY, true);
                    }
                }
                writers.fetch_sub(1, Ordering::Release);
            });
        }
        let attachment = scratch.attach();
        let last = LastFile::default();
        let mut into = [0; BYTES];
        while writers.load(Ordering::Acquire) > 0 {
            let count = match last.read(&attachment, 0, &mut into) {
                Some(count) => {
                    short += 1;
                    kinds.insert(into[0]);
                    count
                }
                None => {
                    let writer = attachment.writer().unwrap();
                    let count = writer.read(node.inode, node.generation, 0, &mut into);
                    last.remember(&attachment, &opened(node), KEY, false);
                    count.unwrap()
                }
            };
            assert!(
                into[..count].iter().all(|byte| *byte == into[0]),
                "{count} bytes from different writes"
            );
        }
    });
    // The test needs many writes to show anything.
    assert!(kinds.len() > 20, "{short} short reads of {kinds:?}");
    let written = written.into_inner();
    assert!(written > 100, "{written} short writes");
}

#[test]
fn the_last_file_does_not_serve_files_with_holes() {
    let scratch = Scratch::new("holes");
    let attachment = scratch.attach();
    let node = create(&attachment);
    let last = LastFile::default();
    let write_at = |offset| {
        let writer = attachment.writer().unwrap();
        writer
            .write(node.inode, node.generation, offset, &[1; 300], 1)
            .unwrap();
        // Twice: one call is not remembered.
        last.remember(&attachment, &opened(node), KEY, false);
        last.remember(&attachment, &opened(node), KEY, false);
    };
    write_at(2 * PAGE_BYTES);
    assert_eq!(last.read(&attachment, 2 * PAGE_BYTES, &mut [0; 9]), None);
    // An access to a hole would allocate memory for it.
    write_at(0);
    assert_eq!(last.read(&attachment, 0, &mut [0; 9]), None);
    write_at(PAGE_BYTES);
    assert_eq!(last.read(&attachment, 0, &mut [0; 9]), Some(9));
}
