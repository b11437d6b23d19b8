//! The load balancer compared with IPVS (study B): packets per second by the number of flows, and the flows that the
//! removal of a backend moves.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use trawl_lab::Line;
use trawl_lab::program::{Does, Loaded};
use trawl_sys::{Error, Result};

use super::contenders::{first_line, trawl};
use super::definition::Space;
use super::programs::measured;
use super::{Bench, Case, Measured, Outcome, Stop, named, percent};
use crate::capture::trawl_capture;
use crate::configuration::{Configuration, DEFAULTS, IN_STACK, ONLY_DEFAULTS};
use crate::machine::cpus;
use crate::model::{Agreement, Experiment, Finding};
use crate::process::{self, Peer};
use crate::scratch::{Scratch, each_packet};
use crate::traffic::{Amount, SENDER_CPU, Sent, Traffic, capture_cpu, label, received};

const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
const PORT: u16 = 9;
/// Index of the backend that is removed.
const REMOVED: usize = 1;
const MAX_BACKENDS: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Product {
    Trawl,
    /// IPVS with this scheduler.
    Ipvs(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forward {
    Direct,
    Ipip,
}

/// A balancer with its method and its configuration.
#[derive(Clone, Copy)]
struct Balancer {
    product: Product,
    forward: Forward,
    configuration: Configuration,
}

const RATES: &[(&str, (Product, Forward))] = &[
    ("trawl direct", (Product::Trawl, Forward::Direct)),
    ("trawl ipip", (Product::Trawl, Forward::Ipip)),
    ("IPVS direct", (Product::Ipvs("mh"), Forward::Direct)),
    ("IPVS ipip", (Product::Ipvs("mh"), Forward::Ipip)),
];

/// True if the flows are known when the backend is removed; false if they come afterwards.
const MOVES: &[(&str, (Product, bool))] = &[
    ("trawl established", (Product::Trawl, true)),
    ("trawl new", (Product::Trawl, false)),
    ("IPVS mh established", (Product::Ipvs("mh"), true)),
    ("IPVS mh new", (Product::Ipvs("mh"), false)),
    ("IPVS sh new", (Product::Ipvs("sh"), false)),
];

fn backends(number: f64) -> Result<usize> {
    let number = number as usize;
    if (2..=MAX_BACKENDS).contains(&number) {
        Ok(number)
    } else {
        Err(Error::usage(format!("{number} backends"), format!("2 to {MAX_BACKENDS} are possible")))
    }
}

pub fn rates(space: &Space) -> Result<Vec<Case>> {
    let (size, seconds) = (space.number("size")? as usize, space.number("seconds")?);
    let backends = backends(space.number("backends")?)?;
    Case::each(space, "flows", |series, flows| {
        let (product, forward) = named(series, RATES)?;
        let name = series.to_owned();
        let flood = Traffic::flood(size, seconds, &[SENDER_CPU]);
        let grid: &[_] = match product {
            Product::Trawl => &ONLY_DEFAULTS,
            Product::Ipvs(_) => &IN_STACK,
        };
        Ok(move |bench: &Bench| {
            let rate = |configuration, flows| {
                let balancer = Balancer { product, forward, configuration };
                rate(bench, balancer, backends, flows, &flood)
            };
            let few = |configuration| Ok(rate(configuration, 1)?.values["mpps"]);
            rate(bench.tuned.choose(&name, grid, few)?, flows as u64)
        })
    })
}

pub fn all_moves(space: &Space) -> Result<Vec<Case>> {
    let flows = space.number("flows")? as u64;
    Case::each(space, "backends", |series, x| {
        let (product, established) = named(series, MOVES)?;
        let backends = backends(x)?;
        Ok(move |bench: &Bench| moves(bench, product, established, backends, flows))
    })
}

/// Sets the arguments for this many flows, the same ones each time. A frame that was rewritten on its path is sent
/// again as it is, unless the frames are of more than one kind: then the generator writes all headers anew.
fn with_flows(mut traffic: Traffic, flows: u64) -> Traffic {
    let flows = flows.to_string();
    let arguments = [
        ["--flows", &flows],
        ["--src", "random:10.64.0.0/10"],
        ["--src-port", "random:1024-65535"],
        ["--every", "2:ttl=63"],
    ];
    traffic.more = arguments.concat().into_iter().map(str::to_owned).collect();
    traffic
}

fn each(size: usize, flows: u64) -> Traffic {
    let traffic = Traffic { amount: Amount::Frames(flows), ..Traffic::flood(size, 0.0, &[SENDER_CPU]) };
    with_flows(traffic, flows)
}

fn rate(bench: &Bench, balancer: Balancer, backends: usize, flows: u64, flood: &Traffic) -> Outcome {
    let all: Vec<usize> = (0..backends).collect();
    let farm = Farm::new(bench, balancer, &all, flows)?;
    let _end = Loaded::native(Does::Drop, &farm.line.b)?;
    // The experiment measures the forwarding of established flows.
    farm.send(bench, &each(flood.size, flows))?;
    let before = received(&farm.line.b)?;
    let sent = farm.send(bench, &with_flows(flood.clone(), flows))?;
    let done = received(&farm.line.b)? - before;
    if done == 0 {
        return Err(Stop::Failed("no frame reached a backend".to_owned()));
    }
    Ok(measured(sent, done))
}

fn moves(bench: &Bench, product: Product, established: bool, backends: usize, flows: u64) -> Outcome {
    let all: Vec<usize> = (0..backends).collect();
    let rest: Vec<usize> = all.iter().copied().filter(|one| *one != REMOVED).collect();
    let balancer = Balancer { product, forward: Forward::Direct, configuration: DEFAULTS };
    let farm = Farm::new(bench, balancer, &all, flows)?;
    let before = farm.send_each(bench, flows)?;
    let after = if established {
        farm.remove(bench, REMOVED)?;
        farm.send(bench, &each(64, flows))?;
        farm.send_each(bench, flows)?
    } else {
        drop(farm);
        Farm::new(bench, balancer, &rest, flows)?.send_each(bench, flows)?
    };
    if (before.len() as u64) < flows * 9 / 10 {
        return Err(Stop::Failed(format!(
            "only {} of {flows} flows reached a backend before the removal",
            before.len()
        )));
    }
    let share = |count: usize| percent(count as f64, before.len() as f64);
    let is_elsewhere = |flow: &[u8; 6], backend: &usize| after.get(flow).is_some_and(|now| now != backend);
    let moved: Vec<usize> =
        before.iter().filter(|(flow, backend)| is_elsewhere(flow, backend)).map(|(_, backend)| *backend).collect();
    let needless = moved.iter().filter(|backend| **backend != REMOVED).count();
    let lost = before.keys().filter(|flow| !after.contains_key(*flow)).count();
    Ok(Measured {
        values: [
            ("moved_percent", share(moved.len())),
            ("needless_percent", share(needless)),
            ("lost_percent", share(lost)),
        ]
        .into(),
        sent: Some(flows),
        recorded: Some(after.len() as u64),
        ..Measured::default()
    })
}

pub fn judge_rate(experiment: &Experiment) -> Finding {
    let (few, many) = experiment.ends();
    let mut said = Vec::new();
    let mut least = f64::INFINITY;
    for method in ["direct", "ipip"] {
        let (ours, theirs) = (format!("trawl {method}"), format!("IPVS {method}"));
        for flows in [few, many] {
            if let Some(ratio) = experiment.paired(&ours, &theirs, "mpps", flows) {
                least = least.min(ratio.median);
                said.push(format!("{:.1} times IPVS by {method} with {flows} flows", ratio.median));
            }
        }
    }
    let rates = |flows: f64| {
        let rates = experiment.listed("mpps", flows, "");
        format!("{flows} flows: {rates} (Mpps)")
    };
    let mut shown: Vec<String> = [few, many].map(rates).to_vec();
    shown.dedup();
    Finding {
        agrees: if said.is_empty() {
            Agreement::NotMeasured
        } else if least >= 3.0 {
            Agreement::Yes
        } else if least > 1.5 {
            Agreement::Partly
        } else {
            Agreement::No
        },
        shows: shown.join("; "),
        sentence: if said.is_empty() {
            String::new()
        } else {
            format!("trawl balance is {} (published: 3 to 4 times).", said.join(", "))
        },
    }
}

/// Share in percent of other flows that consistent hashing may move in addition to the removed backend's own.
const SMALL_SHARE: f64 = 5.0;

pub fn judge_moves(experiment: &Experiment) -> Finding {
    let needless = |series: &str| experiment.line(series, "needless_percent");
    let most = |series: &str| {
        let shares = needless(series).into_iter().map(|point| point.value.median);
        shares.reduce(f64::max)
    };
    let (Some(established), Some(new)) = (most("trawl established"), most("trawl new")) else {
        return Finding::default();
    };
    let shown = experiment.series().into_iter().filter_map(|series| Some(format!("{series} {:.1} %", most(&series)?)));
    let shown: Vec<String> = shown.collect();
    Finding {
        agrees: match (established == 0.0, new <= SMALL_SHARE) {
            (true, true) => Agreement::Yes,
            (true, false) => Agreement::Partly,
            _ => Agreement::No,
        },
        shows: format!("flows moved needlessly, at most: {}", shown.join(", ")),
        sentence: format!(
            "The removal of a backend of trawl's moves at most {established:.1} % of the established flows and {new:.1} % of new ones \
             that were not the backend's own (Maglev: none, and a small share)."
        ),
    }
}

// A line of namespaces with a balancer in its middle, trawl's or IPVS, its backends, and the flows sent through it.

fn address_of(backend: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 2, 10 + backend as u8)
}

fn mac_of(backend: usize) -> [u8; 6] {
    [2, b'b', 0, 0, 0, backend as u8]
}

/// A line with a balancer in its middle.
struct Farm {
    line: Line,
    product: Product,
    unload: Option<Command>,
    _table: Option<Scratch>,
}

impl Drop for Farm {
    fn drop(&mut self) {
        if let Some(unload) = &mut self.unload {
            let _ = process::run(unload);
        }
    }
}

impl Farm {
    fn new(bench: &Bench, balancer: Balancer, backends: &[usize], flows: u64) -> Result<Self, Stop> {
        let Balancer { product, forward, configuration } = balancer;
        let line = Line::new(&configuration.into())?;
        let mut netlink = line.right.netlink()?;
        for backend in backends {
            let address = address_of(*backend).into();
            netlink.add_neighbour(line.right.index, address, mac_of(*backend))?;
        }
        let mut farm = Self { line, product, unload: None, _table: None };
        match product {
            Product::Trawl => farm.install_trawl(bench, forward, backends, flows)?,
            Product::Ipvs(scheduler) => farm.install_ipvs(bench, scheduler, forward, backends)?,
        }
        Ok(farm)
    }

    fn install_trawl(&mut self, bench: &Bench, forward: Forward, backends: &[usize], flows: u64) -> Result<(), Stop> {
        let forward = match forward {
            Forward::Direct => "direct",
            Forward::Ipip => "ipip",
        };
        let mut text =
            format!("[[vip]]\naddress = \"{VIP}\"\nprotocol = \"udp\"\nport = {PORT}\nforward = \"{forward}\"\n");
        for backend in backends {
            text += &format!("[[vip.backend]]\naddress = \"{}\"\n", address_of(*backend));
        }
        let table = Scratch::new(&bench.scratch, "balance.toml")?;
        std::fs::write(table.path(), text).map_err(|e| Error::os("cannot write the table", e))?;
        // Every CPU has its own list for its share of the flow table, and one of them handles all packets.
        let room = (flows * cpus() as u64 * 5 / 4).clamp(65_536, 67_108_864);
        let left = label(&self.line.left);
        let mut load = bench.command(&["balance", "load", &left]);
        load.arg(table.path()).args(["--flows", &room.to_string()]);
        process::run(&mut load).map_err(first_line)?;
        self.unload = Some(bench.command(&["balance", "unload", &left]));
        self._table = Some(table);
        Ok(())
    }

    fn install_ipvs(&self, bench: &Bench, scheduler: &str, forward: Forward, backends: &[usize]) -> Result<(), Stop> {
        // The module gets a connection table with room for a million, unless it is loaded already.
        let _ = process::run(process::command("modprobe").args(["ip_vs", "conn_tab_bits=20"]));
        let ipvsadm = bench.peers.path("ipvsadm")?;
        let mut list = process::command_in(&self.line.left.name, ipvsadm);
        process::run(list.args(["--list", "--numeric"])).map_err(|refusal| {
            Stop::NotHere(format!(
                "this kernel has no IPVS (module ip_vs), which Debian's kernels have. ipvsadm: {}",
                refusal.why()
            ))
        })?;
        let router = &self.line.left.name;
        let vip = format!("{VIP}/32");
        let mut ip = process::command("ip");
        process::run(ip.args(["-n", router, "address", "add", &vip, "dev", "lo"]))?;
        for setting in [
            "net.ipv4.conf.all.rp_filter=0",
            "net.ipv4.conf.left.rp_filter=0",
            // A flow whose backend is removed moves to another one with its second packet instead of being dropped.
            "net.ipv4.vs.expire_nodest_conn=1",
        ] {
            let mut sysctl = process::command_in(router, "sysctl");
            process::run(sysctl.args(["-q", "-w", setting]))?;
        }
        let service = format!("{VIP}:{PORT}");
        self.ipvs(bench, &["-A", "-u", &service, "-s", scheduler])?;
        let method = match forward {
            Forward::Direct => "-g",
            Forward::Ipip => "-i",
        };
        for backend in backends {
            let real = format!("{}:{PORT}", address_of(*backend));
            self.ipvs(bench, &["-a", "-u", &service, "-r", &real, method])?;
        }
        Ok(())
    }

    fn ipvs(&self, bench: &Bench, arguments: &[&str]) -> Result<(), Stop> {
        let ipvsadm = bench.peers.path("ipvsadm")?;
        let mut command = process::command_in(&self.line.left.name, ipvsadm);
        process::run(command.args(arguments))?;
        Ok(())
    }

    fn remove(&self, bench: &Bench, backend: usize) -> Result<(), Stop> {
        let address = address_of(backend);
        match self.product {
            Product::Trawl => {
                let (vip, address) = (format!("udp:{VIP}:{PORT}"), address.to_string());
                let left = label(&self.line.left);
                let remove = ["balance", "backend", "remove", &vip, &address, "--on", &left];
                trawl(bench, &remove)
            }
            Product::Ipvs(_) => {
                let (service, real) = (format!("{VIP}:{PORT}"), format!("{address}:{PORT}"));
                self.ipvs(bench, &["-d", "-u", &service, "-r", &real])
            }
        }
    }

    fn send(&self, bench: &Bench, traffic: &Traffic) -> Result<Sent> {
        traffic.send_to(&bench.trawl, &self.line.a, &VIP.to_string())
    }

    /// Sends each flow once, and returns the backend of each flow that reached one.
    fn send_each(&self, bench: &Bench, flows: u64) -> Result<HashMap<[u8; 6], usize>, Stop> {
        let file = Scratch::new(&bench.scratch, "flows")?;
        let at = label(&self.line.b);
        let (mut trawl, ready) = trawl_capture(bench, "packet", "in", &[&at], file.path());
        let peer = Peer::start("trawl", &mut trawl, capture_cpu(), ready)?;
        self.send(bench, &each(64, flows))?;
        peer.finish()?;
        Ok(reached(file.path())?)
    }
}

/// Returns the backends by the source address and port of each frame in a file.
fn reached(path: &Path) -> Result<HashMap<[u8; 6], usize>> {
    let mut flows = HashMap::new();
    each_packet(path, |packet| {
        let frame = packet.captured;
        if frame.len() < 38 || frame[..5] != mac_of(0)[..5] {
            return;
        }
        let mut flow = [0; 6];
        flow[..4].copy_from_slice(&frame[26..30]);
        flow[4..].copy_from_slice(&frame[34..36]);
        flows.insert(flow, usize::from(frame[5]));
    })?;
    Ok(flows)
}
