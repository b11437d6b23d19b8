//! What stands before and after the packets of a capture file.

use trawl_packet::pcapng::write;
use trawl_sys::clock;

use super::Session;
use crate::assembly::Host;
use crate::summary::{PointSummary, Summary};

impl Session {
    /// What a file begins with: the section, and a block for each interface and hook point.
    pub(super) fn file_header(&self) -> Vec<u8> {
        let mut header = Vec::new();
        let Host {
            os,
            hardware,
            application,
        } = &self.assembly.host;
        write::section_header(
            &mut header,
            &write::SectionHeader {
                hardware: Some(hardware),
                os: Some(os),
                userappl: Some(application),
                comment: None,
            },
        );
        self.interfaces
            .iter()
            .for_each(|interface| write::interface_description(&mut header, interface));
        header
    }

    /// What a file ends with: the account of each hook point, and the packets of interface blocks that were added.
    pub(super) fn file_trailer(&self, summary: &Summary, added: &[(u32, u64)]) -> Vec<u8> {
        let mut trailer = Vec::new();
        let end = clock::wall();
        for (
            point,
            PointSummary {
                account,
                hardware_stamped,
                time_error_max_ns,
                ..
            },
        ) in self.assembly.points.iter().zip(&summary.interfaces)
        {
            let mut elsewhere = *hardware_stamped;
            let (system, hardware) = match point.interfaces.as_slice() {
                [system, ..] if point.site.is_none() => {
                    elsewhere = added.iter().map(|(_, packets)| packets).sum();
                    (*system, None)
                }
                [system, rest @ ..] => (*system, rest.first().copied()),
                [] => continue,
            };
            let times = write::InterfaceStatistics {
                timestamp_ns: end,
                start_ns: Some(self.started_wall),
                end_ns: Some(end),
                ..Default::default()
            };
            let error = time_error_max_ns.map(|most| {
                format!("time stamps are wrong by at most {most} ns: the longest time between two readings of the clock")
            });
            write::interface_statistics(
                &mut trailer,
                &write::InterfaceStatistics {
                    comment: error.as_deref(),
                    interface_id: system,
                    if_received: Some(account.seen),
                    if_dropped: Some(account.lost_total()),
                    filter_accepted: Some(account.seen - account.filtered_out),
                    user_delivered: Some(account.recorded.saturating_sub(elsewhere)),
                    ..times
                },
            );
            if let Some(hardware) = hardware {
                write::interface_statistics(
                    &mut trailer,
                    &write::InterfaceStatistics {
                        interface_id: hardware,
                        user_delivered: Some(*hardware_stamped),
                        ..times
                    },
                );
            }
        }
        for (interface_id, packets) in added {
            let statistics = write::InterfaceStatistics {
                interface_id: *interface_id,
                timestamp_ns: end,
                start_ns: Some(self.started_wall),
                end_ns: Some(end),
                user_delivered: Some(*packets),
                ..Default::default()
            };
            write::interface_statistics(&mut trailer, &statistics);
        }
        trailer
    }
}
