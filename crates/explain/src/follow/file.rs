//! The steps of packets as a pcapng file: an interface for each step at each device, so that Wireshark's list shows the
//! path of a packet.

use std::collections::HashMap;
use std::fmt;

use trawl_capture::assembly::HostFeatures;
use trawl_packet::pcapng::{Interface, write};
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::{Blocks, Writer, write_patiently};
use trawl_sys::{Result, clock};
use trawl_view::record::PacketView;

use super::step::PathStep;
use crate::why::SNAPLEN;

/// Units of time stamps: 10⁻⁹ seconds.
const NANOSECONDS: u8 = 9;

pub struct StepFile {
    writer: Box<dyn Writer>,
    /// Number of each interface block, and of its packets, by name and link type.
    interfaces: HashMap<(String, u16), (u32, u64)>,
    begun: u64,
    out: Vec<u8>,
}

impl fmt::Debug for StepFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepFile").finish_non_exhaustive()
    }
}

impl StepFile {
    pub fn new(writer: Box<dyn Writer>) -> Result<Self> {
        let HostFeatures { os, hardware, application } = HostFeatures::this();
        let mut file = Self { writer, interfaces: HashMap::new(), begun: clock::wall(), out: Vec::new() };
        let section = write::SectionHeader {
            hardware: Some(&hardware),
            os: Some(&os),
            userappl: Some(&application),
            comment: None,
        };
        write::section_header(&mut file.out, &section);
        file.flush()?;
        Ok(file)
    }

    /// Adds a step of a packet.
    pub fn add(&mut self, packet: &PacketView<'_>, step: &PathStep) -> Result<()> {
        let mut name = step.step.to_string();
        for part in step.interface.iter() {
            name += &format!(" {part}");
        }
        for part in step.netns.iter() {
            name += &format!(" ({part})");
        }
        let next = self.interfaces.len() as u32;
        let key = (name, packet.link_type);
        let (interface_id, packets) = match self.interfaces.get_mut(&key) {
            Some(known) => known,
            None => {
                let interface = Interface {
                    link_type: packet.link_type,
                    snaplen: SNAPLEN,
                    name: Some(key.0.clone()),
                    description: Some(format!("step {}", step.step)),
                    tsresol: NANOSECONDS,
                    ..Interface::default()
                };
                write::interface_description(&mut self.out, &interface);
                self.interfaces.entry(key).or_insert((next, 0))
            }
        };
        *packets += 1;
        let block = write::EnhancedPacket {
            interface_id: *interface_id,
            timestamp_ns: packet.timestamp_ns,
            captured: packet.captured,
            original_len: packet.original_len,
            flags: None,
            queue: None,
            packet_id: packet.packet_id,
            drop_count: packet.dropped_before,
            verdict: packet.verdict,
            process: None,
            comment: packet.comment,
        };
        write::enhanced_packet(&mut self.out, &block);
        Ok(())
    }

    pub fn flush(&mut self) -> Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = std::mem::take(&mut self.out);
        write_patiently(&mut *self.writer, Blocks::Bytes(&out))
    }

    /// Ends the file with the counts of its interfaces. The first one has the steps that were lost.
    pub fn finish(mut self, account: &PacketAccount) -> Result<()> {
        let now = clock::wall();
        let mut all: Vec<(u32, u64)> = self.interfaces.values().copied().collect();
        all.sort_unstable();
        for (interface_id, packets) in all {
            let statistics = write::InterfaceStatistics {
                interface_id,
                timestamp_ns: now,
                start_ns: Some(self.begun),
                end_ns: Some(now),
                if_dropped: (interface_id == 0).then(|| account.lost_total()),
                user_delivered: Some(packets),
                ..Default::default()
            };
            write::interface_statistics(&mut self.out, &statistics);
        }
        self.flush()?;
        self.writer.finish().error.map_or(Ok(()), Err)
    }
}
