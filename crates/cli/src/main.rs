//! The binary: arguments and terminal output, nothing else.
fn main() {}
