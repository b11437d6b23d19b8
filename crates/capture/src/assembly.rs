//! A capture being assembled: taps add their hook points and the rings that carry their records.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use trawl_bpf::layout::drop::{LINKS_FOLLOWED, LINKS_NONE, LINKS_POINTS};
use trawl_bpf::layout::{ALL, HOLD_NOTHING, RING_MAX_POINTS, Shared, TapConfig};
use trawl_bpf::object::TapProgram;
use trawl_bpf::program::LoadOptions;
use trawl_bpf::table::Table;
use trawl_bpf::{info, kernel_types, link, object, probe, program};
use trawl_packet::pcapng;
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_ring::producer::{Producer, Tickets};
use trawl_ring::{Consumer, Geometry, Rings, account_offset, rejected_offset};
use trawl_sys::clock::{self, ProgramClock};
use trawl_sys::warden::{Undo, Warden};
use trawl_sys::{Error, Result, events, host};

use crate::capture_site::CaptureSite;
use crate::event::{ClockReason, Event};
use crate::many::{
    Likeness, Many, PacketStructure, TableEntry, ask_for_namespace, broadcast_netmask, new_table,
};
use crate::options::{CaptureOptions, Direction, Readings, Sample, Stamps, TapChoice, TimeSource};
use crate::point::{Carries, Point, PointIds, Slots, Tenancy, end_of};
use crate::sampling::rate_times;

/// An interface block that is written once everything is attached.
#[derive(Clone, Copy, Debug)]
struct InterfaceSeed {
    point: usize,
    clock: &'static str,
}

#[derive(Debug)]
pub struct Assembly {
    pub options: Rc<CaptureOptions>,
    pub(crate) geometry: Geometry,
    pub notices: Vec<Event>,
    /// Undoes what a killed trawl would leave behind.
    pub warden: Warden,
    pub(crate) points: Vec<Point>,
    slots: Slots,
    interfaces: Vec<InterfaceSeed>,
    pub(crate) streams: Vec<Consumer>,
    pub(crate) clock: ProgramClock,
    rings: Option<Arc<Rings>>,
    /// Shared by all recorders, so that -c is exact over all of them.
    pub(crate) tickets: Arc<Tickets>,
    /// Program that signals the end of polls, once requested; `Some(None)` if it cannot be loaded.
    polls: Option<Option<OwnedFd>>,
    /// Notices for -v only.
    pub details: Vec<Event>,
    /// Method of recognising packets that other programs have seen: LINKS_… of bpf/include/drop.h.
    pub(crate) links: u32,
    /// Number of sites. Sites with rings in this process's memory share the memory limit.
    pub(crate) sites: usize,
    pub(crate) host: HostFeatures,
    pub(crate) many: Many,
    /// Tasks for the warden that `settle` hands over in one batch, because the warden restarts with each call.
    tasks: Vec<Box<dyn Undo>>,
    /// Rings held back until all points are attached; `None` from then on.
    held: Option<Vec<Arc<Rings>>>,
}

/// Description of the machine for the file.
#[derive(Clone, Debug)]
pub struct HostFeatures {
    pub os: String,
    pub hardware: String,
    pub application: String,
}

impl HostFeatures {
    /// Describes this machine and this trawl.
    pub fn this() -> Self {
        let host = host::describe();
        Self {
            os: host.os,
            hardware: host.hardware,
            application: format!("trawl {}", env!("CARGO_PKG_VERSION")),
        }
    }
}

/// Points per site: entry and exit of each program of a chain.
const POINTS_OF_A_SITE: usize = 24;
const POINTS_AT_LEAST: usize = 64;
/// Points of an interface that joins later: entry and exit.
const POINTS_OF_A_JOIN: u32 = 2;
/// Number of sites above which they share programs. A program for a single interface is faster.
const PROGRAMS_APART: usize = 16;

fn too_many(max: usize) -> Error {
    let why = format!("{max} is the limit");
    Error::failed("too many capture points", why).fix("split the capture in two")
}

impl Assembly {
    pub fn new(options: &CaptureOptions, host: HostFeatures, sites: usize) -> Result<Self> {
        let clock = if probe::has_tai_helper() {
            ProgramClock::Tai
        } else {
            ProgramClock::Monotonic
        };
        Ok(Self {
            geometry: options.memory.on_this_host()?,
            options: Rc::new(options.clone()),
            notices: Vec::new(),
            warden: Warden::default(),
            points: Vec::new(),
            slots: Slots::default(),
            interfaces: Vec::new(),
            streams: Vec::new(),
            clock,
            rings: None,
            tickets: Arc::new(Tickets::new(options.count)),
            polls: None,
            details: Vec::new(),
            links: links(options, sites),
            sites,
            host,
            many: Many::default(),
            tasks: Vec::new(),
            held: Some(Vec::new()),
        })
    }

    /// Returns the rings that BPF programs write to, created for the first tap that needs them.
    pub fn program_rings(&mut self) -> Result<Arc<Rings>> {
        if let Some(rings) = &self.rings {
            return Ok(Arc::clone(rings));
        }
        let rings = self.rings_apart()?;
        self.rings = Some(Arc::clone(&rings));
        Ok(rings)
    }

    /// Returns true if programs recognise packets that earlier programs have seen.
    fn knows_again(&self) -> bool {
        self.links != LINKS_NONE as u32 || self.options.follows()
    }

    /// Creates rings for programs that may interrupt the writers of the other rings and be interrupted by them.
    pub fn rings_apart(&mut self) -> Result<Arc<Rings>> {
        let rings = match &self.rings {
            Some(rings) => rings.further()?,
            None => Rings::in_maps(
                self.geometry,
                events::cpu_count(),
                self.points_max(),
                self.knows_again(),
            )?,
        };
        rings.set_clock_offset(self.clock.offset_to_wall());
        self.streams.extend(Consumer::all(&rings));
        self.tickets.share_with(&rings);
        self.hold(&rings);
        Ok(rings)
    }

    /// Holds rings back until the capture begins, if it has not.
    fn hold(&mut self, rings: &Arc<Rings>) {
        if let Some(held) = &mut self.held {
            rings.hold();
            held.push(Arc::clone(rings));
        }
    }

    /// Starts counting at all points at once.
    pub fn begin(&mut self) {
        for rings in self.held.take().into_iter().flatten() {
            rings.release();
        }
    }

    /// Creates rings that threads of this process write to, with their producers.
    pub fn thread_rings(
        &mut self,
        geometry: Geometry,
        count: usize,
    ) -> Result<(Arc<Rings>, Vec<Producer>)> {
        let rings = Rings::in_memory(geometry, count)?;
        self.streams.extend(Consumer::all(&rings));
        let producers = Producer::all(&rings, &self.tickets, clock::wall());
        self.hold(&rings);
        Ok((rings, producers))
    }

    /// Adds a hook point of a site, with its interface block. Hardware stamps need a second block, since a block has one
    /// clock.
    pub fn add_point(
        &mut self,
        index: usize,
        site: &CaptureSite,
        rings: &Arc<Rings>,
        tap: &'static str,
        hook: &str,
    ) -> Result<PointIds> {
        let at = (Some(index), site.label.clone(), None);
        self.push_point(at, rings, tap, hook)
    }

    /// Adds a hook point that belongs to no single site, with an interface block of this name for packets without a known
    /// interface.
    pub fn add_point_apart(
        &mut self,
        label: String,
        name: String,
        rings: &Arc<Rings>,
        tap: &'static str,
        hook: &str,
    ) -> Result<PointIds> {
        self.push_point((None, label, Some(name)), rings, tap, hook)
    }

    /// Adds a hook point of a site, a label and the name of an interface block.
    fn push_point(
        &mut self,
        (site, label, block_name): (Option<usize>, String, Option<String>),
        rings: &Arc<Rings>,
        tap: &'static str,
        hook: &str,
    ) -> Result<PointIds> {
        let (point, tenancy) = self.next_point(rings)?;
        let slot = tenancy.slot;
        let interface = self.interfaces.len() as u32;
        let mut hardware_interface = interface;
        self.interfaces.push(InterfaceSeed {
            point,
            clock: "system",
        });
        if site.is_some() && self.options.time == TimeSource::Hardware {
            hardware_interface += 1;
            self.interfaces.push(InterfaceSeed {
                point,
                clock: "hardware",
            });
        }
        self.points.push(Point {
            tenancy,
            site,
            label,
            block_name,
            hook: hook.to_owned(),
            tap,
            mode: "",
            link_type: None,
            note: None,
            program: None,
            interfaces: (interface..=hardware_interface).collect(),
            stamps: Stamps::Precise,
            rings: Arc::clone(rings),
        });
        Ok(PointIds {
            point: point as u32,
            slot,
            interface,
            hardware_interface,
            verdict: self.options.recording.meta.verdict,
        })
    }

    /// Returns the maximum number of points. Counters use memory on each CPU, so the maximum depends on the number of sites.
    fn points_max(&self) -> usize {
        match self.options.joins || self.serves_many() {
            true => RING_MAX_POINTS,
            false => (self.sites * POINTS_OF_A_SITE).clamp(POINTS_AT_LEAST, RING_MAX_POINTS),
        }
    }

    /// Reserves adjacent slots for the next points of an interface, as programs for many interfaces require.
    pub(crate) fn reserve_points(&mut self, count: u32) -> Result<()> {
        let max = self.points_max();
        match self.slots.reserve(count, max as u32) {
            true => Ok(()),
            false => Err(too_many(max)),
        }
    }

    /// Returns true if one more interface can join now.
    pub(crate) fn has_room(&self) -> bool {
        self.slots.has(POINTS_OF_A_JOIN, self.points_max() as u32)
    }

    pub(crate) fn no_room(&self) -> Error {
        too_many(self.points_max())
    }

    /// Frees the slots of a site's points, once all its records are counted.
    pub(crate) fn release(&mut self, site: usize) {
        let points = self.points.iter().rev();
        for point in points.filter(|point| point.site == Some(site)) {
            self.slots.give_back(point.tenancy.slot);
        }
    }

    fn next_point(&mut self, rings: &Rings) -> Result<(usize, Tenancy)> {
        let max = self.points_max();
        let (slot, is_used_again) = self.slots.take(max as u32).ok_or_else(|| too_many(max))?;
        if is_used_again {
            let points = self.points.iter();
            points.for_each(|point| point.tenancy.end(slot, &point.rings));
        }
        let tenancy = Tenancy::new(slot, is_used_again, rings);
        Ok((self.points.len(), tenancy))
    }

    /// Configures a program to read the clock once for many packets, if requested and possible. The program must see packets
    /// within device polls only.
    pub fn stamp_by_polls(
        &mut self,
        config: &mut TapConfig,
        site: &CaptureSite,
        points: &[u32],
    ) -> Result<()> {
        let stamps = self.options.recording.stamps;
        let Some(readings) = stamps.readings() else {
            return Ok(());
        };
        if self.options.time == TimeSource::Hardware {
            return Ok(());
        }
        if site.interface.driver.as_deref() == Some("tun") {
            self.details.push(Event::ClockReadPerPacket {
                interface: site.label.clone(),
                reason: ClockReason::NoPolls {
                    driver: "tun".to_owned(),
                },
            });
            return Ok(());
        }
        if self.polls.is_none() {
            let rings = self.program_rings()?;
            let polls = watch_polls(&self.config(&rings), &rings, readings);
            if let Err(error) = &polls {
                self.details.push(Event::ClockReadPerPacket {
                    interface: site.label.clone(),
                    reason: ClockReason::EndUnseen {
                        why: error.to_string(),
                    },
                });
            }
            self.polls = Some(polls.ok());
        }
        if let Some(Some(_)) = &self.polls {
            readings.write_to(config);
            points
                .iter()
                .for_each(|point| self.set_stamped_by_polls(*point));
        }
        Ok(())
    }

    pub(crate) fn set_stamped_by_polls(&mut self, point: u32) {
        self.points[point as usize].stamps = self.options.recording.stamps;
    }

    /// Sets how a tap is attached.
    pub fn set_mode(&mut self, point: u32, mode: &'static str) {
        if let Some(point) = self.points.get_mut(point as usize) {
            point.mode = mode;
        }
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

    /// Sets the attached program at which a point's packets are seen. A program that was unloaded meanwhile is not named.
    pub(crate) fn set_program(&mut self, point: u32, id: u32) {
        let about = program::open_by_id(id).and_then(|fd| info::program(fd.as_fd()));
        self.points[point as usize].program = about.ok().map(|about| {
            let info::ProgramInfo { id, name, tag, .. } = about;
            format!("xdp_program={name} xdp_id={id} xdp_tag={tag}")
        });
    }

    /// Returns the name of a point's interface blocks. The name includes the end of the program if both ends are captured.
    fn block_name(&self, point: &Point) -> String {
        let name = point.block_name.as_ref().unwrap_or(&point.label);
        let end = |point: &Point| end_of(&point.hook);
        let has_both = self.points.iter().any(|other| {
            other.site == point.site && end(other).is_some() && end(other) != end(point)
        });
        match end(point) {
            Some(end) if has_both => format!("{name} ({end})"),
            _ => name.clone(),
        }
    }

    /// Returns the interface blocks after the first `made`.
    pub fn interface_blocks(&self, sites: &[CaptureSite], made: usize) -> Vec<pcapng::Interface> {
        self.interfaces[made..]
            .iter()
            .map(|seed| self.interface_block(sites, *seed))
            .collect()
    }

    fn interface_block(&self, sites: &[CaptureSite], seed: InterfaceSeed) -> pcapng::Interface {
        let point = &self.points[seed.point];
        let interface = point.site.map(|site| &sites[site].interface);
        let how = if point.mode.is_empty() {
            String::new()
        } else {
            format!(" ({})", point.mode)
        };
        pcapng::Interface {
            link_type: point
                .link_type
                .or(interface.map(|interface| interface.link_type))
                .unwrap_or(LINKTYPE_ETHERNET),
            snaplen: self.snaplen(),
            name: Some(self.block_name(point)),
            comments: point.program.iter().cloned().collect(),
            description: Some(format!(
                "{}{how}, time stamps from the {} clock{}{}",
                point.hook,
                seed.clock,
                point.stamps.describe(),
                point
                    .note
                    .as_ref()
                    .map_or(String::new(), |note| format!(", {note}"))
            )),
            speed: interface.and_then(|interface| interface.speed_bits),
            mac: interface.and_then(|interface| interface.mac),
            hardware: interface
                .filter(|interface| interface.index != 0)
                .map(|interface| interface.hardware_text()),
            os: Some(self.host.os.clone()),
            filter: self.options.filter.as_ref().map(|filter| filter.text()),
            ..pcapng::Interface::default()
        }
    }

    /// Returns the requested snap length, limited to the capacity of a ring segment.
    pub fn snaplen(&self) -> u32 {
        self.options.snaplen.min(self.geometry.max_captured())
    }

    /// Returns the offset of a member in a kernel structure, for programs that look for packets seen by others.
    pub(crate) fn offset(&self, structure: &str, member: &str) -> u32 {
        match self.links == LINKS_NONE as u32 {
            true => 0,
            // Type information exists wherever the function does.
            false => kernel_types::offset(structure, member)
                .ok()
                .flatten()
                .unwrap_or(0),
        }
    }

    /// Queues a task for the warden until `settle` is called. Only for attachments that end with trawl anyway, and that a
    /// killed trawl should hand over.
    pub(crate) fn watch_later(&mut self, task: Box<dyn Undo>) {
        self.tasks.push(task);
    }

    /// Hands the queued tasks to the warden in one batch.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.many.known.clear();
        match self.tasks.is_empty() {
            true => Ok(()),
            false => self.warden.watch(self.tasks.drain(..)),
        }
    }

    pub fn event(&mut self, event: Event) {
        self.notices.push(event);
    }
}

impl Assembly {
    /// Returns the part of a program's configuration that all taps share.
    pub fn config(&self, rings: &Rings) -> TapConfig {
        let geometry = rings.geometry();
        let limit = self.options.count.unwrap_or(0);
        let (interval, tolerance) = self.options.rate_limit.map_or((0, 0), rate_times);
        let nowhere = PointIds {
            point: 0,
            slot: 0,
            interface: 0,
            hardware_interface: 0,
            verdict: false,
        };
        let meta = self.options.recording.meta;
        let record = nowhere.record(0, Carries::Nothing);
        TapConfig {
            first: record,
            second: record,
            record_limit_low: limit as u32,
            record_limit_high: (limit >> 32) as u32,
            snaplen: self.snaplen(),
            segment_size: geometry.segment_size as u32,
            segment_room: geometry.segment_room() as u32,
            bank_mask: geometry.bank_size() as u32 - 1,
            bank_shift: (geometry.bank_size() / geometry.segment_size).ilog2(),
            clock_first: 0,
            clock_mask: 0,
            clock_follows: 0,
            write_flags: u32::from(meta.flags),
            write_queue: u32::from(meta.queue),
            write_id: u32::from(meta.id),
            write_comment: u32::from(meta.verdict),
            cpu_mask: rings.cpu_mask(),
            verdict: 0,
            unwanted: 0,
            hold: HOLD_NOTHING as u32,
            only_ifindex: 0,
            only_queue: self.options.queue.unwrap_or(ALL as u32),
            queue_offset: 0,
            only_cpu: self.options.cpu.unwrap_or(ALL as u32),
            sample: match self.options.sample {
                Some(Sample::Every(number)) => number,
                _ => 0,
            },
            sample_below: match self.options.sample {
                // A sample of one in one is every packet.
                Some(Sample::Random(number @ 2..)) => ((1u64 << 32) / u64::from(number)) as u32,
                _ => 0,
            },
            rate_interval_low: interval as u32,
            rate_interval_high: (interval >> 32) as u32,
            rate_tolerance_low: tolerance as u32,
            rate_tolerance_high: (tolerance >> 32) as u32,
            chain_next: 0,
            clock_is_tai: u32::from(self.clock == ProgramClock::Tai),
            onward: ALL as u32,
            silent: 0,
            only_namespace: 0,
            wanted_verdicts: ALL as u32,
            shared_id: 0,
            first_address_low: 0,
            first_address_high: 0,
            first_page_low: 0,
            first_page_high: 0,
            names_receiver: 0,
            with_stack: 0,
            segments_for_entries: 0,
            links: self.links,
            head_offset: self.offset("xdp_buff", "data_hard_start"),
            flags_offset: flags_offset(),
            step: 0,
            grows: u32::from(geometry.grows_from.is_some()),
            by_namespace: 0,
            queue_info_offset: 0,
            device_offset: 0,
            device_namespace_offset: 0,
            namespace_number_offset: 0,
        }
    }
}

impl Assembly {
    /// Records the namespaces of the first interfaces, and whether later ones may come from others.
    pub(crate) fn expect(&mut self, sites: &[CaptureSite]) {
        let first = sites.first().and_then(|site| site.namespace.as_ref());
        let mut numbers = HashSet::new();
        for site in sites {
            if site.namespace_number().is_ok_and(|one| numbers.insert(one)) {
                self.many.known.push(site.namespace.clone());
            }
        }
        self.many.namespaces = numbers.len().max(1);
        self.many.across_namespaces = self.options.across_namespaces
            || sites.iter().any(|site| site.namespace.as_ref() != first);
    }

    /// Returns true if one program serves all interfaces that it can.
    pub(crate) fn serves_many(&self) -> bool {
        let is_alike = self.options.time == TimeSource::System && !self.options.follows();
        is_alike && (self.options.joins || self.sites > PROGRAMS_APART)
    }

    /// Generalises a program's configuration to many interfaces.
    pub(crate) fn for_many(
        &self,
        name: &str,
        config: &mut TapConfig,
        site: &CaptureSite,
        from: PacketStructure,
    ) -> Result<Likeness> {
        for record in [&mut config.first, &mut config.second] {
            record.account_offset = account_offset(0);
            record.rejected_offset = rejected_offset(0);
            record.point = 0;
            record.interface = 0;
            record.hardware_interface = 0;
        }
        let everywhere = self.many.across_namespaces && ask_for_namespace(config, from);
        Ok(Likeness {
            name: name.to_owned(),
            config: config.to_bytes(),
            namespace: match everywhere {
                true => None,
                false => Some(site.namespace_number()?),
            },
            link_type: site.interface.link_type,
            netmask: broadcast_netmask(&self.options, site),
        })
    }

    /// Returns the table that a program reads.
    pub(crate) fn interface_table(
        &mut self,
        hook: &'static str,
        likeness: &Likeness,
    ) -> Result<Rc<Table>> {
        let whose = (hook, likeness.namespace);
        if let Some(table) = self.many.tables.get(&whose) {
            return Ok(Rc::clone(table));
        }
        let table = new_table()?;
        self.many.tables.insert(whose, Rc::clone(&table));
        Ok(table)
    }

    /// Makes packets of an interface count at a point; `None` if they count at another point of this capture.
    pub(crate) fn add_to_table(
        &mut self,
        hook: &'static str,
        likeness: &Likeness,
        site: &CaptureSite,
        ids: &PointIds,
    ) -> Result<Option<TableEntry>> {
        let table = self.interface_table(hook, likeness)?;
        let namespace = match likeness.namespace {
            Some(_) => 0,
            None => site.namespace_number()?,
        };
        TableEntry::take(&table, namespace, site, ids)
    }
}

/// Signals the end of polls, the kernel's tracepoint after each poll of a device, to the programs that write into these rings, as long as the returned link is open.
fn watch_polls(config: &TapConfig, rings: &Rings, readings: Readings) -> Result<OwnedFd> {
    let what = "cannot see the end of polls";
    if probe::is_unwanted("napi_poll") {
        return Err(Error::failed(what, "disabled by TRAWL_WITHOUT"));
    }
    let mut config = *config;
    readings.write_to(&mut config);
    let name = "trawl_poll_end";
    let ready = TapProgram::prepare(object::POLL, name, &config, &program_maps(rings, None))?;
    let loaded = ready.load(&LoadOptions::new(name, program::RAW_TRACEPOINT))?;
    link::attach_raw_tracepoint(loaded.as_fd(), "napi_poll").map_err(|e| Error::os(what, e))
}

/// Returns the offset of the flags in the kernel's XDP packet structure, or 0 if programs cannot read it.
fn flags_offset() -> u32 {
    object::can_cast()
        .then(|| kernel_types::offset("xdp_buff", "flags").ok().flatten())
        .flatten()
        .unwrap_or(0)
}

/// Returns the method of recognising packets seen before, which requires several points and recorded identifiers.
fn links(options: &CaptureOptions, sites: usize) -> u32 {
    let adds_drops = options.drops.is_some() && options.tap != TapChoice::Drop;
    let several =
        sites > 1 || adds_drops || options.with_tc || options.direction == Some(Direction::Both);
    let links = match (options.follows(), several && options.recording.meta.id) {
        (true, _) => LINKS_FOLLOWED,
        (false, true) => LINKS_POINTS,
        (false, false) => LINKS_NONE,
    };
    match object::can_cast() {
        true => links as u32,
        false => LINKS_NONE as u32,
    }
}

/// Returns the maps of a tap program, under the names in its source.
pub fn program_maps<'r>(
    rings: &'r Rings,
    chain: Option<BorrowedFd<'r>>,
) -> Vec<(&'static str, BorrowedFd<'r>)> {
    let mut maps: Vec<_> = rings.maps().map(|maps| maps.by_name()).unwrap_or_default();
    maps.extend(chain.map(|chain| (crate::capture_chain::MAP_NAME, chain)));
    maps
}
