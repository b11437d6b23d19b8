//! The guard with few and with many rules, compared with the bare drop: the cost of the number of rules, and of the guard
//! itself.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use trawl_attach::AttachRequest;
use trawl_bpf::test_run;
use trawl_guard::rule::Ports;
use trawl_guard::{Action, Draft, Guard, Match, Prefix, SessionCare};
use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Pair, PairOptions, sender};
use trawl_program::Site;
use trawl_sys::{Error, Result, process};

use super::definition::Space;
use super::{Bench, Case, Comparison, Measured, Outcome, Stop, compared, named};
use crate::model::{Experiment, Finding};
use crate::traffic::{CHECKSUM, SENDER_CPU, label, send_frames};

/// Test runs of the program alone, in each run.
const REPEAT: u32 = 200_000;
const UDP: u8 = 17;
const DISCARD: u16 = 9;
/// Factor that spreads numbers evenly: Knuth's multiplicative hashing.
const SCATTER: u32 = 2_654_435_761;

const BARE: &str = "bare drop";
const ADDRESSES: &str = "addresses";
const SERVICES: &str = "addresses with protocol and port";

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let frames = space.number("frames")? as u64;
    let size = space.number("size")? as usize - CHECKSUM;
    let with_services = [
        (BARE, None),
        (ADDRESSES, Some(false)),
        (SERVICES, Some(true)),
    ];
    Case::each(space, "rules", |series, rules| {
        let with_services = named(series, &with_services)?;
        Ok(move |_: &Bench| match with_services {
            None => bare(frames, size),
            Some(with) => guarded(rules as u32, with, frames, size),
        })
    })
}

pub fn judge(experiment: &Experiment) -> Finding {
    let pairs = [(ADDRESSES, BARE), (SERVICES, BARE)];
    compared(experiment, &pairs, "mpps_by_cpu", Comparison::Share)
}

fn bare(frames: u64, size: usize) -> Outcome {
    let lab = Pair::new(&PairOptions::default())?;
    let loaded = Loaded::native(Does::Drop, &lab.b)?;
    let frame = sender::udp_from(lab.a.mac, size)?;
    flood(&lab, frame, frames, loaded.program())
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
    let mut measured = flood(&lab, frame, frames, installed.program()?.as_fd())?;
    measured.values.insert("rules_seconds", rules_seconds);
    let set = guard.rules()?;
    let decided: u64 = (set.rules.iter())
        .map(|rule| set.hits_of(rule.id).decided)
        .sum();
    guard.unload(&site)?;
    let shown = u64::from(REPEAT) + measured.sent.unwrap_or(0);
    if decided != shown {
        return Err(Stop::Failed(format!(
            "{shown} frames were sent, and the rules dropped {decided}"
        )));
    }
    Ok(measured)
}

fn flood(lab: &Pair, frame: Vec<u8>, frames: u64, program: BorrowedFd<'_>) -> Outcome {
    let alone = test_run::xdp(program, &frame, None, REPEAT)
        .map_err(|e| Error::os("cannot measure the program alone", e))?;
    let own = || process::cpu_seconds(std::process::id());
    let before = own();
    let sent = send_frames(lab, &[frame], frames, None, SENDER_CPU)?;
    let cpu_seconds = own() - before;
    Ok(Measured {
        values: [
            ("mpps", sent.per_second() / 1e6),
            (
                "mpps_by_cpu",
                sent.packets as f64 / cpu_seconds.max(f64::EPSILON) / 1e6,
            ),
            ("program_ns", alone.duration.as_nanos() as f64),
        ]
        .into(),
        sent: Some(sent.packets),
        seconds: sent.took.as_secs_f64(),
        ..Measured::default()
    })
}

/// Returns rules that deny this many addresses; the sender's is in the middle of them.
fn drafts(count: u32, with_services: bool, sender: Ipv4Addr) -> Vec<Draft> {
    let addresses = (0..count).map(|number| match number == count / 2 {
        true => sender,
        false => Ipv4Addr::from_bits(number.wrapping_mul(SCATTER) ^ 1),
    });
    let draft = |address: Ipv4Addr| Draft {
        action: Action::Deny,
        what: Match {
            source: Some(Prefix::host(address.into())),
            protocol: with_services.then_some(UDP),
            ports: with_services.then_some(Ports {
                first: DISCARD,
                last: DISCARD,
            }),
            ..Match::default()
        },
        rate: None,
        expires: None,
    };
    addresses.map(draft).collect()
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
