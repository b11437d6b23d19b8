//! Captures into a store: what is stored is what was sent, and all else is accounted for (issue 19).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use trawl_tests::witness::{nothing_attached, tshark};
use trawl_tests::{Capture, Lab, frames, trawl};

fn files_below(directory: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path, end));
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// A store and a spool of the test's own.
struct Places {
    store: PathBuf,
    spool: String,
    url: String,
}

impl Places {
    fn of(lab: &Lab) -> Self {
        let store = lab.file("store");
        Self {
            url: format!("file://{store}"),
            store: store.into(),
            spool: lab.file("spool"),
        }
    }

    fn start(&self, lab: &Lab, more: &[&str]) -> Capture {
        let receiver = lab.receiver();
        let base = [
            "-i",
            &receiver,
            "--tap",
            "xdp",
            "--store",
            &self.url,
            "--spool",
            &self.spool,
        ];
        Capture::start(lab, &[&base[..], more].concat())
    }

    fn command(&self, command: &str, more: &[&str]) -> Output {
        let base = [
            "store",
            command,
            &self.url,
            "--spool",
            &self.spool,
            "--json",
        ];
        trawl(&[&base[..], more].concat())
    }

    fn account(&self) -> [u64; 5] {
        let listing = json(&self.command("ls", &[]));
        ["recorded", "stored", "spooled", "evicted", "unknown"]
            .map(|name| listing["total"][name].as_u64().expect("a number"))
    }

    fn problems(&self) -> Vec<String> {
        let findings = json(&self.command("verify", &[]));
        let findings = findings["findings"].as_array().expect("a list").clone();
        let name = |finding: &Value| finding["problem"].as_str().expect("a name").to_owned();
        findings.iter().map(name).collect()
    }
}

#[test]
fn stored_chunks_hold_what_was_sent() {
    let Some(lab) = Lab::open() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "8KiB"]);
    lab.send(&[frames::silent(64)], 500);
    capture.wait_recorded(500);
    let finished = capture.stop();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert!(
        finished
            .stderr
            .contains("500 recorded: 500 stored, 0 spooled, 0 evicted"),
        "{}",
        finished.stderr
    );
    assert_eq!(places.account(), [500, 500, 0, 0, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
    let chunks = files_below(&places.store, ".pcapng.zst");
    assert!(chunks.len() > 3, "{chunks:?}");
    let packets: usize = chunks
        .iter()
        .map(|chunk| tshark(&chunk.to_string_lossy(), &["frame.len"]).len())
        .sum();
    assert_eq!(packets, 500);
    let left = fs::read_dir(&places.spool).expect("the spool").count();
    assert_eq!(left, 0, "nothing waits");
    nothing_attached(&lab.pair.b);
}

#[test]
fn each_missing_or_changed_piece_is_reported() {
    let Some(lab) = Lab::open() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
    lab.send(&[frames::silent(64)], 400);
    capture.wait_recorded(400);
    capture.stop_well();
    let chunks = files_below(&places.store, ".pcapng.zst");
    let mut changed = fs::read(&chunks[1]).expect("a chunk");
    changed[20] ^= 1;
    fs::write(&chunks[1], changed).expect("it can be written");
    fs::remove_file(&chunks[2]).expect("it can be removed");
    let stem = chunks[3].to_string_lossy().replace(".pcapng.zst", ".json");
    fs::remove_file(stem).expect("a manifest");
    let mut problems = places.problems();
    problems.sort();
    let expected = [
        "chunk_changed",
        "chunk_missing",
        "chunk_without_manifest",
        "sequence_gap",
    ];
    assert_eq!(problems, expected);
    let [recorded, stored, spooled, evicted, unknown] = places.account();
    assert_eq!((recorded, spooled, evicted), (400, 0, 0));
    assert_eq!(stored + unknown, 400);
    assert!(unknown > 0);
    assert_eq!(places.command("verify", &[]).status.code(), Some(1));
}

#[test]
fn a_full_spool_evicts_or_stops_as_chosen() {
    let Some(lab) = Lab::open() else { return };
    for (policy, ends) in [("evict", false), ("stop", true)] {
        let places = Places {
            // A store that takes nothing: a file stands in the way of its directory.
            url: format!("file://{}", lab.file(&format!("blocked-{policy}"))),
            ..Places::of(&lab)
        };
        let blocked = PathBuf::from(places.url.trim_start_matches("file://"));
        fs::create_dir_all(&blocked).expect("a directory");
        fs::write(blocked.join("trawl"), "").expect("a file");
        let more = [
            "--chunk-size",
            "4KiB",
            "--spool-size",
            "4KiB",
            "--spool-full",
            policy,
            "--store-wait",
            "100ms",
        ];
        let capture = places.start(&lab, &more);
        for _ in 0..20 {
            lab.send(&[frames::silent(64)], 100);
        }
        let finished = match ends {
            true => capture.wait(),
            false => {
                capture.wait_recorded(2000);
                capture.stop()
            }
        };
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        let listed = places.account();
        let [recorded, stored, spooled, evicted, unknown] = listed;
        assert_eq!(recorded, stored + spooled + evicted + unknown, "{listed:?}");
        assert_eq!((stored, unknown), (0, 0), "{policy}: {listed:?}");
        assert_eq!(evicted > 0, policy == "evict", "{listed:?}");
        // The store takes them again.
        fs::remove_file(blocked.join("trawl")).expect("a file");
        assert!(places.command("push", &[]).status.success());
        assert_eq!(places.account(), [recorded, spooled, 0, evicted, 0]);
        assert_eq!(places.problems(), Vec::<String>::new());
    }
}
