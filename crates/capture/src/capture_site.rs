//! A capture site: an interface in a network namespace.

use std::sync::Arc;

use trawl_bpf::probe::{Capability, lack_of};
use trawl_filter::expression::{self, LinkType};
use trawl_packet::pcapng::block::{LINKTYPE_ETHERNET, LINKTYPE_RAW};
use trawl_program::pins;
use trawl_program::reload::{self, Reload, ReloadMethod};
use trawl_sys::netlink::interface::{Interface, ipv4_netmask};
use trawl_sys::netns::{self, Namespace};
use trawl_sys::{Error, Result};

use trawl_plan::options::{CaptureOptions, Direction};
use trawl_plan::pod::Pod;
use trawl_sys::words::word;

/// Prefixes before a colon in names of devices, which are not namespaces.
const PREFIXES: [&str; 9] = ["netmap", "vale", "zc", "dpdk", "nflog", "nfqueue", "dbus-", "dag", "rpcap"];

/// One `-i` argument.
#[derive(Clone, Debug)]
pub struct CaptureSite {
    /// Name as typed: `veth0`, or `red:veth0`.
    pub label: String,
    pub namespace: Option<Namespace>,
    pub interface: Interface,
    /// True if a pattern such as `-i any` matched the interface: if no other tap works there, the packet tap is used.
    pub one_of_any: bool,
    /// The Kubernetes pod whose packets are captured here.
    pub pod: Option<Arc<Pod>>,
    /// The program that has hooks for the duration of the capture: its id, and its tag without them.
    pub lent: Option<(u32, String)>,
}

impl CaptureSite {
    /// Finds `NAME` in the given namespace (or the present one), or `NAMESPACE:NAME`.
    pub fn find(text: &str, default_namespace: Option<&str>) -> Result<Self> {
        let (namespace, name) = netns::split_namespace(text, default_namespace);
        if name.is_empty() {
            return Err(Error::usage(format!("interface '{text}'"), "no interface is named"));
        }
        let namespace = namespace.map(Namespace::open).transpose()?;
        let interface = Interface::find(namespace.as_ref(), name)?;
        Ok(Self { label: text.to_owned(), namespace, interface, one_of_any: false, pod: None, lent: None })
    }

    /// Finds `NAME` in the given namespace (or the present one), or `NAMESPACE:NAME`, with NAME a device of a libpcap:
    /// an interface, or anything else that the library knows.
    pub fn of_library(text: &str, default_namespace: Option<&str>) -> Result<Self> {
        let (namespace, name) = match text.split_once(':') {
            Some((before, name)) if !is_prefix(before) => (Some(before), name),
            _ => (default_namespace, text),
        };
        if name.is_empty() {
            let what = format!("interface '{text}'");
            return Err(Error::usage(what, "no device is named"));
        }
        let namespace = namespace.map(Namespace::open).transpose()?;
        let interface = Interface::find(namespace.as_ref(), name).unwrap_or_else(|_| Interface::of_a_library(name));
        Ok(Self { label: text.to_owned(), namespace, interface, one_of_any: false, pod: None, lent: None })
    }

    /// Parses `dpdk:PORT` or `dpdk:all`.
    pub fn of_dpdk(text: &str) -> Result<Self> {
        let port = text.strip_prefix("dpdk:").unwrap_or_default();
        if port != "all" && port.parse::<u16>().is_err() {
            return Err(Error::usage(
                format!("interface '{text}'"),
                "the dpdk tap requires dpdk:PORT, with the port's number, or dpdk:all",
            ));
        }
        let interface = Interface {
            link_type: LINKTYPE_ETHERNET,
            // The number of queues is known once the helper has joined the application, which then refuses other
            // queues.
            rx_queues: u32::MAX,
            tx_queues: u32::MAX,
            ..Interface::of_a_library(text)
        };
        Ok(Self { label: text.to_owned(), namespace: None, interface, one_of_any: false, pod: None, lent: None })
    }

    /// Returns libpcap's compiler options for the site's packets.
    pub fn compiler_options(&self, snaplen: u32) -> Result<expression::CompilerOptions> {
        let link = match self.interface.link_type {
            LINKTYPE_ETHERNET => LinkType::ETHERNET,
            LINKTYPE_RAW => LinkType::RAW_IP,
            other => {
                return Err(Error::failed(
                    format!("cannot filter on {}", self.label),
                    format!("link type {other} is not supported"),
                ));
            }
        };
        Ok(expression::CompilerOptions {
            link,
            snaplen,
            netmask: ipv4_netmask(self.namespace.as_ref(), &self.interface.name),
            optimise: true,
            file: None,
        })
    }

    /// Returns the interface as the site of an attachment.
    pub(crate) fn to_attach(&self) -> Result<trawl_attach::Site> {
        trawl_attach::Site::named(self.namespace.clone(), &self.interface.name)
    }

    /// Returns the command that reloads the interface's program with hooks for the `tailcall` tap.
    pub(crate) fn with_hooks(&self, program: u32) -> Reload {
        match self.to_attach() {
            Ok(site) => reload::with_hooks(&site, program),
            Err(_) => Reload { interface: self.label.clone(), how: ReloadMethod::Unknown },
        }
    }

    /// Returns the tag without hooks of a program on the interface, if trawl inserted hooks.
    pub(crate) fn plain_tag(&self, program: u32) -> Option<String> {
        let lent = self.lent.as_ref().filter(|(id, _)| *id == program);
        lent.map(|(_, tag)| tag.clone()).or_else(|| pins::plain_tag(&self.to_attach().ok()?, program))
    }

    /// Returns an error if this process may not open other processes' programs.
    pub(crate) fn missing_right(&self) -> Option<Error> {
        let (why, how) = lack_of(&[Capability::SysAdmin])?;
        let what = format!("cannot inspect the XDP program on {}", self.label);
        Some(Error::failed(what, why).fix(how))
    }

    /// Returns the number of the interface's namespace, as programs read it.
    pub(crate) fn namespace_number(&self) -> Result<u32> {
        number_of(self.namespace.as_ref())
    }

    /// Returns true if all packets use one queue, so that the queue need not be recorded.
    pub fn has_one_queue(&self) -> bool {
        self.interface.rx_queues.max(self.interface.tx_queues) <= 1
    }

    /// Checks that the chosen queue exists.
    pub(crate) fn check_queue(&self, options: &CaptureOptions) -> Result<()> {
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
            0 | 1 => format!("it has only the {kind}queue 0"),
            _ => format!("it has the {kind}queues 0 to {}", queues - 1),
        };
        Err(Error::usage(format!("cannot choose queue {wanted} of {}", self.label), has)
            .fix(format!("ethtool -l {} shows the queues in use", word(&self.interface.name))))
    }
}

/// Returns the number of a namespace, or of the present one, as programs read it.
pub(crate) fn number_of(namespace: Option<&Namespace>) -> Result<u32> {
    let (_, inode) = match namespace {
        Some(namespace) => namespace.identity(),
        None => Namespace::current()?.identity(),
    };
    Ok(inode as u32)
}

fn is_prefix(before: &str) -> bool {
    let number_follows = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
    PREFIXES.iter().any(|prefix| match before.strip_prefix(prefix) {
        Some(rest) => number_follows(rest),
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_prefixes_are_not_namespaces() {
        for prefix in ["netmap", "vale0", "zc", "dpdk", "nflog", "vale"] {
            assert!(is_prefix(prefix), "{prefix}");
        }
        for namespace in ["red", "netmaps", "zcx", "vale-a", ""] {
            assert!(!is_prefix(namespace), "{namespace}");
        }
    }
}
