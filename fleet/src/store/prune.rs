//! Removes the oldest chunks with their index. Their manifests stay, and a record names them with time and reason.

use std::time::Duration;

use serde::Serialize;
use trawl_sys::{Error, Result, clock};

use super::account::Inventory;
use super::index;
use super::remote::Store;
use trawl_spool::key;
use trawl_spool::manifest::{self, FORMAT, Manifest, Sealed, State};

/// Limits of a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Maximum age of a chunk's last packet.
    pub keep: Option<Duration>,
    /// Maximum total size; the newest chunks stay.
    pub max_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Pruned {
    pub chunks: u64,
    pub packets: u64,
    pub bytes: u64,
    pub kept_chunks: u64,
    pub kept_bytes: u64,
}

/// Chunks removed together: a record names them all.
const AT_ONCE: usize = 10_000;

/// Prunes a store; with `dry`, only returns the chunks that would go.
pub fn prune(store: &Store, inventory: &Inventory, limits: Limits, dry: bool) -> Result<Pruned> {
    let now = clock::wall();
    let oldest = limits
        .keep
        .map(|keep| now.saturating_sub(u64::try_from(keep.as_nanos()).unwrap_or(u64::MAX)));
    // An earlier prune that was interrupted is completed.
    let is_there = |manifest: &&Manifest| {
        manifest.state == State::Stored && inventory.packets.contains_key(&manifest.key())
    };
    let mut chunks: Vec<&Manifest> = inventory.manifests.values().filter(is_there).collect();
    let end = |manifest: &Manifest| manifest.last_ns.unwrap_or(manifest.sealed_ns);
    chunks.sort_by_key(|manifest| std::cmp::Reverse(end(manifest)));
    let mut pruned = Pruned::default();
    let mut is_full = false;
    let (mut half_done, mut old, mut much) = (Vec::new(), Vec::new(), Vec::new());
    for manifest in chunks {
        let too_old = oldest.is_some_and(|oldest| end(manifest) < oldest);
        let too_much = limits
            .max_bytes
            .is_some_and(|most| pruned.kept_bytes + manifest.bytes > most)
            // The newest stay: no older chunk fills the space left by a large one.
            || is_full;
        is_full |= too_much;
        let is_half_done = inventory.is_pruned(&manifest.key());
        if !too_old && !too_much && !is_half_done {
            pruned.kept_chunks += 1;
            pruned.kept_bytes += manifest.bytes;
            continue;
        }
        pruned.chunks += 1;
        pruned.packets += manifest.recorded;
        pruned.bytes += manifest.bytes;
        match (is_half_done, too_old) {
            (true, _) => half_done.push(manifest),
            (false, true) => old.push(manifest),
            (false, false) => much.push(manifest),
        }
    }
    if dry {
        return Ok(pruned);
    }
    let mut time = now;
    for (reason, chunks) in [("age", old), ("size", much)] {
        for chunks in chunks.chunks(AT_ONCE) {
            record(store, chunks, reason, time)?;
            remove(store, chunks)?;
            time += 1;
        }
    }
    remove(store, &half_done)?;
    Ok(pruned)
}

/// Records the removal of these chunks before it begins: what remains of them is removed the next time.
fn record(store: &Store, chunks: &[&Manifest], reason: &str, now: u64) -> Result<()> {
    let record = manifest::Pruned {
        format: FORMAT,
        pruned_ns: now,
        reason: reason.to_owned(),
        chunks: chunks.iter().map(|one| one.key().to_string()).collect(),
        recorded: chunks.iter().map(|one| one.recorded).sum(),
        bytes: chunks.iter().map(|one| one.bytes).sum(),
        seal: String::new(),
    };
    let stored = store.put_new(&key::pruned(now), record.to_bytes());
    stored.map_err(|e| Error::failed("cannot record which chunks are pruned", e))
}

fn remove(store: &Store, chunks: &[&Manifest]) -> Result<()> {
    let indexes: Vec<String> = chunks.iter().map(|one| index::key(one)).collect();
    let packets: Vec<String> = chunks.iter().map(|one| one.key().packets()).collect();
    // The index first: a chunk that remains is pruned again.
    [indexes, packets].iter().try_for_each(|keys| {
        let removed = store.delete_all(keys);
        removed.map_err(|e| Error::failed("cannot remove all pruned chunks", e))
    })
}
