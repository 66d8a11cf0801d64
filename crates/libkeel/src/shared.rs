//! Values in place, where the node writes them: a region that this process attaches read-only, and the table in it.

use crate::error::Error;
use crate::whereabouts::{AT, Whereabouts, path_beside, run_text};
use base::error::Code;
use db::shared::TableReader;
use mem::Attachment;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::path::Path;
use std::ptr::NonNull;

/// The table of one run of the node.
pub(crate) struct Shared {
    reader: ManuallyDrop<TableReader<'static>>,
    /// `reader` borrows from it; it is released after the reader.
    attachment: NonNull<Attachment>,
    run: String,
    /// Distinguishes this table from earlier ones of this client.
    pub(crate) number: u32,
}

// SAFETY: a box and what borrows from it, both of which may be sent and shared; the pointer stands for the box alone.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Proves the claim above at compile time.
const _: () = {
    const fn may_be_shared<T: Send + Sync>() {}
    may_be_shared::<TableReader<'static>>();
    may_be_shared::<Attachment>();
};

impl Shared {
    /// Opens the table that is announced beside a socket and whose run lives; `None` if none is announced.
    pub(crate) fn beside(socket: &Path, number: u32) -> Result<Option<Self>, Error> {
        let shown = path_beside(socket);
        let shown = shown.display();
        let found = Whereabouts::beside(socket).map_err(|error| {
            let remedy = "join the group that it belongs to, or run as a user with read access";
            Error::new(Code::from_io(&error), &shown, error, remedy)
        })?;
        let Some(found) = found else {
            return Ok(None);
        };
        let region = &found.region;
        let attachment = Attachment::open(region.as_ref(), AT, false).map_err(|error| {
            let remedy = "run as a user with read access to the region";
            Error::new(error.code(), region, error, remedy)
        })?;
        let attachment = NonNull::from(Box::leak(Box::new(attachment)));
        // SAFETY: made just now, and given back only when nothing borrows from it any more.
        let borrowed: &'static Attachment = unsafe { attachment.as_ref() };
        let reader = TableReader::open(borrowed, &found.table);
        let reader = reader.map_err(|error| {
            // SAFETY: nothing has come of the borrow.
            drop(unsafe { Box::from_raw(attachment.as_ptr()) });
            let thing = format!("{region}: {}", found.table);
            Error::new(error.code(), thing, error, "look whether the node runs")
        })?;
        let shared = Self {
            reader: ManuallyDrop::new(reader),
            attachment,
            run: found.run,
            number,
        };
        if shared.is_live() {
            return Ok(Some(shared));
        }
        let wrong = "the node that kept its values there has ended";
        Err(Error::new(Code::Gone, region, wrong, "start it again"))
    }

    /// Returns whether the announced run still serves the table. One system call.
    pub(crate) fn is_live(&self) -> bool {
        self.reader
            .run()
            .is_some_and(|run| run_text(run) == self.run)
            && self.reader.is_live()
    }
}

impl Deref for Shared {
    type Target = TableReader<'static>;

    fn deref(&self) -> &TableReader<'static> {
        &self.reader
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: neither is used again, and the reader, which borrows from the box, goes first.
        unsafe {
            ManuallyDrop::drop(&mut self.reader);
            drop(Box::from_raw(self.attachment.as_ptr()));
        }
    }
}
