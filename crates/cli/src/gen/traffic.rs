//! `trawl gen udp`, `tcp`, `icmp`, `arp`, `eth`, `raw`: the contents of the frames.

use serde::Serialize;
use serde_json::Value;
use trawl_gen::traffic::{Protocol, Spec};
use trawl_sys::{Error, Result};

// The options are the keys of a [`Spec`], by their names. A field's value is `N`, `FIRST-LAST`, `FIRST-LAST/STEP`,
// `random:FIRST-LAST`, a prefix or a list.

/// Returns the specification of the frames that these options describe, and true if IPv6 is wanted.
pub fn spec(protocol: Protocol, options: &impl Serialize, shape: &Shape) -> Result<(Spec, bool)> {
    let json = |e| Error::failed("cannot read the options of the frames", e);
    let mut spec = Spec::new(protocol);
    let mut ipv6 = false;
    for part in [serde_json::to_value(options), serde_json::to_value(shape)] {
        for (key, value) in part.map_err(json)?.as_object().into_iter().flatten() {
            match value {
                Value::String(text) => spec.set(key, text)?,
                value => ipv6 |= *value == Value::Bool(true),
            }
        }
    }
    Ok((spec, ipv6))
}

/// Addresses of the link, and encapsulations of the packet.
#[derive(Debug, Default, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
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
#[derive(Debug, Default, clap::Args, Serialize)]
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
    ipv6: bool,
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

#[derive(Debug, Default, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
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
#[derive(Debug, Default, clap::Args, Serialize)]
#[command(next_help_heading = "Frames")]
pub struct Shape {
    /// Length of each frame without the checksum at its end: N, FIRST-LAST[/STEP], random:FIRST-LAST, N,N,
    /// N:WEIGHT,N:WEIGHT, imix [default: 60, or the shortest possible]
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
    #[serde(skip)]
    pub seed: u64,
    /// Put a sequence number and the time of sending into the last 18 bytes of each frame, for trawl gen receive
    #[arg(long)]
    #[serde(skip)]
    pub stamp: bool,
}

#[derive(Debug, Default, clap::Args, Serialize)]
#[command(next_help_heading = "Frames")]
pub struct Carried {
    /// Payload of the frames: zeros, text:…, hex:…, fill:0xNN, random, number; several separated by '|' alternate
    #[arg(long, hide_short_help = true, value_name = "WHAT")]
    payload: Option<String>,
}

/// Options of udp, tcp and icmp, around the header of each.
#[derive(Debug, clap::Args, Serialize)]
pub struct OverIp<H: clap::Args> {
    #[command(flatten)]
    #[serde(flatten)]
    network: Network,
    #[command(flatten)]
    #[serde(flatten)]
    header: H,
    #[command(flatten)]
    #[serde(flatten)]
    carried: Carried,
    #[command(flatten)]
    #[serde(flatten)]
    link: Link,
}

pub type Udp = OverIp<Ports>;
pub type Tcp = OverIp<TcpHeader>;
pub type Icmp = OverIp<IcmpHeader>;

#[derive(Debug, clap::Args, Serialize)]
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
    #[serde(flatten)]
    ports: Ports,
}

#[derive(Debug, clap::Args, Serialize)]
#[command(next_help_heading = "ICMP")]
pub struct IcmpHeader {
    /// Type [default: echo request]
    #[arg(long = "type", value_name = "N")]
    #[serde(rename = "type")]
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

#[derive(Debug, clap::Args, Serialize)]
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
    #[serde(flatten)]
    link: Link,
}

#[derive(Debug, clap::Args, Serialize)]
pub struct Eth {
    #[command(flatten)]
    #[serde(flatten)]
    carried: Carried,
    #[command(flatten)]
    #[serde(flatten)]
    link: Link,
}

#[derive(Debug, clap::Args, Serialize)]
pub struct Raw {
    /// The frame from its destination MAC address on; blanks and colons between the digits are ignored
    hex: String,
}
