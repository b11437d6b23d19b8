//! Effects of attaching an XDP program on a network card, by its driver, which are reported beforehand.

use trawl_sys::interface::Interface;

use crate::TapChoice;
use crate::capture_site::CaptureSite;
use crate::event::Event;
use crate::options::{CaptureOptions, Mode};

/// A driver, and its actions on attaching an XDP program, from the sources of the kernel module.
const DRIVERS: [(&str, &str); 16] = [
    (
        "bnxt_en",
        "the rings are closed and opened again, aggregation (LRO, GRO in hardware) is switched off, the MTU is limited to about 3500",
    ),
    (
        "ena",
        "the device is reset, half of the queues are reserved for sending, the MTU is limited to about 3498",
    ),
    (
        "gve",
        "the queues are closed and opened again, half of them are reserved for sending",
    ),
    (
        "hv_netvsc",
        "LRO is switched off, the MTU is limited to one page",
    ),
    (
        "i40e",
        "the rings are rebuilt and the link may go down for a moment, the MTU is limited to about 3 KiB",
    ),
    (
        "ice",
        "the rings are rebuilt and the link may go down for a moment, more queues are made for sending",
    ),
    (
        "igb",
        "the link goes down and up again, the MTU is limited to about 3 KiB",
    ),
    (
        "igc",
        "the link goes down and up again, the MTU is limited to 1500",
    ),
    (
        "ixgbe",
        "the link goes down and up again, LRO has to be off, the MTU is limited to about 3 KiB",
    ),
    (
        "mlx4_en",
        "the rings are closed and opened again, the MTU is limited to about 3 KiB",
    ),
    (
        "mlx5_core",
        "the channels are closed and opened again, LRO is switched off, the MTU is limited to about 3498",
    ),
    (
        "mvneta",
        "the link goes down and up again, the MTU is limited to one page",
    ),
    (
        "nfp",
        "the rings are rebuilt, the MTU is limited to one page",
    ),
    (
        "sfc",
        "the channels are closed and opened again, the MTU is limited to one page",
    ),
    (
        "virtio_net",
        "more queues are reserved for sending, LRO and GRO in hardware are switched off, the MTU is limited to one page",
    ),
    ("vmxnet3", "the device is reset, LRO is switched off"),
];
const OTHERS: &str = "the driver may take the link down, change its queues and switch off LRO";

/// Returns the event to report before a program is attached to a physical interface whose link is up.
pub fn effects(site: &CaptureSite, options: &CaptureOptions) -> Option<Event> {
    let is_asked = options.tap == TapChoice::Xdp && options.mode != Mode::Skb;
    let interface = &site.interface;
    if !is_asked || !is_card(interface) || !interface.up {
        return None;
    }
    let present = interface.xdp_attached(site.namespace.as_ref());
    if !matches!(present, Ok(None)) {
        return None;
    }
    let driver = interface.driver.clone().unwrap_or_default();
    Some(Event::TouchesCard {
        interface: site.label.clone(),
        effects: effects_of(&driver).to_owned(),
        driver,
    })
}

/// Returns true for a physical interface: virtual ones have a kind and no bus.
fn is_card(interface: &Interface) -> bool {
    interface.kind.is_none()
        && !interface.loopback
        && interface.bus.as_ref().is_some_and(|bus| !bus.is_empty())
}

fn effects_of(driver: &str) -> &'static str {
    let known = DRIVERS.iter().find(|(name, _)| *name == driver);
    known.map_or(OTHERS, |(_, effects)| effects)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(kind: Option<&str>, bus: Option<&str>, up: bool) -> CaptureSite {
        CaptureSite {
            interface: Interface {
                driver: Some("ixgbe".to_owned()),
                kind: kind.map(str::to_owned),
                bus: bus.map(str::to_owned),
                up,
                // No interface has this number, so none has a program.
                ..Interface::of_a_library("none0")
            },
            label: "none0".to_owned(),
            namespace: None,
            one_of_any: false,
            pod: None,
        }
    }

    #[test]
    fn only_physical_interfaces_are_cards() {
        assert!(is_card(&site(None, Some("0000:01:00.0"), true).interface));
        assert!(!is_card(
            &site(Some("veth"), Some("0000:01:00.0"), true).interface
        ));
        assert!(!is_card(&site(None, None, true).interface));
    }

    #[test]
    fn drivers_are_sorted_and_others_have_general_effects() {
        assert!(DRIVERS.is_sorted());
        assert!(effects_of("ixgbe").contains("LRO has to be off"));
        assert_eq!(effects_of("new_driver"), OTHERS);
    }
}
