//! Many made-up hosts store chunks at once, each by an uploader of its own: how the cost of a store grows with its hosts.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::write::{
    EnhancedPacket, SectionHeader, enhanced_packet, interface_description, section_header,
};
use trawl_sys::{Error, Result, clock, process};

use crate::chunk::{OpenChunk, SealedChunk};
use crate::key::Epoch;
use crate::manifest::{Begin, Clock, End, FORMAT, Fates, InterfaceEnd, Manifest, Origin, State};
use crate::remote::Store;
use crate::spool::{Spool, Target};
use crate::upload;

const CAPTURE: &str = "made-up-hosts";
const INTERFACE: &str = "eth0";
const FRAME: usize = 1024;
/// A store that takes nothing for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(600);
/// An uploader needs little: so do thousands.
const STACK: usize = 512 << 10;

/// What is stored, and where.
#[derive(Clone, Debug)]
pub struct Uploaders {
    pub url: String,
    /// Spools are made here, and are gone at the end.
    pub directory: PathBuf,
    pub hosts: u64,
    pub chunks_of_host: u64,
    pub chunk_bytes: u64,
}

/// What it took.
#[derive(Clone, Debug, Default)]
pub struct Uploaded {
    /// From the first request until the last host had stored its end.
    pub seconds: f64,
    /// How long each host took, the fastest first.
    pub host_seconds: Vec<f64>,
    /// CPU time of all of them in that time.
    pub cpu_seconds: f64,
    pub bytes: u64,
    /// Hosts that had to try again.
    pub hosts_with_retries: u64,
    pub recorded: u64,
    /// Packets that the manifests in the store have, read again afterwards.
    pub stored: u64,
    /// To list and read those.
    pub list_seconds: f64,
}

/// A chunk that each host stores as its own.
struct Sample {
    path: PathBuf,
    sealed: SealedChunk,
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let what = format!("cannot write {}", path.display());
    move |error| Error::os(what, error)
}

impl Sample {
    fn make(directory: &Path, bytes: u64) -> io::Result<Self> {
        let mut header = Vec::new();
        section_header(&mut header, &SectionHeader::default());
        interface_description(&mut header, &Interface::default());
        let path = directory.join("chunk");
        let mut chunk = OpenChunk::create(&directory.join("part"), &header)?;
        let (mut random, mut time) = (0x9e37_79b9_7f4a_7c15_u64, clock::wall());
        while chunk.len() < bytes {
            // Xorshift: what does not compress, as encrypted payloads.
            let frame: Vec<u8> = std::iter::repeat_with(|| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random.to_le_bytes()
            })
            .take(FRAME / size_of::<u64>())
            .flatten()
            .collect();
            time += 1;
            let mut block = Vec::new();
            enhanced_packet(
                &mut block,
                &EnhancedPacket {
                    timestamp_ns: time,
                    captured: &frame,
                    original_len: FRAME as u32,
                    ..EnhancedPacket::default()
                },
            );
            chunk.packet(&block, time)?;
        }
        let sealed = chunk.seal(&path)?;
        Ok(Self { path, sealed })
    }
}

/// A host with all of its chunks in the spool.
struct Host {
    store: Store,
    spool: Spool,
}

fn fates(recorded: u64) -> Fates {
    Fates {
        seen: recorded,
        recorded,
        ..Fates::default()
    }
}

impl Uploaders {
    fn epoch(&self, run: u64, number: u64) -> Epoch {
        Epoch {
            capture: CAPTURE.to_owned(),
            host: format!("host{number:05}"),
            boot: "made-up".to_owned(),
            epoch: run.to_string(),
        }
    }

    fn host(&self, epoch: Epoch, sample: &Sample) -> Result<Host> {
        let store = Store::open(&self.url, true)?;
        let origin = Origin {
            options: Vec::new(),
            trawl: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let begin = Begin {
            format: FORMAT,
            epoch: epoch.clone(),
            began_ns: clock::wall(),
            interfaces: vec![INTERFACE.to_owned()],
            clock: Clock::now(),
            origin: origin.clone(),
            seal: String::new(),
        };
        let target = Target {
            url: store.url().to_owned(),
            epoch: epoch.clone(),
            index: false,
        };
        let spool = Spool::create(&self.directory, target, &begin)?;
        let fill = || -> io::Result<()> {
            for sequence in 0..self.chunks_of_host {
                spool.part(INTERFACE, sequence)?;
                std::fs::copy(&sample.path, spool.whole(INTERFACE, sequence))?;
                spool.add(Manifest {
                    format: FORMAT,
                    epoch: epoch.clone(),
                    interface: INTERFACE.to_owned(),
                    sequence,
                    state: State::Stored,
                    sha256: sample.sealed.sha256.clone(),
                    bytes: sample.sealed.bytes,
                    uncompressed_bytes: sample.sealed.uncompressed_bytes,
                    first_ns: sample.sealed.first_ns,
                    last_ns: sample.sealed.last_ns,
                    sealed_ns: clock::wall(),
                    recorded: sample.sealed.recorded,
                    since_last: fates(sample.sealed.recorded),
                    in_all: fates(sample.sealed.recorded * (sequence + 1)),
                    clock: Clock::now(),
                    origin: origin.clone(),
                    recovered: false,
                    seal: String::new(),
                })?;
            }
            let recorded = self.chunks_of_host * sample.sealed.recorded;
            spool.finish(&End {
                format: FORMAT,
                epoch: epoch.clone(),
                ended_ns: clock::wall(),
                reason: "made up".to_owned(),
                account: fates(recorded),
                interfaces: vec![InterfaceEnd {
                    interface: INTERFACE.to_owned(),
                    chunks: self.chunks_of_host,
                    recorded,
                }],
                clock: Clock::now(),
                seal: String::new(),
            })
        };
        fill().map_err(failed(&self.directory))?;
        Ok(Host { store, spool })
    }

    /// All hosts begin at once. What was stored is read again, and then removed, whatever happens.
    pub fn run(&self) -> Result<Uploaded> {
        let run = clock::wall();
        let done = self.store_all(run);
        let removed = self.remove(run);
        let done = done?;
        removed?;
        Ok(done)
    }

    fn store_all(&self, run: u64) -> Result<Uploaded> {
        let sample =
            Sample::make(&self.directory, self.chunk_bytes).map_err(failed(&self.directory))?;
        let sample = Arc::new(sample);
        let hosts = (0..self.hosts).map(|number| self.host(self.epoch(run, number), &sample));
        let hosts: Vec<Host> = hosts.collect::<Result<_>>()?;
        let barrier = Arc::new(Barrier::new(hosts.len() + 1));
        let retries = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        for host in hosts {
            let (barrier, retries) = (Arc::clone(&barrier), Arc::clone(&retries));
            let work = move || {
                barrier.wait();
                let began = Instant::now();
                let give_up = || began.elapsed() > PATIENCE;
                let complain = |_: &str| {
                    retries.fetch_add(1, Ordering::Relaxed);
                };
                let done = upload::run(&host.store, &host.spool, &give_up, &complain);
                done.map(|()| began.elapsed().as_secs_f64())
            };
            let thread = std::thread::Builder::new().stack_size(STACK);
            let spawned = thread.spawn(work);
            threads.push(spawned.map_err(|e| Error::os("cannot start a thread", e))?);
        }
        let cpu_before = process::cpu_seconds(std::process::id());
        barrier.wait();
        let began = Instant::now();
        let mut host_seconds = Vec::new();
        for thread in threads {
            let what = || format!("cannot store in {}", self.url);
            let done = thread
                .join()
                .map_err(|_| Error::failed(what(), "a thread crashed"))?;
            host_seconds.push(done.map_err(|why| Error::failed(what(), why))?);
        }
        let seconds = began.elapsed().as_secs_f64();
        let cpu_seconds = process::cpu_seconds(std::process::id()) - cpu_before;
        host_seconds.sort_by(f64::total_cmp);
        let began = Instant::now();
        let stored = self.stored(run)?;
        let chunks = self.hosts * self.chunks_of_host;
        Ok(Uploaded {
            seconds,
            host_seconds,
            cpu_seconds,
            bytes: chunks * sample.sealed.bytes,
            hosts_with_retries: retries.load(Ordering::Relaxed),
            recorded: chunks * sample.sealed.recorded,
            stored,
            list_seconds: began.elapsed().as_secs_f64(),
        })
    }

    fn keys(&self, store: &Store, run: u64) -> Result<Vec<String>> {
        let run = format!("/{run}/");
        let listed = store.list(Some(CAPTURE))?.into_iter();
        let keys = listed.map(|one| one.key).filter(|key| key.contains(&run));
        Ok(keys.collect())
    }

    /// Packets by the manifests whose chunks are there.
    fn stored(&self, run: u64) -> Result<u64> {
        use crate::manifest::Sealed;
        let store = Store::open(&self.url, false)?;
        let keys = self.keys(&store, run)?;
        let is_manifest = |key: &&String| {
            let chunk = key
                .strip_suffix(".json")
                .map(|one| format!("{one}.pcapng.zst"));
            chunk.is_some_and(|chunk| keys.binary_search(&chunk).is_ok())
        };
        let manifests: Vec<String> = keys.iter().filter(is_manifest).cloned().collect();
        let read = store.read_all(&manifests)?;
        let recorded =
            |bytes: &bytes::Bytes| Manifest::from_bytes(bytes).map_or(0, |one| one.recorded);
        Ok(read.iter().map(recorded).sum())
    }

    fn remove(&self, run: u64) -> Result<()> {
        let store = Store::open(&self.url, false)?;
        store.delete_all(&self.keys(&store, run)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_made_up_hosts_record_is_stored_and_removed() {
        let directory =
            std::env::temp_dir().join(format!("trawl-uploaders-{}", std::process::id()));
        let (spools, store) = (directory.join("spools"), directory.join("store"));
        std::fs::create_dir_all(&spools).unwrap();
        let plan = Uploaders {
            url: format!("file://{}", store.display()),
            directory: spools,
            hosts: 5,
            chunks_of_host: 3,
            chunk_bytes: 10_000,
        };
        let done = plan.run().unwrap();
        assert!(done.recorded >= 5 * 3 * 9, "{done:?}");
        assert_eq!((done.stored, done.hosts_with_retries), (done.recorded, 0));
        assert_eq!(done.host_seconds.len(), 5);
        let left = Store::open(&plan.url, false).unwrap().list(None).unwrap();
        assert!(left.is_empty(), "{left:?}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
