//! How often a packet jumps from program to program: the kernel has a limit, and a packet that has reached it would leave
//! a chain in the middle, or a capture without having been in the program. So nothing is put anywhere that would bring
//! a packet there.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use trawl_ebpf::{Insn, helper, op};
use trawl_kernel::Result;
use trawl_kernel::bpf::{map, program, test_run};

/// The kernel's limit.
pub const MOST: u32 = 33;

/// How one program of a chain is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// It has hooks that trawl put in.
    pub tappable: bool,
    /// Captures at its entry and at its exit.
    pub at_entry: u32,
    pub at_exit: u32,
}

/// How many jumps are counted at most for a packet that goes through all of these.
pub fn most(programs: &[Looks]) -> u32 {
    let of = match counts_attempts() {
        true => Looks::attempts,
        false => Looks::jumps,
    };
    programs.iter().map(of).sum::<u32>().saturating_sub(1)
}

impl Looks {
    /// To each capture, into the program after those at its entry, and to the next program.
    fn jumps(&self) -> u32 {
        self.at_entry + u32::from(self.at_entry > 0) + self.at_exit + 1
    }

    /// As above, with the jumps that have no target: after the last capture, or where no capture is.
    fn attempts(&self) -> u32 {
        let entry = match (self.tappable, self.at_entry) {
            (false, _) => 0,
            (true, 0) => 1,
            (true, captures) => captures + 2,
        };
        let exit = match (self.tappable, self.at_exit) {
            (false, 0) => 1,
            (true, 0) => 2,
            (_, captures) => captures + 2,
        };
        entry + exit
    }
}

/// Whether a jump is counted too when nobody is there to be jumped to, as kernels before 6.11 do. Found out by trying;
/// where that does not work they are taken to count.
fn counts_attempts() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| !reached_after_attempts().unwrap_or(false))
}

const REACHED: u32 = 7;

/// Tries many times to jump where nobody is, by constant and by computed slots, and then where somebody is.
fn reached_after_attempts() -> Result<bool> {
    const ARRAY: u8 = 2;
    const SLOT: u8 = 3;
    let array = map::create_prog_array("trawl_jumps", 2)?;
    let target = load(&[op::mov32_imm(0, REACHED), op::exit()])?;
    let fail = |e| trawl_kernel::Error::os("cannot try jumps between programs", e);
    map::set_program(array.as_fd(), 0, target.as_fd()).map_err(fail)?;
    let mut code = vec![op::mov(6, 1)];
    let jump = |slot: Insn| {
        let [map, upper_half] = op::load_immediate(op::MAP, ARRAY, array.as_raw_fd());
        [
            op::mov(1, 6),
            map,
            upper_half,
            slot,
            op::call(helper::TAIL_CALL),
        ]
    };
    // The packet's first byte, which is 1 here.
    let computed = op::mov(SLOT, 7);
    code.extend([
        op::load(op::W, 2, 1, 0),
        op::load(op::W, 3, 1, 4),
        op::mov(7, 2),
        op::alu_imm(op::ADD, 7, 1),
        Insn::new(op::JMP | op::JLE | op::X, 7, 3, 2, 0),
        op::mov32_imm(0, 0),
        op::exit(),
        op::load(op::B, 7, 2, 0),
    ]);
    for _ in 0..=MOST {
        code.extend(jump(op::mov32_imm(SLOT, 1)));
        code.extend(jump(computed));
    }
    code.extend(jump(op::mov32_imm(SLOT, 0)));
    code.extend([op::mov32_imm(0, 0), op::exit()]);
    let trying = load(&code)?;
    let answer = test_run::xdp(trying.as_fd(), &[1; 64], None, 1).map_err(fail)?;
    Ok(answer.value == REACHED)
}

fn load(code: &[Insn]) -> Result<std::os::fd::OwnedFd> {
    let options = program::LoadOptions {
        expected_attach_type: program::ATTACH_XDP,
        ..program::LoadOptions::new("trawl_jumps", program::XDP)
    };
    program::load(code, &options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_and_programs_are_jumped_to() {
        let plain = Looks::default();
        let open = Looks {
            tappable: true,
            ..plain
        };
        let watched = Looks {
            at_entry: 1,
            at_exit: 2,
            ..open
        };
        assert_eq!([plain.jumps(), open.jumps(), watched.jumps()], [1, 1, 5]);
        assert_eq!(
            [plain.attempts(), open.attempts(), watched.attempts()],
            [1, 3, 7]
        );
        assert_eq!(most(&[]), 0);
    }

    #[test]
    fn the_kernel_is_asked() {
        if trawl_kernel::run::own_user() != 0 {
            eprintln!("SKIPPED: requires root");
            return;
        }
        reached_after_attempts().expect("the programs are fine");
    }
}
