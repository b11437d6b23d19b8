//! A cache of the parts of index files that describe their contents: footers and Bloom filters. It serves stores
//! behind a network; the files of the index never change.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore, Result};
use trawl_spool::manifest::sha256;
use trawl_sys::files::{create, run};

use super::read_only::{ReadOnly, Reader, part};

/// Maximum size of the cache in bytes; if it is exceeded, the parts that were read first are removed.
const MOST: u64 = 1 << 30;
/// Directory of the files of an index, in a store.
const FILES: &str = "index/data/";
/// Length of the digest, in hexadecimal digits, before the bytes of a part.
const DIGEST: usize = 64;

/// A store with a cache.
#[derive(Debug)]
pub struct Cached {
    store: Arc<dyn ObjectStore>,
    /// The store's URL and server: another server may have a store of the same URL.
    identity: String,
    directory: PathBuf,
    has_grown: AtomicBool,
}

impl Cached {
    /// Returns the store with a cache, or without one if this user can have no directory for it.
    pub fn around(store: Arc<dyn ObjectStore>, identity: &str) -> Arc<dyn ObjectStore> {
        match directory() {
            Some(directory) => {
                let identity = identity.to_owned();
                Arc::new(ReadOnly(Self { store, identity, directory, has_grown: AtomicBool::new(false) }))
            }
            None => store,
        }
    }

    fn path(&self, key: &Key, ranges: &[Range<u64>]) -> Option<PathBuf> {
        let is_kept = key.as_ref().starts_with(FILES);
        let name = || sha256(format!("{}\n{key}\n{ranges:?}", self.identity).as_bytes());
        is_kept.then(|| self.directory.join(name()))
    }
}

/// Returns the cache's directory, which belongs to this user alone.
fn directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let home = || variable("HOME").map(|home| home.join(".cache"));
    let base = variable("XDG_CACHE_HOME").or_else(home)?;
    let directory = base.join("trawl/index");
    create::private_umask();
    run::make_own(&directory).ok()?;
    Some(directory)
}

/// Removes the oldest parts of a cache that is too large.
fn trim(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .filter_map(|entry| {
            let about = entry.metadata().ok()?;
            Some((about.modified().ok()?, about.len(), entry.path()))
        })
        .collect();
    files.sort();
    let mut bytes: u64 = files.iter().map(|(_, length, _)| length).sum();
    for (_, length, path) in files {
        if bytes <= MOST {
            break;
        }
        let _ = fs::remove_file(path);
        bytes -= length;
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        if self.has_grown.load(Ordering::Relaxed) {
            trim(&self.directory);
        }
    }
}

impl fmt::Display for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with a cache", self.store)
    }
}

#[async_trait]
impl Reader for Cached {
    fn inner(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    async fn get_opts(&self, location: &Key, options: GetOptions) -> Result<GetResult> {
        let Some(GetRange::Bounded(range)) = options.range.clone().filter(|_| !options.head) else {
            return self.store.get_opts(location, options).await;
        };
        let parts = self.get_ranges(location, std::slice::from_ref(&range)).await?;
        Ok(part(location, range, parts.into_iter().next().unwrap_or_default()))
    }

    async fn get_ranges(&self, location: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let Some(path) = self.path(location, ranges) else {
            return self.store.get_ranges(location, ranges).await;
        };
        if let Some(parts) = fs::read(&path).ok().and_then(undamaged).and_then(|bytes| divided(bytes, ranges)) {
            return Ok(parts);
        }
        let parts = self.store.get_ranges(location, ranges).await?;
        let bytes = parts.concat();
        if create::replace(&path, &[sha256(&bytes).into_bytes(), bytes].concat()).is_ok() {
            self.has_grown.store(true, Ordering::Relaxed);
        }
        Ok(parts)
    }
}

/// Returns the kept bytes, which follow their digest; `None` if either has changed, since a changed footer could hide
/// packets.
fn undamaged(kept: Vec<u8>) -> Option<Bytes> {
    let mut digest = Bytes::from(kept);
    if digest.len() < DIGEST {
        return None;
    }
    let bytes = digest.split_off(DIGEST);
    (sha256(&bytes).as_bytes() == digest).then_some(bytes)
}

/// Divides kept bytes into the parts of these ranges; `None` if they have another length.
fn divided(mut rest: Bytes, ranges: &[Range<u64>]) -> Option<Vec<Bytes>> {
    let mut parts = Vec::new();
    for range in ranges {
        let length = usize::try_from(range.end - range.start).ok()?;
        if rest.len() < length {
            return None;
        }
        parts.push(rest.split_to(length));
    }
    rest.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_parts_are_not_used() {
        let bytes = b"a footer".to_vec();
        let kept = [sha256(&bytes).into_bytes(), bytes.clone()].concat();
        assert_eq!(undamaged(kept.clone()).expect("undamaged"), bytes);
        for at in [0, DIGEST, kept.len() - 1] {
            let mut damaged = kept.clone();
            damaged[at] ^= 1;
            assert_eq!(undamaged(damaged), None, "{at}");
        }
        assert_eq!(undamaged(kept[..DIGEST - 1].to_vec()), None);
    }
}
