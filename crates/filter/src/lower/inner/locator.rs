//! The classic program that finds the packet inside a tunnel.

use std::collections::HashMap;

use crate::classic::op::*;
use crate::classic::{Classic, Instruction};
use crate::error::FilterError;

/// Bits of the result that are the inner packet's offset.
pub(super) const OFFSET: u32 = 0xffff;
/// Set if the inner packet is an Ethernet frame.
const ETHERNET: u32 = 0x1_0000;
/// Set if the inner packet is bare IP.
pub(super) const RAW: u32 = 0x2_0000;

/// VLAN tags that are passed over, and IPv6 extension headers.
const TAGS: u32 = 2;
const EXTENSIONS: usize = 2;

/// Cells of scratch memory.
const PROTOCOL: u32 = 0;
const END: u32 = 1;
const FLAGS: u32 = 2;

const TEB: u32 = 0x6558;
const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;

/// Puts a program together whose jumps are by name.
#[derive(Default)]
struct Builder {
    code: Vec<(Instruction, &'static str, &'static str)>,
    places: HashMap<&'static str, usize>,
}

impl Builder {
    fn place(&mut self, name: &'static str) {
        self.places.insert(name, self.code.len());
    }

    fn add(&mut self, code: u16, k: u32) {
        self.code.push((Instruction::new(code, 0, 0, k), "", ""));
    }

    /// Jumps by name; the empty name is the next instruction.
    fn jump(&mut self, code: u16, k: u32, yes: &'static str, no: &'static str) {
        self.code
            .push((Instruction::new(JMP | code, 0, 0, k), yes, no));
    }

    fn jump_equal(&mut self, choices: &[(u32, &'static str)], otherwise: &'static str) {
        for &(k, to) in choices {
            self.jump(JEQ, k, to, "");
        }
        self.jump(JA, 0, otherwise, "");
    }

    fn finish(self) -> Result<Classic, FilterError> {
        let distance = |from: usize, to: &str| match self.places.get(to) {
            Some(place) => (place - from - 1) as u32,
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

/// The program: 0, or the inner packet's offset and kind.
pub(super) fn program() -> Result<Classic, FilterError> {
    let mut b = Builder::default();
    link(&mut b);
    network(&mut b);
    transport(&mut b);
    gre(&mut b);
    b.place("ethernet");
    b.add(ALU | OR, ETHERNET);
    b.add(RET | A, 0);
    b.place("raw");
    b.add(ALU | OR, RAW);
    b.add(RET | A, 0);
    b.place("none");
    b.add(RET | K, 0);
    b.finish()
}

/// Past Ethernet and tags: X is the network header's offset.
fn link(b: &mut Builder) {
    let after_tag = ["tag 1", "tag 2"];
    for tag in 0..=TAGS {
        if tag > 0 {
            b.place(after_tag[tag as usize - 1]);
        }
        b.add(LDX | IMM, 14 + 4 * tag);
        b.add(LD | H | ABS, 12 + 4 * tag);
        match after_tag.get(tag as usize) {
            Some(&next) => b.jump_equal(
                &[
                    (0x8100, next),
                    (0x88a8, next),
                    (0x9100, next),
                    (IPV4, "v4"),
                    (IPV6, "v6"),
                ],
                "none",
            ),
            None => b.jump_equal(&[(IPV4, "v4"), (IPV6, "v6")], "none"),
        }
    }
}

/// Past IP: X is the transport header's offset, A its protocol.
fn network(b: &mut Builder) {
    b.place("v4");
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

    b.place("v6");
    b.add(LD | B | IND, 6);
    b.add(ST, PROTOCOL);
    b.add(MISC | TXA, 0);
    b.add(ALU | ADD, 40);
    b.add(MISC | TAX, 0);
    b.add(LD | MEM, PROTOCOL);
    for extension in ["extension 1", "extension 2"].into_iter().take(EXTENSIONS) {
        // Hop-by-hop options, routing, destination options; anything else is looked at below.
        b.jump_equal(
            &[(0, extension), (43, extension), (60, extension)],
            "transport",
        );
        b.place(extension);
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
    b.place("transport");
    b.jump_equal(&[(17, "udp"), (47, "gre"), (4, "ip"), (41, "ip")], "none");

    b.place("ip");
    b.add(MISC | TXA, 0);
    b.jump(JA, 0, "raw", "");

    b.place("udp");
    b.add(LD | H | IND, 2);
    b.jump_equal(&[(4789, "vxlan"), (6081, "geneve")], "none");

    b.place("vxlan");
    // Without this flag there is no network identifier, and it is something else.
    b.add(LD | B | IND, 8);
    b.jump(JSET, 0x08, "", "none");
    b.add(MISC | TXA, 0);
    b.add(ALU | ADD, 16);
    b.jump(JA, 0, "ethernet", "");

    b.place("geneve");
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
    b.place("gre");
    b.add(LD | H | IND, 0);
    b.add(ST, FLAGS);
    // Source routing and version 1 (PPTP) carry something else.
    b.jump(JSET, 0x4007, "none", "");
    b.add(MISC | TXA, 0);
    b.add(ALU | ADD, 4);
    b.add(ST, END);
    // Checksum, key and sequence number take four bytes each.
    for (flag, then, name) in [
        (0x8000, "checksum", "key"),
        (0x2000, "has key", "sequence"),
        (0x1000, "has sequence", "protocol"),
    ] {
        b.add(LD | MEM, FLAGS);
        b.jump(JSET, flag, then, name);
        b.place(then);
        b.add(LD | MEM, END);
        b.add(ALU | ADD, 4);
        b.add(ST, END);
        b.place(name);
    }
    b.add(LD | H | IND, 2);
    b.place("payload");
    for (kind, name) in [
        (TEB, "carries ethernet"),
        (IPV4, "carries ip"),
        (IPV6, "carries ip"),
    ] {
        b.jump(JEQ, kind, name, "");
    }
    b.jump(JA, 0, "none", "");
    b.place("carries ethernet");
    b.add(LD | MEM, END);
    b.jump(JA, 0, "ethernet", "");
    b.place("carries ip");
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
    const V4_UDP: [u8; 20] = [
        0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2,
    ];

    #[test]
    fn tunnels_are_found_where_they_end() {
        let vxlan = [0, 0, 0x12, 0xb5, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 11, 0];
        assert_eq!(found(&[&MACS, &[8, 0], &V4_UDP, &vxlan]), ETHERNET | 50);
        let tags = [0x81, 0, 0, 1, 0x88, 0xa8, 0, 2, 8, 0];
        assert_eq!(found(&[&MACS, &tags, &V4_UDP, &vxlan]), ETHERNET | 58);
        let geneve = [0, 0, 0x17, 0xc1, 0, 0, 0, 0, 2, 0, 0x08, 0, 0, 0, 11, 0];
        assert_eq!(found(&[&MACS, &[8, 0], &V4_UDP, &geneve]), RAW | 58);

        let mut v4_gre = V4_UDP;
        v4_gre[9] = 47;
        let gre = |flags: u8, kind: [u8; 2]| {
            found(&[&MACS, &[8, 0], &v4_gre, &[flags, 0], &kind, &[0; 12]])
        };
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
