//! Options of IP, TCP and GENEVE, which may contain addresses. Options of other kinds are overwritten by padding.

use std::ops::Range;

use super::{Change, Ends};
use crate::walk::{Headers, UDP};

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
/// TCP options without addresses: segment size, window scale, selective acknowledgments, time stamps.
const TCP_KEPT: [u8; 5] = [2, 3, 4, 5, 8];

const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const SOURCE_ROUTES: [u8; 2] = [131, 137];
const ROUTER_ALERT: u8 = 148;

const PAD_N: u8 = 1;
/// IPv6 options without addresses: tunnel limit, router alert, jumbo payload.
const IPV6_KEPT: [u8; 3] = [4, 5, 0xc2];
const HOME_ADDRESS: u8 = 201;
const DESTINATION: u8 = 60;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
/// Routing headers that contain whole addresses: source route, mobile host, segments.
const SOURCE_ROUTE: u8 = 0;
const MOBILE: u8 = 2;
const SEGMENTS: u8 = 4;

impl Change<'_> {
    /// Returns the options in a range by kind and place, and pads what follows the last one.
    fn options(&mut self, range: Range<usize>) -> Vec<(u8, Range<usize>)> {
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let kind = self.before[at];
            let length = match kind {
                END => break,
                NO_OPERATION => 1,
                _ => usize::from(self.before.get(at + 1).copied().unwrap_or(0)).max(1),
            };
            if at + length > range.end || kind != NO_OPERATION && length < 2 {
                break;
            }
            if kind != NO_OPERATION {
                found.push((kind, at..at + length));
            }
            at += length;
        }
        if let Some(rest) = self.after.get_mut(at..range.end) {
            rest.fill(END);
        }
        found
    }

    pub(super) fn tcp_options(&mut self, range: Range<usize>) {
        for (kind, place) in self.options(range) {
            if !TCP_KEPT.contains(&kind) {
                self.after[place].fill(NO_OPERATION);
            }
        }
    }

    pub(super) fn ipv4_options(&mut self, range: Range<usize>, ends: &mut Ends) {
        for (kind, place) in self.options(range) {
            let (first, step) = match kind {
                ROUTER_ALERT => continue,
                RECORD_ROUTE | 131 | 137 => (3, 4),
                TIMESTAMP => match self.before.get(place.start + 3).map(|flags| flags & 0xf) {
                    Some(0) => continue,
                    Some(1 | 3) => (4, 8),
                    _ => (place.len(), 4),
                },
                _ => {
                    self.after[place].fill(NO_OPERATION);
                    continue;
                }
            };
            let addresses = (place.start + first..place.end).step_by(step);
            let addresses = addresses.filter(|at| at + 4 <= place.end);
            let last = addresses.clone().next_back();
            addresses.for_each(|at| self.address(at..at + 4));
            // The packet has not reached the last address of its route.
            if let Some(last) = last.filter(|_| SOURCE_ROUTES.contains(&kind))
                && usize::from(self.before[place.start + 2]) <= place.len()
            {
                ends.destination = last..last + 4;
            }
        }
    }

    /// Changes the extension headers of IPv6 in a range.
    pub(super) fn ipv6_extensions(&mut self, network: usize, range: Range<usize>, ends: &mut Ends) {
        let mut kind = self.before[network + 6];
        let mut at = range.start;
        while at + 8 <= range.end {
            let units = usize::from(self.before[at + 1]);
            let length = match kind {
                FRAGMENT => 8,
                AUTHENTICATION => (units + 2) * 4,
                _ => (units + 1) * 8,
            };
            let end = (at + length).min(range.end);
            match kind {
                0 | DESTINATION => self.ipv6_options(at + 2..end, ends),
                ROUTING => self.route(at..end, ends),
                FRAGMENT | AUTHENTICATION => {}
                _ => return,
            }
            kind = self.before[at];
            at = end;
        }
    }

    fn ipv6_options(&mut self, range: Range<usize>, ends: &mut Ends) {
        let mut at = range.start;
        while at + 2 <= range.end {
            let kind = self.before[at];
            if kind == 0 {
                at += 1;
                continue;
            }
            let value = at + 2..(at + 2 + usize::from(self.before[at + 1])).min(range.end);
            at = value.end;
            if kind == HOME_ADDRESS && value.len() == 16 {
                self.address(value.clone());
                ends.source = value;
            } else if !IPV6_KEPT.contains(&kind) {
                self.after[value.start - 2] = PAD_N;
                self.after[value].fill(0);
            }
        }
    }

    fn route(&mut self, header: Range<usize>, ends: &mut Ends) {
        let (kind, left) = (self.before[header.start + 2], self.before[header.start + 3]);
        let rest = header.start + 8..header.end;
        let whole = rest.len() / 16;
        let count = match kind {
            SOURCE_ROUTE | MOBILE => whole,
            SEGMENTS => whole.min(usize::from(self.before[header.start + 4]) + 1),
            _ => 0,
        };
        for at in (rest.start..).step_by(16).take(count) {
            self.address(at..at + 16);
        }
        let addresses_end = rest.start + count * 16;
        self.after[addresses_end..rest.end].fill(0);
        if left > 0 && count > 0 {
            // Segments are in reverse order.
            let at = match kind {
                SEGMENTS => rest.start,
                _ => addresses_end - 16,
            };
            ends.destination = at..at + 16;
        }
    }

    /// Clears the values of GENEVE options, up to the packet inside.
    pub(super) fn geneve_options(&mut self, at: usize, headers: &Headers<'_>, inner_at: usize) {
        const HEADER: usize = 8;
        let is_udp = headers.ip.is_some_and(|ip| ip.protocol == UDP);
        let mut option = at + headers.payload_at + HEADER;
        while is_udp && option + 4 <= inner_at {
            let value = option + 4..option + 4 + usize::from(self.before[option + 3] & 0x1f) * 4;
            option = value.end.min(inner_at);
            self.after[value.start..option].fill(0);
        }
    }
}
