//! Packets and tables that the load balancer refuses, leaves to the stack, or limits.

use std::fmt::Write as _;
use std::process::{Command, Output};

use serde_json::Value;
use trawl_packet::build::{Layer, Tcp, Template, Vlan, flags};
use trawl_sys::host::available_memory;
use trawl_tests::bundled::refused;
use trawl_tests::lab::{Files, place};
use trawl_tests::witness::nothing_attached;
use trawl_tests::{LineLab, amount, binary, skip};

use super::{VIP, add, counted, ip, json, load, outcome, to_vip};

/// Runs trawl as in a session through the balancer's left interface.
fn in_session(line: &trawl_lab::Line, arguments: &[&str]) -> Output {
    let connection = format!("{} 50000 {} 22", line.a.ipv4, line.left.ipv4);
    let mut command = Command::new(binary::path());
    let command = command.args(arguments).env("SSH_CONNECTION", connection);
    command.output().expect("trawl runs")
}

#[test]
fn session_of_the_command_is_not_cut() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    let own = line.left.ipv4;
    let (table, harmless) = (lab.file("table.toml"), lab.file("harmless.toml"));
    let text = |port: u16| {
        format!(
            "[[vip]]\naddress = \"{own}\"\nprotocol = \"tcp\"\nport = {port}\n[[vip.backend]]\naddress = \"{}\"\n",
            line.b.ipv4
        )
    };
    std::fs::write(&table, text(22)).expect("a file");
    std::fs::write(&harmless, text(80)).expect("a file");
    let is_refused = |arguments: &[&str]| {
        let output = in_session(line, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("SSH session") && said.contains("--yes"), "{said}");
    };
    // The command refuses the address in the first table, in a changed table, and as an added address.
    is_refused(&["balance", "load", &left, &table]);
    nothing_attached(&line.left);
    let load = ["balance", "load", &left, &harmless];
    assert!(in_session(line, &load).status.success());
    is_refused(&["balance", "load", &left, &table]);
    let vip = format!("tcp:{own}:22");
    is_refused(&["balance", "vip", "add", &vip, "--on", &left]);
    let list = json(&["balance", "vip", "list", "--on", &left]);
    assert_eq!(list["vips"].as_array().map(Vec::len), Some(1), "{list}");
    // Consent overrides the refusal.
    let add = ["balance", "vip", "add", &vip, "--on", &left, "--yes"];
    assert!(in_session(line, &add).status.success());
}

#[test]
fn tagged_packets_go_to_the_stack_and_are_counted() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    load(&left, &[]);
    add(&left, line, "ipip");
    let tagged = |tags: usize| {
        let mut template = Template::new().ethernet(line.a.mac, line.left.mac);
        for tag in 0..tags {
            template = template.layer(Layer::Vlan(Vlan { id: 100 + tag as u16, ..Vlan::default() }));
        }
        let tcp = Tcp { src: 4000, dst: 80, flags: flags::SYN, ..Tcp::default() };
        template.ipv4(line.a.ipv4, VIP).tcp(tcp).payload([7; 40]).build()
    };
    lab.send_packets(&[tagged(0), tagged(1), tagged(2)]);
    let counts = counted(&left, 3);
    assert_eq!(outcome(&counts, "to_stack_vlan"), 2, "{counts}");
    assert_eq!(outcome(&counts, "forwarded_new_flow"), 1, "{counts}");
}

#[test]
fn answers_to_packets_too_big_are_limited() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    load(&left, &[]);
    add(&left, line, "ipip");
    let mut large = to_vip(line, 1, flags::ACK).remove(0);
    // The link's largest frame is too large for the tunnel.
    large.resize(1514, 7);
    large[16..18].copy_from_slice(&1500u16.to_be_bytes());
    let sent = amount(20_000);
    lab.send_packets(&vec![large; sent as usize]);
    let counts = counted(&left, sent);
    let answered = outcome(&counts, "answered_too_big");
    let dropped = outcome(&counts, "dropped_too_big");
    assert!(answered > 0 && dropped > 0, "{counts}");
    assert_eq!(answered + dropped, sent, "{counts}");
}

#[test]
fn more_flows_than_memory_holds_are_refused() {
    const MAX_FLOWS: u64 = 67_108_864;
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    if available_memory() > MAX_FLOWS * 128 {
        return skip("this machine has memory for as many flows as can be asked for");
    }
    let left = place(&line.left);
    load(&left, &[]);
    add(&left, line, "ipip");
    let before = json(&["balance", "vip", "list", "--on", &left]);
    let said = refused(&["balance", "load", &left, "--flows", &MAX_FLOWS.to_string()], 1);
    assert!(said.contains("MiB are available") && said.contains("--flows"), "{said}");
    assert_eq!(json(&["balance", "vip", "list", "--on", &left]), before);
}

/// Returns a table of this many virtual addresses with this many backends each, all in 100.64.0.0/10.
fn table(vips: usize, backends: usize) -> String {
    let mut text = String::new();
    for vip in 0..vips {
        let (high, low) = (vip / 250, vip % 250);
        let _ = write!(text, "[[vip]]\naddress = \"198.{}.{low}.80\"\nprotocol = \"tcp\"\nport = 80\n", 18 + high);
        for backend in vip * backends..(vip + 1) * backends {
            let [_, b, c, d] = (0x6440_0001 + backend as u32).to_be_bytes();
            let _ = write!(text, "[[vip.backend]]\naddress = \"100.{b}.{c}.{d}\"\n");
        }
    }
    text
}

#[test]
fn large_tables_are_in_force_and_too_large_ones_are_refused() {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    let left = place(&line.left);
    ip(&line.left, &format!("route add 100.64.0.0/10 via {}", line.b.ipv4));
    let file = lab.file("table.toml");
    let fewer = amount(10) as usize;
    std::fs::write(&file, table(100 * fewer, 100)).expect("a file");
    load(&left, &[&file]);
    let size = |list: &Value| list["vips"].as_array().map(Vec::len);
    let before = json(&["balance", "vip", "list", "--on", &left]);
    assert_eq!(size(&before), Some(100 * fewer));
    assert_eq!(before["vips"][0]["backends"].as_array().map(Vec::len), Some(100));
    for (vips, backends, says) in [(4097, 1, "maximum of 4096"), (1, 131_073, "maximum of 131072")] {
        std::fs::write(&file, table(vips, backends)).expect("a file");
        let said = refused(&["balance", "load", &left, &file], 1);
        assert!(said.contains(says), "{said}");
        assert_eq!(json(&["balance", "vip", "list", "--on", &left]), before);
    }
}
