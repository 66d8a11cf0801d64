//! The Modbus source on a serial line, which is a pair of pseudo-terminals.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ingest::modbus::{Address, Ended, Fault, Parity, Serial};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::modbus_support::{Memory, Source, answer, device, memory, wait_until, word};

/// The end of a line on which the devices are, and the name of the other one.
struct Line {
    devices: File,
    path: PathBuf,
    /// Keeps the other end open, so that an end of the source is none of the line.
    _held: File,
}

impl Line {
    fn new() -> Self {
        let devices = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&devices).unwrap();
        unlockpt(&devices).unwrap();
        let path = ptsname(&devices, Vec::new()).unwrap();
        let path = PathBuf::from(path.into_string().unwrap());
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let held = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        Self {
            devices: File::from(devices),
            path,
            _held: File::from(held),
        }
    }

    /// Lets devices answer. `what` gets the unit and what it is asked, and writes what it wants.
    fn answered_by(&self, mut what: impl FnMut(u8, &[u8], &mut File) + Send + 'static) {
        let mut devices = self.devices.try_clone().unwrap();
        std::thread::spawn(move || {
            loop {
                // Every request to read has this length.
                let mut request = [0; 8];
                if devices.read_exact(&mut request).is_err() {
                    return;
                }
                let (body, sum) = request.split_at(6);
                assert_eq!(sum, checksum(body), "the checksum of {request:x?}");
                what(body[0], &body[1..], &mut devices);
            }
        });
    }
}

fn serial(path: &Path) -> Address {
    Address::Serial(Serial {
        path: path.to_owned(),
        baud: 115_200,
        parity: Parity::Even,
        stop_bits: 1,
    })
}

/// The checksum of Modbus RTU, written down from the standard.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut crc = 0xffff_u16;
    for byte in bytes {
        crc ^= u16::from(*byte);
        for _ in 0..8 {
            let is_odd = crc & 1 == 1;
            crc >>= 1;
            if is_odd {
                crc ^= 0xa001;
            }
        }
    }
    crc.to_le_bytes()
}

fn packed(unit: u8, pdu: &[u8]) -> Vec<u8> {
    let body = [&[unit][..], pdu].concat();
    let sum = checksum(&body);
    [&body[..], &sum].concat()
}

/// An answer with one word.
fn one_word(unit: u8, word: u16) -> Vec<u8> {
    let [high, low] = word.to_be_bytes();
    packed(unit, &[3, 2, high, low])
}

#[test]
fn the_checksum_is_that_of_the_standard() {
    // From its example: 02 07 41 12.
    assert_eq!(checksum(&[0x02, 0x07]), [0x41, 0x12]);
}

#[test]
fn devices_of_a_line_take_turns_and_one_that_is_dead_takes_single_timeouts() {
    let line = Line::new();
    let held: Vec<Memory> = (0..3_u16)
        .map(|unit| memory(&[(3, 0, &[100 + unit, 200 + unit]), (4, 0, &[300 + unit])]))
        .collect();
    let units = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&units);
    line.answered_by(move |unit, pdu, line| {
        asked.lock().unwrap().push(unit);
        if unit != 3 {
            let pdu = answer(&held[usize::from(unit)], pdu);
            line.write_all(&packed(unit, &pdu)).unwrap();
        }
    });
    let mut devices: Vec<_> = (1..=3)
        .map(|unit| {
            let registers = vec![word(&format!("{unit}/a"), 0), word(&format!("{unit}/b"), 1)];
            device(serial(&line.path), unit, registers)
        })
        .collect();
    devices[2].timeout_ms = 20;
    let source = Source::start(devices);
    for text in ["1/a=101u", "1/b=201u", "2/a=102u", "2/b=202u"] {
        source.wait_for(text);
    }
    wait_until("timeouts of one", || source.faults(2, Fault::Timeout) >= 3);
    let before = [source.figures(0).readings, source.figures(1).readings];
    source.wait_for_readings(0, before[0] + 20);
    source.wait_for_readings(1, before[1] + 20);
    assert!(source.faults_of(0).is_empty() && source.faults_of(1).is_empty());
    assert_eq!(source.figures(2).readings, 0);
    assert_eq!(source.stop(), [Ended::Stopped]);
    // Those that answer are asked in turn, however often the dead one is asked between them.
    let units = units.lock().unwrap();
    let living: Vec<u8> = units.iter().copied().filter(|unit| *unit != 3).collect();
    for window in living[..20].windows(4) {
        assert!(window.contains(&1) && window.contains(&2), "{living:?}");
    }
}

#[test]
fn noise_is_skipped_and_a_wrong_checksum_is_no_answer() {
    let line = Line::new();
    let mut turn = 0;
    line.answered_by(move |unit, _, line| {
        turn += 1;
        let bytes = match turn % 4 {
            // A driver that is switched on and off puts such bytes before and behind an answer.
            1 => [&[0x00, 0xff][..], &one_word(unit, 7)].concat(),
            2 => [&one_word(unit, 7)[..], &[0xff]].concat(),
            3 => {
                let mut spoilt = one_word(unit, 7);
                // The value is another one, and the checksum is as it was.
                spoilt[4] = 99;
                spoilt
            }
            _ => one_word(unit, 7)[..4].to_vec(),
        };
        line.write_all(&bytes).unwrap();
    });
    let mut one = device(serial(&line.path), 17, vec![word("a", 0)]);
    one.timeout_ms = 100;
    let source = Source::start(vec![one]);
    source.wait_for_readings(0, 6);
    wait_until("faults", || source.faults(0, Fault::Garbled) >= 4);
    assert!(source.fake.texts().iter().all(|text| text == "a=7u"));
    wait_until("the reason", || {
        let said = source.figures(0).last_error.unwrap_or_default();
        said.contains(" bytes came within 100 ms")
    });
    source.stop();
}

#[test]
fn an_answer_of_another_length_is_counted_as_one() {
    let line = Line::new();
    line.answered_by(|unit, _, line| {
        let two_words = packed(unit, &[3, 4, 0, 99, 0, 99]);
        line.write_all(&two_words).unwrap();
    });
    let mut one = device(serial(&line.path), 1, vec![word("a", 0)]);
    one.timeout_ms = 200;
    let source = Source::start(vec![one]);
    wait_until("faults", || source.faults(0, Fault::AnswerInvalid) >= 2);
    wait_until("the reason", || {
        let said = source.figures(0).last_error.unwrap_or_default();
        said.contains("it has another length")
    });
    assert!(source.fake.texts().is_empty());
    source.stop();
}

#[test]
fn many_dead_devices_of_a_line_do_not_add_up_before_a_living_one() {
    const DEAD: u8 = 8;
    const LIVING: u8 = 9;
    let line = Line::new();
    let units = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&units);
    line.answered_by(move |unit, _, line| {
        asked.lock().unwrap().push(unit);
        if unit == LIVING {
            line.write_all(&one_word(unit, 5)).unwrap();
        }
    });
    let mut devices: Vec<_> = (1..=LIVING)
        .map(|unit| device(serial(&line.path), unit, vec![word(&unit.to_string(), 0)]))
        .collect();
    // Longer than the interval of the living one, which is due after each of these timeouts.
    for one in &mut devices[..usize::from(DEAD)] {
        one.timeout_ms = 30;
    }
    let source = Source::start(devices);
    wait_until("timeouts of all", || {
        let dead = usize::from(DEAD);
        (0..dead).all(|at| source.faults(at, Fault::Timeout) >= 3)
    });
    assert!(source.faults_of(usize::from(DEAD)).is_empty());
    source.stop();
    let units = units.lock().unwrap();
    let first = units.iter().position(|unit| *unit == LIVING).unwrap();
    for pair in units[first..].windows(2) {
        assert!(pair.contains(&LIVING), "{units:?}");
    }
}

#[test]
fn the_late_answer_of_one_device_is_not_that_of_another() {
    let line = Line::new();
    let mut late = None;
    line.answered_by(move |unit, _, line| match unit {
        // Its answer comes when another device is asked.
        1 => late = Some(one_word(1, 111)),
        _ => {
            let late = late.take().unwrap_or_default();
            line.write_all(&[late, one_word(unit, 222)].concat())
                .unwrap();
        }
    });
    let mut devices = vec![
        device(serial(&line.path), 1, vec![word("slow", 0)]),
        device(serial(&line.path), 2, vec![word("well", 0)]),
    ];
    devices[0].timeout_ms = 50;
    let source = Source::start(devices);
    source.wait_for_readings(1, 5);
    wait_until("timeouts of one", || source.faults(0, Fault::Timeout) >= 3);
    assert!(source.fake.texts().iter().all(|text| text == "well=222u"));
    source.stop();
}

#[test]
fn a_late_answer_to_an_earlier_request_is_thrown_away() {
    let line = Line::new();
    let (requests, mut first) = (Arc::new(AtomicU32::new(0)), true);
    let counted = Arc::clone(&requests);
    line.answered_by(move |unit, _, line| {
        counted.fetch_add(1, Relaxed);
        if !std::mem::take(&mut first) {
            line.write_all(&one_word(unit, 222)).unwrap();
        }
    });
    let mut one = device(serial(&line.path), 1, vec![word("a", 0)]);
    one.timeout_ms = 100;
    // Long enough for the answer below to come before the next request.
    (one.retry_ms_min, one.retry_ms_max) = (4_000, 4_000);
    let source = Source::start(vec![one]);
    wait_until("a timeout", || source.faults(0, Fault::Timeout) == 1);
    (&line.devices).write_all(&one_word(1, 111)).unwrap();
    assert_eq!(requests.load(Relaxed), 1);
    source.wait_for_readings(0, 3);
    assert!(source.fake.texts().iter().all(|text| text == "a=222u"));
    source.stop();
}

#[test]
fn after_a_timeout_nothing_is_asked_that_the_same_unit_could_answer() {
    let line = Line::new();
    let mut requests = 0;
    line.answered_by(move |unit, _, line| {
        requests += 1;
        let late = match requests {
            1 => return,
            // The answer to the first request comes after the second request.
            2 => one_word(1, 111),
            _ => Vec::new(),
        };
        line.write_all(&late).unwrap();
        line.write_all(&one_word(unit, 222)).unwrap();
    });
    let mut devices = vec![
        device(serial(&line.path), 1, vec![word("a", 0)]),
        device(serial(&line.path), 1, vec![word("b", 0)]),
        device(serial(&line.path), 2, vec![word("c", 0)]),
    ];
    devices[0].timeout_ms = 100;
    let source = Source::start(devices);
    for text in ["a=222u", "b=222u", "c=222u"] {
        source.wait_for(text);
    }
    assert!(source.faults(0, Fault::Timeout) >= 1);
    let texts = source.fake.texts();
    assert!(
        texts.iter().all(|text| text.ends_with("=222u")),
        "{texts:?}"
    );
    source.stop();
}

/// A line at a path, on which every device has one value.
struct Plugged {
    is_gone: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    _held: File,
}

impl Plugged {
    fn at(path: &Path, value: u16) -> Self {
        let Line {
            mut devices,
            path: port,
            _held: held,
        } = Line::new();
        let is_gone = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_gone);
        let thread = std::thread::spawn(move || {
            let mut request = [0; 8];
            loop {
                devices.read_exact(&mut request).unwrap();
                if told.load(Relaxed) {
                    return;
                }
                devices.write_all(&one_word(request[0], value)).unwrap();
            }
        });
        symlink(&port, path).unwrap();
        Self {
            is_gone,
            thread,
            _held: held,
        }
    }

    /// Ends it with the next request.
    fn unplug(self, path: &Path) {
        std::fs::remove_file(path).unwrap();
        self.is_gone.store(true, Relaxed);
        self.thread.join().unwrap();
    }
}

/// Returns a path for a port in a new folder.
fn path_of_a_port(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("keel-modbus-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder.join("port")
}

#[test]
fn a_port_that_was_away_is_opened_again() {
    let path = path_of_a_port("away");
    let source = Source::start(vec![device(serial(&path), 1, vec![word("a", 0)])]);
    wait_until("failed polls", || source.figures(0).failed_in_row >= 2);
    let said = source.figures(0).last_error.unwrap();
    assert_eq!(said, "the port cannot be opened: No such file or directory");
    for value in [1, 2] {
        let plugged = Plugged::at(&path, value);
        source.wait_for(&format!("a={value}u"));
        let lost = source.faults(0, Fault::ConnectionLost);
        plugged.unplug(&path);
        wait_until("the loss", || {
            source.faults(0, Fault::ConnectionLost) > lost
        });
    }
    assert!(source.faults(0, Fault::NotConnected) >= 2);
    assert_eq!(source.stop(), [Ended::Stopped]);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn a_link_that_was_away_between_two_polls_of_a_device_is_no_fault_of_it() {
    let path = path_of_a_port("between");
    let plugged = Plugged::at(&path, 1);
    let mut seldom = device(serial(&path), 2, vec![word("seldom", 0)]);
    seldom.interval_ms = 3_600_000;
    let source = Source::start(vec![
        device(serial(&path), 1, vec![word("often", 0)]),
        seldom,
    ]);
    source.wait_for("seldom=1u");
    plugged.unplug(&path);
    wait_until("failed polls", || {
        source.faults(0, Fault::NotConnected) >= 3
    });
    let plugged = Plugged::at(&path, 2);
    source.wait_for("often=2u");
    wait_until("a good poll", || source.figures(0).failed_in_row == 0);
    let found = source.figures(1);
    assert_eq!((found.polls, found.polls_failed), (1, 0), "{found:?}");
    assert_eq!(found.failed_in_row, 0);
    assert!(source.faults_of(1).is_empty());
    plugged.unplug(&path);
    assert_eq!(source.stop(), [Ended::Stopped]);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn two_sources_do_not_share_a_port() {
    let line = Line::new();
    line.answered_by(|unit, _, line| line.write_all(&one_word(unit, 5)).unwrap());
    let first = Source::start(vec![device(serial(&line.path), 1, vec![word("a", 0)])]);
    first.wait_for("a=5u");
    let second = Source::start(vec![device(serial(&line.path), 1, vec![word("a", 0)])]);
    wait_until("a failed poll", || second.figures(0).failed_in_row >= 1);
    let said = second.figures(0).last_error.unwrap();
    assert_eq!(said, "another program has the port");
    first.stop();
    // The end of the first one frees the port.
    second.wait_for("a=5u");
    second.stop();
}
