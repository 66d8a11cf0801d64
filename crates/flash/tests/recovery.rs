//! Tests recovery step by step. Covers the effect of the remains of a torn record on later records, and the state of a
//! handle after a device failure.

use crate::common::medium::{RecordKind, newest_record, record_areas};
use crate::common::records::{before_spilling, open};
use crate::common::worn::Worn;
use crate::common::{Operation, options, read_all};
use base::sim::{Keep, SimDevice};
use flash::{OpenOptions, PAYLOAD_BYTES, Store};

/// Selects the sectors of whole blocks, for [`Keep::Torn`].
fn blocks(numbers: &[u32]) -> Keep {
    let mask = numbers
        .iter()
        .fold(0, |mask, block| mask | 0xff << (8 * block));
    Keep::Torn { sector_mask: mask }
}

/// Returns the device as it is, with every write complete.
fn whole(store: &Store<SimDevice>) -> SimDevice {
    store.device().crash_image(&|_| Keep::Whole)
}

/// A cut keeps all of a spilling record except the list, so the record has not happened. Recovery writes its record,
/// which announces the same cluster, and the power is cut again. The remains in the cluster must not be taken for the
/// record before recovery's record, because its images would be put in place.
#[test]
fn a_torn_record_with_a_list_does_not_pass_for_the_one_before_the_recovery() {
    let (device, before, name) = before_spilling();
    let mut store = open(device, false).unwrap();
    // The record of recovery is the newest; the deletion that would have spilled has not happened.
    assert!(read_all(&mut store).unwrap() == before);
    store.device_mut().set_power_cut_after_writes(Some(1));
    assert!(store.delete(&name).is_err());
    let record = store.device().unflushed().next().unwrap();
    assert!(record.block_count == 4 && newest_record(store.device()) == record.first_block);
    // Keep all but the list.
    let image = store.device().crash_image(&|_| blocks(&[0, 1, 3]));

    let mut store = open(image, false).unwrap();
    assert!(read_all(&mut store).unwrap() == before);
    let mut store = open(whole(&store), false).unwrap();
    assert!(read_all(&mut store).unwrap() == before, "deleted after all");
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// A cut loses the first of three blocks of an overwrite's record, so the record has not happened. The record of
/// recovery, a short one, overwrites its beginning. Two calls later the place is written again and torn, so that the
/// end of the old record shows. It must not be taken for the record before the newest, or two of the three blocks would
/// change.
#[test]
fn the_end_of_a_torn_record_does_not_pass_for_the_one_before_the_newest() {
    let mut store = Store::format(SimDevice::new(256, 1), &options(4)).unwrap();
    store.replace("a", &[1; 3 * PAYLOAD_BYTES]).unwrap();
    let mut store = open(store.close().unwrap(), false).unwrap();
    let file = store.open_file("a").unwrap();
    store.device_mut().set_power_cut_after_writes(Some(1));
    assert!(store.write_at(file, 0, &[2; 3 * PAYLOAD_BYTES]).is_err());
    assert_eq!(store.device().unflushed().next().unwrap().block_count, 5);
    let image = store.device().crash_image(&|_| blocks(&[0, 2, 3, 4]));

    let mut store = open(image, false).unwrap();
    let file = store.create("x").unwrap();
    store.device_mut().set_power_cut_after_writes(Some(1));
    assert!(store.append(file, &[3; 5000]).is_err());
    let written: Vec<u64> = store
        .device()
        .unflushed()
        .map(|write| write.block_count)
        .collect();
    assert_eq!(
        written,
        [2, 2],
        "the table block in its place, a record of two roots"
    );
    // Keep the first sector of both roots.
    let image = store.device().crash_image(&|index| match index {
        0 => Keep::Whole,
        _ => Keep::Torn {
            sector_mask: 0x0101,
        },
    });
    let mut store = open(image, false).unwrap();
    let found = read_all(&mut store).unwrap();
    assert!(found["a"] == [1; 3 * PAYLOAD_BYTES], "changed by half");
    assert!(found["x"].is_empty());
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// A store that has grown has its former end among its data blocks, where the longest record may still be. This may
/// also be in the cluster that a record announces, which is shorter.
#[test]
fn an_old_record_in_the_announced_cluster_is_none() {
    let mut store = Store::format(SimDevice::new(256, 1), &options(4)).unwrap();
    store.replace("a", &[1; 3 * PAYLOAD_BYTES]).unwrap();
    let file = store.open_file("a").unwrap();
    store.write_at(file, 0, &[2; 3 * PAYLOAD_BYTES]).unwrap();
    let newest = newest_record(store.device());
    let mut device = whole(&store);
    assert_eq!(RecordKind::of(&device, newest).blocks(), 5);
    let cluster = record_areas(&device).pop().unwrap();
    assert_eq!(cluster.end - cluster.start, 4);
    for (from, to) in (newest..).zip(cluster) {
        let block = device.peek(from);
        device.poke(to, &block);
    }
    for read_only in [true, false] {
        let mut store = open(device.clone(), read_only).unwrap();
        assert!(read_all(&mut store).unwrap()["a"] == [2; 3 * PAYLOAD_BYTES]);
        assert!(store.check().unwrap().is_clean());
    }
}

/// Returns a store with more files than the root has slots, so that only the table holds the state of the first one.
fn store_with_a_file_without_a_slot() -> SimDevice {
    let mut store = Store::format(SimDevice::new(1024, 1), &options(40)).unwrap();
    for number in 0..40 {
        Operation::Replace(format!("file-{number}"), vec![number; 3 * PAYLOAD_BYTES])
            .run(&mut store)
            .unwrap();
    }
    store.close().unwrap()
}

/// The device fails at some point of the call. Whether the change has happened or not, the handle and the name must
/// show the same. The store must show it too when it is opened again, unless the call has failed.
#[test]
fn a_handle_and_its_name_agree_after_a_failed_truncation() {
    let device = store_with_a_file_without_a_slot();
    let (mut failed, mut changed) = (0, 0);
    for length in [
        0,
        1,
        PAYLOAD_BYTES,
        PAYLOAD_BYTES + 1,
        3 * PAYLOAD_BYTES - 1,
    ] {
        for failure in 0..8 {
            let mut worn = Worn::new(device.clone(), []);
            let mut store = Store::open(&mut worn, &OpenOptions::default()).unwrap();
            let file = store.open_file("file-0").unwrap();
            let count = failure / 2 + 1;
            if failure % 2 == 0 {
                store.device_mut().flushes_until_failure = count;
            } else {
                store.device_mut().writes_until_failure = count;
            }
            let result = store.truncate(file, length as u64);
            let context = format!("to {length}, failure {failure}: {result:?}");
            assert_eq!(store.has_failed(), result.is_err(), "{context}");
            let shown = store.length(file).unwrap();
            assert_eq!(
                shown,
                store.stat("file-0").unwrap().length_bytes,
                "{context}"
            );
            assert!(
                [length, 3 * PAYLOAD_BYTES].contains(&(shown as usize)),
                "{context}"
            );
            let mut bytes = vec![9; shown as usize + 1];
            assert_eq!(
                store.read(file, 0, &mut bytes).unwrap(),
                shown as usize,
                "{context}"
            );
            assert!(
                bytes[..shown as usize].iter().all(|byte| *byte == 0),
                "{context}"
            );
            failed += usize::from(result.is_err());
            changed += usize::from(result.is_err() && shown as usize == length);
            let mut again = open(store.device().inner.clone(), false).unwrap();
            let length_again = again.stat("file-0").unwrap().length_bytes;
            assert!(length_again == shown || result.is_err(), "{context}");
        }
    }
    // There were failures before the record was durable, and after.
    assert!(failed > changed && changed > 0, "{failed} {changed}");
}
