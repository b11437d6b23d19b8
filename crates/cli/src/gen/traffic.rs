//! `trawl gen udp`, `tcp`, `icmp`, `arp`, `eth`, `raw`: the contents of the frames.

use trawl_gen::traffic::{Protocol, Spec};
use trawl_sys::Result;

/// Keys of a [`Spec`] and their values from the command line. A field's value is `N`, `FIRST-LAST`, `FIRST-LAST/STEP`,
/// `random:FIRST-LAST`, a prefix or a list.
type Values = Vec<(&'static str, Option<String>)>;

/// Addresses of the link, and encapsulations of the packet.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Ethernet")]
pub struct Link {
    /// Source MAC address [default: the interface's own]
    #[arg(long, hide_short_help = true, value_name = "MAC")]
    src_mac: Option<String>,
    /// Destination MAC address [default: the next hop's]
    #[arg(long, hide_short_help = true, value_name = "MAC")]
    dst_mac: Option<String>,
    /// VLAN tags ID or ID:PRIORITY, outermost first; the outer one of two is a service tag (QinQ)
    #[arg(long, hide_short_help = true, value_name = "ID[,ID]")]
    vlan: Option<String>,
    /// EtherType of the frames, independent of their contents
    #[arg(long, hide_short_help = true, value_name = "TYPE")]
    ethertype: Option<String>,
    /// Put the frames into a VXLAN tunnel with this network identifier
    #[arg(long, hide_short_help = true, value_name = "VNI")]
    vxlan: Option<String>,
    /// Source address of the tunnel
    #[arg(long, hide_short_help = true, value_name = "ADDR", requires = "vxlan")]
    outer_src: Option<String>,
    /// Destination address of the tunnel
    #[arg(long, hide_short_help = true, value_name = "ADDR", requires = "vxlan")]
    outer_dst: Option<String>,
    /// Source MAC address of the tunnel
    #[arg(long, hide_short_help = true, value_name = "MAC", requires = "vxlan")]
    outer_src_mac: Option<String>,
    /// Destination MAC address of the tunnel
    #[arg(long, hide_short_help = true, value_name = "MAC", requires = "vxlan")]
    outer_dst_mac: Option<String>,
}

/// The IP header.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "IP")]
pub struct Network {
    /// Source address, IPv4 or IPv6 [default: the one of the route to the destination]
    #[arg(long, value_name = "ADDR")]
    src: Option<String>,
    /// Destination address, IPv4 or IPv6 [default: the only neighbour of the interface]
    #[arg(long, value_name = "ADDR")]
    dst: Option<String>,
    /// Use IPv6 if no address is given
    #[arg(short = '6', long)]
    pub ipv6: bool,
    /// Differentiated services code point: a number or a name such as ef
    #[arg(long, hide_short_help = true, value_name = "DSCP")]
    dscp: Option<String>,
    /// Time to live, hop limit [default: 64]
    #[arg(long, hide_short_help = true, value_name = "N")]
    ttl: Option<String>,
    /// MPLS labels, outermost first
    #[arg(long, hide_short_help = true, value_name = "LABEL[,LABEL]")]
    mpls: Option<String>,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Ports")]
pub struct Ports {
    /// Source port [default: 40000]
    #[arg(long, value_name = "PORT")]
    src_port: Option<String>,
    /// Destination port [default: 9, discard]
    #[arg(long, value_name = "PORT")]
    dst_port: Option<String>,
}

/// Options of all frames.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Frames")]
pub struct Shape {
    /// Length of each frame without the checksum at its end: N, FIRST-LAST[/STEP], random:FIRST-LAST, N,N, N:WEIGHT,N:WEIGHT, imix [default: 60, or the shortest possible]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    size: Option<String>,
    /// Number of flows, sent round-robin; varying fields are the same in all frames of a flow
    #[arg(long, value_name = "N")]
    flows: Option<String>,
    /// Every Nth frame is different, for example 1000:ethertype=0x1111; several fields with ';' between them
    #[arg(long, hide_short_help = true, value_name = "N:FIELD=VALUE")]
    every: Option<String>,
    /// Seed of random values and sizes: the same seed makes the same frames
    #[arg(long, hide_short_help = true, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Put a sequence number and the time of sending into the last 18 bytes of each frame, for trawl gen receive
    #[arg(long)]
    pub stamp: bool,
}

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Frames")]
pub struct Carried {
    /// Payload of the frames: zeros, text:…, hex:…, fill:0xNN, random, number; several separated by '|' alternate
    #[arg(long, hide_short_help = true, value_name = "WHAT")]
    payload: Option<String>,
}

/// Options of udp, tcp and icmp, around the header of each.
#[derive(Debug, clap::Args)]
pub struct OverIp<H: Header> {
    #[command(flatten)]
    network: Network,
    #[command(flatten)]
    header: H,
    #[command(flatten)]
    carried: Carried,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    link: Link,
}

pub type Udp = OverIp<Ports>;
pub type Tcp = OverIp<TcpHeader>;
pub type Icmp = OverIp<IcmpHeader>;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "TCP")]
pub struct TcpHeader {
    /// Flags: fin, syn, rst, psh, ack, urg, ece, cwr with commas between them, or none [default: syn]
    #[arg(long, value_name = "FLAGS", add = crate::completion::tcp_flags())]
    flags: Option<String>,
    /// Sequence number
    #[arg(long, value_name = "N")]
    seq: Option<String>,
    /// Acknowledgement number
    #[arg(long, value_name = "N")]
    ack: Option<String>,
    /// Window [default: 65535]
    #[arg(long, value_name = "N")]
    window: Option<String>,
    #[command(flatten)]
    ports: Ports,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "ICMP")]
pub struct IcmpHeader {
    /// Type [default: echo request]
    #[arg(long = "type", value_name = "N")]
    kind: Option<String>,
    /// Code [default: 0]
    #[arg(long, value_name = "N")]
    code: Option<String>,
    /// Identifier [default: 1]
    #[arg(long, value_name = "N")]
    id: Option<String>,
    /// Sequence number [default: 1]
    #[arg(long, value_name = "N")]
    seq: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "ARP")]
pub struct Arp {
    /// The sender's address [default: the one of the route to the target]
    #[arg(long, value_name = "ADDR")]
    src: Option<String>,
    /// The target's address [default: the only neighbour of the interface]
    #[arg(long, value_name = "ADDR")]
    dst: Option<String>,
    /// request or reply [default: request]
    #[arg(long, value_name = "WHICH")]
    op: Option<String>,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    link: Link,
}

#[derive(Debug, clap::Args)]
pub struct Eth {
    #[command(flatten)]
    carried: Carried,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    link: Link,
}

#[derive(Debug, clap::Args)]
pub struct Raw {
    /// The frame from its destination MAC address on; blanks and colons between the digits are ignored
    hex: String,
    #[command(flatten)]
    shape: Shape,
}

/// A kind of traffic on the command line.
pub trait Traffic {
    const PROTOCOL: Protocol;

    fn values(&self) -> Values;

    fn shape(&self) -> &Shape;

    fn is_ipv6(&self) -> bool {
        false
    }

    fn spec(&self) -> Result<Spec> {
        let mut spec = Spec::new(Self::PROTOCOL);
        let shape = self.shape();
        let mut values = self.values();
        values.extend([
            ("size", shape.size.clone()),
            ("flows", shape.flows.clone()),
            ("every", shape.every.clone()),
        ]);
        for (key, value) in values {
            if let Some(value) = value {
                spec.set(key, value)?;
            }
        }
        Ok(spec)
    }
}

impl Link {
    fn values(&self) -> Values {
        vec![
            ("src-mac", self.src_mac.clone()),
            ("dst-mac", self.dst_mac.clone()),
            ("vlan", self.vlan.clone()),
            ("ethertype", self.ethertype.clone()),
            ("vxlan", self.vxlan.clone()),
            ("outer-src", self.outer_src.clone()),
            ("outer-dst", self.outer_dst.clone()),
            ("outer-src-mac", self.outer_src_mac.clone()),
            ("outer-dst-mac", self.outer_dst_mac.clone()),
        ]
    }
}

impl Network {
    fn values(&self) -> Values {
        vec![
            ("src", self.src.clone()),
            ("dst", self.dst.clone()),
            ("dscp", self.dscp.clone()),
            ("ttl", self.ttl.clone()),
            ("mpls", self.mpls.clone()),
        ]
    }
}

impl Carried {
    fn values(&self) -> Values {
        vec![("payload", self.payload.clone())]
    }
}

/// The header after IP's.
pub trait Header: clap::Args {
    const PROTOCOL: Protocol;

    fn values(&self) -> Values;
}

impl Header for Ports {
    const PROTOCOL: Protocol = Protocol::Udp;

    fn values(&self) -> Values {
        vec![
            ("src-port", self.src_port.clone()),
            ("dst-port", self.dst_port.clone()),
        ]
    }
}

impl Header for TcpHeader {
    const PROTOCOL: Protocol = Protocol::Tcp;

    fn values(&self) -> Values {
        let own = vec![
            ("flags", self.flags.clone()),
            ("seq", self.seq.clone()),
            ("ack", self.ack.clone()),
            ("window", self.window.clone()),
        ];
        [own, self.ports.values()].concat()
    }
}

impl Header for IcmpHeader {
    const PROTOCOL: Protocol = Protocol::Icmp;

    fn values(&self) -> Values {
        vec![
            ("type", self.kind.clone()),
            ("code", self.code.clone()),
            ("id", self.id.clone()),
            ("seq", self.seq.clone()),
        ]
    }
}

impl<H: Header> Traffic for OverIp<H> {
    const PROTOCOL: Protocol = H::PROTOCOL;

    fn values(&self) -> Values {
        let parts = [
            self.header.values(),
            self.network.values(),
            self.carried.values(),
            self.link.values(),
        ];
        parts.concat()
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn is_ipv6(&self) -> bool {
        self.network.ipv6
    }
}

impl Traffic for Arp {
    const PROTOCOL: Protocol = Protocol::Arp;

    fn values(&self) -> Values {
        let own = vec![
            ("src", self.src.clone()),
            ("dst", self.dst.clone()),
            ("op", self.op.clone()),
        ];
        [own, self.link.values()].concat()
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }
}

impl Traffic for Eth {
    const PROTOCOL: Protocol = Protocol::Eth;

    fn values(&self) -> Values {
        [self.carried.values(), self.link.values()].concat()
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }
}

impl Traffic for Raw {
    const PROTOCOL: Protocol = Protocol::Raw;

    fn values(&self) -> Values {
        vec![("hex", Some(self.hex.clone()))]
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }
}
