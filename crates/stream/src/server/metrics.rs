//! The metrics as text for Prometheus, and the small HTTP server for them.

use super::counters::Reason;
use super::state::State;
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The maximum size of a request, in bytes.
const REQUEST_BYTES_MAX: usize = 4096;

/// The deadline for a complete request: a client sends it immediately.
const REQUEST_DEADLINE: Duration = Duration::from_secs(2);

/// The deadline for a request and its answer together.
const DEADLINE: Duration = Duration::from_secs(5);

/// The maximum number of connections at the same time. When there are more, the oldest one is closed, so an idle client
/// does not block others.
const CONNECTIONS_MAX: usize = 64;

/// The pause before the next `accept` after one failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the metrics until it is dropped.
pub(super) async fn serve(state: Arc<State>, listener: TcpListener) {
    let mut answers = tokio::task::JoinSet::new();
    let mut oldest_first = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                let state = Arc::clone(&state);
                let answer = async move {
                    let answer = answer(&state, socket);
                    tokio::time::timeout(DEADLINE, answer).await.ok();
                };
                oldest_first.push_back(answers.spawn(answer));
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
        while answers.try_join_next().is_some() {}
        oldest_first.retain(|answer| !answer.is_finished());
        if oldest_first.len() > CONNECTIONS_MAX
            && let Some(oldest) = oldest_first.pop_front()
        {
            oldest.abort();
        }
    }
}

async fn answer(state: &State, mut socket: TcpStream) -> std::io::Result<()> {
    let Ok(request) = tokio::time::timeout(REQUEST_DEADLINE, request(&mut socket)).await else {
        return Ok(());
    };
    let request = request?;
    let line = request.split(|byte| *byte == b'\r').next();
    let mut words = line.unwrap_or_default().split(|byte| *byte == b' ');
    let (method, path) = (words.next(), words.next());
    let (status, body) = match (method, path) {
        (Some(b"GET"), Some(b"/metrics")) => ("200 OK", text(state)),
        (Some(b"GET"), Some(_)) => ("404 Not Found", "only /metrics is here\n".into()),
        _ => ("400 Bad Request", "only GET /metrics is answered\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).await?;
    socket.write_all(body.as_bytes()).await?;
    socket.shutdown().await
}

/// Reads a request to the end of its head, or up to the size limit.
async fn request(socket: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut piece = [0; 512];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = socket.read(&mut piece).await?;
        if count == 0 || request.len() + count > REQUEST_BYTES_MAX {
            break;
        }
        request.extend_from_slice(&piece[..count]);
    }
    Ok(request)
}

struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(
            self.0,
            "# HELP keel_stream_{name} {help}\n# TYPE keel_stream_{name} {kind}"
        );
    }

    fn one(&mut self, name: &str, labels: &str, value: u64) {
        let _ = writeln!(self.0, "keel_stream_{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "gauge", help);
        self.one(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.one(name, "", value);
    }

    fn counters(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.head(name, "counter", help);
        for (value, count) in values {
            self.one(name, &format!("{{{label}=\"{value}\"}}"), *count);
        }
    }
}

/// Returns all metrics.
pub(super) fn text(state: &State) -> String {
    let counters = &state.counters;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (clients, connections, tasks) = state.admission.counts();
    let half_open = state.admission.half_open_count();
    let mut text = Text(String::new());
    text.gauge("clients", "Devices that are connected.", clients as u64);
    text.gauge("connections", "Their connections.", connections as u64);
    text.gauge(
        "half_open",
        "Connections without a greeting so far.",
        half_open as u64,
    );
    text.gauge(
        "tenants",
        "Tenants in memory, each version by itself.",
        state.tenants.count() as u64,
    );
    text.gauge("tasks", "Tasks that run.", tasks as u64);
    text.gauge(
        "versions_damaged",
        "Versions in the store that are damaged and newer than the one that is served.",
        read(&counters.versions_damaged),
    );
    text.counter(
        "greetings_older_total",
        "Greetings for the newest version that were given an older one, as the newest is damaged.",
        read(&counters.greetings_older),
    );
    text.counter(
        "accepted_total",
        "Connections accepted.",
        read(&counters.accepted),
    );
    text.counter(
        "tasks_begun_total",
        "Tasks that began.",
        read(&counters.tasks_begun),
    );
    text.counter(
        "tasks_predicted_total",
        "Tasks of which something was known when they began.",
        read(&counters.tasks_predicted),
    );
    text.counters(
        "blocks_total",
        "Blocks sent, by why.",
        "reason",
        &[
            ("demand", read(&counters.blocks_demand)),
            ("around", read(&counters.blocks_around)),
            ("prefetched", read(&counters.blocks_prefetched)),
            ("fetched", read(&counters.blocks_fetched)),
        ],
    );
    text.counter(
        "blocks_held_total",
        "Prefetched blocks that were left out because the device holds them.",
        read(&counters.blocks_held),
    );
    text.counter(
        "blocks_unread_total",
        "Prefetched blocks that were sent and not read, of runs that told all they read.",
        read(&counters.blocks_unread),
    );
    text.counters(
        "wire_bytes_total",
        "Bytes of messages, before TLS.",
        "direction",
        &[
            ("sent", read(&counters.sent_bytes)),
            ("received", read(&counters.received_bytes)),
        ],
    );
    let refusals = Reason::ALL.map(|reason| (reason.name(), counters.refused(reason)));
    text.counters(
        "refused_total",
        "What was refused, and connections given up, by why.",
        "reason",
        &refusals,
    );
    provided(&mut text, state);
    learned(&mut text, state);
    text.0
}

fn provided(text: &mut Text, state: &State) {
    let counters = &state.counters;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let provider = state.provider.counters();
    text.counters(
        "provider_segments_total",
        "Segments that were needed: in memory, or read from the store.",
        "result",
        &[("hit", provider.hits), ("miss", provider.misses)],
    );
    text.counters(
        "provider_ahead_total",
        "Segments read ahead, and what became of them; dropped are whole requests, and tasks with madvise.",
        "result",
        &[
            ("read", provider.ahead),
            ("used", provider.ahead_used),
            ("unused", provider.ahead_unused),
            ("dropped", provider.ahead_dropped),
        ],
    );
    text.counter(
        "provider_advised_total",
        "Segments that the kernel was asked to read ahead.",
        provider.advised,
    );
    text.counter(
        "provider_failures_total",
        "Segments that could not be read.",
        provider.failures,
    );
    text.gauge(
        "provider_bytes",
        "Memory that segments take.",
        provider.memory_bytes,
    );
    text.gauge(
        "hashes_bytes",
        "Memory of hashes of blocks, and of what proves them.",
        state.store.hashes_bytes() as u64,
    );
    text.counters(
        "bundles_total",
        "Whole pieces of plans: sent as they were kept, compressed when needed, compressed anew.",
        "result",
        &[
            ("hit", read(&counters.bundles_hits)),
            ("miss", read(&counters.bundles_misses)),
            ("improved", read(&counters.bundles_improved)),
        ],
    );
    text.gauge(
        "bundles_bytes",
        "Memory that pieces take.",
        state.bundles.bytes(),
    );
}

fn learned(text: &mut Text, state: &State) {
    let counters = &state.counters;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let all = state.tenants.counters();
    text.counters(
        "predictor_total",
        "What predictors learned, gave up and refused.",
        "event",
        &[
            ("run_learned", all.runs_learned),
            ("plan_stopped", all.plans_stopped),
            ("miss", all.misses),
            ("block_dropped", all.blocks_dropped),
            ("block_refused", all.blocks_refused),
            ("action_refused", all.actions_refused),
            ("task_evicted", all.tasks_evicted),
            ("token_refused", all.tokens_refused),
            ("token_forgotten", all.tokens_forgotten),
            ("token_unknown", all.tokens_unknown),
            ("token_reused", all.tokens_reused),
        ],
    );
    text.counters(
        "actions_files_total",
        "Files of learned actions: written, not written, found damaged.",
        "result",
        &[
            ("saved", read(&counters.actions_saved)),
            ("unsaved", read(&counters.actions_unsaved)),
            ("damaged", read(&counters.actions_damaged)),
        ],
    );
}
