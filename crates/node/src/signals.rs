//! Signals: which ones the node handles, and what each one requests.

use command::error::CliError;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal requests.
pub(crate) enum Action {
    /// The end of the node, with the signal's name.
    Stop(&'static str),
    Reload,
}

pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Installs the handlers of these signals. The caller must be inside a runtime.
    pub(crate) fn new() -> Result<Self, CliError> {
        let on = |kind| signal(kind).map_err(|error| CliError::io("signals", &error));
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Action {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Action::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Action::Stop("SIGINT"),
            _ = self.hangup.recv() => Action::Reload,
        }
    }
}
