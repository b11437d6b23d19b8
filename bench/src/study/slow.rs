//! The cost of looking for slow connections, to the connections of the host.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use trawl_lab::{Pair, PairOptions};
use trawl_sys::netns::run_in;
use trawl_sys::process as own;
use trawl_sys::{Error, Result};

use super::definition::Space;
use super::{Bench, Case, Comparison, Measured, Outcome, Stop, compared, named};
use crate::model::{Experiment, Finding};
use crate::process::{self, Background, Peer};
use crate::traffic::{SENDER_CPU, capture_cpu};

const NOTHING: &str = "nothing";
const TRAWL: &str = "trawl slow";
const POLLING: &str = "ss -ti each second";
const BCC: &str = "bcc tcplife, tcpretrans and tcprtt";

/// The tools that look on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Looking {
    Nothing,
    Trawl,
    Polling,
    Bcc,
}

const SERIES: [(&str, Looking); 4] =
    [(NOTHING, Looking::Nothing), (TRAWL, Looking::Trawl), (POLLING, Looking::Polling), (BCC, Looking::Bcc)];
/// The shell's loop of `ss`, which says when it begins.
const LOOP: &str = "echo looking; while ss -tiHn >/dev/null; do sleep 1; done";
/// Programs of bcc, each with the first words that it prints when it is ready.
const PROGRAMS_OF_BCC: [(&str, &str); 3] =
    [("tcplife-bpfcc", "PID"), ("tcpretrans-bpfcc", "Tracing"), ("tcprtt-bpfcc", "Tracing")];

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let transactions = space.number("transactions")? as u32;
    Case::each(space, "bytes", |series, bytes| {
        let looking = named(series, &SERIES)?;
        Ok(move |bench: &Bench| measure(bench, looking, bytes as usize, transactions))
    })
}

fn measure(bench: &Bench, looking: Looking, bytes: usize, transactions: u32) -> Outcome {
    let lab = Pair::new(&PairOptions::default())?;
    let loopback = ["-n", &lab.a.name, "link", "set", "dev", "lo", "up"];
    process::run(process::command("ip").args(loopback))?;
    let mut peer = None;
    let mut others = Vec::new();
    match looking {
        Looking::Nothing => {}
        Looking::Trawl => {
            let mut command = bench.command(&["slow", "--all-namespaces"]);
            peer = Some(Peer::start(TRAWL, &mut command, capture_cpu(), "measuring")?);
        }
        Looking::Polling => {
            let mut command = process::command_in_network(&lab.a.name, "sh");
            others.push(Background::start(command.args(["-c", LOOP]), "looking\n")?);
        }
        Looking::Bcc => {
            for (program, ready) in PROGRAMS_OF_BCC {
                let started = Background::start(&mut process::command(program), ready);
                others.push(started.map_err(|error| Stop::NotHere(error.to_string()))?);
            }
        }
    }
    let seconds = run_in(&lab.a.namespace, || transact(bytes, transactions))?;
    if let Some(peer) = peer {
        peer.finish()?;
    }
    let seconds = seconds.map_err(|e| Error::os("cannot exchange data over the loopback interface", e))?;
    let microseconds = seconds * 1e6 / f64::from(transactions);
    Ok(Measured { values: [("cpu_us", microseconds)].into(), seconds, ..Measured::default() })
}

/// Sends requests and answers between two threads on one CPU, and returns the CPU time of this process.
fn transact(bytes: usize, transactions: u32) -> std::io::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let pin = || own::pin_thread(SENDER_CPU).map_err(std::io::Error::other);
    thread::scope(|threads| {
        let server = threads.spawn(move || {
            pin()?;
            let (mut stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            let mut data = vec![0; bytes];
            while stream.read_exact(&mut data).is_ok() {
                stream.write_all(&data)?;
            }
            std::io::Result::Ok(())
        });
        let client = threads.spawn(move || {
            pin()?;
            let mut stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            let mut data = vec![0; bytes];
            let before = own::cpu_seconds(std::process::id());
            for _ in 0..transactions {
                stream.write_all(&data)?;
                stream.read_exact(&mut data)?;
            }
            std::io::Result::Ok(own::cpu_seconds(std::process::id()) - before)
        });
        let ended = |_| std::io::Error::other("a thread panicked");
        let seconds = client.join().map_err(ended)??;
        server.join().map_err(ended)??;
        Ok(seconds)
    })
}

pub fn judge(experiment: &Experiment) -> Finding {
    compared(experiment, &[(TRAWL, NOTHING), (POLLING, NOTHING), (BCC, NOTHING)], "cpu_us", Comparison::Share)
}
