//! The sinks that show packets on standard output: as lines in tcpdump's manner, or as a JSON object each.

use std::io::{self, Write};

use serde::Serialize;
use trawl_kernel::{Error, Result};
use trawl_packet::decode::{Summary, summary};
use trawl_packet::pcapng::Direction;
use trawl_packet::pcapng::block::blocks;
use trawl_packet::pcapng::options::PacketOptions;
use trawl_packet::print::{PacketView, PrintOptions, Printer};
use trawl_packet::verdict;
use trawl_tap::sink::Sink;

/// What a packet's interface block stands for.
#[derive(Clone, Debug)]
pub struct Place {
    pub interface: String,
    pub hook: String,
    pub link_type: u16,
}

pub struct Lines {
    printer: Printer,
    places: Vec<Place>,
    text: String,
}

impl Lines {
    pub fn new(options: PrintOptions, places: Vec<Place>) -> Self {
        Self {
            printer: Printer::new(options),
            places,
            text: String::new(),
        }
    }
}

impl Sink for Lines {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        for packet in blocks(bytes).filter_map(|block| block.enhanced_packet()) {
            let Some(place) = self.places.get(packet.interface_id as usize) else {
                continue;
            };
            let options = PacketOptions::parse(packet.options());
            self.printer.line(
                &mut self.text,
                &PacketView {
                    timestamp_ns: packet.timestamp,
                    link_type: place.link_type,
                    captured: packet.captured,
                    original_len: packet.original_len,
                    interface: Some(&place.interface),
                    direction: options.direction(),
                    hook: Some(&place.hook),
                    verdict: options.verdict,
                },
            );
        }
        put_out(&mut self.text)
    }

    fn rest(&mut self) -> Result<()> {
        flush()
    }
}

/// One JSON object a line for each packet.
pub struct JsonLines {
    places: Vec<Place>,
    text: String,
}

impl JsonLines {
    pub fn new(places: Vec<Place>) -> Self {
        Self {
            places,
            text: String::new(),
        }
    }
}

/// What a machine wants to know of a packet.
#[derive(Serialize)]
struct PacketJson<'a> {
    /// Seconds since 1970, with nanoseconds; a text, since a JSON number would lose the last digits.
    time: String,
    interface: &'a str,
    hook: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    direction: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packet_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped_before: Option<u64>,
    length: u32,
    captured: usize,
    decoded: Summary,
}

impl Sink for JsonLines {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        for packet in blocks(bytes).filter_map(|block| block.enhanced_packet()) {
            let Some(place) = self.places.get(packet.interface_id as usize) else {
                continue;
            };
            let options = PacketOptions::parse(packet.options());
            let object = PacketJson {
                time: format!(
                    "{}.{:09}",
                    packet.timestamp / 1_000_000_000,
                    packet.timestamp % 1_000_000_000
                ),
                interface: &place.interface,
                hook: &place.hook,
                direction: options.direction().map(|way| match way {
                    Direction::In => "in",
                    Direction::Out => "out",
                }),
                verdict: options.verdict.map(verdict::text),
                queue: options.queue,
                packet_id: options.packet_id,
                dropped_before: options.drop_count,
                length: packet.original_len,
                captured: packet.captured.len(),
                decoded: summary(place.link_type, packet.captured),
            };
            let line = serde_json::to_string(&object)
                .map_err(|e| Error::failed("cannot put a packet into JSON", e))?;
            self.text.push_str(&line);
            self.text.push('\n');
        }
        put_out(&mut self.text)
    }

    fn rest(&mut self) -> Result<()> {
        flush()
    }
}

fn put_out(text: &mut String) -> Result<()> {
    let written = io::stdout().lock().write_all(text.as_bytes());
    text.clear();
    written.map_err(|e| Error::os("cannot write to standard output", e))
}

fn flush() -> Result<()> {
    let flushed = io::stdout().lock().flush();
    flushed.map_err(|e| Error::os("cannot write to standard output", e))
}
