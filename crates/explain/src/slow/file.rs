//! Verdicts from the packets of files.

use std::collections::HashMap;

use trawl_packet::read::Step;
use trawl_plan::filter::Filter;
use trawl_slow::packets::{Analysis, Packet};
use trawl_slow::report::Report;
use trawl_source::{Input, file_filter};
use trawl_sys::{Result, rights::privilege};
use trawl_view::merge::Merge;
use trawl_view::record::{PacketSource, PacketView};

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

/// Reads the packets of files that match an expression. Gives up all rights.
pub fn read(inputs: Vec<Input>, expression: &str) -> Result<Read> {
    let filter = (!expression.is_empty()).then(|| Filter::Expression(expression.to_owned()));
    let mut filter = file_filter(filter.as_ref(), inputs.first())?;
    // All files are open: untrusted bytes are parsed with no more rights than that needs.
    privilege::keep_none()?;
    privilege::forbid_all_but_files();
    let (mut analysis, mut places, mut is_whole) = (Analysis::default(), Places::default(), true);
    let mut sources = Merge::new(inputs);
    loop {
        let step = sources.step();
        let Some(input) = sources.source() else { break };
        match step {
            Ok(Some(Step::Packet)) => {}
            Ok(Some(Step::Block { .. })) => continue,
            Ok(None) => break,
            Err(error) if error.would_block() => continue,
            Err(error) => {
                input.report_unreadable(&error);
                is_whole = false;
                continue;
            }
        }
        // The packets that the kernel dropped were captured before, or were lost for this place too.
        let Some(packet) = PacketSource::current(input).filter(|packet| packet.drop().is_none()) else { continue };
        if let Some(filter) = &mut filter {
            let kind = (packet.link_type, input.reader.byte_order());
            if !filter.matches(kind, packet.captured, packet.original_len)? {
                continue;
            }
        }
        analysis.add(&Packet {
            time_ns: packet.timestamp_ns,
            link_type: packet.link_type,
            captured: packet.captured,
            place: places.of(&packet),
        });
    }
    sources.sources().for_each(Input::report_flawed_times);
    let packets = analysis.packets();
    let (connections, names) = analysis.end();
    Ok(Read { report: Report::new(packets, &connections, &names), is_whole })
}
