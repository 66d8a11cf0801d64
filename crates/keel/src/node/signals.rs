//! Signals: which ones the node heeds, and what each asks for.

use crate::error::CliError;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
pub(crate) enum What {
    /// The end; with the signal's name.
    Stop(&'static str),
    Reload,
}

pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// From here on these signals do what the node makes of them. To be called inside a runtime.
    pub(crate) fn new() -> Result<Self, CliError> {
        let on = |kind| signal(kind).map_err(|error| CliError::io("signals", &error));
        Ok(Self {
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// The next one. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> What {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => What::Stop("SIGTERM"),
            _ = self.interrupt.recv() => What::Stop("SIGINT"),
            _ = self.hangup.recv() => What::Reload,
        }
    }
}
