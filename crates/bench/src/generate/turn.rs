//! One sender's turn: a lab of its own, some time of sending, and what came to the other end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trawl_gen::engine::{Live, Packet, Ring, Xsk};
use trawl_gen::pace::Rate;
use trawl_gen::pattern::{Pattern, PatternSource};
use trawl_gen::replay::rewrite::Rewrite;
use trawl_gen::replay::{Options, Replay, Speed};
use trawl_gen::run::run as run_generator;
use trawl_gen::traffic::{Limits, Protocol, Spec, pattern};
use trawl_gen::{Engine, Source};
use trawl_sys::{Error, Result};

use super::theirs::Theirs;
use super::{GenerateBench, PORTS, Sender, Shape};
use trawl_lab::Addresses;
use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Pair, PairOptions, Station};

/// Time to get going, before the frames are counted.
const WARM_UP: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(5);

/// Frames a second that came to the dropping program.
pub(super) fn turn(sender: Sender, plan: &GenerateBench, file: Option<&Path>) -> Result<f64> {
    let first = vec![Some(plan.cpu)];
    let second = vec![plan.second_cpu];
    match sender.shape() {
        Shape::One => one(sender, plan, &first, file),
        Shape::TwoThreads => one(sender, plan, &[first, second].concat(), file),
        Shape::TwoAlone => std::thread::scope(|scope| {
            let other = scope.spawn(|| one(sender, plan, &second, file));
            let own = one(sender, plan, &first, file);
            match other.join() {
                Ok(other) => Ok(own? + other?),
                Err(panicked) => std::panic::resume_unwind(panicked),
            }
        }),
    }
}

/// A sender in a lab of its own.
fn one(
    sender: Sender,
    plan: &GenerateBench,
    cpus: &[Option<usize>],
    file: Option<&Path>,
) -> Result<f64> {
    let pair = Pair::new(&PairOptions::default())?;
    let _drop = Loaded::native(Does::Drop, &pair.b)?;
    let rate = if sender.is_theirs() {
        let _process = Theirs::start(sender, &pair, plan)?;
        measure(&pair.b, plan.seconds, &|| true).map_err(|error| {
            error.fix("run it by hand to see why: versions up to 1.5 do not load on kernel 6.18")
        })
    } else {
        ours(sender, &pair, plan, cpus, file)
    };
    pair.remove()?;
    rate
}

/// Counts what comes while `goes_on` says that somebody sends.
fn measure(receiver: &Station, seconds: f64, goes_on: &dyn Fn() -> bool) -> Result<f64> {
    let mut netlink = receiver.netlink()?;
    let mut count = || -> Result<(Instant, u64)> {
        let link = netlink.link(&receiver.interface)?;
        Ok((Instant::now(), link.statistics.rx_packets))
    };
    let (begin, none) = count()?;
    while count()?.1 == none {
        if begin.elapsed() > PATIENCE || !goes_on() {
            return Err(Error::failed(
                "nothing was received",
                "the sender sends nothing",
            ));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(WARM_UP);
    let (start, before) = count()?;
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let (end, after) = count()?;
    Ok((after - before) as f64 / (end - start).as_secs_f64())
}

fn ours(
    sender: Sender,
    pair: &Pair,
    plan: &GenerateBench,
    cpus: &[Option<usize>],
    file: Option<&Path>,
) -> Result<f64> {
    let pattern = Arc::new(frames(sender, plan.frame_bytes)?);
    let over = AtomicBool::new(false);
    let interface = pair.a.interface.as_str();
    let open = |thread| {
        let mut source: Box<dyn Source> = match file.filter(|_| sender == Sender::Replay) {
            Some(file) => Box::new(replay(file)?),
            None => Box::new(PatternSource::new(Arc::clone(&pattern), thread, cpus.len())),
        };
        let longest = source.longest();
        let engine: Box<dyn Engine> = match sender {
            Sender::Xsk => Box::new(Xsk::open(interface, 0, longest)?),
            Sender::Packet | Sender::PacketPorts(_) | Sender::Replay => {
                Box::new(Packet::open(interface, longest)?)
            }
            Sender::Ring => Box::new(Ring::open(interface, longest)?),
            Sender::PlainLoop => Box::new(Packet::plain(interface, longest)?),
            _ => Box::new(Live::open(interface, source.as_mut(), None)?),
        };
        Ok((engine, source))
    };
    let order = trawl_gen::run::Sending {
        namespace: Some(&pair.a.namespace),
        interface,
        cpus,
        rate: Rate::Unlimited,
        profile: None,
        burst: 1,
        count: None,
        duration: None,
    };
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let result = run_generator(&order, &open, &mut |_| !over.load(Ordering::Relaxed));
            over.store(true, Ordering::Relaxed);
            result
        });
        let measured = measure(&pair.b, plan.seconds, &|| !over.load(Ordering::Relaxed));
        over.store(true, Ordering::Relaxed);
        let report = match running.join() {
            Ok(report) => report?,
            Err(panicked) => std::panic::resume_unwind(panicked),
        };
        report.failure.map_or(measured, Err)
    })
}

/// As fast as it goes, again and again.
fn replay(file: &Path) -> Result<Replay> {
    Replay::open(Options {
        files: vec![file.to_owned()],
        merge: false,
        rounds: None,
        speed: Speed::Unpaced,
        rewrite: Rewrite::default(),
        mtu: PairOptions::default().mtu,
    })
}

/// The same in each lab.
pub(super) fn frames(sender: Sender, length: usize) -> Result<Pattern> {
    let (from, to) = (Addresses::new(0), Addresses::new(1));
    let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let mut spec = Spec::new(Protocol::Udp);
    spec.set("src-mac", mac(from.mac))?;
    spec.set("dst-mac", mac(to.mac))?;
    spec.set("src", from.ipv4.to_string())?;
    spec.set("dst", to.ipv4.to_string())?;
    spec.set("size", length.to_string())?;
    if sender.varies_ports() {
        spec.set("dst-port", format!("1-{PORTS}"))?;
    }
    let limits = Limits {
        mtu: None,
        seed: 1,
        stamp: None,
    };
    Ok(pattern(&[(spec, 1)], &limits).map_err(|(_, misfit)| misfit)?)
}
