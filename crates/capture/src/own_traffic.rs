//! The traffic between a capture and the readers of its packets. Recording this traffic would cause more of it.

use std::net::SocketAddr;

use trawl_packet::pcapng::block::{LINKTYPE_ETHERNET, LINKTYPE_RAW};

use crate::capture_site::CaptureSite;
use trawl_plan::filter::Filter;

/// Returns an expression for the traffic between readers and this address, if one of the interfaces may carry it.
pub fn own_traffic(address: SocketAddr, sites: &[CaptureSite]) -> Option<String> {
    let ip = address.ip().to_canonical();
    // The expression has no meaning for other frames, and a device that only a library knows does not carry the
    // host's connections.
    let passes = |CaptureSite { interface, .. }: &CaptureSite| {
        (interface.loopback || !ip.is_loopback())
            && interface.index > 0
            && [LINKTYPE_ETHERNET, LINKTYPE_RAW].contains(&interface.link_type)
    };
    let port = format!("tcp port {}", address.port());
    sites.iter().any(passes).then(|| if ip.is_unspecified() { port } else { format!("{port} and host {ip}") })
}

/// Makes the filter reject this traffic too. Returns false if the filter is not an expression, and cannot be extended.
pub fn leave_out(filter: &mut Option<Filter>, traffic: &str) -> bool {
    // The new condition comes first, since `vlan` and `mpls` change the meaning of what follows them.
    let text = match filter {
        None => format!("not ({traffic})"),
        Some(Filter::Expression(text)) => format!("not ({traffic}) and ({text})"),
        Some(Filter::Inner(_) | Filter::Classic(_)) => return false,
    };
    *filter = Some(Filter::Expression(text));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_traffic_is_left_out_besides_the_filter() {
        let udp = || Some(Filter::Expression("udp".to_owned()));
        for (mut filter, whole) in [
            (None, Some("not (tcp port 1)")),
            (udp(), Some("not (tcp port 1) and (udp)")),
            (Some(Filter::Inner("udp".to_owned())), None),
        ] {
            assert_eq!(leave_out(&mut filter, "tcp port 1"), whole.is_some());
            if let Some(whole) = whole {
                assert_eq!(filter, Some(Filter::Expression(whole.to_owned())));
            }
        }
    }
}
