//! Connections to a broker, one after the other, as long as the node runs the session.

use super::Consumer;
use super::connect::{Connection, Refusal, connect, late};
use super::control::{Control, Wish};
use super::copies::Copies;
use super::filters::Filters;
use super::options::{MqttOptions, OptionInvalid};
use super::pace::Backoff;
use super::packet::Malformed;
use super::received::Received;
use super::resolve::Resolver;
use super::session::{Leave, Session, now_of};
use super::state::MqttState;
use crate::durable::DurableWatch;
use crate::intake::Reason;
use base::clock::SystemClock;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tls::Progress;

/// Why a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The controller stopped it, or is gone.
    Stopped,
    /// The log has failed for good: no message can be acknowledged any more.
    LogFailed,
    /// The session never started.
    OptionsInvalid(OptionInvalid),
}

/// Keeps a session with the broker until the controller stops it or the log fails. It connects, subscribes, hands
/// messages to `consumer`, acknowledges them once `durable` says so, and reconnects after each loss. The broker need
/// not be available at the start. Must run on a current-thread runtime with time and network.
///
/// Dropping the future ends the connection as a crash would: the broker sends unacknowledged messages again.
pub async fn run<C: Consumer>(
    options: MqttOptions,
    consumer: Rc<RefCell<C>>,
    durable: DurableWatch,
    control: Control,
    state: Arc<MqttState>,
) -> Ended {
    if let Err(invalid) = options.check() {
        state.set_error(&format!("mqtt: {invalid}"));
        return Ended::OptionsInvalid(invalid);
    }
    let mut life = Life {
        options: Arc::new(options),
        consumer: &consumer,
        durable,
        control,
        state: &state,
        filters: Filters::default(),
        received: Received::default(),
        copies: Copies::default(),
        backoff: Backoff::default(),
        resolver: Resolver::default(),
        clock: SystemClock::new(),
    };
    loop {
        match life.one_connection().await {
            Next::At(wait) => {
                if let Some(ended) = life.rest(wait).await {
                    return ended;
                }
            }
            Next::Now => {}
            Next::Never(ended) => return ended,
        }
    }
}

enum Next {
    At(Duration),
    Now,
    Never(Ended),
}

struct Life<'a, C> {
    options: Arc<MqttOptions>,
    consumer: &'a RefCell<C>,
    durable: DurableWatch,
    control: Control,
    state: &'a MqttState,
    filters: Filters,
    received: Received,
    copies: Copies,
    backoff: Backoff,
    resolver: Resolver,
    clock: SystemClock,
}

impl<C: Consumer> Life<'_, C> {
    async fn one_connection(&mut self) -> Next {
        if self.durable.get().failed {
            return self.log_failed();
        }
        if let Some(wish) = self.control.take() {
            return self.obey(wish);
        }
        let limit = Duration::from_millis(self.options.connect_ms_max);
        let options = self.options.clone();
        let progress = Progress::default();
        let connecting = connect(&options, &mut self.resolver, &progress);
        let connection = tokio::select! {
            found = tokio::time::timeout(limit, connecting) => found,
            () = self.control.wait() => return Next::Now,
        };
        match connection {
            Ok(Ok(connection)) => self.session(connection).await,
            Ok(Err(Refusal::Failed(text))) => self.again(&text),
            Ok(Err(Refusal::Malformed(malformed))) => self.malformed(malformed),
            Err(_) => self.again(&late(&progress, &options)),
        }
    }

    async fn session(&mut self, connection: Connection) -> Next {
        let began = now_of(&self.clock);
        self.filters
            .connected(connection.session_present, connection.names_subscriptions);
        if !connection.session_present {
            self.received.forget();
        }
        // A broker that has the session may lack a subscription of it: see `copies`.
        self.copies.forget();
        self.filters
            .publish(&self.options.subscriptions, self.state);
        self.state.connects.fetch_add(1, Relaxed);
        let connected = Connected::new(self.state);
        let mut session = Session::new(
            self.options.clone(),
            self.consumer,
            &mut self.durable,
            (&mut self.filters, &mut self.received, &mut self.copies),
            self.state,
            &self.clock,
            connection,
        );
        let leave = session.serve(&mut self.control).await;
        let options = session.options.clone();
        drop(session);
        drop(connected);
        self.options = options;
        // Two nodes with one client id disconnect each other. If each connection reset the wait, they would do so at
        // full speed.
        let lasted = now_of(&self.clock).saturating_sub(began);
        if lasted >= Duration::from_millis(self.options.reconnect_ms_max) {
            self.backoff.reset();
        }
        match leave {
            Leave::Stop(_) => Next::Never(Ended::Stopped),
            Leave::Reconnect(options) => self.obey(Wish::Reload(options)),
            Leave::LogFailed => self.log_failed(),
            Leave::Lost(text) => {
                self.state.losses.fetch_add(1, Relaxed);
                self.again(&text)
            }
            Leave::Malformed(malformed) => {
                self.state.losses.fetch_add(1, Relaxed);
                self.malformed(malformed)
            }
        }
    }

    /// Waits before the next connection, unless there is a request.
    async fn rest(&mut self, wait: Duration) -> Option<Ended> {
        tokio::select! {
            () = tokio::time::sleep(wait) => None,
            () = self.control.wait() => match self.control.take().map(|wish| self.obey(wish)) {
                Some(Next::Never(ended)) => Some(ended),
                _ => None,
            },
        }
    }

    fn obey(&mut self, wish: Wish) -> Next {
        match wish {
            Wish::Stop(_) => Next::Never(Ended::Stopped),
            Wish::Reload(options) => {
                if !self.options.same_owner(&options) {
                    self.filters.forget();
                    self.received.forget();
                    self.copies.forget();
                }
                self.options = options;
                self.backoff.reset();
                // A refused subscription that is no longer wanted is not reported any more, whether the broker is
                // there or not.
                self.filters.changed();
                self.filters
                    .publish(&self.options.subscriptions, self.state);
                Next::Now
            }
        }
    }

    fn again(&mut self, text: &str) -> Next {
        self.state.set_error(text);
        let MqttOptions {
            reconnect_ms_min: min,
            reconnect_ms_max: max,
            ..
        } = *self.options;
        Next::At(self.backoff.next(min, max))
    }

    fn malformed(&mut self, Malformed(what): Malformed) -> Next {
        self.consumer.borrow_mut().refuse(Reason::PacketInvalid);
        self.state.packets_invalid.fetch_add(1, Relaxed);
        self.again(&format!("the broker breaks the protocol: {what}"))
    }

    fn log_failed(&mut self) -> Next {
        self.state.failed.store(true, Relaxed);
        self.state
            .set_error("the log has failed: nothing is acknowledged any more");
        Next::Never(Ended::LogFailed)
    }
}

/// Shows a connection in the figures for its lifetime, even when the whole future is dropped.
struct Connected<'a>(&'a MqttState);

impl<'a> Connected<'a> {
    fn new(state: &'a MqttState) -> Self {
        state.connected.store(true, Relaxed);
        Self(state)
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.connected.store(false, Relaxed);
        self.0.in_flight.store(0, Relaxed);
        self.0.subscriptions_unanswered.store(0, Relaxed);
        self.0.set_pause(None);
    }
}
