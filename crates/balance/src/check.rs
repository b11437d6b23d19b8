//! Health of the backends: a TCP SYN to the virtual address, by the same tunnel or MAC address as the flows, and with
//! HTTP or another port a connection to the backend's own address. Both are bounded in time and in number.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use trawl_packet::net::{ethertype, protocol};
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;

use trawl_io::packet_socket::{self, Filter, Instruction, PacketSocket};
use trawl_io::send::PacketSender;
use trawl_packet::build::{Ipv4, Ipv6, Layer, Tcp, Template, flags};
use trawl_packet::decode::{self, Transport};
use trawl_program::Site;
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::run_maybe_in;
use trawl_sys::{Error, Result, clock};

use crate::table::{Backend, Forward, Protocol, Service, Sources, Table, Vip};

/// Backends that are checked at the same time.
const AT_ONCE: usize = 32;
/// Bytes of an answer that are searched for its first line.
const LONGEST_STATUS: usize = 1024;

/// Settings of a check.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Path of an HTTP request; `None`: a TCP connection is enough.
    pub http: Option<String>,
    /// `None`: the port of the virtual address.
    pub port: Option<u16>,
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub service: Service,
    pub backend: IpAddr,
    /// Means of forwarding the SYN for the virtual address to the backend.
    pub forward: Forward,
    /// Port of the backend's own address that was checked, too.
    pub own_port: Option<u16>,
    /// Duration until the answer.
    pub answered: std::result::Result<Duration, Failure>,
}

/// Reason why a backend is not healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    TimedOut,
    /// Packets to the virtual address do not reach the backend, or its answers do not return. `answers_itself`: its own
    /// address accepts a connection at the same port.
    NoPath {
        answers_itself: bool,
    },
    Refused,
    /// The answer is not HTTP, or its status is not success.
    Status(Option<u16>),
    Other(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::TimedOut,
            io::ErrorKind::ConnectionRefused => Self::Refused,
            _ => Self::Other(error.to_string()),
        }
    }
}

impl Probe {
    /// Checks all backends of a table, from the namespace of the balancer's interface.
    pub fn ask_all(&self, site: &Site, table: &Table) -> Result<Vec<Health>> {
        let mut paths = Vec::new();
        for vip in &table.vips {
            let is_tcp = vip.service.protocol == Protocol::Tcp;
            let port = match (vip.service.port, self.port) {
                (port, _) if is_tcp && port != 0 => port,
                (_, Some(port)) => port,
                (0, None) => {
                    return Err(Error::usage(
                        format!("cannot check the backends of {}", vip.service),
                        "it covers all ports",
                    )
                    .fix("--port N names the one to check"));
                }
                (_, None) => {
                    return Err(Error::usage(
                        format!("cannot check the backends of {}", vip.service),
                        "a TCP connection says nothing about a UDP port",
                    )
                    .fix("--port N names a TCP port to check"));
                }
            };
            let probe = |backend| PathProbe { vip, backend, port };
            paths.extend(vip.backends.iter().map(probe));
        }
        let answers = ask_paths(site, table.sources, &paths, self.timeout)?;
        let asks_itself = self.http.is_some() || self.port.is_some();
        let own = |probe: &PathProbe<'_>| {
            let port = self.port.unwrap_or(probe.port);
            SocketAddr::new(probe.backend.address, port)
        };
        // After no answer, a connection to the backend's own address shows whether the path is at fault.
        let jobs = paths.iter().zip(&answers).map(|(probe, answer)| {
            let is_asked = asks_itself || matches!(answer, Ok(ProbeReply::Nothing));
            is_asked.then(|| own(probe))
        });
        let connected = self.connect_to_all(site, jobs.collect())?;
        let outcomes = paths.iter().zip(answers).zip(connected);
        let health = |((probe, answer), connected): ((&PathProbe<'_>, _), Option<_>)| Health {
            service: probe.vip.service,
            backend: probe.backend.address,
            forward: probe.vip.forward,
            own_port: asks_itself.then(|| own(probe).port()),
            answered: self.judge(probe, answer, connected),
        };
        Ok(outcomes.map(health).collect())
    }

    fn judge(
        &self,
        probe: &PathProbe<'_>,
        answer: std::result::Result<ProbeReply, String>,
        connected: Option<std::result::Result<Duration, Failure>>,
    ) -> std::result::Result<Duration, Failure> {
        // A reset proves the path as a connection does; it is a failure only if the service itself was checked.
        let serves = probe.vip.service.protocol == Protocol::Tcp && probe.vip.service.port != 0;
        match answer.map_err(Failure::Other)? {
            ProbeReply::Nothing => Err(Failure::NoPath { answers_itself: matches!(connected, Some(Ok(_))) }),
            ProbeReply::Reset(_) if serves => Err(Failure::Refused),
            ProbeReply::Open(took) | ProbeReply::Reset(took) => connected.unwrap_or(Ok(took)),
        }
    }

    /// Connects to addresses, several at a time, and returns the outcomes in the same order.
    fn connect_to_all(
        &self,
        site: &Site,
        jobs: Vec<Option<SocketAddr>>,
    ) -> Result<Vec<Option<std::result::Result<Duration, Failure>>>> {
        let next = Mutex::new(jobs.iter().enumerate());
        let found = Mutex::new(vec![None; jobs.len()]);
        let work = || {
            loop {
                let job = next.lock().ok().and_then(|mut next| next.next());
                let Some((number, at)) = job else {
                    return;
                };
                let answered = at.map(|at| self.ask(at));
                if let Ok(mut found) = found.lock() {
                    found[number] = answered;
                }
            }
        };
        // Threads begin in the namespace of the thread that starts them.
        run_maybe_in(site.namespace(), || {
            std::thread::scope(|scope| {
                for _ in 0..jobs.iter().flatten().count().min(AT_ONCE) {
                    scope.spawn(work);
                }
            });
        })?;
        Ok(found.into_inner().unwrap_or_default())
    }

    fn ask(&self, at: SocketAddr) -> std::result::Result<Duration, Failure> {
        let began = Instant::now();
        let end = began + self.timeout;
        let stream = TcpStream::connect_timeout(&at, self.timeout)?;
        if let Some(path) = &self.http {
            ask_http(stream, at, path, end)?;
        }
        Ok(began.elapsed())
    }
}

fn ask_http(mut stream: TcpStream, at: SocketAddr, path: &str, end: Instant) -> std::result::Result<(), Failure> {
    let left = || match end.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(Failure::TimedOut),
        left => Ok(left),
    };
    stream.set_write_timeout(Some(left()?))?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 256];
    while !answer.contains(&b'\n') && answer.len() < LONGEST_STATUS {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut piece)? {
            0 => break,
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    match status_of(&answer) {
        Some(status) if (200..400).contains(&status) => Ok(()),
        status => Err(Failure::Status(status)),
    }
}

/// Returns the status number of `HTTP/1.1 200 OK`.
fn status_of(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut fields = line.split_ascii_whitespace();
    fields.next().filter(|version| version.starts_with("HTTP/"))?;
    fields.next()?.parse().ok()
}

/// First source port of probes: above the kernel's ephemeral ports.
const FIRST_PORT: u16 = 61_000;
/// Probes at one time, each from its own port.
pub const PATHS_AT_ONCE: usize = 4000;
const RESEND_AFTER: Duration = Duration::from_millis(500);
const RING_SIZE: usize = 1 << 20;

/// A backend of a virtual address, and the destination port of the SYN.
#[derive(Clone, Copy, Debug)]
pub struct PathProbe<'a> {
    pub vip: &'a Vip,
    pub backend: &'a Backend,
    pub port: u16,
}

/// Answer of a backend to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeReply {
    /// A process listens at the port.
    Open(Duration),
    /// The packet arrived and was answered by a reset.
    Reset(Duration),
    Nothing,
}

/// A sent frame and its expected answer.
struct Sent {
    frame: Vec<u8>,
    reset: Vec<u8>,
    sender: usize,
    from: IpAddr,
    port: u16,
    sequence: u32,
}

/// Sends all probes and waits for their answers. A probe's error says why it could not be sent.
fn ask_paths(
    site: &Site,
    sources: Sources,
    probes: &[PathProbe<'_>],
    timeout: Duration,
) -> Result<Vec<std::result::Result<ProbeReply, String>>> {
    let socket = listen(site)?;
    run_maybe_in(site.namespace(), || {
        let mut chunks = Vec::with_capacity(probes.len());
        let mut socket = socket;
        for chunk in probes.chunks(PATHS_AT_ONCE) {
            chunks.extend(ask_chunk(site, sources, chunk, timeout, &mut socket)?);
        }
        Ok(chunks)
    })?
}

fn ask_chunk(
    site: &Site,
    sources: Sources,
    probes: &[PathProbe<'_>],
    timeout: Duration,
    socket: &mut PacketSocket,
) -> Result<Vec<std::result::Result<ProbeReply, String>>> {
    let mut netlink = Netlink::current()?;
    let mut senders: Vec<(u32, PacketSender)> = Vec::new();
    let mut sent = Vec::with_capacity(probes.len());
    for (number, probe) in probes.iter().enumerate() {
        let port = FIRST_PORT + number as u16;
        sent.push(prepare(&mut netlink, &mut senders, site, sources, probe, port).map_err(|error| error.to_string()));
    }
    let began = Instant::now();
    let mut answers = vec![ProbeReply::Nothing; probes.len()];
    let mut next_round = began;
    loop {
        let now = Instant::now();
        let is_due = |number: &usize| answers[*number] == ProbeReply::Nothing && sent[*number].is_ok();
        let waiting: Vec<usize> = (0..probes.len()).filter(is_due).collect();
        if waiting.is_empty() || now.duration_since(began) >= timeout {
            break;
        }
        if now >= next_round {
            next_round = now + RESEND_AFTER;
            for one in waiting.iter().filter_map(|number| sent[*number].as_ref().ok()) {
                senders[one.sender].1.offer(&[&one.frame])?;
            }
        }
        socket.wait(Duration::from_millis(20), None)?;
        while let Some(block) = socket.next_block() {
            for frame in block.frames() {
                let Some((number, is_open)) = answer_in(frame.bytes, probes, &sent) else {
                    continue;
                };
                if answers[number] != ProbeReply::Nothing {
                    continue;
                }
                let took = began.elapsed();
                answers[number] = if is_open { ProbeReply::Open(took) } else { ProbeReply::Reset(took) };
                if let (true, Ok(one)) = (is_open, &sent[number]) {
                    // Without the reset the backend would keep a half-open connection.
                    senders[one.sender].1.offer(&[&one.reset])?;
                }
            }
        }
    }
    let outcome = |(sent, answer): (std::result::Result<Sent, String>, ProbeReply)| sent.map(|_| answer);
    Ok(sent.into_iter().zip(answers).map(outcome).collect())
}

/// Returns the probe that a received frame answers, and whether a process listens at its port.
fn answer_in(
    frame: &[u8],
    probes: &[PathProbe<'_>],
    sent: &[std::result::Result<Sent, String>],
) -> Option<(usize, bool)> {
    let summary = decode::summary(LINKTYPE_ETHERNET, frame);
    let ip = summary.ip?;
    let Some(Transport::Tcp { src_port, dst_port, ack, flags, .. }) = summary.transport else {
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
    probe: &PathProbe<'_>,
    port: u16,
) -> Result<Sent> {
    let backend = probe.backend;
    let (interface, hop) = match backend.mac {
        Some(mac) => (site.index(), mac),
        None => {
            let route = netlink
                .next_hop(backend.address, None)?
                .ok_or_else(|| Error::failed(format!("cannot reach {}", backend.address), "no route leads to it"))?;
            let neighbour = route.gateway.unwrap_or(backend.address);
            (route.interface, netlink.mac_of(route.interface, neighbour)?)
        }
    };
    let link = netlink
        .find_link_by_index(interface)?
        .ok_or_else(|| Error::failed(format!("cannot reach {}", backend.address), "its interface was removed"))?;
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

/// Returns an address of this host that the backend can answer to.
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
    let family = if service.address.is_ipv6() { "IPv6" } else { "IPv4" };
    Err(Error::failed(
        format!("cannot ask as a client of {service}"),
        format!("the balancer's interfaces have no {family} address"),
    ))
}

/// Wraps the segment in the headers that the balancer's program adds.
fn around(
    probe: &PathProbe<'_>,
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
        // Not reached: `own_address` returns an address of the service's family.
        _ => template,
    };
    if probe.vip.forward == Forward::Direct {
        return inside(link).tcp(tcp).build();
    }
    let inner = inside(Template::new()).tcp(tcp).build();
    let inner_protocol = match probe.vip.service.address {
        IpAddr::V4(_) => protocol::IP_IN_IP,
        IpAddr::V6(_) => protocol::IPV6_IN_IP,
    };
    let gue = probe.vip.forward == Forward::Gue;
    let protocol = (!gue).then_some(inner_protocol);
    let tunnel = match probe.backend.address {
        IpAddr::V4(to) => {
            let source = u32::from(sources.ipv4) | u32::from(spread);
            link.layer(Layer::Ipv4(Ipv4 { protocol, ..Ipv4::new(source.into(), to) }))
        }
        IpAddr::V6(to) => {
            let source = u128::from(sources.ipv6) | u128::from(spread);
            link.layer(Layer::Ipv6(Ipv6 { next_header: protocol, ..Ipv6::new(source.into(), to) }))
        }
    };
    let tunnel = if gue { tunnel.udp(0xc000 | spread >> 2, probe.vip.gue_port) } else { tunnel };
    tunnel.payload(inner).build()
}

/// Opens a socket for TCP segments to the probes' ports, on all interfaces: answers may come by any of them.
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
        instruction(JUMP_EQUAL, 0, 5, ethertype::IPV4.into()),
        instruction(LOAD_BYTE, 0, 0, 23),
        instruction(JUMP_EQUAL, 0, 9, 6),
        instruction(X_IS_HEADER_LENGTH, 0, 0, 14),
        instruction(LOAD_HALF_AT_X, 0, 0, 16),
        instruction(JUMP_GREATER_OR_EQUAL, 5, 6, ports),
        instruction(JUMP_EQUAL, 0, 5, ethertype::IPV6.into()),
        instruction(LOAD_BYTE, 0, 0, 20),
        instruction(JUMP_EQUAL, 0, 3, 6),
        instruction(LOAD_HALF, 0, 0, 56),
        instruction(JUMP_GREATER_OR_EQUAL, 0, 1, ports),
        instruction(RETURN, 0, 0, 256),
        instruction(RETURN, 0, 0, 0),
    ];
    let request = packet_socket::PacketRequest {
        interface: 0,
        name: "all interfaces",
        network_layer: false,
        sockets: 1,
        ring_size: RING_SIZE,
        snaplen: 256,
        received: true,
        sent: false,
        hardware_time: false,
        filter: Some(Filter { classic: Some(&program), ..Filter::default() }),
        prompt: true,
        interfaces: None,
    };
    let opened = packet_socket::open(site.namespace(), &request)?;
    opened
        .sockets
        .into_iter()
        .next()
        .ok_or_else(|| Error::failed("cannot wait for answers of backends", "no packet socket was opened"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn answer_with(text: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody asks");
            let mut request = [0; 512];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(text.as_bytes());
        });
        at
    }

    fn probe(http: Option<&str>) -> Probe {
        Probe { http: http.map(str::to_owned), port: None, timeout: Duration::from_secs(5) }
    }

    #[test]
    fn health_follows_from_the_answer() {
        let asked = |text| probe(Some("/")).ask(answer_with(text));
        assert!(asked("HTTP/1.1 204 No Content\r\n\r\n").is_ok());
        assert_eq!(asked("HTTP/1.0 503 No\r\n"), Err(Failure::Status(Some(503))));
        assert_eq!(asked("SSH-2.0\r\n"), Err(Failure::Status(None)));
        assert!(probe(None).ask(answer_with("")).is_ok());
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = free.local_addr().expect("an address");
        drop(free);
        assert_eq!(probe(None).ask(at), Err(Failure::Refused));
    }
}
