//! Counts of the verdicts of attached XDP programs, for metrics: no packet is recorded.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};

use trawl_bpf::layout::xdp_events::{VERDICT_KINDS, VerdictCounts, VerdictKey};
use trawl_bpf::layout::{Shared, TapConfig};
use trawl_bpf::object::{self, TapProgram, Taps};
use trawl_bpf::probe::KernelFeature;
use trawl_bpf::program;
use trawl_bpf::table::{NEW_ONLY, Table, possible_cpus};
use trawl_packet::verdict::VerdictKind;
use trawl_sys::{Error, Result};

use super::plan::attach_at;
use super::programs::{Present, Traceable};
use crate::capture_site::CaptureSite;

const MAP: &str = "verdict_counts";
const PROGRAM: &str = "trawl_verdict";
/// Name of all verdicts that the kernel does not know.
const UNKNOWN: &str = "UNKNOWN";

/// An XDP program on an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProgramAt {
    /// The site's label.
    pub interface: String,
    pub program: String,
    pub id: u32,
}

/// A program whose verdicts are not counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotCounted {
    pub at: ProgramAt,
    pub why: String,
}

/// An interface with an XDP program.
#[derive(Debug)]
pub struct WatchedSite {
    pub site: CaptureSite,
    /// IDs of programs that are left out.
    pub except: Vec<u32>,
}

/// The programs at the exits of attached programs; they count until this is dropped.
#[derive(Debug, Default)]
pub struct VerdictWatch {
    table: Option<Table>,
    /// By the ID of the traced program, which may be on several interfaces.
    links: HashMap<u32, OwnedFd>,
    /// By the key of the counts.
    counted: BTreeMap<Vec<u8>, Counted>,
}

#[derive(Debug)]
struct Counted {
    at: ProgramAt,
    /// The counts at the last call of `take`.
    seen: VerdictCounts,
    is_present: bool,
}

fn fail(error: impl std::fmt::Display) -> Error {
    Error::failed("cannot count the verdicts of XDP programs", error)
}

/// Returns the reason for which the kernel refuses the programs, if it does.
pub fn refusal() -> Option<&'static str> {
    let needed = [KernelFeature::Fexit, KernelFeature::KernelMemory];
    needed.into_iter().find_map(|feature| feature.probe().why())
}

impl VerdictWatch {
    /// Counts at the programs on these interfaces, and on no others. Returns the programs that cannot be counted.
    pub fn watch(&mut self, sites: &[WatchedSite]) -> Vec<NotCounted> {
        let mut not_counted = Vec::new();
        for counted in self.counted.values_mut() {
            counted.is_present = false;
        }
        for WatchedSite { site, except } in sites {
            let at = |program: &Traceable| ProgramAt {
                interface: site.label.clone(),
                program: program.name.clone(),
                id: program.id,
            };
            let present = match Present::at(site) {
                Ok(Some(present)) => present,
                Ok(None) => continue,
                Err(error) => {
                    not_counted.push(NotCounted {
                        at: ProgramAt { interface: site.label.clone(), program: String::new(), id: 0 },
                        why: error.why().to_owned(),
                    });
                    continue;
                }
            };
            for program in present.all().filter(|one| !except.contains(&one.id)) {
                if let Err(error) = self.count(program, site, at(program)) {
                    not_counted.push(NotCounted { at: at(program), why: error.why().to_owned() });
                }
            }
            let jumped_to = present.jumped_to.iter();
            not_counted.extend(jumped_to.filter(|one| !except.contains(&one.id)).map(|program| NotCounted {
                at: at(program),
                why: format!("a jump leads to it, so {} returns its verdicts", present.main.describe()),
            }));
        }
        let counted = || self.counted.values().filter(|one| one.is_present);
        self.links.retain(|id, _| counted().any(|one| one.at.id == *id));
        not_counted
    }

    fn count(&mut self, program: &Traceable, site: &CaptureSite, at: ProgramAt) -> Result<()> {
        if let Some(why) = refusal() {
            return Err(fail(why));
        }
        let key = VerdictKey { netns: site.namespace_number()?, ifindex: site.interface.index, program: program.id };
        let key = key.to_bytes();
        if let Some(counted) = self.counted.get_mut(&key) {
            counted.at = at;
            counted.is_present = true;
            return Ok(());
        }
        let link = if self.links.contains_key(&program.id) { None } else { Some(self.attach(program, &site.label)?) };
        if let Some(table) = &self.table {
            let cpus = possible_cpus().map_err(fail)?;
            let zero = vec![0; size_of::<VerdictCounts>() * cpus];
            table.update(&key, &zero, NEW_ONLY).map_err(fail)?;
        }
        self.links.extend(link.map(|link| (program.id, link)));
        let counted = Counted { at, seen: VerdictCounts::zeroed(), is_present: true };
        self.counted.insert(key, counted);
        Ok(())
    }

    fn attach(&mut self, program: &Traceable, label: &str) -> Result<OwnedFd> {
        let config = TapConfig { traced_program: program.id, ..TapConfig::zeroed() };
        let table = &mut self.table;
        attach_at(program, label, program::ATTACH_FEXIT, || {
            let shared: Vec<_> = table.as_ref().map(|table| (MAP, table.as_fd())).into_iter().collect();
            let ready = TapProgram::prepare(Taps::reading_kernel(object::VERDICT_COUNTS), PROGRAM, &config, &shared)?;
            if table.is_none() {
                let map = ready.map(MAP).ok_or_else(|| fail("a map is missing"))?;
                let map = map.try_clone_to_owned().map_err(fail)?;
                *table = Some(Table::new(map).map_err(fail)?);
            }
            Ok((PROGRAM.to_owned(), ready))
        })
    }

    /// Returns the numbers of packets since the last call, by program and verdict.
    pub fn take(&mut self) -> Result<Vec<(ProgramAt, &'static str, u64)>> {
        let Some(table) = &self.table else {
            return Ok(Vec::new());
        };
        let mut taken = Vec::new();
        for (key, counted) in &mut self.counted {
            let values = if counted.is_present { table.lookup(key) } else { table.take(key) };
            let now = sum(&values.map_err(fail)?.unwrap_or_default());
            for (kind, now) in now.packets.iter().enumerate() {
                let more = now.saturating_sub(counted.seen.packets[kind]);
                let name = VerdictKind::Xdp.name(kind as u64).unwrap_or(UNKNOWN);
                if more > 0 {
                    taken.push((counted.at.clone(), name, more));
                }
            }
            counted.seen = now;
        }
        self.counted.retain(|_, counted| counted.is_present);
        Ok(taken)
    }
}

/// Adds up the counts of all CPUs.
fn sum(values: &[u8]) -> VerdictCounts {
    let mut sum = VerdictCounts::zeroed();
    let of_cpus = values.chunks_exact(size_of::<VerdictCounts>());
    for one in of_cpus.filter_map(VerdictCounts::from_bytes) {
        for kind in 0..VERDICT_KINDS {
            sum.packets[kind] += one.packets[kind];
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_bpf::program::LoadOptions;

    /// Loads the program as a raw tracepoint, as the tests of the tap do.
    #[test]
    fn verifier_accepts_the_program() {
        if !trawl_bpf::probe::has_capability(trawl_bpf::probe::Capability::SysAdmin) {
            eprintln!("SKIPPED: requires root");
            return;
        }
        let config = TapConfig::zeroed();
        let ready = TapProgram::prepare(Taps::reading_kernel(object::VERDICT_COUNTS), PROGRAM, &config, &[]);
        let options = LoadOptions::new(PROGRAM, program::RAW_TRACEPOINT);
        ready.and_then(|ready| ready.load(&options)).expect("the program is accepted");
    }
}
