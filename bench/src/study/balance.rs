//! The load balancer compared with IPVS (study B): packets a second by the number of flows, and the flows that the removal
//! of a backend moves.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Line, LineOptions};
use trawl_packet::read::CaptureReader;
use trawl_sys::{Error, Result};

use super::contenders::{first_line, label};
use super::definition::Space;
use super::programs::measured;
use super::{Bench, Case, Measure, Measured, Stop, named};
use crate::model::{Agreement, Experiment, Finding};
use crate::process;
use crate::process::Peer;
use crate::scratch::Scratch;
use crate::traffic::{Amount, Traffic, received};

const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
const PORT: u16 = 9;
/// Index of the backend that is removed.
const REMOVED: usize = 1;
const MOST_BACKENDS: usize = 200;

#[derive(Clone, Copy, Debug)]
pub enum Balance {
    Rate,
    Moves,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Trawl,
    /// IPVS with this scheduler.
    Ipvs(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forward {
    Direct,
    Ipip,
}

const RATES: &[(&str, (Who, Forward))] = &[
    ("trawl direct", (Who::Trawl, Forward::Direct)),
    ("trawl ipip", (Who::Trawl, Forward::Ipip)),
    ("IPVS direct", (Who::Ipvs("mh"), Forward::Direct)),
    ("IPVS ipip", (Who::Ipvs("mh"), Forward::Ipip)),
];

/// True if the flows are known when the backend is removed; false if they come afterwards.
const MOVES: &[(&str, (Who, bool))] = &[
    ("trawl established", (Who::Trawl, true)),
    ("trawl new", (Who::Trawl, false)),
    ("IPVS mh established", (Who::Ipvs("mh"), true)),
    ("IPVS mh new", (Who::Ipvs("mh"), false)),
    ("IPVS sh new", (Who::Ipvs("sh"), false)),
];

fn backends(number: f64) -> Result<usize> {
    let number = number as usize;
    match (2..=MOST_BACKENDS).contains(&number) {
        true => Ok(number),
        false => Err(Error::usage(
            format!("{number} backends"),
            format!("2 to {MOST_BACKENDS} are possible"),
        )),
    }
}

impl Measure for Balance {
    fn cases(&self, space: &Space, _: &Bench) -> Result<Vec<Case>> {
        match self {
            Self::Rate => {
                let (size, seconds) = (space.number("size")? as usize, space.number("seconds")?);
                let backends = backends(space.number("backends")?)?;
                Case::each(space, "flows", |series, flows| {
                    let (_, (who, forward)) = named(series, RATES)?;
                    Ok(Box::new(move |bench| {
                        let flood = Traffic::flood(size, seconds, &[bench.sender_cpu]);
                        rate(bench, who, forward, backends, flows as u64, flood)
                    }))
                })
            }
            Self::Moves => {
                let flows = space.number("flows")? as u64;
                Case::each(space, "backends", |series, x| {
                    let (_, (who, established)) = named(series, MOVES)?;
                    let backends = backends(x)?;
                    Ok(Box::new(move |bench| {
                        moves(bench, who, established, backends, flows)
                    }))
                })
            }
        }
    }

    fn judge(&self, experiment: &Experiment) -> Finding {
        match self {
            Self::Rate => judge_rate(experiment),
            Self::Moves => judge_moves(experiment),
        }
    }
}

/// Sets the arguments for this many flows, the same ones each time. Frames that are rewritten on their path return as they
/// were left, unless they are of more than one kind: then all headers are written anew.
fn with_flows(mut traffic: Traffic, flows: u64) -> Traffic {
    let flows = flows.to_string();
    let words = [
        ["--flows", &flows],
        ["--src", "random:10.64.0.0/10"],
        ["--src-port", "random:1024-65535"],
        ["--every", "2:ttl=63"],
    ];
    traffic.more = words.concat().into_iter().map(str::to_owned).collect();
    traffic
}

fn each(size: usize, flows: u64, cpu: usize) -> Traffic {
    let traffic = Traffic {
        amount: Amount::Frames(flows),
        ..Traffic::flood(size, 0.0, &[cpu])
    };
    with_flows(traffic, flows)
}

fn rate(
    bench: &Bench,
    who: Who,
    forward: Forward,
    backends: usize,
    flows: u64,
    flood: Traffic,
) -> Result<Measured, Stop> {
    let all: Vec<usize> = (0..backends).collect();
    let farm = Farm::new(bench, who, forward, &all, flows)?;
    let _end = Loaded::native(Does::Drop, &farm.line.b)?;
    // The experiment measures the forwarding of established flows.
    farm.send(bench, &each(flood.size, flows, bench.sender_cpu))?;
    let before = received(&farm.line.b)?;
    let sent = farm.send(bench, &with_flows(flood, flows))?;
    let done = received(&farm.line.b)? - before;
    if done == 0 {
        return Err(Stop::Failed("no frame reached a backend".to_owned()));
    }
    Ok(measured(&sent, done))
}

fn moves(
    bench: &Bench,
    who: Who,
    established: bool,
    backends: usize,
    flows: u64,
) -> Result<Measured, Stop> {
    let all: Vec<usize> = (0..backends).collect();
    let rest: Vec<usize> = all.iter().copied().filter(|one| *one != REMOVED).collect();
    let farm = Farm::new(bench, who, Forward::Direct, &all, flows)?;
    let before = farm.send_each(bench, flows)?;
    let after = if established {
        farm.remove(bench, REMOVED)?;
        farm.send(bench, &each(64, flows, bench.sender_cpu))?;
        farm.send_each(bench, flows)?
    } else {
        drop(farm);
        Farm::new(bench, who, Forward::Direct, &rest, flows)?.send_each(bench, flows)?
    };
    if (before.len() as u64) < flows * 9 / 10 {
        return Err(Stop::Failed(format!(
            "only {} of {flows} flows reached a backend before the removal",
            before.len()
        )));
    }
    let share = |count: usize| count as f64 / before.len() as f64 * 100.0;
    let is_elsewhere =
        |flow: &[u8; 6], backend: &usize| after.get(flow).is_some_and(|now| now != backend);
    let moved: Vec<usize> = before
        .iter()
        .filter(|(flow, backend)| is_elsewhere(flow, backend))
        .map(|(_, backend)| *backend)
        .collect();
    let needless = moved.iter().filter(|backend| **backend != REMOVED).count();
    let lost = before
        .keys()
        .filter(|flow| !after.contains_key(*flow))
        .count();
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

fn at(experiment: &Experiment, series: &str, metric: &str, x: f64) -> Option<f64> {
    let line = experiment.line(series, metric);
    let point = line.iter().find(|point| point.x == x);
    point.map(|point| point.value.median)
}

fn judge_rate(experiment: &Experiment) -> Finding {
    let xs = || experiment.points.iter().map(|point| point.x);
    let (few, many) = (xs().fold(f64::INFINITY, f64::min), xs().fold(0.0, f64::max));
    let mut said = Vec::new();
    let mut least = f64::INFINITY;
    for way in ["direct", "ipip"] {
        let (ours, theirs) = (format!("trawl {way}"), format!("IPVS {way}"));
        for flows in [few, many] {
            if let Some(ratio) = experiment.paired(&ours, &theirs, "mpps", flows) {
                least = least.min(ratio.median);
                said.push(format!(
                    "{:.1} times IPVS by {way} with {flows} flows",
                    ratio.median
                ));
            }
        }
    }
    let shown: Vec<String> = [few, many]
        .into_iter()
        .flat_map(|flows| {
            let of = move |series: String| {
                let rate = at(experiment, &series, "mpps", flows)?;
                Some(format!("{series} {rate:.2}"))
            };
            let rates: Vec<String> = experiment.series().into_iter().filter_map(of).collect();
            (!rates.is_empty()).then(|| format!("{flows} flows: {} (Mpps)", rates.join(", ")))
        })
        .collect();
    Finding {
        agrees: match said.is_empty() {
            true => Agreement::NotMeasured,
            false if least >= 3.0 => Agreement::Yes,
            false if least > 1.5 => Agreement::Partly,
            false => Agreement::No,
        },
        shows: shown.join("; "),
        sentence: match said.is_empty() {
            true => String::new(),
            false => format!(
                "trawl balance is {} (published: 3 to 4 times).",
                said.join(", ")
            ),
        },
    }
}

/// Share in percent of other flows that consistent hashing may move in addition to the removed backend's own.
const SMALL_SHARE: f64 = 5.0;

fn judge_moves(experiment: &Experiment) -> Finding {
    let needless = |series: &str| experiment.line(series, "needless_percent");
    let most = |series: &str| {
        let shares = needless(series).into_iter().map(|point| point.value.median);
        shares.reduce(f64::max)
    };
    let (Some(established), Some(new)) = (most("trawl established"), most("trawl new")) else {
        return Finding::default();
    };
    let shown = experiment
        .series()
        .into_iter()
        .filter_map(|series| Some(format!("{series} {:.1} %", most(&series)?)));
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
    who: Who,
    unload: Option<PathBuf>,
    _table: Option<Scratch>,
}

impl Drop for Farm {
    fn drop(&mut self) {
        if let Some(trawl) = &self.unload {
            let mut command = process::command(trawl);
            let _ = process::run(command.args(["balance", "unload", &label(&self.line.left)]));
        }
    }
}

impl Farm {
    fn new(
        bench: &Bench,
        who: Who,
        forward: Forward,
        backends: &[usize],
        flows: u64,
    ) -> Result<Self, Stop> {
        let line = Line::new(&LineOptions::default())?;
        let mut netlink = line.right.netlink()?;
        for backend in backends {
            let address = address_of(*backend).into();
            netlink.add_neighbour(line.right.index, address, mac_of(*backend))?;
        }
        let mut farm = Self {
            line,
            who,
            unload: None,
            _table: None,
        };
        match who {
            Who::Trawl => farm.place_trawl(bench, forward, backends, flows)?,
            Who::Ipvs(scheduler) => farm.place_ipvs(bench, scheduler, forward, backends)?,
        }
        Ok(farm)
    }

    fn place_trawl(
        &mut self,
        bench: &Bench,
        forward: Forward,
        backends: &[usize],
        flows: u64,
    ) -> Result<(), Stop> {
        let forward = match forward {
            Forward::Direct => "direct",
            Forward::Ipip => "ipip",
        };
        let mut text = format!(
            "[[vip]]\naddress = \"{VIP}\"\nprotocol = \"udp\"\nport = {PORT}\nforward = \"{forward}\"\n"
        );
        for backend in backends {
            text += &format!("[[vip.backend]]\naddress = \"{}\"\n", address_of(*backend));
        }
        let table = Scratch::new(&bench.scratch, "balance.toml")?;
        std::fs::write(table.path(), text).map_err(|e| Error::os("cannot write the table", e))?;
        // Every CPU has its own list for its share of the flow table, and one of them handles all packets.
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let room = (flows * cpus * 5 / 4)
            .clamp(262_144, 67_108_864)
            .to_string();
        let mut command = process::command(&bench.trawl);
        command.args(["balance", "load", &label(&self.line.left)]);
        command.arg(table.path()).args(["--flows", &room]);
        process::run(&mut command).map_err(first_line)?;
        self.unload = Some(bench.trawl.clone());
        self._table = Some(table);
        Ok(())
    }

    fn place_ipvs(
        &self,
        bench: &Bench,
        scheduler: &str,
        forward: Forward,
        backends: &[usize],
    ) -> Result<(), Stop> {
        // A connection table with room for a million, if the module is not loaded yet.
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
        let way = match forward {
            Forward::Direct => "-g",
            Forward::Ipip => "-i",
        };
        for backend in backends {
            let real = format!("{}:{PORT}", address_of(*backend));
            self.ipvs(bench, &["-a", "-u", &service, "-r", &real, way])?;
        }
        Ok(())
    }

    fn ipvs(&self, bench: &Bench, words: &[&str]) -> Result<(), Stop> {
        let ipvsadm = bench.peers.path("ipvsadm")?;
        let mut command = process::command_in(&self.line.left.name, ipvsadm);
        process::run(command.args(words))?;
        Ok(())
    }

    fn remove(&self, bench: &Bench, backend: usize) -> Result<(), Stop> {
        let address = address_of(backend);
        match self.who {
            Who::Trawl => {
                let vip = format!("udp:{VIP}:{PORT}");
                let mut command = process::command(&bench.trawl);
                command.args(["balance", "backend", "remove", &vip, &address.to_string()]);
                command.args(["--on", &label(&self.line.left)]);
                process::run(&mut command).map_err(first_line)?;
                Ok(())
            }
            Who::Ipvs(_) => {
                let (service, real) = (format!("{VIP}:{PORT}"), format!("{address}:{PORT}"));
                self.ipvs(bench, &["-d", "-u", &service, "-r", &real])
            }
        }
    }

    fn send(&self, bench: &Bench, traffic: &Traffic) -> Result<crate::traffic::Sent> {
        traffic.send_to(bench, &self.line.a, &VIP.to_string())
    }

    /// Sends each flow once, and returns the backend of each flow that reached one.
    fn send_each(&self, bench: &Bench, flows: u64) -> Result<HashMap<[u8; 6], usize>, Stop> {
        let file = Scratch::new(&bench.scratch, "flows")?;
        let mut command = process::command(&bench.trawl);
        command.args(["capture", "--tap", "packet", "-Q", "in", "-i"]);
        command.arg(label(&self.line.b)).arg("-w").arg(file.path());
        let peer = Peer::start("trawl", &mut command, bench.capture_cpu, "capturing on")?;
        self.send(bench, &each(64, flows, bench.sender_cpu))?;
        peer.finish()?;
        Ok(reached(file.path())?)
    }
}

/// Returns the backends by the source address and port of each frame in a file.
fn reached(path: &Path) -> Result<HashMap<[u8; 6], usize>> {
    let what = "cannot read which backends the flows reached";
    let file = File::open(path).map_err(|e| Error::os(what, e))?;
    let fail = |e| Error::failed(what, e);
    let mut reader = CaptureReader::new(BufReader::new(file)).map_err(fail)?;
    let mut flows = HashMap::new();
    while let Some(packet) = reader.next_packet().map_err(fail)? {
        let frame = packet.captured;
        if frame.len() < 38 || frame[..5] != mac_of(0)[..5] {
            continue;
        }
        let mut flow = [0; 6];
        flow[..4].copy_from_slice(&frame[26..30]);
        flow[4..].copy_from_slice(&frame[34..36]);
        flows.insert(flow, usize::from(frame[5]));
    }
    Ok(flows)
}
