//! Offloads: changes that an interface makes to packets before a tap sees them.

use trawl_sys::netlink::ethtool::EthtoolFeature;

use super::{CheckState, Finding};
use trawl_sys::words::word;

/// An offload by the kernel's name and by ethtool's, and its effect on a capture while on.
struct Offload {
    name: &'static str,
    ethtool: &'static str,
    state: CheckState,
    does: &'static str,
}

const OFFLOADS: [Offload; 8] = [
    Offload {
        name: "rx-lro",
        ethtool: "lro",
        state: CheckState::Warn,
        does: "the card joins TCP segments before any tap sees them; most drivers refuse XDP with it",
    },
    Offload {
        name: "rx-gro-hw",
        ethtool: "rx-gro-hw",
        state: CheckState::Warn,
        does: "the card joins TCP segments before any tap sees them",
    },
    Offload {
        name: "rx-gro",
        ethtool: "gro",
        state: CheckState::Info,
        does: "the tc and packet taps see joined segments, longer than the MTU; XDP sees them as they came",
    },
    Offload {
        name: "rx-gro-list",
        ethtool: "rx-gro-list",
        state: CheckState::Info,
        does: "the tc and packet taps see chained packets as one",
    },
    Offload {
        name: "rx-udp-gro-forwarding",
        ethtool: "rx-udp-gro-forwarding",
        state: CheckState::Info,
        does: "the tc and packet taps see joined UDP packets",
    },
    Offload {
        name: "rx-vlan-hw-parse",
        ethtool: "rxvlan",
        state: CheckState::Warn,
        does: "the card strips VLAN tags: XDP does not see them",
    },
    Offload {
        name: "tx-tcp-segmentation",
        ethtool: "tso",
        state: CheckState::Info,
        does: "sent TCP packets are seen before they are cut to the MTU",
    },
    Offload {
        name: "tx-generic-segmentation",
        ethtool: "gso",
        state: CheckState::Info,
        does: "sent packets are seen before they are cut to the MTU",
    },
];

/// Returns a finding for each offload that is on and affects a capture.
pub fn examine(area: &str, prefix: &str, interface: &str, driver: &str, features: &[EthtoolFeature]) -> Vec<Finding> {
    OFFLOADS
        .iter()
        .filter_map(|offload| {
            let feature = features.iter().find(|f| f.name == offload.name && f.on)?;
            let mut finding = Finding::new(area, offload.ethtool, offload.state, "on").why(offload.does);
            // A veth's tags depend on the peer's sending side.
            if driver == "veth" && offload.name == "rx-vlan-hw-parse" {
                return None;
            }
            // A veth without GRO accepts no redirected XDP frames: turning GRO off would be no fix.
            if feature.changeable && !(driver == "veth" && offload.name == "rx-gro") {
                finding = finding.fix(format!(
                    "to see them as they are on the wire: {prefix}ethtool -K {} {} off",
                    word(interface),
                    offload.ethtool
                ));
            }
            Some(finding)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature(name: &str, on: bool, changeable: bool) -> EthtoolFeature {
        EthtoolFeature { name: name.to_owned(), on, changeable }
    }

    #[test]
    fn enabled_offloads_are_reported_with_a_command() {
        let features = [feature("rx-lro", true, true), feature("rx-gro-hw", false, true)];
        let findings = examine("eth0", "ip netns exec red ", "eth0", "ixgbe", &features);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].state, CheckState::Warn);
        let fix = findings[0].fix.as_deref().unwrap();
        assert!(fix.ends_with("ip netns exec red ethtool -K eth0 lro off"), "{fix}");
    }

    #[test]
    fn fixed_offloads_and_gro_of_a_veth_have_no_command() {
        let features = [feature("rx-lro", true, false), feature("rx-gro", true, true)];
        let findings = examine("veth0", "", "veth0", "veth", &features);
        assert!(findings.iter().all(|finding| finding.fix.is_none()), "{findings:?}");
    }
}
