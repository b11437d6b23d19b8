//! The connections that a live report is about.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use trawl_bpf::layout::process::OWNER_WANTED;
use trawl_bpf::layout::slow::SlowRow;
use trawl_packet::build::{Tcp, Template, flags};
use trawl_packet::pcapng::block::{ByteOrder, LINKTYPE_ETHERNET};
use trawl_source::FileFilter;
use trawl_sys::Result;

#[derive(Debug, Default)]
pub struct Chosen<'a> {
    /// Numbers of network namespaces; `None`: all.
    pub namespaces: Option<HashSet<u32>>,
    /// Only the processes that the capture selects.
    pub of_processes: bool,
    /// Only connections with packets that match.
    pub filter: Option<FileFilter<'a>>,
}

/// The transport of a connection, or of questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Udp,
}

impl Chosen<'_> {
    pub(super) fn has_row(&self, row: &SlowRow) -> bool {
        self.has_namespace(row.ends.netns) && (!self.of_processes || row.owner_flags & OWNER_WANTED as u32 != 0)
    }

    pub(super) fn has_namespace(&self, number: u32) -> bool {
        self.namespaces.as_ref().is_none_or(|chosen| chosen.contains(&number))
    }

    /// Returns true if the namespace with this name or number is one of them. `name` returns the name of a number.
    pub(super) fn has_label(&self, label: &str, name: impl Fn(u32) -> String) -> bool {
        let is_it = |number: &u32| label == number.to_string() || label == name(*number);
        self.namespaces.as_ref().is_none_or(|chosen| chosen.iter().any(is_it))
    }

    /// Returns true if a packet of one direction or the other matches the filter.
    pub(super) fn matches(&mut self, one: SocketAddr, other: SocketAddr, transport: Transport) -> Result<bool> {
        let Some(filter) = &mut self.filter else { return Ok(true) };
        for (from, to) in [(one, other), (other, one)] {
            let frame = frame(from, to, transport);
            if filter.matches((LINKTYPE_ETHERNET, ByteOrder::Little), &frame, frame.len() as u32)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns a packet of a connection.
fn frame(from: SocketAddr, to: SocketAddr, transport: Transport) -> Vec<u8> {
    let frame = Template::new().ethernet([0; 6], [0; 6]);
    let frame = match (from.ip().to_canonical(), to.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => frame.ipv4(from, to),
        (from, to) => frame.ipv6(in_six(from), in_six(to)),
    };
    match transport {
        Transport::Tcp => {
            frame.tcp(Tcp { src: from.port(), dst: to.port(), flags: flags::ACK, ..Tcp::default() }).build()
        }
        Transport::Udp => frame.udp(from.port(), to.port()).build(),
    }
}

fn in_six(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    }
}
