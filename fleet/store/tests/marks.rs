//! Chunks that the catalogue does not have yet: questions read summaries of them, and answer as without the summaries.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use trawl_packet::build::{Ipv4, Layer, Template};
use trawl_packet::pcapng::Interface;
use trawl_packet::pcapng::block::blocks;
use trawl_packet::pcapng::write::{self, EnhancedPacket};
use trawl_spool::chunk::OpenChunk;
use trawl_spool::key::Epoch;
use trawl_spool::manifest::{Begin, Clock, FORMAT, Manifest, Origin, Sealed};
use trawl_spool::processes::Descriptions;
use trawl_spool::{Spool, Target};
use trawl_store::search::condition::Conditions;
use trawl_store::search::locations::Locations;
use trawl_store::{Contents, Scope, Source, Store, index, push};

/// 2026-11-30, in nanoseconds since 1970.
const FIRST_NS: u64 = 1_796_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;
/// Packets of a chunk, each from another address.
const PACKETS: u64 = 8;

/// A store in a directory, removed after the test.
struct Stored(PathBuf);

impl Stored {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("trawl-marks-{name}-{}", std::process::id()));
        fs::create_dir_all(directory.join("store")).expect("a directory");
        Self(directory)
    }

    fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    fn url(&self) -> String {
        format!("file://{}", self.store().display())
    }

    fn open(&self) -> Store {
        Store::open(&self.url(), true).expect("a store")
    }

    /// Stores the chunks of a run of a host, whose packets have the sources 10.HOST.CHUNK.PACKET.
    fn run(&self, host: u8, chunks: u64) {
        let spool = self.0.join(format!("spool-{host}"));
        let name = format!("h{host}");
        let epoch = Epoch { capture: "c".into(), host: name, boot: "b".into(), epoch: "1".into() };
        let origin = Origin { options: Vec::new(), trawl: String::new() };
        let begin = Begin {
            format: FORMAT,
            epoch: epoch.clone(),
            began_ns: FIRST_NS,
            began_boot_ns: None,
            interfaces: vec!["eth0".into()],
            continues: false,
            clock: Clock::now(),
            origin: origin.clone(),
            seal: String::new(),
        };
        let target =
            Target { url: self.url(), epoch: epoch.clone(), index: true, packets: Default::default(), incident: None };
        let run = Spool::create(&spool, target, &begin).expect("a spool");
        for number in 0..chunks {
            let mut chunk = OpenChunk::create(&run.part(number)).expect("a file");
            let mut bytes = Vec::new();
            write::interface_description(&mut bytes, &Interface::default());
            for packet in 0..PACKETS {
                let source = Ipv4Addr::new(10, host, number as u8, packet as u8);
                let ip = Ipv4::new(source, Ipv4Addr::new(10, 255, 0, 1));
                let frame = Template::new().ethernet([2; 6], [4; 6]).layer(Layer::Ipv4(ip)).build();
                let packet = EnhancedPacket {
                    timestamp_ns: FIRST_NS + number * 60 * SECOND + packet * SECOND,
                    captured: &frame,
                    original_len: frame.len() as u32,
                    ..EnhancedPacket::default()
                };
                write::enhanced_packet(&mut bytes, &packet);
            }
            for block in blocks(&bytes) {
                let added = match block.enhanced_packet() {
                    Some(packet) => chunk.add_packet(block.bytes, &packet, &Descriptions::default()),
                    None => chunk.add_other(&block),
                };
                added.expect("a disk");
            }
            let sealed = chunk.seal(&run.whole(number)).expect("a disk");
            run.add(sealed.manifest(epoch.clone(), number, origin.clone())).expect("a disk");
        }
        drop(run);
        let pushed = push(&spool, None).expect("a store");
        assert_eq!(pushed.chunks, chunks);
    }

    fn contents(&self) -> Contents {
        let (spool, scope) = (Path::new("/nonexistent"), Scope::default());
        let read = |source| Contents::read(&self.open(), spool, &scope, source).expect("contents");
        let (contents, evidence) = (read(Source::Summaries), read(Source::Records));
        assert_eq!(contents.runs, evidence.runs);
        contents
    }

    /// Returns the times of the packets that match an expression.
    fn find(&self, expression: &str) -> Vec<u64> {
        let mut conditions = Conditions::default();
        conditions.narrow(expression);
        let found = Locations::find(&self.url(), self.contents().files, conditions.joined()).expect("a store");
        found.map(|place| place.expect("a readable index").time_ns).collect()
    }

    /// Returns the files below a directory of the store.
    fn files(&self, below: &str) -> Vec<PathBuf> {
        let mut open = vec![self.store().join(below)];
        let mut found = Vec::new();
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                if entry.path().is_dir() { open.push(entry.path()) } else { found.push(entry.path()) }
            }
        }
        found.sort();
        found
    }

    fn index(&self) -> u64 {
        let indexed = index(&self.open(), false, &mut |_, _| {}).expect("an index");
        assert_eq!(indexed.unreadable, Vec::<String>::new());
        indexed.there
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns each question's answer: of one packet, of one chunk, of none, of all.
fn answers(stored: &Stored) -> Vec<Vec<u64>> {
    ["src host 10.2.69.3", "net 10.1.7.0/24", "host 10.3.200.1", "ip"].map(|question| stored.find(question)).to_vec()
}

#[test]
fn answers_are_the_same_with_and_without_summaries() {
    let stored = Stored::new("same");
    // The first indexing makes the catalogue, without which the records are read one by one.
    stored.run(9, 1);
    stored.index();
    for (host, chunks) in [(1, 10), (2, 70), (3, 129)] {
        stored.run(host, chunks);
    }
    assert_eq!(stored.files("new/summaries").len(), 1 + 2 + 3);
    let contents = stored.contents();
    assert_eq!(contents.files.iter().filter(|file| file.copied.is_some()).count(), 209);
    let found = answers(&stored);
    let counts: Vec<usize> = found.iter().map(Vec::len).collect();
    assert_eq!(counts, [1, 8, 0, 210 * 8]);
    // A damaged summary counts as none.
    let summaries = stored.files("new/summaries");
    let mut damaged = fs::read(&summaries[0]).expect("a file");
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&summaries[0], damaged).expect("a file");
    assert_eq!(stored.contents().runs, contents.runs);
    assert_eq!(answers(&stored), found);
    fs::remove_dir_all(stored.store().join("new/summaries")).expect("summaries");
    let without = stored.contents();
    assert!(without.files.iter().all(|file| file.copied.is_none()));
    assert_eq!(without.runs, contents.runs);
    assert_eq!(answers(&stored), found);
}

/// Index files that cannot hold a packet of the answer are not opened.
#[test]
fn summaries_replace_the_ends_of_index_files() {
    let stored = Stored::new("ends");
    stored.run(9, 1);
    stored.index();
    stored.run(1, 3);
    for path in stored.files("new/chunks") {
        let changed = fs::metadata(&path).and_then(|about| about.modified()).expect("a time");
        let mut bytes = fs::read(&path).expect("a file");
        let end = bytes.len() - 8;
        bytes[end..].fill(0);
        fs::write(&path, bytes).expect("a file");
        fs::File::options().append(true).open(&path).and_then(|file| file.set_modified(changed)).expect("a file");
    }
    assert_eq!(stored.find("host 10.3.200.1"), Vec::<u64>::new());
    fs::remove_dir_all(stored.store().join("new/summaries")).expect("summaries");
    let contents = stored.contents();
    let mut found = Locations::find(&stored.url(), contents.files, None).expect("a store");
    assert!(found.any(|place| place.is_err()));
}

#[test]
fn files_without_the_address_are_not_opened() {
    let stored = Stored::new("unopened");
    stored.run(9, 1);
    stored.index();
    stored.run(1, 3);
    let contents = stored.contents();
    fs::remove_dir_all(stored.store().join("new")).expect("marks");
    let find = |expression: &str| {
        let mut conditions = Conditions::default();
        conditions.narrow(expression);
        let found = Locations::find(&stored.url(), contents.files.clone(), conditions.joined()).expect("a store");
        found.map(|place| place.map(|place| place.time_ns).map_err(drop)).collect::<Result<Vec<_>, ()>>()
    };
    assert_eq!(find("host 10.3.200.1"), Ok(Vec::new()));
    assert_eq!(find("src host 10.9.0.3").map(|found| found.len()), Ok(1));
    for asked in ["host 10.1.2.3", "host 10.3.200.1 or port 53", "not host 10.3.200.1", "net 10.3.0.0/16", "ip"] {
        assert_eq!(find(asked), Err(()), "{asked}");
    }
}

#[test]
fn objects_changed_after_their_summary_are_read_themselves() {
    let stored = Stored::new("changed");
    stored.run(9, 1);
    stored.index();
    stored.run(1, 4);
    let manifests: Vec<PathBuf> =
        stored.files("chunks").into_iter().filter(|file| file.extension().is_some_and(|end| end == "json")).collect();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    let mut manifest = Manifest::from_bytes(&fs::read(&manifests[0]).expect("a file")).expect("a manifest");
    manifest.in_all.lost.insert("ring_full".into(), 7);
    fs::write(&manifests[0], manifest.to_bytes()).expect("a file");
    fs::File::options().append(true).open(&manifests[0]).and_then(|file| file.set_modified(later)).expect("a file");
    fs::remove_file(&manifests[1]).expect("a file");
    let indexes = stored.files("new/chunks");
    let index = indexes.iter().find(|file| file.to_string_lossy().ends_with("0000000002.parquet")).expect("an index");
    fs::File::options().append(true).open(index).and_then(|file| file.set_modified(later)).expect("a file");
    let contents = stored.contents();
    // The second chunk has no manifest. The manifest of the first and the index of the third are newer than their summary.
    assert_eq!(contents.files.iter().filter(|file| file.key.starts_with("new/")).count(), 3);
    assert_eq!(contents.files.iter().filter(|file| file.copied.is_some()).count(), 1);
    let run = contents.runs.0.iter().find(|(epoch, _)| epoch.host == "h1").expect("a run").1;
    assert_eq!(run.total().stored, 3 * PACKETS);
}

#[test]
fn indexing_removes_the_summaries() {
    let stored = Stored::new("removed");
    stored.run(1, 70);
    let found = answers(&stored);
    assert_eq!(stored.index(), 70);
    assert_eq!(stored.files("new/summaries"), Vec::<PathBuf>::new());
    assert_eq!(answers(&stored), found);
    // Until running queries have ended, the indexes stay; nothing more is read about their chunks.
    assert_eq!(stored.files("new/chunks").len(), 70);
    assert_eq!(stored.contents().files.len(), 1);
}
