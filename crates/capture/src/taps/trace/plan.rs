//! Recipe for the tracing programs of one site, and their positions.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use trawl_bpf::kallsyms::kernel_addresses;
use trawl_bpf::layout::{HOLD_AT_ENTRY, HOLD_UNTIL_EXIT, TRACE_COPY, TRACE_SCRATCH_SIZE, TapConfig};
use trawl_bpf::object::{self, TapProgram, Taps};
use trawl_bpf::program::{self, LoadOptions, Traced};
use trawl_bpf::{link, map};
use trawl_packet::pcapng::block::DIRECTION_INBOUND;
use trawl_ring::Rings;
use trawl_sys::{Error, Result, errno, events};

use super::programs::Traceable;
use crate::assembly::{Assembly, program_maps};
use crate::capture_site::CaptureSite;
use crate::filter::Block;
use crate::filter::Compile;
use crate::point::{Carries, PointIds};
use trawl_plan::options::{At, CaptureOptions};

const ACTIONS: u32 = 5;
/// Map in bpf/tap/tap_trace.bpf.c.
const SCRATCH: &str = "trace_scratch";

/// Function of a tracing program; the names are from bpf/tap/tap_trace.bpf.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// At the packet's first entry: decides for all later programs.
    Decide,
    /// At the packet's first entry: assigns the identifier only.
    Begin,
    Entry,
    /// At an exit: follows the earlier decision.
    Exit,
    /// At an exit: decides for itself.
    Alone,
}

impl Role {
    fn is_exit(self) -> bool {
        matches!(self, Self::Exit | Self::Alone)
    }

    fn filters(self) -> bool {
        matches!(self, Self::Decide | Self::Alone)
    }

    fn program(self) -> &'static str {
        match self {
            Self::Decide => "trawl_decide",
            Self::Begin => "trawl_begin",
            Self::Entry => "trawl_entry",
            Self::Exit => "trawl_exit",
            Self::Alone => "trawl_alone",
        }
    }
}

#[derive(Debug)]
pub struct TracePlan {
    site: CaptureSite,
    config: TapConfig,
    block: Option<Block>,
    rings: Arc<Rings>,
    scratch: OwnedFd,
    pub entry: bool,
    pub exit: bool,
    /// True if the first entry decides for all later programs.
    linked: bool,
    /// True if records at the entry wait for the verdict.
    holds: bool,
    several: bool,
}

impl TracePlan {
    pub fn new(assembly: &mut Assembly, site: &CaptureSite, several: bool) -> Result<Self> {
        let options = Rc::clone(&assembly.options);
        let at = options.at.unwrap_or(At::Exit);
        let rings = assembly.program_rings()?;
        let mut config = assembly.config(&rings);
        config.only_ifindex = site.interface.index;
        config.only_namespace = site.namespace_number()?;
        config.wanted_verdicts = wanted_verdicts(&options);
        if let Some(found) = kernel_addresses() {
            let halves = |address: u64| (address as u32, (address >> 32) as u32);
            (config.first_address_low, config.first_address_high) = halves(found.first_address);
            (config.first_page_low, config.first_page_high) = halves(found.first_page);
        }
        let block = match &options.filter {
            Some(filter) => {
                let compiler = site.compiler_options(config.snaplen)?;
                Some(filter.xdp_copy_block(&compiler, TRACE_COPY as u16, options.follows())?)
            }
            None => None,
        };
        let cpus = events::cpu_count() as u32;
        Ok(Self {
            site: site.clone(),
            config,
            block,
            rings,
            scratch: map::create_mmapable_array("trawl_scratch", TRACE_SCRATCH_SIZE as u32, cpus)?,
            entry: at.entry(),
            exit: at.exit(),
            linked: at.entry() || options.filter_at == Some(At::Entry),
            // Entries of several programs are nested: only one record can wait.
            holds: at == At::Both && options.verdicts.is_some() && !several,
            several,
        })
    }

    /// Returns the role at the first entry, if one is needed.
    pub fn leader(&self) -> Option<Role> {
        match (self.linked, self.several) {
            (true, _) => Some(Role::Decide),
            (false, true) => Some(Role::Begin),
            (false, false) => None,
        }
    }

    pub fn exit_role(&self) -> Role {
        if self.linked { Role::Exit } else { Role::Alone }
    }

    /// Attaches a tracing program to an end of a program. Without a point it makes no records. `entry` is the point at
    /// the program's entry.
    pub fn attach(
        &self,
        role: Role,
        at: &Traceable,
        ids: Option<PointIds>,
        entry: Option<PointIds>,
    ) -> Result<OwnedFd> {
        let attach_type = if role.is_exit() { program::ATTACH_FEXIT } else { program::ATTACH_FENTRY };
        attach_at(at, &self.site.label, attach_type, || self.prepare(role, ids, entry))
    }

    /// Prepares the program for a role, and returns its name.
    fn prepare(&self, role: Role, ids: Option<PointIds>, entry: Option<PointIds>) -> Result<(String, TapProgram)> {
        let mut config = self.config;
        config.silent = u32::from(ids.is_none());
        config.shared_id = u32::from(self.several);
        if let Some(ids) = ids {
            let carries = if role.is_exit() { Carries::XdpAsSeen } else { Carries::Nothing };
            config.first = ids.record(DIRECTION_INBOUND, carries);
        }
        if self.holds && role == Role::Decide && ids.is_some() {
            config.hold = HOLD_AT_ENTRY as u32;
        }
        if let Some(entry) = entry.filter(|_| self.holds && role == Role::Exit) {
            config.second = entry.record(DIRECTION_INBOUND, Carries::Nothing);
            config.hold = HOLD_UNTIL_EXIT as u32;
        }
        let block = self.block.as_ref().filter(|_| role.filters());
        let name = match block {
            Some(_) => format!("{}_f", role.program()),
            None => role.program().to_owned(),
        };
        let mut maps = program_maps(&self.rings, None);
        maps.push((SCRATCH, self.scratch.as_fd()));
        let mut ready = TapProgram::prepare(Taps::reading_kernel(object::TAP_TRACE), &name, &config, &maps)?;
        if let Some(block) = block {
            ready.filter(block)?;
        }
        Ok((name, ready))
    }
}

/// Loads a prepared program, and attaches it to an end of an attached program.
pub fn attach_at(
    at: &Traceable,
    label: &str,
    attach_type: u32,
    prepare: impl FnOnce() -> Result<(String, TapProgram)>,
) -> Result<OwnedFd> {
    let Some(function) = at.function else {
        return Err(at.has_no_types(label));
    };
    let (name, ready) = prepare()?;
    let loaded = ready.load(&LoadOptions {
        expected_attach_type: attach_type,
        traced: Some(Traced { program: Some(at.fd.as_fd()), function }),
        ..LoadOptions::new(&name, program::TRACING)
    })?;
    link::attach_tracing(loaded.as_fd()).map_err(|e| explain_attach(e, &at.name, label))
}

/// Explains the kernel's error if a function has the maximum number of tracing programs.
fn explain_attach(error: std::io::Error, name: &str, label: &str) -> Error {
    let what = format!("cannot trace the XDP program {name} on {label}");
    match error.raw_os_error() {
        Some(errno::E2BIG) => Error::failed(what, "it already has the maximum of 38 tracing programs")
            .fix("end another capture, or capture on fewer interfaces at a time"),
        _ => Error::os(what, error),
    }
}

/// Returns the wanted verdicts as a bit for each action.
fn wanted_verdicts(options: &CaptureOptions) -> u32 {
    let Some(set) = &options.verdicts else {
        return u32::MAX;
    };
    let wanted = (0..ACTIONS).filter(|action| set.contains(u64::from(*action)));
    wanted.map(|action| 1 << action).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assembly::HostFeatures;
    use crate::taps::trace::FACTS;
    use trawl_packet::verdict::{VerdictKind, VerdictSet};
    use trawl_plan::TapChoice;
    use trawl_plan::filter::Filter;
    use trawl_plan::options::Memory;

    fn options(filter: Option<&str>) -> CaptureOptions {
        CaptureOptions {
            at: Some(At::Both),
            filter: filter.map(|text| Filter::Expression(text.to_owned())),
            ..CaptureOptions::new(TapChoice::Xdp, Memory::ForEachCpu(1 << 20))
        }
    }

    /// Loads the programs as raw tracepoints, with the same arguments and permissions: some hosts refuse tracing
    /// programs before the verifier has seen them.
    #[test]
    fn verifier_accepts_each_program() {
        if !trawl_bpf::probe::has_capability(trawl_bpf::probe::Capability::SysAdmin) {
            eprintln!("SKIPPED: requires root");
            return;
        }
        let host = HostFeatures { os: String::new(), hardware: String::new(), application: String::new() };
        let site = CaptureSite::find("lo", None).expect("every namespace has one");
        let filter = "udp port 53 or ip6 or greater 1000";
        // The last one holds back the record at the entry, and cuts packets after their headers.
        for (filter, verdicts) in [(None, None), (Some(filter), None), (Some(filter), Some("drop"))] {
            let mut options = options(filter);
            let set = |text| VerdictSet::parse(VerdictKind::Xdp, text).expect("a verdict");
            options.verdicts = verdicts.map(set);
            options.headers = verdicts.is_some();
            let mut assembly = Assembly::new(&options, host.clone(), 1).expect("memory");
            let plan = TracePlan::new(&mut assembly, &site, verdicts.is_none()).expect("a plan");
            let rings = assembly.program_rings().expect("rings");
            let ids = assembly.add_point(0, &site, &rings, &FACTS, "xdp exit").expect("a point");
            let entry = assembly.add_point(0, &site, &rings, &FACTS, "xdp entry").expect("a point");
            for (role, ids) in [
                (Role::Decide, Some(ids)),
                (Role::Decide, None),
                (Role::Begin, None),
                (Role::Entry, Some(ids)),
                (Role::Exit, Some(ids)),
                (Role::Alone, Some(ids)),
            ] {
                let (name, ready) = plan.prepare(role, ids, Some(entry)).expect("a program");
                ready
                    .load(&LoadOptions::new(&name, program::RAW_TRACEPOINT))
                    .unwrap_or_else(|e| panic!("{role:?}: {e}"));
            }
        }
    }
}
