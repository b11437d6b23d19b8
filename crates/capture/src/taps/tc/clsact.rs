//! Filters on the clsact qdisc, which stay until removed.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use trawl_bpf::program;
use trawl_sys::netlink::Netlink;
use trawl_sys::netlink::tc::{Direction as Side, FilterHandle};
use trawl_sys::netns::Namespace;
use trawl_sys::process::warden::{self, Undo, Warden};
use trawl_sys::rights::privilege::Capabilities;
use trawl_sys::{Error, Result, errno};

use crate::assembly::Assembly;
use crate::capture_site::CaptureSite;

/// A filter, which stays until removed, and the qdisc if created with it.
#[derive(Debug)]
pub(super) struct ClsactFilter {
    namespace: Option<Namespace>,
    handle: FilterHandle,
    program: OwnedFd,
    name: String,
    made_qdisc: bool,
}

impl ClsactFilter {
    /// Adds a filter, and has the warden watch it.
    pub(super) fn add(
        site: &CaptureSite,
        side: Side,
        program: &OwnedFd,
        name: &str,
        warden: &mut Warden,
    ) -> Result<Self> {
        let namespace = &site.namespace;
        Self::install(site, side, program, name, |handle, made_qdisc| {
            let qdisc = made_qdisc.then(|| remove_later(namespace, Kept::Qdisc(handle.interface)));
            let filter = remove_later(namespace, Kept::Filter(handle));
            warden.watch(qdisc.into_iter().chain([filter]))
        })
    }

    /// Adds a filter of a program whose filters the warden already watches.
    pub(super) fn add_watched(site: &CaptureSite, side: Side, program: &OwnedFd, name: &str) -> Result<Self> {
        Self::install(site, side, program, name, |_, _| Ok(()))
    }

    fn install(
        site: &CaptureSite,
        side: Side,
        program: &OwnedFd,
        name: &str,
        before: impl FnOnce(FilterHandle, bool) -> Result<()>,
    ) -> Result<Self> {
        let interface = site.interface.index;
        let namespace = site.namespace.clone();
        let mut netlink = Netlink::open(namespace.as_ref())?;
        let made_qdisc = !netlink.has_clsact(interface)? || is_of_other_capture(&mut netlink, interface)?;
        let handle = FilterHandle {
            interface,
            direction: side,
            priority: free_priority(&mut netlink, interface, side)?,
            handle: 1,
        };
        before(handle, made_qdisc)?;
        netlink.add_clsact(interface)?;
        let mark = if made_qdisc { QDISC_MARK } else { "" };
        let name = format!("{name}{mark}");
        netlink.add_filter(handle, program.as_fd(), &name)?;
        Ok(Self { namespace, handle, program: warden::hold(program.as_fd())?, name, made_qdisc })
    }

    /// Adds the filter again if it was deleted, with the qdisc or alone; returns true if so.
    pub(super) fn put_back(&mut self, warden: &mut Warden) -> Result<bool> {
        let interface = self.handle.interface;
        let own = program::id(&self.program).ok();
        let mut netlink = Netlink::open(self.namespace.as_ref())?;
        let has_qdisc = netlink.has_clsact(interface)?;
        if has_qdisc {
            let filters = netlink.filters(interface, self.handle.direction)?;
            let taken = filters.iter().find(|one| one.handle == self.handle);
            if taken.is_some_and(|one| one.program_id == own) {
                return Ok(false);
            }
            if taken.is_some() {
                self.handle.priority = free_priority(&mut netlink, interface, self.handle.direction)?;
                warden.watch([remove_later(&self.namespace, Kept::Filter(self.handle))])?;
            }
        } else if !self.made_qdisc {
            self.made_qdisc = true;
            warden.watch([remove_later(&self.namespace, Kept::Qdisc(interface))])?;
        }
        netlink.add_clsact(interface)?;
        netlink.add_filter(self.handle, self.program.as_fd(), &self.name)?;
        Ok(true)
    }

    pub(super) fn remove(self) -> Result<()> {
        let mut netlink = Netlink::open(self.namespace.as_ref())?;
        match netlink.del_filter(self.handle) {
            // The warden or another process has removed it.
            Err(error) if matches!(error.errno(), Some(errno::ENOENT | errno::EINVAL | errno::ENODEV)) => {}
            removed => removed?,
        }
        if self.made_qdisc { netlink.del_unused_clsact(self.handle.interface) } else { Ok(()) }
    }
}

/// Task that deletes a filter, or the qdisc that was created with it unless other filters use it.
#[derive(Debug)]
struct Remove {
    namespace: Option<Namespace>,
    kept: Kept,
}

/// A kernel object of an interface, given by the interface's number.
#[derive(Clone, Copy, Debug)]
enum Kept {
    Filter(FilterHandle),
    Qdisc(u32),
}

fn remove_later(namespace: &Option<Namespace>, kept: Kept) -> Box<dyn Undo> {
    let namespace = namespace.clone();
    Box::new(Remove { namespace, kept })
}

impl Undo for Remove {
    fn undo(&self) -> Result<()> {
        let mut netlink = Netlink::open(self.namespace.as_ref())?;
        match self.kept {
            Kept::Filter(handle) => netlink.del_filter(handle),
            Kept::Qdisc(interface) => netlink.del_unused_clsact(interface),
        }
    }

    fn descriptors(&self) -> Vec<RawFd> {
        let namespace = self.namespace.iter();
        namespace.map(|one| one.as_fd().as_raw_fd()).collect()
    }

    fn needed_capabilities(&self) -> Capabilities {
        match self.namespace {
            Some(_) => Capabilities::NET_ADMIN | Capabilities::SYS_ADMIN,
            None => Capabilities::NET_ADMIN,
        }
    }
}

/// Suffix of a filter's name: the qdisc is deleted with the last such filter.
const QDISC_MARK: &str = "+clsact";

/// Returns true if the qdisc belongs to another capture that still runs.
fn is_of_other_capture(netlink: &mut Netlink, interface: u32) -> Result<bool> {
    for side in [Side::Ingress, Side::Egress] {
        let filters = netlink.filters(interface, side)?;
        if filters.iter().any(|filter| filter.name.ends_with(QDISC_MARK)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the first free priority on ingress, and the last one on egress.
fn free_priority(netlink: &mut Netlink, interface: u32, side: Side) -> Result<u16> {
    let taken: Vec<u16> = if netlink.has_clsact(interface)? {
        netlink.filters(interface, side)?.iter().map(|filter| filter.handle.priority).collect()
    } else {
        Vec::new()
    };
    let free = |priority: &u16| !taken.contains(priority);
    let found = match side {
        Side::Ingress => (1..=u16::MAX).find(free),
        Side::Egress => (1..=u16::MAX).rev().find(free),
    };
    found.ok_or_else(|| Error::failed("cannot add a tc filter", "every priority is in use"))
}

/// Task that deletes all filters of a program in a namespace: one task for many interfaces.
#[derive(Debug)]
struct FiltersOf {
    program: u32,
    namespace: FilterNamespace,
}

/// Reference to a namespace. A named namespace is not held open, so that it ends once it is deleted.
#[derive(Debug)]
enum FilterNamespace {
    Here,
    Named(String),
    Held(Namespace),
}

impl FilterNamespace {
    fn of(namespace: Option<&Namespace>) -> Self {
        match namespace {
            None => Self::Here,
            Some(namespace) => match namespace.name() {
                Some(name) => Self::Named(name.to_owned()),
                None => Self::Held(namespace.clone()),
            },
        }
    }

    fn netlink(&self) -> Result<Netlink> {
        match self {
            Self::Here => Netlink::current(),
            Self::Named(name) => Netlink::inside(&Namespace::by_name(name)?),
            Self::Held(namespace) => Netlink::inside(namespace),
        }
    }
}

impl FiltersOf {
    fn delete(&self) -> Result<()> {
        let mut netlink = self.namespace.netlink()?;
        for link in netlink.links()? {
            let mut came_with_qdisc = false;
            for side in [Side::Ingress, Side::Egress] {
                let filters = netlink.filters(link.index, side).unwrap_or_default();
                for filter in filters {
                    if filter.program_id == Some(self.program) {
                        // If one filter cannot be deleted, the others are deleted nevertheless.
                        let _ = netlink.del_filter(filter.handle);
                        came_with_qdisc |= filter.name.ends_with(QDISC_MARK);
                    }
                }
            }
            if came_with_qdisc {
                let _ = netlink.del_unused_clsact(link.index);
            }
        }
        Ok(())
    }
}

impl Undo for FiltersOf {
    fn undo(&self) -> Result<()> {
        self.delete()
    }

    fn descriptors(&self) -> Vec<RawFd> {
        match &self.namespace {
            FilterNamespace::Held(namespace) => vec![namespace.as_fd().as_raw_fd()],
            FilterNamespace::Here | FilterNamespace::Named(_) => Vec::new(),
        }
    }
}

impl Assembly {
    /// Hands the warden the filters of a program in a site's namespace, and in all other known namespaces.
    pub(super) fn undo_filters_of(&mut self, program: &OwnedFd, site: &CaptureSite) -> Result<()> {
        let program = program::id(program).map_err(|e| Error::os("cannot read the id of a tc program", e))?;
        let wanted = (program, site.namespace_number()?);
        if self.many.watched.contains(&wanted) {
            return Ok(());
        }
        let mut tasks: Vec<Box<dyn Undo>> = Vec::new();
        let known = std::mem::take(&mut self.many.known);
        for namespace in known.iter().chain([&site.namespace]) {
            let number = crate::capture_site::number_of(namespace.as_ref())?;
            if self.many.watched.insert((program, number)) {
                let namespace = FilterNamespace::of(namespace.as_ref());
                tasks.push(Box::new(FiltersOf { program, namespace }));
            }
        }
        self.many.known = known;
        self.undo.warden.watch(tasks)
    }
}
