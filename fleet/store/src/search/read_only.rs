//! Stores that queries read through: each reads in its own way, and all refuse changes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path as Key;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, coalesce_ranges,
};

/// Maximum number of bytes between two parts that one call reads. The Bloom filter of a row group's hashes, which lies
/// between the filters of its addresses and those of the next row group, is larger: it would be most of what is read.
const GAP: u64 = 64 << 10;

/// The calls of a store that read objects.
#[async_trait]
pub trait Reader: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// Returns the store that is read.
    fn inner(&self) -> &Arc<dyn ObjectStore>;

    async fn get_opts(&self, location: &Key, options: GetOptions) -> Result<GetResult>;

    async fn get_ranges(&self, location: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        read_ranges(self, location, ranges).await
    }
}

/// Reads parts of an object, those with little between them by one call.
pub async fn read_ranges(reader: &(impl Reader + ?Sized), location: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
    let part = move |range: Range<u64>| async move {
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        reader.get_opts(location, options).await?.bytes().await
    };
    coalesce_ranges(ranges, part, GAP).await
}

/// Returns a part of an object as an answer of a store.
pub fn part(location: &Key, range: Range<u64>, bytes: Bytes) -> GetResult {
    GetResult {
        meta: ObjectMeta {
            location: location.clone(),
            last_modified: SystemTime::UNIX_EPOCH.into(),
            size: range.end,
            e_tag: None,
            version: None,
        },
        range,
        attributes: Attributes::default(),
        payload: GetResultPayload::Stream(stream::iter([Ok(bytes)]).boxed()),
    }
}

/// A store that only reads.
#[derive(Debug)]
pub struct ReadOnly<R>(pub R);

impl<R: Reader> fmt::Display for ReadOnly<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

fn refuse<T>() -> Result<T> {
    Err(Error::NotSupported { source: "a query only reads".into() })
}

#[async_trait]
impl<R: Reader> ObjectStore for ReadOnly<R> {
    async fn get_opts(&self, location: &Key, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.0.get_ranges(location, ranges).await
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.inner().list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> Result<ListResult> {
        self.0.inner().list_with_delimiter(prefix).await
    }

    async fn put_opts(&self, _: &Key, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        refuse()
    }

    async fn put_multipart_opts(&self, _: &Key, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        refuse()
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Key>>) -> BoxStream<'static, Result<Key>> {
        locations.map(|_| refuse()).boxed()
    }

    async fn copy_opts(&self, _: &Key, _: &Key, _: CopyOptions) -> Result<()> {
        refuse()
    }
}
