//! Decoding a message allocates memory only for the bytes that have arrived, not for the sizes that it declares.
#![allow(unsafe_code, reason = "a counting allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use stream::wire::{Answer, FrameReader, Request, unpack};

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

fn note(bytes: usize) {
    // A thread that is ending has no counter any more, so ignore the error.
    let _ = BYTES.try_with(|count| count.set(count.get() + bytes));
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note(new_size);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of bytes that a call allocates in total.
fn allocated(call: impl FnOnce()) -> usize {
    let before = BYTES.get();
    call();
    BYTES.get() - before
}

/// A list of 1,024 blocks may be encoded as one run of a few bytes.
const BLOCKS_BYTES: usize = 1024 * 8;

/// Returns a payload of numbers: small ones, limits, too large ones.
fn hostile(seed: &mut u64, bytes: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    while payload.len() < bytes {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        let pieces: [&[u8]; 8] = [
            &[0],
            &[1],
            &[2, 3],
            &[0xff, 0xff, 0x03],
            &[0xff, 0xff, 0xff, 0xff, 0x0f],
            &[0xff; 9],
            &[0x80, 0x20],
            &[0x80, 0x80, 0x01],
        ];
        payload.extend_from_slice(pieces[(*seed >> 32) as usize % 8]);
    }
    payload.truncate(bytes);
    payload
}

#[test]
fn a_message_takes_memory_only_for_arrived_bytes() {
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    for round in 0..3000 {
        let payload = hostile(&mut seed, 1 + round % 300);
        // With a token in front, so that the bytes behind it are decoded.
        let with_token = [&[7; 16][..], &payload].concat();
        for payload in [payload, with_token] {
            let kinds = (0..=0x0b).chain(0x80..=0x8c);
            for (kind, version) in kinds.flat_map(|kind| [(kind, 1), (kind, 2)]) {
                let bytes = allocated(|| {
                    let _ = Request::decode(kind, version, &payload);
                    let _ = Answer::decode(kind, version, &payload);
                });
                let limit = BLOCKS_BYTES + 12 * payload.len();
                assert!(bytes <= limit, "{bytes} bytes for {kind:#x} {payload:02x?}");
            }
        }
    }
}

#[test]
fn a_header_takes_no_memory_for_its_payload() {
    for length in [1u32, 1 << 16, (1 << 16) + 1, 1 << 20, u32::MAX] {
        let bytes = allocated(|| {
            let mut reader = FrameReader::for_requests();
            let _ = reader.push(&length.to_le_bytes());
            let _ = reader.next();
            let _ = reader.push(&[0; 8]);
            let _ = reader.next();
        });
        assert!(bytes <= 80 << 10, "{bytes} bytes for a frame of {length}");
    }
}

#[test]
fn packed_blocks_take_memory_only_for_their_stated_size() {
    // A frame that declares 2^60 bytes.
    let mut liar = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
    liar.extend_from_slice(&(1u64 << 60).to_le_bytes());
    liar.extend_from_slice(&[0x03, 0x00, 0x08, 0xaa]);
    // Create the context of this thread before the measurement.
    let _ = unpack(&liar, &[1]);
    let bytes = allocated(|| assert!(unpack(&liar, &[4096; 32]).is_err()));
    assert!(bytes <= (32 * 4096) + 1024, "{bytes} bytes");
}
