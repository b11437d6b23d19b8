//! Malformed packets: the router and the balancer decide about each of them, change nothing but what they forward, and
//! forward nothing that a stack would not.

use std::os::fd::AsFd;

use trawl_bpf::{program, test_run};
use trawl_lab::{Line, LineOptions};
use trawl_packet::build::{Ipv4, Ipv6, Layer, Tcp, Template};
use trawl_sys::netns::run_in;
use trawl_tests::bundled::done;
use trawl_tests::lab::place;
use trawl_tests::witness::{run, xdp_on};
use trawl_tests::{LineLab, args};

const ABORTED: u32 = 0;
const PASS: u32 = 2;
const TX: u32 = 3;
const REDIRECT: u32 = 4;
const ROUNDS: usize = 20_000;
const ETHERNET: usize = 14;
const VIP: [u8; 4] = [192, 0, 2, 80];

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

fn sum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Changes some bytes of the headers, cuts or pads the frame, and corrects the checksum of IPv4 half of the time, so
/// that the programs also examine the rest of the packet.
fn malformed(frame: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for _ in 0..numbers.below(4) {
        // The Ethernet addresses are kept, because frames for another card test nothing.
        let at = 12 + numbers.below(frame.len().min(80) - 12);
        frame[at] = match numbers.below(3) {
            0 => numbers.below(256) as u8,
            1 => [0, 1, 4, 5, 6, 0x45, 0x46, 0x4f, 0x60, 0x7f, 0x80, 0xff][numbers.below(12)],
            _ => frame[at] ^ (1 << numbers.below(8)),
        };
    }
    match numbers.below(6) {
        0 => frame.truncate(ETHERNET + numbers.below(frame.len() - ETHERNET)),
        1 => frame.extend(vec![0xee; numbers.below(64)]),
        _ => {}
    }
    if numbers.below(2) == 0
        && frame.len() > ETHERNET
        && let length = usize::from(frame[ETHERNET] & 15) * 4
        && (20..=frame.len() - ETHERNET).contains(&length)
        && frame[12..14] == [8, 0]
    {
        let header = &mut frame[ETHERNET..ETHERNET + length];
        header[10..12].fill(0);
        let sum = !sum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// Returns the length of an IP packet whose header is whole; `None` for others. A router also checks the time to live
/// and the checksum, which a balancer leaves to the backend.
fn forwardable(packet: &[u8], ethertype: [u8; 2], by_router: bool) -> Option<usize> {
    let least = if by_router { 2 } else { 0 };
    let word = |at: usize| Some(usize::from(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?])));
    match ethertype {
        [0x08, 0x00] => {
            let length = word(2)?;
            // A router leaves packets with options to the stack, while a balancer forwards them.
            let header = usize::from(packet[0] & 15) * 4;
            let is_whole = packet[0] >> 4 == 4 && header >= 20 && packet.len() >= header;
            let is_simple = packet[0] == 0x45 && packet.len() >= 20 && sum(&packet[..20]) == 0xffff;
            let is_right = if by_router { is_simple } else { is_whole };
            (is_right && *packet.get(8)? >= least && (header..=packet.len()).contains(&length)).then_some(length)
        }
        [0x86, 0xdd] => {
            let length = word(4)? + 40;
            (packet[0] >> 4 == 6 && *packet.get(7)? >= least && length <= packet.len()).then_some(length)
        }
        _ => None,
    }
}

/// Judges a verdict by the frame before and after the program.
type Judge<'a> = &'a (dyn Fn(u32, &[u8], &[u8]) -> bool + Sync);

/// Runs the program at the left port on many malformed frames, and checks each of its answers.
fn check(lab: &LineLab, frames: &[Vec<u8>], is_right: Judge<'_>) {
    let line = &lab.line;
    let (number, _) = xdp_on(&line.left).expect("a program");
    let program = program::open_by_id(number as u32).expect("it is loaded");
    let answered = run_in(&line.left.namespace, || {
        let mut numbers = Numbers(7);
        let mut forwarded = 0;
        for round in 0..ROUNDS {
            let sent = malformed(&frames[round % frames.len()], &mut numbers);
            // The kernel runs programs on frames of this length and more.
            if sent.len() < ETHERNET {
                continue;
            }
            let ran = test_run::xdp_from(program.as_fd(), &sent, line.left.index);
            let (answer, left) = ran.expect("a run");
            assert_ne!(answer.value, ABORTED, "{sent:02x?}");
            assert!(is_right(answer.value, &sent, &left), "{}: {sent:02x?} became {left:02x?}", answer.value);
            forwarded += usize::from(matches!(answer.value, TX | REDIRECT));
        }
        forwarded
    });
    let forwarded = answered.expect("the namespace can be entered");
    // Enough frames are well-formed that forwarding is tested, too.
    assert!(forwarded > ROUNDS / 50, "{forwarded}");
}

fn neighbour(line: &Line) {
    for address in [line.b.ipv4.to_string(), line.b.ipv6.to_string()] {
        let mac = line.b.mac.map(|byte| format!("{byte:02x}")).join(":");
        let words = format!(
            "-n {} neigh replace {address} lladdr {mac} dev {} nud permanent",
            line.right.name, line.right.interface
        );
        run("ip", &words.split(' ').collect::<Vec<_>>());
    }
}

#[test]
fn router_forwards_only_what_a_stack_forwards() {
    let Some(lab) = LineLab::with(&LineOptions::default()) else {
        return;
    };
    let line = &lab.line;
    neighbour(line);
    done(&["route", "load", &place(&line.left), &place(&line.right)]);
    let ethernet = || Template::new().ethernet(line.a.mac, line.left.mac);
    let frames = [
        ethernet().layer(Layer::Ipv4(Ipv4::new(line.a.ipv4, line.b.ipv4))).udp(1, 9).payload(vec![7; 30]).build(),
        ethernet().layer(Layer::Ipv4(Ipv4::new(line.a.ipv4, line.b.ipv4))).tcp(Tcp::default()).build(),
        ethernet().layer(Layer::Ipv6(Ipv6::new(line.a.ipv6, line.b.ipv6))).udp(1, 9).payload(vec![7; 30]).build(),
    ];
    check(&lab, &frames, &|value, sent, left| {
        if value != REDIRECT {
            return value != PASS || sent == left;
        }
        let Some(length) = forwardable(&sent[ETHERNET..], [sent[12], sent[13]], true) else {
            return false;
        };
        // The router decrements the time to live, and updates the checksum.
        let (from, to) = (&sent[ETHERNET..][..length], &left[ETHERNET..]);
        let mut wanted = from.to_vec();
        if sent[12] == 8 {
            wanted[8] -= 1;
            wanted[10..12].copy_from_slice(&to[10..12]);
            return to[..length.min(to.len())] == wanted[..] && sum(&to[..20]) == 0xffff;
        }
        wanted[7] -= 1;
        to.get(..length) == Some(&wanted[..])
    });
}

#[test]
fn balancer_forwards_packets_whole() {
    let Some(lab) = LineLab::with(&LineOptions::default()) else {
        return;
    };
    let line = &lab.line;
    neighbour(line);
    let left = place(&line.left);
    done(&["balance", "load", &left, "--flows", "10000"]);
    done(&args!("balance vip add tcp:192.0.2.80:80 --forward ipip --on {left}"));
    let backend = line.b.ipv4.to_string();
    done(&args!("balance backend add tcp:192.0.2.80:80 {backend} --on {left}"));
    let ethernet = Template::new().ethernet(line.a.mac, line.left.mac);
    let tcp = Tcp { src: 10_000, dst: 80, ..Tcp::default() };
    let frames = [ethernet.ipv4(line.a.ipv4, VIP).tcp(tcp).payload([7; 40]).build()];
    check(&lab, &frames, &|value, sent, left| match value {
        TX | REDIRECT => {
            let packet = &sent[ETHERNET..];
            let Some(length) = forwardable(packet, [sent[12], sent[13]], false) else {
                return false;
            };
            // The whole packet follows another IPv4 header.
            let inside = left.get(ETHERNET + 20..).unwrap_or_default();
            inside.get(..length) == Some(&packet[..length])
        }
        PASS => sent == left,
        _ => true,
    });
}
