//! A line of namespaces with a balancer in its middle: trawl's or IPVS, told of its backends, and the flows sent through it.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use trawl_lab::{Line, LineOptions};
use trawl_packet::read::CaptureReader;
use trawl_sys::{Error, Result};

use super::super::programs::who::{first_line, label};
use super::{Forward, PORT, VIP, Who, each};
use crate::process;
use crate::process::Peer;
use crate::scratch::Scratch;
use crate::traffic::Traffic;
use crate::{Bench, Stop};

fn address_of(backend: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 2, 10 + backend as u8)
}

fn mac_of(backend: usize) -> [u8; 6] {
    [2, b'b', 0, 0, 0, backend as u8]
}

/// A line with a balancer in its middle.
pub(super) struct Farm {
    pub(super) line: Line,
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
    pub(super) fn new(
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
        // Every CPU has a list of its own with its share of the flow table, and one of them takes all packets.
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
        // A table of connections that a million fit into, where the module is not loaded yet.
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
            // A flow whose backend is removed goes to another one from its second packet on, not nowhere.
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

    pub(super) fn remove(&self, bench: &Bench, backend: usize) -> Result<(), Stop> {
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

    pub(super) fn send(&self, bench: &Bench, traffic: &Traffic) -> Result<crate::traffic::Sent> {
        traffic.send_to(bench, &self.line.a, &VIP.to_string())
    }

    /// Sends each flow once: the backend that it reached, for those that reached one.
    pub(super) fn send_each(
        &self,
        bench: &Bench,
        flows: u64,
    ) -> Result<HashMap<[u8; 6], usize>, Stop> {
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

/// By the source address and port of each frame in a file.
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
