//! The file store of this device behind the trait.

use base::block::BlockDevice;

use super::{SegmentStore, StoreError};

impl From<flash::Error> for StoreError {
    fn from(error: flash::Error) -> Self {
        match error {
            flash::Error::NotFound => Self::NotFound,
            flash::Error::Exists => Self::Exists,
            flash::Error::Full | flash::Error::NameTableFull => Self::Full,
            flash::Error::Damaged { offset, .. } => Self::Damaged {
                offset: offset.unwrap_or(0),
            },
            other => Self::Failed {
                code: other.code(),
                message: other.to_string(),
            },
        }
    }
}

impl<D: BlockDevice + 'static> SegmentStore for flash::Store<D> {
    type File = flash::FileHandle;

    fn create(&mut self, name: &str) -> Result<Self::File, StoreError> {
        Ok(flash::Store::create(self, name)?)
    }

    fn open(&mut self, name: &str) -> Result<Self::File, StoreError> {
        Ok(self.open_file(name)?)
    }

    fn close(&mut self, file: Self::File) {
        self.close_file(file);
    }

    fn append(&mut self, file: Self::File, data: &[u8]) -> Result<(), StoreError> {
        // The walk to free space may meet damage; for an append that is a failure, not a place in the file.
        flash::Store::append(self, file, data).map_err(|error| match StoreError::from(error) {
            StoreError::Damaged { .. } => StoreError::Failed {
                code: base::error::Code::Corrupt,
                message: "the store's own structures are damaged: check it".to_owned(),
            },
            other => other,
        })
    }

    fn read(
        &mut self,
        file: Self::File,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, StoreError> {
        Ok(flash::Store::read(self, file, offset, buffer)?)
    }

    fn length(&mut self, file: Self::File) -> Result<u64, StoreError> {
        Ok(flash::Store::length(self, file)?)
    }

    fn delete(&mut self, name: &str) -> Result<(), StoreError> {
        Ok(flash::Store::delete(self, name)?)
    }

    fn list(&mut self, visit: &mut dyn FnMut(&str)) -> Result<(), StoreError> {
        Ok(flash::Store::list(self, &mut |name, _| visit(name))?)
    }

    fn payload_bytes(&self) -> u64 {
        flash::PAYLOAD_BYTES as u64
    }
}
