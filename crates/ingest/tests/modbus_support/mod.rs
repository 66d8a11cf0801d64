//! A running Modbus source, and devices to ask.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ingest::intake::IntakeCounters;
use ingest::modbus::{
    Address, Bus, Controller, DeviceFigures, DeviceOptions, DeviceState, Ended, Fault, Register,
    Table, ValueType, WordOrder, control, run,
};
use tokio::task::{JoinSet, LocalSet};

use crate::intake_support::Fake;

/// Far longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < PATIENCE,
            "{what}: not within {PATIENCE:?}"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn register(key: &str, table: Table, address: u16, kind: ValueType) -> Register {
    Register {
        key: key.to_owned(),
        table,
        address,
        kind,
        bit: None,
        order: WordOrder::Abcd,
        scale: 1.0,
        offset: 0.0,
    }
}

/// One word of the holding registers.
pub fn word(key: &str, address: u16) -> Register {
    register(key, Table::Holding, address, ValueType::U16)
}

/// A device that is asked again and again, and is given up for a moment only.
pub fn device(address: Address, unit: u8, registers: Vec<Register>) -> DeviceOptions {
    DeviceOptions {
        name: format!("{address} unit {unit}"),
        address,
        unit,
        interval_ms: 10,
        timeout_ms: 10_000,
        gap_max: 0,
        retry_ms_min: 10,
        retry_ms_max: 20,
        registers,
    }
}

pub fn tcp(address: SocketAddr) -> Address {
    Address::Tcp(address.to_string())
}

/// A source that runs on a thread of its own.
pub struct Source {
    pub fake: Arc<Fake>,
    pub counters: Arc<IntakeCounters>,
    pub states: Vec<Arc<DeviceState>>,
    controller: Controller,
    thread: JoinHandle<Vec<Ended>>,
}

impl Source {
    pub fn start(devices: Vec<DeviceOptions>) -> Self {
        Self::start_into(&Fake::new(), devices)
    }

    pub fn start_into(fake: &Arc<Fake>, devices: Vec<DeviceOptions>) -> Self {
        let states: Vec<Arc<DeviceState>> = devices.iter().map(|_| Arc::default()).collect();
        let buses = Bus::of(devices.into_iter().zip(states.iter().cloned()).collect());
        let counters = Arc::new(IntakeCounters::default());
        let (controller, control) = control();
        let (theirs, counted) = (Arc::clone(fake), Arc::clone(&counters));
        let thread = std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            let runtime = builder.enable_all().build().unwrap();
            let all = async {
                let mut running = JoinSet::new();
                for bus in buses {
                    let (fake, counters) = (Arc::clone(&theirs), Arc::clone(&counted));
                    running.spawn_local(run(bus, fake, counters, control.clone()));
                }
                running.join_all().await
            };
            runtime.block_on(LocalSet::new().run_until(all))
        });
        Self {
            fake: Arc::clone(fake),
            counters,
            states,
            controller,
            thread,
        }
    }

    pub fn figures(&self, at: usize) -> DeviceFigures {
        self.states[at].figures()
    }

    pub fn faults(&self, at: usize, fault: Fault) -> u64 {
        self.figures(at).faults[fault.index()]
    }

    /// Returns the faults of a device that were counted, by name.
    pub fn faults_of(&self, at: usize) -> BTreeMap<&'static str, u64> {
        let found = self.figures(at).faults;
        let named = Fault::ALL.iter().map(|fault| fault.name()).zip(found);
        named.filter(|(_, count)| *count > 0).collect()
    }

    /// Waits until a key has this value.
    pub fn wait_for(&self, text: &str) {
        wait_until(text, || self.fake.texts().iter().any(|found| found == text));
    }

    /// Waits until a device has brought `count` readings.
    pub fn wait_for_readings(&self, at: usize, count: u64) {
        let what = format!("{count} readings of device {at}");
        wait_until(&what, || self.figures(at).readings >= count);
    }

    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it, and returns how its buses ended.
    pub fn stop(self) -> Vec<Ended> {
        self.controller.stop();
        self.thread.join().unwrap()
    }

    /// Returns how its buses ended, by themselves.
    pub fn ended(self) -> Vec<Ended> {
        self.thread.join().unwrap()
    }
}

/// What a device holds, by function code of reading and address.
pub type Memory = BTreeMap<(u8, u16), u16>;

/// Returns a memory with these words from an address on.
pub fn memory(of: &[(u8, u16, &[u16])]) -> Memory {
    let mut memory = Memory::new();
    for (function, begin, words) in of {
        for (address, word) in (*begin..).zip(*words) {
            memory.insert((*function, address), *word);
        }
    }
    memory
}

/// Returns a device's answer to a request to read, both without framing.
pub fn answer(memory: &Memory, asked: &[u8]) -> Vec<u8> {
    let [function, a, b, c, d] = *asked else {
        panic!("no request to read: {asked:?}");
    };
    let (begin, count) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let found: Option<Vec<u16>> = (begin..begin + count)
        .map(|address| memory.get(&(function, address)).copied())
        .collect();
    let Some(words) = found else {
        return vec![function | 0x80, 2];
    };
    let bytes: Vec<u8> = if function <= 2 {
        let byte = |bits: &[u16]| {
            (0..)
                .zip(bits)
                .map(|(at, bit)| (*bit as u8) << at)
                .sum::<u8>()
        };
        words.chunks(8).map(byte).collect()
    } else {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    };
    [&[function, bytes.len() as u8][..], &bytes].concat()
}

/// A request over TCP: the number of the request, the unit, and what is asked.
pub struct Asked {
    pub number: [u8; 2],
    pub unit: u8,
    pub pdu: Vec<u8>,
}

impl Asked {
    /// Packs an answer to it.
    pub fn packed(&self, pdu: &[u8]) -> Vec<u8> {
        let length = (pdu.len() as u16 + 1).to_be_bytes();
        [&self.number[..], &[0, 0], &length, &[self.unit], pdu].concat()
    }
}

/// What a server does after a request.
pub enum Then {
    Answers(Vec<u8>),
    Closes(Vec<u8>),
}

/// A server over TCP. `what` answers each request; its first argument is the number of the connection.
pub struct Server {
    pub address: SocketAddr,
    pub asked: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Server {
    pub fn new(what: impl Fn(usize, &Asked) -> Then + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), what)
    }

    pub fn on(
        listener: TcpListener,
        what: impl Fn(usize, &Asked) -> Then + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (what, log) = (Arc::new(what), Arc::clone(&asked));
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let (what, log) = (Arc::clone(&what), Arc::clone(&log));
                let stream = stream.unwrap();
                std::thread::spawn(move || serve(stream, number, &*what, &log));
            }
        });
        Self { address, asked }
    }

    /// A device with this memory that answers for every unit.
    pub fn of_memory(memory: Arc<Mutex<Memory>>) -> Self {
        Self::new(move |_, asked| {
            let pdu = answer(&memory.lock().unwrap(), &asked.pdu);
            Then::Answers(asked.packed(&pdu))
        })
    }
}

fn serve(
    mut stream: TcpStream,
    number: usize,
    what: &impl Fn(usize, &Asked) -> Then,
    log: &Mutex<Vec<Vec<u8>>>,
) {
    loop {
        let mut head = [0; 7];
        if stream.read_exact(&mut head).is_err() {
            return;
        }
        let [n0, n1, p0, p1, l0, l1, unit] = head;
        assert_eq!([p0, p1], [0, 0], "the number of the protocol");
        let mut pdu = vec![0; usize::from(u16::from_be_bytes([l0, l1])) - 1];
        stream.read_exact(&mut pdu).unwrap();
        log.lock().unwrap().push(pdu.clone());
        let asked = Asked {
            number: [n0, n1],
            unit,
            pdu,
        };
        let (bytes, is_over) = match what(number, &asked) {
            Then::Answers(bytes) => (bytes, false),
            Then::Closes(bytes) => (bytes, true),
        };
        if stream.write_all(&bytes).is_err() || is_over {
            return;
        }
    }
}
