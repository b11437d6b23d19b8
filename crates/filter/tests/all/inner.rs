//! Filters on inner packets: the lowered block, the interpreter and libpcap on the inner packet's own bytes agree.

use crate::support::machine::{Scene, run};
use crate::support::packets::{Random, tunnel_frame};
use trawl_filter::{Classic, CompilerOptions, Hook, Inner, Target, compile, lower_either, lower_inner};

const EXPRESSIONS: [&str; 14] = [
    "tcp port 80",
    "udp port 53",
    "host 10.0.0.1",
    "ip6 and tcp",
    "arp",
    "ether host 02:00:00:00:00:01",
    "vlan 100 and ip",
    "ip[ip[8]] = 0",
    "tcp[(tcp[12] & 0xf0) >> 2:4] = 0x47455420",
    "ip6 protochain 17",
    "greater 60",
    "not ip",
    "icmp or icmp6",
    "udp port 4789",
];

#[test]
fn inner_filters_agree() {
    let mut matched = 0;
    for (index, expression) in EXPRESSIONS.iter().enumerate() {
        trawl_io::libpcap::compile_filters();
        let inner = Inner::compile(expression, &CompilerOptions::default()).unwrap();
        let targets = [Target::xdp(), Target::tc(), Target::socket(), Target::copy(2048)];
        let blocks = targets.map(|target| (target, lower_inner(&inner, &target).unwrap().insns));
        let mut r = Random::new(index as u64);
        for _ in 0..1500 {
            let mut frame = tunnel_frame(&mut r);
            if r.below(3) == 0 {
                frame.truncate(r.below(160));
            }
            let expected = inner.run(&frame, frame.len() as u32);
            matched += u32::from(expected != 0);
            for (target, block) in &blocks {
                let check = |scene: &Scene| {
                    let result = run(block, target, scene);
                    let listing = || trawl_ebpf::disassemble(block);
                    assert_eq!(result, Ok(expected), "{expression} {target:?} {scene:02x?}\n{}", listing());
                };
                let linear = match target.hook {
                    Hook::Copy { .. } => 0,
                    _ => r.below(frame.len() + 1),
                };
                check(&Scene { bytes: &frame, linear, tag: None });
                check(&Scene { bytes: &frame, linear: frame.len(), tag: None });
                if target.vlan_out_of_band && frame.len() >= 18 {
                    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
                    let stripped = [&frame[..12], &frame[16..]].concat();
                    for linear in [stripped.len(), r.below(stripped.len() + 1)] {
                        let tag = Some((word(12), word(14)));
                        check(&Scene { bytes: &stripped, linear, tag });
                    }
                }
            }
        }
    }
    assert!(matched > 1000, "{matched} matches");
}

/// A filter on a packet or the one inside it matches if either does.
#[test]
fn either_packet_matches() {
    let (mut outside, mut inside) = (0, 0);
    for (index, expression) in EXPRESSIONS.iter().enumerate() {
        trawl_io::libpcap::compile_filters();
        let options = CompilerOptions::default();
        let outer = compile(expression, &options).unwrap();
        let inner = Inner::compile(expression, &options).unwrap();
        let blocks = [Target::xdp(), Target::copy(2048)].map(|target| {
            let block = lower_either(&outer, &inner, &target).unwrap();
            (target, block.insns)
        });
        let mut r = Random::new(index as u64);
        for _ in 0..1500 {
            let mut frame = tunnel_frame(&mut r);
            if r.below(3) == 0 {
                frame.truncate(r.below(160));
            }
            let length = frame.len() as u32;
            let expected = match outer.run(&frame, length) {
                0 => inner.run(&frame, length),
                matched => matched,
            };
            outside += u32::from(outer.run(&frame, length) != 0);
            inside += u32::from(inner.run(&frame, length) != 0);
            for (target, block) in &blocks {
                let linear = match target.hook {
                    Hook::Copy { .. } => 0,
                    _ => r.below(frame.len() + 1),
                };
                for linear in [linear, frame.len()] {
                    let scene = Scene { bytes: &frame, linear, tag: None };
                    let result = run(block, target, &scene);
                    assert_eq!(result, Ok(expected), "{expression} {target:?} {scene:02x?}");
                }
            }
        }
    }
    assert!(outside > 1000 && inside > 1000, "{outside}, {inside}");
}

#[test]
fn a_copy_too_small_for_a_far_inner_packet_finds_none() {
    let target = Target::copy(64);
    let all = Classic::parse("1,6 0 0 1").unwrap();
    let inner = Inner { ethernet: all.clone(), raw: all };
    let block = lower_inner(&inner, &target).unwrap().insns;
    let mut r = Random::new(1);
    for _ in 0..300 {
        let frame = tunnel_frame(&mut r);
        let scene = Scene { bytes: &frame, linear: 0, tag: None };
        run(&block, &target, &scene).unwrap();
    }
}
