//! Verdicts from the packets of files.

use std::collections::HashMap;

use trawl_packet::pcapng::Direction;
use trawl_packet::pcapng::block::INTERFACE_STATISTICS;
use trawl_packet::pcapng::note::DropNote;
use trawl_packet::read::Step;
use trawl_plan::filter::Filter;
use trawl_slow::packets::{Analysis, Packet, place_hook};
use trawl_slow::report::Report;
use trawl_source::{Input, file_filter};
use trawl_sys::words::shown;
use trawl_sys::{Result, rights::privilege};
use trawl_view::merge::Merge;
use trawl_view::record::{PacketSource, PacketView};
use trawl_view::why::{DropKey, Tally};

use super::causes::Causes;
use crate::why::record::rows;
use crate::why::report::Knowledge;

/// The verdicts about the packets of files.
#[derive(Debug)]
pub struct Read {
    pub report: Report,
    /// Set unless a file could not be read to its end.
    pub is_whole: bool,
}

/// Numbers of the capture points, by their interfaces and hooks.
#[derive(Default)]
struct Places(HashMap<(String, String), u32>);

impl Places {
    fn of(&mut self, packet: &PacketView<'_>) -> u32 {
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let next = self.0.len() as u32;
        let hook = packet.hook.map(place_hook);
        *self.0.entry((text(packet.interface), text(hook))).or_insert(next)
    }
}

/// Reads the packets of files that match an expression. Gives up all rights.
pub fn read(inputs: Vec<Input>, expression: &str) -> Result<Read> {
    let filter = (!expression.is_empty()).then(|| Filter::Expression(expression.to_owned()));
    let mut filter = file_filter(filter.as_ref(), inputs.first())?;
    // All files are open: untrusted bytes are parsed with no more rights than that needs.
    privilege::keep_none()?;
    privilege::forbid_all_but_files();
    let (mut analysis, mut places, mut is_whole) = (Analysis::default(), Places::default(), true);
    let (mut causes, mut facts) = (Causes::default(), Vec::new());
    let mut sources = Merge::new(inputs);
    loop {
        let step = sources.step();
        let Some(input) = sources.source() else { break };
        match step {
            Ok(Some(Step::Packet)) => {}
            Ok(Some(Step::Block { kind })) => {
                if kind == INTERFACE_STATISTICS {
                    facts.extend(rows(input.reader.raw(), input.reader.byte_order()));
                }
                continue;
            }
            Ok(None) => break,
            Err(error) if error.would_block() => continue,
            Err(error) => {
                input.report_unreadable(&error);
                is_whole = false;
                continue;
            }
        }
        let Some(packet) = PacketSource::current(input) else { continue };
        if let Some(filter) = &mut filter {
            let kind = (packet.link_type, input.reader.byte_order());
            if !filter.matches(kind, packet.captured, packet.original_len)? {
                continue;
            }
        }
        // The packets that the kernel dropped were captured before, or were lost for this place too.
        match packet.drop() {
            Some(drop) => add_drop(&mut analysis, &mut causes, &packet, &drop),
            None => add(&mut analysis, &mut places, &packet),
        }
    }
    sources.sources().for_each(Input::report_flawed_times);
    let (packets, left_out) = (analysis.packets(), analysis.drops_left_out());
    let known = Knowledge::of_file(facts, &causes.tally);
    let culprit = |_: &Tally, key: &DropKey| known.blames.get(key)?.only_culprit().map(str::to_owned);
    let (connections, names) = analysis.end(|number| causes.text(number, culprit));
    Ok(Read { report: Report::new(packets, left_out, &connections, &names), is_whole })
}

fn add(analysis: &mut Analysis, places: &mut Places, packet: &PacketView<'_>) {
    let process = packet.process.filter(|_| packet.uncertain_owner().is_none());
    let name = shown(process.and_then(|process| process.name).unwrap_or_default());
    analysis.add(&Packet {
        is_sent: packet.direction.map(|direction| direction == Direction::Out),
        process: process.map(|process| (process.id, &*name)),
        ..packet_of(packet, places.of(packet))
    });
}

fn add_drop(analysis: &mut Analysis, causes: &mut Causes, packet: &PacketView<'_>, drop: &DropNote<'_>) {
    if let Some(drop) = causes.of(packet, drop) {
        analysis.add_drop(&packet_of(packet, 0), &drop);
    }
}

pub(super) fn packet_of<'a>(packet: &PacketView<'a>, place: u32) -> Packet<'a> {
    Packet {
        time_ns: packet.timestamp_ns,
        link_type: packet.link_type,
        captured: packet.captured,
        place,
        is_sent: None,
        process: None,
    }
}
