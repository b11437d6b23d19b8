//! A store in a directory. The directory is held by its descriptor, and links in it are not followed: anyone who may
//! rename its parents, or has put a link below it, cannot choose the files that are read and written.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use object_store::path::Path as Key;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use trawl_sys::files::beneath::Directory;

/// Number of objects that are deleted at once.
const DELETIONS: usize = 10;

/// The objects of a store in a directory.
#[derive(Clone, Debug)]
pub struct Objects(Arc<Directory>);

impl Objects {
    pub fn of(directory: Directory) -> Self {
        Self(Arc::new(directory))
    }

    /// Writes an object. Its bytes reach the disk before it gets its name, and the name before this function returns,
    /// because the spool then drops its own copy.
    pub fn write_durably(&self, key: &str, bytes: &[u8], is_new: bool) -> io::Result<()> {
        let path = Path::new(key);
        let above = path.parent().unwrap_or(Path::new(""));
        let name = path.file_name().unwrap_or_default();
        let folders = self.0.make_folders(above)?;
        let folder = &folders[0];
        let staged = staged(name);
        let _ = folder.remove(&staged);
        let written = folder.new_file(&staged).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()?;
            if is_new { folder.link(&staged, name) } else { folder.rename(&staged, name) }
        });
        if is_new || written.is_err() {
            let _ = folder.remove(&staged);
        }
        written?;
        folders.iter().try_for_each(Directory::sync)
    }
}

/// Returns the name of an object until it is complete.
fn staged(name: &OsStr) -> OsString {
    let mut staged = name.to_owned();
    staged.push(format!("#{}", std::process::id()));
    staged
}

/// Returns true for the name of an object that is not complete.
fn is_staged(name: &OsStr) -> bool {
    let end = name.to_str().and_then(|name| name.rsplit_once('#'));
    end.is_some_and(|(_, end)| end.bytes().all(|byte| byte.is_ascii_digit()))
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("directory")
    }
}

fn failed(key: &str, error: io::Error) -> Error {
    let source = Box::new(error);
    match source.kind() {
        io::ErrorKind::NotFound => Error::NotFound { path: key.to_owned(), source },
        _ => Error::Generic { store: "directory", source },
    }
}

fn only_durably<T>() -> Result<T> {
    Err(Error::NotSupported { source: "objects of a directory are written by one call".into() })
}

fn meta(location: Key, size: u64, changed: SystemTime) -> ObjectMeta {
    ObjectMeta { last_modified: changed.into(), location, size, e_tag: None, version: None }
}

/// Runs a function that waits for the disk on a thread for such calls.
async fn run_blocking<T: Send + 'static>(call: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(call).await?
}

#[async_trait]
impl ObjectStore for Objects {
    async fn get_opts(&self, location: &Key, options: GetOptions) -> Result<GetResult> {
        let (directory, location) = (Arc::clone(&self.0), location.clone());
        run_blocking(move || {
            let path = Path::new(location.as_ref()).to_owned();
            let fail = |e| failed(&path.to_string_lossy(), e);
            let file = directory.file(&path).map_err(fail)?;
            let about = file.metadata().map_err(fail)?;
            let meta = meta(location, about.len(), about.modified().map_err(fail)?);
            options.check_preconditions(&meta)?;
            let range = match options.range {
                Some(range) => range.as_range(meta.size).map_err(|e| fail(io::Error::other(e)))?,
                None => 0..meta.size,
            };
            Ok(GetResult {
                payload: GetResultPayload::File(file, path),
                attributes: Attributes::default(),
                range,
                meta,
            })
        })
        .await
    }

    async fn get_ranges(&self, location: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (directory, key) = (Arc::clone(&self.0), location.to_string());
        let ranges = ranges.to_vec();
        run_blocking(move || {
            let fail = |e| failed(&key, e);
            let file = directory.file(Path::new(&key)).map_err(fail)?;
            let length = file.metadata().map_err(fail)?.len();
            let read = ranges.into_iter().map(|range| {
                // A range beyond the end has no memory to be read into.
                let size = range.end.min(length).saturating_sub(range.start);
                let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
                file.read_exact_at(&mut bytes, range.start).map_err(fail)?;
                if range.end <= length {
                    Ok(Bytes::from(bytes))
                } else {
                    Err(fail(io::ErrorKind::UnexpectedEof.into()))
                }
            });
            read.collect()
        })
        .await
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (directory, below) = (Arc::clone(&self.0), prefix.map(Key::to_string));
        let listed = run_blocking(move || {
            let below = below.unwrap_or_default();
            let files = directory.files(Path::new(&below)).map_err(|e| failed(&below, e))?;
            let whole = files.into_iter().filter(|file| file.path.file_name().is_some_and(|name| !is_staged(name)));
            let objects = whole.map(|file| {
                let key = Key::from(file.path.to_string_lossy().as_ref());
                Ok(meta(key, file.bytes, file.changed))
            });
            Ok(objects.collect::<Vec<_>>())
        });
        let objects = listed.map(|listed| match listed {
            Ok(objects) => stream::iter(objects),
            Err(error) => stream::iter(vec![Err(error)]),
        });
        objects.flatten_stream().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Key>) -> Result<ListResult> {
        only_durably()
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Key>>) -> BoxStream<'static, Result<Key>> {
        let directory = Arc::clone(&self.0);
        let deleted = locations.map(move |location| {
            let directory = Arc::clone(&directory);
            run_blocking(move || {
                let location = location?;
                let path = Path::new(location.as_ref());
                let above = path.parent().unwrap_or(Path::new(""));
                let folder = directory.folder(above);
                folder
                    .and_then(|folder| folder.remove(path.file_name().unwrap_or_default()))
                    .map_err(|e| failed(location.as_ref(), e))?;
                Ok(location)
            })
        });
        deleted.buffered(DELETIONS).boxed()
    }

    async fn put_opts(&self, _: &Key, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        only_durably()
    }

    async fn put_multipart_opts(&self, _: &Key, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        only_durably()
    }

    async fn copy_opts(&self, _: &Key, _: &Key, _: CopyOptions) -> Result<()> {
        only_durably()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_objects_are_not_listed() {
        for (name, is_one) in [("a#1", true), ("a", false), ("a#b", false)] {
            assert_eq!(is_staged(OsStr::new(name)), is_one, "{name}");
        }
        assert!(is_staged(&staged(OsStr::new("a.json"))));
    }
}
