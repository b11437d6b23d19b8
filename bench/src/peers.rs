//! Adapters for peers, the programs that trawl is compared with: the installed ones, their versions, and instructions
//! to install the others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use trawl_sys::{Error, Result, process};

use crate::model::{PeerRecord, PeerState};
use crate::outcome::Stop;

#[derive(Debug)]
struct Known {
    name: &'static str,
    /// Arguments that print the version.
    version: &'static [&'static str],
    how_to_get: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Program,
    /// A program of xdp-tools: versions before [`XDP_TOOLS_AT_LEAST`] load nothing on newer kernels.
    XdpTools,
    /// A module that is loaded if this path exists.
    KernelModule(&'static str),
}

/// xdp-tools 1.3.1 (Debian 12) loads nothing on Linux 6.18.
const XDP_TOOLS_AT_LEAST: (u32, u32) = (1, 5);
const XDP_TOOLS_WORKS: &str = "version 1.6.3 works: build it from https://github.com/xdp-project/xdp-tools and name \
                               its binary by --peer NAME=PATH";
const XDP_TOOLS: &str = "apt-get install xdp-tools where that is version 1.5 or newer, else build 1.6.3 from \
                         https://github.com/xdp-project/xdp-tools and use --peer NAME=PATH";

/// testpmd prints its version only when it starts; the help text ends it.
const TESTPMD_VERSION: &[&str] =
    &["-v", "--no-pci", "--no-huge", "-m", "64", "--in-memory", "--no-telemetry", "--", "--help"];

const KNOWN: &[Known] = &[
    program("tcpdump", &["--version"], "apt-get install tcpdump"),
    program("dumpcap", &["--version"], "apt-get install wireshark-common"),
    program("tshark", &["--version"], "apt-get install tshark"),
    program("xdpcap", &[], "go install github.com/cloudflare/xdpcap/cmd/xdpcap@latest, then --peer xdpcap=PATH"),
    xdp_tools("xdpdump"),
    xdp_tools("xdp-bench"),
    xdp_tools("xdp-trafficgen"),
    xdp_tools("xdp-forward"),
    xdp_tools("xdp-filter"),
    program("dpdk-testpmd", TESTPMD_VERSION, "apt-get install dpdk"),
    program("dpdk-dumpcap", &["--version"], "apt-get install dpdk"),
    program("netsniff-ng", &["--version"], "apt-get install netsniff-ng"),
    program("trafgen", &["--version"], "apt-get install netsniff-ng"),
    program("iptables", &["--version"], "apt-get install iptables"),
    program("nft", &["--version"], "apt-get install nftables"),
    program("ipvsadm", &["--version"], "apt-get install ipvsadm, on a kernel with the module ip_vs"),
    program("bpftool", &["version"], "apt-get install bpftool"),
    program("coverbee", &[], "go install github.com/cilium/coverbee/cmd/coverbee@latest, then --peer coverbee=PATH"),
    program("iperf3", &["--version"], "apt-get install iperf3"),
    program(
        "versitygw",
        &["--version"],
        "go install github.com/versity/versitygw/cmd/versitygw@latest, then --peer versitygw=PATH",
    ),
    module("pktgen", "/proc/net/pktgen", "modprobe pktgen, on a kernel that was built with it"),
    module("netmap", "/dev/netmap", "build https://github.com/luigirizzo/netmap and load its module"),
    module("pf_ring", "/proc/net/pf_ring", "build https://github.com/ntop/PF_RING and load its module"),
];

const fn program(name: &'static str, version: &'static [&'static str], how_to_get: &'static str) -> Known {
    Known { name, version, how_to_get, kind: Kind::Program }
}

const fn xdp_tools(name: &'static str) -> Known {
    Known { name, version: &["--version"], how_to_get: XDP_TOOLS, kind: Kind::XdpTools }
}

const fn module(name: &'static str, path: &'static str, how_to_get: &'static str) -> Known {
    Known { name, version: &[], how_to_get, kind: Kind::KernelModule(path) }
}

/// The peers of one run.
#[derive(Clone, Debug)]
pub struct Peers {
    records: Vec<PeerRecord>,
}

impl Peers {
    /// Looks for all peers; `chosen` names binaries that are used in any case.
    pub fn find(chosen: &BTreeMap<String, String>) -> Result<Self> {
        for (name, path) in chosen {
            if !KNOWN.iter().any(|one| one.name == name) {
                let names: Vec<&str> = KNOWN.iter().map(|one| one.name).collect();
                return Err(Error::usage(
                    format!("--peer {name}={path}"),
                    format!("unknown peer; known are {}", names.join(", ")),
                ));
            }
            if !Path::new(path).is_file() {
                return Err(Error::usage(format!("--peer {name}={path}"), "no such file"));
            }
        }
        let records = KNOWN.iter().map(|one| inspect(one, chosen.get(one.name))).collect();
        Ok(Self { records })
    }

    pub fn records(&self) -> &[PeerRecord] {
        &self.records
    }

    /// Returns the peer of a series, whose name begins with the peer's.
    pub fn of_series(series: &str) -> Option<&'static str> {
        Self::names().into_iter().find(|name| {
            series
                .strip_prefix(name)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-'))
        })
    }

    pub fn names() -> Vec<&'static str> {
        KNOWN.iter().map(|one| one.name).collect()
    }

    /// Returns the binary of a peer, whether it works here or not.
    pub fn binary(&self, name: &str) -> Result<PathBuf, Stop> {
        let found = self.records.iter().find(|one| one.name == name);
        match found.and_then(|record| record.path.as_ref()) {
            Some(path) => Ok(path.into()),
            None => self.path(name),
        }
    }

    /// Returns the binary of a peer that works here.
    pub fn path(&self, name: &str) -> Result<PathBuf, Stop> {
        let Some(record) = self.records.iter().find(|one| one.name == name) else {
            let why = format!("{name} is not a peer that trawl knows");
            return Err(Stop::NotHere(why));
        };
        match (&record.state, &record.path) {
            (PeerState::Installed, Some(path)) => Ok(path.into()),
            (PeerState::Missing, _) if record.message.is_none() => {
                Err(Stop::NotHere(format!("{name} is not installed: {}", record.how_to_get)))
            }
            _ => Err(Stop::NotHere(record.state())),
        }
    }
}

fn inspect(known: &Known, chosen: Option<&String>) -> PeerRecord {
    let mut record = PeerRecord {
        name: known.name.to_owned(),
        state: PeerState::Missing,
        path: None,
        version: None,
        how_to_get: known.how_to_get.to_owned(),
        message: None,
    };
    if let Kind::KernelModule(path) = known.kind {
        if Path::new(path).exists() {
            record.state = PeerState::Installed;
            record.path = Some(path.to_owned());
        } else {
            record.message = Some(format!("not on this host ({path} does not exist)"));
        }
        return record;
    }
    let Some(path) = chosen.map(PathBuf::from).or_else(|| in_path(known.name)) else {
        return record;
    };
    record.version = version_of(known, &path);
    record.path = Some(path.display().to_string());
    record.state = PeerState::Installed;
    if known.kind == Kind::XdpTools
        && let Some(version) = &record.version
        && numbers(version).is_some_and(|found| found < XDP_TOOLS_AT_LEAST)
    {
        record.state = PeerState::Unusable;
        record.message = Some(format!("{version} loads nothing on kernels since 6.12; {XDP_TOOLS_WORKS}"));
    }
    record
}

fn in_path(name: &str) -> Option<PathBuf> {
    let usual = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/local/bin"].map(PathBuf::from);
    let usual = usual.map(|directory| directory.join(name));
    let mut paths = process::in_path(name).into_iter().chain(usual);
    paths.find(|path| path.is_file())
}

/// Returns the first line of its output that has a number in it.
fn version_of(known: &Known, path: &Path) -> Option<String> {
    if known.version.is_empty() {
        return built_from(path);
    }
    let subcommand: &[&str] = match known.name {
        "xdp-bench" => &["drop"],
        "xdp-trafficgen" => &["udp"],
        "xdp-forward" => &["load"],
        "xdp-filter" => &["status"],
        _ => &[],
    };
    let output = Command::new(path).args(subcommand).args(known.version).stdin(Stdio::null()).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().map(str::trim).find(|line| numbers(line).is_some()).map(str::to_owned)
}

/// Returns the version of the main module: a Go program prints no version, but contains it.
fn built_from(path: &Path) -> Option<String> {
    let binary = std::fs::read(path).ok()?;
    let mark = b"\nmod\t";
    let at = binary.windows(mark.len()).position(|bytes| bytes == mark)?;
    let line = binary[at + mark.len()..].split(|&byte| byte == b'\n').next()?;
    Some(String::from_utf8_lossy(line).replace('\t', " ").trim().to_owned())
}

/// Returns the first two numbers with a dot between them.
fn numbers(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|word| {
        let mut parts = word.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(numbers("xdp-bench version 1.3.1 using libbpf"), Some((1, 3)));
        assert_eq!(numbers("v10.12"), Some((10, 12)));
        assert_eq!(numbers("no version"), None);
        assert!((1, 10) > XDP_TOOLS_AT_LEAST);
    }

    #[test]
    fn missing_peer_has_instructions() {
        let mut peers = Peers::find(&BTreeMap::new()).expect("nothing is chosen");
        assert_eq!(peers.records().len(), Peers::names().len());
        peers.records = vec![inspect(&program("trawl-no-such-peer", &[], "make one"), None)];
        let Err(Stop::NotHere(why)) = peers.path("trawl-no-such-peer") else {
            panic!("it does not exist");
        };
        assert_eq!(why, "trawl-no-such-peer is not installed: make one");
        assert!(peers.path("tcpdumb").is_err());
    }

    #[test]
    fn chosen_peers_must_be_known_and_exist() {
        let chosen = |name: &str, path: &str| Peers::find(&[(name.to_owned(), path.to_owned())].into()).map(drop);
        assert!(chosen("tcpdumb", "/bin/sh").is_err());
        assert!(chosen("tcpdump", "/no/such/file").is_err());
        assert!(chosen("tcpdump", "/bin/sh").is_ok());
    }
}
