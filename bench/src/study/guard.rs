//! The guard with few and with many rules, compared with the bare drop and with a set of nftables at its earliest hook:
//! the cost of the number of rules, and of the guard itself.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;
use trawl_packet::net::protocol::UDP;

use trawl_attach::AttachRequest;
use trawl_bpf::test_run;
use trawl_guard::rule::Ports;
use trawl_guard::{Action, Draft, Guard, Match, Prefix, SessionCare};
use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::{self, Engine};
use trawl_lab::{Pair, PairOptions};
use trawl_program::Site;
use trawl_sys::process::cpu_seconds;
use trawl_sys::{Error, Result};

use super::contenders::rule;
use super::definition::Space;
use super::{Bench, Case, Comparison, Measured, Outcome, Stop, compared, named};
use crate::model::{Experiment, Finding};
use crate::process;
use crate::scratch::Scratch;
use crate::traffic::{CHECKSUM, SENDER_CPU, label, send_frames};

/// Test runs of the program alone, in each run.
const REPEAT: u32 = 200_000;
const DISCARD: u16 = 9;
/// Factor that spreads numbers evenly: Knuth's multiplicative hashing.
const SCATTER: u32 = 2_654_435_761;

/// nftables' means for many addresses: a rule with a set, at the hook before the stack.
const NFT_SET: &str = "nft set";
const BARE: &str = "bare drop";
const ADDRESSES: &str = "addresses";
const SERVICES: &str = "addresses with protocol and port";

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let frames = space.number("frames")? as u64;
    let size = space.number("size")? as usize - CHECKSUM;
    let contenders = [
        (BARE, Contender::Bare),
        (ADDRESSES, Contender::Guard { services: false }),
        (SERVICES, Contender::Guard { services: true }),
        (NFT_SET, Contender::NftSet),
    ];
    Case::each(space, "rules", |series, rules| {
        let (contender, rules) = (named(series, &contenders)?, rules as u32);
        Ok(move |bench: &Bench| match contender {
            Contender::Bare => bare(frames, size),
            Contender::Guard { services } => guarded(rules, services, frames, size),
            Contender::NftSet => nft_set(bench, rules, frames, size),
        })
    })
}

#[derive(Clone, Copy)]
enum Contender {
    Bare,
    Guard { services: bool },
    NftSet,
}

pub fn judge(experiment: &Experiment) -> Finding {
    let pairs = [(ADDRESSES, BARE), (SERVICES, BARE), (NFT_SET, BARE)];
    compared(experiment, &pairs, "mpps_by_cpu", Comparison::Share)
}

fn bare(frames: u64, size: usize) -> Outcome {
    let lab = Pair::new(&PairOptions::default())?;
    let loaded = Loaded::native(Does::Drop, &lab.b)?;
    let frame = sender::udp_from(lab.a.mac, size)?;
    flood(&lab, frame, frames, Some(loaded.program()))
}

fn nft_set(bench: &Bench, rules: u32, frames: u64, size: usize) -> Outcome {
    let lab = Pair::new(&PairOptions::default())?;
    let frame = sender::udp_from(lab.a.mac, size)?;
    let denied: Vec<String> = (addresses(rules, lab.a.ipv4).iter()).map(ToString::to_string).collect();
    let script = format!(
        "table netdev trawl {{\n set denied {{ type ipv4_addr; elements = {{ {} }}; }}\n \
         chain in {{ type filter hook ingress device {} priority 0; ip saddr @denied counter drop; }}\n}}\n",
        denied.join(", "),
        lab.b.interface
    );
    let file = Scratch::new(&bench.scratch, "rules.nft")?;
    std::fs::write(file.path(), script).map_err(|e| Error::os("cannot write the rules", e))?;
    let path = file.path().to_string_lossy().into_owned();
    let start = Instant::now();
    rule(bench, &lab.b, "nft", &["-f", &path])?;
    let rules_seconds = start.elapsed().as_secs_f64();
    let mut measured = flood(&lab, frame, frames, None)?;
    measured.values.insert("rules_seconds", rules_seconds);
    let mut list = process::command_in(&lab.b.name, bench.peers.path("nft")?);
    let chain = process::run(list.args(["list", "chain", "netdev", "trawl", "in"]))?;
    let sent = measured.sent.unwrap_or(0);
    if chain.contains(&format!("counter packets {sent} ")) {
        Ok(measured)
    } else {
        Err(Stop::Failed(format!("{sent} frames were sent, but the rule dropped another number: {chain}")))
    }
}

fn guarded(rules: u32, with_services: bool, frames: u64, size: usize) -> Outcome {
    let lab = Pair::new(&PairOptions::default())?;
    let frame = sender::udp_from(lab.a.mac, size)?;
    let guard = Guard::find_or_make(Some(&lab.b.namespace))?;
    let drafts = drafts(rules, with_services, lab.a.ipv4);
    let start = Instant::now();
    guard.change(SessionCare::Without, |set| {
        set.replace_all(drafts);
        Ok(())
    })?;
    let rules_seconds = start.elapsed().as_secs_f64();
    let site = Site::find(&label(&lab.b), None)?;
    let installed = guard.load(&site, None, &AttachRequest::default(), SessionCare::Without)?;
    let mut measured = flood(&lab, frame, frames, Some(installed.program()?.as_fd()))?;
    measured.values.insert("rules_seconds", rules_seconds);
    let set = guard.rules()?;
    let decided: u64 = (set.rules.iter()).map(|rule| set.hits_of(rule.id).decided).sum();
    guard.unload(&site)?;
    let shown = u64::from(REPEAT) + measured.sent.unwrap_or(0);
    if decided != shown {
        return Err(Stop::Failed(format!("{shown} frames were sent, but the rules dropped {decided}")));
    }
    Ok(measured)
}

/// Runs the program alone [`REPEAT`] times, and then sends the frames.
fn flood(lab: &Pair, frame: Vec<u8>, frames: u64, program: Option<BorrowedFd<'_>>) -> Outcome {
    let alone = program.map(|program| test_run::xdp(program, &frame, None, REPEAT)).transpose();
    let alone = alone.map_err(|e| Error::os("cannot measure the program alone", e))?;
    let own = || cpu_seconds(std::process::id());
    let before = own();
    let sent = send_frames(lab, Engine::Live, &[frame], frames, None, SENDER_CPU)?;
    let used = own() - before;
    let per_cpu = sent.packets as f64 / used.max(f64::EPSILON) / 1e6;
    let rates = [("mpps", sent.per_second() / 1e6), ("mpps_by_cpu", per_cpu)];
    let alone = alone.map(|alone| ("program_ns", alone.duration.as_nanos() as f64));
    Ok(Measured {
        values: rates.into_iter().chain(alone).collect(),
        sent: Some(sent.packets),
        seconds: sent.took.as_secs_f64(),
        ..Measured::default()
    })
}

/// Returns this many addresses; the sender's is in the middle of them.
fn addresses(count: u32, sender: Ipv4Addr) -> Vec<Ipv4Addr> {
    let address =
        |number: u32| if number == count / 2 { sender } else { Ipv4Addr::from_bits(number.wrapping_mul(SCATTER) ^ 1) };
    (0..count).map(address).collect()
}

/// Returns rules that deny these addresses.
fn drafts(count: u32, with_services: bool, sender: Ipv4Addr) -> Vec<Draft> {
    let draft = |address: Ipv4Addr| Draft {
        action: Action::Deny,
        what: Match {
            source: Some(Prefix::host(address.into())),
            protocol: with_services.then_some(UDP),
            ports: with_services.then_some(Ports { first: DISCARD, last: DISCARD }),
            ..Match::default()
        },
        rate: None,
        expires: None,
    };
    addresses(count, sender).into_iter().map(draft).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_is_among_the_rules_once() {
        let sender = Ipv4Addr::new(10, 77, 0, 1);
        for (count, with_services) in [(10, false), (10_000, true)] {
            let drafts = drafts(count, with_services, sender);
            assert_eq!(drafts.len(), count as usize);
            let own = |draft: &&Draft| draft.what.source == Some(Prefix::host(sender.into()));
            assert_eq!(drafts.iter().filter(own).count(), 1);
        }
    }
}
