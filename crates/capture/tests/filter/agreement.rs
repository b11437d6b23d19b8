//! Expressions: five readers must give the same answer.

use trawl_filter::{Classic, Target};
use trawl_sys::Result;

use crate::kernel::{BUFFER, Loaded, root_or_skip};
use crate::support::oracle::oracle;
use crate::support::packets::{Random, frames};
use crate::support::{classic, expressions};

/// Minimum length of a linear part: an Ethernet header.
const ETHERNET_HEADER: usize = 14;

fn pairs_wanted() -> usize {
    std::env::var("TRAWL_ORACLE_PAIRS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000_000)
}

pub struct Readers {
    pub classic: Classic,
    xdp: Loaded,
    tc: Loaded,
    copy: Loaded,
}

impl Readers {
    pub fn new(classic: Classic, gotol: bool) -> Result<Self> {
        let load = |target| Loaded::new(&classic, Target { gotol, ..target });
        Ok(Self { xdp: load(Target::xdp())?, tc: load(Target::tc())?, copy: load(Target::copy(BUFFER))?, classic })
    }

    /// Returns the interpreter's answer for the first `seen` bytes of the frame.
    pub fn interpret(&self, frame: &[u8], seen: usize) -> bool {
        self.classic.run(&frame[..seen], frame.len() as u32) != 0
    }

    /// Runs all readers on one frame, and returns the number of compared answers.
    pub fn compare(&self, what: &str, frame: &[u8], linear: Option<usize>) -> usize {
        let expected = self.interpret(frame, frame.len());
        let seen = frame.len().min(BUFFER.into());
        let mut pairs = 1;
        let mut check = |name: &str, reader: &Loaded, linear, expected| {
            if reader.can_ask(frame) {
                let found = reader.ask(frame, linear);
                assert_eq!(
                    found, expected,
                    "{what}: {name} ({linear:?} bytes linear) on {frame:02x?}\n{}",
                    self.classic
                );
                pairs += 1;
            }
        };
        check("XDP", &self.xdp, None, expected);
        if linear.is_some() {
            check("XDP in fragments", &self.xdp, linear, expected);
        }
        check("tc", &self.tc, None, expected);
        check("a copy", &self.copy, None, self.interpret(frame, seen));
        pairs
    }
}

/// Returns false on kernels before 6.18, which fragment only frames of more than a page.
fn can_fragment() -> bool {
    let everything = Classic::parse("1,6 0 0 1").expect("a return is a program");
    let program = Loaded::new(&everything, Target::xdp()).expect("a program of one instruction");
    program.can_fragment()
}

#[test]
fn the_kernel_agrees_with_libpcap() {
    if !root_or_skip() {
        return;
    }
    let fragments = can_fragment();
    if !fragments {
        println!("the kernel puts only frames of more than a page into fragments");
    }
    let expressions = expressions();
    assert!(expressions.len() >= 400, "{} expressions", expressions.len());
    // Each frame makes four pairs or more: the interpreter, XDP once or twice, tc and the copy; a few
    // frames are too short for all of them.
    let count = pairs_wanted().div_ceil(expressions.len() * 4);
    let mut pairs = 0;
    for (index, expression) in expressions.iter().enumerate() {
        let oracle = oracle(expression, true);
        let readers = Readers::new(classic(expression), false).unwrap_or_else(|e| panic!("{expression}: {e}"));
        let mut r = Random::new(index as u64);
        for frame in frames(index as u64 + 5000, count) {
            // Older libpcap loops for ever where newer gives up; such frames are skipped.
            if !readers.classic.evaluate(&frame, frame.len() as u32).gave_up {
                let ours = readers.interpret(&frame, frame.len());
                assert_eq!(oracle.matches(&frame), ours, "{expression}: libpcap on {frame:02x?}");
            }
            let linear = (fragments && frame.len() > ETHERNET_HEADER)
                .then(|| ETHERNET_HEADER + r.below(frame.len() - ETHERNET_HEADER));
            pairs += readers.compare(expression, &frame, linear);
        }
    }
    assert!(pairs >= pairs_wanted(), "only {pairs} pairs");
    println!("{pairs} pairs of program and packet, in the kernel and out of it");
}

#[test]
fn frames_of_several_pages_are_filtered_right() {
    if !root_or_skip() {
        return;
    }
    let mut r = Random::new(11);
    for expression in [
        "udp port 53",
        "greater 9000",
        "len = 9014",
        "ether[9000] = 7",
        "ether[4094:4] = 0x07070707",
        "ip[ip[8]] = 7",
        "not ether[9013] = 7",
        "ether[9014] = 7",
    ] {
        let program = classic(expression);
        let xdp = Loaded::new(&program, Target::xdp()).unwrap_or_else(|e| panic!("{expression}: {e}"));
        for head in frames(12, 40) {
            for length in [3000, 4096, 9000, 9013, 9014, 9015] {
                let mut frame = head.clone();
                frame.resize(length, 7);
                let at = r.below(length);
                frame[at] = r.next() as u8;
                let expected = program.run(&frame, length as u32) != 0;
                assert_eq!(xdp.ask(&frame, None), expected, "{expression}, {length} bytes");
            }
        }
    }
}
