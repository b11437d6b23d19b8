//! A client and a server for tests of connections, in a lab of their own, and faults of their network.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

use trawl_lab::Station;
use trawl_sys::netns::run_in;

use crate::lab::Files;
use crate::wire::{Path, Wire};
use crate::witness::inside;
use crate::{Lab, LineLab, tools_or_skip};

/// The port of servers.
pub const PORT: u16 = 8080;

/// The ends are joined by a veth, or by an emulated path.
#[derive(Debug)]
pub struct Stage {
    pub client: Station,
    pub server: Station,
    wire: Option<Wire>,
    lab: Box<dyn Files>,
}

impl Stage {
    /// Opens a lab with both ends; `None` if the test has to be skipped, which is reported.
    pub fn open() -> Option<Self> {
        Lab::open().map(Self::of)
    }

    /// Opens a lab with the machine reserved for this test.
    pub fn alone() -> Option<Self> {
        Lab::alone().map(Self::of)
    }

    fn of(lab: Lab) -> Self {
        Self { client: lab.pair.a.clone(), server: lab.pair.b.clone(), wire: None, lab: Box::new(lab) }
    }

    /// Opens a lab whose ends are joined by an emulated path.
    pub fn over(path: Path) -> Option<Self> {
        let lab = tools_or_skip(&["ethtool", "tc"]).then(LineLab::open)??;
        let wire = Wire::between(&lab.line, path);
        Some(Self { client: lab.line.a.clone(), server: lab.line.b.clone(), wire: Some(wire), lab: Box::new(lab) })
    }

    pub fn file(&self, name: &str) -> String {
        self.lab.file(name)
    }

    /// Returns the server's addresses by both versions of IP.
    pub fn servers(&self) -> [SocketAddr; 2] {
        [IpAddr::V4(self.server.ipv4), IpAddr::V6(self.server.ipv6)].map(|address| SocketAddr::new(address, PORT))
    }

    pub fn listen(&self, server: SocketAddr) -> TcpListener {
        run_in(&self.server.namespace, || TcpListener::bind(server)).expect("a namespace").expect("a port")
    }

    /// Connects the client to the server; returns both ends.
    pub fn connect(&self, server: SocketAddr) -> [TcpStream; 2] {
        let listener = self.listen(server);
        [self.connect_to(server), listener.accept().expect("a client").0]
    }

    /// Connects the client to a server that listens.
    pub fn connect_to(&self, server: SocketAddr) -> TcpStream {
        run_in(&self.client.namespace, || TcpStream::connect(server)).expect("a namespace").expect("a server")
    }

    /// Returns the path between the ends.
    pub fn wire(&self) -> &Wire {
        self.wire.as_ref().expect("an emulated path")
    }

    /// Adds a rule of nftables at a hook of an end, with a counter before the action.
    #[track_caller]
    pub fn rule(&self, end: &Station, hook: &str, packets: &str, action: &str) {
        let rule = format!("{packets} counter {action}");
        let rules = format!("table inet lab {{\nchain {hook} {{\ntype filter hook {hook} priority 0\n{rule}\n}}\n}}\n");
        let file = self.file("rules.nft");
        fs::write(&file, rules).expect("a file");
        inside(end, &format!("nft -f {file}"));
    }
}

/// Returns the number of packets that rules of an end have counted.
#[track_caller]
pub fn counted(end: &Station) -> u64 {
    let text = inside(end, "nft list ruleset");
    let words: Vec<&str> = text.split_whitespace().collect();
    let counts = words.windows(3).filter(|words| words[..2] == ["counter", "packets"]);
    counts.filter_map(|words| words[2].parse::<u64>().ok()).sum()
}
