//! What fixes the errors of this crate: data, which the command line puts into words.

use serde::Serialize;
use trawl_kernel::error::Remedy;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fix {
    /// Programs with hooks cannot join a chain of libxdp.
    HooksInDispatcher { interface: String },
    /// The chain runs in another mode.
    ModeOfChain { mode: String },
    /// The chain has room for no more programs.
    ChainFull { interface: String },
    /// A guard is attached.
    GuardAttached,
    /// A chain of libxdp is attached.
    JoinDispatcher { interface: String },
    /// A program is attached: alone, in a chain, or by another tool.
    Occupied {
        interface: String,
        id: u32,
        chain: Option<bool>,
    },
    /// The program cannot have hooks.
    NotTappable,
    /// With hooks it is loaded by itself, not into a dispatcher.
    LoadWithHooks,
    /// Hooks need the whole program.
    NotTappableHere,
    /// The contents of maps would be lost.
    KeepMaps { from_file: bool },
    /// No program there has these maps.
    NewMaps,
    /// The file has several XDP programs.
    NameProgram { names: String },
    /// Programs on the card cannot have hooks.
    NotOffloaded,
    /// No program is attached.
    NoHooksNeeded,
    /// A program of a chain cannot be replaced alone.
    HooksInChain,
    /// The file is not that of the attached program.
    OtherFile { interface: String, file: String },
    /// It is unclear which program is meant.
    NameToUnload { programs: String },
    /// The program serves another one.
    UnloadFor { interface: String, id: u32 },
    /// The program cannot be at this place of the chain.
    OtherPriority,
    /// The interface has no Ethernet headers.
    TouchNone,
    /// The other end is down.
    PeerUp { command: String },
    /// The driver sends no XDP frames.
    SkbSends,
    /// The chain cannot be restored as a whole.
    NoConfirm,
    /// No router is attached.
    LoadRoute { interface: String },
    /// XDP sees the packets of a VLAN below it.
    RouteBelow { interface: String },
    /// The program would cut the SSH session.
    AttachAnyway,
    /// The SSH session may need the program.
    ReplaceAnyway,
    /// The SSH session may need the program.
    UnloadAnyway,
    /// The program is a guard.
    UnloadGuard { interface: String },
    /// The kernel knows no such CPU.
    IsCpuOnline,
    /// The chain takes packets in several pieces.
    CompileWithFrags,
    /// A pin of another kind is where a map is to be pinned.
    OtherDirectory { remove: String },
    /// A packet would jump too often.
    EndCapture,
    /// Another version of libxdp made the chain.
    ReloadWithOther,
    /// The kernel does not measure run times.
    RootAndLinux { version: &'static str },
}

impl Remedy for Fix {}
