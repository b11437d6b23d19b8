//! Health of the path to a backend: a TCP SYN to the virtual address, sent in the tunnel or the frame in which the
//! balancer sends packets, and the backend's direct answer.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use trawl_io::packet_socket::{self, Fanout, Filter, Instruction, PacketSocket, Reading};
use trawl_io::send::PacketSender;
use trawl_packet::build::{Ipv4, Ipv6, Layer, Tcp, Template, flags};
use trawl_packet::decode::{self, Transport};
use trawl_program::Site;
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::run_maybe_in;
use trawl_sys::{Error, Result, clock};

use crate::service::Service;
use crate::table::{Backend, Forward, Sources, Vip};

const LINKTYPE_ETHERNET: u16 = 1;
const PROTOCOL_IPV4: u8 = 4;
const PROTOCOL_IPV6: u8 = 41;
/// Source ports of probes: above those that the kernel gives to connections.
const FIRST_PORT: u16 = 61_000;
/// Probes at one time, each from a port of its own.
pub const AT_ONCE: usize = 4000;
const RESEND_AFTER: Duration = Duration::from_millis(500);
const RING_SIZE: usize = 1 << 20;

/// A backend of a virtual address, and the port to which the SYN goes.
#[derive(Clone, Copy, Debug)]
pub struct Probe<'a> {
    pub vip: &'a Vip,
    pub backend: &'a Backend,
    pub port: u16,
}

/// How a backend answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A process listens at the port.
    Open(Duration),
    /// The packet arrived and was answered by a reset.
    Reset(Duration),
    Nothing,
}

/// A frame that is sent, and the answer that is expected.
struct Sent {
    frame: Vec<u8>,
    reset: Vec<u8>,
    sender: usize,
    from: IpAddr,
    port: u16,
    sequence: u32,
}

/// Sends all probes and waits for their answers. The error of a probe says why it could not be sent.
pub fn ask(
    site: &Site,
    sources: Sources,
    probes: &[Probe<'_>],
    timeout: Duration,
) -> Result<Vec<std::result::Result<Answer, String>>> {
    let socket = listen(site)?;
    run_maybe_in(site.namespace(), || {
        let mut chunks = Vec::with_capacity(probes.len());
        let mut socket = socket;
        for chunk in probes.chunks(AT_ONCE) {
            chunks.extend(ask_chunk(site, sources, chunk, timeout, &mut socket)?);
        }
        Ok(chunks)
    })?
}

fn ask_chunk(
    site: &Site,
    sources: Sources,
    probes: &[Probe<'_>],
    timeout: Duration,
    socket: &mut PacketSocket,
) -> Result<Vec<std::result::Result<Answer, String>>> {
    let mut netlink = Netlink::here()?;
    let mut senders: Vec<(u32, PacketSender)> = Vec::new();
    let mut sent = Vec::with_capacity(probes.len());
    for (number, probe) in probes.iter().enumerate() {
        let port = FIRST_PORT + number as u16;
        sent.push(
            prepare(&mut netlink, &mut senders, site, sources, probe, port)
                .map_err(|error| error.to_string()),
        );
    }
    let began = Instant::now();
    let mut answers = vec![Answer::Nothing; probes.len()];
    let mut next_round = began;
    loop {
        let now = Instant::now();
        let is_due = |number: &usize| answers[*number] == Answer::Nothing && sent[*number].is_ok();
        let waiting: Vec<usize> = (0..probes.len()).filter(is_due).collect();
        if waiting.is_empty() || now.duration_since(began) >= timeout {
            break;
        }
        if now >= next_round {
            next_round = now + RESEND_AFTER;
            for one in waiting
                .iter()
                .filter_map(|number| sent[*number].as_ref().ok())
            {
                senders[one.sender].1.offer(&[&one.frame])?;
            }
        }
        socket.wait(Duration::from_millis(20))?;
        while let Some(block) = socket.next_block() {
            for frame in block.frames() {
                let Some((number, is_open)) = answer_in(frame.bytes, probes, &sent) else {
                    continue;
                };
                if answers[number] != Answer::Nothing {
                    continue;
                }
                let took = began.elapsed();
                answers[number] = match is_open {
                    true => Answer::Open(took),
                    false => Answer::Reset(took),
                };
                if let (true, Ok(one)) = (is_open, &sent[number]) {
                    // Without it the backend would keep a connection that is half open.
                    senders[one.sender].1.offer(&[&one.reset])?;
                }
            }
        }
    }
    let outcome =
        |(sent, answer): (std::result::Result<Sent, String>, Answer)| sent.map(|_| answer);
    Ok(sent.into_iter().zip(answers).map(outcome).collect())
}

/// Returns which probe a received frame answers, and whether a process listens there.
fn answer_in(
    frame: &[u8],
    probes: &[Probe<'_>],
    sent: &[std::result::Result<Sent, String>],
) -> Option<(usize, bool)> {
    let summary = decode::summary(LINKTYPE_ETHERNET, frame);
    let ip = summary.ip?;
    let Some(Transport::Tcp {
        src_port,
        dst_port,
        ack,
        flags,
        ..
    }) = summary.transport
    else {
        return None;
    };
    let number = usize::from(dst_port.checked_sub(FIRST_PORT)?);
    let (probe, sent) = (probes.get(number)?, sent.get(number)?.as_ref().ok()?);
    let is_ours = ip.src == probe.vip.service.address
        && ip.dst == sent.from
        && src_port == probe.port
        && dst_port == sent.port
        && ack == sent.sequence.wrapping_add(1);
    let is_open = flags.contains('S');
    (is_ours && (is_open || flags.contains('R'))).then_some((number, is_open))
}

fn prepare(
    netlink: &mut Netlink,
    senders: &mut Vec<(u32, PacketSender)>,
    site: &Site,
    sources: Sources,
    probe: &Probe<'_>,
    port: u16,
) -> Result<Sent> {
    let backend = probe.backend;
    let (interface, hop) = match backend.mac {
        Some(mac) => (site.index(), mac),
        None => {
            let route = netlink.way_to(backend.address, None)?.ok_or_else(|| {
                Error::failed(
                    format!("cannot reach {}", backend.address),
                    "no route leads there",
                )
            })?;
            let neighbour = route.gateway.unwrap_or(backend.address);
            (route.interface, netlink.mac_of(route.interface, neighbour)?)
        }
    };
    let link = netlink.find_link_by_index(interface)?.ok_or_else(|| {
        Error::failed(
            format!("cannot reach {}", backend.address),
            "its interface was removed",
        )
    })?;
    let from = own_address(netlink, [interface, site.index()], &probe.vip.service)?;
    let sender = match senders.iter().position(|(index, _)| *index == interface) {
        Some(at) => at,
        None => {
            senders.push((interface, PacketSender::queued(&link.name)?));
            senders.len() - 1
        }
    };
    let own = link.mac.try_into().unwrap_or_default();
    let sequence = (clock::monotonic() as u32).wrapping_mul(2_654_435_761);
    let frame = |sequence, set| {
        let tcp = Tcp {
            src: port,
            dst: probe.port,
            seq: sequence,
            flags: set,
            window: if set == flags::SYN { 65_535 } else { 0 },
            ..Tcp::default()
        };
        around(probe, sources, own, hop, port, &from, tcp)
    };
    Ok(Sent {
        frame: frame(sequence, flags::SYN),
        reset: frame(sequence.wrapping_add(1), flags::RST),
        sender,
        from,
        port,
        sequence,
    })
}

/// An address of this host that the backend can answer to.
fn own_address(netlink: &mut Netlink, interfaces: [u32; 2], service: &Service) -> Result<IpAddr> {
    for interface in interfaces {
        let fits = |one: &IpAddr| {
            let link_local = matches!(one, IpAddr::V6(v6) if v6.is_unicast_link_local());
            one.is_ipv6() == service.address.is_ipv6() && !link_local && *one != service.address
        };
        if let Some(found) = netlink.addresses(interface)?.into_iter().find(fits) {
            return Ok(found);
        }
    }
    let family = if service.address.is_ipv6() {
        "IPv6"
    } else {
        "IPv4"
    };
    Err(Error::failed(
        format!("cannot ask as a client of {service}"),
        format!("the balancer's interfaces have no {family} address"),
    ))
}

/// The segment in the headers that the balancer's program puts around it.
fn around(
    probe: &Probe<'_>,
    sources: Sources,
    own: [u8; 6],
    hop: [u8; 6],
    spread: u16,
    from: &IpAddr,
    tcp: Tcp,
) -> Vec<u8> {
    let link = Template::new().ethernet(own, hop);
    let inside = |template: Template| match (*from, probe.vip.service.address) {
        (IpAddr::V4(from), IpAddr::V4(to)) => template.ipv4(from, to),
        (IpAddr::V6(from), IpAddr::V6(to)) => template.ipv6(from, to),
        // `own_address` is of the service's family.
        _ => template,
    };
    if probe.vip.forward == Forward::Direct {
        return inside(link).tcp(tcp).build();
    }
    let inner = inside(Template::new()).tcp(tcp).build();
    let inner_protocol = match probe.vip.service.address {
        IpAddr::V4(_) => PROTOCOL_IPV4,
        IpAddr::V6(_) => PROTOCOL_IPV6,
    };
    let gue = probe.vip.forward == Forward::Gue;
    let protocol = (!gue).then_some(inner_protocol);
    let tunnel = match probe.backend.address {
        IpAddr::V4(to) => {
            let source = u32::from(sources.ipv4) | u32::from(spread);
            link.layer(Layer::Ipv4(Ipv4 {
                protocol,
                ..Ipv4::new(source.into(), to)
            }))
        }
        IpAddr::V6(to) => {
            let source = u128::from(sources.ipv6) | u128::from(spread);
            link.layer(Layer::Ipv6(Ipv6 {
                next_header: protocol,
                ..Ipv6::new(source.into(), to)
            }))
        }
    };
    let tunnel = match gue {
        true => tunnel.udp(0xc000 | spread >> 2, probe.vip.gue_port),
        false => tunnel,
    };
    tunnel.payload(inner).build()
}

/// Opens a socket for TCP segments to the ports of probes, on all interfaces: answers come by any of them.
fn listen(site: &Site) -> Result<PacketSocket> {
    let instruction = |code, jt, jf, k| Instruction { code, jt, jf, k };
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF_AT_X: u16 = 0x48;
    const X_IS_HEADER_LENGTH: u16 = 0xb1;
    const JUMP_EQUAL: u16 = 0x15;
    const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
    const RETURN: u16 = 0x06;
    let ports = u32::from(FIRST_PORT);
    let program = [
        instruction(LOAD_HALF, 0, 0, 12),
        instruction(JUMP_EQUAL, 0, 5, 0x0800),
        instruction(LOAD_BYTE, 0, 0, 23),
        instruction(JUMP_EQUAL, 0, 9, 6),
        instruction(X_IS_HEADER_LENGTH, 0, 0, 14),
        instruction(LOAD_HALF_AT_X, 0, 0, 16),
        instruction(JUMP_GREATER_OR_EQUAL, 5, 6, ports),
        instruction(JUMP_EQUAL, 0, 5, 0x86dd),
        instruction(LOAD_BYTE, 0, 0, 20),
        instruction(JUMP_EQUAL, 0, 3, 6),
        instruction(LOAD_HALF, 0, 0, 56),
        instruction(JUMP_GREATER_OR_EQUAL, 0, 1, ports),
        instruction(RETURN, 0, 0, 256),
        instruction(RETURN, 0, 0, 0),
    ];
    let request = packet_socket::Request {
        interface: 0,
        name: "all interfaces",
        network_layer: false,
        sockets: 1,
        ring_size: RING_SIZE,
        snaplen: 256,
        received: true,
        sent: false,
        hardware_time: false,
        filter: Some(Filter {
            classic: Some(&program),
            ..Filter::default()
        }),
        places: None,
        reading: Reading::default(),
        fanout: Fanout::default(),
    };
    let opened = packet_socket::open(site.namespace(), &request)?;
    opened.sockets.into_iter().next().ok_or_else(|| {
        Error::failed(
            "cannot wait for answers of backends",
            "no packet socket was opened",
        )
    })
}
