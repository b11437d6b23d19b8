//! Interfaces that appear and leave during a capture.

use std::time::{Duration, Instant};

use trawl_packet::pcapng::write;
use trawl_pipeline::Blocks;
use trawl_sys::Result;

use super::Running;
use super::summary::write_names;
use super::{attach_at, report_events};
use crate::capture_site::CaptureSite;
use crate::event::Event;

/// Interval between searches for interfaces.
const SEARCH_INTERVAL: Duration = Duration::from_millis(250);
/// Pause between two searches, in multiples of the time that the first one took. The time to join interfaces does not
/// count: more interfaces may follow.
const REST_FACTOR: u32 = 5;

fn identity(site: &CaptureSite) -> (String, u32) {
    (site.label.clone(), site.interface.index)
}

impl Running<'_> {
    /// Extends the taps to network namespaces that the observer names.
    pub(super) fn enter(&mut self) {
        for namespace in self.observer.entered() {
            for at in &mut self.capture.taps {
                if let Err(error) = at.tap.enter(&namespace) {
                    let why = error.to_string();
                    self.observer.event(&Event::NoSteps { why });
                }
            }
        }
    }

    /// Attaches to interfaces that have appeared: at an interval, or at once if `is_urgent`. Fails only if the writer
    /// does.
    pub(super) fn join(&mut self, is_urgent: bool) -> Result<()> {
        let began = Instant::now();
        if !is_urgent && self.joins.next.is_some_and(|next| began < next) {
            return Ok(());
        }
        let present: Vec<CaptureSite> =
            self.capture.presence.sites().filter_map(|index| self.capture.sites.get(index).cloned()).collect();
        let unchanged = if self.joins.refused.is_empty() && !self.joins.is_full {
            self.capture.presence.unchanged()
        } else {
            // A further attempt to attach to an interface may succeed.
            Vec::new()
        };
        let mut is_full = false;
        let appeared = self.observer.appeared(&present, &unchanged);
        let took = began.elapsed();
        for site in appeared {
            if self.joins.refused.contains(&identity(&site)) {
                continue;
            }
            is_full = !self.capture.assembly.points.has_room();
            if is_full {
                self.report_full(&site);
                break;
            }
            self.join_one(site)?;
        }
        self.joins.is_full = is_full;
        self.capture.assembly.settle()?;
        self.joins.next = Some(Instant::now() + SEARCH_INTERVAL.max(took * REST_FACTOR));
        Ok(())
    }

    /// Reports once that interfaces wait for others to leave.
    fn report_full(&mut self, site: &CaptureSite) {
        if !self.joins.is_full {
            self.observer.event(&Event::JoinsWait {
                interface: site.label.clone(),
                why: self.capture.assembly.points.too_many().to_string(),
            });
        }
    }

    fn join_one(&mut self, site: CaptureSite) -> Result<()> {
        let (points, blocks) = (self.capture.assembly.points.len(), self.capture.interfaces.len());
        let index = self.capture.sites.len();
        self.capture.sites.push(site);
        let sites = &self.capture.sites;
        let mut taps = Vec::new();
        let promiscuous = &mut self.capture.promiscuous;
        let attached = attach_at(index, sites, &mut self.capture.assembly, &mut taps, promiscuous).and_then(|()| {
            for at in &mut taps {
                at.tap.start()?;
            }
            self.capture.presence.add(index, &sites[index])
        });
        report_events(&mut self.capture.assembly, self.observer);
        // Points of a failed tap stay: the interface blocks have their numbers.
        let made = self.capture.assembly.interface_blocks(&self.capture.sites, blocks, &self.capture.options);
        let mut header = Vec::new();
        for interface in &made {
            write::interface_description(&mut header, interface);
        }
        write_names(&mut header, self.capture.sites[index].pod.as_deref());
        self.capture.interfaces.extend(made);
        let joined = &self.capture.assembly.points[points..];
        self.capture.current.borrow_mut().joined.extend_from_slice(joined);
        self.capture.merge.add(std::mem::take(&mut self.capture.assembly.rings.streams));
        match attached {
            Ok(()) => {
                self.capture.taps.extend(taps);
                self.suspect = self.capture.taps.len();
                self.observer.started(&self.capture.assembly.points[points..]);
            }
            Err(error) => {
                self.capture.assembly.points.release(index);
                self.joins.refused.insert(identity(&self.capture.sites[index]));
                self.observer.event(&Event::NotJoined { why: error.to_string() });
            }
        }
        if header.is_empty() { Ok(()) } else { self.feed.write(Blocks::Bytes(&header)) }
    }
}
