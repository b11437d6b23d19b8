//! Removes the oldest chunks with their index. Their manifests stay, and a tombstone records time and reason of the removal.

use std::time::Duration;

use serde::Serialize;
use trawl_sys::{Error, Result, clock};

use super::account::Inventory;
use super::index;
use super::remote::{Failure, Store};
use trawl_spool::manifest::{FORMAT, Manifest, Sealed, State, Tombstone};

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
    for manifest in chunks {
        let too_old = oldest.is_some_and(|oldest| end(manifest) < oldest);
        let too_much = limits
            .max_bytes
            .is_some_and(|most| pruned.kept_bytes + manifest.bytes > most)
            // The newest stay: no older chunk fills the space left by a large one.
            || is_full;
        is_full |= too_much;
        let is_half_done = inventory.tombstones.contains_key(&manifest.key());
        if !too_old && !too_much && !is_half_done {
            pruned.kept_chunks += 1;
            pruned.kept_bytes += manifest.bytes;
            continue;
        }
        if !dry {
            let reason = if too_old { "age" } else { "size" };
            remove(store, manifest, reason, now, is_half_done)?;
        }
        pruned.chunks += 1;
        pruned.packets += manifest.recorded;
        pruned.bytes += manifest.bytes;
    }
    Ok(pruned)
}

fn remove(
    store: &Store,
    manifest: &Manifest,
    reason: &str,
    now: u64,
    has_tombstone: bool,
) -> Result<()> {
    let key = manifest.key();
    let fail = |e: Failure| Error::failed(format!("cannot prune {key}"), e);
    if !has_tombstone {
        let tombstone = Tombstone {
            format: FORMAT,
            pruned_ns: now,
            reason: reason.to_owned(),
            recorded: manifest.recorded,
            bytes: manifest.bytes,
            seal: String::new(),
        };
        match store.put_new(&key.tombstone(), tombstone.to_bytes()) {
            Ok(()) | Err(Failure::AlreadyExists) => {}
            Err(error) => return Err(fail(error)),
        }
    }
    // The index first: a chunk that remains is pruned again.
    for gone in [index::key(manifest), key.packets()] {
        match store.delete(&gone) {
            Ok(()) | Err(Failure::NotFound) => {}
            Err(error) => return Err(fail(error)),
        }
    }
    Ok(())
}
