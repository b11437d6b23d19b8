//! Options of IP, TCP and GENEVE, which may contain addresses. Options of other kinds are overwritten by padding.

use std::ops::Range;

use super::Change;
use crate::checksum::{HOME_ADDRESS, SOURCE_ROUTES, extensions_v6, options_v4, options_v6, routed_v6};
use crate::net::protocol::{DESTINATION_OPTIONS, HOP_BY_HOP, ROUTING, UDP};
use crate::walk::Headers;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
/// TCP options without addresses: segment size, window scale, selective acknowledgments, time stamps.
const TCP_KEPT: [u8; 5] = [2, 3, 4, 5, 8];

const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const ROUTER_ALERT: u8 = 148;

const PAD_N: u8 = 1;
/// IPv6 options without addresses: tunnel limit, router alert, jumbo payload.
const IPV6_KEPT: [u8; 3] = [4, 5, 0xc2];

impl Change<'_> {
    /// Returns the options in a range by kind and position, and overwrites the bytes after the last one by padding.
    fn options(&mut self, range: Range<usize>) -> Vec<(u8, Range<usize>)> {
        let (found, end) = options_v4(self.before, range.clone());
        if let Some(rest) = self.after.get_mut(end..range.end) {
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

    pub(super) fn ipv4_options(&mut self, range: Range<usize>) {
        for (kind, place) in self.options(range) {
            let (first, step) = match kind {
                ROUTER_ALERT => continue,
                RECORD_ROUTE => (3, 4),
                _ if SOURCE_ROUTES.contains(&kind) => (3, 4),
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
            for at in addresses.filter(|at| at + 4 <= place.end) {
                self.address(at..at + 4);
            }
        }
    }

    /// Changes the extension headers of the IPv6 header at `network`, up to `end`.
    pub(super) fn ipv6_extensions(&mut self, network: usize, end: usize) {
        for (kind, place) in extensions_v6(self.before, network, end) {
            match kind {
                HOP_BY_HOP | DESTINATION_OPTIONS => self.ipv6_options(place.start + 2..place.end),
                ROUTING => self.route(place),
                _ => {}
            }
        }
    }

    fn ipv6_options(&mut self, range: Range<usize>) {
        for (kind, value) in options_v6(self.before, range) {
            if kind == HOME_ADDRESS && value.len() == 16 {
                self.address(value);
            } else if !IPV6_KEPT.contains(&kind) {
                self.after[value.start - 2] = PAD_N;
                self.after[value].fill(0);
            }
        }
    }

    fn route(&mut self, header: Range<usize>) {
        let addresses = routed_v6(self.before, &header);
        let end = addresses.last().map_or(header.start + 8, |last| last.end);
        addresses.into_iter().for_each(|address| self.address(address));
        self.after[end.min(header.end)..header.end].fill(0);
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
