//! DashMap: a concurrent hash map in memory, without persistence.

use dashmap::DashMap;

use super::{Engine, KEY_BYTES, Key, Session, Size};

/// Keys to values.
pub(crate) struct Map(DashMap<[u8; KEY_BYTES], Box<[u8]>>);

impl Map {
    pub(crate) fn create(size: &Size) -> Self {
        Self(DashMap::with_capacity(size.objects as usize))
    }
}

impl Engine for Map {
    fn name(&self) -> &'static str {
        "dashmap"
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, String> {
        Ok(Box::new(&self.0))
    }

    fn set_durable(&self, _is_durable: bool) -> Result<(), String> {
        Ok(())
    }

    fn settle(&self) -> Result<(), String> {
        Ok(())
    }

    fn setup(&self) -> String {
        "keys of 16 bytes, values boxed, overwritten in place; the default hasher".to_owned()
    }
}

impl Session for &DashMap<[u8; KEY_BYTES], Box<[u8]>> {
    fn get(&mut self, key: &Key, value: &mut [u8]) -> Result<usize, String> {
        let found =
            DashMap::get(self, &key.name).ok_or_else(|| "dashmap: no such key".to_owned())?;
        let place = value
            .get_mut(..found.len())
            .ok_or_else(|| "dashmap: the buffer is short".to_owned())?;
        place.copy_from_slice(&found);
        Ok(found.len())
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> Result<bool, String> {
        if let Some(mut found) = self.get_mut(&key.name)
            && found.len() == value.len()
        {
            found.copy_from_slice(value);
            return Ok(true);
        }
        self.insert(key.name, value.into());
        Ok(true)
    }
}
