//! The `xdp` tap at attached programs: fentry and fexit programs at their functions, one by one or all of a
//! dispatcher's. The programs and their attachments are left alone.

pub mod counts;
mod plan;
mod programs;
mod slot;

use std::os::fd::AsFd;

use trawl_bpf::probe::{KernelFeature, ProbeAnswer};
use trawl_bpf::{functions, program};
use trawl_sys::netlink::XdpAttachment;
use trawl_sys::process::warden::Warden;
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result};

use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;
use crate::event::{Event, GoneReason};
use crate::taps::facts::{Facts, Gives, MOST};
use crate::taps::hook;
use crate::taps::watch::{BlindCause, Sight};
use crate::{AttachedTap, Tap};
use plan::TracePlan;
use programs::Present;
use slot::{Follow, Slot, Slots};
use trawl_plan::TapChoice;
use trawl_plan::options::Programs;

pub const FACTS: Facts = Facts {
    choice: TapChoice::Xdp,
    variant: Some("attached_program"),
    sees: "received packets, at entry and exit of any XDP program already attached",
    gives: Gives { received: true, entry: true, verdict: true, programs: true, queue: true, ..Gives::NOTHING },
    needs: "a kernel that allows tracing programs",
    features: &[
        KernelFeature::Xdp,
        KernelFeature::Fentry,
        KernelFeature::Fexit,
        KernelFeature::KernelMemory,
        KernelFeature::Atomics,
        KernelFeature::MmapableArray,
    ],
    ..MOST
};

#[derive(Debug)]
pub struct Trace;

/// Returns the reason for which the kernel refuses tracing programs, if it does. Without atomics, programs write to a
/// ring under a lock, which tracing programs cannot take.
pub fn refusal() -> Option<&'static ProbeAnswer> {
    [KernelFeature::Fentry, KernelFeature::Fexit, KernelFeature::KernelMemory, KernelFeature::Atomics]
        .into_iter()
        .map(KernelFeature::probe)
        .find(|answer| !answer.is_supported())
}

/// Returns an error if the attached program cannot be traced.
pub fn obstacle(site: &CaptureSite, present: &XdpAttachment) -> Option<Error> {
    if let Some(answer) = refusal() {
        return Some(refused(site, present, answer));
    }
    // Any other error is reported when the tap is attached.
    let found = Present::at(site).ok().flatten()?;
    let is_traceable = found.main.function.is_some();
    (!is_traceable).then(|| found.main.has_no_types(&site.label))
}

/// Explains that the interface's program can neither be traced nor has a hook.
pub fn refused(site: &CaptureSite, present: &XdpAttachment, answer: &ProbeAnswer) -> Error {
    if let Some(error) = site.missing_right() {
        return error;
    }
    let name = program::open_by_id(present.program_id)
        .and_then(|fd| functions::name_of(fd.as_fd()))
        .unwrap_or_else(|_| "a program of unknown name".to_owned());
    let why = answer.why().unwrap_or_default();
    if hook::is_there(present) {
        let what = format!("cannot choose among the XDP programs on {}", site.label);
        let why = format!("that requires tracing programs, and the kernel accepts none here: {why}");
        return Error::failed(what, why)
            .fix("leave out --program: the hook map of the attached program shows its verdicts");
    }
    let error = Error::failed(
        format!("cannot trace the XDP program on {}", site.label),
        format!(
            "{name} (id {}, {} mode) has no hook map, and the kernel accepts no tracing programs here: {why}",
            present.program_id,
            present.mode.name()
        ),
    );
    error.fix(format!("{}; or capture after XDP with --tap packet", site.with_hooks(present.program_id).advice()))
}

impl Tap for Trace {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn attach(&self, index: usize, sites: &[CaptureSite], assembly: &mut Assembly) -> Result<Box<dyn AttachedTap>> {
        let site = &sites[index];
        assembly.options.check_ends()?;
        let programs = assembly.options.programs.clone().unwrap_or(Programs::Attached);
        let Some(present) = Present::at(site)? else {
            return Err(Error::failed(
                format!("cannot trace an XDP program on {}", site.label),
                "no XDP program is attached",
            )
            .fix("leave out --program, or attach one: trawl xdp load"));
        };
        if let Some(answer) = refusal() {
            return Err(refused(site, &present.attachment(), answer));
        }
        let chosen = present.choose(&programs, site)?;
        if let Some(unseen) = present.out_of_sight(&programs) {
            assembly.event(Event::ProgramsOutOfSight { interface: site.label.clone(), programs: unseen });
        }
        let plan = TracePlan::new(assembly, site, chosen.len() > 1)?;
        let mut slots = Slots::new(plan, site);
        let names: Vec<&str> = chosen.iter().map(|program| program.name.as_str()).collect();
        for program in chosen {
            let follow = match programs {
                Programs::Id(_) => Follow::Nothing,
                Programs::Attached => Follow::Attached,
                Programs::All if program.id == present.main.id => Follow::Attached,
                Programs::All | Programs::Named(_) => Follow::Name,
            };
            // A single program needs no name; two programs with the same name need their ids too.
            let name = match names.iter().filter(|name| **name == program.name).count() {
                _ if programs == Programs::Attached => None,
                1 => Some(program.name.clone()),
                _ => Some(program.describe()),
            };
            let ends = slots.add_points(name.as_deref(), program.id, index, site, assembly, present.mode.name())?;
            slots.add(Slot::new(program, follow, ends));
        }
        slots.attach(Some(&present))?;
        Ok(Box::new(AttachedTrace { site: site.clone(), head: Some(present.head), slots, ended: None, moved: None }))
    }
}

#[derive(Debug)]
struct AttachedTrace {
    site: CaptureSite,
    /// The attached program at the last check.
    head: Option<u32>,
    slots: Slots,
    ended: Option<GoneReason>,
    /// Set if the traced programs have changed since the last check.
    moved: Option<BlindCause>,
}

impl AttachedTap for AttachedTrace {
    fn detach(&mut self) -> Vec<Event> {
        self.slots.clear();
        Vec::new()
    }

    fn needed_capabilities(&self) -> Capabilities {
        crate::TO_FOLLOW_PROGRAMS
    }

    fn watch(&mut self, _warden: &mut Warden) -> Sight {
        match (self.slots.all_found(), self.moved.take()) {
            (true, Some(cause)) => Sight::Restored(cause),
            (true, None) => Sight::Clear,
            // A new program is traced as soon as it is attached.
            (false, _) => Sight::Waiting(BlindCause::ProgramRemoved),
        }
    }

    fn new_events(&mut self) -> Vec<Event> {
        // Other checks report a removed interface.
        let Ok(now) = self.site.interface.xdp_attached(self.site.namespace.as_ref()) else {
            return Vec::new();
        };
        let id = now.as_ref().map(|present| present.program_id);
        if id == self.head {
            return Vec::new();
        }
        self.head = id;
        let present = match Present::at(&self.site) {
            Ok(present) => present,
            // The program has changed once more; the next check sees it.
            Err(_) => {
                self.head = None;
                return Vec::new();
            }
        };
        match self.slots.attach(present.as_ref()) {
            Ok(news) => {
                let moved = now.as_ref().filter(|_| !news.is_empty());
                self.moved = moved.map(BlindCause::replaced_by);
                if self.slots.are_over() {
                    self.ended = Some(GoneReason::ProgramsGone);
                }
                news
            }
            Err(error) => {
                self.ended = Some(GoneReason::ProgramUntraceable { why: error.to_string() });
                Vec::new()
            }
        }
    }

    fn ended(&mut self) -> Option<GoneReason> {
        self.ended.take()
    }
}
