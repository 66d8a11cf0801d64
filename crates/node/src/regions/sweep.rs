//! Frees what dead processes have left in a region.

use mem::Attachment;

/// Frees what dead processes have left. With `locks` it also keeps the region out of swap.
pub fn clear_up(attachment: &Attachment, locks: bool) {
    if !attachment.region().is_writable() {
        return;
    }
    // If this fails, the next sweep retries.
    attachment.sweep().ok();
    if locks && attachment.region().may_be_swapped() {
        // This fails at a limit of this user: the region works as well, but more slowly after it was swapped out.
        attachment
            .writer()
            .and_then(|writer| writer.keep_resident())
            .ok();
    }
}
