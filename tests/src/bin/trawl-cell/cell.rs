//! The interfaces of a cell: two wires, each with a near end under test and a far end in a namespace of its own, which
//! sends and counts.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use trawl_lab::sender::{Engine, Job, send};
use trawl_packet::build::{Mac, Template};
use trawl_sys::netlink::create_netkit;
use trawl_sys::netns::Namespace;
use trawl_tests::lab::Directory;
use trawl_tests::wait_until;
use trawl_tests::witness::{output, run};

use crate::check;
use crate::outcome::{Problem, Result};

/// Rate, in frames per second, that emulated cards receive without loss.
const RATE: u64 = 1_000;

pub struct Cell {
    pub wires: [Wire; 2],
    directory: Directory,
}

/// One near end, in the namespace of this process, and one far end.
pub struct Wire {
    pub near: Port,
    pub far: Port,
}

pub struct Port {
    pub namespace: Option<Namespace>,
    pub interface: String,
    pub mac: Mac,
    pub ip: Ipv4Addr,
}

/// Packets that an interface has counted, as shown by `ip -s link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    pub received: u64,
    pub sent: u64,
}

impl Cell {
    /// Sets the interfaces up, and waits for their links.
    pub fn open(card: &str) -> Self {
        // IPv6 would send packets of its own, and the features count all packets.
        fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").expect("IPv6 can be switched off");
        fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").expect("IPv6 can be switched off");
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwarding can be switched on");
        Self { wires: [0, 1].map(|number| Wire::open(card, number)), directory: Directory::new() }
    }

    pub fn near(&self) -> &Port {
        &self.wires[0].near
    }

    pub fn far(&self) -> &Port {
        &self.wires[0].far
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn file(&self, name: &str) -> String {
        self.path(name).to_str().expect("a plain path").to_owned()
    }

    /// Waits until both near ends have a link: drivers that reset a card lose it for a while.
    pub fn settle(&self) {
        for wire in &self.wires {
            wire.near.wait_link();
        }
    }

    /// Sends frames from the far end, and checks that its driver has sent them all. An emulated processor may leave a
    /// card alone for longer than its ring lasts, so the near end gets time for each part that it does not count at
    /// once.
    pub fn send(&self, frames: &[Vec<u8>]) -> Result<()> {
        const PART: usize = 64;
        const MAX_WAIT: Duration = Duration::from_millis(150);
        for part in frames.chunks(PART) {
            let before = self.near().counters().received;
            self.send_at(part, part.len() as u64, RATE)?;
            let sent = Instant::now();
            while self.near().counters().received.saturating_sub(before) < part.len() as u64
                && sent.elapsed() < MAX_WAIT
            {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    }

    pub fn send_at(&self, frames: &[Vec<u8>], count: u64, rate: u64) -> Result<()> {
        let far = self.far();
        let before = far.counters().sent;
        let job = Job {
            namespace: far.namespace.as_ref(),
            interface: &far.interface,
            frames,
            count,
            engine: Engine::Packet,
            rate: Some(rate),
            cpu: None,
        };
        send(&job).map_err(|e| Problem::Failed(format!("the far end cannot send: {e}")))?;
        wait_until("the far end's driver has sent the frames", || far.counters().sent - before >= count);
        let sent = far.counters().sent - before;
        check!(sent == count, "the far end sent {sent} frames instead of {count}");
        Ok(())
    }

    /// Returns a UDP datagram from the far end to the near one, with a number and a mark in its payload.
    pub fn datagram(&self, port: u16, mark: u8, number: usize) -> Vec<u8> {
        self.long_datagram(port, mark, number, 64)
    }

    pub fn long_datagram(&self, port: u16, mark: u8, number: usize, length: usize) -> Vec<u8> {
        self.template().udp(40_000, port).payload(payload(mark, number)).frame_len(length).build()
    }

    pub fn template(&self) -> Template {
        let (near, far) = (self.near(), self.far());
        Template::new().ethernet(far.mac, near.mac).ipv4(far.ip, near.ip)
    }

    /// Removes what a feature left on the near ends, and describes it.
    pub fn clean(&self) -> Option<String> {
        let mut left = Vec::new();
        for wire in &self.wires {
            let near = &wire.near;
            let has_program = || near.link().get("xdp").is_some();
            if has_program() {
                left.push(format!("an XDP program on {}", near.interface));
                let unload = ["xdp", "unload", &near.interface, "--all", "--yes"];
                let _ = trawl_tests::trawl(&unload);
            }
            for mode in ["xdpdrv", "xdpgeneric"] {
                if has_program() {
                    let _ = output("ip", &["link", "set", "dev", &near.interface, mode, "off"]);
                }
            }
            let qdiscs = run("tc", &["qdisc", "show", "dev", &near.interface]);
            if qdiscs.contains("clsact") {
                left.push(format!("a clsact qdisc on {}", near.interface));
                let _ = output("tc", &["qdisc", "del", "dev", &near.interface, "clsact"]);
            }
        }
        self.settle();
        (!left.is_empty()).then(|| left.join(", "))
    }
}

/// Returns a payload that begins with a mark and a number: `udp[8]` and `udp[9:2]`.
pub fn payload(mark: u8, number: usize) -> [u8; 18] {
    let mut payload = [0; 18];
    payload[0] = mark;
    payload[1..3].copy_from_slice(&(number as u16).to_be_bytes());
    payload
}

impl Wire {
    fn open(card: &str, number: u8) -> Self {
        let (near, far) = (format!("near{number}"), format!("far{number}"));
        match card {
            "veth" => drop(run(
                "ip",
                &trawl_tests::args!(
                    "link add {near} numtxqueues 2 numrxqueues 2 type veth peer {far} numtxqueues 2 numrxqueues 2"
                ),
            )),
            "netkit" => create_netkit(&near, &far).expect("a netkit pair"),
            _ => {
                name_card(2 * number + 1, &near);
                name_card(2 * number + 2, &far);
            }
        }
        run("ip", &["netns", "add", &far]);
        run("ip", &["link", "set", &far, "netns", &far]);
        for which in ["all", "default"] {
            let setting = format!("net.ipv6.conf.{which}.disable_ipv6=1");
            run("ip", &["netns", "exec", &far, "sysctl", "-q", "-w", &setting]);
        }
        let near = Port::open(None, near, Ipv4Addr::new(10, 9, number, 1));
        let far = Port::open(Some(&far), far.clone(), Ipv4Addr::new(10, 9, number, 2));
        near.knows(&far);
        far.knows(&near);
        // The far end must also count frames that are addressed to other stations.
        far.ip(&["link", "set", &far.interface, "promisc", "on"]);
        near.wait_link();
        far.wait_link();
        Self { near, far }
    }
}

/// Gives the card with the number in its MAC address a name, because the names by the kernel depend on the order in
/// which drivers are loaded.
fn name_card(number: u8, name: &str) {
    let address = format!("52:54:00:00:00:{number:02x}");
    let links: Value = serde_json::from_str(&run("ip", &["-j", "link"])).expect("JSON of ip");
    let has_address = |link: &&Value| link["address"] == address.as_str();
    let link = links.as_array().and_then(|links| links.iter().find(has_address));
    let link = link.unwrap_or_else(|| panic!("there is no card with the address {address}"));
    let old = link["ifname"].as_str().expect("a name");
    run("ip", &["link", "set", old, "name", name]);
}

impl Port {
    fn open(namespace: Option<&str>, interface: String, ip: Ipv4Addr) -> Self {
        let mut port = Self {
            namespace: namespace.map(|name| Namespace::by_name(name).expect("a namespace just made")),
            interface,
            mac: [0; 6],
            ip,
        };
        let address = port.link()["address"].as_str().expect("an Ethernet address").to_owned();
        for (byte, text) in port.mac.iter_mut().zip(address.split(':')) {
            *byte = u8::from_str_radix(text, 16).expect("an Ethernet address");
        }
        port.ip(&["link", "set", &port.interface, "up"]);
        port.ip(&["address", "add", &format!("{ip}/24"), "dev", &port.interface]);
        port
    }

    /// Returns the interface in the syntax of `-i`.
    pub fn place(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{}:{}", namespace.label(), self.interface),
            None => self.interface.clone(),
        }
    }

    /// Runs `ip` in the port's namespace.
    pub fn ip(&self, arguments: &[&str]) -> String {
        match self.namespace.as_ref() {
            Some(namespace) => run("ip", &[&["-n", namespace.label()], arguments].concat()),
            None => run("ip", arguments),
        }
    }

    /// Returns `ip -j -s -d link show` of the interface.
    pub fn link(&self) -> Value {
        let text = self.ip(&["-j", "-s", "-d", "link", "show", "dev", &self.interface]);
        let all: Value = serde_json::from_str(&text).expect("JSON of ip");
        all[0].clone()
    }

    pub fn counters(&self) -> Counters {
        let stats = &self.link()["stats64"];
        let packets = |way: &str| stats[way]["packets"].as_u64().expect("a counter");
        Counters { received: packets("rx"), sent: packets("tx") }
    }

    /// Returns the number of frames that the card lost before any program or socket could see them.
    pub fn lost_by_card(&self) -> u64 {
        let received = &self.link()["stats64"]["rx"];
        ["errors", "missed_errors"].iter().filter_map(|name| received[name].as_u64()).sum()
    }

    pub fn set_mtu(&self, mtu: u32) {
        self.ip(&["link", "set", &self.interface, "mtu", &mtu.to_string()]);
    }

    fn knows(&self, other: &Self) {
        let address = other.link()["address"].as_str().expect("an Ethernet address").to_owned();
        let ip = other.ip.to_string();
        self.ip(&["neigh", "replace", &ip, "lladdr", &address, "dev", &self.interface]);
    }

    fn wait_link(&self) {
        wait_until(&format!("{} has a link", self.place()), || {
            let link = self.link();
            let flags = link["flags"].as_array().expect("flags");
            flags.iter().any(|flag| flag == "LOWER_UP")
        });
    }

    /// Waits until the interface has received this many packets since `before`; fails if it receives fewer or more.
    pub fn wait_received(&self, before: Counters, count: u64) -> Result<()> {
        let received = || self.counters().received - before.received;
        wait_at_most(|| received() >= count);
        let received = received();
        check!(received == count, "{} received {received} frames instead of {count}", self.interface);
        Ok(())
    }
}

/// Waits until the condition is true or time is up: the caller checks the exact figure.
pub fn wait_at_most(mut is_true: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(8);
    while !is_true() && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Returns the datagrams that the stack of this namespace has received for ports without a socket.
pub fn datagrams_to_no_port() -> u64 {
    let text = fs::read_to_string("/proc/net/snmp").expect("the kernel's counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut both = names.split(' ').zip(values.split(' '));
    let (_, value) = both.find(|(name, _)| *name == "NoPorts").expect("a counter NoPorts");
    value.parse().expect("a number")
}
