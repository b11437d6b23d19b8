//! The bundled programs with a fixed verdict and those that redirect: from what a person asks for to a program that
//! stands on an interface.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use trawl_kernel::bpf::object;
use trawl_kernel::bpf::table::{self, Table};
use trawl_kernel::layout::Shared;
use trawl_kernel::layout::bundled::{
    REDIRECT_MAX_CPUS, REDIRECT_MAX_TARGETS, RedirectConfig, TOUCH_NONE, TOUCH_PARSE, TOUCH_READ,
    TOUCH_SWAP, VerdictConfig,
};
use trawl_kernel::netlink::{XdpMode, xdp_abilities};
use trawl_kernel::netns::run_maybe_in;
use trawl_kernel::{Error, Result, probe};

use crate::attach::Wish;
use crate::load::{Program, Source};
use crate::place::{self, Put};
use crate::ready::{self, Readiness};
use crate::site::Site;
use crate::standing::Standing;

/// `BPF_F_EXCLUDE_INGRESS`.
const EXCLUDE_INGRESS: u32 = 1 << 4;
/// Packets of an MTU up to this one are in one buffer with every driver.
const ONE_BUFFER: u32 = 1500;
const CONFIG: &str = "config";
const TARGETS: &str = "targets";
const CPUS: &str = "cpus";

/// What is done with each packet before the verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touch {
    #[default]
    None,
    /// Reads the ethertype.
    Read,
    /// Reads through to the IP header, and counts by what it finds.
    Parse,
    /// Swaps the Ethernet addresses.
    Swap,
}

impl Touch {
    fn number(self) -> u32 {
        let number = match self {
            Self::None => TOUCH_NONE,
            Self::Read => TOUCH_READ,
            Self::Parse => TOUCH_PARSE,
            Self::Swap => TOUCH_SWAP,
        };
        number as u32
    }
}

/// What can be asked of any bundled program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extras {
    pub touch: Touch,
    /// Captures can look in at its entry and its exits.
    pub tappable: bool,
    /// Its place in a chain, if it is to be in one.
    pub priority: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Drop,
    Pass,
    Aborted,
    /// Back out of the interface, with the addresses swapped.
    Tx,
}

/// By which of the kernel's ways one interface is redirected to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    #[default]
    Helper,
    Devmap,
}

/// What becomes of packets on the other CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Then {
    Drop,
    #[default]
    Pass,
    /// To this interface.
    Redirect(String),
}

/// Where packets are redirected to. Interfaces are those of the namespace that the packets come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    One(String, By),
    /// A copy to each.
    All {
        interfaces: Vec<String>,
        /// Not to the one that the packet came in by.
        exclude_ingress: bool,
    },
    /// To these CPUs, all packets of a flow to the same.
    Cpus {
        cpus: Vec<u32>,
        /// How many packets wait for each at most.
        queue: u32,
        then: Then,
    },
}

/// A bundled program and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bundled {
    Verdict(Verdict),
    Redirect(Target),
}

/// A bundled program that was put on an interface.
#[derive(Debug)]
pub struct Loaded {
    pub standing: Standing,
    /// What was switched on other interfaces for it, and what else is good to know.
    pub told: Vec<String>,
}

/// Names that stand for a bundled program where a file could be named.
pub const NAMES: [&str; 5] = ["drop", "pass", "aborted", "tx", "redirect"];

impl Bundled {
    /// Its name among [`NAMES`].
    pub fn name(&self) -> &'static str {
        match self {
            Self::Verdict(Verdict::Drop) => "drop",
            Self::Verdict(Verdict::Pass) => "pass",
            Self::Verdict(Verdict::Aborted) => "aborted",
            Self::Verdict(Verdict::Tx) => "tx",
            Self::Redirect(_) => "redirect",
        }
    }

    /// The function's name in the object.
    fn function(&self) -> &'static str {
        match self {
            Self::Verdict(Verdict::Drop) => "trawl_drop",
            Self::Verdict(Verdict::Pass) => "trawl_pass",
            Self::Verdict(Verdict::Aborted) => "trawl_aborted",
            Self::Verdict(Verdict::Tx) => "trawl_tx",
            Self::Redirect(Target::One(_, By::Helper)) => "trawl_redirect",
            Self::Redirect(Target::One(_, By::Devmap)) => "trawl_redir_map",
            Self::Redirect(Target::All { .. }) => "trawl_redir_all",
            Self::Redirect(Target::Cpus { .. }) => "trawl_redir_cpu",
        }
    }

    /// Puts it on the interface, where it stays until it is detached; what other interfaces need for it is done and
    /// undone with it.
    pub fn load(&self, extras: Extras, site: &Site, wish: &Wish) -> Result<Loaded> {
        self.check_headers(extras.touch, site)?;
        let mut ready = Readiness::default();
        // In skb mode packets go by the stack's own ways.
        if wish.mode != Some(XdpMode::Skb) {
            self.make_ready(site, &mut ready)?;
        }
        let mut source = match self {
            Self::Verdict(_) => self.verdict_source(extras)?,
            Self::Redirect(target) => {
                let whole_only = target.sends_whole_only(site, wish, extras.priority)?;
                let mut source = self.redirect_source(target, extras, site, whole_only)?;
                if target.makes_copies(site)?
                    && extras.priority.is_none()
                    && is_in_stack(site, wish)?
                {
                    // Then the kernel puts each packet into one buffer, which it can copy.
                    source.set_linear();
                }
                source
            }
        };
        if wish.mode == Some(XdpMode::Offload) {
            source.offload();
        }
        let fill = |program: &mut Program| {
            if let Self::Redirect(target) = self {
                target.fill(program, site)?;
            }
            program.remember(&ready)
        };
        let Put { standing, notices } = match extras.priority {
            Some(_) => place::put_filled(site, source, wish, extras.priority, fill)?,
            None => place::put_alone(site, source, wish, fill)?,
        };
        let mut told = [notices, ready.told()].concat();
        if let Self::Redirect(target) = self {
            told.extend(target.caveats(site, standing.mode(), extras.priority)?);
        }
        ready.keep();
        Ok(Loaded { standing, told })
    }

    /// What looks at Ethernet headers, or sends packets on with them, would take a tunnel's packets for what they are
    /// not.
    fn check_headers(&self, touch: Touch, site: &Site) -> Result<()> {
        let mut sites = match self {
            Self::Redirect(target) => target.interfaces(site)?,
            Self::Verdict(_) => Vec::new(),
        };
        let is_blind = matches!(
            self,
            Self::Verdict(Verdict::Drop | Verdict::Pass | Verdict::Aborted)
        );
        if !is_blind || touch != Touch::None {
            sites.push(site.clone());
        }
        for one in sites {
            if !one.has_ethernet()? {
                return Err(Error::failed(
                    format!("cannot load {} on {}", self.name(), site.label()),
                    format!("packets have no Ethernet header on {}", one.label()),
                )
                .mend("drop, pass and aborted with --touch none need none"));
            }
        }
        Ok(())
    }

    fn make_ready(&self, site: &Site, ready: &mut Readiness) -> Result<()> {
        match self {
            Self::Verdict(Verdict::Tx) => {
                ready.for_sending_on(site)?;
                ready.for_sending_back(site)
            }
            Self::Verdict(_) => Ok(()),
            Self::Redirect(target) => {
                ready.for_sending_on(site)?;
                let leaves_by = target.interfaces(site)?;
                leaves_by.iter().try_for_each(|one| ready.for_sending(one))
            }
        }
    }

    fn verdict_source(&self, extras: Extras) -> Result<Source> {
        let mut source = self.source(object::VERDICT, extras)?;
        let config = VerdictConfig {
            touch: extras.touch.number(),
        };
        source.set_variable(CONFIG, &config.to_bytes())?;
        Ok(source)
    }

    fn redirect_source(
        &self,
        target: &Target,
        extras: Extras,
        site: &Site,
        whole_only: bool,
    ) -> Result<Source> {
        let mut source = self.source(object::REDIRECT, extras)?;
        let interfaces = target.interfaces(site)?;
        let mut config = RedirectConfig {
            touch: extras.touch.number(),
            target: interfaces.first().map_or(0, Site::index),
            broadcast_flags: 0,
            whole_only: whole_only.into(),
            cpu_count: 0,
            cpus: [0; REDIRECT_MAX_CPUS],
        };
        match target {
            Target::One(..) => {}
            Target::All {
                exclude_ingress, ..
            } => config.broadcast_flags = u32::from(*exclude_ingress) * EXCLUDE_INGRESS,
            Target::Cpus { cpus, then, .. } => {
                check_cpus(cpus)?;
                config.cpu_count = cpus.len() as u32;
                config.cpus[..cpus.len()].copy_from_slice(cpus);
                source.set_entries(CPUS, possible_cpus()?)?;
                source.also(far_function(then));
            }
        }
        source.set_variable(CONFIG, &config.to_bytes())?;
        Ok(source)
    }

    fn source(&self, object: &[u8], extras: Extras) -> Result<Source> {
        let mut source = Source::embedded(self.name(), object)?;
        source.choose(Some(self.function()))?;
        if extras.tappable {
            source.make_tappable();
        }
        Ok(source)
    }
}

impl Target {
    /// The interfaces that packets leave by.
    fn interfaces(&self, site: &Site) -> Result<Vec<Site>> {
        let names: Vec<&String> = match self {
            Self::One(name, _) => vec![name],
            Self::All { interfaces, .. } => interfaces.iter().collect(),
            Self::Cpus {
                then: Then::Redirect(name),
                ..
            } => vec![name],
            Self::Cpus { .. } => Vec::new(),
        };
        if names.len() > REDIRECT_MAX_TARGETS {
            return Err(Error::usage(
                format!("cannot redirect to {} interfaces", names.len()),
                format!("there is room for {REDIRECT_MAX_TARGETS}"),
            ));
        }
        names.into_iter().map(|name| site.beside(name)).collect()
    }

    /// The interfaces that a packet may leave by which came in by this one.
    fn others(&self, site: &Site) -> Result<Vec<Site>> {
        let mut targets = self.interfaces(site)?;
        if let Self::All {
            exclude_ingress: true,
            ..
        } = self
        {
            targets.retain(|one| one.index() != site.index());
        }
        Ok(targets)
    }

    fn makes_copies(&self, site: &Site) -> Result<bool> {
        Ok(self.others(site)?.len() > 1)
    }

    /// Whether packets of several buffers would be lost. No kernel copies them for XDP, and newer ones then send none
    /// at all. Natively it takes a driver that sends them; in skb mode the stack does.
    fn sends_whole_only(&self, site: &Site, wish: &Wish, priority: Option<u32>) -> Result<bool> {
        let copies = self.makes_copies(site)?;
        if is_in_stack(site, wish)? {
            // In a chain, it is the chain's to say whether there are such packets.
            return Ok(copies && priority.is_some());
        }
        Ok(copies || !ready::all_send_several_buffers(&self.others(site)?)?)
    }

    /// What a person may not expect of the kernel that this runs under.
    fn caveats(
        &self,
        site: &Site,
        mode: Option<XdpMode>,
        priority: Option<u32>,
    ) -> Result<Vec<String>> {
        let mut caveats = Vec::new();
        let mtu = site.link()?.mtu;
        let wish = Wish {
            mode,
            ..Wish::default()
        };
        if mtu > ONE_BUFFER && self.sends_whole_only(site, &wish, priority)? {
            let why = match xdp_abilities(site.namespace(), site.index())? {
                None => "Linux before 6.3 sends none on",
                Some(_) if self.makes_copies(site)? => "the kernel makes no copies of them",
                Some(_) => "the target's driver sends none on",
            };
            let instead = match priority {
                Some(_) => "--mode skb without --prio does",
                None => "--mode skb does",
            };
            caveats.push(format!(
                "packets of several buffers, which an MTU of {mtu} allows, are dropped: {why}; {instead}"
            ));
        }
        for target in self.others(site)? {
            if !target.link()?.is_up() {
                let others = match mode == Some(XdpMode::Skb) && self.makes_copies(site)? {
                    // The kernel gives up at the first that it cannot send to.
                    true => ", and in skb mode the others may not get it either",
                    false => "",
                };
                caveats.push(format!(
                    "{} is down: what is sent there is lost until it is up{others}",
                    target.label()
                ));
            }
        }
        if let Self::Cpus { then, .. } = self
            && *then != Then::Pass
            && mode == Some(XdpMode::Skb)
            && !probe::kernel_is_at_least(6, 15)
        {
            caveats.push(
                "in skb mode Linux before 6.15 may give packets to the stack that should be dropped or redirected on the other CPU: all but the first of each eight at most; --mode native does not".to_owned(),
            );
        }
        Ok(caveats)
    }

    /// Puts into a loaded program's maps where its packets go.
    fn fill(&self, program: &Program, site: &Site) -> Result<()> {
        match self {
            Self::Cpus { cpus, queue, then } => fill_cpus(program, cpus, *queue, then),
            Self::One(..) | Self::All { .. } => {
                fill_targets(program, site, &self.interfaces(site)?)
            }
        }
    }
}

/// Whether the program is to run behind the driver, where it is not the driver that sends.
fn is_in_stack(site: &Site, wish: &Wish) -> Result<bool> {
    let able = xdp_abilities(site.namespace(), site.index())?;
    Ok(wish.mode == Some(XdpMode::Skb) || able.is_some_and(|able| !able.native()))
}

fn far_function(then: &Then) -> &'static str {
    match then {
        Then::Drop => "trawl_far_drop",
        Then::Pass => "trawl_far_pass",
        Then::Redirect(_) => "trawl_far_redir",
    }
}

fn possible_cpus() -> Result<u32> {
    table::possible_cpus()
        .map(|count| count as u32)
        .map_err(|e| Error::os("cannot count the CPUs", e))
}

fn check_cpus(cpus: &[u32]) -> Result<()> {
    let there_are = possible_cpus()?;
    let what = || {
        let list: Vec<_> = cpus.iter().map(u32::to_string).collect();
        format!("cannot redirect to the CPUs {}", list.join(","))
    };
    if cpus.is_empty() || cpus.len() > REDIRECT_MAX_CPUS {
        let why = format!("it takes 1 to {REDIRECT_MAX_CPUS} of them");
        return Err(Error::usage(what(), why));
    }
    match cpus.iter().find(|cpu| **cpu >= there_are) {
        Some(_) => Err(Error::usage(
            what(),
            format!("there are those from 0 to {}", there_are - 1),
        )),
        None => Ok(()),
    }
}

fn map<'a>(program: &'a Program, name: &str) -> Result<BorrowedFd<'a>> {
    program.map(name).ok_or_else(|| {
        Error::failed(
            format!("cannot fill the map {name}"),
            "it is not in the object",
        )
    })
}

pub(crate) fn open_table(fd: BorrowedFd<'_>, name: &str) -> Result<Table> {
    let open = || Table::new(fd.try_clone_to_owned()?);
    open().map_err(|e| Error::os(format!("cannot open the map {name}"), e))
}

/// A device map takes interfaces of the namespace that it is filled in.
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
        .map_err(|e: std::io::Error| Error::os("cannot put an interface into the device map", e))
}

fn fill_targets(program: &Program, site: &Site, interfaces: &[Site]) -> Result<()> {
    let devices = open_table(map(program, TARGETS)?, TARGETS)?;
    let entries = (0u32..).zip(interfaces.iter().map(Site::index));
    put_interfaces(&devices, site, entries)
}

fn fill_cpus(program: &Program, cpus: &[u32], queue: u32, then: &Then) -> Result<()> {
    let function = far_function(then);
    let what = || format!("cannot put {function} on the other CPUs");
    let far = program
        .other(function)
        .ok_or_else(|| Error::failed(what(), "it was not loaded"))?;
    let table = open_table(map(program, CPUS)?, CPUS)?;
    for cpu in cpus {
        // struct bpf_cpumap_val: the length of the queue, and the program.
        let value = [queue.to_ne_bytes(), far.as_fd().as_raw_fd().to_ne_bytes()].concat();
        table
            .update(&cpu.to_ne_bytes(), &value, table::ANY)
            .map_err(|e| {
                let refused = e.raw_os_error();
                let error = Error::os(format!("cannot redirect to CPU {cpu}"), e);
                match refused == Some(rustix::io::Errno::NODEV.raw_os_error()) {
                    true => error.mend("is the CPU on line?"),
                    false => error,
                }
            })?;
    }
    Ok(())
}
