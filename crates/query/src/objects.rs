//! trawl's object store as DataFusion sees one. They are built against different versions of `object_store`; only what
//! reading takes is passed on.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::object_store::path::Path;
use datafusion::object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store as theirs;

#[derive(Debug)]
pub struct Objects(pub Arc<dyn theirs::ObjectStore>);

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

fn error(error: theirs::Error) -> Error {
    match error {
        theirs::Error::NotFound { path, source } => Error::NotFound { path, source },
        other => Error::Generic {
            store: "trawl",
            source: Box::new(other),
        },
    }
}

fn key(path: &Path) -> Result<theirs::path::Path> {
    theirs::path::Path::parse(path.as_ref()).map_err(|source| Error::Generic {
        store: "trawl",
        source: Box::new(source),
    })
}

fn meta(meta: theirs::ObjectMeta) -> Result<ObjectMeta> {
    Ok(ObjectMeta {
        location: Path::parse(meta.location.as_ref())?,
        last_modified: meta.last_modified,
        size: meta.size,
        e_tag: meta.e_tag,
        version: meta.version,
    })
}

fn read_only(operation: &str) -> Error {
    Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: "a query, which only reads".to_owned(),
    }
}

#[async_trait]
impl ObjectStore for Objects {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let asked = theirs::GetOptions {
            range: options.range.map(|range| match range {
                GetRange::Bounded(range) => theirs::GetRange::Bounded(range),
                GetRange::Offset(from) => theirs::GetRange::Offset(from),
                GetRange::Suffix(length) => theirs::GetRange::Suffix(length),
            }),
            head: options.head,
            ..theirs::GetOptions::default()
        };
        let found = self
            .0
            .get_opts(&key(location)?, asked)
            .await
            .map_err(error)?;
        // In one piece: a directory's stream comes in many small ones.
        let (meta, range) = (meta(found.meta.clone())?, found.range.clone());
        let bytes = found.bytes().await.map_err(error)?;
        let whole = stream::once(async { Ok(bytes) });
        Ok(GetResult {
            meta,
            range,
            attributes: Attributes::new(),
            payload: GetResultPayload::Stream(whole.boxed()),
        })
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<bytes::Bytes>> {
        self.0
            .get_ranges(&key(location)?, ranges)
            .await
            .map_err(error)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.map(|path| theirs::path::Path::from(path.as_ref()));
        self.0
            .list(prefix.as_ref())
            .map_err(error)
            .and_then(async |found| meta(found))
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.map(key).transpose()?;
        let found = self
            .0
            .list_with_delimiter(prefix.as_ref())
            .await
            .map_err(error)?;
        let prefixes = found.common_prefixes.iter();
        Ok(ListResult {
            common_prefixes: prefixes
                .map(|path| Ok(Path::parse(path.as_ref())?))
                .collect::<Result<_>>()?,
            objects: found.objects.into_iter().map(meta).collect::<Result<_>>()?,
        })
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(read_only("put"))
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(read_only("put"))
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::once(async { Err(read_only("delete")) }).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(read_only("copy"))
    }
}
