//! Requests from the owner of a session.

use super::options::{MqttOptions, OptionInvalid};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

#[derive(Clone, Debug, Default)]
struct Wishes {
    stop: Option<Duration>,
    options: Option<Arc<MqttOptions>>,
}

/// Stops and reloads a session; usable from any thread. Dropping it stops the session without waiting for anything.
#[derive(Debug)]
pub struct Controller {
    sender: watch::Sender<Wishes>,
}

/// The session's end of a [`Controller`].
#[derive(Debug)]
pub struct Control {
    receiver: watch::Receiver<Wishes>,
    told: bool,
}

/// Creates a controller and the control to run the session with.
#[must_use]
pub fn control() -> (Controller, Control) {
    let (sender, receiver) = watch::channel(Wishes::default());
    let told = false;
    (Controller { sender }, Control { receiver, told })
}

impl Controller {
    /// Stops the session: reading stops at once, messages in flight have `wait_ms_max` to become durable and to be
    /// acknowledged, then the node disconnects. The broker sends unacknowledged messages again when a session of the
    /// same client id is started.
    pub fn stop(&self, wait_ms_max: u64) {
        self.sender
            .send_modify(|wishes| wishes.stop = Some(Duration::from_millis(wait_ms_max)));
    }

    /// Continues with other options: changed subscriptions on the same connection, anything that only CONNECT can say
    /// on a new one.
    ///
    /// # Errors
    /// An option is out of its range; then nothing changes.
    pub fn reload(&self, options: MqttOptions) -> Result<(), OptionInvalid> {
        options.check()?;
        let options = Arc::new(options);
        self.sender
            .send_modify(|wishes| wishes.options = Some(options));
        Ok(())
    }
}

/// One request.
#[derive(Debug)]
pub(super) enum Wish {
    Stop(Duration),
    Reload(Arc<MqttOptions>),
}

impl Control {
    /// Waits until there may be a request. Dropping the future loses nothing.
    pub(super) async fn wait(&mut self) {
        // An error means that the controller is gone, which `take` sees too.
        let _ = self.receiver.changed().await;
        self.told = true;
    }

    /// Returns the current request. Of several only the last of a kind counts, and a stop has priority.
    pub(super) fn take(&mut self) -> Option<Wish> {
        match self.receiver.has_changed() {
            Err(_) => {
                let stop = self.receiver.borrow().stop;
                return Some(Wish::Stop(stop.unwrap_or_default()));
            }
            Ok(false) if !self.told => return None,
            Ok(_) => {}
        }
        self.told = false;
        let wishes = self.receiver.borrow_and_update();
        match (&wishes.stop, &wishes.options) {
            (Some(wait), _) => Some(Wish::Stop(*wait)),
            (None, Some(options)) => Some(Wish::Reload(options.clone())),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_wish_counts_and_stopping_most() {
        let (controller, mut control) = control();
        assert!(control.take().is_none());
        let mut options = MqttOptions::new("localhost:1883", "a");
        controller.reload(options.clone()).unwrap();
        options.client_id = "b".into();
        controller.reload(options.clone()).unwrap();
        match control.take() {
            Some(Wish::Reload(options)) => assert_eq!(options.client_id, "b"),
            other => panic!("{other:?}"),
        }
        assert!(control.take().is_none());
        options.keep_alive_seconds = 0;
        assert!(controller.reload(options).is_err());
        assert!(control.take().is_none());
        controller.stop(5);
        let five = Duration::from_millis(5);
        assert!(matches!(control.take(), Some(Wish::Stop(wait)) if wait == five));
        drop(controller);
        assert!(matches!(control.take(), Some(Wish::Stop(_))));
    }
}
