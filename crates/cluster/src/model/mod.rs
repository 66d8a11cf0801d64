//! Arithmetic: no clock, no file, no random number. Times in seconds, energy in joules, power in watts, sizes in bytes.

mod data_centre;
mod fraction;
mod hockney;
mod job;
mod parity;
mod woo_lee;

pub use data_centre::{DataCentre, Outcome, upload_rate_break_even};
pub use fraction::{Fraction, Growth, fit_fraction};
pub use hockney::{Curve, Point, SEGMENTS_MAX, Segment};
pub use job::{BoardPower, Boundary, Cluster, Exchange, Job, Objective};
pub use parity::{BenchmarkPower, Fault, Parity, ParityTable, parse_power_table, thesis_tables};
pub use woo_lee::{Scaling, measured_per_watt};
