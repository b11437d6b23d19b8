//! Moves chunks from the spool into the store. First the chunk is stored, then its manifest, then the mark that it is
//! new; then it is removed from the spool. Each step may be repeated: an existing object with the same bytes counts as
//! stored.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use trawl_spool::Report;
use trawl_spool::figures::Uploads;
use trawl_spool::manifest::{Manifest, Sealed, State, sha256};
use trawl_spool::{key, spool};
use trawl_sys::{Error, Result, clock};

use crate::catalogue::summary::{Entry, Summary};
use crate::index;
use crate::object::remote::{Failure, Store, canonical};
use crate::runs::spooled::Run;

/// Marks a record as one that the catalogue does not have yet.
fn mark(store: &Store, record: &str) -> Result<(), String> {
    let marked = store.overwrite(&key::mark(record), Vec::new());
    marked.map_err(|e| format!("the mark of {record}: {e}"))
}

/// Stores a chunk, adds it to the summary, and returns its key.
fn put_chunk(store: &Store, run: &Run, name: PathBuf, summary: &mut Summary) -> Result<String, String> {
    let shown = name.display().to_string();
    let chunk = run.chunk(name);
    let mut chunk = chunk.map_err(|e| format!("cannot read {shown} from the spool: {e}"))?;
    let manifest = chunk.manifest.clone();
    let mut index = None;
    let key = manifest.key();
    let what = |e: Failure| format!("{key}: {e}");
    let is_near = manifest.state == State::OnHost && run.target.is_near();
    if matches!(manifest.state, State::Stored | State::OnHost) {
        match chunk.read() {
            Ok(bytes) if sha256(&bytes) != manifest.sha256 => {
                return Err(format!("{key} was changed in the spool: its SHA-256 differs from the manifest's"));
            }
            Ok(bytes) => {
                // A chunk that cannot be indexed is stored anyway.
                let is_wanted = (run.target.index && !chunk.is_indexed()) || is_near;
                index = is_wanted.then(|| index::file(&bytes, &manifest)).flatten();
                if !is_near {
                    store.put_once(&key.packets(), bytes).map_err(what)?;
                }
                if let Some(file) = index.clone() {
                    store.overwrite(&key::new_index(&key), file).map_err(|e| format!("the index of {key}: {e}"))?;
                }
            }
            // The process was killed after it stored the manifest, before it emptied the spool: the store has both.
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    && store.get(&key.manifest()).map_err(what)? == manifest.to_bytes() => {}
            Err(error) => return Err(format!("cannot read {key} from the spool: {error}")),
        }
    }
    let done = match store.put_once(&key.manifest(), manifest.to_bytes()) {
        // The first manifest was stored, but the answer was lost, and then the chunk was evicted: the store has both.
        Err(Failure::AlreadyExists) if !matches!(manifest.state, State::Stored | State::OnHost) => {
            let there = store.get(&key.manifest()).map_err(what)?;
            match Manifest::from_bytes(&there) {
                Ok(there) if matches!(there.state, State::Stored | State::OnHost) => Ok(()),
                _ => Err(Failure::AlreadyExists),
            }
        }
        other => other,
    };
    done.map_err(what)?;
    // An index serves as the mark, except of a chunk that the catalogue may have, and whose packets arrive now.
    if index.is_none() || run.target.incident.is_some() {
        mark(store, &key.manifest())?;
    }
    // The chunks of an incident are in the summaries of their run.
    if run.target.incident.is_none() {
        let entry = Entry::new(&manifest, manifest.to_bytes(), index);
        summary.add(store, &run.target.epoch, manifest.sequence, entry);
    }
    if is_near {
        run.mark_kept(&chunk)
    } else {
        run.stored(&chunk)
    }
    Ok(key.to_string())
}

fn put_record(store: &Store, key: &str, bytes: io::Result<Option<Vec<u8>>>) -> Result<bool, String> {
    let fail = |e: &dyn std::fmt::Display| format!("{key}: {e}");
    let Some(bytes) = bytes.map_err(|e| fail(&e))? else {
        return Ok(false);
    };
    store.put_once(key, bytes).map_err(|e| fail(&e))?;
    mark(store, key)?;
    Ok(true)
}

fn put_begin(store: &Store, run: &Run) -> Result<(), String> {
    put_record(store, &run.target.epoch.begin(), run.begin()).map(drop)
}

/// Stores the waiting chunks, and then the record of the end if it exists.
fn put_rest(store: &Store, run: &Run, summary: &mut Summary, stored: &mut dyn FnMut(String)) -> Result<(), String> {
    // The end is read before the chunks are listed: if it exists, no chunk follows.
    let end = run.end();
    let names = run.manifests();
    let names = names.map_err(|e| format!("cannot read the spool: {e}"))?;
    let mut chunks = names.into_iter();
    let done = chunks.try_for_each(|name| put_chunk(store, run, name, summary).map(&mut *stored));
    summary.store(store, &run.target.epoch);
    done?;
    if let Some(id) = &run.target.incident {
        let fail = |e: &dyn std::fmt::Display| format!("the record of the incident {id}: {e}");
        if let Some(record) = run.incident().map_err(|e| fail(&e))? {
            let key = key::incident(id, &run.target.epoch);
            store.put_once(&key, record).map_err(|e| fail(&e))?;
        }
    }
    put_record(store, &run.target.epoch.end(), end).map(drop)
}

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Stores a run's chunks: while its capture sends `news`, and then until all are stored or `patience` is over. Returns
/// the reason if chunks are left in the spool.
pub fn upload(
    store: &Store,
    run: &Run,
    news: &Receiver<()>,
    patience: Duration,
    report: &dyn Fn(Report),
) -> Option<String> {
    let mut begun = false;
    let mut summary = Summary::default();
    let mut delayed = false;
    let mut uploads = Uploads::default();
    let mut pause = FIRST_PAUSE;
    let mut ended: Option<Instant> = None;
    loop {
        let mut round = || {
            if !begun {
                put_begin(store, run)?;
                begun = true;
            }
            put_rest(store, run, &mut summary, &mut |key| {
                uploads.stored += 1;
                uploads.last_ns = Some(clock::wall());
                run.note(&uploads);
                report(Report::Stored { key });
            })
        };
        let done = round();
        if done.is_err() {
            uploads.failed += 1;
            run.note(&uploads);
        }
        let until = match (done, ended) {
            (Ok(()), Some(_)) => return None,
            (Ok(()), None) => {
                (delayed, pause) = (false, FIRST_PAUSE);
                match news.recv() {
                    Ok(()) => Some(Instant::now()),
                    Err(_) => None,
                }
            }
            // No process waits for a killed capture's last chunks: `push` stores them.
            (Err(why), Some(at)) if at.elapsed() >= patience || matches!(run.end(), Ok(None)) => {
                return Some(why);
            }
            (Err(why), _) => {
                if !delayed {
                    report(Report::Delayed { why });
                    delayed = true;
                }
                let until = Instant::now() + pause;
                pause = (pause * 2).min(LONGEST_PAUSE);
                match ended {
                    Some(at) => {
                        let until = until.min(at + patience);
                        thread::sleep(until.saturating_duration_since(Instant::now()));
                        continue;
                    }
                    None => Some(until),
                }
            }
        };
        if until.is_none_or(|until| is_over(news, until)) {
            ended.get_or_insert_with(Instant::now);
        }
    }
}

/// Receives all news until this time; returns true once the capture has ended.
fn is_over(news: &Receiver<()>, until: Instant) -> bool {
    loop {
        match news.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => return true,
        }
    }
}

/// Result of storing earlier runs' leftovers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Pushed {
    pub runs: u64,
    pub chunks: u64,
    /// Runs that are still running and store their chunks themselves.
    pub running: u64,
}

fn push_run(run: &Run, chunks: &mut u64) -> Result<()> {
    let url = &run.target.url;
    let store = Store::open(url, true)?;
    let mut summary = Summary::default();
    let stored = put_begin(&store, run).and_then(|()| put_rest(&store, run, &mut summary, &mut |_| *chunks += 1));
    stored.map_err(|why| {
        let error = Error::failed(format!("cannot store to {url}"), why);
        error.fix("try again: unstored chunks stay in the spool")
    })
}

/// Stores the leftovers of ended runs in a spool; with a URL, only the ones for that store.
pub fn push(root: &Path, url: Option<&str>) -> Result<Pushed> {
    let mut pushed = Pushed::default();
    let mut refused = None;
    spool::remove_old(root);
    for run in Run::leftovers(root)? {
        let run = match run {
            Ok(Some(run)) => run,
            Ok(None) => {
                pushed.running += 1;
                continue;
            }
            Err(error) => {
                refused = refused.or(Some(error));
                continue;
            }
        };
        if url.is_some_and(|url| url != canonical(&run.target.url)) {
            continue;
        }
        let done = push_run(&run, &mut pushed.chunks)
            .and_then(|()| run.close().map_err(|e| Error::os(format!("cannot empty the spool {}", root.display()), e)));
        match done {
            Ok(()) => pushed.runs += 1,
            // The other runs may have another store.
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    refused.map_or(Ok(pushed), Err)
}
