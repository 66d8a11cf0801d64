//! The query parameters in `/openapi.json` against those that the routes read: names, types, limits, and which of them
//! a request must have.

use super::app::App;
use super::counters::Counters;
use super::hub::Hub;
use super::limits::{HistoryPermits, Pace, Places};
use super::options::{HttpOptions, WriteLimits};
use super::query::asked::{self, Kind};
use super::routes::{self, Client, OPENAPI};
use super::source::Source;
use super::status::status_channel;
use super::write_queue::write_channel;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use db::{Error, Got, HistoryCursor, HistoryEntry, HistoryQuery, Key, ObjectId};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// A database without keys.
struct Nothing;

impl Source for Nothing {
    fn objects(&self) -> u32 {
        0
    }
    fn key(&self, _: ObjectId) -> Key {
        unreachable!("there are no keys")
    }
    fn lookup(&self, _: &str) -> Option<ObjectId> {
        None
    }
    fn validity(&self, _: ObjectId) -> (u32, bool) {
        unreachable!("there are no keys")
    }
    fn get(&self, _: ObjectId, _: &mut [u8]) -> Result<Got, Error> {
        unreachable!("there are no keys")
    }
    fn puts(&self, _: ObjectId) -> u32 {
        unreachable!("there are no keys")
    }
    fn history(
        &self,
        _: &HistoryQuery,
        _: &mut HistoryCursor,
        _: &mut dyn FnMut(&HistoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<bool, Error> {
        unreachable!("there are no keys")
    }
    fn wall_ms(&self) -> i64 {
        5_000
    }
    fn check_pattern(&self, _: &str) -> Result<(), String> {
        Ok(())
    }
    fn matches(&self, _: &str, _: &str) -> bool {
        true
    }
}

fn app() -> Arc<App> {
    let mut options = HttpOptions::new("127.0.0.1:0".parse().unwrap());
    options.write = Some(WriteLimits {
        writes_max: 1,
        body_bytes_max: 1_000,
    });
    let counters = Arc::new(Counters::default());
    // No node answers, so a valid query is refused later. That does not matter here.
    let (asker, _) = status_channel();
    let (writer, _) = write_channel();
    Arc::new(App {
        source: Arc::new(Nothing),
        hub: Arc::new(Hub::new(1, options.stream_period_ms, Arc::clone(&counters))),
        options,
        counters,
        asker,
        places: Arc::new(Places::default()),
        history_permits: HistoryPermits::default(),
        bodies: Arc::new(Semaphore::new(1)),
        writer,
        pace: Pace::new(1_000, Instant::now()),
        write_pace: Pace::new(1_000, Instant::now()),
        handshake_pace: Pace::new(1_000, Instant::now()),
    })
}

/// A route, and how to ask it.
struct Route<'a> {
    app: &'a App,
    router: &'a Router,
    method: &'a str,
    path: String,
}

/// What a route said to a query, and what it has read of it.
struct Said {
    status: StatusCode,
    /// The parameter that was refused, if any.
    refused: Option<String>,
    asked: BTreeMap<String, Kind>,
}

impl Route<'_> {
    async fn ask(&self, query: &[(&str, &str)]) -> Said {
        let pairs: Vec<String> = query
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let request = Request::builder()
            .method(self.method)
            .uri(format!("{}?{}", self.path, pairs.join("&")))
            .header(header::HOST, "localhost")
            .extension(Client(IpAddr::V4(Ipv4Addr::LOCALHOST)))
            .body(Body::empty())
            .unwrap();
        asked::take();
        let answer = routes::answer(self.app, self.router, request).await;
        let asked = asked::take();
        let status = answer.status();
        let refused = match status {
            StatusCode::BAD_REQUEST => {
                let body = axum::body::to_bytes(answer.into_body(), 1 << 16).await;
                let body: Value = serde_json::from_slice(&body.unwrap()).unwrap();
                Some(body["thing"].as_str().unwrap().to_owned())
            }
            _ => None,
        };
        Said {
            status,
            refused,
            asked,
        }
    }
}

/// Returns whether a schema describes what is read.
fn fits(schema: &Value, kind: Kind) -> bool {
    let limit = |limit: i64, none: i64| match limit == none {
        true => Value::Null,
        false => Value::from(limit),
    };
    match kind {
        Kind::Text => schema["type"] == "string" || is_list_of_texts(&schema["enum"]),
        Kind::Texts => schema["type"] == "array" && schema["items"]["type"] == "string",
        Kind::Integer(low, high) => {
            schema["type"] == "integer"
                && schema["minimum"] == limit(low, i64::MIN)
                && schema["maximum"] == limit(high, i64::MAX)
        }
        Kind::Flag => schema["enum"] == serde_json::json!(["0", "1"]),
    }
}

fn is_list_of_texts(value: &Value) -> bool {
    value
        .as_array()
        .is_some_and(|all| all.iter().all(Value::is_string))
}

#[tokio::test(flavor = "current_thread")]
async fn the_description_has_the_parameters_that_each_route_reads_and_no_other() {
    let app = app();
    let router = routes::router(Arc::clone(&app));
    let description: Value = serde_json::from_str(OPENAPI).unwrap();
    let mut read = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, described) in methods.as_object().unwrap() {
            let method = method.to_uppercase();
            let route = Route {
                app: &app,
                router: &router,
                method: &method,
                path: path.replace("{key}", "none").replace("{name}", "none"),
            };
            let at = format!("{method} {path}");
            let all = described["parameters"].as_array().into_iter().flatten();
            let described: BTreeMap<&str, &Value> = all
                .filter(|one| one["in"] == "query")
                .map(|one| (one["name"].as_str().unwrap(), one))
                .collect();

            let bare = route.ask(&[]).await;
            let asked: Vec<&str> = bare.asked.keys().map(String::as_str).collect();
            let names: Vec<&str> = described.keys().copied().collect();
            assert_eq!(asked, names, "{at} reads what is on the left");
            for (name, kind) in &bare.asked {
                let schema = &described[name.as_str()]["schema"];
                assert!(
                    fits(schema, *kind),
                    "{at}: {name} is read as {kind:?}, described as {schema}"
                );
                read.insert(format!("{kind:?}").split('(').next().unwrap().to_owned());
            }

            // With one of them missing it is the one that is refused; with all of them there is nothing to refuse.
            let required: Vec<(&str, &str)> = described
                .iter()
                .filter(|(_, one)| one["required"] == true)
                .map(|(name, _)| (*name, "none"))
                .collect();
            for (name, _) in &required {
                let others: Vec<(&str, &str)> = required
                    .iter()
                    .filter(|(other, _)| other != name)
                    .copied()
                    .collect();
                let said = route.ask(&others).await;
                assert_eq!(said.refused.as_deref(), Some(*name), "{at} without {name}");
            }
            let said = route.ask(&required).await;
            assert_eq!(
                said.refused, None,
                "{at} with {required:?}: {}",
                said.status
            );

            for (name, one) in &described {
                let Some(values) = one["schema"]["enum"].as_array() else {
                    continue;
                };
                let values = values.iter().map(|value| (value.as_str().unwrap(), None));
                for (value, refused) in values.chain([("stranger", Some(*name))]) {
                    let mut query = required.clone();
                    query.push((*name, value));
                    let said = route.ask(&query).await;
                    assert_eq!(said.refused.as_deref(), refused, "{at} with {name}={value}");
                }
            }
        }
    }
    // The test has seen a parameter of each kind.
    assert_eq!(Vec::from_iter(read), ["Flag", "Integer", "Text", "Texts"]);
}
