//! Packets for machines: a JSON object a line, or one JSON array.

use serde::Serialize;
use trawl_packet::decode::{Summary, summary};
use trawl_packet::pcapng::Direction;
use trawl_packet::pcapng::note::DropNote;
use trawl_packet::verdict;

use crate::Show;
use crate::record::PacketView;

/// The JSON form of a packet.
#[derive(Debug, Serialize)]
pub struct PacketJson<'a> {
    /// Seconds since 1970, with nanoseconds; a string, since a JSON number would lose the last digits.
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hook: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    direction: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packet_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<ProcessJson<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped_before: Option<u64>,
    /// The kernel's reason for dropping the packet, and the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    drop: Option<DropNote<'a>>,
    length: u32,
    captured: usize,
    decoded: Summary,
}

/// The process of a packet; the thread is known of packets that a process was sending.
#[derive(Debug, Serialize)]
struct ProcessJson<'a> {
    id: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

impl<'a> PacketJson<'a> {
    pub fn new(packet: &PacketView<'a>) -> Self {
        Self {
            time: format!("{}.{:09}", packet.timestamp_ns / 1_000_000_000, packet.timestamp_ns % 1_000_000_000),
            interface: packet.interface,
            hook: packet.hook,
            direction: packet.direction.map(|direction| match direction {
                Direction::In => "in",
                Direction::Out => "out",
            }),
            verdict: packet.verdict.map(verdict::text),
            queue: packet.queue,
            packet_id: packet.packet_id,
            process: packet.process.map(|process| ProcessJson {
                id: process.id,
                thread: Some(process.thread).filter(|thread| *thread > 0),
                name: process.name,
            }),
            dropped_before: packet.dropped_before,
            drop: packet.drop(),
            length: packet.original_len,
            captured: packet.captured.len(),
            decoded: summary(packet.link_type, packet.captured),
        }
    }
}

/// The form of one JSON object a line for each packet.
#[derive(Debug, Default)]
pub struct JsonLines;

impl Show for JsonLines {
    fn show(&mut self, out: &mut String, packet: &PacketView<'_>) {
        // Serialization fails only for maps whose keys are not strings, and this type has none.
        if let Ok(line) = serde_json::to_string(&PacketJson::new(packet)) {
            out.push_str(&crate::text::in_json(&line));
            out.push('\n');
        }
    }
}

/// The form of one array with an element for each packet.
#[derive(Debug, Default)]
pub struct JsonArray {
    is_begun: bool,
}

impl Show for JsonArray {
    fn show(&mut self, out: &mut String, packet: &PacketView<'_>) {
        out.push_str(if std::mem::replace(&mut self.is_begun, true) { ",\n" } else { "[\n" });
        JsonLines.show(out, packet);
        out.truncate(out.trim_end().len());
    }

    fn end(&mut self, out: &mut String) {
        if !self.is_begun {
            out.push('[');
        }
        out.push_str("\n]\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_is_one_document() {
        for count in 0..3 {
            let mut text = String::new();
            let mut array = JsonArray::default();
            for _ in 0..count {
                array.show(&mut text, &PacketView::default());
            }
            array.end(&mut text);
            let read: Vec<serde_json::Value> = serde_json::from_str(&text).expect(&text);
            assert_eq!(read.len(), count);
        }
    }
}
