//! The HTTP side with a database in memory: simulated sensors, and a status from a file, which is read again for each
//! question. The page's test changes the file to show what this machine lacks: an unreachable upstream, programs from
//! the network, a power sensor.
//!
//!     page_rig ADDRESS SENSORS RATE STATUS.json

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::clock::{Clock, SystemClock};
use db::value::Value;
use db::{
    Database, DbOptions, Durability, Error, Got, HistoryCursor, HistoryEntry, HistoryQuery, Key,
    MemoryStore, ObjectId, ObjectSpec, Retention,
};
use egress::http::{self, HttpOptions, Source, State, Status, status_channel};

struct Sensors {
    db: Arc<Database<MemoryStore>>,
    puts: Vec<AtomicU32>,
    clock: Arc<SystemClock>,
}

impl Source for Sensors {
    fn objects(&self) -> u32 {
        self.db.objects()
    }
    fn key(&self, id: ObjectId) -> Key {
        self.db.key(id)
    }
    fn lookup(&self, key: &str) -> Option<ObjectId> {
        self.db.lookup(key)
    }
    fn validity(&self, id: ObjectId) -> (u32, bool) {
        self.db.validity(id)
    }
    fn get(&self, id: ObjectId, value: &mut [u8]) -> Result<Got, Error> {
        self.db.get(id, value)
    }
    fn puts(&self, id: ObjectId) -> u32 {
        let count = self.puts.get(id.0 as usize);
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }
    fn history(
        &self,
        query: &HistoryQuery,
        cursor: &mut HistoryCursor,
        visit: &mut dyn FnMut(&HistoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<bool, Error> {
        self.db.history(query, cursor, visit)
    }
    fn wall_ms(&self) -> i64 {
        self.clock.wall_ms()
    }
    fn check_pattern(&self, _: &str) -> Result<(), String> {
        Err("this program takes none".to_owned())
    }
    fn matches(&self, _: &str, _: &str) -> bool {
        false
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, sensors, rate, file] = &arguments[..] else {
        return Err("usage: page_rig ADDRESS SENSORS RATE STATUS.json".into());
    };
    let (sensors, rate): (u32, u64) = (sensors.parse()?, rate.parse()?);
    let clock = Arc::new(SystemClock::new());
    let db = Arc::new(Database::open(
        MemoryStore::new(),
        Arc::clone(&clock) as Arc<dyn Clock>,
        DbOptions {
            objects_max: sensors.max(1),
            retention: Retention {
                history_bytes_max: 128 << 20,
                ..Retention::default()
            },
            ..DbOptions::default()
        },
    )?);
    let kinds = ["temperature", "humidity", "smoke", "door"];
    for at in 0..sensors {
        let (room, kind) = (at / 48 + 1, kinds[at as usize % kinds.len()]);
        let key = format!("building/room-{room}/{kind}-{}", at % 48 / 4 + 1);
        db.declare(&ObjectSpec {
            key: &key,
            avi_ms: 5_000,
            temporal: true,
        })?;
    }
    let source = Arc::new(Sensors {
        db: Arc::clone(&db),
        puts: (0..sensors).map(|_| AtomicU32::new(0)).collect(),
        clock,
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()?;
    let feeder = Arc::clone(&source);
    std::thread::spawn(move || feed(&feeder, sensors, rate));
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async move {
        let (asker, mut questions) = status_channel();
        // Nothing is written here.
        let (writer, _) = http::write_channel();
        let (_stop, stopped) = tokio::sync::watch::channel(false);
        let bound = http::bind(HttpOptions::new(address.parse()?))?;
        let (running, serves) = bound.serve(source, asker, writer, 1, stopped)?;
        println!("serving http://{}", running.address);
        let answers = async {
            while let Some(question) = questions.next().await {
                let text = std::fs::read_to_string(file).unwrap_or_default();
                let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
                let state = match json["state"].as_str() {
                    Some("ok") => State::Ok,
                    Some("degraded") => State::Degraded,
                    _ => State::Failed,
                };
                question.answer(Status::new(state, json));
            }
        };
        tokio::join!(serves, answers);
        Ok::<(), Box<dyn std::error::Error>>(())
    })
}

/// Puts `rate` values per second for each sensor.
fn feed(source: &Sensors, sensors: u32, rate: u64) {
    let pause = Duration::from_millis(1000 / rate.max(1));
    let mut round: u64 = 0;
    loop {
        for at in 0..sensors {
            let wave = ((round as f64 + f64::from(at) * 7.0) / 40.0).sin();
            let value = match at % 4 {
                0 => Value::Float(21.0 + 4.0 * wave),
                1 => Value::Float(45.0 + 20.0 * wave),
                2 => Value::Float(0.02 + 0.02 * wave),
                _ => Value::Boolean(wave > 0.0),
            };
            let mut bytes = [0; 16];
            let length = value.encode(&mut bytes).unwrap_or(0);
            let put = source
                .db
                .put_now(ObjectId(at), &bytes[..length], Durability::Batched);
            if put.is_ok() {
                source.puts[at as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
        round += 1;
        std::thread::sleep(pause);
    }
}
