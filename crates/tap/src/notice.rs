//! What a capture has to say on the way: data, which the command line puts into words.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use trawl_program::again::Reload;

use crate::trigger::Event;
use crate::watch::Cause;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Notice {
    /// Packets are being recorded at a hook point.
    Capturing {
        interface: String,
        hook: String,
        /// How the program is attached; empty where there is no choice.
        mode: String,
    },
    /// trawl chose these taps.
    UsingTaps {
        interface: String,
        taps: Vec<String>,
        reason: TapReason,
    },
    /// trawl found this hook map.
    UsingHookMap {
        interface: String,
        path: PathBuf,
    },
    /// Another capture of trawl is at the same XDP hook.
    SharingHook {
        interface: String,
    },
    /// The driver did not take trawl's XDP program.
    SkbMode {
        interface: String,
        why: String,
    },
    /// No program is attached, so every packet passes, and other verdicts are asked for.
    /// What attaching an XDP program is about to do to a network card.
    TouchesCard {
        interface: String,
        driver: String,
        effects: String,
    },
    NoPacketMatchesVerdict {
        interface: String,
    },
    /// Packets get to these programs by tail calls, where tracing does not see them.
    ProgramsOutOfSight {
        interface: String,
        programs: String,
    },
    /// A program to trace was attached.
    ProgramFound {
        interface: String,
        program: String,
    },
    /// A traced program is not attached any more.
    ProgramLost {
        interface: String,
        program: String,
        /// It is looked for.
        awaited: bool,
    },
    /// The kernel or a library drops what does not match without counting it.
    RejectedNotCounted {
        interface: String,
        /// Why the kernel did not take the counting program; absent for a library.
        why: Option<String>,
    },
    /// Capture files have no link type for these frames.
    NoLinkType {
        interface: String,
    },
    /// The network card stamps packets, if it was told to.
    CardStamps {
        interface: String,
        device: String,
    },
    /// The system stamps packets, since neither card nor library does.
    SystemStamps {
        interface: String,
        library: Option<String>,
    },
    /// What libpcap said when the device was opened.
    LibraryWarning {
        interface: String,
        library: String,
        warning: String,
    },
    /// The library gave packets times that cannot be.
    ImpossibleTimes {
        library: String,
        packets: u64,
    },
    /// The thread in the library did not come back in time.
    LibraryStuck {
        library: String,
        seconds: u64,
    },
    /// The network stack does not get the packets.
    TakenFromStack {
        interface: String,
    },
    /// Callbacks of a killed capture were removed from a DPDK port.
    DpdkPortCleared {
        interface: String,
        port: String,
        pid: String,
    },
    /// There are too many of these to follow packets through all of them.
    StepsLeftOut {
        of: Steps,
        count: u64,
    },
    /// The running kernel lacks a tracepoint.
    NoTracepoint {
        name: String,
    },
    /// Packets are followed without these steps.
    NoSteps {
        why: String,
    },
    /// An interface that appeared is not captured on.
    NotJoined {
        why: String,
    },
    /// Interfaces that appear are captured on once others have left.
    JoinsWait {
        interface: String,
        why: String,
    },
    /// Packets are followed without the steps at a program that has no hooks.
    NoHooks {
        interface: String,
        reload: Reload,
    },
    /// The clock is read for each packet, not for each poll.
    ClockReadPerPacket {
        interface: String,
        reason: ClockReason,
    },
    /// A ring's segment holds no more bytes of a packet.
    SnaplenReduced {
        bytes: u32,
    },
    /// An output is a named pipe, which is opened when it has a reader.
    WaitsForReader {
        output: String,
    },
    /// A file goes through the page cache.
    NotDirect {
        output: String,
        why: String,
    },
    /// Nobody reads the pipe.
    NotRead {
        output: String,
        packets: u64,
    },
    /// Packets are kept in memory until an event.
    Armed {
        before_ns: u64,
        memory_bytes: u64,
        /// Memory for packets that were not looked at yet, beside that.
        ring_bytes: u64,
        expression: Option<String>,
        verdicts: Vec<String>,
        /// The process that a signal starts the recording of.
        signal_pid: Option<u32>,
    },
    /// An event has packets written.
    Triggered(Event),
    /// A program runs with hooks for the time of the capture.
    HooksLent {
        interface: String,
        file: PathBuf,
        program: String,
        id: u32,
    },
    /// It has hooks already.
    HasHooks {
        interface: String,
    },
    /// The program without hooks was not put back.
    HooksNotReturned {
        interface: String,
    },
    LinkDown {
        interface: String,
    },
    LinkUp {
        interface: String,
    },
    Renamed {
        interface: String,
        name: String,
    },
    /// No packets come from this interface any more.
    Gone(Gone),
    /// Something was not left as it was before the capture.
    NotUndone {
        what: Left,
        why: String,
    },
    /// What reads the packets failed, or did not end as it should.
    ReadFailed(ReadFailure),
    /// A traced program was replaced by another one, which is traced now.
    ProgramReplaced {
        interface: String,
        before: String,
        program: String,
    },
    /// A tap cannot see packets any more.
    Blind(Gap),
    /// It sees them again.
    SeesAgain(Gap),
    /// The process that cleans up after a killed trawl was killed itself, and another one was started.
    WardenReplaced,
    /// The kernel does not take the filter: the tap is attached without it, and trawl leaves out what does not match.
    FilteredInUserSpace {
        why: String,
    },
    /// The filter follows chains of headers, the kernel only so far: packets with longer ones are judged in user space.
    LongChainsInUserSpace,
}

/// Why trawl chose a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TapReason {
    NotEthernet,
    SentOnly,
    HookNamed,
    ProgramNamed,
    NoProgram,
    OtherCapture,
    HasHookMap,
    CanBeTraced,
    CannotBeTraced,
}

/// What packets are followed through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Steps {
    Namespaces,
    Interfaces,
}

/// Why polls cannot be stamped as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockReason {
    /// The driver has no polls.
    NoPolls { driver: String },
    /// Their end cannot be seen.
    EndUnseen { why: String },
}

/// What a tap changed for the time of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Left {
    HookSlot { slot: u32 },
    XdpHook,
    TcFilter,
}

/// An interface that packets do not come from any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    pub interface: String,
    pub reason: GoneReason,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GoneReason {
    Removed,
    MovedAway,
    NamespaceDeleted,
    /// None of the chosen programs is attached any more.
    ProgramsGone,
    /// The program that is attached now cannot be traced.
    ProgramUntraceable {
        why: String,
    },
    ReadFailed(ReadFailure),
}

/// Why packets cannot be read from an interface any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadFailure {
    Error {
        why: String,
    },
    ThreadCrashed,
    /// The DPDK application has ended.
    ApplicationEnded,
    /// The DPDK helper wrote what is no block.
    HelperBroken,
    /// Something else told the DPDK helper to end.
    HelperStopped,
    HelperKilled {
        said: Option<String>,
    },
    /// The DPDK helper did not end in this time, and trawl killed it.
    HelperStuck {
        seconds: u64,
    },
}

impl GoneReason {
    /// A stable name.
    fn name(&self) -> &'static str {
        match self {
            Self::Removed => "interface_removed",
            Self::NamespaceDeleted => "interface_namespace_deleted",
            Self::MovedAway => "interface_moved_away",
            Self::ProgramsGone => "interface_without_chosen_programs",
            Self::ProgramUntraceable { .. } => "interface_program_untraceable",
            Self::ReadFailed(ReadFailure::ApplicationEnded) => "interface_application_ended",
            Self::ReadFailed(_) => "interface_read_failed",
        }
    }
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.name())
    }
}

/// A time in which packets went by unseen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    pub interface: String,
    pub tap: Cow<'static, str>,
    /// When the tap was last found to see, and when it was found to see again: nanoseconds since 1970. Without an end,
    /// it lasted as long as the capture.
    pub from_ns: u64,
    pub to_ns: Option<u64>,
    pub cause: Cause,
    /// Why the tap could not be attached again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}
