//! The tests of `cluster` from outside, as one program: each file beside this one is a module of it.

mod corpus;
mod page;
