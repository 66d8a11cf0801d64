//! Connections of a real listener, and their limits.

use super::*;
use crate::http::options::HISTORY_WAITING_MAX;
use crate::http::options::WriteLimits;
use crate::http::status::status_channel;
use crate::http::write_queue::{Taken, Writes, Written, write_channel};
use client::{ask, head, is_whole, post};
use db::value::Value;
use db::{Error, Got, HistoryCursor, HistoryEntry, HistoryQuery, Key, ObjectId};
use std::ops::ControlFlow;
use tokio::io::AsyncReadExt;
use tokio::task::{JoinHandle, LocalSet};

/// Readings of a slice: of four keys, one each millisecond. No buffer of the kernel holds the answer.
const SLICE_READINGS: i64 = 20_000;
const POINTS: &str = "/api/v1/history?key=a&key=b&key=c&key=d&from_ms=0&to_ms=5000&points=5000";
const READINGS: &str = "/api/v1/readings?key=a&from_ms=0&to_ms=100000&limit=50000";

/// The keys `a` to `d`, with as much history as is asked for. A slice waits for the gate.
#[derive(Default)]
struct Plenty {
    gate: tokio::sync::Mutex<()>,
}

impl Source for Plenty {
    fn objects(&self) -> u32 {
        0
    }
    fn key(&self, _: ObjectId) -> Key {
        unreachable!("there are no lists here")
    }
    fn lookup(&self, key: &str) -> Option<ObjectId> {
        let at = ["a", "b", "c", "d"].iter().position(|name| *name == key)?;
        Some(ObjectId(at as u32))
    }
    fn validity(&self, _: ObjectId) -> (u32, bool) {
        (1_000, true)
    }
    fn get(&self, _: ObjectId, _: &mut [u8]) -> Result<Got, Error> {
        unreachable!("there are no values here")
    }
    fn puts(&self, _: ObjectId) -> u32 {
        0
    }
    fn history(
        &self,
        query: &HistoryQuery,
        _: &mut HistoryCursor,
        visit: &mut dyn FnMut(&HistoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<bool, Error> {
        let _gate = self.gate.blocking_lock();
        for at in 0..SLICE_READINGS {
            let mut value = [0; 16];
            let bytes = Value::Float(at as f64 / 7.0).encode(&mut value)?;
            let entry = HistoryEntry {
                id: ObjectId((at % 4) as u32),
                time: db::Time::from_ms(at / 4),
                recorded: db::Time::from_ms(at / 4),
                node_time: false,
                wall_trusted: true,
                time_corrected: false,
                arrival_us: 0,
                boot_id: [0; 16],
                lsn: at as u64,
                value: &value[..bytes],
            };
            if visit(&entry).is_break() {
                return Ok(false);
            }
        }
        Ok(query.to > db::Time::from_ms(SLICE_READINGS / 4))
    }
    fn wall_ms(&self) -> i64 {
        5_000
    }
    fn check_pattern(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
    fn matches(&self, _: &str, _: &str) -> bool {
        true
    }
}

struct Node {
    source: Arc<Plenty>,
    running: Running,
    serves: JoinHandle<()>,
    stop: latest::Sender<bool>,
}

fn start(connections_max: u32) -> Node {
    let mut options = HttpOptions::new("127.0.0.1:0".parse().unwrap());
    options.connections_max = connections_max;
    start_with(options).0
}

fn start_with(options: HttpOptions) -> (Node, Writes) {
    let (stop, stopped) = latest::channel(false);
    let (asker, _) = status_channel();
    let source = Arc::new(Plenty::default());
    let bound = bind(options).unwrap();
    let (writer, writes) = write_channel();
    let (running, serves) = bound
        .serve(Arc::clone(&source) as _, asker, writer, 1, stopped)
        .unwrap();
    let node = Node {
        source,
        running,
        serves: tokio::task::spawn_local(serves),
        stop,
    };
    (node, writes)
}

/// Options of a node that takes one body at a time.
fn writing() -> HttpOptions {
    let mut options = HttpOptions::new("127.0.0.1:0".parse().unwrap());
    options.write = Some(WriteLimits {
        writes_max: 1,
        body_bytes_max: 1000,
    });
    options
}

fn start_writing() -> (Node, Writes) {
    start_with(writing())
}

/// The head of a request with a body of six bytes, and the first half of it.
const HALF: &[u8] =
    b"POST /api/v2/write HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 6\r\n\r\na v";

impl Node {
    /// Connects with a small receive buffer.
    async fn connect(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(self.running.address).await.unwrap()
    }

    async fn ask(&self, path: &str) -> TcpStream {
        let mut stream = self.connect().await;
        ask(&mut stream, path).await;
        stream
    }

    fn figures(&self) -> crate::http::HttpFigures {
        self.running.counters.figures()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&crate::http::HttpFigures) -> bool) {
        let waits = async {
            while !is_so(&self.figures()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), waits).await;
        waited.unwrap_or_else(|_| panic!("no {what}: {:?}", self.figures()));
    }
}

#[test]
fn the_answer_to_a_surplus_client_is_json_of_one_line() {
    assert!(!NO_PLACE.contains('\n'));
    serde_json::from_str::<serde_json::Value>(NO_PLACE).unwrap();
}

#[tokio::test]
async fn an_answer_that_a_slow_client_takes_makes_no_room_for_silent_connections() {
    let test = async {
        let node = start(2);
        let mut slow = node.ask(POINTS).await;
        let head = head(&mut slow).await;
        let mut silent = Vec::new();
        for _ in 0..4 {
            silent.push(node.connect().await);
        }
        node.until("room", |figures| figures.connections_evicted == 3)
            .await;
        assert!(is_whole(&mut slow, &head).await, "{head}");
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn an_answer_that_a_slow_client_takes_is_not_cut_by_a_stop() {
    let test = async {
        let node = start(2);
        let mut slow = node.ask(POINTS).await;
        let head = head(&mut slow).await;
        let mut silent = node.connect().await;
        node.until("connection", |figures| figures.connections == 2)
            .await;
        node.stop.send_replace(true);
        assert!(silent.read_u8().await.is_err());
        assert!(is_whole(&mut slow, &head).await, "{head}");
        node.serves.await.unwrap();
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_connection_is_kept_between_requests_and_its_end_is_no_broken_head() {
    let test = async {
        let node = start(2);
        let mut stream = node.connect().await;
        for _ in 0..3 {
            // In two pieces: the timer of this head must not run on into the next one.
            stream.write_all(b"GET /nothing ").await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            stream
                .write_all(b"HTTP/1.1\r\nhost: a\r\n\r\n")
                .await
                .unwrap();
            let head = head(&mut stream).await;
            assert!(is_whole(&mut stream, &head).await, "{head}");
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(HEAD_SECONDS_MAX * 4)).await;
            tokio::time::resume();
        }
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(IDLE_SECONDS_MAX)).await;
        tokio::time::resume();
        assert!(stream.read_u8().await.is_err());
        // Neither is the end of a connection on which nothing was asked.
        drop(node.connect().await);
        node.until("end", |figures| {
            figures.connections_total == 2 && figures.connections == 0
        })
        .await;
        let figures = node.figures();
        assert_eq!((figures.connections_idle, figures.heads_broken), (1, 0));
        assert_eq!(figures.requests, 3);
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_connection_is_kept_after_a_body_which_is_no_head() {
    let test = async {
        let (node, mut writes) = start_writing();
        tokio::task::spawn_local(async move {
            while let Some(mut write) = writes.next().await {
                assert_eq!(write.take_lines(), b"a v=1\n");
                write.answer(Written::Durable(Taken::default()));
            }
        });
        let mut stream = node.connect().await;
        for _ in 0..3 {
            stream.write_all(HALF).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
            stream.write_all(b"=1\n").await.unwrap();
            let head = head(&mut stream).await;
            assert!(head.starts_with("HTTP/1.1 204"), "{head}");
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(HEAD_SECONDS_MAX * 4)).await;
            tokio::time::resume();
        }
        let figures = node.figures();
        assert_eq!((figures.writes, figures.write_bytes), (3, 18));
        assert_eq!((figures.heads_broken, figures.connections_total), (0, 1));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_body_has_a_place_until_its_lines_are_finished() {
    let test = async {
        let (node, mut writes) = start_writing();
        let mut slow = node.connect().await;
        slow.write_all(HALF).await.unwrap();
        node.until("body", |figures| figures.writes_active == 1)
            .await;
        // Clients of version 1 would drop the lines at 429.
        for (path, status) in [("/api/v2/write", "429"), ("/write", "503")] {
            let mut other = node.connect().await;
            post(&mut other, path, "", b"a v=1\n").await;
            let head = head(&mut other).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
            assert!(head.contains("retry-after: 1\r\n"), "{head}");
        }
        slow.write_all(b"=1\n").await.unwrap();
        let mut write = writes.next().await.unwrap();
        // Its client leaves, which the owner of the intake is told; the place stays taken until it lets go.
        drop(slow);
        write.gone().await;
        assert_eq!(node.figures().writes_active, 1);
        drop(write);
        let figures = node.figures();
        assert_eq!((figures.writes_active, figures.writes), (0, 0));
        assert_eq!(figures.refused["writes"], 2);
        assert_eq!(figures.writes_turned_away, 2);
        // Without an answer there is none of success.
        let mut last = node.connect().await;
        last.write_all(HALF).await.unwrap();
        last.write_all(b"=1\n").await.unwrap();
        drop(writes.next().await.unwrap());
        let head = head(&mut last).await;
        assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_refused_body_is_read_to_its_end_so_that_its_sender_sees_the_answer() {
    let test = async {
        let (node, _writes) = start_writing();
        // More than the buffers of the kernel hold.
        let body = vec![b'x'; 24 << 20];
        for (path, headers, status) in [
            ("/write", "content-encoding: zstd\r\n", "415"),
            ("/write?stranger=1", "", "400"),
            ("/write", "", "413"),
        ] {
            let mut stream = node.connect().await;
            post(&mut stream, path, headers, &body).await;
            let head = head(&mut stream).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn shed_readings_are_reported_with_success() {
    let test = async {
        let (node, mut writes) = start_writing();
        tokio::task::spawn_local(async move {
            for shed in [0, 3] {
                let write = writes.next().await.unwrap();
                let taken = Taken {
                    shed,
                    ..Taken::default()
                };
                write.answer(Written::Durable(taken));
            }
        });
        let mut stream = node.connect().await;
        for shed in [None, Some("3")] {
            post(&mut stream, "/api/v2/write", "", b"a v=1\n").await;
            let head = head(&mut stream).await;
            assert!(head.starts_with("HTTP/1.1 204 "), "{head}");
            let told = head.split("keel-shed: ").nth(1);
            let told = told.and_then(|rest| rest.split("\r\n").next());
            assert_eq!(told, shed, "{head}");
        }
        let figures = node.figures();
        assert_eq!((figures.writes, figures.write_shed), (2, 3));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn clients_that_may_not_write_turn_no_writer_away() {
    let test = async {
        let mut options = writing();
        options.requests_per_second_max = 1;
        options.tokens = crate::http::Tokens::parse("agent 0123456789abcdef write").unwrap();
        let (node, mut writes) = start_with(options);
        tokio::task::spawn_local(async move {
            while let Some(write) = writes.next().await {
                write.answer(Written::Durable(Taken::default()));
            }
        });
        loop {
            let mut stream = node.connect().await;
            post(&mut stream, "/api/v2/write", "", b"a v=1\n").await;
            let head = head(&mut stream).await;
            if head.starts_with("HTTP/1.1 429 ") {
                break;
            }
            assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
        }
        // Neither does a page, whose GET has no origin, in a browser that keeps credentials.
        loop {
            let mut page = node.connect().await;
            let get = "GET /write HTTP/1.1\r\nhost: 127.0.0.1\r\n\
                       authorization: Token 0123456789abcdef\r\n\r\n";
            page.write_all(get.as_bytes()).await.unwrap();
            let head = head(&mut page).await;
            if head.starts_with("HTTP/1.1 503 ") {
                break;
            }
            assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
        }
        assert_eq!(node.figures().writes_turned_away, 0);
        let mut writer = node.connect().await;
        let token = "authorization: Token 0123456789abcdef\r\n";
        post(&mut writer, "/api/v2/write", token, b"a v=1\n").await;
        let first = head(&mut writer).await;
        assert!(first.starts_with("HTTP/1.1 204 "), "{first}");
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn slow_downloads_of_readings_leave_history_to_others() {
    let test = async {
        let node = start(64);
        let mut slow = Vec::new();
        for _ in 0..HISTORY_WAITING_MAX * 2 {
            let mut stream = node.ask(READINGS).await;
            // The head comes before the first slice, the next bytes are of it.
            assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
            stream.read_u8().await.unwrap();
            slow.push(stream);
        }
        let mut other = node.ask(POINTS).await;
        let head = head(&mut other).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(is_whole(&mut other, &head).await);
        // A download waits for its further slices, and comes to its end.
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        while !bytes.ends_with(b"\r\n0\r\n\r\n") {
            let count = slow[0].read(&mut buffer).await.unwrap();
            assert!(count > 0, "the download is cut");
            bytes.extend_from_slice(&buffer[..count]);
        }
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains("\"end\":true,\"sent\":50000,"));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_query_without_a_place_for_history_is_told_when_to_come_back() {
    let test = async {
        let node = start(64);
        let source = Arc::clone(&node.source);
        let gate = source.gate.lock().await;
        let mut waits = Vec::new();
        for _ in 0..HISTORY_WAITING_MAX {
            let mut stream = node.ask(READINGS).await;
            assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
            waits.push(stream);
        }
        for path in [READINGS, POINTS] {
            let mut refused = node.ask(path).await;
            let head = head(&mut refused).await;
            assert!(head.starts_with("HTTP/1.1 503"), "{head}");
            assert!(head.contains("retry-after: 1\r\n"), "{head}");
        }
        assert_eq!(node.figures().refused["history"], 2);
        drop(gate);
        // Those that wait get their turn.
        for stream in &mut waits {
            stream.read_u8().await.unwrap();
        }
    };
    LocalSet::new().run_until(test).await;
}

#[path = "listener_client.rs"]
mod client;
#[path = "listener_tls_tests.rs"]
mod secure;
