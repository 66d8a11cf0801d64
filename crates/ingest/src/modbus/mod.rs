//! The Modbus source: asks devices over TCP or a serial line (RTU) for registers, at each device's own interval.
//!
//! Framing, checksums and exceptions are those of the crate `tokio-modbus`. This module decides when to ask, what
//! belongs to which request, and what becomes of an answer.
//!
//! **Holds:** which registers are read together ([`plan()`]), values of registers ([`value`]), one exchange with a
//! device, TCP connections and serial ports, the turns of the devices, figures of each device ([`DeviceState`]).
//!
//! **Must not know:** what messages and lines are, the configuration file.
//!
//! **Invariants:** a reading comes of an answer that fits the request that is under way; what a device does not answer
//! makes no reading. Over TCP no answer to an earlier request makes one. RTU does not number requests. An answer that
//! comes later than twice the timeout can pass for one to the next request of its device. A device that does not answer
//! takes its timeout of a link that others share, and the pauses between its tries grow. Links do not wait for each
//! other.
//!
//! **Files:** `options.rs` devices and registers, `plan.rs` requests, `decode.rs` values, `exchange.rs` one request and
//! its answer, `port.rs` serial ports, `link.rs` a connection or port, `run.rs` turns, `state.rs` figures and stop.

mod decode;
mod exchange;
mod link;
mod options;
mod plan;
mod port;
mod run;
mod state;

pub use decode::value;
pub use exchange::{Answer, Failure, Fault, Framing, answer_in};
pub use options::{
    Address, DEVICES_MAX, DeviceOptions, Misfit, Parity, REGISTERS_MAX, Register, Serial, Table,
    ValueType, WordOrder,
};
pub use plan::{BITS_MAX, Request, WORDS_MAX, plan};
pub use run::{Bus, Ended, FAILING_FROM, run};
pub use state::{Control, Controller, DeviceFigures, DeviceState, control};
