//! Real backends: the kernel decapsulates the tunnels, and answers go to the client directly.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use trawl_lab::Line;
use trawl_sys::netns::run_in;
use trawl_tests::bundled::done;
use trawl_tests::lab::place;
use trawl_tests::wait::patience;
use trawl_tests::witness::output;
use trawl_tests::{LineLab, args, skip};

use super::{counted, json, load};

const PORT: u16 = 7000;
const GUE_PORT: u16 = 6080;

/// Forwarding to the backend, by the outer and inner version of IP.
#[derive(Clone, Copy, Debug)]
struct Way {
    forward: &'static str,
    /// Device of the backend that receives the inner packets.
    device: &'static str,
    outside: Family,
    inside: Family,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

const IPIP: &str = "type ipip remote any";
const SIT: &str = "type sit remote any";
const IP6: &str = "type ip6tnl mode any remote any";

const fn way(forward: &'static str, device: &'static str, outside: Family, inside: Family) -> Way {
    Way { forward, device, outside, inside }
}

impl Way {
    fn vip(self) -> IpAddr {
        match self.inside {
            Family::V4 => "192.0.2.80".parse().expect("an address"),
            Family::V6 => "2001:db8::80".parse().expect("an address"),
        }
    }

    fn backend(self, line: &Line) -> IpAddr {
        match self.outside {
            Family::V4 => line.b.ipv4.into(),
            Family::V6 => line.b.ipv6.into(),
        }
    }

    /// Makes b a backend; returns the reason if this kernel cannot.
    fn set_up(self, line: &Line) -> Result<(), String> {
        let inside = |words: &str| {
            let all: Vec<&str> = words.split(' ').collect();
            let output = output("ip", &[&["-n", &line.b.name][..], &all].concat());
            if output.status.success() {
                return Ok(());
            }
            Err(format!("ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim()))
        };
        let (device, local) = (self.device, self.backend(line));
        if self.forward != "direct" {
            inside(&format!("link add tunnel0 {device} local {local}"))?;
            inside("link set tunnel0 up")?;
        }
        if self.forward == "gue" {
            let family = if self.outside == Family::V6 { " -6" } else { "" };
            inside(&format!("fou add port {GUE_PORT} gue{family}"))?;
        }
        inside(&format!("address add {} dev lo", self.vip()))?;
        let namespace = format!("--net=/run/netns/{}", line.b.name);
        for of in ["all", "default", "tunnel0"] {
            // No route leads back to the outer source address, which is synthetic.
            let setting = format!("net.ipv4.conf.{of}.rp_filter=0");
            output("nsenter", &[&namespace, "sysctl", "-qw", &setting]);
        }
        Ok(())
    }
}

/// Opens a connection and exchanges datagrams, each from its own port, with the virtual address.
fn serves(line: &Line, vip: IpAddr) {
    let at = SocketAddr::new(vip, PORT);
    let (tcp, udp) = run_in(&line.b.namespace, || {
        let tcp = TcpListener::bind(at).expect("the backend has the virtual address");
        (tcp, UdpSocket::bind(at).expect("and it serves UDP"))
    })
    .expect("the namespace of b");
    let give_up = Some(patience());
    udp.set_read_timeout(give_up).expect("a time above zero");
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = tcp.accept().expect("a connection");
        let mut asked = Vec::new();
        stream.read_to_end(&mut asked).expect("what was asked");
        stream.write_all(&asked).expect("an answer");
        drop(stream);
        let mut datagram = [0; 64];
        for _ in 0..DATAGRAMS {
            let (length, from) = udp.recv_from(&mut datagram).expect("a datagram");
            udp.send_to(&datagram[..length], from).expect("an answer");
        }
    });
    run_in(&line.a.namespace, || {
        let mut stream = TcpStream::connect_timeout(&at, patience()).expect("a connection");
        stream.set_read_timeout(give_up).expect("a time above zero");
        let asked = [7; 4000];
        stream.write_all(&asked).expect("a request");
        stream.shutdown(std::net::Shutdown::Write).expect("its end");
        let mut answered = Vec::new();
        stream.read_to_end(&mut answered).expect("an answer");
        assert_eq!(answered, asked);
        let any = match vip {
            IpAddr::V4(_) => "0.0.0.0:0",
            IpAddr::V6(_) => "[::]:0",
        };
        for number in 0..DATAGRAMS {
            let socket = UdpSocket::bind(any).expect("a socket");
            socket.set_read_timeout(give_up).expect("a time above zero");
            socket.send_to(&[number], at).expect("a datagram");
            let mut answered = [0; 8];
            let (length, from) = socket.recv_from(&mut answered).expect("an answer");
            assert_eq!((&answered[..length], from), (&[number][..], at));
        }
    })
    .expect("the namespace of a");
    answer.join().expect("the backend answers");
}

const DATAGRAMS: u8 = 5;

fn served_by(way: Way) {
    let Some(lab) = LineLab::open() else { return };
    let line = &lab.line;
    if let Err(why) = way.set_up(line) {
        return skip(&format!("this kernel makes no such backend: {why}"));
    }
    let left = place(&line.left);
    load(&left, &[]);
    let backend = way.backend(line).to_string();
    for protocol in ["tcp", "udp"] {
        let vip = match way.vip() {
            IpAddr::V4(vip) => format!("{protocol}:{vip}:{PORT}"),
            IpAddr::V6(vip) => format!("{protocol}:[{vip}]:{PORT}"),
        };
        let forward = way.forward;
        done(&args!("balance vip add {vip} --forward {forward} --on {left}"));
        done(&["balance", "backend", "add", &vip, &backend, "--on", &left]);
    }
    serves(line, way.vip());
    // All packets to the backend passed the balancer.
    let counts = counted(&left, u64::from(DATAGRAMS) + 4);
    let vips = counts["vips"].as_array().expect("a list");
    let udp = vips.iter().find(|one| {
        let name = one["vip"].as_str().unwrap_or_default();
        name.starts_with("udp")
    });
    let udp = &udp.expect("the virtual address")["backends"][0]["packets"];
    assert_eq!(udp.as_u64(), Some(DATAGRAMS.into()), "{counts}");
    let listener = run_in(&line.b.namespace, || TcpListener::bind(("::", PORT)));
    let _listener = listener.expect("the namespace of b").expect("a port");
    let port = PORT.to_string();
    let checked = json(&["balance", "check", "--port", &port, "--on", &left]);
    let backends = checked["backends"].as_array().expect("a list");
    for backend in backends {
        assert_eq!(backend["healthy"], true, "{checked}");
        assert_eq!(backend["path"], way.forward, "{checked}");
    }
}

#[test]
fn by_direct_return() {
    served_by(way("direct", "", Family::V4, Family::V4));
    served_by(way("direct", "", Family::V6, Family::V6));
}

#[test]
fn by_ipip() {
    served_by(way("ipip", IPIP, Family::V4, Family::V4));
}

#[test]
fn by_ip6ip6() {
    served_by(way("ipip", IP6, Family::V6, Family::V6));
}

#[test]
fn by_ipip_of_the_other_version() {
    served_by(way("ipip", SIT, Family::V4, Family::V6));
    served_by(way("ipip", IP6, Family::V6, Family::V4));
}

#[test]
fn by_gue() {
    served_by(way("gue", IPIP, Family::V4, Family::V4));
    served_by(way("gue", IP6, Family::V6, Family::V6));
}
