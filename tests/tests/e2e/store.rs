//! Captures into a store: exactly the sent packets are stored, or are accounted for as missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use trawl_spool::manifest::{Manifest, Sealed};
use trawl_tests::witness::{nothing_attached, tshark};
use trawl_tests::{Capture, Lab, args, fleet_or_skip, frames, trawl, trawl_in, wait_until};

mod azure;
mod clocks;
mod full;
mod index;
mod keep;
mod lying;
mod nat;
mod rows;
mod s3;
mod slow;
mod versions;

/// Opens a lab, if the program that stores chunks is built.
fn lab() -> Option<Lab> {
    fleet_or_skip().then(Lab::open).flatten()
}

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
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// A store and a spool of the test.
struct Places {
    store: PathBuf,
    spool: String,
    url: String,
    environment: Vec<(String, String)>,
}

impl Places {
    fn of(lab: &Lab) -> Self {
        let store = lab.file("store");
        Self { url: format!("file://{store}"), store: store.into(), spool: lab.file("spool"), environment: Vec::new() }
    }

    fn environment(&self) -> Vec<(&str, &str)> {
        let pairs = self.environment.iter();
        pairs.map(|(name, value)| (&**name, &**value)).collect()
    }

    fn start(&self, lab: &Lab, more: &[&str]) -> Capture {
        let receiver = lab.receiver();
        let base = args!("-i {receiver} --tap xdp --store {} --spool {}", self.url, self.spool);
        Capture::start_in(&self.environment(), lab, &[&base[..], more].concat())
    }

    fn command(&self, command: &str, more: &[&str]) -> Output {
        let base = args!("store {command} {} --spool {} --json", self.url, self.spool);
        trawl_in(&self.environment(), &[&base[..], more].concat())
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

fn good(output: Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    json(&output)
}

/// Indexes, queries and prunes a store once this many UDP packets to the lab's receiver are in it.
fn is_indexed_queried_and_pruned(places: &Places, lab: &Lab, packets: u64) {
    let environment = places.environment();
    let indexed = good(trawl_in(&environment, &["store", "index", &places.url, "--json"]));
    assert_eq!(indexed["packets"], packets);
    let found = lab.file("found.pcapng");
    let query = args!("store query --store {} --spool /nonexistent", places.url);
    let filter = ["--filter", "udp and dst host 10.77.0.2", "--packets", &found];
    let answer = trawl_in(&environment, &[&query[..], &filter].concat());
    assert!(answer.status.success(), "{answer:?}");
    assert_eq!(tshark(&found, &["frame.len"]).len() as u64, packets);
    let pruned = good(places.command("prune", &["--max", "0"]));
    assert_eq!(pruned["packets"], packets);
    assert_eq!(places.account(), [packets, 0, 0, packets, 0]);
}

#[test]
fn stored_chunks_hold_the_sent_packets() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "8KiB"]);
    lab.send(&[frames::silent(64)], 500);
    capture.wait_recorded(500);
    let finished = capture.stop();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert!(finished.stderr.contains("500 recorded: 500 stored, 0 spooled, 0 evicted"), "{}", finished.stderr);
    assert_eq!(places.account(), [500, 500, 0, 0, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
    let chunks = files_below(&places.store, ".pcapng.zst");
    assert!(chunks.len() > 3, "{chunks:?}");
    let packets: usize = chunks.iter().map(|chunk| tshark(&chunk.to_string_lossy(), &["frame.len"]).len()).sum();
    assert_eq!(packets, 500);
    let left = fs::read_dir(&places.spool).expect("the spool").count();
    assert_eq!(left, 0, "nothing waits");
    nothing_attached(&lab.pair.b);
}

/// Returns the capabilities, effective and permitted, in this file of a process or thread.
fn capabilities(status: &str) -> Vec<u64> {
    let status = fs::read_to_string(status).unwrap_or_default();
    let lines = status.lines().filter_map(|line| line.strip_prefix("CapEff:").or(line.strip_prefix("CapPrm:")));
    lines.filter_map(|digits| u64::from_str_radix(digits.trim(), 16).ok()).collect()
}

/// Returns the process that stores the chunks of a capture.
fn uploader(capture: &Capture) -> u32 {
    let lists = fs::read_dir(format!("/proc/{}/task", capture.id())).expect("tasks");
    let lists = lists.flatten().map(|task| task.path().join("children"));
    let children: String = lists.filter_map(|list| fs::read_to_string(list).ok()).collect();
    let mut children = children.split_whitespace();
    let found = children.find(|child| {
        let command = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        command.split('\0').any(|word| word == "upload")
    });
    found.and_then(|child| child.parse().ok()).expect("an uploader")
}

/// The thread that makes chunks keeps only rights to files. The process that stores them keeps no rights and no
/// descriptor of the capture.
#[test]
fn the_uploader_has_no_rights_to_bpf() {
    const DAC_OVERRIDE: u64 = 1 << 1;
    const DAC_READ_SEARCH: u64 = 1 << 2;
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "8KiB"]);
    let uploader = uploader(&capture);
    assert_eq!(capabilities(&format!("/proc/{uploader}/status")), [0, 0]);
    let descriptors = fs::read_dir(format!("/proc/{uploader}/fd")).expect("descriptors");
    for descriptor in descriptors.flatten() {
        let target = fs::read_link(descriptor.path()).unwrap_or_default();
        assert!(!target.to_string_lossy().contains("bpf"), "{target:?}");
    }
    let tasks = format!("/proc/{}/task", capture.id());
    wait_until("rights are given up", || {
        let tasks = fs::read_dir(&tasks).expect("tasks").flatten();
        let mut chunks = tasks.map(|task| task.path()).filter(|task| {
            let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
            name.trim_end() == "chunks"
        });
        chunks.next().is_some_and(|task| {
            let held = capabilities(&task.join("status").to_string_lossy());
            let is_little = |held: &u64| held & !(DAC_OVERRIDE | DAC_READ_SEARCH) == 0;
            !held.is_empty() && held.iter().all(is_little)
        })
    });
    lab.send(&[frames::silent(64)], 500);
    capture.wait_recorded(500);
    assert!(capture.stop().status.success());
    assert_eq!(places.account(), [500, 500, 0, 0, 0]);
}

/// Without the process that stores its chunks, the capture continues, reports the end of the process, and leaves the
/// chunks in the spool.
#[test]
fn killed_uploader_leaves_all_chunks_in_the_spool() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
    lab.send(&[frames::silent(64)], 200);
    capture.wait_recorded(200);
    let uploader = rustix::process::Pid::from_raw(uploader(&capture) as i32).expect("a process");
    rustix::process::kill_process(uploader, rustix::process::Signal::KILL).expect("it runs");
    lab.send(&[frames::silent(64)], 200);
    capture.wait_recorded(400);
    let finished = capture.stop();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("the process that stores chunks ended: signal: 9"), "{}", finished.stderr);
    let [recorded, stored, spooled, evicted, unknown] = places.account();
    assert_eq!((recorded, evicted, unknown), (400, 0, 0));
    assert!(spooled >= 200, "{stored} stored, {spooled} spooled");
    // A chunk that was stored just before the kill may not have been reported as stored, and is in the spool, too.
    let reported = (0..=stored).any(|reported| {
        let summary = format!("400 recorded: {reported} stored, {} spooled, 0 evicted", 400 - reported);
        finished.stderr.contains(&summary)
    });
    assert!(reported, "{stored} stored: {}", finished.stderr);
    assert!(places.command("push", &[]).status.success());
    assert_eq!(places.account(), [400, 400, 0, 0, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
}

/// Impossible times in a manifest are reported even if its checksum is correct.
#[test]
fn impossible_times_of_a_manifest_are_reported() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &[]);
    lab.send(&[frames::silent(64)], 10);
    capture.wait_recorded(10);
    capture.stop_well();
    assert_eq!(places.problems(), Vec::<String>::new());
    let chunk = &files_below(&places.store, ".pcapng.zst")[0];
    let path = chunk.to_string_lossy().replace(".pcapng.zst", ".json");
    let mut manifest = Manifest::from_bytes(&fs::read(&path).expect("a manifest")).expect("whole");
    manifest.first_ns = Some(1);
    fs::write(&path, manifest.to_bytes()).expect("it can be written");
    assert_eq!(places.problems(), ["chunk_mismatch"]);
}

#[test]
fn missing_and_modified_pieces_are_reported() {
    let Some(lab) = lab() else { return };
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
    let expected = ["chunk_changed", "chunk_missing", "chunk_without_manifest", "sequence_gap"];
    assert_eq!(problems, expected);
    let [recorded, stored, spooled, evicted, unknown] = places.account();
    assert_eq!((recorded, spooled, evicted), (400, 0, 0));
    assert_eq!(stored + unknown, 400);
    assert!(unknown > 0);
    assert_eq!(places.command("verify", &[]).status.code(), Some(1));
}

#[test]
fn full_spool_evicts_or_stops_as_chosen() {
    let Some(lab) = lab() else { return };
    for (policy, ends) in [("evict", false), ("stop", true)] {
        let places = Places {
            // The store is unusable, because a file has the path of its directory.
            url: format!("file://{}", lab.file(&format!("blocked-{policy}"))),
            ..Places::of(&lab)
        };
        let blocked = PathBuf::from(places.url.trim_start_matches("file://"));
        fs::create_dir_all(&blocked).expect("a directory");
        fs::write(blocked.join("trawl"), "").expect("a file");
        let more = args!(
            "--chunk-size 4KiB --spool-size 4KiB --spool-full {policy} --store-wait \
             100ms"
        );
        let capture = places.start(&lab, &more);
        for _ in 0..20 {
            lab.send(&[frames::silent(64)], 100);
        }
        let finished = if ends {
            capture.wait()
        } else {
            capture.wait_recorded(2000);
            capture.stop()
        };
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        let listed = places.account();
        let [recorded, stored, spooled, evicted, unknown] = listed;
        assert_eq!(recorded, stored + spooled + evicted + unknown, "{listed:?}");
        assert_eq!((stored, unknown), (0, 0), "{policy}: {listed:?}");
        assert_eq!(evicted > 0, policy == "evict", "{listed:?}");
        // Without the file, the store works again.
        fs::remove_file(blocked.join("trawl")).expect("a file");
        assert!(places.command("push", &[]).status.success());
        assert_eq!(places.account(), [recorded, spooled, 0, evicted, 0]);
        assert_eq!(places.problems(), Vec::<String>::new());
    }
}

#[test]
fn kill_loses_no_sealed_chunk_and_the_rest_is_unknown() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    for round in 1..=6 {
        let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
        lab.send(&[frames::silent(64)], 40 * round);
        capture.wait_recorded(40 * round);
        capture.kill();
        let pushed = places.command("push", &[]);
        assert!(pushed.status.success(), "{pushed:?}");
        let problems = places.problems();
        assert_eq!(problems, vec!["end_missing"; round as usize], "{round}");
        let [recorded, stored, spooled, evicted, unknown] = places.account();
        assert_eq!((spooled, evicted, unknown), (0, 0, 0));
        assert_eq!(recorded, stored);
        let sent: u64 = (1..=round).map(|n| 40 * n).sum();
        assert!(stored <= sent, "{stored} of {sent}");
        assert_eq!(fs::read_dir(&places.spool).expect("the spool").count(), 0);
    }
    let chunks = files_below(&places.store, ".pcapng.zst");
    let packets: usize = chunks.iter().map(|chunk| tshark(&chunk.to_string_lossy(), &["frame.len"]).len()).sum();
    assert_eq!(packets as u64, places.account()[1]);
}

#[test]
fn time_after_a_kill_is_counted_for_the_named_host() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    places.start(&lab, &["--host", "web7"]).kill();
    let capture = places.start(&lab, &["--host", "web7"]);
    let pushed = places.command("push", &[]);
    assert!(pushed.status.success(), "{pushed:?}");
    let listing = json(&places.command("ls", &[]));
    assert_eq!(listing["captures"][1]["host"], "web7", "{listing}");
    let pauses = listing["not_recording"].as_array().expect("a list");
    assert_eq!(pauses.len(), 1, "{listing}");
    assert_eq!(pauses[0]["host"], "web7", "{listing}");
    assert_eq!(pauses[0]["to_ns"], listing["captures"][1]["began_ns"], "{listing}");
    let query = args!("store query --store {} --spool {}", places.url, places.spool);
    let answer = trawl_in(&[], &[&query[..], &["--filter", "udp"]].concat());
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert!(said.contains("host web7: ") && said.contains("'trawl' recorded nothing from "), "{said}");
    // The time after a capture that was stopped is no pause.
    assert!(capture.stop().status.success());
    let capture = places.start(&lab, &["--host", "web7"]);
    let listing = json(&places.command("ls", &[]));
    assert_eq!(listing["not_recording"].as_array().map(Vec::len), Some(1), "{listing}");
    assert!(capture.stop().status.success());
}

/// Manifests include the capture's counts while it runs, even if packets are filtered in user space before they reach
/// the store.
#[test]
fn manifests_count_packets_filtered_in_user_space() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    // The kernel follows only 64 headers of such a chain, so the filter runs in user space.
    for filter in [&["ip6 protochain 17"][..], &["--verdict", "drop", "udp"]] {
        let capture = places.start(&lab, &[&["--chunk-time", "20ms"], filter].concat());
        lab.send(&[frames::silent(64)], 8);
        capture.wait_seen(8);
        wait_until("a manifest counts the packets", || {
            let manifests = files_below(&places.store, ".json");
            manifests.iter().any(|file| {
                let text = fs::read_to_string(file).unwrap_or_default();
                let manifest: Value = serde_json::from_str(&text).unwrap_or_default();
                manifest["in_all"]["seen"] == 8 && manifest["in_all"]["filtered_out"] == 8
            })
        });
        capture.stop_well();
        fs::remove_dir_all(&places.store).expect("the store");
    }
}

#[test]
fn repeated_put_has_one_effect() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    fs::create_dir_all(&places.store).expect("a directory");
    fs::write(places.store.join("trawl"), "").expect("a file in the way");
    let capture = places.start(&lab, &["--chunk-size", "4KiB", "--store-wait", "100ms"]);
    lab.send(&[frames::silent(64)], 200);
    capture.wait_recorded(200);
    let finished = capture.stop();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert_eq!(places.account(), [200, 0, 200, 0, 0]);
    // The records of the run's start and end wait with its chunks.
    let waits = good(places.command("ls", &[]));
    assert_eq!(waits["captures"][0]["ended"], "signal", "{waits}");
    assert_eq!(waits["captures"][0]["interfaces"][0], lab.receiver());
    fs::remove_file(places.store.join("trawl")).expect("the file in the way");
    // The copy is the spool before anything is stored, as after a lost reply.
    let again = lab.file("again");
    let copied = std::process::Command::new("cp").args(["-a", &places.spool, &again]).status();
    assert!(copied.expect("cp runs").success());
    assert!(places.command("push", &[]).status.success());
    let before = files_below(&places.store, "");
    let repeated = trawl(&["store", "push", "--spool", &again, "--json"]);
    assert!(repeated.status.success());
    assert_eq!(files_below(&places.store, ""), before);
    assert_eq!(places.account(), [200, 200, 0, 0, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
}

#[test]
fn pruned_chunks_leave_their_manifest() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
    lab.send(&[frames::silent(64)], 400);
    capture.wait_recorded(400);
    capture.stop_well();
    let sizes = |files: &[PathBuf]| -> u64 { files.iter().map(|file| file.metadata().expect("a file").len()).sum() };
    let chunks = files_below(&places.store, ".pcapng.zst");
    let all = sizes(&chunks);
    let half = (all / 2).to_string();
    good(trawl(&["store", "index", &places.url, "--json"]));
    let dry = json(&places.command("prune", &["--max", &half, "--dry-run"]));
    assert_eq!(files_below(&places.store, ".pcapng.zst"), chunks);
    let pruned = json(&places.command("prune", &["--max", &half]));
    assert_eq!(dry, pruned);
    let left = files_below(&places.store, ".pcapng.zst");
    assert!(sizes(&left) <= all / 2 && left.len() < chunks.len());
    let [recorded, stored, spooled, evicted, unknown] = places.account();
    assert_eq!((recorded, spooled, unknown), (400, 0, 0));
    assert_eq!(stored + evicted, 400);
    assert_eq!(pruned["packets"].as_u64(), Some(evicted));
    let query = args!("store query --store {} --spool {} --json", places.url, places.spool);
    let counted = trawl(&[&query[..], &["SELECT count(*) AS rows FROM packets"]].concat());
    assert_eq!(good(counted)["rows"][0]["rows"], stored);
    assert_eq!(places.problems(), Vec::<String>::new());
    let none = json(&places.command("prune", &["--keep", "7d"]));
    assert_eq!(none["chunks"], 0);
}

#[test]
fn store_is_private_and_follows_no_planted_links() {
    use std::os::unix::fs::PermissionsExt;
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    fs::create_dir(&places.store).expect("a directory");
    let mode = |mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(&places.store, mode).expect("root");
    };
    mode(0o777);
    let receiver = lab.receiver();
    let capture = args!("capture -i {receiver} --store {} --spool {}", places.url, places.spool);
    let output = trawl(&capture);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("other users may write to it"), "{said}");
    mode(0o755);
    let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
    lab.send(&[frames::silent(64)], 100);
    capture.wait_recorded(100);
    capture.stop_well();
    let files = files_below(&places.store, "");
    assert!(files.len() > 3, "{files:?}");
    for file in files {
        let mode = fs::metadata(&file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{file:?}: {mode:o}");
    }
}

/// If the owner of a directory above the store moves the store and puts a link in its place, the capture still writes
/// to the moved store.
#[test]
fn store_moved_during_a_capture_is_written_to_where_it_is() {
    let Some(lab) = lab() else { return };
    let mut places = Places::of(&lab);
    let parent = lab.file("parent");
    places.store = Path::new(&parent).join("store");
    places.url = format!("file://{}", places.store.display());
    fs::create_dir_all(&places.store).expect("a directory");
    let receiver = lab.receiver();
    let capture = args!("capture -i {receiver} --store {} --spool {}", places.url, places.spool);
    std::os::unix::fs::chown(&parent, Some(65534), None).expect("root");
    let refused = trawl(&capture);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("belongs to user 65534"), "{said}");
    std::os::unix::fs::chown(&parent, Some(0), None).expect("root");
    let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
    let (moved, victim) = (lab.file("moved"), lab.file("victim"));
    fs::create_dir(&victim).expect("a directory");
    fs::rename(&places.store, &moved).expect("root");
    std::os::unix::fs::symlink(&victim, &places.store).expect("a link");
    lab.send(&[frames::silent(64)], 300);
    capture.wait_recorded(300);
    let finished = capture.stop();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert_eq!(files_below(Path::new(&victim), ""), Vec::<PathBuf>::new());
    places.url = format!("file://{moved}");
    assert_eq!(places.account(), [300, 300, 0, 0, 0]);
    // A link below the store is not followed, either.
    let chunks = Path::new(&moved).join("chunks");
    fs::rename(&chunks, Path::new(&victim).join("chunks")).expect("root");
    std::os::unix::fs::symlink(Path::new(&victim).join("chunks"), &chunks).expect("a link");
    let verified = places.command("verify", &[]);
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(said.contains("trawl follows no links here"), "{said}");
}

/// Returns a spool with one unfinished chunk of a killed capture.
fn left_in_spool(lab: &Lab, places: &Places) -> PathBuf {
    fs::create_dir_all(&places.store).expect("a directory");
    let capture = places.start(lab, &["--duration", "1h"]);
    lab.send(&[frames::silent(64)], 100);
    capture.wait_recorded(100);
    wait_until("a chunk is open", || !files_below(Path::new(&places.spool), ".part").is_empty());
    capture.kill();
    let run = fs::read_dir(&places.spool).expect("the spool").next();
    run.expect("a run").expect("it can be read").path()
}

/// A file planted in a spool is not read with root's rights and stored where its owner could read it.
#[test]
fn spool_exposes_no_planted_files() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let run = left_in_spool(&lab, &places);
    let secret = lab.file("secret");
    fs::write(&secret, "a secret").expect("a file");
    let parts = files_below(&run, ".part");
    let part = parts.first().expect("a chunk that was not finished");
    fs::remove_file(part).expect("it can be removed");
    std::os::unix::fs::symlink(&secret, part).expect("a link");
    let sealed = part.with_file_name("0000000099.pcapng.zst");
    std::os::unix::fs::symlink(&secret, &sealed).expect("a link");
    let push = || trawl(&["store", "push", "--spool", &places.spool]);
    let _ = push();
    let stored = files_below(&places.store, "");
    let holds_secret = |path: &PathBuf| fs::read(path).is_ok_and(|bytes| bytes == b"a secret");
    assert!(!stored.iter().any(holds_secret), "{stored:?}");

    // A run that another user owns is refused, in a spool that any user may write to or that another user owns.
    fs::remove_dir_all(&places.spool).expect("it can be removed");
    let run = left_in_spool(&lab, &places);
    let refused = |reason: &str| {
        let output = push();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(reason), "{said}");
    };
    std::os::unix::fs::chown(&run, Some(65534), None).expect("root");
    refused("user 65534 owns it, and could choose its files");
    std::os::unix::fs::chown(&run, Some(0), None).expect("root");
    use std::os::unix::fs::PermissionsExt;
    let mode = |mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(&places.spool, mode).expect("root");
    };
    mode(0o777);
    refused("other users may write to it");
    let receiver = lab.receiver();
    let capture = args!("capture -i {receiver} --store {} --spool {}", places.url, places.spool);
    let output = trawl(&capture);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("other users may write to it"), "{said}");
    mode(0o700);
    assert!(push().status.success());
}

#[test]
fn chunk_modified_in_the_spool_is_not_stored() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    // Chunks wait in the spool, because nothing can be stored below a file.
    fs::create_dir_all(&places.store).expect("a directory");
    let obstacle = places.store.join("trawl");
    fs::write(&obstacle, "").expect("a file in the way");
    let capture = places.start(&lab, &["--chunk-size", "4KiB", "--store-wait", "1s"]);
    lab.send(&[frames::silent(64)], 400);
    capture.wait_recorded(400);
    capture.stop();
    fs::remove_file(&obstacle).expect("the file in the way");
    let chunks = files_below(Path::new(&places.spool), ".pcapng.zst");
    let chunk = chunks.last().expect("a chunk that waits");
    let mut bytes = fs::read(chunk).expect("a chunk");
    bytes[20] ^= 1;
    fs::write(chunk, bytes).expect("it can be written");
    let output = trawl(&["store", "push", "--spool", &places.spool]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("was changed in the spool"), "{said}");
}
