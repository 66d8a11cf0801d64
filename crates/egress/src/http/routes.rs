//! From a request to an answer: what is checked first, and where each path leads.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, RawQuery, State as Shared};
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base::error::Code;
use serde::Serialize;
use tokio::time::Instant;
use tower_service::Service;

use super::access::{Admission, Right, is_own_host};
use super::answer::{JSON, Refused, json, typed};
use super::app::App;
use super::counters::{Refusal, add};
use super::history;
use super::metrics;
use super::page;
use super::query::Query;
use super::status::State;
use super::stream;
use super::values::{self, Shape};
use super::write;

/// The client's address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client(pub(crate) IpAddr);

/// Returns whether a path needs no token: content that is the same on every node, and one word of health.
fn is_public(path: &str) -> bool {
    matches!(
        path,
        "/" | "/healthz" | "/openapi.json" | "/ping" | "/health"
    ) || path.starts_with("/page/")
}

/// Returns whether requests to a path write readings.
fn is_write(path: &str) -> bool {
    matches!(path, "/api/v2/write" | "/write")
}

/// The routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(|| async { page::index() }))
        .route("/page/{name}", get(page_file))
        .route("/openapi.json", get(|| async { typed(JSON, OPENAPI) }))
        .route("/healthz", get(health))
        .route("/metrics", get(metric_text))
        .route("/api/v1/status", get(status))
        .route("/api/v1/keys", get(keys))
        .route("/api/v1/values", get(all_values))
        .route("/api/v1/values/{*key}", get(one_value))
        .route("/api/v1/history", get(points))
        .route("/api/v1/readings", get(readings))
        .route("/api/v1/stream", get(begin_stream))
        .route("/api/v2/write", post(write_lines))
        .route("/write", post(write_lines))
        .route("/ping", get(|| async { ping() }))
        .route("/health", get(health_of_influxdb))
        .fallback(|| async {
            let remedy = "see /openapi.json for what there is";
            Refused::new(Code::NotFound, "address", "there is nothing here", remedy)
        })
        .with_state(app)
}

/// The description of the API.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

/// Answers one request.
pub(crate) async fn answer<B>(app: &App, router: &Router, request: Request<B>) -> Response
where
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let is_write = is_write(request.uri().path());
    // Clients of version 1 drop the lines at every status of 4xx, and come back at 503.
    let is_version_1 = request.uri().path() == "/write";
    let mut response = match check(app, &request) {
        Ok(()) => {
            // The router is always ready.
            let answered = router.clone().call(request.map(Body::new)).await;
            answered.unwrap_or_else(|never| match never {})
        }
        Err(refused) if is_write => refused.with_message().into_response(),
        Err(refused) => refused.into_response(),
    };
    if is_version_1 && response.status() == StatusCode::TOO_MANY_REQUESTS {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    add(&app.counters.requests, 1);
    if response.status().is_client_error() || response.status().is_server_error() {
        add(&app.counters.requests_failed, 1);
    }
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            header::CONTENT_SECURITY_POLICY,
            page::CONTENT_SECURITY_POLICY,
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Checks what must hold for every request.
fn check<B: http_body::Body>(app: &App, request: &Request<B>) -> Result<(), Refused> {
    let is_write = is_write(request.uri().path());
    let refuse = |why: Refusal, refused: Refused| {
        app.counters.refuse(why);
        Err(refused)
    };
    let right = if is_write { Right::Write } else { Right::Read };
    let admission = admission(app, request, right);
    let is_of_page = is_write && request.headers().contains_key(header::ORIGIN);
    // Only a POST says whether it is of a page: browsers name no origin of a GET.
    let may_write = *request.method() == Method::POST && app.options.write.is_some() && !is_of_page;
    let is_writer = is_write && may_write && admission == Admission::Admitted;
    let pace = if is_writer {
        &app.write_pace
    } else {
        &app.pace
    };
    if !pace.admit(Instant::now()) {
        if is_writer {
            add(&app.counters.writes_turned_away, 1);
        }
        let wrong = format!(
            "more than {} in a second",
            app.options.requests_per_second_max
        );
        let refused = Refused::new(Code::Busy, "requests", wrong, "ask less often");
        return refuse(
            Refusal::Rate,
            refused.with_status(StatusCode::TOO_MANY_REQUESTS),
        );
    }
    if !is_write && !request.body().is_end_stream() {
        let remedy = "send none: lines go to /api/v2/write";
        let refused = Refused::new(Code::Invalid, "request", "has a body", remedy);
        return refuse(
            Refusal::Body,
            refused.with_status(StatusCode::PAYLOAD_TOO_LARGE),
        );
    }
    let (is_answered, remedy) = if is_write {
        (*request.method() == Method::POST, "use POST")
    } else {
        let is_answered = matches!(*request.method(), Method::GET | Method::HEAD);
        (is_answered, "nothing can be written here: use GET")
    };
    if !is_answered {
        let refused = Refused::new(
            Code::Unsupported,
            request.method().as_str(),
            "is not answered",
            remedy,
        );
        return Err(refused.with_status(StatusCode::METHOD_NOT_ALLOWED));
    }
    if app.options.tokens.is_empty() {
        // Needed even if all clients may read: a foreign page must not lead a browser here under a name of its own.
        if !is_own_host(request.headers(), &app.options.hosts) {
            let remedy = "call it by its address, or name it in http.hosts";
            let wrong = "is no name of this node";
            let refused = Refused::new(Code::Denied, "Host", wrong, remedy);
            return refuse(Refusal::Host, refused);
        }
    }
    // A page may send lines to an address without being able to read the answer, and a browser may add credentials that
    // it has kept. Browsers name the page's origin.
    if is_of_page {
        let remedy = "send lines from a program";
        let refused = Refused::new(Code::Denied, "Origin", "is that of a page", remedy);
        return refuse(Refusal::Origin, refused);
    }
    match admission {
        Admission::Admitted => {}
        Admission::Unknown => {
            let remedy = "send `Authorization: Bearer TOKEN` with a token of http.token_file";
            let refused = Refused::new(Code::Denied, "token", "is missing or wrong", remedy);
            return refuse(
                Refusal::Token,
                refused.with_status(StatusCode::UNAUTHORIZED),
            );
        }
        Admission::NotPermitted => {
            let (wrong, remedy) = if is_write {
                let remedy = "write `write` or `read,write` behind it in http.token_file";
                ("has no right to write", remedy)
            } else {
                let remedy = "write `read,write` behind it in http.token_file";
                ("has no right to read", remedy)
            };
            let refused = Refused::new(Code::Denied, "token", wrong, remedy);
            return refuse(Refusal::Right, refused);
        }
    }
    if is_write && app.options.write.is_none() {
        return refuse(Refusal::WriteOff, write::off());
    }
    Ok(())
}

/// Returns what the tokens say of a request; each client is admitted where there are none, and where none is needed.
fn admission<B>(app: &App, request: &Request<B>, right: Right) -> Admission {
    if app.options.tokens.is_empty() || is_public(request.uri().path()) {
        return Admission::Admitted;
    }
    app.options.tokens.admit(request.headers(), right)
}

fn query(text: Option<String>) -> Result<Query, Refused> {
    Ok(Query::parse(&text.unwrap_or_default())?)
}

type Answer = Result<Response, Refused>;
type InPath = Result<Path<String>, PathRejection>;

/// Returns the part of a path that a route leaves open.
fn text_of(part: InPath) -> Result<String, Refused> {
    let Ok(Path(text)) = part else {
        let wrong = "holds bytes that are no UTF-8";
        let remedy = "write the bytes of its UTF-8 as %XX";
        return Err(Refused::new(Code::Invalid, "address", wrong, remedy));
    };
    Ok(text)
}

async fn page_file(name: InPath) -> Answer {
    Ok(page::file(&text_of(name)?))
}

async fn health(Shared(app): Shared<Arc<App>>) -> Response {
    let state = app.asker.status().await.map(|status| status.state);
    let (status, word) = health_of(state);
    let mut response = typed("text/plain; charset=utf-8", word);
    *response.status_mut() = status;
    response
}

/// Returns status and word of a state; `None`: the node says nothing of itself.
fn health_of(state: Option<State>) -> (StatusCode, &'static str) {
    match state {
        Some(State::Ok) => (StatusCode::OK, "ok\n"),
        Some(State::Degraded) => (StatusCode::OK, "degraded\n"),
        Some(State::Failed) => (StatusCode::SERVICE_UNAVAILABLE, "failed\n"),
        None => (StatusCode::SERVICE_UNAVAILABLE, "unknown\n"),
    }
}

/// Answers clients of InfluxDB that look whether there is a server.
fn ping() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    for (name, value) in [
        ("x-influxdb-build", "Evenkeel"),
        ("x-influxdb-version", env!("CARGO_PKG_VERSION")),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Health in the form of InfluxDB.
#[derive(Debug, Serialize)]
struct Health {
    name: &'static str,
    status: &'static str,
    message: &'static str,
    version: &'static str,
}

async fn health_of_influxdb(Shared(app): Shared<Arc<App>>) -> Response {
    let state = app.asker.status().await.map(|status| status.state);
    let (code, word) = health_of(state);
    let mut response = json(&Health {
        name: "keel",
        status: if code == StatusCode::OK {
            "pass"
        } else {
            "fail"
        },
        message: word.trim_end(),
        version: env!("CARGO_PKG_VERSION"),
    });
    *response.status_mut() = code;
    response
}

async fn write_lines(Shared(app): Shared<Arc<App>>, request: Request<Body>) -> Answer {
    let answered = write::write(&app, request).await;
    answered.map_err(Refused::with_message)
}

/// The error when the node does not answer: it stops, or is overloaded.
fn silent() -> Refused {
    Refused::new(
        Code::Busy,
        "node",
        "says nothing of itself now",
        "ask again",
    )
}

async fn status(Shared(app): Shared<Arc<App>>, RawQuery(text): RawQuery) -> Answer {
    query(text)?.finish()?;
    let status = app.asker.status().await.ok_or_else(silent)?;
    Ok(typed(JSON, status.bytes.clone()))
}

async fn metric_text(Shared(app): Shared<Arc<App>>, RawQuery(text): RawQuery) -> Answer {
    query(text)?.finish()?;
    let status = app.asker.status().await.ok_or_else(silent)?;
    Ok(typed(metrics::CONTENT_TYPE, metrics::text(&status.json)))
}

async fn keys(Shared(app): Shared<Arc<App>>, RawQuery(text): RawQuery) -> Answer {
    values::list(Arc::clone(&app.source), query(text)?, Shape::Keys)
}

async fn all_values(Shared(app): Shared<Arc<App>>, RawQuery(text): RawQuery) -> Answer {
    values::list(Arc::clone(&app.source), query(text)?, Shape::Values)
}

async fn one_value(Shared(app): Shared<Arc<App>>, key: InPath, RawQuery(text): RawQuery) -> Answer {
    query(text)?.finish()?;
    values::one(&*app.source, &text_of(key)?)
}

async fn points(Shared(app): Shared<Arc<App>>, RawQuery(text): RawQuery) -> Answer {
    history::points(&app, query(text)?).await
}

async fn readings(Shared(app): Shared<Arc<App>>, RawQuery(text): RawQuery) -> Answer {
    history::readings(&app, query(text)?)
}

async fn begin_stream(
    Shared(app): Shared<Arc<App>>,
    Extension(Client(client)): Extension<Client>,
    headers: HeaderMap,
    RawQuery(text): RawQuery,
) -> Answer {
    stream::begin(&app, client, &headers, query(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_description_names_every_route_and_no_other() {
        let code = include_str!("routes.rs").split("#[cfg(test)]").next();
        let routes = code.unwrap_or_default().split(".route(").skip(1);
        let routes: BTreeSet<String> = routes
            .map(|rest| rest.split('"').nth(1).unwrap().replace("{*", "{"))
            .collect();
        assert!(routes.contains("/api/v1/values/{key}"), "{routes:?}");
        let description: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        let described = description["paths"].as_object().unwrap().keys();
        assert_eq!(described.cloned().collect::<BTreeSet<_>>(), routes);
        assert_eq!(description["openapi"], "3.1.0");
    }

    #[test]
    fn the_description_has_every_state_and_no_other() {
        let states = [State::Ok, State::Degraded, State::Failed];
        for state in states {
            // A new state does not compile here until it is in the list.
            match state {
                State::Ok | State::Degraded | State::Failed => {}
            }
        }
        let description: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        let strings = |list: &serde_json::Value| -> BTreeSet<String> {
            let list = list.as_array().expect("an enum").iter();
            list.map(|word| word.as_str().unwrap().to_owned()).collect()
        };
        let answers = &description["paths"]["/healthz"]["get"]["responses"];
        for code in [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE] {
            let described = &answers[code.as_str()]["content"]["text/plain"]["schema"]["enum"];
            let answered = states.map(Some).into_iter().chain([None]).map(health_of);
            let words = answered.filter(|(status, _)| *status == code);
            let words: BTreeSet<String> = words.map(|(_, word)| word.to_owned()).collect();
            assert_eq!(strings(described), words, "{code}");
        }
        let described = &description["components"]["schemas"]["Status"]["properties"]["state"];
        let names: BTreeSet<String> = states.map(|state| state.name().to_owned()).into();
        assert_eq!(strings(&described["enum"]), names);
    }
}
