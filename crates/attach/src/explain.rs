//! Explains why the kernel or the driver refuses a program on an interface.

use trawl_sys::Error;
use trawl_sys::errno::{EBUSY, EEXIST, EINVAL, ENOSPC, EOPNOTSUPP, EPERM, ERANGE};
use trawl_sys::netlink::ethtool::{Ethtool, EthtoolFeature};
use trawl_sys::netlink::interface::Interface;
use trawl_sys::netlink::{Peer, Refusal, XdpAbilities, XdpMode, veth_peer, xdp_abilities};
use trawl_sys::netns::Namespace;

use crate::site::Site;
use crate::snapshot::Snapshot;
use trawl_sys::words::word;

/// Largest packet that fits into a page in native XDP, less the kernel's headroom.
pub const LINEAR_MTU: u32 = 3498;

/// Largest MTU at which packets fit into one buffer of any driver.
pub const ONE_BUFFER_MTU: u32 = 1500;

/// Returns the error for a card that refuses the program or its maps.
pub fn cannot_offload(site: &Site, program: &str) -> Error {
    let driver = Interface::find(site.namespace(), site.name())
        .map_or_else(|_| "unknown".to_owned(), |about| about.driver_name().to_owned());
    Error::failed(
        format!("cannot load {program} for the card of {}", site.label()),
        format!("the card or its driver ({driver}) does not run XDP programs itself"),
    )
    .fix("use --mode native or --mode skb")
}

/// Returns the error for a kernel or driver that refuses the program.
pub fn cannot_attach(site: &Site, program: &str, mode: XdpMode, refusal: Refusal) -> Error {
    Attempt::new(site, program, mode, refusal).explain()
}

/// A refused attachment, and the properties of the interface.
struct Attempt<'a> {
    site: &'a Site,
    mode: XdpMode,
    refusal: Refusal,
    what: String,
    /// The message of the kernel or the driver, in brackets.
    quoted: String,
    driver: String,
    interface: Option<Interface>,
    peer: Option<Peer>,
    able: Option<XdpAbilities>,
}

impl<'a> Attempt<'a> {
    fn new(site: &'a Site, program: &str, mode: XdpMode, refusal: Refusal) -> Self {
        let interface = Interface::find(site.namespace(), site.name()).ok();
        let link = site.link().ok();
        Self {
            what: format!("cannot attach {program} to {} in {} mode", site.label(), mode.name()),
            quoted: match &refusal.says {
                Some(says) => format!(" (the kernel says: {says})"),
                None => String::new(),
            },
            driver: interface.as_ref().map_or("unknown", Interface::driver_name).to_owned(),
            interface,
            able: xdp_abilities(site.namespace(), site.index()).unwrap_or_default(),
            peer: link.and_then(|link| veth_peer(site.namespace(), &link).ok().flatten()),
            site,
            mode,
            refusal,
        }
    }

    fn fail(&self, why: impl std::fmt::Display) -> Error {
        Error::failed(self.what.clone(), format!("{why}{}", self.quoted))
    }

    fn mentions(&self, phrases: &[&str]) -> bool {
        let says = self.refusal.says.as_deref().unwrap_or_default().to_ascii_lowercase();
        phrases.iter().any(|phrase| says.contains(phrase))
    }

    /// Returns true if the driver accepts packets only in one buffer.
    fn needs_one_buffer(&self) -> bool {
        let is_limited = |able: XdpAbilities| able.native() && !able.multi_buffer();
        !self.is_veth() && self.able.is_some_and(is_limited)
    }

    fn exceeds_the_only_buffer(&self) -> bool {
        let mtu = self.interface.as_ref().map_or(0, |about| about.mtu);
        self.mode == XdpMode::Native && self.needs_one_buffer() && mtu > ONE_BUFFER_MTU
    }

    fn is_veth(&self) -> bool {
        self.driver == "veth"
    }

    fn explain(self) -> Error {
        let errno = self.refusal.errno;
        let silent = self.refusal.says.is_none();
        if errno == EPERM && silent {
            return Error::os(self.what, std::io::Error::from_raw_os_error(EPERM))
                .fix("this requires root (CAP_NET_ADMIN)");
        }
        // igb and vmxnet3 give links no reason.
        let may_be_size = errno == ERANGE || ([EINVAL, EOPNOTSUPP].contains(&errno) && self.exceeds_the_only_buffer());
        if self.mentions(&["mtu", "too large", "single-buffer", "jumbo", "frame size"]) || (may_be_size && silent) {
            return self.too_large();
        }
        if self.mentions(&["queue", "tx ring", "channel"]) || (errno == ENOSPC && silent) {
            return self.too_few_queues();
        }
        let offloads = ["lro", "gro_hw", "gro-hw", "csum", "offload", "gso", "rxvlan", "header-split", "hds"];
        if self.mode != XdpMode::Offload && self.mentions(&offloads) {
            return self.offload_conflict();
        }
        if self.mentions(&["upper device"]) {
            return self.occupied_above();
        }
        match (self.mode, errno) {
            (XdpMode::Offload, EOPNOTSUPP | EINVAL) => self
                .fail(format!("the card or its driver ({}) does not run XDP programs itself", self.driver))
                .fix("use --mode native or --mode skb"),
            (XdpMode::Native, EOPNOTSUPP) if self.able.is_some_and(XdpAbilities::native) => self
                .fail(format!("the driver ({}) refuses native XDP in its current configuration", self.driver))
                .fix("use --mode skb"),
            (XdpMode::Native, EOPNOTSUPP) => {
                self.fail(format!("the driver ({}) has no native XDP", self.driver)).fix("use --mode skb")
            }
            (_, EBUSY | EEXIST) => self
                .fail("another program is attached")
                .fix(format!("trawl xdp status -i {} shows which", word(self.site.label()))),
            _ => match &self.refusal.says {
                Some(says) => Error::failed(self.what.clone(), format!("the kernel says: {says}")),
                None => Error::os(self.what, std::io::Error::from_raw_os_error(errno)),
            },
        }
    }

    /// Explains the refusal of packets that do not fit into a page, and so come in several pieces.
    fn too_large(self) -> Error {
        let (pieces, instead, most) = if self.needs_one_buffer() {
            (
                "for native XDP with its driver, which accepts packets in one buffer only",
                "use --mode skb",
                ONE_BUFFER_MTU,
            )
        } else {
            (
                "for native XDP with a program that accepts packets in one piece only",
                "compile the program with SEC(\"xdp.frags\") if it handles packets in several pieces; or use --mode skb",
                LINEAR_MTU,
            )
        };
        let of_peer = self.mentions(&["peer"]) || (self.is_veth() && !self.mentions(&["mtu"]));
        let (whose, command) = match (&self.peer, of_peer) {
            (_, false) => {
                let mtu = self.interface.as_ref().map_or(0, |about| about.mtu);
                let (prefix, name) = (self.site.prefix(), self.site.name());
                let command = format!("{prefix}ip link set {} mtu {most}", word(name));
                (format!("its MTU of {mtu}"), command)
            }
            (Some(peer), true) => {
                let (prefix, link) = (peer.exec_prefix(), &peer.link);
                let command = format!("{prefix}ip link set {} mtu {LINEAR_MTU}", word(&link.name));
                let whose = format!("the MTU of its peer {} ({})", link.name, link.mtu);
                (whose, command)
            }
            (None, true) => ("the MTU of its peer".to_owned(), format!("run there: ip link set IF mtu {LINEAR_MTU}")),
        };
        self.fail(format!("{whose} is too large {pieces}")).fix(format!("{command}; or {instead}"))
    }

    fn too_few_queues(self) -> Error {
        let (prefix, name) = (self.site.prefix(), self.site.name());
        let channels = |namespace: Option<&Namespace>, name: &str| Ethtool::open(namespace, name).ok()?.channels().ok();
        let own = channels(self.site.namespace(), name);
        let theirs = self.peer.as_ref().and_then(|peer| channels(peer.namespace.as_ref(), &peer.link.name));
        if let (true, Some(own), Some(theirs), Some(peer)) = (self.is_veth(), own, theirs, &self.peer) {
            let fix = if theirs.tx <= own.max_rx {
                format!("{prefix}ethtool -L {} rx {}", word(name), theirs.tx)
            } else {
                format!("{}ethtool -L {} tx {}", peer.exec_prefix(), word(&peer.link.name), own.rx)
            };
            return self
                .fail(format!(
                    "it has {} receive queues, but its peer {} has {} send queues: packets of the other queues would be dropped",
                    own.rx, peer.link.name, theirs.tx
                ))
                .fix(format!("{fix}; or use --mode skb"));
        }
        let few = own.map_or_else(String::new, |own| {
            format!(" ({} in use of {})", own.combined.max(own.rx), own.max_combined.max(own.max_rx))
        });
        self.fail(format!("it has too few free queues{few}: XDP sends from queues of its own")).fix(format!(
            "{prefix}ethtool -L {} combined N, with N half of the current number; or use --mode skb",
            word(name)
        ))
    }

    fn occupied_above(self) -> Error {
        match Snapshot::read(self.site).ok().and_then(|now| now.above) {
            Some(above) => program_above(self.what, self.site, &above),
            None => self
                .fail("an interface above it has an XDP program")
                .fix("trawl xdp status --all-namespaces shows which"),
        }
    }

    fn offload_conflict(self) -> Error {
        let (prefix, name) = (self.site.prefix(), self.site.name());
        let features =
            Ethtool::open(self.site.namespace(), name).and_then(|ethtool| ethtool.features()).unwrap_or_default();
        // Features that drivers refuse XDP for, by their ethtool names.
        let suspects = ["rx-lro", "rx-gro-hw", "rx-vlan-hw-parse", "rx-checksum"];
        let on: Vec<_> = suspects
            .into_iter()
            .filter(|suspect| {
                let named = |one: &&EthtoolFeature| one.name == *suspect && one.on && one.changeable;
                features.iter().any(|one| named(&one))
            })
            .map(|suspect| format!("{suspect} off"))
            .collect();
        let fix = if on.is_empty() {
            format!("trawl doctor -i {} shows the offloads; or use --mode skb", word(self.site.label()))
        } else {
            format!("{prefix}ethtool -K {} {}; or use --mode skb", word(name), on.join(" "))
        };
        self.fail("an offload is incompatible with XDP").fix(fix)
    }
}

/// Returns the error for a program above: the kernel accepts none on a bridge's port, for example, if the bridge has
/// one.
pub fn program_above(what: String, site: &Site, above: &str) -> Error {
    let above = match site.sibling(above) {
        Ok(found) => found.label().to_owned(),
        Err(_) => above.to_owned(),
    };
    Error::failed(what, format!("{above}, which is above it, has an XDP program"))
        .fix(format!("trawl xdp unload {} --all removes it", word(&above)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Typical messages of drivers, and the explanation expected for each.
    #[test]
    fn messages_of_drivers_are_explained() {
        let site = Site::find("lo", None).expect("every namespace has one");
        const LARGE: &str = "is too large for native XDP";
        const QUEUES: &str = "XDP sends from queues of its own";
        const OFFLOAD: &str = "an offload is incompatible with XDP";
        for (errno, says, expected) in [
            // virtio_net
            (EOPNOTSUPP, "Can't set XDP while host is implementing GRO_HW/CSUM, disable GRO_HW/CSUM first", OFFLOAD),
            (EINVAL, "MTU too large to enable XDP without frags", LARGE),
            (EINVAL, "MTU 9000 larger than limit 3506", LARGE),
            // ena
            (
                EINVAL,
                "Failed to set xdp program, the Rx/Tx channel count should be at most half of the maximum allowed channel count. The current queue count (8), the maximal queue count (8)",
                QUEUES,
            ),
            // bnxt
            (EOPNOTSUPP, "ethtool rx/tx channels must be combined to support XDP", QUEUES),
            // stmmac
            (EOPNOTSUPP, "Jumbo frames not supported", LARGE),
            // ice, i40e
            (EOPNOTSUPP, "MTU is too large for linear frames and XDP prog does not support frags", LARGE),
            // mlx5
            (EINVAL, "can't set XDP with LRO is on, disable LRO first", OFFLOAD),
            (EINVAL, "XDP is not supported with header-split", OFFLOAD),
            // The kernel's own code, for any driver.
            (
                EEXIST,
                "Cannot attach when an upper device already has a program",
                "an interface above it has an XDP program",
            ),
            (EBUSY, "Driver already has an XDP program: it is attached otherwise", "another program is attached"),
        ] {
            let refusal = Refusal { errno, says: Some(says.to_owned()) };
            let message = cannot_attach(&site, "filter", XdpMode::Native, refusal).to_string();
            assert!(message.contains(expected), "{says}: {message}");
            assert!(message.contains(says), "the driver's own words: {message}");
        }
    }
}
