//! A store without space: chunks wait in the spool, and removing chunks makes room.

use std::fs;
use std::process::Output;

use trawl_tests::generator::generate;
use trawl_tests::lab::Mounted;
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Lab, args, trawl};

use super::{Places, files_below, good, json, lab};

/// Returns places whose store is on a disk of its own.
fn places_on(disk: &Mounted, lab: &Lab) -> Places {
    let store = format!("{}/store", disk.path);
    Places { url: format!("file://{store}"), store: store.into(), ..Places::of(lab) }
}

fn resize(disk: &Mounted, size: &str) {
    run("mount", &["-o", &format!("remount,size={size}"), &disk.path]);
}

/// Fills a disk to its last byte.
fn fill(disk: &Mounted) {
    let file = format!("of={}/filler", disk.path);
    let _ = trawl_tests::witness::output("dd", &["if=/dev/zero", &file, "bs=4096"]);
}

fn index(places: &Places) -> Output {
    trawl(&args!("store index {} --json", places.url))
}

/// Counts the rows of the index.
fn rows(places: &Places) -> u64 {
    let query = args!("store query --store {} --spool {} --json", places.url, places.spool);
    let counted = trawl(&[&query[..], &["SELECT count(*) AS rows FROM packets"]].concat());
    json(&counted)["rows"][0]["rows"].as_u64().expect("a number")
}

/// Checks that the command reports that the disk is full, and how to make room.
fn is_refused(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left on device") && said.contains("trawl store prune"), "{said}");
}

#[test]
fn full_disk_of_the_store_leaves_chunks_in_the_spool() {
    let Some(lab) = lab() else { return };
    let disk = Mounted::at(&lab, "tmpfs", "size=256k");
    let places = places_on(&disk, &lab);
    let more = ["--chunk-size", "4KiB", "--store-wait", "100ms", "udp"];
    let capture = places.start(&lab, &more);
    let sent = 2000;
    for _ in 0..4 {
        generate(&lab, "udp", &["--dst", "10.77.0.2", "--count", "500"]);
    }
    capture.wait_recorded(sent);
    capture.wait_said("trawl store prune removes old chunks");
    // The capture continues.
    generate(&lab, "udp", &["--dst", "10.77.0.2", "--count", "500"]);
    let sent = sent + 500;
    capture.wait_recorded(sent);
    let finished = capture.stop();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let [recorded, stored, spooled, evicted, unknown] = places.account();
    assert_eq!((recorded, evicted, unknown), (sent, 0, 0));
    assert!(stored > 0 && spooled > 500, "{stored} and {spooled}");
    assert_eq!(stored + spooled, sent);
    // No incomplete object is left, neither under a temporary nor under its final name.
    let files = files_below(&places.store, "");
    assert!(!files.iter().any(|file| file.to_string_lossy().contains('#')));
    for problem in places.problems() {
        let expected = ["chunk_without_manifest", "end_missing"];
        assert!(expected.contains(&&*problem), "{problem}");
    }
    is_refused(&index(&places));
    assert_eq!(rows(&places), 0);
    resize(&disk, "16m");
    good(places.command("push", &[]));
    assert_eq!(places.account(), [sent, sent, 0, 0, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
    assert_eq!(good(index(&places))["packets"], sent);
    assert_eq!(rows(&places), sent);
    let chunks = files_below(&places.store, ".pcapng.zst");
    let packets = chunks.iter().map(|chunk| {
        let fields = tshark(&chunk.to_string_lossy(), &["frame.len"]);
        fields.len() as u64
    });
    assert_eq!(packets.sum::<u64>(), sent);
}

/// The last records of a capture have space of their own, so the store's account has the packets that the disk of the
/// spool refused.
#[test]
fn packets_that_the_spool_refused_are_in_the_account() {
    for size in ["96k", "104k", "112k"] {
        let Some(lab) = lab() else { return };
        let disk = Mounted::at(&lab, "tmpfs", &format!("size={size}"));
        let places = Places { spool: format!("{}/spool", disk.path), ..Places::of(&lab) };
        // A file in place of a directory keeps chunks from the store.
        fs::create_dir_all(&places.store).expect("a directory");
        fs::write(places.store.join("trawl"), "").expect("a file");
        let capture = places.start(&lab, &["--chunk-size", "4KiB", "--store-wait", "100ms", "udp"]);
        for _ in 0..4 {
            generate(&lab, "udp", &["--dst", "10.77.0.2", "--count", "500", "--size", "400"]);
        }
        let finished = capture.wait();
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        assert!(finished.stderr.contains("No space left on device"), "{}", finished.stderr);
        let summary = finished.summary();
        let listed = places.account();
        let [recorded, stored, spooled, evicted, unknown] = listed;
        assert_eq!((recorded, stored, unknown), (summary.recorded, 0, 0), "{size}: {listed:?} {}", finished.stderr);
        assert_eq!(recorded, spooled + evicted, "{size}: {listed:?}");
        let refused = summary.lost_by("disk_full");
        assert!(evicted + refused > 0, "{size}: {}", finished.stderr);
        fs::remove_file(places.store.join("trawl")).expect("a file");
        assert!(places.command("push", &[]).status.success());
        assert_eq!(places.account(), [recorded, spooled, 0, evicted, 0], "{size}");
        let run = good(places.command("ls", &[]))["captures"][0].clone();
        assert_eq!(run["lost"]["disk_full"].as_u64().unwrap_or(0), refused, "{size}: {run}");
        assert_eq!(places.problems(), Vec::<String>::new(), "{size}");
        assert_eq!(fs::read_dir(&places.spool).expect("the spool").count(), 0, "{size}");
    }
}

#[test]
fn run_that_the_disk_of_the_spool_refused_leaves_no_directory() {
    let Some(lab) = lab() else { return };
    let disk = Mounted::at(&lab, "tmpfs", "size=4k");
    let spool = format!("{}/spool", disk.path);
    let refused = trawl(&args!(
        "capture -i {} --tap packet --store file://{} --spool {spool}",
        lab.receiver(),
        lab.file("store")
    ));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert_eq!(fs::read_dir(&spool).expect("the spool").count(), 0);
}

#[test]
fn prune_makes_room_on_a_full_disk() {
    let Some(lab) = lab() else { return };
    let disk = Mounted::at(&lab, "tmpfs", "size=16m");
    let places = places_on(&disk, &lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB", "udp"]);
    // Several chunks are needed, because the record of their removal is longer than one chunk.
    for _ in 0..4 {
        generate(&lab, "udp", &["--dst", "10.77.0.2", "--count", "1000"]);
    }
    let sent = 4000;
    capture.wait_recorded(sent);
    capture.stop_well();
    good(index(&places));
    let kept = || -> u64 {
        let chunks = files_below(&places.store, ".pcapng.zst");
        let sizes = chunks.iter().map(|file| fs::metadata(file).expect("a file").len());
        sizes.sum()
    };
    let all = kept();
    fill(&disk);
    // Commands that write are refused, and commands that read work.
    let before = files_below(&places.store, "");
    is_refused(&index(&places));
    is_refused(&trawl(&args!("store index {} --rebuild --json", places.url)));
    assert_eq!(files_below(&places.store, ""), before);
    assert_eq!(places.account(), [sent, sent, 0, 0, 0]);
    assert_eq!(rows(&places), sent);
    // The removal of one chunk makes too little room for a new version of the catalogue, so the old version stays.
    let limit = (all - 1).to_string();
    is_refused(&places.command("prune", &["--max", &limit]));
    assert_eq!(rows(&places), sent);
    let half = (all / 2).to_string();
    let pruned = places.command("prune", &["--max", &half]);
    assert!(pruned.status.success(), "{pruned:?}");
    assert!(json(&pruned)["chunks"].as_u64() > Some(1), "{pruned:?}");
    assert!(kept() <= all / 2);
    let [recorded, stored, spooled, evicted, unknown] = places.account();
    assert_eq!((recorded, spooled, unknown), (sent, 0, 0));
    assert_eq!(stored + evicted, sent);
    assert!(stored > 0 && evicted > 0);
    assert_eq!(rows(&places), stored);
    assert_eq!(places.problems(), Vec::<String>::new());
    good(index(&places));
}

/// A chunk that the catalogue does not have yet is counted as pruned, even if only its index shows that it existed.
#[test]
fn pruned_chunks_are_counted_that_no_catalogue_has() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB", "--store-index", "udp"]);
    generate(&lab, "udp", &["--dst", "10.77.0.2", "--count", "500"]);
    capture.wait_recorded(500);
    capture.stop_well();
    good(places.command("prune", &["--max", "0"]));
    assert_eq!(places.account(), [500, 0, 0, 500, 0]);
    assert_eq!(rows(&places), 0);
    good(index(&places));
    assert_eq!(places.account(), [500, 0, 0, 500, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
}
