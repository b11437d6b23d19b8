//! The account of a capture, at its end and on the way.

use trawl_sys::{Error, Result, errno};

use super::{Ended, Handed, Session};
use crate::account::{Account, PointSummary, Summary};
use crate::assembly::Point;
use crate::options::Stamps;
use crate::sink::Counting;

impl Session {
    /// What was recorded and then lost on its way out.
    pub(super) fn take_back(&self, summary: &mut Summary, lost: Vec<(u32, &'static str, u64)>) {
        for (interface, reason, count) in lost {
            let is_meant = |point: &Point| point.interfaces.contains(&interface);
            if let Some(at) = self.assembly.points.iter().position(is_meant) {
                summary.interfaces[at].account.take_back(reason, count);
                summary.total.take_back(reason, count);
            }
        }
    }

    /// What was in a file and is not any more, by what was found in it.
    pub(super) fn take_back_cut(&self, summary: &mut Summary, found: &[u64], reason: &'static str) {
        for (point, one) in self.assembly.points.iter().zip(&mut summary.interfaces) {
            let ids = point.interfaces.iter();
            let there: u64 = ids.filter_map(|id| found.get(*id as usize)).sum();
            let missing = one.account.recorded.saturating_sub(there);
            if missing > 0 {
                one.account.take_back(reason, missing);
                summary.total.take_back(reason, missing);
            }
        }
    }

    pub(super) fn summary(
        &mut self,
        unwritten: &Counting,
        unwritten_reason: &'static str,
    ) -> Summary {
        let mut points: Vec<PointSummary> = self
            .assembly
            .points
            .iter()
            .map(|point| {
                let ring = point.account();
                let mut account = Account::from_ring(&ring);
                let missing = point
                    .interfaces
                    .iter()
                    .filter_map(|id| unwritten.packets.get(*id as usize))
                    .sum::<u64>();
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

pub(super) fn lost_output_reason(ended: &Ended, handed: &Result<Handed>) -> &'static str {
    let Some(error) = output_error(ended, handed) else {
        return "not_read";
    };
    match error.errno() {
        Some(errno::ENOSPC | errno::EDQUOT) => "disk_full",
        Some(errno::EPIPE) => "pipe_closed",
        Some(errno::EFBIG) => "file_too_large",
        _ => "write_error",
    }
}

/// Why packets are not in the file any more: the disk did not take them, or another process cut it.
pub(super) fn missing_reason(ended: &Ended, handed: &Result<Handed>) -> &'static str {
    match output_error(ended, handed).and_then(Error::errno) {
        Some(_) => lost_output_reason(ended, handed),
        None => "file_cut",
    }
}

fn output_error<'a>(ended: &'a Ended, handed: &'a Result<Handed>) -> Option<&'a Error> {
    match (ended, handed) {
        (Ended::Output(error), _) | (_, Err(error)) => Some(error),
        (_, Ok(_)) => None,
    }
}
