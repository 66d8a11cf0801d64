//! The tests of `flash-c` from outside, as one program: each file beside this one is a module of it.

mod c_programs;
mod header;
mod page;
mod races;
