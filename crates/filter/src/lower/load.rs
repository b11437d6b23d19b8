//! Loads: directly from the packet, from a copy, or by the kernel's helper; with and without a tag to restore.

use super::Hook;
use super::emitter::{EmitPoint, Emitter, Mode, View, reg, slot};
use super::flow::Check;
use super::graph::At;
use trawl_ebpf::op;

/// Offset of the tag's bytes in the frame that the filter sees.
const TAG: u32 = 12;
/// Offset of the first byte after the tag.
pub(super) const AFTER_TAG: u32 = TAG + 4;

/// Maximum distance in one load instruction; the slow version handles larger ones.
const MAX_OFFSET: u32 = 0x7fff;
/// Maximum variable part of a packet pointer that the verifier follows.
const MAX_VARIABLE_OFFSET: u32 = 0xffff;

/// A contiguous piece of a field.
#[derive(Debug, Clone, Copy)]
enum Piece {
    /// In the packet at this offset.
    Packet(u32),
    /// In the tag at this offset.
    Tag(u32),
}

fn size(width: u8) -> u8 {
    match width {
        4 => op::W,
        2 => op::H,
        _ => op::B,
    }
}

/// Divides a field into contiguous pieces of 1, 2 or 4 bytes.
fn pieces(view: View, offset: u32, width: u8) -> Vec<(Piece, u8)> {
    let piece = |at: u32| match view {
        View::Plain => Piece::Packet(at),
        View::Tagged if at < TAG => Piece::Packet(at),
        View::Tagged if at < AFTER_TAG => Piece::Tag(at - TAG),
        View::Tagged => Piece::Packet(at - 4),
    };
    let mut pieces = Vec::new();
    let (mut at, end) = (offset, offset + u32::from(width));
    while at < end {
        let border = match view {
            View::Tagged if at < TAG => end.min(TAG),
            View::Tagged if at < AFTER_TAG => end.min(AFTER_TAG),
            _ => end,
        };
        // The verifier requires aligned accesses to the stack, which contains the tag.
        let is_tag = matches!(piece(at), Piece::Tag(_));
        let width = match border - at {
            length if is_tag && at % 2 == 1 => length.min(1),
            length @ (1 | 2 | 4) => length,
            length => length - 1,
        };
        pieces.push((piece(at), width as u8));
        at += width;
    }
    pieces
}

impl Emitter<'_> {
    fn view(&self, version: usize) -> View {
        self.versions[version].view
    }

    /// Returns the number of bytes in memory for this many bytes seen by the filter.
    fn real(&self, version: usize, bytes: u32) -> u32 {
        match self.view(version) {
            View::Tagged if bytes > TAG => bytes.saturating_sub(4).max(TAG),
            _ => bytes,
        }
    }

    /// Returns the number of the buffer's bytes, at a copy, that the program may rely on.
    fn buffer(&self, version: usize) -> u32 {
        let Hook::Copy { buffer } = self.target.hook else {
            return 0;
        };
        u32::from(buffer).saturating_sub(self.versions[version].max_base.unwrap_or(0))
    }

    /// Emits a comparison with the packet's end; returns false if it always fails.
    pub(super) fn check_fixed(&mut self, version: usize, check: Check, leave: super::assembler::Label) -> bool {
        let bytes = self.real(version, check.bytes);
        if self.is_copy() {
            if bytes > self.buffer(version) {
                self.asm.goto(leave);
                return false;
            }
            self.asm.jump_if(op::JLT, reg::DATA_END, bytes, leave);
            return true;
        }
        if bytes > MAX_OFFSET {
            self.asm.goto(leave);
            return false;
        }
        self.emit(op::mov(reg::TMP, reg::DATA));
        self.emit(op::alu_imm(op::ADD, reg::TMP, bytes as i32));
        self.asm.jump_if_reg(op::JGT, reg::TMP, reg::DATA_END, leave);
        true
    }

    /// Emits the pointer to the data at X, and a comparison with the packet's end.
    pub(super) fn check_after_x(
        &mut self,
        version: usize,
        check: Check,
        x_bound: u32,
        leave: super::assembler::Label,
    ) -> bool {
        let bytes = match self.view(version) {
            View::Plain => check.bytes,
            View::Tagged => check.bytes - 4,
        };
        let room = if self.is_copy() {
            self.buffer(version)
        } else {
            MAX_VARIABLE_OFFSET - self.versions[version].max_base.unwrap_or(0)
        };
        if bytes > MAX_OFFSET || bytes > room {
            self.asm.goto(leave);
            return false;
        }
        if self.is_copy() {
            self.bound(reg::X, x_bound, room - bytes, leave);
            self.emit(op::mov(reg::TMP, reg::X));
            self.emit(op::alu_imm(op::ADD, reg::TMP, bytes as i32));
            self.asm.jump_if_reg(op::JGT, reg::TMP, reg::DATA_END, leave);
            self.emit(op::mov(reg::POINTER, reg::DATA));
            self.emit(op::alu(op::ADD, reg::POINTER, reg::X));
            return true;
        }
        self.bound(reg::X, x_bound, room - bytes, leave);
        // For the verifier, a pointer computed under a looser bound of X does not reach this far.
        if check.fresh || x_bound > room - bytes {
            self.emit(op::mov(reg::POINTER, reg::DATA));
            self.emit(op::alu(op::ADD, reg::POINTER, reg::X));
        }
        self.check_pointer(bytes, leave);
        true
    }

    fn check_pointer(&mut self, bytes: u32, leave: super::assembler::Label) {
        self.emit(op::mov(reg::TMP, reg::POINTER));
        self.emit(op::alu_imm(op::ADD, reg::TMP, bytes as i32));
        self.asm.jump_if_reg(op::JGT, reg::TMP, reg::DATA_END, leave);
    }

    fn bound(&mut self, register: u8, known: u32, most: u32, leave: super::assembler::Label) {
        if known > most {
            self.asm.jump_if(op::JGT, register, most, leave);
        }
    }

    /// Emits a load of a field into A.
    pub(super) fn load(&mut self, point: EmitPoint, mode: Mode, at: At, width: u8, raw: bool) {
        match (at, mode) {
            (At::Abs(k), _) => self.fixed(point.version, mode, reg::A, k, width, raw),
            (At::Ind(k), Mode::Fast) => {
                if self.view(point.version) == View::Plain {
                    self.emit(op::load(size(width), reg::A, reg::POINTER, k as i16));
                } else if k >= AFTER_TAG {
                    self.emit(op::load(size(width), reg::A, reg::POINTER, (k - 4) as i16));
                } else {
                    self.after_tag_or_leave(point, k, width);
                }
                self.order(reg::A, width, raw);
            }
            (At::Wrap(k), Mode::Fast) => {
                self.wrapped_or_leave(point, k, width);
                self.order(reg::A, width, raw);
            }
            (At::Ind(_) | At::Wrap(_), Mode::Slow) => {
                self.slow_indirect(point.version, at, width);
                self.order(reg::A, width, raw);
            }
        }
    }

    /// Converts from the packet's byte order to the host's.
    fn order(&mut self, register: u8, width: u8, raw: bool) {
        if width > 1 && !raw {
            self.emit(op::be(register, 8 * i32::from(width)));
        }
    }

    /// Emits a load at a fixed offset. In the fast version the bytes are known to exist.
    pub(super) fn fixed(&mut self, version: usize, mode: Mode, into: u8, offset: u32, width: u8, raw: bool) {
        let pieces = pieces(self.view(version), offset, width);
        if let [(piece, _)] = pieces[..] {
            self.piece(version, mode, into, piece, width);
            return self.order(into, width, raw);
        }
        for (index, &(piece, part)) in pieces.iter().enumerate() {
            let register = if index == 0 { into } else { reg::TMP };
            self.piece(version, mode, register, piece, part);
            self.order(register, part, false);
            if index > 0 {
                self.emit(op::alu32_imm(op::LSH, into, 8 * u32::from(part)));
                self.emit(op::alu32(op::OR, into, reg::TMP));
            }
        }
        if raw {
            // The pieces were joined as a number, but its uses expect the packet's byte order.
            self.order(into, width, false);
        }
    }

    fn piece(&mut self, version: usize, mode: Mode, into: u8, piece: Piece, width: u8) {
        match (piece, mode) {
            (Piece::Tag(k), _) => {
                let at = slot::TAG + k as i16;
                self.emit(op::load(size(width), into, mode.scratch(), at));
            }
            (Piece::Packet(k), Mode::Fast) => {
                self.emit(op::load(size(width), into, reg::DATA, k as i16));
            }
            (Piece::Packet(k), Mode::Slow) => {
                self.emit(op::mov32_imm(2, k));
                self.add_base(version);
                self.call_load(slot::STAGING, width);
                self.emit(op::load(size(width), into, reg::SLOW_SCRATCH, slot::STAGING));
            }
        }
    }

    fn add_base(&mut self, version: usize) {
        if self.versions[version].max_base.is_some() {
            self.emit(op::load(op::DW, reg::TMP, reg::SLOW_SCRATCH, slot::BASE));
            self.emit(op::alu(op::ADD, 2, reg::TMP));
        }
    }

    /// Emits a call of the load helper, with the offset in r2. A failure is no match.
    fn call_load(&mut self, to: i16, width: u8) {
        self.emit(op::mov32_imm(4, u32::from(width)));
        self.call_load_sized(to);
    }

    fn call_load_sized(&mut self, to: i16) {
        // Slow versions require a helper.
        let Some(helper) = self.target.helper() else {
            return;
        };
        self.emit(op::mov(1, reg::SLOW_CONTEXT));
        self.emit(op::mov(3, reg::SLOW_SCRATCH));
        self.emit(op::alu_imm(op::ADD, 3, i32::from(to)));
        self.emit(op::call(helper));
        self.asm.jump_if(op::JNE, reg::TMP, 0, self.no_match);
    }

    /// Emits a load at X plus `k` in the fast version of a tagged frame. Loads that touch the tag or bytes before it
    /// are rare, so they leave for the slow version.
    fn after_tag_or_leave(&mut self, point: EmitPoint, k: u32, width: u8) {
        let leave = self.leave(point, 0);
        let least = AFTER_TAG - k;
        self.asm.jump_if(op::JLT, reg::X, least, leave);
        let most = MAX_VARIABLE_OFFSET - AFTER_TAG - u32::from(width);
        self.asm.jump_if(op::JGT, reg::X, most, leave);
        self.emit(op::mov(reg::TMP, reg::X));
        self.emit(op::alu_imm(op::ADD, reg::TMP, -(least as i32)));
        self.emit(op::mov(reg::POINTER, reg::DATA));
        self.emit(op::alu(op::ADD, reg::POINTER, reg::TMP));
        // X + k is 16 for the minimum X, which is at 12 in memory.
        self.check_pointer(TAG + u32::from(width), leave);
        self.emit(op::load(size(width), reg::A, reg::POINTER, TAG as i16));
    }

    /// Emits a load at X plus `k` in 32 bits in the fast version, with a check of its own.
    fn wrapped_or_leave(&mut self, point: EmitPoint, k: u32, width: u8) {
        let leave = self.leave(point, 0);
        let room = if self.is_copy() {
            self.buffer(point.version)
        } else {
            MAX_VARIABLE_OFFSET - self.versions[point.version].max_base.unwrap_or(0)
        };
        // X is the second operand: kernels from 6.10 on treat a sum that began as a copy of X as X at a distance, and
        // refuse a large distance in a pointer.
        self.emit(op::mov32_imm(reg::TMP, k));
        self.emit(op::alu32(op::ADD, reg::TMP, reg::X));
        // `end` is the first offset beyond the range.
        let end = (room + 1).saturating_sub(u32::from(width));
        self.asm.jump_if(op::JGE, reg::TMP, end, leave);
        if self.view(point.version) == View::Tagged {
            self.asm.jump_if(op::JLT, reg::TMP, AFTER_TAG, leave);
            self.emit(op::alu_imm(op::ADD, reg::TMP, -4));
        }
        self.emit(op::mov(reg::POINTER, reg::DATA));
        self.emit(op::alu(op::ADD, reg::POINTER, reg::TMP));
        if self.is_copy() {
            self.emit(op::alu_imm(op::ADD, reg::TMP, i32::from(width)));
            self.asm.jump_if_reg(op::JGT, reg::TMP, reg::DATA_END, leave);
        } else {
            self.check_pointer(width.into(), leave);
        }
        self.emit(op::load(size(width), reg::A, reg::POINTER, 0));
    }

    fn slow_indirect(&mut self, version: usize, at: At, width: u8) {
        self.emit(op::mov32(2, reg::X));
        // `least` is the minimum offset.
        let least = match at {
            At::Wrap(k) => {
                self.emit(op::alu32_imm(op::ADD, 2, k));
                0
            }
            At::Abs(k) | At::Ind(k) => {
                if k > 0 {
                    self.emit(op::alu_imm(op::ADD, 2, k as i32));
                }
                k
            }
        };
        // The helper accepts 32 bits of offset: larger ones must not wrap into the packet.
        self.asm.jump_if(op::JGT, 2, 0x7fff_ffff, self.no_match);
        let done = self.asm.label();
        if self.view(version) == View::Tagged {
            let (after, image) = (self.asm.label(), self.asm.label());
            if least < AFTER_TAG {
                self.asm.jump_if(op::JLT, 2, AFTER_TAG, image);
                self.asm.goto(after);
                self.asm.bind(image);
                self.load_from_image(width);
                self.asm.goto(done);
                self.asm.bind(after);
            }
            self.emit(op::alu_imm(op::ADD, 2, -4));
        }
        self.add_base(version);
        self.call_load(slot::STAGING, width);
        self.emit(op::load(size(width), reg::A, reg::SLOW_SCRATCH, slot::STAGING));
        self.asm.bind(done);
    }

    /// Emits a load of a field that begins before the tag's end, at the offset in r2: the frame's beginning is
    /// assembled with its tag, and read from there.
    fn load_from_image(&mut self, width: u8) {
        let scratch = reg::SLOW_SCRATCH;
        self.emit(op::store(op::DW, scratch, slot::KEPT, 2));
        self.emit(op::store_imm(op::W, scratch, slot::IMAGE + 16, 0));
        self.emit(op::mov32_imm(2, 0));
        self.call_load(slot::IMAGE, TAG as u8);
        // Reads up to four bytes after the tag, if the frame has them.
        let (filled, few) = (self.asm.label(), self.asm.label());
        self.emit(op::load(op::DW, 4, scratch, slot::LENGTH));
        self.asm.jump_if(op::JLE, 4, AFTER_TAG, filled);
        self.emit(op::alu_imm(op::ADD, 4, -(AFTER_TAG as i32)));
        self.asm.jump_if(op::JLE, 4, 4, few);
        self.emit(op::mov32_imm(4, 4));
        self.asm.bind(few);
        self.emit(op::mov32_imm(2, TAG));
        self.call_load_sized(slot::IMAGE + 16);
        self.asm.bind(filled);
        self.emit(op::load(op::DW, 2, scratch, slot::KEPT));
        self.emit(op::load(op::DW, 3, scratch, slot::LENGTH));
        self.emit(op::mov(reg::TMP, 2));
        self.emit(op::alu_imm(op::ADD, reg::TMP, i32::from(width)));
        self.asm.jump_if_reg(op::JGT, reg::TMP, 3, self.no_match);
        self.emit(op::mov(1, scratch));
        self.emit(op::alu(op::ADD, 1, 2));
        // Reads byte by byte, because the offset may be odd and the verifier requires aligned stack reads.
        self.emit(op::load(op::B, reg::A, 1, slot::IMAGE));
        for at in 1..i16::from(width) {
            self.emit(op::load(op::B, reg::TMP, 1, slot::IMAGE + at));
            self.emit(op::alu32_imm(op::LSH, reg::A, 8));
            self.emit(op::alu32(op::OR, reg::A, reg::TMP));
        }
        // The bytes were joined as a number, but its uses expect the packet's byte order.
        self.order(reg::A, width, false);
    }

    /// Emits a check for a field without a use of its value: a packet without it does not match.
    pub(super) fn touch(&mut self, version: usize, mode: Mode, at: At, width: u8) {
        let one_by_one = match at {
            At::Abs(_) => false,
            At::Ind(k) => self.view(version) == View::Tagged && k < AFTER_TAG,
            At::Wrap(_) => true,
        };
        let length = match mode {
            // The comparison was made before.
            Mode::Fast if !one_by_one => return,
            Mode::Fast if self.is_copy() => reg::DATA_END,
            Mode::Fast => reg::LENGTH,
            Mode::Slow => {
                self.emit(op::load(op::DW, 3, reg::SLOW_SCRATCH, slot::LENGTH));
                3
            }
        };
        let width = u32::from(width);
        let more = match at {
            At::Abs(k) => {
                return self.asm.jump_if(op::JLT, length, k + width, self.no_match);
            }
            At::Ind(k) => {
                self.emit(op::mov32(reg::TMP, reg::X));
                k + width
            }
            At::Wrap(k) => {
                self.emit(op::mov32(reg::TMP, reg::X));
                self.emit(op::alu32_imm(op::ADD, reg::TMP, k));
                width
            }
        };
        self.emit(op::alu_imm(op::ADD, reg::TMP, more as i32));
        self.asm.jump_if_reg(op::JGT, reg::TMP, length, self.no_match);
    }
}
