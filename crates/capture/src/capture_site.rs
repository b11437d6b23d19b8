//! Where to capture: an interface in a network namespace.

use trawl_bpf::probe::{Capability, lack_of};
use trawl_program::reload::{self, Again, Reload};
use trawl_sys::interface::Interface;
use trawl_sys::netns::{self, Namespace};
use trawl_sys::{Error, Result};

use crate::options::{Direction, Options};

/// One `-i`.
#[derive(Clone, Debug)]
pub struct CaptureSite {
    /// As the person wrote it: `veth0`, or `red:veth0`.
    pub label: String,
    pub namespace: Option<Namespace>,
    pub interface: Interface,
    /// Nobody named it: it is one of all, where the packet tap will do if no other can.
    pub one_of_any: bool,
}

impl CaptureSite {
    /// `NAME` in the namespace given (or the present one), or `NAMESPACE:NAME`.
    pub fn find(text: &str, default_namespace: Option<&str>) -> Result<Self> {
        let (namespace, name) = netns::split_place(text, default_namespace);
        if name.is_empty() {
            return Err(Error::usage(
                format!("interface '{text}'"),
                "no interface is named",
            ));
        }
        let namespace = namespace.map(Namespace::open).transpose()?;
        let interface = Interface::find(namespace.as_ref(), name)?;
        Ok(Self {
            label: text.to_owned(),
            namespace,
            interface,
            one_of_any: false,
        })
    }
}

impl CaptureSite {
    /// The interface, as programs are attached to it.
    pub(crate) fn to_attach(&self) -> Result<trawl_attach::Site> {
        trawl_attach::Site::named(self.namespace.clone(), &self.interface.name)
    }

    /// How to load the program on it once more, so that the `hook` tap can look in.
    pub(crate) fn with_hooks(&self, program: u32) -> Reload {
        match self.to_attach() {
            Ok(site) => reload::with_hooks(&site, program),
            Err(_) => Reload {
                interface: self.label.clone(),
                how: Again::Unknown,
            },
        }
    }

    /// Why nothing can be said of the program on it, where this process may not open programs of others.
    pub(crate) fn may_not_look(&self) -> Option<Error> {
        let (why, how) = lack_of(&[Capability::SysAdmin])?;
        let what = format!("cannot look at the XDP program on {}", self.label);
        Some(Error::failed(what, why).fix(how))
    }

    /// The number of the interface's namespace, as programs read it.
    pub(crate) fn namespace_number(&self) -> Result<u32> {
        number_of(self.namespace.as_ref())
    }

    /// It need not be asked which queue a packet came or goes by.
    pub fn has_one_queue(&self) -> bool {
        self.interface.rx_queues.max(self.interface.tx_queues) <= 1
    }

    /// No packet comes by a queue that is not there.
    pub(crate) fn check_queue(&self, options: &Options) -> Result<()> {
        let of_sent = self.interface.tx_queues;
        let of_received = self.interface.rx_queues;
        let (kind, queues) = match options.direction {
            Some(Direction::In) => ("receive ", of_received),
            Some(Direction::Out) => ("transmit ", of_sent),
            _ => ("", of_received.max(of_sent)),
        };
        let Some(wanted) = options.queue.filter(|queue| *queue >= queues.max(1)) else {
            return Ok(());
        };
        let has = match queues {
            0 | 1 => format!("0 is the only {kind}queue that it has"),
            _ => format!("it has the {kind}queues 0 to {}", queues - 1),
        };
        Err(Error::usage(
            format!("cannot choose queue {wanted} of {}", self.label),
            has,
        )
        .fix(format!(
            "ethtool -l {} tells how many are in use",
            self.interface.name
        )))
    }
}

/// The number of a namespace, or of this one, as programs read it.
pub(crate) fn number_of(namespace: Option<&Namespace>) -> Result<u32> {
    let (_, inode) = match namespace {
        Some(namespace) => namespace.identity(),
        None => Namespace::current()?.identity(),
    };
    Ok(inode as u32)
}
