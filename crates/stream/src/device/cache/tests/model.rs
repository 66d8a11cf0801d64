//! Compares random sequences of calls with a map.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
enum Step {
    Put(u64, usize),
    Get(u64, usize),
    Flush,
    Reopen,
    Expect(u64),
    Note(u8, usize),
    Flip(usize, usize),
    Cut(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = || prop_oneof![Just(BLOCK_BYTES), 1..=BLOCK_BYTES];
    let step = prop_oneof![
        10 => (0..400_u64, size()).prop_map(|(number, bytes)| Step::Put(number, bytes)),
        10 => (0..400_u64, size()).prop_map(|(number, bytes)| Step::Get(number, bytes)),
        2 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        1 => (0..400_u64).prop_map(Step::Expect),
        2 => (0..6_u8, 0..30_000_usize).prop_map(|(name, bytes)| Step::Note(name, bytes)),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(file, at)| Step::Flip(file, at)),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(file, at)| Step::Cut(file, at)),
    ];
    prop::collection::vec(step, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_cache_agrees_with_a_map_that_may_forget_damaged_blocks(steps in steps()) {
        let storage = MemoryStorage::default();
        let mut cache = Some(open(&storage));
        let mut blocks: HashMap<BlockHash, Arc<[u8]>> = HashMap::new();
        let mut notes: HashMap<String, Vec<Vec<u8>>> = HashMap::new();
        let mut is_damaged = false;
        for step in steps {
            let held = cache.as_ref().unwrap();
            match step {
                Step::Put(number, bytes) => {
                    let (hash, content) = sized_block(number, bytes);
                    held.put(&hash, &content);
                    blocks.insert(hash, content);
                }
                Step::Get(number, bytes) => {
                    let (hash, content) = sized_block(number, bytes);
                    let found = held.get(&hash, bytes);
                    match (&found, blocks.contains_key(&hash)) {
                        (Some(found), true) => prop_assert_eq!(found, &content),
                        (Some(_), false) => prop_assert!(false, "never put"),
                        (None, is_put) => prop_assert!(is_damaged || !is_put),
                    }
                }
                Step::Flush => held.flush(),
                Step::Reopen => {
                    drop(cache.take());
                    cache = Some(open(&storage));
                }
                Step::Expect(first) => {
                    let hashes: Vec<_> = (first..first + 60).map(|number| block(number).0).collect();
                    held.expect(&hashes);
                }
                Step::Note(name, bytes) => {
                    let name = format!("note-{name}");
                    let value = vec![bytes as u8; bytes];
                    held.set_note(&name, &value).unwrap();
                    prop_assert_eq!(held.note(&name).unwrap_or_default(), value.clone());
                    notes.entry(name).or_default().push(value);
                }
                Step::Flip(file, at) | Step::Cut(file, at) => {
                    held.flush();
                    let names = storage.names();
                    if names.is_empty() {
                        continue;
                    }
                    is_damaged = true;
                    storage.damage(&names[file % names.len()], |bytes| {
                        let at = at % bytes.len().max(1);
                        match step {
                            Step::Cut(..) => bytes.truncate(at),
                            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 0x10),
                        }
                    });
                }
            }
            prop_assert!(storage.used_bytes() <= OPTIONS.bytes_max);
        }
        let cache = cache.unwrap();
        cache.flush();
        for (hash, content) in &blocks {
            let found = cache.get(hash, content.len());
            prop_assert!(found.as_ref() == Some(content) || found.is_none() && is_damaged);
        }
        for (name, values) in &notes {
            let found = cache.note(name).unwrap_or_default();
            match is_damaged {
                false => prop_assert_eq!(&found, values.last().unwrap()),
                true => prop_assert!(found.is_empty() || values.contains(&found)),
            }
        }
    }
}
