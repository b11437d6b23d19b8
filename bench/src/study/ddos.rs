//! Requests and responses over one TCP connection during an attack of small UDP packets, with and without a filter in
//! XDP.
//!
//! The pair is trawl's own: one byte in each direction, like TCP_RR of netperf.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use std::time::{Duration, Instant};

use trawl_lab::{Pair, PairOptions};
use trawl_sys::netns::run_in;
use trawl_sys::{Error, Result};

use super::contenders::Contender;
use super::definition::Space;
use super::{Bench, Case, Measured, Outcome};
use crate::machine::Sample;
use crate::model::{Agreement, Experiment, Finding};
use crate::traffic::{Amount, Napi, SENDER_CPU, Sent, Traffic, capture_cpu, interface_name, received};

const SERVICE: u16 = 7001;
const TIMEOUT: Duration = Duration::from_secs(5);

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let seconds = space.number("seconds")?;
    Case::each(space, "kpps", |series, thousands| {
        let filter = Contender::find(series)?;
        let rate = thousands * 1e3;
        Ok(move |bench: &Bench| measure(bench, filter, rate, seconds))
    })
}

pub fn judge(experiment: &Experiment) -> Finding {
    let (none, rate) = experiment.ends();
    let at = |series, rate| experiment.median(series, "transactions", rate);
    let (Some(calm), Some(without), Some(with)) =
        (at("without filter", none), at("without filter", rate), at("with XDP filter", rate))
    else {
        return Finding::default();
    };
    let agrees = match (with > without * 1.1, with > calm * 0.5) {
        (true, true) => Agreement::Yes,
        (true, false) => Agreement::Partly,
        _ => Agreement::No,
    };
    Finding {
        agrees,
        shows: format!(
            "{calm:.0} transactions/s undisturbed; at {rate} kpps {without:.0} without, {with:.0} with the filter"
        ),
        sentence: format!(
            "At the strongest attack the filter keeps {:.0} % of the undisturbed rate, the stack alone {:.0} %; the sender of the \
             attack shares the two CPUs with both ends.",
            with / calm * 100.0,
            without / calm * 100.0
        ),
    }
}

/// Offloads with which a veth hands TCP to the stack on the sender's CPU. Without them, it hands TCP to the receiver's
/// thread, like the attack.
const OFFLOADS: [&str; 4] =
    ["tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation"];

fn measure(bench: &Bench, filter: Contender, rate: f64, seconds: f64) -> Outcome {
    let lab = Pair::new(&PairOptions { interfaces: [interface_name(), interface_name()], ..PairOptions::default() })?;
    for station in [&lab.a, &lab.b] {
        let ethtool = station.ethtool()?;
        for offload in OFFLOADS {
            ethtool.set_feature(offload, false)?;
        }
    }
    let _installed = filter.install(bench, &lab.b, &lab.a)?;
    // The service, and all its incoming packets, are on one core, as in the study; the client is on the other.
    Napi::pinned(&lab.a, SENDER_CPU)?;
    Napi::pinned(&lab.b, capture_cpu())?;
    Ok(transact(bench, &lab, rate, seconds)?)
}

fn transact(bench: &Bench, lab: &Pair, rate: f64, seconds: f64) -> Result<Measured> {
    let os = |e| Error::os("cannot exchange requests and responses", e);
    let listener = run_in(&lab.b.namespace, || TcpListener::bind((lab.b.ipv4, SERVICE)))?.map_err(os)?;
    let address = SocketAddr::from((lab.b.ipv4, SERVICE));
    std::thread::scope(|scope| {
        scope.spawn(|| respond(&listener, capture_cpu()));
        let stream = run_in(&lab.a.namespace, || TcpStream::connect_timeout(&address, TIMEOUT))?.map_err(os)?;
        let attack = (rate > 0.0).then(|| {
            let traffic = Traffic {
                amount: Amount::Time(Duration::from_secs_f64(seconds + 0.5)),
                // The client shares the sender's CPU; otherwise the sender would slow it down, and not the attack.
                low_priority: true,
                ..Traffic::at(64, rate, seconds)
            };
            scope.spawn(move || traffic.send(&bench.trawl, &lab.a, &lab.b))
        });
        let before = received(&lab.b)?;
        // The attack has begun when the device has received some of its frames.
        let deadline = Instant::now() + TIMEOUT;
        while rate > 0.0 && received(&lab.b)? < before + 100 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let sample = Sample::now();
        let client = scope.spawn(move || {
            pin_thread(SENDER_CPU);
            // The closed stream ends the responder's thread.
            exchange(&stream, Duration::from_secs_f64(seconds))
        });
        let exchanged = client.join().map_err(|_| Error::failed("the client", "its thread ended early"))?;
        let cpus = sample.until_now();
        let sent = attack.map(|thread| thread.join());
        let sent = match sent {
            Some(Ok(sent)) => Some(sent?),
            Some(Err(_)) => return Err(Error::failed("the attack", "its thread ended early")),
            None => None,
        };
        let (transactions, elapsed) = exchanged.map_err(os)?;
        Ok(Measured {
            values: [
                ("transactions", transactions as f64 / elapsed.as_secs_f64()),
                ("attack_kpps", sent.as_ref().map_or(0.0, Sent::per_second) / 1e3),
            ]
            .into(),
            sent: sent.map(|sent| sent.frames),
            seconds: elapsed.as_secs_f64(),
            cpus: Some(cpus),
            ..Measured::default()
        })
    })
}

/// Pins and prioritises the thread. If that is not possible, the CPU figures show it.
fn pin_thread(cpu: usize) {
    let _ = trawl_sys::process::pin_thread(cpu);
    let _ = trawl_sys::process::prefer_thread();
}

/// Sends each byte back until the other end is closed.
fn respond(listener: &TcpListener, cpu: usize) {
    pin_thread(cpu);
    let Ok((mut stream, _)) = listener.accept() else {
        return;
    };
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(TIMEOUT * 12));
    let mut byte = [0];
    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
}

/// Exchanges single bytes repeatedly. A late response ends the exchange: the counts stay.
fn exchange(mut stream: &TcpStream, time: Duration) -> io::Result<(u64, Duration)> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(time.max(Duration::from_millis(100))))?;
    let start = Instant::now();
    let mut count = 0;
    let mut byte = [0];
    while start.elapsed() < time {
        stream.write_all(&[1])?;
        match stream.read_exact(&mut byte) {
            Ok(()) => count += 1,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
    }
    Ok((count, start.elapsed()))
}
