//! `trawl why --record`, reading the file later, and comparing two runs.

use serde_json::Value;
use trawl_tests::witness::tshark;
use trawl_tests::{Lab, Running, args, trawl};

use super::{DROPS_5555, row};

/// Records drops while these frames are sent. Returns the report.
fn record(lab: &Lab, file: &str, frames: &[Vec<u8>]) -> String {
    let arguments = args!("why --netns {} --record {file}", lab.pair.b.name);
    let why = Running::start(&arguments, "looking");
    lab.send_long(frames);
    let done = why.stop();
    assert!(done.status.success(), "{}", done.stderr);
    done.stdout
}

fn report(arguments: &[&str]) -> Value {
    let done = trawl(&[&["why"], arguments, &["--json"]].concat());
    assert!(done.status.success(), "{done:?}");
    serde_json::from_slice(&done.stdout).expect("JSON")
}

/// A file gives the same rows, counters and advice as the run that recorded it. Other programs also read it.
#[test]
fn file_gives_the_same_report() {
    let Some(lab) = Lab::open() else { return };
    lab.nft(DROPS_5555);
    for name in ["drops.pcapng", "drops.pcapng.zst"] {
        let file = lab.file(name);
        let mut broken = lab.udp(7);
        broken[14] = 0x44;
        let frames = [lab.udp(5555), lab.udp(7), lab.udp(7), broken];
        let live = record(&lab, &file, &frames);
        assert!(live.contains("nft list chain inet f in"), "{live}");
        let again = trawl(&["why", &file]);
        assert!(again.status.success(), "{again:?}");
        assert_eq!(String::from_utf8_lossy(&again.stdout), live);
    }
    let file = lab.file("drops.pcapng");
    let comments = tshark(&file, &["frame.comment"]);
    let is_meant = |fields: &&Vec<String>| fields[0].starts_with("drop=NO_SOCKET ");
    assert_eq!(comments.iter().filter(is_meant).count(), 2);
    // With a filter, only matching packets count.
    let some = report(&[&file, "udp dst port 7"]);
    assert_eq!(row(&some, "NO_SOCKET")["packets"], 2, "{some}");
    assert_eq!(some["account"]["filtered_out"], 2, "{some}");
    assert_eq!(some["counters"], Value::Array(Vec::new()));
    // The filter of the command does not change the file, which still has all packets.
    let all = report(&[&file]);
    assert_eq!(row(&all, "NETFILTER_DROP")["packets"], 1, "{all}");
    let later = report(&[&file, "--since", "+1h"]);
    assert_eq!(later["rows"], Value::Array(Vec::new()), "{later}");
}

/// Rows that did not change are left out, and new or much more frequent rows remain.
#[test]
fn difference_names_what_is_new_or_more() {
    let Some(lab) = Lab::open() else { return };
    let (before, after) = (lab.file("before.pcapng"), lab.file("after.pcapng"));
    let several = |port, count| vec![lab.udp(port); count];
    let calm = [several(7, 10), several(9, 1)].concat();
    record(&lab, &before, &calm);
    lab.nft(DROPS_5555);
    record(&lab, &after, &[several(7, 10), several(5555, 2)].concat());
    let change = report(&[&after, "--diff", &before]);
    assert_eq!(row(&change, "NETFILTER_DROP")["new"], true, "{change}");
    let rows = change["rows"].as_array().expect("rows");
    let netfilter = rows.iter().filter(|row| row["reason"] == "NETFILTER_DROP");
    // The frequency of other rows depends on the length of the runs, but none is new.
    let others = rows.iter().filter(|row| row["reason"] != "NETFILTER_DROP");
    assert_eq!(netfilter.count(), 1);
    assert!(others.clone().all(|row| row["times"].is_number()), "{change}");
    let same = report(&[&after, "--diff", &after]);
    assert_eq!(same["rows"], Value::Array(Vec::new()), "{same}");
    let text = trawl(&["why", &after, "--diff", &after]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("nothing is new"), "{text}");
    // A live run can also be compared.
    let name = &lab.pair.b.name;
    let why = Running::start(&args!("why --netns {name} --diff {before} --json"), "looking");
    lab.send_long(&several(5555, 1));
    let live: Value = serde_json::from_str(&why.stop().stdout).expect("JSON");
    assert_eq!(row(&live, "NETFILTER_DROP")["new"], true, "{live}");
}

#[test]
fn wrong_uses_are_explained() {
    let Some(lab) = Lab::open() else { return };
    let (file, other) = (lab.file("none.pcapng"), lab.file("packets.pcap"));
    let missing = trawl(&["why", &file]);
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
    // The file is a pcap file with one empty frame.
    let words = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1, 1, 0, 0, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(&other, bytes).expect("a file");
    for (arguments, code, said) in [
        (&["why", &other][..], 1, "cannot find drops in"),
        (&["why", &other, "-i", "lo"], 2, "-i is not about files"),
        (&["why", "--since", "-1h"], 2, "only files hold"),
        (&["why", "--diff", &file], 1, "cannot read"),
    ] {
        let done = trawl(arguments);
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
    }
}
