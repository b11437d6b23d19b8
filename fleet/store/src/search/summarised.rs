//! A store that has copies of the parts that describe new index files: it reads them from the summaries of many chunks,
//! each once.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt, Result};
use tokio::sync::OnceCell;
use trawl_spool::key;

use super::read_only::{ReadOnly, Reader, part};
use crate::catalogue::contents::File;
use crate::catalogue::summary::{self, Parts};

/// Maximum memory for copies; parts of other files are read from the files.
const MOST: u64 = 128 << 20;

/// A summary, and the copied parts of each file in it.
#[derive(Debug)]
struct Summary {
    key: Key,
    files: OnceCell<HashMap<String, Parts>>,
}

#[derive(Debug)]
pub struct Summarised {
    store: Arc<dyn ObjectStore>,
    /// Summary of each file that has one.
    summaries: HashMap<Key, Arc<Summary>>,
    held: AtomicU64,
}

impl Summarised {
    /// Returns the store with the copies of these files.
    pub fn around(store: Arc<dyn ObjectStore>, files: &[File]) -> Arc<dyn ObjectStore> {
        let mut known: HashMap<&str, Arc<Summary>> = HashMap::new();
        let mut summaries = HashMap::new();
        for file in files {
            if let Some(copied) = &file.copied {
                let summary = known.entry(&copied.summary).or_insert_with(|| {
                    let key = Key::from(copied.summary.as_str());
                    Arc::new(Summary { key, files: OnceCell::new() })
                });
                summaries.insert(Key::from(file.key.as_str()), Arc::clone(summary));
            }
        }
        if summaries.is_empty() {
            return store;
        }
        Arc::new(ReadOnly(Self { store, summaries, held: AtomicU64::new(0) }))
    }

    /// Returns the copied parts of a file.
    async fn parts(&self, file: &Key) -> Option<Parts> {
        let summary = self.summaries.get(file)?;
        let files = summary.files.get_or_init(|| self.read(&summary.key)).await;
        files.get(file.as_ref()).cloned()
    }

    /// Reads a summary. If it is gone meanwhile, the files themselves are read.
    async fn read(&self, key: &Key) -> HashMap<String, Parts> {
        let read = async { self.store.get(key).await?.bytes().await };
        let entries = read.await.map(|bytes| summary::parse(&bytes)).unwrap_or_default();
        let files = entries.into_iter().filter_map(|entry| Some((key::new_index(&entry.chunk), entry.index?)));
        let is_room = |parts: &Parts| self.held.fetch_add(parts.held(), Ordering::Relaxed) < MOST;
        files.filter(|(_, parts)| is_room(parts)).collect()
    }
}

impl fmt::Display for Summarised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with summaries", self.store)
    }
}

#[async_trait]
impl Reader for Summarised {
    fn inner(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    async fn get_opts(&self, location: &Key, options: GetOptions) -> Result<GetResult> {
        if let Some(GetRange::Bounded(range)) = options.range.as_ref().filter(|_| !options.head)
            && let Some(bytes) = self.parts(location).await.and_then(|parts| parts.get(range))
        {
            return Ok(part(location, range.clone(), bytes));
        }
        self.store.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let parts = self.parts(location).await;
        let copies: Option<Vec<Bytes>> = parts.and_then(|parts| ranges.iter().map(|range| parts.get(range)).collect());
        match copies {
            Some(copies) => Ok(copies),
            None => self.store.get_ranges(location, ranges).await,
        }
    }
}
