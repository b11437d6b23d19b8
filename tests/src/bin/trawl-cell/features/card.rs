//! Features that depend on the card: its clock, long and tagged frames, queues, and its behaviour while programs come
//! and go.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use trawl_packet::build::Template;
use trawl_tests::wait_until;
use trawl_tests::witness::{output, run};

use super::FRAMES;
use super::programs::Loaded;
use super::recorded::{record, record_while};
use crate::cell::{Cell, datagrams_to_no_port, payload, wait_at_most};
use crate::check;
use crate::outcome::{Problem, Result};
use crate::running::{Running, parse};

const PORT: u16 = 9;

fn datagrams(cell: &Cell, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| cell.datagram(PORT, 0, number)).collect()
}

/// Checks that the card stamps each frame.
pub fn hardware_time(cell: &Cell) -> Result<String> {
    let frames = datagrams(cell, FRAMES);
    let recorded = record(cell, &["--tap", "xdp", "--time", "hw"], "udp dst port 9", &frames, &[])?;
    let stamped = recorded.summary.interfaces[0].hardware_stamped;
    let admitted = recorded.said.lines().find(|line| line.contains("hardware's time"));
    if let (0, Some(line)) = (stamped, admitted) {
        return Err(Problem::Refused(line.trim_start_matches("trawl: ").to_owned()));
    }
    check!(stamped == FRAMES as u64, "the card stamped {stamped} of {FRAMES} frames");
    Ok(String::new())
}

/// Checks that the XDP tap records frames of 8,000 bytes.
pub fn jumbo(cell: &Cell) -> Result<String> {
    let wire = &cell.wires[0];
    let set = |mtu| {
        wire.near.set_mtu(mtu);
        wire.far.set_mtu(mtu);
    };
    set(9000);
    cell.settle();
    let frames: Vec<Vec<u8>> = (0..FRAMES / 3).map(|number| cell.long_datagram(PORT, 0, number, 8000)).collect();
    let recorded = record(cell, &["--tap", "xdp"], "udp dst port 9", &frames, &[]);
    set(1500);
    Ok(recorded?.summary.interfaces[0].mode.clone())
}

/// Checks that a filter for a VLAN tag finds tagged frames.
fn vlan(cell: &Cell, options: &[&str]) -> Result<String> {
    let frames: Vec<Vec<u8>> = (0..FRAMES)
        .map(|number| {
            let (near, far) = (cell.near(), cell.far());
            let tagged = Template::new().ethernet(far.mac, near.mac).vlan(42).ipv4(far.ip, near.ip);
            tagged.udp(40_000, PORT).payload(payload(0, number)).frame_len(68).build()
        })
        .collect();
    let tagged = || record(cell, options, "vlan 42 and udp dst port 9", &frames, &[]);
    let Err(problem) = tagged() else { return Ok(String::new()) };
    let Some(warning) = stripping(cell) else { return Err(problem) };
    // Doctor's advice must help.
    let near = &cell.near().interface;
    run("ethtool", &["-K", near, "rxvlan", "off"]);
    let seen = tagged();
    run("ethtool", &["-K", near, "rxvlan", "on"]);
    cell.settle();
    seen?;
    Err(Problem::Refused(warning))
}

/// Returns the warning of doctor that the card removes tags, if it gives one.
fn stripping(cell: &Cell) -> Option<String> {
    let near = &cell.near().interface;
    let ended = Running::start(cell, &["doctor", "-i", near, "--json"]).end();
    let report = parse(&ended.ok()?.stdout).ok()?;
    let findings = report["findings"].as_array()?;
    let mut warnings = findings.iter().filter(|one| one["area"] == near.as_str() && one["state"] == "warn");
    let finding = warnings.find(|one| one["why"].as_str().is_some_and(|why| why.contains("strips VLAN tags")))?;
    Some(format!("doctor warns: {}", finding["why"].as_str()?))
}

pub fn vlan_at_xdp(cell: &Cell) -> Result<String> {
    vlan(cell, &["--tap", "xdp"])
}

pub fn vlan_at_tc(cell: &Cell) -> Result<String> {
    vlan(cell, &["--tap", "tc", "-Q", "in"])
}

pub fn vlan_at_packet(cell: &Cell) -> Result<String> {
    vlan(cell, &["--tap", "packet", "-Q", "in"])
}

/// Sends many flows, and checks that the records name the queues that the driver counts.
pub fn queues(cell: &Cell) -> Result<String> {
    let frames: Vec<Vec<u8>> = (0..FRAMES)
        .map(|number| {
            // Cards hash UDP by addresses alone unless they are configured to include ports.
            let (near, far) = (cell.near(), cell.far());
            let source = [10, 9, 0, 2 + number as u8 % 64];
            let datagram = Template::new().ethernet(far.mac, near.mac).ipv4(source, near.ip);
            datagram.udp(40_000, PORT).payload(payload(0, number)).frame_len(64).build()
        })
        .collect();
    let before = driver_queues(cell);
    let recorded = record_while(cell, &["--tap", "xdp"], "udp dst port 9", FRAMES, || cell.send(&frames))?;
    let packets = &recorded.contents.packets;
    check!(packets.len() == FRAMES, "{} of {FRAMES} frames recorded", packets.len());
    let seen: BTreeSet<u32> = packets.iter().filter_map(|one| one.queue()).collect();
    let after = driver_queues(cell);
    // While a program is attached, a driver may receive at queues that it does not count otherwise.
    let counted: BTreeSet<u32> = after.iter().map(|(queue, _)| *queue).filter(|queue| seen.contains(queue)).collect();
    let grown: BTreeSet<u32> = after
        .into_iter()
        .filter(|(queue, count)| before.iter().any(|(one, earlier)| one == queue && count > earlier))
        .map(|(queue, _)| queue)
        .collect();
    check!(
        grown.is_empty() || grown == counted,
        "the records name the queues {seen:?}, and the driver counted at {grown:?}"
    );
    let by = if grown.is_empty() { "not counted by the driver" } else { "as counted by the driver" };
    Ok(format!("{} receive queues, {by}", seen.len()))
}

/// Returns the driver's packet counts of receive queues, in the forms of several drivers.
fn driver_queues(cell: &Cell) -> Vec<(u32, u64)> {
    let shown = output("ethtool", &["-S", &cell.near().interface]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let parse = |line: &str| {
        let (name, value) = line.trim().split_once(':')?;
        let queue = name.strip_prefix("rx_queue_").or_else(|| name.strip_prefix("rx"))?;
        let queue = queue.strip_suffix("_packets")?.parse().ok()?;
        Some((queue, value.trim().parse().ok()?))
    };
    text.lines().filter_map(parse).collect()
}

/// Counts the frames that are lost while a program is attached and detached under traffic.
pub fn attach(cell: &Cell) -> Result<String> {
    const SENT: u64 = 3_000;
    const RATE: u64 = 1_000;
    let frames = datagrams(cell, FRAMES);
    let lost_while = |change: &mut dyn FnMut() -> Result<()>| -> Result<u64> {
        let before = datagrams_to_no_port();
        let sent = std::thread::scope(|scope| {
            let sender = scope.spawn(|| cell.send_at(&frames, SENT, RATE));
            wait_until("traffic flows", || datagrams_to_no_port() - before > SENT / 6);
            let changed = change();
            sender.join().expect("the sender does not panic").and(changed)
        });
        sent?;
        cell.settle();
        // Once the link is back, all frames arrive again.
        let earlier = datagrams_to_no_port();
        cell.send(&frames)?;
        wait_at_most(|| datagrams_to_no_port() - earlier >= FRAMES as u64);
        let arrived = datagrams_to_no_port() - earlier;
        check!(arrived == FRAMES as u64, "{arrived} of {FRAMES} frames arrive after the change");
        Ok(SENT - (earlier - before).min(SENT))
    };
    let mut loaded = None;
    let at_attach = lost_while(&mut || {
        loaded = Some(Loaded::load(cell, &["pass"])?);
        Ok(())
    })?;
    let program = loaded.expect("it is loaded");
    let mode = program.mode.clone();
    let mut program = Some(program);
    let at_detach = lost_while(&mut || program.take().expect("it is loaded").unload())?;
    Ok(format!("{mode}, lost at {RATE}/s: {at_attach} at attach, {at_detach} at detach"))
}

/// Checks that a killed capture leaves nothing on the interface.
pub fn kill(cell: &Cell) -> Result<String> {
    let near = cell.near();
    for tap in ["xdp", "tc"] {
        let file = cell.file("killed.pcapng");
        let arguments = ["capture", "-i", &near.interface, "--tap", tap, "-w", &file, "udp"];
        let mut capture = Running::start(cell, &arguments).ready("capturing on")?;
        cell.settle();
        cell.send(&datagrams(cell, FRAMES))?;
        capture.signal(Signal::KILL);
        let _ = capture.end();
        let mut left = String::new();
        let deadline = std::time::Instant::now() + Duration::from_secs(15);
        while std::time::Instant::now() < deadline {
            left = left_on(cell);
            if left.is_empty() {
                break;
            }
        }
        check!(left.is_empty(), "after a killed capture at {tap}: {left}");
    }
    Ok(String::new())
}

/// Returns what ip, bpftool and tc show on the near end beyond its original state.
fn left_on(cell: &Cell) -> String {
    let near = cell.near();
    let link = near.link();
    let mut left = Vec::new();
    if link.get("xdp").is_some() {
        left.push(format!("ip shows an XDP program: {}", link["xdp"]));
    }
    if link["promiscuity"].as_u64() != Some(0) {
        left.push("the interface is promiscuous".to_owned());
    }
    let shown: Value = serde_json::from_str(&run("bpftool", &["-j", "net", "show"])).expect("JSON of bpftool");
    let programs = shown[0].as_object().expect("an object of kinds").values();
    let programs: Vec<&Value> = programs.filter_map(Value::as_array).flatten().collect();
    if !programs.is_empty() {
        left.push(format!("bpftool shows {programs:?}"));
    }
    if run("tc", &["qdisc", "show", "dev", &near.interface]).contains("clsact") {
        left.push("a clsact qdisc".to_owned());
    }
    left.join(", ")
}
