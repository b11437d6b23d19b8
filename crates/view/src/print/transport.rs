//! Transport protocols, and the applications behind their ports, with tcpdump's text for every protocol that it
//! decodes. TLS, QUIC, WireGuard and GTP-U, which tcpdump does not decode, follow its own text.

pub mod mptcp;
pub mod sctp;
pub mod tcp;
pub mod udp;

use super::line::{Data, Line, Printed, Stop, put};
use super::network::Ip;
use super::{
    Datagrams, bfd, bgp, dhcp, dhcp6, dns, http, nfs, ntp, radius, snmp, syslog, tftp, tls, tunnel, vpn, vrrp,
};

type Application = fn(&mut Line<'_>, Data<'_>) -> Printed;

/// Payloads by the port at either end; the first row with one of the ports counts.
struct Applications {
    rows: &'static [(&'static [u16], Application)],
    /// A bit for each port of the rows: most packets have none of them.
    ports: [u64; 1024],
}

impl Applications {
    const fn new(rows: &'static [(&'static [u16], Application)]) -> Self {
        let mut ports = [0; 1024];
        let mut row = 0;
        while row < rows.len() {
            let mut at = 0;
            while at < rows[row].0.len() {
                let port = rows[row].0[at] as usize;
                ports[port / 64] |= 1 << (port % 64);
                at += 1;
            }
            row += 1;
        }
        Self { rows, ports }
    }

    fn has(&self, port: u16) -> bool {
        self.ports[usize::from(port / 64)] >> (port % 64) & 1 == 1
    }

    fn by_port(&self, (src, dst): (u16, u16)) -> Option<Application> {
        if !self.has(src) && !self.has(dst) {
            return None;
        }
        let mut rows = self.rows.iter();
        let row = rows.find(|(ports, _)| ports.contains(&src) || ports.contains(&dst));
        row.map(|(_, application)| *application)
    }
}

/// Payloads of datagrams.
static UDP: Applications = Applications::new(&[
    (&[4789], tunnel::vxlan),
    (&[6081], tunnel::geneve),
    (&[53], dns::unicast),
    (&[5353], dns::multicast),
    (&[69], tftp::print),
    (&[67, 68], dhcp::print),
    (&[161, 162], snmp::print),
    (&[123], ntp::ntp),
    (&[546, 547], dhcp6::print),
    (&[1812, 1813, 1645, 1646, 1700, 3799], radius::print),
    (&[500], vpn::isakmp),
    (&[319, 320], ntp::ptp),
    (&[1985], vrrp::hsrp),
    (&[4500], vpn::encapsulated_esp),
    (&[514], syslog::print),
    (&[5060], http::sip),
    (&[2152], tunnel::gtp_u),
    (&[51820], vpn::wireguard),
    (&[6635], tunnel::mpls),
]);

/// Payloads of segments.
static TCP: Applications = Applications::new(&[
    (&[25], http::smtp),
    (&[43], http::whois),
    (&[179], bgp::print),
    (&[22], http::ssh),
    (&[21], http::ftp),
    (&[80, 8080], http::print),
    (&[554, 8554], http::rtsp),
    (&[53], dns::over_tcp),
]);

/// Ports of applications that tcpdump does not decode: their lines name the datagram's length, as its own line does.
const OWN: [u16; 2] = [2152, 51820];

/// Returns true if the line of a datagram's application names the datagram's length.
fn names_length(src: u16, dst: u16) -> bool {
    OWN.contains(&src) || OWN.contains(&dst)
}

/// Shows the payload of a datagram; returns false if its ports are not known.
fn datagram(line: &mut Line<'_>, ip: &Ip, ports: (u16, u16), data: Data<'_>) -> Result<bool, Stop> {
    if nfs::print(line, ip, ports, data)? {
        return Ok(true);
    }
    let (src, dst) = ports;
    match UDP.by_port(ports) {
        Some(application) => application(line, data)?,
        None if bfd::PORTS.contains(&dst) => bfd::print(line, dst, data)?,
        None if (src == 443 || dst == 443) && !ip.fragmented => tls::quic(line, data)?,
        None => return Ok(false),
    }
    Ok(true)
}

/// Shows the payload of a datagram whose protocol was given by `-T`.
fn as_chosen(line: &mut Line<'_>, datagrams: Datagrams, data: Data<'_>) -> Printed {
    let application = match datagrams {
        Datagrams::Domain => dns::unicast,
        Datagrams::Quic => tls::quic,
        Datagrams::Radius => radius::print,
        Datagrams::Snmp => snmp::print,
        Datagrams::Tftp => tftp::print,
        Datagrams::Vxlan => tunnel::vxlan,
    };
    application(line, data)
}

/// Shows a segment's payload, after the segment's length.
fn segment(line: &mut Line<'_>, ip: &Ip, ports: (u16, u16), data: Data<'_>) -> Printed {
    const NFS: u16 = 2049;
    if let Some(application) = TCP.by_port(ports) {
        return application(line, data);
    }
    let is_nfs = ports.0 == NFS || ports.1 == NFS;
    if !is_nfs || data.at_least(4).is_err() {
        tls::print(line, data);
        return Ok(());
    }
    put!(line, ": ");
    let fragment = (data.u32(0)? & 0x7fff_ffff) as usize;
    let message = data.skip(4);
    let message = message.claimed(fragment.min(message.len));
    if !nfs::print(line, ip, ports, message)? {
        // Printed as for an unknown port.
        line.out.truncate(line.out.len() - 2);
    }
    Ok(())
}
