//! A filter block as a whole program, for checks with the verifier and for test runs.

use super::emitter::reg;
use super::{Hook, SCRATCH_SIZE, Target};
use trawl_ebpf::{Insn, helper, op};

/// Return values of the whole program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdicts {
    /// For a match.
    pub matched: u32,
    /// For no match.
    pub unmatched: u32,
}

/// Returns the verdicts of [`standalone`] at a hook: XDP_PASS and XDP_DROP, or 1 and 0.
pub fn verdicts(target: &Target) -> Verdicts {
    match target.hook {
        Hook::Xdp => Verdicts { matched: 2, unmatched: 1 },
        Hook::Tc | Hook::Socket | Hook::Copy { .. } => Verdicts { matched: 1, unmatched: 0 },
    }
}

/// Wraps a block into a complete program that fulfils the splice contract and returns the result.
///
/// For [`Hook::Copy`] it is a tc program that copies the packet's beginning into the first value of an array map, whose
/// descriptor must be given and whose values must have the buffer's size.
pub fn standalone(block: &[Insn], target: &Target, buffer_map: Option<i32>) -> Option<Vec<Insn>> {
    let mut program = vec![op::mov(6, 1)];
    match target.hook {
        Hook::Xdp => {
            program.extend([op::load(op::W, reg::DATA, 6, 0), op::load(op::W, reg::DATA_END, 6, 4)]);
        }
        Hook::Tc => {
            program.extend([op::load(op::W, reg::DATA, 6, 76), op::load(op::W, reg::DATA_END, 6, 80)]);
        }
        Hook::Socket => {}
        Hook::Copy { buffer } => program.extend(copy_prologue(buffer, buffer_map?)),
    }
    program.extend([
        op::mov(reg::CONTEXT, 6),
        op::mov(reg::SCRATCH, 10),
        op::alu_imm(op::ADD, reg::SCRATCH, -i32::from(SCRATCH_SIZE)),
    ]);
    program.extend_from_slice(block);
    let Verdicts { matched, unmatched } = verdicts(target);
    program.extend([
        Insn::new(op::JMP | op::JEQ | op::K, 0, 0, 2, 0),
        op::mov32_imm(0, matched),
        op::exit(),
        op::mov32_imm(0, unmatched),
        op::exit(),
    ]);
    Some(program)
}

/// Copies the packet, at most the buffer's size.
fn copy_prologue(buffer: u16, map: i32) -> Vec<Insn> {
    let max_len = i32::from(buffer);
    let [address, second_half] = op::load_immediate(op::MAP_VALUE, 9, map);
    vec![
        address,
        second_half,
        op::load(op::W, 7, 6, 0),
        op::mov(8, 7),
        Insn::new(op::JMP | op::JLE | op::K, 8, 0, 1, max_len),
        op::mov32_imm(8, max_len as u32),
        // A frame at tc is never empty, but the verifier does not know.
        Insn::new(op::JMP | op::JEQ | op::K, 8, 0, 5, 0),
        op::mov(1, 6),
        op::mov32_imm(2, 0),
        op::mov(3, 9),
        op::mov(4, 8),
        op::call(helper::SKB_LOAD_BYTES),
        op::mov(reg::DATA, 9),
        op::mov(reg::DATA_END, 8),
        op::mov(reg::LENGTH, 7),
    ]
}
