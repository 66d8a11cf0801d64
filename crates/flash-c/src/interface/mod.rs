//! The functions of the library, in the order of the header.

mod file;
mod store;
mod text;
mod upkeep;

pub use file::*;
pub use store::*;
pub use text::*;
pub use upkeep::*;
