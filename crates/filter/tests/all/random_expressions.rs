//! Random expressions that repeat the same few conditions in all orders: the optimiser's gathering, threading and
//! removal must not change an answer, least of all on short packets.

use crate::agreement::Readers;
use crate::support::compile;
use crate::support::oracle::oracle;
use crate::support::packets::{Random, frames};
use std::collections::HashMap;
use std::net::IpAddr;
use trawl_filter::expression::fold::{Operand, Step, Values, fold};
use trawl_filter::{Classic, CompilerOptions, FilterError};

const ADDRESSES: [&str; 5] = ["10.0.0.1", "10.0.0.2", "192.168.1.2", "255.255.255.255", "10.1.2.3"];
const PORTS: [u16; 6] = [53, 80, 443, 22, 100, 4789];
const FIELDS: [&str; 8] = ["ip[8]", "ip[9]", "ip[6:2]", "tcp[13]", "udp[4:2]", "ether[12:2]", "ip6[6]", "len"];

pub fn primitive(r: &mut Random) -> String {
    let side = r.pick(&["", "src ", "dst "]);
    match r.below(14) {
        0..=3 => format!("{side}host {}", r.pick(&ADDRESSES)),
        4..=6 => format!("{side}port {}", r.pick(&PORTS)),
        7 => format!("{side}portrange {}-{}", r.pick(&[22, 50, 80]), r.pick(&[80, 100, 443])),
        8 => format!("{side}net {}", r.pick(&["10.0.0.0/8", "10.0.0.0/31", "192.168.0.0/16", "10.0.0.0/30"])),
        9 => r.pick(&["tcp", "udp", "icmp", "sctp", "arp", "ip", "ip6", "icmp6"]).to_owned(),
        10 => format!("ip proto {}", r.pick(&[1, 6, 17, 132])),
        11 => format!("{} {}", r.pick(&["less", "greater"]), r.pick(&[40, 60, 80])),
        12 => {
            let test = r.pick(&["=", "!=", ">", "<", ">=", "<="]);
            format!("{} {test} {}", r.pick(&FIELDS), r.pick(&[1, 6, 17, 33, 64, 0x800]))
        }
        _ => {
            let mask = r.pick(&["& 0x1fff", "& 0xf0", "& 2", "- 1", "/ 4"]);
            format!("{} {mask} != 0", r.pick(&FIELDS))
        }
    }
}

fn expression(r: &mut Random, depth: usize) -> String {
    if depth == 0 || r.below(6) == 0 {
        return primitive(r);
    }
    let word = r.pick(&[" or ", " or ", " and "]);
    let parts: Vec<String> = (0..2 + r.below(4)).map(|_| expression(r, depth - 1)).collect();
    let whole = parts.join(word);
    match r.below(8) {
        0 => format!("not ({whole})"),
        _ => format!("({whole})"),
    }
}

/// Compiles an expression; `None` if libpcap finds that it can never match.
fn compiled(text: &str) -> Option<Classic> {
    match compile(text, &CompilerOptions::default()) {
        Ok(program) => Some(program),
        Err(FilterError::Expression { .. }) => None,
        Err(other) => panic!("{text}: {other}"),
    }
}

#[test]
fn random_expressions_agree_with_libpcap() {
    let count = std::env::var("TRAWL_FILTER_EXPRESSIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    let (mut pairs, mut accepted) = (0, 0);
    for seed in 0..count {
        let mut r = Random::new(seed);
        let depth = 1 + r.below(3);
        let text = expression(&mut r, depth);
        let Some(program) = compiled(&text) else {
            continue;
        };
        accepted += 1;
        let oracle = oracle(&text, true);
        let readers = Readers::new(program);
        for frame in frames(seed, 60) {
            let expected = readers.ask(&oracle, &frame);
            pairs += readers.compare(&text, &frame, expected, &mut r);
        }
    }
    assert!(accepted > count / 2, "only {accepted} of {count} expressions");
    println!("{pairs} pairs of {accepted} random expressions and packets");
}

/// Returns an operand that the tree represents by values, or several that inherit its words.
fn known_operand(r: &mut Random) -> String {
    let side = r.pick(&["", "src ", "dst ", "src or dst "]);
    let ports = [r.pick(&PORTS), r.pick(&PORTS)];
    match r.below(8) {
        0 | 1 => format!("{side}host {}", r.pick(&ADDRESSES)),
        2 => format!("ip host {} or {}", r.pick(&ADDRESSES), r.pick(&ADDRESSES)),
        3 => format!("{side}net {}", r.pick(&["10.0.0.0/8", "10.0.0.0/31", "2001:db8::/32"])),
        4 => format!("{}{side}port {}", r.pick(&["", "tcp ", "udp "]), ports[0]),
        5 => format!("{side}port {} {} {}", ports[0], r.pick(&["or", "and"]), ports[1]),
        6 => format!("{side}portrange {}-{}", ports[0].min(ports[1]), ports[0].max(ports[1])),
        _ => r.pick(&["tcp", "udp", "icmp", "sctp", "arp", "icmp6"]).to_owned(),
    }
}

fn known_expression(r: &mut Random, depth: usize) -> String {
    let mut text = String::new();
    for number in 0..2 + r.below(3) {
        text.push_str(if number == 0 { "" } else { r.pick(&[" or ", " and "]) });
        text.push_str(r.pick(&["", "", "not "]));
        text.push_str(&if depth > 0 && r.below(3) == 0 {
            format!("({})", known_expression(r, depth - 1))
        } else {
            known_operand(r)
        });
    }
    text
}

fn text_of(Operand { qualifiers, values }: Operand) -> String {
    match values {
        Values::Word => qualifiers,
        Values::Ports(range) => format!("{qualifiers} portrange {}-{}", range.start(), range.end()),
        Values::Addresses(range) => {
            let length = match (range.start(), range.end()) {
                (IpAddr::V4(from), IpAddr::V4(to)) => (from.to_bits() ^ to.to_bits()).leading_zeros(),
                (IpAddr::V6(from), IpAddr::V6(to)) => (from.to_bits() ^ to.to_bits()).leading_zeros(),
                (from, to) => panic!("{from} to {to}"),
            };
            format!("{qualifiers} net {}/{length}", range.start())
        }
    }
}

#[test]
fn values_of_operands_joined_by_the_tree_are_the_answer() {
    let (mut accepted, mut programs) = (0, HashMap::new());
    for seed in 0..200 {
        let r = &mut Random::new(seed);
        let text = known_expression(r, 2);
        let Some(program) = compiled(&text) else {
            continue;
        };
        accepted += 1;
        for mut frame in frames(seed, 20) {
            // A read after the end of a packet ends the whole program.
            frame.resize(frame.len().max(256), 0);
            let length = frame.len() as u32;
            let answer = fold(&text, |step: Step<bool>| match step {
                Step::Operand(operand) => {
                    let operand = text_of(operand.unwrap_or_else(|| panic!("{text}: an operand is not known")));
                    let program = programs.entry(operand).or_insert_with_key(|operand| compiled(operand));
                    program.as_ref().is_some_and(|program| program.run(&frame, length) != 0)
                }
                Step::Not(inner) => !inner,
                Step::All(all) => all.into_iter().all(|one| one),
                Step::Any(all) => all.into_iter().any(|one| one),
            });
            assert_eq!(answer, Some(program.run(&frame, length) != 0), "{text} on {frame:02x?}");
        }
    }
    assert!(accepted > 100, "only {accepted} expressions");
}
