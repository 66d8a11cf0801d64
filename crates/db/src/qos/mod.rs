//! Quality of service: a controller that holds tardiness and the data response ratio by speed and admission.
//!
//! `identify.rs` fits the model, `design.rs` computes gains from it, `controller.rs` is the law. All of this is
//! arithmetic; `regulator.rs` is the loop that sets the inputs.

pub mod actuator;
pub mod admission;
pub mod controller;
pub mod design;
pub mod figures;
pub mod identify;
mod plan;
pub mod regulator;

#[cfg(test)]
mod tests;
