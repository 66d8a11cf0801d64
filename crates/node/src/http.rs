//! The HTTP side of the node: what it receives from database and status. The crate `egress` implements the rest.

use super::clock::NodeClock;
use super::database::{Db, Target};
use super::state::Node;
use super::{figures, log};
use crate::status;
use command::error::CliError;
use command::random;
use config::{Config, HttpConfig};
use db::{Error, Got, HistoryCursor, HistoryEntry, HistoryQuery, Key, ObjectId};
use egress::http::{
    self, HttpOptions, Question, Questions, Running, Source, State, Status, Tokens, WriteLimits,
    Writes,
};
use ingest::intake::Destination;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::watch as latest;

/// A bound listener.
pub(crate) struct Http {
    bound: http::Bound,
    scheme: &'static str,
}

/// The future that serves.
type Serves = Pin<Box<dyn Future<Output = ()>>>;

/// The running HTTP side.
pub(crate) struct Serving {
    pub(crate) running: Running,
    pub(crate) serves: Serves,
    pub(crate) questions: Questions,
    pub(crate) writes: Writes,
}

/// The database as the HTTP side sees it.
struct NodeSource {
    db: Arc<Db>,
    target: Arc<Target>,
}

impl Source for NodeSource {
    fn objects(&self) -> u32 {
        self.db.objects()
    }
    fn key(&self, id: ObjectId) -> Key {
        self.db.key(id)
    }
    fn lookup(&self, key: &str) -> Option<ObjectId> {
        self.db.lookup(key)
    }
    fn validity(&self, id: ObjectId) -> (u32, bool) {
        self.db.validity(id)
    }
    fn get(&self, id: ObjectId, value: &mut [u8]) -> Result<Got, Error> {
        self.db.get(id, value)
    }
    fn puts(&self, id: ObjectId) -> u32 {
        self.target.changes().get(id.0)
    }
    fn history(
        &self,
        query: &HistoryQuery,
        cursor: &mut HistoryCursor,
        visit: &mut dyn FnMut(&HistoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<bool, Error> {
        self.db.history(query, cursor, visit)
    }
    fn wall_ms(&self) -> i64 {
        self.target.wall_ms()
    }
    fn check_pattern(&self, pattern: &str) -> Result<(), String> {
        ingest::pattern::check(pattern).map_err(|error| error.to_string())
    }
    fn matches(&self, pattern: &str, key: &str) -> bool {
        ingest::pattern::matches(pattern, key)
    }
}

fn options(config: &HttpConfig, tokens: Tokens) -> HttpOptions {
    HttpOptions {
        tokens,
        // A certificate stands for a token of a reader. To write takes a token.
        anonymous: config.anonymous || (config.token_file.is_none() && config.asks_certificates()),
        hosts: config.hosts.clone(),
        connections_max: config.connections_max,
        streams_max: config.streams_max,
        streams_per_client_max: config.streams_per_client_max,
        stream_bytes_max: config.stream_kibibytes_max << 10,
        stream_period_ms: config.stream_period_ms,
        requests_per_second_max: config.requests_per_second_max,
        history_bytes_max: u64::from(config.history_mebibytes_max) << 20,
        write: config.write.then_some(WriteLimits {
            writes_max: config.writes_max,
            body_bytes_max: config.write_kibibytes_max << 10,
        }),
        ..HttpOptions::new(config.listen)
    }
}

impl Http {
    /// Binds the configured listener, if there is one. Without its tokens or its certificate nothing is served, and the
    /// second value is the reason: a damaged file must not cost readings.
    pub(crate) fn bind(config: &Config) -> Result<(Option<Self>, Option<String>), CliError> {
        let clock = NodeClock::of(config);
        let Some(config) = &config.http else {
            return Ok((None, None));
        };
        let unusable = |why: String| {
            log::event("warning", format!("nothing is served over HTTP: {why}"));
            Ok((None, Some(why)))
        };
        let tokens = match config.tokens() {
            Ok(tokens) => tokens,
            Err(error) => return unusable(format!("http.token_file {error}")),
        };
        let mut options = options(config, tokens);
        if let Some(tls) = &config.tls {
            match tls::Server::open(tls.clone(), clock, |line| log::event("http", line)) {
                Ok(server) => options.tls = Some(Arc::new(server)),
                Err(error) => return unusable(error.to_string()),
            }
        }
        let remedy = "correct [http] of the configuration";
        options
            .check()
            .map_err(|error| CliError::failure("http", error, remedy))?;
        let name = format!("http.listen {}", config.listen);
        let bound = http::bind(options).map_err(|error| CliError::io(name, &error))?;
        let scheme = config.scheme();
        Ok((Some(Self { bound, scheme }), None))
    }

    /// Starts the HTTP side; it serves nothing until the returned future is awaited.
    pub(crate) fn start(
        self,
        db: &Arc<Db>,
        target: &Arc<Target>,
        stop: latest::Receiver<bool>,
    ) -> Result<Serving, CliError> {
        let source = Arc::new(NodeSource {
            db: Arc::clone(db),
            target: Arc::clone(target),
        });
        let (asker, questions) = http::status_channel();
        let (writer, writes) = http::write_channel();
        let run = u32::from_le_bytes(random::bytes()?);
        let Self { bound, scheme } = self;
        let (running, serves) = bound
            .serve(source, asker, writer, run, stop)
            .map_err(|error| CliError::io("http", &error))?;
        log::event("http", format!("serving {scheme}://{}", running.address));
        Ok(Serving {
            running,
            serves: Box::pin(serves),
            questions,
            writes,
        })
    }
}

/// Answers the HTTP side's questions about the node's status. Returns when the HTTP side stops asking.
pub(crate) async fn answer(node: Rc<Node>, mut questions: Questions) {
    while let Some(question) = questions.next().await {
        tell(&node, question);
    }
}

fn tell(node: &Node, question: Question) {
    let report = figures::report(node);
    let state = match report.state {
        status::State::Ok => State::Ok,
        status::State::Degraded => State::Degraded,
        status::State::Failed => State::Failed,
    };
    // Plain structures always convert to JSON.
    let json = serde_json::to_value(&report).unwrap_or_default();
    question.answer(Status::new(state, json));
}

#[cfg(test)]
mod tests {
    use crate::status::{CODES, NodeFigures, Report};
    use egress::http::{Kind, METRICS};
    use std::collections::BTreeSet;

    /// Figures of lists that have no metric: settings, details of other figures, and what a reason of the state is for.
    const NO_METRIC: &[&str] = &[
        "upstream.connects",
        "upstream.cursor_was_lost",
        "upstream.cursor_writes",
        "upstream.answers_unknown",
        "upstream.hold",
        "upstream.linger_ms",
        "upstream.sent",
        "upstream.unmoved_ms",
        "upstream.waits_for_clock",
        "tasks.cores_refused",
        "tasks.output_lines",
        "tasks.output_lines_left_out",
        "tasks.restarts",
        "tasks.restarts_in_row",
        "jobs.period_seconds",
        "modbus.unit",
        "modbus.registers",
    ];

    #[test]
    fn figures_of_lists_and_metrics_are_the_same() {
        let mut figures = NodeFigures::default();
        figures.upstream.resize_with(1, Default::default);
        figures.tasks.resize_with(1, Default::default);
        figures.jobs.resize_with(1, Default::default);
        figures.mounts.resize_with(1, Default::default);
        figures.power.resize_with(1, Default::default);
        figures.modbus.modbus.resize_with(1, Default::default);
        let status = serde_json::to_value(Report::new(figures)).unwrap();
        let mut unused: BTreeSet<&str> = NO_METRIC.iter().copied().collect();
        for list in ["upstream", "tasks", "jobs", "mounts", "power", "modbus"] {
            let object = status[list][0].as_object().unwrap();
            let of_list = METRICS.iter().filter(|metric| metric.path == list);
            let members: BTreeSet<&str> = of_list
                .map(|metric| match metric.kind {
                    Kind::CounterOf(_, by, member)
                    | Kind::GaugeOf(_, by, member)
                    | Kind::StatesOf(_, by, member, _) => {
                        assert!(object.contains_key(by), "{}: {by}", metric.name);
                        member
                    }
                    other => panic!("{}: {other:?} of a list", metric.name),
                })
                .collect();
            for member in &members {
                assert!(object.contains_key(*member), "no {member} in {list}");
            }
            for (member, value) in object {
                let path = format!("{list}.{member}");
                let is_figure = value.is_number() || value.is_boolean();
                if is_figure && !unused.remove(path.as_str()) {
                    assert!(members.contains(member.as_str()), "{path} has no metric");
                }
            }
        }
        assert!(unused.is_empty(), "{unused:?}");
    }

    #[test]
    fn each_reason_has_an_alert() {
        let rules = include_str!("../../../packaging/prometheus/evenkeel.rules.yml");
        // EvenkeelDegraded is for all codes but these.
        let (_, general) = rules.split_once("alert: EvenkeelDegraded").unwrap();
        let apart: BTreeSet<&str> = general
            .split("code!~\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .flat_map(|codes| codes.split('|'))
            .collect();
        assert!(apart.contains("upstream_lost"), "{apart:?}");
        let is_of_code = |letter: char| letter.is_ascii_lowercase() || letter == '_';
        let named: BTreeSet<&str> = rules
            .lines()
            .filter(|line| line.contains("remedy: "))
            .flat_map(|line| line.split(|letter| !is_of_code(letter)))
            .collect();
        for code in apart {
            assert!(CODES.iter().any(|(known, _)| *known == code), "{code}");
            assert!(named.contains(code), "no rule has the remedy of {code}");
        }
    }
}
