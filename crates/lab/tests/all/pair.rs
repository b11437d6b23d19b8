//! Labs in real namespaces: quiet, exact, and gone afterwards.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use trawl_lab::sender::{Engine, Job, send};
use trawl_lab::{Pair, PairOptions, Station, list};
use trawl_sys::netns;

fn root_or_skip() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !root {
        eprintln!("SKIPPED: not root");
    }
    root
}

fn frame(length: usize) -> Vec<u8> {
    let mut frame = vec![0; length];
    frame[..6].copy_from_slice(&[2, b't', b'r', b'a', b'w', 2]);
    frame[6..12].copy_from_slice(&[2, b't', b'r', b'a', b'w', 1]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

fn received(station: &Station) -> u64 {
    station.netlink().unwrap().link(&station.interface).unwrap().statistics.rx_packets
}

/// Waits for the receiving side, which may still be busy after the last frame was sent.
fn wait_for(station: &Station, expected: u64) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while received(station) < expected && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(received(station), expected);
}

fn socket_on(station: &Station, address: IpAddr) -> UdpSocket {
    let socket = netns::run_in(&station.namespace, || UdpSocket::bind((address, 0)).unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

#[test]
fn both_families_reach_the_other_side_without_noise() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions::default()).unwrap();
    let families: [(IpAddr, IpAddr); 2] =
        [(pair.a.ipv4.into(), pair.b.ipv4.into()), (pair.a.ipv6.into(), pair.b.ipv6.into())];
    for (from, to) in families {
        let (client, server) = (socket_on(&pair.a, from), socket_on(&pair.b, to));
        let mut buffer = [0; 64];
        for _ in 0..3 {
            client.send_to(b"question", server.local_addr().unwrap()).unwrap();
            let (length, asker) = server.recv_from(&mut buffer).unwrap_or_else(|e| panic!("{to}: {e}"));
            assert_eq!((&buffer[..length], asker), (&b"question"[..], client.local_addr().unwrap()));
            server.send_to(b"answer", asker).unwrap();
            assert_eq!(client.recv(&mut buffer).unwrap(), 6);
        }
    }
    wait_for(&pair.a, 6);
    wait_for(&pair.b, 6);
}

#[test]
fn both_engines_send_exactly_the_requested_frames() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions::default()).unwrap();
    let frames = [frame(64)];
    let mut expected = 0;
    for (engine, count) in [(Engine::Live, 100_000), (Engine::Packet, 10_000), (Engine::Live, 1)] {
        let job = Job {
            namespace: Some(&pair.a.namespace),
            interface: &pair.a.interface,
            frames: &frames,
            count,
            engine,
            rate: None,
            cpu: Some(0),
        };
        let sent = send(&job).unwrap();
        assert_eq!(sent.packets, count);
        expected += count;
        wait_for(&pair.b, expected);
    }
}

#[test]
fn peer_that_refuses_xdp_frames_is_reported() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions { gro: false, ..PairOptions::default() }).unwrap();
    let frames = [frame(64)];
    let job = Job {
        namespace: Some(&pair.a.namespace),
        interface: &pair.a.interface,
        frames: &frames,
        count: 10,
        engine: Engine::Live,
        rate: None,
        cpu: None,
    };
    let error = send(&job).unwrap_err().to_string();
    assert!(error.contains("gro on"), "{error}");
    let short = [vec![0; 13]];
    for engine in [Engine::Live, Engine::Packet] {
        assert!(send(&Job { frames: &short, engine, ..job.clone() }).is_err());
    }
    let jumbo = [frame(4000)];
    let error = send(&Job { frames: &jumbo, engine: Engine::Packet, ..job.clone() }).unwrap_err();
    assert!(error.to_string().contains("raise the interface's MTU"), "{error}");
    let error = send(&Job { cpu: Some(100_000), ..job.clone() }).unwrap_err().to_string();
    assert!(error.contains("no such CPU"), "{error}");
}

#[test]
fn jumbo_frames_pass_where_the_mtu_allows() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions { mtu: 9000, ..PairOptions::default() }).unwrap();
    let frames = [frame(9014)];
    let job = Job {
        namespace: Some(&pair.a.namespace),
        interface: &pair.a.interface,
        frames: &frames,
        count: 20,
        engine: Engine::Packet,
        rate: None,
        cpu: None,
    };
    assert_eq!(send(&job).unwrap().packets, 20);
    assert_eq!(pair.a.describe().unwrap().mtu, 9000);
    let statistics = pair.a.netlink().unwrap().link("veth0").unwrap().statistics;
    assert_eq!((statistics.tx_packets, statistics.tx_bytes), (20, 20 * 9014));
}

#[test]
fn lab_is_gone_when_dropped_and_stays_when_kept() {
    if !root_or_skip() {
        return;
    }
    let pair = Pair::new(&PairOptions::default()).unwrap();
    let (id, names) = (pair.id().to_owned(), [pair.a.name.clone(), pair.b.name.clone()]);
    assert!(names.iter().all(|name| netns::list().contains(name)));
    let error = Pair::named(&id, &PairOptions::default()).unwrap_err();
    let advice = format!("trawl lab down {id}");
    assert_eq!(error.how_to_fix(), Some(advice.as_str()));
    drop(pair);
    assert!(names.iter().all(|name| !netns::list().contains(name)));
    assert!(list().expect("the records").iter().all(|lab| lab.id != id));

    let id = format!("{id}-kept");
    Pair::named(&id, &PairOptions::default()).unwrap().keep().unwrap();
    let lab = list().expect("the records").into_iter().find(|lab| lab.id == id).unwrap();
    assert!(lab.in_use() && lab.owner.is_none());
    let removed = trawl_lab::remove(&id).unwrap();
    assert_eq!(removed.namespaces, lab.namespaces);
    assert!(netns::list().iter().all(|name| !lab.namespaces.contains(name)));
    assert!(trawl_lab::remove(&id).is_err());
}

#[test]
fn lab_that_cannot_be_made_leaves_nothing() {
    if !root_or_skip() {
        return;
    }
    let interfaces = ["veth0".to_owned(), "a name that no interface can have".to_owned()];
    let id = format!("broken-{}", std::process::id());
    let error = Pair::named(&id, &PairOptions { interfaces, ..PairOptions::default() }).unwrap_err().to_string();
    assert!(error.contains("veth"), "{error}");
    assert!(list().expect("the records").iter().all(|lab| lab.id != id));
    assert!(netns::list().iter().all(|name| !name.contains(&id)));
}

const CHILD: &str = "TRAWL_TEST_MAKES_A_LAB";

#[test]
fn leftovers_are_cleaned_and_labs_in_use_are_kept() {
    if !root_or_skip() {
        return;
    }
    if std::env::var_os(CHILD).is_some() {
        let pair = Pair::new(&PairOptions::default()).unwrap();
        println!("\nlab {}", pair.id());
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    let pair = Pair::new(&PairOptions::default()).unwrap();
    let name = "pair::leftovers_are_cleaned_and_labs_in_use_are_kept";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let id = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("lab ").map(str::to_owned)).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let left = list().expect("the records").into_iter().find(|lab| lab.id == id).unwrap();
    assert!(!left.in_use());

    let cleaned = trawl_lab::clean(false).unwrap();
    assert!(cleaned.removed.contains(&id) && cleaned.kept.contains(&pair.id().to_owned()), "{cleaned:?}");
    assert!(netns::list().iter().all(|name| !left.namespaces.contains(name)));
    assert!(netns::list().contains(&pair.a.name));
}
