//! A store that a newer trawl also writes to: the records of the newer trawl are named, and none is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;
use trawl_spool::manifest::{FORMAT, Manifest, Sealed};
use trawl_tests::witness::run;
use trawl_tests::{args, frames, trawl};

use super::{Places, files_below, good, json, lab};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks that the command refuses to run because of a newer trawl.
fn is_refused(output: &Output) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("a newer trawl wrote") && said.contains("update this"), "{said}");
}

fn manifests(directory: &Path) -> Vec<PathBuf> {
    let mut files = files_below(directory, ".json");
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("0000") && !file.to_string_lossy().contains("/new/")
    });
    files
}

/// Gives a manifest the next format, and returns its previous bytes.
fn made_newer(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).expect("a manifest");
    let mut manifest = Manifest::from_bytes(&bytes).expect("a manifest");
    manifest.format = FORMAT + 1;
    fs::write(path, manifest.to_bytes()).expect("it can be written");
    bytes
}

fn query(places: &Places) -> Output {
    let query = args!("store query --store {} --spool {}", places.url, places.spool);
    trawl(&[&query[..], &["SELECT count(*) FROM packets"]].concat())
}

#[test]
fn records_of_a_newer_trawl_are_named_and_kept() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
    lab.send(&[frames::ipv4_udp(0)], 300);
    capture.wait_recorded(300);
    capture.stop_well();
    let manifests = manifests(&places.store);
    let (first, second) = (&manifests[0], &manifests[1]);
    let old = made_newer(first);
    let listed = places.command("ls", &[]);
    assert!(listed.status.success(), "{listed:?}");
    assert!(said(&listed).contains("1 record of a newer trawl"), "{listed:?}");
    let [recorded, stored, _, _, unknown] = places.account();
    assert_eq!((recorded, stored + unknown), (300, 300));
    assert!(unknown > 0 && stored > 0);
    assert!(said(&query(&places)).contains("1 record of a newer trawl"));
    assert_eq!(places.problems(), ["record_newer"]);
    // The other manifests are indexed, and this one remains.
    let indexed = trawl(&args!("store index {} --json", places.url));
    assert_eq!(indexed.status.code(), Some(1), "{indexed:?}");
    assert_eq!(json(&indexed)["packets"], stored);
    assert_eq!(json(&indexed)["newer"].as_array().map(Vec::len), Some(1));
    let before = files_below(&places.store, "");
    is_refused(&trawl(&args!("store index {} --rebuild", places.url)));
    is_refused(&places.command("prune", &["--max", "0"]));
    assert_eq!(files_below(&places.store, ""), before);
    // Pruning is also refused if the catalogue had the record before it became newer.
    fs::write(first, &old).expect("it can be written");
    good(trawl(&args!("store index {} --json", places.url)));
    let other = made_newer(second);
    assert_eq!(places.account(), [300, 300, 0, 0, 0]);
    is_refused(&trawl(&args!("store index {} --rebuild", places.url)));
    is_refused(&places.command("prune", &["--max", "0"]));
    assert_eq!(files_below(&places.store, ".pcapng.zst").len(), manifests.len());
    fs::write(second, other).expect("it can be written");
    assert_eq!(places.account(), [300, 300, 0, 0, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
    good(places.command("prune", &["--max", "0"]));
    assert_eq!(places.account(), [300, 0, 0, 300, 0]);
}

/// Makes the catalogue's contents one of another format, under a name without a hash.
fn give_format(store: &Path, format: u64) {
    let state = &files_below(&store.join("index/state"), ".json.zst")[0];
    let text = run("zstd", &["-dcq", &state.to_string_lossy()]);
    let mut contents: Value = serde_json::from_str(&text).expect("JSON");
    contents["format"] = format.into();
    // A newer trawl may have changed the meaning of the key.
    contents["files"] = "elsewhere".into();
    let plain = store.join("contents.json");
    fs::write(&plain, contents.to_string()).expect("it can be written");
    let packed = store.join("index/state/newer.json.zst");
    let (from, to) = (plain.to_string_lossy(), packed.to_string_lossy());
    run("zstd", &["-q", "--rm", &from, "-o", &to]);
    let newest = files_below(&store.join("index/metadata"), ".metadata.json");
    let newest = newest.last().expect("a version");
    let mut version: Value = serde_json::from_slice(&fs::read(newest).expect("a version")).expect("JSON");
    version["properties"]["trawl.state"] = "index/state/newer.json.zst".into();
    fs::write(newest, version.to_string()).expect("it can be written");
}

#[test]
fn catalogue_of_a_newer_trawl_is_not_replaced() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--chunk-size", "4KiB"]);
    lab.send(&[frames::ipv4_udp(0)], 100);
    capture.wait_recorded(100);
    capture.stop_well();
    good(trawl(&args!("store index {} --json", places.url)));
    give_format(&places.store, 1000);
    let before = files_below(&places.store, "");
    for command in ["ls", "verify"] {
        is_refused(&places.command(command, &[]));
    }
    is_refused(&query(&places));
    is_refused(&trawl(&args!("store index {}", places.url)));
    is_refused(&trawl(&args!("store index {} --rebuild", places.url)));
    is_refused(&places.command("prune", &["--max", "0"]));
    assert_eq!(files_below(&places.store, ""), before);
    // A catalogue without a valid format counts as damaged, and can be rebuilt.
    give_format_again(&places.store);
    good(trawl(&args!("store index {} --rebuild --json", places.url)));
    assert_eq!(places.account(), [100, 100, 0, 0, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
}

fn give_format_again(store: &Path) {
    let state = store.join("index/state/newer.json.zst");
    fs::write(state, "damaged").expect("it can be written");
}

#[test]
fn spool_of_a_newer_trawl_is_kept() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    fs::create_dir_all(&places.store).expect("a directory");
    let in_the_way = places.store.join("trawl");
    fs::write(&in_the_way, "").expect("a file in the way");
    let more = ["--chunk-size", "4KiB", "--store-wait", "100ms"];
    let capture = places.start(&lab, &more);
    lab.send(&[frames::ipv4_udp(0)], 100);
    capture.wait_recorded(100);
    capture.stop();
    fs::remove_file(&in_the_way).expect("the file in the way");
    let spool = Path::new(&places.spool);
    let manifests = manifests(spool);
    let old = made_newer(&manifests[0]);
    let chunks = files_below(spool, ".pcapng.zst");
    is_refused(&places.command("push", &[]));
    assert_eq!(files_below(spool, ".pcapng.zst"), chunks);
    fs::write(&manifests[0], old).expect("it can be written");
    good(places.command("push", &[]));
    assert_eq!(places.account(), [100, 100, 0, 0, 0]);
}
