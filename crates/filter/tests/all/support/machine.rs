//! An eBPF interpreter that is as strict as the verifier, at run time: it stops at uninitialised registers and stack
//! bytes, at reads outside the packet's linear part, and at bad pointers.

use trawl_ebpf::Insn;
use trawl_filter::{Hook, Target};

/// Contents of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Uninitialised,
    Number(u64),
    Context,
    /// Pointer into the packet, or into the copy of its beginning.
    Packet(i64),
    PacketEnd,
    /// Pointer into the scratch.
    Scratch(i64),
}

use Value::*;

/// A packet as seen by a hook.
#[derive(Debug, Clone)]
pub struct Scene<'a> {
    /// Bytes in memory, without an out-of-band tag.
    pub bytes: &'a [u8],
    /// Number of linear bytes.
    pub linear: usize,
    /// The out-of-band tag: protocol and control information.
    pub tag: Option<(u16, u16)>,
}

const SCRATCH: usize = trawl_filter::lower::SCRATCH_SIZE as usize;

struct Machine<'a> {
    scene: &'a Scene<'a>,
    target: &'a Target,
    registers: [Value; 11],
    scratch: [Option<u8>; SCRATCH],
    /// Pointers stored in the scratch, by slot.
    kept: [Option<Value>; SCRATCH / 8],
}

/// Runs a block on a packet.
pub fn run(block: &[Insn], target: &Target, scene: &Scene) -> Result<u32, String> {
    let length = scene.bytes.len() as u64;
    let mut registers = [Uninitialised; 11];
    registers[1] = Context;
    // A socket filter must not access the packet's memory.
    registers[2] = match target.hook {
        Hook::Socket => Uninitialised,
        _ => Packet(0),
    };
    registers[3] = match target.hook {
        Hook::Copy { buffer } => Number((scene.bytes.len() as u64).min(u64::from(buffer))),
        Hook::Socket => Uninitialised,
        _ => PacketEnd,
    };
    registers[4] = match target.hook {
        Hook::Copy { .. } => Number(length),
        _ => Uninitialised,
    };
    registers[5] = Scratch(0);
    let mut machine = Machine { scene, target, registers, scratch: [None; SCRATCH], kept: [None; SCRATCH / 8] };
    let mut pc = 0;
    for _ in 0..1_000_000 {
        let Some(&insn) = block.get(pc) else {
            if pc != block.len() {
                return Err(format!("jumped to {pc}, outside the block of {}", block.len()));
            }
            return match machine.registers[0] {
                Number(result) => Ok(result as u32),
                other => Err(format!("r0 is {other:?} at the end")),
            };
        };
        let step = machine.step(insn).map_err(|why| format!("{pc}: {insn}: {why}"))?;
        pc = (pc as i64 + 1 + step) as usize;
    }
    Err("does not end".into())
}

impl Machine<'_> {
    fn number(&self, register: u8) -> Result<u64, String> {
        match self.registers[usize::from(register)] {
            Number(value) => Ok(value),
            other => Err(format!("r{register} is {other:?}, not a number")),
        }
    }

    fn step(&mut self, insn: Insn) -> Result<i64, String> {
        let dst = usize::from(insn.dst());
        if dst == 10 {
            return Err("touches r10".into());
        }
        match insn.code & 7 {
            0x04 | 0x07 => self.arithmetic(insn).map(|()| 0),
            0x05 | 0x06 => self.jump(insn),
            0x01 => {
                let value = self.load(self.registers[usize::from(insn.src())], insn)?;
                self.registers[dst] = value;
                Ok(0)
            }
            0x02 => self.store(insn, Number(insn.imm as i64 as u64)).map(|()| 0),
            0x03 => self.store(insn, self.registers[usize::from(insn.src())]).map(|()| 0),
            _ => Err("unknown class".into()),
        }
    }

    fn arithmetic(&mut self, insn: Insn) -> Result<(), String> {
        let dst = usize::from(insn.dst());
        let wide = insn.code & 7 == 7;
        let operation = insn.code & 0xf0;
        if operation == 0xd0 {
            let value = self.number(insn.dst())?;
            self.registers[dst] = Number(match insn.imm {
                16 => u64::from(u16::from_be(value as u16)),
                32 => u64::from(u32::from_be(value as u32)),
                _ => return Err("swap of another width".into()),
            });
            return Ok(());
        }
        let operand =
            if insn.code & 8 != 0 { self.registers[usize::from(insn.src())] } else { Number(insn.imm as i64 as u64) };
        if operand == Uninitialised {
            return Err("reads an uninitialised register".into());
        }
        if operation == 0xb0 && wide {
            self.registers[dst] = operand;
            return Ok(());
        }
        if let (0x10, true, PacketEnd, Packet(at)) = (operation, wide, self.registers[dst], operand) {
            self.registers[dst] = Number((self.scene.linear as i64 - at) as u64);
            return Ok(());
        }
        let Number(operand) = operand else {
            return Err(format!("arithmetic with {operand:?}"));
        };
        if operation == 0xb0 {
            self.registers[dst] = Number(u64::from(operand as u32));
            return Ok(());
        }
        if let (0x00, true, Packet(at)) = (operation, wide, self.registers[dst]) {
            let most = 0xffff;
            if operand as i64 > most || (operand as i64) < 0 || at + operand as i64 > 2 * most {
                return Err(format!("packet pointer moved by {operand}"));
            }
            self.registers[dst] = Packet(at + operand as i64);
            return Ok(());
        }
        if let (0x00, true, Scratch(at)) = (operation, wide, self.registers[dst]) {
            self.registers[dst] = Scratch(at + operand as i64);
            return Ok(());
        }
        let value = self.number(insn.dst())?;
        self.registers[dst] = Number(if wide {
            match operation {
                0x00 => value.wrapping_add(operand),
                0x10 => value.wrapping_sub(operand),
                0x50 => value & operand,
                0x70 => value >> operand,
                _ => return Err("64-bit operation that no filter needs".into()),
            }
        } else {
            let (a, b) = (value as u32, operand as u32);
            u64::from(match operation {
                0x00 => a.wrapping_add(b),
                0x10 => a.wrapping_sub(b),
                0x20 => a.wrapping_mul(b),
                // Zero must have been handled before: the kernel's answer differs from a filter's.
                0x30 => a.checked_div(b).ok_or("divides by zero")?,
                0x90 => a.checked_rem(b).ok_or("divides by zero")?,
                0x40 => a | b,
                0x50 => a & b,
                0xa0 => a ^ b,
                0x60 => a.checked_shl(b).ok_or("shifts too far")?,
                0x70 => a.checked_shr(b).ok_or("shifts too far")?,
                0x80 => a.wrapping_neg(),
                _ => return Err("unknown operation".into()),
            })
        });
        Ok(())
    }

    fn jump(&mut self, insn: Insn) -> Result<i64, String> {
        let wide = insn.code & 7 == 5;
        let distance = i64::from(insn.off);
        match insn.code & 0xf0 {
            0x00 if wide => return Ok(distance),
            0x00 => return Ok(i64::from(insn.imm)),
            0x80 => return self.call(insn.imm).map(|()| 0),
            _ => {}
        }
        let left = self.registers[usize::from(insn.dst())];
        let right =
            if insn.code & 8 != 0 { self.registers[usize::from(insn.src())] } else { Number(insn.imm as i64 as u64) };
        let (a, b) = match (left, right) {
            (Packet(at), PacketEnd) if wide && matches!(insn.code & 0xf0, 0x20 | 0xb0) => {
                (at as u64, self.scene.linear as u64)
            }
            (Number(a), Number(b)) if wide => (a, b),
            (Number(a), Number(b)) => (u64::from(a as u32), u64::from(b as u32)),
            other => return Err(format!("compares {other:?}")),
        };
        let holds = match insn.code & 0xf0 {
            0x10 => a == b,
            0x20 => a > b,
            0x30 => a >= b,
            0x40 => a & b != 0,
            0x50 => a != b,
            0xa0 => a < b,
            0xb0 => a <= b,
            _ => return Err("unknown comparison".into()),
        };
        Ok(if holds { distance } else { 0 })
    }

    fn load(&self, base: Value, insn: Insn) -> Result<Value, String> {
        let width = width(insn.code);
        let off = i64::from(insn.off);
        let bytes: Vec<u8> = match base {
            Packet(at) => {
                let end = match self.target.hook {
                    Hook::Copy { buffer } => usize::from(buffer),
                    _ => self.scene.linear,
                };
                let start = usize::try_from(at + off).map_err(|_| "before the packet")?;
                if start + width > end {
                    return Err(format!("reads {start}+{width} of {end} packet bytes"));
                }
                (start..start + width).map(|at| self.scene.bytes.get(at).copied().unwrap_or(0xee)).collect()
            }
            Scratch(at) => {
                let start = usize::try_from(at + off).map_err(|_| "below the scratch")?;
                if width == 8
                    && start % 8 == 0
                    && let Some(value) = self.kept.get(start / 8).copied().flatten()
                {
                    return Ok(value);
                }
                self.scratch
                    .get(start..start + width)
                    .ok_or("beyond the scratch")?
                    .iter()
                    .copied()
                    .collect::<Option<Vec<u8>>>()
                    .ok_or("reads uninitialised scratch")?
            }
            Context if width == 4 => self.context(insn.off)?.to_ne_bytes().to_vec(),
            other => return Err(format!("loads from {other:?}")),
        };
        Ok(Number(match bytes[..] {
            [a] => a.into(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            _ => u64::from_ne_bytes(bytes.try_into().map_err(|_| "odd width")?),
        }))
    }

    fn context(&self, off: i16) -> Result<u32, String> {
        let tag = self.scene.tag;
        Ok(match (self.target.hook, off) {
            (Hook::Tc | Hook::Socket, 20) => u32::from(tag.is_some()),
            (Hook::Tc | Hook::Socket, 24) => tag.map_or(0, |(_, tci)| tci.into()),
            (Hook::Tc | Hook::Socket, 28) => tag.map_or(0, |(protocol, _)| protocol.to_be().into()),
            (Hook::Tc | Hook::Socket, 0) => self.scene.bytes.len() as u32,
            // Facts are identified by their offsets.
            (Hook::Tc | Hook::Socket, 4 | 8 | 12 | 40 | 68) | (Hook::Xdp, 12 | 16) => 0x100 + off as u32,
            (Hook::Copy { .. }, 4 | 8 | 12 | 40 | 68) if self.target.copy_of_skb => 0x100 + off as u32,
            (Hook::Tc | Hook::Socket, 16) => u32::from(0x86ddu16.to_be()),
            _ => return Err(format!("no such field of the context: {off}")),
        })
    }

    fn store(&mut self, insn: Insn, value: Value) -> Result<(), String> {
        let Scratch(at) = self.registers[usize::from(insn.dst())] else {
            return Err("stores elsewhere than in the scratch".into());
        };
        let width = width(insn.code);
        let start = usize::try_from(at + i64::from(insn.off)).map_err(|_| "below the scratch")?;
        if start % width != 0 || start + width > SCRATCH {
            return Err(format!("store at {start}"));
        }
        let number = match value {
            Uninitialised => return Err("stores an uninitialised register".into()),
            Number(number) => {
                self.kept[start / 8] = None;
                number
            }
            pointer if width == 8 => {
                self.kept[start / 8] = Some(pointer);
                return Ok(());
            }
            pointer => return Err(format!("stores part of {pointer:?}")),
        };
        let bytes = number.to_ne_bytes();
        let bytes = if cfg!(target_endian = "big") { &bytes[8 - width..] } else { &bytes[..width] };
        for (cell, &byte) in self.scratch[start..].iter_mut().zip(bytes) {
            *cell = Some(byte);
        }
        Ok(())
    }

    fn call(&mut self, helper: i32) -> Result<(), String> {
        let result = match (self.target.hook, helper) {
            (Hook::Xdp, 189) | (Hook::Tc | Hook::Socket, 26) => self.load_bytes()?,
            (Hook::Xdp, 188) => self.scene.bytes.len() as u64,
            (_, 7 | 8) => 3,
            _ => return Err("a helper that the hook does not have".into()),
        };
        self.registers[0] = Number(result);
        self.registers[1..=5].fill(Uninitialised);
        Ok(())
    }

    fn load_bytes(&mut self) -> Result<u64, String> {
        if self.registers[1] != Context {
            return Err("r1 is not the context".into());
        }
        let offset = self.number(2)?;
        let Scratch(to) = self.registers[3] else {
            return Err("r3 is not in the scratch".into());
        };
        let width = self.number(4)? as usize;
        if u32::try_from(offset).is_err() || width == 0 {
            return Err(format!("offset {offset}, width {width}"));
        }
        let start = offset as usize;
        let Some(bytes) = self.scene.bytes.get(start..start + width) else {
            return Ok(-22i64 as u64);
        };
        let to = usize::try_from(to).map_err(|_| "below the scratch")?;
        for (index, &byte) in bytes.iter().enumerate() {
            *self.scratch.get_mut(to + index).ok_or("beyond the scratch")? = Some(byte);
            self.kept[(to + index) / 8] = None;
        }
        Ok(0)
    }
}

fn width(code: u8) -> usize {
    match code & 0x18 {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    }
}
