//! The tests of `base` from outside, as one program: each file beside this one is a module of it.

mod file_device;
mod histogram;
mod loop_device;
mod sim_device;
mod sim_faults;
mod wire;
