//! Numbers of protocols, and MAC addresses and prefixes as text, for all crates.

pub mod prefix;

/// Ethertypes.
pub mod ethertype {
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const BRIDGED_ETHERNET: u16 = 0x6558;
    pub const REVERSE_ARP: u16 = 0x8035;
    pub const VLAN: u16 = 0x8100;
    pub const IPV6: u16 = 0x86dd;
    pub const SLOW: u16 = 0x8809;
    pub const PPP: u16 = 0x880b;
    pub const MPLS: u16 = 0x8847;
    pub const MPLS_MULTICAST: u16 = 0x8848;
    pub const PPPOE_DISCOVERY: u16 = 0x8863;
    pub const PPPOE_SESSION: u16 = 0x8864;
    pub const EAPOL: u16 = 0x888e;
    pub const SERVICE_VLAN: u16 = 0x88a8;
    pub const LLDP: u16 = 0x88cc;
    pub const MACSEC: u16 = 0x88e5;
    pub const PTP: u16 = 0x88f7;
    pub const LOOPBACK: u16 = 0x9000;
    pub const VLAN_9100: u16 = 0x9100;
    pub const VLAN_9200: u16 = 0x9200;
    /// All types of VLAN tags.
    pub const TAGS: [u16; 4] = [VLAN, SERVICE_VLAN, VLAN_9100, VLAN_9200];
}

/// Protocols of IP packets, and extension headers of IPv6.
pub mod protocol {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const IGMP: u8 = 2;
    pub const IP_IN_IP: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const DCCP: u8 = 33;
    pub const IPV6_IN_IP: u8 = 41;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const GRE: u8 = 47;
    pub const ESP: u8 = 50;
    pub const AUTHENTICATION: u8 = 51;
    pub const ICMPV6: u8 = 58;
    pub const NO_NEXT_HEADER: u8 = 59;
    pub const DESTINATION_OPTIONS: u8 = 60;
    pub const SCTP: u8 = 132;
    pub const UDP_LITE: u8 = 136;
    pub const ETHERNET_IN_IP: u8 = 143;
}

/// Parses a MAC address: six numbers of one or two hexadecimal digits, with colons or hyphens between them.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let separator = if text.contains('-') { '-' } else { ':' };
    let mut mac = [0; 6];
    let mut parts = text.split(separator);
    for byte in &mut mac {
        let digits = parts.next().filter(|part| part.len() <= 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit()));
        *byte = u8::from_str_radix(digits?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// Parses a MAC address that a user wrote; the error says how to write it.
pub fn mac(text: &str) -> Result<[u8; 6], String> {
    parse_mac(text.trim()).ok_or_else(|| format!("'{text}' is not a MAC address; write for example 02:00:00:00:00:01"))
}

/// Writes a MAC address with colons.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_are_read_with_colons_and_hyphens() {
        for text in ["02:00:5e:00:53:0a", "2:0:5e:0:53:a", "02-00-5E-00-53-0A"] {
            assert_eq!(parse_mac(text).map(mac_text).as_deref(), Some("02:00:5e:00:53:0a"), "{text}");
        }
        for text in
            ["", "02:00:5e:00:53", "02:00:5e:00:53:0a:01", "02:00:5e:00:53:+a", "02:00:5e:00-53:0a", "2:0:5e:0:53:"]
        {
            assert_eq!(parse_mac(text), None, "{text}");
        }
    }
}
