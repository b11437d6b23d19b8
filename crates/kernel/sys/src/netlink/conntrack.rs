//! Connections whose addresses the kernel translates, as its connection tracking knows them.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::socket::{NetlinkRequest, Refusal, Reply, Socket, find};
use crate::error::Result;
use crate::netns::Namespace;

const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
/// Makes the kernel list only connections in the given state; older kernels list all.
const STATUS_MASK: u16 = 26;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
/// Attributes with source and destination: of IPv4, then of IPv6.
const ADDRESSES: [[u16; 2]; 2] = [[1, 2], [3, 4]];
/// States of a connection whose source or destination is translated.
const TRANSLATED: [u32; 2] = [1 << 4, 1 << 5];
const NEW: u16 = 0;
const GET: u16 = 1;
const DELETE: u16 = 2;
/// Groups that receive new connections and ended ones: the first and the third.
const GROUPS: u32 = 1 | 1 << 2;
/// Length of `struct nfgenmsg`.
const FAMILY_HEADER: usize = 4;

/// A translated connection. Ports of a protocol without them, such as ICMP, are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Translated {
    pub protocol: u8,
    /// Source and destination of the first packet, before any translation.
    pub original: [SocketAddr; 2],
    /// Source and destination of the answer, before its translation.
    pub reply: [SocketAddr; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TranslationEvent {
    Begun(Translated),
    Ended(Translated),
}

/// The translated connections of a namespace.
#[derive(Debug)]
pub struct Translations {
    socket: Socket,
}

impl Translations {
    /// Begins to watch a namespace, and returns its translated connections; `None` if it has none: receiving the events
    /// of connections would cost time for nothing.
    pub fn watch(namespace: Option<&Namespace>) -> Result<Option<(Self, Vec<Translated>)>> {
        let listed = |groups| {
            let mut socket = Socket::netfilter(namespace, groups)?;
            let known = list(&mut socket).map_err(|e| e.about("cannot list translated connections"))?;
            Ok((Self { socket }, known))
        };
        let (_, known) = listed(0)?;
        if known.is_empty() {
            return Ok(None);
        }
        // The connections are listed again, now that events arrive: none is missed between the two.
        listed(GROUPS).map(Some)
    }

    /// Waits at most this long for events. Events that are not read in time are lost.
    pub fn events(&mut self, at_most: Duration) -> Result<Vec<TranslationEvent>> {
        let cannot = |e: Refusal| e.about("cannot read the events of translated connections");
        self.socket.wait(at_most).map_err(cannot)?;
        match self.socket.events() {
            Ok(reports) => Ok(reports.iter().filter_map(event).collect()),
            Err(refusal) if refusal.errno == libc::ENOBUFS => Ok(Vec::new()),
            Err(refusal) => Err(cannot(refusal)),
        }
    }
}

impl AsFd for Translations {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn message(kind: u16) -> u16 {
    (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | kind
}

fn list(socket: &mut Socket) -> Result<Vec<Translated>, Refusal> {
    let mut found = HashSet::new();
    for status in TRANSLATED {
        let replies = socket.dump(|| {
            let mut request = NetlinkRequest::new(message(GET), 0).family_header(&[0; 4]);
            request.attribute(STATUS, &status.to_be_bytes()).attribute(STATUS_MASK, &status.to_be_bytes());
            request
        })?;
        found.extend(replies.iter().filter_map(translated));
    }
    Ok(found.into_iter().collect())
}

fn event(report: &Reply) -> Option<TranslationEvent> {
    let connection = translated(report)?;
    if report.kind == message(NEW) {
        Some(TranslationEvent::Begun(connection))
    } else if report.kind == message(DELETE) {
        Some(TranslationEvent::Ended(connection))
    } else {
        None
    }
}

/// Returns the connection in a message, if it is translated.
fn translated(report: &Reply) -> Option<Translated> {
    let attributes = report.payload.get(FAMILY_HEADER..)?;
    let (protocol, original) = tuple(find(attributes, TUPLE_ORIGINAL)?)?;
    let (_, reply) = tuple(find(attributes, TUPLE_REPLY)?)?;
    let [source, destination] = original;
    (reply != [destination, source]).then_some(Translated { protocol, original, reply })
}

fn tuple(bytes: &[u8]) -> Option<(u8, [SocketAddr; 2])> {
    let (ip, protocol) = (find(bytes, TUPLE_IP)?, find(bytes, TUPLE_PROTOCOL)?);
    let address = |kind| -> Option<IpAddr> {
        let bytes = find(ip, kind)?;
        let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
        v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
    };
    let port = |kind| {
        let bytes = find(protocol, kind).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u16::from_be_bytes)
    };
    let [source, destination] = ADDRESSES.into_iter().find_map(|[from, to]| Some([address(from)?, address(to)?]))?;
    let ends = [SocketAddr::new(source, port(SOURCE_PORT)), SocketAddr::new(destination, port(DESTINATION_PORT))];
    Some((*find(protocol, PROTOCOL_NUMBER)?.first()?, ends))
}

#[cfg(test)]
mod tests {
    use super::super::socket::messages;
    use super::*;

    fn report(kind: u16, tuples: [[&str; 2]; 2]) -> Reply {
        let mut request = NetlinkRequest::new(message(kind), 0).family_header(&[0; 4]);
        for (at, ends) in [TUPLE_ORIGINAL, TUPLE_REPLY].into_iter().zip(tuples) {
            let ends = ends.map(|end| end.parse::<SocketAddr>().expect("an address"));
            request.nest(at, |tuple| {
                tuple.nest(TUPLE_IP, |ip| {
                    for (number, end) in ends.iter().enumerate() {
                        match end.ip() {
                            IpAddr::V4(v4) => ip.attribute(ADDRESSES[0][number], &v4.octets()),
                            IpAddr::V6(v6) => ip.attribute(ADDRESSES[1][number], &v6.octets()),
                        };
                    }
                });
                tuple.nest(TUPLE_PROTOCOL, |protocol| {
                    protocol
                        .attribute(PROTOCOL_NUMBER, &[17])
                        .attribute(SOURCE_PORT, &ends[0].port().to_be_bytes())
                        .attribute(DESTINATION_PORT, &ends[1].port().to_be_bytes());
                });
            });
        }
        let bytes = request.finish(0);
        let found = messages(&bytes).next().expect("a message");
        Reply { kind: found.kind, payload: found.payload.to_vec() }
    }

    #[test]
    fn only_translated_connections_are_found() {
        let masqueraded = [["10.0.0.2:4000", "192.0.2.1:53"], ["192.0.2.1:53", "198.51.100.1:4001"]];
        let new = report(NEW, masqueraded);
        let Some(TranslationEvent::Begun(found)) = event(&new) else {
            panic!("{new:?}");
        };
        assert_eq!(found.protocol, 17);
        assert_eq!(found.original[0].to_string(), "10.0.0.2:4000");
        assert_eq!(found.reply[1].to_string(), "198.51.100.1:4001");
        let ended = event(&report(DELETE, masqueraded));
        assert_eq!(ended, Some(TranslationEvent::Ended(found)));
        let plain = [["[fd00::1]:7", "[fd00::2]:8"], ["[fd00::2]:8", "[fd00::1]:7"]];
        assert_eq!(event(&report(NEW, plain)), None);
        let moved = [["[fd00::1]:7", "[fd00::2]:8"], ["[fd00::3]:8", "[fd00::1]:7"]];
        assert!(event(&report(NEW, moved)).is_some());
        for length in 0..new.payload.len() {
            let mut cut = new.clone();
            cut.payload.truncate(length);
            let _ = event(&cut);
        }
    }
}
