//! The summary of a capture, at its end and on the way.

use trawl_pipeline::account::Account;
use trawl_pipeline::{Counts, Outcome};
use trawl_sys::errno;

use super::{Ended, Session};
use crate::assembly::Point;
use crate::options::Stamps;
use crate::summary::{PointSummary, Summary};

impl Session {
    /// Returns the summary so far.
    pub(super) fn figures(&mut self) -> Summary {
        self.summary(&Counts::default(), "")
    }

    /// Returns the summary at the end, with the packets taken back that were recorded and lost on their way out.
    pub(super) fn final_summary(&mut self, outcome: &Outcome, ended: &Ended) -> Summary {
        let points = &mut self.assembly.points;
        if let Some(point) = points.iter_mut().find(|point| point.site.is_none()) {
            point
                .interfaces
                .extend(outcome.added.iter().map(|(id, _)| *id));
        }
        let mut summary = self.summary(&outcome.unwritten, reason_of_unwritten(ended));
        for loss in &outcome.lost {
            let is_meant = |point: &Point| point.interfaces.contains(&loss.interface);
            if let Some(at) = self.assembly.points.iter().position(is_meant) {
                summary.take_back(at, loss.reason, loss.packets);
            }
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

    fn summary(&mut self, unwritten: &Counts, unwritten_reason: &'static str) -> Summary {
        let mut points: Vec<PointSummary> = self
            .assembly
            .points
            .iter()
            .map(|point| {
                let ring = point.account();
                let mut account = Account::from_ring(&ring);
                let missing = unwritten.sum(&point.interfaces);
                if let Some(fates) = &self.fates {
                    fates.borrow().correct(&mut account, &point.interfaces);
                }
                if let Some(shared) = &self.triggered {
                    account.set_not_kept(shared.borrow().not_kept(&point.interfaces));
                }
                if missing > 0 {
                    account.take_back(unwritten_reason, missing);
                }
                PointSummary {
                    interface: point.label.clone(),
                    tap: point.tap,
                    hook: point.hook.clone(),
                    mode: point.mode,
                    account,
                    library: None,
                    truncated: ring.truncated,
                    hardware_stamped: ring.hardware_stamped,
                    time: point.stamps,
                    time_error_max_ns: (point.stamps != Stamps::Precise)
                        .then(|| point.rings.largest_gap()),
                }
            })
            .collect();
        let now = self.taps.iter_mut().flat_map(|at| at.tap.filtered_out());
        for (point, count) in now.chain(self.left.filtered_out.iter().copied()) {
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
        for (point, reason, count) in now.chain(self.left.lost.iter().copied()) {
            if let Some(summary) = points.get_mut(point as usize) {
                summary.account.add_unseen(reason, count);
            }
        }
        let mut total = Account::default();
        points.iter().for_each(|point| total.add(&point.account));
        Summary {
            total,
            seconds: self.started.elapsed().as_secs_f64(),
            ended: String::new(),
            interfaces: points,
            outputs: Vec::new(),
            triggers: self
                .triggered
                .as_ref()
                .map(|shared| shared.borrow().report.clone()),
            unseen: {
                let blind = self.taps.iter().filter_map(|at| at.health.blind.as_ref());
                let open = blind.map(|(gap, _)| gap.clone());
                self.unseen.iter().cloned().chain(open).collect()
            },
            notices: Vec::new(),
        }
    }
}

/// Returns why packets were not written: the error of the output, or a reader that stopped reading.
fn reason_of_unwritten(ended: &Ended) -> &'static str {
    let Ended::Output(error) = ended else {
        return "not_read";
    };
    match error.errno() {
        Some(errno::ENOSPC | errno::EDQUOT) => "disk_full",
        Some(errno::EPIPE) => "pipe_closed",
        Some(errno::EFBIG) => "file_too_large",
        _ => "write_error",
    }
}
