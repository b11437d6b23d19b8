//! A look-up in a table: a search that halves what is left, without a jump, so that the verifier follows one way.

use super::emit::{Emitter, Mode};
use super::layout::{reg, slot};
use crate::table::ENTRY_SIZE;
use trawl_ebpf::{Insn, op};

/// Loads the address of a place in a map's value; the map's descriptor is put in when the map has been made.
const LOAD_ADDRESS: u8 = op::LOAD_IMMEDIATE;

/// Where in an entry its parts are.
const SPAN: i16 = 8;
const NEXT: i16 = 12;

impl Emitter<'_> {
    /// A becomes the state that it leads to, or 0.
    pub(super) fn find(&mut self, version: usize, mode: Mode, table: usize) {
        let table = self.versions[version].first_table + table;
        let (steps, is_first, is_last) = {
            let table = &self.tables[table];
            (table.steps(), table.is_first, table.is_last)
        };
        // A register that nothing else is in: the slow version keeps what it needs in those that calls keep.
        let found = match mode {
            Mode::Fast => reg::SLOW_SCRATCH,
            Mode::Slow => reg::CONTEXT,
        };
        self.emit(op::mov32(reg::A, reg::A));
        if !is_first {
            self.emit(op::load(op::DW, reg::TMP, mode.scratch(), slot::STATE));
            self.emit(op::alu(op::OR, reg::A, reg::TMP));
        }
        // The last entry whose key is less than A plus one.
        self.emit(op::alu_imm(op::ADD, reg::A, 1));
        self.emit(op::mov32_imm(found, 0));
        for step in (0..steps).rev() {
            let distance = ENTRY_SIZE << step;
            self.address(reg::TMP, table, distance as i32);
            self.emit(op::alu(op::ADD, reg::TMP, found));
            self.emit(op::load(op::DW, reg::TMP, reg::TMP, 0));
            self.emit(op::alu(op::SUB, reg::TMP, reg::A));
            self.emit(op::alu_imm(op::RSH, reg::TMP, 63));
            self.emit(op::alu_imm(op::LSH, reg::TMP, distance.ilog2() as i32));
            self.emit(op::alu(op::ADD, found, reg::TMP));
        }
        self.address(reg::TMP, table, 0);
        self.emit(op::alu(op::ADD, reg::TMP, found));
        self.emit(op::load(op::DW, found, reg::TMP, 0));
        self.emit(op::alu_imm(op::ADD, reg::A, -1));
        self.emit(op::alu(op::SUB, reg::A, found));
        self.emit(op::load(op::W, found, reg::TMP, SPAN));
        self.emit(op::load(op::W, reg::TMP, reg::TMP, NEXT));
        let within = self.asm.label();
        // Keys of another state are farther away than any span.
        self.asm.jump_if_reg(op::JLE, reg::A, found, within);
        self.emit(op::mov32_imm(reg::TMP, 0));
        self.asm.place(within);
        self.emit(op::mov(reg::A, reg::TMP));
        if !is_last {
            self.emit(op::alu_imm(op::LSH, reg::TMP, 32));
            self.emit(op::store(op::DW, mode.scratch(), slot::STATE, reg::TMP));
        }
    }

    fn address(&mut self, register: u8, table: usize, offset: i32) {
        self.emit(Insn::new(
            LOAD_ADDRESS,
            register,
            op::MAP_VALUE,
            0,
            table as i32,
        ));
        self.emit(Insn::new(0, 0, 0, 0, offset));
    }
}
