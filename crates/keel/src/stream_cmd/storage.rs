//! A flash store as the storage of a device's cache.

use base::block::BlockDevice;
use base::error::Code;
use flash::{FileHandle, Store};
use std::sync::{Mutex, MutexGuard, PoisonError};
use stream::device::cache::{Storage, StorageError};

/// The files of a store. One of them is kept open: logs are appended to and read many times.
pub(super) struct FlashStorage<D: BlockDevice> {
    open: Mutex<Open<D>>,
}

struct Open<D: BlockDevice> {
    /// `None` if it is closed.
    store: Option<Store<D>>,
    file: Option<(String, FileHandle)>,
}

impl<D: BlockDevice> FlashStorage<D> {
    pub(super) fn new(store: Store<D>) -> Self {
        Self {
            open: Mutex::new(Open {
                store: Some(store),
                file: None,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open<D>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: BlockDevice> Drop for FlashStorage<D> {
    fn drop(&mut self) {
        let mut open = self.lock();
        open.release();
        if let Some(store) = open.store.take() {
            // Synced data are safe, so a failure of the device now is irrelevant.
            let _ = store.close();
        }
    }
}

impl<D: BlockDevice> Open<D> {
    fn store(&mut self) -> Result<&mut Store<D>, StorageError> {
        self.store.as_mut().ok_or_else(|| StorageError::Failed {
            code: Code::Gone,
            message: "the store is closed".to_owned(),
        })
    }

    fn release(&mut self) {
        if let (Some((_, file)), Some(store)) = (self.file.take(), self.store.as_mut()) {
            store.close_file(file);
        }
    }

    fn file(&mut self, name: &str) -> Result<FileHandle, StorageError> {
        if let Some((open, file)) = &self.file
            && open == name
        {
            return Ok(*file);
        }
        self.release();
        let file = self
            .store()?
            .open_file(name)
            .map_err(|error| failed(&error))?;
        self.file = Some((name.to_owned(), file));
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

impl<D: BlockDevice + Send> Storage for FlashStorage<D> {
    fn list(&self) -> Result<Vec<(String, u64)>, StorageError> {
        let mut files = Vec::new();
        let listed = self
            .lock()
            .store()?
            .list(&mut |name, stat| files.push((name.to_owned(), stat.length_bytes)));
        match listed {
            // The readable files have been listed.
            Ok(()) | Err(flash::Error::Damaged { .. }) => Ok(files),
            Err(error) => Err(failed(&error)),
        }
    }

    fn create(&self, name: &str) -> Result<(), StorageError> {
        let mut open = self.lock();
        open.release();
        match open.store()?.delete(name) {
            Ok(()) | Err(flash::Error::NotFound) => {}
            Err(error) => return Err(failed(&error)),
        }
        let file = open.store()?.create(name).map_err(|error| failed(&error))?;
        open.file = Some((name.to_owned(), file));
        Ok(())
    }

    fn append(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let mut open = self.lock();
        let file = open.file(name)?;
        open.store()?
            .append_nosync(file, bytes)
            .map_err(|error| failed(&error))
    }

    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let mut open = self.lock();
        let file = open.file(name)?;
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            match open.store()?.read(file, at, &mut into[done..]) {
                Ok(0) => return Err(StorageError::Damaged),
                Ok(count) => done += count,
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok(())
    }

    fn length(&self, name: &str) -> Result<u64, StorageError> {
        let mut open = self.lock();
        let file = open.file(name)?;
        open.store()?.length(file).map_err(|error| failed(&error))
    }

    fn delete(&self, name: &str) -> Result<(), StorageError> {
        let mut open = self.lock();
        open.release();
        open.store()?.delete(name).map_err(|error| failed(&error))
    }

    fn sync(&self, _: &str) -> Result<(), StorageError> {
        self.lock().store()?.sync().map_err(|error| failed(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::sim::{Keep, SimDevice};
    use flash::{FormatOptions, OpenOptions};
    use std::sync::Arc;
    use stream::BlockHash;
    use stream::device::Cache;
    use stream::device::cache::{BlockCache, CacheOptions};

    fn store(blocks: u32) -> Store<SimDevice> {
        let options = FormatOptions {
            files_max: 60,
            name_bytes_max: 60,
            uuid: [1; 16],
            hash_key: [2; 16],
        };
        Store::format(SimDevice::new(u64::from(blocks), 1), &options).unwrap()
    }

    #[test]
    fn files_grow_are_read_replaced_and_deleted() {
        let storage = FlashStorage::new(store(2000));
        storage.create("one").unwrap();
        storage.append("one", &[1; 5000]).unwrap();
        storage.create("two").unwrap();
        storage.append("one", &[2; 5000]).unwrap();
        let mut files = storage.list().unwrap();
        files.sort();
        assert_eq!(files, [("one".to_owned(), 10_000), ("two".to_owned(), 0)]);
        let mut read = [0; 10];
        storage.read("one", 4995, &mut read).unwrap();
        assert_eq!(read, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
        let behind = storage.read("one", 9995, &mut read);
        assert_eq!(behind, Err(StorageError::Damaged));
        assert_eq!(storage.length("one"), Ok(10_000));
        storage.create("one").unwrap();
        assert_eq!(storage.length("one"), Ok(0));
        storage.delete("one").unwrap();
        assert_eq!(storage.delete("one"), Err(StorageError::NotFound));
        assert_eq!(storage.length("one"), Err(StorageError::NotFound));
        assert_eq!(storage.append("one", &[1]), Err(StorageError::NotFound));
    }

    #[test]
    fn a_cache_outlives_the_power_and_gives_way_on_a_small_store() {
        let options = CacheOptions::default();
        let storage = Arc::new(FlashStorage::new(store(1500)));
        struct Shared(Arc<FlashStorage<SimDevice>>);
        impl Storage for Shared {
            fn list(&self) -> Result<Vec<(String, u64)>, StorageError> {
                self.0.list()
            }
            fn create(&self, name: &str) -> Result<(), StorageError> {
                self.0.create(name)
            }
            fn append(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
                self.0.append(name, bytes)
            }
            fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
                self.0.read(name, offset, into)
            }
            fn length(&self, name: &str) -> Result<u64, StorageError> {
                self.0.length(name)
            }
            fn delete(&self, name: &str) -> Result<(), StorageError> {
                self.0.delete(name)
            }
            fn sync(&self, name: &str) -> Result<(), StorageError> {
                self.0.sync(name)
            }
        }
        let cache = BlockCache::open(Box::new(Shared(Arc::clone(&storage))), &options).unwrap();
        let block = |number: u32| {
            let mut state = number | 1;
            let bytes: Vec<u8> = (0..4096)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            (BlockHash::of(&bytes), Arc::<[u8]>::from(bytes))
        };
        for number in (0..3000).step_by(2) {
            let (hash, bytes) = block(number);
            cache.put(&hash, &bytes);
        }
        cache.set_note("manifest-1", &[5; 100_000]).unwrap();
        cache.flush();
        let image = storage
            .lock()
            .store()
            .unwrap()
            .device()
            .crash_image(&|_| Keep::Lost);
        let opened = Store::open(image, &OpenOptions::default()).unwrap();
        let after = BlockCache::open(Box::new(FlashStorage::new(opened)), &options).unwrap();
        assert_eq!(after.note("manifest-1"), Some(vec![5; 100_000]));
        let there = (0..3000).step_by(2).filter(|number| {
            let (hash, bytes) = block(*number);
            let found = after.get(&hash, 4096);
            assert!(found.is_none() || found.as_ref() == Some(&bytes));
            found.is_some()
        });
        assert!(there.count() > 100);
        assert_eq!(after.counters().damaged, 0);
    }
}
