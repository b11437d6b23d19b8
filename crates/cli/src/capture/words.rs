//! A capture's notices in words.

use trawl_kernel::clock;
use trawl_tap::notice::{Gap, Notice};
use trawl_tap::pcap::LibraryFigures;
use trawl_tap::trigger;
use trawl_tap::watch::Cause;

/// The actions of an XDP program, as the slots of a hook map are numbered.
const SLOTS: [&str; 5] = ["ABORTED", "DROP", "PASS", "TX", "REDIRECT"];

pub(crate) fn notice(notice: &Notice) -> String {
    match notice {
        Notice::Text { text } => text.clone(),
        Notice::Triggered(event) => event.to_string(),
        Notice::FilteredInUserSpace { why } => format!(
            "the kernel does not take this filter ({why}); it takes all packets, and trawl filters them"
        ),
        Notice::LongChainsInUserSpace =>
            "the kernel follows protochain through 64 headers; trawl filters packets with more".to_owned(),
        Notice::WardenReplaced => {
            "the process that cleans up if trawl is killed (trawl-warden) was killed; started another".to_owned()
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

/// What packets wait for.
pub(super) fn armed(plan: &trigger::Plan) -> String {
    let mut events = Vec::new();
    if let Some(text) = &plan.expression {
        events.push(format!("a packet that matches '{text}'"));
    }
    if plan.verdicts.is_some() {
        events.push("a packet with one of the verdicts".to_owned());
    }
    if plan.signal {
        events.push(format!("SIGUSR2 (kill -USR2 {})", std::process::id()));
    }
    format!(
        "keeping packets of {:?} in memory, at most {} MiB, until there is {}",
        plan.before,
        plan.memory >> 20,
        events.join(" or ")
    )
}

/// A line of the account.
pub(super) fn triggers(report: &trigger::Report) -> String {
    let during = match report.during_others {
        0 => String::new(),
        more => format!(", {more} more while their packets were written"),
    };
    format!("{} triggers{during}", report.events)
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
        _ => format!("{name} has no figures of its own for this device"),
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
