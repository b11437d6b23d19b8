//! The BPF tool chain: programs, maps and links, what is pinned, and what this kernel can do.

pub mod bpf;
pub mod bpffs;
pub mod kallsyms;
pub mod owners;
pub mod probe;
