//! Single operations as instructions: arithmetic, scratch memory, facts from the context.

use super::ancillary::Answer;
use super::emit::{EmitPoint, Emitter, Mode};
use super::graph::{Op, Reg, Value};
use super::layout::{reg, slot};
use trawl_ebpf::{Insn, op};

impl Emitter<'_> {
    pub(super) fn operation(&mut self, place: EmitPoint, mode: Mode, operation: &Op) {
        let scratch = mode.scratch();
        let memory = |cell: u8| slot::MEMORY + 8 * i16::from(cell);
        let register = |r| match r {
            Reg::A => reg::A,
            Reg::X => reg::X,
        };
        match *operation {
            Op::Load { width, at, raw } => self.load(place, mode, at, width, raw),
            Op::Touch { width, at } => self.touch(place.version, mode, at, width),
            Op::HeaderLength(k) => {
                self.fixed(place.version, mode, reg::X, k, 1, false);
                self.emit(op::alu32_imm(op::AND, reg::X, 0xf));
                self.emit(op::alu32_imm(op::LSH, reg::X, 2));
            }
            Op::Field(answer) => self.field(mode, answer),
            Op::Length(r) => match mode {
                Mode::Fast => self.emit(op::mov32(register(r), reg::LENGTH)),
                Mode::Slow => self.emit(op::load(
                    op::W,
                    register(r),
                    scratch,
                    slot_low_word(slot::LENGTH),
                )),
            },
            Op::Imm(r, k) => self.emit(op::mov32_imm(register(r), k)),
            Op::Recall(r, cell) => {
                self.emit(op::load(op::DW, register(r), scratch, memory(cell)));
            }
            Op::Store(r, cell) => {
                self.emit(op::store(op::DW, scratch, memory(cell), register(r)));
            }
            Op::Alu(operation, value) => self.alu(operation, value),
            Op::Find(table) => self.find(place.version, mode, table),
            Op::Neg => self.emit(Insn::new(op::ALU | op::NEG, reg::A, 0, 0, 0)),
            Op::Tax => self.emit(op::mov32(reg::X, reg::A)),
            Op::Txa => self.emit(op::mov32(reg::A, reg::X)),
            Op::NonZeroX => self.asm.jump_if32(op::JEQ, reg::X, 0, self.no_match),
        }
    }

    fn alu(&mut self, operation: u8, value: Value) {
        match (operation, value) {
            (_, Value::K(k)) => self.emit(op::alu32_imm(operation, reg::A, k)),
            // The kernel's division by zero gives 0; a classic filter's ends it.
            (op::DIV | op::MOD, Value::X) => {
                self.asm.jump_if32(op::JEQ, reg::X, 0, self.no_match);
                self.emit(op::alu32(operation, reg::A, reg::X));
            }
            // The processor takes a shift modulo 32; libpcap shifts everything out.
            (op::LSH | op::RSH, Value::X) => {
                let (within, done) = (self.asm.label(), self.asm.label());
                self.asm.jump_if32(op::JLT, reg::X, 32, within);
                self.emit(op::mov32_imm(reg::A, 0));
                self.asm.goto(done);
                self.asm.place(within);
                self.emit(op::alu32(operation, reg::A, reg::X));
                self.asm.place(done);
            }
            (_, Value::X) => self.emit(op::alu32(operation, reg::A, reg::X)),
        }
    }

    fn field(&mut self, mode: Mode, answer: Answer) {
        match answer {
            Answer::Context(off) => self.emit(op::load(op::W, reg::A, mode.context(), off)),
            Answer::ContextBigEndian(off) => {
                self.emit(op::load(op::W, reg::A, mode.context(), off));
                self.emit(op::be(reg::A, 16));
            }
            Answer::Helper(id) => {
                let keeps_length = self.keeps_length;
                let kept = (reg::CONTEXT..=reg::SCRATCH)
                    .filter(move |&register| register != reg::LENGTH || keeps_length);
                if mode == Mode::Fast {
                    self.emit(op::mov(reg::SLOW_SCRATCH, reg::SCRATCH));
                    for r in kept.clone() {
                        self.emit(op::store(op::DW, reg::SLOW_SCRATCH, kept_slot(r), r));
                    }
                }
                self.emit(op::call(id));
                self.emit(op::mov32(reg::A, reg::TMP));
                if mode == Mode::Fast {
                    for r in kept {
                        self.emit(op::load(op::DW, r, reg::SLOW_SCRATCH, kept_slot(r)));
                    }
                }
            }
            // Settled before: these are no fields any more.
            Answer::Constant(_) | Answer::NotOutgoing | Answer::EtherType | Answer::XorX => {}
        }
    }

    /// Makes the verifier forget what it knows of X. Each way round a loop would otherwise leave X
    /// with other bounds, and each of them be followed round again: too many for its patience.
    pub(super) fn forget_x(&mut self, scratch: u8) {
        let top = if cfg!(target_endian = "big") { 0 } else { 7 };
        self.emit(op::store(op::DW, scratch, slot::STAGING, reg::X));
        // X has 32 bits, so this byte is zero already; but a slot written in part has no bounds.
        self.emit(op::store_imm(op::B, scratch, slot::STAGING + top, 0));
        self.emit(op::load(op::DW, reg::X, scratch, slot::STAGING));
    }
}

/// Where the lower half of an eight-byte slot lies.
fn slot_low_word(at: i16) -> i16 {
    if cfg!(target_endian = "big") {
        at + 4
    } else {
        at
    }
}

fn kept_slot(register: u8) -> i16 {
    slot::KEPT + 8 * i16::from(register - reg::CONTEXT)
}
