//! The live stream as a response: server-sent events until the client goes or the node stops.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use base::error::Code;
use bytes::Bytes;
use http_body::Frame;

use super::answer::{Refused, typed};
use super::counters::Refusal;
use super::hub::Hub;
use super::query::{EventId, Query};
use super::reader::{Reader, Wanted};
use super::routes::App;
use super::values;

/// Number of streams of each client address.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<HashMap<IpAddr, u32>>);

impl Places {
    fn take(self: &Arc<Self>, client: IpAddr, all_max: u32, each_max: u32) -> Option<Place> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u32 = counts.values().sum();
        let count = counts.entry(client).or_default();
        if all >= all_max || *count >= each_max {
            if *count == 0 {
                counts.remove(&client);
            }
            return None;
        }
        *count += 1;
        Some(Place {
            places: Arc::clone(self),
            client,
        })
    }
}

/// A place for one stream, released when it is dropped.
struct Place {
    places: Arc<Places>,
    client: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.client);
            }
        }
    }
}

/// Begins a stream.
pub(crate) fn begin(
    app: &App,
    client: IpAddr,
    headers: &HeaderMap,
    mut query: Query,
) -> Result<Response, Refused> {
    let pattern = values::pattern(&*app.source, &mut query)?;
    let wanted = Wanted {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_in_all_and_for_each_address() {
        let places = Arc::new(Places::default());
        let [one, other]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let take = |client| places.take(client, 3, 2);
        let (first, _second) = (take(one).unwrap(), take(one).unwrap());
        assert!(take(one).is_none());
        let _third = take(other).unwrap();
        assert!(take(other).is_none());
        drop(first);
        assert!(take(other).is_some());
        assert!(take(one).is_some());
    }
}
