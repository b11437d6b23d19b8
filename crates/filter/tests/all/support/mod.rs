//! What the tests of lowered filters share.

pub mod machine;
pub mod packets;

use trawl_filter::{Classic, Options, Target, compile, lower};

/// The expressions of the data file.
pub fn expressions() -> Vec<&'static str> {
    include_str!("../data/expressions.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect()
}

/// Compiles with tcpdump's defaults.
pub fn classic(expression: &str) -> Classic {
    compile(expression, &Options::default()).unwrap_or_else(|e| panic!("{expression}: {e}"))
}

/// Lowers, or says what went wrong on what.
pub fn lowered(program: &Classic, target: &Target) -> Vec<trawl_filter::Insn> {
    lower(program, target)
        .unwrap_or_else(|e| panic!("{e}:\n{program}"))
        .insns
}
