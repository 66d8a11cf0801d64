//! Forwarding over HTTP through a socket, with a database on the simulated device.

use crate::common::{
    Db, Received, batched, clock, declare, format, forwarder, open, options, put, reopen,
};
use authority::{Authority, Folder, Purpose};
use base::clock::{Clock, SystemClock};
use base::sim::SimClock;
use egress::forward::{Begin, Forwarding, Prepared, Target, UpstreamOptions};
use front::Front;
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;
use tls::{Client, ClientOptions, Identity, ServerOptions};

#[path = "../../tls/tests/authority.rs"]
mod authority;
#[path = "../../tls/tests/front.rs"]
mod front;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that keeps the bodies of requests, and answers only as many requests as it may.
#[derive(Clone, Default)]
struct Server(Arc<(Mutex<Seen>, Condvar)>);

#[derive(Default)]
struct Seen {
    bodies: Vec<Vec<u8>>,
    answers_max: usize,
}

impl Server {
    /// Starts a server. Returns it with the options of an upstream at it.
    fn start(answers_max: usize, window_readings_max: u32) -> (Self, UpstreamOptions) {
        let server = Self::default();
        server.answer(answers_max);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let theirs = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = theirs.clone();
                // A sender whose connection fails makes a new one.
                std::thread::spawn(move || server.serve(&stream).ok());
            }
        });
        let options = UpstreamOptions {
            target: Target::Http {
                address,
                host: "upstream".into(),
                path: "/write".into(),
                authorization: None,
            },
            begin: Begin::Oldest,
            window_readings_max,
            ..batched()
        };
        (server, options)
    }

    fn serve(&self, stream: &TcpStream) -> Result<()> {
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        loop {
            let (mut line, mut length) = (String::new(), 0);
            while line != "\r\n" {
                line.clear();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                let lower = line.to_ascii_lowercase();
                if let Some(value) = lower.strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let mut seen = self.seen();
            seen.bodies.push(body);
            let number = seen.bodies.len();
            self.0.1.notify_all();
            let waited = self.0.1.wait_while(seen, |seen| seen.answers_max < number);
            drop(waited.expect("no panic"));
            writer.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.0.lock().expect("no panic")
    }

    /// Lets it answer this many requests.
    fn answer(&self, answers_max: usize) {
        self.seen().answers_max = answers_max;
        self.0.1.notify_all();
    }

    /// Waits for this many bodies, and returns them.
    fn bodies(&self, count: usize) -> Vec<Vec<u8>> {
        let is_missing = |seen: &mut Seen| seen.bodies.len() < count;
        let waited = self
            .0
            .1
            .wait_timeout_while(self.seen(), PATIENCE, is_missing);
        let (seen, timeout) = waited.expect("no panic");
        assert!(!timeout.timed_out(), "{} of {count}", seen.bodies.len());
        seen.bodies[..count].to_vec()
    }
}

/// A database with readings from 0 to before this number.
fn filled(clock: &SimClock, readings: u64) -> Arc<Db> {
    let db = open(format(2048, 1), clock, options());
    let ids = declare(&db);
    for n in 0..readings {
        put(&db, &ids, (n % 4) as usize, n, 1_700_000_000_000);
        if n % 50 == 49 {
            db.pump().expect("committed");
        }
    }
    db.pump().expect("committed");
    db
}

fn start(db: &Arc<Db>, clock: &SimClock, options: UpstreamOptions) -> Forwarding {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let (prepared, failed) = Prepared::new(Arc::clone(db), &clock, vec![options]);
    assert!(failed.is_empty(), "{failed:?}");
    prepared.start().expect("started")
}

/// The clock stands still, so the next regular update of the figures never comes.
#[test]
fn the_last_acknowledgement_is_shown_at_once() {
    const READINGS: u64 = 100;
    let clock = clock();
    let db = filled(&clock, READINGS);
    let (server, options) = Server::start(usize::MAX, 1_000);
    let forwarding = start(&db, &clock, options);
    let acknowledged = || {
        forwarding.upstreams()[0]
            .state
            .figures()
            .counters
            .acknowledged
    };
    let is_waiting = |_: &mut Seen| acknowledged() < READINGS;
    let mut tries = 0;
    while acknowledged() < READINGS {
        // Nothing notifies the condition: this is a pause.
        let pause = Duration::from_millis(5);
        let waited = server
            .0
            .1
            .wait_timeout_while(server.seen(), pause, is_waiting);
        drop(waited.expect("no panic"));
        tries += 1;
        assert!(tries < 12_000, "{} of {READINGS} are shown", acknowledged());
    }
}

#[test]
fn a_request_that_waits_for_its_answer_is_shown() {
    let clock = clock();
    let db = filled(&clock, 10);
    let (server, options) = Server::start(0, 1_000);
    let forwarding = start(&db, &clock, options);
    server.bodies(1);
    let in_flight = || forwarding.upstreams()[0].state.figures().in_flight;
    let is_hidden = |_: &mut Seen| in_flight() == 0;
    for tries in 0.. {
        clock.advance_ns(200_000_000);
        // Nothing notifies the condition: this is a pause.
        let pause = Duration::from_millis(5);
        let waited = server
            .0
            .1
            .wait_timeout_while(server.seen(), pause, is_hidden);
        drop(waited.expect("no panic"));
        if in_flight() > 0 {
            break;
        }
        assert!(tries < 12_000, "nothing is shown in flight");
    }
    server.answer(usize::MAX);
}

/// The node reads ahead and writes its cursor while a request is in flight, and loses power then.
#[test]
fn a_crash_with_a_request_in_flight_repeats_one_window_at_most_and_skips_nothing() {
    const READINGS: u64 = 1_000;
    const WINDOW: u32 = 200;
    for answered in [0, 1, 4, 8, 13, 20] {
        let clock = clock();
        let db = filled(&clock, READINGS);
        let (server, wanted) = Server::start(answered, WINDOW);
        let forwarding = start(&db, &clock, wanted.clone());
        let bodies = server.bodies(answered + 1);
        let cut = db.with_store(|store| store.device().crash_image_random(answered as u64));
        let cut = cut.expect("it is open");
        server.answer(usize::MAX);
        drop(forwarding);
        // The body in flight has arrived, or is lost.
        for arrived in [answered, answered + 1] {
            let mut received = Received::default();
            bodies[..arrived]
                .iter()
                .for_each(|body| received.take(body));
            let before = received.numbers();
            let db = open(reopen(cut.clone()), &clock, options());
            let mut one = forwarder(&db, &clock, wanted.clone());
            assert!(!one.was_lost());
            let mut again = Received::default();
            while one.engine.backlog(db.durable_end()) > 0 {
                one.pull().expect("read");
                one.engine.close_now();
                one.write_cursor_if_due(false).expect("written");
                if let Some(unit) = one.engine.send() {
                    again.take(unit.payload);
                    let token = unit.token;
                    assert!(one.engine.acknowledge(token));
                }
            }
            let twice = again.numbers().intersection(&before).count();
            assert!(twice <= WINDOW as usize, "{answered}: {twice} came twice");
            assert!(one.engine.counters().sent_twice >= twice as u64);
            received.all.append(&mut again.all);
            received.assert_in_order();
            let all = before.union(&again.numbers()).count() as u64;
            assert_eq!(all, READINGS, "{answered} answered, {arrived} arrived");
        }
    }
}

/// The authority's file is wrong at first, and is mended while forwarding tries.
#[test]
fn readings_go_to_a_server_over_tls_once_it_is_trusted() {
    const READINGS: u64 = 100;
    let folder = Folder::new("forward");
    let (authority, stranger) = (Authority::new("right"), Authority::new("wrong"));
    let issued = authority.issue(&["127.0.0.1"], Purpose::Server);
    let (certificate_file, key_file) = issued.write(&folder, "server");
    let given = ServerOptions {
        identity: Identity {
            certificate_file,
            key_file,
        },
        client_ca_file: None,
    };
    let clock = clock();
    let db = filled(&clock, READINGS);
    let (server, options) = Server::start(usize::MAX, 1_000);
    let front = Front::start(given, options.address().parse().expect("an address"));
    let trusts = ClientOptions {
        ca_file: Some(folder.write("ca.pem", &stranger.certificate)),
        ..ClientOptions::default()
    };
    let options = UpstreamOptions {
        target: Target::Http {
            address: front.address.to_string(),
            host: "upstream".into(),
            path: "/write".into(),
            authorization: None,
        },
        tls: Some(Client::new(trusts, Arc::new(SystemClock::new()))),
        backoff_ms_min: 1,
        backoff_ms_max: 20,
        ..options
    };
    let forwarding = start(&db, &clock, options);
    let why = || forwarding.upstreams()[0].state.figures().last_error;
    let mut tries = 0;
    while why().is_none() {
        std::thread::sleep(Duration::from_millis(5));
        tries += 1;
        assert!(tries < 12_000, "no reason is shown");
    }
    let why = why().expect("a reason");
    let wrong = "its certificate is not signed by an authority in ";
    assert!(why.contains(wrong) && why.contains("ca.pem; "), "{why}");
    assert!(server.seen().bodies.is_empty());
    folder.write("ca.pem", &authority.certificate);
    assert!(!server.bodies(1)[0].is_empty());
}
