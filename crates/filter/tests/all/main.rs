//! Lowered filters against libpcap and against the interpreter, without privileges.

mod agreement;
mod ancillary;
mod cut_frames;
#[allow(dead_code, reason = "the fuzzer runs programs too")]
#[path = "../../../../fuzz/exercise/expression.rs"]
mod exercise;
mod exercised;
mod inner;
mod random_expressions;
mod random_programs;
mod support;
