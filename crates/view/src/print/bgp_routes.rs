//! Routes of BGP's families: plain and labelled prefixes, those of VPNs, route targets, multicast trees, EVPN.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::line::{Colons, Data, Line, Printed, Stop, put};

const DISTINGUISHER_LEN: usize = 8;
const LABEL_LEN: usize = 3;

/// How the routes of a family are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// Of addresses of so many bytes.
    Plain(usize),
    Labelled(usize),
    Vpn(usize),
    RouteTarget,
    /// The default tree of a multicast VPN.
    Tree,
    Evpn,
}

impl Family {
    /// `None` for families that are shown as bytes.
    pub fn of(family: u16, subsequent: u8) -> Option<Self> {
        let size = match family {
            1 => 4,
            2 => 16,
            _ => 0,
        };
        Some(match (family, subsequent) {
            (1 | 2, 1..=3) => Self::Plain(size),
            (1 | 2, 4) => Self::Labelled(size),
            (1 | 2, 128..=130) => Self::Vpn(size),
            (1, 132) => Self::RouteTarget,
            (1, 66) => Self::Tree,
            (25, 70) => Self::Evpn,
            _ => return None,
        })
    }

    /// How long one next hop is; EVPN's is an address of either version.
    fn hop_len(self, len: usize) -> usize {
        match self {
            Self::Plain(size) | Self::Labelled(size) => size,
            Self::Vpn(size) => DISTINGUISHER_LEN + size,
            Self::RouteTarget | Self::Tree => 4,
            Self::Evpn => len,
        }
    }

    pub fn put_next_hops(self, line: &mut Line<'_>, hops: &[u8]) -> Printed {
        for (index, hop) in hops.chunks(self.hop_len(hops.len()).max(1)).enumerate() {
            if index > 0 {
                put!(line, ", ");
            }
            if hop.len() != self.hop_len(hops.len()) {
                put!(line, "invalid len");
                continue;
            }
            match self {
                Self::Vpn(_) => {
                    let (distinguisher, address) = hop.split_at(DISTINGUISHER_LEN);
                    put_distinguisher(line, distinguisher)?;
                    put!(line, ", {}", text(address));
                }
                _ => put!(line, "{}", text(hop)),
            }
        }
        Ok(())
    }

    pub fn put_routes(self, line: &mut Line<'_>, routes: Data<'_>) -> Printed {
        match self {
            Self::Plain(4) => prefixes::<4>(line, routes, "\n\t      "),
            Self::Plain(_) => prefixes::<16>(line, routes, "\n\t      "),
            _ => {
                let mut rest = routes;
                while rest.len > 0 {
                    let one = match self {
                        Self::RouteTarget => route_target(line, rest)?,
                        Self::Tree => tree(line, rest)?,
                        Self::Evpn => evpn(line, rest)?,
                        Self::Labelled(size) => labelled(line, rest, size, 0)?,
                        Self::Plain(size) | Self::Vpn(size) => {
                            labelled(line, rest, size, DISTINGUISHER_LEN)?
                        }
                    };
                    let Some(len) = one else { return Ok(()) };
                    rest = rest.skip(len);
                }
                Ok(())
            }
        }
    }
}

/// An address of four or sixteen bytes.
pub(super) fn text(bytes: &[u8]) -> String {
    match (bytes.first_chunk::<16>(), bytes.first_chunk::<4>()) {
        (Some(long), _) => Ipv6Addr::from(*long).to_string(),
        (None, Some(short)) => Ipv4Addr::from(*short).to_string(),
        (None, None) => String::new(),
    }
}

/// Whether numbers of paths stand before the prefixes: it is not said, only that they make sense with them and none
/// without.
fn has_path_numbers(data: Data<'_>, most: usize) -> bool {
    let makes_sense = |with: bool| {
        let mut rest = data.bytes;
        while !rest.is_empty() {
            if with {
                let Some(after) = rest.get(4..).filter(|after| !after.is_empty()) else {
                    return false;
                };
                rest = after;
            }
            let bits = usize::from(rest[0]);
            let is_default = bits == 0 && rest.len() > 1;
            match rest.get(1 + bits.div_ceil(8)..) {
                Some(after) if bits <= most && !is_default => rest = after,
                _ => return false,
            }
        }
        true
    };
    !makes_sense(false) && makes_sense(true)
}

/// Prefixes of addresses of `N` bytes.
pub(super) fn prefixes<const N: usize>(
    line: &mut Line<'_>,
    data: Data<'_>,
    before: &str,
) -> Printed {
    let with_path = has_path_numbers(data, N * 8);
    let mut rest = data;
    while rest.len > 0 {
        let mut path = None;
        if with_path {
            path = Some(rest.u32(0)?);
            rest = rest.skip(4);
        }
        let bits = usize::from(rest.u8(0)?);
        if bits > N * 8 {
            put!(line, "\n\t    (illegal prefix length)");
            return Ok(());
        }
        put!(line, "{before}{}/{bits}", address(rest, 1, bits, N)?);
        if let Some(path) = path {
            put!(line, "   Path Id: {path}");
        }
        rest = rest.skip(1 + bits.div_ceil(8));
    }
    Ok(())
}

/// The first `bits` of an address of `size` bytes, as far as a prefix has them.
fn address(data: Data<'_>, at: usize, bits: usize, size: usize) -> Result<String, Stop> {
    let octets = bits.div_ceil(8);
    let mut whole = [0u8; 16];
    whole[..octets].copy_from_slice(data.slice(at, octets)?);
    if !bits.is_multiple_of(8) {
        whole[octets - 1] &= (0xff00u16 >> (bits % 8)) as u8;
    }
    Ok(text(&whole[..size]))
}

fn illegal(line: &mut Line<'_>) -> Result<Option<usize>, Stop> {
    put!(line, "\n\t    (illegal prefix length)");
    Ok(None)
}

/// A prefix with a label and, after that, `between` bytes of a distinguisher; how long it was.
fn labelled(
    line: &mut Line<'_>,
    data: Data<'_>,
    size: usize,
    between: usize,
) -> Result<Option<usize>, Stop> {
    let before = 1 + LABEL_LEN + between;
    let bits = usize::from(data.u8(0)?).checked_sub((LABEL_LEN + between) * 8);
    let Some(bits) = bits.filter(|bits| *bits <= size * 8) else {
        return illegal(line);
    };
    let shown = address(data, before, bits, size)?;
    let distinguisher = data.slice(1 + LABEL_LEN, between)?;
    put!(line, "\n\t      ");
    if between > 0 {
        put_distinguisher(line, distinguisher)?;
        put!(line, ", ");
    }
    let entry = data.u32(0)? & 0xff_ffff;
    let bottom = match entry & 1 {
        0 => "(BOGUS: Bottom of Stack NOT set!)",
        _ => "(bottom)",
    };
    put!(line, "{shown}/{bits}, label:{} {bottom}", entry >> 4);
    Ok(Some(before + bits.div_ceil(8)))
}

/// `RD: 65000:1 (= 0.0.0.1)`.
fn put_distinguisher(line: &mut Line<'_>, bytes: &[u8]) -> Printed {
    let data = Data {
        bytes,
        len: bytes.len(),
    };
    put!(line, "RD: ");
    match data.u16(0)? {
        0 => {
            let number = data.u32(4)?;
            let dotted = Ipv4Addr::from(number);
            put!(line, "{}:{number} (= {dotted})", data.u16(2)?);
        }
        1 => put!(line, "{}:{}", Ipv4Addr::from(data.u32(2)?), data.u16(6)?),
        2 => {
            let (system, number) = (data.u32(2)?, data.u16(6)?);
            let dotted = Ipv4Addr::from(system);
            put!(line, "{system}:{number} ({dotted}:{number})");
        }
        _ => put!(line, "unknown RD format"),
    }
    Ok(())
}

fn route_target(line: &mut Line<'_>, data: Data<'_>) -> Result<Option<usize>, Stop> {
    const ORIGIN_BITS: usize = 32;
    let bits = usize::from(data.u8(0)?);
    if bits == 0 {
        put!(line, "\n\t      default route target");
        return Ok(Some(1));
    }
    let Some(bits) = bits.checked_sub(ORIGIN_BITS).filter(|bits| *bits <= 64) else {
        put!(line, "\n\t      (illegal prefix length)");
        return Ok(None);
    };
    let octets = bits.div_ceil(8);
    let origin = data.u32(1)?;
    let mut target = [0u8; 8];
    target[..octets].copy_from_slice(data.slice(5, octets)?);
    if bits % 8 != 0 {
        target[octets - 1] &= (0xff00u16 >> (bits % 8)) as u8;
    }
    put!(line, "\n\t      origin AS: {origin}, ");
    let hex: Vec<String> = target[..octets]
        .chunks(2)
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
    let hex = hex.join(" ");
    let [kind_high, kind_low, a, b, c, d, e, f] = target;
    let (long, short) = (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, f]));
    match u16::from_be_bytes([kind_high, kind_low]) {
        _ if bits == 0 => put!(line, "route-target: 0:0/0"),
        _ if bits < 16 => put!(line, "route-target: partial-type: ({hex}/{bits})"),
        0x0002 => {
            let (system, number) = (u16::from_be_bytes([a, b]), u32::from_be_bytes([c, d, e, f]));
            put!(line, "route-target: {system}:{number}/{bits} ({hex})");
        }
        0x0102 => {
            let dotted = Ipv4Addr::from(long);
            put!(line, "route-target: {dotted}:{short}/{bits} ({hex})");
        }
        0x0202 => put!(line, "route-target: {long}:{short}/{bits} ({hex})"),
        kind => put!(
            line,
            "route target: unknown-type({kind:04x}) ({hex}/{bits})"
        ),
    }
    Ok(Some(5 + octets))
}

fn tree(line: &mut Line<'_>, data: Data<'_>) -> Result<Option<usize>, Stop> {
    const LEN: usize = 16;
    if usize::from(data.u8(0)?) != LEN * 8 {
        return illegal(line);
    }
    let (source, group) = (data.u32(1 + DISTINGUISHER_LEN)?, data.u32(13)?);
    put!(line, "\n\t      ");
    put_distinguisher(line, data.slice(1, DISTINGUISHER_LEN)?)?;
    put!(
        line,
        ", VPN IP Address: {}, MC Group Address: {}",
        Ipv4Addr::from(source),
        Ipv4Addr::from(group)
    );
    Ok(Some(1 + LEN))
}

/// RFC 7432 and RFC 9136; tcpdump shows these routes as bytes.
fn evpn(line: &mut Line<'_>, data: Data<'_>) -> Result<Option<usize>, Stop> {
    const HEADER_LEN: usize = 2;
    const SEGMENT_LEN: usize = 10;
    let (kind, len) = (data.u8(0)?, usize::from(data.u8(1)?));
    let name = match kind {
        1 => "Ethernet Auto-discovery",
        2 => "MAC/IP Advertisement",
        3 => "Inclusive Multicast Ethernet Tag",
        4 => "Ethernet Segment",
        5 => "IP Prefix",
        _ => "Unknown",
    };
    put!(line, "\n\t      {name} ({kind}), length: {len}");
    let bytes = data.slice(HEADER_LEN, len)?;
    let mut rest = Data { bytes, len };
    let mut take = |size: usize| {
        let part = rest.slice(0, size)?;
        rest = rest.skip(size);
        Ok::<_, Stop>(Data {
            bytes: part,
            len: size,
        })
    };
    if !(1..=5).contains(&kind) {
        return Ok(Some(HEADER_LEN + len));
    }
    put!(line, ", ");
    put_distinguisher(line, take(DISTINGUISHER_LEN)?.bytes)?;
    if matches!(kind, 1 | 2 | 4 | 5) {
        put!(line, ", ESI {}", Colons(take(SEGMENT_LEN)?.bytes));
    }
    if kind != 4 {
        put!(line, ", tag {}", take(4)?.u32(0)?);
    }
    match kind {
        2 => {
            let mac = usize::from(take(1)?.u8(0)? / 8);
            put!(line, ", MAC {}", Colons(take(mac)?.bytes));
            let bits = take(1)?.u8(0)?;
            if bits > 0 {
                put!(line, ", {}", text(take(usize::from(bits / 8))?.bytes));
            }
        }
        3 | 4 => {
            let bits = take(1)?.u8(0)?;
            put!(line, ", {}", text(take(usize::from(bits / 8))?.bytes));
        }
        5 => {
            let bits = take(1)?.u8(0)?;
            // One label at the end; an address and a gateway of the same version before.
            let size = len.saturating_sub(DISTINGUISHER_LEN + SEGMENT_LEN + 5 + LABEL_LEN) / 2;
            let prefix = text(take(size)?.bytes);
            let gateway = text(take(size)?.bytes);
            put!(line, ", {prefix}/{bits}, gateway {gateway}");
        }
        _ => {}
    }
    if matches!(kind, 1 | 2 | 5) {
        let label = take(LABEL_LEN)?;
        let number = u32::from(label.u8(0)?) << 16 | u32::from(label.u16(1)?);
        put!(line, ", label:{} (VNI {number})", number >> 4);
    }
    Ok(Some(HEADER_LEN + len))
}
