//! `capture-filtered`: what a filter costs the packets that it does not let through, and whether those that it does
//! are all recorded (after figure 5 of "xdpcap: XDP Packet Capture").

use std::process::Command;
use std::time::Instant;

use serde::Serialize;
use trawl_kernel::{Error, Result};

use trawl_lab::sender::Variation;

use super::mechanism::{Mechanism, Setting, trawl_capture};
use super::peer::Peer;
use super::{Conditions, Outcome, Plan, Spread, take_turns};
use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Pair, PairOptions};

/// One frame in so many matches.
const EVERY: u32 = 1000;
const ETHERTYPE_AT: u8 = 12;
const UDP_DESTINATION_AT: u8 = 36;
const DISCARD: [u8; 2] = 9u16.to_be_bytes();
const HOSTS_AND_PORTS: u32 = 20;
const FIRST_PORT: u32 = 20_001;
const LONG_TERMS: u32 = 1000;

/// How long `trawl capture` with a long expression takes to be attached.
#[derive(Clone, Debug, Serialize)]
pub struct LongExpression {
    pub terms: u32,
    pub kind: &'static str,
    pub seconds: Spread,
}

pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Outcome> {
    let mut mechanisms = vec![Mechanism::Bare, Mechanism::Trawl, Mechanism::TailCall];
    if plan.with_tcpdump {
        mechanisms.push(Mechanism::Tcpdump);
    }
    let conditions = Conditions::of(plan, &mechanisms);
    let mut failures = Vec::new();
    let mut groups = Vec::new();
    let twenty_terms = hosts_and_ports(HOSTS_AND_PORTS);
    let traffics = [
        (
            "ether proto 0x1111",
            Variation {
                offset: ETHERTYPE_AT,
                usual: [0x12, 0x34],
                other: [0x11, 0x11],
                every: EVERY,
            },
            format!("ethertype 0x1234, one in {EVERY} is 0x1111"),
        ),
        (
            &*twenty_terms,
            Variation {
                offset: UDP_DESTINATION_AT,
                usual: DISCARD,
                other: last_port().to_be_bytes(),
                every: EVERY,
            },
            format!("UDP, one in {EVERY} matches by the last term"),
        ),
    ];
    for (filter, variation, traffic) in traffics {
        let setting = Setting {
            plan,
            filter: Some(filter),
            variation: Some(variation),
        };
        groups.push(take_turns(
            &setting,
            &mechanisms,
            traffic,
            &mut failures,
            progress,
        ));
    }
    progress("long expressions");
    let long = [
        ("hosts", hosts(LONG_TERMS)),
        ("hosts and ports in turn", hosts_and_ports(LONG_TERMS)),
    ];
    let mut long_expressions = Vec::new();
    for (kind, expression) in long {
        match time_to_attach(plan, &expression) {
            Ok(seconds) => long_expressions.push(LongExpression {
                terms: LONG_TERMS,
                kind,
                seconds,
            }),
            Err(why) => failures.push(format!("{LONG_TERMS} {kind}: {why}")),
        }
    }
    Ok(Outcome {
        experiment: "capture-filtered",
        conditions,
        groups,
        clock: None,
        long_expressions,
        left_out: Vec::new(),
        failures,
    })
}

fn host(number: u32) -> String {
    format!("host 192.0.{}.{}", number / 256, number % 256)
}

fn hosts(terms: u32) -> String {
    (0..terms).map(host).collect::<Vec<_>>().join(" or ")
}

/// Hosts and ports in turn, joined by `or`: none of a lab's hosts.
fn hosts_and_ports(terms: u32) -> String {
    let term = |number: u32| match number % 2 {
        0 => host(number),
        _ => format!("port {}", FIRST_PORT + number / 2),
    };
    (0..terms).map(term).collect::<Vec<_>>().join(" or ")
}

fn last_port() -> u16 {
    (FIRST_PORT + (HOSTS_AND_PORTS - 1) / 2) as u16
}

fn time_to_attach(plan: &Plan, expression: &str) -> Result<Spread> {
    let lab = Pair::new(&PairOptions::default())?;
    let _program = Loaded::native(Does::DropWithHook, &lab.b)?;
    let mut seconds = Vec::new();
    for _ in 0..plan.repetitions {
        let mut command = Command::new(&plan.trawl);
        trawl_capture(
            &mut command,
            &lab,
            plan,
            "hook",
            "/dev/null".as_ref(),
            Some(expression),
        );
        let start = Instant::now();
        let peer = Peer::start("trawl", &mut command, plan.capture_cpu, "capturing on")?;
        seconds.push(start.elapsed().as_secs_f64());
        peer.finish()?;
    }
    Spread::of(seconds)
        .ok_or_else(|| Error::usage("cannot time anything", "no repetitions were asked for"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_filter::{Options, compile};
    use trawl_lab::frame;

    #[test]
    fn one_frame_matches_and_the_others_do_not() {
        let expression = hosts_and_ports(HOSTS_AND_PORTS);
        assert_eq!(expression.split(" or ").count(), HOSTS_AND_PORTS as usize);
        trawl_kernel::libpcap::compile_filters();
        let classic = compile(&expression, &Options::default()).expect("it is well formed");
        let mut frame = frame::udp_from([2; 6], 64).expect("long enough");
        let at = usize::from(UDP_DESTINATION_AT);
        assert_eq!(frame[at..at + 2], DISCARD);
        assert_eq!(classic.run(&frame, 64), 0);
        frame[at..at + 2].copy_from_slice(&last_port().to_be_bytes());
        assert_ne!(classic.run(&frame, 64), 0);
    }
}
