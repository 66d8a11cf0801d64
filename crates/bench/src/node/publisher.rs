//! The publisher: readings of 1,024 sensors to the broker with QoS 1, at a rate or as fast as they are acknowledged. It
//! runs in the bench's own process, whose processor time is charged to no system.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::wire::{self, Kind};
use crate::scratch::check_interrupted;

/// The number of sensors, each with its own topic.
pub(crate) const TOPICS: u32 = 1024;

/// Maximum number of publications that the broker has not acknowledged yet.
const WINDOW_MAX: u64 = 4000;

/// Maximum number of readings that the consumer has not acknowledged yet. Packet identifiers have 16 bits, and the
/// broker does not check whether one is still in use.
pub(crate) const BACKLOG_MAX: u64 = 48_000;

/// Publications per write.
const BATCH: u64 = 64;

/// Timeout for progress of the broker or the consumer.
const STALL_MAX: Duration = Duration::from_secs(30);

/// A connection that publishes.
pub(crate) struct Publisher {
    stream: TcpStream,
    topics: Vec<String>,
    sent: u64,
    acknowledged: u64,
    out: Vec<u8>,
    incoming: Vec<u8>,
}

/// Returns the topic of one sensor of a system. Each system has its own topics, all of equal length.
pub(crate) fn topic(prefix: &str, sensor: u32) -> String {
    format!(
        "{prefix}/storey{}/room{:02}/temp{sensor:04}",
        sensor / 256,
        sensor / 32
    )
}

impl Publisher {
    /// Connects; later publications go to topics below `prefix`.
    pub(crate) fn connect(broker: SocketAddr, prefix: &str) -> Result<Self, String> {
        let stream = TcpStream::connect(broker).map_err(describe)?;
        stream.set_nodelay(true).map_err(describe)?;
        stream.set_read_timeout(Some(STALL_MAX)).map_err(describe)?;
        let mut publisher = Self {
            stream,
            topics: (0..TOPICS).map(|sensor| topic(prefix, sensor)).collect(),
            sent: 0,
            acknowledged: 0,
            out: Vec::with_capacity(16 << 10),
            incoming: Vec::with_capacity(64 << 10),
        };
        wire::connect(&mut publisher.out, &format!("publisher-{prefix}"), true);
        publisher.write_out()?;
        let mut answer = [0; 4];
        publisher.stream.read_exact(&mut answer).map_err(describe)?;
        if answer != [0x20, 2, 0, 0] {
            return Err(format!("the broker refused the publisher: {answer:?}"));
        }
        Ok(publisher)
    }

    /// The number of publications so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Publishes `count` readings, as fast as `consumed` advances. `consumed` returns how many the consumer has
    /// acknowledged since this connection was made. Returns when the last reading has been sent.
    pub(crate) fn burst(
        &mut self,
        count: u64,
        consumed: &mut dyn FnMut() -> Result<u64, String>,
    ) -> Result<(), String> {
        let end = self.sent + count;
        let (mut seen, mut moved) = (consumed()?, Instant::now());
        while self.sent < end {
            check_interrupted()?;
            if self.sent + BATCH > seen + BACKLOG_MAX {
                let now = consumed()?;
                if now == seen {
                    if moved.elapsed() > STALL_MAX {
                        return Err(format!("the consumer stands still at {seen} readings"));
                    }
                    std::thread::sleep(Duration::from_millis(2));
                } else {
                    (seen, moved) = (now, Instant::now());
                }
                self.read_acknowledgements(false)?;
                continue;
            }
            for _ in 0..BATCH.min(end - self.sent) {
                self.add();
            }
            self.write_out()?;
            self.read_acknowledgements(self.sent - self.acknowledged >= WINDOW_MAX)?;
        }
        Ok(())
    }

    /// Publishes `rate` readings per second, evenly, for `time`. Returns their number.
    pub(crate) fn paced(&mut self, rate: u32, time: Duration) -> Result<u64, String> {
        let count = (f64::from(rate) * time.as_secs_f64()).round() as u64;
        let begin = Instant::now();
        // Above a rate of 1,000 per second the readings of one millisecond are sent together: a sleep cannot be
        // shorter.
        let together = u64::from(rate.div_ceil(1000));
        let mut done = 0;
        while done < count {
            check_interrupted()?;
            let due = begin + Duration::from_secs_f64(done as f64 / f64::from(rate));
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let now = together.min(count - done);
            for _ in 0..now {
                self.add();
            }
            done += now;
            self.write_out()?;
            self.read_acknowledgements(false)?;
        }
        let rest = (begin + time).saturating_duration_since(Instant::now());
        std::thread::sleep(rest);
        Ok(count)
    }

    /// Encodes and appends the next reading.
    fn add(&mut self) {
        let number = self.sent;
        // Visits each sensor once in 1,024 readings, in an order other than that of their names.
        let sensor = (number.wrapping_mul(7919) % u64::from(TOPICS)) as usize;
        let packet_id = (number % 65_535 + 1) as u16;
        let hundredths = 1800 + number.wrapping_mul(31) % 700;
        let mut payload = *b"00.00";
        for (place, divisor) in [(0, 1000), (1, 100), (3, 10), (4, 1)] {
            payload[place] = b'0' + (hundredths / divisor % 10) as u8;
        }
        wire::publish(&mut self.out, &self.topics[sensor], packet_id, &payload);
        self.sent += 1;
    }

    fn write_out(&mut self) -> Result<(), String> {
        self.stream.write_all(&self.out).map_err(describe)?;
        self.out.clear();
        Ok(())
    }

    /// Counts the acknowledgements of the broker. Waits for the first one if `wait`.
    fn read_acknowledgements(&mut self, wait: bool) -> Result<(), String> {
        let mut chunk = [0; 16 << 10];
        self.stream.set_nonblocking(!wait).map_err(describe)?;
        let read = self.stream.read(&mut chunk);
        self.stream.set_nonblocking(false).map_err(describe)?;
        match read {
            Ok(0) => return Err("the broker closed the publisher's connection".to_owned()),
            Ok(bytes) => self.incoming.extend_from_slice(&chunk[..bytes]),
            Err(error) if error.kind() == ErrorKind::WouldBlock && !wait => return Ok(()),
            Err(error) => return Err(describe(error)),
        }
        let mut taken = 0;
        while let Some((kind, _, bytes)) = wire::packet(&self.incoming[taken..]) {
            self.acknowledged += u64::from(kind == Kind::PubAck);
            taken += bytes;
        }
        self.incoming.drain(..taken);
        Ok(())
    }
}

/// Returns the number of publications that the broker still holds for the session of `client_id`, which no client uses
/// any more. These are what the broker sends again within half a second to the next client of the session.
pub(crate) fn left_in_session(broker: SocketAddr, client_id: &str) -> Result<u64, String> {
    let mut stream = TcpStream::connect(broker).map_err(describe)?;
    let mut out = Vec::new();
    wire::connect(&mut out, client_id, false);
    stream.write_all(&out).map_err(describe)?;
    stream
        .set_read_timeout(Some(Duration::from_millis(500)))
        .map_err(describe)?;
    let (mut incoming, mut left) = (Vec::new(), 0);
    let mut chunk = [0; 16 << 10];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return Err("the broker refused to say what a session still holds".to_owned()),
            Ok(bytes) => incoming.extend_from_slice(&chunk[..bytes]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(left);
            }
            Err(error) => return Err(describe(error)),
        }
        let mut taken = 0;
        while let Some((kind, body, bytes)) = wire::packet(&incoming[taken..]) {
            match kind {
                // The lowest bit of the first byte says whether the broker still had the session.
                Kind::ConnAck if body.first() != Some(&1) => {
                    return Err(format!("the broker has no session of {client_id}"));
                }
                Kind::Publish => left += 1,
                _ => {}
            }
            taken += bytes;
        }
        incoming.drain(..taken);
    }
}

fn describe(error: std::io::Error) -> String {
    format!("publisher: {error}")
}
