//! The upkeep of a store: by the service, by root in the directory of another user, and what is said about chunks
//! without an index.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use serde_json::json;
use trawl_tests::{Lab, Running, args, frames, trawl, wait_until};

use super::{Places, files_below, good, lab};

/// A user other than root, and a third one.
const OWNER: u32 = 65_534;
const OTHER: u32 = 65_533;

/// Returns the answer to a request at an address.
fn ask(address: &str, page: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {page} HTTP/1.1\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Returns a metric's value.
fn metric(address: &str, name: &str) -> Option<f64> {
    let answer = ask(address, "/metrics");
    let line = answer.lines().find_map(|line| line.strip_prefix(&format!("trawl_store_{name} ")));
    line.and_then(|value| value.parse().ok())
}

/// Returns the numbers of rows and of different rows of a store.
fn rows(places: &Places) -> [u64; 2] {
    let query = args!("store query --store {} --spool /nonexistent --json", places.url);
    let sql = "SELECT count(*) AS total, count(DISTINCT chunk || ' ' || frame || ' ' || \"offset\") AS different FROM packets";
    let answer = good(trawl(&[&query[..], &[sql]].concat()));
    ["total", "different"].map(|name| answer["rows"][0][name].as_u64().expect("a number"))
}

/// Records packets, with more options.
fn record(lab: &Lab, places: &Places, packets: u64, more: &[&str]) {
    let capture = places.start(lab, &[&["--chunk-size", "4KiB"][..], more].concat());
    lab.send(&[frames::ipv4_udp(0)], packets);
    capture.wait_recorded(packets);
    capture.stop_well();
}

fn keep(places: &Places, more: &[&str]) -> (Running, String) {
    let arguments = args!("store keep {} --every 200ms --metrics 127.0.0.1:0", places.url);
    let keeper = Running::start(&[&arguments[..], more].concat(), "keeping");
    let said = keeper.said();
    let address = said.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("an address");
    let address = address.to_owned();
    (keeper, address)
}

/// Two services keep a store while a capture fills it: each row is in it once.
#[test]
fn services_index_and_prune_a_store() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    record(&lab, &places, 100, &[]);
    let (one, address) = keep(&places, &[]);
    let (other, _) = keep(&places, &[]);
    wait_until("the first chunks are in the catalogue", || metric(&address, "waiting_chunks") == Some(0.0));
    record(&lab, &places, 200, &["--store-index"]);
    wait_until("the others are, too", || {
        let newest = files_below(&places.store.join("index/metadata"), ".metadata.json").len();
        newest >= 2 && metric(&address, "waiting_chunks") == Some(0.0) && rows(&places) == [300, 300]
    });
    assert!(metric(&address, "newest_chunk_seconds") > Some(1.7e9));
    assert!(ask(&address, "/livez").starts_with("HTTP/1.1 200 OK"));
    wait_until("the last round succeeded", || ask(&address, "/readyz").starts_with("HTTP/1.1 200 OK"));
    for keeper in [one, other] {
        let ended = keeper.stop();
        assert!(ended.status.success(), "{}", ended.stderr);
    }
    assert!(!places.store.join("index/lease.json").exists());
    assert_eq!(places.account(), [300, 300, 0, 0, 0]);
    let (keeper, address) = keep(&places, &["--max", "0"]);
    wait_until("all chunks are removed", || metric(&address, "pruned_chunks_total") > Some(0.0));
    assert!(keeper.stop().status.success());
    assert_eq!(places.account(), [300, 0, 0, 300, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
}

/// A round that fails is reported once, by the probe as long as it fails, and the next one goes on.
#[test]
fn failing_rounds_are_reported() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    record(&lab, &places, 20, &[]);
    good(trawl(&["store", "index", &places.url, "--json"]));
    let state = files_below(&places.store.join("index/state"), "").remove(0);
    let kept = fs::read(&state).expect("a file");
    fs::write(&state, "damaged").expect("a file");
    let (keeper, address) = keep(&places, &[]);
    wait_until("several rounds failed", || metric(&address, "keep_failures_total") > Some(2.0));
    let answer = ask(&address, "/readyz");
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("trawl store index --rebuild"), "{answer}");
    fs::write(&state, kept).expect("a file");
    wait_until("a round succeeded", || metric(&address, "keep_failed") == Some(0.0));
    let ended = keeper.stop();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("it is damaged").count(), 1, "{}", ended.stderr);
}

#[test]
fn chunks_without_an_index_are_counted() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    record(&lab, &places, 50, &["--store-index"]);
    let whole = good(places.command("ls", &[]));
    assert_eq!((&whole["not_indexed"], &whole["not_indexed_chunks"]), (&json!(0), &json!(0)));
    record(&lab, &places, 50, &[]);
    let listed = good(places.command("ls", &[]));
    assert_eq!(listed["not_indexed"], 50, "{listed}");
    let chunks = listed["not_indexed_chunks"].as_u64().expect("a number");
    assert!(chunks > 0);
    let shown = trawl(&args!("store ls {} --spool /nonexistent", places.url));
    let line = format!("not indexed: 50 packets in {chunks} chunk");
    assert!(String::from_utf8_lossy(&shown.stdout).contains(&line), "{shown:?}");
    let base = args!("store query --store {} --spool /nonexistent", places.url);
    let queries = [&["SELECT count(*) FROM packets"][..], &["--filter", "udp"], &["--flows"]];
    let status = |query: &&[&str]| trawl(&[&base[..], query].concat()).status.code();
    assert_eq!(queries.each_ref().map(status), [Some(1); 3]);
    // The question is about an hour without such chunks.
    assert_eq!(status(&&["--filter", "udp", "--to", "-1h"][..]), Some(0));
    good(trawl(&["store", "index", &places.url, "--json"]));
    assert_eq!(queries.each_ref().map(status), [Some(0); 3]);
    // A lost index is counted, too.
    fs::remove_dir_all(places.store.join("index")).expect("the index");
    let lost = good(places.command("ls", &[]));
    assert_eq!(lost["not_indexed"], 50, "{lost}");
}

fn give(path: &Path, user: u32) {
    let files = files_below(path, "");
    let above = files.iter().flat_map(|file| file.ancestors().take_while(|one| one.starts_with(path)));
    above.map(PathBuf::from).chain([path.to_owned()]).for_each(|one| chown(one, Some(user), Some(user)).expect("root"));
}

/// Root neither follows links in a directory of another user, nor leaves files of its own there.
#[test]
fn root_changes_a_store_as_the_owner_of_its_directory() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    record(&lab, &places, 100, &[]);
    let above = places.store.parent().expect("a directory").to_owned();
    fs::set_permissions(&above, Permissions::from_mode(0o755)).expect("root");
    give(&places.store, OWNER);
    // A directory in which only root may write.
    let victim = above.join("victim");
    fs::create_dir_all(&victim).expect("a directory");
    let index = places.store.join("index");
    symlink(&victim, &index).expect("a link");
    let refused = trawl(&["store", "index", &places.url]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(files_below(&victim, ""), Vec::<PathBuf>::new());
    fs::remove_file(&index).expect("a link");
    let indexed = good(trawl(&["store", "index", &places.url, "--json"]));
    assert_eq!(indexed["packets"], 100);
    let made = files_below(&index, "");
    assert!(!made.is_empty());
    assert!(made.iter().all(|file| fs::metadata(file).expect("a file").uid() == OWNER), "{made:?}");
    let pruned = good(places.command("prune", &["--max", "0"]));
    assert_eq!(pruned["packets"], 100);
    // A third user could replace the directory.
    chown(&above, Some(OTHER), Some(OTHER)).expect("root");
    for command in [args!("index {}", places.url), args!("prune {} --max 0", places.url)] {
        let refused = trawl(&[&["store"][..], &command[..]].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("belongs to user 65533") && said.contains("run it as the directory's owner"), "{said}");
    }
    chown(&above, Some(0), Some(0)).expect("root");
}
