//! Features of the generator: the far end counts the frames that each engine reports as sent.

use super::FRAMES;
use crate::cell::Cell;
use crate::check;
use crate::outcome::Result;
use crate::running::{Running, json, number, parse};

/// Generates by an engine on the near end, and compares its count with the count of the far end.
fn generate(cell: &Cell, engine: &str) -> Result<String> {
    let far = cell.far();
    let before = far.counters();
    let (count, destination) = (FRAMES.to_string(), far.ip.to_string());
    let report = json(
        cell,
        &[
            "gen",
            "udp",
            "-i",
            &cell.near().interface,
            "--dst",
            &destination,
            "--dst-port",
            "9",
            "--count",
            &count,
            "--rate",
            "2000",
            "--engine",
            engine,
            "--json",
        ],
    )?;
    let frames = number(&report, "frames");
    check!(frames == FRAMES as u64, "gen reports {frames} frames instead of {FRAMES}");
    far.wait_received(before, FRAMES as u64)?;
    let used = report["engine"].as_str().unwrap_or_default();
    let copies = report["notes"].as_array().into_iter().flatten();
    let copies = copies.filter_map(|note| note.as_str()?.strip_prefix("AF_XDP ")?.split(':').next());
    Ok(match engine {
        "auto" => used.to_owned(),
        _ => copies.collect::<Vec<_>>().join(", "),
    })
}

pub fn auto(cell: &Cell) -> Result<String> {
    generate(cell, "auto")
}

pub fn live(cell: &Cell) -> Result<String> {
    generate(cell, "live")
}

pub fn xsk(cell: &Cell) -> Result<String> {
    generate(cell, "xsk")
}

pub fn packet(cell: &Cell) -> Result<String> {
    generate(cell, "packet")
}

/// Sends stamped frames from the far end, and checks that all are received in order.
pub fn receive(cell: &Cell) -> Result<String> {
    let (near, far) = (cell.near(), cell.far());
    let count = FRAMES.to_string();
    let arguments = ["gen", "receive", "-i", &near.interface, "--count", &count, "--duration", "20s", "--json"];
    let mut receiver = Running::start(cell, &arguments).ready("receiving on")?;
    cell.settle();
    let before = far.counters().sent;
    let (place, destination) = (far.place(), near.ip.to_string());
    json(
        cell,
        &[
            "gen",
            "udp",
            "-i",
            &place,
            "--dst",
            &destination,
            "--engine",
            "packet",
            "--stamp",
            "--count",
            &count,
            "--rate",
            "2000",
            "--json",
        ],
    )?;
    let report = parse(&receiver.end()?.stdout)?;
    let sent = far.counters().sent - before;
    let [received, lost, duplicates] = ["received", "lost", "duplicates"].map(|key| number(&report, key));
    check!(
        (sent, received, lost, duplicates) == (FRAMES as u64, FRAMES as u64, 0, 0),
        "{sent} sent, {received} received, {lost} lost, {duplicates} twice"
    );
    Ok(report["mode"].as_str().unwrap_or_default().to_owned())
}
