//! What fixes the errors of this crate: data, which the command line puts into words.

use std::path::PathBuf;

use serde::Serialize;
use trawl_kernel::error::Remedy;
use trawl_program::again::Reload;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fix {
    /// The tap does not tell the CPU.
    NoCpu,
    /// The tap does not tell the CPU.
    NoCpuButQueue,
    /// The tap cannot look inside tunnels.
    ReadInner,
    /// The library cannot look inside tunnels.
    NoInner,
    /// No DPDK application runs with the prefix.
    OtherPrefix,
    /// The DPDK application shares no memory.
    ShareMemory,
    /// The DPDK application's buffers are single-producer.
    MempoolOps,
    /// DPDK cannot convert the filter.
    FilterLater,
    /// Packets are followed from where the kernel's filter takes them, and the kernel refuses this one.
    FollowShorter,
    /// The exit's record does not tell what the packet was at the entry.
    JudgeBoth,
    /// There are too many queues.
    OneQueue,
    /// There are too many interfaces.
    AllInterfaces,
    /// The kernel has no such drop reason.
    ListReasons,
    /// Programs jump to each other too often.
    ExitOnly,
    /// The hook does not see the entry.
    NoAt { reload: Reload },
    /// The hook does not see the entry.
    NoFilterAt { reload: Reload },
    /// No program is attached.
    UseXdp,
    /// There are several hook maps.
    NameHook,
    /// The program has no hooks.
    LoadWithHooks { reload: Reload },
    /// The kernel takes no tracing programs, and the program has no hooks.
    HooksAndTap { reload: Reload },
    /// A filter at exit cannot choose records made at entry.
    AtExit,
    /// There is no verdict at entry.
    AtExitOrBoth,
    /// The calls do not give the network card's time.
    PacketRing,
    /// The capture takes packets from the network stack.
    Steal,
    /// The tap sees received packets only.
    SentTap,
    /// The tap sees a packet once.
    NoAtOption,
    /// The tap sees a packet once.
    NoFilterAtOption,
    /// The tap does not see verdicts.
    NoVerdict,
    /// The tap cannot choose a program.
    NoProgram,
    /// trawl can attach an XDP program of its own.
    OwnProgram,
    /// The tap cannot read hardware time.
    NoHardwareTime,
    /// The tap does not read the clock itself.
    NoPoll,
    /// The tap does not tell the queue.
    NoQueue,
    /// Only drivers have hardware time.
    NotSkb,
    /// tc does not know the transmit queue.
    PacketOrIn,
    /// No program is attached.
    NoProgramOrLoad,
    /// Tracing does not see programs that are jumped to.
    UseHook,
    /// There is no such program.
    NameProgram,
    /// The program has no type information.
    WithTypes,
    /// No tap sees a verdict.
    TapWithVerdict,
    /// The program cannot be attached.
    UsePacket,
    /// A hook map is pinned.
    HookAt { path: PathBuf },
    /// The attached program has a hook map.
    TapHook,
    /// The attached program cannot be looked at.
    TapsAfterXdp,
    /// No BPF file system is mounted here.
    MountOrNamespace { command: String },
    /// The kernel takes no tracing programs.
    HooksWithoutTracing,
    /// The filter asks for the number of the interface.
    NameInterface,
    /// The filter asks for the queue.
    QueueOption,
    /// The filter asks for what tc and packet sockets know.
    TcOrPacket,
    /// The filter asks for what packet sockets know.
    OnlyPacket,
    /// The filter asks for a netlink attribute.
    NetlinkSocket,
    /// The filter asks for the kind of packet.
    InboundOrTap,
    /// There are too many captures.
    FewerCaptures,
    /// The helper for DPDK is missing.
    BuildHelper,
    /// The application does not let others capture.
    InitPdump,
    /// Another capture is on the port.
    EndOtherCapture,
    /// The application has too few huge pages.
    MoreHugePages,
    /// The hook has room for no more captures.
    EndOneCapture,
    /// The captures of a hook are in disorder.
    RestartCaptures,
    /// The capture has too many hook points.
    SplitCapture,
    /// The kernel gives no reasons of drops.
    NewerKernel { version: &'static str },
    /// The interface has fewer queues.
    ListQueues { interface: String },
    /// The map is no hook.
    NameProgArray,
    /// The map is too small for a hook.
    LargerProgArray,
}

impl Remedy for Fix {}
