//! The structs shared with the BPF programs, generated from bpf/include/layout.h.

include!(concat!(env!("OUT_DIR"), "/layout.rs"));
