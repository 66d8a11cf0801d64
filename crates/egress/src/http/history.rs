//! History: down-sampled for plots, and every reading for programs.
//!
//! **Method.** Slices are read on a thread for that, as for the node's socket; each further slice queues again. A query
//! reads a limited part of the log: what it did not reach is reported, never left out silently. Readings are sent slice
//! by slice, and the next slice is read when the client has taken the previous one. Meanwhile the query holds no place
//! among those that read or wait, so that slow clients do not shut out others.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use base::error::Code;
use bytes::Bytes;
use db::{HistoryCursor, HistoryQuery, ObjectId, Time};
use http_body::Frame;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use super::answer::{Refused, json, typed};
use super::app::App;
use super::counters::Refusal;
use super::options::HISTORY_WAITING_MAX;
use super::points::{Columns, PIECES_MAX, Points};
use super::query::Query;
use super::source::Source;
use super::values::{Nanoseconds, Shown, object, shown};

/// Largest number of keys of one query.
const KEYS_MAX: usize = 16;
const POINTS_MAX: i64 = 5_000;
const POINTS: i64 = 500;
/// Default range: the last hour.
const LAST_MS: i64 = 3_600_000;
const LIMIT: i64 = 10_000;
const LIMIT_MAX: i64 = 1_000_000;

fn place(app: &App) -> Result<OwnedSemaphorePermit, Refused> {
    app.history_permits.place().ok_or_else(|| {
        app.counters.refuse(Refusal::History);
        let wrong = format!("{HISTORY_WAITING_MAX} questions for history wait already");
        Refused::new(Code::Busy, "history", wrong, "ask again later")
    })
}

/// Returns the range that a query asks for.
fn range(source: &dyn Source, query: &mut Query) -> Result<(i64, i64), Refused> {
    const ANY: (i64, i64) = (i64::MIN, i64::MAX);
    let now_ms = source.wall_ms();
    let last_ms = query.integer("last_ms", (1, i64::MAX))?;
    let from_ms = query.integer("from_ms", ANY)?;
    let to_ms = query.integer("to_ms", ANY)?;
    if last_ms.is_some() && (from_ms.is_some() || to_ms.is_some()) {
        let wrong = "stands beside from_ms or to_ms";
        return Err(Refused::new(
            Code::Invalid,
            "last_ms",
            wrong,
            "give one of them",
        ));
    }
    // Readings that arrive in this millisecond belong to the range.
    let to_ms = to_ms.unwrap_or(now_ms.saturating_add(1));
    let from_ms = from_ms.unwrap_or(to_ms.saturating_sub(last_ms.unwrap_or(LAST_MS)));
    if from_ms >= to_ms {
        let wrong = "is not before to_ms";
        return Err(Refused::new(
            Code::Invalid,
            "from_ms",
            wrong,
            "exchange them",
        ));
    }
    Ok((from_ms, to_ms))
}

/// How much of the log was read, and what was unreadable.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct ReadReport {
    bytes_read: u64,
    /// Places that cannot be read: records, pieces of files and whole files.
    records_damaged: u64,
    readings_missing: u64,
    segments_gone: u64,
}

impl ReadReport {
    fn of(cursor: &HistoryCursor) -> Self {
        let report = cursor.report();
        Self {
            bytes_read: report.bytes_read,
            records_damaged: report.damage.places_unreadable(),
            readings_missing: report.damage.readings_missing,
            segments_gone: report.segments_gone,
        }
    }
}

#[derive(Serialize)]
struct Series<'a> {
    key: &'a str,
    #[serde(flatten)]
    columns: Columns,
}

#[derive(Serialize)]
struct Answer<'a> {
    from_ms: i64,
    to_ms: i64,
    points: i64,
    /// Whether the whole range has been read. Otherwise the missing readings are those that reached the node last.
    complete: bool,
    series: Vec<Series<'a>>,
    #[serde(flatten)]
    seen: ReadReport,
}

/// Returns down-sampled history of a few keys.
pub(crate) async fn points(app: &App, mut query: Query) -> Result<Response, Refused> {
    let source = &app.source;
    let keys = query.all("key");
    let (from_ms, to_ms) = range(&**source, &mut query)?;
    let points = query.integer("points", (1, POINTS_MAX))?.unwrap_or(POINTS);
    query.finish()?;
    if keys.is_empty() || keys.len() > KEYS_MAX {
        let wrong = format!("is given {} times", keys.len());
        let remedy = "give it once or up to 16 times";
        return Err(Refused::new(Code::Invalid, "key", wrong, remedy));
    }
    let pieces = points as usize;
    if pieces * keys.len() > PIECES_MAX {
        let wrong = format!("is {points} for {} keys", keys.len());
        let remedy = "ask for at most 20,000 points in all";
        return Err(Refused::new(Code::Invalid, "points", wrong, remedy));
    }
    let mut series = Vec::new();
    for key in &keys {
        let id = object(&**source, key)?;
        if series.iter().any(|(other, _)| *other == id) {
            let remedy = "give each key once";
            return Err(Refused::new(Code::Invalid, key, "is given twice", remedy));
        }
        series.push((id, Points::new(from_ms, to_ms, pieces)));
    }
    let _place = place(app)?;
    let mut read = PointsRead {
        query: HistoryQuery {
            id: (series.len() == 1).then(|| series[0].0),
            from: Time::from_ms(from_ms),
            to: Time::from_ms(to_ms),
        },
        cursor: HistoryCursor::default(),
        series,
    };
    let complete = loop {
        let turn = Arc::clone(&app.history_permits.reads).acquire_owned().await;
        let source = Arc::clone(source);
        let slice = tokio::task::spawn_blocking(move || {
            let more = read.slice(&*source);
            drop(turn);
            (read, more)
        });
        let Ok((back, more)) = slice.await else {
            return Err(broken_off());
        };
        read = back;
        let more = more.map_err(|error| unreadable(&error))?;
        if !more {
            break true;
        }
        if read.cursor.report().bytes_read >= app.options.history_bytes_max {
            break false;
        }
    };
    let series = keys.iter().zip(&read.series);
    Ok(json(&Answer {
        from_ms,
        to_ms,
        points,
        complete,
        series: series
            .map(|(key, (_, points))| Series {
                key,
                columns: points.columns(),
            })
            .collect(),
        seen: ReadReport::of(&read.cursor),
    }))
}

fn broken_off() -> Refused {
    // The thread itself has reported its panic.
    Refused::new(
        Code::Io,
        "history",
        "the read broke off",
        "see /api/v1/status",
    )
}

fn unreadable(error: &db::Error) -> Refused {
    Refused::new(
        error.code(),
        "history",
        error.to_string(),
        "see /api/v1/status",
    )
}

struct PointsRead {
    query: HistoryQuery,
    cursor: HistoryCursor,
    series: Vec<(ObjectId, Points)>,
}

impl PointsRead {
    fn slice(&mut self, source: &dyn Source) -> Result<bool, db::Error> {
        let series = &mut self.series;
        source.history(&self.query, &mut self.cursor, &mut |entry| {
            if let Some((_, points)) = series.iter_mut().find(|(id, _)| *id == entry.id) {
                points.add(entry.time.ms(), entry.value);
            }
            ControlFlow::Continue(())
        })
    }
}

/// The output format of readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One JSON object per line; a last one says how much was read.
    Lines,
    /// Comma-separated, with a header.
    Csv,
}

/// Returns every reading of a key.
pub(crate) fn readings(app: &App, mut query: Query) -> Result<Response, Refused> {
    let key = query.text("key")?.unwrap_or_default();
    let (from_ms, to_ms) = range(&*app.source, &mut query)?;
    let limit = query.integer("limit", (1, LIMIT_MAX))?.unwrap_or(LIMIT);
    let (form, content_type) = match query.text("format")?.as_deref() {
        None | Some("ndjson") => (Form::Lines, "application/x-ndjson"),
        Some("csv") => (Form::Csv, "text/csv; charset=utf-8"),
        Some(_) => {
            let remedy = "give ndjson or csv";
            return Err(Refused::new(Code::Invalid, "format", "is unknown", remedy));
        }
    };
    query.finish()?;
    if key.is_empty() {
        return Err(Refused::new(
            Code::Invalid,
            "key",
            "is missing",
            "name a key",
        ));
    }
    let id = object(&*app.source, &key)?;
    let place = place(app)?;
    let first: &[u8] = match form {
        Form::Lines => b"",
        Form::Csv => b"time_ms,value,type,lsn,time_ns\n",
    };
    let read = ReadingsRead {
        query: HistoryQuery {
            id: Some(id),
            from: Time::from_ms(from_ms),
            to: Time::from_ms(to_ms),
        },
        cursor: HistoryCursor::default(),
        form,
        left: limit as u64,
        sent: 0,
        out: first.to_vec(),
        bytes_max: app.options.history_bytes_max,
    };
    let body = ReadingsBody {
        source: Arc::clone(&app.source),
        reads: Arc::clone(&app.history_permits.reads),
        waiting: Arc::clone(&app.history_permits.waiting),
        state: Reading::Idle(Box::new(read)),
        place: Some(place),
    };
    Ok(typed(content_type, Body::new(body)))
}

struct ReadingsRead {
    query: HistoryQuery,
    cursor: HistoryCursor,
    form: Form,
    left: u64,
    sent: u64,
    out: Vec<u8>,
    bytes_max: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    time_ms: i64,
    time_ns: Option<Nanoseconds>,
    value: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_text: Option<String>,
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_ns: Option<Nanoseconds>,
    node_time: bool,
    clock_trusted: bool,
    lsn: u64,
}

impl ReadingsRead {
    /// Reads one slice. Returns whether there is more.
    fn slice(&mut self, source: &dyn Source) -> Result<bool, db::Error> {
        let (out, form) = (&mut self.out, self.form);
        let (left, sent) = (&mut self.left, &mut self.sent);
        let more = source.history(&self.query, &mut self.cursor, &mut |entry| {
            let Shown { value, text, kind } = shown(entry.value);
            match form {
                Form::Lines => {
                    let recorded = entry.time_corrected.then_some(entry.recorded);
                    let line = Line {
                        time_ms: entry.time.ms(),
                        time_ns: Nanoseconds::of(entry.time),
                        value,
                        value_text: text,
                        kind,
                        recorded_ms: recorded.map(Time::ms),
                        recorded_ns: recorded.and_then(Nanoseconds::of),
                        node_time: entry.node_time,
                        clock_trusted: entry.wall_trusted,
                        lsn: entry.lsn,
                    };
                    serde_json::to_writer(&mut *out, &line).ok();
                }
                Form::Csv => {
                    let text = match value {
                        serde_json::Value::String(text) => quoted(&text),
                        serde_json::Value::Null => String::new(),
                        other => other.to_string(),
                    };
                    let (ms, lsn) = (entry.time.ms(), entry.lsn);
                    let ns = Nanoseconds::of(entry.time);
                    let ns = ns.map_or(String::new(), |ns| ns.to_string());
                    let row = format!("{ms},{text},{kind},{lsn},{ns}");
                    out.extend_from_slice(row.as_bytes());
                }
            }
            out.push(b'\n');
            *sent += 1;
            *left -= 1;
            if *left == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        let is_enough = self.cursor.report().bytes_read >= self.bytes_max;
        if more && self.left > 0 && !is_enough {
            return Ok(true);
        }
        self.end(!more && self.left > 0, None);
        Ok(false)
    }

    /// Writes the last line: how much there was. A CSV can only hold it as a comment.
    fn end(&mut self, complete: bool, error: Option<&db::Error>) {
        #[derive(Serialize)]
        struct End {
            end: bool,
            sent: u64,
            complete: bool,
            error: Option<String>,
            #[serde(flatten)]
            seen: ReadReport,
        }
        let seen = ReadReport::of(&self.cursor);
        let damaged = seen.records_damaged > 0 || seen.readings_missing > 0;
        let end = End {
            end: true,
            sent: self.sent,
            complete,
            error: error.map(ToString::to_string),
            seen,
        };
        if self.form == Form::Csv {
            if complete && error.is_none() && !damaged {
                return;
            }
            self.out.extend_from_slice(b"# ");
        }
        serde_json::to_writer(&mut self.out, &end).ok();
        self.out.push(b'\n');
    }
}

/// Returns a CSV field: quoted, with quotes in it doubled.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

type Slice = (Box<ReadingsRead>, Result<bool, db::Error>);
/// A place among those that read or wait, and the turn to read.
type Permits = (OwnedSemaphorePermit, OwnedSemaphorePermit);
type Turn = Pin<Box<dyn Future<Output = Option<Permits>> + Send>>;

enum Reading {
    Idle(Box<ReadingsRead>),
    Queued(Turn, Option<Box<ReadingsRead>>),
    Reads(JoinHandle<Slice>),
    Ended,
}

struct ReadingsBody {
    source: Arc<dyn Source>,
    reads: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    state: Reading,
    /// The place for the first slice. A query that has begun is not refused: for each further slice it waits for a
    /// place, ahead of new queries. The number of connections limits how many do.
    place: Option<OwnedSemaphorePermit>,
}

impl http_body::Body for ReadingsBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        loop {
            match std::mem::replace(&mut self.state, Reading::Ended) {
                Reading::Ended => return Poll::Ready(None),
                Reading::Idle(read) => {
                    let (reads, waiting) = (Arc::clone(&self.reads), Arc::clone(&self.waiting));
                    let place = self.place.take();
                    let turn = Box::pin(async move {
                        let place = match place {
                            Some(place) => place,
                            None => waiting.acquire_owned().await.ok()?,
                        };
                        Some((place, reads.acquire_owned().await.ok()?))
                    });
                    self.state = Reading::Queued(turn, Some(read));
                }
                Reading::Queued(mut turn, read) => match turn.as_mut().poll(context) {
                    Poll::Pending => {
                        self.state = Reading::Queued(turn, read);
                        return Poll::Pending;
                    }
                    Poll::Ready(turn) => {
                        let Some(mut read) = read else { continue };
                        let source = Arc::clone(&self.source);
                        self.state = Reading::Reads(tokio::task::spawn_blocking(move || {
                            let more = read.slice(&*source);
                            drop(turn);
                            (read, more)
                        }));
                    }
                },
                Reading::Reads(mut slice) => {
                    let Poll::Ready(done) = Pin::new(&mut slice).poll(context) else {
                        self.state = Reading::Reads(slice);
                        return Poll::Pending;
                    };
                    let Ok((mut read, more)) = done else {
                        return Poll::Ready(Some(Err(std::io::Error::other("the read broke off"))));
                    };
                    let is_more = match more {
                        Ok(is_more) => is_more,
                        Err(error) => {
                            read.end(false, Some(&error));
                            false
                        }
                    };
                    let out = std::mem::take(&mut read.out);
                    if is_more {
                        self.state = Reading::Idle(read);
                    }
                    if !out.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(out.into()))));
                    }
                }
            }
        }
    }
}
