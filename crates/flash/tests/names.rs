//! Tests the sizing of the name table: a table for N files refuses fewer than one in 10^9 fillings with N names.

use crate::common::options;
use base::sim::{Random, SimDevice};
use flash::{Error, FormatOptions, Store};

/// Returns the share of buckets holding at least i names, for i = 0.., after `load` names per bucket, each put into the
/// emptier of two. This is the limit of large tables (Mitzenmacher), ds_i/dt = s_(i-1)^2 - s_i^2.
fn tail(load: f64) -> Vec<f64> {
    const LEVELS: usize = 64;
    let mut share = vec![0.0; LEVELS];
    share[0] = 1.0;
    let steps = 4000;
    let step = load / f64::from(steps);
    let slope = |share: &[f64]| -> Vec<f64> {
        (0..LEVELS)
            .map(|i| {
                if i == 0 {
                    0.0
                } else {
                    share[i - 1].powi(2) - share[i].powi(2)
                }
            })
            .collect()
    };
    for _ in 0..steps {
        let first = slope(&share);
        let middle: Vec<f64> = share
            .iter()
            .zip(&first)
            .map(|(s, k)| s + step / 2.0 * k)
            .collect();
        for (s, k) in share.iter_mut().zip(slope(&middle)) {
            *s += step * k;
        }
    }
    share
}

/// Returns the entries per bucket and the number of buckets of a store with these options.
fn shape(files_max: u64, name_bytes_max: u16) -> (u64, u64) {
    let options = FormatOptions {
        files_max,
        name_bytes_max,
        ..options(1)
    };
    let store = Store::format(SimDevice::new(1 << 18, 1), &options).unwrap();
    (
        u64::from(store.layout().entries_per_bucket),
        u64::from(store.layout().bucket_count),
    )
}

#[test]
fn the_limit_of_large_tables_refuses_less_than_one_in_a_billion() {
    for name_bytes_max in [1, 16, 32, 64, 128, 200, 255] {
        let files = 20_000_u64;
        let (entries, buckets) = shape(files, name_bytes_max);
        let share = tail(files as f64 / buckets as f64);
        // A name is refused if both its buckets are full. Ten million files are more than any device holds.
        let refused = 1e7 * share[entries as usize].powi(2);
        println!(
            "names of {name_bytes_max} bytes: {entries} a bucket, refusals expected {refused:.1e}"
        );
        assert!(refused < 1e-9);
    }
}

/// Throws `files` names at `buckets` buckets. Returns the load of the fullest bucket.
fn fullest(random: &mut Random, files: u64, buckets: u64, loads: &mut Vec<u16>) -> u16 {
    loads.clear();
    loads.resize(buckets as usize, 0);
    let mut most = 0;
    for _ in 0..files {
        let first = random.index(buckets as usize);
        let second = (first + 1 + random.index(buckets as usize - 1)) % buckets as usize;
        let place = if loads[second] < loads[first] {
            second
        } else {
            first
        };
        loads[place] += 1;
        most = most.max(loads[place]);
    }
    most
}

#[test]
fn small_tables_stay_far_below_their_limit() {
    // The equations hold for large tables only; small ones are simulated. Each further level is exponentially rarer
    // than the one before, squared. Two unused levels in all these fillings show a large margin.
    let mut random = Random::new(1);
    let mut loads = Vec::new();
    for (files, fillings) in [
        (1, 1000),
        (13, 40_000),
        (25, 40_000),
        (50, 40_000),
        (100, 20_000),
        (400, 6000),
        (5000, 400),
    ] {
        let (entries, buckets) = shape(files, 255);
        let most = (0..fillings)
            .map(|_| fullest(&mut random, files, buckets, &mut loads))
            .max()
            .unwrap_or(0);
        println!(
            "{files} files in {buckets} buckets of {entries}: fullest of {fillings} fillings holds {most}"
        );
        assert!(
            u64::from(most) + 3 <= entries,
            "{files} files: {most} of {entries}"
        );
    }
}

#[test]
fn the_equations_agree_with_a_simulated_table() {
    let mut random = Random::new(2);
    let mut loads = Vec::new();
    let (files, buckets) = (600_000, 100_000);
    fullest(&mut random, files, buckets, &mut loads);
    let share = tail(files as f64 / buckets as f64);
    for level in 5..=8_u16 {
        let seen = loads.iter().filter(|load| **load >= level).count() as f64 / buckets as f64;
        let expected = share[usize::from(level)];
        println!("buckets with {level} or more: seen {seen:.4}, expected {expected:.4}");
        assert!(
            (seen - expected).abs() < 0.01 + expected * 0.05,
            "level {level}"
        );
    }
}

#[test]
fn a_store_takes_the_names_it_was_sized_for_and_then_says_when_it_is_full() {
    for files in [1, 30, 3000] {
        let mut random = Random::new(files);
        let mut store = Store::format(SimDevice::new(1 << 16, 1), &options(files)).unwrap();
        let mut name = |number: u64| {
            let mut name = format!("{number}-");
            (0..random.index(240))
                .for_each(|_| name.push(char::from(b'a' + random.below(26) as u8)));
            name
        };
        let mut created = 0;
        let refused = loop {
            match store.create(&name(created)) {
                Ok(file) => store.close_file(file),
                Err(error) => break error,
            }
            created += 1;
        };
        assert!(matches!(refused, Error::NameTableFull), "{refused}");
        assert!(refused.to_string().contains("name-table-full"));
        assert!(created >= files, "{created} of {files}");
        println!("sized for {files} files, took {created}");
        assert!(store.check().unwrap().is_clean());
        // Existing files still work.
        let mut some = None;
        store
            .list(&mut |name, _| some = Some(name.to_owned()))
            .unwrap();
        store.delete(&some.unwrap()).unwrap();
    }
}

/// Renaming a file in a full table uses the entry that the file leaves, if the new name may be there. Otherwise the
/// call is refused and nothing has changed. Replacing a file needs no entry at all.
#[test]
fn renaming_in_a_full_table_needs_no_entry_that_it_does_not_leave() {
    let mut random = Random::new(5);
    let mut store = Store::format(SimDevice::new(1 << 14, 1), &options(100)).unwrap();
    let mut names = std::collections::BTreeSet::new();
    let mut number = 0;
    // Create names until many in a row find no place: all but a few entries are taken.
    let mut refused = 0;
    while refused < 200 {
        number += 1;
        let name = format!("name-{number}");
        match store.create(&name) {
            Ok(file) => {
                store.close_file(file);
                names.insert(name);
                refused = 0;
            }
            Err(Error::NameTableFull) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    let (mut moved, mut refused) = (0, 0);
    for _ in 0..4000 {
        number += 1;
        let from = names.iter().nth(random.index(names.len())).unwrap().clone();
        let to = format!("name-{number}");
        match store.rename(&from, &to) {
            Ok(()) => {
                moved += 1;
                names.remove(&from);
                names.insert(to);
            }
            Err(Error::NameTableFull) => refused += 1,
            Err(error) => panic!("{from} to {to}: {error}"),
        }
    }
    println!("in a full table {moved} renamings found a place, {refused} did not");
    assert!(moved > 100 && refused > 100, "{moved} {refused}");
    for _ in 0..50 {
        let from = names.pop_first().unwrap();
        let to = names.iter().nth(random.index(names.len())).unwrap().clone();
        store.rename(&from, &to).unwrap();
    }
    let mut listed = std::collections::BTreeSet::new();
    store
        .list(&mut |name, _| assert!(listed.insert(name.to_owned()), "{name} twice"))
        .unwrap();
    assert_eq!(listed, names);
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}
