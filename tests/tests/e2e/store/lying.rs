//! An S3 server with wrong answers: it loses objects that it has acknowledged, and returns other bytes, fewer bytes, or
//! other objects.

use std::process::Output;

use trawl_tests::generator::generate;
use trawl_tests::s3::{BUCKET, Fault, Server};
use trawl_tests::witness::tshark;
use trawl_tests::{Lab, args, trawl_in};

use super::{Places, good, json, lab};

const SENT: u64 = 300;

fn places(lab: &Lab, server: &Server, prefix: &str) -> Places {
    Places { url: format!("s3://{BUCKET}/{prefix}"), environment: server.environment(), ..Places::of(lab) }
}

/// Records packets of `trawl gen`.
fn record(places: &Places, lab: &Lab) {
    let capture = places.start(lab, &["--chunk-size", "4KiB", "udp"]);
    generate(lab, "udp", &["--dst", "10.77.0.2", "--count", "300"]);
    capture.wait_recorded(SENT);
    let finished = capture.stop();
    assert!(finished.status.success(), "{}", finished.stderr);
}

fn index(places: &Places, more: &[&str]) -> Output {
    let base = args!("store index {} --json", places.url);
    trawl_in(&places.environment(), &[&base[..], more].concat())
}

/// Runs a query for the number of rows, or for the packets that match a filter.
fn query(places: &Places, question: &[&str]) -> Output {
    let base = args!("store query --store {} --spool /nonexistent", places.url);
    trawl_in(&places.environment(), &[&base[..], question].concat())
}

fn has_no_panic(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{said}");
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
}

/// The store commands find objects that the server acknowledged and then lost or changed.
#[test]
fn forgotten_and_changed_objects_are_found() {
    let (Some(server), Some(lab)) = (Server::open(), lab()) else {
        return;
    };
    for (part, fault, expected) in [
        ("0000000001.pcapng.zst", Fault::Forgotten, &["chunk_missing"][..]),
        ("0000000001.pcapng.zst", Fault::StoresOther, &["chunk_changed"]),
        ("0000000001.json", Fault::Forgotten, &["chunk_without_manifest", "sequence_gap"]),
        ("0000000001.json", Fault::StoresOther, &["chunk_without_manifest", "record_changed", "sequence_gap"]),
        ("end.json", Fault::Forgotten, &["end_missing"]),
    ] {
        let what = format!("{part} {fault:?}");
        let places = places(&lab, &server, &what.replace([' ', '.'], "-"));
        server.set_for(part, fault, 1);
        record(&places, &lab);
        assert_eq!(server.met(), 1, "{what}");
        let mut problems = places.problems();
        problems.sort();
        assert_eq!(problems, expected, "{what}");
        let [recorded, stored, spooled, evicted, unknown] = places.account();
        assert_eq!((recorded, spooled, evicted), (SENT, 0, 0), "{what}");
        assert_eq!(stored + unknown, SENT, "{what}");
        let is_changed = expected.contains(&"chunk_changed");
        assert_eq!(unknown > 0, !is_changed && part != "end.json", "{what}");
        // The index has the packets of all unchanged chunks.
        let indexed = index(&places, &[]);
        has_no_panic(&indexed);
        let is_read = !is_changed && !expected.contains(&"record_changed");
        assert_eq!(indexed.status.success(), is_read, "{what}: {indexed:?}");
        let rows = json(&query(&places, &["--json", "SELECT count(*) AS rows FROM packets"]));
        let rows = rows["rows"][0]["rows"].as_u64().expect("a number");
        assert_eq!(rows, json(&indexed)["packets"].as_u64().expect("a number"), "{what}");
        assert_eq!(rows == stored, !is_changed, "{what}");
        assert!(rows >= 200, "{what}: {rows}");
    }
}

/// Whatever the server returns, an answer that is reported as complete is right, and problems are named.
#[test]
fn wrong_answers_are_no_wrong_packets() {
    let (Some(server), Some(lab)) = (Server::open(), lab()) else {
        return;
    };
    let places = places(&lab, &server, "read");
    record(&places, &lab);
    good(index(&places, &[]));
    let found = lab.file("found.pcapng");
    for fault in [Fault::Flipped, Fault::Halved, Fault::Shifted, Fault::Gone] {
        for part in
            [".pcapng.zst", "/chunks/", "/begin.json", "/index/data/", "/index/runs/", "/index/state/", "metadata.json"]
        {
            let what = format!("{part} {fault:?}");
            server.set_for(part, fault, u64::MAX);
            let listed = places.command("ls", &[]);
            has_no_panic(&listed);
            if listed.status.success() {
                assert_eq!(json(&listed)["total"]["stored"], SENT, "{what}");
            }
            let _ = std::fs::remove_file(&found);
            let answer = query(&places, &["--filter", "udp", "--packets", &found]);
            has_no_panic(&answer);
            let said = String::from_utf8_lossy(&answer.stderr).into_owned();
            if answer.status.success() && !said.contains("no longer in the store") {
                let packets = tshark(&found, &["ip.dst"]);
                assert_eq!(packets.len() as u64, SENT, "{what}");
                assert!(packets.iter().all(|one| one == &["10.77.0.2"]), "{what}");
            }
            let verified = places.command("verify", &[]);
            has_no_panic(&verified);
            let is_met = fault != Fault::Shifted && part != "metadata.json";
            assert!(!is_met || verified.status.code() == Some(1), "{what}: {verified:?}");
            has_no_panic(&query(&places, &["SELECT count(*), max(length) FROM packets"]));
        }
    }
    server.set(Fault::None, 0);
    assert_eq!(places.account(), [SENT, SENT, 0, 0, 0]);
    assert_eq!(places.problems(), Vec::<String>::new());
}

/// Objects that a server returned wrongly once are indexed the next time.
#[test]
fn index_of_wrong_answers_is_completed_later() {
    let (Some(server), Some(lab)) = (Server::open(), lab()) else {
        return;
    };
    for (number, (part, fault)) in [
        ("0000000001.pcapng.zst", Fault::Flipped),
        ("0000000001.pcapng.zst", Fault::Halved),
        ("0000000001.pcapng.zst", Fault::Gone),
        ("0000000001.json", Fault::Flipped),
        ("0000000001.json", Fault::Gone),
        ("/end.json", Fault::Halved),
    ]
    .into_iter()
    .enumerate()
    {
        let places = places(&lab, &server, &format!("once{number}"));
        record(&places, &lab);
        server.set_for(part, fault, u64::MAX);
        has_no_panic(&index(&places, &[]));
        assert!(server.met() > 0);
        server.set(Fault::None, 0);
        assert_eq!(places.account(), [SENT, SENT, 0, 0, 0], "{part} {fault:?}");
        good(index(&places, &[]));
        let rows = json(&query(&places, &["--json", "SELECT count(*) AS rows FROM packets"]));
        assert_eq!(rows["rows"][0]["rows"], SENT, "{part} {fault:?}");
        assert_eq!(rows["coverage"][0]["not_indexed"], 0, "{part} {fault:?}");
        let marks = places.command("ls", &[]);
        assert!(marks.status.success());
    }
}
