//! Writes the targets of a redirecting program, which a command's options name, into the maps that the program reads.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use trawl_attach::AttachRequest;
use trawl_attach::explain::ONE_BUFFER_MTU;
use trawl_attach::site::Site;
use trawl_bpf::layout::bundled::{REDIRECT_MAX_CPUS, REDIRECT_MAX_TARGETS};
use trawl_bpf::probe;
use trawl_bpf::table::{self, Table};
use trawl_sys::errno::ENODEV;
use trawl_sys::netlink::{XdpMode, xdp_abilities};
use trawl_sys::netns::run_maybe_in;
use trawl_sys::{Error, Result};

use crate::load::Program;
use crate::sending;

const TARGETS: &str = "targets";
pub(super) const CPUS: &str = "cpus";

/// The kernel mechanism that redirects to a single interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedirectBy {
    #[default]
    Helper,
    Devmap,
}

/// The verdict on the other CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FarVerdict {
    Drop,
    #[default]
    Pass,
    /// Redirects the packet to this interface.
    Redirect(String),
}

/// Target of a redirection. Interfaces are in the namespace that the packets arrive in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedirectTarget {
    One(String, RedirectBy),
    /// Sends a copy to each interface.
    All {
        interfaces: Vec<String>,
        /// Skips the interface that the packet arrived on.
        exclude_ingress: bool,
    },
    /// Redirects to these CPUs; all packets of a flow go to the same one.
    Cpus {
        cpus: Vec<u32>,
        /// Maximum number of packets queued for each CPU.
        queue: u32,
        then: FarVerdict,
    },
}

impl RedirectTarget {
    /// Returns the interfaces that packets leave by.
    pub(super) fn interfaces(&self, site: &Site) -> Result<Vec<Site>> {
        let names: Vec<&String> = match self {
            Self::One(name, _) => vec![name],
            Self::All { interfaces, .. } => interfaces.iter().collect(),
            Self::Cpus { then: FarVerdict::Redirect(name), .. } => vec![name],
            Self::Cpus { .. } => Vec::new(),
        };
        if names.len() > REDIRECT_MAX_TARGETS {
            return Err(Error::usage(
                format!("cannot redirect to {} interfaces", names.len()),
                format!("the maximum is {REDIRECT_MAX_TARGETS}"),
            ));
        }
        names.into_iter().map(|name| site.sibling(name)).collect()
    }

    /// Returns the interfaces by which a packet that arrived on this one may leave.
    fn others(&self, site: &Site) -> Result<Vec<Site>> {
        let mut targets = self.interfaces(site)?;
        if let Self::All { exclude_ingress: true, .. } = self {
            targets.retain(|one| one.index() != site.index());
        }
        Ok(targets)
    }

    pub(super) fn makes_copies(&self, site: &Site) -> Result<bool> {
        Ok(self.others(site)?.len() > 1)
    }

    /// Returns true if packets of several buffers would be lost. No kernel copies them for XDP, and newer ones then
    /// send none at all. In native mode the driver has to send them; in skb mode the stack does.
    pub(super) fn sends_whole_only(&self, site: &Site, request: &AttachRequest) -> Result<bool> {
        let copies = self.makes_copies(site)?;
        if is_in_stack(site, request)? {
            // In a chain, the chain decides whether it accepts such packets.
            return Ok(copies && request.priority.is_some());
        }
        Ok(copies || !sending::all_send_several_buffers(&self.others(site)?)?)
    }

    /// Returns limitations of the running kernel that a user may not expect.
    pub(super) fn caveats(&self, site: &Site, request: &AttachRequest) -> Result<Vec<String>> {
        let mut caveats = Vec::new();
        let mode = request.mode;
        let mtu = site.link()?.mtu;
        if mtu > ONE_BUFFER_MTU && self.sends_whole_only(site, request)? {
            let why = match xdp_abilities(site.namespace(), site.index())? {
                None => "Linux before 6.3 cannot forward them",
                Some(_) if self.makes_copies(site)? => "the kernel cannot copy them",
                Some(_) => "the target's driver cannot send them",
            };
            let instead = match request.priority {
                Some(_) => "skb mode without a priority does",
                None => "skb mode does",
            };
            caveats.push(format!(
                "packets of several buffers, which an MTU of {mtu} allows, are dropped: {why}; {instead}"
            ));
        }
        for target in self.others(site)? {
            if !target.link()?.is_up() {
                // The kernel stops at the first interface that it cannot send to.
                let others = if mode == Some(XdpMode::Skb) && self.makes_copies(site)? {
                    ", and in skb mode the other targets may not receive them either"
                } else {
                    ""
                };
                caveats.push(format!("{} is down: packets sent to it are lost until it is up{others}", target.label()));
            }
        }
        if let Self::Cpus { then, .. } = self
            && *then != FarVerdict::Pass
            && mode == Some(XdpMode::Skb)
            && !probe::kernel_is_at_least(6, 15)
        {
            caveats.push(
                "in skb mode, Linux before 6.15 may give to the stack up to seven of every eight packets that the other CPU should drop or redirect; native mode does not".to_owned(),
            );
        }
        Ok(caveats)
    }

    /// Writes the targets into the maps of a loaded program.
    pub(super) fn fill(&self, program: &Program, site: &Site) -> Result<()> {
        match self {
            Self::Cpus { cpus, queue, then } => fill_cpus(program, cpus, *queue, then),
            Self::One(..) | Self::All { .. } => fill_targets(program, site, &self.interfaces(site)?),
        }
    }
}

/// Returns true if the program will run in generic mode, in which the driver does not send.
pub(super) fn is_in_stack(site: &Site, request: &AttachRequest) -> Result<bool> {
    let abilities = xdp_abilities(site.namespace(), site.index())?;
    Ok(request.mode == Some(XdpMode::Skb) || abilities.is_some_and(|abilities| !abilities.native()))
}

pub(super) fn far_function(then: &FarVerdict) -> &'static str {
    match then {
        FarVerdict::Drop => "trawl_far_drop",
        FarVerdict::Pass => "trawl_far_pass",
        FarVerdict::Redirect(_) => "trawl_far_redir",
    }
}

pub(super) fn possible_cpus() -> Result<u32> {
    table::possible_cpus().map(|count| count as u32).map_err(|e| Error::os("cannot count the CPUs", e))
}

pub(super) fn check_cpus(cpus: &[u32]) -> Result<()> {
    let count = possible_cpus()?;
    let what = || {
        let list: Vec<_> = cpus.iter().map(u32::to_string).collect();
        format!("cannot redirect to the CPUs {}", list.join(","))
    };
    if cpus.is_empty() || cpus.len() > REDIRECT_MAX_CPUS {
        let why = format!("the list must have 1 to {REDIRECT_MAX_CPUS} CPUs");
        return Err(Error::usage(what(), why));
    }
    match cpus.iter().find(|cpu| **cpu >= count) {
        Some(_) => Err(Error::usage(what(), format!("the CPUs are 0 to {}", count - 1))),
        None => Ok(()),
    }
}

fn map<'a>(program: &'a Program, name: &str) -> Result<BorrowedFd<'a>> {
    program.map(name).ok_or_else(|| Error::failed(format!("cannot fill the map {name}"), "it is not in the object"))
}

pub(crate) fn open_table(fd: BorrowedFd<'_>, name: &str) -> Result<Table> {
    let open = || Table::new(fd.try_clone_to_owned()?);
    open().map_err(|e| Error::os(format!("cannot open the map {name}"), e))
}

/// Writes interfaces into a device map, which resolves them in the namespace of the process that fills it.
pub(crate) fn put_interfaces(
    devices: &Table,
    site: &Site,
    entries: impl Iterator<Item = (u32, u32)> + Send,
) -> Result<()> {
    let put = || {
        for (key, index) in entries {
            // struct bpf_devmap_val: the interface, and no program.
            let value = [index.to_ne_bytes(), 0i32.to_ne_bytes()].concat();
            devices.update(&key.to_ne_bytes(), &value, table::ANY)?;
        }
        Ok(())
    };
    run_maybe_in(site.namespace(), put)?
        .map_err(|e: std::io::Error| Error::os("cannot write an interface to the device map", e))
}

fn fill_targets(program: &Program, site: &Site, interfaces: &[Site]) -> Result<()> {
    let devices = open_table(map(program, TARGETS)?, TARGETS)?;
    let entries = (0u32..).zip(interfaces.iter().map(Site::index));
    put_interfaces(&devices, site, entries)
}

fn fill_cpus(program: &Program, cpus: &[u32], queue: u32, then: &FarVerdict) -> Result<()> {
    let function = far_function(then);
    let what = || format!("cannot use {function} on the other CPUs");
    let far = program.other(function).ok_or_else(|| Error::failed(what(), "it was not loaded"))?;
    let table = open_table(map(program, CPUS)?, CPUS)?;
    for cpu in cpus {
        // struct bpf_cpumap_val: the length of the queue, and the program.
        let value = [queue.to_ne_bytes(), far.as_fd().as_raw_fd().to_ne_bytes()].concat();
        table.update(&cpu.to_ne_bytes(), &value, table::ANY).map_err(|e| {
            let refused = e.raw_os_error();
            let error = Error::os(format!("cannot redirect to CPU {cpu}"), e);
            if refused == Some(ENODEV) {
                error.fix("cat /sys/devices/system/cpu/online shows whether the CPU is online")
            } else {
                error
            }
        })?;
    }
    Ok(())
}
