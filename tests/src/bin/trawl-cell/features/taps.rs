//! Each tap, with a filter: exactly the matching frames are recorded.

use super::FRAMES;
use super::programs::Loaded;
use super::recorded::{Recorded, record, record_while};
use crate::cell::Cell;
use crate::check;
use crate::outcome::Result;

const PORT: u16 = 9;
/// Mark of the frames that the filter accepts, in the first byte of the payload.
const WANTED: u8 = 1;
const FILTER: &str = "udp dst port 9 and udp[8] = 1";
/// Frames that the filter rejects.
const OTHERS: usize = 30;

/// Captures with these options, and returns what was recorded.
fn tap(cell: &Cell, options: &[&str]) -> Result<Recorded> {
    let made = |mark, count| -> Vec<Vec<u8>> { (0..count).map(|number| cell.datagram(PORT, mark, number)).collect() };
    record(cell, options, FILTER, &made(WANTED, FRAMES), &made(0, OTHERS))
}

/// Returns the mode of the first hook point.
fn mode(recorded: &Recorded) -> String {
    recorded.summary.interfaces[0].mode.clone()
}

pub fn packet(cell: &Cell) -> Result<String> {
    tap(cell, &["--tap", "packet", "-Q", "in"]).map(|_| String::new())
}

pub fn pcap(cell: &Cell) -> Result<String> {
    tap(cell, &["--tap", "pcap", "-Q", "in"]).map(|_| String::new())
}

pub fn tc(cell: &Cell) -> Result<String> {
    let recorded = tap(cell, &["--tap", "tc", "-Q", "in"])?;
    Ok(recorded.summary.interfaces[0].hook.clone())
}

pub fn tc_beside_native(cell: &Cell) -> Result<String> {
    let _program = Loaded::load(cell, &["pass", "--mode", "native"])?;
    tap(cell, &["--tap", "tc", "-Q", "in"]).map(|_| String::new())
}

pub fn tc_beside_skb(cell: &Cell) -> Result<String> {
    let _program = Loaded::load(cell, &["pass", "--mode", "skb"])?;
    tap(cell, &["--tap", "tc", "-Q", "in"]).map(|_| String::new())
}

pub fn xdp(cell: &Cell) -> Result<String> {
    tap(cell, &["--tap", "xdp"]).map(|recorded| mode(&recorded))
}

pub fn xdp_in_skb_mode(cell: &Cell) -> Result<String> {
    tap(cell, &["--tap", "xdp", "--mode", "skb"]).map(|recorded| mode(&recorded))
}

pub fn tailcall(cell: &Cell) -> Result<String> {
    let program = Loaded::load(cell, &["drop", "--tappable"])?;
    tap(cell, &["--tap", "tailcall"])?;
    Ok(program.mode.clone())
}

pub fn fexit(cell: &Cell) -> Result<String> {
    let program = Loaded::load(cell, &["drop"])?;
    tap(cell, &["--tap", "xdp", "--program", "trawl_drop"])?;
    Ok(program.mode.clone())
}

/// Checks that the stack's drop of a datagram for a port without a socket is recorded.
pub fn drop(cell: &Cell) -> Result<String> {
    let recorded = tap(cell, &["--tap", "drop"])?;
    Ok(format!("{} dropped", recorded.summary.recorded))
}

/// Checks the verdict of each frame, at the entry and at the exit of a program that drops.
pub fn verdicts(cell: &Cell) -> Result<String> {
    const DROP: u64 = 1;
    let _program = Loaded::load(cell, &["drop", "--tappable"])?;
    let frames: Vec<Vec<u8>> = (0..FRAMES).map(|number| cell.datagram(PORT, WANTED, number)).collect();
    let options = ["--tap", "tailcall", "--at", "both"];
    let recorded = record_while(cell, &options, FILTER, 2 * FRAMES, || cell.send(&frames))?;
    let packets = &recorded.contents.packets;
    let dropped = packets.iter().filter(|one| one.verdict().is_some_and(|(_, verdict)| verdict == DROP));
    let dropped = dropped.count();
    check!(
        (packets.len(), dropped) == (2 * FRAMES, FRAMES),
        "{} records, {dropped} with the verdict drop",
        packets.len()
    );
    Ok(String::new())
}
