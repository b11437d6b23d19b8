//! Both sides of translated connections, compared with the kernel's own table.

use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use trawl_sys::netns::run_in;
use trawl_tests::lab::{Files, LineLab, place};
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, args, fleet_or_skip, trawl};

use super::{Places, files_below, good};
use crate::follow::labs;

const PORT: u16 = 9;
const TO: &str = "10.1.0.2";

/// Source and destination, each with its port.
type Ends = [(String, u64); 2];

fn back([from, to]: Ends) -> Ends {
    [to, from]
}

/// Returns the original and the reply of each UDP connection in the router's table.
fn table(lab: &LineLab) -> Vec<[Ends; 2]> {
    let router = &lab.line.left.name;
    let text = run("ip", &["netns", "exec", router, "cat", "/proc/net/nf_conntrack"]);
    let connections = text.lines().filter(|line| line.contains(" udp "));
    let connections = connections.map(|line| {
        let all = |name: &str| -> Vec<String> {
            let words = line.split_whitespace();
            words.filter_map(|word| word.strip_prefix(name).map(str::to_owned)).collect()
        };
        let [src, dst, sport, dport] = ["src=", "dst=", "sport=", "dport="].map(all);
        let port = |text: &str| text.parse().expect("a port");
        [0, 1].map(|n| [(src[n].clone(), port(&sport[n])), (dst[n].clone(), port(&dport[n]))])
    });
    connections.collect()
}

/// Returns the connections of these clients, whose ports the router keeps.
fn expected(ports: &[u16]) -> Vec<[Ends; 2]> {
    let end = |address: &str, port: u16| (address.to_owned(), u64::from(port));
    let connection =
        |port: &u16| [[end("10.1.1.1", *port), end(TO, PORT)], [end("10.1.2.2", PORT), end("10.1.2.1", *port)]];
    ports.iter().map(connection).collect()
}

/// Sends packets of several connections through the router, and their answers back. Returns the ports of the clients.
fn exchange(lab: &LineLab) -> Vec<u16> {
    let mut ports = Vec::new();
    let (a, b) = (&lab.line.a.namespace, &lab.line.b.namespace);
    let server = run_in(b, || UdpSocket::bind(("0.0.0.0", PORT)));
    let server = server.expect("the namespace").expect("a port");
    for _ in 0..5 {
        let client = run_in(a, || UdpSocket::bind("0.0.0.0:0"));
        let client = client.expect("the namespace").expect("a port");
        for socket in [&server, &client] {
            let patience = Some(Duration::from_secs(30));
            socket.set_read_timeout(patience).expect("a socket");
        }
        for _ in 0..3 {
            client.send_to(b"there", (TO, PORT)).expect("it is sent");
            let (_, from) = server.recv_from(&mut [0; 16]).expect("it arrives");
            server.send_to(b"back", from).expect("it is sent");
            client.recv(&mut [0; 16]).expect("it arrives");
        }
        ports.push(client.local_addr().expect("an address").port());
    }
    ports
}

fn ping(lab: &LineLab) {
    run("ip", &args!("netns exec {} ping -q -c 1 -w 10 {TO}", lab.line.a.name));
}

fn ends(row: &Value, names: [&str; 4]) -> Ends {
    let [src, sport, dst, dport] = names.map(|name| &row[name]);
    let end = |address: &Value, port: &Value| {
        let address = address.as_str().unwrap_or_default().to_owned();
        (address, port.as_u64().unwrap_or(0))
    };
    [end(src, sport), end(dst, dport)]
}

fn rows_of(table: &str, places: &Places) -> Vec<Value> {
    let query = args!("store query --store {} --spool {} --json", places.url, places.spool);
    let sql = format!("SELECT * FROM {table} WHERE protocol IN (1, 17)");
    let answer = good(trawl(&[&query[..], &[&sql]].concat()));
    answer["rows"].as_array().expect("a list").clone()
}

#[test]
fn rows_have_both_sides_of_a_translation() {
    if !fleet_or_skip() {
        return;
    }
    let Some(lab) = labs::lab("nat") else { return };
    // With these limits, connections stay in the table on a slow machine, too.
    for name in ["udp_timeout", "udp_timeout_stream", "icmp_timeout"] {
        let setting = format!("net.netfilter.nf_conntrack_{name}=600");
        run("ip", &args!("netns exec {} sysctl -q -w {setting}", lab.line.left.name));
    }
    let store = Files::file(&lab, "store");
    let places = Places {
        url: format!("file://{store}"),
        store: store.into(),
        spool: Files::file(&lab, "spool"),
        environment: Vec::new(),
    };
    let (left, right) = (place(&lab.line.left), place(&lab.line.right));
    let (url, spool) = (&places.url, &places.spool);
    // Small chunks make connections continue from one chunk to the next.
    let arguments = args!(
        "-i {left} -i {right} --tap packet --chunk-size 2KiB --store-index --store {url} --spool {spool} 'udp or icmp'"
    );
    let capture = || Capture::start(&lab, &arguments);
    // A capture does not follow translations if no translated connection exists at its start.
    let plain = capture();
    exchange(&lab);
    plain.wait_recorded(60);
    plain.stop_well();
    let before = rows_of("packets", &places);
    assert_eq!(before.len(), 60);
    assert!(before.iter().all(|row| row["nat_src"].is_null()), "{before:?}");
    std::fs::remove_dir_all(&places.store).expect("the store");
    let capture = capture();
    ping(&lab);
    let ports = exchange(&lab);
    capture.wait_recorded(64);
    capture.stop_well();
    let chunks = files_below(&places.store, ".pcapng.zst");
    assert!(chunks.len() > 2);
    let packets = chunks.iter().map(|chunk| tshark(&chunk.to_string_lossy(), &["frame.len"]).len());
    assert_eq!(packets.sum::<usize>(), 64);
    // Some kernels do not show their table.
    let has_table = Path::new("/proc/net/nf_conntrack").exists();
    let connections = if has_table { table(&lab) } else { expected(&ports) };
    let all = rows_of("packets", &places);
    assert_eq!(all.len(), 64);
    let (mut sides, mut early) = ([0; 4], Vec::new());
    for row in &all {
        let own = ends(row, ["src", "sport", "dst", "dport"]);
        let other = ends(row, ["nat_src", "nat_sport", "nat_dst", "nat_dport"]);
        if row["protocol"] == 1 {
            assert!(row["nat_src"].is_string() && row["nat_sport"].is_null(), "{row}");
            continue;
        }
        let found = connections.iter().find_map(|[original, reply]| {
            let (original, reply) = (original.clone(), reply.clone());
            let sides = [
                (original.clone(), back(reply.clone())),
                (back(reply.clone()), original.clone()),
                (reply.clone(), back(original.clone())),
                (back(original), reply),
            ];
            let number = sides.iter().position(|(one, _)| *one == own)?;
            Some((number, sides[number].1.clone()))
        });
        let (side, expected) = found.unwrap_or_else(|| panic!("{row} in {connections:?}"));
        sides[side] += 1;
        if row["nat_src"].is_null() {
            early.push(row);
            continue;
        }
        assert_eq!(other, expected, "{row}");
    }
    assert_eq!(sides, [15; 4]);
    // The chunk of a connection's first packet may be sealed before the kernel translates the packet.
    for row in &early {
        let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
        let is_later = |other: &&Value| other["flow"] == row["flow"] && text(other, "chunk") > text(row, "chunk");
        let later = all.iter().find(is_later);
        assert!(later.is_some_and(|row| row["nat_src"].is_string()), "{row}");
    }
    assert!(early.len() <= ports.len(), "{early:?}");
    good(trawl(&args!("store index {} --json", places.url)));
    // One row has both sides and both interfaces, and counts each packet once.
    let flows = rows_of("flows", &places);
    let of_udp: Vec<&Value> = flows.iter().filter(|flow| flow["protocol"] == 17).collect();
    assert_eq!((flows.len(), of_udp.len()), (ports.len() + 1, ports.len()), "{flows:?}");
    for flow in of_udp {
        assert_eq!((&flow["packets"], &flow["packets_back"]), (&json!(6), &json!(3)), "{flow}");
        let own = ends(flow, ["src", "sport", "dst", "dport"]);
        let other = ends(flow, ["nat_src", "nat_sport", "nat_dst", "nat_dport"]);
        let is_translated = |[original, reply]: &[Ends; 2]| *original == own && back(reply.clone()) == other;
        assert!(connections.iter().any(is_translated), "{flow} in {connections:?}");
    }
    assert_eq!(rows_of("sightings", &places).len(), 2 * flows.len());
    let by_outside = args!("store query --store {} --spool {} --json", places.url, places.spool);
    let sql = "SELECT count(*) AS packets FROM packets WHERE nat_dst = '10.1.2.2' AND nat_dport = 9";
    let counted = good(trawl(&[&by_outside[..], &[sql]].concat()));
    let outside = all.iter().filter(|row| row["nat_dst"] == "10.1.2.2" && row["nat_dport"] == 9);
    assert_eq!(counted["rows"][0]["packets"], outside.count(), "{counted}");
    assert_eq!(places.problems(), Vec::<String>::new());
}
