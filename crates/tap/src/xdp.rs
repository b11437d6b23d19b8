//! The `xdp` tap: trawl's own pass-through program on an interface that has none, native where the driver can.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use trawl_attach::look;
use trawl_kernel::bpf::link;
use trawl_kernel::bpf::object::{self, TapProgram};
use trawl_kernel::bpf::program::LoadOptions;
use trawl_kernel::bpf::{info, program};
use trawl_kernel::layout::TapConfig;
use trawl_kernel::netlink::{XdpAttachment, XdpMode};
use trawl_kernel::netns::{self, run_maybe_in};
use trawl_kernel::privilege::Capabilities;
use trawl_kernel::ring::Rings;
use trawl_kernel::warden::{self, Task, Warden};
use trawl_kernel::{Error, Result, errno};

use crate::assembly::{Assembly, Carries, program_maps};
use crate::capture_chain::{self, CaptureSeat};
use crate::capture_site::CaptureSite;
use crate::notice::{Left, Notice};
use crate::options::{At, Mode, Options, TimeSource};
use crate::table::{self, Facts};
use crate::watch::{Cause, Sight, attached_now};
use crate::{Attached, Tap};

/// The program, in messages.
const NAME: &str = "the capture's program";
const XDP_PASS: u32 = 2;
const DIRECTION_INBOUND: u32 = 1;

#[derive(Debug)]
pub struct Xdp;

impl Tap for Xdp {
    fn facts(&self) -> &'static Facts {
        &table::XDP
    }

    fn attach(
        &self,
        index: usize,
        site: &CaptureSite,
        assembly: &mut Assembly,
    ) -> Result<Box<dyn Attached>> {
        let rings = assembly.program_rings()?;
        // Two that come at once would take the same seat.
        let _lock = netns::lock(site.namespace.as_ref())?;
        let present = site.interface.xdp_attached(site.namespace.as_ref())?;
        if present.is_some() && assembly.options.time == TimeSource::Hardware {
            let what = format!("cannot read hardware time stamps on {}", site.label);
            return Err(Error::failed(
                what,
                "another XDP program is on it, and this takes the hook for itself",
            )
            .fix(crate::fix::Fix::NoHardwareTime));
        }
        if assembly.options.mode == Mode::Skb && assembly.options.time == TimeSource::Hardware {
            let what = format!(
                "cannot read hardware time stamps on {} in skb mode",
                site.label
            );
            return Err(Error::usage(what, "only drivers have them").fix(crate::fix::Fix::NotSkb));
        }
        let joined = present
            .as_ref()
            .map(|present| join(site, present))
            .transpose()?;
        let seat = match &joined {
            Some(joined) => CaptureSeat::behind(joined.head, 1)?.ok_or_else(|| moved_on(site))?,
            None => CaptureSeat::first(1)?,
        };
        let mut config = assembly.config(&rings);
        let unwanted = assembly
            .options
            .verdicts
            .as_ref()
            .is_some_and(|set| !set.contains(u64::from(XDP_PASS)));
        if unwanted {
            assembly.notice(Notice::NoPacketMatchesVerdict {
                interface: site.label.clone(),
            });
        }
        config.verdict = XDP_PASS;
        config.unwanted = u32::from(unwanted);
        config.chain_next = seat.next(0);
        let points = add_points(&mut config, index, site, assembly, &rings)?;
        if assembly.options.mode != Mode::Skb {
            assembly.stamp_by_polls(&mut config, site, &points)?;
        }
        let program = load(&config, site, &rings, &seat, &assembly.options)?;
        let (link, mode) = match joined {
            Some(joined) => {
                assembly.notice(Notice::SharingHook {
                    interface: site.label.clone(),
                });
                (joined.link, joined.mode)
            }
            None => attach_program(site, &program, assembly)?,
        };
        points
            .into_iter()
            .for_each(|point| assembly.set_mode(point, mode.name()));
        let hand_over = Task::HandOver {
            link: warden::hold(link.as_fd())?,
            own: warden::hold(program.as_fd())?,
            successor: seat.successor(0)?,
        };
        let leave = seat.leave_tasks(std::slice::from_ref(&program))?;
        assembly
            .warden
            .watch([hand_over].into_iter().chain(leave))?;
        let mut tap = AttachedXdp {
            site: site.clone(),
            mode,
            seat,
            program,
            link: Some(link),
            known: None,
        };
        // A program that is bound to its device cannot stand in a chain, only at its head.
        if assembly.options.time == TimeSource::System {
            let programs = std::slice::from_ref(&tap.program);
            tap.seat
                .sit(programs)
                .map_err(|e| Error::os(format!("cannot join the capture on {}", site.label), e))?;
        }
        Ok(Box::new(tap))
    }
}

/// Another trawl's attachment, held open by us too.
struct Joined {
    head: u32,
    link: OwnedFd,
    mode: XdpMode,
}

fn join(site: &CaptureSite, present: &XdpAttachment) -> Result<Joined> {
    match link_of(present, site) {
        Some(link) if is_trawls(present) => Ok(Joined {
            head: present.program_id,
            link,
            mode: present.mode,
        }),
        _ => Err(occupied(site, present)),
    }
}

/// Whether what is attached belongs to a trawl capture, which another one can share.
pub fn is_trawls(present: &XdpAttachment) -> bool {
    look::name_of(present.program_id).is_some_and(|name| capture_chain::is_member(&name))
}

fn moved_on(site: &CaptureSite) -> Error {
    Error::failed(
        format!("cannot join the capture on {}", site.label),
        "it ended just now",
    )
    .fix("try again")
}

/// A program of somebody else's is in the way.
pub fn occupied(site: &CaptureSite, present: &XdpAttachment) -> Error {
    if let Some(error) = site.may_not_look() {
        return error;
    }
    let name = look::name_of(present.program_id).unwrap_or_else(|| "of unknown name".to_owned());
    Error::failed(
        format!("cannot attach to {}", site.label),
        format!(
            "the XDP program {name} (id {}, {} mode) is on it, and it has no hook map",
            present.program_id,
            present.mode.name()
        ),
    )
    .fix(crate::fix::Fix::HooksAndTap {
        reload: site.with_hooks(present.program_id),
    })
}

fn link_of(present: &XdpAttachment, site: &CaptureSite) -> Option<OwnedFd> {
    look::link_of(site.interface.index, *present)
}

/// Natively if no mode is asked for, and in skb mode where that is refused.
fn attach_program(
    site: &CaptureSite,
    program: &OwnedFd,
    assembly: &mut Assembly,
) -> Result<(OwnedFd, XdpMode)> {
    let (link, attached) = hold(site, program, assembly.options.mode.asked())?;
    if let Some(refused) = attached.instead_of {
        let error = refused.explain(&site.to_attach()?, NAME);
        assembly.notice(Notice::SkbMode {
            interface: site.label.clone(),
            why: error.why().to_owned(),
        });
    }
    Ok((link, attached.mode))
}

fn hold(
    site: &CaptureSite,
    program: &OwnedFd,
    mode: Option<XdpMode>,
) -> Result<(OwnedFd, trawl_attach::Attached)> {
    let to = site.to_attach()?;
    trawl_attach::hold(&to, program.as_fd(), mode).map_err(|refused| {
        let error = refused.explain(&to, NAME);
        match error.advice() {
            Some(_) => error,
            None => error.fix(crate::fix::Fix::UsePacket),
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
) -> Result<Vec<u32>> {
    let at = assembly.options.at.unwrap_or(At::Exit);
    let mut points = Vec::new();
    if at.entry() {
        let ids = assembly.add_point(index, site, rings, "xdp", "xdp entry")?;
        config.first = ids.record(DIRECTION_INBOUND, Carries::Nothing);
        points.push(ids.point);
    }
    if at.exit() {
        let ids = assembly.add_point(index, site, rings, "xdp", "xdp exit")?;
        let record = ids.record(DIRECTION_INBOUND, Carries::Xdp(XDP_PASS));
        if at.entry() {
            config.second = record;
        } else {
            config.first = record;
        }
        points.push(ids.point);
    }
    Ok(points)
}

fn load(
    config: &TapConfig,
    site: &CaptureSite,
    rings: &Rings,
    seat: &CaptureSeat,
    options: &Options,
) -> Result<OwnedFd> {
    let twice = if options.at == Some(At::Both) {
        "2"
    } else {
        ""
    };
    let hardware = options.time == TimeSource::Hardware;
    let filter = options.filter.as_ref();
    let blocks = filter
        .map(|filter| filter.xdp_blocks(site, config.snaplen))
        .transpose()?;
    let filtered = blocks.as_ref().map_or("", |blocks| blocks.suffix(true));
    let name = match (hardware, filtered) {
        (false, "") => format!("trawl_xdp{twice}"),
        (false, filtered) => format!("trawl_xdp{twice}_{filtered}"),
        (true, filtered) => format!("trawl_xdp{twice}_h{filtered}"),
    };
    let maps = program_maps(rings, Some(seat.map()));
    let mut ready = TapProgram::prepare(object::XDP, &name, config, &maps)?;
    if let Some(blocks) = &blocks {
        blocks.put_into(&mut ready, true)?;
    }
    let mut how = xdp_options(&name);
    if !hardware {
        return ready.load(&how);
    }
    how.flags |= program::DEVICE_BOUND;
    how.ifindex = site.interface.index;
    let instructions = ready.instructions();
    run_maybe_in(site.namespace.as_ref(), || {
        program::load(instructions, &how)
    })?
    .map_err(|e| {
        let what = format!("cannot read hardware time stamps on {}", site.label);
        Error::failed(what, e).fix(crate::fix::Fix::NoHardwareTime)
    })
}

#[derive(Debug)]
struct AttachedXdp {
    site: CaptureSite,
    mode: XdpMode,
    seat: CaptureSeat,
    program: OwnedFd,
    link: Option<OwnedFd>,
    /// Another capture's program at the head of the chain, when it was last looked at.
    known: Option<u32>,
}

impl Attached for AttachedXdp {
    fn detach(&mut self) -> Vec<Notice> {
        let Some(link) = self.link.take() else {
            return Vec::new();
        };
        let own = program::id(&self.program);
        let is_head =
            info::link(link.as_fd()).is_ok_and(|about| own.is_ok_and(|own| own == about.program));
        let result = match self.seat.program_behind(0) {
            _ if !is_head => Ok(()),
            Some(next) => link::replace_program(link.as_fd(), next.as_fd(), self.program.as_fd()),
            // Not by closing alone: the warden holds the link as well.
            None => link::detach(link.as_fd()),
        };
        self.seat.leave();
        match result {
            Ok(()) => Vec::new(),
            // It went away together with its interface.
            Err(error) if matches!(error.raw_os_error(), Some(errno::ENOLINK | errno::ENODEV)) => {
                Vec::new()
            }
            Err(error) => vec![Notice::NotUndone {
                what: Left::XdpHook,
                why: error.to_string(),
            }],
        }
    }

    fn keeps(&self) -> Option<Capabilities> {
        Some(crate::to_attach_again(&self.site))
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
        if program::id(&self.program).is_ok_and(|own| own == id) || self.known == Some(id) {
            return true;
        }
        self.known = self.seat.holds(id).then_some(id);
        self.known.is_some()
    }

    /// The link has another program, or it is detached: the one that all captures here share is made anew by the first
    /// that notices.
    fn attach_again(&mut self, warden: &mut Warden) -> Sight {
        let cause = Cause::LinkDetached;
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
            Some(present) => return Sight::Lost(Cause::replaced_by(&present), None),
            None => {
                let head = self.seat.head();
                let head = head.as_ref().unwrap_or(&self.program);
                hold(&self.site, head, Some(self.mode))
                    .map(|(link, _)| link)
                    .map_err(|e| e.to_string())
            }
        };
        let mut watched = |link: OwnedFd| {
            let hand_over = Task::HandOver {
                link: warden::hold(link.as_fd())?,
                own: warden::hold(self.program.as_fd())?,
                successor: self.seat.successor(0)?,
            };
            warden.watch([hand_over])?;
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
