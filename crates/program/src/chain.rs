//! Chains of programs: the verdicts after which the next program runs, the chain settings in a program's source, and
//! the limit on jumps from program to program.
//!
//! [`dispatcher`] reads and `build` makes the chains of libxdp's protocol, `tail_call` trawl's own. The kernel limits
//! how often a packet jumps, and a packet at the limit would leave a chain in the middle, or skip the program after a
//! capture. So programs are attached only if no packet can reach the limit.

pub(crate) mod build;
pub mod dispatcher;
pub(crate) mod tail_call;

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use trawl_attach::plan::LONGEST_CHAIN;
use trawl_bpf::{info, loading, map, program, test_run};
use trawl_ebpf::{Insn, helper, op};
use trawl_sys::Result;

use crate::hooks::{ACTIONS, NEXT};

/// The names of the verdicts, in the order of their numbers.
pub(crate) const VERDICTS: [&str; 5] = ["aborted", "drop", "pass", "tx", "redirect"];
/// Verdict of the stub in a dispatcher's empty slot; the chain always continues after it.
const STUB: u32 = 1 << 31;

/// A set of XDP verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions(u32);

impl Actions {
    /// Default without further settings: the next program runs after "pass".
    pub const DEFAULT: Self = Self(1 << 2 | STUB);

    pub fn from_bits(bits: u32) -> Self {
        Self(bits | STUB)
    }

    pub fn bits(self) -> u32 {
        self.0
    }

    /// Parses names separated by commas; the error names the first unknown one.
    pub fn parse(list: &str) -> Result<Self, String> {
        let number = |name: &str| {
            let found = VERDICTS.iter().position(|known| *known == name);
            found
                .map(|number| number as u32)
                .ok_or_else(|| format!("{name} is not a verdict; verdicts: {}", VERDICTS.join(", ")))
        };
        list.split(',').map(number).collect()
    }

    /// Returns the numbers of the verdicts in the set.
    pub fn verdicts(self) -> Vec<u32> {
        (0..31).filter(|verdict| self.0 >> verdict & 1 != 0).collect()
    }

    pub fn names(self) -> Vec<String> {
        let name = |verdict: u32| match VERDICTS.get(verdict as usize) {
            Some(name) => (*name).to_owned(),
            None => verdict.to_string(),
        };
        self.verdicts().into_iter().map(name).collect()
    }
}

impl fmt::Display for Actions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(","))
    }
}

impl FromIterator<u32> for Actions {
    fn from_iter<I: IntoIterator<Item = u32>>(verdicts: I) -> Self {
        let bits = verdicts.into_iter().filter(|verdict| *verdict < 31);
        Self::from_bits(bits.fold(0, |all, verdict| all | 1 << verdict))
    }
}

/// Returns the verdict that a program's run configuration calls `XDP_…`.
pub fn verdict_by_name(name: &str) -> Option<u32> {
    let name = name.strip_prefix("XDP_")?.to_ascii_lowercase();
    let found = VERDICTS.iter().position(|known| *known == name)?;
    Some(found as u32)
}

/// A program's position in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunConfig {
    /// Programs with lower priorities run first.
    pub priority: u32,
    /// The verdicts after which the next program runs.
    pub actions: Actions,
}

impl RunConfig {
    /// Section that libxdp's macro `XDP_RUN_CONFIG` writes to.
    pub const SECTION: &str = ".xdp_run_config";
    const DEFAULT_PRIORITY: u32 = 50;

    /// Reads the members of the program's structure in that section.
    pub fn from_numbers(numbers: &[(String, u32)]) -> Self {
        let names_actions = numbers.iter().any(|(name, _)| verdict_by_name(name).is_some());
        let named = numbers.iter().filter(|(_, on)| *on != 0).filter_map(|(name, _)| verdict_by_name(name));
        let priority = numbers.iter().find(|(name, _)| name == "priority");
        Self {
            priority: priority.map_or(Self::DEFAULT_PRIORITY, |(_, number)| *number),
            actions: if names_actions { named.collect() } else { Actions::DEFAULT },
        }
    }
}

/// A program's recorded position in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainSeat {
    /// Programs with lower priorities run first; of several with the same one, the one that was loaded first.
    pub priority: u32,
    /// The verdicts after which the next program runs, as bits.
    pub(crate) actions: u32,
    /// Set if the program accepts packets in several pieces: all programs of a chain do, or none.
    pub(crate) frags: bool,
    /// Set if other programs can run after it.
    pub(crate) followable: bool,
}

impl ChainSeat {
    pub fn actions(&self) -> Actions {
        Actions::from_bits(self.actions)
    }

    /// Returns the slots that lead to the next program.
    pub(crate) fn slots(&self) -> Vec<u32> {
        let mut verdicts = self.actions().verdicts();
        verdicts.retain(|verdict| *verdict < ACTIONS);
        verdicts
    }

    /// Notes that its exits could not be rewritten, so that it can only be the last one.
    pub(crate) fn close(&mut self) {
        self.followable = false;
    }
}

/// Returns the programs that run after an attached one, read from the kernel's own maps.
pub fn after(head: u32) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    let mut at = head;
    while let Some(next) = next_of(at)
        && found.len() < LONGEST_CHAIN
        && !found.contains(&next)
    {
        found.push(next);
        at = next;
    }
    found
}

fn next_of(program: u32) -> Option<u32> {
    let map = next_map(program)?;
    (0..ACTIONS).find_map(|slot| map::program_in(map.as_fd(), slot).ok().flatten())
}

/// Opens the map that a program's exits jump through.
pub(crate) fn next_map(program: u32) -> Option<OwnedFd> {
    let program = program::open_by_id(program).ok()?;
    let about = info::program(program.as_fd()).ok()?;
    about.map_ids.into_iter().find_map(|id| {
        let map = map::open_by_id(id).ok()?;
        let about = map::info(&map).ok()?;
        (about.name == NEXT && about.kind == map::PROG_ARRAY).then_some(map)
    })
}

/// The kernel's limit on jumps of a packet from program to program.
pub const MOST_JUMPS: u32 = 33;

/// Captures on one program of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounts {
    /// Set if trawl put hooks into the program.
    pub tappable: bool,
    /// Number of captures at its entry, and at its exit.
    pub at_entry: u32,
    pub at_exit: u32,
}

/// Returns the largest number of jumps that the kernel counts for a packet passing through all of these programs.
pub fn most_jumps(programs: &[CaptureCounts]) -> u32 {
    let of = if counts_attempts() { CaptureCounts::attempts } else { CaptureCounts::jumps };
    programs.iter().map(of).sum::<u32>().saturating_sub(1)
}

impl CaptureCounts {
    /// Counts the jumps to each capture, into the program after those at its entry, and to the next program.
    fn jumps(&self) -> u32 {
        self.at_entry + u32::from(self.at_entry > 0) + self.at_exit + 1
    }

    /// Counts also jumps through empty slots: after the last capture, or in hooks without captures.
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

/// Returns true if the kernel counts jumps through empty slots too, as kernels before 6.11 do. This is tested by
/// running programs; if that fails, the answer is true.
fn counts_attempts() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| !reached_after_attempts().unwrap_or(false))
}

const REACHED: u32 = 7;

/// Jumps many times through empty slots, by constant and by computed index, and then through a filled one.
fn reached_after_attempts() -> Result<bool> {
    const ARRAY: u8 = 2;
    const SLOT: u8 = 3;
    let array = map::create_prog_array("trawl_jumps", 2)?;
    let target = load(&[op::mov32_imm(0, REACHED), op::exit()])?;
    let fail = |e| trawl_sys::Error::os("cannot try jumps between programs", e);
    map::set_program(array.as_fd(), 0, target.as_fd()).map_err(fail)?;
    let mut code = vec![op::mov(6, 1)];
    let jump = |slot: Insn| {
        let [map, upper_half] = op::load_immediate(op::MAP, ARRAY, array.as_raw_fd());
        [op::mov(1, 6), map, upper_half, slot, op::call(helper::TAIL_CALL)]
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
    for _ in 0..=MOST_JUMPS {
        code.extend(jump(op::mov32_imm(SLOT, 1)));
        code.extend(jump(computed));
    }
    code.extend(jump(op::mov32_imm(SLOT, 0)));
    code.extend([op::mov32_imm(0, 0), op::exit()]);
    let trying = load(&code)?;
    let answer = test_run::xdp(trying.as_fd(), &[1; 64], None, 1).map_err(fail)?;
    Ok(answer.value == REACHED)
}

fn load(code: &[Insn]) -> Result<OwnedFd> {
    let options = program::LoadOptions {
        expected_attach_type: program::ATTACH_XDP,
        ..program::LoadOptions::new("trawl_jumps", program::XDP)
    };
    loading::load(code, &options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_names() {
        assert_eq!(Actions::DEFAULT.to_string(), "pass");
        let both: Actions = [2, 1].into_iter().collect();
        assert_eq!(both.to_string(), "drop,pass");
        assert_eq!(both.bits(), 1 << 31 | 6);
        assert_eq!(Actions::parse("pass,drop"), Ok(both));
        assert!(Actions::parse("pass,").is_err() && Actions::parse("PASS").is_err());
        assert_eq!(verdict_by_name("XDP_TX"), Some(3));
        assert_eq!(verdict_by_name("priority"), None);
    }

    fn config(numbers: &[(&str, u32)]) -> (u32, String) {
        let numbers: Vec<_> = numbers.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect();
        let config = RunConfig::from_numbers(&numbers);
        (config.priority, config.actions.to_string())
    }

    #[test]
    fn run_config_gives_priority_and_actions() {
        assert_eq!(config(&[]), (50, "pass".to_owned()));
        assert_eq!(config(&[("priority", 10)]), (10, "pass".to_owned()));
        assert_eq!(config(&[("priority", 7), ("XDP_DROP", 1), ("XDP_PASS", 0)]), (7, "drop".to_owned()));
        assert_eq!(config(&[("XDP_PASS", 0)]), (50, String::new()));
    }

    #[test]
    fn each_capture_and_program_costs_a_jump() {
        let plain = CaptureCounts::default();
        let open = CaptureCounts { tappable: true, ..plain };
        let watched = CaptureCounts { at_entry: 1, at_exit: 2, ..open };
        assert_eq!([plain.jumps(), open.jumps(), watched.jumps()], [1, 1, 5]);
        assert_eq!([plain.attempts(), open.attempts(), watched.attempts()], [1, 3, 7]);
        assert_eq!(most_jumps(&[]), 0);
    }

    #[test]
    fn kernel_runs_the_test_programs() {
        if trawl_sys::files::create::own_user() != 0 {
            eprintln!("SKIPPED: requires root");
            return;
        }
        reached_after_attempts().expect("the programs are fine");
    }
}
