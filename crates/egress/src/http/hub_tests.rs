//! Tests of the hub with a source whose values the test sets, and readers that read as much as the test says.

use super::*;
use crate::http::query::Query;
use crate::http::reader::StreamRequest;
use crate::http::status::{State, Status, status_channel};
use db::{Error, Got, HistoryCursor, HistoryEntry, HistoryQuery, Key};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::task::Waker;

/// Keys `a0`, `b1`, `a2` …, each with a count of puts and a value.
#[derive(Default)]
struct Fake(Mutex<Vec<(u32, f64)>>);

impl Fake {
    fn with(objects: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![(1, 0.0); objects])))
    }

    fn put(&self, object: usize, value: f64) {
        let mut slots = self.0.lock().unwrap();
        slots[object].0 += 1;
        slots[object].1 = value;
    }

    fn grow(&self) {
        self.0.lock().unwrap().push((1, 7.0));
    }
}

fn name(object: u32) -> String {
    format!("{}{object}", ["a", "b"][object as usize % 2])
}

impl Source for Fake {
    fn objects(&self) -> u32 {
        self.0.lock().unwrap().len() as u32
    }
    fn key(&self, id: ObjectId) -> Key {
        // Only a table can create a key.
        let table = db::table::Table::new(1, 16, 0).unwrap();
        let at = table.insert(&name(id.0), 1, false).unwrap().0;
        table.key(at)
    }
    fn lookup(&self, _: &str) -> Option<ObjectId> {
        None
    }
    fn validity(&self, _: ObjectId) -> (u32, bool) {
        (1_000, true)
    }
    fn get(&self, id: ObjectId, value: &mut [u8]) -> Result<Got, Error> {
        let slots = self.0.lock().unwrap();
        value[..8].copy_from_slice(&slots[id.0 as usize].1.to_le_bytes());
        Ok(Got {
            value_bytes: 8,
            time: db::Time::from_ms(1_000 + i64::from(slots[id.0 as usize].0)),
            age_ms: 0,
            fresh: true,
            arrival_ns: 0,
            this_boot: true,
            wall_trusted: true,
            node_time: false,
            retained: false,
        })
    }
    fn puts(&self, id: ObjectId) -> u32 {
        self.0.lock().unwrap()[id.0 as usize].0
    }
    fn history(
        &self,
        _: &HistoryQuery,
        _: &mut HistoryCursor,
        _: &mut dyn FnMut(&HistoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<bool, Error> {
        Ok(false)
    }
    fn wall_ms(&self) -> i64 {
        5_000
    }
    fn check_pattern(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
    fn matches(&self, pattern: &str, key: &str) -> bool {
        key.starts_with(pattern)
    }
}

struct Running {
    source: Arc<Fake>,
    hub: Arc<Hub>,
    counters: Arc<Counters>,
    stop: latest::Sender<bool>,
}

fn start(objects: usize) -> Running {
    let source = Fake::with(objects);
    let counters = Arc::new(Counters::default());
    let hub = Arc::new(Hub::new(0xab, 250, Arc::clone(&counters)));
    let (stop, stopped) = latest::channel(false);
    let (asker, mut questions) = status_channel();
    tokio::spawn(async move {
        while let Some(question) = questions.next().await {
            question.answer(Status::new(State::Ok, json!({"state": "ok"})));
        }
    });
    let (works, looked) = (Arc::clone(&hub), Arc::clone(&source));
    tokio::spawn(async move { works.work(&*looked, &asker, stopped).await });
    Running {
        source,
        hub,
        counters,
        stop,
    }
}

fn join(running: &Running, wanted: StreamRequest, bytes_max: usize) -> Arc<Reader> {
    let reader = Reader::new(wanted, bytes_max);
    running.hub.join(&reader);
    reader
}

fn all() -> StreamRequest {
    StreamRequest {
        current: true,
        ..StreamRequest::default()
    }
}

/// Returns the messages that wait for a reader: event and data of each.
fn take(reader: &Reader) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    while let Ok(Some(message)) = reader.next(Waker::noop()) {
        let text = std::str::from_utf8(&message).unwrap();
        assert!(text.ends_with("\n\n"), "{text:?}");
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().to_owned()
        };
        let data = field("data: ");
        let data = serde_json::from_str(&data).unwrap_or(Value::Null);
        found.push((field("event: "), data));
    }
    found
}

/// Returns the values of these messages; later ones replace earlier ones.
fn values(messages: &[(String, Value)]) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    for (event, data) in messages {
        for (key, value) in data["values"].as_object().into_iter().flatten() {
            assert_eq!(event, "values");
            found.insert(key.clone(), value[0].as_f64().unwrap());
        }
    }
    found
}

async fn ticks(count: u64) {
    tokio::time::sleep(Duration::from_millis(250 * count + 1)).await;
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_reader_gets_present_values_then_changes_then_new_keys() {
    let running = start(3);
    let reader = join(&running, all(), 1 << 20);
    ticks(1).await;
    let first = take(&reader);
    assert_eq!(first[0].0, "hello");
    assert_eq!(
        first[0].1,
        json!({"version": 1, "period_ms": 250, "missed": null})
    );
    assert_eq!(values(&first).len(), 3);
    running.source.put(1, 1.5);
    running.source.put(1, 2.5);
    ticks(1).await;
    let next = take(&reader);
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].1["values"], json!({"b1": [2.5, 1003]}));
    assert_eq!(next[0].1["replaced"], 1);
    running.source.grow();
    ticks(1).await;
    assert_eq!(
        values(&take(&reader)),
        BTreeMap::from([("b3".to_owned(), 7.0)])
    );
    ticks(1).await;
    assert_eq!(take(&reader), []);
    running.stop.send_replace(true);
    ticks(1).await;
    assert_eq!(reader.next(Waker::noop()), Ok(None));
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn an_update_is_encoded_once_for_all_and_a_pattern_gets_its_own() {
    let running = start(4);
    let readers: Vec<_> = (0..5).map(|_| join(&running, all(), 1 << 20)).collect();
    let pattern = Some("a".to_owned());
    let some = join(
        &running,
        StreamRequest {
            pattern,
            ..StreamRequest::default()
        },
        1 << 20,
    );
    ticks(1).await;
    readers
        .iter()
        .chain([&some])
        .for_each(|reader| drop(take(reader)));
    let before = running.counters.figures().updates_encoded;
    for object in 0..4 {
        running.source.put(object, 9.0);
    }
    ticks(1).await;
    assert_eq!(running.counters.figures().updates_encoded - before, 4);
    for reader in &readers {
        assert_eq!(values(&take(reader)).len(), 4);
    }
    let found: Vec<String> = values(&take(&some)).into_keys().collect();
    assert_eq!(found, ["a0", "a2"]);
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_slow_reader_holds_one_queue_learns_its_misses_and_ends_with_the_latest() {
    let running = start(400);
    let bytes_max = 8 << 10;
    let (slow, quick) = (
        join(&running, all(), bytes_max),
        join(&running, all(), 1 << 20),
    );
    ticks(2).await;
    // A message of 400 values is larger than a queue; an empty queue takes it nevertheless.
    for round in 1..=20 {
        for object in 0..400 {
            running.source.put(object, f64::from(round));
        }
        ticks(1).await;
        assert!(
            slow.lock().bytes <= bytes_max + (bytes_max / 4 + 64),
            "{}",
            slow.lock().bytes
        );
        assert_eq!(values(&take(&quick)).len(), 400);
    }
    let dropped = running.counters.figures().updates_dropped;
    assert!(dropped > 400 * 10, "{dropped}");
    let mut found = BTreeMap::new();
    let mut missed = 0;
    for _ in 0..20 {
        let messages = take(&slow);
        for (event, data) in &messages {
            if event == "missed" {
                missed += data["updates"].as_u64().unwrap();
            }
        }
        found.append(&mut values(&messages));
        ticks(1).await;
    }
    assert_eq!(missed, dropped, "it is told of each");
    assert_eq!(found.len(), 400);
    assert!(found.values().all(|value| *value == 20.0), "{found:?}");
    // From now on it keeps up.
    running.source.put(7, 99.0);
    ticks(1).await;
    assert_eq!(
        values(&take(&slow)),
        BTreeMap::from([("b7".to_owned(), 99.0)])
    );
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn a_reader_that_comes_back_gets_the_updates_it_missed() {
    let running = start(2);
    let reader = join(&running, all(), 1 << 20);
    ticks(1).await;
    running.source.put(0, 1.0);
    ticks(1).await;
    let mut last = None;
    while let Ok(Some(message)) = reader.next(Waker::noop()) {
        let text = std::str::from_utf8(&message).unwrap().to_owned();
        let id = text.lines().find_map(|line| line.strip_prefix("id: "));
        last = id.map(|id| EventId::parse(id.as_bytes()).unwrap()).or(last);
    }
    running.hub.leave(&reader);
    ticks(2).await;
    // Without readers the hub looks at nothing, and still counts everything.
    for _ in 0..5 {
        running.source.put(1, 2.0);
    }
    let again = join(
        &running,
        StreamRequest {
            seen: last,
            ..all()
        },
        1 << 20,
    );
    ticks(1).await;
    let messages = take(&again);
    assert_eq!(messages[0].1["missed"], 5);
    assert_eq!(values(&messages)["b1"], 2.0);
    let other = Some(EventId { run: 1, updates: 0 });
    let stranger = join(
        &running,
        StreamRequest {
            seen: other,
            ..all()
        },
        1 << 20,
    );
    ticks(1).await;
    assert_eq!(take(&stranger)[0].1["missed"], Value::Null);
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn the_status_comes_once_a_second_and_silence_has_a_sign_of_life() {
    let running = start(1);
    let wanted = StreamRequest {
        status: true,
        ..StreamRequest::default()
    };
    let (told, silent) = (
        join(&running, wanted, 1 << 20),
        join(&running, StreamRequest::default(), 1 << 20),
    );
    ticks(60).await;
    let statuses = take(&told)
        .iter()
        .filter(|message| message.0 == "status")
        .count();
    assert!((14..=16).contains(&statuses), "{statuses}");
    let signs = take(&silent)
        .iter()
        .filter(|message| message.0.is_empty())
        .count();
    assert!((1..=2).contains(&signs), "{signs}");
    // A query with an unknown parameter is refused earlier.
    assert!(Query::parse("status=1").unwrap().finish().is_err());
}
