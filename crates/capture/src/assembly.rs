//! A capture being assembled: taps add their hook points and the rings that carry their records.

mod points;
mod rings;

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use trawl_bpf::layout::drop::{LINKS_FOLLOWED, LINKS_NONE, LINKS_POINTS};
use trawl_bpf::layout::{
    ALL, HEADERS_OF_ETHERNET, HOLD_NOTHING, RING_MAX_POINTS, Shared, TapConfig, WRITE_FACTS, WRITE_UNCERTAIN,
};
use trawl_bpf::object::{TapProgram, Taps};
use trawl_bpf::process_watch::FrequentPrograms;
use trawl_bpf::program::LoadOptions;
use trawl_bpf::table::Table;
use trawl_bpf::{kernel_types, link, object, probe, program};
use trawl_packet::pcapng;
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_ring::{Rings, account_offset, rejected_offset};
use trawl_sys::clock::ProgramClock;
use trawl_sys::process::MayRunFirst;
use trawl_sys::process::warden::{Undo, Warden};
use trawl_sys::{Error, Result, host};

use crate::capture_site::CaptureSite;
use crate::event::{ClockReason, Event};
use crate::extent::Extent;
use crate::many::{Many, PacketStructure, ProgramKey, TableEntry, broadcast_netmask, new_table, read_namespace};
use crate::point::{Carries, PointIds};
use crate::process::{self, Processes};
use crate::sampling::rate_times;
use crate::taps::facts::{Facts, ReadsBy};
use points::{InterfaceSeed, NewPoint, Points};
use rings::RingSet;
use trawl_plan::options::{
    CaptureOptions, Direction, ProcessDetail, ProcessPlan, Readings, Sample, TapChoice, TimeSource,
};

#[derive(Debug)]
pub struct Assembly {
    pub options: Rc<CaptureOptions>,
    pub(crate) host: HostFeatures,
    /// Number of sites. Sites with rings in this process's memory share the memory limit.
    pub(crate) sites: usize,
    /// Method of recognising packets that other programs have seen: LINKS_… of bpf/include/drop.h.
    pub(crate) links: u32,
    pub(crate) points: Points,
    pub(crate) rings: RingSet,
    pub(crate) many: Many,
    pub undo: UndoList,
    pub news: News,
    /// Program that signals the end of polls, once requested; `Some(None)` if it cannot be loaded.
    polls: Option<Option<OwnedFd>>,
    /// The programs that find the process of each packet, if requested.
    pub(crate) processes: Option<Rc<Processes>>,
    /// True if programs note the rule of nftables that drops each packet.
    pub(crate) notes_rules: bool,
    /// The sites with a tap that sees verdicts of XDP programs.
    pub(crate) at_xdp: Vec<usize>,
    /// Set for threads that empty small rings.
    pub(crate) may_run_first: Option<MayRunFirst>,
}

/// Events of the assembly, reported once it is complete.
#[derive(Debug, Default)]
pub struct News {
    pub notices: Vec<Event>,
    /// Notices for -v only.
    pub details: Vec<Event>,
}

/// Tasks that remove the remains of a killed trawl.
#[derive(Debug, Default)]
pub struct UndoList {
    pub warden: Warden,
    /// Tasks that `settle` hands over in one batch, because the warden restarts with each call.
    queued: Vec<Box<dyn Undo>>,
}

impl UndoList {
    /// Queues a task for the warden until `settle` is called. Only for attachments that end with trawl anyway, and that
    /// a killed trawl should hand over.
    pub(crate) fn watch_later(&mut self, task: Box<dyn Undo>) {
        self.queued.push(task);
    }

    fn settle(&mut self) -> Result<()> {
        if self.queued.is_empty() { Ok(()) } else { self.warden.watch(self.queued.drain(..)) }
    }
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
        Self { os: host.os, hardware: host.hardware, application: format!("trawl {}", env!("CARGO_PKG_VERSION")) }
    }
}

/// Points per site: entry and exit of each program of a chain.
const POINTS_OF_A_SITE: usize = 24;
const POINTS_AT_LEAST: usize = 64;
/// Number of sites above which they share programs. A program for a single interface is faster.
const PROGRAMS_APART: usize = 16;

impl Assembly {
    pub fn new(options: &CaptureOptions, host: HostFeatures, sites: usize) -> Result<Self> {
        let clock = if probe::has_tai_helper() { ProgramClock::Tai } else { ProgramClock::Monotonic };
        let has_many = options.joins || serves_many(options, sites);
        let max = if has_many {
            RING_MAX_POINTS
        } else {
            // Counters use memory on each CPU.
            (sites * POINTS_OF_A_SITE).clamp(POINTS_AT_LEAST, RING_MAX_POINTS)
        };
        let geometry = crate::memory::on_this_host(options.memory)?;
        // A step of each of many packets may come at once, and none may be missing.
        let geometry = if options.follows() { geometry.for_bursts() } else { geometry };
        Ok(Self {
            options: Rc::new(options.clone()),
            host,
            sites,
            links: links(options, sites),
            points: Points::new(max),
            rings: RingSet::new(geometry, clock, options.record_limit()),
            many: Many::default(),
            undo: UndoList::default(),
            news: News::default(),
            polls: None,
            processes: None,
            notes_rules: false,
            at_xdp: Vec::new(),
            may_run_first: None,
        })
    }

    /// Attaches the programs that find the process of each packet, for the taps that follow.
    pub(crate) fn watch_processes(&mut self, plan: &ProcessPlan) -> Result<()> {
        let frequent = FrequentPrograms {
            // The tap at drops does not use them.
            soft_interrupts: self.options.tap != TapChoice::Drop,
            uses: !plan.without_uses,
        };
        let processes = match process::cgroups().and_then(|root| process::attach(plan, root, frequent)) {
            Err(error) if !plan.optional => return Err(error),
            Ok(processes) if !plan.optional || processes.watch.missing.is_empty() => processes,
            _ => return Ok(()),
        };
        for (name, map) in processes.watch.maps() {
            let map = map.try_clone_to_owned();
            let map = map.map_err(|e| Error::os("cannot hold a map", e))?;
            self.rings.others.push((name, map));
        }
        if let Some(event) = processes.unseen() {
            self.event(event);
        }
        self.processes = Some(Rc::new(processes));
        Ok(())
    }

    /// Returns the rings that BPF programs write to, created for the first tap that needs them.
    pub fn program_rings(&mut self) -> Result<Arc<Rings>> {
        self.rings.shared(self.points.max(), self.recognizes_seen())
    }

    /// Creates rings for programs that may interrupt the writers of the other rings and be interrupted by them.
    pub fn rings_apart(&mut self, count: usize) -> Result<Arc<Rings>> {
        self.rings.apart(count, self.points.max(), self.recognizes_seen())
    }

    /// Reports points that do not recognise packets which other points have seen.
    pub(crate) fn report_unlinked(&mut self) {
        let is_linked = self.links != LINKS_NONE as u32;
        let mut taps: Vec<String> = (self.points.iter())
            .filter(|point| !is_linked || point.tap.reads_by == ReadsBy::Thread)
            .map(|point| point.tap.name().to_owned())
            .collect();
        taps.sort();
        taps.dedup();
        if !taps.is_empty() {
            self.event(Event::NotMerged { taps, needs_kernel: !is_linked });
        }
    }

    /// Returns true if programs recognise packets that earlier programs have seen.
    fn recognizes_seen(&self) -> bool {
        self.links != LINKS_NONE as u32 || self.options.follows()
    }

    /// Adds a hook point of a site, with its interface block.
    pub fn add_point(
        &mut self,
        index: usize,
        site: &CaptureSite,
        rings: &Arc<Rings>,
        tap: &'static Facts,
        hook: &str,
    ) -> Result<PointIds> {
        self.push_point(NewPoint { site: Some(index), label: site.label.clone(), block_name: None, rings, tap, hook })
    }

    /// Adds a hook point that belongs to no single site, with an interface block of this name for packets without a
    /// known interface.
    pub fn add_point_apart(
        &mut self,
        label: String,
        name: String,
        rings: &Arc<Rings>,
        tap: &'static Facts,
        hook: &str,
    ) -> Result<PointIds> {
        self.push_point(NewPoint { site: None, label, block_name: Some(name), rings, tap, hook })
    }

    fn push_point(&mut self, new: NewPoint<'_>) -> Result<PointIds> {
        let verdict = self.options.recording.meta.verdict;
        self.points.add(new, self.options.time, verdict)
    }

    /// Configures a program to read the clock once for many packets, if requested and possible. The program must see
    /// packets within device polls only.
    pub fn stamp_by_polls(&mut self, config: &mut TapConfig, site: &CaptureSite, points: &[u32]) -> Result<()> {
        let stamps = self.options.recording.stamps;
        let Some(readings) = stamps.readings() else {
            return Ok(());
        };
        if self.options.time == TimeSource::Hardware {
            return Ok(());
        }
        if site.interface.driver.as_deref() == Some("tun") {
            self.news.details.push(Event::ClockReadPerPacket {
                interface: site.label.clone(),
                reason: ClockReason::NoPolls { driver: "tun".to_owned() },
            });
            return Ok(());
        }
        if self.polls.is_none() {
            let rings = self.program_rings()?;
            let polls = watch_polls(&self.config(&rings), &rings, readings);
            if let Err(error) = &polls {
                self.news.details.push(Event::ClockReadPerPacket {
                    interface: site.label.clone(),
                    reason: ClockReason::EndUnseen { why: error.to_string() },
                });
            }
            self.polls = Some(polls.ok());
        }
        if let Some(Some(_)) = &self.polls {
            write_readings(config, readings);
            points.iter().for_each(|point| self.set_stamped_by_polls(*point));
        }
        Ok(())
    }

    pub(crate) fn set_stamped_by_polls(&mut self, point: u32) {
        self.points.set_stamps(point, self.options.recording.stamps);
    }

    /// Returns the interface blocks after the first `made`, with the filter and the snap length of these options, of
    /// which the kernel may carry out a part.
    pub fn interface_blocks(
        &self,
        sites: &[CaptureSite],
        made: usize,
        options: &CaptureOptions,
    ) -> Vec<pcapng::Interface> {
        let seeds = self.points.seeds(made).iter();
        seeds.map(|seed| self.interface_block(sites, *seed, options)).collect()
    }

    fn interface_block(
        &self,
        sites: &[CaptureSite],
        seed: InterfaceSeed,
        options: &CaptureOptions,
    ) -> pcapng::Interface {
        let point = &self.points[seed.point];
        let site = point.site.map(|site| &sites[site]);
        let interface = site.map(|site| &site.interface);
        let pod = site.and_then(|site| Some(site.pod.as_ref()?.comment()));
        let how = if point.mode.is_empty() { String::new() } else { format!(" ({})", point.mode) };
        let comments: Vec<String> = point.program.iter().cloned().chain(pod).collect();
        pcapng::Interface {
            link_type: point.link_type.or(interface.map(|interface| interface.link_type)).unwrap_or(LINKTYPE_ETHERNET),
            snaplen: options.snaplen.min(self.rings.geometry.max_captured()),
            name: Some(self.points.block_name(point)),
            // Wireshark passes the description to dissectors, and the comments not.
            description: Some(format!(
                "{}{how}, time stamps from the {} clock{}{}",
                point.hook,
                seed.clock,
                point.stamps.describe(),
                point.note.iter().chain(&comments).map(|more| format!(", {more}")).collect::<String>()
            )),
            comments,
            speed: interface.and_then(|interface| interface.speed_bits),
            mac: interface.and_then(|interface| interface.mac),
            hardware: interface.filter(|interface| interface.index != 0).map(|interface| interface.hardware_text()),
            os: Some(self.host.os.clone()),
            filter: options.filter.as_ref().map(|filter| filter.text()),
            ..pcapng::Interface::default()
        }
    }

    /// Returns the requested snap length, limited to the capacity of a ring segment.
    pub fn snaplen(&self) -> u32 {
        self.options.snaplen.min(self.rings.geometry.max_captured())
    }

    /// Returns the extent of records of a source without a program, with packets of this link type.
    pub(crate) fn extent(&self, snaplen: u32, link_type: u16) -> Extent {
        Extent { snaplen, headers_of: self.options.headers.then_some(link_type) }
    }

    /// Returns the offset of a member in a kernel structure, for programs that look for packets seen by others.
    pub(crate) fn offset(&self, structure: &str, member: &str) -> u32 {
        // Type information exists wherever the function does.
        if self.links == LINKS_NONE as u32 { 0 } else { offset(structure, member) }
    }

    /// Returns the offset of a member in a kernel structure, for programs that name processes.
    fn offset_for_process(&self, structure: &str, member: &str) -> u32 {
        match self.processes {
            None => 0,
            Some(_) => offset(structure, member),
        }
    }

    /// Hands the queued tasks to the warden in one batch.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.many.known.clear();
        self.undo.settle()
    }

    pub fn event(&mut self, event: Event) {
        self.news.notices.push(event);
    }
}

impl Assembly {
    /// Returns the part of a program's configuration that all taps share.
    pub fn config(&self, rings: &Rings) -> TapConfig {
        let geometry = rings.geometry();
        let limit = self.options.record_limit().unwrap_or(0);
        let (interval, tolerance) = self.options.rate_limit.map_or((0, 0), rate_times);
        let nowhere = PointIds { point: 0, slot: 0, interface: 0, hardware_interface: 0, verdict: false };
        let meta = self.options.recording.meta;
        let record = nowhere.record(0, Carries::Nothing);
        TapConfig {
            first: record,
            second: record,
            record_limit_low: limit as u32,
            record_limit_high: (limit >> 32) as u32,
            snaplen: self.snaplen(),
            headers: if self.options.headers { HEADERS_OF_ETHERNET as u32 } else { 0 },
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
            write_segments: u32::from(self.options.recording.segments),
            only_processes: u32::from(self.options.process.as_ref().is_some_and(ProcessPlan::filters)),
            write_socket: match self.options.process.as_ref().map(|plan| plan.detail) {
                Some(ProcessDetail::Full) => WRITE_FACTS as u32,
                Some(ProcessDetail::Plain) => WRITE_UNCERTAIN as u32,
                _ => 0,
            },
            socket_cookie_offset: self.offset_for_process("sock_common", "skc_cookie"),
            socket_listener_offset: self.offset_for_process("sock_common", "skc_listener"),
            socket_state_offset: self.offset_for_process("sock_common", "skc_state"),
            socket_group_offset: self.offset_for_process("sock", "sk_reuseport_cb"),
            group_program_offset: self.offset_for_process("sock_reuseport", "prog"),
            task_flags_offset: self.offset_for_process("task_struct", "flags"),
            task_process_offset: self.offset_for_process("task_struct", "tgid"),
            task_thread_offset: self.offset_for_process("task_struct", "pid"),
            task_files_offset: self.offset_for_process("task_struct", "files"),
            files_table_offset: self.offset_for_process("files_struct", "fdt"),
            table_length_offset: self.offset_for_process("fdtable", "max_fds"),
            table_list_offset: self.offset_for_process("fdtable", "fd"),
            sock_socket_offset: self.offset_for_process("sock", "sk_socket"),
            socket_file_offset: self.offset_for_process("socket", "file"),
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
            clock_is_tai: u32::from(self.rings.clock == ProgramClock::Tai),
            onward: ALL as u32,
            silent: 0,
            only_namespace: 0,
            wanted_verdicts: ALL as u32,
            nested_from: 0,
            shared_id: 0,
            first_address_low: 0,
            first_address_high: 0,
            first_page_low: 0,
            first_page_high: 0,
            names_receiver: 0,
            with_stack: 0,
            first_buffer_only: 0,
            names_dropper: 0,
            notes_segments: 0,
            links: self.links,
            head_offset: self.offset("xdp_buff", "data_hard_start"),
            data_offset: 0,
            mac_header_offset: 0,
            flags_offset: flags_offset(),
            step: 0,
            hook: 0,
            is_second: 0,
            traced_program: 0,
            grows: u32::from(geometry.grows()),
            locks: u32::from(rings.needs_lock()),
            one_buffer: u32::from(!probe::has_xdp_buffers()),
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
        self.many.across_namespaces =
            self.options.across_namespaces || sites.iter().any(|site| site.namespace.as_ref() != first);
    }

    /// Returns true if one program serves all interfaces that it can.
    pub(crate) fn serves_many(&self) -> bool {
        serves_many(&self.options, self.sites)
    }

    /// Generalises a program's configuration to many interfaces, and returns the key under which they share the program.
    pub(crate) fn for_many(
        &self,
        name: &str,
        config: &mut TapConfig,
        site: &CaptureSite,
        from: PacketStructure,
    ) -> Result<ProgramKey> {
        for record in [&mut config.first, &mut config.second] {
            record.account_offset = account_offset(0);
            record.rejected_offset = rejected_offset(0);
            record.point = 0;
            record.interface = 0;
            record.hardware_interface = 0;
        }
        let everywhere = self.many.across_namespaces && read_namespace(config, from);
        Ok(ProgramKey {
            name: name.to_owned(),
            config: config.to_bytes(),
            namespace: if everywhere { None } else { Some(site.namespace_number()?) },
            link_type: site.interface.link_type,
            netmask: broadcast_netmask(&self.options, site),
        })
    }

    /// Returns the table that a program reads.
    pub(crate) fn interface_table(&mut self, hook: &'static str, program_key: &ProgramKey) -> Result<Rc<Table>> {
        let key = (hook, program_key.namespace);
        if let Some(table) = self.many.tables.get(&key) {
            return Ok(Rc::clone(table));
        }
        let table = new_table()?;
        self.many.tables.insert(key, Rc::clone(&table));
        Ok(table)
    }

    /// Makes packets of an interface count at a point; `None` if they count at another point of this capture.
    pub(crate) fn add_to_table(
        &mut self,
        hook: &'static str,
        program_key: &ProgramKey,
        site: &CaptureSite,
        ids: &PointIds,
    ) -> Result<Option<TableEntry>> {
        let table = self.interface_table(hook, program_key)?;
        let namespace = match program_key.namespace {
            Some(_) => 0,
            None => site.namespace_number()?,
        };
        TableEntry::add(&table, namespace, site, ids)
    }
}

/// Writes the readings of the clock to a program's configuration.
fn write_readings(config: &mut TapConfig, readings: Readings) {
    config.clock_first = readings.first;
    config.clock_mask = readings.mask;
    config.clock_follows = readings.follow.into();
}

fn serves_many(options: &CaptureOptions, sites: usize) -> bool {
    let is_alike = options.time == TimeSource::System && !options.follows();
    is_alike && (options.joins || sites > PROGRAMS_APART)
}

/// Signals the end of polls, the kernel's tracepoint after each poll of a device, to the programs that write into these
/// rings, as long as the returned link is open.
fn watch_polls(config: &TapConfig, rings: &Rings, readings: Readings) -> Result<OwnedFd> {
    let what = "cannot see the end of polls";
    if probe::is_unwanted("napi_poll") {
        return Err(Error::failed(what, "disabled by TRAWL_WITHOUT"));
    }
    let mut config = *config;
    write_readings(&mut config, readings);
    let name = "trawl_poll_end";
    let ready = TapProgram::prepare(Taps::of(object::TAP_POLL), name, &config, &program_maps(rings, None))?;
    let loaded = ready.load(&LoadOptions::new(name, program::RAW_TRACEPOINT))?;
    link::attach_raw_tracepoint(loaded.as_fd(), "napi_poll").map_err(|e| Error::os(what, e))
}

/// Returns the offset of the flags in the kernel's XDP packet structure, or 0 if programs cannot read it.
fn flags_offset() -> u32 {
    if object::can_cast() { offset("xdp_buff", "flags") } else { 0 }
}

/// Returns the offset of a member in a kernel structure, or 0 if it is unknown.
pub(crate) fn offset(structure: &str, member: &str) -> u32 {
    let found = kernel_types::offset(structure, member);
    found.ok().flatten().unwrap_or(0)
}

/// Returns the method of recognising packets seen before, which requires several points and recorded identifiers.
fn links(options: &CaptureOptions, sites: usize) -> u32 {
    let adds_drops = options.drops.is_some() && options.tap != TapChoice::Drop;
    let several = sites > 1
        || adds_drops
        || options.with_tc
        || options.once.is_some()
        || options.direction == Some(Direction::Both);
    let links = match (options.follows(), several && options.recording.meta.id) {
        (true, _) => LINKS_FOLLOWED,
        (false, true) => LINKS_POINTS,
        (false, false) => LINKS_NONE,
    };
    if object::can_cast() { links as u32 } else { LINKS_NONE as u32 }
}

/// Returns the maps of a tap program, under the names in its source.
pub fn program_maps<'r>(rings: &'r Rings, chain: Option<BorrowedFd<'r>>) -> Vec<(&'static str, BorrowedFd<'r>)> {
    let mut maps: Vec<_> = rings.maps().map(|maps| maps.by_name()).unwrap_or_default();
    maps.extend(chain.map(|chain| (crate::capture_chain::MAP_NAME, chain)));
    maps
}
