//! The events of a capture: data for machines, and a sentence for people.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use trawl_packet::verdict::VerdictKind;
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::report::{Firing, TriggerReport};
use trawl_program::reload::{Reload, ReloadMethod};
use trawl_sys::clock;

use crate::taps::watch::BlindCause;
use trawl_plan::options::TriggerPlan;
use trawl_sys::words::path_word;

/// Defines [`Event`]. Each variant is followed by its sentence, as the arguments of `write!`.
macro_rules! events {
    ($($(#[$about:meta])*
       $name:ident $({ $($(#[$field_about:meta])* $field:ident: $kind:ty),+ $(,)? })? $(($value:ident: $payload:ty))?
       => ($($sentence:tt)*);)+) => {
        /// Converts to `serde_json::Value`, so that no other crate compiles the conversion.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        #[serde(tag = "kind", rename_all = "snake_case")]
        pub enum Event {
            $($(#[$about])* $name $({ $($(#[$field_about])* $field: $kind),+ })? $(($payload))?),+
        }

        impl fmt::Display for Event {
            #[allow(unused_variables)]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name $({ $($field),+ })? $(($value))? => write!(f, $($sentence)*)),+
                }
            }
        }
    };
}

events! {
    // Hook points, and the taps chosen for them.

    /// Packets are being recorded at a hook point.
    Capturing {
        interface: String,
        hook: String,
        /// Attach mode; empty if the hook has only one.
        mode: String,
    } => ("capturing on {interface} at {hook}{}", if mode.is_empty() { String::new() } else { format!(" ({mode})") });
    /// trawl chose these taps.
    UsingTaps { interface: String, taps: Vec<String>, reason: TapReason }
        => ("{interface}: using tap {}: {reason}", taps.join(" and "));
    /// Another capture of trawl is at the same XDP hook.
    SharingHook { interface: String } => ("{interface}: sharing the XDP hook with another trawl capture");
    /// The driver did not accept trawl's XDP program.
    SkbMode { interface: String, why: String } => ("{interface}: using skb mode, after the driver: {why}");
    /// Effects of attaching an XDP program on a network card.
    TouchesCard { interface: String, driver: String, effects: String }
        => ("{interface}: attaching an XDP program to a card of the driver {driver}: {effects}; without --tap xdp \
             trawl does not change the card");
    /// No program is attached, so every packet passes, but other verdicts are requested.
    NoPacketMatchesVerdict { interface: String }
        => ("{interface}: no XDP program is attached, so every packet passes and --verdict records none of them; \
             attach the program first, or leave out --verdict");
    /// Capture files have no link type for these frames.
    NoLinkType { interface: String }
        => ("{interface}: capture files have no link type for its frames; they are recorded as USER0");
    /// A change made by the capture was not undone.
    NotUndone { what: LeftBehind, why: String } => ("could not restore {what}: {why}");
    /// The process that cleans up after a killed trawl was killed itself, and another one was started.
    WardenReplaced
        => ("the process that cleans up if trawl is killed (warden) was killed; started another");

    // Traced programs, and programs with hooks.

    /// trawl found this hook map.
    UsingHookMap { interface: String, path: PathBuf } => ("{interface}: using the hook map {}", path.display());
    /// Packets reach these programs by tail calls, which tracing does not see.
    ProgramsOutOfSight { interface: String, programs: String }
        => ("{interface}: packets reach {programs} by a tail call, and tracing does not see the target of a tail call; \
             use --tap tailcall");
    /// A program to trace was attached.
    ProgramFound { interface: String, program: String } => ("{interface}: tracing the XDP program {program}");
    /// A traced program was replaced by another one, which is traced now.
    ProgramReplaced { interface: String, before: String, program: String }
        => ("{interface}: the XDP program {before} was replaced by {program}; tracing the new program; packets in between were \
             not seen");
    /// A traced program is not attached any more.
    ProgramLost {
        interface: String,
        program: String,
        /// True if trawl waits for its return.
        awaited: bool,
    } => ("{interface}: the XDP program {program} is no longer attached{}",
          if *awaited { "; no packets are seen until it or its successor is" } else { "" });
    /// A program runs with hooks during the capture.
    HooksLent { interface: String, file: PathBuf, program: String, id: u32 }
        => ("{interface}: replaced {program} (id {id}) by {} with hooks and the same maps, until the capture ends",
            file.display());
    /// The attached program already has hooks.
    HasHooks { interface: String }
        => ("{interface}: the attached program has hooks already; it is not replaced");
    /// The program without hooks was not restored.
    HooksNotReturned { interface: String }
        => ("{interface}: the program with hooks was replaced or removed during the capture; the previous program was \
             not restored");

    // Interfaces that change, and gaps.

    LinkDown { interface: String } => ("{interface}: went down");
    LinkUp { interface: String } => ("{interface}: is up");
    Renamed { interface: String, name: String } => ("{interface}: was renamed to {name}");
    /// No packets come from this interface any more.
    Gone(gone: Gone) => ("{gone}");
    /// An interface that appeared is not captured.
    NotJoined { why: String } => ("{why}");
    /// Interfaces that appear are captured once others have left.
    JoinsWait { interface: String, why: String }
        => ("{interface} and later interfaces are captured once others have left: {why}");
    /// Reading packets failed, or did not end properly.
    ReadFailed(failure: ReadFailure) => ("{failure}");
    /// A tap cannot see packets any more.
    Blind(gap: Gap)
        => ("{}: tap {} has seen no packets since {}: {}{}", gap.interface, gap.tap, time(gap.from_ns), gap.cause,
            gap.why.as_ref().map_or_else(String::new, |why| format!("; it could not be attached again: {why}")));
    /// A blind tap sees packets again.
    SeesAgain(gap: Gap)
        => ("{}: tap {} attached again: {}; packets from {} to {} may be missing", gap.interface, gap.tap, gap.cause,
            time(gap.from_ns), gap.to_ns.map_or_else(|| "now".to_owned(), time));
    /// A gap, reported once the capture is over.
    Unseen(gap: Gap) => ("{gap}");

    // Pods.

    /// No pod of this choice runs yet.
    PodAwaited { pod: String } => ("no pod {pod} runs here yet: waiting for one");
    /// A pod on the host's network is captured by its processes, so that no other pod may join.
    PodAlone { pod: String }
        => ("the pod {pod} uses the host's network: capturing the packets of its processes, and of no other pod");
    /// A pod on the host's network is not captured, because other pods are.
    PodLeftOut { pod: String }
        => ("the pod {pod} uses the host's network: it is captured only without other pods");

    // The filter.

    /// The kernel or a library drops non-matching packets without counting them.
    RejectedNotCounted {
        interface: String,
        /// Reason for which the kernel refused the counting program; absent for a library.
        why: Option<String>,
    } => ("{interface}: packets that the filter rejects are not counted{}", match why {
        Some(why) => format!(
            ", and the filter sees no VLAN tags that the kernel keeps outside the packet: {why}"
        ),
        None => ": the library does not show them".to_owned(),
    });
    /// The kernel refused the filter: the tap is attached without it, and trawl filters packets itself.
    FilteredInUserSpace { why: String }
        => ("the kernel refuses this filter ({why}); trawl filters the packets in user space");
    /// The kernel follows chains of headers only so far: packets with longer chains are filtered in user space.
    LongChainsInUserSpace
        => ("the kernel follows protochain through 64 headers; trawl filters packets with more headers in user space");

    // The length and the time of records.

    /// Packets are cut after their headers, whose checksums still cover the payload.
    ChecksumsCoverPayload
        => ("the checksums in the recorded headers cover the payload too, and can reveal a short one; before you pass \
             the file on, run: trawl read FILE --headers -w NEW");
    /// A ring's segment is too small for longer packets.
    SnaplenReduced { bytes: u32 }
        => ("keeping at most {bytes} bytes of each packet: the ring is too small for more");
    /// The network card stamps packets, if configured to.
    CardStamps {
        interface: String,
        device: String,
        /// False if its filters select only some packets.
        every_packet: bool,
    } => ("{interface}: {}", if *every_packet {
        format!(
            "packets carry the network card's time if the card is set to stamp them: hwstamp_ctl -i {device} -r 1"
        )
    } else {
        format!(
            "the network card stamps only packets that its filters select (ethtool -T {device} lists them); \
             all others carry the system's time"
        )
    });
    /// The system stamps packets, since neither card nor library does.
    SystemStamps { interface: String, library: Option<String> } => ("{interface}: {}", match library {
        Some(library) => {
            format!("{library} has no time stamps of the network card for it; packets carry the system's time")
        }
        None => "its driver stamps no packets; they carry the system's time".to_owned(),
    });
    /// The clock is read for each packet, not for each poll.
    ClockReadPerPacket { interface: String, reason: ClockReason }
        => ("{interface}: the clock is read for each packet: {reason}");
    HardwareTime { stamped: u64, recorded: u64 }
        => ("{stamped} of {recorded} recorded packets carry the hardware's time");
    TimeError { at_most_ns: u64 } => ("time stamps are wrong by at most {at_most_ns} ns");

    // Libraries and applications that hand over packets.

    /// A warning of libpcap on opening the device.
    LibraryWarning { interface: String, library: String, warning: String } => ("{interface}: {library}: {warning}");
    /// The library gave packets impossible times.
    ImpossibleTimes { library: String, packets: u64 }
        => ("{library} gave {packets} packets an impossible time; they carry the time at which trawl read them");
    /// The library's reading thread did not return in time.
    LibraryStuck { library: String, seconds: u64 }
        => ("{library} did not return from reading packets within {seconds} s; packets that it holds are not recorded");
    /// The network stack does not get the packets.
    TakenFromStack { interface: String }
        => ("{interface}: the network stack receives none of its packets during the capture");
    /// Callbacks of a killed capture were removed from a DPDK port.
    DpdkPortCleared { interface: String, port: String, pid: String }
        => ("{interface}: removed from port {port} the callbacks that a killed capture (process {pid}) left");
    /// Statistics of a library that reads packets.
    Library(figures: LibraryFigures) => ("{figures}");

    // Packets that are followed, and recognised.

    /// Too many namespaces or interfaces to follow packets through all of them.
    StepsLeftOut { of: Steps, count: u64 } => ("no steps at {}", match of {
        Steps::Namespaces => format!(
            "netfilter, tc and XDP in {count} network namespaces: there are too many; choose some with --within"
        ),
        Steps::Interfaces => {
            format!("tc and XDP on {count} interfaces: there are too many; choose namespaces with --within")
        }
    });
    /// The running kernel lacks a tracepoint.
    NoTracepoint { name: String } => ("the kernel has no tracepoint {name}: that step is not shown");
    /// Packets are followed without these steps.
    NoSteps { why: String } => ("some steps are not shown: {why}");
    /// Packets are followed without the steps at a program without hooks.
    NoHooks { interface: String, reload: Reload } => ("{interface}: no steps at its XDP program, which {}", match reload.how {
        ReloadMethod::Helper => "trawl attached and which lets every packet pass".to_owned(),
        _ => format!("has no hooks; load it with hooks: {reload}"),
    });
    /// Sightings of these taps are all recorded, in spite of --once.
    NotMerged {
        taps: Vec<String>,
        /// The kernel does not let programs recognise packets.
        needs_kernel: bool,
    } => ("--once keeps all records of {}: {}", taps.join(", "), if *needs_kernel {
        "programs recognise packets since Linux 6.2"
    } else {
        "only taps with a BPF program recognise packets that another tap has seen; use --tap tc or xdp"
    });

    // Processes.

    /// The table has no room for all kernel functions that distinguish losses from other ends of packets.
    DropFunctionsLeft { like: String, left: usize }
        => ("packets that the kernel frees in some variants of {like} may count as dropped although they are not: \
             the kernel has {left} more such functions than trawl can look for");
    /// Packets whose process is unknown, recorded and left out; connections whose first packets were left out before a
    /// selected process received them; and processes of packets that are not described.
    ProcessesUnknown { recorded: u64, left_out: u64, begun_before: u64, undescribed: u64 }
        => ("{}", unknown_processes([*recorded, *left_out, *begun_before, *undescribed]));
    /// Some uses of sockets by processes are not seen.
    ProcessesUnseen { uses: Vec<String> }
        => ("some received packets will name an earlier owner of their socket as their process, because trawl does not see {}",
            uses.join(", "));

    // Triggers.

    /// Packets are kept in memory until an event.
    Armed {
        before_ns: u64,
        memory_bytes: u64,
        /// Ring memory for packets not yet read, in addition.
        ring_bytes: u64,
        expression: Option<String>,
        verdicts: Vec<String>,
        /// Process that starts recording on SIGUSR2.
        signal_pid: Option<u32>,
    } => ("keeping the packets of the last {:?} in memory, at most {} MiB in addition to the {} MiB of --memory, until {}",
          Duration::from_nanos(*before_ns), memory_bytes >> 20, ring_bytes >> 20,
          triggers(expression.as_deref(), verdicts, *signal_pid));
    /// An event started the writing of packets.
    Triggered(firing: Firing) => ("{firing}");
    Triggers(report: TriggerReport) => ("{report}");

    /// Memory for records was added, or given back.
    Memory { bytes: u64, most: u64 }
        => ("records have {} MiB of memory now, and can have {} MiB", bytes >> 20, most >> 20);

    /// No memory for records can be added.
    MemoryRefused { bytes: u64, why: String, fix: String }
        => ("records stay within {} MiB of memory, because no more can be added: {why}; {fix}", bytes >> 20);

    // Outputs.

    /// A file goes through the page cache.
    NotDirect { output: String, why: String } => ("{output}: written through the page cache: {why}");
    /// An output is a named pipe, which is opened once it has a reader.
    WaitsForReader { output: String } => ("{output} is a named pipe: the capture begins once it has a reader");
    /// The pipe's reader does not read.
    NotRead { output: String, packets: u64 }
        => ("{output}: its reader does not read; {packets} recorded packets did not reach it");
    /// Losses of an output after the first.
    Output(output: OutputSummary) => ("{output}");
    /// An output ended early.
    OutputFailed { error: String } => ("{error}");
    /// Packets were lost because they could not be compressed in time.
    CompressionTooSlow { packets: u64, threads: usize } => ("{}", compression_limit(*threads));
    /// All packets are written, but commands of -z still run.
    WaitsForCommands { count: usize }
        => ("waiting for {count} command{} of -z; Ctrl-C stops waiting", if *count == 1 { "" } else { "s" });
    /// The summary of packets, on request and at the end.
    Account(account: PacketAccount) => ("{account}");

    // Readers of an output.

    /// An output waits for readers.
    Listening {
        output: String,
        address: SocketAddr,
        tls: bool,
        /// True if the kernel chose the port.
        any_port: bool,
    } => ("{output}: waiting for readers{}", if *tls {
        " with TLS and a certificate".to_owned()
    } else if address.ip().is_unspecified() {
        format!(", for example: wireshark -k -i TCP@HOST:{}", address.port())
    } else {
        format!(", for example: wireshark -k -i TCP@{address}")
    });
    /// Readers of an output cause this traffic.
    OwnTraffic {
        traffic: String,
        /// True if the filter leaves it out.
        left_out: bool,
    } => ("{}recording the readers' own traffic{}: {traffic}", if *left_out { "not " } else { "" },
          if *left_out { "" } else { ", which grows with each record of it; exclude it by the filter" });
    ReaderJoined { output: String, reader: SocketAddr } => ("{output}: reader {reader} connected");
    /// A reader that has left, or whose stream has ended.
    Reader(reader: ReaderSummary) => ("{reader}");
    ReaderRefused { output: String, reader: SocketAddr, why: String }
        => ("{output}: {reader} was refused as a reader: {why}");

    // The store.

    StoreDelayed { url: String, error: String }
        => ("cannot store to {url} for now: {error}; chunks wait in the spool");
    /// The end of a capture into a store.
    Stored { recorded: u64, stored: u64, on_host: u64, spooled: u64, evicted: u64 }
        => ("{recorded} recorded: {stored} stored, {}{spooled} spooled, {evicted} evicted",
            if *on_host == 0 { String::new() } else { format!("{on_host} on this host, ") });
    /// Chunks not yet in the store.
    Spooled { spool: PathBuf, chunks: u64, error: String }
        => ("{chunks} chunk{} in {} to be stored: {error}; store them later: trawl store push --spool {}",
            if *chunks == 1 { "" } else { "s" }, spool.display(), path_word(spool));
    /// Packets that will never be in the store.
    Evicted { url: String, packets: u64 } => ("{packets} packets are not in {url}: the spool was full");
}

/// Reason for which trawl chose a tap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    /// Only packets that the attached program passes are seen.
    CannotBeTraced {
        why: String,
    },
}

impl fmt::Display for TapReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotEthernet => "its frames are not Ethernet",
            Self::SentOnly => "sent packets pass no XDP hook",
            Self::HookNamed => "--hook was given",
            Self::ProgramNamed => "--program was given",
            Self::NoProgram => "no XDP program is attached",
            Self::OtherCapture => "another trawl capture is attached",
            Self::HasHookMap => "the attached XDP program has a hook map",
            Self::CanBeTraced => "the attached XDP program can be traced",
            Self::CannotBeTraced { why } => {
                return write!(f, "packets that the XDP program drops are not seen: {why}");
            }
        })
    }
}

/// Objects that packets are followed through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Steps {
    Namespaces,
    Interfaces,
}

/// Reason for which polls cannot be stamped as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockReason {
    /// The driver has no polls.
    NoPolls { driver: String },
    /// The end of polls cannot be seen.
    EndUnseen { why: String },
}

impl fmt::Display for ClockReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPolls { driver } => write!(f, "the driver ({driver}) has no polls"),
            Self::EndUnseen { why } => write!(f, "cannot observe the end of NAPI polls: {why}"),
        }
    }
}

/// A change that a tap made for the time of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftBehind {
    HookSlot { slot: u32 },
    XdpHook,
    TcFilter,
}

impl fmt::Display for LeftBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HookSlot { slot } => write!(f, "slot {slot} of the hook map"),
            Self::XdpHook => f.write_str("the XDP hook"),
            Self::TcFilter => f.write_str("the tc filter"),
        }
    }
}

/// An interface that no packets come from any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gone {
    pub interface: String,
    pub reason: GoneReason,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GoneReason {
    Removed,
    MovedAway,
    NamespaceDeleted,
    /// None of the chosen programs is attached any more.
    ProgramsGone,
    /// The program attached now cannot be traced.
    ProgramUntraceable {
        why: String,
    },
    ReadFailed(ReadFailure),
}

/// Reason for which packets cannot be read from an interface any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadFailure {
    Error {
        why: String,
    },
    ThreadCrashed,
    /// The DPDK application has ended.
    ApplicationEnded,
    /// The DPDK helper wrote an invalid block.
    HelperBroken,
    /// The DPDK helper was ended by another process.
    HelperStopped,
    HelperKilled {
        said: Option<String>,
    },
    /// The DPDK helper did not end in time, and trawl killed it.
    HelperStuck {
        seconds: u64,
    },
}

impl GoneReason {
    /// Returns a stable name.
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

impl Gone {
    /// Returns a stable name of the reason.
    pub fn name(&self) -> &'static str {
        self.reason.name()
    }
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the interface {} ", self.interface)?;
        match &self.reason {
            GoneReason::Removed => f.write_str("was removed"),
            GoneReason::MovedAway => f.write_str("was moved to another namespace"),
            GoneReason::NamespaceDeleted => f.write_str("left the capture: its namespace was deleted"),
            GoneReason::ProgramsGone => f.write_str("no longer runs any of the chosen XDP programs"),
            GoneReason::ProgramUntraceable { why } => write!(f, "has another XDP program now: {why}"),
            GoneReason::ReadFailed(ReadFailure::ApplicationEnded) => {
                f.write_str("was removed: its DPDK application has ended")
            }
            GoneReason::ReadFailed(failure) => write!(f, "cannot be captured any more: {failure}"),
        }
    }
}

impl fmt::Display for ReadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error { why } => why,
            Self::ThreadCrashed => "the thread that reads packets has crashed",
            Self::ApplicationEnded => "the DPDK application has ended",
            Self::HelperBroken => "trawl-dpdk handed over an invalid block",
            Self::HelperStopped => "trawl-dpdk was stopped by another process",
            Self::HelperKilled { said: Some(said) } => return write!(f, "trawl-dpdk was killed ({said})"),
            Self::HelperKilled { said: None } => "trawl-dpdk was killed",
            Self::HelperStuck { seconds } => {
                return write!(f, "trawl-dpdk did not end within {seconds} s and was killed");
            }
        })
    }
}

/// A period in which packets passed unseen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    pub interface: String,
    pub tap: Cow<'static, str>,
    /// Time at which the tap was last known to work, and time at which it worked again, in nanoseconds since 1970. A
    /// gap without an end lasted until the end of the capture.
    pub from_ns: u64,
    pub to_ns: Option<u64>,
    pub cause: BlindCause,
    /// Reason for which the tap could not be re-attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// An output after the first one, whose counters are the capture's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OutputSummary {
    pub name: String,
    /// Recorded packets in this output; `lost` counts the others.
    pub recorded: u64,
    /// Packets that arrived while no reader was connected.
    #[serde(skip_serializing_if = "is_zero")]
    pub not_kept: u64,
    pub lost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// True if the error is a failure of the capture.
    #[serde(skip)]
    pub failed: bool,
    /// Number of CPUs, if the losses are packets that these could not compress in time.
    #[serde(skip)]
    pub too_few_cpus: Option<usize>,
}

impl fmt::Display for OutputSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, lost, not_kept, .. } = self;
        let why = match (&self.error, self.too_few_cpus) {
            (Some(_), _) => String::new(),
            (None, Some(cpus)) => format!(": {}", compression_limit(cpus)),
            (None, None) => ": it could not keep up".to_owned(),
        };
        let losses = format!("{lost} recorded packets lost{why}");
        let alone = format!("{not_kept} recorded packets came while no reader was connected");
        match (lost, not_kept) {
            (_, 0) => write!(f, "{name}: {losses}"),
            (0, _) => write!(f, "{name}: {alone}"),
            _ => write!(f, "{name}: {alone}, {losses}"),
        }
    }
}

/// A reader that connected to an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReaderSummary {
    pub output: String,
    pub reader: SocketAddr,
    pub sent: u64,
    /// Packets that arrived while it was connected, and were not sent to it.
    pub lost: u64,
    /// Reason for which it left before the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
}

impl fmt::Display for ReaderSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { output, reader, sent, lost, left } = self;
        write!(f, "{output}: reader {reader}: {sent} sent, {lost} lost")?;
        match (left, lost) {
            (Some(why), _) => write!(f, "; {why}"),
            (None, 0) => Ok(()),
            (None, _) => f.write_str(": it could not keep up"),
        }
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Statistics of a library that reads packets for a tap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LibraryFigures {
    /// Name and version, from the library.
    pub name: String,
    /// `None` if the library has no statistics for its device.
    pub received: Option<u64>,
    pub dropped: Option<u64>,
    pub dropped_by_interface: Option<u64>,
}

impl fmt::Display for LibraryFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (self.received, self.dropped, self.dropped_by_interface) {
            (Some(received), Some(dropped), Some(by_interface)) => {
                write!(f, "{name}: {received} received, {dropped} dropped, {by_interface} dropped by the interface")
            }
            _ => write!(f, "{name} has no statistics for this device"),
        }
    }
}

impl From<&Event> for Value {
    fn from(event: &Event) -> Self {
        serde_json::to_value(event).unwrap_or_default()
    }
}

/// Describes the packets whose process is unknown, those that a filter by process lacks, and undescribed processes.
fn unknown_processes([recorded, left_out, begun_before, undescribed]: [u64; 4]) -> String {
    let why = "another process had the listening socket then; a filter by port has them";
    let parts = [
        match recorded {
            0 => String::new(),
            1 => "the process of 1 packet is unknown".to_owned(),
            many => format!("the process of {many} packets is unknown"),
        },
        match left_out {
            0 => String::new(),
            1 => "1 packet was left out because its process is unknown".to_owned(),
            many => format!("{many} packets were left out because their process is unknown"),
        },
        match begun_before {
            0 => String::new(),
            1 => format!("1 connection lacks its first packets: {why}"),
            many => format!("{many} connections lack their first packets: {why}"),
        },
        match undescribed {
            0 => String::new(),
            1 => "1 process of packets has no description".to_owned(),
            many => format!("{many} processes of packets have no description"),
        },
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Lists the events that start the writing of packets.
fn triggers(expression: Option<&str>, verdicts: &[String], signal_pid: Option<u32>) -> String {
    let events = [
        expression.map(|text| format!("a packet that matches '{text}'")),
        (!verdicts.is_empty()).then(|| format!("a packet with the verdict {}", verdicts.join(" or "))),
        signal_pid.map(|pid| format!("SIGUSR2 (kill -USR2 {pid})")),
    ];
    events.into_iter().flatten().collect::<Vec<_>>().join(" or ")
}

fn compression_limit(cpus: usize) -> String {
    format!(
        "compression could not keep up on {cpus} CPUs; use --compress lz4, -s or a filter, or compress later: trawl read \
         FILE -w FILE.zst"
    )
}

impl Event {
    /// Reports that packets are kept in memory until an event.
    pub fn armed(plan: &TriggerPlan, ring_bytes: u64) -> Self {
        let verdicts = plan.verdicts.iter().flat_map(|set| set.actions());
        Self::Armed {
            before_ns: plan.before.as_nanos() as u64,
            memory_bytes: plan.memory,
            ring_bytes,
            expression: plan.expression.clone(),
            verdicts: verdicts.filter_map(|action| VerdictKind::Xdp.name(action)).map(str::to_owned).collect(),
            signal_pid: plan.signal.then(std::process::id),
        }
    }
}

impl fmt::Display for Gap {
    /// Writes the gap as a line of the summary.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: tap {} saw no packets from {} to {}: {}",
            self.interface,
            self.tap,
            time(self.from_ns),
            self.to_ns.map_or_else(|| "the end".to_owned(), time),
            self.cause
        )
    }
}

/// Formats the time of day like packet times, to the millisecond.
fn time(ns: u64) -> String {
    let seconds = (ns / 1_000_000_000) as i64 + i64::from(clock::utc_offset());
    let of_day = seconds.rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}.{:03}", of_day / 3600, of_day / 60 % 60, of_day % 60, ns / 1_000_000 % 1000)
}
