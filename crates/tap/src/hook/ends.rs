//! At which ends of a program packets are recorded, and what the programs there are told.

use trawl_bpf::layout::{ALL, HOLD_AT_ENTRY, HOLD_UNTIL_EXIT, TapConfig};
use trawl_sys::{Error, Result};

use super::ACTIONS;
use super::find::{BODY_SLOT, Found, Looked};
use super::stand::{Filters, Occupant};
use crate::assembly::{Carries, PointIds};
use crate::capture_site::CaptureSite;
use crate::options::{At, Options};

const DIRECTION_INBOUND: u32 = 1;
const XDP_ABORTED: u32 = 0;

#[derive(Clone, Copy, Debug)]
pub struct Ends {
    pub entry: bool,
    pub exit: bool,
    /// The first entry decides for all that follow, which record the packet under the same identifier.
    pub linked: bool,
    /// What is recorded at an entry waits for the verdict.
    holds: bool,
}

impl Ends {
    pub fn choose(options: &Options, looked: &Looked, site: &CaptureSite) -> Result<Self> {
        let at = options.at.unwrap_or(At::Exit);
        let filter_at_entry = options.filter_at == Some(At::Entry);
        let ends = Self {
            entry: at.entry(),
            exit: at.exit(),
            linked: at.exit() && (at.entry() || filter_at_entry),
            holds: at == At::Both && options.verdicts.is_some(),
        };
        let tappable = looked.hooks.iter().all(|hook| hook.entry.is_some());
        let load = || {
            let attached = site.interface.xdp_attached(site.namespace.as_ref());
            let program = attached.ok().flatten().map(|one| one.program_id);
            site.with_hooks(program.unwrap_or_default())
        };
        if at.entry() && !tappable {
            return Err(Error::usage(
                "cannot record at entry through this hook",
                "its programs run when the other is done",
            )
            .fix(format!(
                "leave out --at, or load the program with hooks: {}",
                load()
            )));
        }
        if filter_at_entry && !tappable {
            return Err(Error::usage(
                "cannot filter packets as they arrived through this hook",
                "its programs see them as the other program left them",
            )
            .fix(format!(
                "leave out --filter-at, or load the program with hooks: {}",
                load()
            )));
        }
        options.check_ends()?;
        Ok(ends)
    }

    /// Whether something stands at the entry of the program at this place in the chain.
    pub fn looks_at_entry_of(&self, place: usize) -> bool {
        self.entry || (self.linked && place == 0)
    }

    /// What stands at the entry of a program; without a point it only decides.
    pub fn at_entry(&self, config: &TapConfig, ids: Option<PointIds>, place: usize) -> Occupant {
        let mut config = *config;
        // Only if the program itself is gone.
        config.verdict = XDP_ABORTED;
        config.onward = BODY_SLOT;
        config.silent = u32::from(ids.is_none());
        if let Some(ids) = ids {
            config.first = ids.record(DIRECTION_INBOUND, Carries::Nothing);
            if self.holds {
                config.hold = HOLD_AT_ENTRY as u32;
            }
        }
        let first = place == 0;
        Occupant {
            program: if first {
                "trawl_xdp_first"
            } else {
                "trawl_xdp_again"
            },
            filters: if first {
                Filters::Whole
            } else {
                Filters::Never
            },
            config,
        }
    }

    /// What stands at the exit of a program, by action.
    pub fn at_exit(
        &self,
        config: &TapConfig,
        ids: PointIds,
        entry: Option<PointIds>,
        hook: &Found,
        options: &Options,
    ) -> Vec<Occupant> {
        let wanted = |action: u32| {
            let verdicts = options.verdicts.as_ref();
            verdicts.is_none_or(|set| set.contains(u64::from(action)))
        };
        let one = |action: u32| {
            let mut config = *config;
            config.verdict = action;
            config.first = ids.record(DIRECTION_INBOUND, Carries::Xdp(action));
            config.unwanted = u32::from(!wanted(action));
            if let Some(entry) = entry.filter(|_| self.holds) {
                config.second = entry.record(DIRECTION_INBOUND, Carries::Nothing);
                config.hold = HOLD_UNTIL_EXIT as u32;
            }
            config.onward = match &hook.next {
                Some(_) => action,
                None => ALL as u32,
            };
            Occupant {
                program: if self.linked {
                    "trawl_xdp_again"
                } else {
                    "trawl_xdp"
                },
                filters: if self.linked {
                    Filters::Never
                } else {
                    Filters::Quick
                },
                config,
            }
        };
        (0..ACTIONS).map(one).collect()
    }
}
