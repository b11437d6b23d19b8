//! The guard's program is put on an interface.

use std::os::fd::{AsFd, BorrowedFd};

use trawl_attach::Request;
use trawl_bpf::layout::guard::GuardAllTotals;
use trawl_bpf::map;
use trawl_program::bundled::GUARD;
use trawl_program::load::Source;
use trawl_program::{Installed, Site, install};
use trawl_sys::{Error, Result};

use super::live::Store;
use super::rule::{Action, On};
use super::set::Default;
use super::state::{
    Care, FUNCTION, FUNCTION_WITHOUT_ETHERNET, Guard, RATES, SET, TOTALS, installed_on,
};

/// The program's constant for the number of its interface.
const INTERFACE: &str = "guard_ifindex";
/// In a chain: what is dropped anyway should cost the others nothing.
const PRIORITY: u32 = 10;

/// Rules that only the attached program knows are gone with it.
fn refuse_to_forget(site: &Site, installed: &Installed) -> Result<()> {
    let set = Store::of(installed.map(SET)?)?.read()?;
    let allows = |one: &Default| one.action == Action::Allow;
    if set.rules.is_empty() && set.defaults.iter().all(allows) {
        return Ok(());
    }
    Err(Error::failed(
        format!("cannot replace the guard on {}", site.label()),
        format!(
            "program {} enforces rules that are not where trawl keeps them; they would no longer be enforced",
            installed.id()
        ),
    )
    .fix("--yes replaces it anyway"))
}

impl Guard {
    /// Puts the guard on an interface, or changes the default of one it is on. One that is `tappable` can be captured
    /// at where the kernel takes no tracing programs.
    pub fn load(
        &self,
        site: &Site,
        default: Option<Action>,
        request: &Request,
        tappable: bool,
        care: Care,
    ) -> Result<Installed> {
        let on = On {
            index: site.index(),
            name: site.name().to_owned(),
        };
        let present = match installed_on(site)? {
            Some(installed) if self.is_asked_by(&installed)? => Some(installed),
            Some(installed) if request.spares_guard => {
                refuse_to_forget(site, &installed)?;
                None
            }
            _ => None,
        };
        let before = self.rules()?;
        let mut set = before.clone();
        let had = before.defaults.iter().find(|one| one.on.index == on.index);
        if let Some(action) = default.or(had.is_none().then_some(Action::Allow)) {
            set.set_default(on, action);
        }
        self.put(&before, set, care)?;
        let is_there = |installed: &Installed| {
            let seat = installed.seat().map(|seat| seat.priority);
            request.priority.is_none_or(|wanted| seat == Some(wanted))
        };
        if let Some(installed) = present
            && is_there(&installed)
            && request
                .mode
                .is_none_or(|mode| installed.mode() == Some(mode))
            && !tappable
            && !request.replace
        {
            return Ok(installed);
        }
        let attached = self.attach(site, request, tappable);
        if attached.is_err() {
            // As it was; hits go on.
            self.store.publish(&before)?;
        }
        attached
    }

    /// Whether a program of the guard's looks into these rules. One that came along with its interface from another
    /// namespace looks into that one's, and knows the interface by the number that it had there.
    fn is_asked_by(&self, installed: &Installed) -> Result<bool> {
        let id = |fd: BorrowedFd<'_>| {
            map::info(fd)
                .map(|about| about.id)
                .map_err(|e| Error::os("cannot look at the rules", e))
        };
        Ok(id(installed.map(SET)?.as_fd())? == id(self.store.as_fd())?)
    }

    /// Lets the new program count on in the totals of the one that it replaces, if both have the same layout.
    fn keep_totals(&self, source: &mut Source, old: &Installed) -> Result<()> {
        if !self.is_asked_by(old)? {
            return Ok(());
        }
        let Ok(totals) = old.map(TOTALS) else {
            return Ok(());
        };
        let layout = map::info(totals.as_fd()).map(|about| about.value_size as usize);
        match layout {
            Ok(size) if size == size_of::<GuardAllTotals>() => source.reuse(TOTALS, totals.as_fd()),
            _ => Ok(()),
        }
    }

    fn attach(&self, site: &Site, request: &Request, tappable: bool) -> Result<Installed> {
        let function = match site.has_ethernet()? {
            true => FUNCTION,
            false => FUNCTION_WITHOUT_ETHERNET,
        };
        let mut source = Source::embedded(GUARD, self.store.object())?;
        source.choose(Some(function))?;
        source.reuse(SET, self.store.as_fd())?;
        source.reuse(RATES, self.rates.as_fd())?;
        source.set_variable(INTERFACE, &site.index().to_ne_bytes())?;
        if tappable {
            source.make_tappable();
        }
        let put = match installed_on(site)? {
            Some(old) => {
                self.keep_totals(&mut source, &old)?;
                let before = old.seat().map(|seat| seat.priority);
                let priority = request.priority.or(before).unwrap_or(PRIORITY);
                install::put_instead(site, source, request, Some(priority), old, |_| Ok(()))
            }
            None => install::put(site, source, request, request.priority.or(Some(PRIORITY))),
        };
        put.map(|put| put.installed)
    }
}
