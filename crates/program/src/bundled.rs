//! Loads the bundled programs that have a fixed verdict or redirect, as the options of a command say.

mod redirect;
pub mod route;
pub mod stats;

use redirect::{CPUS, check_cpus, far_function, is_in_stack, possible_cpus};
use trawl_attach::AttachRequest;
use trawl_attach::site::Site;
use trawl_bpf::layout::Shared;
use trawl_bpf::layout::bundled::{
    REDIRECT_MAX_CPUS, RedirectConfig, TOUCH_NONE, TOUCH_PARSE, TOUCH_READ, TOUCH_SWAP, VerdictConfig,
};
use trawl_bpf::object;
use trawl_sys::netlink::XdpMode;
use trawl_sys::{Error, Result};

use crate::install::{self, Put};
use crate::load::{Program, Source};
use crate::readiness::{self, Readiness};
use crate::sending;

pub use crate::pins::{BALANCE, GUARD, NAMES};
pub use redirect::{FarVerdict, RedirectBy, RedirectTarget};
pub(crate) use redirect::{open_table, put_interfaces};

/// `BPF_F_EXCLUDE_INGRESS`.
const EXCLUDE_INGRESS: u32 = 1 << 4;
const CONFIG: &str = "config";

/// Access to each packet before the verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touch {
    #[default]
    None,
    /// Reads the ethertype.
    Read,
    /// Reads through to the IP header, and counts by the protocol found.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitVerdict {
    Drop,
    Pass,
    Aborted,
    /// Sends the packet back out of the interface, with the addresses swapped.
    Tx,
}

/// A bundled program and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bundled {
    Verdict(ExitVerdict),
    Redirect(RedirectTarget),
}

impl Bundled {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Verdict(ExitVerdict::Drop) => "drop",
            Self::Verdict(ExitVerdict::Pass) => "pass",
            Self::Verdict(ExitVerdict::Aborted) => "aborted",
            Self::Verdict(ExitVerdict::Tx) => "tx",
            Self::Redirect(_) => "redirect",
        }
    }

    /// The function's name in the object.
    fn function(&self) -> &'static str {
        match self {
            Self::Verdict(ExitVerdict::Drop) => "trawl_drop",
            Self::Verdict(ExitVerdict::Pass) => "trawl_pass",
            Self::Verdict(ExitVerdict::Aborted) => "trawl_aborted",
            Self::Verdict(ExitVerdict::Tx) => "trawl_tx",
            Self::Redirect(RedirectTarget::One(_, RedirectBy::Helper)) => "trawl_redirect",
            Self::Redirect(RedirectTarget::One(_, RedirectBy::Devmap)) => "trawl_redir_map",
            Self::Redirect(RedirectTarget::All { .. }) => "trawl_redir_all",
            Self::Redirect(RedirectTarget::Cpus { .. }) => "trawl_redir_cpu",
        }
    }

    /// Attaches the program to the interface until it is detached. Other interfaces that it needs are made ready, and
    /// restored with it.
    pub fn load(&self, touch: Touch, site: &Site, request: &AttachRequest) -> Result<Put> {
        self.check_headers(touch, site)?;
        let mut ready = Readiness::default();
        // In skb mode packets take the stack's own path.
        if !is_in_stack(site, request)? {
            self.make_ready(site, &mut ready)?;
        }
        let mut source = match self {
            Self::Verdict(_) => self.verdict_source(touch)?,
            Self::Redirect(target) => {
                let whole_only = target.sends_whole_only(site, request)?;
                let mut source = self.redirect_source(target, touch, site, whole_only)?;
                if target.makes_copies(site)? && request.priority.is_none() && is_in_stack(site, request)? {
                    // The kernel then puts each packet into one buffer, which it can copy.
                    source.set_linear();
                }
                source
            }
        };
        if request.mode == Some(XdpMode::Offload) {
            source.offload();
        }
        let fill = |program: &mut Program| {
            if let Self::Redirect(target) = self {
                target.fill(program, site)?;
            }
            program.remember(&ready)
        };
        let mut put = install::put_alone(site, source, request, fill)?;
        if self.sends_back_by(site)? {
            put.installed = readiness::check_sending(site, put.installed)?;
        }
        put.notices.extend(ready.notices());
        if let Self::Redirect(target) = self {
            let request = AttachRequest { mode: put.installed.mode(), ..*request };
            put.notices.extend(target.caveats(site, &request)?);
        }
        ready.keep();
        Ok(put)
    }

    /// Returns true if packets may be redirected to the interface that they arrive on.
    fn sends_back_by(&self, site: &Site) -> Result<bool> {
        match self {
            Self::Redirect(target) => {
                let targets = target.interfaces(site)?;
                Ok(targets.iter().any(|one| one.index() == site.index()))
            }
            Self::Verdict(_) => Ok(false),
        }
    }

    /// Refuses programs that read Ethernet headers, or send packets on with them, on a tunnel, whose packets have none.
    fn check_headers(&self, touch: Touch, site: &Site) -> Result<()> {
        let mut sites = match self {
            Self::Redirect(target) => target.interfaces(site)?,
            Self::Verdict(_) => Vec::new(),
        };
        let is_blind = matches!(self, Self::Verdict(ExitVerdict::Drop | ExitVerdict::Pass | ExitVerdict::Aborted));
        if !is_blind || touch != Touch::None {
            sites.push(site.clone());
        }
        for one in sites {
            if !one.has_ethernet()? {
                return Err(Error::failed(
                    format!("cannot load {} on {}", self.name(), site.label()),
                    format!("packets have no Ethernet header on {}", one.label()),
                )
                .fix("use drop, pass or aborted with --touch none"));
            }
        }
        Ok(())
    }

    fn make_ready(&self, site: &Site, ready: &mut Readiness) -> Result<()> {
        match self {
            Self::Verdict(ExitVerdict::Tx) => {
                ready.for_sending_on(site)?;
                ready.for_sending_back(site)
            }
            Self::Verdict(_) => Ok(()),
            Self::Redirect(target) => {
                ready.for_sending_on(site)?;
                for one in target.interfaces(site)? {
                    if one.index() == site.index() {
                        ready.for_sending_with_program(&one)?
                    } else {
                        ready.for_sending(&one)?
                    }
                }
                Ok(())
            }
        }
    }

    /// Returns the other interfaces that get a program too when this one is loaded: their drivers send nothing without
    /// one.
    pub fn also_on(&self, site: &Site, request: &AttachRequest) -> Result<Vec<Site>> {
        let mut targets = match self {
            Self::Redirect(target) if !is_in_stack(site, request)? => target.interfaces(site)?,
            _ => Vec::new(),
        };
        targets.retain(|one| one.index() != site.index() && sending::needs_program(one).unwrap_or(false));
        Ok(targets)
    }

    fn verdict_source(&self, touch: Touch) -> Result<Source> {
        let mut source = self.source(object::XDP_VERDICT)?;
        let config = VerdictConfig { touch: touch.number() };
        source.set_variable(CONFIG, &config.to_bytes())?;
        Ok(source)
    }

    fn redirect_source(&self, target: &RedirectTarget, touch: Touch, site: &Site, whole_only: bool) -> Result<Source> {
        let mut source = self.source(object::XDP_REDIRECT)?;
        let interfaces = target.interfaces(site)?;
        let mut config = RedirectConfig {
            touch: touch.number(),
            target: interfaces.first().map_or(0, Site::index),
            broadcast_flags: 0,
            whole_only: whole_only.into(),
            cpu_count: 0,
            cpus: [0; REDIRECT_MAX_CPUS],
        };
        match target {
            RedirectTarget::One(..) => {}
            RedirectTarget::All { exclude_ingress, .. } => {
                config.broadcast_flags = u32::from(*exclude_ingress) * EXCLUDE_INGRESS
            }
            RedirectTarget::Cpus { cpus, then, .. } => {
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

    fn source(&self, object: &[u8]) -> Result<Source> {
        let mut source = Source::embedded(self.name(), object)?;
        source.choose(Some(self.function()))?;
        Ok(source)
    }
}
