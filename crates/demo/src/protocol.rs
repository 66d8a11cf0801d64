//! The messages between the writer and the parent: frames of [`base::wire`] through two pipes.
//!
//! A reading is announced (`OFFERED`) before it is put, and acknowledged (`ACKNOWLEDGED`) after its ticket has
//! completed. An unfinished frame of a killed writer ends the stream; the frames before it are valid.

use super::analysis::{Cause, Picture, RoomPicture, Verdict, WayOut};
use super::building::{ROOMS, Room, STOREYS};
use base::histogram::Histogram;
use base::wire::{self, Decoded, WireError};
use std::io::{self, Read, Write};

/// Version of all frames here.
const VERSION: u16 = 1;

/// Largest payload of a frame in bytes.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 64 << 10;

const READY: u16 = 1;
const OFFERED: u16 = 2;
const ACKNOWLEDGED: u16 = 3;
const STATS: u16 = 4;
const LATENCY: u16 = 5;
const FINISHED: u16 = 6;
const TABLE: u16 = 7;
const START: u16 = 16;
const AGAIN: u16 = 17;
const GO: u16 = 18;
const STOP: u16 = 19;

/// Bytes of a stored value: the reading as an IEEE 754 double, little-endian, bit for bit as parsed.
pub(crate) const VALUE_BYTES: usize = 8;

const OFFERED_BYTES: usize = 8 + 8 + 2 + VALUE_BYTES;

/// Most readings or numbers in one frame.
pub(crate) const BATCH_MAX: usize = 2_000;
const _: () = assert!(BATCH_MAX * OFFERED_BYTES <= PAYLOAD_BYTES_MAX);

/// A reading as the writer announces it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Offered {
    /// Number of the reading, see [`trace::replay`].
    pub(crate) number: u64,
    /// Time on the clock of the trace.
    pub(crate) time_ms: u64,
    /// Index of the sensor.
    pub(crate) sensor: u16,
    /// The stored bytes.
    pub(crate) value: [u8; VALUE_BYTES],
}

/// The latest reading of a sensor as a recovered table shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TableRow {
    /// Index of the sensor.
    pub(crate) sensor: u16,
    /// Time on the clock of the trace; a table may hold any.
    pub(crate) time_ms: i64,
    /// The stored bytes.
    pub(crate) value: [u8; VALUE_BYTES],
}

const TABLE_ROW_BYTES: usize = 2 + 8 + VALUE_BYTES;
const _: () = assert!(BATCH_MAX * TABLE_ROW_BYTES <= PAYLOAD_BYTES_MAX);

/// The writer has opened its store and starts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Ready {
    /// Whether the store was just formatted rather than recovered.
    pub(crate) formatted: bool,
    /// Whether the device bypasses the page cache (`O_DIRECT`).
    pub(crate) direct: bool,
    /// Time to open the store and rebuild the database.
    pub(crate) recovery_ns: u64,
    /// Log records read to rebuild the database.
    pub(crate) records_recovered: u64,
    /// Log records that were damaged.
    pub(crate) records_damaged: u64,
    /// Device operations so far: formatting, recovery, declaring the objects.
    pub(crate) setup_writes: u64,
    pub(crate) setup_flushes: u64,
}

/// Figures of one life of the writer, counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stats {
    /// The clock of the trace.
    pub(crate) trace_ms: u64,
    /// Age of the oldest reading that is not yet durable.
    pub(crate) lag_ns: u64,
    /// Instances of the analysis task.
    pub(crate) instances: u64,
    /// The instances that ended after their deadline.
    pub(crate) deadline_misses: u64,
    /// Releases without their own instance: they passed during an earlier one.
    pub(crate) releases_missed: u64,
    /// Sum of response time divided by deadline, over all instances.
    pub(crate) tardiness_sum: f64,
    /// The same for the instances since the last report. If there is none, the value of the instance that is running,
    /// or the last known one.
    pub(crate) tardiness_last: f64,
    /// The longest response time.
    pub(crate) response_ns_max: u64,
    /// Sum of the share of fresh objects, over all reports.
    pub(crate) fresh_sum: f64,
    /// Reports, this one included.
    pub(crate) fresh_samples: u64,
    /// The share at this report.
    pub(crate) fresh_last: f64,
    /// Device operations since [`Ready`].
    pub(crate) device_writes: u64,
    pub(crate) device_blocks_written: u64,
    pub(crate) device_flushes: u64,
    /// The result of the analysis.
    pub(crate) picture: Picture,
}

/// The latency that a histogram shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LatencyOf {
    /// Flash append, call to durable return.
    Append = 0,
    /// Put to completed ticket.
    PutDurable = 1,
    /// Response time of the analysis task.
    Response = 2,
}

impl LatencyOf {
    pub(crate) const ALL: [Self; 3] = [Self::Append, Self::PutDurable, Self::Response];
}

/// A message of the writer.
#[derive(Debug)]
pub(crate) enum FromWriter {
    /// Part of the recovered table; the rest follows, then [`Ready`].
    Table(Vec<TableRow>),
    Ready(Ready),
    Offered(Vec<Offered>),
    Acknowledged(Vec<u64>),
    Stats(Box<Stats>),
    Latency(LatencyOf, Histogram),
    /// All tickets have completed and the store is closed.
    Finished,
}

/// The task of one life of the writer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Start {
    /// Last trace time to offer.
    pub(crate) end_ms: u64,
    /// At `end_ms`: wait for [`FromParent::Stop`], or to be killed, instead of finishing.
    pub(crate) hold: bool,
    /// Speed of the replay.
    pub(crate) speed: f64,
    /// First reading to offer that was not offered before.
    pub(crate) first: u64,
    /// Trace time at the start.
    pub(crate) origin_ms: u64,
}

/// A message of the parent.
#[derive(Debug, PartialEq)]
pub(crate) enum FromParent {
    Start(Start),
    /// Offer these again: they were not acknowledged.
    Again(Vec<u64>),
    /// No more [`FromParent::Again`] follows; start.
    Go,
    /// Offer nothing more and finish.
    Stop,
}

/// Why reading a stream cannot continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// The pipe failed.
    #[error("the pipe failed: {0}")]
    Io(#[from] io::Error),
    /// A frame is damaged.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// A frame is intact, but not one of these messages.
    #[error("a message of kind {kind} version {version} is not understood")]
    Message { kind: u16, version: u16 },
}

/// Reads frames from a pipe, with memory for one frame.
pub(crate) struct FrameReader<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: Read> FrameReader<R> {
    pub(crate) fn new(source: R) -> Self {
        Self {
            source,
            buffer: vec![0; wire::frame_bytes(PAYLOAD_BYTES_MAX)],
            start: 0,
            end: 0,
        }
    }

    /// Returns the next message made by `parse`; `None` at the end of the stream, even within a frame.
    fn next_with<T>(
        &mut self,
        parse: impl Fn(u16, &mut Fields<'_>) -> Option<T>,
    ) -> Result<Option<T>, StreamError> {
        loop {
            match wire::decode(&self.buffer[self.start..self.end], PAYLOAD_BYTES_MAX)? {
                Decoded::Frame(frame) => {
                    let refused = StreamError::Message {
                        kind: frame.kind,
                        version: frame.version,
                    };
                    let mut fields = Fields(frame.payload);
                    let message = parse(frame.kind, &mut fields);
                    self.start += frame.consumed;
                    return match message {
                        Some(message) if frame.version == VERSION && fields.0.is_empty() => {
                            Ok(Some(message))
                        }
                        _ => Err(refused),
                    };
                }
                Decoded::NeedMore(_) => {}
            }
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(None),
                Ok(bytes) => self.end += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the next message of the writer.
    pub(crate) fn next_from_writer(&mut self) -> Result<Option<FromWriter>, StreamError> {
        self.next_with(|kind, fields| {
            Some(match kind {
                TABLE => FromWriter::Table(fields.list(Fields::table_row)?),
                READY => FromWriter::Ready(fields.ready()?),
                OFFERED => FromWriter::Offered(fields.list(Fields::offered)?),
                ACKNOWLEDGED => FromWriter::Acknowledged(fields.list(Fields::u64)?),
                STATS => FromWriter::Stats(Box::new(fields.stats()?)),
                LATENCY => {
                    let (of, histogram) = fields.latency()?;
                    FromWriter::Latency(of, histogram)
                }
                FINISHED => FromWriter::Finished,
                _ => return None,
            })
        })
    }

    /// Returns the next message of the parent.
    pub(crate) fn next_from_parent(&mut self) -> Result<Option<FromParent>, StreamError> {
        self.next_with(|kind, fields| {
            Some(match kind {
                START => FromParent::Start(Start {
                    end_ms: fields.u64()?,
                    hold: fields.u8()? != 0,
                    speed: fields.f64()?,
                    first: fields.u64()?,
                    origin_ms: fields.u64()?,
                }),
                AGAIN => FromParent::Again(fields.list(Fields::u64)?),
                GO => FromParent::Go,
                STOP => FromParent::Stop,
                _ => return None,
            })
        })
    }
}

/// Writes frames to a pipe, each with one `write`.
pub(crate) struct FrameWriter<W> {
    sink: W,
    payload: Vec<u8>,
    frame: Vec<u8>,
}

impl<W: Write> FrameWriter<W> {
    pub(crate) fn new(sink: W) -> Self {
        Self {
            sink,
            payload: Vec::with_capacity(PAYLOAD_BYTES_MAX),
            frame: vec![0; wire::frame_bytes(PAYLOAD_BYTES_MAX)],
        }
    }

    fn send(&mut self, kind: u16) -> io::Result<()> {
        let bytes = wire::encode(kind, VERSION, &self.payload, &mut self.frame)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.payload.clear();
        self.sink.write_all(&self.frame[..bytes])?;
        self.sink.flush()
    }

    fn put_u64(&mut self, value: u64) {
        self.payload.extend_from_slice(&value.to_le_bytes());
    }

    fn put_f64(&mut self, value: f64) {
        self.put_u64(value.to_bits());
    }

    /// Sends a recovered table of any length.
    pub(crate) fn table(&mut self, rows: &[TableRow]) -> io::Result<()> {
        for batch in rows.chunks(BATCH_MAX) {
            for row in batch {
                self.payload.extend_from_slice(&row.sensor.to_le_bytes());
                self.payload.extend_from_slice(&row.time_ms.to_le_bytes());
                self.payload.extend_from_slice(&row.value);
            }
            self.send(TABLE)?;
        }
        Ok(())
    }

    pub(crate) fn ready(&mut self, ready: &Ready) -> io::Result<()> {
        self.payload
            .extend_from_slice(&[u8::from(ready.formatted), u8::from(ready.direct)]);
        for word in [
            ready.recovery_ns,
            ready.records_recovered,
            ready.records_damaged,
            ready.setup_writes,
            ready.setup_flushes,
        ] {
            self.put_u64(word);
        }
        self.send(READY)
    }

    /// Announces at most [`BATCH_MAX`] readings.
    pub(crate) fn offered(&mut self, batch: &[Offered]) -> io::Result<()> {
        for reading in batch {
            self.put_u64(reading.number);
            self.put_u64(reading.time_ms);
            self.payload
                .extend_from_slice(&reading.sensor.to_le_bytes());
            self.payload.extend_from_slice(&reading.value);
        }
        self.send(OFFERED)
    }

    /// Acknowledges at most [`BATCH_MAX`] readings.
    pub(crate) fn acknowledged(&mut self, numbers: &[u64]) -> io::Result<()> {
        numbers.iter().for_each(|number| self.put_u64(*number));
        self.send(ACKNOWLEDGED)
    }

    pub(crate) fn stats(&mut self, stats: &Stats) -> io::Result<()> {
        for word in [
            stats.trace_ms,
            stats.lag_ns,
            stats.instances,
            stats.deadline_misses,
            stats.releases_missed,
            stats.response_ns_max,
            stats.device_writes,
            stats.device_blocks_written,
            stats.device_flushes,
            stats.fresh_samples,
        ] {
            self.put_u64(word);
        }
        for number in [
            stats.tardiness_sum,
            stats.tardiness_last,
            stats.fresh_sum,
            stats.fresh_last,
        ] {
            self.put_f64(number);
        }
        let picture = &stats.picture;
        for room in &picture.rooms {
            self.payload.push(match room.verdict {
                Verdict::Unknown => 0,
                Verdict::Safe => 1,
                Verdict::Threatened(cause) => 0x10 + cause as u8,
                Verdict::Lost(cause) => 0x20 + cause as u8,
            });
            self.put_f64(room.hottest_c);
        }
        self.payload.extend(
            [picture.hottest, picture.heading_to].map(|room| room.map_or(u8::MAX, |room| room.0)),
        );
        self.payload.extend(picture.ways_out.map(|way| way as u8));
        self.send(STATS)
    }

    /// Sends the buckets of a histogram; percentiles and maximum are preserved exactly.
    pub(crate) fn latency(&mut self, of: LatencyOf, histogram: &Histogram) -> io::Result<()> {
        self.payload.push(of as u8);
        self.put_u64(histogram.max());
        for (value, count) in histogram.buckets() {
            if self.payload.len() + 16 > PAYLOAD_BYTES_MAX {
                break;
            }
            self.put_u64(value);
            self.put_u64(count);
        }
        self.send(LATENCY)
    }

    pub(crate) fn finished(&mut self) -> io::Result<()> {
        self.send(FINISHED)
    }

    pub(crate) fn start(&mut self, start: &Start) -> io::Result<()> {
        self.put_u64(start.end_ms);
        self.payload.push(u8::from(start.hold));
        self.put_f64(start.speed);
        self.put_u64(start.first);
        self.put_u64(start.origin_ms);
        self.send(START)
    }

    /// Sends any number of readings to be offered again.
    pub(crate) fn again(&mut self, numbers: &[u64]) -> io::Result<()> {
        for batch in numbers.chunks(BATCH_MAX) {
            batch.iter().for_each(|number| self.put_u64(*number));
            self.send(AGAIN)?;
        }
        Ok(())
    }

    pub(crate) fn go(&mut self) -> io::Result<()> {
        self.send(GO)
    }

    pub(crate) fn stop(&mut self) -> io::Result<()> {
        self.send(STOP)
    }
}

/// Takes fields from the front of a payload.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn f64(&mut self) -> Option<f64> {
        self.bytes().map(f64::from_le_bytes)
    }

    /// Reads items up to the end of the payload.
    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::new();
        while !self.0.is_empty() {
            items.push(item(self)?);
        }
        Some(items)
    }

    fn offered(&mut self) -> Option<Offered> {
        Some(Offered {
            number: self.u64()?,
            time_ms: self.u64()?,
            sensor: self.bytes().map(u16::from_le_bytes)?,
            value: self.bytes()?,
        })
    }

    fn table_row(&mut self) -> Option<TableRow> {
        Some(TableRow {
            sensor: self.bytes().map(u16::from_le_bytes)?,
            time_ms: self.bytes().map(i64::from_le_bytes)?,
            value: self.bytes()?,
        })
    }

    fn ready(&mut self) -> Option<Ready> {
        Some(Ready {
            formatted: self.u8()? != 0,
            direct: self.u8()? != 0,
            recovery_ns: self.u64()?,
            records_recovered: self.u64()?,
            records_damaged: self.u64()?,
            setup_writes: self.u64()?,
            setup_flushes: self.u64()?,
        })
    }

    fn stats(&mut self) -> Option<Stats> {
        let mut stats = Stats {
            trace_ms: self.u64()?,
            lag_ns: self.u64()?,
            instances: self.u64()?,
            deadline_misses: self.u64()?,
            releases_missed: self.u64()?,
            response_ns_max: self.u64()?,
            device_writes: self.u64()?,
            device_blocks_written: self.u64()?,
            device_flushes: self.u64()?,
            fresh_samples: self.u64()?,
            tardiness_sum: self.f64()?,
            tardiness_last: self.f64()?,
            fresh_sum: self.f64()?,
            fresh_last: self.f64()?,
            picture: Picture::default(),
        };
        for index in 0..ROOMS {
            let verdict = match self.u8()? {
                0 => Verdict::Unknown,
                1 => Verdict::Safe,
                number @ 0x10..0x20 => Verdict::Threatened(Cause::from_number(number - 0x10)?),
                number => Verdict::Lost(Cause::from_number(number.checked_sub(0x20)?)?),
            };
            stats.picture.rooms[index] = RoomPicture {
                verdict,
                hottest_c: self.f64()?,
            };
        }
        stats.picture.hottest = Room::from_index(self.u8()?);
        stats.picture.heading_to = Room::from_index(self.u8()?);
        for storey in 0..STOREYS {
            stats.picture.ways_out[storey] = match self.u8()? {
                0 => WayOut::Unknown,
                1 => WayOut::Open,
                2 => WayOut::Threatened,
                3 => WayOut::Cut,
                _ => return None,
            };
        }
        Some(stats)
    }

    fn latency(&mut self) -> Option<(LatencyOf, Histogram)> {
        let of = *LatencyOf::ALL.get(usize::from(self.u8()?))?;
        let max = self.u64()?;
        let mut histogram = Histogram::new();
        for (value, count) in self.list(|fields| Some((fields.u64()?, fields.u64()?)))? {
            // The last bucket ends above the exact maximum; the end of a bucket is never below its values.
            histogram.record_n(value.min(max), count);
        }
        Some((of, histogram))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_writer_arrive_as_sent() {
        let mut pipe = Vec::new();
        let mut writer = FrameWriter::new(&mut pipe);
        let ready = Ready {
            formatted: true,
            recovery_ns: 5,
            setup_flushes: 9,
            ..Ready::default()
        };
        let offered: Vec<Offered> = (0..BATCH_MAX as u64)
            .map(|number| Offered {
                number,
                time_ms: 7 * number,
                sensor: 1_023,
                value: (-0.5_f64).to_le_bytes(),
            })
            .collect();
        let mut stats = Stats {
            trace_ms: 1,
            fresh_last: 0.25,
            fresh_samples: 3,
            releases_missed: 2,
            tardiness_sum: 3.5,
            ..Stats::default()
        };
        stats.picture.rooms[3] = RoomPicture {
            verdict: Verdict::Lost(Cause::Radiation),
            hottest_c: 511.5,
        };
        stats.picture.rooms[4].verdict = Verdict::Threatened(Cause::Oxygen);
        stats.picture.rooms[5].verdict = Verdict::Safe;
        stats.picture.hottest = Room::from_index(3);
        stats.picture.ways_out = [
            WayOut::Open,
            WayOut::Threatened,
            WayOut::Cut,
            WayOut::Unknown,
        ];
        let mut histogram = Histogram::new();
        (0..100_000_u64).for_each(|value| histogram.record(value * 13));
        let table = [TableRow {
            sensor: 7,
            time_ms: -1,
            value: 20.5_f64.to_le_bytes(),
        }];
        writer.table(&table).unwrap();
        writer.ready(&ready).unwrap();
        writer.offered(&offered).unwrap();
        writer.acknowledged(&[3, 4]).unwrap();
        writer.stats(&stats).unwrap();
        writer.latency(LatencyOf::PutDurable, &histogram).unwrap();
        writer.finished().unwrap();
        let mut reader = FrameReader::new(&pipe[..]);
        let mut next = || reader.next_from_writer().unwrap();
        assert!(matches!(next(), Some(FromWriter::Table(found)) if found == table));
        assert!(matches!(next(), Some(FromWriter::Ready(found)) if found == ready));
        assert!(matches!(next(), Some(FromWriter::Offered(found)) if found == offered));
        assert!(matches!(next(), Some(FromWriter::Acknowledged(found)) if found == [3, 4]));
        assert!(matches!(next(), Some(FromWriter::Stats(found)) if *found == stats));
        let Some(FromWriter::Latency(LatencyOf::PutDurable, found)) = next() else {
            panic!("no histogram")
        };
        for percent in [50.0, 99.0, 99.9, 100.0] {
            assert_eq!(found.percentile(percent), histogram.percentile(percent));
        }
        assert_eq!(
            (found.max(), found.count()),
            (histogram.max(), histogram.count())
        );
        assert!(matches!(next(), Some(FromWriter::Finished)));
        assert!(next().is_none());
    }

    #[test]
    fn messages_of_the_parent_arrive_as_sent() {
        let mut pipe = Vec::new();
        let mut writer = FrameWriter::new(&mut pipe);
        let start = Start {
            end_ms: 300_000,
            hold: true,
            speed: 10.0,
            first: 77,
            origin_ms: 1_234,
        };
        let numbers: Vec<u64> = (0..BATCH_MAX as u64 + 1).collect();
        writer.start(&start).unwrap();
        writer.again(&numbers).unwrap();
        writer.go().unwrap();
        writer.stop().unwrap();
        let mut reader = FrameReader::new(&pipe[..]);
        assert_eq!(
            reader.next_from_parent().unwrap(),
            Some(FromParent::Start(start))
        );
        assert_eq!(
            reader.next_from_parent().unwrap(),
            Some(FromParent::Again(numbers[..BATCH_MAX].to_vec()))
        );
        assert_eq!(
            reader.next_from_parent().unwrap(),
            Some(FromParent::Again(numbers[BATCH_MAX..].to_vec()))
        );
        assert_eq!(reader.next_from_parent().unwrap(), Some(FromParent::Go));
        assert_eq!(reader.next_from_parent().unwrap(), Some(FromParent::Stop));
        assert_eq!(reader.next_from_parent().unwrap(), None);
    }

    #[test]
    fn a_frame_cut_short_ends_the_stream_and_damage_is_an_error() {
        let mut pipe = Vec::new();
        let mut writer = FrameWriter::new(&mut pipe);
        writer.acknowledged(&[1]).unwrap();
        writer.acknowledged(&[2]).unwrap();
        for cut in pipe.len() / 2..pipe.len() {
            let mut reader = FrameReader::new(&pipe[..cut]);
            assert!(matches!(
                reader.next_from_writer(),
                Ok(Some(FromWriter::Acknowledged(_)))
            ));
            assert!(matches!(reader.next_from_writer(), Ok(None)));
        }
        let mut damaged = pipe.clone();
        damaged[14] ^= 1;
        assert!(matches!(
            FrameReader::new(&damaged[..]).next_from_writer(),
            Err(StreamError::Wire(_))
        ));
        // A message of the wrong direction, or with extra bytes, is refused.
        assert!(matches!(
            FrameReader::new(&pipe[..]).next_from_parent(),
            Err(StreamError::Message { kind: 3, .. })
        ));
    }
}
