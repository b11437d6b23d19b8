//! Packets that stay on their hosts: their index is in the store, and a query fetches them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;
use trawl_tests::witness::tshark;
use trawl_tests::{Capture, Lab, args, fleet_or_skip, frames, trawl, wait_until};

use super::incident::{account, start, totals};
use super::{Nats, Up, recorded};

fn chunks(directory: &str) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = path.to_string_lossy().into_owned();
        count += if path.is_dir() { chunks(&name) } else { usize::from(name.ends_with(".pcapng.zst")) };
    }
    count
}

#[test]
fn packets_are_fetched_from_their_hosts() {
    packets_are_fetched(Nats::up);
}

#[test]
fn packets_are_fetched_from_their_hosts_over_the_embedded_bus() {
    packets_are_fetched(Nats::embedded);
}

fn packets_are_fetched(up: Up) {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = up(&lab) else { return };
    assert!(nats.fleet(&["status"]).status.success());
    let alpha = nats.agent(&lab, "alpha", "alpha");
    wait_until("it has reported", || nats.status("*")["hosts"].as_array().map(Vec::len) == Some(1));
    start(&nats, &lab, "alpha", &["--chunk-time", "1s", "udp"]);
    lab.send(&[frames::udp_to(9, b"x")], 400);
    wait_until("all are indexed in the store", || account(&lab) == [400, 0, 400]);
    assert_eq!(chunks(&lab.file("store")), 0, "no packets are in it");
    assert!(chunks(&lab.file("spool-alpha")) > 0);
    let store = format!("file://{}", lab.file("store"));
    let query = |more: &[&str]| {
        let base = args!("store query --store {store} --spool /nonexistent");
        trawl(&[&base[..], more].concat())
    };
    let counted = query(&["--json", "SELECT count(*) AS n FROM packets WHERE dport = 9"]);
    let counted: Value = serde_json::from_slice(&counted.stdout).expect("JSON");
    assert_eq!(counted["rows"][0]["n"], 400, "{counted}");
    let found = lab.file("found.pcapng");
    let packets = ["--filter", "udp port 9", "--packets", &found];
    // Without --hosts, the command asks no host.
    let answer = query(&packets);
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert!(said.contains("400 packets that may match stay on host alpha"), "{said}");
    assert_eq!(answer.status.code(), Some(1), "packets are missing");
    assert_eq!(tshark(&found, &["udp.dstport"]).len(), 0);
    let by_bus = nats.place("operator");
    let by_bus: Vec<&str> = by_bus.iter().map(|word| if word == "--nats" { "--hosts" } else { word }).collect();
    let answer = query(&[&packets[..], &by_bus[..]].concat());
    assert!(answer.status.success(), "{answer:?}");
    assert_eq!(String::from_utf8_lossy(&answer.stderr).matches("stay on").count(), 0);
    assert_eq!(tshark(&found, &["udp.dstport"]).len(), 400);
    // The script in place of ssh runs the command on this host.
    let ssh = lab.file("ssh");
    let spool = lab.file("spool-alpha");
    let binary = trawl_tests::binary::path().display();
    let script = format!(
        "#!/bin/sh\nfor last; do :; done\ntrawl() {{ {binary} \"$@\" --spool {spool}; }}\n\
         case \"$last\" in *\"store answer\"*) {binary} store answer --spool {spool};; esac\n"
    );
    fs::write(&ssh, script).expect("a file");
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("a file");
    let by_ssh = |hosts: &str| query(&[&packets[..], &["--hosts", hosts, "--ssh", &ssh]].concat());
    // Only listed hosts are asked, by plain names.
    for hosts in ["ssh", "ssh:root@alpha", "ssh:-oProxyCommand=x", "ssh:alpha:22"] {
        assert_eq!(by_ssh(hosts).status.code(), Some(2), "{hosts}");
    }
    let answer = by_ssh("ssh:beta");
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert!(said.contains("stay on host alpha: --hosts does not list it"), "{said}");
    let answer = by_ssh("ssh:beta,alpha");
    assert!(answer.status.success(), "{answer:?}");
    assert_eq!(tshark(&found, &["udp.dstport"]).len(), 400);
    // A rebuilt catalogue keeps the rows.
    for more in [&[][..], &["--rebuild"], &[]] {
        let done = trawl(&[&["store", "index", &store], more].concat());
        assert!(done.status.success(), "{done:?}");
        let counted = query(&["--csv", "SELECT count(*) FROM packets"]);
        assert!(String::from_utf8_lossy(&counted.stdout).contains("\n400\n"), "{counted:?}");
        assert_eq!(account(&lab), [400, 0, 400]);
    }
    // The command reports that the agent does not answer.
    assert_eq!(alpha.stop().status.code(), Some(0));
    let answer = query(&[&packets[..], &by_bus[..]].concat());
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert!(said.contains("stay on host alpha: it does not answer"), "{said}");
    // The index of old packets is pruned like packets.
    let pruned = trawl(&args!("store prune {store} --keep 1s --json --spool /nonexistent"));
    let pruned: Value = serde_json::from_slice(&pruned.stdout).expect("JSON");
    assert_eq!((&pruned["packets"], &pruned["bytes"]), (&400.into(), &0.into()), "{pruned}");
    let counted = query(&["--csv", "SELECT count(*) FROM packets"]);
    assert!(String::from_utf8_lossy(&counted.stdout).contains("\n0\n"), "{counted:?}");
    assert_eq!(account(&lab), [400, 0, 0]);
}

#[test]
fn newest_packets_stay_across_runs() {
    if !fleet_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let (receiver, store, spool) = (lab.receiver(), lab.file("store"), lab.file("spool"));
    let run = |size: &str, count: u64| {
        let base = args!(
            "-i {receiver} --tap packet --store file://{store} --spool {spool} --packets-at host --chunk-size 2KiB --spool-size {size}"
        );
        let capture = Capture::start(&lab, &base);
        let frames: Vec<_> = (0..count as u32).map(|n| frames::numbered(n, 400)).collect();
        lab.send(&frames, count);
        capture.wait_recorded(count);
        capture
    };
    let finished = run("1GiB", 100).stop();
    assert!(finished.status.success(), "{}", finished.stderr);
    let account = "100 recorded: 0 stored, 100 on this host, 0 spooled, 0 evicted";
    assert!(finished.stderr.contains(account), "{}", finished.stderr);
    let first = chunks(&spool);
    assert!(first > 5, "{first}");
    assert_eq!(chunks(&store), 0);
    // A killed run's chunks become a part of the ring, too.
    let killed = run("1GiB", 100);
    wait_until("it has sealed a chunk", || chunks(&spool) > first);
    killed.kill();
    let pushed = trawl(&args!("store push --spool {spool}"));
    assert!(pushed.status.success(), "{pushed:?}");
    assert!(chunks(&spool) > first);
    // The ring is smaller than the chunks of the earlier runs. On a busy machine it may be full before all are indexed.
    let finished = run("8KiB", 100).stop();
    let was_full = finished.stderr.contains("the spool was full");
    assert_eq!(finished.status.success(), !was_full, "{}", finished.stderr);
    let last = chunks(&spool);
    assert!(last > 0 && last < first, "{last} of {first}");
    let runs = fs::read_dir(&spool).expect("a directory").flatten();
    let runs: Vec<_> = runs.filter(|entry| entry.path().join("target.json").exists()).collect();
    assert_eq!(runs.len(), 1, "directories of earlier runs are gone: {runs:?}");
    let [recorded, stored, on_host, evicted] = totals(&lab, ["recorded", "stored", "on_host", "evicted"]);
    assert!(stored == 0 && recorded > 200, "{recorded} recorded, {stored} stored");
    assert_eq!((recorded, was_full), (on_host + evicted, evicted > 0));
    assert!(Path::new(&store).join("new").exists());
}

/// A policy without indexing refuses a capture whose packets stay on the host, and the agent counts nothing.
#[test]
fn agent_counts_packets_that_stay() {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = Nats::up(&lab) else { return };
    assert!(nats.fleet(&["status"]).status.success());
    let alpha = nats.agent_within(&lab, "alpha", "alpha", "index = false");
    wait_until("it has reported", || nats.status("*")["hosts"].as_array().map(Vec::len) == Some(1));
    let (receiver, store) = (lab.receiver(), format!("file://{}", lab.file("store")));
    let refused = nats.fleet(&args!("start alpha -i {receiver} --tap packet --store {store} --packets-at host"));
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("policy: no index"), "{said}");
    assert_eq!(recorded(&nats.status("*"), "alpha"), 0);
    assert_eq!(alpha.stop().status.code(), Some(0));
}
