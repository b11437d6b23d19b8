//! Probes of features that this kernel and these privileges allow.
//!
//! Versions say little: features are backported, compiled out, or forbidden by a policy. So each one is tried, once per
//! process, and the answer tells these cases apart.

pub mod attached;
mod attempt;

use std::io;
use std::sync::OnceLock;

pub use crate::kernel::{is_unwanted, kernel_function, kernel_is_at_least};
use crate::typed_reads;

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeAnswer {
    Supported,
    /// The kernel does not have it.
    NotSupported {
        why: String,
    },
    /// The kernel may have it, but refused: privileges or a policy.
    Refused {
        errno: i32,
        why: String,
    },
}

impl ProbeAnswer {
    pub fn is_supported(&self) -> bool {
        *self == Self::Supported
    }

    /// Returns the reason, if it is not supported.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Supported => None,
            Self::NotSupported { why } | Self::Refused { why, .. } => Some(why),
        }
    }

    fn lacking(why: impl Into<String>) -> Self {
        Self::NotSupported { why: why.into() }
    }

    /// Names the version instead of the error if the feature is newer than this kernel.
    fn dated(self, (major, minor): (u32, u32)) -> Self {
        match self {
            Self::NotSupported { .. } if !kernel_is_at_least(major, minor) => {
                Self::lacking(format!("the kernel is older than Linux {major}.{minor}"))
            }
            answer => answer,
        }
    }

    /// Interprets a failed attempt: permission errors are refusals, all others mean that the feature is missing.
    fn from_error(error: &io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        match errno {
            libc::EPERM | libc::EACCES => Self::Refused { errno, why: refusal() },
            libc::ENOSYS => Self::lacking("the kernel has no such system call"),
            libc::EAFNOSUPPORT => Self::lacking("the kernel has no such sockets"),
            _ => Self::lacking(format!("the kernel does not support it ({})", error_text(errno))),
        }
    }

    fn from_result<T>(result: io::Result<T>) -> Self {
        result.map_or_else(|e| Self::from_error(&e), |_| Self::Supported)
    }
}

fn error_text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Explains a refusal: a missing capability, or a policy that overrides them.
fn refusal() -> String {
    let missing: Vec<_> = missing_capabilities(&Capability::FOR_BPF).into_iter().map(Capability::name).collect();
    if missing.is_empty() {
        "not permitted, although no capability is missing: probably a security policy of this host forbids it"
            .to_owned()
    } else {
        format!("not permitted: {} missing", missing.join(", "))
    }
}

/// Returns true if XDP programs may read the wall clock: `bpf_ktime_get_tai_ns`, since 6.1.
pub fn has_tai_helper() -> bool {
    KernelFeature::TaiClock.probe().is_supported()
}

/// Returns true if the kernel has jumps of 32 bits, since 6.6.
pub fn has_far_jumps() -> bool {
    !is_unwanted("far-jumps") && KernelFeature::FarJumps.probe().is_supported()
}

/// Returns true if XDP programs may accept packets in several pieces, since 5.18. Earlier kernels have no such packets.
pub fn has_xdp_frags() -> bool {
    KernelFeature::XdpFrags.probe().is_supported()
}

/// Returns true if XDP programs have the helpers for packets in several pieces, since 5.18.
pub fn has_xdp_buffers() -> bool {
    !is_unwanted("xdp-buffers") && KernelFeature::XdpLoadBytes.probe().is_supported()
}

/// Returns true if programs have atomic operations that return a value, since 5.12.
pub fn has_atomics() -> bool {
    !is_unwanted("atomics") && KernelFeature::Atomics.probe().is_supported()
}

/// Returns true if programs can find the socket of an open file, as captures that name processes do: since 5.11.
pub fn has_socket_of_file() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(attempt::socket_of_file)
}

/// Returns true if programs may iterate over the storage of sockets, since 5.9, which some hosts forbid.
pub fn has_storage_iterator() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    !is_unwanted("storage-iterator") && *FOUND.get_or_init(attempt::storage_iterator)
}

/// Returns true if a value of a map may be larger than 4 MiB, since 6.0.
pub fn has_large_values() -> bool {
    !is_unwanted("large-values") && KernelFeature::LargeValues.probe().is_supported()
}

/// Returns the reason if a lockdown forbids the helper that reads the kernel's memory. Tracing programs may then have
/// typed loads, and programs at XDP and tc have none.
pub fn lockdown_of_reads() -> Option<String> {
    typed_reads::is_locked().then(typed_reads::reason)
}

// The features by name, each with its purpose and its cached answer.

macro_rules! features {
    ($($(#[$about:meta])* $variant:ident, $since:expr, $name:literal, $purpose:literal, $attempt:ident;)*) => {
        /// A feature of the kernel that trawl uses if it is present.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum KernelFeature {
            $($(#[$about])* $variant,)*
        }

        impl KernelFeature {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns trawl's use of it.
            pub fn purpose(self) -> &'static str {
                match self {
                    $(Self::$variant => $purpose,)*
                }
            }

            /// Returns the first version of Linux that has it, unless it was compiled out.
            pub fn since(self) -> (u32, u32) {
                match self {
                    $(Self::$variant => $since,)*
                }
            }

            /// Tries it; the first answer is kept for the life of the process.
            pub fn probe(self) -> &'static ProbeAnswer {
                match self {
                    $(Self::$variant => {
                        static ANSWER: OnceLock<ProbeAnswer> = OnceLock::new();
                        ANSWER.get_or_init(|| attempt::$attempt().dated(self.since()))
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
    LargeValues, (6, 0), "large map values", "rings in fewer parts", large_values;
    Atomics, (5, 12), "BPF atomics", "rings and limits shared by CPUs without a lock", atomics;
    Xdp, (4, 8), "XDP programs", "the xdp and tailcall taps", xdp_program;
    XdpFrags, (5, 18), "XDP multi-buffer", "jumbo frames recorded whole", xdp_frags;
    XdpLoadBytes, (5, 18), "bpf_xdp_load_bytes", "bytes beyond a packet's first buffer", xdp_load_bytes;
    FarJumps, (6, 6), "32-bit jumps", "filters of tens of thousands of instructions", far_jumps;
    Loops, (5, 17), "bpf_loop", "the guard", loops;
    Arena, (6, 10), "BPF arenas", "guard rules read without a helper call", arena;
    XdpLink, (5, 9), "XDP links", "taps that the kernel removes when trawl ends", xdp_link;
    Tcx, (6, 6), "tcx links", "the tc tap without a qdisc (clsact otherwise)", tcx_link;
    Fentry, (5, 5), "fentry", "packets at the entry of an attached program", fentry;
    Fexit, (5, 5), "fexit", "packets and verdicts at the exit of an attached program", fexit;
    Freplace, (5, 13), "freplace", "chains of XDP programs by libxdp's dispatcher", freplace;
    DropReasons, (5, 17), "drop reasons", "the drop tap, why and follow", drop_reasons;
    RawTracepoint, (4, 17), "raw tracepoints", "counts of failed redirects and sends", raw_tracepoint;
    KernelMemory, (5, 5), "kernel memory", "attached programs, drops, follow and why", kernel_memory;
    RingBuffer, (5, 8), "BPF ring buffer", "notices from programs", ring_buffer;
    TaiClock, (6, 1), "bpf_ktime_get_tai_ns", "wall-clock stamps that follow a clock step", tai_clock;
    XdpMetadata, (6, 3), "XDP metadata", "hardware time stamps", xdp_metadata;
    LiveFrames, (5, 18), "live XDP frames", "sending at full speed", live_frames;
    XdpSocket, (4, 18), "AF_XDP sockets", "the generator's xsk engine", xdp_socket;
    PacketV3, (3, 2), "AF_PACKET TPACKET_V3", "the packet tap", packet_v3;
}

impl KernelFeature {
    /// Returns the reason why a test that needs it cannot run; `None` if it can. A feature that the running kernel is
    /// new enough for, and that no policy forbids, has to be present.
    ///
    /// # Panics
    ///
    /// If it is missing from a kernel that ought to have it: a skip would hide that.
    pub fn reason_to_skip(self) -> Option<String> {
        let (major, minor) = self.since();
        match self.probe() {
            ProbeAnswer::Supported => None,
            ProbeAnswer::Refused { why, .. } => Some(format!("{}: {why}", self.name())),
            ProbeAnswer::NotSupported { why } if kernel_is_at_least(major, minor) => {
                panic!(
                    "{} is missing from Linux {}, and {major}.{minor} has it: {why}",
                    self.name(),
                    trawl_sys::host::kernel_release()
                )
            }
            ProbeAnswer::NotSupported { why } => Some(format!("{}: {why}", self.name())),
        }
    }
}

// The capabilities of this process that matter for capturing.

/// A capability that trawl uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    Bpf,
    Perfmon,
    NetAdmin,
    NetRaw,
    SysAdmin,
    SysResource,
}

impl Capability {
    pub const ALL: [Self; 6] =
        [Self::Bpf, Self::Perfmon, Self::NetAdmin, Self::NetRaw, Self::SysAdmin, Self::SysResource];
    /// Capabilities needed to load and attach network programs.
    pub const FOR_BPF: [Self; 3] = [Self::Bpf, Self::Perfmon, Self::NetAdmin];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bpf => "CAP_BPF",
            Self::Perfmon => "CAP_PERFMON",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysResource => "CAP_SYS_RESOURCE",
        }
    }

    /// Returns trawl's use of it.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::Bpf => "create maps, load programs",
            Self::Perfmon => "load programs that read packets through pointers",
            Self::NetAdmin => "attach programs to interfaces",
            Self::NetRaw => "packet sockets (the packet tap)",
            Self::SysAdmin => "enter network namespaces, open objects of others by their number",
            Self::SysResource => "raise the limit on locked memory, which kernels before 5.11 need",
        }
    }

    fn bit(self) -> u32 {
        match self {
            Self::NetAdmin => 12,
            Self::NetRaw => 13,
            Self::SysAdmin => 21,
            Self::SysResource => 24,
            Self::Perfmon => 38,
            Self::Bpf => 39,
        }
    }
}

/// Returns true if it is in effect for this process. CAP_SYS_ADMIN includes the two that were split from it.
pub fn has_capability(capability: Capability) -> bool {
    let effective = effective();
    let has = |c: Capability| effective >> c.bit() & 1 != 0;
    has(capability) || matches!(capability, Capability::Bpf | Capability::Perfmon) && has(Capability::SysAdmin)
}

pub fn missing_capabilities(of: &[Capability]) -> Vec<Capability> {
    of.iter().copied().filter(|c| !has_capability(*c)).collect()
}

/// Returns the missing capabilities as a reason and a remedy; `None` if none is missing.
pub fn lack_of(capabilities: &[Capability]) -> Option<(String, String)> {
    let missing = missing_capabilities(capabilities);
    let purposes: Vec<String> = missing.iter().map(|one| format!("{} ({})", one.name(), one.purpose())).collect();
    let names: Vec<&str> = missing.iter().map(|one| one.name()).collect();
    (!missing.is_empty()).then(|| {
        (format!("this process lacks {}", purposes.join(", ")), format!("run it as root, or with {}", names.join(", ")))
    })
}

fn effective() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    parse_effective(&status).unwrap_or(0)
}

fn parse_effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use trawl_sys::testing::root_or_skip;

    use super::*;

    #[test]
    fn features_of_the_kernels_version_are_present_or_refused() {
        if !root_or_skip() {
            return;
        }
        for feature in KernelFeature::ALL {
            if let Some(reason) = feature.reason_to_skip() {
                let refused = matches!(feature.probe(), ProbeAnswer::Refused { .. });
                let (major, minor) = feature.since();
                assert!(refused || !kernel_is_at_least(major, minor), "{reason}");
            }
        }
    }

    #[test]
    fn tracing_is_present_or_refused_but_never_unknown() {
        if !root_or_skip() {
            return;
        }
        for feature in [KernelFeature::Fentry, KernelFeature::Fexit, KernelFeature::Freplace] {
            let answer = feature.probe();
            let sound = match answer {
                ProbeAnswer::Supported => true,
                ProbeAnswer::Refused { errno, .. } => *errno == libc::EPERM,
                ProbeAnswer::NotSupported { .. } => false,
            };
            assert!(sound, "{feature:?}: {answer:?}");
        }
    }

    #[test]
    fn feature_names_are_unique() {
        let mut names: Vec<_> = KernelFeature::ALL.iter().map(|f| f.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KernelFeature::ALL.len());
    }

    #[test]
    fn capability_mask_is_found_among_the_lines() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t0000008000001000\n";
        assert_eq!(parse_effective(status), Some(1 << 39 | 1 << 12));
        assert_eq!(parse_effective("Name:\tx\n"), None);
    }
}
