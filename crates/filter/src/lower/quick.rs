//! A filter's quick version: it decides by the packet's linear part, in registers that need not be saved, so that a
//! program can finish with a rejected packet before any other work. Undecided packets are left to the whole filter.

use super::emitter::{Emitter, Returns, View, reg};
use super::{Hook, Target};
use crate::classic::Classic;
use trawl_ebpf::{Insn, op};

/// Result of a quick version in r0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quick {
    /// The packet does not match.
    Rejected = 0,
    /// It matches.
    Matched = 1,
    /// The whole filter must decide.
    Undecided = 2,
}

/// Maximum length: a longer filter is so slow that the savings around it do not matter.
const MAX_LEN: usize = 256;

/// Replacements for registers of a fast version that calls preserve: r4 and r5 of the contract are unused here.
const INSTEAD: [(u8, u8); 3] = [(reg::A, 4), (reg::X, 5), (reg::POINTER, 6)];

/// Lowers a classic program to a block that expects the XDP context in r1, the packet's `data` in r2 and its `data_end`
/// in r3, leaves one of [`Quick`]'s numbers in r0, and changes only r0 and r2 to r6. `None` if it requires more than
/// that: scratch memory, the packet's length, a helper.
pub fn lower_quick(classic: &Classic, target: &Target) -> Option<Vec<Insn>> {
    if target.hook != Hook::Xdp || classic.instructions().len() > MAX_LEN {
        return None;
    }
    let mut emitter = Emitter::new(target);
    emitter.undecided = Some(emitter.asm.label());
    let graph = emitter.graph(classic).ok()?;
    if graph.returns_a() {
        return None;
    }
    let version = emitter.version(&graph, View::Plain, None, Returns::Result).ok()?;
    if emitter.keeps_length {
        return None;
    }
    emitter.begin(version);
    emitter.finish_quick().ok()?.into_iter().map(moved).collect()
}

/// Returns the instruction with the registers that are free here.
fn moved(mut insn: Insn) -> Option<Insn> {
    let class = insn.code & 0x07;
    let calls = matches!(class, op::JMP | op::JMP32) && insn.code & 0xf0 == op::CALL;
    let writes_context = insn.dst() == reg::CONTEXT && matches!(class, op::LDX | op::ALU | op::ALU64);
    let stores = matches!(class, op::ST | op::STX);
    if calls || writes_context || stores {
        return None;
    }
    let other = |register: u8| match register {
        reg::TMP..=reg::DATA_END => Some(register),
        _ => INSTEAD.iter().find(|(from, _)| *from == register).map(|(_, to)| *to),
    };
    insn.regs = other(insn.dst())? | other(insn.src())? << 4;
    Some(insn)
}
