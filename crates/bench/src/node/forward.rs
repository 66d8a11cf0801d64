//! Stored readings on their way upstream, beside a plain client that sends the same readings from memory. The ways are
//! MQTT with QoS 1 to a broker, and HTTP to a server in this process that counts them.
//!
//! **Invariants:** both send the same readings to the same receiver over one connection. The number in flight and the
//! size of bodies are the same, and they take turns. The clock of both runs from before the connection to the last
//! acknowledgement. A round counts only if each reading was acknowledged, none was sent twice, and over HTTP both sent
//! the same number of bytes.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::block::FileDevice;
use base::clock::{Clock, SystemClock};
use db::value::Value;
use db::{Database, DbOptions, Durability, LogCursor, ObjectId, ObjectSpec};
use egress::forward::mqtt::packet;
use egress::forward::{Begin, MqttVersion, Prepared, Target, TimeUnit, UpstreamOptions};
use flash::{FormatOptions, Store};

use super::sink::Sink;
use crate::figures::{Figures, Metric, OURS};
use crate::scratch::check_interrupted;

pub(crate) const FORWARD_MQTT: &str = "forward-mqtt";
pub(crate) const FORWARD_HTTP: &str = "forward-http";
/// The client that stores nothing.
pub(crate) const PLAIN: &str = "plain-client";
pub(crate) const FORWARDED: Metric = Metric::compared("forwarded_per_second", "1/s");

/// Following the log as forwarding does, without sending the readings: no forwarding can be faster.
pub(crate) const FOLLOWED: Metric = Metric::shown("followed_per_second", "1/s");

/// The number of keys, equal to the readings per second of the other cases.
const KEYS: u64 = 260;
/// Maximum number of readings in flight; the default of an upstream.
const WINDOW: u32 = egress::forward::WINDOW_READINGS;
/// Maximum number of unacknowledged messages; the default of an upstream.
const INFLIGHT: u16 = 1_000;
/// Maximum size of a body, in bytes; the default of an upstream.
const BODY_BYTES_MAX: usize = 256 << 10;
/// Maximum number of readings in one step through the log, as in forwarding.
const STEP_READINGS: usize = 4_096;
/// Timeout of a round.
const ROUND_MAX: Duration = Duration::from_secs(600);

type Db = Database<Store<FileDevice>>;

/// Measures `rounds` rounds of `readings` each, for both ways.
pub(crate) fn measure(
    figures: &mut Figures,
    broker: Option<SocketAddr>,
    scratch: &Path,
    rounds: u32,
    readings: u64,
    progress: &mut dyn FnMut(&str),
) -> Result<(), String> {
    progress("forward: filling a store");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let db = fill(&scratch.join("forward.img"), &clock, readings)?;
    let memory = Memory::new(readings);
    let sink = Sink::start()?;
    let http = sink.address();
    let mut body_bytes = None;
    for round in 0..rounds {
        let ways = [(FORWARD_MQTT, broker), (FORWARD_HTTP, Some(http))];
        for (case, address) in ways {
            let Some(address) = address else { continue };
            let is_mqtt = case == FORWARD_MQTT;
            for turn in 0..2 {
                check_interrupted()?;
                // The order alternates from round to round.
                let is_ours = (turn + round) % 2 == 0;
                progress(&format!("{case}, round {}", round + 1));
                let before = (sink.lines(), sink.bytes());
                let time = if is_ours {
                    let target = match is_mqtt {
                        true => mqtt_target(address),
                        false => http_target(address),
                    };
                    let options = UpstreamOptions {
                        begin: Begin::Oldest,
                        // As the programs that it is compared with write them.
                        time_unit: TimeUnit::Milliseconds,
                        window_readings_max: WINDOW,
                        linger_ms: 5,
                        clock_wait_ms_max: 0,
                        ..UpstreamOptions::new(format!("{case}-{round}"), target)
                    };
                    forward(&db, &clock, options, readings)?
                } else if is_mqtt {
                    plain_mqtt(address, &memory)?
                } else {
                    plain_http(address, &memory)?
                };
                let (arrived, bytes) = (sink.lines() - before.0, sink.bytes() - before.1);
                if !is_mqtt && arrived != readings {
                    return Err(format!("{case}: {arrived} of {readings} readings arrived"));
                }
                if !is_mqtt && *body_bytes.get_or_insert(bytes) != bytes {
                    return Err(format!(
                        "{case}: the two clients send different bytes for the same readings"
                    ));
                }
                let system = if is_ours { OURS } else { PLAIN };
                figures.record(
                    case,
                    system,
                    FORWARDED,
                    readings as f64 / time.as_secs_f64(),
                );
            }
        }
        let time = follow(&db, readings)?;
        figures.record(
            FORWARD_HTTP,
            OURS,
            FOLLOWED,
            readings as f64 / time.as_secs_f64(),
        );
    }
    Ok(())
}

/// Follows the log from its beginning to its end, in steps of the size that forwarding uses.
fn follow(db: &Db, readings: u64) -> Result<Duration, String> {
    let begin = Instant::now();
    let (mut cursor, mut found) = (LogCursor::new(0), 0_u64);
    loop {
        let step = db.follow(
            &mut cursor,
            u64::MAX,
            STEP_READINGS,
            &mut |_| true,
            &mut |entry| {
                found += u64::from(!entry.value.is_empty());
            },
        );
        if !step.map_err(|error| format!("forward: {error}"))?.more {
            break;
        }
    }
    match found == readings {
        true => Ok(begin.elapsed()),
        false => Err(format!(
            "forward: the log has {found} of {readings} readings"
        )),
    }
}

fn key(number: u64) -> String {
    format!("hall/{}/temperature", number % KEYS)
}

fn time_ms(number: u64) -> i64 {
    1_700_000_000_000 + number as i64 * 4
}

fn value(number: u64) -> f64 {
    20.0 + (number % 1000) as f64 / 100.0
}

/// Creates a store of readings in a file.
fn fill(image: &Path, clock: &Arc<dyn Clock>, readings: u64) -> Result<Arc<Db>, String> {
    let bytes = (64 << 20) + readings * 40;
    crate::store::write_through(image, bytes, |_, chunk| chunk.fill(0))?;
    let format = FormatOptions {
        files_max: 256,
        name_bytes_max: 255,
        uuid: [1; 16],
        hash_key: [2; 16],
    };
    let store = Store::format(crate::store::open_direct(image)?, &format);
    let store = store.map_err(|error| error.to_string())?;
    let options = DbOptions {
        objects_max: 1024,
        queue_bytes_max: 8 << 20,
        append_bytes_max: 512 << 10,
        ..DbOptions::default()
    };
    let describe = |error: db::Error| format!("forward: {error}");
    let db = Database::open(store, Arc::clone(clock), options).map_err(describe)?;
    let declare = |number| {
        let key = key(number);
        db.declare(&ObjectSpec {
            key: &key,
            avi_ms: 1000,
            temporal: true,
        })
    };
    let ids: Vec<ObjectId> = (0..KEYS)
        .map(declare)
        .collect::<Result<_, _>>()
        .map_err(describe)?;
    for number in 0..readings {
        let mut bytes = [0; 9];
        let length = Value::Float(value(number)).encode(&mut bytes);
        let length = length.map_err(|error| format!("forward: {error:?}"))?;
        let id = ids[(number % KEYS) as usize];
        loop {
            let time = db::Time::from_ms(time_ms(number));
            match db.put(id, &bytes[..length], time, Durability::Batched) {
                Ok(_) => break,
                Err(db::Error::Busy) => db.flush(ROUND_MAX).map_err(describe)?,
                Err(error) => return Err(describe(error)),
            };
        }
    }
    db.flush(ROUND_MAX).map_err(describe)?;
    Ok(Arc::new(db))
}

fn mqtt_target(broker: SocketAddr) -> Target {
    Target::Mqtt {
        address: broker.to_string(),
        version: MqttVersion::V5,
        client_id: "forward".into(),
        login: None,
        topic: "up/{key}".into(),
        keep_alive_seconds: 30,
        inflight_max: INFLIGHT,
    }
}

fn http_target(server: SocketAddr) -> Target {
    Target::Http {
        address: server.to_string(),
        host: "localhost".into(),
        path: "/write?precision=ms".into(),
        authorization: None,
    }
}

/// Forwards all readings. Returns the time until all are acknowledged.
fn forward(
    db: &Arc<Db>,
    clock: &Arc<dyn Clock>,
    options: UpstreamOptions,
    readings: u64,
) -> Result<Duration, String> {
    let (prepared, failed) = Prepared::new(Arc::clone(db), clock, vec![options]);
    if !failed.is_empty() {
        return Err(format!("forward: {failed:?}"));
    }
    let begin = Instant::now();
    let forwarding = prepared
        .start()
        .map_err(|error| format!("forward: {error}"))?;
    let upstream = forwarding
        .upstreams()
        .first()
        .ok_or("forward: no upstream")?;
    loop {
        let figures = upstream.state.figures();
        if figures.counters.sent_twice > 0 {
            return Err("forward: readings were sent twice".to_owned());
        }
        if figures.counters.acknowledged >= readings {
            return Ok(begin.elapsed());
        }
        if begin.elapsed() > ROUND_MAX {
            let acknowledged = figures.counters.acknowledged;
            return Err(format!(
                "forward: {acknowledged} of {readings} acknowledged"
            ));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The readings of the store in memory, as the plain client has them: it writes each as text when it sends it.
struct Memory {
    keys: Vec<String>,
    readings: Vec<Reading>,
}

struct Reading {
    /// Place of its key.
    key: usize,
    time_ms: i64,
    value: f64,
}

impl Memory {
    fn new(count: u64) -> Self {
        let reading = |number| Reading {
            key: (number % KEYS) as usize,
            time_ms: time_ms(number),
            value: value(number),
        };
        Self {
            keys: (0..KEYS).map(key).collect(),
            readings: (0..count).map(reading).collect(),
        }
    }
}

/// Sends from one thread: writes as many messages as may be in flight, then reads acknowledgements.
fn plain_mqtt(broker: SocketAddr, memory: &Memory) -> Result<Duration, String> {
    let failed = |error: std::io::Error| format!("{PLAIN}: {error}");
    let begin = Instant::now();
    let mut stream = TcpStream::connect(broker).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    stream.set_read_timeout(Some(ROUND_MAX)).map_err(failed)?;
    let connect = b"\x10\x12\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x05plain";
    stream.write_all(connect).map_err(failed)?;
    let mut head = [0; 2];
    stream.read_exact(&mut head).map_err(failed)?;
    let mut rest = vec![0; usize::from(head[1])];
    stream.read_exact(&mut rest).map_err(failed)?;
    let (mut sent, mut answered, mut id) = (0, 0, 0_u16);
    let (mut out, mut input) = (Vec::new(), Vec::new());
    let (mut topic, mut payload) = (String::new(), String::new());
    let mut buffer = vec![0; 16 << 10];
    while answered < memory.readings.len() {
        out.clear();
        for reading in &memory.readings[sent..] {
            if sent - answered >= usize::from(INFLIGHT) || out.len() >= BODY_BYTES_MAX {
                break;
            }
            id = id.checked_add(1).unwrap_or(1);
            let Reading { time_ms, value, .. } = reading;
            let key = &memory.keys[reading.key];
            topic.clear();
            payload.clear();
            // Writing to a string cannot fail.
            let _ = write!(topic, "up/{key}");
            let _ = write!(
                payload,
                "{{\"key\":\"{key}\",\"time_ms\":{time_ms},\"value\":{value}}}"
            );
            packet::publish(
                MqttVersion::V5,
                id,
                topic.as_bytes(),
                payload.as_bytes(),
                &mut out,
            );
            sent += 1;
        }
        stream.write_all(&out).map_err(failed)?;
        let read = stream.read(&mut buffer).map_err(failed)?;
        if read == 0 {
            return Err(format!("{PLAIN}: the broker has closed the connection"));
        }
        input.extend_from_slice(&buffer[..read]);
        let mut at = 0;
        while let Ok(Some((_, bytes))) = packet::next(&input[at..], MqttVersion::V5) {
            at += bytes;
            answered += 1;
        }
        input.drain(..at);
    }
    Ok(begin.elapsed())
}

/// Sends bodies of the same size as ours, one after the other.
fn plain_http(server: SocketAddr, memory: &Memory) -> Result<Duration, String> {
    let failed = |error: std::io::Error| format!("{PLAIN}: {error}");
    let begin = Instant::now();
    let mut stream = TcpStream::connect(server).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let mut readings = memory.readings.iter().peekable();
    let mut body = String::new();
    while readings.peek().is_some() {
        body.clear();
        while body.len() < BODY_BYTES_MAX - 128
            && let Some(reading) = readings.next()
        {
            let Reading { time_ms, value, .. } = reading;
            let key = &memory.keys[reading.key];
            // Writing to a string cannot fail.
            let _ = writeln!(body, "keel,key={key} value={value} {time_ms}");
        }
        let length = body.len();
        let head = format!(
            "POST /write?precision=ms HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).map_err(failed)?;
        stream.write_all(body.as_bytes()).map_err(failed)?;
        let mut answer = [0; super::sink::ANSWER.len()];
        stream.read_exact(&mut answer).map_err(failed)?;
    }
    Ok(begin.elapsed())
}
