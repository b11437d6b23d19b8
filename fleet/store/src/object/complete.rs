//! An object store that checks that answers are as long as they claim to be. Readers of the index do not survive
//! shorter ones.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

#[derive(Debug)]
pub struct Whole<T>(pub T);

impl<T: fmt::Display> fmt::Display for Whole<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl<T: ObjectStore> ObjectStore for Whole<T> {
    async fn put_opts(&self, key: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.0.put_opts(key, payload, options).await
    }

    async fn put_multipart_opts(&self, key: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Path, options: GetOptions) -> Result<GetResult> {
        let only_facts = options.head;
        let answer = self.0.get_opts(key, options).await?;
        if only_facts {
            return Ok(answer);
        }
        let wanted = answer.range.end - answer.range.start;
        let payload = answer.payload;
        let payload = match payload {
            GetResultPayload::Stream(bytes) => GetResultPayload::Stream(counted(bytes, wanted, key.to_string())),
            other => other,
        };
        Ok(GetResult { payload, ..answer })
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

/// Ends a stream with an error if its length is not the wanted one.
fn counted(bytes: BoxStream<'static, Result<Bytes>>, wanted: u64, key: String) -> BoxStream<'static, Result<Bytes>> {
    let pieces = bytes.map(Some).chain(stream::once(async { None }));
    let counted = pieces.scan(0, move |length, piece| {
        if let Some(Ok(piece)) = &piece {
            *length += piece.len() as u64;
        }
        std::future::ready(match piece {
            None if *length != wanted => Some(Err(Error::Generic {
                store: "store",
                source: format!("the store returned {length} bytes of {key} instead of {wanted}").into(),
            })),
            piece => piece,
        })
    });
    counted.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::TryStreamExt;

    #[test]
    fn shorter_and_longer_answers_are_errors() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for (wanted, is_whole) in [(5, false), (6, true), (7, false)] {
            let pieces = ["abc", "def"].map(|text| Ok(Bytes::from(text)));
            let answer = counted(stream::iter(pieces).boxed(), wanted, "key".to_owned());
            let read = runtime.block_on(answer.try_collect::<Vec<_>>());
            assert_eq!(read.is_ok(), is_whole, "{wanted}");
        }
    }
}
