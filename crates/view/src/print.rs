//! One line a packet, in tcpdump's format.
//!
//! The text is the same as `tcpdump -n` prints for links, ARP, IPv4, IPv6 and its extensions, ICMP, TCP, UDP, SCTP,
//! tunnels, and applications and routing protocols: DNS, DHCP, NTP, HTTP, SNMP and others (see `transport.rs`). It
//! differs on purpose in these points:
//! - Nothing is looked up: addresses, ports and protocols are numbers, always.
//! - TLS client and server hellos, QUIC's long headers, WireGuard and GTP-U, which tcpdump does not decode, follow its
//!   own text.
//! - A frame inside VXLAN stays on the same line, after `: `.
//! - A time difference of a day or more shows all its hours.
//! - An IPv4 length of zero is a segment that the card will cut up later, not damage.
//! - A packet that ends after an IPv6 extension header is marked as cut; under a cut packet `-x`
//!   leaves out the link header as under any other.
//! - `-vv` does not dump the contents of SCTP chunks and neighbour discovery options.
//! - EAPOL and EIGRP show one line with `-v` too.
//! - The interface and direction of a packet stand where `tcpdump -i any` has them; the hook and
//!   the verdict stand in brackets at the end of the line: `[xdp exit: DROP]`.

mod application;
mod digits;
mod dump;
mod flows;
mod line;
mod link;
mod names;
mod network;
mod routing;
mod time;
mod transport;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;

use flows::Flows;
use line::{Data, Line, default_print};
// The printers call each other across the layers.
use application::{dhcp, dhcp6, dns, http, nfs, ntp, radius, snmp, syslog, tftp, tls, vpn};
use link::{cdp, ethernet, llc, ppp, stp};
use network::{arp, igmp, ipv4, ipv6, tunnel};
use routing::{bfd, bgp, ospf, ospf3, pim, vrrp};
use transport::{mptcp, sctp, tcp, udp};
use trawl_packet::pcapng::{Direction, block};
use trawl_packet::verdict;

use crate::record::{PacketView, ShortId};

/// The name of libpcap's device that stands for all interfaces.
const ALL: &str = "any";

/// Options of the printer; the letters are tcpdump's.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrintOptions {
    /// `-e`: the link layer's header.
    pub link_header: bool,
    /// `-t` and its repetitions.
    pub timestamp: Timestamp,
    /// Seconds east of Greenwich at a time in seconds since 1970, for times of day and dates; `None`: UTC.
    pub utc_offset: Option<fn(i64) -> i32>,
    /// `-v` and its repetitions.
    pub verbosity: u8,
    pub dump: Option<Dump>,
    /// `--number`: a number in front of each packet.
    pub number: bool,
    /// `-q`: less of each protocol.
    pub quick: bool,
    /// `-S`: TCP sequence numbers as they are, not from the start of a conversation.
    pub absolute_sequence: bool,
    /// `-K`: checksums are not verified.
    pub trust_checksums: bool,
    pub precision: Precision,
    /// `--id`: the packet identifier, as CPU and number.
    pub id: bool,
    /// Verdicts in colour, for a terminal.
    pub colour: bool,
    /// `-T`: the protocol of UDP datagrams, whatever their ports.
    pub datagrams: Option<Datagrams>,
    /// Names of this host's interfaces by their indexes, for cooked packets of a capture on all interfaces.
    pub interface_names: Option<fn(u32) -> Option<String>>,
}

/// Protocols that `-T` accepts for UDP datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datagrams {
    Domain,
    Quic,
    Radius,
    Snmp,
    Tftp,
    Vxlan,
}

/// Digits after the second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    #[default]
    Nano,
    Micro,
}

/// The time in front of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Timestamp {
    /// Time of day.
    #[default]
    Default,
    /// `-t`
    None,
    /// `-tt`: seconds since 1970.
    Epoch,
    /// `-ttt`: since the previous packet.
    DeltaPrevious,
    /// `-tttt`: date and time of day.
    Date,
    /// `-ttttt`: since the first packet.
    DeltaFirst,
}

/// The packet's bytes under its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dump {
    pub form: DumpForm,
    /// `-xx`, `-XX`, `-AA`: with the link layer's header.
    pub link_header: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DumpForm {
    /// `-x`
    Hex,
    /// `-X`
    HexAscii,
    /// `-A`
    Ascii,
}

/// A printer of consecutive packets; times and TCP sequence numbers relate to earlier ones.
#[derive(Debug, Default)]
pub struct Printer {
    options: PrintOptions,
    count: u64,
    first_ns: Option<u64>,
    previous_ns: Option<u64>,
    /// The offset from UTC in the quarter of an hour of the last packet.
    offset: Option<(u64, i32)>,
    /// Names of interfaces by their indexes.
    names: HashMap<u32, String>,
    flows: Flows,
}

impl Printer {
    pub fn new(options: PrintOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Sets the number of digits of times, from the next packet on.
    pub fn set_precision(&mut self, precision: Precision) {
        self.options.precision = precision;
    }

    /// Appends the packet's line and the requested dump, with the line ends.
    pub fn line(&mut self, out: &mut String, packet: &PacketView<'_>) {
        self.count += 1;
        if self.options.number {
            let _ = write!(out, "{:5}  ", self.count);
        }
        self.timestamp(out, packet.timestamp_ns);
        if let Some(interface) = packet.interface {
            // The widths are those of `tcpdump -i any`; writing to a String cannot fail.
            let cooked = self.cooked_interface(packet).map(printable);
            let interface = cooked.unwrap_or_else(|| printable(interface));
            let _ = write!(out, "{interface:<5} ");
        }
        match packet.direction {
            Some(Direction::In) => out.push_str("In  "),
            Some(Direction::Out) => out.push_str("Out "),
            None => {}
        }
        let mut line = Line::new(out, &self.options, &mut self.flows);
        let data = Data { bytes: packet.captured, len: packet.captured.len().max(packet.original_len as usize) };
        let link_header_len = link::print(&mut line, packet.link_type, data);
        put_hook_point(out, packet, self.options.colour);
        if let Some(process) = packet.process {
            let name = process.name.map(printable).unwrap_or_default();
            let _ = write!(out, " {name}[{}]", process.id);
            if let Some(owner) = packet.uncertain_owner() {
                let _ = write!(out, " ({owner})");
            }
        }
        if let Some(id) = packet.packet_id.filter(|_| self.options.id) {
            let _ = write!(out, " id {}", ShortId(id));
        }
        if let Some(dump) = self.options.dump {
            let skip = if dump.link_header { 0 } else { link_header_len };
            dump::print(out, dump.form, packet.captured.get(skip..).unwrap_or_default());
        }
        out.push('\n');
    }

    /// Returns the interface that is named in the header of a packet captured on all interfaces.
    fn cooked_interface(&mut self, packet: &PacketView<'_>) -> Option<&str> {
        const INDEX: std::ops::Range<usize> = 4..8;
        let name_of = self.options.interface_names?;
        if packet.link_type != block::LINKTYPE_LINUX_SLL2 || packet.interface != Some(ALL) {
            return None;
        }
        let index = packet.captured.get(INDEX)?.try_into().ok()?;
        let index = u32::from_be_bytes(index);
        if let Entry::Vacant(new) = self.names.entry(index) {
            new.insert(name_of(index)?);
        }
        self.names.get(&index).map(String::as_str)
    }

    /// Returns a time in the form of the packets' times.
    pub fn time(&mut self, ns: u64) -> String {
        let mut out = String::new();
        self.timestamp(&mut out, ns);
        out.truncate(out.trim_end().len());
        out
    }

    /// Returns the offset from UTC. Zones change it at quarters of an hour only.
    fn utc_offset(&mut self, now: u64) -> i32 {
        const QUARTER: u64 = 900_000_000_000;
        let Some(offset_at) = self.options.utc_offset else {
            return 0;
        };
        let quarter = now / QUARTER;
        match self.offset {
            Some((known, offset)) if known == quarter => offset,
            _ => {
                let offset = offset_at((now / 1_000_000_000) as i64);
                self.offset = Some((quarter, offset));
                offset
            }
        }
    }

    fn timestamp(&mut self, out: &mut String, now: u64) {
        let first = *self.first_ns.get_or_insert(now);
        let previous = self.previous_ns.replace(now).unwrap_or(now);
        let offset = self.utc_offset(now);
        let digits = self.options.precision;
        match self.options.timestamp {
            Timestamp::Default => time::time_of_day(out, now, offset, digits),
            Timestamp::None => {}
            Timestamp::Epoch => time::epoch(out, now, digits),
            Timestamp::DeltaPrevious => time::delta(out, now, previous, digits),
            Timestamp::Date => time::date(out, now, offset, digits),
            Timestamp::DeltaFirst => time::delta(out, now, first, digits),
        }
    }
}

/// Returns a name from a file, escaped for a terminal.
fn printable(name: &str) -> String {
    name.replace(crate::text::controls_terminal, ".")
}

/// Appends the bracket at a line's end with the hook, the verdict, or both.
fn put_hook_point(out: &mut String, packet: &PacketView<'_>, colour: bool) {
    let drop = packet.drop();
    if let Some(drop) = &drop {
        // The reason already implies the verdict.
        let _ = write!(out, " [drop: {}]", printable(&drop.to_string()));
        for function in &drop.stack {
            let _ = write!(out, "\n    {}", printable(function));
        }
        return;
    }
    // trawl's own program at tc leaves every decision to the programs after it.
    let decided = packet.verdict.map(verdict::text).filter(|text| text != "UNSPEC");
    let verdict = decided.map(|text| if colour { coloured(&text) } else { text });
    let _ = match (packet.hook.map(printable), verdict) {
        (Some(hook), Some(verdict)) => write!(out, " [{hook}: {verdict}]"),
        (Some(hook), None) => write!(out, " [{hook}]"),
        (None, Some(verdict)) => write!(out, " [{verdict}]"),
        (None, None) => Ok(()),
    };
}

/// Colours a verdict: red if the packet stops, yellow if it goes elsewhere, green if it goes on.
fn coloured(verdict: &str) -> String {
    let colour = match verdict.split([' ', ',']).next() {
        Some("PASS" | "OK" | "UNSPEC" | "NEXT") => 32,
        Some("DROP" | "ABORTED" | "SHOT" | "STOLEN") => 31,
        _ => 33,
    };
    format!("\x1b[{colour}m{verdict}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use trawl_packet::build::Template;
    use trawl_packet::pcapng::Verdict;

    use super::*;

    fn line(view: PacketView<'_>) -> String {
        let mut out = String::new();
        let options = PrintOptions { timestamp: Timestamp::None, ..PrintOptions::default() };
        Printer::new(options).line(&mut out, &view);
        out
    }

    #[test]
    fn ids_are_short_and_verdicts_coloured() {
        let view = PacketView {
            link_type: 1,
            verdict: Some(Verdict::Xdp(1)),
            packet_id: Some(3 << 48 | 17),
            ..PacketView::default()
        };
        let mut out = String::new();
        let options = PrintOptions { timestamp: Timestamp::None, id: true, colour: true, ..PrintOptions::default() };
        Printer::new(options).line(&mut out, &view);
        assert!(out.ends_with("[\x1b[31mDROP\x1b[0m] id 3.17\n"), "{out:?}");
    }

    #[test]
    fn interface_precedes_the_packet_and_verdict_follows() {
        let frame = Template::new()
            .ethernet([2; 6], [4; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .udp(1234, 5678)
            .payload([0; 18])
            .build();
        let view =
            PacketView { link_type: 1, captured: &frame, original_len: frame.len() as u32, ..PacketView::default() };
        let text = "IP 10.0.0.1.1234 > 10.0.0.2.5678: UDP, length 18";
        let packet = PacketView {
            interface: Some("veth0"),
            direction: Some(Direction::In),
            hook: Some("xdp exit"),
            verdict: Some(Verdict::Xdp(1)),
            ..view
        };
        assert_eq!(line(packet), format!("veth0 In  {text} [xdp exit: DROP]\n"));
        let entry = PacketView { hook: Some("xdp entry"), ..view };
        assert_eq!(line(entry), format!("{text} [xdp entry]\n"));
        let verdict = PacketView { verdict: Some(Verdict::Tc(2)), ..view };
        assert_eq!(line(verdict), format!("{text} [SHOT]\n"));
    }

    #[test]
    fn headers_in_headers_end_at_a_depth() {
        let mut template = Template::new().ethernet([2; 6], [4; 6]);
        for _ in 0..1000 {
            template = template.ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
        }
        let frame = template.build();
        let view =
            PacketView { link_type: 1, captured: &frame, original_len: frame.len() as u32, ..PacketView::default() };
        assert!(line(view).ends_with("[nested too deep] (invalid)\n"));
    }
}
