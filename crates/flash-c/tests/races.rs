//! Several threads, acting like several processes, try to create a store in one new file.

use keelflash::*;
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::Barrier;

const ROUNDS: usize = 15;
const THREADS: usize = 4;

/// Does what a program does that finds no store: one thread creates it and writes to it; the others must not undo that.
fn make(path: &CString, barrier: &Barrier) -> bool {
    let mut store = null_mut();
    barrier.wait();
    // SAFETY: the path ends with a zero, and `store` can be written.
    let code = unsafe {
        keelflash_format(
            path.as_ptr(),
            1 << 19,
            1,
            0,
            KEELFLASH_SPARSE,
            &raw mut store,
        )
    };
    if code != KEELFLASH_OK {
        assert!([KEELFLASH_BUSY, KEELFLASH_EXISTS].contains(&code), "{code}");
        return false;
    }
    // SAFETY: the store is open, the name ends with a zero, and the data has this number of bytes.
    unsafe {
        let name = c"kept".as_ptr();
        assert_eq!(
            keelflash_replace(store, name, b"precious".as_ptr().cast(), 8),
            KEELFLASH_OK
        );
        assert_eq!(keelflash_close(store), KEELFLASH_OK);
    }
    true
}

#[test]
fn one_of_several_makers_of_a_store_succeeds_and_its_store_stays() {
    let folder = std::env::temp_dir().join(format!("keelflash-races-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    for round in 0..ROUNDS {
        let path = folder.join(format!("{round}.img"));
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let barrier = Barrier::new(THREADS);
        let made = std::thread::scope(|scope| {
            let run = || make(&path, &barrier);
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(run)).collect();
            let made = threads.into_iter().filter_map(|thread| thread.join().ok());
            made.filter(|made| *made).count()
        });
        assert_eq!(made, 1, "round {round}");
        let mut store = null_mut();
        let mut stat = keelflash_file_stat::default();
        // SAFETY: as above.
        unsafe {
            assert_eq!(
                keelflash_open(path.as_ptr(), 0, 0, &raw mut store),
                KEELFLASH_OK
            );
            let found = keelflash_stat(store, c"kept".as_ptr(), &raw mut stat);
            assert_eq!(
                (found, stat.length_bytes),
                (KEELFLASH_OK, 8),
                "round {round}"
            );
            assert_eq!(keelflash_close(store), KEELFLASH_OK);
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
