//! Quality of service: which readings are admitted to the table.
//!
//! `admission.rs` judges each reading, `plan.rs` computes how many readings of which object are shed.

pub mod admission;
mod plan;
