//! Names of link types, as in tcpdump and Wireshark's tools.

/// Returns the name of a common LINKTYPE_ value, without that prefix.
pub fn name(link_type: u16) -> Option<&'static str> {
    Some(match link_type {
        0 => "NULL",
        1 => "ETHERNET",
        6 => "IEEE802_5",
        8 => "SLIP",
        9 => "PPP",
        50 => "PPP_HDLC",
        51 => "PPP_ETHER",
        12 | 14 | 101 => "RAW",
        104 => "C_HDLC",
        105 => "IEEE802_11",
        107 => "FRELAY",
        108 => "LOOP",
        113 => "LINUX_SLL",
        117 => "PFLOG",
        119 => "IEEE802_11_PRISM",
        127 => "IEEE802_11_RADIOTAP",
        147..=162 => "USER",
        187 => "BLUETOOTH_HCI_H4",
        189 => "USB_LINUX",
        192 => "PPI",
        195 => "IEEE802_15_4_WITHFCS",
        201 => "BLUETOOTH_HCI_H4_WITH_PHDR",
        220 => "USB_LINUX_MMAPPED",
        227 => "CAN_SOCKETCAN",
        228 => "IPV4",
        229 => "IPV6",
        230 => "IEEE802_15_4_NOFCS",
        239 => "NFLOG",
        249 => "USBPCAP",
        253 => "NETLINK",
        274 => "ETHERNET_MPACKET",
        276 => "LINUX_SLL2",
        _ => return None,
    })
}

/// Returns the name with its number, or the number alone.
pub fn described(link_type: u16) -> String {
    match name(link_type) {
        Some(name) => format!("{name} ({link_type})"),
        None => link_type.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_and_unknown_ones() {
        assert_eq!(super::described(113), "LINUX_SLL (113)");
        assert_eq!(super::described(9999), "9999");
    }
}
