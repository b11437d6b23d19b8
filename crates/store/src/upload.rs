//! Moves chunks from the spool into the store: the chunk, then its manifest, then it leaves the spool. Each step may be repeated:
//! an existing object with the same bytes counts as stored.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use trawl_sys::{Error, Result};

use crate::index;
use crate::manifest::{Manifest, Sealed, State, sha256};
use crate::remote::{Failure, Store};
use crate::spool::Spool;

/// Creates an object; an existing one with the same bytes is a success.
fn put_once(store: &Store, key: &str, bytes: Vec<u8>) -> Result<(), Failure> {
    let sum = sha256(&bytes);
    match store.put_new(key, bytes) {
        Err(Failure::AlreadyExists) => {}
        other => return other,
    }
    match sha256(&store.get(key)?) == sum {
        true => Ok(()),
        false => Err(Failure::AlreadyExists),
    }
}

fn put_chunk(store: &Store, spool: &Spool, manifest: &Manifest) -> Result<(), String> {
    let key = manifest.key();
    let what = |e: Failure| format!("{key}: {e}");
    if manifest.state == State::Stored {
        match spool.read_chunk(manifest) {
            Ok(bytes) if sha256(&bytes) != manifest.sha256 => {
                return Err(format!(
                    "{key} was changed in the spool: its SHA-256 is another one"
                ));
            }
            Ok(bytes) => {
                // A chunk that cannot be indexed is stored anyway.
                let index = spool.target.index.then(|| index::file(&bytes, manifest));
                put_once(store, &key.packets(), bytes).map_err(what)?;
                if let Some(file) = index.flatten() {
                    store
                        .put_over(&index::key(manifest), file)
                        .map_err(|e| format!("the index of {key}: {e}"))?;
                }
            }
            // A kill between storing the manifest and dropping it from the spool: the store has both.
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    && store.get(&key.manifest()).map_err(what)? == manifest.to_bytes() => {}
            Err(error) => return Err(format!("cannot read {key} from the spool: {error}")),
        }
    }
    let done = match put_once(store, &key.manifest(), manifest.to_bytes()) {
        // The first manifest was stored and only the answer was lost; then the chunk was evicted. The store has both.
        Err(Failure::AlreadyExists) if manifest.state != State::Stored => {
            let there = store.get(&key.manifest()).map_err(what)?;
            match Manifest::from_bytes(&there) {
                Some(there) if there.state == State::Stored => Ok(()),
                _ => Err(Failure::AlreadyExists),
            }
        }
        other => other,
    };
    done.map_err(what)?;
    spool.stored(manifest);
    Ok(())
}

/// Stores the waiting chunks until none is left or a call fails.
pub fn drain(store: &Store, spool: &Spool) -> Result<u64, String> {
    let mut chunks = 0;
    while let Some(manifest) = spool.take() {
        let done = put_chunk(store, spool, &manifest);
        if done.is_err() {
            spool.put_back();
        }
        done?;
        chunks += 1;
    }
    Ok(chunks)
}

fn put_record(
    store: &Store,
    key: &str,
    bytes: std::io::Result<Option<Vec<u8>>>,
) -> Result<bool, String> {
    let fail = |e: &dyn std::fmt::Display| format!("{key}: {e}");
    let Some(bytes) = bytes.map_err(|e| fail(&e))? else {
        return Ok(false);
    };
    put_once(store, key, bytes).map_err(|e| fail(&e))?;
    Ok(true)
}

pub fn put_begin(store: &Store, spool: &Spool) -> Result<(), String> {
    put_record(store, &spool.target.epoch.begin(), spool.begin()).map(|_| ())
}

/// Stores the record of the end, once all chunks are stored.
pub fn put_end(store: &Store, spool: &Spool) -> Result<bool, String> {
    put_record(store, &spool.target.epoch.end(), spool.end())
}

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Stores until the capture has ended and all is stored, or `give_up` returns true. `complain` is called once for each period of
/// failures.
pub fn run(
    store: &Store,
    spool: &Spool,
    give_up: &dyn Fn() -> bool,
    complain: &dyn Fn(&str),
) -> Result<(), String> {
    let mut pause = FIRST_PAUSE;
    let mut complained = false;
    let mut begun = false;
    loop {
        let round = || -> Result<bool, String> {
            if !begun {
                put_begin(store, spool)?;
            }
            drain(store, spool)?;
            put_end(store, spool)
        };
        match round() {
            Ok(true) => return Ok(()),
            Ok(false) => {
                begun = true;
                complained = false;
                pause = FIRST_PAUSE;
                if !spool.wait(LONGEST_PAUSE) {
                    return Ok(());
                }
            }
            Err(why) => {
                if give_up() {
                    return Err(why);
                }
                if !complained {
                    complain(&why);
                    complained = true;
                }
                std::thread::park_timeout(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// Result of storing earlier runs' leftovers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Pushed {
    pub runs: u64,
    pub chunks: u64,
    /// Runs that still go on and store their chunks themselves.
    pub running: u64,
}

/// Stores the leftovers of ended runs in a spool; with a URL, only the ones for that store.
pub fn push(root: &Path, url: Option<&str>) -> Result<Pushed> {
    let mut pushed = Pushed::default();
    let mut refused = None;
    for spool in Spool::leftovers(root)? {
        let spool = match spool {
            Ok(Some(spool)) => spool,
            Ok(None) => {
                pushed.running += 1;
                continue;
            }
            Err(error) => {
                refused = refused.or(Some(error));
                continue;
            }
        };
        if url.is_some_and(|url| url != spool.target.url) {
            continue;
        }
        let store = Store::open(&spool.target.url, true)?;
        let store_all = || -> Result<u64, String> {
            put_begin(&store, &spool)?;
            let chunks = drain(&store, &spool)?;
            put_end(&store, &spool)?;
            Ok(chunks)
        };
        let chunks = store_all().map_err(|why| {
            let what = format!("cannot store to {}", spool.target.url);
            Error::failed(what, why).fix("try again: unstored chunks stay in the spool")
        })?;
        spool
            .remove()
            .map_err(|e| Error::os(format!("cannot empty the spool {}", root.display()), e))?;
        pushed.runs += 1;
        pushed.chunks += chunks;
    }
    refused.map_or(Ok(pushed), Err)
}
