//! The columns of the index, compared with tshark.

use std::fs;

use serde_json::Value;
use trawl_packet::build::{Tcp, Template, flags};
use trawl_tests::frames::{FROM, TO, udp_to};
use trawl_tests::witness::tshark;
use trawl_tests::{args, trawl};

use super::{Places, good, lab};

/// Returns the payload of a seed of the fuzz target `names`.
fn seed(name: &str) -> Vec<u8> {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/names");
    let seed = fs::read(format!("{corpus}/{name}")).expect("a seed");
    seed[1..].to_vec()
}

fn tcp(seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let link = Template::new().ethernet(FROM, TO).vlan(7);
    let tcp = Tcp { src: 40_000, dst: 443, seq, flags, ..Tcp::default() };
    let packet = link.ipv4([10, 77, 0, 1], [10, 77, 0, 2]).tcp(tcp);
    packet.payload(payload).build()
}

/// Queries a store, and returns the rows.
fn asked(places: &Places, question: &[&str]) -> Vec<Value> {
    let base = args!("store query --store {} --spool {} --json", places.url, places.spool);
    let answer = good(trawl(&[&base[..], question].concat()));
    answer["rows"].as_array().expect("a list").clone()
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[test]
fn columns_have_what_tshark_shows() {
    let Some(lab) = lab() else { return };
    let places = Places::of(&lab);
    let capture = places.start(&lab, &["--store-index"]);
    let (hello, request) = (seed("client_hello"), seed("http"));
    let (after_hello, after) = (100 + hello.len() as u32, 100 + (hello.len() + request.len()) as u32);
    let frames = [
        udp_to(53, &seed("dns")),
        udp_to(4789, &seed("vxlan")),
        tcp(99, flags::SYN, b""),
        tcp(100, flags::ACK, &hello),
        tcp(after_hello, flags::ACK, &request),
        // The request is sent again, and the connection is reset.
        tcp(after_hello, flags::ACK, &request),
        tcp(after, flags::RST, b""),
    ];
    lab.send_long(&frames);
    capture.wait_recorded(frames.len() as u64);
    capture.stop_well();
    let file = lab.file("all.pcapng");
    let query = args!("store query --store {} --spool {} --packets {file} --filter", places.url, places.spool);
    let written = trawl(&[&query[..], &["ip or vlan"]].concat());
    assert!(written.status.success(), "{written:?}");
    let judged = tshark(
        &file,
        &[
            "frame.len",
            "dns.qry.name",
            "tls.handshake.extensions_server_name",
            "http.host",
            "vlan.id",
            "vxlan.vni",
            "tcp.seq_raw",
            "tcp.analysis.retransmission",
        ],
    );
    let columns = "length, dns_name, tls_server_name, http_host, vlan, vni, tcp_seq, retransmission";
    let rows = asked(&places, &[&format!("SELECT {columns} FROM packets ORDER BY time_ns")]);
    let shown: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let mut shown: Vec<String> = columns.split(", ").map(|name| text(&row[name])).collect();
            // tshark does not dissect retransmitted data, and shows no value for the column of other packets.
            let again = shown.pop().expect("a column") == "true";
            if again {
                shown[1..4].fill(String::new());
            }
            shown.push(if again { "1" } else { "" }.to_owned());
            shown
        })
        .collect();
    assert_eq!(shown, judged);
    let seen: Vec<&str> = shown.iter().flatten().map(String::as_str).collect();
    for name in ["www.example.com", "7", "1"] {
        assert!(seen.contains(&name), "{shown:?}");
    }
    let hooks = asked(&places, &["SELECT DISTINCT interface, hook, ja4 FROM packets WHERE ja4 IS NOT NULL"]);
    assert_eq!(hooks.len(), 1, "{hooks:?}");
    assert!(text(&hooks[0]["hook"]).starts_with("xdp "), "{hooks:?}");
    assert!(text(&hooks[0]["ja4"]).starts_with("t1"), "{hooks:?}");
    let flows = asked(&places, &["--flows", "--filter", "tcp port 443"]);
    assert_eq!(flows.len(), 1, "{flows:?}");
    let flow = &flows[0];
    assert_eq!(
        (&flow["packets"], &flow["retransmissions"], &flow["reset"]),
        (&5.into(), &1.into(), &true.into()),
        "{flow}"
    );
    assert_eq!((&flow["src"], &flow["dport"]), (&"10.77.0.1".into(), &443.into()));
    assert_eq!(text(&flow["tls_server_name"]), judged[3][2], "{flow}");
    let all = asked(&places, &["SELECT count(*) AS flows FROM flows"]);
    assert_eq!(all[0]["flows"], 3, "{all:?}");
}
