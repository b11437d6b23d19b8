//! `--yes` and `--confirm`: what would cut a session is done anyway, or taken back unless it is confirmed.

use std::time::Duration;

use trawl_attach::{OldMaps, Request};
use trawl_guard::values;
use trawl_program::unload::{self, Which};
use trawl_program::{Site, swap};
use trawl_sys::Result;

use crate::json::{self, Remark};
use crate::units;

#[derive(Debug, clap::Args)]
pub struct Consent {
    /// Apply even if it cuts the SSH session of this command, or removes a guard
    #[arg(long)]
    pub yes: bool,
    /// Restore the previous state after this time, unless `trawl xdp confirm` is given before
    #[arg(long, value_name = "TIME", value_parser = units::duration, conflicts_with = "yes")]
    pub confirm: Option<Duration>,
}

/// What a program may cut and take away, for all commands that attach one: with `--confirm` what is put back after a
/// while, with `--yes` everything.
pub fn limits(request: Request, yes: bool, confirm: bool) -> Request {
    let careful = !yes && !confirm;
    Request {
        maps: match request.maps {
            OldMaps::Keep => OldMaps::Keep,
            _ if careful => OldMaps::Ask,
            _ => OldMaps::Drop,
        },
        careful,
        spares_guard: !yes,
        ..request
    }
}

impl Consent {
    /// Whether what may cut a session is refused.
    pub fn is_careful(&self) -> bool {
        !self.yes && self.confirm.is_none()
    }

    /// Refuses to unload what the session of this command needs, unless that was agreed to.
    pub fn check_unload(&self, site: &Site, which: Which) -> Result<()> {
        match self.yes {
            true => Ok(()),
            false => unload::check_unload(site, which, self.is_careful()),
        }
    }

    /// What a program may cut and take away that is to be attached.
    pub fn limits(&self, request: Request) -> Request {
        limits(request, self.yes, self.confirm.is_some())
    }

    /// Makes a change of the programs on interfaces, which is taken back if that was asked for.
    pub fn change<R>(&self, sites: &[Site], change: impl FnOnce() -> Result<R>) -> Result<R> {
        let Some(time) = self.confirm else {
            sites.iter().try_for_each(swap::refuse_if_pending)?;
            return change();
        };
        let command = super::confirm_command();
        let begin = |site| swap::begin(site, &command, time);
        let pending: Vec<_> = sites.iter().map(begin).collect::<Result<_>>()?;
        let done = change()?;
        for (site, pending) in sites.iter().zip(pending) {
            pending.applied()?;
            let text = format!(
                "the change is reverted in {} unless it is confirmed: trawl xdp confirm {}",
                values::short_duration(time),
                site.label()
            );
            let seconds = time.as_secs_f64();
            json::say(&Remark::RevertPending { seconds }, &text);
        }
        Ok(done)
    }
}
