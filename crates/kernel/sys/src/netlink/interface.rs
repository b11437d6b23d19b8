//! The facts about one interface, gathered from netlink and ethtool.

use std::path::PathBuf;

use rustix::net::{AddressFamily, SocketType, netdevice};

use crate::error::Result;
use crate::netlink::ethtool::{DriverInfo, Ethtool};
use crate::netlink::{LinkRecord, Netlink, XdpAttachment};
use crate::netns::Namespace;

const LINKTYPE_ETHERNET: u16 = 1;
const LINKTYPE_RAW: u16 = 101;
const LINKTYPE_IEEE802_11: u16 = 105;
const LINKTYPE_IEEE802_11_RADIOTAP: u16 = 127;
/// For private use: the layout of the packets is unknown.
pub const LINKTYPE_USER0: u16 = 147;

const ARPHRD_RAWIP: u16 = 519;
const ARPHRD_IP6GRE: u16 = 823;

/// Returns the name of an interface of this thread's namespace.
pub fn name_of(index: u32) -> Option<String> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None).ok()?;
    netdevice::index_to_name(socket, index).ok()
}

/// An interface as a capture's file and `trawl doctor` describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    pub name: String,
    pub mac: Option<[u8; 6]>,
    pub mtu: u32,
    /// Bits a second, if the driver reports them.
    pub speed_bits: Option<u64>,
    /// LINKTYPE_ value, as in capture files.
    pub link_type: u16,
    pub driver: Option<String>,
    /// Version of the driver, if it has one.
    pub version: Option<String>,
    pub firmware: Option<String>,
    /// Bus address: a PCI address or the like.
    pub bus: Option<String>,
    /// The kind of a virtual interface: veth, bridge, vlan, …
    pub kind: Option<String>,
    pub rx_queues: u32,
    pub tx_queues: u32,
    pub up: bool,
    pub loopback: bool,
}

impl Interface {
    /// Finds the interface of that name in the namespace, or in the current one for `None`.
    pub fn find(namespace: Option<&Namespace>, name: &str) -> Result<Self> {
        let link = Netlink::open(namespace)?.link(name)?;
        // ethtool knows the interface's own name only.
        let ethtool = Ethtool::open(namespace, &link.name)?;
        // Drivers without ethtool can still be captured from.
        let driver = ethtool.driver().unwrap_or_default();
        Ok(Self::from_parts(link, driver, ethtool.speed()))
    }

    /// Describes a device that is known to a capture library only, not to the kernel.
    pub fn of_a_library(name: &str) -> Self {
        Self {
            index: 0,
            name: name.to_owned(),
            mac: None,
            mtu: 0,
            speed_bits: None,
            link_type: LINKTYPE_USER0,
            driver: None,
            version: None,
            firmware: None,
            bus: None,
            kind: None,
            rx_queues: 1,
            tx_queues: 1,
            up: true,
            loopback: false,
        }
    }

    fn from_parts(link: LinkRecord, driver: DriverInfo, speed: Option<u64>) -> Self {
        let known = |text: String| Some(text).filter(|t| !t.is_empty() && t != "N/A");
        let loopback = link.is_loopback();
        Self {
            index: link.index,
            mac: link.mac.as_slice().try_into().ok().filter(|mac| *mac != [0; 6]),
            mtu: link.mtu,
            speed_bits: speed.map(|megabits| megabits * 1_000_000),
            link_type: link_type(link.hardware_type),
            version: known(driver.version).filter(|_| !driver.driver.is_empty()),
            driver: known(driver.driver)
                .or_else(|| link.kind.clone())
                .or_else(|| loopback.then(|| "loopback".to_owned())),
            firmware: known(driver.firmware),
            bus: known(driver.bus),
            rx_queues: link.rx_queues,
            tx_queues: link.tx_queues,
            up: link.is_up(),
            loopback,
            kind: link.kind,
            name: link.name,
        }
    }

    /// Returns false if the driver copies AF_XDP frames although it reports that it need not: virtio_net does unless
    /// the device reaches the memory by the kernel's DMA interface (VIRTIO_F_ACCESS_PLATFORM).
    pub fn shares_memory(&self) -> bool {
        const ACCESS_PLATFORM: usize = 33;
        self.driver.as_deref() != Some("virtio_net")
            || self
                .bus
                .as_deref()
                .and_then(virtio_features)
                .is_some_and(|bits| bits.as_bytes().get(ACCESS_PLATFORM) == Some(&b'1'))
    }

    /// Returns the difference between the queue number recorded in a received packet and the queue that received it.
    /// The kernel records the number plus one, so that zero means that none was recorded. Packets out of a veth or
    /// netkit still have the number of the queue that the other end sent them by, which also receives them.
    pub fn received_queue_offset(&self) -> u32 {
        match self.kind.as_deref() {
            Some("veth" | "netkit") => 0,
            _ => 1,
        }
    }

    /// Returns the driver's name, or `unknown driver`.
    pub fn driver_name(&self) -> &str {
        self.driver.as_deref().unwrap_or("unknown driver")
    }

    /// Returns one line on the hardware: driver with its version, bus address, firmware.
    pub fn hardware_text(&self) -> String {
        let mut text = self.driver_name().to_owned();
        if let Some(version) = &self.version {
            text.push_str(&format!(" {version}"));
        }
        if let Some(bus) = &self.bus {
            text.push_str(&format!(" at {bus}"));
        }
        if let Some(firmware) = &self.firmware {
            text.push_str(&format!(", firmware {firmware}"));
        }
        text
    }

    /// Returns true if the interface is still in this namespace.
    pub fn is_there(&self, namespace: Option<&Namespace>) -> bool {
        let found = Netlink::open(namespace).and_then(|mut n| n.find_link_by_index(self.index));
        found.is_ok_and(|link| link.is_some())
    }

    /// Returns the XDP program attached to the interface: the one in the driver, if there are two.
    pub fn xdp_attached(&self, namespace: Option<&Namespace>) -> Result<Option<XdpAttachment>> {
        let link = Netlink::open(namespace)?.find_link_by_index(self.index)?;
        Ok(link.and_then(|link| link.xdp.first().copied()))
    }
}

/// Returns the capture file's link type for an `ARPHRD_…` value.
fn link_type(hardware_type: u16) -> u16 {
    match hardware_type {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => LINKTYPE_ETHERNET,
        // Packets without a link layer: tunnels, tun, wireguard.
        libc::ARPHRD_NONE
        | ARPHRD_RAWIP
        | libc::ARPHRD_TUNNEL
        | libc::ARPHRD_TUNNEL6
        | libc::ARPHRD_SIT
        | libc::ARPHRD_IPGRE
        | ARPHRD_IP6GRE
        | libc::ARPHRD_PPP => LINKTYPE_RAW,
        libc::ARPHRD_IEEE80211 => LINKTYPE_IEEE802_11,
        libc::ARPHRD_IEEE80211_RADIOTAP => LINKTYPE_IEEE802_11_RADIOTAP,
        _ => LINKTYPE_USER0,
    }
}

/// Returns the netmask of an interface's first IPv4 address, if it has one.
pub fn ipv4_netmask(namespace: Option<&Namespace>, name: &str) -> Option<std::net::Ipv4Addr> {
    Ethtool::open(namespace, name).ok()?.ipv4_netmask()
}

/// Returns the negotiated features of the virtio device at this address of the PCI bus, a digit for each.
fn virtio_features(address: &str) -> Option<String> {
    let children = std::fs::read_dir(format!("/sys/bus/pci/devices/{address}")).ok()?;
    let is_virtio = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("virtio"))
    };
    let mut paths = children.flatten().map(|entry| entry.path());
    std::fs::read_to_string(paths.find(is_virtio)?.join("features")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{VethEnd, create_veth};
    use crate::testing::{ScratchNamespace, root_or_skip};

    #[test]
    fn loopback_is_ethernet_without_an_address() {
        let lo = Interface::find(None, "lo").unwrap();
        assert_eq!((lo.index, lo.link_type, lo.mac, lo.loopback), (1, 1, None, true));
        assert_eq!(lo.xdp_attached(None).unwrap(), None);
        assert_eq!(lo.hardware_text(), "loopback");
    }

    #[test]
    fn a_veth_is_described_from_outside_its_namespace() {
        if !root_or_skip() {
            return;
        }
        let scratch = ScratchNamespace::create();
        let end = |name, mac| VethEnd {
            name,
            index: 0,
            namespace: Some(&scratch.namespace),
            mac,
            mtu: Some(9000),
            queues: 2,
            no_link_local: true,
        };
        let mac = [2, 0, 0, 0, 0, 7];
        create_veth(&end("red0", Some(mac)), &end("red1", None)).unwrap();
        let found = Interface::find(Some(&scratch.namespace), "red0").unwrap();
        assert_eq!((found.mac, found.mtu, found.speed_bits), (Some(mac), 9000, Some(10_000_000_000)));
        assert_eq!((found.driver.as_deref(), found.kind.as_deref()), (Some("veth"), Some("veth")));
        assert_eq!((found.rx_queues, found.tx_queues, found.up), (2, 2, false));
        assert_eq!(found.hardware_text(), "veth 1.0");
        assert!(Interface::find(None, "red0").is_err());
    }
}
