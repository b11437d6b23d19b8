//! The features by name: what each is for, and its cached answer.

use std::sync::OnceLock;

use super::{Answer, attempt};

macro_rules! features {
    ($($(#[$about:meta])* $variant:ident, $name:literal, $purpose:literal, $attempt:ident;)*) => {
        /// Something of the kernel that trawl uses where it is there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Feature {
            $($(#[$about])* $variant,)*
        }

        impl Feature {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// What trawl does with it.
            pub fn purpose(self) -> &'static str {
                match self {
                    $(Self::$variant => $purpose,)*
                }
            }

            /// Tries it; the first answer holds for the life of the process.
            pub fn probe(self) -> &'static Answer {
                match self {
                    $(Self::$variant => {
                        static ANSWER: OnceLock<Answer> = OnceLock::new();
                        ANSWER.get_or_init(attempt::$attempt)
                    })*
                }
            }
        }
    };
}

features! {
    Bpf, "bpf()", "everything but the packet tap", bpf;
    Btf, "kernel BTF", "tracing of attached programs", btf_in_kernel;
    Jit, "BPF JIT", "full speed", jit;
    MmapableArray, "mmapable array map", "the ring that packets are recorded in", mmapable_array;
    LargeMap, "memory for rings", "a ring of 16 MiB", large_map;
    Xdp, "XDP programs", "the xdp and hook taps", xdp_program;
    XdpFrags, "XDP multi-buffer", "jumbo frames recorded whole", xdp_frags;
    XdpLoadBytes, "bpf_xdp_load_bytes", "bytes beyond a packet's first buffer", xdp_load_bytes;
    FarJumps, "32-bit jumps", "filters of tens of thousands of instructions", far_jumps;
    Arena, "BPF arenas", "guard rules read without a helper call", arena;
    XdpLink, "XDP links", "taps that the kernel removes when trawl ends", xdp_link;
    Tcx, "tcx links", "the tc tap without a qdisc (clsact otherwise)", tcx_link;
    Fentry, "fentry", "packets at the entry of an attached program", fentry;
    Fexit, "fexit", "packets and verdicts at the exit of an attached program", fexit;
    Freplace, "freplace", "chains of XDP programs by libxdp's dispatcher", freplace;
    RawTracepoint, "raw tracepoints", "counts of failed redirects and sends", raw_tracepoint;
    RingBuffer, "BPF ring buffer", "notices from programs", ring_buffer;
    TaiClock, "bpf_ktime_get_tai_ns", "wall-clock stamps that follow a clock step", tai_clock;
    XdpMetadata, "XDP metadata", "hardware time stamps (--time hw)", xdp_metadata;
    LiveFrames, "live XDP frames", "sending at full speed", live_frames;
    XdpSocket, "AF_XDP sockets", "the xsk engine of trawl gen", xdp_socket;
    PacketV3, "AF_PACKET TPACKET_V3", "the packet tap", packet_v3;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::root_or_skip;

    /// These are there on every kernel that trawl is tested on; a skip must not hide a broken probe.
    #[test]
    fn what_every_tested_kernel_has_is_found() {
        if !root_or_skip() {
            return;
        }
        use Feature::*;
        for feature in [
            Bpf,
            Btf,
            MmapableArray,
            LargeMap,
            Xdp,
            XdpLink,
            RingBuffer,
            RawTracepoint,
            PacketV3,
            XdpSocket,
        ] {
            assert_eq!(*feature.probe(), Answer::Supported, "{feature:?}");
        }
    }

    #[test]
    fn tracing_is_there_or_refused_but_never_unknown() {
        if !root_or_skip() {
            return;
        }
        for feature in [Feature::Fentry, Feature::Fexit, Feature::Freplace] {
            let answer = feature.probe();
            let sound = match answer {
                Answer::Supported => true,
                Answer::Refused { errno, .. } => *errno == libc::EPERM,
                Answer::NotSupported { .. } => false,
            };
            assert!(sound, "{feature:?}: {answer:?}");
        }
    }

    #[test]
    fn names_are_told_apart() {
        let mut names: Vec<_> = Feature::ALL.iter().map(|f| f.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Feature::ALL.len());
    }
}
