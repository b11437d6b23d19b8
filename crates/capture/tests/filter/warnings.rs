//! Filters like one that causes a warning of the verifier of some kernels ("verifier bug"): no filter may cause it.

use std::process::Command;

use trawl_bpf::program::TEST_REG_INVARIANTS;
use trawl_filter::{CompilerOptions, Target};

use crate::kernel::{Loaded, root_or_skip};
use crate::support::compile;
use crate::support::packets::Random;

/// The expression that causes the warning on Linux 6.18, at tc.
const SEEN: &str = "(!atalk[len:4] & 255 = icmp6[6] >> sctp[1] or geneve) and host 10.0.0.1";

const RELATIVES: usize = 300;

/// Returns an expression similar to `SEEN`.
fn relative(r: &mut Random) -> String {
    let protocols = ["atalk", "icmp6", "sctp", "ip", "ip6", "tcp", "udp", "ether", "icmp"];
    let field = |r: &mut Random| {
        let protocol = r.pick(&protocols);
        let at = match r.below(3) {
            0 => "len".to_owned(),
            1 => format!("{}[{}]", r.pick(&protocols), r.below(30)),
            _ => r.below(40).to_string(),
        };
        format!("{protocol}[{at}:{}]", r.pick(&[1, 2, 4]))
    };
    let [a, b, c] = [(); 3].map(|()| field(r));
    let [first, second] = [(); 2].map(|()| r.pick(&["&", "|", ">>", "<<", "+", "-", "*", "/", "%", "^"]));
    let test = r.pick(&["=", "!=", ">", "<=", ">="]);
    let inside = r.pick(&["geneve", "vlan", "mpls", "arp", "pppoes"]);
    let rest = r.pick(&["host 10.0.0.1", "udp port 53", "ip6 protochain 17", "ip[0] & 0xf > 5"]);
    let not = r.pick(&["!", ""]);
    let constant = 1 + r.below(300);
    format!("({not}{a} {first} {constant} {test} {b} {second} {c} or {inside}) and {rest}")
}

/// Returns conditions on one field, or on the length, that may exclude each other: the verifier tracks ranges and known
/// bits, and must find both empty at once.
fn contradiction(r: &mut Random) -> String {
    let field = match r.below(4) {
        0 => "len".to_owned(),
        1 => format!("udp[{}:{}]", r.below(8), r.pick(&[1, 2, 4])),
        2 => format!("ip[ip[{}]:{}]", r.below(20), r.pick(&[1, 2])),
        _ => format!("ip[{}:{}]", r.below(20), r.pick(&[1, 2, 4])),
    };
    let numbers = [0, 1, 3, 4, 12, 15, 16, 31, 60, 128, 240, 252, 255, 256, 300, 4080, 65_280];
    let conditions: Vec<String> = (0..2 + r.below(4))
        .map(|_| {
            let number = r.pick(&numbers);
            let changed = match r.below(6) {
                0 | 1 => format!("{field} & {number}"),
                2 => format!("{field} >> {}", 1 + r.below(8)),
                3 => format!("({field} & {number}) << {}", 1 + r.below(4)),
                4 => format!("({field} & {number}) + {}", r.pick(&numbers)),
                _ => field.clone(),
            };
            let test = r.pick(&["=", "!=", ">", "<", "<=", ">="]);
            format!("{changed} {test} {}", r.pick(&numbers))
        })
        .collect();
    let word = r.pick(&[" and ", " and ", " or "]);
    format!(
        "({}) {} {}",
        conditions.join(word),
        r.pick(&["and", "or"]),
        r.pick(&["host 10.0.0.1", "udp", "len > 20", "ip6 protochain 17"])
    )
}

/// Returns the number of verifier complaints in the kernel's log; `None` if the log cannot be read.
fn complaints() -> Option<usize> {
    let output = Command::new("dmesg").output().ok()?;
    let log = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = ["verifier bug", "REG INVARIANTS"];
    let complains = |line: &&str| words.iter().any(|words| line.contains(words));
    output.status.success().then(|| log.lines().filter(complains).count())
}

/// The kernel warns only once after boot, so the test makes it refuse such programs instead.
#[test]
fn verifier_reports_no_bug() {
    if !root_or_skip() {
        return;
    }
    let before = complaints();
    let simple = compile("ip", &CompilerOptions::default()).unwrap();
    if Loaded::with_flags(&simple, Target::tc(), TEST_REG_INVARIANTS).is_err() {
        println!("SKIPPED: the kernel cannot refuse instead of warning (since Linux 6.8)");
        return;
    }
    let mut r = Random::new(36);
    let relatives = (0..RELATIVES).map(|number| match number % 2 {
        0 => relative(&mut r),
        _ => contradiction(&mut r),
    });
    let (mut loaded, mut refused) = (0, Vec::new());
    for (number, text) in std::iter::once(SEEN.to_owned()).chain(relatives).enumerate() {
        // libpcap rejects arithmetic on protocols without offsets, and division by zero.
        let Ok(program) = compile(&text, &CompilerOptions::default()) else {
            continue;
        };
        // The warning occurs at tc; a few programs at XDP cost little time.
        let xdp = (number % 10 == 0).then(Target::xdp);
        for target in [Target::tc()].into_iter().chain(xdp) {
            match Loaded::with_flags(&program, target, TEST_REG_INVARIANTS) {
                Ok(_) => loaded += 1,
                // A program that is refused without the check as well has another defect.
                Err(error) if Loaded::new(&program, target).is_ok() => {
                    refused.push(format!("{text} at {:?}: {error}", target.hook));
                }
                Err(_) => {}
            }
        }
    }
    println!("{loaded} programs loaded");
    assert!(refused.is_empty(), "{} of {loaded}: {refused:#?}", refused.len());
    assert!(loaded > RELATIVES / 2, "{loaded} programs");
    match (before, complaints()) {
        (Some(before), Some(after)) => assert!(after <= before, "{before}, then {after}"),
        _ => println!("SKIPPED: the kernel's log cannot be read"),
    }
}
