//! Tests of what programs see of a mounted tree.

mod data;
mod ends;
mod names;
mod programs;
mod support;
