//! An SQLite extension: databases inside a flash store.
