//! The page about a store whose packets stay on their hosts.

use trawl_tests::{Lab, frames, wait_until};

use super::Nats;
use super::incident::{account, start};
use crate::view::Page;

#[test]
fn page_shows_agents_and_fetches_packets_from_their_hosts() {
    let Some(lab) = Lab::open() else { return };
    let Some(nats) = Nats::up(&lab) else { return };
    assert!(nats.fleet(&["status"]).status.success());
    let _alpha = nats.agent(&lab, "alpha", "alpha");
    wait_until("it has reported", || nats.status("*")["hosts"].as_array().map(Vec::len) == Some(1));
    start(&nats, &lab, "alpha", &["--chunk-time", "1s", "udp"]);
    lab.send(&[frames::udp_to(9, b"x")], 400);
    wait_until("all are indexed in the store", || account(&lab) == [400, 0, 400]);
    let store = format!("file://{}", lab.file("store"));
    let packets = [("filter", "udp port 9")];

    let alone = Page::serve(&store, &[]);
    assert_eq!(alone.get("/api/fleet", &[]).status, 404);
    assert_eq!(alone.get("/api/session", &[]).json()["has_agents"], false);
    let refused = alone.get("/api/lines", &packets);
    let why = String::from_utf8_lossy(&refused.body).into_owned();
    assert!(why.contains("400 packets that may match stay on host alpha"), "{why}");
    // A file without them is complete: it has all packets that are in the store.
    assert_eq!(alone.get("/packets.pcapng", &packets).status, 200);

    let by_bus = nats.place("operator");
    let by_bus: Vec<&str> = by_bus.iter().map(|word| if word == "--nats" { "--hosts" } else { word }).collect();
    let page = Page::serve(&store, &by_bus);
    let status = page.get("/api/fleet", &[]).json();
    assert_eq!(status["hosts"][0]["host"], "alpha", "{status}");
    assert_eq!(status["hosts"][0]["state"]["captures"][0]["phase"], "running", "{status}");
    let lines = page.get("/api/lines", &packets).json();
    assert_eq!(lines["lines"].as_array().map(Vec::len), Some(400), "{lines}");
}
