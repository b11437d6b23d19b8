//! A capture's notices in words.

use std::time::Duration;

use trawl_kernel::clock;
use trawl_packet::verdict::Kind;
use trawl_program::again::Again;
use trawl_tap::assembly::Point;
use trawl_tap::notice::{
    ClockReason, Gap, Gone, GoneReason, Left, Notice, ReadFailure, Steps, TapReason,
};
use trawl_tap::pcap::LibraryFigures;
use trawl_tap::trigger;
use trawl_tap::watch::Cause;

/// The actions of an XDP program, as the slots of a hook map are numbered.
const SLOTS: [&str; 5] = ["ABORTED", "DROP", "PASS", "TX", "REDIRECT"];

/// A notice as a sentence.
pub(crate) fn notice(notice: &Notice) -> String {
    match notice {
        Notice::Capturing {
            interface,
            hook,
            mode,
        } if mode.is_empty() => format!("capturing on {interface} at {hook}"),
        Notice::Capturing {
            interface,
            hook,
            mode,
        } => format!("capturing on {interface} at {hook} ({mode})"),
        Notice::UsingTaps {
            interface,
            taps,
            reason,
        } => format!(
            "{interface}: using tap {}: {}",
            taps.join(" and "),
            tap_reason(*reason)
        ),
        Notice::UsingHookMap { interface, path } => {
            format!("{interface}: using the hook map {}", path.display())
        }
        Notice::SharingHook { interface } => {
            format!("{interface}: sharing the XDP hook with another trawl capture")
        }
        Notice::SkbMode { interface, why } => {
            format!("{interface}: using skb mode, after the driver: {why}")
        }
        Notice::TouchesCard {
            interface,
            driver,
            effects,
        } => format!(
            "{interface}: attaching an XDP program to a card of the driver {driver}: {effects}; without --tap xdp \
             the card is left alone"
        ),
        Notice::NoPacketMatchesVerdict { interface } => format!(
            "{interface}: no XDP program is attached, so every packet passes and --verdict records none of them; \
             attach the program first, or leave out --verdict"
        ),
        Notice::ProgramsOutOfSight {
            interface,
            programs,
        } => format!(
            "{interface}: packets reach {programs} by a tail call, and tracing does not see the target of a tail call; \
             use --tap hook"
        ),
        Notice::ProgramFound { interface, program } => {
            format!("{interface}: tracing the XDP program {program}")
        }
        Notice::ProgramReplaced {
            interface,
            before,
            program,
        } => format!(
            "{interface}: the XDP program {before} was replaced by {program}; tracing that one; packets in between were not seen"
        ),
        Notice::ProgramLost {
            interface,
            program,
            awaited: false,
        } => format!("{interface}: the XDP program {program} is no longer attached"),
        Notice::ProgramLost {
            interface, program, ..
        } => format!(
            "{interface}: the XDP program {program} is no longer attached; no packets are seen until it or its successor is"
        ),
        Notice::RejectedNotCounted {
            interface,
            why: Some(why),
        } => format!(
            "{interface}: packets that the filter rejects are not counted, and the filter sees no VLAN tags that the \
             kernel keeps beside the packet: {why}"
        ),
        Notice::RejectedNotCounted {
            interface,
            why: None,
        } => format!(
            "{interface}: packets that the filter rejects are not counted: the library does not show them"
        ),
        Notice::NoLinkType { interface } => format!(
            "{interface}: capture files have no link type for its frames; they are recorded as USER0"
        ),
        Notice::CardStamps { interface, device } => format!(
            "{interface}: packets carry the network card's time if the card was told to stamp them: hwstamp_ctl -i {device} -r 1"
        ),
        Notice::SystemStamps {
            interface,
            library: Some(library),
        } => format!(
            "{interface}: {library} has no time stamps of the network card for it; packets carry the system's time"
        ),
        Notice::SystemStamps {
            interface,
            library: None,
        } => format!("{interface}: its driver stamps no packets; they carry the system's time"),
        Notice::LibraryWarning {
            interface,
            library,
            warning,
        } => format!("{interface}: {library}: {warning}"),
        Notice::ImpossibleTimes { library, packets } => format!(
            "{library} gave {packets} packets an impossible time; they carry the time at which trawl read them"
        ),
        Notice::LibraryStuck { library, seconds } => format!(
            "{library} did not return from reading packets within {seconds} s; packets that it holds are not recorded"
        ),
        Notice::TakenFromStack { interface } => format!(
            "{interface}: its packets are taken away from the network stack during the capture"
        ),
        Notice::DpdkPortCleared {
            interface,
            port,
            pid,
        } => format!(
            "{interface}: removed from port {port} what a killed capture (process {pid}) had left"
        ),
        Notice::StepsLeftOut { of, count } => match of {
            Steps::Namespaces => format!(
                "no steps at netfilter, tc and XDP in {count} network namespaces: there are too many; choose some with --within"
            ),
            Steps::Interfaces => format!(
                "no steps at tc and XDP on {count} interfaces: there are too many; choose namespaces with --within"
            ),
        },
        Notice::NoTracepoint { name } => {
            format!("the kernel has no tracepoint {name}: that step is not shown")
        }
        Notice::NoSteps { why } => format!("some steps are not shown: {why}"),
        Notice::NotJoined { why } => why.clone(),
        Notice::JoinsWait { interface, why } => {
            format!("{interface} and later interfaces join once others have left: {why}")
        }
        Notice::NoHooks { interface, reload } => match reload.how {
            Again::Helper => format!(
                "{interface}: no steps at its XDP program, which trawl attached and which lets every packet pass"
            ),
            _ => format!(
                "{interface}: no steps at its XDP program, which has no hooks; load it with hooks: {}",
                reload
            ),
        },
        Notice::ClockReadPerPacket { interface, reason } => {
            let why = match reason {
                ClockReason::NoPolls { driver } => format!("the driver ({driver}) has no polls"),
                ClockReason::EndUnseen { why } => format!("the end of polls cannot be seen: {why}"),
            };
            format!("{interface}: the clock is read for each packet: {why}")
        }
        Notice::SnaplenReduced { bytes } => {
            format!("keeping at most {bytes} bytes of each packet: the ring is too small for more")
        }
        Notice::WaitsForReader { output } => {
            format!("{output} is a named pipe: the capture begins when somebody reads it")
        }
        Notice::NotDirect { output, why } => {
            format!("{output}: written through the page cache: {why}")
        }
        Notice::NotRead { output, packets } => format!(
            "{output}: its reader does not read; {packets} recorded packets did not reach it"
        ),
        Notice::Armed {
            before_ns,
            memory_bytes,
            ring_bytes,
            expression,
            verdicts,
            signal_pid,
        } => {
            let mut events = Vec::new();
            if let Some(text) = expression {
                events.push(format!("a packet that matches '{text}'"));
            }
            if !verdicts.is_empty() {
                events.push(format!(
                    "a packet with the verdict {}",
                    verdicts.join(" or ")
                ));
            }
            if let Some(pid) = signal_pid {
                events.push(format!("SIGUSR2 (kill -USR2 {pid})"));
            }
            format!(
                "keeping packets of {:?} in memory, at most {} MiB beside the {} MiB of --memory, until there is {}",
                Duration::from_nanos(*before_ns),
                memory_bytes >> 20,
                ring_bytes >> 20,
                events.join(" or ")
            )
        }
        Notice::Triggered(event) => event.to_string(),
        Notice::HooksLent {
            interface,
            file,
            program,
            id,
        } => format!(
            "{interface}: replaced {program} (id {id}) by {} with hooks and the same maps, until the capture ends",
            file.display()
        ),
        Notice::HasHooks { interface } => {
            format!("{interface}: the attached program has hooks already; it is not replaced")
        }
        Notice::HooksNotReturned { interface } => format!(
            "{interface}: the program with hooks was replaced or removed during the capture; the previous program was not restored"
        ),
        Notice::LinkDown { interface } => format!("{interface}: went down"),
        Notice::LinkUp { interface } => format!("{interface}: is up"),
        Notice::Renamed { interface, name } => format!("{interface}: was renamed to {name}"),
        Notice::Gone(gone) => self::gone(gone),
        Notice::NotUndone { what, why } => {
            let what = match what {
                Left::HookSlot { slot } => format!("slot {slot} of the hook map"),
                Left::XdpHook => "the XDP hook".to_owned(),
                Left::TcFilter => "the tc filter".to_owned(),
            };
            format!("could not restore {what}: {why}")
        }
        Notice::ReadFailed(failure) => read_failure(failure),
        Notice::FilteredInUserSpace { why } => format!(
            "the kernel does not take this filter ({why}); it takes all packets, and trawl filters them"
        ),
        Notice::LongChainsInUserSpace => {
            "the kernel follows protochain through 64 headers; trawl filters packets with more"
                .to_owned()
        }
        Notice::WardenReplaced => {
            "the process that cleans up if trawl is killed (warden) was killed; started another"
                .to_owned()
        }
        Notice::Blind(gap) => {
            let why = gap.why.as_ref().map_or_else(String::new, |why| {
                format!("; it could not be attached again: {why}")
            });
            format!(
                "{}: tap {} sees no packets since {}: {}{why}",
                gap.interface,
                gap.tap,
                time(gap.from_ns),
                cause(&gap.cause)
            )
        }
        Notice::SeesAgain(gap) => format!(
            "{}: tap {} attached again: {}; packets from {} to {} may be missing",
            gap.interface,
            gap.tap,
            cause(&gap.cause),
            time(gap.from_ns),
            gap.to_ns.map_or_else(|| "now".to_owned(), time)
        ),
    }
}

/// A hook point at which packets are being recorded.
pub(crate) fn capturing(point: &Point) -> Notice {
    Notice::Capturing {
        interface: point.label.clone(),
        hook: point.hook.to_string(),
        mode: point.mode.to_string(),
    }
}

fn tap_reason(reason: TapReason) -> &'static str {
    match reason {
        TapReason::NotEthernet => "its frames are not Ethernet",
        TapReason::SentOnly => "sent packets pass no XDP hook",
        TapReason::HookNamed => "--hook was given",
        TapReason::ProgramNamed => "--program was given",
        TapReason::NoProgram => "no XDP program is attached",
        TapReason::OtherCapture => "another trawl capture is attached",
        TapReason::HasHookMap => "the attached XDP program has a hook map",
        TapReason::CanBeTraced => "the attached XDP program can be traced",
        TapReason::CannotBeTraced => "the attached XDP program cannot be traced",
    }
}

/// Why no packets come from an interface any more.
pub(crate) fn gone(gone: &Gone) -> String {
    let interface = &gone.interface;
    match &gone.reason {
        GoneReason::Removed => format!("the interface {interface} was removed"),
        GoneReason::MovedAway => {
            format!("the interface {interface} was moved to another namespace")
        }
        GoneReason::NamespaceDeleted => {
            format!("the interface {interface} left the capture: its namespace was deleted")
        }
        GoneReason::ProgramsGone => {
            format!("the interface {interface} no longer runs any of the chosen XDP programs")
        }
        GoneReason::ProgramUntraceable { why } => {
            format!("the interface {interface} has another XDP program now: {why}")
        }
        GoneReason::ReadFailed(ReadFailure::ApplicationEnded) => {
            format!("the interface {interface} was removed: its DPDK application has ended")
        }
        GoneReason::ReadFailed(failure) => format!(
            "the interface {interface} cannot be captured from any more: {}",
            read_failure(failure)
        ),
    }
}

fn read_failure(failure: &ReadFailure) -> String {
    match failure {
        ReadFailure::Error { why } => why.clone(),
        ReadFailure::ThreadCrashed => "the thread that reads packets has crashed".to_owned(),
        ReadFailure::ApplicationEnded => "the DPDK application has ended".to_owned(),
        ReadFailure::HelperBroken => {
            "trawl-dpdk handed over something that is not a block".to_owned()
        }
        ReadFailure::HelperStopped => "trawl-dpdk was told to end".to_owned(),
        ReadFailure::HelperKilled { said: Some(said) } => format!("trawl-dpdk was killed ({said})"),
        ReadFailure::HelperKilled { said: None } => "trawl-dpdk was killed".to_owned(),
        ReadFailure::HelperStuck { seconds } => {
            format!("trawl-dpdk did not end within {seconds} s and was killed")
        }
    }
}

/// What packets wait for.
pub(super) fn waiting_for(plan: &trigger::TriggerPlan, ring_bytes: u64) -> Notice {
    let verdicts = plan.verdicts.iter().flat_map(|set| set.actions());
    Notice::Armed {
        before_ns: plan.before.as_nanos() as u64,
        memory_bytes: plan.memory,
        ring_bytes,
        expression: plan.expression.clone(),
        verdicts: verdicts
            .filter_map(|action| Kind::Xdp.name(action))
            .map(str::to_owned)
            .collect(),
        signal_pid: plan.signal.then(std::process::id),
    }
}

/// A line of the account.
pub(super) fn triggers(report: &trigger::Report) -> String {
    let during = match report.during_others {
        0 => String::new(),
        more => format!(", {more} more while their packets were written"),
    };
    let s = if report.events == 1 { "" } else { "s" };
    format!("{} trigger{s}{during}", report.events)
}

/// A line of the account.
pub(super) fn unseen(gap: &Gap) -> String {
    format!(
        "{}: tap {} could see nothing from {} to {}: {}",
        gap.interface,
        gap.tap,
        time(gap.from_ns),
        gap.to_ns.map_or_else(|| "the end".to_owned(), time),
        cause(&gap.cause)
    )
}

/// What a library has counted itself.
pub(super) fn library(figures: &LibraryFigures) -> String {
    let LibraryFigures {
        name,
        received,
        dropped,
        dropped_by_interface,
    } = figures;
    match (received, dropped, dropped_by_interface) {
        (Some(received), Some(dropped), Some(by_interface)) => format!(
            "{name}: {received} received, {dropped} dropped, {by_interface} dropped by the interface"
        ),
        _ => format!("{name} counts nothing for this device"),
    }
}

fn cause(cause: &Cause) -> String {
    let slot_name = |slot: u32| SLOTS.get(slot as usize).copied().unwrap_or("?");
    match cause {
        Cause::LinkDetached => "its link was detached".to_owned(),
        Cause::ProgramReplaced { id, name } => {
            format!("the XDP program was replaced by {name} (id {id})")
        }
        Cause::ProgramRemoved => "the XDP program was removed".to_owned(),
        Cause::SlotEmptied { slot } => {
            format!(
                "slot {slot} ({}) of the hook map was emptied",
                slot_name(*slot)
            )
        }
        Cause::SlotTaken { slot, id } => format!(
            "slot {slot} ({}) of the hook map was given to program {id}",
            slot_name(*slot)
        ),
        Cause::FilterRemoved => "its tc filter was deleted".to_owned(),
    }
}

/// The time of day, as packets have it, to the millisecond.
fn time(ns: u64) -> String {
    let seconds = (ns / 1_000_000_000) as i64 + i64::from(clock::utc_offset());
    let of_day = seconds.rem_euclid(86_400);
    format!(
        "{:02}:{:02}:{:02}.{:03}",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60,
        ns / 1_000_000 % 1000
    )
}

/// What limits compression, and what helps.
pub(super) fn compression_limits() -> String {
    let threads = trawl_sink::compression_threads();
    format!(
        "compression could not keep up on {threads} CPUs; use --compress lz4, -s or a filter, or compress later: trawl read \
         FILE -w FILE.zst"
    )
}
