//! Placeholder while the workspace is being laid out.
