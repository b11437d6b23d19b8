//! What fixes the errors of this crate: data, which the command line puts into words.

use std::path::PathBuf;

use crate::error::Remedy;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fix {
    /// The process lacks these capabilities.
    Root { capabilities: String },
    /// What was looked at is for root.
    RunAsRoot,
    /// Another command or application was faster, or is not done yet.
    TryAgain,
    /// The process has as many files open as it may.
    MoreOpenFiles,
    /// Only packet sockets send such frames here.
    PacketEngine,
    /// The filter is too long for a BPF program.
    ShorterFilter,
    /// The library cannot choose the direction.
    NoDirection,
    /// The library lacks functions.
    NewerLibpcap,
    /// The system has no libpcap.
    InstallLibpcap,
    /// The device needs a kernel module, and a libpcap that knows it.
    LibpcapModule { module: String },
    /// The device needs a libpcap that knows DPDK.
    LibpcapWithDpdk,
    /// The interface cannot be made promiscuous.
    NotPromiscuous,
    /// The process may not make the interface promiscuous.
    RootOrNotPromiscuous,
    /// The kernel does not know the MAC address.
    DestinationMac,
    /// A socket may not have such a long filter.
    LargerSocketFilter { bytes: usize },
    /// There is not enough memory for a packet socket.
    SmallerRing,
    /// The process may not change its user.
    KeepUser,
    /// There is not enough memory for the receiver.
    FewerFlows,
    /// There is not enough memory for the rings.
    LessMemory { kib: u64 },
    /// The rings cannot have that size.
    MemoryBetween { least_kib: u64, most_gib: u64 },
    /// The BPF file system is mounted by root only.
    MountBpf { at: &'static str },
    /// No BPF file system is mounted.
    NoBpfFileSystem { at: &'static str },
    /// The directory is in another file system.
    DirectoryUnder { at: &'static str },
    /// The file is no pin.
    PinUnder { at: &'static str },
    /// An address is not in use in time.
    IsInterfaceUp,
    /// An interface does not send in time.
    IsOtherEndUp,
    /// The kernel gave a reason in words.
    KernelSays { words: String },
    /// There is none of that name among these.
    OneOf { names: String },
    /// There is no such user.
    ListUsers,
    /// Another change waits to be confirmed.
    ConfirmFirst,
    /// The file of a namespace that is gone is in the way.
    RemoveLeftover { path: PathBuf },
    /// There is no such namespace.
    ListNamespaces,
    /// The process may not lock so much memory.
    MoreLockedMemory,
    /// A library cannot be loaded.
    ListLibraries,
    /// The frame is longer than the interface takes.
    LargerMtu,
}

impl Remedy for Fix {}
