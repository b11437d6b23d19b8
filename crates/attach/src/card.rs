//! Effects of attaching an XDP program on a network card, by its driver, which are reported beforehand.

use std::fmt;

use trawl_sys::netlink::interface::Interface;
use trawl_sys::netlink::{XdpMode, xdp_abilities};

use crate::site::Site;

/// A driver, and its actions from the sources of the kernel module: when the first program is attached or the last one
/// removed, and while one is attached.
struct Driver {
    name: &'static str,
    /// Empty if no frame is lost.
    interruption: &'static str,
    meanwhile: &'static str,
}

const fn driver(name: &'static str, interruption: &'static str, meanwhile: &'static str) -> Driver {
    Driver { name, interruption, meanwhile }
}

const RINGS: &str = "the rings are closed and opened again";
const CHANNELS: &str = "the channels are closed and opened again";
const LINK: &str = "the link goes down and up again";
const DRIVERS: [Driver; 16] = [
    driver("bnxt_en", RINGS, "aggregation (LRO, GRO in hardware) is switched off, the MTU is limited to about 3500"),
    driver(
        "ena",
        "the device is reset",
        "half of the queues are reserved for sending, the MTU is limited to about 3498",
    ),
    driver("gve", "the queues are closed and opened again", "half of them are reserved for sending"),
    driver("hv_netvsc", "", "LRO is switched off, the MTU is limited to one page"),
    driver("i40e", "the rings are rebuilt and the link may go down for a moment", "the MTU is limited to about 3 KiB"),
    driver("ice", "the rings are rebuilt and the link may go down for a moment", "more queues are made for sending"),
    driver(
        "igb",
        "the link goes down and up again, and frames are lost for about 0.6 s (measured in emulation)",
        "the MTU is limited to about 3 KiB",
    ),
    driver("igc", LINK, "the MTU is limited to 1500"),
    driver("ixgbe", LINK, "LRO has to be off, the MTU is limited to about 3 KiB"),
    driver("mlx4_en", RINGS, "the MTU is limited to about 3 KiB"),
    driver("mlx5_core", CHANNELS, "LRO is switched off, the MTU is limited to about 3498"),
    driver("mvneta", LINK, "the MTU is limited to one page"),
    driver("nfp", "the rings are rebuilt", "the MTU is limited to one page"),
    driver("sfc", CHANNELS, "the MTU is limited to one page"),
    driver("virtio_net", "", "more queues are reserved for sending, LRO and GRO in hardware are switched off"),
    driver(
        "vmxnet3",
        "the device is reset, and frames are lost for less than 0.4 s (measured in emulation)",
        "LRO is switched off",
    ),
];
const OTHERS: Driver = driver("", "the driver may take the link down", "it may change its queues and switch off LRO");

/// Effects of the first program on a card, or of its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardEffects {
    pub driver: String,
    /// Effects of attaching and removing; empty if no frame is lost.
    pub interruption: &'static str,
    /// Effects while the program is attached.
    pub meanwhile: &'static str,
}

impl CardEffects {
    /// Returns the effects for an interface; `None` unless it is a card.
    pub fn of(interface: &Interface) -> Option<Self> {
        if !is_card(interface) {
            return None;
        }
        let driver = interface.driver.clone().unwrap_or_default();
        let Driver { interruption, meanwhile, .. } = DRIVERS.iter().find(|one| one.name == driver).unwrap_or(&OTHERS);
        Some(Self { driver, interruption, meanwhile })
    }

    /// Returns the effects of attaching a program, in the given mode or by default natively, if the interface is a card
    /// whose link is up and that has no program: the next ones have none.
    pub fn of_attaching(site: &Site, mode: Option<XdpMode>) -> Option<Self> {
        let interface = Interface::find(site.namespace(), site.name()).ok()?;
        if mode.is_some_and(|mode| mode != XdpMode::Native) || !interface.up {
            return None;
        }
        let able = xdp_abilities(site.namespace(), site.index()).ok()?;
        if has_native_program(site)? || able.is_some_and(|able| !able.native()) {
            return None;
        }
        Self::of(&interface)
    }

    /// Returns the warning before the last program in the driver is removed, if there is any.
    pub fn of_removing(site: &Site) -> Option<String> {
        let interface = Interface::find(site.namespace(), site.name()).ok()?;
        let is_native = has_native_program(site)?;
        let effects = Self::of(&interface).filter(|_| interface.up && is_native)?;
        (!effects.interruption.is_empty()).then(|| {
            format!(
                "{}: removing the XDP program from a card of the driver {}: {}",
                site.label(),
                effects.driver,
                effects.interruption
            )
        })
    }

    /// Returns the warning before a program is attached to the interface of this name.
    pub fn warning(&self, interface: &str) -> String {
        format!("{interface}: attaching an XDP program to a card of the driver {}: {self}", self.driver)
    }
}

impl fmt::Display for CardEffects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.interruption {
            "" => f.write_str(self.meanwhile),
            interruption => write!(f, "{interruption}, again when it is removed; {}", self.meanwhile),
        }
    }
}

fn has_native_program(site: &Site) -> Option<bool> {
    let programs = site.link().ok()?.xdp;
    Some(programs.iter().any(|one| one.mode == XdpMode::Native))
}

/// Returns true for a physical interface: virtual ones have a kind and no bus.
pub fn is_card(interface: &Interface) -> bool {
    interface.kind.is_none() && !interface.loopback && interface.bus.as_ref().is_some_and(|bus| !bus.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(driver: &str, kind: Option<&str>, bus: Option<&str>) -> Interface {
        Interface {
            driver: Some(driver.to_owned()),
            kind: kind.map(str::to_owned),
            bus: bus.map(str::to_owned),
            ..Interface::of_a_library("none0")
        }
    }

    #[test]
    fn only_physical_interfaces_are_cards() {
        let bus = Some("0000:01:00.0");
        assert!(is_card(&interface("ixgbe", None, bus)));
        assert!(!is_card(&interface("ixgbe", Some("veth"), bus)));
        assert!(!is_card(&interface("ixgbe", None, None)));
    }

    #[test]
    fn drivers_are_sorted_and_others_have_general_effects() {
        assert!(DRIVERS.is_sorted_by_key(|one| one.name));
        let of = |name| CardEffects::of(&interface(name, None, Some("0000:01:00.0"))).unwrap();
        let ixgbe = of("ixgbe").warning("eth0");
        assert!(ixgbe.contains("link goes down"), "{ixgbe}");
        assert!(ixgbe.contains("LRO has to be off"), "{ixgbe}");
        let igb = of("igb").warning("eth0");
        assert!(igb.contains("0.6 s") && igb.contains("again when it is removed"), "{igb}");
        assert_eq!(of("new_driver").interruption, OTHERS.interruption);
        // No frame is lost, so the warning does not speak of removal.
        let virtio = of("virtio_net").warning("eth0");
        assert!(!virtio.contains("removed") && !virtio.contains("MTU"), "{virtio}");
    }
}
