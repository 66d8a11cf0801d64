//! The integration tests of `cluster`, as one program: each file in this directory is a module of it.

mod corpus;
mod page;
