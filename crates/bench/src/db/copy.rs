//! The minimum work of any store: a copy of the value from its place in memory. Time above the slowest calls of this
//! copy is caused by the store; the rest is caused by the machine.

use crate::engine::{Engine, Key, Session, Size};

/// The name in reports.
pub(super) const NAME: &str = "bare-copy";

/// Values stored contiguously, without a key, a length or a lock.
pub(super) struct BareCopy {
    values: Vec<u8>,
    value_bytes: usize,
}

impl BareCopy {
    pub(super) fn new(size: &Size) -> Self {
        let bytes = size.objects as usize * size.value_bytes;
        let mut values: Vec<u8> = Vec::with_capacity(bytes);
        large_pages(values.as_mut_ptr().addr(), bytes);
        values.resize(bytes, 0x5a);
        Self {
            values,
            value_bytes: size.value_bytes,
        }
    }
}

/// Requests large pages, as our database does.
fn large_pages(begin: usize, bytes: usize) {
    const PAGE_BYTES: usize = 4096;
    let first = begin.next_multiple_of(PAGE_BYTES);
    let end = (begin + bytes) / PAGE_BYTES * PAGE_BYTES;
    let bytes = end.saturating_sub(first);
    // SAFETY: whole pages of memory that the caller has; the call changes no byte of them.
    unsafe {
        libc::madvise(
            std::ptr::without_provenance_mut(first),
            bytes,
            libc::MADV_HUGEPAGE,
        )
    };
}

impl Engine for BareCopy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, String> {
        Ok(Box::new(self))
    }

    fn set_durable(&self, _is_durable: bool) -> Result<(), String> {
        Ok(())
    }

    fn settle(&self) -> Result<(), String> {
        Ok(())
    }

    fn setup(&self) -> String {
        "a copy out of one array, as the floor".to_owned()
    }
}

impl Session for &BareCopy {
    fn get(&mut self, key: &Key, value: &mut [u8]) -> Result<usize, String> {
        let begin = key.number as usize * self.value_bytes;
        let from = self.values.get(begin..begin + self.value_bytes);
        let into = value.get_mut(..self.value_bytes);
        let (Some(from), Some(into)) = (from, into) else {
            return Err("bare-copy: no such value".to_owned());
        };
        into.copy_from_slice(from);
        Ok(self.value_bytes)
    }

    fn put(&mut self, _key: &Key, _value: &[u8]) -> Result<bool, String> {
        Err("bare-copy: only gets".to_owned())
    }
}
