//! Copies all files of a store into a new one, and compares them: for `keel flash copy` and `keel restore`.

use crate::error::CliError;
use base::block::BlockDevice;
use flash::{OpenOptions, PAYLOAD_BYTES, Store};
use node::stores::{file_error, store_error};
use std::path::Path;

/// Bytes read at a time: whole blocks.
const PIECE_BYTES: usize = 256 * PAYLOAD_BYTES;

/// A file to copy.
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) bytes: u64,
}

pub(super) fn list<D: BlockDevice>(store: &mut Store<D>) -> flash::Result<Vec<Listed>> {
    let mut files = Vec::new();
    store.list(&mut |name, stat| {
        files.push(Listed {
            name: name.to_owned(),
            bytes: stat.length_bytes,
        });
    })?;
    Ok(files)
}

/// Why a copy was aborted.
pub(super) enum Stop {
    /// The source store failed at this file.
    Source(String, flash::Error),
    /// The new store failed, at this file or as a whole.
    Target(Option<String>, flash::Error),
    /// This file was read back with different content.
    Differs(String),
    Interrupted,
}

pub(super) fn stop_error(from: &Path, to: &Path, stop: Stop) -> CliError {
    match stop {
        Stop::Source(name, error @ flash::Error::Damaged { .. }) => CliError::failure(
            name,
            error,
            "save what can be read of it with `keel flash get --salvage`, delete it, then copy again",
        ),
        Stop::Source(name, error) => file_error(from, &name, &error),
        Stop::Target(_, flash::Error::Full) => CliError::failure(
            to.display(),
            "no room for all files",
            "choose a larger --size, or a larger device",
        ),
        Stop::Target(Some(name), error @ flash::Error::NameInvalid { .. }) => {
            CliError::usage(name, error, "choose a larger --name-bytes")
        }
        Stop::Target(_, error @ flash::Error::NameTableFull) => {
            CliError::failure(to.display(), error, "")
        }
        Stop::Target(Some(name), error) => file_error(to, &name, &error),
        Stop::Target(None, error) => store_error(to, &error),
        Stop::Differs(name) => CliError::failure(
            to.display(),
            format!("the file {name} came back with other content"),
            "do not trust this device; copy to another one",
        ),
        Stop::Interrupted => CliError::failure(
            to.display(),
            "interrupted; it holds no store",
            "copy again, with --force if it is there",
        ),
    }
}

/// Copies every file. `note` gets the bytes done and returns whether to continue.
pub(super) fn fill<S: BlockDevice, D: BlockDevice>(
    source: &mut Store<S>,
    mut target: Store<D>,
    files: &[Listed],
    note: &mut dyn FnMut(usize) -> bool,
) -> Result<D, Stop> {
    let mut piece = vec![0; PIECE_BYTES];
    for file in files {
        let name = &file.name;
        let of_source = |error| Stop::Source(name.clone(), error);
        let of_target = |error| Stop::Target(Some(name.clone()), error);
        let reading = source.open_file(name).map_err(of_source)?;
        let writing = target.create(name).map_err(of_target)?;
        let mut offset = 0;
        loop {
            if !note(0) {
                return Err(Stop::Interrupted);
            }
            let bytes = source
                .read(reading, offset, &mut piece)
                .map_err(of_source)?;
            if bytes == 0 {
                break;
            }
            target
                .append_nosync(writing, &piece[..bytes])
                .map_err(of_target)?;
            note(bytes);
            offset += bytes as u64;
        }
        source.close_file(reading);
        target.close_file(writing);
    }
    target.sync().map_err(|error| Stop::Target(None, error))?;
    target.close().map_err(|error| Stop::Target(None, error))
}

/// Compares every file of the store on `device` with the original.
pub(super) fn compare<S: BlockDevice, D: BlockDevice>(
    source: &mut Store<S>,
    device: D,
    files: &[Listed],
    note: &mut dyn FnMut(usize) -> bool,
) -> Result<Store<D>, Stop> {
    let whole = |error| Stop::Target(None, error);
    let mut target = Store::open(device, &OpenOptions::default()).map_err(whole)?;
    if target.statistics().files != files.len() as u64 {
        return Err(Stop::Differs("table".to_owned()));
    }
    let mut piece = vec![0; PIECE_BYTES];
    let mut other = vec![0; PIECE_BYTES];
    for file in files {
        let name = &file.name;
        let of_source = |error| Stop::Source(name.clone(), error);
        let of_target = |error| Stop::Target(Some(name.clone()), error);
        let first = source.open_file(name).map_err(of_source)?;
        let second = target.open_file(name).map_err(of_target)?;
        let mut offset = 0;
        loop {
            if !note(0) {
                return Err(Stop::Interrupted);
            }
            let bytes = source.read(first, offset, &mut piece).map_err(of_source)?;
            let others = target.read(second, offset, &mut other).map_err(of_target)?;
            if piece[..bytes] != other[..others] {
                return Err(Stop::Differs(name.clone()));
            }
            if bytes == 0 {
                break;
            }
            note(bytes);
            offset += bytes as u64;
        }
        source.close_file(first);
        target.close_file(second);
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::super::deferred_superblock::DeferredSuperblock;
    use super::*;
    use base::sim::SimDevice;
    use flash::FormatOptions;

    const BLOCKS: u64 = 512;

    fn format_options(identity: u8) -> FormatOptions {
        FormatOptions {
            files_max: 16,
            name_bytes_max: 40,
            uuid: [identity; 16],
            hash_key: [identity; 16],
        }
    }

    /// Returns content without a pattern, so that no part of it is equal to another part.
    fn content(index: usize) -> Vec<u8> {
        let mut state = index as u32;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..index * 5000).map(next).collect()
    }

    /// Returns a store with five files; the first of them is empty.
    fn source() -> Store<SimDevice> {
        let mut store = Store::format(SimDevice::new(BLOCKS, 1), &format_options(1)).unwrap();
        for index in 0..5 {
            store
                .replace(&format!("file {index}"), &content(index))
                .unwrap();
        }
        store
    }

    /// Copies to `device` and keeps the device with any result.
    fn copy_onto(device: &mut SimDevice) -> Result<(), Stop> {
        let mut source = source();
        let files = list(&mut source).unwrap_or_default();
        let whole = |error| Stop::Target(None, error);
        let store =
            Store::format(DeferredSuperblock::new(device), &format_options(2)).map_err(whole)?;
        let device = fill(&mut source, store, &files, &mut |_| true)?;
        let store = compare(&mut source, device, &files, &mut |_| true)?;
        let device = store.close().map_err(whole)?;
        let released = device.release();
        released.map(|_| ()).map_err(|error| whole(error.into()))
    }

    /// Returns whether the device holds a store; then it must be the complete copy.
    fn is_whole_copy(device: SimDevice) -> bool {
        let Ok(mut store) = Store::open(device, &OpenOptions::default()) else {
            return false;
        };
        if store.layout().uuid != [2; 16] {
            return false;
        }
        assert_eq!(store.statistics().files, 5);
        for index in 0..5 {
            let file = store.open_file(&format!("file {index}")).unwrap();
            let expected = content(index);
            let mut read = vec![0; expected.len() + 1];
            assert_eq!(store.read(file, 0, &mut read).unwrap(), expected.len());
            assert!(read[..expected.len()] == expected);
        }
        // The cut may have damaged copies of the superblock, but not all of them.
        let report = store.check().unwrap();
        let is_torn = |problem: &flash::Problem| problem.text.contains("copy of the superblock");
        assert!(report.problems.iter().all(is_torn), "{:?}", report.problems);
        true
    }

    #[test]
    fn a_copy_that_is_cut_short_is_no_store() {
        let mut device = SimDevice::new(BLOCKS, 3);
        assert!(copy_onto(&mut device).is_ok());
        let writes = device.counters().writes;
        assert!(is_whole_copy(device));
        let (mut states, mut whole) = (0, 0);
        for cut in 0..writes {
            let mut device = SimDevice::new(BLOCKS, 3);
            device.set_power_cut_after_writes(Some(cut));
            assert!(copy_onto(&mut device).is_err());
            let is_near_the_end = cut + 4 > writes;
            for seed in 0..if is_near_the_end { 64 } else { 4 } {
                states += 1;
                whole += u32::from(is_whole_copy(device.crash_image_random(seed)));
            }
        }
        println!("{states} states, in {whole} of them the copy is there, whole");
        assert!(whole > 0 && whole < states);
    }

    #[test]
    fn a_device_that_changes_bytes_is_found_out() {
        let mut source = source();
        let files = list(&mut source).unwrap();
        let target = Store::format(SimDevice::new(BLOCKS, 3), &format_options(2)).unwrap();
        let mut device = fill(&mut source, target, &files, &mut |_| true)
            .ok()
            .unwrap();
        let expected = content(4);
        let block = (0..BLOCKS)
            .find(|block| {
                let bytes = device.peek(*block);
                bytes
                    .windows(32)
                    .any(|window| window == &expected[100..132])
            })
            .unwrap();
        device.inject_bit_rot(block, 9000);
        assert!(matches!(
            compare(&mut source, device, &files, &mut |_| true),
            Err(Stop::Target(Some(name), flash::Error::Damaged { .. })) if name == "file 4"
        ));
    }

    #[test]
    fn a_comparison_finds_other_content_and_another_number_of_files() {
        let mut source = source();
        let files = list(&mut source).unwrap();
        for change in 0..3 {
            let target = Store::format(SimDevice::new(BLOCKS, 3), &format_options(2)).unwrap();
            let device = fill(&mut source, target, &files, &mut |_| true)
                .ok()
                .unwrap();
            let mut target = Store::open(device, &OpenOptions::default()).unwrap();
            match change {
                0 => target.replace("file 2", b"other").unwrap(),
                1 => target.delete("file 0").unwrap(),
                _ => target.replace("one more", b"").unwrap(),
            }
            let device = target.close().unwrap();
            let found = compare(&mut source, device, &files, &mut |_| true);
            assert!(matches!(found, Err(Stop::Differs(_))), "{change}");
        }
    }

    #[test]
    fn an_interruption_ends_the_transfer() {
        let mut source = source();
        let files = list(&mut source).unwrap();
        let target = Store::format(SimDevice::new(BLOCKS, 3), &format_options(2)).unwrap();
        let found = fill(&mut source, target, &files, &mut |_| false);
        assert!(matches!(found, Err(Stop::Interrupted)));
    }
}
