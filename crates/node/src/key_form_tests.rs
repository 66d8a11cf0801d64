//! The form of keys of a store: what its mark, its keys and the default of the program make of it.

use super::*;
use crate::key_mark as mark;
use base::sim::SimDevice;
use flash::{FormatOptions, OpenOptions};
use std::path::Path;

#[path = "../../../fuzz/src/node_keys.rs"]
mod fuzz_entry;

#[test]
fn the_corpus_of_the_fuzz_target_holds() {
    crate::replay::replay("node_keys", fuzz_entry::node_keys);
}

fn store() -> Store<SimDevice> {
    let options = FormatOptions {
        files_max: 20,
        name_bytes_max: 60,
        uuid: [1; 16],
        hash_key: [2; 16],
    };
    Store::format(SimDevice::new(1500, 1), &options).unwrap()
}

fn config(text: &str) -> Config {
    Config::parse(text, "keel.toml", Path::new("")).unwrap()
}

/// A start of a node.
fn start<D: BlockDevice>(store: &mut Store<D>, has_keys: bool, of_new: TagsForm) -> TagsForm {
    let mark = Mark::read(store);
    KeyForm::settle(mark, store, has_keys, of_new).tags
}

#[test]
fn a_store_keeps_the_form_with_which_its_keys_began() {
    use TagsForm::{Pairs, Values};
    // A new store takes the default, and keeps it under later programs with another default.
    let mut new = store();
    assert_eq!(start(&mut new, false, Pairs), Pairs);
    assert_eq!(Mark::read(&mut new), Mark::Form(Pairs));
    for (has_keys, of_new) in [(false, Values), (true, Values), (true, Pairs)] {
        assert_eq!(start(&mut new, has_keys, of_new), Pairs);
    }
    // A store of an older program has keys and no mark, and gets none.
    let mut old = store();
    for of_new in [Values, Pairs] {
        assert_eq!(start(&mut old, true, of_new), Values);
        assert_eq!(Mark::read(&mut old), Mark::Absent);
    }
    // A store that had no key when its program was replaced is a new one.
    let mut empty = store();
    assert_eq!(start(&mut empty, false, Values), Values);
    assert_eq!(Mark::read(&mut empty), Mark::Absent);
    assert_eq!(start(&mut empty, false, Pairs), Pairs);
}

#[test]
fn a_power_cut_at_any_write_of_the_mark_leaves_one_form() {
    let (mut cuts, mut marked) = (0, 0);
    for after_writes in 0.. {
        let mut store = store();
        store
            .device_mut()
            .set_power_cut_after_writes(Some(after_writes));
        let form = start(&mut store, false, TagsForm::Pairs);
        if store.device().is_powered() {
            assert_eq!(form, TagsForm::Pairs);
            break;
        }
        cuts += 1;
        // Without the mark, or if nothing can be read, the run has the old form; its store makes nothing durable.
        assert_eq!(form, TagsForm::Values);
        assert!(store.replace("log", b"a key").is_err());
        for seed in 0..4 {
            let image = store.device().crash_image_random(seed);
            let mut after = Store::open(image, &OpenOptions::default()).unwrap();
            let mark = Mark::read(&mut after);
            assert!(
                matches!(mark, Mark::Absent | Mark::Form(TagsForm::Pairs)),
                "{mark:?}"
            );
            marked += u32::from(mark != Mark::Absent);
            assert_eq!(start(&mut after, false, TagsForm::Pairs), TagsForm::Pairs);
        }
    }
    assert!(cuts > 0 && marked < cuts * 4, "{cuts} {marked}");
}

#[test]
fn a_damaged_mark_stands_for_pairs_and_is_written_again() {
    let mut store = store();
    for content in [
        &b""[..],
        b"keelkeys and nothing else",
        &mark::encode()[..19],
    ] {
        store.replace(NAME, content).unwrap();
        assert_eq!(Mark::read(&mut store), Mark::Damaged);
        for has_keys in [false, true] {
            store.replace(NAME, content).unwrap();
            assert_eq!(
                start(&mut store, has_keys, TagsForm::Values),
                TagsForm::Pairs
            );
            assert_eq!(Mark::read(&mut store), Mark::Form(TagsForm::Pairs));
        }
    }
}

#[test]
fn a_mark_that_cannot_be_read_stands_for_pairs_and_stays_as_it_is() {
    use TagsForm::{Pairs, Values};
    let mut store = store();
    assert_eq!(start(&mut store, false, Pairs), Pairs);
    let whole = mark::encode();
    let magic = &whole[..8];
    let bit_of = |block| {
        let content = store.device().peek(block);
        let at = content.windows(8).position(|bytes| bytes == magic)?;
        Some((block, u32::try_from(8 * at).unwrap()))
    };
    let bits: Vec<(u64, u32)> = (0..1500).filter_map(bit_of).collect();
    let flip = |store: &mut Store<SimDevice>| {
        for (block, bit) in &bits {
            store.device_mut().inject_bit_rot(*block, *bit);
        }
    };
    flip(&mut store);
    for (has_keys, of_new) in [(false, Values), (true, Values), (true, Pairs)] {
        assert_eq!(Mark::read(&mut store), Mark::Unread);
        assert_eq!(start(&mut store, has_keys, of_new), Pairs);
    }
    // The block can be read again, as after an error of the device that has passed.
    flip(&mut store);
    assert_eq!(Mark::read(&mut store), Mark::Form(Pairs));
}

#[test]
fn an_unreadable_mark_is_noted_where_a_key_depends_on_it() {
    let own = config("[line]\nkey = \"{measurement}/{pairs}/{field}\"\n");
    for (mark, tags) in [
        (Mark::Unread, "so {tags} stands for {pairs}"),
        (Mark::Unknown, "so {tags} stands for {values}"),
    ] {
        let form = KeyForm::settle(mark, &mut store(), true, TagsForm::Values);
        let note = form.note(&config("")).unwrap();
        assert!(
            note.starts_with("the file node-keys of the store cannot be read")
                && note.contains(tags),
            "{note}"
        );
        assert_eq!(form.note(&own), None);
    }
}

#[test]
fn a_later_mark_is_refused_where_a_key_depends_on_it() {
    let mut bytes = mark::encode().to_vec();
    bytes.truncate(MARK_BYTES - 4);
    bytes[8] = 7;
    // The longest file.
    bytes.resize(FILE_BYTES_MAX - 4, 0);
    bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
    let mut store = store();
    store.replace(NAME, &bytes).unwrap();
    let mark = Mark::read(&mut store);
    let later = Mark::Later {
        version: 7,
        form: 1,
    };
    assert_eq!(mark, later);
    let error = mark.check(&config("")).unwrap_err().to_string();
    assert!(
        error.contains("node-keys") && error.contains("version 7") && error.contains("[line]"),
        "{error}"
    );
    let own = config("[line]\nkey = \"{measurement}/{pairs}/{field}\"\n");
    assert!(mark.check(&own).is_ok());
    let form = KeyForm::settle(mark, &mut store, true, TagsForm::Values);
    // The file stays for the program that knows it, and a reload must not begin to depend on it.
    assert_eq!(Mark::read(&mut store), later);
    assert!(form.check(&own).is_ok() && form.check(&config("")).is_err());
}
