//! Stores in terms of the command line: image files and devices, opening them, and errors with a remedy.
//!
//! **Files:** `image.rs` what a path is, `open.rs` opening a store, `error.rs` errors, `holder.rs` which process has a
//! store open.

mod error;
mod holder;
mod image;
mod open;

pub use error::{check_error, device_error, file_error, store_error};
pub use image::{find_image, refuse_the_image, standard_metadata};
pub use open::{
    Access, device_options, explain_file_limit, is_held, open, open_alone, open_device, open_held,
    read_error,
};
