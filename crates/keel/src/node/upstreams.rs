//! Forwarding: from the configuration to the thread that does it, and what the status shows of it. An upstream that
//! cannot be used never keeps the node from starting.

use super::image::Device;
use super::{Db, log};
use crate::config::Config;
use crate::status::{NodeFigures, UpstreamFigures};
use base::clock::Clock;
use egress::forward::{Forwarding, Prepared, Upstream, UpstreamOptions};
use std::sync::Arc;

/// Upstreams whose cursors have been found.
pub(crate) struct Upstreams {
    prepared: Prepared<Device>,
    unusable: Vec<(String, String)>,
}

impl Upstreams {
    /// Finds or makes the cursors.
    pub(crate) fn prepare(config: &Config, db: &Arc<Db>, clock: &Arc<dyn Clock>) -> Self {
        let mut unusable = Vec::new();
        let mut usable: Vec<UpstreamOptions> = Vec::new();
        for upstream in &config.upstream {
            match upstream.to_options() {
                Ok(options) => usable.push(options),
                Err(error) => unusable.push((upstream.options.name.clone(), error.to_string())),
            }
        }
        let (prepared, failed) = Prepared::new(Arc::clone(db), clock, usable);
        let failed = failed.into_iter();
        unusable.extend(failed.map(|(name, error)| (name, error.to_string())));
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

/// Forwarding at work.
pub(crate) struct Running {
    forwarding: Option<Forwarding>,
    unusable: Vec<(String, String)>,
}

impl Running {
    /// What the status shows.
    pub(crate) fn shown(&self) -> Shown {
        let upstreams = self.forwarding.as_ref().map(Forwarding::upstreams);
        Shown {
            upstreams: upstreams.unwrap_or_default().to_vec(),
            unusable: self.unusable.clone(),
        }
    }

    /// Begins the end.
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
