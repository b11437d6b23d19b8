//! The summary of a capture, while it runs and at its end.

use std::collections::BTreeSet;

use trawl_packet::pcapng::note::{ClockNote, Note};
use trawl_packet::pcapng::write;
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::report::TriggerReport;
use trawl_pipeline::{Counts, WriteOutcome, reason_of_failure};
use trawl_sys::clock::{self, StepDetector};

use super::{Attached, Ended, Past};
use crate::account::account_of_ring;
use crate::assembly::HostFeatures;
use crate::point::Point;
use crate::summary::{PointSummary, Summary};
use trawl_plan::options::Stamps;
use trawl_plan::pod::Pod;

impl Attached {
    /// Returns the summary so far.
    pub(super) fn figures(&mut self, past: &Past) -> Summary {
        self.summary(past, &Counts::default(), "")
    }

    /// Returns the summary at the end. Packets that were recorded but lost on output count as lost.
    pub(super) fn final_summary(&mut self, past: &Past, outcome: &WriteOutcome, ended: &Ended) -> Summary {
        let points = &mut self.assembly.points;
        if let Some(point) = points.iter_mut().find(|point| point.site.is_none()) {
            point.interfaces.extend(outcome.added.iter().map(|(id, _)| *id));
        }
        let mut summary = self.summary(past, &outcome.unwritten, reason_of_unwritten(ended));
        for loss in &outcome.lost {
            let is_meant = |point: &Point| point.interfaces.contains(&loss.interface);
            if let Some(at) = self.assembly.points.iter().position(is_meant) {
                summary.take_back(at, loss.reason, loss.packets);
            }
        }
        for (at, point) in self.assembly.points.iter().enumerate() {
            summary.set_not_kept(at, outcome.not_kept.sum(&point.interfaces));
        }
        if let Some(left) = &outcome.left {
            let reason = match ended {
                Ended::Output(error) if error.errno().is_some() => reason_of_unwritten(ended),
                _ => "file_cut",
            };
            for (at, point) in self.assembly.points.iter().enumerate() {
                let recorded = summary.interfaces[at].account.recorded;
                let missing = recorded.saturating_sub(left.sum(&point.interfaces));
                if missing > 0 {
                    summary.take_back(at, reason, missing);
                }
            }
        }
        summary
    }

    fn summary(&mut self, past: &Past, unwritten: &Counts, unwritten_reason: &'static str) -> Summary {
        let current = self.current.borrow();
        let report = &current.report;
        let mut points: Vec<PointSummary> = self
            .assembly
            .points
            .iter()
            .map(|point| {
                let ring = point.account();
                let mut account = account_of_ring(&ring);
                let missing = unwritten.sum(&point.interfaces);
                report.correct(&mut account, &point.interfaces);
                account.set_not_kept(report.not_kept.sum(&point.interfaces));
                if missing > 0 {
                    account.take_back(unwritten_reason, missing);
                }
                PointSummary {
                    interface: point.label.clone(),
                    tap: point.tap.name(),
                    hook: point.hook.clone(),
                    mode: point.mode,
                    account,
                    library: None,
                    truncated: ring.truncated,
                    hardware_stamped: ring.hardware_stamped,
                    time: point.stamps,
                    time_error_max_ns: (point.stamps != Stamps::Precise).then(|| point.rings.largest_gap()),
                }
            })
            .collect();
        let now = self.taps.iter_mut().flat_map(|at| at.tap.filtered_out());
        for (point, count) in now.chain(past.left.filtered_out.iter().copied()) {
            if let Some(summary) = points.get_mut(point as usize) {
                summary.account.add_filtered_out(count);
            }
        }
        for (point, figures) in self.taps.iter_mut().filter_map(|at| at.tap.library()) {
            if let Some(summary) = points.get_mut(point as usize) {
                summary.library = Some(figures);
            }
        }
        let now = self.taps.iter_mut().flat_map(|at| at.tap.losses());
        for (point, reason, count) in now.chain(past.left.lost.iter().copied()) {
            if let Some(summary) = points.get_mut(point as usize) {
                summary.account.add_unseen(reason, count);
            }
        }
        let mut total = PacketAccount::default();
        points.iter().for_each(|point| total.add(&point.account));
        Summary {
            total,
            seconds: self.started.elapsed().as_secs_f64(),
            ended: String::new(),
            memory_bytes: self.assembly.rings.memory() as u64,
            interfaces: points,
            outputs: Vec::new(),
            readers: Vec::new(),
            triggers: report.triggers.clone().map(|triggers| TriggerReport { list: past.fired.clone(), ..triggers }),
            unseen: {
                let blind = self.taps.iter().filter_map(|at| at.health.blind.as_ref());
                let open = blind.map(|(gap, _)| gap.clone());
                past.unseen.iter().cloned().chain(open).collect()
            },
            notices: Vec::new(),
        }
    }
}

/// Returns the reason for which packets were not written: the error of the output, or a reader that stopped reading.
fn reason_of_unwritten(ended: &Ended) -> &'static str {
    match ended {
        Ended::Output(error) => reason_of_failure(error),
        _ => "not_read",
    }
}

/// Returns the comment with the offset of the clocks, for readers that compare packets' times with times in BPF maps.
pub(super) fn clock_note(clock: &StepDetector) -> String {
    ClockNote { monotonic_offset: clock.offset() }.text()
}

/// Appends the addresses of pods with their names.
pub(super) fn write_names<'a>(out: &mut Vec<u8>, pods: impl IntoIterator<Item = &'a Pod>) {
    for pod in pods.into_iter().filter(|pod| !pod.addresses.is_empty()) {
        let name = pod.to_string();
        let addresses = pod.addresses.iter();
        write::names(out, addresses.map(|address| (*address, name.as_str())));
    }
}

impl Attached {
    /// Returns the beginning of a file: the section, and a block for each interface and hook point.
    pub(super) fn file_header(&self, clock: &StepDetector) -> Vec<u8> {
        let mut header = Vec::new();
        let HostFeatures { os, hardware, application } = &self.assembly.host;
        let offset = clock_note(clock);
        write::section_header(
            &mut header,
            &write::SectionHeader {
                hardware: Some(hardware),
                os: Some(os),
                userappl: Some(application),
                comment: Some(&offset),
            },
        );
        self.interfaces.iter().for_each(|interface| write::interface_description(&mut header, interface));
        let pods: BTreeSet<&Pod> = self.sites.iter().filter_map(|site| site.pod.as_deref()).collect();
        write_names(&mut header, pods);
        header
    }

    /// Returns the end of a file: the statistics of each hook point, and the packets of added interface blocks.
    pub(super) fn file_trailer(&self, summary: &Summary, added: &[(u32, u64)]) -> Vec<u8> {
        let mut trailer = Vec::new();
        let end = clock::wall();
        for (point, PointSummary { account, hardware_stamped, time_error_max_ns, .. }) in
            self.assembly.points.iter().zip(&summary.interfaces)
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
                format!(
                    "time stamps are wrong by at most {most} ns: the longest time between two readings of the clock"
                )
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
