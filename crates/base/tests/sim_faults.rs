//! The faults of the simulated device, one by one: that they happen, what they do, and that they are counted.

use base::block::{BLOCK_BYTES, BlockDevice, DeviceError, SECTOR_BYTES};
use base::clock::Clock;
use base::error::Code;
use base::sim::{FaultCounters, FaultPlan, Keep, LatencyModel, SimClock, SimDevice};

const BLOCK_COUNT: u64 = 32;

fn device(plan: FaultPlan) -> SimDevice {
    let mut device = SimDevice::new(BLOCK_COUNT, 42);
    for block in 0..BLOCK_COUNT {
        device.write(block, &[block as u8; BLOCK_BYTES]).unwrap();
    }
    device.flush().unwrap();
    device.set_fault_plan(plan);
    device
}

fn blocks_changed(device: &SimDevice) -> Vec<u64> {
    (0..BLOCK_COUNT)
        .filter(|block| device.peek(*block) != [*block as u8; BLOCK_BYTES])
        .collect()
}

fn bits_different(first: &[u8], second: &[u8]) -> u32 {
    first
        .iter()
        .zip(second)
        .map(|(first, second)| (first ^ second).count_ones())
        .sum()
}

const ALWAYS: u32 = 1_000_000;

#[test]
fn lost_writes_are_acknowledged_and_never_happen() {
    let mut device = device(FaultPlan {
        write_lost_ppm: ALWAYS,
        ..FaultPlan::default()
    });
    let before = device.image_hash();
    device.write(3, &[99; BLOCK_BYTES]).unwrap();
    device.flush().unwrap();
    assert_eq!(device.image_hash(), before);
    assert_eq!(
        device.fault_counters(),
        FaultCounters {
            writes_lost: 1,
            ..FaultCounters::default()
        }
    );
}

#[test]
fn misdirected_writes_land_whole_in_another_place() {
    let mut device = device(FaultPlan {
        write_misdirected_ppm: ALWAYS,
        ..FaultPlan::default()
    });
    let mut places = std::collections::HashSet::new();
    for _ in 0..500 {
        let mut device = {
            device.write(3, &[99; BLOCK_BYTES]).unwrap();
            device.clone()
        };
        let changed: Vec<u64> = device.unflushed().map(|write| write.first_block).collect();
        places.extend(changed);
        device.flush().unwrap();
        assert_eq!(device.peek(3), [3; BLOCK_BYTES]);
    }
    // Every other place on the device, and never the right one.
    assert_eq!(places.len() as u64, BLOCK_COUNT - 1);
    assert_eq!(device.fault_counters().writes_misdirected, 500);
    // There is no other place.
    let mut small = SimDevice::new(1, 1);
    small.set_fault_plan(FaultPlan {
        write_misdirected_ppm: ALWAYS,
        ..FaultPlan::default()
    });
    small.write(0, &[7; BLOCK_BYTES]).unwrap();
    assert_eq!(small.peek(0), [7; BLOCK_BYTES]);
    assert_eq!(small.fault_counters().writes_misdirected, 0);
}

#[test]
fn rotten_writes_differ_in_one_bit() {
    let mut device = device(FaultPlan {
        write_rot_ppm: ALWAYS,
        ..FaultPlan::default()
    });
    device.write(3, &[99; 2 * BLOCK_BYTES]).unwrap();
    let stored = [device.peek(3), device.peek(4)].concat();
    assert_eq!(bits_different(&stored, &[99; 2 * BLOCK_BYTES]), 1);
    assert_eq!(device.fault_counters().writes_rotten, 1);
}

#[test]
fn rot_found_by_a_read_stays() {
    let mut device = device(FaultPlan {
        read_rot_ppm: ALWAYS,
        ..FaultPlan::default()
    });
    let mut first = [0; BLOCK_BYTES];
    device.read(3, &mut first).unwrap();
    assert_eq!(bits_different(&first, &[3; BLOCK_BYTES]), 1);
    device.set_fault_plan(FaultPlan::default());
    let mut second = [0; BLOCK_BYTES];
    device.read(3, &mut second).unwrap();
    assert_eq!(first, second);
    assert_eq!(device.crash_image(&|_| Keep::Lost).peek(3), first);
    assert_eq!(blocks_changed(&device), [3]);
    assert_eq!(device.fault_counters().reads_rotten, 1);
}

#[test]
fn read_errors_pass_and_leave_the_data() {
    let mut device = device(FaultPlan {
        read_error_ppm: ALWAYS,
        ..FaultPlan::default()
    });
    let error = device.read(3, &mut [0; BLOCK_BYTES]).unwrap_err();
    assert_eq!(error.code(), Code::Io);
    assert!(matches!(
        error,
        DeviceError::Io {
            operation: "read",
            first_block: 3,
            ..
        }
    ));
    device.set_fault_plan(FaultPlan::default());
    device.read(3, &mut [0; BLOCK_BYTES]).unwrap();
    assert_eq!(blocks_changed(&device), []);
    assert_eq!(device.counters().reads, 2);
}

#[test]
fn failed_writes_store_nothing_everything_or_a_part() {
    let (mut none, mut all, mut part) = (0, 0, 0);
    let mut device = device(FaultPlan {
        write_error_ppm: ALWAYS,
        ..FaultPlan::default()
    });
    for _ in 0..100 {
        device.poke(3, &[3; BLOCK_BYTES]);
        assert_eq!(
            device.write(3, &[99; BLOCK_BYTES]).unwrap_err().code(),
            Code::Io
        );
        let bytes = device.peek(3);
        let new = bytes
            .chunks(SECTOR_BYTES)
            .filter(|sector| **sector == [99; SECTOR_BYTES])
            .count();
        let old = bytes
            .chunks(SECTOR_BYTES)
            .filter(|sector| **sector == [3; SECTOR_BYTES])
            .count();
        assert_eq!(new + old, 8);
        match new {
            0 => none += 1,
            8 => all += 1,
            _ => part += 1,
        }
        // What a failed write stored is no more durable than a successful one's.
        assert!(device.unflushed().all(|write| write.first_block == 3));
    }
    assert!(none > 5 && all > 5 && part > 5, "{none} {all} {part}");
    assert_eq!(device.fault_counters().write_errors, 100);
}

#[test]
fn a_failed_flush_settles_the_cache_as_a_cut_would_and_the_device_goes_on() {
    let (mut kept, mut lost) = (0, 0);
    let mut device = device(FaultPlan {
        flush_error_ppm: ALWAYS,
        ..FaultPlan::default()
    });
    for _ in 0..100 {
        device.poke(3, &[3; BLOCK_BYTES]);
        device.write(3, &[99; BLOCK_BYTES]).unwrap();
        let error = device.flush().unwrap_err();
        assert!(matches!(
            error,
            DeviceError::Io {
                operation: "flush",
                ..
            }
        ));
        assert_eq!(device.unflushed_count(), 0);
        assert_eq!(device.peek(3), device.peek_durable(3));
        kept += u32::from(device.peek(3) == [99; BLOCK_BYTES]);
        lost += u32::from(device.peek(3) == [3; BLOCK_BYTES]);
    }
    assert!(kept > 10 && lost > 10 && kept + lost < 100, "{kept} {lost}");
    assert_eq!(
        (
            device.fault_counters().flush_errors,
            device.counters().flushes
        ),
        (100, 101)
    );
}

#[test]
fn a_full_device_takes_rewrites_and_nothing_new() {
    let mut device = SimDevice::new(BLOCK_COUNT, 1);
    device.set_full_after_blocks(Some(2));
    device.write(0, &[1; BLOCK_BYTES]).unwrap();
    assert_eq!(
        device.write(1, &[1; 2 * BLOCK_BYTES]).unwrap_err().code(),
        Code::Full
    );
    assert_eq!(device.peek(1), [0; BLOCK_BYTES], "refused wholly");
    device.write(0, &[2; 2 * BLOCK_BYTES]).unwrap();
    assert_eq!(device.held_count(), 2);
    device.flush().unwrap();
    assert_eq!(
        device.write(5, &[1; BLOCK_BYTES]).unwrap_err().code(),
        Code::Full
    );
    device.write(1, &[3; BLOCK_BYTES]).unwrap();
    device.read(5, &mut [0; BLOCK_BYTES]).unwrap();
    assert_eq!(device.fault_counters().write_errors, 2);
    device.set_full_after_blocks(None);
    device.write(5, &[1; BLOCK_BYTES]).unwrap();
}

#[test]
fn time_passes_by_the_latency_model_and_stalls() {
    let clock = SimClock::new(1);
    let mut device = SimDevice::new(BLOCK_COUNT, 1);
    let latency = LatencyModel {
        read_ns: 1,
        read_block_ns: 10,
        write_ns: 100,
        write_block_ns: 1000,
        flush_ns: 10_000,
    };
    device.set_latency(clock.clone(), latency);
    device.read(0, &mut [0; 2 * BLOCK_BYTES]).unwrap();
    assert_eq!(clock.monotonic_ns(), 21);
    device.write(0, &[0; 3 * BLOCK_BYTES]).unwrap();
    assert_eq!(clock.monotonic_ns(), 3121);
    device.flush().unwrap();
    assert_eq!(clock.monotonic_ns(), 13_121);
    device.set_fault_plan(FaultPlan {
        stall_ppm: ALWAYS,
        stall_ns: 1_000_000,
        ..FaultPlan::default()
    });
    device.flush().unwrap();
    assert_eq!(clock.monotonic_ns(), 1_023_121);
    assert_eq!(device.fault_counters().stalls, 1);
}

#[test]
fn rates_are_rates_and_follow_the_seed() {
    let plan = FaultPlan {
        write_lost_ppm: 100_000,
        read_error_ppm: 200_000,
        ..FaultPlan::default()
    };
    let run = |seed| {
        let mut device = SimDevice::new(BLOCK_COUNT, seed);
        device.set_fault_plan(plan);
        for step in 0..4000_u64 {
            device
                .write(step % BLOCK_COUNT, &[step as u8; BLOCK_BYTES])
                .unwrap();
            let _ = device.read(step % BLOCK_COUNT, &mut [0; BLOCK_BYTES]);
            if step % 8 == 7 {
                device.flush().unwrap();
            }
        }
        (device.image_hash(), device.fault_counters())
    };
    let (hash, faults) = run(5);
    assert_eq!(run(5), (hash, faults));
    assert_ne!(run(6), (hash, faults));
    assert!((300..500).contains(&faults.writes_lost), "{faults:?}");
    assert!((650..950).contains(&faults.read_errors), "{faults:?}");
}
