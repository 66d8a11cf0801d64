//! What the processors and the sensors of power show while something runs.

use super::speed::{Policy, Speeds, policies};
use crate::power_cmd::sources::{self, PowerSourceArgs};
use base::clock::{Clock, SystemClock};
use cluster::power::{Phase, Root, Sampler, Summary, why_none};
use cluster::results::Origin;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Time between two reads. A meter writes once a second; reading more often would disturb what runs.
const INTERVAL: Duration = Duration::from_millis(500);

/// What ran, for how long, and what was observed meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    pub(super) what: String,
    pub(super) seconds: f64,
    /// One for each policy.
    pub(super) speeds: Vec<Speeds>,
    /// One for each sensor. They name no path that only this machine has.
    pub(super) power: Vec<Summary>,
}

/// Observes one thing after the other.
pub(super) struct Observer {
    clock: SystemClock,
    names: Names,
    pub(super) policies: Vec<Policy>,
    sampler: Option<Sampler>,
    /// Why there is no sensor; empty if there is one.
    pub(super) why_no_power: String,
    pub(super) observed: Vec<Observed>,
}

/// Removes paths that only this machine has from names and reasons of sensors. These are the path of a meter's file,
/// and the folder that stands for `/`.
pub(super) struct Names {
    meter: Option<String>,
    root: String,
}

impl Names {
    pub(super) fn of(arguments: &PowerSourceArgs) -> Self {
        let meter = arguments.meter.as_ref();
        let root = arguments.root.display().to_string();
        Self {
            meter: meter.map(|path| path.display().to_string()),
            root: format!("{}/", root.trim_end_matches('/')),
        }
    }

    /// Returns the name of a sensor.
    pub(super) fn name<'a>(&self, name: &'a str) -> &'a str {
        let is_meter = match (&self.meter, name.strip_prefix("meter ")) {
            (Some(path), Some(rest)) => path == rest,
            _ => false,
        };
        if is_meter { "meter" } else { name }
    }

    /// Returns the reason why a sensor has no value.
    pub(super) fn reason(&self, why: &str) -> String {
        let meter = self
            .meter
            .as_deref()
            .and_then(|path| why.strip_prefix(path));
        let why = meter
            .and_then(|rest| rest.strip_prefix(": "))
            .unwrap_or(why);
        why.replace(&self.root, "/")
    }
}

impl Observer {
    pub(super) fn new(arguments: &PowerSourceArgs) -> Self {
        let clock = SystemClock::new();
        let names = Names::of(arguments);
        let found = sources::find(arguments);
        let sampler = match found {
            Ok(found) => Sampler::new(found, Phase::Load, clock.monotonic_ns())
                .map_err(|error| error.to_string()),
            // The error may name a path, so it is left out: no sensor was found.
            Err(_) => Err(why_none(&Root::new(&arguments.root))),
        };
        let (sampler, why_no_power) = match sampler {
            Ok(sampler) => (Some(sampler), String::new()),
            Err(why) => (None, names.reason(&why)),
        };
        Self {
            clock,
            names,
            policies: policies(&arguments.root),
            sampler,
            why_no_power,
            observed: Vec::new(),
        }
    }

    /// Does some work, and observes meanwhile. Returns its result.
    pub(super) fn during<T>(&mut self, what: &str, work: impl FnOnce() -> T) -> T {
        let (clock, policies, sampler) = (&self.clock, &self.policies, &mut self.sampler);
        let begun_ns = clock.monotonic_ns();
        if let Some(sampler) = sampler.as_mut() {
            // What was between the previous work and this one belongs to neither.
            sampler.take_load(begun_ns);
        }
        let mut speeds: Vec<Speeds> = policies.iter().map(Speeds::begin).collect();
        let (ended, wait) = channel::<()>();
        let (their_speeds, their_sampler) = (&mut speeds, &mut *sampler);
        let result = std::thread::scope(move |scope| {
            scope.spawn(move || {
                while wait.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    for (speeds, policy) in their_speeds.iter_mut().zip(policies) {
                        speeds.read(policy);
                    }
                    if let Some(sampler) = their_sampler {
                        sampler.sample(clock.monotonic_ns());
                    }
                }
            });
            let result = work();
            drop(ended);
            result
        });
        for (speeds, policy) in speeds.iter_mut().zip(policies) {
            speeds.end(policy);
        }
        let ended_ns = clock.monotonic_ns();
        let mut power = match sampler {
            Some(sampler) => sampler.take_load(ended_ns),
            None => Vec::new(),
        };
        for summary in &mut power {
            summary.source = self.names.name(&summary.source).to_owned();
            if let Origin::Unavailable(why) = &mut summary.origin {
                *why = self.names.reason(why);
            }
        }
        self.observed.push(Observed {
            what: what.to_owned(),
            seconds: (ended_ns - begun_ns) as f64 / 1e9,
            speeds,
            power,
        });
        result
    }
}
