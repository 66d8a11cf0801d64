//! Implements the trait for the file store of this device.

use base::block::BlockDevice;

use super::{SegmentStore, StoreError};

/// Free blocks that are never promised to an append. A few are for the store's own lists. The others are for the run
/// that each growing file (log, checkpoint, index) may take ahead of what is written.
const BLOCKS_BESIDES: u64 = 32 + 3 * RUN_BLOCKS;
/// Most blocks that the store hands to a growing file at a time.
const RUN_BLOCKS: u64 = 64;

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

/// Converts an append error. The walk to free space may meet damage; for an append that is a failure, not a place in
/// the file.
fn append_error(error: flash::Error) -> StoreError {
    match StoreError::from(error) {
        StoreError::Damaged { .. } => StoreError::Failed {
            code: base::error::Code::Corrupt,
            message: "the store's own structures are damaged: check it".to_owned(),
        },
        other => other,
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
        flash::Store::append(self, file, data).map_err(append_error)
    }

    fn append_unsynced(&mut self, file: Self::File, data: &[u8]) -> Result<(), StoreError> {
        self.append_nosync(file, data).map_err(append_error)
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

    fn free_bytes(&self) -> u64 {
        // A file's own addresses take a block now and then; a new file or a full chain takes a few.
        let statistics = self.statistics();
        // Runs grow with their file: in a small store they are small.
        let besides = BLOCKS_BESIDES.min(statistics.blocks_total / 8);
        let blocks = statistics.blocks_free.saturating_sub(besides);
        blocks / 16 * 15 * flash::PAYLOAD_BYTES as u64
    }

    fn capacity_bytes(&self) -> u64 {
        self.statistics().blocks_total * flash::PAYLOAD_BYTES as u64
    }

    fn payload_bytes(&self) -> u64 {
        flash::PAYLOAD_BYTES as u64
    }

    fn secret(&self) -> u64 {
        flash::Store::secret(self, "db log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::sim::SimDevice;
    use flash::{FormatOptions, Store};

    #[test]
    fn the_file_store_keeps_the_contract_of_the_trait() {
        let options = FormatOptions {
            files_max: 16,
            name_bytes_max: 64,
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        let mut store = Store::format(SimDevice::new(512, 1), &options).expect("formatted");
        assert_eq!(
            SegmentStore::open(&mut store, "a").err(),
            Some(StoreError::NotFound)
        );
        let file = SegmentStore::create(&mut store, "a").expect("created");
        assert_eq!(
            SegmentStore::create(&mut store, "a").err(),
            Some(StoreError::Exists)
        );
        SegmentStore::append(&mut store, file, &[5; 10_000]).expect("appended");
        assert_eq!(SegmentStore::length(&mut store, file), Ok(10_000));
        let mut buffer = [0; 4096];
        assert_eq!(
            SegmentStore::read(&mut store, file, 9000, &mut buffer),
            Ok(1000)
        );
        assert_eq!(
            SegmentStore::read(&mut store, file, 10_000, &mut buffer),
            Ok(0)
        );
        let full = loop {
            if let Err(error) = SegmentStore::append(&mut store, file, &[5; 60_000]) {
                break error;
            }
        };
        assert_eq!(full, StoreError::Full);
        assert_eq!(
            SegmentStore::read(&mut store, file, 0, &mut buffer),
            Ok(4096)
        );
        let mut names = Vec::new();
        SegmentStore::list(&mut store, &mut |name| names.push(name.to_owned())).expect("listed");
        assert_eq!(names, ["a"]);
        SegmentStore::close(&mut store, file);
        assert_eq!(SegmentStore::delete(&mut store, "a"), Ok(()));
        store.device_mut().cut_power();
        assert!(matches!(
            SegmentStore::create(&mut store, "b"),
            Err(StoreError::Failed { .. })
        ));
    }
}
