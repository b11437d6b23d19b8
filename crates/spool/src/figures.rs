//! Figures about a spool: how much waits for the stores, and how far back the packets that stay here reach.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use trawl_sys::files::{beneath, create};

use crate::spool::{CHUNK, MANIFEST, NEAR, files, runs};

/// File with the uploads of a run.
const UPLOADS: &str = "uploads.json";

/// Uploads of a run, as the process that stores its chunks notes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uploads {
    /// Time of the last one that succeeded, in nanoseconds since 1970.
    pub last_ns: Option<u64>,
    pub stored: u64,
    pub failed: u64,
}

impl Uploads {
    /// Writes the figures into a run's directory. They are for information, so a full disk loses them.
    pub fn note(&self, directory: &Path) {
        if let Ok(text) = serde_json::to_vec(self) {
            let _ = create::replace(&directory.join(UPLOADS), &text);
        }
    }

    fn of(directory: &Path) -> Self {
        let text = beneath::read(directory, Path::new(UPLOADS)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

/// Chunks in a spool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    pub count: u64,
    pub bytes: u64,
    /// Time at which the oldest was sealed, in nanoseconds since 1970.
    pub oldest_ns: Option<u64>,
}

impl Chunks {
    /// Adds the chunks of a run with manifests of this kind.
    fn add(&mut self, directory: &Path, kind: &str) {
        for manifest in files(directory, &[kind]) {
            let Ok(about) = fs::metadata(manifest.with_extension(CHUNK)) else { continue };
            self.count += 1;
            self.bytes += about.len();
            let sealed_ns = about.modified().ok().and_then(since_1970);
            self.oldest_ns = self.oldest_ns.into_iter().chain(sealed_ns).min();
        }
    }
}

fn since_1970(time: SystemTime) -> Option<u64> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

/// Figures of all runs of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Chunks that the store does not have yet.
    pub waiting: Chunks,
    /// Chunks that stay here.
    pub near: Chunks,
    pub uploads: Uploads,
}

/// Returns the figures of a spool by capture.
pub fn of(root: &Path) -> BTreeMap<String, Figures> {
    let mut found: BTreeMap<String, Figures> = BTreeMap::new();
    for (directory, target) in runs(root) {
        let figures = found.entry(target.epoch.capture).or_default();
        figures.waiting.add(&directory, MANIFEST);
        figures.near.add(&directory, NEAR);
        let uploads = Uploads::of(&directory);
        figures.uploads.last_ns = figures.uploads.last_ns.max(uploads.last_ns);
        figures.uploads.stored += uploads.stored;
        figures.uploads.failed += uploads.failed;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_counted_by_capture() {
        let root = std::env::temp_dir().join(format!("trawl-figures-{}", std::process::id()));
        let target = r#"{"url":"file:///s","capture":"dns","host":"h","boot":"b","epoch":"1"}"#;
        let run = |name: &str, files: &[&str], uploads: &Uploads| {
            let chunks = root.join(name).join("chunks");
            fs::create_dir_all(&chunks).expect("a directory");
            fs::write(root.join(name).join("target.json"), target).expect("a file");
            files.iter().for_each(|file| fs::write(chunks.join(file), "four").expect("a file"));
            uploads.note(&root.join(name));
        };
        let uploads = Uploads { last_ns: Some(7), stored: 2, failed: 1 };
        run("one", &["1.pcapng.zst", "1.json", "2.pcapng.zst", "2.near", "3.part"], &uploads);
        // The chunk of the second manifest has been evicted.
        run("two", &["1.pcapng.zst", "1.json", "2.json"], &Uploads { last_ns: None, ..uploads });
        let found = of(&root);
        fs::remove_dir_all(&root).expect("a directory");
        let dns = &found["dns"];
        assert_eq!((dns.waiting.count, dns.waiting.bytes, dns.near.count, dns.near.bytes), (2, 8, 1, 4));
        assert!(dns.waiting.oldest_ns.is_some() && dns.near.oldest_ns.is_some());
        assert_eq!(dns.uploads, Uploads { last_ns: Some(7), stored: 4, failed: 2 });
        assert!(of(Path::new("/nonexistent")).is_empty());
    }
}
