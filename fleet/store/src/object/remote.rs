//! Access to the object store behind a URL, one call after the other: `file://` for a directory, `s3://`, `gs://`,
//! `az://`.

mod marks;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;
use object_store::prefix::PrefixStore;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use tokio::runtime::Runtime;
use trawl_spool::key::ChunkKey;
use trawl_spool::manifest::sha256;
use trawl_sys::files::beneath::Directory;
use trawl_sys::rights::privilege::become_owner;
use trawl_sys::{Error, Result, files::create};
use url::Url;

use super::complete::Whole;
use super::directory::Objects;

/// Failure of a call, as far as the caller's next step depends on it.
#[derive(Debug)]
pub enum Failure {
    NotFound,
    AlreadyExists,
    /// No space is left.
    Full(String),
    /// A failure that a retry may solve.
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("it does not exist"),
            Self::AlreadyExists => f.write_str("another object has that name"),
            Self::Full(why) => write!(f, "{why} (trawl store prune removes old chunks)"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::AlreadyExists => Self::AlreadyExists,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full(error.to_string()),
            _ => Self::Other(error.to_string()),
        }
    }
}

impl From<object_store::Error> for Failure {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::NotFound,
            // Stores answer a second creation with 409, or with 412 for `If-None-Match`.
            object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => Self::AlreadyExists,
            other => {
                let mut text = other.to_string();
                let mut source = std::error::Error::source(&other);
                while let Some(cause) = source {
                    let cause_text = cause.to_string();
                    if !text.contains(&cause_text) {
                        text = format!("{text}: {cause_text}");
                    }
                    source = cause.source();
                }
                let text = on_one_line(&text);
                if FULL.iter().any(|word| text.contains(word)) { Self::Full(text) } else { Self::Other(text) }
            }
        }
    }
}

/// Words in the answer of a server that has no space left.
const FULL: [&str; 4] = ["507 Insufficient Storage", "No space left on device", "QuotaExceeded", "StorageFull"];

/// Number of calls in flight at once: a store answers thousands in a second, each after some hundredths of one.
const CALLS: usize = 256;
/// Number of objects from which a listing is divided: a server lists a thousand with one call.
const LISTED: usize = 500;

/// End of the names of S3's buckets whose listings are not sorted.
const DIRECTORY_BUCKET: &str = "--x-s3";

/// Address at which a cloud's machines request the credentials of their role.
const ROLE: &str = "169.254.169.254";

/// Returns a server's message on one line, without its XML or JSON document.
fn on_one_line(message: &str) -> String {
    if message.contains(ROLE) {
        return "no credentials: none in the environment, and no role of this machine".to_owned();
    }
    let of = |text: &str, name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        let (inner, _) = rest.split_once("</")?;
        inner.lines().next().map(str::to_owned)
    };
    let text = match message.split_once("<?xml") {
        Some((before, document)) => {
            let said = ["Code", "Message"].map(|name| of(document, name));
            let said: Vec<String> = said.into_iter().flatten().collect();
            format!("{before}{}", said.join(": "))
        }
        None => message.to_owned(),
    };
    let on_a_line: Vec<&str> = text.split_whitespace().collect();
    on_a_line.join(" ")
}

/// Cloud services that hold stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    S3,
    Google,
    Azure,
}

impl Kind {
    fn of_scheme(scheme: &str) -> Option<Self> {
        Some(match scheme {
            "s3" | "s3a" => Self::S3,
            "gs" => Self::Google,
            "az" | "azure" | "abfs" | "abfss" => Self::Azure,
            _ => return None,
        })
    }

    /// Returns the settings that give access to the service.
    fn access(self) -> &'static str {
        match self {
            Self::S3 => {
                "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, and AWS_ENDPOINT for a server of your own"
            }
            Self::Google => {
                "set GOOGLE_SERVICE_ACCOUNT to the file of a service account's key, and GOOGLE_BASE_URL for a server of your own"
            }
            Self::Azure => {
                "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, and AZURE_STORAGE_ENDPOINT for a server of your own"
            }
        }
    }
}

#[derive(Debug)]
pub struct Store {
    url: String,
    /// The URL, and the settings that the environment adds to it.
    identity: String,
    objects: Arc<dyn ObjectStore>,
    /// The objects of a `file://` store, which are also written there.
    directory: Option<Objects>,
    /// True if a listing is sorted, and may begin anywhere at no cost.
    lists_parts: bool,
    runtime: Runtime,
}

/// An object of a listing.
#[derive(Clone, Debug)]
pub struct Listed {
    pub key: String,
    pub bytes: u64,
    /// Time of its last change, in nanoseconds since 1970.
    pub changed_ns: u64,
}

impl From<ObjectMeta> for Listed {
    fn from(object: ObjectMeta) -> Self {
        Self { key: object.location.to_string(), bytes: object.size, changed_ns: changed_ns(&object) }
    }
}

fn parsed(url: &str) -> Option<Url> {
    if url.starts_with('/') { Url::from_file_path(url).ok() } else { Url::parse(url).ok() }
}

/// Returns a store's URL in the form that all spellings have in common.
pub fn canonical(url: &str) -> String {
    let parsed = parsed(url);
    let text = parsed.as_ref().map_or(url, Url::as_str);
    text.trim_end_matches('/').to_owned()
}

/// Use of a store by a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    /// Makes its directory if it is missing.
    Fill,
    Change,
}

impl Store {
    /// Opens a store; with `create`, makes its directory.
    pub fn open(url: &str, create: bool) -> Result<Self> {
        Self::open_for(url, if create { Access::Fill } else { Access::Read })
    }

    /// Opens a store to change what it has. If its directory belongs to another user, root becomes this user for good.
    pub fn open_to_change(url: &str) -> Result<Self> {
        Self::open_for(url, Access::Change)
    }

    fn open_for(url: &str, access: Access) -> Result<Self> {
        let what = format!("cannot open the store {url}");
        let Some(parsed) = parsed(url) else {
            return Err(Error::usage(what, "it is not a URL").fix("for a directory, write file:///DIRECTORY"));
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::os(what.clone(), e))?;
        let kind = Kind::of_scheme(parsed.scheme());
        let (objects, directory, server) = match parsed.scheme() {
            "file" => {
                let objects = Objects::of(directory(&parsed, &what, access)?);
                let all: Arc<dyn ObjectStore> = Arc::new(objects.clone());
                (all, Some(objects), String::new())
            }
            scheme => match kind {
                Some(kind) => {
                    let (objects, server) = open_remote(&parsed, kind, &what)?;
                    (objects, None, server)
                }
                None => {
                    let why = format!("no kind of store has URLs with {scheme}://");
                    return Err(Error::usage(what, why).fix("use file://, s3://, gs:// or az://"));
                }
            },
        };
        let is_sorted = parsed.host_str().is_none_or(|bucket| !bucket.ends_with(DIRECTORY_BUCKET));
        let lists_parts = is_sorted && matches!(kind, Some(Kind::S3 | Kind::Google));
        let url = canonical(url);
        Ok(Self { identity: format!("{url}\n{server}"), url, objects, directory, lists_parts, runtime })
    }

    /// Returns the URL in its canonical form.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns a text that distinguishes this store from stores with the same URL at other servers.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the store's address as other programs write it.
    pub fn location(&self) -> String {
        let account = std::env::var("AZURE_STORAGE_ACCOUNT_NAME");
        let azure = self.url.strip_prefix("az://").zip(account.ok());
        match azure {
            Some((rest, account)) => {
                let (container, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let address = format!("abfss://{container}@{account}.dfs.core.windows.net/{prefix}");
                address.trim_end_matches('/').to_owned()
            }
            None => self.url.clone(),
        }
    }

    /// Returns the underlying object store, for callers with a runtime of their own.
    pub fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.objects)
    }

    /// Stores an object under a key that must be new.
    pub fn put_new(&self, key: &str, bytes: Vec<u8>) -> Result<(), Failure> {
        self.put(key, bytes, PutMode::Create)
    }

    /// Creates an object; an existing one with the same bytes is a success: an earlier reply may have been lost.
    pub fn put_once(&self, key: &str, bytes: Vec<u8>) -> Result<(), Failure> {
        let sum = sha256(&bytes);
        match self.put_new(key, bytes) {
            Err(Failure::AlreadyExists) if sha256(&self.get(key)?) == sum => Ok(()),
            other => other,
        }
    }

    /// Stores an object that can be made again at any time.
    pub fn overwrite(&self, key: &str, bytes: Vec<u8>) -> Result<(), Failure> {
        self.put(key, bytes, PutMode::Overwrite)
    }

    fn put(&self, key: &str, bytes: Vec<u8>, mode: PutMode) -> Result<(), Failure> {
        if let Some(directory) = &self.directory {
            let written = directory.write_durably(key, &bytes, mode == PutMode::Create);
            return written.map_err(Failure::from);
        }
        let (key, payload) = (Key::from(key), PutPayload::from(bytes));
        let put = self.objects.put_opts(&key, payload, mode.into());
        self.runtime.block_on(put)?;
        Ok(())
    }

    /// Returns the time at which an object was stored, by the store's clock, in nanoseconds since 1970.
    pub fn time(&self, key: &str) -> Result<u64, Failure> {
        let key = Key::from(key);
        let head = self.runtime.block_on(self.objects.head(&key))?;
        Ok(changed_ns(&head))
    }

    pub fn get(&self, key: &str) -> Result<Bytes, Failure> {
        let read = async { self.objects.get(&Key::from(key)).await?.bytes().await };
        Ok(self.runtime.block_on(read)?)
    }

    /// Returns an object whose absence is an error.
    pub fn read(&self, key: &str) -> Result<Bytes> {
        let bytes = self.get(key);
        bytes.map_err(|e| Error::failed(format!("cannot read {key}"), e))
    }

    /// Creates an object as [`Self::put_once`] does, with an error that names it.
    pub fn write(&self, key: &str, bytes: Vec<u8>) -> Result<()> {
        let stored = self.put_once(key, bytes);
        stored.map_err(|e| Error::failed(format!("cannot store {key}"), e))
    }

    /// Returns a part of an object, as far as the object has it.
    pub fn get_range(&self, key: &str, range: GetRange) -> Result<Bytes, Failure> {
        let options = GetOptions { range: Some(range), ..GetOptions::default() };
        let key = Key::from(key);
        let read = async { self.objects.get_opts(&key, options).await?.bytes().await };
        Ok(self.runtime.block_on(read)?)
    }

    /// Deletes objects, many with one request where the store can; missing ones count as deleted.
    pub fn delete_all(&self, keys: &[String]) -> Result<(), Failure> {
        let keys: Vec<_> = keys.iter().map(|key| Ok(Key::from(key.as_str()))).collect();
        let mut deleted = self.objects.delete_stream(stream::iter(keys).boxed());
        self.runtime.block_on(async {
            while let Some(one) = deleted.next().await {
                match one.map_err(Failure::from) {
                    Ok(_) | Err(Failure::NotFound) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    /// Returns all objects below a prefix, by name.
    pub fn list(&self, prefix: Option<&str>) -> Result<Vec<Listed>> {
        let prefix = prefix.map(Key::from);
        let listing = self.objects.list(prefix.as_ref()).try_collect::<Vec<_>>();
        let found = self.runtime.block_on(listing).map_err(|e| self.unlistable(e))?;
        let mut objects: Vec<Listed> = found.into_iter().map(Listed::from).collect();
        objects.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(objects)
    }

    /// Returns the objects in the order of their keys, with many calls in flight at once; `None` for a missing one.
    pub fn read_all(&self, keys: &[String]) -> Result<Vec<Option<Bytes>>> {
        self.runtime.block_on(self.get_all(keys))
    }

    /// Returns the objects as [`Self::read_all`] does, and lists the objects of these chunks meanwhile, perhaps with
    /// others.
    pub fn read_and_list(
        &self,
        keys: &[String],
        chunks: &BTreeSet<ChunkKey>,
    ) -> Result<(Vec<Option<Bytes>>, Vec<Listed>)> {
        self.runtime.block_on(async { tokio::try_join!(self.get_all(keys), self.list_chunks(chunks)) })
    }

    /// Lists the objects of chunks, by several calls at once.
    async fn list_chunks(&self, chunks: &BTreeSet<ChunkKey>) -> Result<Vec<Listed>> {
        let mut hours: BTreeMap<String, Vec<&ChunkKey>> = BTreeMap::new();
        for chunk in chunks {
            hours.entry(chunk.hour()).or_default().push(chunk);
        }
        let most = if self.lists_parts { LISTED } else { usize::MAX };
        let parts = hours.iter().flat_map(|(hour, chunks)| chunks.chunks(most).map(move |part| (hour, part)));
        let lists = parts.map(|(hour, part)| {
            let (first, last) = (part.first().map(ToString::to_string), part.last().map(|chunk| chunk.after()));
            self.list_between(hour, first.unwrap_or_default(), last.unwrap_or_default())
        });
        let listed: Vec<Vec<Listed>> = stream::iter(lists).buffered(CALLS).try_collect().await?;
        Ok(listed.concat())
    }

    /// Lists the objects in a directory whose keys lie between these.
    async fn list_between(&self, directory: &str, first: String, last: String) -> Result<Vec<Listed>> {
        let all = self.objects.list_with_offset(Some(&Key::from(directory)), &Key::from(first));
        let sorted = self.lists_parts;
        let within = all
            .map_ok(Listed::from)
            .try_take_while(move |object| std::future::ready(Ok(!sorted || object.key <= last)));
        within.try_collect().await.map_err(|e| self.unlistable(e))
    }

    async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Bytes>>> {
        let get = |key: &String| {
            let (key, objects) = (key.clone(), Arc::clone(&self.objects));
            async move {
                let bytes = async { objects.get(&Key::from(key.as_str())).await?.bytes().await };
                match bytes.await.map_err(Failure::from) {
                    Ok(bytes) => Ok(Some(bytes)),
                    Err(Failure::NotFound) => Ok(None),
                    Err(failure) => Err(self.unreadable(&key, failure)),
                }
            }
        };
        stream::iter(keys.iter().map(get)).buffered(CALLS).try_collect().await
    }

    fn unreadable(&self, key: &str, failure: Failure) -> Error {
        Error::failed(format!("cannot read {key} from {}", self.url), failure)
    }

    fn unlistable(&self, error: object_store::Error) -> Error {
        let error = Error::failed(format!("cannot list {}", self.url), Failure::from(error));
        match self.url.split("://").next().and_then(Kind::of_scheme) {
            Some(kind) => error.fix(kind.access()),
            None => error,
        }
    }
}

fn changed_ns(object: &ObjectMeta) -> u64 {
    u64::try_from(object.last_modified.timestamp_millis()).unwrap_or(0) * 1_000_000
}

fn directory(url: &Url, what: &str, access: Access) -> Result<Directory> {
    let path: PathBuf = url
        .to_file_path()
        .map_err(|()| Error::usage(what, "its directory is on another host").fix("write file:///DIRECTORY"))?;
    let open = || {
        Directory::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                Error::failed(what, "the directory does not exist")
            }
            _ => Error::os(what, error),
        })
    };
    let own = |create, fix: &'static str| {
        Directory::open_own(&path, create).map_err(|error| Error::failed(what, error.why()).fix(fix))
    };
    match access {
        Access::Read => open(),
        Access::Fill => {
            // Recorded packets are private to their owner.
            create::private_umask();
            own(true, "name a directory of this user's alone, or capture as its owner with -Z USER")
        }
        Access::Change => {
            open()?;
            become_owner(&path)?;
            own(false, "run it as the directory's owner; the directories above must be the owner's or root's")
        }
    }
}

/// Default time limit of a call: enough for the largest default chunk at 2 Mbit/s.
const TIMEOUT: &str = "300s";

/// Returns the number of retries: the uploader retries itself; reading commands have to end.
fn retries() -> object_store::RetryConfig {
    object_store::RetryConfig {
        max_retries: 4,
        retry_timeout: std::time::Duration::from_secs(15),
        ..object_store::RetryConfig::default()
    }
}

/// Opens a store behind a network; returns it, and the server and the account that its URL leaves to the environment.
fn open_remote(url: &Url, kind: Kind, what: &str) -> Result<(Arc<dyn ObjectStore>, String)> {
    use object_store::ClientConfigKey;
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
    use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
    use object_store::gcp::GoogleConfigKey;
    if url.host_str().is_none_or(str::is_empty) {
        return Err(
            Error::usage(what, "the URL names no bucket").fix(format!("write {}://BUCKET/PREFIX", url.scheme()))
        );
    }
    let failed = |e: object_store::Error| Error::failed(what, Failure::from(e)).fix(kind.access());
    let mut server = Vec::new();
    macro_rules! build {
        ($builder:expr, $key:ty, $($server:ident),+) => {{
            let mut builder = $builder.with_url(url.as_str());
            $(server.extend(builder.get_config_value(&<$key>::$server));)+
            let timeout = <$key>::Client(ClientConfigKey::Timeout);
            if builder.get_config_value(&timeout).is_none() {
                builder = builder.with_config(timeout, TIMEOUT);
            }
            Arc::new(builder.with_retry(retries()).build().map_err(failed)?)
        }};
    }
    let objects: Arc<dyn ObjectStore> = match kind {
        Kind::S3 => build!(AmazonS3Builder::from_env(), AmazonS3ConfigKey, Endpoint, S3Endpoint, Region),
        Kind::Google => build!(google(), GoogleConfigKey, BaseUrl),
        Kind::Azure => build!(MicrosoftAzureBuilder::from_env(), AzureConfigKey, Endpoint, AccountName),
    };
    let objects = Arc::new(PrefixStore::new(Whole(objects), url.path()));
    Ok((objects, server.join("\n")))
}

/// Starts from the environment; object_store does not read a token from it.
fn google() -> object_store::gcp::GoogleCloudStorageBuilder {
    use object_store::StaticCredentialProvider;
    use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
    let builder = GoogleCloudStorageBuilder::from_env();
    match std::env::var("GOOGLE_BEARER_TOKEN") {
        Ok(bearer) => {
            let credential = GcpCredential { bearer };
            builder.with_credentials(Arc::new(StaticCredentialProvider::new(credential)))
        }
        Err(_) => builder,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_errors_fit_one_line() {
        let said = "Generic S3 error: 404 Not Found: <?xml version=\"1.0\"?>\n<Error>\n <Code>NoSuchBucket</Code>\n \
                    <Message>The bucket does not exist.\nRequestId:1</Message></Error>";
        assert_eq!(on_one_line(said), "Generic S3 error: 404 Not Found: NoSuchBucket: The bucket does not exist.");
        assert_eq!(on_one_line("a\n b"), "a b");
        assert!(on_one_line("GET http://169.254.169.254/latest: 403").starts_with("no credentials"));
    }
}
