//! Regular checks of a running capture: clocks, interfaces that were removed, and blind taps.

use std::time::{Duration, Instant};

use trawl_packet::pcapng::write;
use trawl_pipeline::Blocks;
use trawl_sys::netlink::LinkEvent;
use trawl_sys::process::warden::Warden;
use trawl_sys::{Result, clock};

use super::summary::clock_note;
use super::{AtSite, Ended, Running};
use crate::event::{Event, Gap, Gone, GoneReason};
use crate::taps::watch::Sight;

/// Time for which a blind tap may wait to be re-attached: a firewall that restarts is back by then.
const BLIND_PATIENCE: Duration = Duration::from_secs(5);

/// Number of taps checked in one turn.
const WATCHED_AT_ONCE: usize = 100;

impl Running<'_> {
    /// Checks clocks, interfaces and taps. No check is urgent.
    pub(super) fn tend(&mut self) -> Result<Option<Ended>> {
        let offset = self.capture.assembly.rings.clock.offset_to_wall();
        if offset != self.clock_offset {
            self.clock_offset = offset;
            self.capture.assembly.points.iter().for_each(|point| point.rings.set_clock_offset(offset));
        }
        if self.steps.stepped() {
            let mut offset = Vec::new();
            write::remark(&mut offset, &clock_note(&self.steps));
            if let Err(error) = self.feed.write(Blocks::Bytes(&offset)) {
                return Ok(Some(Ended::Output(error)));
            }
        }
        let mut gone: Vec<(usize, GoneReason)> = Vec::new();
        for (index, event) in self.capture.presence.events()? {
            let interface = self.capture.sites[index].label.clone();
            match event {
                LinkEvent::Removed => gone.push((index, GoneReason::Removed)),
                LinkEvent::MovedAway => gone.push((index, GoneReason::MovedAway)),
                LinkEvent::Down => self.observer.event(&Event::LinkDown { interface }),
                LinkEvent::Up => self.observer.event(&Event::LinkUp { interface }),
                LinkEvent::Renamed(name) => {
                    self.observer.event(&Event::Renamed { interface, name });
                }
            }
        }
        for at in &mut self.capture.taps {
            at.tap.new_events().into_iter().for_each(|notice| self.observer.event(&notice));
            if let Some(why) = at.tap.ended() {
                gone.push((at.site, why));
            }
        }
        self.tend_memory();
        let is_new = [&mut self.capture.assembly.undo.warden, &mut self.capture.files].map(Warden::renew);
        if is_new.into_iter().collect::<Result<Vec<_>>>()?.contains(&true) {
            self.observer.event(&Event::WardenReplaced);
        }
        if let Some(ended) = self.watch(WATCHED_AT_ONCE) {
            return Ok(Some(ended));
        }
        if self.capture.options.joins {
            gone.extend(self.without_namespace());
        }
        for (site, reason) in gone {
            if !self.capture.presence.remove(site, &self.capture.sites[site]) {
                continue;
            }
            let gone = Gone { interface: self.capture.sites[site].label.clone(), reason };
            self.observer.event(&Event::Gone(gone.clone()));
            self.capture.promiscuous.remove(&self.capture.sites[site]);
            if self.capture.options.joins {
                self.leave(site);
            } else if self.capture.presence.is_empty() {
                return Ok(Some(Ended::NoInterface(gone)));
            }
        }
        Ok(None)
    }

    /// Reports changes of the memory for records.
    pub(super) fn tend_memory(&mut self) {
        self.capture.assembly.rings.tend_pool();
        let memory = self.capture.assembly.rings.memory();
        let before = std::mem::replace(&mut self.memory, memory);
        if before != memory {
            let most = self.capture.geometry().pool_size as u64;
            self.observer.detail(&Event::Memory { bytes: memory as u64, most });
        }
        if let Some((why, fix)) = self.capture.assembly.rings.refused_memory() {
            self.observer.event(&Event::MemoryRefused { bytes: memory as u64, why, fix });
        }
    }

    /// Returns the sites whose namespaces were deleted: the kernel keeps them as long as this capture holds them.
    fn without_namespace(&self) -> Vec<(usize, GoneReason)> {
        let mut lost = self.capture.presence.without_namespace();
        lost.retain(|site| self.capture.sites[*site].one_of_any);
        lost.into_iter().map(|site| (site, GoneReason::NamespaceDeleted)).collect()
    }

    /// Ends the taps of a site, keeps their counts, and closes its namespace if no other site is in it.
    fn leave(&mut self, site: usize) {
        for at in self.capture.taps.iter_mut().filter(|at| at.site == site) {
            for notice in at.tap.detach() {
                self.observer.event(&notice);
            }
            self.past.left.filtered_out.extend(at.tap.filtered_out());
            self.past.left.lost.extend(at.tap.losses());
        }
        self.capture.taps.retain(|at| at.site != site);
        self.capture.assembly.points.release(site);
        let namespace = self.capture.sites[site].namespace.take();
        let others = self.capture.presence.sites();
        if namespace.is_some() && others.into_iter().all(|one| self.capture.sites[one].namespace != namespace) {
            self.capture.promiscuous.leave(namespace.as_ref());
        }
    }

    /// Checks that the taps still see packets. The capture ends once all taps are blind and could not be re-attached
    /// for a while.
    pub(super) fn watch(&mut self, most: usize) -> Option<Ended> {
        // Many taps are checked in turn.
        let first = if self.watched < self.capture.taps.len() { self.watched } else { 0 };
        self.watched = first.saturating_add(most);
        if self.capture.presence.filters_changed() {
            self.suspect = self.capture.taps.len();
        }
        let is_suspect = self.suspect > 0;
        self.suspect = self.suspect.saturating_sub(most);
        for at in self.capture.taps.iter_mut().skip(first).take(most) {
            let now = clock::wall();
            if at.tap.is_announced() && !is_suspect && at.health.blind.is_none() {
                at.health.saw = now;
                continue;
            }
            let sight = at.tap.watch(&mut self.capture.assembly.undo.warden);
            let gap = |cause, why, to_ns| Gap {
                interface: self.capture.sites[at.site].label.clone(),
                tap: at.name.into(),
                from_ns: at.health.saw,
                to_ns,
                cause,
                why,
            };
            let (cause, why) = match sight {
                Sight::Lost(cause, why) => (Some(cause), why),
                Sight::Waiting(cause) => {
                    at.health.waits = true;
                    (Some(cause), None)
                }
                Sight::Restored(cause) if at.health.blind.is_none() => {
                    let gap = gap(cause, None, Some(now));
                    self.observer.event(&Event::SeesAgain(gap.clone()));
                    self.past.unseen.push(gap);
                    (None, None)
                }
                Sight::Clear | Sight::Restored(_) => (None, None),
            };
            match cause {
                Some(cause) if at.health.blind.is_none() => {
                    let gap = gap(cause, why, None);
                    self.observer.event(&Event::Blind(gap.clone()));
                    at.health.blind = Some((gap, Instant::now()));
                }
                Some(_) => {}
                None => {
                    at.health.saw = now;
                    at.health.waits = false;
                    if let Some((mut gap, _)) = at.health.blind.take() {
                        gap.to_ns = Some(now);
                        self.observer.event(&Event::SeesAgain(gap.clone()));
                        self.past.unseen.push(gap);
                    }
                }
            }
        }
        let is_over = |at: &AtSite| {
            let since = at.health.blind.as_ref().map(|(_, since)| since);
            !at.health.waits && since.is_some_and(|since| since.elapsed() >= BLIND_PATIENCE)
        };
        (!self.capture.taps.is_empty() && self.capture.taps.iter().all(is_over)).then_some(Ended::Blind)
    }
}
