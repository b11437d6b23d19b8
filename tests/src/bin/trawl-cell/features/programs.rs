//! The bundled programs: each decides about every frame, and the stack or the far end counts the result.

use std::fs;

use serde_json::Value;
use trawl_tests::wait_until;

use super::FRAMES;
use crate::cell::{Cell, Port, datagrams_to_no_port, wait_at_most};
use crate::check;
use crate::outcome::{Problem, Result};
use crate::running::{json, number, trawl};

const PORT: u16 = 9;

/// A bundled program on the near end, unloaded when it goes out of scope.
pub struct Loaded<'a> {
    cell: &'a Cell,
    unload: Vec<String>,
    pub mode: String,
}

impl<'a> Loaded<'a> {
    /// Loads by `trawl xdp load IF ARGUMENTS`.
    pub fn load(cell: &'a Cell, arguments: &[&str]) -> Result<Self> {
        Self::by(cell, &["xdp", "load", &cell.near().interface], arguments, &["xdp", "unload", &cell.near().interface])
    }

    /// Loads by a command of its own, for example `trawl guard load IF`.
    fn by(cell: &'a Cell, load: &[&str], arguments: &[&str], unload: &[&str]) -> Result<Self> {
        trawl(cell, &[load, arguments].concat())?;
        let loaded =
            Self { cell, unload: unload.iter().map(|one| (*one).to_owned()).collect(), mode: mode_of(cell.near()) };
        cell.settle();
        Ok(loaded)
    }

    /// Unloads it, and waits for the link.
    pub fn unload(self) -> Result<()> {
        trawl(self.cell, &self.arguments())?;
        self.cell.settle();
        std::mem::forget(self);
        Ok(())
    }

    fn arguments(&self) -> Vec<&str> {
        self.unload.iter().map(String::as_str).collect()
    }
}

impl Drop for Loaded<'_> {
    fn drop(&mut self) {
        let _ = trawl_tests::trawl(&self.arguments());
    }
}

/// Returns the mode of the interface's XDP program, as shown by ip.
fn mode_of(port: &Port) -> String {
    match port.link()["xdp"]["mode"].as_u64() {
        Some(1) => "native".to_owned(),
        Some(2) => "skb".to_owned(),
        _ => String::new(),
    }
}

fn datagrams(cell: &Cell, port: u16) -> Vec<Vec<u8>> {
    (0..FRAMES).map(|number| cell.datagram(port, 0, number)).collect()
}

/// Returns the counts of a command's first interface once it has counted all frames.
fn counted(cell: &Cell, command: &[&str]) -> Result<Value> {
    let mut last = Value::Null;
    let mut failed = None;
    wait_at_most(|| match json(cell, command) {
        Ok(all) => {
            last = all["interfaces"][0].clone();
            last["packets"].as_u64() >= Some(FRAMES as u64)
        }
        Err(problem) => {
            failed = Some(problem);
            true
        }
    });
    match failed {
        Some(problem) => Err(problem),
        None => Ok(last),
    }
}

/// Checks the counts of the program on the near end.
fn check_counts(cell: &Cell) -> Result<()> {
    let counts = counted(cell, &["xdp", "stats", &cell.near().interface, "--json"])?;
    let packets = number(&counts, "packets");
    check!(packets == FRAMES as u64, "the program counted {packets} of {FRAMES} frames");
    Ok(())
}

/// Loads a program, sends frames, and checks the program's counts and the number of frames that reach the stack.
fn decides(cell: &Cell, program: &str, to_stack: usize) -> Result<String> {
    let loaded = Loaded::load(cell, &[program])?;
    let before = datagrams_to_no_port();
    cell.send(&datagrams(cell, PORT))?;
    check_counts(cell)?;
    wait_at_most(|| datagrams_to_no_port() - before >= to_stack as u64);
    let passed = datagrams_to_no_port() - before;
    check!(passed == to_stack as u64, "{passed} frames reached the stack instead of {to_stack}");
    let mode = loaded.mode.clone();
    loaded.unload()?;
    Ok(mode)
}

pub fn drop(cell: &Cell) -> Result<String> {
    decides(cell, "drop", 0)
}

pub fn pass(cell: &Cell) -> Result<String> {
    decides(cell, "pass", FRAMES)
}

pub fn aborted(cell: &Cell) -> Result<String> {
    decides(cell, "aborted", 0)
}

/// Checks that the far end receives each frame back.
pub fn tx(cell: &Cell) -> Result<String> {
    let loaded = Loaded::load(cell, &["tx", "--touch", "swap"])?;
    let before = cell.far().counters();
    cell.send(&datagrams(cell, PORT))?;
    cell.far().wait_received(before, FRAMES as u64)?;
    check_counts(cell)?;
    let mode = loaded.mode.clone();
    loaded.unload()?;
    Ok(mode)
}

/// Checks that the far end of the second wire receives each frame, also if the driver sends only while it has a
/// program.
pub fn redirect(cell: &Cell) -> Result<String> {
    let [first, second] = &cell.wires;
    let loaded = Loaded::load(cell, &["redirect", "--to", &second.near.interface])?;
    let before = second.far.counters();
    cell.send(&datagrams(cell, PORT))?;
    second.far.wait_received(before, FRAMES as u64)?;
    check_counts(cell)?;
    let mode = mode_of(&first.near);
    let helped = if mode_of(&second.near).is_empty() { "" } else { ", which got a program" };
    loaded.unload()?;
    let left = mode_of(&second.near);
    check!(left.is_empty(), "{} keeps a program in {left} mode", second.near.interface);
    Ok(format!("{mode} to {}{helped}", second.near.interface))
}

/// Checks that a program replaces another one in the same mode.
pub fn replace(cell: &Cell) -> Result<String> {
    let first = Loaded::load(cell, &["pass"])?;
    let mode = first.mode.clone();
    trawl(cell, &["xdp", "load", &cell.near().interface, "drop", "--replace"])?;
    cell.settle();
    let before = datagrams_to_no_port();
    cell.send(&datagrams(cell, PORT))?;
    check_counts(cell)?;
    let passed = datagrams_to_no_port() - before;
    check!(passed == 0, "{passed} frames reached the stack although the new program drops");
    first.unload()?;
    Ok(mode)
}

/// Checks two programs in a chain: the first passes every frame on, the second drops it.
pub fn chain(cell: &Cell) -> Result<String> {
    let near = &cell.near().interface;
    let unload = ["xdp", "unload", near, "--all", "--yes"];
    let first = Loaded::by(cell, &["xdp", "load", near], &["pass", "--prio", "10"], &unload)?;
    trawl(cell, &["xdp", "load", near, "drop", "--prio", "20"])?;
    cell.settle();
    let before = datagrams_to_no_port();
    cell.send(&datagrams(cell, PORT))?;
    let counts = || -> Result<Vec<u64>> {
        let all = json(cell, &["xdp", "stats", near, "--json"])?;
        let interfaces = all["interfaces"].as_array().cloned().unwrap_or_default();
        Ok(interfaces.iter().map(|one| number(one, "packets")).collect())
    };
    wait_at_most(|| counts().is_ok_and(|counts| counts.iter().all(|one| *one >= FRAMES as u64)));
    let counted = counts()?;
    check!(counted == [FRAMES as u64; 2], "the two programs counted {counted:?} frames, not {FRAMES} each");
    let passed = datagrams_to_no_port() - before;
    check!(passed == 0, "{passed} frames reached the stack although the second program drops");
    let mode = first.mode.clone();
    first.unload()?;
    Ok(mode)
}

/// Checks that a rule drops the frames to one port, and that others pass.
pub fn guard(cell: &Cell) -> Result<String> {
    let near = &cell.near().interface;
    let loaded = Loaded::by(cell, &["guard", "load", near], &[], &["guard", "unload", near])?;
    let source = format!("{}/32", cell.far().ip);
    trawl(cell, &["guard", "deny", "--src", &source, "--proto", "udp", "--port", "9"])?;
    let before = datagrams_to_no_port();
    cell.send(&datagrams(cell, PORT))?;
    cell.send(&datagrams(cell, PORT + 1))?;
    wait_at_most(|| datagrams_to_no_port() - before >= FRAMES as u64);
    let passed = datagrams_to_no_port() - before;
    let rules = json(cell, &["guard", "list", "--json"])?;
    let hits = number(&rules["rules"][0], "hits");
    check!(
        (hits, passed) == (FRAMES as u64, FRAMES as u64),
        "{hits} hits and {passed} passed frames, not {FRAMES} each"
    );
    let mode = loaded.mode.clone();
    loaded.unload()?;
    Ok(mode)
}

/// Checks that frames for the far end of the second wire are forwarded there.
pub fn route(cell: &Cell) -> Result<String> {
    let [first, second] = &cell.wires;
    let ports = [first.near.interface.as_str(), second.near.interface.as_str()];
    let _loaded = Loaded::by(cell, &["route", "load"], &ports, &["route", "unload", ports[0], ports[1]])?;
    let frames: Vec<Vec<u8>> = (0..FRAMES)
        .map(|number| {
            let to = trawl_packet::build::Template::new()
                .ethernet(first.far.mac, first.near.mac)
                .ipv4(first.far.ip, second.far.ip);
            to.udp(40_000, PORT).payload(crate::cell::payload(0, number)).frame_len(64).build()
        })
        .collect();
    let before = second.far.counters();
    cell.send(&frames)?;
    second.far.wait_received(before, FRAMES as u64)?;
    let counts = counted(cell, &["route", "stats", ports[0], "--json"])?;
    let outcomes = counts["outcomes"].as_array().cloned().unwrap_or_default();
    let packets_of = |name: &str| -> u64 {
        let named = outcomes.iter().filter(|one| one["name"].as_str().is_some_and(|one| one.starts_with(name)));
        named.map(|one| number(one, "packets")).sum()
    };
    // The router sometimes passes a frame to the stack, which then refreshes the entry of the neighbour.
    let (forwarded, refreshes) = (packets_of("forwarded"), packets_of("to_stack_refresh"));
    check!(
        forwarded + refreshes == FRAMES as u64 && forwarded > refreshes,
        "the router forwarded {forwarded} of {FRAMES} frames, and {refreshes} by the stack: {counts}"
    );
    Ok(mode_of(&first.near))
}

/// Checks that frames for a virtual address go back to the far end, the only backend.
pub fn balance(cell: &Cell) -> Result<String> {
    let (near, far) = (cell.near(), cell.far());
    let table = cell.file("balance.toml");
    let text = format!(
        "[[vip]]\naddress = \"192.0.2.80\"\nprotocol = \"udp\"\nport = {PORT}\nforward = \"direct\"\n\
         [[vip.backend]]\naddress = \"{}\"\n",
        far.ip
    );
    fs::write(&table, text).map_err(|e| Problem::Failed(format!("{table}: {e}")))?;
    let loaded =
        Loaded::by(cell, &["balance", "load", &near.interface], &[&table], &["balance", "unload", &near.interface])?;
    let frames: Vec<Vec<u8>> = (0..FRAMES)
        .map(|number| {
            let to = trawl_packet::build::Template::new().ethernet(far.mac, near.mac).ipv4(far.ip, [192, 0, 2, 80]);
            to.udp(40_000, PORT).payload(crate::cell::payload(0, number)).frame_len(64).build()
        })
        .collect();
    let before = far.counters();
    cell.send(&frames)?;
    far.wait_received(before, FRAMES as u64)?;
    let mode = loaded.mode.clone();
    loaded.unload()?;
    wait_until("the balancer is gone", || mode_of(near).is_empty());
    Ok(mode)
}
