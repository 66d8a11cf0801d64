//! Forwarding over HTTP/1.1: bodies of line protocol by POST, one after the other over one connection. While one is in
//! flight, the next one is read and encoded, and the cursor is written. A body is sent from the buffer that it was
//! encoded into, and the buffer is used again.

use super::context::{Context, Leave, POLL_MS_MAX, PUBLISH_MS};
use super::forwarder::Forwarder;
use super::options::{Target, UpstreamOptions};
use super::wire::{self, Wire};
use crate::Secret;
use base::block::BlockDevice;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tls::Progress;
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{sleep, timeout};

/// Largest number of bytes read of an answer. A connection with a longer answer is closed after it.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Largest number of characters of an answer that an error quotes.
const EXCERPT_LETTERS_MAX: usize = 160;
/// Largest number of headers of an answer, and size of its buffer.
const HEADERS_MAX: usize = 64;
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// Timeout of each piece of a refusal's text.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a stop waits for an outstanding answer.
const FAREWELL: Duration = Duration::from_millis(500);
/// Longest wait that an upstream can request, in seconds.
const RETRY_AFTER_SECONDS_MAX: u64 = 3600;

/// The body of one request.
pub(crate) struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// What an upstream answers to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has accepted the request.
    Taken,
    /// It rejects the request because of its content.
    Unwanted(String),
    /// It rejects the request because of its length.
    TooLarge(String),
    /// It cannot accept anything now; the minimum wait in ms.
    Later(String, u64),
    /// It has failed, perhaps because of the request's length; the minimum wait in ms.
    Failed(String, u64),
}

/// Interprets an answer.
#[must_use]
pub fn judge(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Verdict {
    let said = excerpt(body);
    // A page in between (a portal, a proxy) also answers 200, but with a text. A server that has accepted lines sends
    // no text, or uses another status.
    if status.is_success() && (status != StatusCode::OK || said.is_empty()) {
        return Verdict::Taken;
    }
    let said = match said.is_empty() {
        true => format!("answers {status}"),
        false if status == StatusCode::OK => format!(
            "answers {status} with a text, so the readings are kept; it must answer 204, or 200 without one: {said}"
        ),
        false => format!("answers {status}: {said}"),
    };
    match status.as_u16() {
        400 | 422 => Verdict::Unwanted(said),
        413 => Verdict::TooLarge(said),
        _ => {
            let seconds = headers
                .get(header::RETRY_AFTER)
                .and_then(|value| value.to_str().ok())
                .and_then(|text| text.trim().parse::<u64>().ok());
            let wait_ms = 1000 * seconds.unwrap_or(0).min(RETRY_AFTER_SECONDS_MAX);
            let may_be_size = status == StatusCode::REQUEST_TIMEOUT
                || (status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE);
            match may_be_size {
                true => Verdict::Failed(said, wait_ms),
                false => Verdict::Later(said, wait_ms),
            }
        }
    }
}

/// Returns the beginning of an answer, printable and in one line.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body.get(..4 * EXCERPT_LETTERS_MAX).unwrap_or(body));
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    words.join(" ").chars().take(EXCERPT_LETTERS_MAX).collect()
}

/// A connection that the server has accepted.
pub(crate) struct Connection {
    sender: SendRequest<Whole>,
    head: Head,
    /// What helps if the server speaks TLS and the node does not. An answer shows that the server does not.
    hint: Option<&'static str>,
    /// The task that drives the connection, and the exchange in flight; both end with the connection.
    _driver: Ended,
}

/// A task that is aborted when this value is dropped. A detached task would keep socket and body for as long as the
/// server is silent.
struct Ended(AbortHandle);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The parts that all requests share.
struct Head {
    path: String,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
}

/// Connects. The caller sets the timeout.
pub(crate) async fn connect(
    options: &UpstreamOptions,
    progress: &Progress,
) -> Result<Connection, String> {
    let Target::Http {
        address,
        host,
        path,
        authorization,
    } = &options.target
    else {
        return Err("not an HTTP server".into());
    };
    let invalid = |_| format!("{address}: the host cannot be a header");
    let head = Head {
        path: path.clone(),
        host: HeaderValue::from_str(host).map_err(invalid)?,
        authorization: authorization.as_ref().map(header_of).transpose()?,
    };
    let wire = wire::connect(address, options.tls.as_ref(), progress).await?;
    let (sender, driver) = shake_hands(wire)
        .await
        .map_err(|error| format!("{address}: {}", wire::why(&error)))?;
    Ok(Connection {
        sender,
        head,
        hint: options.tls.is_none().then_some("give a url with https://"),
        _driver: driver,
    })
}

fn header_of(secret: &Secret) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(&secret.read()?)
        .map_err(|_| "authorization_file: its first line must be printable ASCII".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

async fn shake_hands<W: Wire + 'static>(
    wire: W,
) -> Result<(SendRequest<Whole>, Ended), hyper::Error> {
    let (sender, connection) = http1::Builder::new()
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        .handshake(TokioIo::new(wire))
        .await?;
    let driver = spawn_local(async move {
        // The task that waits for an answer gets the error.
        let _ = connection.await;
    });
    Ok((sender, Ended(driver.abort_handle())))
}

impl Head {
    fn request(&self, body: Bytes) -> Result<Request<Whole>, String> {
        let mut request = Request::post(self.path.as_str())
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, "text/plain; charset=utf-8")
            .header(
                header::USER_AGENT,
                concat!("keel/", env!("CARGO_PKG_VERSION")),
            );
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        request
            .body(Whole(Some(body)))
            .map_err(|error| error.to_string())
    }
}

impl Connection {
    /// Forwards until the connection ends or the node stops.
    pub(crate) async fn serve<D: BlockDevice + 'static>(
        &mut self,
        forwarder: &mut Forwarder<D>,
        context: &mut Context,
    ) -> Leave {
        let limit = Duration::from_millis(context.options.answer_ms_max);
        loop {
            if context.is_stopping() {
                return Leave::Stopped;
            }
            // A body that is ready goes before more of the log is read.
            let serving = (!forwarder.engine.is_waiting()).then(|| context.pull(forwarder));
            context.publish(forwarder);
            if self.sender.is_closed() && forwarder.engine.is_waiting() {
                // A server may end an idle connection.
                return Leave::Again;
            }
            let mut sent = send(forwarder);
            if sent.is_none() {
                context.write_cursor(forwarder);
                sent = send(forwarder);
            }
            let Some((token, readings)) = sent else {
                let serving = serving.unwrap_or_else(|| context.pull(forwarder));
                if !serving.more {
                    // Otherwise what was acknowledged last would be shown only after the pause.
                    context.publish_now(forwarder);
                }
                let wait_ms = serving.linger_ms.min(5 * POLL_MS_MAX);
                context.pause(serving.more, wait_ms).await;
                continue;
            };
            let body = Bytes::from(forwarder.engine.take_content());
            let request = match self.head.request(body.clone()) {
                Ok(request) => request,
                Err(why) => return Leave::Lost(why),
            };
            let answer = spawn_local(exchange(self.sender.send_request(request)));
            let _ended = Ended(answer.abort_handle());
            prepare(forwarder, context, || answer.is_finished()).await;
            let mut answer = pin!(timeout(limit, answer));
            let answer = loop {
                // Figures move on during the wait, but do not begin the farewell anew.
                tokio::select! {
                    answer = &mut answer => break answer,
                    () = sleep(Duration::from_millis(PUBLISH_MS)), if !context.is_stopping() => {
                        context.publish(forwarder);
                    }
                    () = context.stopped_for(FAREWELL) => return Leave::Stopped,
                }
            };
            let verdict = match answer {
                Err(_) => return Leave::Lost(format!("no answer within {limit:?}")),
                Ok(Ok(Ok(verdict))) => verdict,
                Ok(Ok(Err(why))) => return Leave::Lost(tls::with_hint(why, self.hint)),
                Ok(Err(failed)) => return Leave::Lost(failed.to_string()),
            };
            self.hint = None;
            match verdict {
                Verdict::Taken => {
                    context.reached();
                    context.acknowledged(forwarder, token);
                }
                Verdict::TooLarge(why) => {
                    forwarder.engine.shrink(token);
                    if let Err(leave) = context.unwanted(forwarder, token, readings, &why) {
                        return leave;
                    }
                }
                Verdict::Unwanted(why) => {
                    if let Err(leave) = context.unwanted(forwarder, token, readings, &why) {
                        return leave;
                    }
                }
                Verdict::Later(why, wait_ms) => {
                    return Leave::Later {
                        why,
                        wait_ms,
                        may_be_size: false,
                    };
                }
                Verdict::Failed(why, wait_ms) => {
                    return Leave::Later {
                        why,
                        wait_ms,
                        may_be_size: true,
                    };
                }
            }
            // The connection must become ready for the next request, or closed. It is neither if the server has
            // answered and does not read the rest of the request.
            let ready = tokio::select! {
                ready = timeout(limit, self.sender.ready()) => ready,
                () = context.stopped_for(FAREWELL) => return Leave::Stopped,
            };
            match ready {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Leave::Again,
                Err(_) => return Leave::Lost(format!("does not read requests within {limit:?}")),
            }
            if let Ok(mut buffer) = body.try_into_mut() {
                // Without content nothing is copied.
                buffer.clear();
                forwarder.engine.reuse(buffer.into());
            }
        }
    }
}

/// Returns token and number of readings of the next unit if it may be sent; it then counts as sent.
fn send<D: BlockDevice + 'static>(forwarder: &mut Forwarder<D>) -> Option<(u64, u32)> {
    let unit = forwarder.engine.send()?;
    Some((unit.token, unit.readings))
}

/// Uses the time in which a request is in flight: writes the cursor if that is due, and reads and encodes the next
/// body. Ends when that body is ready, nothing more can be read, or there is an answer. It also ends after the time
/// that an answer may take, because the wait for it is limited only afterwards.
async fn prepare<D: BlockDevice + 'static>(
    forwarder: &mut Forwarder<D>,
    context: &mut Context,
    is_answered: impl Fn() -> bool,
) {
    let begun_ms = forwarder.now_ms();
    // The request goes out first.
    tokio::task::yield_now().await;
    context.write_cursor(forwarder);
    let limit_ms = context.options.answer_ms_max;
    while !forwarder.engine.is_waiting()
        && !is_answered()
        && !context.is_stopping()
        && forwarder.now_ms().saturating_sub(begun_ms) < limit_ms
        && context.pull(forwarder).more
    {
        context.publish(forwarder);
        tokio::task::yield_now().await;
    }
}

/// Waits for an answer and reads it.
async fn exchange(
    answer: impl Future<Output = Result<Response<Incoming>, hyper::Error>>,
) -> Result<Verdict, String> {
    let response = answer.await.map_err(|error| wire::why(&error))?;
    let (head, mut body) = response.into_parts();
    let mut content = Vec::new();
    loop {
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let frame = match head.status.is_success() {
            true => frame.await,
            // The status alone makes a refusal, even if its text does not arrive.
            false => match timeout(REFUSAL_TIME_MAX, frame).await {
                Ok(frame) => frame,
                Err(_) => break,
            },
        };
        match frame {
            None => break,
            // The status alone makes a refusal, however its text ends. A success must end properly.
            Some(Err(_)) if !head.status.is_success() => break,
            Some(Err(error)) => return Err(wire::why(&error)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    content.extend_from_slice(&data);
                }
                if content.len() > ANSWER_BYTES_MAX {
                    break;
                }
            }
        }
    }
    Ok(judge(head.status, &head.headers, &content))
}

/// Interprets a byte stream as the answer to a request: for fuzzing, over a connection in memory.
#[doc(hidden)]
pub fn read_answer(bytes: &[u8]) -> Result<Verdict, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(|error| error.to_string())?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (mut reads, mut writes) = tokio::io::split(theirs);
        let bytes = bytes.to_vec();
        spawn_local(async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let mut request = [0; 1024];
            // The answer is sent once a request has arrived.
            let _ = reads.read(&mut request).await;
            let _ = writes.write_all(&bytes).await;
            let _ = writes.shutdown().await;
            while reads.read(&mut request).await.is_ok_and(|count| count > 0) {}
        });
        let (mut sender, _driver) = shake_hands(ours).await.map_err(|error| error.to_string())?;
        let head = Head {
            path: "/write".into(),
            host: HeaderValue::from_static("upstream"),
            authorization: None,
        };
        let request = head.request(Bytes::from_static(b"keel,key=a value=1 0\n"))?;
        exchange(sender.send_request(request)).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::options::Begin;
    use base::sim::{SimClock, SimDevice};
    use db::value::Value;
    use db::{CommitDriver, Database, DbOptions, Durability, ObjectSpec};
    use flash::{FormatOptions, Store};
    use std::sync::Arc;
    use tokio::sync::watch;

    /// Readings of one body: more than one step through the log finds in its short segments.
    const BODY_READINGS: u32 = 1_000;

    /// Creates an upstream whose window is two bodies, and a log of five bodies.
    fn upstream() -> (Forwarder<SimDevice>, Context, watch::Sender<bool>) {
        let format = FormatOptions {
            files_max: 128,
            name_bytes_max: 255,
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        let store = Store::format(SimDevice::new(2048, 1), &format).unwrap();
        let database = DbOptions {
            objects_max: 16,
            value_bytes_max: 40,
            queue_bytes_max: 64 << 10,
            append_bytes_max: 20 << 10,
            segment_bytes_max: 12 << 10,
            checkpoint_bytes: 12 << 10,
            checkpoint_piece_bytes_max: 2048,
            commit_driver: CommitDriver::Manual,
            ..DbOptions::default()
        };
        let clock = Arc::new(SimClock::new(7));
        let db = Arc::new(Database::open(store, clock.clone(), database).unwrap());
        let key = ObjectSpec {
            key: "k",
            avi_ms: 1000,
            temporal: true,
        };
        let id = db.declare(&key).unwrap();
        for n in 0..5 * u64::from(BODY_READINGS) {
            let mut value = [0; 16];
            let length = Value::Unsigned(n).encode(&mut value).unwrap();
            let time = db::Time::from_ms(0);
            db.put(id, &value[..length], time, Durability::Now).unwrap();
            if n % 100 == 99 {
                db.pump().unwrap();
            }
        }
        let target = Target::Http {
            address: "upstream:8086".into(),
            host: "upstream".into(),
            path: "/write".into(),
            authorization: None,
        };
        let options = UpstreamOptions {
            begin: Begin::Oldest,
            window_readings_max: 2 * BODY_READINGS,
            clock_wait_ms_max: 0,
            ..UpstreamOptions::new("test", target)
        };
        let forwarder = Forwarder::open(db, clock, options.clone()).unwrap();
        let (stop, stopped) = watch::channel(false);
        let (state, held) = (Arc::default(), Arc::default());
        let context = Context::new(options, state, stopped, held, Box::new(|| ()));
        (forwarder, context, stop)
    }

    /// Returns the number of the first reading that has not been read.
    fn unread(forwarder: &Forwarder<SimDevice>) -> Option<u64> {
        let want = forwarder.engine.want(forwarder.durable_end());
        want.map(|want| want.from)
    }

    #[tokio::test]
    async fn the_next_body_is_made_and_the_cursor_written_while_a_request_is_in_flight() {
        let (mut forwarder, mut context, _stop) = upstream();
        let none = || false;
        prepare(&mut forwarder, &mut context, none).await;
        // Of a new upstream the cursor is written before anything is sent.
        assert_eq!(forwarder.cursor_writes(), 1);
        assert_eq!(send(&mut forwarder), Some((0, BODY_READINGS)));
        prepare(&mut forwarder, &mut context, none).await;
        assert!(forwarder.engine.is_waiting());
        // One body is made ahead, and no more.
        let read = unread(&forwarder);
        prepare(&mut forwarder, &mut context, none).await;
        assert_eq!(unread(&forwarder), read);
        // Half a window has been acknowledged; the next body goes before the cursor is written.
        assert!(forwarder.engine.acknowledge(0));
        assert_eq!(send(&mut forwarder), Some((1, BODY_READINGS)));
        assert_eq!(forwarder.cursor_writes(), 1);
        prepare(&mut forwarder, &mut context, none).await;
        assert_eq!(forwarder.cursor_writes(), 2);
        assert!(forwarder.engine.is_waiting());
    }

    #[tokio::test]
    async fn an_answer_and_a_stop_end_the_reading_ahead() {
        let (mut forwarder, mut context, stop) = upstream();
        prepare(&mut forwarder, &mut context, || true).await;
        assert_eq!(unread(&forwarder), Some(0));
        stop.send_replace(true);
        prepare(&mut forwarder, &mut context, || false).await;
        assert_eq!(unread(&forwarder), Some(0));
    }
}
