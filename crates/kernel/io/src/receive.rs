//! The program that recognises stamped packets and counts them (bpf/gen/receive.bpf.c): loading it, attaching it, and
//! reading its counts.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder};

use trawl_bpf::layout::Shared;
use trawl_bpf::probe::{Capability, has_tai_helper, missing_capabilities};
use trawl_bpf::{adapt, info, object, test_run};
use trawl_sys::clock;
use trawl_sys::error::{Error, Result};

use trawl_bpf::layout::receive::{ReceiveConfig, ReceiveEntry};
pub use trawl_bpf::layout::receive::{ReceiveFlow, ReceiveTotals};

const PROGRAM: &str = "gen_receive";

/// Fate of stamped packets after they are counted. Other packets always go on to the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveVerdict {
    Drop = 1,
    Pass = 2,
}

/// A flow of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    pub stream: u16,
    pub flow: u16,
}

/// The loaded program with its counters. Its attachment ends when it is dropped, and when the process ends for any
/// reason.
pub struct ReceiveProgram {
    // Keeps the maps and the program alive.
    object: libbpf_rs::Object,
    flows: MapHandle,
    totals: MapHandle,
    link: Option<OwnedFd>,
}

impl std::fmt::Debug for ReceiveProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveProgram").field("link", &self.link).finish_non_exhaustive()
    }
}

impl ReceiveProgram {
    /// Loads the program with room for this many flows.
    pub fn load(verdict: ReceiveVerdict, flows: u32) -> Result<Self> {
        let fail = |why: libbpf_rs::Error| {
            let error = Error::failed("cannot load the receiving program", &why);
            match why.kind() {
                // The kernel also denies a program that the verifier rejects.
                libbpf_rs::ErrorKind::PermissionDenied if !missing_capabilities(&Capability::FOR_BPF).is_empty() => {
                    error.fix("this requires root (CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON)")
                }
                libbpf_rs::ErrorKind::OutOfMemory => error.fix("choose fewer flows with --max-flows"),
                _ => error,
            }
        };
        object::quiet_libbpf();
        let cpus = libbpf_rs::num_possible_cpus().map_err(fail)?;
        let mut open = ObjectBuilder::default().open_memory(object::RECEIVE).map_err(fail)?;
        for mut program in open.progs_mut() {
            program.set_autoload(true);
        }
        for mut map in open.maps_mut() {
            match map.name().to_str() {
                Some("flows") => map.set_max_entries(flows).map_err(fail)?,
                Some("totals") => map.set_max_entries(cpus as u32).map_err(fail)?,
                _ => {}
            }
        }
        adapt::set_variable(&mut open, "config", &configuration(verdict).to_bytes())?;
        adapt::to_kernel(&mut open)?;
        let object = open.load().map_err(fail)?;
        let map = |name: &str| {
            let found = object.maps().find(|map| map.name() == name);
            let missing = Error::failed("cannot load the receiving program", "a map is missing");
            let found = found.ok_or(missing)?;
            MapHandle::try_from(&found).map_err(fail)
        };
        let (flows, totals) = (map("flows")?, map("totals")?);
        Ok(Self { object, flows, totals, link: None })
    }

    pub fn program(&self) -> io::Result<OwnedFd> {
        let program = self.object.progs().find(|program| program.name() == PROGRAM);
        program.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?.as_fd().try_clone_to_owned()
    }

    /// Keeps the link that attaches the program.
    pub fn attached_by(&mut self, link: OwnedFd) {
        self.link = Some(link);
    }

    /// Detaches the program; no packet is counted after this returns.
    pub fn detach(&mut self) {
        if self.link.take().is_some() {
            trawl_sys::events::wait_for_running_programs();
        }
    }

    /// Returns true if the attached interface was removed.
    pub fn is_orphaned(&self) -> bool {
        self.link.as_ref().is_some_and(|link| info::link(link.as_fd()).is_ok_and(|about| about.ifindex == 0))
    }

    /// Runs the program on a frame as if it had been received. The frame stays in the counts.
    pub fn show(&self, frame: &[u8]) -> io::Result<u32> {
        Ok(test_run::xdp(self.program()?.as_fd(), frame, None, 1)?.value)
    }

    /// Returns the counts of each CPU.
    pub fn totals(&self) -> Result<Vec<ReceiveTotals>> {
        let fail = |why| Error::failed("cannot read the counts of received packets", why);
        let cpus = libbpf_rs::num_possible_cpus().map_err(fail)? as u32;
        let read = |cpu: u32| self.totals.lookup(&cpu.to_ne_bytes(), MapFlags::ANY);
        (0..cpus).filter_map(|cpu| read(cpu).transpose()).map(|value| Ok(totals_from(&value.map_err(fail)?))).collect()
    }

    /// Returns the counts of each flow, in no order. The values of a flow are consistent: they are copied under its
    /// lock.
    pub fn flows(&self) -> Result<Vec<(FlowKey, Box<ReceiveFlow>)>> {
        let fail = |why| Error::failed("cannot read the counts of received packets", why);
        let mut flows = Vec::new();
        for key in self.flows.keys() {
            let Some(value) = self.flows.lookup(&key, MapFlags::LOCK).map_err(fail)? else {
                continue;
            };
            let number = key.first_chunk().map_or(0, |key| u32::from_ne_bytes(*key));
            let key = FlowKey { stream: (number >> 16) as u16, flow: number as u16 };
            flows.push((key, flow_from(&value)));
        }
        Ok(flows)
    }
}

fn configuration(verdict: ReceiveVerdict) -> ReceiveConfig {
    ReceiveConfig {
        verdict: verdict as u32,
        clock_is_tai: u32::from(has_tai_helper()),
        clock_offset: clock::monotonic_to_tai(),
    }
}

fn totals_from(value: &[u8]) -> ReceiveTotals {
    assert!(value.len() >= size_of::<ReceiveTotals>(), "a value of this map");
    // SAFETY: the bytes suffice, and any bytes are valid for a struct of plain numbers.
    unsafe { value.as_ptr().cast::<ReceiveTotals>().read_unaligned() }
}

fn flow_from(value: &[u8]) -> Box<ReceiveFlow> {
    assert!(value.len() >= size_of::<ReceiveEntry>(), "a value of this map");
    // SAFETY: as above.
    let entry = unsafe { value.as_ptr().cast::<ReceiveEntry>().read_unaligned() };
    Box::new(entry.flow)
}
