//! An agent's figures for Prometheus: its captures, what waits for the store, and what stays on the host.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use trawl_tests::{Lab, fleet_or_skip, frames, wait_until};

use super::{agent, phases, report, state};
use crate::serve::{get, lint, value};

#[test]
fn figures_show_what_waits_for_the_store() {
    let Some(lab) = Lab::open() else { return };
    if !fleet_or_skip() {
        return;
    }
    let (file, path, store) = (lab.file("agent.toml"), lab.file("report"), lab.file("store"));
    let near = state(&lab, &["near"], "chunk_seconds = 1\npackets_at = \"host\"\nfilter = \"udp\"");
    fs::write(&file, state(&lab, &["one"], "chunk_seconds = 1\nfilter = \"udp\"") + &near).expect("a file");
    let agent = agent(&lab, &["--state", &file, "--health", "127.0.0.1:0"]);
    let said = agent.said();
    let address = said.split_once("http://").expect("an address").1;
    let address = address.split('/').next().expect("an address").to_owned();
    wait_until("both run", || phases(&report(&path)) == ["running", "running"]);
    let text = || get(&address, "/metrics", "localhost").split_once("\r\n\r\n").expect("a body").1.to_owned();
    let of_one = |name: &str| value(&text(), name, &["capture=\"one\""]);
    assert_eq!(of_one("trawl_agent_capture_as_desired"), 1);
    assert!(!text().contains("trawl_agent_bus_connected"), "it follows a file");
    lab.send(&[frames::udp_to(9, b"x")], 100);
    wait_until("all are counted", || of_one("trawl_agent_capture_recorded_total") == 100);
    wait_until("all are stored", || {
        of_one("trawl_agent_stored_chunks_total") > 0 && of_one("trawl_agent_waiting_chunks") == 0
    });
    let last = text();
    let last =
        last.lines().find_map(|line| line.strip_prefix("trawl_agent_last_upload_timestamp_seconds{capture=\"one\"} "));
    let last: f64 = last.expect("a time").parse().expect("a number");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs_f64();
    assert!((now - 300.0..=now).contains(&last), "{last} {now}");
    wait_until("packets stay here", || value(&text(), "trawl_agent_kept_bytes", &["capture=\"near\""]) > 0);
    lint(&text());
    // A store that takes no chunks.
    let (chunks, away) = (format!("{store}/chunks"), lab.file("away"));
    fs::rename(&chunks, &away).and_then(|()| fs::write(&chunks, "")).expect("a file");
    lab.send(&[frames::udp_to(9, b"x")], 100);
    wait_until("uploads fail", || {
        of_one("trawl_agent_failed_uploads_total") > 0 && of_one("trawl_agent_waiting_chunks") > 0
    });
    assert!(of_one("trawl_agent_waiting_bytes") > 0);
    fs::remove_file(&chunks).and_then(|()| fs::rename(&away, &chunks)).expect("a file");
    wait_until("all are stored", || of_one("trawl_agent_waiting_chunks") == 0);
    assert_eq!(agent.stop().status.code(), Some(0));
}
