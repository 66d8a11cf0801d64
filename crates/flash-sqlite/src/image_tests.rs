//! Tests an image against a model without waiting writes and without a device.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base::block::{BlockDevice, Counters, DeviceError, Geometry};
use base::sim::{Keep, Random, SimDevice};
use flash::{Error, FormatOptions, Store};

use super::{Image, Images};
use crate::node::{Kind, Node, Opening};

/// One device that can be opened once.
struct One(Mutex<Option<Shared>>);

struct Shared(Arc<Mutex<SimDevice>>);

impl BlockDevice for Shared {
    fn geometry(&self) -> Geometry {
        self.0.lock().unwrap().geometry()
    }
    fn read(&mut self, first_block: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.0.lock().unwrap().read(first_block, buffer)
    }
    fn write(&mut self, first_block: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.0.lock().unwrap().write(first_block, data)
    }
    fn flush(&mut self) -> Result<(), DeviceError> {
        self.0.lock().unwrap().flush()
    }
    fn discard(&mut self, first_block: u64, block_count: u64) -> Result<(), DeviceError> {
        self.0.lock().unwrap().discard(first_block, block_count)
    }
    fn counters(&self) -> Counters {
        self.0.lock().unwrap().counters()
    }
    fn reset_write_blocks_max(&mut self) {
        self.0.lock().unwrap().reset_write_blocks_max();
    }
}

impl Images for One {
    fn locate(&self, path: &Path) -> std::io::Result<PathBuf> {
        Ok(path.to_path_buf())
    }

    fn open(&self, path: &Path, _read_only: bool) -> Result<Box<dyn BlockDevice>, DeviceError> {
        let device = self.0.lock().unwrap().take();
        let device = device.ok_or_else(|| DeviceError::InUse {
            path: path.to_path_buf(),
        })?;
        Ok(Box::new(device))
    }
}

fn image(blocks: u64) -> Image {
    let (image, _) = counted_image(blocks);
    image
}

/// Returns an image and its device, so that the device's counters can be read while the image is open.
fn counted_image(blocks: u64) -> (Image, Arc<Mutex<SimDevice>>) {
    let options = FormatOptions {
        files_max: 8,
        name_bytes_max: 64,
        uuid: [7; 16],
        hash_key: [8; 16],
    };
    let store = Store::format(SimDevice::new(blocks, 1), &options).unwrap();
    let device = Arc::new(Mutex::new(store.close().unwrap()));
    let images = One(Mutex::new(Some(Shared(Arc::clone(&device)))));
    let image = Image::open(&images, Path::new("image")).unwrap();
    (image, device)
}

const DATABASE: &str = "plant.db";
const JOURNAL: &str = "plant.db-journal";
const LOG: &str = "plant.db-wal";

fn open(image: &Image, name: &str) -> Arc<Node> {
    let how = Opening {
        kind: match name {
            JOURNAL => Kind::Journal,
            _ if name.ends_with("-wal") => Kind::Log,
            _ => Kind::Database,
        },
        create: true,
        exclusive: false,
    };
    image.open_file(name, how).unwrap()
}

fn content(image: &Image, node: &Arc<Node>) -> Vec<u8> {
    let mut bytes = vec![0xee; image.length(node).unwrap() as usize + 10];
    let count = image.read(node, 0, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

/// Returns the content of a file after a power cut that loses everything unflushed.
fn durable(device: &Mutex<SimDevice>, name: &str) -> Option<Vec<u8>> {
    let device = device.lock().unwrap().crash_image(&|_| Keep::Lost);
    let mut store = Store::open(device, &flash::OpenOptions::default()).unwrap();
    let file = store.open_file(name).ok()?;
    let mut bytes = vec![0xee; store.length(file).unwrap() as usize];
    assert_eq!(store.read(file, 0, &mut bytes).unwrap(), bytes.len());
    Some(bytes)
}

/// Fills the store through a log, because writes to a log do not wait.
fn fill(image: &Image) -> Arc<Node> {
    let filler = open(image, "filler-wal");
    let full = (0..4096_u64).find_map(|place| {
        let piece = [2; 2048];
        image.write(&filler, place * 2048, &piece).err()
    });
    assert!(matches!(full, Some(Error::Full)), "{full:?}");
    filler
}

#[test]
fn waiting_writes_behave_like_writes_in_the_store() {
    let names = [DATABASE, LOG, JOURNAL, "other.db"];
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let image = image(4096);
        let mut nodes: Vec<_> = names.iter().map(|name| open(&image, name)).collect();
        let mut model = vec![Vec::new(); names.len()];
        for step in 0..300 {
            let which = random.index(names.len());
            let (name, node) = (names[which], Arc::clone(&nodes[which]));
            let expected = &mut model[which];
            match random.below(12) {
                0..=6 => {
                    let length = expected.len();
                    let offset = match random.below(5) {
                        0 => random.index(length + 1),
                        1 => length.saturating_sub(random.index(100)),
                        2 if name == DATABASE => length / 4096 * 4096,
                        _ => length,
                    };
                    let bytes = [4, 24, 28, 64, 65, 512, 4096][random.index(7)];
                    let mut data = vec![0; bytes];
                    random.fill(&mut data);
                    // A journal that begins with a zero byte has ended, so make the first byte nonzero.
                    data[0] |= 1;
                    image.write(&node, offset as u64, &data).unwrap();
                    if name == LOG && offset == 0 {
                        expected.clear();
                    }
                    expected.resize(expected.len().max(offset + bytes), 0);
                    expected[offset..offset + bytes].copy_from_slice(&data);
                }
                7 => {
                    let mut length = random.index(expected.len() + 50);
                    if random.below(4) == 0 {
                        length = 0;
                    }
                    image.truncate(&node, length as u64).unwrap();
                    expected.resize(length, 0);
                }
                8 => image.sync(&node).unwrap(),
                9 => {
                    image.close_file(&node).unwrap();
                    nodes[which] = open(&image, name);
                }
                10 if random.coin() => {
                    image.delete(name).unwrap();
                    assert!(image.is_deleted(&node) && content(&image, &node).is_empty());
                    image.close_file(&node).unwrap();
                    expected.clear();
                    nodes[which] = open(&image, name);
                }
                _ => {
                    let from = random.index(expected.len() + 1);
                    let mut part = vec![0xee; random.index(6000)];
                    let count = image.read(&node, from as u64, &mut part).unwrap();
                    assert_eq!(
                        part[..count],
                        expected[from..][..count],
                        "seed {seed}, step {step}"
                    );
                    assert!(count == part.len() || from + count == expected.len());
                }
            }
            let length = model[which].len() as u64;
            assert_eq!(
                image.length_by_name(name).unwrap(),
                length,
                "seed {seed}, step {step}"
            );
            assert_eq!(image.length(&nodes[which]).unwrap(), length);
        }
        for (node, expected) in nodes.iter().zip(&model) {
            assert_eq!(content(&image, node), *expected, "seed {seed}");
        }
    }
}

/// Writes a transaction that changes two pages, as SQLite does.
fn transaction(image: &Image, database: &Arc<Node>, fill: u8) -> Arc<Node> {
    let journal = open(image, JOURNAL);
    image.write(&journal, 0, &[9; 512]).unwrap();
    for record in 0..2 {
        image
            .write(&journal, 512 + record * 4104, &[8; 4104])
            .unwrap();
    }
    image.sync(&journal).unwrap();
    for page in [0, 3] {
        let mut bytes = vec![1; 4096];
        bytes[20..60].fill(fill);
        image.write(database, page * 4096, &bytes).unwrap();
    }
    image.sync(database).unwrap();
    journal
}

#[test]
fn a_small_transaction_is_one_record_however_its_journal_ends() {
    type End = fn(&Image, &Arc<Node>);
    let ends: [(&str, End); 3] = [
        ("deleted", |image, journal| {
            image.close_file(journal).unwrap();
            image.delete(JOURNAL).unwrap();
        }),
        ("emptied", |image, journal| {
            image.truncate(journal, 0).unwrap();
            image.sync(journal).unwrap();
            image.close_file(journal).unwrap();
        }),
        ("voided", |image, journal| {
            image.write(journal, 0, &[0; 28]).unwrap();
            image.sync(journal).unwrap();
            image.close_file(journal).unwrap();
        }),
    ];
    for (name, end) in ends {
        let (image, device) = counted_image(512);
        let database = open(&image, DATABASE);
        image.write(&database, 0, &[1; 5 * 4096]).unwrap();
        image.sync(&database).unwrap();
        let before = durable(&device, DATABASE).unwrap();
        for fill in 2..6 {
            let start = device.lock().unwrap().counters();
            let journal = transaction(&image, &database, fill);
            let middle = device.lock().unwrap().counters();
            assert_eq!(
                (middle.writes, middle.flushes),
                (start.writes, start.flushes),
                "{name}: nothing is committed yet"
            );
            assert!(image.length_by_name(JOURNAL).unwrap() > 0, "{name}");
            end(&image, &journal);
            let done = device.lock().unwrap().counters();
            // The record, and the two blocks in place.
            assert_eq!(
                (done.writes - start.writes, done.flushes - start.flushes),
                (3, 1),
                "{name}"
            );
            let after = durable(&device, DATABASE).unwrap();
            assert_eq!(after, content(&image, &database));
            assert!(after[20..60] == [fill; 40] && after != before, "{name}");
            assert!(durable(&device, JOURNAL).is_none(), "{name}");
        }
    }
}

#[test]
fn another_file_makes_a_transaction_go_to_the_store_in_its_order() {
    let (image, device) = counted_image(512);
    let database = open(&image, DATABASE);
    let other = open(&image, "other.db");
    image.write(&database, 0, &[1; 5 * 4096]).unwrap();
    image.write(&other, 0, &[1; 4096]).unwrap();
    image.sync(&other).unwrap();
    let journal = transaction(&image, &database, 7);
    image.write(&other, 0, &[2; 4096]).unwrap();
    image.sync(&other).unwrap();
    // The database was changed only after the journal was durable.
    let journaled = durable(&device, JOURNAL).unwrap();
    assert_eq!(journaled, content(&image, &journal));
    assert_eq!(journaled.len(), 512 + 2 * 4104);
    assert_eq!(durable(&device, DATABASE).unwrap()[20..60], [7; 40]);
    image.close_file(&journal).unwrap();
    image.delete(JOURNAL).unwrap();
    assert!(durable(&device, JOURNAL).is_none());
    assert_eq!(durable(&device, "other.db").unwrap(), [2; 4096]);
}

#[test]
fn a_journal_that_is_left_behind_is_found_and_can_be_played_back() {
    let (image, device) = counted_image(512);
    let database = open(&image, DATABASE);
    image.write(&database, 0, &[1; 5 * 4096]).unwrap();
    image.sync(&database).unwrap();
    let journal = transaction(&image, &database, 7);
    // The connection is closed; the next one finds the journal by its name, without creating it.
    image.close_file(&journal).unwrap();
    assert_eq!(image.length_by_name(JOURNAL).unwrap(), 512 + 2 * 4104);
    let how = Opening {
        kind: Kind::Journal,
        create: false,
        exclusive: false,
    };
    let start = device.lock().unwrap().counters();
    let journal = image.open_file(JOURNAL, how).unwrap();
    assert_eq!(content(&image, &journal)[..512], [9; 512]);
    image.sync(&journal).unwrap();
    for page in [0, 3] {
        image.write(&database, page * 4096, &[1; 4096]).unwrap();
    }
    image.truncate(&database, 5 * 4096).unwrap();
    image.sync(&database).unwrap();
    image.close_file(&journal).unwrap();
    image.delete(JOURNAL).unwrap();
    let end = device.lock().unwrap().counters();
    // The database in the store has not been changed.
    assert_eq!((end.writes, end.flushes), (start.writes, start.flushes));
    assert_eq!(content(&image, &database), [1; 5 * 4096]);
    assert!(image.open_file(JOURNAL, how).is_err());
}

#[test]
fn names_and_heads_are_asked_of_the_device_once() {
    let (image, device) = counted_image(512);
    let database = open(&image, DATABASE);
    image.write(&database, 0, &[1; 8192]).unwrap();
    image.sync(&database).unwrap();
    let look = || {
        let mut counter = [0; 16];
        assert_eq!(image.read(&database, 24, &mut counter).unwrap(), 16);
        assert!(image.length_by_name(JOURNAL).is_err());
        assert!(image.length_by_name(LOG).is_err());
        counter
    };
    look();
    let before = device.lock().unwrap().counters().reads;
    assert_eq!(look(), [1; 16]);
    assert_eq!(device.lock().unwrap().counters().reads, before);
    // A change is detected.
    image.write(&database, 0, &[2; 4096]).unwrap();
    image.sync(&database).unwrap();
    assert_eq!(look(), [2; 16]);
    image.write(&database, 30, &[3; 2]).unwrap();
    image.sync(&database).unwrap();
    assert_eq!(look()[5..9], [2, 3, 3, 2]);
    image.truncate(&database, 32).unwrap();
    image.truncate(&database, 4096).unwrap();
    assert_eq!(look()[6..9], [3, 3, 0]);
    let journal = open(&image, JOURNAL);
    image.write(&journal, 0, &[9; 600]).unwrap();
    assert_eq!(image.length_by_name(JOURNAL).unwrap(), 600);
}

#[test]
fn waiting_writes_of_a_full_store_stop_only_their_own_file() {
    let (image, device) = counted_image(256);
    let database = open(&image, DATABASE);
    let journal = open(&image, JOURNAL);
    image.write(&database, 0, &[1; 8192]).unwrap();
    image.sync(&database).unwrap();
    let filler = fill(&image);
    // More than the free space that may be left, and less than the waiting limit.
    let record = [3; 4096];
    let write_records = |places: std::ops::Range<u64>| {
        places
            .map(|place| image.write(&journal, place * 4096, &record))
            .find(Result::is_err)
    };
    assert!(write_records(0..15).is_none());
    image.sync(&journal).unwrap();
    image.write(&database, 0, &[4; 4096]).unwrap();
    image.sync(&database).unwrap();
    // Another file is not affected.
    image.write(&filler, 2048, &[5; 100]).unwrap();
    image.sync(&filler).unwrap();
    assert_eq!(content(&image, &journal), vec![3; 15 * 4096]);
    // An overwrite needs no room, and the end of the journal puts it into the store.
    image.truncate(&journal, 0).unwrap();
    let expected = [[4; 4096], [1; 4096]].concat();
    assert_eq!(durable(&device, DATABASE).unwrap(), expected);
    // A write that needs room is refused at the end of its journal, and can be rolled back.
    assert!(write_records(0..2).is_none());
    image.sync(&journal).unwrap();
    image.write(&database, 0, &[6; 4096]).unwrap();
    image.write(&database, 8192, &[6; 60_000]).unwrap();
    image.sync(&database).unwrap();
    assert!(matches!(image.truncate(&journal, 0), Err(Error::Full)));
    image.write(&database, 0, &[4; 4096]).unwrap();
    image.truncate(&database, 8192).unwrap();
    image.sync(&database).unwrap();
    image.truncate(&journal, 0).unwrap();
    assert_eq!(content(&image, &database), expected);
    // A journal whose first part cannot be put into the store can be read for a rollback, and ended.
    let refused = write_records(0..40);
    assert!(matches!(refused, Some(Err(Error::Full))), "{refused:?}");
    assert!(matches!(write_records(16..17), Some(Err(Error::Full))));
    assert_eq!(content(&image, &journal), vec![3; 16 * 4096]);
    image.write(&database, 0, &[4; 4096]).unwrap();
    image.sync(&database).unwrap();
    image.truncate(&journal, 0).unwrap();
    assert_eq!(image.length(&journal).unwrap(), 0);
    image.delete(JOURNAL).unwrap();
    image.sync(&database).unwrap();
    assert_eq!(durable(&device, DATABASE).unwrap(), expected);
    image.delete("filler-wal").unwrap();
    assert!(matches!(
        image.write(&filler, 0, &[2]),
        Err(Error::StaleHandle)
    ));
    image.write(&database, 8192, &[5; 60_000]).unwrap();
    assert_eq!(image.length(&database).unwrap(), 68_192);
    image.sync(&database).unwrap();
    assert_eq!(durable(&device, DATABASE).unwrap().len(), 68_192);
}

/// On a full store, pages of a transaction whose journal has found no room must not go to the database.
#[test]
fn no_page_is_changed_before_its_journal_is_in_the_store() {
    let (image, device) = counted_image(256);
    let database = open(&image, DATABASE);
    let other = open(&image, "other.db");
    let journal = open(&image, JOURNAL);
    let before = vec![1; 40 * 4096];
    image.write(&database, 0, &before).unwrap();
    image.write(&other, 0, &[1; 4096]).unwrap();
    image.sync(&other).unwrap();
    fill(&image);
    let write_records = |count: u64| {
        (0..count)
            .map(|place| image.write(&journal, place * 4096, &[3; 4096]))
            .find(Result::is_err)
    };
    let write_pages = || {
        for page in 0..10 {
            image.write(&database, page * 16384, &[4; 4096]).unwrap();
        }
        image.sync(&database).unwrap();
    };
    let is_refused = || {
        let ended = image.truncate(&journal, 0);
        assert!(matches!(ended, Err(Error::Full)), "{ended:?}");
        assert_eq!(durable(&device, DATABASE).unwrap(), before);
        // SQLite rolls back.
        for page in 0..10 {
            image.write(&database, page * 16384, &[1; 4096]).unwrap();
        }
        image.sync(&database).unwrap();
        image.truncate(&journal, 0).unwrap();
        assert_eq!(content(&image, &database), before);
    };
    // A statement was refused, and the transaction continues without it.
    assert!(matches!(write_records(40), Some(Err(Error::Full))));
    image.sync(&journal).unwrap();
    write_pages();
    is_refused();
    // A write to another file met the full store, which does not affect it.
    assert!(write_records(15).is_none());
    image.sync(&journal).unwrap();
    write_pages();
    image.write(&other, 0, &[5; 4096]).unwrap();
    image.sync(&other).unwrap();
    image.put_waiting().unwrap();
    is_refused();
    // A statement was refused while pages of the transaction wait, and then another file is changed.
    assert!(write_records(15).is_none());
    image.sync(&journal).unwrap();
    write_pages();
    let refused = image.write(&journal, 15 * 4096, &[3; 4096]);
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");
    image.write(&other, 0, &[6; 4096]).unwrap();
    image.sync(&other).unwrap();
    assert_eq!(durable(&device, DATABASE).unwrap(), before);
    image.sync(&journal).unwrap();
    is_refused();
}

/// A transaction that finds no room at its end may still have made the database longer. To roll it back SQLite syncs
/// the journal, truncates the database, and writes the original pages.
#[test]
fn a_database_that_grew_for_a_refused_transaction_can_be_cut() {
    let mut grown = 0;
    for spare in 0..32 {
        let (image, device) = counted_image(256);
        let database = open(&image, DATABASE);
        let journal = open(&image, JOURNAL);
        let before = vec![1; 10 * 4096];
        image.write(&database, 0, &before).unwrap();
        image.sync(&database).unwrap();
        let rest = open(&image, "rest-wal");
        image.write(&rest, 0, &vec![2; spare * 4096]).unwrap();
        fill(&image);
        image.delete("rest-wal").unwrap();
        // The journal needs more room than is left, so only the end of the transaction may go to the store.
        for place in 0..15 {
            image.write(&journal, place * 4096, &[3; 4096]).unwrap();
        }
        image.sync(&journal).unwrap();
        for page in [0, 10, 12, 14, 20, 30, 40] {
            image.write(&database, page * 4096, &[4; 4096]).unwrap();
        }
        image.sync(&database).unwrap();
        if image.truncate(&journal, 0).is_ok() {
            continue;
        }
        grown += u32::from(image.length(&database).unwrap() > 10 * 4096);
        image.sync(&journal).unwrap();
        image.truncate(&database, 10 * 4096).unwrap();
        image.write(&database, 0, &[1; 4096]).unwrap();
        image.sync(&database).unwrap();
        image.truncate(&journal, 0).unwrap();
        assert_eq!(durable(&device, DATABASE).unwrap(), before, "{spare} spare");
    }
    assert!(
        grown > 0,
        "no refused transaction has made the database longer"
    );
}

/// A transaction that is rolled back may have changed no page of the store.
#[test]
fn a_refused_transaction_with_nothing_to_restore_can_be_taken_back() {
    let (image, device) = counted_image(256);
    let database = open(&image, DATABASE);
    let journal = open(&image, JOURNAL);
    let before = vec![1; 10 * 4096];
    image.write(&database, 0, &before).unwrap();
    image.sync(&database).unwrap();
    fill(&image);
    for place in 0..15 {
        image.write(&journal, place * 4096, &[3; 4096]).unwrap();
    }
    image.sync(&journal).unwrap();
    image.write(&database, 0, &[4; 10 * 4096]).unwrap();
    image.sync(&database).unwrap();
    let ended = image.truncate(&journal, 0);
    assert!(matches!(ended, Err(Error::Full)), "{ended:?}");
    image.sync(&journal).unwrap();
    image.sync(&database).unwrap();
    image.truncate(&journal, 0).unwrap();
    assert_eq!(durable(&device, DATABASE).unwrap(), before);
}

/// If a journal has grown since a part of it was put into the store, the rest may find no room. SQLite has not been
/// told of this when it begins to roll the transaction back.
#[test]
fn a_journal_whose_end_finds_no_room_can_be_played_back() {
    let (image, device) = counted_image(256);
    let database = open(&image, DATABASE);
    let journal = open(&image, JOURNAL);
    let before = vec![1; 10 * 4096];
    image.write(&database, 0, &before).unwrap();
    image.sync(&database).unwrap();
    // The first part of the journal is in the store, and so are pages of the transaction.
    for place in 0..20 {
        image.write(&journal, place * 4096, &[3; 4096]).unwrap();
    }
    image.sync(&journal).unwrap();
    image.write(&database, 0, &[4; 15 * 4096]).unwrap();
    image.sync(&database).unwrap();
    fill(&image);
    for place in 20..35 {
        image.write(&journal, place * 4096, &[3; 4096]).unwrap();
    }
    // The first call of a rollback reports the full store and fails; the next one succeeds, and reading depends on
    // that.
    let cut = image.truncate(&database, 10 * 4096);
    assert!(matches!(cut, Err(Error::Full)), "{cut:?}");
    image.sync(&journal).unwrap();
    image.truncate(&database, 10 * 4096).unwrap();
    image.write(&database, 0, &before).unwrap();
    image.sync(&database).unwrap();
    image.truncate(&journal, 0).unwrap();
    assert_eq!(durable(&device, DATABASE).unwrap(), before);
}
