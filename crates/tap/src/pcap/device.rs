//! The names that libpcap gives to devices, beside those of interfaces, and its numbers for link types.

use trawl_sys::interface::Interface;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result};

use crate::capture_site::CaptureSite;

/// What stands before a colon in the names of devices, and so is no namespace.
const PREFIXES: [&str; 9] = [
    "netmap", "vale", "zc", "dpdk", "nflog", "nfqueue", "dbus-", "dag", "rpcap",
];
/// All interfaces, which have no mode in common.
pub const ANY: &str = "any";
const DLT_RAW: i32 = 12;
const DLT_RAW_OPENBSD: i32 = 14;
const LINKTYPE_RAW: u16 = 101;

/// `NAME` in the namespace given (or the present one), or `NAMESPACE:NAME`, where NAME is a device of a libpcap: an
/// interface, or anything else that the library knows.
pub fn find(text: &str, default_namespace: Option<&str>) -> Result<CaptureSite> {
    let (namespace, name) = match text.split_once(':') {
        Some((before, name)) if !is_prefix(before) => (Some(before), name),
        _ => (default_namespace, text),
    };
    if name.is_empty() {
        let what = format!("interface '{text}'");
        return Err(Error::usage(what, "no device is named"));
    }
    let namespace = namespace.map(Namespace::open).transpose()?;
    let interface =
        Interface::find(namespace.as_ref(), name).unwrap_or_else(|_| Interface::of_a_library(name));
    Ok(CaptureSite {
        label: text.to_owned(),
        namespace,
        interface,
        one_of_any: false,
    })
}

fn is_prefix(before: &str) -> bool {
    let number_follows = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
    PREFIXES
        .iter()
        .any(|prefix| match before.strip_prefix(prefix) {
            Some(rest) => number_follows(rest),
            None => false,
        })
}

/// The library that reads such a device takes its packets out of the network stack.
pub fn takes_away(device: &str) -> bool {
    device.starts_with("netmap:") || device.starts_with("zc:")
}

/// The library filters such a device by copying packets and looking at them itself: what is no interface of the kernel's
/// has no other way.
pub fn is_filtered_in_user_space(interface: &Interface) -> bool {
    interface.index == 0 && interface.name != ANY && !interface.name.starts_with("zc:")
}

/// The library that reads such a device comes back from `pcap_dispatch` with packets only, non-blocking or not.
pub fn waits_for_packets(device: &str) -> bool {
    device.starts_with("netmap:") || device.starts_with("vale")
}

/// Nobody is to lose the packets of an interface by mistake.
pub fn refuse_stealing(device: &str, steal: bool) -> Result<()> {
    if !takes_away(device) || steal {
        return Ok(());
    }
    let (framework, name) = device.split_once(':').unwrap_or(("netmap", device));
    let framework = if framework == "zc" {
        "PF_RING ZC"
    } else {
        framework
    };
    Err(Error::usage(
        format!("cannot capture on {device}"),
        format!("{framework} takes the packets of {name} away from the network stack: its connections stop for the time of the capture"),
    )
    .fix("add --steal to use it anyway"))
}

/// A capture file's number for one of the library's, which differ where systems did.
pub fn link_type(number: i32) -> Option<u16> {
    match number {
        DLT_RAW | DLT_RAW_OPENBSD => Some(LINKTYPE_RAW),
        11 => Some(100),
        other => u16::try_from(other).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_told_from_namespaces() {
        for prefix in ["netmap", "vale0", "zc", "dpdk", "nflog", "vale"] {
            assert!(is_prefix(prefix), "{prefix}");
        }
        for namespace in ["red", "netmaps", "zcx", "vale-a", ""] {
            assert!(!is_prefix(namespace), "{namespace}");
        }
    }

    #[test]
    fn netmap_needs_a_word() {
        assert!(refuse_stealing("netmap:eth0", true).is_ok());
        assert!(refuse_stealing("vale0:a", false).is_ok());
        let error = refuse_stealing("netmap:eth0", false).unwrap_err();
        assert!(
            error
                .how_to_fix()
                .is_some_and(|fix| fix.contains("--steal")),
            "{error}"
        );
    }

    #[test]
    fn link_types_have_the_files_numbers() {
        assert_eq!(link_type(1), Some(1));
        assert_eq!(link_type(12), Some(101));
        assert_eq!(link_type(276), Some(276));
        assert_eq!((link_type(-1), link_type(70_000)), (None, None));
    }
}
