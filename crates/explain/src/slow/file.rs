//! Verdicts from the packets of files.

use std::collections::HashMap;

use trawl_packet::pcapng::Direction;
use trawl_packet::pcapng::block::INTERFACE_STATISTICS;
use trawl_packet::pcapng::note::{DropNote, Rule};
use trawl_packet::read::Step;
use trawl_plan::filter::Filter;
use trawl_slow::packets::{Analysis, Packet, PacketDrop};
use trawl_slow::report::Report;
use trawl_source::{Input, file_filter};
use trawl_sys::words::shown;
use trawl_sys::{Result, rights::privilege};
use trawl_view::merge::Merge;
use trawl_view::record::{PacketSource, PacketView};
use trawl_view::why::{DropKey, NETFILTER, Tally};

use crate::why::record::rows;
use crate::why::report::{Knowledge, RowFacts};

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
        *self.0.entry((text(packet.interface), text(packet.hook))).or_insert(next)
    }
}

/// The causes of drops, by numbers.
#[derive(Default)]
struct Causes {
    tally: Tally,
    /// Rows, with the rules that are noted with their packets.
    numbers: HashMap<(DropKey, Option<String>), u32>,
    facts: Vec<RowFacts>,
}

impl Causes {
    /// Returns the number of a drop's cause; `None` if the packet is not lost.
    fn of(&mut self, packet: &PacketView<'_>, drop: &DropNote<'_>) -> Option<u32> {
        let key = self.tally.count(packet, false)?;
        let next = self.numbers.len() as u32;
        let rule = drop.rule.as_ref().map(Rule::to_string);
        Some(*self.numbers.entry((key, rule)).or_insert(next))
    }

    /// Returns the texts of the causes, by their numbers.
    fn texts(self) -> HashMap<u32, String> {
        let known = Knowledge::of_file(self.facts, &self.tally);
        let text = |((key, rule), number): ((DropKey, Option<String>), u32)| {
            let rule = rule.or_else(|| known.blames.get(&key)?.only_culprit().map(str::to_owned));
            (number, shown(&text(&key, rule.as_deref())).into_owned())
        };
        self.numbers.into_iter().map(text).collect()
    }
}

/// Returns the reason and the place of a drop: `NETFILTER_DROP in pb, rule 4 of inet f in`.
fn text(key: &DropKey, rule: Option<&str>) -> String {
    let place = key.hook.as_deref().unwrap_or(&key.function);
    let place = if rule.is_some() || place.is_empty() { String::new() } else { format!(" at {place}") };
    let netns = key.netns.as_ref().map_or(String::new(), |netns| format!(" in {netns}"));
    let rule = rule.map_or(String::new(), |rule| format!(", {rule}"));
    format!("{}{place}{netns}{rule}", key.reason)
}

/// Reads the packets of files that match an expression. Gives up all rights.
pub fn read(inputs: Vec<Input>, expression: &str) -> Result<Read> {
    let filter = (!expression.is_empty()).then(|| Filter::Expression(expression.to_owned()));
    let mut filter = file_filter(filter.as_ref(), inputs.first())?;
    // All files are open: untrusted bytes are parsed with no more rights than that needs.
    privilege::keep_none()?;
    privilege::forbid_all_but_files();
    let (mut analysis, mut places, mut is_whole) = (Analysis::default(), Places::default(), true);
    let mut causes = Causes::default();
    let mut sources = Merge::new(inputs);
    loop {
        let step = sources.step();
        let Some(input) = sources.source() else { break };
        match step {
            Ok(Some(Step::Packet)) => {}
            Ok(Some(Step::Block { kind })) => {
                if kind == INTERFACE_STATISTICS {
                    causes.facts.extend(rows(input.reader.raw(), input.reader.byte_order()));
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
    let texts = causes.texts();
    let (connections, names) = analysis.end(|number| texts.get(&number).cloned().unwrap_or_default());
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
    let Some(cause) = causes.of(packet, drop) else { return };
    let is_filtered = drop.reason == NETFILTER;
    let drop = PacketDrop { netns: drop.netns.unwrap_or_default(), cause, is_filtered };
    analysis.add_drop(&packet_of(packet, 0), &drop);
}

fn packet_of<'a>(packet: &PacketView<'a>, place: u32) -> Packet<'a> {
    Packet {
        time_ns: packet.timestamp_ns,
        link_type: packet.link_type,
        captured: packet.captured,
        place,
        is_sent: None,
        process: None,
    }
}
