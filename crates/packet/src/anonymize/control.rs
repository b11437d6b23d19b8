//! Addresses inside control messages: ARP, ICMP, ICMPv6 with neighbour discovery, IGMP.

use std::ops::Range;

use super::Change;
use crate::walk::ICMP_ERRORS;

const ARP_HEADER: usize = 8;
/// Lengths of MAC and IPv4 addresses, in the header of ARP.
const ARP_LENGTHS: [u8; 2] = [6, 4];
const ICMP_HEADER: usize = 8;

const ICMP_REDIRECT: u8 = 5;
const IGMP_V3_REPORT: u8 = 0x22;

impl Change<'_> {
    /// Changes the addresses of an ARP packet. Returns the end of the kept bytes.
    pub(super) fn arp(&mut self, at: usize) -> usize {
        let lengths = self.before.get(at + 4..at + 6);
        if lengths != Some(&ARP_LENGTHS[..]) {
            return at + ARP_HEADER;
        }
        for addresses in [at + 8, at + 18] {
            self.mac(addresses);
            self.address(addresses + 6..addresses + 10);
        }
        at + 28
    }

    pub(super) fn igmp(&mut self, at: usize, end: usize) {
        if self.before.get(at) != Some(&IGMP_V3_REPORT) && at + 8 <= end {
            self.address(at + 4..at + 8);
        }
    }

    pub(super) fn icmp(&mut self, message: Range<usize>, depth: u8) -> usize {
        let end = (message.start + ICMP_HEADER).min(message.end);
        let kind = self.before.get(message.start).copied();
        if kind == Some(ICMP_REDIRECT) {
            self.address(message.start + 4..end);
        }
        if kind.is_some_and(|kind| ICMP_ERRORS.contains(&kind)) { self.quoted(end..message.end, depth) } else { end }
    }

    pub(super) fn icmpv6(&mut self, message: Range<usize>, depth: u8) -> usize {
        let end = (message.start + ICMP_HEADER).min(message.end);
        // Number of addresses after the header, and true if options follow them.
        let (addresses, has_options) = match self.before.get(message.start) {
            Some(1..=4) => return self.quoted(end..message.end, depth),
            Some(130..=132) => (1, false),
            Some(133) => (0, true),
            Some(134) => return self.discovery(end + 8..message.end, depth),
            Some(135 | 136) => (1, true),
            Some(137) => (2, true),
            _ => return end,
        };
        let mut at = end;
        for _ in 0..addresses {
            if at + 16 > message.end {
                return at;
            }
            self.address(at..at + 16);
            at += 16;
        }
        if has_options { self.discovery(at..message.end, depth) } else { at }
    }

    /// Changes the options of neighbour discovery. Returns the end of the last known one.
    fn discovery(&mut self, range: Range<usize>, depth: u8) -> usize {
        let mut at = range.start.min(range.end);
        while at + 8 <= range.end {
            let length = usize::from(self.before[at + 1]) * 8;
            let option = at..at + length;
            if option.end > range.end {
                return at;
            }
            match (self.before[at], length) {
                (1 | 2, 8) => self.mac(at + 2),
                (3, 32) => self.prefix(at + 16..at + 32, self.before[at + 2]),
                (4, 8..) => return self.quoted(at + 8..option.end, depth),
                (5, 8) => {}
                (25, 24..) => {
                    for server in (at + 8..option.end).step_by(16) {
                        self.address(server..(server + 16).min(option.end));
                    }
                }
                _ => return at,
            }
            at = option.end;
        }
        at
    }

    /// Replaces a prefix of IPv6 addresses.
    fn prefix(&mut self, range: Range<usize>, bits: u8) {
        self.address(range.clone());
        let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
        for (octet, mask) in self.after[range].iter_mut().zip(mask.to_be_bytes()) {
            *octet &= mask;
        }
    }
}
