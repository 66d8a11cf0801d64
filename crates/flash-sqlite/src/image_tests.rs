//! An image against a model that knows neither waiting nor a device.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base::block::{BlockDevice, DeviceError};
use base::sim::{Random, SimDevice};
use flash::{Error, FileHandle, FormatOptions, Store};

use super::{HEAD_WAITS_BYTES_MAX, Image, Images, Node, Opening, WAITS_BYTES_MAX};

/// One device, given out once.
struct One(Mutex<Option<SimDevice>>);

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
    let options = FormatOptions {
        files_max: 8,
        name_bytes_max: 64,
        uuid: [7; 16],
        hash_key: [8; 16],
    };
    let store = Store::format(SimDevice::new(blocks, 1), &options).unwrap();
    let images = One(Mutex::new(Some(store.close().unwrap())));
    Image::open(&images, Path::new("image")).unwrap()
}

fn open(image: &Image, name: &str) -> (FileHandle, Arc<Node>) {
    let how = Opening {
        create: true,
        exclusive: false,
    };
    image.open_file(name, how).unwrap()
}

fn content(image: &Image, file: FileHandle) -> Vec<u8> {
    let mut bytes = vec![0xee; image.length(file).unwrap() as usize + 10];
    let count = image.read(file, 0, &mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

#[test]
fn what_waits_is_read_measured_cut_and_overwritten_like_all_else() {
    // What may wait is a property of the kind of file.
    let kinds = [
        ("plant.db", WAITS_BYTES_MAX),
        ("plant.db-wal", HEAD_WAITS_BYTES_MAX),
        ("plant.db-journal", WAITS_BYTES_MAX),
    ];
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let image = image(4096);
        let mut open_files: Vec<_> = kinds.iter().map(|(name, _)| open(&image, name)).collect();
        let mut model: HashMap<usize, Vec<u8>> = HashMap::new();
        for step in 0..300 {
            let which = random.index(3);
            let (name, waits) = kinds[which];
            let (file, node) = open_files[which].clone();
            let expected = model.entry(which).or_default();
            match random.below(12) {
                0..=6 => {
                    let length = expected.len();
                    let offset = match random.below(4) {
                        0 => random.index(length + 1),
                        1 => length.saturating_sub(random.index(100)),
                        _ => length,
                    };
                    let bytes = [4, 24, 28, 64, 65, 512, 4096][random.index(7)];
                    let mut data = vec![0; bytes];
                    random.fill(&mut data);
                    image
                        .write(file, &node, offset as u64, &data, waits)
                        .unwrap();
                    expected.resize(length.max(offset + bytes), 0);
                    expected[offset..offset + bytes].copy_from_slice(&data);
                }
                7 => {
                    let length = random.index(expected.len() + 50);
                    image.truncate(file, length as u64).unwrap();
                    expected.resize(length, 0);
                }
                8 => image.sync().unwrap(),
                9 => {
                    image.close_file(file, node).unwrap();
                    open_files[which] = open(&image, name);
                }
                10 if random.coin() => {
                    image.delete(name).unwrap();
                    assert!(image.is_deleted(file) && content(&image, file).is_empty());
                    image.close_file(file, node).unwrap();
                    expected.clear();
                    open_files[which] = open(&image, name);
                }
                _ => {
                    let from = random.index(expected.len() + 1);
                    let mut part = vec![0xee; random.index(6000)];
                    let count = image.read(file, from as u64, &mut part).unwrap();
                    assert_eq!(
                        part[..count],
                        expected[from..][..count],
                        "seed {seed}, step {step}"
                    );
                    assert!(count == part.len() || from + count == expected.len());
                }
            }
            let (file, _) = open_files[which];
            assert_eq!(
                image.length_by_name(name).unwrap(),
                model[&which].len() as u64
            );
            assert_eq!(image.length(file).unwrap(), model[&which].len() as u64);
        }
        for (which, (file, _)) in open_files.iter().enumerate() {
            let expected = model.get(&which).cloned().unwrap_or_default();
            assert_eq!(content(&image, *file), expected, "seed {seed}");
        }
    }
}

#[test]
fn on_a_full_store_what_waits_stops_nothing_but_its_own_file() {
    let image = image(256);
    let (database, database_node) = open(&image, "plant.db");
    let (journal, journal_node) = open(&image, "plant.db-journal");
    image
        .write(database, &database_node, 0, &[1; 8192], WAITS_BYTES_MAX)
        .unwrap();
    image.sync().unwrap();
    let (filler, filler_node) = open(&image, "filler");
    let full = (0..4096_u64).find_map(|place| {
        image
            .write(
                filler,
                &filler_node,
                place * 2048,
                &[2; 2048],
                HEAD_WAITS_BYTES_MAX,
            )
            .err()
    });
    assert!(matches!(full, Some(Error::Full)), "{full:?}");
    // More than what may be left, and less than what may wait.
    let record = [3; 4096];
    for place in 0..15 {
        image
            .write(
                journal,
                &journal_node,
                place * 4096,
                &record,
                WAITS_BYTES_MAX,
            )
            .unwrap();
    }
    assert!(matches!(image.sync(), Err(Error::Full)));
    // Rolling back: the database is written in its place, and the journal can still be read.
    image
        .write(database, &database_node, 0, &[4; 4096], WAITS_BYTES_MAX)
        .unwrap();
    assert_eq!(content(&image, journal), vec![3; 15 * 4096]);
    assert_eq!(
        content(&image, database)[..4097],
        [vec![4; 4096], vec![1]].concat()
    );
    assert!(matches!(
        image.write(journal, &journal_node, 0, &[0; 28], WAITS_BYTES_MAX),
        Err(Error::Full)
    ));
    // The journal is emptied, which never needs room.
    image.truncate(journal, 0).unwrap();
    image.sync().unwrap();
    assert_eq!(image.length(journal).unwrap(), 0);
    // As is one that has something left of it.
    for place in 0..15 {
        image
            .write(
                journal,
                &journal_node,
                place * 4096,
                &record,
                WAITS_BYTES_MAX,
            )
            .unwrap();
    }
    image.delete("plant.db-journal").unwrap();
    image.sync().unwrap();
    image.delete("filler").unwrap();
    image
        .write(filler, &filler_node, 0, &[2], WAITS_BYTES_MAX)
        .unwrap_err();
    image
        .write(
            database,
            &database_node,
            8192,
            &[5; 60_000],
            HEAD_WAITS_BYTES_MAX,
        )
        .unwrap();
    assert_eq!(image.length(database).unwrap(), 68_192);
}
