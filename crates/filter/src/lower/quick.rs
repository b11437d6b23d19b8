//! A filter's quick version: it judges a packet by what lies in its linear part, in registers that nobody has to save,
//! so that a program can be done with a packet that it rejects before it has begun any work. What it cannot judge it
//! leaves to the whole filter.

use super::emit::reg;
use super::emit::{Emitter, Returns, View};
use super::{Hook, Target};
use crate::classic::Classic;
use trawl_ebpf::{Insn, op};

/// What a quick version leaves in r0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quick {
    /// The packet does not match.
    Rejected = 0,
    /// It matches.
    Matched = 1,
    /// The whole filter has to look at it.
    Undecided = 2,
}

/// A longer filter costs so much by itself that what is saved around it does not count.
const LONGEST: usize = 256;

/// Where the registers of a fast version go that calls keep: what the contract's r4 and r5 hold is not needed here.
const INSTEAD: [(u8, u8); 3] = [(reg::A, 4), (reg::X, 5), (reg::POINTER, 6)];

/// Lowers a classic program to a block that finds the XDP context in r1, the packet's `data` in r2 and its `data_end` in
/// r3, leaves one of [`Quick`]'s numbers in r0, and changes nothing but r0 and r2 to r6. `None` if it takes more than
/// that: scratch memory, the packet's length, a helper.
pub fn lower_quick(classic: &Classic, target: &Target) -> Option<Vec<Insn>> {
    if target.hook != Hook::Xdp || classic.instructions().len() > LONGEST {
        return None;
    }
    let mut emitter = Emitter::new(target);
    emitter.undecided = Some(emitter.asm.label());
    let graph = emitter.graph(classic).ok()?;
    if graph.returns_a() {
        return None;
    }
    let version = emitter
        .version(&graph, View::Plain, None, Returns::Result)
        .ok()?;
    if emitter.keeps_length {
        return None;
    }
    emitter.begin(version);
    emitter
        .finish_quick()
        .ok()?
        .into_iter()
        .map(moved)
        .collect()
}

/// The instruction in the registers that are free here.
fn moved(mut insn: Insn) -> Option<Insn> {
    let class = insn.code & 0x07;
    let calls = matches!(class, op::JMP | op::JMP32) && insn.code & 0xf0 == op::CALL;
    let writes_context =
        insn.dst() == reg::CONTEXT && matches!(class, op::LDX | op::ALU | op::ALU64);
    let stores = matches!(class, op::ST | op::STX);
    if calls || writes_context || stores {
        return None;
    }
    let other = |register: u8| match register {
        reg::TMP..=reg::DATA_END => Some(register),
        _ => INSTEAD
            .iter()
            .find(|(from, _)| *from == register)
            .map(|(_, to)| *to),
    };
    insn.regs = other(insn.dst())? | other(insn.src())? << 4;
    Some(insn)
}
