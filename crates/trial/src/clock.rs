//! Time and chance in a trial: programs read both from memory that user space writes before each run, and note the
//! targets of their redirections there.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use trawl_bpf::{map, probe};
use trawl_ebpf::Edits;
use trawl_ebpf::{Insn, helper, op, starts};
use trawl_sys::Result;
use trawl_sys::memory::Mapping;

const RESULT: u8 = 0;
const FIRST_ARGUMENT: u8 = 1;
const SECOND_ARGUMENT: u8 = 2;

/// Words of the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// The clock that stands still while the machine sleeps. In a trial, the clock that does not is the same.
    Monotonic,
    Tai,
    Jiffies,
    Cpu,
    Random,
    HardwareTime,
    /// Number of the call that redirected the packet, from 1.
    RedirectCall,
    /// The key of its map, or the interface.
    RedirectKey,
}

impl Word {
    fn offset(self) -> i32 {
        self as i32 * size_of::<u64>() as i32
    }
}

/// One page, which the kernel maps at least.
const SIZE: usize = 4096;
/// Offset of the atomic time from the wall clock, which is 37 s since 2017.
const TAI_OFFSET: u64 = 37_000_000_000;
/// Length of a tick with 250 of them a second, as Debian's kernels have.
const TICK: u64 = 4_000_000;
/// Numbers of a linear congruential generator whose upper half is the result.
const MULTIPLIER: i32 = 0x5851_f42d;
const INCREMENT: i32 = 0x1405_7b7f;
/// The error of the kernel's metadata functions if the driver has no such property.
const NO_DATA: i32 = -61;

/// Functions of the kernel that return properties of a packet from its driver.
const HARDWARE_TIME: &str = "bpf_xdp_metadata_rx_timestamp";
const WITHOUT_DATA: [&str; 2] = ["bpf_xdp_metadata_rx_hash", "bpf_xdp_metadata_rx_vlan_tag"];

/// The memory that stands for clocks and chance.
#[derive(Debug)]
pub(crate) struct Clock {
    map: OwnedFd,
    memory: Mapping,
}

/// The calls of a program that become other instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// Calls without which a program cannot be loaded for a test run.
    Needed,
    /// In addition calls of random numbers and of the number of the CPU; redirections are noted.
    Chance,
    /// In addition calls of clocks.
    Clocks,
}

/// The time that a program reads in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Nanoseconds since 1970.
    pub wall: u64,
    /// The monotonic clock.
    pub monotonic: u64,
}

/// A redirection that a program requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Redirection {
    /// Position of its call in [`Edited::calls`].
    pub call: usize,
    pub key: u64,
}

impl Clock {
    pub fn new() -> Result<Self> {
        let map = map::create_mmapable_array("trawl_clock", SIZE as u32, 1)?;
        let memory = Mapping::of_map(map.as_fd(), SIZE)?;
        Ok(Self { map, memory })
    }

    fn set(&self, word: Word, value: u64) {
        self.memory.word(word.offset() as usize).store(value, Ordering::Relaxed);
    }

    fn get(&self, word: Word) -> u64 {
        self.memory.word(word.offset() as usize).load(Ordering::Relaxed)
    }

    /// Begins the sequence of random numbers again.
    pub fn seed(&self, seed: u64) {
        self.set(Word::Random, seed);
    }

    /// Sets the time of the next run.
    pub fn set_time(&self, moment: Moment) {
        self.set(Word::Monotonic, moment.monotonic);
        self.set(Word::Tai, moment.wall.wrapping_add(TAI_OFFSET));
        self.set(Word::Jiffies, moment.monotonic / TICK);
        self.set(Word::HardwareTime, moment.wall);
        self.set(Word::RedirectCall, 0);
    }

    /// Returns the last redirection of the run.
    pub fn redirection(&self) -> Option<Redirection> {
        let call = self.get(Word::RedirectCall).checked_sub(1)? as usize;
        Some(Redirection { call, key: self.get(Word::RedirectKey) })
    }

    fn address(&self, register: u8, word: Word) -> [Insn; 2] {
        let mut load = op::load_immediate(op::MAP_VALUE, register, self.map.as_raw_fd());
        load[1].imm = word.offset();
        load
    }

    fn load(&self, word: Word) -> Vec<Insn> {
        let mut code = self.address(RESULT, word).to_vec();
        code.push(op::load(op::DW, RESULT, RESULT, 0));
        code
    }

    /// The call overwrites the registers that this uses.
    fn random(&self) -> Vec<Insn> {
        let mut code = self.address(RESULT, Word::Random).to_vec();
        code.extend([
            op::load(op::DW, FIRST_ARGUMENT, RESULT, 0),
            op::alu_imm(op::MUL, FIRST_ARGUMENT, MULTIPLIER),
            op::alu_imm(op::ADD, FIRST_ARGUMENT, INCREMENT),
            op::store(op::DW, RESULT, 0, FIRST_ARGUMENT),
            op::mov(RESULT, FIRST_ARGUMENT),
            op::alu_imm(op::RSH, RESULT, 32),
        ]);
        code
    }

    fn hardware_time(&self) -> Vec<Insn> {
        let mut code = self.load(Word::HardwareTime);
        code.push(op::store(op::DW, SECOND_ARGUMENT, 0, RESULT));
        code.push(op::alu_imm(op::MOV, RESULT, 0));
        code
    }

    /// Notes a redirection before its call, which overwrites the result's register.
    fn note(&self, call: usize, key: u8) -> Vec<Insn> {
        let mut code = self.address(RESULT, Word::RedirectCall).to_vec();
        let key_offset = (Word::RedirectKey.offset() - Word::RedirectCall.offset()) as i16;
        code.push(op::store_imm(op::DW, RESULT, 0, call as i32 + 1));
        code.push(op::store(op::DW, RESULT, key_offset, key));
        code
    }

    /// Edits a program's calls. `calls` receives the target of each redirection: the name of its map, or none.
    pub fn edit(
        &self,
        program: &[Insn],
        edits: &mut Edits,
        replaced: Replaced,
        calls: &mut Vec<Option<String>>,
        map_names: &[(i32, String)],
    ) {
        let kernel_functions = KernelFunctions::find(program);
        for at in starts(program) {
            let one = program[at];
            if one.code != op::CALL_CODE {
                continue;
            }
            match (one.src(), one.imm) {
                (0, _) if replaced == Replaced::Needed => {}
                (0, helper::KTIME_GET_NS | helper::KTIME_GET_BOOT_NS | helper::KTIME_GET_COARSE_NS)
                    if replaced == Replaced::Clocks =>
                {
                    edits.replace(at, self.load(Word::Monotonic));
                }
                (0, helper::KTIME_GET_TAI_NS) if replaced == Replaced::Clocks => {
                    edits.replace(at, self.load(Word::Tai))
                }
                (0, helper::JIFFIES64) if replaced == Replaced::Clocks => edits.replace(at, self.load(Word::Jiffies)),
                (0, helper::GET_PRANDOM_U32) => edits.replace(at, self.random()),
                (0, helper::GET_SMP_PROCESSOR_ID) => edits.replace(at, self.load(Word::Cpu)),
                (0, helper::REDIRECT) => {
                    edits.insert(at, self.note(calls.len(), FIRST_ARGUMENT));
                    calls.push(None);
                }
                (0, helper::REDIRECT_MAP) => {
                    edits.insert(at, self.note(calls.len(), SECOND_ARGUMENT));
                    calls.push(Some(map_of_call(program, at, map_names)));
                }
                (op::KERNEL_FUNCTION, number) if kernel_functions.time == Some(number) => {
                    edits.replace(at, self.hardware_time());
                }
                (op::KERNEL_FUNCTION, number) if kernel_functions.without_data.contains(&number) => {
                    edits.replace(at, vec![op::alu_imm(op::MOV, RESULT, NO_DATA)]);
                }
                _ => {}
            }
        }
    }
}

/// Numbers of the kernel's metadata functions.
struct KernelFunctions {
    time: Option<i32>,
    without_data: Vec<i32>,
}

impl KernelFunctions {
    fn find(program: &[Insn]) -> Self {
        let calls_any = starts(program).any(|at| {
            let one = program[at];
            one.code == op::CALL_CODE && one.src() == op::KERNEL_FUNCTION
        });
        let number = |name: &str| {
            let number = calls_any.then(|| probe::kernel_function(name).ok())??;
            i32::try_from(number).ok()
        };
        Self {
            time: number(HARDWARE_TIME),
            without_data: WITHOUT_DATA.iter().filter_map(|name| number(name)).collect(),
        }
    }
}

/// Returns the name of the map in the first argument of a call: the one that was loaded last before it.
fn map_of_call(program: &[Insn], call: usize, names: &[(i32, String)]) -> String {
    let load = starts(program)
        .take_while(|at| *at < call)
        .filter(|at| program[*at].code == op::LOAD_IMMEDIATE && program[*at].src() == op::MAP)
        .filter(|at| program[*at].dst() == FIRST_ARGUMENT)
        .last();
    let fd = load.map(|at| program[at].imm);
    names.iter().find(|(known, _)| Some(*known) == fd).map(|(_, name)| name.clone()).unwrap_or_default()
}
