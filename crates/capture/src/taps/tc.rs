//! The `tc` tap: packets that the stack sends and receives, by tcx, or by the clsact qdisc on kernels without tcx and
//! at many interfaces.

mod clsact;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use trawl_bpf::layout::{HEADERS_OF_IP, TapConfig};
use trawl_bpf::link::{self, TcxPosition};
use trawl_bpf::object::{self, TapProgram, Taps};
use trawl_bpf::program::{self, LoadOptions};
use trawl_bpf::{info, probe};
use trawl_filter::lower::Target;
use trawl_packet::pcapng::block::{LINKTYPE_ETHERNET, LINKTYPE_RAW};
use trawl_ring::Rings;
use trawl_sys::netlink::tc::Direction as Side;
use trawl_sys::netns::run_maybe_in;
use trawl_sys::process::warden::Warden;
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result, errno};

use crate::assembly::{Assembly, offset, program_maps};
use crate::capture_site::CaptureSite;
use crate::event::{Event, LeftBehind};
use crate::filter::Block;
use crate::filter::Compile;
use crate::many::{PacketStructure, ProgramKey, TableEntry};
use crate::point::Carries;
use crate::taps::facts::{Facts, Gives, MOST};
use crate::taps::tap::variant;
use crate::taps::watch::{BlindCause, Sight};
use crate::{AttachedTap, Tap};
use clsact::ClsactFilter;
use trawl_bpf::probe::KernelFeature;
use trawl_plan::TapChoice;
use trawl_plan::options::{Direction, ProcessPlan, TimeSource};

pub const FACTS: Facts = Facts {
    choice: TapChoice::Tc,
    sees: "received and sent packets, between driver and stack",
    gives: Gives { received: true, sent: true, queue: true, hardware_time: true, process: true, ..Gives::NOTHING },
    needs: "tcx, or clsact on kernels before 6.6",
    features: &[KernelFeature::Bpf, KernelFeature::MmapableArray],
    stamps_by_polls: true,
    ..MOST
};

const NAME: &str = "trawl_tc";
/// Verdict of trawl's own program: continue with the next program.
const TC_ACT_UNSPEC: i32 = -1;

#[derive(Debug)]
pub enum Tc {
    /// For the requested directions.
    Asked,
    /// For sent packets alone, next to an XDP tap, which sees received ones.
    Sent,
}

impl Tap for Tc {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn attach(&self, index: usize, sites: &[CaptureSite], assembly: &mut Assembly) -> Result<Box<dyn AttachedTap>> {
        let site = &sites[index];
        let options = &assembly.options;
        // Of a loopback packet, the sent copy names the sender's process, and the received copy the receiver's.
        let both_ends = options.process.as_ref().is_some_and(ProcessPlan::filters);
        let direction = match (self, options.direction) {
            (Self::Sent, _) => Direction::Out,
            // Packets sent on the loopback interface are received there too, and would be recorded twice.
            (Self::Asked, None) if site.interface.loopback && !both_ends => Direction::In,
            (Self::Asked, direction) => direction.unwrap_or(Direction::Both),
        };
        let mut tap = AttachedTc { site: site.clone(), sides: Vec::new(), clsact: Vec::new(), entries: Vec::new() };
        if direction.includes_in() {
            tap.add(Side::Ingress, index, site, assembly)?;
        }
        if direction.includes_out() {
            tap.add(Side::Egress, index, site, assembly)?;
        }
        Ok(Box::new(tap))
    }
}

/// Returns true if the send queue is unknown at tc; with only one queue it is known.
fn queue_is_chosen_later(site: &CaptureSite) -> bool {
    site.interface.tx_queues > 1
}

/// Number of interfaces above which captures use clsact filters.
const MOST_LINKS: usize = 16;

/// Returns the number of foreign tcx programs on a side of an interface.
fn tcx_programs(site: &CaptureSite, side: Side) -> Result<usize> {
    run_maybe_in(site.namespace.as_ref(), || {
        let found = probe::attached::tcx(site.interface.index, side == Side::Ingress);
        found.map_or(0, |programs| programs.len())
    })
}

/// Inserts the filter's instructions, which are the same for both sides. Returns the blocks, which must live until
/// the program is loaded.
fn insert_filter(site: &CaptureSite, assembly: &Assembly, program: &mut TapProgram) -> Result<Vec<Block>> {
    let Some(filter) = &assembly.options.filter else {
        return Ok(Vec::new());
    };
    let options = site.compiler_options(assembly.snaplen())?;
    let mut blocks = vec![filter.block(&options, &Target::tc())?];
    program.filter(&blocks[0])?;
    if program.has_frame_filter() {
        let block = filter.frame_block(&options)?;
        program.frame_filter(&block)?;
        blocks.push(block);
    }
    Ok(blocks)
}

/// Makes a program look for the Ethernet header of packets that have lost it: those that generic XDP copied, since
/// Linux 6.9.
fn find_header(config: &mut TapConfig) {
    // Kernels with such packets have both features; without far jumps, the kernel may refuse the third copy of a
    // long filter.
    if !object::can_cast() || !probe::has_far_jumps() {
        return;
    }
    config.head_offset = offset("sk_buff", "head");
    config.data_offset = offset("sk_buff", "data");
    config.mac_header_offset = offset("sk_buff", "mac_header");
}

#[derive(Debug)]
struct AttachedTc {
    site: CaptureSite,
    sides: Vec<TcxSide>,
    clsact: Vec<ClsactFilter>,
    /// Table entries by which programs for many interfaces count packets here.
    entries: Vec<TableEntry>,
}

/// Recipe for a side's program.
struct Recipe<'a> {
    name: String,
    config: TapConfig,
    rings: &'a Rings,
    /// Key under which other interfaces share the program.
    program_key: Option<ProgramKey>,
    hook: &'static str,
}

impl Recipe<'_> {
    /// Loads the program with this attach type, or returns the one that other interfaces share.
    fn load(&self, attach_type: u32, site: &CaptureSite, assembly: &mut Assembly) -> Result<Arc<OwnedFd>> {
        let known = assembly
            .many
            .tc
            .iter()
            .find(|(one, of_type, _)| *of_type == attach_type && Some(one) == self.program_key.as_ref());
        if let Some((_, _, program)) = known {
            return Ok(Arc::clone(program));
        }
        let table = match &self.program_key {
            Some(program_key) => Some(assembly.interface_table(self.hook, program_key)?),
            None => None,
        };
        let mut maps = program_maps(self.rings, None);
        maps.extend(table.iter().map(|table| (crate::many::MAP_NAME, table.as_fd())));
        let mut ready = TapProgram::prepare(Taps::of(object::TAP_TC), &self.name, &self.config, &maps)?;
        let _blocks = insert_filter(site, assembly, &mut ready)?;
        let program = Arc::new(ready.load(&LoadOptions {
            expected_attach_type: attach_type,
            ..LoadOptions::new(&self.name, program::SCHED_CLS)
        })?);
        if let Some(program_key) = &self.program_key {
            let shared = (program_key.clone(), attach_type, Arc::clone(&program));
            assembly.many.tc.push(shared);
        }
        Ok(program)
    }
}

/// A program on one of the tcx hooks.
#[derive(Debug)]
struct TcxSide {
    link: OwnedFd,
    program: Arc<OwnedFd>,
    attach_type: u32,
    position: TcxPosition,
}

impl TcxSide {
    fn is_attached(&self) -> bool {
        let own = program::id(&self.program);
        info::link(self.link.as_fd())
            .is_ok_and(|about| about.ifindex != 0 && own.as_ref().is_ok_and(|own| *own == about.program))
    }
}

fn attach_tcx(
    site: &CaptureSite,
    program: &OwnedFd,
    attach_type: u32,
    position: TcxPosition,
) -> Result<std::io::Result<OwnedFd>> {
    run_maybe_in(site.namespace.as_ref(), || {
        link::attach_tcx(program.as_fd(), site.interface.index, attach_type, position)
    })
}

impl AttachedTc {
    fn add(&mut self, side: Side, index: usize, site: &CaptureSite, assembly: &mut Assembly) -> Result<()> {
        if side == Side::Egress
            && queue_is_chosen_later(site)
            && let Some(queue) = assembly.options.queue
        {
            return Err(Error::usage(
                format!("cannot choose the packets that {} sends by queue {queue} with the tc tap", site.label),
                "the kernel chooses the queue after tc",
            )
            .fix("use --tap packet, or -Q in for received packets"));
        }
        let rings = assembly.program_rings()?;
        let (hook, flags, attach_type, position) = match side {
            // First on ingress and last on egress: nearest to the wire.
            Side::Ingress => ("tc ingress", 1, program::ATTACH_TCX_INGRESS, TcxPosition::First),
            Side::Egress => ("tc egress", 2, program::ATTACH_TCX_EGRESS, TcxPosition::Last),
        };
        let ids = assembly.add_point(index, site, &rings, &FACTS, hook)?;
        let mut config = assembly.config(&rings);
        config.first = ids.record(flags, Carries::Tc(TC_ACT_UNSPEC));
        config.verdict = TC_ACT_UNSPEC as u32;
        config.head_offset = assembly.offset("sk_buff", "head");
        if assembly.options.headers && site.interface.link_type == LINKTYPE_RAW {
            config.headers = HEADERS_OF_IP as u32;
        }
        match side {
            Side::Ingress => {
                config.queue_offset = site.interface.received_queue_offset();
                if site.interface.link_type == LINKTYPE_ETHERNET {
                    find_header(&mut config);
                }
                assembly.stamp_by_polls(&mut config, site, &[ids.point])?;
            }
            // Sockets send packets outside of polls.
            Side::Egress if queue_is_chosen_later(site) => config.write_queue = 0,
            Side::Egress => {}
        }
        let hardware = assembly.options.time == TimeSource::Hardware;
        let filtered = assembly.options.filter.is_some();
        let names = assembly.processes.is_some();
        let mut recipe = Recipe {
            name: variant(NAME, &[(names, "p"), (hardware, "h"), (filtered, "f")]),
            config,
            rings: &rings,
            program_key: None,
            hook,
        };
        if assembly.serves_many() {
            let name = variant(NAME, &[(names, "p"), (true, "m"), (filtered, "f")]);
            let program_key = assembly.for_many(&name, &mut config, site, PacketStructure::SocketBuffer)?;
            if let Some(entry) = assembly.add_to_table(hook, &program_key, site, &ids)? {
                self.entries.push(entry);
                recipe.name = name;
                recipe.config = config;
                recipe.program_key = Some(program_key);
            }
        }
        let what = || format!("cannot attach to {} at {hook}", site.label);
        // The kernel needs 10 ms to make a tcx link and as long to end it, one link after the other. Foreign tcx programs
        // run before any filter, so tcx is used next to them nevertheless.
        let prefers_clsact =
            recipe.program_key.is_some() && assembly.sites > MOST_LINKS && tcx_programs(site, side)? == 0;
        let tcx = if prefers_clsact || probe::is_unwanted("tcx") {
            Err((Some(errno::EOPNOTSUPP), Error::failed(what(), "disabled by TRAWL_WITHOUT")))
        } else {
            recipe.load(attach_type, site, assembly).map_err(|e| (e.errno(), e)).and_then(|program| {
                let link = attach_tcx(site, &program, attach_type, position)
                    .map_err(|e| (None, e))?
                    .map_err(|e| (e.raw_os_error(), Error::os(what(), e)))?;
                Ok(TcxSide { link, program, attach_type, position })
            })
        };
        match tcx {
            Ok(side) => {
                self.sides.push(side);
                assembly.points.set_mode(ids.point, "tcx");
                Ok(())
            }
            // Kernels before 6.6 do not know this link, and some of them do not know the attach type.
            Err((Some(errno::EINVAL | errno::EOPNOTSUPP), _)) => {
                let program = recipe.load(0, site, assembly)?;
                let name = recipe.name.as_str();
                let filter = match &recipe.program_key {
                    Some(_) => {
                        assembly.undo_filters_of(&program, site)?;
                        ClsactFilter::add_watched(site, side, &program, name)?
                    }
                    None => ClsactFilter::add(site, side, &program, name, &mut assembly.undo.warden)?,
                };
                self.clsact.push(filter);
                assembly.points.set_mode(ids.point, "clsact");
                Ok(())
            }
            Err((Some(errno::EPERM), error)) => Err(error.fix("this requires root (CAP_BPF and CAP_NET_ADMIN)")),
            Err((_, error)) => Err(error),
        }
    }
}

impl AttachedTap for AttachedTc {
    fn detach(&mut self) -> Vec<Event> {
        self.entries.clear();
        self.sides.clear();
        // In reverse order: the qdisc came with the first filter.
        self.clsact
            .drain(..)
            .rev()
            .filter_map(|filter| filter.remove().err())
            .map(|error| Event::NotUndone { what: LeftBehind::TcFilter, why: error.to_string() })
            .collect()
    }

    fn needed_capabilities(&self) -> Capabilities {
        crate::to_attach_again(&self.site)
    }

    fn is_announced(&self) -> bool {
        self.sides.is_empty() && !self.clsact.is_empty()
    }

    fn watch(&mut self, warden: &mut Warden) -> Sight {
        let is_healthy = self.clsact.is_empty() && self.sides.iter().all(TcxSide::is_attached);
        if is_healthy || !self.site.interface.is_there(self.site.namespace.as_ref()) {
            return Sight::Clear;
        }
        let mut sight = Sight::Clear;
        for side in self.sides.iter_mut().filter(|side| !side.is_attached()) {
            let cause = BlindCause::LinkDetached;
            sight = match attach_tcx(&self.site, &side.program, side.attach_type, side.position) {
                Ok(Ok(link)) => {
                    side.link = link;
                    Sight::Restored(cause)
                }
                Ok(Err(error)) => return Sight::Lost(cause, Some(error.to_string())),
                Err(error) => return Sight::Lost(cause, Some(error.to_string())),
            };
        }
        for filter in &mut self.clsact {
            match filter.put_back(warden) {
                Ok(false) => {}
                Ok(true) => sight = Sight::Restored(BlindCause::FilterRemoved),
                Err(error) => {
                    return Sight::Lost(BlindCause::FilterRemoved, Some(error.to_string()));
                }
            }
        }
        sight
    }
}

impl Drop for AttachedTc {
    fn drop(&mut self) {
        self.detach();
    }
}
