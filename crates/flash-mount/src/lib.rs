//! The FUSE mount of a flash store.
