//! The kernel's tag of a program, computed without a load: the verifier may need seconds for a large program.

use std::os::fd::AsFd;
use std::sync::LazyLock;

use sha2::{Digest, Sha256};
use trawl_ebpf::{Insn, op};

use super::info;
use super::program::{LoadOptions, XDP, returning};

/// Number of digits that the kernel shows.
const DIGITS: usize = 16;
/// `XDP_PASS`.
const PASS: i32 = 2;

/// Returns the tag of a program; `None` if the kernel computes it in another manner, as before Linux 6.18.
pub(crate) fn of(program: &[Insn]) -> Option<String> {
    static IS_KNOWN: LazyLock<bool> = LazyLock::new(|| {
        let small = returning(PASS);
        let loaded = LoadOptions::new("trawl_tag", XDP).load(&small);
        loaded.and_then(|loaded| info::program(loaded.as_fd())).is_ok_and(|about| about.tag == digest(&small))
    });
    IS_KNOWN.then(|| digest(program))
}

/// Returns the beginning of the SHA-256 of the instructions, in which zeroes replace the descriptors of maps.
fn digest(program: &[Insn]) -> String {
    let mut hash = Sha256::new();
    let mut follows_map = false;
    for one in program {
        let is_map = !follows_map && one.code == op::LOAD_IMMEDIATE && [op::MAP, op::MAP_VALUE].contains(&one.src());
        let imm = if is_map || follows_map { 0 } else { one.imm };
        hash.update(Insn { imm, ..*one }.to_bytes());
        follows_map = is_map;
    }
    let mut digits = format!("{:x}", hash.finalize());
    digits.truncate(DIGITS);
    digits
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::map;
    use trawl_sys::testing::root_or_skip;

    #[test]
    fn computed_tag_is_the_kernels() {
        if !root_or_skip() {
            return;
        }
        let map = map::create_mmapable_array("trawl_test", 64, 1).expect("a map");
        let [load, half] = op::load_immediate(op::MAP_VALUE, 1, map.as_raw_fd());
        let [number, upper] = op::load_immediate(0, 2, 77);
        let program =
            [load, Insn { imm: 8, ..half }, number, Insn { imm: 5, ..upper }, op::load(op::B, 0, 1, 0), op::exit()];
        let loaded = LoadOptions::new("trawl_test", XDP).load(&program).expect("a valid program");
        let tag = info::program(loaded.as_fd()).expect("its description").tag;
        assert!(of(&program).is_none_or(|computed| computed == tag), "{tag}, {}", digest(&program));
    }
}
