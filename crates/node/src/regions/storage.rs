//! A flash store as the storage of a region's checkpoints.

use base::block::BlockDevice;
use base::error::Code;
use flash::{FileHandle, Store};
use mem::checkpoint::{Storage, StorageError};

/// The files of a store. One of them is kept open: checkpoints append to one file many times.
pub struct FlashStorage<D: BlockDevice> {
    store: Store<D>,
    open: Option<(String, FileHandle)>,
}

impl<D: BlockDevice> FlashStorage<D> {
    /// Takes an open store.
    #[must_use]
    pub fn new(store: Store<D>) -> Self {
        Self { store, open: None }
    }

    /// Closes the store.
    ///
    /// # Errors
    /// The device refuses the last writes.
    pub fn close(mut self) -> Result<(), flash::Error> {
        self.release();
        self.store.close().map(drop)
    }

    fn release(&mut self) {
        if let Some((_, file)) = self.open.take() {
            self.store.close_file(file);
        }
    }

    fn file(&mut self, name: &str) -> Result<FileHandle, StorageError> {
        if let Some((open, file)) = &self.open
            && open == name
        {
            return Ok(*file);
        }
        self.release();
        let file = self.store.open_file(name).map_err(|error| failed(&error))?;
        self.open = Some((name.to_owned(), file));
        Ok(file)
    }
}

fn failed(error: &flash::Error) -> StorageError {
    match error {
        flash::Error::NotFound => StorageError::NotFound,
        flash::Error::Damaged { .. } => StorageError::Damaged,
        other if other.code() == Code::Full => StorageError::Full,
        other => StorageError::Failed {
            code: other.code(),
            message: other.to_string(),
        },
    }
}

impl<D: BlockDevice> Storage for FlashStorage<D> {
    fn list(&mut self, visit: &mut dyn FnMut(&str, u64)) -> Result<(), StorageError> {
        let listed = self
            .store
            .list(&mut |name, stat| visit(name, stat.length_bytes));
        match listed {
            // The readable files have been listed.
            Err(flash::Error::Damaged { .. }) => Ok(()),
            other => other.map_err(|error| failed(&error)),
        }
    }

    fn create(&mut self, name: &str) -> Result<(), StorageError> {
        self.release();
        match self.store.delete(name) {
            Ok(()) | Err(flash::Error::NotFound) => {}
            Err(error) => return Err(failed(&error)),
        }
        let file = self.store.create(name).map_err(|error| failed(&error))?;
        self.open = Some((name.to_owned(), file));
        Ok(())
    }

    fn append(&mut self, name: &str, data: &[u8]) -> Result<(), StorageError> {
        let file = self.file(name)?;
        self.store
            .append_nosync(file, data)
            .map_err(|error| failed(&error))
    }

    fn sync(&mut self) -> Result<(), StorageError> {
        self.store.sync().map_err(|error| failed(&error))
    }

    fn read(&mut self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let file = self.file(name)?;
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            match self.store.read(file, at, &mut into[done..]) {
                Ok(0) => return Err(StorageError::Damaged),
                Ok(count) => done += count,
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok(())
    }

    fn delete(&mut self, name: &str) -> Result<(), StorageError> {
        self.release();
        self.store.delete(name).map_err(|error| failed(&error))
    }
}

#[cfg(test)]
#[path = "storage_cuts.rs"]
mod cuts;

#[cfg(test)]
mod tests {
    use super::*;
    use base::sim::{Keep, SimDevice};
    use flash::{FormatOptions, OpenOptions};

    fn storage() -> FlashStorage<SimDevice> {
        let options = FormatOptions {
            files_max: 20,
            name_bytes_max: 60,
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        FlashStorage::new(Store::format(SimDevice::new(2000, 1), &options).unwrap())
    }

    #[test]
    fn files_grow_are_read_replaced_and_deleted() {
        let mut storage = storage();
        storage.create("one").unwrap();
        storage.append("one", &[1; 5000]).unwrap();
        storage.create("two").unwrap();
        storage.append("one", &[2; 5000]).unwrap();
        let mut names = Vec::new();
        storage
            .list(&mut |name, bytes| names.push((name.to_owned(), bytes)))
            .unwrap();
        names.sort();
        assert_eq!(names, [("one".to_owned(), 10_000), ("two".to_owned(), 0)]);
        let mut read = [0; 10];
        storage.read("one", 4995, &mut read).unwrap();
        assert_eq!(read, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
        assert_eq!(
            storage.read("one", 9995, &mut read),
            Err(StorageError::Damaged)
        );
        assert_eq!(
            storage.read("none", 0, &mut read),
            Err(StorageError::NotFound)
        );
        storage.create("one").unwrap();
        assert_eq!(
            storage.read("one", 0, &mut read),
            Err(StorageError::Damaged)
        );
        storage.delete("one").unwrap();
        assert_eq!(storage.delete("one"), Err(StorageError::NotFound));
        assert_eq!(storage.append("one", &[1]), Err(StorageError::NotFound));
        storage.close().unwrap();
    }

    #[test]
    fn synced_bytes_survive_a_power_loss_and_a_full_store_says_so() {
        let mut storage = storage();
        storage.create("one").unwrap();
        storage.append("one", &[7; 20_000]).unwrap();
        storage.sync().unwrap();
        storage.append("one", &[8; 20_000]).unwrap();
        let image = storage.store.device().crash_image(&|_| Keep::Lost);
        let store = Store::open(image, &OpenOptions::default()).unwrap();
        let mut after = FlashStorage::new(store);
        let mut read = vec![0; 20_000];
        after.read("one", 0, &mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 7));
        let full = loop {
            if let Err(error) = storage.append("one", &vec![9; 1 << 20]) {
                break error;
            }
        };
        assert_eq!(full, StorageError::Full);
    }
}
