//! The handshake of a connection: both sides identify themselves, and the first time the manifest is transferred.

use super::failure::{Ended, ServerFailure};
use super::network::Transport;
use crate::device::counters::{Counts, Reason, add};
use crate::link::{Link, LinkControl, LinkReader, LinkWriter, connect};
use crate::wire::{Answer, FrameReader, MANIFEST_BYTES_MAX, PROTOCOL_VERSION, Request};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// Bandwidth is not measured across a gap in the received data longer than this.
const GAP_MAX: Duration = Duration::from_millis(3);

/// The minimum number of bytes, received without a gap, over which bandwidth is measured.
const MEASURED_BYTES_MIN: u64 = 64 << 10;

/// The minimum average rate of a manifest's transfer, in bytes per second: a slower server is given up.
const MANIFEST_BYTES_S_MIN: u64 = 16 << 10;

/// The timeout of a whole greeting, even with the longest manifest.
const GREETING_MAX: Duration = Duration::from_secs(15 * 60);

/// The messages received on a connection.
pub(crate) struct Incoming {
    reader: LinkReader,
    frames: FrameReader,
    last: Option<Instant>,
    together: u64,
    since: Option<Instant>,
}

impl Incoming {
    fn new(reader: LinkReader) -> Self {
        Self {
            reader,
            frames: FrameReader::for_answers(),
            last: None,
            together: 0,
            since: None,
        }
    }

    /// Returns the next message. `None`: within the read timeout nothing was received, or only a part.
    ///
    /// # Errors
    /// The connection has ended, or is no longer usable.
    pub fn next(&mut self, transport: &Transport) -> Result<Option<Answer>, Ended> {
        self.next_by(transport, None)
    }

    // The same, with a deadline: after it, this returns `None` even if data is still arriving.
    fn next_by(
        &mut self,
        transport: &Transport,
        deadline: Option<Instant>,
    ) -> Result<Option<Answer>, Ended> {
        loop {
            let frame = self
                .frames
                .next()
                .map_err(|_| Ended::Wrong(Reason::Frame))?;
            if let Some(frame) = frame {
                if frame.version != PROTOCOL_VERSION {
                    return Err(Ended::Wrong(Reason::Message));
                }
                let answer = Answer::decode(frame.kind, frame.version, frame.payload);
                return Ok(Some(answer.map_err(|_| Ended::Wrong(Reason::Message))?));
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
            match self.reader.read(self.frames.space()) {
                Ok(0) => return Err(Ended::Socket(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    self.frames.advance(count);
                    self.measure(count as u64, transport);
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(None),
                Err(error) => return Err(Ended::Socket(error)),
            }
        }
    }

    // Measures the bandwidth only over bytes that arrive without gaps.
    fn measure(&mut self, count: u64, transport: &Transport) {
        let now = Instant::now();
        let is_behind = self.last.is_some_and(|last| now - last < GAP_MAX);
        self.last = Some(now);
        let Some(since) = self.since.filter(|_| is_behind) else {
            self.since = Some(now);
            self.together = 0;
            return;
        };
        self.together += count;
        if self.together >= MEASURED_BYTES_MIN && now > since {
            transport.came(self.together, now - since);
            self.since = Some(now);
            self.together = 0;
        }
    }
}

/// A connection on which both sides have identified themselves.
pub(crate) struct Greeted {
    pub incoming: Incoming,
    pub writer: LinkWriter,
    pub control: LinkControl,
    pub version: u64,
    /// The signed manifest, if it was sent.
    pub signed: Option<Vec<u8>>,
}

/// Returns the deadline of a greeting that started at `begun`: `time`, plus the time that the received bytes of the
/// manifest may take. A server that sends single bytes cannot extend it.
fn greeting_deadline(begun: Instant, time: Duration, manifest_bytes: u64) -> Instant {
    let transfer =
        Duration::from_millis(manifest_bytes.saturating_mul(1000) / MANIFEST_BYTES_S_MIN);
    begun + (time + transfer).min(GREETING_MAX.max(time))
}

/// Connects and greets within `time`, plus the transfer time of a manifest. `version`: the one that is used already.
/// `held`: the hash of the signed manifest that is here. `on_connected` is called when there is a connection, before
/// the greeting.
///
/// # Errors
/// The connection could not be made or greeted.
pub(crate) fn greet(
    transport: &Transport,
    counts: &Counts,
    version: Option<u64>,
    held: Option<[u8; 32]>,
    time: Duration,
    on_connected: impl FnOnce(),
) -> Result<Greeted, Ended> {
    let result = match connect(&transport.link) {
        Ok(link) => {
            on_connected();
            let control = link.control.clone();
            let greeted = greet_on(link, transport, version, held, time);
            if greeted.is_err() {
                control.shutdown();
                transport.count_bytes(&control);
            }
            greeted
        }
        Err(error) => Err(Ended::Link(error)),
    };
    match &result {
        Ok(_) => add(&counts.connects, 1),
        Err(ended) => {
            let has_tls = transport.link.tls.is_some();
            transport.failed(ServerFailure::of(ended, has_tls, version));
            add(&counts.connects_failed, 1);
        }
    }
    result
}

fn greet_on(
    link: Link,
    transport: &Transport,
    version: Option<u64>,
    held: Option<[u8; 32]>,
    time: Duration,
) -> Result<Greeted, Ended> {
    let Link {
        reader,
        mut writer,
        control,
    } = link;
    let mut incoming = Incoming::new(reader);
    let mut hello = Vec::new();
    Request::Hello {
        protocol: PROTOCOL_VERSION,
        device: transport.device,
        version,
        manifest_held: held,
    }
    .encode(&mut hello);
    let begun = Instant::now();
    writer.write_all(&hello).map_err(Ended::Socket)?;
    let mut next = |manifest_bytes: u64| loop {
        let deadline = greeting_deadline(begun, time, manifest_bytes);
        if let Some(answer) = incoming.next_by(transport, Some(deadline))? {
            return Ok(answer);
        }
        if Instant::now() >= deadline || transport.is_stopped() {
            return Err(Ended::Socket(io::ErrorKind::TimedOut.into()));
        }
    };
    let (found, bytes) = match next(0)? {
        Answer::Welcome {
            protocol: PROTOCOL_VERSION,
            version,
            manifest_bytes,
        } => (version, manifest_bytes),
        Answer::Refused { reason, .. } => return Err(Ended::Refused(reason)),
        _ => return Err(Ended::Wrong(Reason::Greeting)),
    };
    transport.took(begun.elapsed());
    let is_expected = version.is_none_or(|version| version == found)
        && bytes <= MANIFEST_BYTES_MAX
        && (bytes == 0 || version.is_none())
        && (bytes > 0 || held.is_some());
    if !is_expected {
        return Err(Ended::Wrong(Reason::Greeting));
    }
    let mut signed = Vec::new();
    while (signed.len() as u64) < bytes {
        match next(signed.len() as u64)? {
            Answer::Manifest {
                offset,
                bytes: piece,
            } if offset == signed.len() as u64
                && !piece.is_empty()
                && offset + piece.len() as u64 <= bytes =>
            {
                signed.extend_from_slice(&piece);
            }
            _ => return Err(Ended::Wrong(Reason::Greeting)),
        }
    }
    Ok(Greeted {
        incoming,
        writer,
        control,
        version: found,
        signed: (bytes > 0).then_some(signed),
    })
}
