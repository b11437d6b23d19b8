//! What the sending program is told: generated from bpf/include/send.h, which explains it.

include!(concat!(env!("OUT_DIR"), "/send.rs"));
