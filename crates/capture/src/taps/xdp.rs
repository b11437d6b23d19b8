//! The `xdp` tap: trawl's own pass-through program on an interface without one, native if the driver supports it.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use trawl_attach::snapshot;
use trawl_bpf::layout::TapConfig;
use trawl_bpf::loading;
use trawl_bpf::object::{self, TapProgram, Taps};
use trawl_bpf::probe::KernelFeature;
use trawl_bpf::program::{self, LoadOptions};
use trawl_bpf::table::Table;
use trawl_bpf::{info, link};
use trawl_packet::pcapng::block::DIRECTION_INBOUND;
use trawl_ring::Rings;
use trawl_sys::netlink::{XdpAttachment, XdpMode};
use trawl_sys::netns::{self, run_maybe_in};
use trawl_sys::process::warden::Warden;
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result, errno};

use crate::assembly::{Assembly, program_maps};
use crate::capture_chain::{self, CaptureSeat, Seated};
use crate::capture_site::CaptureSite;
use crate::event::{Event, LeftBehind};
use crate::filter::Compile;
use crate::many::{self, PacketStructure, TableEntry, read_namespace};
use crate::point::{Carries, PointIds};
use crate::taps::facts::{Facts, Gives, MOST};
use crate::taps::tap::variant;
use crate::taps::watch::{BlindCause, Sight, attached_now};
use crate::{AttachedTap, Tap};
use trawl_plan::TapChoice;
use trawl_plan::options::{At, CaptureOptions, Mode, TimeSource};

pub const FACTS: Facts = Facts {
    choice: TapChoice::Xdp,
    variant: Some("own_program"),
    sees: "received packets, before the stack, at trawl's own XDP program",
    gives: Gives {
        received: true,
        entry: true,
        verdict: true,
        queue: true,
        hardware_time: true,
        process: true,
        ..Gives::NOTHING
    },
    needs: "an interface without an XDP program",
    features: &[KernelFeature::Xdp, KernelFeature::XdpLink, KernelFeature::MmapableArray],
    stamps_by_polls: true,
    ..MOST
};

/// Name of the program in messages.
const NAME: &str = "the capture's program";
/// Name of the hook in the tables of interfaces.
const HOOK: &str = "xdp";
const XDP_PASS: u32 = 2;

#[derive(Debug)]
pub struct Xdp;

impl Tap for Xdp {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn attach(&self, index: usize, sites: &[CaptureSite], assembly: &mut Assembly) -> Result<Box<dyn AttachedTap>> {
        let site = &sites[index];
        let rings = assembly.program_rings()?;
        // Without the lock, two captures that start at once would claim the same seat.
        let _lock = netns::lock(site.namespace.as_ref())?;
        let present = site.interface.xdp_attached(site.namespace.as_ref())?;
        if present.is_some() && assembly.options.time == TimeSource::Hardware {
            let what = format!("cannot read hardware time stamps on {}", site.label);
            return Err(Error::failed(
                what,
                "it runs another XDP program, and hardware time stamps require an interface without one",
            )
            .fix("leave out --time hw"));
        }
        if assembly.options.mode == Mode::Skb && assembly.options.time == TimeSource::Hardware {
            let what = format!("cannot read hardware time stamps on {} in skb mode", site.label);
            return Err(Error::usage(what, "only programs in native mode can read them").fix("leave out --mode skb"));
        }
        let joined = present.as_ref().map(|present| join(site, present)).transpose()?;
        let mut config = assembly.config(&rings);
        let unwanted = assembly.options.verdicts.as_ref().is_some_and(|set| !set.contains(u64::from(XDP_PASS)));
        if unwanted {
            assembly.event(Event::NoPacketMatchesVerdict { interface: site.label.clone() });
        }
        config.verdict = XDP_PASS;
        config.unwanted = u32::from(unwanted);
        let points = add_points(&mut config, index, site, assembly, &rings)?;
        let numbers: Vec<u32> = points.iter().map(|ids| ids.point).collect();
        assembly.stamp_by_polls(&mut config, site, &numbers)?;
        let shared = if assembly.serves_many() {
            shared_program(config, site, &rings, &points, joined.as_ref(), assembly)?
        } else {
            None
        };
        let is_shared = shared.is_some();
        let (seated, entry) = match shared {
            Some((seated, entry)) => (seated, Some(entry)),
            None => {
                let seated = own_program(config, site, &rings, joined.as_ref(), &assembly.options)?;
                (Rc::new(seated), None)
            }
        };
        let (link, mode) = match joined {
            Some(joined) => {
                assembly.event(Event::SharingHook { interface: site.label.clone() });
                (joined.link, joined.mode)
            }
            None => attach_program(site, &seated.program, assembly)?,
        };
        let link = Arc::new(link);
        numbers.into_iter().for_each(|point| assembly.points.set_mode(point, mode.name()));
        let hand_over = seated.seat.borrow().hand_over(&link, &seated.program);
        if is_shared {
            assembly.undo.watch_later(hand_over);
        } else {
            let leave = seated.leave_tasks()?;
            assembly.undo.warden.watch([hand_over].into_iter().chain(leave))?;
            // A device-bound program can only be the head of a chain.
            if assembly.options.time == TimeSource::System {
                seated.sit(&site.label)?;
            }
        }
        Ok(Box::new(AttachedXdp { site: site.clone(), mode, seated, link: Some(link), known: None, entry }))
    }
}

/// Returns the program for one interface alone.
fn own_program(
    mut config: TapConfig,
    site: &CaptureSite,
    rings: &Rings,
    joined: Option<&Joined>,
    options: &CaptureOptions,
) -> Result<Seated> {
    let seat = match joined {
        Some(joined) => CaptureSeat::after(joined.head, 1)?.ok_or_else(|| capture_ended(site))?,
        None => CaptureSeat::first(1)?,
    };
    config.chain_next = seat.next(0);
    if seat.is_for_many() {
        config.only_ifindex = site.interface.index;
        config.only_namespace = site.namespace_number()?;
        read_namespace(&mut config, PacketStructure::Xdp);
    }
    let program = load(&config, site, rings, &seat, None, options)?;
    Seated::new(seat, program)
}

/// Returns the program for all similar interfaces, loaded for the first of them, and the table entry. `None` if it
/// cannot serve: other captures that this one joins have chains of their own, or the interface is captured twice.
fn shared_program(
    mut config: TapConfig,
    site: &CaptureSite,
    rings: &Rings,
    points: &[PointIds],
    joined: Option<&Joined>,
    assembly: &mut Assembly,
) -> Result<Option<(Rc<Seated>, TableEntry)>> {
    let program_key = assembly.for_many(HOOK, &mut config, site, PacketStructure::Xdp)?;
    let Some(entry) = assembly.add_to_table(HOOK, &program_key, site, &points[0])? else {
        return Ok(None);
    };
    let known = assembly.many.xdp.iter().find(|(one, _)| *one == program_key);
    if let Some((_, seated)) = known {
        let serves = joined.is_none_or(|joined| seated.seat.borrow().is_of(joined.head));
        return Ok(serves.then(|| (Rc::clone(seated), entry)));
    }
    let seat = match joined {
        Some(joined) => CaptureSeat::after(joined.head, 1)?.ok_or_else(|| capture_ended(site))?,
        None => CaptureSeat::first_of_many()?,
    };
    if !seat.is_for_many() {
        return Ok(None);
    }
    config.chain_next = seat.next(0);
    let table = assembly.interface_table(HOOK, &program_key)?;
    let program = load(&config, site, rings, &seat, Some(&table), &assembly.options)?;
    let seated = Rc::new(Seated::new(seat, program)?);
    for task in seated.leave_tasks()? {
        assembly.undo.watch_later(task);
    }
    seated.sit(&site.label)?;
    assembly.many.xdp.push((program_key, Rc::clone(&seated)));
    Ok(Some((seated, entry)))
}

/// Another trawl's attachment, held open by this capture too.
struct Joined {
    head: u32,
    link: OwnedFd,
    mode: XdpMode,
}

fn join(site: &CaptureSite, present: &XdpAttachment) -> Result<Joined> {
    match link_of(present, site) {
        Some(link) if is_trawls(present) => Ok(Joined { head: present.program_id, link, mode: present.mode }),
        _ => Err(occupied(site, present)),
    }
}

/// Returns true if the attached program belongs to a trawl capture, which can be shared.
pub fn is_trawls(present: &XdpAttachment) -> bool {
    snapshot::name_of(present.program_id).is_some_and(|name| capture_chain::is_member(&name))
}

fn capture_ended(site: &CaptureSite) -> Error {
    Error::failed(format!("cannot join the capture on {}", site.label), "it ended just now").fix("try again")
}

/// Explains that a foreign program occupies the hook.
pub fn occupied(site: &CaptureSite, present: &XdpAttachment) -> Error {
    if let Some(error) = site.missing_right() {
        return error;
    }
    let name = snapshot::name_of(present.program_id).unwrap_or_else(|| "of unknown name".to_owned());
    Error::failed(
        format!("cannot attach to {}", site.label),
        format!(
            "the XDP program {name} (id {}, {} mode) is attached, and has no hook map",
            present.program_id,
            present.mode.name()
        ),
    )
    .fix(format!("{}; or capture after XDP with --tap packet", site.with_hooks(present.program_id).advice()))
}

fn link_of(present: &XdpAttachment, site: &CaptureSite) -> Option<OwnedFd> {
    snapshot::link_of(site.interface.index, *present)
}

/// Attaches natively if no mode is requested, and in skb mode if native mode is refused.
fn attach_program(site: &CaptureSite, program: &OwnedFd, assembly: &mut Assembly) -> Result<(OwnedFd, XdpMode)> {
    let (link, attached) = match assembly.options.time {
        // The kernel runs a program for one device in its driver alone.
        TimeSource::Hardware => {
            hold(site, program, Some(XdpMode::Native)).map_err(|e| no_hardware_time(site, e.why()))?
        }
        TimeSource::System => hold(site, program, assembly.options.mode.asked())?,
    };
    if let Some(refused) = attached.instead_of {
        let error = refused.explain(&site.to_attach()?, NAME);
        assembly.event(Event::SkbMode { interface: site.label.clone(), why: error.why().to_owned() });
    }
    Ok((link, attached.mode))
}

fn hold(site: &CaptureSite, program: &OwnedFd, mode: Option<XdpMode>) -> Result<(OwnedFd, trawl_attach::Attached)> {
    let to = site.to_attach()?;
    trawl_attach::hold(&to, program.as_fd(), mode).map_err(|refused| {
        let error = refused.explain(&to, NAME);
        match error.how_to_fix() {
            Some(_) => error,
            None => error.fix("try --tap packet"),
        }
    })
}

fn xdp_options(name: &str) -> LoadOptions<'_> {
    LoadOptions {
        expected_attach_type: program::ATTACH_XDP,
        flags: program::HAS_FRAGS,
        ..LoadOptions::new(name, program::XDP)
    }
}

fn add_points(
    config: &mut TapConfig,
    index: usize,
    site: &CaptureSite,
    assembly: &mut Assembly,
    rings: &Arc<Rings>,
) -> Result<Vec<PointIds>> {
    let at = assembly.options.at.unwrap_or(At::Exit);
    let mut points = Vec::new();
    if at.entry() && at.exit() {
        assembly.points.reserve(2)?;
    }
    if at.entry() {
        let ids = assembly.add_point(index, site, rings, &FACTS, "xdp entry")?;
        config.first = ids.record(DIRECTION_INBOUND, Carries::Nothing);
        points.push(ids);
    }
    if at.exit() {
        let ids = assembly.add_point(index, site, rings, &FACTS, "xdp exit")?;
        let record = ids.record(DIRECTION_INBOUND, Carries::Xdp(XDP_PASS));
        if at.entry() {
            config.second = record;
        } else {
            config.first = record;
        }
        points.push(ids);
    }
    Ok(points)
}

fn load(
    config: &TapConfig,
    site: &CaptureSite,
    rings: &Rings,
    seat: &CaptureSeat,
    interfaces: Option<&Table>,
    options: &CaptureOptions,
) -> Result<OwnedFd> {
    let twice = if options.at == Some(At::Both) { "2" } else { "" };
    let hardware = options.time == TimeSource::Hardware;
    let filter = options.filter.as_ref();
    let blocks = filter
        .map(|filter| filter.xdp_blocks(&site.compiler_options(config.snaplen)?, options.follows()))
        .transpose()?;
    let names = options.process.is_some();
    // The quick version decides before the interface is known, and knows no process.
    let quickly = interfaces.is_none() && !names;
    let filtered = blocks.as_ref().map_or("", |blocks| blocks.suffix(quickly));
    let does = [(names, "p"), (interfaces.is_some(), "m"), (hardware && interfaces.is_none(), "h"), (true, filtered)];
    let name = variant(&format!("trawl_xdp{twice}"), &does);
    let mut maps = program_maps(rings, Some(seat.map()));
    maps.extend(interfaces.map(|table| (many::MAP_NAME, table.as_fd())));
    let mut ready = TapProgram::prepare(Taps::of(object::TAP_XDP), &name, config, &maps)?;
    if let Some(blocks) = &blocks {
        blocks.put_into(&mut ready, quickly)?;
    }
    let mut how = xdp_options(&name);
    if !hardware {
        return ready.load(&how);
    }
    if let Some(why) = KernelFeature::XdpMetadata.probe().why() {
        return Err(no_hardware_time(site, why));
    }
    how.flags |= program::DEVICE_BOUND;
    how.ifindex = site.interface.index;
    let instructions = ready.instructions();
    run_maybe_in(site.namespace.as_ref(), || loading::load(instructions, &how))?
        .map_err(|e| no_hardware_time(site, &e.to_string()))
}

fn no_hardware_time(site: &CaptureSite, why: &str) -> Error {
    let what = format!("cannot read hardware time stamps on {}", site.label);
    Error::failed(what, why).fix("leave out --time hw")
}

#[derive(Debug)]
struct AttachedXdp {
    site: CaptureSite,
    mode: XdpMode,
    seated: Rc<Seated>,
    link: Option<Arc<OwnedFd>>,
    /// Another capture's program at the head of the chain, at the last check.
    known: Option<u32>,
    /// Table entry, if the program serves many interfaces.
    entry: Option<TableEntry>,
}

impl AttachedTap for AttachedXdp {
    fn detach(&mut self) -> Vec<Event> {
        let Some(link) = self.link.take() else {
            return Vec::new();
        };
        let own = self.seated.id;
        let is_head = info::link(link.as_fd()).is_ok_and(|about| own == about.program);
        let mut seat = self.seated.seat.borrow_mut();
        let result = match seat.program_after(0) {
            _ if !is_head => Ok(()),
            Some(next) => link::replace_program(link.as_fd(), next.as_fd(), self.seated.program.as_fd()),
            // Closing is not enough: the warden holds the link as well.
            None => link::detach(link.as_fd()),
        };
        match self.entry.take() {
            // The seat is shared with the other interfaces.
            Some(entry) => std::mem::drop(entry),
            None => seat.leave(),
        }
        match result {
            Ok(()) => Vec::new(),
            // The link was removed together with its interface.
            Err(error) if matches!(error.raw_os_error(), Some(errno::ENOLINK | errno::ENODEV)) => Vec::new(),
            Err(error) => vec![Event::NotUndone { what: LeftBehind::XdpHook, why: error.to_string() }],
        }
    }

    fn needed_capabilities(&self) -> Capabilities {
        crate::to_attach_again(&self.site)
    }

    fn watch(&mut self, warden: &mut Warden) -> Sight {
        let Some(link) = &self.link else {
            return Sight::Clear;
        };
        let about = info::link(link.as_fd());
        match about {
            Ok(about) if about.ifindex != 0 && self.is_ours(about.program) => Sight::Clear,
            _ => self.attach_again(warden),
        }
    }
}

impl AttachedXdp {
    fn is_ours(&mut self, id: u32) -> bool {
        if self.seated.id == id || self.known == Some(id) {
            return true;
        }
        self.known = self.seated.seat.borrow().holds(id).then_some(id);
        self.known.is_some()
    }

    /// Attaches again after the link was detached or given another program. The first capture that notices makes the
    /// link for all captures here.
    fn attach_again(&mut self, warden: &mut Warden) -> Sight {
        let cause = BlindCause::LinkDetached;
        let _lock = match netns::lock(self.site.namespace.as_ref()) {
            Ok(lock) => lock,
            Err(error) => return Sight::Lost(cause, Some(error.to_string())),
        };
        let Some(present) = attached_now(&self.site) else {
            return Sight::Clear;
        };
        let link = match present {
            Some(present) if self.is_ours(present.program_id) => {
                link_of(&present, &self.site).ok_or_else(|| "its link is gone".to_owned())
            }
            Some(present) => return Sight::Lost(BlindCause::replaced_by(&present), None),
            None => {
                let head = self.seated.seat.borrow().head();
                let head = head.as_ref().unwrap_or(&self.seated.program);
                hold(&self.site, head, Some(self.mode)).map(|(link, _)| link).map_err(|e| e.to_string())
            }
        };
        let mut watched = |link: OwnedFd| {
            let link = Arc::new(link);
            let seat = self.seated.seat.borrow();
            warden.watch([seat.hand_over(&link, &self.seated.program)])?;
            Ok::<_, Error>(link)
        };
        match link.and_then(|link| watched(link).map_err(|e| e.to_string())) {
            Ok(link) => {
                self.link = Some(link);
                Sight::Restored(cause)
            }
            Err(why) => Sight::Lost(cause, Some(why)),
        }
    }
}

impl Drop for AttachedXdp {
    fn drop(&mut self) {
        self.detach();
    }
}
