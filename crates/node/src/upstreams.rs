//! Forwarding: builds the forwarding thread from the configuration and reports its state in the status. An upstream
//! that cannot be used never keeps the node from starting.

use super::database::Db;
use super::image::Device;
use super::log;
use crate::status::{NodeFigures, Sample, UpstreamFigures};
use base::clock::Clock;
use config::Config;
use egress::forward::{Counters, Forwarding, Prepared, Upstream};
use std::sync::Arc;

/// Upstreams whose cursors are found.
pub(crate) struct Upstreams {
    prepared: Prepared<Device>,
    unusable: Vec<(String, String)>,
}

impl Upstreams {
    /// Finds or creates the cursors.
    pub(crate) fn prepare(config: &Config, db: &Arc<Db>, clock: &Arc<dyn Clock>) -> Self {
        let upstreams = config.upstream.iter();
        let upstreams: Vec<_> = upstreams
            .map(|upstream| upstream.to_options(clock))
            .collect();
        for upstream in &upstreams {
            log::of_client(upstream.tls.as_ref());
        }
        let (prepared, failed) = Prepared::new(Arc::clone(db), clock, upstreams);
        let failed = failed.into_iter();
        let unusable: Vec<_> = failed
            .map(|(name, error)| (name, error.to_string()))
            .collect();
        for (name, why) in &unusable {
            log::event("warning", format!("nothing goes to upstream {name}: {why}"));
        }
        Self { prepared, unusable }
    }

    /// Starts the thread.
    pub(crate) fn start(self) -> Running {
        let mut unusable = self.unusable;
        let names = self.prepared.names();
        if names.is_empty() {
            return Running {
                forwarding: None,
                unusable,
            };
        }
        let forwarding = match self.prepared.start() {
            Ok(forwarding) => Some(forwarding),
            Err(error) => {
                log::event("warning", format!("nothing goes upstream: {error}"));
                let all = names.into_iter().map(|name| (name, error.to_string()));
                unusable.extend(all);
                None
            }
        };
        Running {
            forwarding,
            unusable,
        }
    }
}

/// The running forwarding.
pub(crate) struct Running {
    forwarding: Option<Forwarding>,
    unusable: Vec<(String, String)>,
}

impl Running {
    /// Returns what the status shows.
    pub(crate) fn shown(&self) -> Shown {
        let upstreams = self.forwarding.as_ref().map(Forwarding::upstreams);
        Shown {
            upstreams: upstreams.unwrap_or_default().to_vec(),
            unusable: self.unusable.clone(),
        }
    }

    /// Asks the forwarding thread to end.
    pub(crate) fn stop(&self) {
        if let Some(forwarding) = &self.forwarding {
            forwarding.stop();
        }
    }
}

/// What the status shows of upstreams.
pub(crate) struct Shown {
    upstreams: Vec<Upstream>,
    unusable: Vec<(String, String)>,
}

impl Shown {
    /// Returns the counters at the start of the node: losses of earlier runs are not news of this run.
    pub(crate) fn begun(&self) -> Sample {
        let sum = |of: fn(&Counters) -> u64| {
            let all = self.upstreams.iter().map(|one| of(&one.begun));
            all.fold(0, u64::saturating_add)
        };
        Sample {
            forward_lost: sum(|one| one.lost.saturating_add(one.missing)),
            forward_refused: sum(Counters::refused_total),
            ..Sample::default()
        }
    }

    pub(crate) fn take(&self, figures: &mut NodeFigures, durable_end: u64) {
        for upstream in &self.upstreams {
            figures.take_upstream(upstream, durable_end);
        }
        for (name, why) in &self.unusable {
            figures.upstream.push(UpstreamFigures {
                name: name.clone(),
                unusable: Some(why.clone()),
                ..UpstreamFigures::default()
            });
        }
    }
}
