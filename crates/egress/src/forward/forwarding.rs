//! The thread of all upstreams: one runtime, separate from everything that takes readings.

use super::context::Context;
use super::figures::{Counters, UpstreamState};
use super::forwarder::Forwarder;
use super::options::{UPSTREAMS_MAX, UpstreamOptions};
use super::run::run;
use crate::Error;
use base::block::BlockDevice;
use base::clock::Clock;
use db::Database;
use flash::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local};

/// Stack size of the thread.
const STACK_BYTES: usize = 512 << 10;

/// One upstream as its observers see it.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Its options.
    pub options: UpstreamOptions,
    /// Its figures.
    pub state: Arc<UpstreamState>,
    /// The counters before this run.
    pub begun: Counters,
}

/// Upstreams whose cursors have been found, before their thread runs. Must be created before readings are taken.
pub struct Prepared<D: BlockDevice + 'static> {
    db: Arc<Database<Store<D>>>,
    forwarders: Vec<(UpstreamOptions, Forwarder<D>)>,
    /// Whether the whole log must be kept: an unusable upstream wants its readings kept, and its cursor is unknown.
    holds_all: bool,
}

impl<D: BlockDevice + 'static> Prepared<D> {
    /// Finds or creates the cursor of each upstream. Unusable upstreams are named with the reason, and the others go
    /// on. The reason is an error of [`Forwarder::open`], or [`Error::OptionInvalid`] for two of one name, or too many.
    /// As long as an unusable upstream wants the log kept, the whole log is held, since its cursor is unknown.
    #[must_use]
    pub fn new(
        db: Arc<Database<Store<D>>>,
        clock: &Arc<dyn Clock>,
        upstreams: Vec<UpstreamOptions>,
    ) -> (Self, Vec<(String, Error)>) {
        let invalid = |problem: String| Error::OptionInvalid {
            option: "upstream",
            problem,
        };
        let mut forwarders: Vec<(UpstreamOptions, Forwarder<D>)> = Vec::new();
        let mut failed = Vec::new();
        let mut holds_all = false;
        for options in upstreams {
            let is_twice = forwarders
                .iter()
                .any(|(other, _)| other.name == options.name);
            let opened = if is_twice {
                Err(invalid(format!("two are named {}", options.name)))
            } else if forwarders.len() == UPSTREAMS_MAX {
                Err(invalid(format!("more than {UPSTREAMS_MAX}")))
            } else {
                Forwarder::open(Arc::clone(&db), Arc::clone(clock), options.clone())
            };
            match opened {
                Ok(forwarder) => forwarders.push((options, forwarder)),
                Err(error) => {
                    holds_all |= options.hold;
                    failed.push((options.name, error));
                }
            }
        }
        let held = forwarders
            .iter()
            .filter(|(options, _)| options.hold)
            .map(|(_, forwarder)| forwarder.engine.oldest_held());
        db.hold_from(held.chain(holds_all.then_some(0)).min());
        let prepared = Self {
            db,
            forwarders,
            holds_all,
        };
        (prepared, failed)
    }

    /// Returns the names of the usable upstreams.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let names = self.forwarders.iter().map(|(options, _)| &options.name);
        names.cloned().collect()
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub fn start(self) -> Result<Forwarding, Error> {
        let (stop, stopped) = watch::channel(false);
        let upstreams: Vec<Upstream> = self
            .forwarders
            .iter()
            .map(|(options, forwarder)| Upstream {
                options: options.clone(),
                state: Arc::new(UpstreamState::default()),
                begun: *forwarder.engine.begun(),
            })
            .collect();
        let states: Vec<_> = upstreams
            .iter()
            .map(|upstream| Arc::clone(&upstream.state))
            .collect();
        let failed = |error: std::io::Error| Error::Thread(error.to_string());
        let thread = std::thread::Builder::new()
            .name("egress".into())
            .stack_size(STACK_BYTES)
            .spawn(move || forward(self, states, &stopped))
            .map_err(failed)?;
        Ok(Forwarding {
            upstreams,
            stop,
            thread: Some(thread),
        })
    }
}

fn forward<D: BlockDevice + 'static>(
    prepared: Prepared<D>,
    states: Vec<Arc<UpstreamState>>,
    stopped: &watch::Receiver<bool>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            for state in states {
                state.lock().last_error = Some(format!("no runtime for forwarding: {error}"));
            }
            return;
        }
    };
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let mut held: Vec<_> = prepared
            .forwarders
            .iter()
            .map(|(options, forwarder)| {
                let from = match options.hold {
                    true => forwarder.engine.oldest_held(),
                    false => u64::MAX,
                };
                Arc::new(AtomicU64::new(from))
            })
            .collect();
        if prepared.holds_all {
            held.push(Arc::default());
        }
        let mut tasks = Vec::new();
        for (index, (options, forwarder)) in prepared.forwarders.into_iter().enumerate() {
            let (db, all) = (Arc::clone(&prepared.db), held.clone());
            let hold = move || {
                let from = all.iter().map(|one| one.load(Ordering::Relaxed)).min();
                db.hold_from(from.filter(|from| *from != u64::MAX));
            };
            let context = Context::new(
                options,
                Arc::clone(&states[index]),
                stopped.clone(),
                Arc::clone(&held[index]),
                Box::new(hold),
            );
            tasks.push(spawn_local(run(forwarder, context)));
        }
        for (task, state) in tasks.into_iter().zip(&states) {
            if task.await.is_err() {
                // The panic handler has already reported the panic.
                let mut figures = state.lock();
                figures.connected = false;
                figures.last_error = Some("forwarding has ended by a fault of the node".to_owned());
            }
        }
    });
}

/// Running forwarding. Dropping it stops it cleanly.
pub struct Forwarding {
    upstreams: Vec<Upstream>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarding {
    /// Every upstream.
    #[must_use]
    pub fn upstreams(&self) -> &[Upstream] {
        &self.upstreams
    }

    /// Stops sending. Readings in flight have half a second to be acknowledged.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until all have ended and their cursors are written.
    pub fn join(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // The thread itself has reported its panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.join();
    }
}
