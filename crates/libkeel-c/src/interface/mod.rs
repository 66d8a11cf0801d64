//! The functions of the library, in the order of the header.

mod key;
mod node;
mod task;
mod text;
mod ticket;

pub use key::*;
pub use node::*;
pub use task::*;
pub use text::*;
pub use ticket::*;
