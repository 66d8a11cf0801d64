//! Copies the counters of the rooms into the figures.

use super::{
    BeforeStart, Latency, LineState, LogFigures, MqttFigures, NO_ROOM, NodeFigures, RefusalReason,
    Sample, UpstreamFigures,
};
use ingest::line::LineFigures;

impl NodeFigures {
    /// Returns what is wrong with the certificates of the HTTP side.
    pub(super) fn certificate_error(&self) -> Option<String> {
        let why = self.http.as_ref()?.certificate_error.as_ref()?;
        Some(format!("HTTP: {why}"))
    }

    /// Copies the counters of the database. The caller must add the damage found at the start to `log`.
    pub(crate) fn take_stats(&mut self, stats: &db::Stats) {
        self.log = LogFigures {
            readings_taken: stats.puts,
            readings_durable: stats.readings,
            readings_outstanding: stats.outstanding,
            queue_bytes: stats.queue_bytes,
            queue_bytes_max: self.log.queue_bytes_max,
            durable_lag_ms: stats.durable_lag_ms,
            commit_interval_ms: self.log.commit_interval_ms,
            refused_busy: stats.busy,
            refused_full: stats.refused_full,
            refused_failed: stats.refused,
            readings_outdated: stats.outdated,
            commits: stats.batches,
            appends: stats.appends,
            log_bytes: stats.log_bytes,
            checkpoints: stats.checkpoints,
            checkpoints_failed: stats.checkpoints_failed,
            checkpoint_failing: stats.checkpoint_failing.is_some(),
            checkpoint_error: stats.checkpoint_failing.map(|why| {
                match why {
                    db::CheckpointFailure::NoRoom => NO_ROOM,
                    _ => "table_spoilt",
                }
                .to_owned()
            }),
            replay_bytes: stats.replay_bytes,
            table_checkpoint_bytes: stats.table_checkpoint_bytes,
            failed: match stats.health {
                db::Health::LogFailed(failure) => Some(failure.name().to_owned()),
                _ => None,
            },
            records_damaged: stats.damage.records_damaged,
            pieces_unreadable: stats.damage.pieces_unreadable,
            files_unreadable: stats.damage.files_unreadable,
            readings_missing: stats.damage.readings_missing,
            append_us: Latency::of(&stats.append_ns),
            put_durable_us: Latency::of(&stats.put_durable_ns),
        };
        self.store.full = stats.full;
        self.history.segments = stats.segments;
        self.history.bytes = stats.history_bytes;
        self.history.readings_expired = stats.readings_expired;
        self.history.readings_dropped = stats.readings_dropped;
        self.keys.count = u64::from(stats.objects);
        self.keys.name_bytes = stats.keys_bytes;
        self.keys.name_bytes_max = stats.keys_bytes_max;
        self.clock.trusted = stats.wall_trusted;
        self.clock.steps = stats.clock_steps;
    }

    /// Adds the damage that was found when the log was opened.
    pub(crate) fn add_damage(&mut self, damage: &db::Damage) {
        self.log.records_damaged += damage.records_damaged;
        self.log.pieces_unreadable += damage.pieces_unreadable;
        self.log.files_unreadable += damage.files_unreadable;
        self.log.readings_missing += damage.readings_missing;
    }

    /// Copies the counters of the listeners.
    pub(crate) fn take_line(&mut self, figures: &LineFigures) {
        self.line = LineState {
            listen: std::mem::take(&mut self.line.listen),
            connections_max: self.line.connections_max,
            connections: figures.connections,
            connections_total: figures.connections_total,
            connections_refused: figures.connections_refused,
            connections_idle: figures.connections_idle,
            connections_made_room: figures.connections_made_room,
            connections_ended_early: figures.connections_ended_early,
            connections_text_open: figures.connections_text_open,
            waiting: figures.waiting,
            lines: figures.lines,
            bytes: figures.bytes,
            acknowledged: figures.acknowledged,
            oversized: figures.oversized,
            unfinished: figures.unfinished,
        };
    }

    /// Copies the counters of the session with the broker.
    pub(crate) fn take_mqtt(
        &mut self,
        address: &str,
        wanted: usize,
        state: &ingest::mqtt::MqttState,
    ) {
        let figures = state.figures();
        self.mqtt = Some(MqttFigures {
            address: address.to_owned(),
            connected: figures.connected,
            last_error: state.last_error(),
            subscriptions_wanted: wanted as u64,
            subscriptions_held: figures.subscriptions_held,
            subscriptions_refused: figures.subscriptions_refused,
            subscriptions_unanswered: figures.subscriptions_unanswered,
            connects: figures.connects,
            losses: figures.losses,
            messages: figures.messages,
            bytes: figures.bytes,
            acknowledged: figures.acknowledged,
            in_flight: figures.in_flight,
            redelivered: figures.redelivered,
            copies: figures.copies,
            oversized: figures.oversized,
            packets_invalid: figures.packets_invalid,
            paused_busy_ms: figures.paused_busy_ms,
            paused_full_ms: figures.paused_full_ms,
        });
    }

    /// Copies the counters of one upstream; the log is durable up to `durable_end`.
    pub(crate) fn take_upstream(&mut self, upstream: &egress::forward::Upstream, durable_end: u64) {
        let found = upstream.state.figures();
        let (counters, begun) = (&found.counters, &upstream.begun);
        let refused = egress::forward::Refusal::ALL
            .iter()
            .zip(counters.refused)
            .map(|(why, count)| (why.name().to_owned(), count));
        self.upstream.push(UpstreamFigures {
            name: upstream.options.name.clone(),
            kind: match upstream.options.target {
                egress::forward::Target::Mqtt { .. } => "mqtt".to_owned(),
                egress::forward::Target::Http { .. } => "http".to_owned(),
            },
            address: upstream.options.address().to_owned(),
            connected: found.connected,
            connects: found.connects,
            losses: found.losses,
            backlog_readings: found.backlog_readings
                + durable_end.saturating_sub(found.durable_end),
            backlog_age_ms: found.backlog_age_ms,
            unmoved_ms: found.unmoved_ms,
            linger_ms: upstream.options.linger_ms,
            hold: upstream.options.hold,
            waits_for_clock: found.waits_for_clock,
            in_flight: found.in_flight,
            sent: counters.sent,
            acknowledged: counters.acknowledged,
            sent_twice: counters.sent_twice,
            forward_lost: counters.lost,
            missing: counters.missing,
            late_sent: counters.late_sent,
            late_skipped: counters.late_skipped,
            thinned: counters.thinned,
            refused_total: counters.refused_total(),
            refused: refused.collect(),
            last_error: found.last_error,
            cursor_error: found.cursor_error,
            cursor_was_lost: found.cursor_was_lost,
            cursor_writes: found.cursor_writes,
            answers_unknown: found.answers_unknown,
            unusable: None,
            before_start: BeforeStart {
                acknowledged: begun.acknowledged,
                sent_twice: begun.sent_twice,
                forward_lost: begun.lost,
                missing: begun.missing,
                late_sent: begun.late_sent,
                late_skipped: begun.late_skipped,
                thinned: begun.thinned,
                refused_total: begun.refused_total(),
            },
        });
    }

    fn upstream_sum(&self, of: fn(&UpstreamFigures) -> u64) -> u64 {
        let all = self.upstream.iter().map(of);
        all.fold(0, u64::saturating_add)
    }

    /// Returns the current values of the counters that `Window` keeps.
    pub(crate) fn sample(&self) -> Sample {
        Sample {
            uptime_ms: self.node.uptime_ms,
            bytes_written: self.device.bytes_written,
            flushes: self.device.flushes,
            readings: self.log.readings_durable,
            refused_busy: self.log.refused_busy,
            refused_full: self.log.refused_full,
            readings_dropped: self.history.readings_dropped,
            refused_keys_max: self.intake.refused_for(RefusalReason::KeysMax),
            refused_key_shared: self.intake.refused_for(RefusalReason::KeyShared),
            listeners_failed: self.listeners_failed,
            connections_refused: self.line.connections_refused,
            connections_made_room: self.line.connections_made_room,
            clients_refused: self.commands.connections_refused,
            writes_turned_away: self.http.as_ref().map_or(0, |http| http.writes_turned_away),
            deadline_misses_apart: self.qos.deadline_misses_apart,
            forward_lost: self.upstream_sum(|one| one.forward_lost.saturating_add(one.missing)),
            forward_refused: self.upstream_sum(|one| one.refused_total),
            alarms_undelivered: self.urgent.alarms_undelivered(),
            actuators_undelivered: self.urgent.actuators_undelivered(),
            taken_input: self
                .intake
                .readings
                .saturating_add(self.intake.readings_shed),
            // Leave out retained values: the broker sends them again at each connection.
            refused_input: self
                .intake
                .refused_total
                .saturating_sub(self.intake.refused_for(RefusalReason::RetainedUntimed)),
        }
    }
}
