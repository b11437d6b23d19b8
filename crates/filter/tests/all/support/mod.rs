//! Common parts of the tests of lowered filters.

pub mod machine;
pub mod oracle;
pub mod packets;

use machine::{Scene, run};
use trawl_ebpf::Insn;
use trawl_filter::{Classic, CompilerOptions, FilterError, Quick, Target, lower};

/// Returns the expressions of the data file.
pub fn expressions() -> Vec<&'static str> {
    include_str!("../data/expressions.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// Compiles with the system's libpcap.
pub fn compile(expression: &str, options: &CompilerOptions) -> Result<Classic, FilterError> {
    trawl_io::libpcap::compile_filters();
    trawl_filter::compile(expression, options)
}

/// Compiles with tcpdump's defaults.
pub fn classic(expression: &str) -> Classic {
    compile(expression, &CompilerOptions::default()).unwrap_or_else(|e| panic!("{expression}: {e}"))
}

/// Lowers a program, or panics with the error and the program.
pub fn lowered(program: &Classic, target: &Target) -> Vec<Insn> {
    lower(program, target).unwrap_or_else(|e| panic!("{e}:\n{program}")).insns
}

/// Returns a packet with a linear part only.
pub fn whole(bytes: &[u8]) -> Scene<'_> {
    Scene { bytes, linear: bytes.len(), tag: None }
}

/// Checks that a quick version does not contradict the filter's answer.
pub fn quick_agrees(quick: &[Insn], scene: &Scene<'_>, answer: u32) -> Result<(), String> {
    let result = run(quick, &Target::xdp(), scene);
    let right = match &result {
        Ok(result) if *result == Quick::Rejected as u32 => answer == 0,
        Ok(result) if *result == Quick::Matched as u32 => answer != 0,
        Ok(result) => *result == Quick::Undecided as u32,
        Err(_) => false,
    };
    if right {
        Ok(())
    } else {
        Err(format!("{}on {scene:02x?}: {result:?}, where the filter returns {answer}", trawl_ebpf::disassemble(quick)))
    }
}
