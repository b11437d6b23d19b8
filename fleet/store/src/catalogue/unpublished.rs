//! Objects of the catalogue's next version. They are removed if it is not published: otherwise they would occupy a full
//! store for a day.

use trawl_sys::Result;

use crate::object::hashed_name;
use crate::object::remote::Store;

pub struct Draft<'a> {
    pub store: &'a Store,
    keys: Vec<String>,
}

impl<'a> Draft<'a> {
    pub fn new(store: &'a Store) -> Self {
        Self { store, keys: Vec::new() }
    }

    pub fn write(&mut self, key: &str, bytes: Vec<u8>) -> Result<()> {
        self.keys.push(key.to_owned());
        self.store.write(key, bytes)
    }

    /// Stores an object under a key with its hash, and returns the key.
    pub fn put(&mut self, stem: &str, bytes: Vec<u8>, ending: &str) -> Result<String> {
        let key = hashed_name::key(stem, &bytes, ending);
        self.write(&key, bytes)?;
        Ok(key)
    }

    pub fn keep(mut self) {
        self.keys.clear();
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        let _ = self.store.delete_all(&self.keys);
    }
}
