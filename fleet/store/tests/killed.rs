//! An indexing that is killed at any step: what was committed stays, the next one finishes the rest, and each row is
//! found once at every moment.

mod stored;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use stored::Stored;
use trawl_store::search::locations::Locations;
use trawl_store::{Contents, Scope, Source, Store, coverage, index};

/// Environment variable with the store that a process of this program indexes.
const STORE: &str = "TRAWL_TEST_STORE";
/// Packets of a chunk.
const PACKETS: u64 = 10;

fn url(stored: &Stored) -> String {
    format!("file://{}", stored.0.display())
}

fn run_index(url: &str) -> u64 {
    let store = Store::open(url, false).expect("a store");
    let indexed = index(&store, false, &mut |_, _| {}).expect("an index");
    assert_eq!(indexed.unreadable, Vec::<String>::new());
    indexed.chunks
}

#[test]
#[ignore = "the other tests run it as a process"]
fn process() {
    if let Ok(url) = std::env::var(STORE) {
        run_index(&url);
    }
}

fn start(url: &str) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "process"]).env(STORE, url);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a process")
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// Kills an indexing once a condition holds. Returns false if it ended before.
fn kill_once(url: &str, mut holds: impl FnMut() -> bool) -> bool {
    let mut process = start(url);
    loop {
        let is_over = process.try_wait().expect("a process").is_some();
        if is_over || holds() {
            process.kill().expect("a process");
            process.wait().expect("a process");
            return !is_over;
        }
        std::hint::spin_loop();
    }
}

/// Checks that each packet of these chunks is found once, or counted as not indexed. Returns the number of the latter.
fn check(stored: &Stored, chunks: u64) -> u64 {
    let url = url(stored);
    let store = Store::open(&url, false).expect("a store");
    let contents =
        Contents::read(&store, Path::new("/nonexistent"), &Scope::default(), Source::Summaries).expect("contents");
    let covered = coverage(&contents.runs, &Scope::default());
    let [row] = &covered[..] else { panic!("{covered:?}") };
    assert_eq!((row.indexed + row.not_indexed, row.unknown), (chunks * PACKETS, 0), "{row:?}");
    let found = Locations::find(&url, contents.files, None).expect("an index");
    let found: Vec<(String, usize, usize)> =
        found.map(|place| place.expect("rows")).map(|place| (place.chunk, place.frame, place.offset)).collect();
    let different: BTreeSet<_> = found.iter().collect();
    assert_eq!((found.len() as u64, different.len()), (row.indexed, found.len()));
    row.not_indexed
}

/// Indexes the rest, as after the 2 minutes for which the lease of a killed process lasts.
fn finish(stored: &Stored) -> u64 {
    let _ = fs::remove_file(stored.0.join("index/lease.json"));
    run_index(&url(stored))
}

#[test]
fn indexing_is_killed_at_each_step() {
    let (sealed, bytes) = Stored::new("sealed").chunk(PACKETS as u32);
    let mut killed = 0;
    // The lease, the rows, the facts, three parts of the table, the state, the version, and the marks' removal.
    for step in 0..=12 {
        let stored = Stored::new(&format!("step-{step}"));
        let put = |from, to| (from..to).for_each(|sequence| stored.put(&sealed, &bytes, sequence));
        put(0, 20);
        assert_eq!(run_index(&url(&stored)), 20);
        put(20, 40);
        let (index, new) = (stored.0.join("index"), stored.0.join("new"));
        let (before, marks) = (files(&index).len(), files(&new).len());
        killed += u32::from(kill_once(&url(&stored), || match step {
            12 => files(&new).len() < marks,
            step => files(&index).len() > before + step,
        }));
        let left = check(&stored, 40);
        assert!([0, 20 * PACKETS].contains(&left), "{left} packets are left after step {step}");
        assert_eq!(finish(&stored) * PACKETS, left, "after step {step}");
        assert_eq!(check(&stored, 40), 0);
        assert_eq!(files(&new), Vec::<PathBuf>::new());
    }
    assert!(killed >= 5, "only {killed} were killed");
}

#[test]
fn committed_chunks_stay_if_indexing_is_killed() {
    const CHUNKS: u64 = 5000;
    let stored = Stored::new("committed");
    let (sealed, bytes) = stored.chunk(PACKETS as u32);
    (0..CHUNKS).for_each(|sequence| stored.put(&sealed, &bytes, sequence));
    let versions = stored.0.join("index/metadata");
    let is_committed = || files(&versions).iter().any(|file| file.ends_with("v1.metadata.json"));
    assert!(kill_once(&url(&stored), is_committed));
    let left = check(&stored, CHUNKS);
    assert!(left > 0 && left < CHUNKS * PACKETS, "{left}");
    assert_eq!(finish(&stored) * PACKETS, left);
    assert_eq!(check(&stored, CHUNKS), 0);
}
