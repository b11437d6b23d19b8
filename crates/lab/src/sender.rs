//! A sender for tests and small experiments: it sends the given frames out of one interface with the generator's
//! engines, and counts them exactly.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use trawl_gen::Source;
use trawl_gen::engine::{Live, Packet};
use trawl_gen::pace::Rate;
use trawl_gen::pattern::{Exception, Pattern, PatternSource, Variant};
use trawl_gen::run::{Sending, run};
use trawl_gen::source::InTurn;
use trawl_packet::build::Template;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result};

use crate::pair::Addresses;

/// Variation of frames: one in N has two other bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variation {
    /// Offset of the two bytes; at most 255.
    pub offset: u8,
    pub usual: [u8; 2],
    pub other: [u8; 2],
    /// Number of the first varied frame, and the distance to each later one.
    pub every: u32,
}

/// Means of sending frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// XDP frames made in the kernel, directly to the peer's driver: the fastest.
    Live,
    /// The same, with a variation in every Nth frame.
    LiveVaried(Variation),
    /// A raw packet socket: through the stack's transmit path, any length.
    Packet,
}

/// A job of the sender.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    pub namespace: Option<&'a Namespace>,
    pub interface: &'a str,
    /// Frames to send in turn, starting over after the last.
    pub frames: &'a [Vec<u8>],
    /// Number of frames in all.
    pub count: u64,
    pub engine: Engine,
    /// Frames a second; `None`: as fast as possible.
    pub rate: Option<u64>,
    /// CPU to run on. With a veth it also selects the receiving queue: CPU modulo queues.
    pub cpu: Option<usize>,
}

/// Result of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Frames that the interface accepted: exactly as many as requested.
    pub packets: u64,
    /// Frames that it refused at first, for lack of space at the other end, and that were sent again.
    pub again: u64,
    pub took: Duration,
}

impl Sent {
    pub fn per_second(&self) -> f64 {
        self.packets as f64 / self.took.as_secs_f64().max(f64::EPSILON)
    }
}

/// Sends on a thread of its own, and returns once the last frame is accepted.
pub fn send(job: &Job<'_>) -> Result<Sent> {
    if job.frames.is_empty() {
        return Err(Error::usage("cannot send", "no frame is given"));
    }
    if job.rate == Some(0) {
        return Err(Error::usage("cannot send", "the rate is 0"));
    }
    let open = |_| {
        let mut source = source(job);
        let engine: Box<dyn trawl_gen::Engine> = match job.engine {
            Engine::Packet => Box::new(Packet::open(job.interface, source.longest())?),
            Engine::Live | Engine::LiveVaried(_) => Box::new(Live::open(job.interface, source.as_mut(), None)?),
        };
        Ok((engine, source))
    };
    let plan = Sending {
        namespace: job.namespace,
        interface: job.interface,
        device: None,
        cpus: &[job.cpu],
        rate: job.rate.map_or(Rate::Unlimited, |rate| Rate::Frames(rate as f64)),
        profile: None,
        burst: 1,
        count: Some(job.count),
        duration: None,
    };
    let report = run(&plan, &open, &mut |_| true)?;
    match report.failure {
        Some(error) => Err(error),
        None => {
            Ok(Sent { packets: report.figures.frames, again: report.figures.refused, took: report.figures.elapsed })
        }
    }
}

fn source(job: &Job<'_>) -> Box<dyn Source> {
    let pattern = match (job.engine, job.frames) {
        (Engine::LiveVaried(variation), [frame, ..]) => varied(frame, variation),
        (Engine::Live, [frame]) => Pattern::fixed(frame.clone()),
        _ => return Box::new(InTurn::new(job.frames.to_vec())),
    };
    Box::new(PatternSource::new(Arc::new(pattern), 0, 1))
}

fn varied(frame: &[u8], variation: Variation) -> Pattern {
    let with = |field: [u8; 2]| {
        let mut frame = frame.to_vec();
        let at = usize::from(variation.offset);
        if let Some(bytes) = frame.get_mut(at..at + 2) {
            bytes.copy_from_slice(&field);
        }
        Variant::new(frame, Vec::new(), &[])
    };
    let exception = Exception { every: u64::from(variation.every.max(1)), further: 1 };
    let variants = vec![with(variation.usual), with(variation.other)];
    Pattern::new(variants, vec![0], None, Some(exception))
}

const BROADCAST: [u8; 6] = [0xff; 6];
const SOURCE_PORT: u16 = 40_000;
/// The discard service: a host that runs it throws the packets away.
const DISCARD_PORT: u16 = 9;
/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 14 + 20 + 8;
const LONGEST: usize = 14 + 65_535;

/// Builds a UDP frame of `size` bytes (without the checksum at an Ethernet frame's end) from an interface with this
/// address: to the other side if it is a lab's, else to the broadcast address.
pub fn udp_from(mac: [u8; 6], size: usize) -> Result<Vec<u8>> {
    if !(HEADERS..=LONGEST).contains(&size) {
        return Err(Error::usage(
            format!("cannot build a UDP frame of {size} bytes"),
            format!("a frame has {HEADERS} to {LONGEST} bytes"),
        ));
    }
    let sides = [Addresses::new(0), Addresses::new(1)];
    let (to, from, other) = match sides.iter().position(|plan| plan.mac == mac) {
        Some(side) => (sides[1 - side].mac, sides[side].ipv4, sides[1 - side].ipv4),
        // Addresses reserved for documentation.
        None => (BROADCAST, Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)),
    };
    Ok(Template::new()
        .ethernet(mac, to)
        .ipv4(from, other)
        .udp(SOURCE_PORT, DISCARD_PORT)
        .payload(vec![0; size - HEADERS])
        .build())
}

/// Builds an Ethernet frame of the experimental type 0x88b5, which no protocol of the stack handles.
pub fn experimental(source: [u8; 6], destination: [u8; 6], size: usize) -> Vec<u8> {
    let mut frame = [destination.as_slice(), &source, &[0x88, 0xb5]].concat();
    frame.resize(size.max(frame.len()), 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_job_is_refused() {
        let job = |frames, rate| Job {
            namespace: None,
            interface: "x",
            frames,
            count: 1,
            engine: Engine::Live,
            rate,
            cpu: None,
        };
        assert!(send(&job(&[], None)).is_err());
        assert!(send(&job(&[vec![0; 60]], Some(0))).is_err());
    }

    #[test]
    fn size_is_exact_and_the_other_side_is_addressed() {
        for size in [42, 60, 64, 1514, 9014] {
            assert_eq!(udp_from([2, 0, 0, 0, 0, 9], size).unwrap().len(), size);
        }
        let [first, second] = [Addresses::new(0), Addresses::new(1)];
        assert_eq!(udp_from(first.mac, 64).unwrap()[..6], second.mac);
        assert_eq!(udp_from(second.mac, 64).unwrap()[..6], first.mac);
        assert_eq!(udp_from([2, 0, 0, 0, 0, 9], 64).unwrap()[..6], BROADCAST);
    }

    #[test]
    fn sizes_below_headers_or_beyond_ip_are_refused() {
        assert!(udp_from([2; 6], 41).is_err());
        assert!(udp_from([2; 6], LONGEST + 1).is_err());
    }
}
