//! A version as it was published.

use crate::manifest::Manifest;
use std::sync::Arc;

/// A published version.
#[derive(Debug)]
pub struct Published {
    /// The number of the version.
    pub version: u64,
    /// The signed manifest as devices receive it.
    pub signed: Arc<[u8]>,
    /// The verified manifest.
    pub manifest: Arc<Manifest>,
}
