//! Drops in files: recording them with `--record`, and reading the report from them later.

use std::path::Path;

use serde::{Deserialize, Serialize};
use trawl_packet::pcapng::block::{ByteOrder, INTERFACE_STATISTICS};
use trawl_packet::pcapng::options::InterfaceCounts;
use trawl_packet::pcapng::write;
use trawl_packet::read::Step;
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::{Blocks, Writer};
use trawl_plan::filter::Filter;
use trawl_source::{Input, OnNotice, file_filter};
use trawl_sys::{Error, Result, clock, rights::privilege};
use trawl_view::merge::Merge;
use trawl_view::record::PacketSource;
use trawl_view::why::Tally;

use super::report::{Counter, Knowledge, LossReport, RowFacts};

/// Prefix of the comment with the facts that packets do not contain.
const MARK: &str = "trawl why: ";
/// Maximum length of the comment: the length of an option is a 16-bit number.
const LONGEST: usize = 60_000;

/// The part of a report that cannot be made from packets.
#[derive(Default, Serialize, Deserialize)]
struct FactsWithoutPackets {
    counters: Vec<Counter>,
    rows: Vec<RowFacts>,
}

/// Appends the facts that packets do not contain to a finished recording.
pub fn append(file: &mut dyn Writer, report: &LossReport) -> Result<()> {
    let (counters, rows) = report.facts_without_packets();
    let mut facts = FactsWithoutPackets { counters, rows };
    let text = loop {
        let text = serde_json::to_string(&facts).map_err(|e| Error::failed("cannot encode the counters as JSON", e))?;
        if text.len() <= LONGEST {
            break text;
        }
        // The first rows have the most packets.
        facts.rows.truncate(facts.rows.len() / 2);
        if facts.rows.is_empty() {
            facts.counters.truncate(facts.counters.len() / 2);
        }
    };
    let mut block = Vec::new();
    let comment = format!("{MARK}{text}");
    let statistics =
        write::InterfaceStatistics { timestamp_ns: clock::wall(), comment: Some(&comment), ..Default::default() };
    write::interface_statistics(&mut block, &statistics);
    file.write(Blocks::Bytes(&block))?;
    match file.finish().error {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Returns the facts in the comments of a block.
fn facts(counts: &InterfaceCounts) -> impl Iterator<Item = FactsWithoutPackets> {
    let comments = counts.comments.iter().filter_map(|text| text.strip_prefix(MARK));
    comments.map(|text| serde_json::from_str(text).unwrap_or_default())
}

/// Returns the facts about rows in a block of statistics.
pub(crate) fn rows(raw: &[u8], order: ByteOrder) -> Vec<RowFacts> {
    InterfaceCounts::parse(raw, order).iter().flat_map(facts).flat_map(|facts| facts.rows).collect()
}

/// Returns the time from which on packets count, given the time of the first packet, in nanoseconds since 1970.
pub type Since<'a> = &'a dyn Fn(u64) -> u64;

/// The result of reading files.
#[derive(Debug)]
pub struct Read {
    pub report: LossReport,
    /// Duration of the recording, in seconds.
    pub seconds: f64,
    /// Set unless a file could not be read to its end.
    pub is_whole: bool,
}

/// Opens files.
pub fn open(files: &[String], tell: OnNotice) -> Result<Vec<Input>> {
    let open = |name: &String| Input::open(Path::new(name), None, None, tell);
    files.iter().map(open).collect()
}

/// Reads drops from files, and makes the report. Gives up all rights.
pub fn read(inputs: Vec<Input>, expression: &str, since: Option<Since<'_>>, no_losses_too: bool) -> Result<Read> {
    let names: Vec<String> = inputs.iter().map(|input| input.name.clone()).collect();
    let filter = (!expression.is_empty()).then(|| Filter::Expression(expression.to_owned()));
    let mut filter = file_filter(filter.as_ref(), inputs.first())?;
    // All files are open: untrusted bytes are parsed with no more rights than that needs.
    privilege::keep_none()?;
    privilege::forbid_all_but_files();
    let mut tally = Tally::default();
    let mut account = PacketAccount::default();
    let (mut rows, mut counters) = (Vec::new(), Vec::new());
    let (mut first, mut last) = (u64::MAX, 0);
    let mut from = None;
    let mut is_whole = true;
    let mut sources = Merge::new(inputs);
    loop {
        let step = sources.step();
        let Some(input) = sources.source() else { break };
        match step {
            Ok(Some(Step::Packet)) => {
                let Some(packet) = PacketSource::current(input) else {
                    continue;
                };
                let time = packet.timestamp_ns;
                let from = *from.get_or_insert_with(|| since.map_or(0, |since| since(time)));
                if time < from {
                    continue;
                }
                first = first.min(time);
                last = last.max(time);
                if let Some(filter) = &mut filter {
                    let kind = (packet.link_type, input.reader.byte_order());
                    if !filter.matches(kind, packet.captured, packet.original_len)? {
                        account.filtered_out += 1;
                        continue;
                    }
                }
                tally.count(&packet, no_losses_too);
            }
            Ok(Some(Step::Block { kind })) if kind == INTERFACE_STATISTICS => {
                let reader = &input.reader;
                let Some(counts) = InterfaceCounts::parse(reader.raw(), reader.byte_order()) else {
                    continue;
                };
                let lost = [counts.interface_dropped, counts.os_dropped];
                let lost = lost.into_iter().flatten().fold(0, u64::saturating_add);
                if lost > 0 {
                    *account.lost.entry("before".into()).or_default() += lost;
                }
                // trawl counts in nanoseconds.
                first = first.min(counts.start.unwrap_or(first));
                last = last.max(counts.end.unwrap_or(last));
                for facts in facts(&counts) {
                    counters.extend(facts.counters);
                    rows.extend(facts.rows);
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) if error.would_block() => {}
            Err(error) => {
                input.report_unreadable(&error);
                is_whole = false;
            }
        }
    }
    if tally.others > 0 && tally.rows.is_empty() {
        let what = format!("cannot find drops in {}", names.join(", "));
        let why = "its packets were not recorded by trawl where the kernel drops them";
        return Err(Error::failed(what, why).fix("trawl why --record FILE records drops"));
    }
    // Advice that is computed here would be about the present state of this machine, not the state at the recording.
    let mut known = Knowledge::of_file(rows, &tally);
    // Counters belong to the whole recording.
    if filter.is_some() || since.is_some() {
        counters.clear();
    }
    account.recorded = tally.packets() + tally.no_losses.values().sum::<u64>();
    account.seen = account.recorded + account.filtered_out;
    let from = from.map_or(first, |from| first.max(from));
    Ok(Read {
        report: LossReport::with_counters(&tally, counters, &account, &mut known),
        seconds: last.saturating_sub(from).max(1) as f64 / 1e9,
        is_whole,
    })
}
