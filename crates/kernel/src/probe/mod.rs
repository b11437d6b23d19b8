//! What this kernel and these privileges allow, found out by trying.

pub mod insn;
