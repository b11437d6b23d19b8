//! The cost of the process of each packet: to the rate of captures, and to the connections of the host.

use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use trawl_lab::{Pair, PairOptions};
use trawl_sys::netns::run_in;
use trawl_sys::{Error, Result};

use super::definition::Space;
use super::{Bench, Case, Comparison, Measured, Outcome, compared, named};
use crate::capture::Running;
use crate::model::{Experiment, Finding};
use crate::process::{self, Peer};
use crate::recorder::{Recorder, Setting};
use crate::scratch;
use crate::traffic::{SENDER_CPU, Traffic, capture_cpu};

const DISCARD: u16 = 9;
/// First source port of the flows.
const FIRST_PORT: u32 = 1024;
const OPTION: &str = "--process";
const READY: &str = "capturing on";
const WITHOUT: &str = "without";
const WITH: &str = "with --process";

const SERIES: [(&str, (Recorder, bool)); 4] = [
    ("tc", (Recorder::TrawlTc, false)),
    ("tc, process", (Recorder::TrawlTc, true)),
    ("xdp", (Recorder::TrawlXdp, false)),
    ("xdp, process", (Recorder::TrawlXdp, true)),
];

pub fn rates(space: &Space) -> Result<Vec<Case>> {
    let (size, seconds) = (space.number("size")? as usize, space.number("seconds")?);
    Case::each(space, "flows", |series, flows| {
        let (recorder, names_processes) = named(series, &SERIES)?;
        let last = FIRST_PORT + flows as u32 - 1;
        let traffic = Traffic::flood(size, seconds, &[SENDER_CPU]).with(&[
            "--flows",
            &flows.to_string(),
            "--src-port",
            &format!("{FIRST_PORT}-{last}"),
        ]);
        let setting =
            Setting { options: names_processes.then(|| OPTION.to_owned()).into_iter().collect(), ..Setting::default() };
        Ok(move |bench: &Bench| rate(bench, recorder, &setting, &traffic))
    })
}

fn rate(bench: &Bench, recorder: Recorder, setting: &Setting, traffic: &Traffic) -> Outcome {
    let running = Running::start(bench, recorder, setting)?;
    let to = &running.lab.b;
    let socket = run_in(&to.namespace, || UdpSocket::bind((to.ipv4, DISCARD)))?;
    let _receiver = socket.map_err(|e| Error::os("cannot receive datagrams", e))?;
    let sent = traffic.send(&bench.trawl, &running.lab.a, to)?;
    let mpps = sent.per_second() / 1e6;
    running.peer.finish()?;
    let recorded = scratch::contents(running.file.path(), Some(to.mac), false)?.packets;
    let mut measured = Measured::after(sent, []).recorded(recorded, setting, traffic);
    measured.values.insert("mpps", mpps);
    Ok(measured)
}

pub fn judge_rates(experiment: &Experiment) -> Finding {
    let pairs = [("tc, process", "tc"), ("xdp, process", "xdp")];
    compared(experiment, &pairs, "mpps", Comparison::Share)
}

pub fn connections(space: &Space) -> Result<Vec<Case>> {
    let time = Duration::from_secs_f64(space.number("seconds")?);
    Case::each(space, "threads", |series, _| {
        let names_processes = named(series, &[(WITHOUT, false), (WITH, true)])?;
        Ok(move |bench: &Bench| connection_rate(bench, names_processes, time))
    })
}

fn connection_rate(bench: &Bench, names_processes: bool, time: Duration) -> Outcome {
    let lab = Pair::new(&PairOptions::default())?;
    let loopback = ["-n", &lab.a.name, "link", "set", "dev", "lo", "up"];
    process::run(process::command("ip").args(loopback))?;
    let interface = format!("{}:{}", lab.b.name, lab.b.interface);
    let mut capture = bench.command(&["capture", "--tap", "tc", "-w", "/dev/null", "-i", &interface]);
    capture.args(names_processes.then_some(OPTION));
    let peer = Peer::start("a capture", &mut capture, capture_cpu(), READY)?;
    let rate = run_in(&lab.a.namespace, || connect_for(time))?;
    peer.finish()?;
    let rate = rate.map_err(|e| Error::os("cannot connect over the loopback interface", e))?;
    Ok(Measured { values: [("connections", rate)].into(), seconds: time.as_secs_f64(), ..Measured::default() })
}

/// Makes, accepts and closes connections, and returns their number per second.
fn connect_for(time: Duration) -> std::io::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let (begun, mut count) = (Instant::now(), 0u32);
    while begun.elapsed() < time {
        let client = TcpStream::connect(address)?;
        drop(listener.accept()?);
        drop(client);
        count += 1;
    }
    Ok(f64::from(count) / begun.elapsed().as_secs_f64())
}

pub fn judge_connections(experiment: &Experiment) -> Finding {
    compared(experiment, &[(WITH, WITHOUT)], "connections", Comparison::Share)
}
