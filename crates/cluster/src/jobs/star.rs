//! Ranks of one machine: every other rank has one stream to rank 0, and every operation goes through rank 0. Between
//! threads the streams are socket pairs; between processes rank 0 listens on a socket in a folder of the job.
//!
//! The end of its stream shows that a rank ended silently. Rank 0 then tells the others which one it was, so that all
//! of them name the same rank. A hanging rank is detected by a timeout: of the stream here, of the starting program for
//! processes.

use super::communicator::{Communicator, Failure, LENGTH_MAX, RANKS_MAX, check_parts};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of values that are converted to bytes at once.
const CHUNK: usize = 8_192;

/// Size of a failure's longest text, in bytes.
const WHY_BYTES_MAX: usize = 1_024;

/// Retry interval for connecting to rank 0.
const RETRY: Duration = Duration::from_millis(10);

/// Bytes before each payload: kind, number of the operation, length.
const HEAD_BYTES: usize = 9;

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Hello = 1,
    Scatter = 2,
    Gather = 3,
    Broadcast = 4,
    Sum = 5,
    Max = 6,
    /// Instead of an expected message: the job is over, with the reason.
    Over = 7,
}

/// One rank of a star.
#[derive(Debug)]
pub struct Star {
    rank: usize,
    size: usize,
    /// On rank 0 the streams of ranks 1, 2, …; on the others the stream to rank 0.
    streams: Vec<UnixStream>,
    /// Number of operations so far: both ends of a stream count, so that ranks out of step are detected.
    operation: u32,
    /// Number of bytes of payload that this rank has sent.
    sent_bytes: u64,
    /// The failure that ended the job.
    over: Option<Failure>,
}

/// Creates the ranks of one process, in order. A read or write that takes longer than `patience` is a failure.
///
/// # Errors
/// No rank, too many, or no sockets left.
pub fn star(size: usize, patience: Option<Duration>) -> Result<Vec<Star>, Failure> {
    check_size(size)?;
    let none = |error: std::io::Error| failure(None, format!("no sockets for ranks: {error}"));
    let mut inner = Vec::with_capacity(size - 1);
    let mut ranks = vec![];
    for rank in 1..size {
        let (near, far) = UnixStream::pair().map_err(none)?;
        set_patience(&near, patience).map_err(none)?;
        set_patience(&far, patience).map_err(none)?;
        inner.push(near);
        ranks.push(Star::new(rank, size, vec![far]));
    }
    ranks.insert(0, Star::new(0, size, inner));
    Ok(ranks)
}

fn failure(rank: Option<usize>, why: impl Into<String>) -> Failure {
    Failure {
        rank,
        why: why.into(),
    }
}

fn check_size(size: usize) -> Result<(), Failure> {
    if (1..=RANKS_MAX).contains(&size) {
        Ok(())
    } else {
        let why = format!("{size} ranks, must be 1 to {RANKS_MAX}");
        Err(failure(None, why))
    }
}

fn set_patience(stream: &UnixStream, patience: Option<Duration>) -> std::io::Result<()> {
    stream.set_read_timeout(patience)?;
    stream.set_write_timeout(patience)
}

impl Star {
    fn new(rank: usize, size: usize, streams: Vec<UnixStream>) -> Self {
        Self {
            rank,
            size,
            streams,
            operation: 0,
            sent_bytes: 0,
            over: None,
        }
    }

    /// Connects a rank that is a process: rank 0 listens at `socket`, which must not exist yet, the others connect to
    /// it. Waits at most `patience` until all have connected, and then for each message.
    ///
    /// # Errors
    /// Some ranks have not connected in time, or the socket cannot be created.
    pub fn meet(
        socket: &Path,
        rank: usize,
        size: usize,
        patience: Duration,
    ) -> Result<Self, Failure> {
        check_size(size)?;
        if rank >= size {
            return Err(failure(None, format!("rank {rank} of {size} ranks")));
        }
        let until = Instant::now() + patience;
        let wrong = |error: std::io::Error| failure(None, format!("{}: {error}", socket.display()));
        let streams = if rank == 0 {
            let listener = UnixListener::bind(socket).map_err(wrong)?;
            listener.set_nonblocking(true).map_err(wrong)?;
            take_in(&listener, size, patience, until)?
        } else {
            let stream = loop {
                match UnixStream::connect(socket) {
                    Ok(stream) => break stream,
                    Err(_) if Instant::now() < until => std::thread::sleep(RETRY),
                    Err(error) => return Err(Failure::of(0, format!("does not answer: {error}"))),
                }
            };
            set_patience(&stream, Some(patience)).map_err(wrong)?;
            vec![stream]
        };
        let mut star = Self::new(rank, size, streams);
        if rank > 0 {
            star.send(0, Kind::Hello, &[rank as u64])?;
        }
        Ok(star)
    }

    /// Returns the number of bytes of payload that this rank has sent.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Executes one operation, and stores its failure: after a failure all further operations return the same one.
    fn step<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if let Some(over) = &self.over {
            return Err(over.clone());
        }
        self.operation = self.operation.wrapping_add(1);
        work(self).inspect_err(|failure| {
            self.over = Some(failure.clone());
            if self.rank == 0 {
                self.tell(failure);
            }
        })
    }

    /// Rank 0 tells all others why the job is over, as far as they still read.
    fn tell(&mut self, failure: &Failure) {
        let why = failure.why.as_bytes();
        let why = &why[..why.len().min(WHY_BYTES_MAX)];
        let rank = failure.rank.map_or(u32::MAX, |rank| rank as u32);
        let mut message = head(Kind::Over, rank, why.len() as u32).to_vec();
        message.extend_from_slice(why);
        for stream in &mut self.streams {
            // A rank that does not read now must not delay the others.
            stream.set_nonblocking(true).ok();
            stream.write_all(&message).ok();
        }
    }

    /// Returns the stream of a rank, on rank 0; the stream to rank 0, elsewhere.
    fn stream(&mut self, rank: usize) -> &mut UnixStream {
        let at = if self.rank == 0 { rank - 1 } else { 0 };
        &mut self.streams[at]
    }

    fn send(&mut self, to: usize, kind: Kind, words: &[u64]) -> Result<(), Failure> {
        if words.len() > LENGTH_MAX {
            let why = format!("sends {} numbers, at most {LENGTH_MAX}", words.len());
            return Err(Failure::of(self.rank, why));
        }
        let operation = self.operation;
        self.sent_bytes += 8 * words.len() as u64;
        let stream = self.stream(to);
        let mut write = |bytes: &[u8]| stream.write_all(bytes);
        let done = write(&head(kind, operation, words.len() as u32)).and_then(|()| {
            words.chunks(CHUNK).try_for_each(|chunk| {
                let bytes: Vec<u8> = chunk.iter().flat_map(|word| word.to_le_bytes()).collect();
                write(&bytes)
            })
        });
        match done {
            Ok(()) => Ok(()),
            // Its last message may still be readable.
            Err(error) => Err(self.over(to).unwrap_or_else(|| lost(to, &error))),
        }
    }

    /// Returns the failure that a rank has sent before it stopped reading.
    fn over(&mut self, from: usize) -> Option<Failure> {
        let stream = self.stream(from);
        stream.set_nonblocking(true).ok()?;
        let mut first = [0; HEAD_BYTES];
        stream.read_exact(&mut first).ok()?;
        (first[0] == Kind::Over as u8).then(|| last_words(stream, &first))
    }

    fn receive(&mut self, from: usize, kind: Kind) -> Result<Vec<u64>, Failure> {
        let operation = self.operation;
        let stream = self.stream(from);
        let mut first = [0; HEAD_BYTES];
        let read = stream.read_exact(&mut first);
        read.map_err(|error| lost(from, &error))?;
        if first[0] == Kind::Over as u8 {
            return Err(last_words(stream, &first));
        }
        let (number, length) = number_and_length(&first);
        if first[0] != kind as u8 || number != operation || length > LENGTH_MAX {
            let why = format!(
                "is out of step: sends kind {}, operation {number}, {length} numbers; expected was \
                 {kind:?}, {operation}",
                first[0]
            );
            return Err(Failure::of(from, why));
        }
        // Memory grows only with data that arrives.
        let mut words = Vec::new();
        let mut bytes = vec![0; 8 * CHUNK.min(length)];
        while words.len() < length {
            let count = CHUNK.min(length - words.len());
            let part = &mut bytes[..8 * count];
            stream
                .read_exact(part)
                .map_err(|error| lost(from, &error))?;
            words.extend(part.chunks_exact(8).map(word));
        }
        Ok(words)
    }

    /// Combines the values of all ranks on rank 0 and sends the result back.
    fn reduce(
        &mut self,
        kind: Kind,
        mine: &mut [u64],
        combine: impl Fn(u64, u64) -> Result<u64, Failure>,
    ) -> Result<(), Failure> {
        if self.rank > 0 {
            self.send(0, kind, mine)?;
            let all = self.receive(0, kind)?;
            if all.len() != mine.len() {
                let why = format!("combines {} numbers with {}", mine.len(), all.len());
                return Err(Failure::of(0, why));
            }
            mine.copy_from_slice(&all);
            return Ok(());
        }
        for rank in 1..self.size {
            let theirs = self.receive(rank, kind)?;
            if theirs.len() != mine.len() {
                let why = format!("combines {} numbers with {}", theirs.len(), mine.len());
                return Err(Failure::of(rank, why));
            }
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                *mine = combine(*mine, theirs)?;
            }
        }
        for rank in 1..self.size {
            self.send(rank, kind, mine)?;
        }
        Ok(())
    }
}

/// Accepts all ranks but 0, in the order in which they connect, and assigns each its place.
fn take_in(
    listener: &UnixListener,
    size: usize,
    patience: Duration,
    until: Instant,
) -> Result<Vec<UnixStream>, Failure> {
    let mut places: Vec<Option<UnixStream>> = (1..size).map(|_| None).collect();
    while let Some(missing) = places.iter().position(Option::is_none) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                std::thread::sleep(RETRY);
                continue;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let why = format!("has not come within {} s", patience.as_secs_f64());
                return Err(Failure::of(missing + 1, why));
            }
            Err(error) => return Err(failure(None, format!("no rank can be taken in: {error}"))),
        };
        let settled = stream
            .set_nonblocking(false)
            .and_then(|()| set_patience(&stream, Some(patience)));
        settled.map_err(|error| failure(None, format!("a rank's stream: {error}")))?;
        let mut newcomer = Star::new(1, size, vec![stream]);
        let hello = newcomer.receive(0, Kind::Hello).ok();
        let rank = hello.and_then(|words| words.first().map(|&rank| rank as usize));
        // A connection that is none of the ranks is closed again.
        if let Some(place) = rank.and_then(|rank| places.get_mut(rank.wrapping_sub(1))) {
            *place = newcomer.streams.pop();
        }
    }
    Ok(places.into_iter().flatten().collect())
}

fn head(kind: Kind, operation: u32, length: u32) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    bytes[0] = kind as u8;
    bytes[1..5].copy_from_slice(&operation.to_le_bytes());
    bytes[5..].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn number_and_length(first: &[u8; HEAD_BYTES]) -> (u32, usize) {
    let [_, a, b, c, d, e, f, g, h] = *first;
    (
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]) as usize,
    )
}

/// Returns the failure that rank 0 reports.
fn last_words(stream: &mut UnixStream, first: &[u8; HEAD_BYTES]) -> Failure {
    let (rank, length) = number_and_length(first);
    let mut why = vec![0; length.min(WHY_BYTES_MAX)];
    let rank = (rank != u32::MAX).then_some(rank as usize);
    match stream.read_exact(&mut why) {
        Ok(()) => failure(rank, String::from_utf8_lossy(&why)),
        Err(_) => failure(rank, "has failed"),
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, &byte| word << 8 | u64::from(byte))
}

fn lost(rank: usize, error: &std::io::Error) -> Failure {
    let why = match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            "has ended in the middle of the job".to_owned()
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "has been silent for too long".to_owned(),
        _ => format!("is lost: {error}"),
    };
    Failure::of(rank, why)
}

fn to_words(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn to_values(words: Vec<u64>) -> Vec<f64> {
    words.into_iter().map(f64::from_bits).collect()
}

impl Communicator for Star {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn scatter(&mut self, parts: Option<Vec<Vec<f64>>>) -> Result<Vec<f64>, Failure> {
        self.step(|star| {
            if star.rank > 0 {
                return star.receive(0, Kind::Scatter).map(to_values);
            }
            let mut parts = check_parts(parts, star.size)?.into_iter();
            let mine = parts.next().unwrap_or_default();
            for (at, part) in parts.enumerate() {
                star.send(at + 1, Kind::Scatter, &to_words(&part))?;
            }
            Ok(mine)
        })
    }

    fn gather(&mut self, part: &[f64]) -> Result<Option<Vec<Vec<f64>>>, Failure> {
        self.step(|star| {
            if star.rank > 0 {
                star.send(0, Kind::Gather, &to_words(part))?;
                return Ok(None);
            }
            let mut parts = vec![part.to_vec()];
            for rank in 1..star.size {
                parts.push(star.receive(rank, Kind::Gather).map(to_values)?);
            }
            Ok(Some(parts))
        })
    }

    fn broadcast(&mut self, values: &mut Vec<f64>) -> Result<(), Failure> {
        self.step(|star| {
            if star.rank > 0 {
                *values = star.receive(0, Kind::Broadcast).map(to_values)?;
                return Ok(());
            }
            let words = to_words(values);
            (1..star.size).try_for_each(|rank| star.send(rank, Kind::Broadcast, &words))
        })
    }

    fn all_reduce_sum(&mut self, values: &mut [i64]) -> Result<(), Failure> {
        self.step(|star| {
            let mut words: Vec<u64> = values.iter().map(|value| value.cast_unsigned()).collect();
            star.reduce(Kind::Sum, &mut words, |mine, theirs| {
                let sum = mine.cast_signed().checked_add(theirs.cast_signed());
                let sum = sum.ok_or_else(|| failure(None, "a sum of whole numbers overflows"));
                sum.map(i64::cast_unsigned)
            })?;
            for (value, word) in values.iter_mut().zip(words) {
                *value = word.cast_signed();
            }
            Ok(())
        })
    }

    fn all_reduce_max(&mut self, values: &mut [f64]) -> Result<(), Failure> {
        self.step(|star| {
            let mut words = to_words(values);
            star.reduce(Kind::Max, &mut words, |mine, theirs| {
                let greatest = f64::from_bits(mine).max(f64::from_bits(theirs));
                Ok(greatest.to_bits())
            })?;
            values.copy_from_slice(&to_values(words));
            Ok(())
        })
    }
}

#[cfg(test)]
#[path = "star_tests.rs"]
mod tests;
