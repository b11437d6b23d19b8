//! Filters on the packet inside a tunnel: VXLAN, GENEVE, GRE, IP in IP.
//!
//! The inner packet is located by a classic program (see `locator`), lowered like any other; its result is the inner
//! packet's offset and kind. The expression, compiled once for Ethernet frames and once for bare IP packets, then runs
//! on a packet that begins there. Of tunnels inside tunnels, only the outermost is entered.

use std::collections::HashMap;

use trawl_ebpf::op;
use trawl_packet::net::ethertype;

use super::assembler::Label;
use super::emitter::{Emitter, Mode, Returns, View, reg, slot};
use super::{Hook, Lowered, Target};
use crate::classic::op::*;
use crate::classic::{Classic, Instruction};
use crate::error::FilterError;
use crate::expression::{CompilerOptions, LinkType, compile};

/// Maximum offset of an inner packet; headers and options end before.
const MAX_BASE: u32 = 1023;

/// An expression for inner packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inner {
    /// For inner packets that are Ethernet frames.
    pub ethernet: Classic,
    /// For inner packets that are bare IP.
    pub raw: Classic,
}

/// Position and kind of an inner packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    base: usize,
    is_raw: bool,
}

impl Inner {
    /// Compiles an expression for inner packets of both kinds. An expression that libpcap cannot compile for bare IP
    /// packets (`ether host`, `arp`) matches none.
    pub fn compile(expression: &str, options: &CompilerOptions) -> Result<Self, FilterError> {
        let with = |link| CompilerOptions { link, ..*options };
        let ethernet = compile(expression, &with(LinkType::ETHERNET))?;
        let raw = compile(expression, &with(LinkType::RAW_IP)).or_else(|_| Classic::parse("1,6 0 0 0"))?;
        Ok(Inner { ethernet, raw })
    }

    fn find(bytes: &[u8], length: u32) -> Option<Found> {
        let found = program().ok()?.run(bytes, length);
        let base = found & OFFSET;
        (found != 0 && base <= MAX_BASE && base <= length)
            .then_some(Found { base: base as usize, is_raw: found & RAW != 0 })
    }

    /// Runs the filter on a frame of which `bytes` is the beginning and `length` the true length.
    pub fn run(&self, bytes: &[u8], length: u32) -> u32 {
        let Some(Found { base, is_raw }) = Self::find(bytes, length) else {
            return 0;
        };
        let program = if is_raw { &self.raw } else { &self.ethernet };
        program.run(bytes.get(base..).unwrap_or_default(), length - base as u32)
    }
}

/// Lowers a filter for inner packets to a block that fulfils the splice contract.
///
/// At [`Hook::Copy`] an inner packet is found in the first half of the buffer only, because the verifier must see that
/// the rest is within the buffer.
pub fn lower_inner(inner: &Inner, target: &Target) -> Result<Lowered, FilterError> {
    let greatest = match target.hook {
        Hook::Copy { buffer } => MAX_BASE.min(u32::from(buffer) / 2),
        _ => MAX_BASE,
    };
    let locator = program()?;
    let mut emitter = Emitter::new(target);
    emitter.keeps_length = !emitter.is_slow_only();
    let locating = emitter.graph(&locator)?;
    let mut entries = Vec::new();
    let views = if target.restores_tag() { &[View::Plain, View::Tagged][..] } else { &[View::Plain][..] };
    for &view in views {
        let (fast, slow) = (emitter.asm.label(), emitter.asm.label());
        let version = emitter.version(&locating, view, None, Returns::To { fast, slow })?;
        entries.push((view, version, fast, slow));
    }
    let ethernet = emitter.graph(&inner.ethernet)?;
    let ethernet = emitter.version(&ethernet, View::Plain, Some(greatest), Returns::Result)?;
    let raw = emitter.graph(&inner.raw)?;
    let raw = emitter.version(&raw, View::Plain, Some(greatest), Returns::Result)?;
    let (to_ethernet, to_raw) = (emitter.asm.label(), emitter.asm.label());

    let to_tagged = target.restores_tag().then(|| emitter.jump_if_tagged());
    for &(view, version, fast, _) in &entries {
        if let (View::Tagged, Some(to_tagged)) = (view, to_tagged) {
            emitter.asm.bind(to_tagged);
            emitter.store_tag();
        }
        emitter.begin(version);
        if !emitter.is_slow_only() {
            emitter.asm.bind(fast);
            emitter.enter(Mode::Fast, view, greatest, to_ethernet, to_raw);
        }
    }
    if !emitter.is_slow_only() {
        emitter.asm.bind(to_ethernet);
        emitter.fast(ethernet);
        emitter.asm.bind(to_raw);
        emitter.fast(raw);
    }

    let fast = emitter.finish_fast();
    for &(view, version, _, slow) in &entries {
        emitter.slow(version);
        if emitter.asm.is_used(slow) {
            emitter.asm.bind(slow);
            let to_ethernet = emitter.slow_start(ethernet);
            let to_raw = emitter.slow_start(raw);
            emitter.enter(Mode::Slow, view, greatest, to_ethernet, to_raw);
        }
    }
    emitter.slow(ethernet);
    emitter.slow(raw);
    let classic = [&locator, &inner.ethernet, &inner.raw];
    emitter.finish(fast, classic.iter().map(|c| c.instructions().len()).sum())
}

impl Emitter<'_> {
    /// Switches to the inner packet that r0 describes.
    fn enter(&mut self, mode: Mode, view: View, greatest: u32, to_ethernet: Label, to_raw: Label) {
        let base = match mode {
            Mode::Fast => reg::POINTER,
            Mode::Slow => 3,
        };
        let no_match = self.no_match;
        self.emit(op::mov32(base, reg::TMP));
        self.emit(op::alu_imm(op::AND, base, OFFSET as i32));
        self.asm.jump_if(op::JGT, base, greatest, no_match);
        if mode == Mode::Slow {
            self.emit(op::load(op::DW, reg::LENGTH, mode.scratch(), slot::LENGTH));
        }
        self.asm.jump_if_reg(op::JLT, reg::LENGTH, base, no_match);
        self.emit(op::alu(op::SUB, reg::LENGTH, base));
        if mode == Mode::Slow {
            self.emit(op::store(op::DW, mode.scratch(), slot::LENGTH, reg::LENGTH));
        }
        if view == View::Tagged {
            // The locator counts the tag's bytes, which are not in the packet.
            self.asm.jump_if(op::JLT, base, 4, no_match);
            self.emit(op::alu_imm(op::ADD, base, -4));
        }
        self.emit(op::store(op::DW, mode.scratch(), slot::BASE, base));
        if mode == Mode::Fast {
            if self.is_copy() {
                self.asm.jump_if_reg(op::JLT, reg::DATA_END, base, no_match);
                self.emit(op::alu(op::SUB, reg::DATA_END, base));
            }
            self.emit(op::alu(op::ADD, reg::DATA, base));
        }
        self.asm.jump_if32(op::JSET, reg::TMP, RAW, to_raw);
        self.asm.goto(to_ethernet);
    }
}

// The classic program that locates the packet inside a tunnel.

/// Bits of the result that contain the inner packet's offset.
const OFFSET: u32 = 0xffff;
/// Set if the inner packet is an Ethernet frame.
const ETHERNET: u32 = 0x1_0000;
/// Set if the inner packet is bare IP.
const RAW: u32 = 0x2_0000;

/// Maximum numbers of VLAN tags and of IPv6 extension headers that are skipped.
const TAGS: u32 = 2;
const EXTENSIONS: usize = 2;

/// Cells of scratch memory.
const PROTOCOL: u32 = 0;
const END: u32 = 1;
const FLAGS: u32 = 2;

const TEB: u32 = ethertype::BRIDGED_ETHERNET as u32;
const IPV4: u32 = ethertype::IPV4 as u32;
const IPV6: u32 = ethertype::IPV6 as u32;

/// A builder of programs with named jump targets.
#[derive(Default)]
struct Builder {
    code: Vec<(Instruction, &'static str, &'static str)>,
    positions: HashMap<&'static str, usize>,
}

impl Builder {
    fn bind(&mut self, name: &'static str) {
        self.positions.insert(name, self.code.len());
    }

    fn add(&mut self, code: u16, k: u32) {
        self.code.push((Instruction::new(code, 0, 0, k), "", ""));
    }

    /// Adds a jump by name; the empty name is the next instruction.
    fn jump(&mut self, code: u16, k: u32, yes: &'static str, no: &'static str) {
        self.code.push((Instruction::new(JMP | code, 0, 0, k), yes, no));
    }

    fn jump_equal(&mut self, choices: &[(u32, &'static str)], otherwise: &'static str) {
        for &(k, to) in choices {
            self.jump(JEQ, k, to, "");
        }
        self.jump(JA, 0, otherwise, "");
    }

    fn finish(self) -> Result<Classic, FilterError> {
        let distance = |from: usize, to: &str| match self.positions.get(to) {
            Some(position) => (position - from - 1) as u32,
            None => 0,
        };
        let program = self.code.iter().enumerate().map(|(at, &(mut i, yes, no))| {
            if i.code == JMP | JA {
                i.k = distance(at, yes);
            } else if i.class() == JMP {
                i.jt = distance(at, yes) as u8;
                i.jf = distance(at, no) as u8;
            }
            i
        });
        Classic::new(program.collect())
    }
}

/// Returns the program, whose result is 0, or the inner packet's offset and kind.
fn program() -> Result<Classic, FilterError> {
    let mut b = Builder::default();
    link(&mut b);
    network(&mut b);
    transport(&mut b);
    gre(&mut b);
    b.bind("ethernet");
    b.add(ALU | OR, ETHERNET);
    b.add(RET | A, 0);
    b.bind("raw");
    b.add(ALU | OR, RAW);
    b.add(RET | A, 0);
    b.bind("none");
    b.add(RET | K, 0);
    b.finish()
}

/// Skips Ethernet and tags: X is the network header's offset.
fn link(b: &mut Builder) {
    let after_tag = ["tag 1", "tag 2"];
    for tag in 0..=TAGS {
        if tag > 0 {
            b.bind(after_tag[tag as usize - 1]);
        }
        b.add(LDX | IMM, 14 + 4 * tag);
        b.add(LD | H | ABS, 12 + 4 * tag);
        match after_tag.get(tag as usize) {
            Some(&next) => {
                b.jump_equal(&[(0x8100, next), (0x88a8, next), (0x9100, next), (IPV4, "v4"), (IPV6, "v6")], "none")
            }
            None => b.jump_equal(&[(IPV4, "v4"), (IPV6, "v6")], "none"),
        }
    }
}

/// Skips IP: X is the transport header's offset, A its protocol.
fn network(b: &mut Builder) {
    b.bind("v4");
    b.add(LD | B | IND, 9);
    b.add(ST, PROTOCOL);
    // Later fragments have no header.
    b.add(LD | H | IND, 6);
    b.jump(JSET, 0x1fff, "none", "");
    b.add(LD | B | IND, 0);
    b.add(ALU | AND, 0xf);
    b.add(ALU | LSH, 2);
    b.add(ALU | ADD | X, 0);
    b.add(MISC | TAX, 0);
    b.add(LD | MEM, PROTOCOL);
    b.jump(JA, 0, "transport", "");

    b.bind("v6");
    b.add(LD | B | IND, 6);
    b.add(ST, PROTOCOL);
    b.add(MISC | TXA, 0);
    b.add(ALU | ADD, 40);
    b.add(MISC | TAX, 0);
    b.add(LD | MEM, PROTOCOL);
    for extension in ["extension 1", "extension 2"].into_iter().take(EXTENSIONS) {
        // Hop-by-hop options, routing, destination options; anything else is handled below.
        b.jump_equal(&[(0, extension), (43, extension), (60, extension)], "transport");
        b.bind(extension);
        b.add(LD | B | IND, 0);
        b.add(ST, PROTOCOL);
        b.add(LD | B | IND, 1);
        b.add(ALU | ADD, 1);
        b.add(ALU | LSH, 3);
        b.add(ALU | ADD | X, 0);
        b.add(MISC | TAX, 0);
        b.add(LD | MEM, PROTOCOL);
    }
}

fn transport(b: &mut Builder) {
    b.bind("transport");
    b.jump_equal(&[(17, "udp"), (47, "gre"), (4, "ip"), (41, "ip")], "none");

    b.bind("ip");
    b.add(MISC | TXA, 0);
    b.jump(JA, 0, "raw", "");

    b.bind("udp");
    b.add(LD | H | IND, 2);
    b.jump_equal(&[(4789, "vxlan"), (6081, "geneve")], "none");

    b.bind("vxlan");
    // Without this flag the header has no network identifier and is not VXLAN.
    b.add(LD | B | IND, 8);
    b.jump(JSET, 0x08, "", "none");
    b.add(MISC | TXA, 0);
    b.add(ALU | ADD, 16);
    b.jump(JA, 0, "ethernet", "");

    b.bind("geneve");
    b.add(LD | B | IND, 8);
    b.jump(JSET, 0xc0, "none", "");
    b.add(ALU | AND, 0x3f);
    b.add(ALU | LSH, 2);
    b.add(ALU | ADD, 16);
    b.add(ALU | ADD | X, 0);
    b.add(ST, END);
    b.add(LD | H | IND, 10);
    b.jump(JA, 0, "payload", "");
}

fn gre(b: &mut Builder) {
    b.bind("gre");
    b.add(LD | H | IND, 0);
    b.add(ST, FLAGS);
    // Source routing and version 1 (PPTP) carry something else.
    b.jump(JSET, 0x4007, "none", "");
    b.add(MISC | TXA, 0);
    b.add(ALU | ADD, 4);
    b.add(ST, END);
    // Checksum, key and sequence number have four bytes each.
    for (flag, then, name) in
        [(0x8000, "checksum", "key"), (0x2000, "has key", "sequence"), (0x1000, "has sequence", "protocol")]
    {
        b.add(LD | MEM, FLAGS);
        b.jump(JSET, flag, then, name);
        b.bind(then);
        b.add(LD | MEM, END);
        b.add(ALU | ADD, 4);
        b.add(ST, END);
        b.bind(name);
    }
    b.add(LD | H | IND, 2);
    b.bind("payload");
    for (kind, name) in [(TEB, "carries ethernet"), (IPV4, "carries ip"), (IPV6, "carries ip")] {
        b.jump(JEQ, kind, name, "");
    }
    b.jump(JA, 0, "none", "");
    b.bind("carries ethernet");
    b.add(LD | MEM, END);
    b.jump(JA, 0, "ethernet", "");
    b.bind("carries ip");
    b.add(LD | MEM, END);
    b.jump(JA, 0, "raw", "");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(parts: &[&[u8]]) -> u32 {
        let frame = parts.concat();
        program().unwrap().run(&frame, frame.len() as u32)
    }

    const MACS: [u8; 12] = [2; 12];
    const V4_UDP: [u8; 20] = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];

    #[test]
    fn tunnels_are_located_with_their_payload() {
        let vxlan = [0, 0, 0x12, 0xb5, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 11, 0];
        assert_eq!(found(&[&MACS, &[8, 0], &V4_UDP, &vxlan]), ETHERNET | 50);
        let tags = [0x81, 0, 0, 1, 0x88, 0xa8, 0, 2, 8, 0];
        assert_eq!(found(&[&MACS, &tags, &V4_UDP, &vxlan]), ETHERNET | 58);
        let geneve = [0, 0, 0x17, 0xc1, 0, 0, 0, 0, 2, 0, 0x08, 0, 0, 0, 11, 0];
        assert_eq!(found(&[&MACS, &[8, 0], &V4_UDP, &geneve]), RAW | 58);

        let mut v4_gre = V4_UDP;
        v4_gre[9] = 47;
        let gre = |flags: u8, kind: [u8; 2]| found(&[&MACS, &[8, 0], &v4_gre, &[flags, 0], &kind, &[0; 12]]);
        assert_eq!(gre(0, [0x65, 0x58]), ETHERNET | 38);
        assert_eq!(gre(0x20, [0x86, 0xdd]), RAW | 42);
        assert_eq!(gre(0xb0, [8, 0]), RAW | 50);
        assert_eq!(gre(0x40, [8, 0]), 0);
        assert_eq!(gre(0, [0x88, 0x0b]), 0);

        let mut v6 = [0u8; 40];
        v6[0] = 0x60;
        v6[6] = 60;
        let options = [4, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(found(&[&MACS, &[0x86, 0xdd], &v6, &options]), RAW | 62);

        let mut later_fragment = V4_UDP;
        later_fragment[7] = 1;
        assert_eq!(found(&[&MACS, &[8, 0], &later_fragment, &vxlan]), 0);
        assert_eq!(found(&[&MACS, &[8, 6], &V4_UDP, &vxlan]), 0);
    }
}
