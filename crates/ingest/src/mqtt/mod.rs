//! The MQTT source: a session with a broker that acknowledges a message once its readings are on flash.
//!
//! `MQTT.md` of this crate explains the guarantees, and why this crate has its own session loop.
//!
//! **Files:** `options.rs` options of a session, `state.rs` its figures, `control.rs` stop and reload, `run.rs`
//! connections one after the other, `connect.rs` opening a connection, `resolve.rs` name resolution, `session.rs` one
//! connection, `link.rs` its socket, `pace.rs` rate and back-off, `acks.rs` acknowledgements that are due, `filters.rs`
//! subscriptions, `packet.rs` framing and PUBLISH, `codec.rs` all other packets.

mod acks;
mod codec;
pub(crate) mod connect;
mod control;
mod copies;
mod filters;
mod link;
pub mod options;
pub(crate) mod pace;
pub mod packet;
mod received;
pub(crate) mod resolve;
mod run;
mod session;
pub mod state;

pub use control::{Control, Controller, control};
pub use options::{MqttOptions, OptionInvalid, Qos, Subscription, Version};
pub use run::{Ended, run};
pub use state::{MqttFigures, MqttState, Pause};

use crate::intake::{Destination, Intake, Outcome, Outgoing, Reason};

/// The receiver of the messages.
pub trait Consumer {
    /// Takes a message, or returns why not. After [`Outcome::Wait`] the rest of the same payload is offered again. Once
    /// a reading of the payload is taken, the answer to a rest must be [`Outcome::Accepted`], even if the rest is bad.
    /// The number in it must cover the readings taken before. [`Outcome::Refused`] is acknowledged without waiting for
    /// durability. `is_retained`: the broker has kept it since before the subscription. Must not block.
    fn message(&mut self, topic: &[u8], payload: &[u8], is_retained: bool) -> Outcome;

    /// Counts an item that never became a message.
    fn refuse(&mut self, reason: Reason);

    /// Returns the next message for the broker, if there is one. It is sent once, with QoS 0: if the connection breaks,
    /// it is lost. Called after messages were taken. Must not block.
    fn outgoing(&mut self) -> Option<Outgoing> {
        None
    }
}

impl<D: Destination> Consumer for Intake<D> {
    fn message(&mut self, topic: &[u8], payload: &[u8], is_retained: bool) -> Outcome {
        if is_retained {
            self.mqtt_retained(topic, payload)
        } else {
            self.mqtt(topic, payload)
        }
    }

    fn refuse(&mut self, reason: Reason) {
        Intake::refuse(self, reason);
    }

    fn outgoing(&mut self) -> Option<Outgoing> {
        Intake::outgoing(self)
    }
}
