//! A store on another project's S3 server, also with faults on the connection.

use trawl_tests::generator::generate;
use trawl_tests::s3::{BUCKET, Fault, Server};
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Finished, Lab, args, trawl_in, wait_until};

use super::{Places, files_below, good, is_indexed_queried_and_pruned, lab};

fn places(lab: &Lab, server: &Server) -> Places {
    Places { url: format!("s3://{BUCKET}/captures"), environment: server.environment(), ..Places::of(lab) }
}

const CHUNKS: [&str; 2] = ["--chunk-size", "4KiB"];

fn send(lab: &Lab, capture: &Capture, before: u64, count: u64) -> u64 {
    let number = count.to_string();
    generate(lab, "udp", &["--dst", "10.77.0.2", "--count", &number]);
    capture.wait_recorded(before + count);
    before + count
}

fn ended(finished: &Finished, code: i32) {
    assert_eq!(finished.status.code(), Some(code), "{}", finished.stderr);
}

/// Returns all keys of the server, without using trawl.
fn keys(server: &Server) -> Vec<String> {
    let (status, listing) = server.request("GET", "?list-type=2", &[]);
    assert_eq!(status, 200);
    let text = String::from_utf8_lossy(&listing).into_owned();
    let keys = text.split("<Key>").skip(1);
    keys.filter_map(|rest| rest.split("</Key>").next().map(str::to_owned)).collect()
}

fn chunks(server: &Server) -> Vec<String> {
    let mut keys = keys(server);
    keys.retain(|key| key.ends_with(".pcapng.zst"));
    keys
}

#[test]
fn store_in_s3_is_listed_verified_indexed_queried_and_pruned() {
    let (Some(server), Some(lab)) = (Server::open(), lab()) else {
        return;
    };
    let places = places(&lab, &server);
    let capture = places.start(&lab, &[&CHUNKS[..], &["udp"]].concat());
    send(&lab, &capture, 0, 300);
    ended(&capture.stop(), 0);
    assert_eq!(places.account(), [300, 300, 0, 0, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
    assert!(chunks(&server).len() > 2);
    // Other tools can download a chunk and read it.
    let file = lab.file("chunk.pcapng.zst");
    let packets: usize = chunks(&server)
        .iter()
        .map(|key| {
            std::fs::write(&file, server.request("GET", key, &[]).1).expect("a file");
            tshark(&file, &["frame.len"]).len()
        })
        .sum();
    assert_eq!(packets, 300);
    is_indexed_queried_and_pruned(&places, &lab, 300);
    assert_eq!(chunks(&server), Vec::<String>::new());
    assert_eq!(places.problems(), Vec::<String>::new());
}

#[test]
fn questions_keep_what_tells_the_contents_of_files() {
    let (Some(server), Some(lab)) = (Server::open(), lab()) else {
        return;
    };
    let cache = lab.path("cache");
    let mut places = places(&lab, &server);
    places.environment.push(("XDG_CACHE_HOME".to_owned(), cache.to_string_lossy().into_owned()));
    let capture = places.start(&lab, &["udp"]);
    send(&lab, &capture, 0, 300);
    ended(&capture.stop(), 0);
    let indexed = trawl_in(&places.environment(), &["store", "index", &places.url]);
    assert!(indexed.status.success(), "{indexed:?}");
    let found = || {
        let sql = "SELECT count(*) FROM packets WHERE dst = '10.77.0.2'";
        let query = args!("store query --csv --store {} --spool /nonexistent", places.url);
        let answer = trawl_in(&places.environment(), &[&query[..], &[sql]].concat());
        String::from_utf8_lossy(&answer.stdout).into_owned()
    };
    let kept = || files_below(&cache.join("trawl/index"), "");
    assert!(found().ends_with("\n300\n"));
    let first = kept();
    assert!(!first.is_empty());
    assert!(found().ends_with("\n300\n"));
    assert_eq!(kept(), first);
    // A kept part with a wrong length is downloaded again.
    for file in &first {
        std::fs::write(file, "x").expect("a file");
    }
    assert!(found().ends_with("\n300\n"));
    let lengths = kept().iter().map(|file| file.metadata().expect("a file").len()).collect::<Vec<_>>();
    assert!(lengths.iter().all(|length| *length > 1), "{lengths:?}");
}

/// A store in Google Cloud Storage works like any other. The server has Google's requests and conditions under the
/// names of S3, and tokens are not tested.
#[test]
fn store_in_google_cloud_storage_works_like_any_other() {
    let (Some(server), Some(lab)) = (Server::open(), lab()) else {
        return;
    };
    let places = Places {
        url: format!("gs://{BUCKET}/captures"),
        environment: server.environment_of_google(),
        ..places(&lab, &server)
    };
    let mut all = 0;
    for fault in [Fault::None, Fault::LostReply, Fault::Doubled] {
        server.set(fault, 3);
        let capture = places.start(&lab, &[&CHUNKS[..], &["udp"]].concat());
        all += send(&lab, &capture, 0, 200);
        ended(&capture.stop(), 0);
        assert_eq!(places.account(), [all, all, 0, 0, 0], "{fault:?}");
        assert_eq!(places.problems(), Vec::<String>::new(), "{fault:?}");
    }
    is_indexed_queried_and_pruned(&places, &lab, all);
    assert_eq!(chunks(&server), Vec::<String>::new());
}

/// After temporary faults, every packet is stored once.
#[test]
fn temporary_faults_lose_and_duplicate_nothing() {
    let (Some(server), Some(lab)) = (Server::open(), lab()) else {
        return;
    };
    let places = places(&lab, &server);
    let mut all = 0;
    for (fault, times) in [
        (Fault::Status(503), 3),
        // The server is full.
        (Fault::Status(507), 8),
        (Fault::Status(409), 2),
        (Fault::LostReply, 3),
        (Fault::Doubled, 50),
        (Fault::Partition, 3),
        (Fault::Slow, 1),
    ] {
        server.set(fault, times);
        let capture = places.start(&lab, &[&CHUNKS[..], &["udp"]].concat());
        let sent = send(&lab, &capture, 0, 200);
        wait_until("the fault was met", || server.met() > 0);
        if fault == Fault::Slow {
            // The capture continues while requests get no answer.
            let more = send(&lab, &capture, sent, 100);
            all += more - sent;
            server.set(Fault::None, 0);
        }
        all += sent;
        let finished = capture.stop();
        ended(&finished, 0);
        assert_eq!(places.account(), [all, all, 0, 0, 0], "{fault:?}");
        assert_eq!(places.problems(), Vec::<String>::new(), "{fault:?}");
        let mut once = chunks(&server);
        let before = once.len();
        once.dedup();
        assert_eq!(before, once.len());
    }
}

/// A full server (status 507) has room again once a chunk is removed.
#[test]
fn prune_makes_room_on_a_full_server() {
    let (Some(server), Some(lab)) = (Server::open(), lab()) else {
        return;
    };
    let places = places(&lab, &server);
    let capture = places.start(&lab, &[&CHUNKS[..], &["udp"]].concat());
    send(&lab, &capture, 0, 300);
    ended(&capture.stop(), 0);
    // The fault affects the requests for the lease and the first requests for the record, each with four repetitions.
    server.set(Fault::Status(507), 10);
    let pruned = good(places.command("prune", &["--max", "0"]));
    assert_eq!((&pruned["packets"], server.met()), (&300.into(), 10));
    assert_eq!(chunks(&server), Vec::<String>::new());
    assert_eq!(places.account(), [300, 0, 0, 300, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
}

/// The capture continues without the store. Once the spool is full, the chosen policy applies.
#[test]
fn full_spool_of_an_unreachable_store_evicts_or_stops() {
    let (Some(server), Some(lab)) = (Server::open(), lab()) else {
        return;
    };
    for (policy, ends) in [("evict", false), ("stop", true)] {
        let places = Places { url: format!("s3://{BUCKET}/{policy}"), ..places(&lab, &server) };
        server.set(Fault::Partition, u64::MAX);
        let full = ["--spool-size", "4KiB", "--spool-full", policy];
        let wait = ["--store-wait", "100ms", "udp"];
        let capture = places.start(&lab, &[&CHUNKS[..], &full, &wait].concat());
        generate(&lab, "udp", &["--dst", "10.77.0.2", "--count", "2000"]);
        let sent = 2000;
        let finished = if ends {
            capture.wait()
        } else {
            capture.wait_recorded(sent);
            capture.stop()
        };
        ended(&finished, 1);
        server.set(Fault::None, 0);
        let [recorded, stored, spooled, evicted, unknown] = places.account();
        assert_eq!(recorded, stored + spooled + evicted + unknown);
        assert_eq!((stored, unknown), (0, 0), "{}", finished.stderr);
        assert!(recorded <= sent && (ends || recorded == sent));
        assert_eq!(evicted > 0, !ends);
        good(places.command("push", &[]));
        assert_eq!(places.account(), [recorded, spooled, 0, evicted, 0]);
        assert_eq!(places.problems(), Vec::<String>::new());
    }
}

#[test]
fn flipped_bit_in_a_stored_chunk_is_found() {
    let (Some(server), Some(lab)) = (Server::open(), lab()) else {
        return;
    };
    let places = places(&lab, &server);
    let capture = places.start(&lab, &[&CHUNKS[..], &["udp"]].concat());
    send(&lab, &capture, 0, 300);
    ended(&capture.stop(), 0);
    let key = &chunks(&server)[1];
    let mut bytes = server.request("GET", key, &[]).1;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    assert_eq!(server.request("PUT", key, &bytes).0, 200);
    assert_eq!(places.problems(), ["chunk_changed"]);
    assert_eq!(places.command("verify", &[]).status.code(), Some(1));
    assert_eq!(server.request("DELETE", key, &[]).0, 204);
    assert_eq!(places.problems(), ["chunk_missing"]);
    let [recorded, stored, spooled, evicted, unknown] = places.account();
    assert_eq!((recorded, spooled, evicted), (300, 0, 0));
    assert_eq!(stored + unknown, 300);
    assert!(unknown > 0);
}

/// A disk in memory for the test, unmounted when dropped.
struct Disk(String);

impl Disk {
    fn mount(path: String, size: &str) -> Self {
        std::fs::create_dir_all(&path).expect("a directory");
        run("mount", &["-t", "tmpfs", "-o", size, "tmpfs", &path]);
        Self(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["--lazy", &self.0]);
    }
}

/// If the spool's disk is full (ENOSPC) before the spool's limit is reached, the capture ends with its summary.
#[test]
fn full_disk_of_the_spool_ends_the_capture_with_its_summary() {
    let Some(lab) = lab() else { return };
    let blocked = lab.file("blocked");
    std::fs::create_dir_all(&blocked).expect("a directory");
    let in_the_way = format!("{blocked}/trawl");
    std::fs::write(&in_the_way, "").expect("a file");
    let disk = Disk::mount(lab.file("disk"), "size=128k");
    let places = Places { url: format!("file://{blocked}"), spool: disk.0.clone(), ..Places::of(&lab) };
    let wait = ["--store-wait", "100ms", "udp"];
    let capture = places.start(&lab, &[&CHUNKS[..], &wait].concat());
    let sent = 20000;
    generate(&lab, "udp", &["--dst", "10.77.0.2", "--count", "20000"]);
    let finished = capture.wait();
    ended(&finished, 1);
    assert!(finished.stderr.contains("No space left on device"), "{}", finished.stderr);
    let listed = places.account();
    let [recorded, stored, spooled, evicted, unknown] = listed;
    assert_eq!(recorded, stored + spooled + evicted + unknown, "{listed:?}");
    assert!(recorded <= sent, "{listed:?}");
    assert!(stored == 0 && spooled > 0, "{listed:?}");
    std::fs::remove_file(&in_the_way).expect("a file");
    run("mount", &["-o", "remount,size=4m", &disk.0]);
    good(places.command("push", &[]));
    let [recorded, stored, spooled, evicted, unknown] = places.account();
    assert_eq!(recorded, stored + evicted + unknown);
    assert_eq!(spooled, 0);
    assert_eq!((stored, spooled), (listed[2], 0));
}

/// A store that is killed and returns empty has lost its chunks, which count as unknown. Chunks that were spooled in
/// between are stored.
#[test]
fn chunks_of_a_killed_store_are_unknown() {
    let (Some(mut server), Some(lab)) = (Server::open(), lab()) else {
        return;
    };
    let places = places(&lab, &server);
    let capture = places.start(&lab, &[&CHUNKS[..], &["udp"]].concat());
    let sent = send(&lab, &capture, 0, 200);
    wait_until("some of it is stored", || chunks(&server).len() > 1);
    server.kill();
    let sent = send(&lab, &capture, sent, 100);
    server.restart();
    ended(&capture.stop(), 0);
    let [recorded, stored, spooled, evicted, unknown] = places.account();
    assert_eq!((recorded, spooled, evicted), (sent, 0, 0));
    assert_eq!(stored + unknown, sent);
    assert!(stored >= 100 && unknown > 0, "{stored} and {unknown}");
    let problems = places.problems();
    assert!(problems.contains(&"begin_missing".to_owned()), "{problems:?}");
    assert!(problems.contains(&"sequence_gap".to_owned()), "{problems:?}");
}
