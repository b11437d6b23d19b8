//! ethtool queries by ioctl: driver, features, channels, rings, speed, counters, time stamps.
//!
//! The socket decides the namespace, so an [`Ethtool`] may be used from any thread.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::error::{Error, Result};
use crate::netns::{Namespace, run_maybe_in};

const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_SCHANNELS: u32 = 0x3d;
const ETHTOOL_GET_TS_INFO: u32 = 0x41;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;
const ETH_SS_STATS: u32 = 1;
const ETH_SS_FEATURES: u32 = 4;
const STRING_LENGTH: usize = 32;
const DRIVER_INFO_LENGTH: usize = 196;
const LINK_SETTINGS_LENGTH: usize = 48;
/// Offset of link_mode_masks_nwords.
const LINK_MODE_WORDS: usize = 15;
const LINK_MODE_MASKS_MAX: usize = 3 * 127 * 4;
const SOF_TIMESTAMPING_RX_HARDWARE: u32 = 1 << 2;
const HARDWARE_FILTER_ALL: u32 = 1 << 1;

/// The output of `ethtool -i`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverInfo {
    pub driver: String,
    pub version: String,
    pub firmware: String,
    pub bus: String,
}

/// The output of `ethtool -l`: current and largest numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    pub max_rx: u32,
    pub max_tx: u32,
    pub max_combined: u32,
    pub rx: u32,
    pub tx: u32,
    pub combined: u32,
}

/// The output of `ethtool -g`, for the plain receive and transmit rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rings {
    pub max_rx: u32,
    pub max_tx: u32,
    pub rx: u32,
    pub tx: u32,
}

/// One line of `ethtool -k`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EthtoolFeature {
    pub name: String,
    pub on: bool,
    /// True if the driver allows changes.
    pub changeable: bool,
}

/// The receive part of the output of `ethtool -T`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamping {
    pub receive_hardware: bool,
    /// Set if every packet can be stamped, not only packets of a time protocol.
    pub receive_all: bool,
    /// Number of the PTP clock, /dev/ptpN.
    pub clock: Option<u32>,
}

/// ethtool queries for one interface.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
    name: String,
}

impl Ethtool {
    pub fn open(namespace: Option<&Namespace>, interface: &str) -> Result<Self> {
        if interface.is_empty() || interface.len() >= libc::IFNAMSIZ || interface.contains('\0') {
            return Err(Error::failed(format!("interface {interface:?}"), "the name is not valid"));
        }
        let socket = run_maybe_in(namespace, || {
            socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        })?
        .map_err(|e| Error::os("cannot open a socket", e.into()))?;
        Ok(Self { socket, name: interface.to_owned() })
    }

    pub fn driver(&self) -> Result<DriverInfo> {
        let mut block = Block::new(ETHTOOL_GDRVINFO, DRIVER_INFO_LENGTH);
        self.ask(&mut block, "the driver")?;
        Ok(DriverInfo {
            driver: block.text(4, STRING_LENGTH),
            version: block.text(36, STRING_LENGTH),
            firmware: block.text(68, STRING_LENGTH),
            bus: block.text(100, STRING_LENGTH),
        })
    }

    /// Returns the offload features by the kernel's names (`rx-gro`, `rx-lro`, `tx-checksum-ip-generic`, …).
    pub fn features(&self) -> Result<Vec<EthtoolFeature>> {
        let names = self.strings(ETH_SS_FEATURES)?;
        let blocks = names.len().div_ceil(32);
        let mut block = Block::new(ETHTOOL_GFEATURES, 8 + blocks * 16);
        block.set(1, blocks as u32);
        self.ask(&mut block, "the features")?;
        let bit = |index: usize, word: usize| block.get(2 + index / 32 * 4 + word) >> (index % 32) & 1 != 0;
        let features = names.into_iter().enumerate().map(|(index, name)| EthtoolFeature {
            name,
            on: bit(index, 2),
            // Available to be changed, and not fixed.
            changeable: bit(index, 0) && !bit(index, 3),
        });
        Ok(features.filter(|f| !f.name.is_empty()).collect())
    }

    /// Returns true if the feature is on; `None` if the kernel does not know it.
    pub fn feature(&self, name: &str) -> Result<Option<bool>> {
        Ok(self.features()?.into_iter().find(|f| f.name == name).map(|f| f.on))
    }

    pub fn set_feature(&self, name: &str, on: bool) -> Result<()> {
        let refused = |why| {
            let wanted = if on { "on" } else { "off" };
            Error::failed(format!("cannot turn the feature {name} of {} {wanted}", self.name), why)
        };
        let names = self.strings(ETH_SS_FEATURES)?;
        let Some(index) = names.iter().position(|n| n == name) else {
            return Err(refused("the kernel has no such feature"));
        };
        let fixed = || refused("the driver does not let it change");
        if !self.features()?.iter().any(|f| f.name == name && f.changeable) {
            return Err(fixed());
        }
        let blocks = names.len().div_ceil(32);
        let mut block = Block::new(ETHTOOL_SFEATURES, 8 + blocks * 8);
        block.set(1, blocks as u32);
        let word = 2 + index / 32 * 2;
        block.set(word, 1 << (index % 32));
        block.set(word + 1, u32::from(on) << (index % 32));
        self.ask(&mut block, "the features")?;
        // A driver may silently keep a feature that another one depends on.
        if self.feature(name)? == Some(on) { Ok(()) } else { Err(fixed()) }
    }

    pub fn channels(&self) -> Result<Channels> {
        let mut block = Block::new(ETHTOOL_GCHANNELS, 36);
        self.ask(&mut block, "the channels")?;
        Ok(Channels {
            max_rx: block.get(1),
            max_tx: block.get(2),
            max_combined: block.get(4),
            rx: block.get(5),
            tx: block.get(6),
            combined: block.get(8),
        })
    }

    /// Sets the numbers of receive, transmit and combined channels.
    pub fn set_channels(&self, rx: u32, tx: u32, combined: u32) -> Result<()> {
        let mut block = Block::new(ETHTOOL_GCHANNELS, 36);
        self.ask(&mut block, "the channels")?;
        block.set(0, ETHTOOL_SCHANNELS);
        block.set(5, rx);
        block.set(6, tx);
        block.set(8, combined);
        self.ask(&mut block, "new channels")
    }

    pub fn rings(&self) -> Result<Rings> {
        let mut block = Block::new(ETHTOOL_GRINGPARAM, 36);
        self.ask(&mut block, "the ring sizes")?;
        Ok(Rings { max_rx: block.get(1), max_tx: block.get(4), rx: block.get(5), tx: block.get(8) })
    }

    /// Returns the link's speed in Mbit/s; `None` if it is unknown or the link is down.
    pub fn speed(&self) -> Option<u64> {
        let mut block = Block::new(ETHTOOL_GLINKSETTINGS, LINK_SETTINGS_LENGTH + LINK_MODE_MASKS_MAX);
        // The first call returns the length of the link mode masks, as a negative number.
        self.ioctl(&mut block).ok()?;
        let words = block.byte(LINK_MODE_WORDS) as i8;
        if words < 0 {
            block.set(0, ETHTOOL_GLINKSETTINGS);
            block.set_byte(LINK_MODE_WORDS, words.unsigned_abs());
            self.ioctl(&mut block).ok()?;
        }
        let speed = block.get(1);
        (speed != 0 && speed != u32::MAX).then_some(u64::from(speed))
    }

    /// Returns the driver's own counters, as shown by `ethtool -S`.
    pub fn statistics(&self) -> Result<BTreeMap<String, u64>> {
        let names = self.strings(ETH_SS_STATS)?;
        let mut block = Block::new(ETHTOOL_GSTATS, 8 + names.len() * 8);
        block.set(1, names.len() as u32);
        self.ask(&mut block, "the counters")?;
        let value = |index: usize| u64::from(block.get(2 + index * 2)) | u64::from(block.get(3 + index * 2)) << 32;
        Ok(names.into_iter().enumerate().map(|(index, name)| (name, value(index))).collect())
    }

    pub fn timestamping(&self) -> Result<Timestamping> {
        let mut block = Block::new(ETHTOOL_GET_TS_INFO, 44);
        self.ask(&mut block, "time stamping")?;
        Ok(Timestamping {
            receive_hardware: block.get(1) & SOF_TIMESTAMPING_RX_HARDWARE != 0,
            receive_all: block.get(7) & HARDWARE_FILTER_ALL != 0,
            clock: u32::try_from(block.get(2) as i32).ok(),
        })
    }

    /// Returns a set of strings; empty if the driver has none of that kind.
    fn strings(&self, set: u32) -> Result<Vec<String>> {
        let mut sizes = Block::new(ETHTOOL_GSSET_INFO, 24);
        sizes.set(2, 1 << set);
        match self.ioctl(&mut sizes) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
            result => result.map_err(|e| self.error("the number of names", e))?,
        }
        if sizes.get(2) & 1 << set == 0 {
            return Ok(Vec::new());
        }
        let count = sizes.get(4) as usize;
        let mut block = Block::new(ETHTOOL_GSTRINGS, 12 + count * STRING_LENGTH);
        block.set(1, set);
        block.set(2, count as u32);
        self.ask(&mut block, "the names")?;
        Ok((0..count).map(|i| block.text(12 + i * STRING_LENGTH, STRING_LENGTH)).collect())
    }

    fn ask(&self, block: &mut Block, what: &str) -> Result<()> {
        self.ioctl(block).map_err(|e| self.error(what, e))
    }

    fn error(&self, what: &str, error: std::io::Error) -> Error {
        let privileges = error.raw_os_error() == Some(libc::EPERM);
        let error = Error::os(format!("ethtool: {what} of {}", self.name), error);
        if privileges { error.fix("this requires root (CAP_NET_ADMIN)") } else { error }
    }

    /// Returns the netmask of the interface's first IPv4 address, if it has one.
    pub fn ipv4_netmask(&self) -> Option<std::net::Ipv4Addr> {
        // SAFETY: an all-zero request is a valid one.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: the kernel reads the name and writes the address, both within the request.
        let answer = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFNETMASK, &mut request) };
        if answer < 0 {
            return None;
        }
        // SAFETY: the kernel has just filled in a socket address of the IPv4 family.
        let bytes = unsafe { request.ifr_ifru.ifru_netmask.sa_data };
        // Two bytes of port precede the address.
        let octet = |at: usize| bytes[2 + at] as u8;
        Some(std::net::Ipv4Addr::new(octet(0), octet(1), octet(2), octet(3)))
    }

    fn ioctl(&self, block: &mut Block) -> std::io::Result<()> {
        let mut name = [0 as libc::c_char; libc::IFNAMSIZ];
        for (to, from) in name.iter_mut().zip(self.name.bytes()) {
            *to = from as libc::c_char;
        }
        let mut request = libc::ifreq {
            ifr_name: name,
            ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: block.words.as_mut_ptr().cast() },
        };
        // SAFETY: ifr_data points to a block at least as long as its command reads and writes: each command's length is
        // given with it above, plus slack (see Block::new).
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
        if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The memory of an ethtool command: 32-bit words, of which the first is the command's number.
#[derive(Debug)]
struct Block {
    words: Vec<u32>,
}

impl Block {
    /// Allocates `length` bytes and some slack, in case a newer kernel writes a longer struct.
    fn new(command: u32, length: usize) -> Self {
        let mut words = vec![0; length.div_ceil(4) + 64];
        words[0] = command;
        Self { words }
    }

    fn get(&self, word: usize) -> u32 {
        self.words.get(word).copied().unwrap_or(0)
    }

    fn set(&mut self, word: usize, value: u32) {
        self.words[word] = value;
    }

    fn byte(&self, at: usize) -> u8 {
        self.get(at / 4).to_ne_bytes()[at % 4]
    }

    fn set_byte(&mut self, at: usize, value: u8) {
        let mut bytes = self.words[at / 4].to_ne_bytes();
        bytes[at % 4] = value;
        self.words[at / 4] = u32::from_ne_bytes(bytes);
    }

    fn text(&self, at: usize, length: usize) -> String {
        let bytes: Vec<u8> = (at..at + length).map(|i| self.byte(i)).take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{VethEnd, create_veth};
    use crate::testing::{ScratchNamespace, root_or_skip};

    fn veth() -> (ScratchNamespace, Ethtool) {
        let scratch = ScratchNamespace::create();
        let end = |name| VethEnd {
            name,
            index: 0,
            namespace: Some(&scratch.namespace),
            mac: None,
            mtu: None,
            queues: 2,
            no_link_local: true,
        };
        create_veth(&end("veth0"), &end("veth1")).unwrap();
        let ethtool = Ethtool::open(Some(&scratch.namespace), "veth0").unwrap();
        (scratch, ethtool)
    }

    #[test]
    fn a_veth_reports_its_driver_speed_and_channels() {
        if !root_or_skip() {
            return;
        }
        let (_scratch, ethtool) = veth();
        assert_eq!(ethtool.driver().unwrap().driver, "veth");
        assert_eq!(ethtool.speed(), Some(10_000));
        let channels = ethtool.channels().unwrap();
        assert_eq!((channels.rx, channels.tx, channels.max_rx), (2, 2, 2));
        ethtool.set_channels(1, 2, 0).unwrap();
        assert_eq!(ethtool.channels().unwrap().rx, 1);
        assert!(ethtool.set_channels(9, 9, 0).is_err());
        assert!(!ethtool.timestamping().unwrap().receive_hardware);
    }

    #[test]
    fn features_are_turned_on_and_off() {
        if !root_or_skip() {
            return;
        }
        let (_scratch, ethtool) = veth();
        for on in [true, false, true] {
            ethtool.set_feature("rx-gro", on).unwrap();
            assert_eq!(ethtool.feature("rx-gro").unwrap(), Some(on));
        }
        assert_eq!(ethtool.feature("no-such-feature").unwrap(), None);
        assert!(ethtool.set_feature("no-such-feature", true).is_err());
        let error = ethtool.set_feature("vlan-challenged", true).unwrap_err().to_string();
        assert!(error.contains("does not let it change"), "{error}");
    }

    #[test]
    fn counters_carry_the_drivers_names() {
        if !root_or_skip() {
            return;
        }
        let (_scratch, ethtool) = veth();
        let statistics = ethtool.statistics().unwrap();
        assert_eq!(statistics.get("rx_queue_0_xdp_drops"), Some(&0));
        assert!(statistics.contains_key("tx_queue_1_xdp_xmit"), "{statistics:?}");
    }

    #[test]
    fn a_missing_interface_is_an_error() {
        let missing = Ethtool::open(None, "trawl-missing").unwrap();
        assert!(missing.driver().unwrap_err().to_string().contains("trawl-missing"));
        assert_eq!(missing.speed(), None);
        assert!(Ethtool::open(None, "much-too-long-for-a-name").is_err());
    }
}
