//! The live stream as a response: server-sent events until the client goes or the node stops.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use base::error::Code;
use bytes::Bytes;
use http_body::Frame;

use super::answer::{Refused, typed};
use super::app::App;
use super::counters::Refusal;
use super::hub::Hub;
use super::limits::Place;
use super::query::{EventId, Query};
use super::reader::{Reader, StreamRequest};
use super::values;

/// Begins a stream.
pub(crate) fn begin(
    app: &App,
    client: IpAddr,
    headers: &HeaderMap,
    mut query: Query,
) -> Result<Response, Refused> {
    let pattern = values::pattern(&*app.source, &mut query)?;
    let wanted = StreamRequest {
        pattern,
        current: query.flag("current")?.unwrap_or(true),
        status: query.flag("status")?.unwrap_or(false),
        seen: headers
            .get("last-event-id")
            .and_then(|value| EventId::parse(value.as_bytes())),
    };
    query.finish()?;
    let options = &app.options;
    let place = app
        .places
        .take(client, options.streams_max, options.streams_per_client_max);
    let Some(place) = place else {
        app.counters.refuse(Refusal::Streams);
        let wrong = format!(
            "there are {} already, or {} of {client}",
            options.streams_max, options.streams_per_client_max
        );
        let remedy = "end one of them, or raise http.streams_max or http.streams_per_client_max";
        let refused = Refused::new(Code::Busy, "stream", wrong, remedy);
        return Err(refused.with_status(StatusCode::TOO_MANY_REQUESTS));
    };
    let reader = Reader::new(wanted, options.stream_bytes_max as usize);
    app.hub.join(&reader);
    let body = Messages {
        reader,
        hub: Arc::clone(&app.hub),
        _place: place,
    };
    Ok(typed("text/event-stream", Body::new(body)))
}

/// The messages of one reader.
struct Messages {
    reader: Arc<Reader>,
    hub: Arc<Hub>,
    _place: Place,
}

impl http_body::Body for Messages {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.reader.next(context.waker()) {
            Ok(message) => Poll::Ready(message.map(|message| Ok(Frame::data(message)))),
            Err(()) => Poll::Pending,
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.hub.leave(&self.reader);
    }
}
