//! A store that checks that Parquet files end with a footer of a possible length, and are as long as the catalogue
//! says. The reader of Parquet files does not survive others.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::path::Path as Key;
use object_store::{Error, GetOptions, GetRange, GetResult, GetResultPayload, ObjectStore, Result};

use super::read_only::{Reader, read_ranges};

/// Length of the end of a file: the length of its metadata, and the format's name.
pub const END: u64 = 8;
const NAME: &[u8] = b"PAR1";
/// Maximum number of bytes that a read of a footer asks for; longer reads ask for rows.
const MOST: u64 = 4 << 20;

/// A store whose answers are checked.
#[derive(Debug)]
pub struct Checked {
    pub store: Arc<dyn ObjectStore>,
    /// The store is a directory, which opens a file once for all parts of it, and checks that the file has them.
    pub is_directory: bool,
}

/// Returns the reason why a Parquet file of this size cannot have this end.
pub fn fault(end: &[u8], size: u64) -> Option<String> {
    let (length, name) = end.split_first_chunk()?;
    let length = u64::from(u32::from_le_bytes(*length));
    match name {
        NAME if length <= size.saturating_sub(END) => None,
        NAME => Some(format!("it claims {length} bytes of metadata, but has {size} bytes in all")),
        _ => Some("it is not a Parquet file, or it is truncated".to_owned()),
    }
}

fn unreadable(location: &Key, fault: &str) -> Error {
    Error::Generic { store: "index", source: format!("{location}: {fault}").into() }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

#[async_trait]
impl Reader for Checked {
    fn inner(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    async fn get_ranges(&self, location: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        match ranges {
            // One part may be a footer.
            [_, _, ..] if self.is_directory => self.store.get_ranges(location, ranges).await,
            _ => read_ranges(self, location, ranges).await,
        }
    }

    async fn get_opts(&self, location: &Key, options: GetOptions) -> Result<GetResult> {
        let only_facts = options.head;
        let wanted = match &options.range {
            Some(GetRange::Bounded(range)) if !only_facts => Some(range.clone()),
            _ => None,
        };
        let answer = self.store.get_opts(location, options).await?;
        if wanted.is_some_and(|wanted| answer.range != wanted) {
            let fault = format!("it has {} bytes, fewer than the catalogue says", answer.meta.size);
            return Err(unreadable(location, &fault));
        }
        let length = answer.range.end.saturating_sub(answer.range.start);
        let ends = answer.range.end == answer.meta.size && (END..=MOST).contains(&length);
        if only_facts || !ends || !location.as_ref().ends_with(".parquet") {
            return Ok(answer);
        }
        let (meta, range, attributes) = (answer.meta.clone(), answer.range.clone(), answer.attributes.clone());
        let bytes: Bytes = answer.bytes().await?;
        let end = &bytes[bytes.len().saturating_sub(END as usize)..];
        if let Some(fault) = fault(end, meta.size) {
            return Err(unreadable(location, &fault));
        }
        let payload = GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed());
        Ok(GetResult { payload, meta, range, attributes })
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::*;
    use crate::search::read_only::ReadOnly;

    fn checked(store: InMemory) -> Checked {
        Checked { store: Arc::new(store), is_directory: false }
    }

    #[test]
    fn footers_of_impossible_lengths_are_errors() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for (end, is_possible) in [
            (&b"\x04\0\0\0PAR1"[..], true),
            (b"\x09\0\0\0PAR1", false),
            (b"\xff\xff\xff\xffPAR1", false),
            (b"\x04\0\0\0PAR2", false),
        ] {
            let (store, key) = (InMemory::new(), Key::from("index/data/x.parquet"));
            let file = [&b"PAR1meta"[..], end].concat();
            let read = runtime.block_on(async {
                store.put(&key, file.into()).await?;
                let options = GetOptions { range: Some(GetRange::Suffix(12)), ..GetOptions::default() };
                ReadOnly(checked(store)).get_opts(&key, options).await?.bytes().await
            });
            assert_eq!(read.is_ok(), is_possible, "{end:?}: {read:?}");
            assert!(read.err().is_none_or(|error| error.to_string().contains("x.parquet")));
        }
    }

    #[test]
    fn files_shorter_than_the_catalogue_says_are_errors() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (store, key) = (InMemory::new(), Key::from("index/data/x.parquet"));
        let read = runtime.block_on(async {
            store.put(&key, (&b"PAR1meta\x04\0\0\0PAR1"[..]).into()).await?;
            ReadOnly(checked(store)).get_ranges(&key, &[0..16, 0..20]).await
        });
        let error = read.expect_err("an error").to_string();
        assert!(error.contains("x.parquet: it has 16 bytes"), "{error}");
    }
}
