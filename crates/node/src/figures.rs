//! The figures of a running node: gathered on request, and sampled for the time windows of the status.

use super::lifetime::{Lifetime, TOTALS_BYTES_MAX};
use super::log;
use super::reasons::Reasons;
use super::state::Node;
use crate::status::{EdgeNodeFigures, FlashFigures, NodeFigures, Reason, Report};
use base::block::CountsNow;
use db::{DbOptions, FullPolicy};
use egress::http::HttpFigures;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time between two samples.
const SAMPLE_PERIOD: Duration = Duration::from_secs(5);

/// Returns the complete report with its judgement.
pub(crate) fn report(node: &Node) -> Report {
    let mut figures = gather(node);
    let window = node.figures.window.borrow();
    let sample = figures.sample();
    figures.last_minute = window.last_minute(&sample);
    figures.last_ten_minutes = window.last_ten_minutes(&sample);
    Report::new(figures)
}

fn gather(node: &Node) -> NodeFigures {
    let from = &node.figures;
    let config = node.config.borrow();
    let stats = node.db.stats();
    let mut figures = NodeFigures::default();
    figures.take_stats(&stats);
    figures.add_damage(&node.db.recovery().damage);
    figures.take_intake(&from.lifetime.intake);
    figures.take_line(&from.line.figures());
    figures.line.listen.clone_from(&from.listen);
    figures.line.connections_max = u64::from(from.line_connections_max);
    if let (Some(state), Some(mqtt)) = (&from.mqtt, &config.mqtt) {
        let address = mqtt.address();
        figures.take_mqtt(&address, mqtt.subscribe.len(), state);
    }
    for (options, state) in config.modbus.iter().zip(&from.modbus) {
        figures.modbus.take(options, state.figures());
    }
    figures.sparkplug = EdgeNodeFigures::list(&node.intake.borrow().edge_nodes());
    from.upstreams.take(&mut figures, node.db.durable_end());
    figures.urgent = from.alarms.take(&node.db);
    let process = &mut figures.node;
    env!("CARGO_PKG_VERSION").clone_into(&mut process.version);
    process.pid = std::process::id();
    process.uptime_ms = from.lifetime.uptime_ms();
    process.memory_resident_bytes = resident_bytes();
    process.config_file = from.config_file.display().to_string();
    process.config_pending_restart = owned(&node.pending_restart.borrow());
    process.config_error = node.config_error();
    let store = &mut figures.store;
    store.image = config.store.image.display().to_string();
    store.capacity_bytes = from.capacity_bytes;
    store.free_bytes = from.lifetime.free_bytes.load(Ordering::Relaxed);
    store.direct = from.is_direct;
    store.card_rated_write_terabytes = config.store.card_rated_write_terabytes;
    figures.log.queue_bytes_max = from.queue_bytes_max;
    figures.log.commit_interval_ms = config.store.commit_interval_ms;
    let history = &mut figures.history;
    history.bytes_max = config.retention(from.capacity_bytes).history_bytes_max;
    history.days_max = config.store.history_days_max;
    history.full_policy = match config.store.full_policy {
        FullPolicy::RejectNew => "reject-new",
        FullPolicy::DropOldest => "drop-oldest",
    }
    .to_owned();
    figures.keys.count_max = u64::from(config.keys.keys_max);
    figures.keys.auto_create = config.keys.auto_create;
    let note = node.key_form.note(&config);
    figures.keys.take_form(node.key_form.tags, note);
    let (commands, counters) = (&mut figures.commands, &node.counters);
    commands.socket = config.node.socket.display().to_string();
    commands.connections = u64::from(counters.connections.get());
    commands.connections_refused = counters.connections_refused.get();
    commands.requests = counters.requests.get();
    commands.puts = counters.puts.get();
    commands.watchers = u64::from(counters.watchers.get());
    figures.device.bytes_written = from.lifetime.bytes_written();
    let counts = from.lifetime.counts.now();
    figures.device.flushes = counts.flushes;
    figures.device.reads = counts.reads;
    figures.device.writes = counts.writes;
    let raised = (
        figures.urgent.alarms_raised_writes,
        figures.urgent.alarms_raised_bytes_max,
    );
    figures.flash = flash_figures(&from.bounds, &from.lifetime, &stats, &counts, raised);
    figures.http_unusable.clone_from(&from.http_unusable);
    figures.http = from.http.as_ref().map(|http| HttpFigures {
        listen: http.address.to_string(),
        ..http.counters.figures()
    });
    figures.lifetime = from.lifetime.now(&stats);
    figures.listeners_failed = counters.listener_failed.get() + from.line.figures().accept_failures;
    figures
        .sources_ended
        .clone_from(&from.sources_ended.borrow());
    figures.qos = node.qos.look();
    // The list may be long; a client that needs it asks for it separately.
    figures.qos.identification.profiled = Vec::new();
    figures.qos.identification.driven = Vec::new();
    figures.shedding = figures.qos.is_shedding();
    figures.jobs = node.jobs.figures();
    figures.power = node.power.figures();
    (figures.mounts, figures.tasks) = node.programs.figures();
    figures.task_leftover = node.programs.orphans();
    figures.region = from.region.as_ref().map(|region| region.figures());
    let listener_error = counters.listener_error.borrow().clone();
    figures.listener_error = listener_error.or_else(|| from.line.accept_error());
    figures
        .history_failing
        .clone_from(&from.lifetime.lock_failing());
    figures
}

/// Compares what was done with what the bounds of the store allow for the same calls.
fn flash_figures(
    bounds: &flash::Bounds,
    lifetime: &Lifetime,
    stats: &db::Stats,
    counts: &CountsNow,
    (raised_writes, raised_bytes_max): (u64, u64),
) -> FlashFigures {
    let of = |bound: flash::Bound| bound.writes + bound.flushes;
    let options = DbOptions::default();
    // An append costs a first group and further ones: a long append shows the cost of the further ones.
    let first = of(bounds.append(1));
    let group_bytes = flash::APPEND_ATOMIC_BYTES_MAX as u64;
    let further = of(bounds.append(64 * group_bytes)).div_ceil(64);
    let appends = |calls: u64, bytes: u64| calls * first + bytes.div_ceil(group_bytes) * further;
    let checkpoints = stats.checkpoints + stats.checkpoints_failed + 1;
    let pieces = stats.checkpoint_bytes / options.checkpoint_piece_bytes_max as u64 + checkpoints;
    // Each log file is created, indexed in another file, and deleted together with it.
    let segments =
        stats.log_bytes / options.segment_bytes_max.min(1 << 20) + 2 + stats.segments_expired;
    let made = of(bounds.create()) + of(bounds.delete());
    let hours = lifetime.uptime_ms() / 3_600_000 + 2;
    let operations_bound = appends(stats.appends, stats.log_bytes)
        + appends(pieces, stats.checkpoint_bytes)
        + checkpoints * made
        + segments * (2 * made + first)
        + hours * of(bounds.replace(TOTALS_BYTES_MAX as u64))
        // One more write may be in flight.
        + (raised_writes + 1) * of(bounds.replace(raised_bytes_max.max(1)));
    let before = &lifetime.counts_first;
    let operations = counts.writes - before.writes + counts.flushes - before.flushes;
    let each = |count: u64| (stats.readings > 0).then(|| count as f64 / stats.readings as f64);
    FlashFigures {
        operations,
        operations_bound,
        operations_per_reading: each(operations),
        operations_per_reading_bound: each(operations_bound),
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns the resident memory of this process in bytes, 0 if the kernel does not report it.
fn resident_bytes() -> u64 {
    let Ok(text) = std::fs::read_to_string("/proc/self/statm") else {
        return 0;
    };
    let pages: u64 = text
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0);
    // SAFETY: a plain system call.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.saturating_mul(u64::try_from(page_bytes).unwrap_or(4096))
}

/// Returns the log text for when checkpoints begin to fail, and for when they succeed again.
fn checkpoint_text(report: &Report) -> String {
    let mut reasons = report.reasons.iter();
    let failing = reasons.find(|reason| reason.code == "checkpoint_failing");
    failing.map_or_else(
        || "the latest values are saved again".to_owned(),
        |reason| reason.text.clone(),
    )
}

/// Samples the counters and logs changes of the judgement. Never returns.
pub(crate) async fn sample(node: &Node) {
    // Delay the first sample: the link to a broker takes a moment.
    let first = tokio::time::Instant::now() + SAMPLE_PERIOD;
    let mut ticks = tokio::time::interval_at(first, SAMPLE_PERIOD);
    let mut said: Vec<String> = Vec::new();
    let mut is_failing = false;
    let mut reasons = Reasons::default();
    loop {
        let now = ticks.tick().await.saturating_duration_since(first);
        let report = report(node);
        node.notify.status(&report);
        if report.figures.log.checkpoint_failing != is_failing {
            is_failing = !is_failing;
            log::event("checkpoint", checkpoint_text(&report));
        }
        node.figures
            .window
            .borrow_mut()
            .offer(report.figures.sample());
        let mut codes: Vec<&str> = report
            .reasons
            .iter()
            .map(|reason| reason.code.as_str())
            .collect();
        codes.sort_unstable();
        if codes != said {
            let mut shown = codes.clone();
            shown.dedup();
            let why = if codes.is_empty() {
                String::new()
            } else {
                format!(": {}", shown.join(", "))
            };
            log::event("state", format!("{}{why}", report.state.name()));
            // Log the reasons now: they cannot be queried later. Reasons with the same code are not distinguishable, so
            // compare counts.
            let now = |code: &str| codes.iter().filter(|one| **one == code).count();
            let before = |code: &str| said.iter().filter(|one| *one == code).count();
            let is_new = |reason: &&Reason| now(&reason.code) > before(&reason.code);
            for reason in report.reasons.iter().filter(is_new) {
                log::event("reason", format!("{}: {}", reason.code, reason.text));
            }
            said = codes.into_iter().map(str::to_owned).collect();
        }
        for (word, line) in reasons.changed(&report.figures, now) {
            log::event(word, line);
        }
    }
}
