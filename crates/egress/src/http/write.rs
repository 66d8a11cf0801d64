//! Lines that clients write: bodies of line protocol as clients of InfluxDB send them, plain or packed with gzip.
//!
//! This side receives a body, unpacks it within its limits and answers. The owner of the node's intake takes the lines,
//! on its own thread, and says what has become of them; see [`Writes`](super::Writes).
//!
//! **Invariants:** at most `writes_max` bodies are held at the same time, each within `body_bytes_max`. A body is held
//! until its lines are finished. If its client is gone, it is held until the next wait, and the rest is not taken.
//! Success is answered only when all readings are durable, except those that a key's `shed = "drop"` left out: the
//! header `Keel-Shed` has their number.

use std::pin::Pin;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::response::Response;
use base::error::Code;
use bytes::Bytes;
use http_body::{Body as _, Frame};
use serde::Serialize;
use tokio::time::{Instant, timeout, timeout_at};

use super::answer::{Refused, json};
use super::app::App;
use super::counters::{Refusal, add};
use super::options::{
    BODY_SECONDS_MAX, BODY_SILENT_SECONDS_MAX, DRAINED_BYTES_MAX, DRAINED_SECONDS_MAX, WriteLimits,
};
use super::query::{Query, QueryError};
use super::unpack::{Unpack, UnpackError, append};
use super::write_queue::{Place, RefusedLine, Taken, TimeUnit, Written};

/// What clients of InfluxDB say about where lines belong. A node has one place, so it takes them and ignores them.
const IGNORED: [&str; 6] = ["bucket", "org", "orgID", "db", "rp", "consistency"];

/// The number of readings of a body that were dropped to shed load, where there are any.
const SHED: &str = "keel-shed";

/// Why a body was not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Large,
    Slow,
    /// The client has left, or its chunks are none.
    Cut,
    /// It is not gzip.
    Broken,
}

impl From<UnpackError> for Fault {
    fn from(error: UnpackError) -> Self {
        match error {
            UnpackError::Large => Self::Large,
            UnpackError::Broken => Self::Broken,
        }
    }
}

/// Whether a body is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Plain,
    Gzip,
}

/// Answers a request to write, once its lines are durable.
pub(crate) async fn write(app: &App, request: Request<Body>) -> Result<Response, Refused> {
    let Some(limits) = app.options.write else {
        return Err(off());
    };
    let (head, mut body) = request.into_parts();
    let mut waits = head.headers.contains_key(header::EXPECT);
    let (unit, coding, place) = match begin(app, &head, limits) {
        Ok(begun) => begun,
        Err(refused) => {
            drain(&mut body, waits).await;
            return Err(refused);
        }
    };
    let bytes_max = limits.body_bytes_max as usize;
    // The client is told to send once the body is asked for.
    waits &= is_too_large(&body, bytes_max);
    let lines = match receive(&mut body, coding, bytes_max).await {
        Ok(lines) => lines,
        Err(fault) => {
            drop(place);
            if matches!(fault, Fault::Large | Fault::Broken) {
                drain(&mut body, waits).await;
            }
            return Err(faulty(app, fault, limits));
        }
    };
    let bytes = lines.len() as u64;
    let written = app.writer.write(lines, unit, place).await;
    respond(app, written, bytes)
}

/// Checks what the head of a request says, and takes a place for its body.
fn begin(
    app: &App,
    head: &Parts,
    limits: WriteLimits,
) -> Result<(TimeUnit, Coding, Place), Refused> {
    let unit = unit(head.uri.query().unwrap_or_default())?;
    let Some(coding) = coding(&head.headers) else {
        return Err(refuse(app, Refusal::BodyBroken, unknown_coding()));
    };
    let Some(place) = Place::take(&app.bodies, &app.counters) else {
        add(&app.counters.writes_turned_away, 1);
        return Err(refuse(app, Refusal::Writes, too_many(limits)));
    };
    Ok((unit, coding, place))
}

/// The error where the operator does not permit writing.
pub(crate) fn off() -> Refused {
    let remedy =
        "set http.write = true, and give a token the right to write where there are tokens";
    Refused::new(Code::Denied, "writing", "is off", remedy)
}

fn refuse(app: &App, why: Refusal, refused: Refused) -> Refused {
    app.counters.refuse(why);
    refused
}

fn unknown_coding() -> Refused {
    let wrong = "is neither gzip nor identity";
    let refused = Refused::new(
        Code::Unsupported,
        "Content-Encoding",
        wrong,
        "send one of them",
    );
    refused.with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE)
}

fn too_many(limits: WriteLimits) -> Refused {
    let wrong = format!("are more than {} at the same time", limits.writes_max);
    let remedy = "send them one after the other, or raise http.writes_max";
    let refused = Refused::new(Code::Busy, "bodies", wrong, remedy);
    refused.with_status(StatusCode::TOO_MANY_REQUESTS)
}

fn unit(query: &str) -> Result<TimeUnit, Refused> {
    let mut query = Query::parse(query)?;
    for name in IGNORED {
        query.text(name)?;
    }
    let name = query.text("precision")?.unwrap_or_default();
    query.finish()?;
    let wrong = "is none of ns, us, ms, s, m, h";
    TimeUnit::of_name(&name).ok_or_else(|| {
        let error = QueryError {
            name: "precision".to_owned(),
            wrong: wrong.to_owned(),
        };
        error.into()
    })
}

fn coding(headers: &HeaderMap) -> Option<Coding> {
    let Some(name) = headers.get(header::CONTENT_ENCODING) else {
        return Some(Coding::Plain);
    };
    let name = name.as_bytes().trim_ascii();
    let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
    if is(b"gzip") || is(b"x-gzip") {
        Some(Coding::Gzip)
    } else if is(b"identity") || name.is_empty() {
        Some(Coding::Plain)
    } else {
        None
    }
}

async fn next(body: &mut Body) -> Option<Result<Frame<Bytes>, axum::Error>> {
    std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
}

/// Returns whether the length that a body announces is above the limit. Nothing of such a body is asked for.
fn is_too_large(body: &Body, bytes_max: usize) -> bool {
    body.size_hint().lower() > bytes_max as u64
}

/// Receives a body, unpacked.
async fn receive(body: &mut Body, coding: Coding, bytes_max: usize) -> Result<Vec<u8>, Fault> {
    if is_too_large(body, bytes_max) {
        return Err(Fault::Large);
    }
    let end = Instant::now() + Duration::from_secs(BODY_SECONDS_MAX);
    let silence_max = Duration::from_secs(BODY_SILENT_SECONDS_MAX);
    let mut unpack = (coding == Coding::Gzip).then(|| Unpack::new(bytes_max));
    let mut plain = Vec::new();
    let mut received = 0;
    loop {
        let until = end.min(Instant::now() + silence_max);
        let Ok(frame) = timeout_at(until, next(body)).await else {
            return Err(Fault::Slow);
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(_)) => return Err(Fault::Cut),
            None => break,
        };
        // Other frames have headers behind the body, which say nothing here.
        let Ok(bytes) = frame.into_data() else {
            continue;
        };
        received += bytes.len();
        if received > bytes_max {
            return Err(Fault::Large);
        }
        match &mut unpack {
            None => append(&mut plain, &bytes, bytes_max)?,
            Some(unpack) => {
                let mut rest = &bytes[..];
                while unpack.step(&mut rest)? {
                    // The thread takes readings in, too.
                    tokio::task::yield_now().await;
                }
            }
        }
        tokio::task::yield_now().await;
    }
    match unpack {
        None => Ok(plain),
        Some(unpack) => Ok(unpack.finish()?),
    }
}

/// Reads and drops the rest of a body that is refused. A client that is cut off while it sends may never see the
/// answer, and would send the same again. `waits`: it sends nothing before it has been asked to.
async fn drain(body: &mut Body, waits: bool) {
    if waits || body.size_hint().lower() > DRAINED_BYTES_MAX {
        return;
    }
    let mut left = DRAINED_BYTES_MAX;
    let drained = async {
        while left > 0
            && let Some(Ok(frame)) = next(body).await
        {
            left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len() as u64));
            tokio::task::yield_now().await;
        }
    };
    let limit = Duration::from_secs(DRAINED_SECONDS_MAX);
    timeout(limit, drained).await.ok();
}

fn faulty(app: &App, fault: Fault, limits: WriteLimits) -> Refused {
    let (why, refused) = match fault {
        Fault::Large => {
            let kibibytes = limits.body_bytes_max >> 10;
            let wrong = format!("is larger than {kibibytes} KiB, packed or unpacked");
            let remedy = "send fewer lines at once, or raise http.write_kibibytes_max";
            let refused = Refused::new(Code::Invalid, "body", wrong, remedy);
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            (Refusal::BodyLarge, refused.with_status(status))
        }
        Fault::Slow => {
            let wrong = format!(
                "is silent for {BODY_SILENT_SECONDS_MAX} s, or not there after {BODY_SECONDS_MAX} s"
            );
            let remedy = "send it again, with fewer lines or packed with gzip";
            // Not 408: senders take that for a fault of theirs, and drop the lines.
            let refused = Refused::new(Code::Busy, "body", wrong, remedy);
            (Refusal::BodySlow, refused)
        }
        Fault::Cut => {
            let refused = Refused::new(Code::Invalid, "body", "is cut", "send it again");
            (Refusal::BodyBroken, refused)
        }
        Fault::Broken => {
            let wrong = "is not gzip, is damaged, or something follows it";
            let remedy = "send one gzip file, or no Content-Encoding";
            let refused = Refused::new(Code::Invalid, "body", wrong, remedy);
            (Refusal::BodyBroken, refused)
        }
    };
    refuse(app, why, refused)
}

/// The answer for a body some of whose lines were refused. Code, thing, wrong and remedy are those of every error.
#[derive(Debug, Serialize)]
struct PartlyRefused {
    code: &'static str,
    thing: &'static str,
    wrong: String,
    remedy: String,
    message: String,
    error: String,
    accepted: u64,
    refused: u64,
    shed: u64,
    lines: Vec<RefusedLine>,
    text_open_line: Option<u64>,
}

impl PartlyRefused {
    fn new(taken: Taken) -> Self {
        let wrong = format!(
            "is taken in part: readings stored {}, lines or readings refused {}",
            taken.accepted, taken.refused
        );
        let remedy = match taken.text_open_line {
            None => "correct what is refused; do not send the rest again".to_owned(),
            Some(line) => format!(
                "correct the refused lines and send only these again; end the text of line {line} or escape its \
                 quotes, and send it and everything behind it again"
            ),
        };
        let first = taken.lines.first().map_or(String::new(), |first| {
            format!(": line {}, {}", first.line, first.reasons.join(", "))
        });
        let message = format!("body {wrong}{first}");
        Self {
            code: Code::Invalid.name(),
            thing: "body",
            // With these words clients of version 1 know that a part is stored.
            error: format!("partial write: {message}"),
            message,
            wrong,
            remedy,
            accepted: taken.accepted,
            refused: taken.refused,
            shed: taken.shed,
            lines: taken.lines,
            text_open_line: taken.text_open_line,
        }
    }
}

fn respond(app: &App, written: Written, bytes: u64) -> Result<Response, Refused> {
    let taken = match written {
        Written::Durable(taken) => taken,
        other => {
            let (why, refused) = untaken(&other);
            return Err(refuse(app, why, refused));
        }
    };
    add(&app.counters.writes, 1);
    add(&app.counters.write_bytes, bytes);
    add(&app.counters.write_readings, taken.accepted);
    add(&app.counters.write_refused, taken.refused);
    add(&app.counters.write_shed, taken.shed);
    if taken.refused == 0 {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if taken.shed > 0 {
            headers.insert(SHED, HeaderValue::from(taken.shed));
        }
        return Ok(response);
    }
    let mut response = json(&PartlyRefused::new(taken));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    Ok(response)
}

/// Returns the error for a body whose lines are not all finished. Senders try again on 429 and 503, and on nothing
/// else.
fn untaken(written: &Written) -> (Refusal, Refused) {
    let again = "send the whole body again: a part of it may be stored";
    let (why, code, thing, wrong, seconds) = match written {
        Written::Busy => (Refusal::Queue, Code::Busy, "queue", "has no room", 1),
        Written::Full => (Refusal::Store, Code::Full, "store", "is full", 30),
        Written::Late => {
            let wrong = "does not become durable in time";
            (Refusal::Store, Code::Late, "log", wrong, 5)
        }
        Written::Stopping => (Refusal::Store, Code::Busy, "node", "stops", 5),
        Written::Failed | Written::Durable(_) => {
            let wrong = "takes nothing more: see `keel status`";
            (Refusal::Store, Code::Io, "log", wrong, 30)
        }
    };
    let status = match written {
        Written::Busy => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let refused = Refused::new(code, thing, wrong, again);
    (why, refused.with_status(status).with_retry(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::unpack::tests::packed;
    use std::collections::VecDeque;
    use std::task::{Context, Poll};

    /// A body in these frames; then it is silent, or ends.
    struct Frames {
        frames: VecDeque<Bytes>,
        is_silent: bool,
    }

    impl http_body::Body for Frames {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            match self.frames.pop_front() {
                Some(frame) => Poll::Ready(Some(Ok(Frame::data(frame)))),
                None if self.is_silent => Poll::Pending,
                None => Poll::Ready(None),
            }
        }
    }

    fn body(bytes: &[u8], frame_bytes: usize, is_silent: bool) -> Body {
        Body::new(Frames {
            frames: bytes
                .chunks(frame_bytes)
                .map(Bytes::copy_from_slice)
                .collect(),
            is_silent,
        })
    }

    #[tokio::test]
    async fn a_body_is_bounded_as_it_comes_and_unpacked() {
        let lines = b"air,room=2 co2=410\n".repeat(1000);
        let small = packed(&lines);
        let bytes_max = lines.len();
        for frame_bytes in [1000, usize::MAX] {
            let mut whole = body(&lines, frame_bytes, false);
            let plain = receive(&mut whole, Coding::Plain, bytes_max).await;
            assert_eq!(plain.as_deref(), Ok(&lines[..]));
            let mut whole = body(&small, frame_bytes, false);
            let gzip = receive(&mut whole, Coding::Gzip, bytes_max).await;
            assert_eq!(gzip.as_deref(), Ok(&lines[..]));
            for (bytes, coding, bytes_max) in [
                (&lines, Coding::Plain, bytes_max - 1),
                (&small, Coding::Gzip, bytes_max - 1),
                (&small, Coding::Gzip, small.len() - 1),
            ] {
                let mut whole = body(bytes, frame_bytes, false);
                let large = receive(&mut whole, coding, bytes_max).await;
                assert_eq!(large, Err(Fault::Large));
            }
        }
        for bytes in [&lines[..], &small[..20]] {
            let mut whole = body(bytes, 1000, false);
            let broken = receive(&mut whole, Coding::Gzip, bytes_max).await;
            assert_eq!(broken, Err(Fault::Broken));
        }
    }

    #[tokio::test]
    async fn a_length_above_the_limit_is_refused_before_anything_is_read() {
        // It has its length, and all of it would be there.
        let mut whole = Body::from(vec![b'x'; 11]);
        let large = receive(&mut whole, Coding::Plain, 10).await;
        assert_eq!(large, Err(Fault::Large));
        assert_eq!(whole.size_hint().exact(), Some(11));
        drain(&mut whole, false).await;
        assert!(whole.is_end_stream());
        let mut waits = Body::from(vec![b'x'; 11]);
        drain(&mut waits, true).await;
        assert!(!waits.is_end_stream());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up() {
        let begin = Instant::now();
        let slow = receive(&mut body(b"a v=", 1, true), Coding::Plain, 1000).await;
        assert_eq!(slow, Err(Fault::Slow));
        let waited = Instant::now() - begin;
        assert!(waited >= Duration::from_secs(BODY_SILENT_SECONDS_MAX));
        assert!(waited < Duration::from_secs(BODY_SECONDS_MAX));
        let begin = Instant::now();
        drain(&mut body(b"a", 1, true), false).await;
        assert!(Instant::now() - begin >= Duration::from_secs(DRAINED_SECONDS_MAX));
    }

    #[test]
    fn parameters_of_influxdb_clients_are_known() {
        for (query, wanted) in [
            ("", TimeUnit::Nanoseconds),
            ("org=o&bucket=my+b&precision=ns", TimeUnit::Nanoseconds),
            (
                "db=d&precision=n&rp=&consistency=any",
                TimeUnit::Nanoseconds,
            ),
            ("precision=us&orgID=", TimeUnit::Microseconds),
            ("precision=u", TimeUnit::Microseconds),
            ("precision=ms", TimeUnit::Milliseconds),
            ("precision=s", TimeUnit::Seconds),
            ("precision=m", TimeUnit::Minutes),
            ("precision=h", TimeUnit::Hours),
        ] {
            assert_eq!(unit(query), Ok(wanted), "{query}");
        }
        for (query, thing) in [
            ("precision=d", "precision"),
            ("precision=s&precision=s", "precision"),
            ("u=me&p=secret", "u"),
            ("bucket=%zz", "bucket"),
        ] {
            assert_eq!(unit(query).unwrap_err().thing, thing, "{query}");
        }
        let coding = |name: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_ENCODING, name.parse().unwrap());
            super::coding(&headers)
        };
        assert_eq!(coding("GZIP"), Some(Coding::Gzip));
        assert_eq!(coding("identity"), Some(Coding::Plain));
        assert_eq!(coding("zstd"), None);
        assert_eq!(coding("gzip, gzip"), None);
        assert_eq!(super::coding(&HeaderMap::new()), Some(Coding::Plain));
    }

    #[test]
    fn a_sender_of_an_open_text_is_told_to_send_the_rest_again() {
        let told = |text_open_line| {
            let taken = Taken {
                accepted: 2,
                refused: 1,
                text_open_line,
                ..Taken::default()
            };
            serde_json::to_value(PartlyRefused::new(taken)).unwrap()
        };
        let closed = told(None);
        assert!(closed["text_open_line"].is_null());
        let remedy = closed["remedy"].as_str().unwrap();
        assert!(remedy.ends_with("do not send the rest again"), "{remedy}");
        let open = told(Some(7));
        assert_eq!(open["text_open_line"], 7);
        let remedy = open["remedy"].as_str().unwrap();
        assert!(
            remedy.contains("line 7") && remedy.contains("everything behind it again"),
            "{remedy}"
        );
        let message = open["message"].as_str().unwrap();
        assert_eq!(open["error"], format!("partial write: {message}"));
    }

    #[test]
    fn a_body_that_may_be_sent_again_gets_a_status_that_senders_retry() {
        for (written, status, why) in [
            (Written::Busy, 429, Refusal::Queue),
            (Written::Full, 503, Refusal::Store),
            (Written::Failed, 503, Refusal::Store),
            (Written::Late, 503, Refusal::Store),
            (Written::Stopping, 503, Refusal::Store),
        ] {
            let (counted, refused) = untaken(&written);
            assert_eq!(
                (refused.status.as_u16(), counted),
                (status, why),
                "{written:?}"
            );
            use axum::response::IntoResponse;
            let response = refused.into_response();
            let seconds = response.headers()[header::RETRY_AFTER].to_str().unwrap();
            assert!(seconds.parse::<u64>().unwrap() >= 1);
        }
    }
}
