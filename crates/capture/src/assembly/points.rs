//! The hook points of a capture, the slots of their counters, and the interface blocks that they need.

use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::sync::Arc;

use trawl_bpf::{info, program};
use trawl_packet::pcapng::note::{Note, ProgramNote};
use trawl_ring::Rings;
use trawl_sys::{Error, Result};

use crate::capture_site::CaptureSite;
use crate::point::{Point, PointIds, Slots, Tenancy, end_of};
use crate::taps::facts::Facts;
use trawl_plan::options::{Stamps, TimeSource};

/// Points of an interface that joins later: entry and exit.
const POINTS_OF_A_JOIN: u32 = 2;

/// An interface block that is written once everything is attached.
#[derive(Clone, Copy, Debug)]
pub struct InterfaceSeed {
    pub point: usize,
    pub clock: &'static str,
}

/// Place of a new point: its site, its label, and the name of its interface block if not the label.
#[derive(Debug)]
pub struct NewPoint<'a> {
    pub site: Option<usize>,
    pub label: String,
    pub block_name: Option<String>,
    pub rings: &'a Arc<Rings>,
    pub tap: &'static Facts,
    pub hook: &'a str,
}

#[derive(Debug)]
pub struct Points {
    points: Vec<Point>,
    slots: Slots,
    seeds: Vec<InterfaceSeed>,
    /// Maximum number of points at a time.
    max: usize,
}

impl Deref for Points {
    type Target = [Point];

    fn deref(&self) -> &[Point] {
        &self.points
    }
}

impl DerefMut for Points {
    fn deref_mut(&mut self) -> &mut [Point] {
        &mut self.points
    }
}

impl Points {
    pub fn new(max: usize) -> Self {
        Self { points: Vec::new(), slots: Slots::default(), seeds: Vec::new(), max }
    }

    pub fn max(&self) -> usize {
        self.max
    }

    pub fn too_many(&self) -> Error {
        let why = format!("{} is the limit", self.max);
        Error::failed("too many capture points", why).fix("split the capture in two")
    }

    /// Adds a point with its interface block. Hardware stamps need a second block, since a block has one clock.
    pub fn add(&mut self, new: NewPoint<'_>, time: TimeSource, verdict: bool) -> Result<PointIds> {
        let taken = self.slots.take(self.max as u32);
        let (slot, is_used_again) = taken.ok_or_else(|| self.too_many())?;
        if is_used_again {
            let points = self.points.iter();
            points.for_each(|point| point.tenancy.end(slot, &point.rings));
        }
        let point = self.points.len();
        let interface = self.seeds.len() as u32;
        let mut hardware_interface = interface;
        self.seeds.push(InterfaceSeed { point, clock: "system" });
        if new.site.is_some() && time == TimeSource::Hardware {
            hardware_interface += 1;
            self.seeds.push(InterfaceSeed { point, clock: "hardware" });
        }
        self.points.push(Point {
            tenancy: Tenancy::new(slot, is_used_again, new.rings),
            site: new.site,
            label: new.label,
            block_name: new.block_name,
            hook: new.hook.to_owned(),
            tap: new.tap,
            mode: "",
            link_type: None,
            note: None,
            program: None,
            interfaces: (interface..=hardware_interface).collect(),
            stamps: Stamps::Precise,
            rings: Arc::clone(new.rings),
        });
        Ok(PointIds { point: point as u32, slot, interface, hardware_interface, verdict })
    }

    /// Reserves adjacent slots for the next points of an interface, as programs for many interfaces require.
    pub fn reserve(&mut self, count: u32) -> Result<()> {
        if self.slots.reserve(count, self.max as u32) { Ok(()) } else { Err(self.too_many()) }
    }

    /// Returns true if one more interface can join now.
    pub fn has_room(&self) -> bool {
        self.slots.has(POINTS_OF_A_JOIN, self.max as u32)
    }

    /// Frees the slots of a site's points, once all its records are counted.
    pub fn release(&mut self, site: usize) {
        let points = self.points.iter().rev();
        for point in points.filter(|point| point.site == Some(site)) {
            self.slots.give_back(point.tenancy.slot);
        }
    }

    /// Sets how a tap is attached.
    pub fn set_mode(&mut self, point: u32, mode: &'static str) {
        if let Some(point) = self.points.get_mut(point as usize) {
            point.mode = mode;
        }
    }

    pub fn set_stamps(&mut self, point: u32, stamps: Stamps) {
        self.points[point as usize].stamps = stamps;
    }

    /// Sets the link type of a point's packets, if not the interface's.
    pub fn set_link_type(&mut self, point: u32, link_type: u16) {
        self.points[point as usize].link_type = Some(link_type);
    }

    /// Sets the label of a point, for sites with several.
    pub fn set_label(&mut self, point: u32, label: String) {
        self.points[point as usize].label = label;
    }

    /// Sets the remark on time stamps in the interface block.
    pub fn set_note(&mut self, point: u32, note: String) {
        self.points[point as usize].note = Some(note);
    }

    /// Sets the attached program at which a point's packets are seen. A program that was unloaded meanwhile is not
    /// named.
    pub fn set_program(&mut self, point: u32, site: &CaptureSite, id: u32) {
        let about = program::open_by_id(id).and_then(|fd| info::program(fd.as_fd()));
        self.points[point as usize].program = about.ok().map(|about| {
            let plain_tag = site.plain_tag(id).filter(|plain| *plain != about.tag);
            ProgramNote { name: &about.name, id, tag: &about.tag, plain_tag: plain_tag.as_deref() }.text()
        });
    }

    /// Returns the interface blocks to write, after the first `made`.
    pub fn seeds(&self, made: usize) -> &[InterfaceSeed] {
        &self.seeds[made..]
    }

    /// Returns the name of a point's interface blocks. The name includes the end of the program if both ends are
    /// captured.
    pub fn block_name(&self, point: &Point) -> String {
        let name = point.block_name.as_ref().unwrap_or(&point.label);
        let end = |point: &Point| end_of(&point.hook);
        let has_both = self
            .points
            .iter()
            .any(|other| other.site == point.site && end(other).is_some() && end(other) != end(point));
        match end(point) {
            Some(end) if has_both => format!("{name} ({end})"),
            _ => name.clone(),
        }
    }
}
