//! The control loop of quality of service: it holds tardiness and the data response ratio by speed and admission.
//!
//! **Holds:** the [`figures`] of a sampling period, the model of the node ([`identify`]), gains from it ([`design`]),
//! the law ([`controller`]), the loop around them ([`regulator`]), the interface to what sets the speed ([`actuator`]).
//!
//! **Must not know:** the database, the files of the machine, clocks, threads.
//!
//! **Invariants:** Everything is arithmetic: the same samples always give the same inputs. Every search has a limit.
//! Without samples, both inputs go to full.
//!
//! **Files:** as listed; `tests.rs` the arithmetic against a reference case, and the loop on simulated plants.

pub mod actuator;
pub mod controller;
pub mod design;
pub mod figures;
pub mod identify;
pub mod regulator;

#[cfg(test)]
mod tests;
