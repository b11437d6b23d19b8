//! The features by name: what each is for, and its cached answer.

use std::sync::OnceLock;

use super::{Answer, attempt, kernel_is_at_least, kernel_release};

macro_rules! features {
    ($($(#[$about:meta])* $variant:ident, $since:expr, $name:literal, $purpose:literal, $attempt:ident;)*) => {
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

            /// The first version of Linux that has it, unless it was left out when the kernel was built.
            pub fn since(self) -> (u32, u32) {
                match self {
                    $(Self::$variant => $since,)*
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
    Bpf, (4, 1), "bpf()", "everything but the packet tap", bpf;
    Btf, (5, 4), "kernel BTF", "tracing of attached programs", btf_in_kernel;
    Jit, (4, 1), "BPF JIT", "full speed", jit;
    MmapableArray, (5, 5), "mmapable array map", "the ring that packets are recorded in", mmapable_array;
    LargeMap, (4, 1), "memory for rings", "a ring of 16 MiB", large_map;
    Xdp, (4, 8), "XDP programs", "the xdp and hook taps", xdp_program;
    XdpFrags, (5, 18), "XDP multi-buffer", "jumbo frames recorded whole", xdp_frags;
    XdpLoadBytes, (5, 18), "bpf_xdp_load_bytes", "bytes beyond a packet's first buffer", xdp_load_bytes;
    FarJumps, (6, 6), "32-bit jumps", "filters of tens of thousands of instructions", far_jumps;
    Arena, (6, 10), "BPF arenas", "guard rules read without a helper call", arena;
    XdpLink, (5, 9), "XDP links", "taps that the kernel removes when trawl ends", xdp_link;
    Tcx, (6, 6), "tcx links", "the tc tap without a qdisc (clsact otherwise)", tcx_link;
    Fentry, (5, 5), "fentry", "packets at the entry of an attached program", fentry;
    Fexit, (5, 5), "fexit", "packets and verdicts at the exit of an attached program", fexit;
    Freplace, (5, 6), "freplace", "chains of XDP programs by libxdp's dispatcher", freplace;
    RawTracepoint, (4, 17), "raw tracepoints", "counts of failed redirects and sends", raw_tracepoint;
    RingBuffer, (5, 8), "BPF ring buffer", "notices from programs", ring_buffer;
    TaiClock, (6, 1), "bpf_ktime_get_tai_ns", "wall-clock stamps that follow a clock step", tai_clock;
    XdpMetadata, (6, 3), "XDP metadata", "hardware time stamps", xdp_metadata;
    LiveFrames, (5, 18), "live XDP frames", "sending at full speed", live_frames;
    XdpSocket, (4, 18), "AF_XDP sockets", "the generator's xsk engine", xdp_socket;
    PacketV3, (3, 2), "AF_PACKET TPACKET_V3", "the packet tap", packet_v3;
}

impl Feature {
    /// Why a test that needs it cannot run here; `None` where it can. What the running kernel is new enough for, and
    /// no policy forbids, has to be there.
    ///
    /// # Panics
    ///
    /// If it is missing from a kernel that ought to have it: a skip would hide that.
    pub fn reason_to_skip(self) -> Option<String> {
        let (major, minor) = self.since();
        match self.probe() {
            Answer::Supported => None,
            Answer::Refused { why, .. } => Some(format!("{}: {why}", self.name())),
            Answer::NotSupported { why } if kernel_is_at_least(major, minor) => panic!(
                "{} is missing from Linux {}, and {major}.{minor} has it: {why}",
                self.name(),
                kernel_release()
            ),
            Answer::NotSupported { why } => Some(format!("{}: {why}", self.name())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_sys::testing::root_or_skip;

    #[test]
    fn what_the_kernel_is_new_enough_for_is_there_or_refused() {
        if !root_or_skip() {
            return;
        }
        for feature in Feature::ALL {
            if let Some(reason) = feature.reason_to_skip() {
                let refused = matches!(feature.probe(), Answer::Refused { .. });
                let (major, minor) = feature.since();
                assert!(refused || !kernel_is_at_least(major, minor), "{reason}");
            }
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
