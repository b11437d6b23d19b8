//! Features that look into the kernel: drops with their reasons, paths of packets, processes.

use std::net::UdpSocket;

use serde_json::Value;

use super::FRAMES;
use super::recorded::record_while;
use crate::cell::{Cell, datagrams_to_no_port, wait_at_most};
use crate::check;
use crate::outcome::{Problem, Result};
use crate::running::{Running, number, parse};

const PORT: u16 = 9;

/// Checks that datagrams for a port without a socket are counted as drops of this reason.
pub fn why(cell: &Cell) -> Result<String> {
    let near = &cell.near().interface;
    let mut why = Running::start(cell, &["why", "-i", near, "--json"]).ready("looking")?;
    let before = datagrams_to_no_port();
    let frames: Vec<Vec<u8>> = (0..FRAMES).map(|number| cell.datagram(PORT, 0, number)).collect();
    cell.send(&frames)?;
    wait_at_most(|| datagrams_to_no_port() - before >= FRAMES as u64);
    let report = parse(&why.stop()?.stdout)?;
    let rows = report["rows"].as_array().cloned().unwrap_or_default();
    let packets: u64 = rows.iter().map(|row| number(row, "packets")).sum();
    check!(packets == FRAMES as u64, "{packets} drops instead of {FRAMES}: {report}");
    let reasons: Vec<&str> = rows.iter().filter_map(|row| row["reason"].as_str()).collect();
    check!(reasons == ["NO_SOCKET"], "the drops have the reasons {reasons:?}");
    Ok(String::new())
}

/// Checks that three datagrams are followed from the card to their drop.
pub fn follow(cell: &Cell) -> Result<String> {
    let near = &cell.near().interface;
    let arguments = ["follow", "-i", near, "--json", "-c", "3", "udp", "dst", "port", "9"];
    let mut follow = Running::start(cell, &arguments).ready("following packets on")?;
    let frames: Vec<Vec<u8>> = (0..3).map(|number| cell.datagram(PORT, 0, number)).collect();
    cell.send(&frames)?;
    let ended = follow.end_or_stop(std::time::Duration::from_secs(10))?;
    let paths: Vec<Value> = ended.stdout.lines().map(parse).collect::<Result<_>>()?;
    check!(paths.len() == 3, "{} of 3 datagrams followed: {}", paths.len(), ended.stderr);
    let steps = |path: &Value| -> Vec<String> {
        let steps = path["steps"].as_array().cloned().unwrap_or_default();
        steps.iter().filter_map(|step| Some(step["step"].as_str()?.to_owned())).collect()
    };
    for path in &paths {
        let end = path["end"].as_str().unwrap_or_default();
        check!(end == "dropped", "a datagram ended as {end:?}, not dropped: {path}");
        check!(steps(path).iter().any(|step| step == "received"), "no step 'received': {path}");
    }
    Ok(steps(&paths[0]).join(","))
}

/// Checks that datagrams that this process sends are recorded with its number.
pub fn process(cell: &Cell) -> Result<String> {
    const SENT: usize = 20;
    let (near, far) = (cell.near(), cell.far());
    let failed = |e: std::io::Error| Problem::Failed(format!("this process cannot send: {e}"));
    let recorded = record_while(cell, &["--tap", "tc", "-Q", "out", "--process"], "udp dst port 9", SENT, || {
        let before = far.counters();
        let socket = UdpSocket::bind((near.ip, 0)).map_err(failed)?;
        for number in 0..SENT {
            socket.send_to(&[number as u8; 32], (far.ip, PORT)).map_err(failed)?;
        }
        far.wait_received(before, SENT as u64)
    })?;
    let own = std::process::id();
    let packets = &recorded.contents.packets;
    let named = packets.iter().filter(|one| one.process().is_some_and(|(process, _)| process == own)).count();
    check!(
        (packets.len(), named) == (SENT, SENT),
        "{} of {SENT} datagrams recorded, {named} with the process that sent them",
        packets.len()
    );
    Ok(String::new())
}
