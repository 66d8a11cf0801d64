//! `/openapi.json` against what real nodes answer: each answer has a status, a type and a structure that is described,
//! and no member that is not. Each description of an answer has been met once.

use crate::clients::example;
use crate::common::http::{Answer, Events, HTTP, address, answer, connect, json, post};
use crate::common::node::Node;
use crate::common::wait_until;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::net::UnixStream;

/// The routes, each with a path of it that is answered.
const ROUTES: [(&str, &str); 14] = [
    ("/", "/"),
    ("/page/{name}", "/page/page.js"),
    ("/openapi.json", "/openapi.json"),
    ("/healthz", "/healthz"),
    ("/metrics", "/metrics"),
    ("/api/v1/status", "/api/v1/status"),
    ("/api/v1/keys", "/api/v1/keys"),
    ("/api/v1/values", "/api/v1/values"),
    ("/api/v1/values/{key}", "/api/v1/values/hall/1/temperature"),
    (
        "/api/v1/history",
        "/api/v1/history?key=hall/1/temperature&key=a/t&key=a/i&points=2",
    ),
    (
        "/api/v1/readings",
        "/api/v1/readings?key=hall/1/temperature",
    ),
    ("/api/v1/stream", "/api/v1/stream?status=1"),
    ("/ping", "/ping"),
    ("/health", "/health"),
];

/// The routes to which lines are posted.
const WRITES: [&str; 2] = ["/api/v2/write", "/write"];

/// Returns the one method of a route.
fn method_of(route: &str) -> &'static str {
    if WRITES.contains(&route) {
        "post"
    } else {
        "get"
    }
}

/// The description, what contradicts it, the answers that were met, and the named schemas that a value had.
struct Description {
    text: Value,
    faults: Vec<String>,
    met: BTreeSet<(String, String)>,
    fitted: RefCell<BTreeSet<String>>,
}

fn has_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("there is no type {other}"),
    }
}

/// Returns the names of a schema's `type`.
fn types(schema: &Value) -> Vec<&str> {
    match &schema["type"] {
        Value::String(name) => vec![name.as_str()],
        Value::Array(names) => names.iter().map(|name| name.as_str().unwrap()).collect(),
        _ => Vec::new(),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

impl Description {
    fn of(address: &str) -> Self {
        Self {
            text: json(address, "/openapi.json"),
            faults: Vec::new(),
            met: BTreeSet::new(),
            fitted: RefCell::default(),
        }
    }

    /// Follows a reference.
    fn resolve<'a>(&'a self, from: &'a Value) -> &'a Value {
        let Some(to) = from["$ref"].as_str() else {
            return from;
        };
        let place = to.strip_prefix('#').and_then(|to| self.text.pointer(to));
        place.unwrap_or_else(|| panic!("there is no {to}"))
    }

    /// Returns how a value contradicts a schema. A member that the schema does not name contradicts it, too.
    fn contradictions(&self, schema: &Value, value: &Value, at: &str) -> Vec<String> {
        let name = schema["$ref"].as_str();
        let schema = self.resolve(schema);
        let mut found = Vec::new();
        for (rule, wanted) in schema.as_object().unwrap() {
            let is_kept = match rule.as_str() {
                "description" | "properties" | "additionalProperties" => true,
                "type" => types(schema).into_iter().any(|name| has_type(name, value)),
                "enum" => list(wanted).any(|one| one == value),
                "required" => list(wanted).all(|name| value.get(name.as_str().unwrap()).is_some()),
                "minItems" => list(value).count() as u64 >= wanted.as_u64().unwrap(),
                "maxItems" => list(value).count() as u64 <= wanted.as_u64().unwrap(),
                "oneOf" => {
                    let fits = |one: &&Value| self.contradictions(one, value, at).is_empty();
                    list(wanted).filter(fits).count() == 1
                }
                "items" => {
                    for (number, one) in list(value).enumerate() {
                        found.extend(self.contradictions(wanted, one, &format!("{at}[{number}]")));
                    }
                    true
                }
                "prefixItems" => {
                    for (number, (wanted, one)) in list(wanted).zip(list(value)).enumerate() {
                        found.extend(self.contradictions(wanted, one, &format!("{at}[{number}]")));
                    }
                    true
                }
                other => panic!("{at}: this test does not know {other}"),
            };
            if !is_kept {
                found.push(format!("{at}: {rule} {wanted} is not met by {value}"));
            }
        }
        let members = value.as_object().filter(|_| schema["oneOf"].is_null());
        for (name, member) in members.into_iter().flatten() {
            let at = format!("{at}.{name}");
            let named = schema["properties"].get(name);
            match named.or(schema.get("additionalProperties")) {
                Some(Value::Bool(true)) => {}
                Some(wanted) => found.extend(self.contradictions(wanted, member, &at)),
                None => found.push(format!("{at} is not described")),
            }
        }
        if found.is_empty()
            && let Some(name) = name
        {
            self.fitted.borrow_mut().insert(name.to_owned());
        }
        found
    }

    /// Returns what a schema leaves open: anything is admitted, or any members, or any items.
    fn open_places(&self, schema: &Value, at: &str) -> Vec<String> {
        if schema.get("$ref").is_some() {
            self.resolve(schema);
            return Vec::new();
        }
        let types = types(schema);
        let mut inner: Vec<(String, &Value)> = Vec::new();
        for rule in ["oneOf", "prefixItems"] {
            let all = list(&schema[rule]).enumerate();
            inner.extend(all.map(|(number, one)| (format!("{at}.{rule}[{number}]"), one)));
        }
        for rule in ["items", "additionalProperties"] {
            inner.extend(schema.get(rule).map(|one| (format!("{at}.{rule}"), one)));
        }
        let members = schema["properties"].as_object().into_iter().flatten();
        inner.extend(members.map(|(name, one)| (format!("{at}.{name}"), one)));
        let is_leaf = schema.get("enum").is_some()
            || !types.is_empty() && !types.contains(&"object") && !types.contains(&"array");
        if inner.is_empty() && !is_leaf {
            return vec![format!("{at} admits anything")];
        }
        let inner = inner.iter();
        inner
            .flat_map(|(at, one)| self.open_places(one, at))
            .collect()
    }

    /// Compares an answer with the description of its route.
    fn check(&mut self, route: &str, path: &str, answer: &Answer) {
        let status = answer.status.to_string();
        let at = format!("{path} {status}");
        self.met.insert((route.to_owned(), status.clone()));
        let responses = &self.text["paths"][route][method_of(route)]["responses"];
        let described = self.resolve(&responses[&status]);
        if described.is_object() && described.get("content").is_none() {
            assert!(answer.body.is_empty(), "{at}");
            return;
        }
        let Some(kind) = answer.headers.get("content-type") else {
            self.faults.push(format!("{at} has no type"));
            return;
        };
        let kind = kind.split(';').next().unwrap();
        let content = &described["content"][kind];
        if content.is_null() {
            self.faults.push(format!("{at}: {kind} is not described"));
            return;
        }
        let value = match kind {
            "application/json" => answer.json(),
            _ => Value::String(answer.text().to_owned()),
        };
        let mut found = self.contradictions(&content["schema"], &value, &at);
        if let Some(lines) = content.get("x-lines") {
            for line in answer.text().lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                found.extend(self.contradictions(lines, &line, &at));
            }
        }
        self.faults.extend(found);
    }

    /// The same for an event of the stream.
    fn check_event(&mut self, event: &str, data: &Value) {
        let answers = &self.text["paths"]["/api/v1/stream"]["get"]["responses"];
        let events = &answers["200"]["content"]["text/event-stream"]["x-events"];
        let found = match events.get(event) {
            Some(schema) => self.contradictions(schema, data, event),
            None => vec![format!("the event {event} is not described")],
        };
        self.faults.extend(found);
    }
}

/// Sends a request that says that its connection ends with the answer.
fn ask(address: &str, path: &str, headers: &str) -> Answer {
    let mut stream = connect(address);
    let request = format!("GET {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    answer(&mut stream)
}

/// Returns a path of the same route with a parameter that no route takes.
fn with_stranger(path: &str) -> String {
    let bare = path.split('?').next().unwrap();
    format!("{bare}?stranger=1")
}

/// A node that has everything its status can speak of. Brokers and servers do not exist.
fn full_node() -> Node {
    let config = format!(
        r#"{HTTP}
requests_per_second_max = 1000
write = true
write_kibibytes_max = 16
[region]
file = "region"
create_mebibytes = 32
[mqtt]
address = "127.0.0.1:1"
client_id = "keel-described"
[[mqtt.subscribe]]
filter = "sensors/#"
[[modbus]]
address = "tcp://127.0.0.1:1"
[[modbus.register]]
key = "meter"
table = "input"
address = 0
[[upstream]]
name = "cloud"
kind = "http"
url = "http://127.0.0.1:1/write"
[[broker]]
name = "local"
address = "127.0.0.1:1"
client_id = "keel-described-too"
[[alarm]]
name = "hot"
pattern = "hall/+/temperature"
above = 60.0
broker = "local"
command = ["true"]
[[actuator]]
name = "valve"
pattern = "boiler/valve"
broker = "local"
[[task]]
name = "valve"
command = [{:?}, "keel-data/keel.sock", "1000000"]
[[job]]
name = "knock"
kernel = "vibration"
key = "hall/1/temperature"
out = "knock.json"
[[mount]]
name = "plant"
server = "127.0.0.1:1"
directory = "plant"
insecure = true
"#,
        example()
    );
    let node = Node::start(&config);
    // Values of every type, numbers whose sum is none, and input that is refused.
    for (key, value) in [
        ("hall/1/temperature", "1.7e308"),
        ("hall/1/temperature", "1.7e308"),
        ("boiler/celsius", "60"),
    ] {
        node.ok(&["put", key, value]);
    }
    let mut line = UnixStream::connect(node.dir.file("line.sock")).unwrap();
    line.write_all(b"a i=-5i,u=18446744073709551615u,b=true,t=\"open\"\nbad\n")
        .unwrap();
    node
}

/// Waits until the status has at least one of everything.
fn wait_for_everything(address: &str) {
    wait_until("a status with everything", || {
        let status = json(address, "/api/v1/status");
        let lists = [
            "/reasons",
            "/modbus",
            "/upstream",
            "/brokers",
            "/alarms",
            "/alarms_active",
            "/actuators",
            "/jobs",
            "/mounts",
            "/tasks",
            "/qos/tasks",
        ];
        let is_there = |list: &&str| {
            status
                .pointer(list)
                .is_some_and(|list| *list != Value::Array(Vec::new()))
        };
        lists.iter().all(is_there)
            && [
                "/mqtt",
                "/region",
                "/http",
                "/qos/last",
                "/intake/refused_last/line_invalid",
                "/alarms/0/command",
            ]
            .iter()
            .all(|place| status.pointer(place).is_some_and(|place| !place.is_null()))
    });
}

#[test]
fn every_answer_is_as_described_and_every_described_answer_is_given() {
    let mut full = full_node();
    let full_address = address(&full);
    wait_for_everything(&full_address);
    let mut description = Description::of(&full_address);
    let routes = description.text["paths"].as_object().unwrap().keys();
    let routes: BTreeSet<&str> = routes.map(String::as_str).collect();
    let tried = ROUTES.iter().map(|(route, _)| *route).chain(WRITES);
    let tried: BTreeSet<&str> = tried.collect();
    assert_eq!(routes, tried);

    let own = "host: localhost\r\n";
    for (route, path) in ROUTES {
        if route != "/api/v1/stream" {
            description.check(route, path, &ask(&full_address, path, own));
        }
        for (path, headers) in [
            (with_stranger(path), own),
            (path.to_owned(), "host: evil.example\r\n"),
            (path.to_owned(), "host: localhost\r\ncontent-length: 1\r\n"),
        ] {
            description.check(route, &path, &ask(&full_address, &path, headers));
        }
    }
    for (route, path) in [
        ("/page/{name}", "/page/nothing"),
        ("/page/{name}", "/page/%ff"),
        ("/api/v1/values/{key}", "/api/v1/values/nothing"),
        ("/api/v1/values/{key}", "/api/v1/values/%ff"),
        ("/api/v1/history", "/api/v1/history?key=nothing"),
        ("/api/v1/readings", "/api/v1/readings?key=nothing"),
        ("/api/v1/readings", "/api/v1/readings?key=a/t&format=csv"),
    ] {
        description.check(route, path, &ask(&full_address, path, own));
    }

    for route in WRITES {
        for (query, headers, body, status) in [
            ("", "", &b"written v=1"[..], 204),
            ("?precision=s&db=any&org=any", "", b"written v=1\n", 204),
            ("", "", b"written v=1\nbad\n", 400),
            ("?stranger=1", "", b"", 400),
            ("", "content-encoding: gzip\r\n", b"none", 400),
            ("", "origin: http://evil.example\r\n", b"", 403),
            ("", "content-encoding: zstd\r\n", b"", 415),
            ("", "", &[b'x'; 17 << 10], 413),
        ] {
            let path = format!("{route}{query}");
            let answer = post(&full_address, &path, headers, body);
            assert_eq!(answer.status, status, "{path}: {}", answer.text());
            description.check(route, &path, &answer);
        }
    }

    let mut stream = Events::begin(&full_address, "/api/v1/stream?status=1", "");
    description
        .met
        .insert(("/api/v1/stream".into(), "200".into()));
    let mut events = BTreeSet::new();
    while events.len() < 3 {
        let (event, _, data) = stream.next().unwrap();
        description.check_event(&event, &data);
        events.insert(event);
    }
    assert!(
        events.iter().eq(["hello", "status", "values"]),
        "{events:?}"
    );

    let mut closed = Node::prepare(&format!("{HTTP}token_file = \"tokens\"\n"));
    std::fs::write(closed.dir.file("tokens"), "phone 0123456789abcdef\n").unwrap();
    closed.restart();
    let closed_address = address(&closed);
    let slow = Node::start(&format!("{HTTP}requests_per_second_max = 1\n"));
    let slow_address = address(&slow);
    let busy = Node::start(&format!("{HTTP}connections_max = 1\n"));
    let busy_address = address(&busy);
    let mut holder = Events::begin(&busy_address, "/api/v1/stream", "");
    holder.next().unwrap();
    // The node answers at once, before any request.
    let no_place = answer(&mut connect(&busy_address));
    assert_eq!(no_place.status, 503);
    for (route, path) in ROUTES {
        description.check(route, path, &no_place);
        if !matches!(
            route,
            "/" | "/page/{name}" | "/healthz" | "/openapi.json" | "/ping" | "/health"
        ) {
            let refused = ask(&closed_address, path, own);
            assert_eq!(refused.status, 401, "{path}");
            description.check(route, path, &refused);
        }
        let path = with_stranger(path);
        wait_until("the limit of requests", || {
            let refused = ask(&slow_address, &path, own);
            description.check(route, &path, &refused);
            refused.status == 429
        });
    }

    for route in WRITES {
        description.check(route, route, &no_place);
        let refused = post(&closed_address, route, "", b"a v=1");
        assert_eq!(refused.status, 401, "{route}");
        description.check(route, route, &refused);
        // Clients of version 1 drop the lines at 429.
        let wanted = if route == "/write" { 503 } else { 429 };
        wait_until("the limit of requests", || {
            let refused = post(&slow_address, route, "", b"a v=1");
            description.check(route, route, &refused);
            refused.status == wanted
        });
    }

    assert_eq!(description.faults, Vec::<String>::new());
    let mut left = BTreeSet::new();
    for (route, item) in description.text["paths"].as_object().unwrap() {
        let responses = &item[method_of(route)]["responses"];
        for status in responses.as_object().unwrap().keys() {
            left.insert((route.clone(), status.clone()));
        }
    }
    left.retain(|one| !description.met.contains(one));
    // A card that fails, a value whose writer stops within it, and a build without the live page.
    let mut not_here = vec![("/api/v1/history", "500"), ("/api/v1/values/{key}", "504")];
    if !egress::http::has_page() {
        not_here.push(("/page/{name}", "200"));
    }
    left.retain(|(route, status)| !not_here.contains(&(route.as_str(), status.as_str())));
    assert!(left.is_empty(), "described and never given: {left:?}");
    // Readings lost to a reader that is too slow, a sensor of power, a key whose updates are left out.
    let not_here = ["Missed", "Power", "QosShedKey"];
    let schemas = description.text["components"]["schemas"].as_object();
    let mut unseen: Vec<&str> = schemas.unwrap().keys().map(String::as_str).collect();
    let fitted = description.fitted.borrow();
    unseen.retain(|name| {
        !not_here.contains(name) && !fitted.contains(&format!("#/components/schemas/{name}"))
    });
    assert!(unseen.is_empty(), "described and never seen: {unseen:?}");
    drop(fitted);
    assert!(full.stop().success());
}

#[test]
fn no_schema_of_an_answer_admits_anything() {
    let node = Node::start(HTTP);
    let description = Description::of(&address(&node));
    let text = &description.text;
    let mut found = Vec::new();
    let mut optional = Vec::new();
    for (name, schema) in text["components"]["schemas"].as_object().unwrap() {
        found.extend(description.open_places(schema, name));
        // A member that must be there and is not described cannot be checked.
        let required = list(&schema["required"]).map(|member| member.as_str().unwrap());
        let required: Vec<&str> = required.collect();
        let unknown = required.iter();
        let unknown = unknown.filter(|member| schema["properties"].get(**member).is_none());
        found
            .extend(unknown.map(|member| format!("{name}.{member} is required and not described")));
        let members = schema["properties"].as_object().into_iter().flatten();
        let others = members.filter(|(member, _)| !required.contains(&member.as_str()));
        optional.extend(others.map(|(member, _)| format!("{name}.{member}")));
    }
    for (route, item) in text["paths"].as_object().unwrap() {
        let responses = &item[method_of(route)]["responses"];
        for (status, described) in responses.as_object().unwrap() {
            let content = &description.resolve(described)["content"];
            // An answer without content has nothing to describe.
            for (kind, one) in content.as_object().into_iter().flatten() {
                let at = format!("{route} {status} {kind}");
                found.extend(description.open_places(&one["schema"], &at));
                let parts = match kind.as_str() {
                    "text/event-stream" => one["x-events"]
                        .as_object()
                        .map(|all| all.values().collect()),
                    "application/x-ndjson" => one.get("x-lines").map(|lines| vec![lines]),
                    _ => Some(Vec::new()),
                };
                let parts: Vec<&Value> = parts.unwrap_or_else(|| panic!("{at} has no parts"));
                found.extend(
                    parts
                        .into_iter()
                        .flat_map(|part| description.open_places(part, &at)),
                );
            }
        }
    }
    // A member that is not required could be missing always. Tests of writing and of integers look at some of them.
    let wanted = [
        "Latest.retained",
        "Latest.value_text",
        "Reading.recorded_ms",
        "Reading.recorded_ns",
        "Reading.value_text",
        "Refused.error",
        "Refused.message",
    ];
    assert_eq!(optional, wanted);
    // The description does not describe how descriptions are written.
    let itself = "/openapi.json 200 application/json.additionalProperties admits anything";
    assert_eq!(found, [itself]);
}
