//! Reads a whole store and reports every missing, modified or unknown piece.

use std::collections::HashSet;

use serde::Serialize;
use trawl_packet::read::{CaptureReader, compressed};
use trawl_sys::{Error, Result};

use crate::catalogue::Catalogue;
use crate::catalogue::table::ROOT;
use crate::object::hashed_name;
use crate::object::remote::{Failure, Store};
use crate::runs::Fate;
use crate::runs::account::Account;
use crate::runs::evidence::Evidence;
use trawl_spool::key::ChunkKey;
use trawl_spool::manifest::{Manifest, State, sha256};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// The chunk of a manifest is missing.
    ChunkMissing,
    /// The bytes differ from the manifest's hash.
    ChunkChanged,
    /// The bytes match, but the manifest's counts or times do not.
    ChunkMismatch,
    /// A chunk without a manifest: unfinished, or its manifest is missing.
    ChunkWithoutManifest,
    RecordChanged,
    /// A record of a newer trawl. Records missing from its run cannot be determined.
    RecordNewer,
    /// A part of the catalogue is missing, or does not match the hash in its name.
    IndexDamaged,
    SequenceGap,
    BeginMissing,
    EndMissing,
    PrunedButThere,
    ForeignObject,
}

#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub problem: Problem,
    /// Key of the object, or of the capture's run.
    pub object: String,
    /// Number of packets concerned, if known.
    pub packets: Option<u64>,
    /// First sequence number of a gap.
    pub from: Option<u64>,
    pub to: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Verified {
    pub chunks: u64,
    pub bytes: u64,
    pub packets: u64,
    pub account: Account,
    pub findings: Vec<Finding>,
}

/// Verifies a whole store; `progress` receives the numbers of read chunks and of all chunks.
pub fn verify(store: &Store, evidence: &Evidence, progress: &mut dyn FnMut(u64, u64)) -> Result<Verified> {
    let runs = evidence.runs(|_| Fate::Indexed);
    let mut verified = Verified { account: runs.account(), ..Verified::default() };
    let finding = |problem, object, packets| Finding { problem, object, packets, from: None, to: None };
    let mut findings = Vec::new();
    let all = evidence.manifests.len() as u64;
    for (number, (key, manifest)) in evidence.manifests.iter().enumerate() {
        progress(number as u64, all);
        let of_chunk = |problem| finding(problem, key.packets(), Some(manifest.recorded));
        let is_pruned = evidence.is_pruned(key);
        if is_pruned && evidence.packets.contains_key(key) {
            findings.push(of_chunk(Problem::PrunedButThere));
        }
        let should_be_there = match manifest.state {
            State::Stored => !is_pruned,
            State::OnHost => evidence.has_arrived(key, manifest),
            State::Idle | State::EvictedSpoolFull | State::EvictedSpoolFailed => false,
        };
        if !should_be_there {
            continue;
        }
        match store.get(&key.packets()) {
            Err(Failure::NotFound) => findings.push(of_chunk(Problem::ChunkMissing)),
            Err(error) => {
                let what = format!("cannot read {}", key.packets());
                return Err(Error::failed(what, error));
            }
            Ok(bytes) if sha256(&bytes) != manifest.sha256 => {
                findings.push(of_chunk(Problem::ChunkChanged));
            }
            Ok(bytes) => {
                verified.chunks += 1;
                verified.bytes += bytes.len() as u64;
                verified.packets += manifest.recorded;
                if !agrees_with(&bytes, manifest) {
                    findings.push(of_chunk(Problem::ChunkMismatch));
                }
            }
        }
    }
    for object in damaged_index(store)? {
        findings.push(finding(Problem::IndexDamaged, object, None));
    }
    let newer: HashSet<String> = evidence.newer.iter().cloned().collect();
    let packets = evidence.packets.keys();
    let has_manifest = |key: &ChunkKey| evidence.manifests.contains_key(key) || newer.contains(&key.manifest());
    let unfinished = packets.filter(|key| !has_manifest(key));
    let unfinished = unfinished.map(|key| (Problem::ChunkWithoutManifest, key.packets()));
    let broken = evidence.broken.iter().cloned();
    let foreign = evidence.foreign.iter().cloned();
    let others = broken.map(|key| (Problem::RecordChanged, key));
    let others = others.chain(newer.iter().map(|key| (Problem::RecordNewer, key.clone())));
    let others = others.chain(foreign.map(|key| (Problem::ForeignObject, key)));
    let others = unfinished.chain(others);
    findings.extend(others.map(|(problem, object)| finding(problem, object, None)));
    for epoch in runs.epochs() {
        let prefix = epoch.epoch.prefix();
        // The records that this trawl cannot read may be the missing ones.
        let of_run = format!("{prefix}/");
        if newer.iter().any(|key| key.contains(&of_run)) {
            continue;
        }
        let gaps = epoch.gaps.into_iter().map(|gap| Finding {
            from: Some(gap.from),
            to: Some(gap.to),
            ..finding(Problem::SequenceGap, prefix.clone(), gap.packets)
        });
        findings.extend(gaps);
        let ends = [(epoch.began_ns.is_none(), Problem::BeginMissing), (epoch.ended.is_none(), Problem::EndMissing)];
        let missing = ends.into_iter().filter(|(is_missing, _)| *is_missing);
        findings.extend(missing.map(|(_, problem)| finding(problem, prefix.clone(), None)));
    }
    findings.sort_by(|one, other| one.object.cmp(&other.object));
    verified.findings = findings;
    Ok(verified)
}

/// Returns the keys of the catalogue's parts that are missing, or differ from the ones that were stored.
fn damaged_index(store: &Store) -> Result<Vec<String>> {
    let catalogue = match Catalogue::read(store) {
        Ok(catalogue) => catalogue,
        Err(error) if Catalogue::is_newer(store) => return Err(error),
        Err(_) => return Ok(vec![ROOT.to_owned()]),
    };
    let mut damaged = Vec::new();
    for key in catalogue.objects() {
        match store.get(key) {
            Ok(bytes) if hashed_name::may_be(key, &bytes) => {}
            Ok(_) | Err(Failure::NotFound) => damaged.push(key.clone()),
            Err(error) => return Err(Error::failed(format!("cannot read {key}"), error)),
        }
    }
    Ok(damaged)
}

/// Returns true if a chunk is readable and has the packets and times of its manifest.
fn agrees_with(bytes: &[u8], manifest: &Manifest) -> bool {
    let expected = (manifest.recorded, manifest.first_ns, manifest.last_ns);
    holds(bytes) == Some(expected) && bytes.len() as u64 == manifest.bytes
}

/// Returns a chunk's number of packets, and their first and last time; `None` if it is unreadable.
fn holds(bytes: &[u8]) -> Option<(u64, Option<u64>, Option<u64>)> {
    let (source, _) = compressed::open(bytes).ok()?;
    let mut reader = CaptureReader::new(source).ok()?;
    let (mut packets, mut first, mut last) = (0, None::<u64>, None);
    while reader.advance().ok()? {
        let time = reader.current()?.timestamp_ns;
        packets += 1;
        first = Some(first.map_or(time, |first| first.min(time)));
        last = last.max(Some(time));
    }
    Some((packets, first, last))
}
