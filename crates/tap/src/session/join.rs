//! Interfaces that appear while a capture goes on, and those that went.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use trawl_packet::pcapng::write;
use trawl_sys::Result;

use super::attach::{attach_at, tell};
use super::{Observer, Session};
use crate::capture_site::CaptureSite;
use crate::notice::Notice;
use crate::sink::Sink;

/// How often it is looked for interfaces.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Looking takes at most this part of the time. What it takes to join does not count: more may be on their way.
const REST_FACTOR: u32 = 5;

/// When it is looked next, and what is not tried again.
#[derive(Debug, Default)]
pub(super) struct Joins {
    next: Option<Instant>,
    refused: HashSet<(String, u32)>,
    /// Interfaces wait until others leave: there is no room for more.
    is_full: bool,
}

fn identity(site: &CaptureSite) -> (String, u32) {
    (site.label.clone(), site.interface.index)
}

impl Session {
    /// Attaches to interfaces that have appeared. Fails only if the sink does.
    pub(super) fn join(&mut self, sink: &mut dyn Sink, observer: &mut dyn Observer) -> Result<()> {
        let began = Instant::now();
        if self.joins.next.is_some_and(|next| began < next) {
            return Ok(());
        }
        let there: Vec<CaptureSite> = self
            .presence
            .sites()
            .filter_map(|index| self.sites.get(index).cloned())
            .collect();
        let unchanged = match self.joins.refused.is_empty() && !self.joins.is_full {
            true => self.presence.unchanged(),
            // What was refused may be possible by now.
            false => Vec::new(),
        };
        let mut is_full = false;
        let appeared = observer.appeared(&there, &unchanged);
        let took = began.elapsed();
        for site in appeared {
            if self.joins.refused.contains(&identity(&site)) {
                continue;
            }
            is_full = !self.assembly.has_room();
            if is_full {
                self.tell_full(&site, observer);
                break;
            }
            self.join_one(site, sink, observer)?;
        }
        self.joins.is_full = is_full;
        self.assembly.settle()?;
        self.joins.next = Some(Instant::now() + LOOK_EVERY.max(took * REST_FACTOR));
        Ok(())
    }

    /// Says once that interfaces wait for others to leave.
    fn tell_full(&self, site: &CaptureSite, observer: &mut dyn Observer) {
        if !self.joins.is_full {
            observer.notice(&Notice::JoinsWait {
                interface: site.label.clone(),
                why: self.assembly.no_room().to_string(),
            });
        }
    }

    fn join_one(
        &mut self,
        site: CaptureSite,
        sink: &mut dyn Sink,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let (points, blocks) = (self.assembly.points.len(), self.interfaces.len());
        let index = self.sites.len();
        self.sites.push(site);
        let site = &self.sites[index];
        let mut taps = Vec::new();
        let promiscuous = &mut self.promiscuous;
        let attached =
            attach_at(index, site, &mut self.assembly, &mut taps, promiscuous).and_then(|_| {
                for at in &mut taps {
                    at.tap.start()?;
                }
                self.presence.add(index, site)
            });
        tell(&mut self.assembly, observer);
        // Points stay where a tap failed: the interface blocks have their numbers.
        let made = self.assembly.interface_blocks(&self.sites, blocks);
        let mut header = Vec::new();
        for interface in &made {
            write::interface_description(&mut header, interface);
        }
        self.interfaces.extend(made);
        let joined = &self.assembly.points[points..];
        self.joined.borrow_mut().extend_from_slice(joined);
        self.merge.add(std::mem::take(&mut self.assembly.streams));
        match attached {
            Ok(()) => {
                self.taps.extend(taps);
                observer.started(&self.assembly.points[points..]);
            }
            Err(error) => {
                self.assembly.release(index);
                self.joins.refused.insert(identity(&self.sites[index]));
                observer.notice(&Notice::NotJoined {
                    why: error.to_string(),
                });
            }
        }
        match header.is_empty() {
            true => Ok(()),
            false => sink.write(&header),
        }
    }
}
